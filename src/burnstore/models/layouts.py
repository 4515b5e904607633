"""Models in layouts: which one a model has, how it looks in another, and what a file says of its modules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ..errors import CorruptError, ModelError, PatternError, located
from ..tensor.data import Shape
from ..tensor.snapshot import TensorSnapshot
from ..transforms.layout import (
    AS_IS,
    COUNT,
    LAYOUTS,
    Layout,
    ModuleKind,
    burn_map_of_torch,
    torch_map,
    torch_name,
)
from ..transforms.patterns import compile_pattern
from ..transforms.view import (
    LayoutView,
    PlacedModule,
    join,
    module_tree,
    same_names,
    view_of_burn,
    view_of_torch,
)
from .binding import Slot
from .bindings import binding_for

MODULES_KEY = "burnstore.modules"
"""Where a file's metadata says which modules of PyTorch its tensors are of: path → kind, and Burn's path if another.

It is JSON: ``{"fc": "Linear", "net.2": ["Linear", "net.1"], "bn": ["BatchNorm2d", "bn", {"gamma": 1.0}]}``, where the
last says which tensors Burn has and PyTorch has not, as they are constant.
"""

Rules = Mapping[str, str]
"""Which modules are of which kind: a pattern that is found in their paths, and the kind."""


def layout_of(model: Any) -> Layout:
    """The layout of a model's tensors: what it declares as ``burnstore_layout``, else what its framework has.

    >>> from burnstore import nn
    >>> layout_of(nn.Linear(2, 3))
    'burn'
    """
    declared = getattr(model, "burnstore_layout", None)
    return checked_layout(binding_for(model).layout if declared is None else declared)


def checked_layout(layout: str) -> Layout:
    """The layout of this name; a ValueError if there is none."""
    for known in LAYOUTS:
        if layout == known:
            return known
    raise ValueError(f"a layout is one of {', '.join(map(repr, LAYOUTS))}, not {layout!r}")


def view_of(
    model: Any,
    slots: Iterable[Slot],
    *,
    skip_enum_variants: bool = False,
    rules: Rules | None = None,
    present: Iterable[str] | None = None,
) -> LayoutView:
    """A model's tensors in both layouts.

    ``rules`` name the kinds of modules that the model itself does not tell; ``present`` are the names in a file that is
    to be loaded.
    """
    layout = layout_of(model)
    shapes = {slot.path: slot.shape for slot in slots}
    kinds: dict[str, ModuleKind | None] = dict(binding_for(model).kinds(model, skip_enum_variants=skip_enum_variants))
    if rules:
        kinds.update(kinds_by_rules(shapes, rules))
    if layout == "torch":
        _check_told(shapes, kinds)
    root = module_tree(shapes, kinds)
    return view_of_torch(root) if layout == "torch" else view_of_burn(root, present)


def _check_told(paths: Iterable[str], kinds: Mapping[str, ModuleKind | None]) -> None:
    """Refuse tensors of PyTorch that lie in no module, as in a state dict: what they are of, nobody says."""
    for path in paths:
        if path.rpartition(".")[0] not in kinds:
            raise ModelError(
                "it lies in no module, and whether it is a Linear's or an Embedding's nothing tells",
                tensor=path,
                hint='give the module itself, rules={pattern: kind}, or layout="torch" to keep PyTorch\'s layout',
            )


def kinds_by_rules(paths: Iterable[str], rules: Rules) -> dict[str, ModuleKind]:
    """The kinds that rules give to the modules in which these tensors lie; the last rule that matches counts.

    >>> {path: str(kind) for path, kind in kinds_by_rules(["fc.weight", "fc.bias"], {"^fc$": "Linear"}).items()}
    {'fc': 'Linear'}
    """
    compiled = [(compile_pattern(pattern), ModuleKind.parse(kind)) for pattern, kind in rules.items()]
    modules: dict[str, None] = {}
    for path in paths:
        owner = path.rpartition(".")[0]
        while owner not in modules:
            modules[owner] = None
            owner = owner.rpartition(".")[0]
    found: dict[str, ModuleKind] = {}
    unmatched: dict[str, re.Pattern[str]] = {pattern.pattern: pattern for pattern, _ in compiled}
    for module in modules:
        for pattern, kind in compiled:
            if pattern.search(module):
                found[module] = kind
                unmatched.pop(pattern.pattern, None)
    if unmatched:
        raise PatternError(f"the rule {next(iter(unmatched))!r} matched no module")
    return found


def seen_in(
    layout: Layout,
    model: Any,
    slots: Sequence[Slot],
    snapshots: Sequence[TensorSnapshot],
    *,
    skip_enum_variants: bool = False,
    rules: Rules | None = None,
) -> tuple[list[TensorSnapshot], LayoutView | None]:
    """A model's tensors as they are in this layout, and the view that was taken; None if it is the model's own."""
    own = layout_of(model)
    if own == layout:
        return list(snapshots), None
    view = view_of(model, slots, skip_enum_variants=skip_enum_variants, rules=rules)
    by_path = {snapshot.path: snapshot for snapshot in snapshots}
    ids = {slot.path: found for slot in slots if (found := part_ids_of(slot)) is not None}
    seen = view.to_burn(by_path, ids) if layout == "burn" else view.to_torch(by_path)
    left_out = [path for path in by_path if path not in seen.used]
    if left_out:
        lacking = seen.incomplete and f" ({', '.join(next(iter(seen.incomplete.values())))} would be needed too)"
        raise ModelError(
            f"it has no counterpart in {layout}'s layout{lacking or ''}",
            tensor=left_out[0],
            hint=f'layout="{own}" keeps the layout, a filter leaves the tensor out',
        )
    for path, parts in seen.incomplete.items():
        raise ModelError(f"it cannot be made without {', '.join(parts)}", tensor=path, hint="do not filter them out")
    if layout == "torch":  # what Burn does not count, PyTorch starts at zero
        seen.snapshots.extend(map(zero_count, seen.lost))
    return seen.snapshots, view


@runtime_checkable
class KeepsPartIds(Protocol):
    """A slot that can keep the ids of several tensors of Burn that its one tensor was made of."""

    part_ids: Sequence[int | None] | None


def part_ids_of(slot: Slot) -> Sequence[int | None] | None:
    """The ids that a slot keeps for the parts of its tensor, if any."""
    found: Sequence[int | None] | None = getattr(slot, "part_ids", None)  # of every slot, and a protocol is slow
    return found


# --- what a file says of its modules ----------------------------------------------------------------------------------


class RecordedModule(NamedTuple):
    """A module as a file's metadata has it: its path in both layouts, its kind in PyTorch, and what is constant."""

    torch: str
    burn: str
    kind: ModuleKind
    filled: Mapping[str, float]


