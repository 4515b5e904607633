"""Matching: which tensor goes into which slot of a model, found out before anything is read.

What comes of it is a `LoadPlan`. Loading carries it out, explaining shows it: so the two cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import BurnstoreError, DuplicateNameError
from ..models.binding import Slot
from ..models.bindings import binding_for
from ..models.layouts import Rules, layout_of, view_of
from ..models.load.casting import value_for
from ..models.load.in_place import Matched
from ..models.load.wrappers import wrapper_hint
from ..models.result import ApplyError, ApplyResult, MissingTensor
from ..tensor.dtype import DType, Kind
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import ModuleAdapter
from ..transforms.filter import PathFilter
from ..transforms.layout import Layout
from ..transforms.partition import Part
from ..transforms.view import LayoutView, Seen


@dataclass(frozen=True, slots=True)
class Target:
    """What tensors are to go into: its slots, its layout (None: that of whatever comes), and how to see it in another.

    ``view`` is called with the names of the tensors that there are.
    """

    slots: Sequence[Slot]
    layout: Layout | None
    view: Callable[[Iterable[str]], LayoutView]


def target_of(model: Any, *, skip_enum_variants: bool = False, rules: Rules | None = None) -> Target:
    """A model as a target; ``rules`` are those of `view_of`."""
    slots = list(binding_for(model).walk(model, skip_enum_variants=skip_enum_variants))
    _check_distinct(slots)
    view = partial(_view_of, model, slots, skip_enum_variants=skip_enum_variants, rules=rules)
    return Target(slots, layout_of(model), view)


def _view_of(model: Any, slots: Sequence[Slot], present: Iterable[str], **options: Any) -> LayoutView:
    return view_of(model, slots, present=present, **options)


@dataclass(slots=True)
class LoadPlan:
    """What a load will do; nothing is read or changed yet.

    ``result`` is what it will report if everything can be read.
    """

    target: Target
    seen: Seen
    """The tensors in the layout of the target."""

    result: ApplyResult = field(default_factory=ApplyResult)
    matched: list[Matched] = field(default_factory=list)
    unmatched: list[Slot] = field(default_factory=list)
    followers: list[Slot] = field(default_factory=list)
    """The slots that find no tensor of their own, and take that of another with which they share one."""

    taken: dict[str, str] = field(default_factory=dict)
    """The name of the tensor, in the layout of the target, that each slot takes or was to skip."""


@dataclass(frozen=True, slots=True)
class Stages:
    """What happens to tensors between a file and a model, beyond their names: see `burnstore.stores.base`."""

    filter: PathFilter | None = None
    adapter: ModuleAdapter | None = None
    part: Part | None = None


def match(
    target: Target,
    snapshots: Iterable[TensorSnapshot],
    stages: Stages,
    *,
    layout: Layout | None = None,
    recorded: Mapping[str, TensorSnapshot] | None = None,
    notes: Iterable[str] = (),
) -> LoadPlan:
    """Find the tensor for each slot of the target.

    ``layout`` is that of the snapshots, None if it is not known and taken to be the target's own. Where it is another,
    the target is seen in it, unless an adapter says how layouts differ. ``recorded`` are tensors that this other layout
    does not have, by their paths in the target. With a part each tensor is cut to what a rank has of it, when all else
    was done to it. ``notes`` are those of an earlier stage.
    """
    slots, adapter = target.slots, stages.adapter
    index = _by_path(snapshots)
    view: LayoutView | None = None
    seen = Seen(list(index.values()), set(index), {})
    keeps_layout = adapter is None or adapter.keeps_layout
    if layout is not None and target.layout not in (None, layout) and keeps_layout:
        view = target.view(index)
        seen = view.in_torch(index) if layout == "burn" else view.to_burn(index)
    plan = LoadPlan(target, seen)
    _choose(plan, _by_path(seen.snapshots), stages)
    if stages.part is not None:
        _tell_of_part(plan, stages.part, slots)
    if view is not None:
        _tell_of_view(plan, view, seen, index, recorded or {})
    plan.result.notes += notes
    _tell_of_casts(plan)
    _share(plan)
    hint = wrapper_hint(plan.result.missing, plan.result.unused)
    plan.result.notes += [] if hint is None else [hint]
    return plan


def _by_path(snapshots: Iterable[TensorSnapshot]) -> dict[str, TensorSnapshot]:
    if isinstance(snapshots, Mapping):
        raise TypeError(f"snapshots are a list, not a {type(snapshots).__name__}; give its values()")
    return {snapshot.path: snapshot for snapshot in snapshots}


def _tell_of_view(
    plan: LoadPlan,
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


def _tell_of_part(plan: LoadPlan, part: Part, slots: Sequence[Slot]) -> None:
    """Add to a plan what came of cutting the tensors to the part of a rank."""
    unmatched = part.unmatched([slot.path for slot in slots])
    plan.result.notes += [f"the partition's {text!r} matched no parameter" for text in unmatched]
    if any(error.kind == "ShapeMismatch" for error in plan.result.errors):
        plan.result.notes.append(f"the shapes that were found are those of {part}; the model must have them, too")


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


def _tell_of_casts(plan: LoadPlan) -> None:
    """Add to a plan which tensors will be cast."""
    casts = Counter((snapshot.dtype, slot.dtype) for slot, snapshot, _ in plan.matched if is_cast(slot, snapshot))
    plan.result.notes += [
        f"cast from {given} to {kept}, the dtype that the model has: {count} tensor{'' if count == 1 else 's'}"
        for (given, kept), count in casts.items()
    ]


def is_cast(slot: Slot, snapshot: TensorSnapshot) -> bool:
    """Whether the slot will hold these values in another dtype."""
    return slot.keeps_dtype and slot.dtype.name != snapshot.dtype.name and not slot.dtype.is_bool


def _share(plan: LoadPlan) -> None:
    """Let slots without a tensor take that of one with which they share theirs; what finds none is missing.

    Shared parameters are written once per path, as Burn does, and must come back as one. If a file has a tensor for one
    of the paths only, it is for all.
    """
    result = plan.result
    taking = {id(slot) for slot, _, _ in plan.matched}
    if plan.unmatched:
        first: dict[int, Slot] = {}
        for slot, _, _ in plan.matched:
            first.setdefault(slot.identity(), slot)
        for slot in plan.unmatched:
            leader = first.get(slot.identity())
            if leader is None:
                result.missing.append(MissingTensor.at(slot.path, ".".join(slot.container_stack)))
            else:
                plan.followers.append(slot)
                taking.add(id(slot))
                result.notes.append(f"'{slot.path}' is shared with '{leader.path}' and took its tensor")
        result.missing.sort()
    result.applied = [slot.path for slot in plan.target.slots if id(slot) in taking]


def _choose(plan: LoadPlan, index: dict[str, TensorSnapshot], stages: Stages) -> None:
    """Find each slot's tensor by its name, and whether it fits."""
    slots, filter, adapter, part = plan.target.slots, stages.filter, stages.adapter, stages.part
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
    held = _Held()
    for row, slot in enumerate(slots):
        path = slot.path
        found = index.get(path)
        if found is None and adapter is not None:
            found = _by_alternative_name(slot, index, adapter)
        if found is None:
            plan.unmatched.append(slot)
            continue
        consumed.add(found.path)
        plan.taken[path] = found.path
        if chosen is not None and not chosen[row]:
            plan.result.skipped.append(path)
            continue
        source_id = found._param_id
        if adapter is not None:
            found = _adapted(found, slot, adapter)
        if part is not None:
            found = part.of(found, path)
        problem = _mismatch(slot, found) or held.problem(slot, found)
        if problem is not None:
            errors.append(problem)
        else:
            plan.matched.append((slot, found, source_id))
    plan.result.errors = errors
    plan.result.skipped.sort()
    plan.result.unused = sorted(names - _origins(consumed, index, names))


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
    return adapter.adapt(snapshot.replace(container_stack=slot.container_stack))


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


