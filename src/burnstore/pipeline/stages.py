"""Stages: what every direction does to tensors on their way, each in one place.

The compilers decide the order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from ..errors import DuplicateNameError, ModelError, PatternError, quoted
from ..models.binding import Slot
from ..tensor.dtype import DType
from ..tensor.facts import DecodedData
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import FunctionAdapter, ModuleAdapter
from ..transforms.filter import Selection
from ..transforms.operations import Apply, Cast, Operation, operations_between
from ..transforms.partition import Part
from ..transforms.precision import cast
from .ends import Target
from .options import Pipeline
from .plan import Move, Plan

FILTERED = Note("filtered", "the filter does not match it")
"""The reason for a tensor that the filter leaves out."""


def select(
    items: Sequence[Slot] | Sequence[TensorSnapshot],
    pipeline: Pipeline,
    notes: list[Note],
    what: str,
    containers: Mapping[str, Sequence[str]] | None = None,
) -> Selection | None:
    """Return which slots or tensors the filter keeps, None if there is no filter.

    A criterion that keeps none is noted or refused; ``what`` names what it did not match. ``containers`` replace the
    items' own, by path.
    """
    if pipeline.filter is None:
        return None
    around = containers or {}
    selection = pipeline.filter.select([(each.path, around.get(each.path) or each.container_stack) for each in items])
    if selection.unmatched and pipeline.unmatched == "error":
        after = "" if pipeline.rename is None else "write the new names, because rename= comes first; "
        raise PatternError(
            f"the filter {quoted(selection.unmatched[0])} matched no {what}",
            hint=f"{after}look up the names with burnstore inspect FILE",
        )
    notes += [Note("unmatched", f"the filter's {quoted(text)} matched no {what}", text) for text in selection.unmatched]
    return selection


def keep(plan: Plan, moves: list[Move], selection: Selection | None) -> list[Move]:
    """Return the moves that the filter keeps; the plan has the reason for source tensors that no other move uses."""
    if selection is None:
        return moves
    kept = [move for move, is_kept in zip(moves, selection, strict=True) if is_kept]
    used = {origin.source for move in kept for origin in move.origins}
    for move, is_kept in zip(moves, selection, strict=True):
        for origin in () if is_kept else move.origins:
            if origin.source is not None and origin.source not in used:
                plan.fates[origin.source] = FILTERED
    return kept


def adapter_name(adapter: ModuleAdapter) -> str:
    """Return the name of an adapter for plans and notes."""
    return adapter.name if isinstance(adapter, FunctionAdapter) else type(adapter).__name__


def check_given(adapter: ModuleAdapter, target: Target) -> None:
    """Refuse an adapter that gives another layout than the target has."""
    given = adapter.gives_layout
    if given is not None and target.layout not in (None, given) and target.states_layout():
        raise ModelError(
            f"{adapter_name(adapter)} gives {given}'s layout, and {target.name} has {target.layout}'s",
            hint="leave the adapter out: layouts are converted automatically",
        )


def check_adapted(
    adapter: ModuleAdapter,
    before: TensorSnapshot,
    after: TensorSnapshot,
    steps: Sequence[Operation],
    *,
    is_converted: bool,
) -> None:
    """Refuse an adapter that changes names or axes of a tensor whose layout is also converted, unless it may."""
    if adapter.replaces_layout or not is_converted:
        return
    is_turned = any(step.name == "transpose" for step in steps)
    if after.path != before.path or after.shape != before.shape or is_turned:
        changed = "the name" if after.path != before.path else "the axes"
        raise ModelError(
            f"{adapter_name(adapter)} changes {changed} of a tensor whose layout is converted automatically",
            tensor=before.path,
            hint="set replaces_layout = True in the adapter if it converts layouts itself, or rename with rename=",
        )


def adapt(move: Move, adapter: ModuleAdapter, *, is_converted: bool) -> Move:
    """Return a tensor after an adapter of single tensors."""
    before = move.snapshot
    after = adapter.adapt(before)
    if after is before:
        return move
    steps = operations_between(before, after, adapter_name(adapter))
    check_adapted(adapter, before, after, steps, is_converted=is_converted)
    return move.becoming(after, *steps)


def adapt_modules(
    moves: Sequence[Move], adapter: ModuleAdapter, module_type: Callable[[Move], str | None]
) -> list[Move]:
    """Return the tensors after the adapter has seen each module once and whole; its result takes the first place.

    What it makes of a module comes from all tensors of it.
    """
    modules: dict[tuple[str, str], dict[str, Move]] = {}
    owners: list[tuple[str, str] | None] = []
    for move in moves:
        parent, _, name = move.target.rpartition(".")
        kind = module_type(move)
        owners.append(None if kind is None else (parent, kind))
        if kind is not None and modules.setdefault((parent, kind), {}).setdefault(name, move) is not move:
            raise DuplicateNameError("two tensors of the model have this path", tensor=move.target)
    replaced: dict[tuple[str, str], list[Move]] = {}
    step = Apply(adapter_name(adapter))
    for (parent, kind), members in modules.items():
        tensors = {name: move.snapshot for name, move in members.items()}
        made = adapter.adapt_module(kind, dict(tensors))
        if list(made.items()) != list(tensors.items()):
            prefix = f"{parent}." if parent else ""
            origins = tuple(origin for move in members.values() for origin in move.origins)
            replaced[parent, kind] = [
                Move(prefix + name, origins, (step,), with_name(prefix + name, tensor)) for name, tensor in made.items()
            ]
    result: list[Move] = []
    for move, owner in zip(moves, owners, strict=True):
        result += [move] if owner is None or owner not in modules else replaced.get(owner, [move])
        if owner in replaced:
            replaced[owner] = []
    return result


def with_name(path: str, snapshot: TensorSnapshot) -> TensorSnapshot:
    """Return a tensor under this name."""
    return snapshot if snapshot._path == path else snapshot.with_path(path)


_cast_to = functools.lru_cache(maxsize=64)(Cast)


def cast_floats(move: Move, dtype: DType) -> Move:
    """Return a float or quantized tensor in another float dtype; codes and scales are decoded, whatever dtype it is."""
    before = move.snapshot
    is_same = before._dtype is dtype and not isinstance(before._data, DecodedData)
    if is_same or not (before._dtype.is_float or before._dtype.is_quantized):
        return move
    return move.becoming(cast(before, dtype), _cast_to(dtype))


def take_part(move: Move, part: Part) -> Move:
    """Return the part of a tensor that one rank has, by its path in the model."""
    mine = part.of(move.snapshot, move.target)
    return move if mine is move.snapshot else move.becoming(mine, Apply(f"part of {part}"))
