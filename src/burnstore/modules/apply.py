"""Apply: put tensors into a model, after everything was found to fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..dtype import DType, Kind
from ..errors import BurnstoreError, DuplicateNameError, LoadError, MissingTensorsError
from ..snapshot import TensorSnapshot, read_all
from ..tensor_data import Array, TensorData, bytes_of_array
from ..transforms.adapters import ModuleAdapter
from ..transforms.filter import PathFilter
from ..transforms.layout import Layout
from ..transforms.view import LayoutView, Seen
from .binding import Slot
from .bindings import binding_for
from .in_place import Matched, StraightRead, read_straight, straight_reads
from .layouts import KeepsPartIds, Rules, layout_of, view_of
from .result import ApplyError, ApplyResult, MissingTensor
from .values import value_for
from .wrappers import wrapper_hint


@dataclass(slots=True)
class _Plan:
    """What a load would do; nothing is read or changed yet."""

    result: ApplyResult = field(default_factory=ApplyResult)
    matched: list[Matched] = field(default_factory=list)
    unmatched: list[Slot] = field(default_factory=list)
    straight: list[StraightRead] = field(default_factory=list)


def apply(
    model: Any,
    snapshots: Iterable[TensorSnapshot],
    filter: PathFilter | None = None,
    adapter: ModuleAdapter | None = None,
    *,
    skip_enum_variants: bool = False,
    allow_partial: bool = True,
    validate: bool = False,
    in_place: bool = True,
) -> ApplyResult:
    """Put snapshots into the parameters of their paths, and say what became of each.

    Of snapshots with one path the last counts, so lists can be concatenated to overlay models. A parameter takes the
    tensor's own dtype within its kind (float, integer, bool) and the tensor's id if it has one; a torch tensor keeps
    its dtype, and a note says so. All tensors are read before any is assigned: if reading fails, or an error is raised,
    the model is as it was. Only large tensors of torch are read straight into the model's memory, after all else was
    found to fit; if the disk fails then, the error says that the model is partly loaded. ``in_place=False`` reads
    those before, too.

    With ``validate`` tensors that do not fit raise LoadError; without ``allow_partial`` parameters without a tensor
    raise MissingTensorsError. By default both are only reported.

    >>> import numpy as np
    >>> model = {"weight": np.zeros(2, np.float32)}
    >>> result = apply(model, [TensorSnapshot.from_numpy("weight", np.ones(2, np.float32))])
    >>> result.applied, model["weight"].tolist()
    (['weight'], [1.0, 1.0])
    """
    return apply_noting(
        (),
        model,
        snapshots,
        filter,
        adapter,
        skip_enum_variants=skip_enum_variants,
        allow_partial=allow_partial,
        validate=validate,
        in_place=in_place,
    )


def apply_noting(
    notes: Iterable[str],
    model: Any,
    snapshots: Iterable[TensorSnapshot],
    filter: PathFilter | None,
    adapter: ModuleAdapter | None,
    *,
    layout: Layout | None = None,
    rules: Rules | None = None,
    recorded: Mapping[str, TensorSnapshot] | None = None,
    skip_enum_variants: bool,
    allow_partial: bool,
    validate: bool,
    in_place: bool = True,
) -> ApplyResult:
    """As `apply`, with notes of an earlier stage in the report, be it returned or raised.

    ``layout`` is that of the snapshots, None if it is not known and taken to be the model's own. Where it is another,
    the model is seen in it, unless an adapter says how layouts differ. ``rules`` are those of `view_of`; ``recorded``
    are tensors that this other layout does not have, by their paths in the model.
    """
    slots = list(binding_for(model).walk(model, skip_enum_variants=skip_enum_variants))
    _check_distinct(slots)
    index = _by_path(snapshots)
    view: LayoutView | None = None
    seen = Seen(list(index.values()), set(index), {})
    if layout is not None and layout != layout_of(model) and (adapter is None or adapter.keeps_layout):
        view = view_of(model, slots, skip_enum_variants=skip_enum_variants, rules=rules, present=index)
        seen = view.to_torch(index) if layout == "burn" else view.to_burn(index)
    plan = _plan(slots, _by_path(seen.snapshots), filter, adapter)
    if view is not None:
        _tell_of_view(plan, view, seen, index, recorded or {})
    plan.result.notes += notes
    if in_place:
        plan.straight, plan.matched = straight_reads(plan.matched, slots)
    values = _with_shared(plan, _read(plan), slots)
    if plan.straight:
        order = {slot.path: row for row, slot in enumerate(slots)}
        plan.result.applied += [read.slot.path for read in plan.straight]
        plan.result.applied.sort(key=order.__getitem__)
    hint = wrapper_hint(plan.result.missing, plan.result.unused)
    plan.result.notes += [] if hint is None else [hint]
    raise_if_refused(plan.result, allow_partial=allow_partial, validate=validate)
    _assign(values, plan)
    for slot, _, _ in values:
        if slot.path in seen.part_ids and isinstance(slot, KeepsPartIds):
            slot.part_ids = seen.part_ids[slot.path]
    return plan.result


def _by_path(snapshots: Iterable[TensorSnapshot]) -> dict[str, TensorSnapshot]:
    if isinstance(snapshots, Mapping):
        raise TypeError(f"snapshots are a list, not a {type(snapshots).__name__}; give its values()")
    return {snapshot.path: snapshot for snapshot in snapshots}


def _tell_of_view(
    plan: _Plan,
    view: LayoutView,
    seen: Seen,
    given: Mapping[str, TensorSnapshot],
    recorded: Mapping[str, TensorSnapshot],
) -> None:
    """Add to a plan what came of seeing the model in the layout of the source."""
    plan.result.unused = sorted(given.keys() - seen.used)
    for path, parts in seen.incomplete.items():
        plan.result.notes.append(f"'{path}' is made of several tensors, and there is no {', '.join(parts)}")
    if any(error.kind == "ShapeMismatch" and error.expected == error.found[::-1] for error in plan.result.errors):
        plan.result.notes.append(
            "shapes look as if the source were in the model's own layout, not in the one that it claims: say so with "
            "layout="
        )
    lost = set(seen.lost)
    without = [slot for slot in plan.unmatched if slot.path in lost]
    plan.unmatched = [slot for slot in plan.unmatched if slot.path not in lost]
    plan.matched += [(slot, recorded[slot.path], None) for slot in without if slot.path in recorded]
    kept = [slot.path for slot in without if slot.path not in recorded]
    if kept:
        plan.result.notes.append(f"Burn has no {_listed(kept)}: left as they are in the model")
    if view.as_they_are:
        plan.result.notes.append(f"of no known kind, taken as they are: {_listed(view.as_they_are)}")


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _check_distinct(slots: Sequence[Slot]) -> None:
    """Raise DuplicateNameError where two tensors of a model have one path: a file has one of that name at most."""
    if len({slot.path for slot in slots}) < len(slots):
        by_path = {slot.path: slot for slot in slots}
        for slot in slots:
            if slot.identity() != by_path[slot.path].identity():
                raise DuplicateNameError("two tensors of the model have this path", tensor=slot.path)


def _assign(values: Sequence[_Value], plan: _Plan) -> None:
    # What a tuple holds can only be filled; wherever else that array is held, it must be filled too to stay the same.
    fixed = {slot.identity() for slot, _, _ in values if slot.fixed}
    filled = {row for row, (slot, _, _) in enumerate(values) if slot.identity() in fixed} if fixed else set()
    for row in filled:
        values[row][0].check_fill(values[row][1])
    read_straight(plan.straight, plan.result)
    for row, (slot, value, param_id) in enumerate(values):
        slot.assign(value, param_id, fill=row in filled)


def raise_if_refused(result: ApplyResult, *, allow_partial: bool, validate: bool) -> None:
    """Raise what the caller did not want to tolerate."""
    if validate and result.errors:
        raise LoadError(f"Import errors: {len(result.errors)} tensors do not fit\n{result}", result=result)
    if not allow_partial and result.missing:
        raise MissingTensorsError(
            f"Missing tensors: {len(result.missing)}\n{result}",
            result=result,
            hint=wrapper_hint(result.missing, result.unused) or "if they may be missing, load with allow_partial",
        )


def _plan(
    slots: Sequence[Slot],
    index: dict[str, TensorSnapshot],
    filter: PathFilter | None,
    adapter: ModuleAdapter | None,
) -> _Plan:
    plan = _Plan()
    names = set(index)
    if adapter is not None and adapter.is_structural:
        index = _with_adapted_modules(index, slots, adapter)
    chosen: Sequence[bool] | None = None
    if filter is not None:
        selection = filter.select([(slot.path, slot.container_stack) for slot in slots])
        chosen = selection
        plan.result.notes += [f"the filter's {text!r} matched no parameter" for text in selection.unmatched]
    consumed: set[str] = set()
    errors: list[ApplyError] = []
    for row, slot in enumerate(slots):
        path = slot.path
        found = index.get(path)
        if found is None and adapter is not None:
            found = _by_alternative_name(slot, index, adapter)
        if found is None:
            plan.unmatched.append(slot)
            continue
        consumed.add(found.path)
        if chosen is not None and not chosen[row]:
            plan.result.skipped.append(path)
            continue
        source_id = found._param_id
        if adapter is not None:
            found = _adapted(found, slot, adapter)
        problem = _mismatch(slot, found)
        if problem is not None:
            errors.append(problem)
        else:
            plan.matched.append((slot, found, source_id))
    plan.result.errors = errors
    plan.result.skipped.sort()
    plan.result.unused = sorted(names - _origins(consumed, index, names))
    return plan


def _origins(consumed: set[str], index: dict[str, TensorSnapshot], names: set[str]) -> set[str]:
    return consumed | (names - index.keys())  # what a structural adapter took is used, under whatever name it came out


def _with_adapted_modules(
    index: dict[str, TensorSnapshot], slots: Sequence[Slot], adapter: ModuleAdapter
) -> dict[str, TensorSnapshot]:
    """The index with the tensors of each of the model's modules shown to the adapter as a whole."""
    modules: dict[str, str] = {}
    for slot in slots:
        for place, module_type in _modules_around(slot):
            modules.setdefault(place, module_type)
    below: dict[str, dict[str, TensorSnapshot]] = {}
    for path, snapshot in index.items():
        parent, _, name = path.rpartition(".")
        below.setdefault(parent, {})[name] = snapshot
    adapted = dict(index)
    for parent, module_type in modules.items():
        tensors = below.get(parent)
        if not tensors:
            continue
        given = adapter.adapt_module(module_type, dict(tensors))
        if list(given.items()) == list(tensors.items()):
            continue
        prefix = f"{parent}." if parent else ""
        for name in tensors:
            adapted.pop(prefix + name, None)
        for name, tensor in given.items():
            if prefix + name in adapted:
                raise DuplicateNameError(
                    "the adapter gives a tensor of this name, and there is one", tensor=prefix + name
                )
            adapted[prefix + name] = tensor.with_path(prefix + name)
    return adapted