class _Held:
    """Whether slots can hold tensors, as far as their dtypes tell; found out once for all that are alike."""

    def __init__(self) -> None:
        self._found: dict[tuple[DType | None, DType], BurnstoreError | None] = {}

    def problem(self, slot: Slot, snapshot: TensorSnapshot) -> ApplyError | None:
        """Why this slot cannot hold this tensor, whatever its values are."""
        key = (slot.dtype if slot.keeps_dtype else None, snapshot.dtype)
        if key not in self._found:
            self._found[key] = _tried(slot, snapshot)
        why = self._found[key]
        return None if why is None else load_error(slot.path, why)


def _tried(slot: Slot, snapshot: TensorSnapshot) -> BurnstoreError | None:
    """The error that a tensor of this dtype and no elements gives."""
    if snapshot.dtype.is_quantized:
        return None
    nothing = snapshot.replace(shape=(0,), nbytes=0)
    try:
        value_for(slot, nothing, b"")
    except BurnstoreError as error:
        return error
    return None


def load_error(path: str, why: object) -> ApplyError:
    """The report of a tensor that fits and still cannot be loaded."""
    found = why if isinstance(why, BaseException) else None
    return ApplyError("LoadError", path, f"Load error for '{path}': {why}", found=found)


def _same_kind(wanted: DType, given: DType) -> bool:
    if wanted.kind in (Kind.FLOAT, Kind.QUANTIZED):
        return given.kind in (Kind.FLOAT, Kind.QUANTIZED)
    if wanted.kind in (Kind.INT, Kind.UINT):
        return given.kind in (Kind.INT, Kind.UINT)
    if wanted.kind is Kind.BOOL:
        return given.kind is Kind.BOOL or given in (DType.U8, DType.U32)
    return given.kind is wanted.kind