def record_of(view: LayoutView) -> str:
    """The modules of a view as text for a file's metadata, so that the file can be converted without the model."""
    record: dict[str, Any] = {}
    for module in view.modules:
        kind = ModuleKind(AS_IS) if module.kind is None else module.kind
        said = [str(ModuleKind(torch_name(kind.name) or kind.name, kind.options)), module.burn]
        filled = {fill.burn: fill.value for fill in module.map.fills}
        if filled:
            record[module.torch] = [*said, filled]
        else:
            record[module.torch] = said[0] if module.burn == module.torch else said
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def recorded_modules(metadata: Mapping[str, str]) -> list[RecordedModule] | None:
    """The modules that a file's metadata names; None if it names none. CorruptError if they make no sense."""
    text = metadata.get(MODULES_KEY)
    if text is None:
        return None
    try:
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError("it is no object")
        return [_recorded(path, said) for path, said in record.items()]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"the metadata's {MODULES_KEY} is damaged: {error}") from error


def _recorded(path: str, said: Any) -> RecordedModule:
    if isinstance(said, str):
        return RecordedModule(path, path, ModuleKind.parse(said), {})
    kind, burn, *rest = said
    filled = rest[0] if rest else {}
    sensible = isinstance(filled, dict) and all(isinstance(value, (int, float)) for value in filled.values())
    if not isinstance(burn, str) or not sensible or len(rest) > 1:
        raise ValueError(f"{path!r} is {said!r}")
    return RecordedModule(path, burn, ModuleKind.parse(kind), filled)


def zero_count(path: str) -> TensorSnapshot:
    """What PyTorch counts and Burn does not, as it is at the start."""
    return TensorSnapshot.from_numpy(path, np.zeros((), np.int64))


def view_of_record(modules: Iterable[RecordedModule], shapes: Mapping[str, Shape], layout: Layout) -> LayoutView:
    """The tensors of a file in both layouts, by what was recorded of its modules; its names are of ``layout``."""
    own = {(module.torch if layout == "torch" else module.burn): module for module in modules}
    below: dict[str, dict[str, Shape]] = {path: {} for path in own}
    for name, shape in shapes.items():
        path = name.rpartition(".")[0]
        while path and path not in own:
            path = path.rpartition(".")[0]
        if path not in own:
            raise ModelError(f"the metadata's {MODULES_KEY} does not name its module", tensor=name)
        below[path][name[len(path) + 1 :] if path else name] = shape
    return LayoutView(_placed(own[path], tensors, layout) for path, tensors in below.items() if tensors)


def _placed(module: RecordedModule, tensors: Mapping[str, Shape], layout: Layout) -> PlacedModule:
    with located(tensor=module.torch if layout == "torch" else module.burn):
        if module.kind.name == AS_IS:
            return PlacedModule(module.torch, module.burn, None, same_names(tensors))
        if layout == "torch":
            found = torch_map(module.kind, tensors, all_biases=any(name.endswith("bias") for name in module.filled))
        else:
            found = burn_map_of_torch(module.kind, tensors, module.filled)
    return PlacedModule(module.torch, module.burn, module.kind, found)


def recorded_counts(metadata: Mapping[str, str]) -> dict[str, TensorSnapshot]:
    """Those tensors of PyTorch that Burn has none of and whose value a file's metadata tells, by their paths."""
    found = {}
    for module in recorded_modules(metadata) or ():
        count = module.kind.option(COUNT)
        if count is not None and abs(count) < 1 << 63:
            path = join(module.torch, COUNT)
            found[path] = TensorSnapshot.from_numpy(path, np.array(count, np.int64))
    return found