def _modules_around(slot: Slot) -> Iterator[tuple[str, str]]:
    """The path and type of each module that a parameter lies in, the innermost first.

    The outer ones matter where a module's parameters lie deeper than the source's (the gates of an LSTM).
    """
    segments, stack = slot.path.split("."), slot.container_stack
    if len(stack) > len(segments):  # skipped variants are no segments
        stack = tuple(entry for entry in stack if not entry.startswith("Enum:"))
    innermost = _module_type(stack)
    if innermost is not None:
        yield ".".join(segments[:-1]), innermost
    if len(stack) == len(segments):  # a name with a dot in it is two segments of one owner: nothing is known then
        for depth in range(len(segments) - 1):
            outer = _module_type(stack[: depth + 1])
            if outer is not None:
                yield ".".join(segments[:depth]), outer


def _module_type(container_stack: Sequence[str]) -> str | None:
    return next((entry for entry in reversed(container_stack) if entry.startswith(("Struct:", "Enum:"))), None)


def _by_alternative_name(slot: Slot, index: dict[str, TensorSnapshot], adapter: ModuleAdapter) -> TensorSnapshot | None:
    module_type = _module_type(slot.container_stack)
    if module_type is None:
        return None
    parent, dot, name = slot.path.rpartition(".")
    other = adapter.alternative_param_name(name, module_type)
    return None if other is None else index.get(parent + dot + other)


