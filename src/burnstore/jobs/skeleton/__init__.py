"""Skeletons: the Rust source of a Burn module for a model of PyTorch, which loads what a conversion writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...checkpoint import open_checkpoint
from ...errors import AmbiguousError, ModelError
from ...io.paths import as_path, base_name, is_path
from ...models.bindings import binding_for
from ...pipeline.kinds import (
    kinds_of_classes,
    layout_of,
    recorded_modules,
    view_of_kinds,
    view_of_model,
    view_of_record,
)
from ...tensor.data import Shape
from ...transforms.guess import guess_kinds
from ...transforms.layout import COUNT, ModuleKind
from ...transforms.shapes import weight_norm_rules
from .forward import sequential_forward
from .source import Source, identifier
from .tree import tree_of_model, tree_of_shapes

_HEADER = """\
//! {name}, a Burn module for {origin}.
//!
//! Made by `burnstore skeleton`. Its tensors are those of the file that `burnstore convert` makes of the PyTorch model;
//! the forward passes marked with `todo!()` are yours to write.
{remarks}#![allow(dead_code, non_snake_case)]
#![allow(clippy::large_enum_variant, clippy::too_many_arguments, clippy::type_complexity)]

"""

_LOAD = """
impl {name} {{
    /// Load a file that burnstore converted from the PyTorch model; every tensor has to have its place on both sides.
    pub fn load(mut self, path: &str) -> Result<Self, String> {{
        let mut store = BurnpackStore::from_file(path){remaps};
        let tensors = store.get_all_tensors().map_err(|error| error.to_string())?;
        let result = self.apply(tensors.values().cloned().collect(), None, None, true);
        let complete = result.errors.is_empty() && result.missing.is_empty() && result.unused.is_empty();
        if complete {{ Ok(self) }} else {{ Err(result.to_string()) }}
    }}
}}

#[cfg(test)]
mod tests {{
    use super::*;

    /// Run `burnstore convert` first: the file is looked for beside Cargo.toml.
    #[test]
    fn loads_the_converted_file() {{
        {name}::init(&Device::default()).load("{file}.bpk").unwrap();
    }}
}}
"""


def skeleton(model: Any, *, name: str | None = None, top_level_key: str | None = None) -> str:
    """Return the Rust source of a Burn 0.22 module for a torch model, or for a checkpoint of PyTorch's layout.

    Structs have the fields of the modules in Burn's types, ``init`` has their configuration, ``forward`` is left to be
    written (for a model of ``nn.Sequential`` alone it is there), and ``load`` takes the file that `burnstore.convert`
    makes. ``name`` is what the outermost struct is called, ``top_level_key`` the part of a file. A file has no strides
    or the like: its skeleton has PyTorch's defaults. Raise ModelError for what Burn has no place for, AmbiguousError
    if a file's names and shapes do not say what its modules are.
    """
    if is_path(model):
        return _of_file(as_path(model), name, top_level_key)
    if top_level_key is not None:
        raise TypeError("top_level_key is the part of a file; a model has none")
    if layout_of(model) != "torch":
        raise ModelError("a model of PyTorch is needed", hint="give a torch.nn.Module, or a checkpoint of one")
    binding = binding_for(model)
    try:  # what cannot be converted is refused
        view_of_model(model, list(binding.walk(model))).check(None, "torch")
    except ModelError as error:
        if "AsIs" in (error.hint or ""):  # which a conversion may do
            error.hint = "replace this module in the PyTorch model, or declare the model by hand"
        raise
    kind = type(model)
    source = Source(tree_of_model(model), name or kind.__name__)
    origin = f"PyTorch's `{kind.__module__}.{kind.__qualname__}`"
    return _rendered(source, origin, "", sequential_forward(model, source))


def _of_file(path: str, name: str | None, key: str | None) -> str:
    with open_checkpoint(path, top_level_key=key) as file:
        snapshots = {each: file[each] for each in file}
        recorded = recorded_modules(file.metadata)
        if file.layout == "burn":
            if recorded is None:
                raise ModelError(
                    "a file in Burn's layout without a record of PyTorch's modules",
                    hint="give the PyTorch model or file that it was made of",
                )
            view = view_of_record(recorded, {each: held.shape for each, held in snapshots.items()}, "burn")
            snapshots = {each.path: each for each in view.to_torch(snapshots).snapshots}
        shapes = {each: snapshot.shape for each, snapshot in snapshots.items() if not each.endswith(COUNT)}
        by_class = kinds_of_classes(file.classes, shapes)
    kinds = {path: kind for path, kind in by_class.items() if kind is not None}
    if recorded is not None:
        kinds = {module.torch: module.kind for module in recorded}
    elif by_class:
        view_of_kinds(by_class, shapes, "torch", is_declared=True).check(None, "torch")
    else:
        kinds = _guessed(shapes)
    label = name or re.sub(r"\W", "_", base_name(path).partition(".")[0])
    source = Source(tree_of_shapes(shapes, kinds, label), label)
    remarks = "//! A checkpoint does not contain strides, paddings, epsilon: they are PyTorch's defaults here.\n"
    return _rendered(source, f"the checkpoint `{base_name(path)}`", remarks, None)


def _guessed(shapes: Mapping[str, Shape]) -> dict[str, ModuleKind]:
    guess = guess_kinds(shapes)
    if guess.ambiguous:
        path, why = next(iter(guess.ambiguous.items()))
        hint = "give the model itself: burnstore skeleton MODULE:CLASS --rust"
        if (line := weight_norm_rules(shapes)) is not None:
            folded = "burnstore convert FILE folded.safetensors --rules rules.toml"
            hint += f"; or fold its weight norm first with {folded}, where rules.toml has the line {line}"
        raise AmbiguousError(f"{path or 'the file'}: {why}", hint=hint, guess=guess)
    return guess.kinds


def _rendered(source: Source, origin: str, remarks: str, forward: str | None) -> str:
    declarations = source.declarations(forward)
    remaps = ""
    for pattern, replacement in source.remaps():
        mark = "#" if '"' in pattern else ""
        remaps += f'\n            .with_remap_pattern(r{mark}"{pattern}"{mark}, "{replacement}")'
    load = _LOAD.format(name=source.name, remaps=remaps, file=identifier(source.name).lower())
    imports = source.imports(declarations) + "use burn_store::{BurnpackStore, ModuleSnapshot, ModuleStore};\n\n"
    return _HEADER.format(name=source.name, origin=origin, remarks=remarks) + imports + declarations + load
