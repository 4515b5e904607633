"""Save: write the tensors of a plan into a file or bytes, and report what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint
from ..errors import BurnstoreWarning, ModelError, UnsupportedError, entry_point, located, warn
from ..formats.base import (
    LAYOUT_KEY,
    QUANTIZATION_KEY,
    STAMPS,
    Format,
    WriteOptions,
    WritesFolder,
    loss_notes,
)
from ..formats.sharded.locate import INDEX_SUFFIX
from ..formats.sharded.read import SET_KEY
from ..formats.write import batches
from ..io.gc_pause import gc_paused
from ..io.paths import OpenFile, exists
from ..models.bindings import left_out_of
from ..models.plain import as_text, hidden_tensors
from ..tensor.data import TensorData
from ..tensor.note import Note, note_kind
from ..tensor.snapshot import TensorSnapshot
from ..tensor.tabular import Result
from ..transforms.filter import PathFilter
from ..transforms.layout import Layout
from .compile import listed, underflow_notes
from .compile_file import compile_convert, compile_save, select_tensors
from .ends import Input, input_of_file, input_of_snapshots
from .kinds import declared_layout, states_layout
from .metadata import metadata_for_save, metadata_of_named, written_layout
from .options import AdapterLike, Pipeline
from .plan import Plan
from .stages import with_name
from .stored import keep_stored, keeps_stored
from .ties import ties_of
from .write import assemble, check_apart, planner


@dataclass(frozen=True, slots=True)
class SaveResult(Result):
    """What a save wrote: where, in which layout, and notes.

    ``left_out`` has the tensors and values that were given and not written, each with the reason.
    """

    path: str | None
    format: str
    layout: str | None
    tensors: tuple[str, ...]
    nbytes: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = f"{len(self.tensors):,} tensor{'' if len(self.tensors) == 1 else 's'}"
        layout = f"{self.layout}'s layout" if self.layout else "no stated layout"
        lines = [f"saved {self.path or 'bytes'}: {self.format}, {count}, {self.nbytes:,} bytes, {layout}"]
        lines += [f"  left out: {name} ({why})" for name, why in self.left_out.items()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def save_plan(
    plan: Plan, path: str | None, chosen: Format, metadata: Mapping[str, str] | None, how: WriteOptions
) -> tuple[SaveResult, bytes | None]:
    """Write the tensors of a plan into a file, or return them as bytes if there is no path."""
    snapshots = [move.snapshot for move in plan.moves]
    files: Sequence[str] = ()
    written, zeroed = None, set[str]()
    with located(path=path):
        plan.check_constants()
        if path is not None and any(note.kind == "empty" for note in plan.notes):
            _check_nothing_replaced(plan, path)
        if path is not None and how.max_shard_size is None:
            _check_no_shard(snapshots, path)
        with gc_paused():
            ties = ties_of(plan, snapshots, chosen, metadata)
        stored = [each for each in snapshots if each.path not in ties] if ties else snapshots
        if path is not None:
            in_order = replace(how, verify=False, in_order=True)
            done = assemble(snapshots, path, chosen, in_order, metadata=metadata, ties=ties)
            files, zeroed = done.files, done.underflowed
        elif isinstance(chosen, WritesFolder):
            raise UnsupportedError(f"a checkpoint of the format {chosen.name} is a folder, not bytes")
        else:
            with gc_paused():
                planned = planner(chosen, how, metadata, ties)(stored, {})
            written = b"".join(buffer for buffers in batches(planned) for buffer in map(bytes, buffers))
    nbytes = sum(each.nbytes for each in stored)
    plan.notes += underflow_notes(() if written is None else snapshots, zeroed)
    plan.notes += loss_notes(chosen, stored, how.format_options)
    names = tuple(each.path for each in snapshots)
    result = SaveResult(path, chosen.name, plan.layout, names, nbytes, plan.fates, tuple(plan.notes), tuple(files))
    return result, written


def _check_nothing_replaced(plan: Plan, path: str) -> None:
    """Refuse to replace a file by one without tensors: it is more likely a mistake than a wish."""
    if not isinstance(path, OpenFile) and (exists(path) or exists(path + INDEX_SUFFIX)):
        plan.check_not_empty(allow_empty=False, path=path)


def _check_no_shard(snapshots: Sequence[TensorSnapshot], path: str) -> None:
    """Refuse to write a set over one of its shards; a file of its own is replaced as a whole, and may be the target."""
    if indices := {each._data.file for each in snapshots if (each._data.file or "").endswith(INDEX_SUFFIX)}:
        check_apart(indices, path)


# --- what can be saved ------------------------------------------------------------------------------------------------


def plan_of(
    tensors: Any,
    chosen: Format,
    metadata_for: Callable[[str | None], Mapping[str, str] | None],
    pipeline: Pipeline,
    options: Mapping[str, Any],
    *,
    with_settings: bool = False,
) -> tuple[Plan, Mapping[str, str] | None]:
    """Return the plan of saving a model, a mapping of arrays, snapshots or an open file, and the metadata to write.

    ``metadata_for`` returns the caller's metadata beside tensors of a layout. Numbers and strings in a mapping are
    refused, or ``with_settings`` listed as left out. SaveError if a filter or rules leave no tensor of those
    that are there, unless the pipeline allows it. What has no tensors from the start is written as that, with a note.
    """
    plan, metadata = _plan_of(tensors, chosen, metadata_for, pipeline, options, with_settings=with_settings)
    if not plan.moves and not options.get("scalars") and not pipeline.allow_empty:
        if any(note_kind(why) == "filtered" for why in plan.fates.values()):
            plan.check_not_empty(allow_empty=False)
        plan.notes.append(Note("empty", "no tensor was written: there are none"))
    return plan, metadata


def _plan_of(
    tensors: Any,
    chosen: Format,
    metadata_for: Callable[[str | None], Mapping[str, str] | None],
    pipeline: Pipeline,
    options: Mapping[str, Any],
    *,
    with_settings: bool,
) -> tuple[Plan, Mapping[str, str] | None]:
    if isinstance(tensors, Iterator):
        tensors = list(tensors)
    named = _named_tensors(tensors, _TENSOR_TYPES if with_settings else _FLAT_TYPES, pipeline.layout)
    if named is None:
        left_out, is_unstated = _check_mapping(tensors, () if with_settings else _REFUSED_TYPES)
        is_ruled = pipeline.recipe is not None and pipeline.recipe.target_layout is not None
        is_unstated = is_unstated and not pipeline.rules and not is_ruled
        plan = compile_save(tensors, None if is_unstated else pipeline.layout or written_layout(chosen), pipeline)
        if not plan.moves and not plan.fates and not with_settings and not pipeline.allow_empty:
            raise TypeError(
                f"this {type(tensors).__name__} has no tensors: nothing would be saved, unless allow_empty=True"
            )
        plan.fates |= left_out_of(tensors) | left_out
        if is_unstated and (pipeline.adapter is None or pipeline.adapter.gives_layout is None):
            plan.layout = pipeline.layout
            return plan, metadata_of_named(chosen, plan, metadata_for(plan.layout), options)
        return plan, metadata_for_save(chosen, plan, metadata_for(plan.layout or "burn"), pipeline, options)
    if pipeline.rules is not None or pipeline.recipe is not None:
        raise TypeError("rules are for models: the kinds of named tensors are given to burnstore.convert")
    filtered = Plan()
    source = replace(named, snapshots=select_tensors(filtered, list(named.snapshots), pipeline))
    plan = compile_convert(source, pipeline.replace(filter=None, keep_layout=True, target_layout=None), None)
    plan.fates, plan.notes = filtered.fates | plan.fates, filtered.notes + plan.notes
    plan.fates |= getattr(tensors, "left_out", {}) if isinstance(tensors, list) else {}
    is_plain = type(tensors) is dict and all(type(tensor) is np.ndarray for tensor in tensors.values())
    if isinstance(tensors, Mapping) and not is_plain and not isinstance(tensors, Checkpoint):
        plan.fates |= hidden_tensors(tensors)
    keep_stored(plan, source.snapshots, chosen, is_cast=pipeline.cast is not None)
    metadata = metadata_for(plan.layout)
    if keeps_stored(plan) and QUANTIZATION_KEY in source.metadata:
        metadata = {**(metadata or {}), QUANTIZATION_KEY: source.metadata[QUANTIZATION_KEY]}
    if metadata is None and source.metadata:
        lost = [key for key in source.metadata if key not in (*STAMPS, LAYOUT_KEY, SET_KEY)]
        plan.notes += (
            [Note("metadata", f"metadata of the file was not written: {listed(lost)}; pass metadata= to keep it")]
            if lost
            else []
        )
    if source.scalars and "scalars" not in options:
        text = f"scalars of the file were not written: {listed(list(source.scalars))}"
        plan.notes.append(Note("metadata", text))
    return plan, metadata_of_named(chosen, plan, metadata, options)


def _named_tensors(tensors: Any, types: tuple[type, ...], layout: Layout | None) -> Input | None:
    """Return named tensors as an input, in the given layout or their own; None if a model was given."""
    if isinstance(tensors, Checkpoint):
        return input_of_file(tensors, own_names=True)
    if isinstance(tensors, Mapping):
        if any(not isinstance(value, types) for value in tensors.values()):
            return None
        snapshots = [_snapshot(name, tensor) for name, tensor in tensors.items()]
        return input_of_snapshots("<tensors>", snapshots, layout)
    if isinstance(tensors, (list, tuple)) and all(isinstance(item, TensorSnapshot) for item in tensors):
        return input_of_snapshots("<snapshots>", tensors, layout)
    return None


_REFUSED_TYPES = (bool, int, float, complex, str, bytes, np.generic)
_TENSOR_TYPES = (np.ndarray, TensorData, TensorSnapshot)
_FLAT_TYPES = (*_TENSOR_TYPES, type(None), *_REFUSED_TYPES)


def _snapshot(name: str, tensor: Any) -> TensorSnapshot:
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor must be a str, got {type(name).__name__} ({name!r})")
    name = as_text(name)
    if type(tensor) is np.ndarray:
        return TensorSnapshot.from_numpy(name, tensor)
    if isinstance(tensor, TensorSnapshot):
        return with_name(name, tensor)
    if isinstance(tensor, TensorData):
        return TensorSnapshot.from_data(name, tensor)
    if isinstance(tensor, np.ma.MaskedArray):
        raise TypeError(f"tensor {name!r} is a masked array; its mask would be lost, fill it first")
    if isinstance(tensor, (np.ndarray, np.generic)):
        return TensorSnapshot.from_numpy(name, np.asarray(tensor))
    raise TypeError(f"tensor {name!r} must be a NumPy array, TensorSnapshot or TensorData, got {type(tensor).__name__}")


def _check_mapping(given: Any, refused: tuple[type, ...]) -> tuple[dict[str, str], bool]:
    """Refuse numbers and strings in a nested mapping, which no file would contain; return the entries that are None.

    Also return whether everything else is arrays in mappings and lists, which state no layout.
    """
    left_out: dict[str, str] = {}
    are_arrays, count = declared_layout(given) is None, 0
    todo: list[tuple[str, Any]] = [("", given)]
    open_containers: set[int] = set()
    while todo:
        path, value = todo.pop()
        if value is _END:
            open_containers.discard(todo.pop()[1])
        elif isinstance(value, (Mapping, list, tuple)):
            if id(value) in open_containers:
                raise ModelError("the model contains itself here", tensor=path)
            open_containers.add(id(value))
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            todo += [("", id(value)), ("", _END)]
            todo += [(f"{path}.{key}" if path else str(key), held) for key, held in items]
        elif value is None:
            left_out[path] = "it is None"
        elif isinstance(value, refused) and isinstance(given, Mapping):
            raise TypeError(
                f"{path!r} is a {type(value).__name__}, which is neither a tensor nor a part of a model; remove it, or "
                "store it as metadata"
            )
        elif not isinstance(value, _REFUSED_TYPES):
            are_arrays, count = are_arrays and isinstance(value, (np.ndarray, TensorData)), count + 1
    return left_out, are_arrays and count > 0


_END = object()
"""Marks the end of a container among the values that are still to be visited; its identity is below it."""


@entry_point("collect")
def collect(
    model: Any,
    filter: PathFilter | None = None,
    adapter: AdapterLike | None = None,
    *,
    skip_enum_variants: bool = False,
) -> Collected:
    """Return the tensors of a model, in its order, under their paths and in its layout; nothing is read yet.

    ``filter`` sees paths and containers of the model, ``adapter`` then changes what is left. A pattern or path of the
    filter that matches nothing is warned about. The list has an attribute ``left_out``, which is that of `save`.

    >>> import numpy as np
    >>> [snapshot.path for snapshot in collect({"encoder": {"weight": np.zeros(2)}, "steps": [np.zeros(1)]})]
    ['encoder.weight', 'steps.0']
    """
    chosen = Pipeline(filter=filter, adapter=adapter, skip_enum_variants=skip_enum_variants)
    plan = compile_save(model, None, chosen)
    for note in plan.notes:
        if note.kind == "unmatched":
            warn(note, BurnstoreWarning)
    is_converted = chosen.adapter is not None and chosen.adapter.gives_layout is not None
    layout = plan.layout if is_converted or states_layout(model) else None
    snapshots = [move.snapshot.replace(layout=layout) for move in plan.moves]
    return Collected(snapshots, {**plan.fates, **left_out_of(model)})


class Collected(list[TensorSnapshot]):
    """The tensors of a model, and what was left out of them, each with the reason."""

    def __init__(self, snapshots: Iterable[TensorSnapshot], left_out: Mapping[str, str]) -> None:
        super().__init__(snapshots)
        self.left_out = dict(left_out)