def _adapted(snapshot: TensorSnapshot, slot: Slot, adapter: ModuleAdapter) -> TensorSnapshot:
    """The source's tensor as the adapter gives it, seen in the place of the model where it will go."""
    placed = TensorSnapshot(
        snapshot.path,
        snapshot.dtype,
        snapshot.shape,
        snapshot._data,
        nbytes=snapshot.nbytes,
        param_id=snapshot._param_id,
        container_stack=slot.container_stack,
    )
    return adapter.adapt(placed)


def _mismatch(slot: Slot, snapshot: TensorSnapshot) -> ApplyError | None:
    wanted, given = slot.dtype, snapshot.dtype
    if wanted is not given and not _same_kind(wanted, given):
        return ApplyError(
            "DTypeMismatch",
            slot.path,
            f"DType mismatch for '{slot.path}': expected {wanted}, found {given}",
            expected=wanted,
            found=given,
        )
    if slot.shape != snapshot.shape:
        hint = ""
        if slot.shape == snapshot.shape[::-1]:
            hint = ' (it is the transpose: a PyTorch file needs layout="torch" or PyTorchToBurnAdapter)'
        return ApplyError(
            "ShapeMismatch",
            slot.path,
            f"Shape mismatch for '{slot.path}': expected {list(slot.shape)}, found {list(snapshot.shape)}{hint}",
            expected=slot.shape,
            found=snapshot.shape,
        )
    return None


