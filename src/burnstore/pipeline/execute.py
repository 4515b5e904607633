"""Execute a plan into a model, after everything was found to fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import BurnstoreError, DeviceError, LoadError, MissingTensorsError, ModelError, counted, entry_point
from ..io.gc_pause import gc_paused
from ..models.binding import KeepsPartIds, Slot
from ..models.load.casting import value_for
from ..models.load.in_place import DirectRead, Matched, direct_reads, failed_load, read_directly
from ..models.load.ties import Group, Value, changed_with_others, disagreeing, overlapping
from ..models.result import ApplyResult, MissingTensor
from ..tensor.data import Array, TensorData, array_from_bytes, bytes_of_array
from ..tensor.note import Note, note_kind
from ..tensor.snapshot import TensorSnapshot, read_all
from ..transforms.precision import underflows
from .compile import compile_load, is_cast, load_error, underflow_notes
from .ends import Input, Target, input_of_snapshots, target_of_model
from .options import AdapterLike, FilterLike, Pipeline
from .plan import LoadPlan


@entry_point("apply")
def apply(
    model: Any,
    snapshots: Iterable[TensorSnapshot],
    filter: FilterLike | None = None,
    adapter: AdapterLike | None = None,
    *,
    skip_enum_variants: bool = False,
    allow_partial: bool = True,
    validate: bool = False,
    strict: bool = False,
    allow_empty: bool = True,
    in_place: bool = True,
) -> ApplyResult:
    """Assign snapshots to the parameters with their paths, and report the outcome for each.

    Snapshots of a file or model know their layout, and are converted to the model's where it is another; those that
    do not (`TensorSnapshot.from_numpy`) must have the model's. If several snapshots have the same path, the last
    counts, so lists can be concatenated to overlay models. A parameter takes the tensor's own dtype within its kind
    (float, integer, bool) and the tensor's id if it has one; a torch tensor keeps its dtype, which is noted.

    All tensors are read before any is assigned: if reading fails, or an error is raised, the model is unchanged. Only
    large tensors of torch are read directly into the model's memory, after everything else was found to fit; if the
    disk fails then, the error states that the model is partly loaded. ``in_place=False`` reads those first, too.

    With ``validate``, tensors that do not fit raise LoadError; without ``allow_partial``, parameters without a tensor
    raise MissingTensorsError; with ``strict`` (then both are implied) so do snapshots without a parameter, and without
    ``allow_empty`` a call that applies nothing. By default all of this is only reported: a result is false if a tensor
    did not fit or none was applied.

    >>> import numpy as np
    >>> model = {"weight": np.zeros(2, np.float32)}
    >>> result = apply(model, [TensorSnapshot.from_numpy("weight", np.ones(2, np.float32))])
    >>> result.applied, model["weight"].tolist()
    (['weight'], [1.0, 1.0])
    """
    if isinstance(snapshots, Mapping):
        raise TypeError(f"snapshots must be a list, got a {type(snapshots).__name__}; pass its values()")
    pipeline = Pipeline(
        filter=filter,
        adapter=adapter,
        skip_enum_variants=skip_enum_variants,
        allow_partial=allow_partial and not strict,
        validate=validate or strict,
        strict=strict,
        allow_empty=allow_empty,
    )
    target = target_of_model(model, skip_enum_variants=skip_enum_variants)
    source = _input_for(target, list(snapshots), pipeline)
    result = execute(compile_load(source, target, pipeline), pipeline, in_place=in_place)
    if not result.applied and not result.errors:
        result.notes.append(Note("empty", f"nothing was applied: {_why_nothing(result)}"))
    return result


def _input_for(target: Target, snapshots: list[TensorSnapshot], pipeline: Pipeline) -> Input:
    """Return snapshots as an input; those without a layout are the caller's, who gives them in the target's."""
    stated = [each for each in snapshots if each.layout is not None]
    source = input_of_snapshots("<snapshots>", stated)
    if source.layout is None:
        takes = None if pipeline.adapter is None else pipeline.adapter.takes_layout
        return replace(source, snapshots=snapshots, layout=takes or target.layout)
    other = next((each for each in snapshots if each.layout is None), None)
    if other is not None and source.layout != target.layout and target.states_layout():
        raise ModelError(
            f"it does not state its layout, and {stated[0].path!r} has {source.layout}'s, which the model has not",
            tensor=other.path,
            hint="apply them in two calls",
        )
    return replace(source, snapshots=snapshots)


def execute(plan: LoadPlan, pipeline: Pipeline, *, in_place: bool = True) -> ApplyResult:
    """Read the tensors of a plan and assign them to its slots, with the guarantees of `apply`."""
    with gc_paused():
        plan.check_constants()
        moves: list[Matched] = [
            (move.slot, move.snapshot, move.param_id) for move in plan.moves if move.slot is not None
        ]
        overlaps = overlapping(plan.slots)
        shared = {identity for group in overlaps for identity in group}
        try:
            straight, others = direct_reads(moves, plan.followers, shared) if in_place else ([], moves)
        except DeviceError as error:
            raise failed_load(error, plan.result, unchanged=True) from error
        read = [slot for each in straight for slot, _ in each.holders]
        zeroed = {
            each.memory.slot.path
            for each in straight
            if not isinstance(each.memory, memoryview) and each.memory.underflows
        }
        values = _with_shared(plan, _read(others, plan.result, zeroed), apart_from=set(map(id, read)))
        if overlaps:
            values = _without_conflicts(plan, values, overlaps)
        raise_if_refused(plan.result, pipeline, plan.hint)
        if not plan.result.applied and not plan.result.errors and not pipeline.allow_empty:
            plan.result.notes.append(Note("empty", "nothing was loaded: model and file have no tensors"))
        plan.result.notes += underflow_notes((move.snapshot for move in plan.moves), zeroed)
        _assign(values, straight, plan.result)
        for slot in (*(slot for slot, _, _ in values), *read) if plan.part_ids else ():
            if slot.path in plan.part_ids and isinstance(slot, KeepsPartIds):
                slot.part_ids = plan.part_ids[slot.path]
        return plan.result


def raise_if_refused(result: ApplyResult, pipeline: Pipeline, hint: str | None = None) -> None:
    """Raise LoadError or MissingTensorsError for a result that the pipeline does not allow."""
    if pipeline.validate and result.errors:
        unfit = counted(len(result.errors), "tensor does not fit", "tensors do not fit")
        raise LoadError(
            f"Import errors: {unfit}\n{result.text(refused=True)}",
            result=result,
            hint="pass validate=False to load the others and report these",
        )
    if not pipeline.allow_partial and result.missing:
        raise MissingTensorsError(
            f"Missing tensors: {len(result.missing)}\n{result.text(refused=True)}",
            result=result,
            hint=hint or "pass allow_partial=True if they may be missing",
        )
    if pipeline.strict and result.unused:
        raise LoadError(
            f"Unused tensors: {len(result.unused)}\n{result.text(refused=True)}",
            result=result,
            hint=hint or "leave strict= out if the file may have tensors that the model does not take",
        )
    left = result.missing or result.skipped or result.unused or pipeline.filter is not None
    if left and not result.applied and not result.errors and not pipeline.allow_empty:
        raise LoadError(
            f"Nothing to load: {_why_nothing(result)}\n{result.text(refused=True)}",
            result=result,
            hint=hint or "correct the filter, the rename or the file; allow_empty=True permits a load of nothing",
        )


def _why_nothing(result: ApplyResult) -> str:
    """Return why no tensor is loaded."""
    unmatched = [note for note in result.notes if note_kind(note) == "unmatched"]
    if unmatched:
        return str(unmatched[0])
    if result.skipped:
        return f"the filter leaves out all of {counted(len(result.skipped), 'tensor')}"
    if result.missing and result.unused:
        return "no tensor of the file has the name of a parameter"
    return "the file has no tensors" if result.missing else "the model has no parameters"


def _read(matched: Sequence[Matched], result: ApplyResult, zeroed: set[str]) -> list[Value]:
    """Return the values of matched tensors; those that cannot be read become errors of the result.

    ``zeroed`` gets the paths of slots whose dtype makes a value 0.
    """
    values: list[Value] = []
    raws = read_all([snapshot for _, snapshot, _ in matched])
    for row, (slot, snapshot, param_id) in enumerate(matched):
        raw, raws[row] = raws[row], None
        try:
            if isinstance(raw, BaseException):
                _refuse(result, slot, raw)
            else:
                value = value_for(slot, snapshot, raw)
                values.append((slot, value, param_id))
                if (
                    slot.keeps_dtype
                    and isinstance(value, np.ndarray)
                    and snapshot.dtype.is_float
                    and is_cast(slot, snapshot)
                ):
                    given = array_from_bytes(raw, snapshot.dtype, snapshot.shape)
                    zeroed |= {slot.path} if underflows(given, value) else set()
        except BurnstoreError as error:
            _refuse(result, slot, error)
    return values


def _refuse(result: ApplyResult, slot: Slot, why: object) -> None:
    """Report a tensor that was to be applied and cannot be."""
    result.applied.remove(slot.path)
    result.errors.append(load_error(slot.path, why))


def _with_shared(plan: LoadPlan, values: list[Value], *, apart_from: Collection[int]) -> list[Value]:
    """Return the values with one for every slot that shares its tensor with another; two that differ are an error.

    ``apart_from`` are the ids of the slots that are read in place.
    """
    identities = {slot.identity() for slot, _, _ in values}
    if len(identities) == len(values) and not plan.followers:
        return values  # nothing is shared
    first: dict[int, Value] = {}
    kept: list[Value] = []
    for slot, value, param_id in values:
        leader = first.setdefault(slot.identity(), (slot, value, param_id))
        if leader[0] is slot or _same_bits(leader[1], value):
            kept.append((slot, leader[1], param_id))
        else:
            _refuse(plan.result, slot, f"it is shared with '{leader[0].path}', for which the source has other values")
    for slot in plan.followers:
        shared = first.get(slot.identity())
        if id(slot) in apart_from:
            continue
        if shared is not None:
            kept.append((slot, shared[1], shared[2]))
        else:  # the tensor that it shares could not be read
            plan.result.applied.remove(slot.path)
            plan.result.missing.append(MissingTensor.at(slot.path, ".".join(slot.container_stack)))
            plan.result.missing.sort()
    return kept


def _without_conflicts(plan: LoadPlan, values: list[Value], overlaps: Sequence[Group]) -> list[Value]:
    """Refuse values that differ from others in memory that both share; note slots that change with others."""
    conflicts = disagreeing(overlaps, values)
    for slot, _, _ in values:
        if slot.identity() in conflicts:
            _refuse(plan.result, slot, conflicts[slot.identity()])
    kept = [each for each in values if each[0].identity() not in conflicts]
    plan.result.notes += changed_with_others(overlaps, {slot.identity() for slot, _, _ in kept})
    return kept


def _assign(values: Sequence[Value], straight: Sequence[DirectRead], result: ApplyResult) -> None:
    # A tuple's arrays can only be filled; wherever else such an array is held, it must be filled too to stay the same.
    fixed = {slot.identity() for slot, _, _ in values if slot.fixed}
    filled = {row for row, (slot, _, _) in enumerate(values) if slot.identity() in fixed} if fixed else set()
    for row in filled:
        values[row][0].check_fill(values[row][1])
    read_directly(straight, result)
    for row, (slot, value, param_id) in enumerate(values):
        try:
            slot.assign(value, param_id, fill=row in filled)
        except DeviceError as error:
            raise failed_load(error, result, unchanged=not row and not straight) from error


def _same_bits(first: Array | TensorData, second: Array | TensorData) -> bool:
    if isinstance(first, TensorData) and isinstance(second, TensorData):
        return first.dtype is second.dtype and first.raw == second.raw
    if isinstance(first, TensorData) or isinstance(second, TensorData):
        return False
    return first.dtype == second.dtype and bytes_of_array(first) == bytes_of_array(second)