def _same_kind(wanted: DType, given: DType) -> bool:
    if wanted.kind in (Kind.FLOAT, Kind.QUANTIZED):
        return given.kind in (Kind.FLOAT, Kind.QUANTIZED)
    if wanted.kind in (Kind.INT, Kind.UINT):
        return given.kind in (Kind.INT, Kind.UINT)
    if wanted.kind is Kind.BOOL:
        return given.kind is Kind.BOOL or given in (DType.U8, DType.U32)
    return given.kind is wanted.kind


_Value = tuple[Slot, Array | TensorData, "int | None"]


def _read(plan: _Plan) -> list[_Value]:
    """The values of all matched tensors; those that cannot be read become errors of the result."""
    values: list[_Value] = []
    casts: Counter[tuple[DType, DType]] = Counter()
    raws = read_all([snapshot for _, snapshot, _ in plan.matched])
    for row, (slot, snapshot, param_id) in enumerate(plan.matched):
        raw, raws[row] = raws[row], None
        if isinstance(raw, BaseException):
            plan.result.errors.append(_load_error(slot.path, raw))
            continue
        try:
            values.append((slot, value_for(slot, snapshot, raw), param_id))
        except BurnstoreError as error:
            plan.result.errors.append(_load_error(slot.path, error))
            continue
        plan.result.applied.append(slot.path)
        if slot.keeps_dtype and slot.dtype.name != snapshot.dtype.name and not slot.dtype.is_bool:
            casts[snapshot.dtype, slot.dtype] += 1
    plan.result.notes += [
        f"cast from {given} to {kept}, the dtype that the model has: {count} tensor{'' if count == 1 else 's'}"
        for (given, kept), count in casts.items()
    ]
    return values


def _with_shared(plan: _Plan, values: list[_Value], slots: Sequence[Slot]) -> list[_Value]:
    """The values with one for every slot that shares its tensor with another; what found none is then missing.

    Shared parameters are written once per path, as Burn does, and must come back as one. If a file has a tensor for one
    of the paths only, it is for all; if it has different ones, the second is an error.
    """
    identities = {slot.identity() for slot, _, _ in values}
    if len(identities) == len(values) and not plan.unmatched:
        return values  # nothing is shared, nothing is missing
    first: dict[int, _Value] = {}
    kept: list[_Value] = []
    for slot, value, param_id in values:
        leader = first.setdefault(slot.identity(), (slot, value, param_id))
        if leader[0] is slot or _same_bits(leader[1], value):
            kept.append((slot, leader[1], param_id))
            continue
        plan.result.applied.remove(slot.path)
        message = f"it is shared with '{leader[0].path}', for which the source has other values"
        plan.result.errors.append(ApplyError("LoadError", slot.path, f"Load error for '{slot.path}': {message}"))
    for slot in plan.unmatched:
        shared = first.get(slot.identity())
        if shared is None:
            plan.result.missing.append(MissingTensor.at(slot.path, ".".join(slot.container_stack)))
        else:
            kept.append((slot, shared[1], shared[2]))
            plan.result.applied.append(slot.path)
            plan.result.notes.append(f"'{slot.path}' is shared with '{shared[0].path}' and took its tensor")
    plan.result.missing.sort()
    if len(kept) > len(values):
        order = {slot.path: row for row, slot in enumerate(slots)}
        plan.result.applied.sort(key=order.__getitem__)
    return kept


def _same_bits(first: Array | TensorData, second: Array | TensorData) -> bool:
    if isinstance(first, TensorData) or isinstance(second, TensorData):
        same_type = isinstance(first, TensorData) and isinstance(second, TensorData) and first.dtype is second.dtype
        return same_type and first.raw == second.raw  # type: ignore[union-attr]  # both are TensorData here
    return first.dtype == second.dtype and bytes_of_array(first) == bytes_of_array(second)


def _load_error(path: str, error: BaseException) -> ApplyError:
    return ApplyError("LoadError", path, f"Load error for '{path}': {error}", found=error)
