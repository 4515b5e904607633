"""Plan: what will be done, before anything is read.

For each target tensor a `Move` with its sources and operations; for each source tensor that is not simply used a
reason; conditions on values that are checked before the sink changes; and the notes. `explain` prints a plan, `load`
executes it into a model, `convert` into a file, and a receipt stores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import CorruptError, ModelError, SaveError, TensorNotFoundError, UnsupportedError, located
from ..models.binding import Slot
from ..models.result import ApplyResult
from ..tensor.note import Note, note_kind
from ..tensor.snapshot import TensorSnapshot
from ..transforms.constant import check_constant
from ..transforms.guess import Guess
from ..transforms.operations import (
    CONCAT,
    Apply,
    Fill,
    Operation,
    operation_from_json,
)
from ..transforms.view import LayoutView, Origin


class Move(NamedTuple):
    """How one target tensor is made: its sources, each with its own operations, then operations on the whole."""

    target: str
    origins: tuple[Origin, ...]
    operations: tuple[Operation, ...]
    snapshot: TensorSnapshot
    """The lazy tensor that the operations lower to."""

    slot: Slot | None = None
    param_id: int | None = None

    def becoming(self, snapshot: TensorSnapshot, *steps: Operation) -> Move:
        """Return the move after more operations, which make this tensor; without a slot it names the target."""
        target = self.target if self.slot is not None else snapshot._path
        return Move(target, self.origins, (*self.operations, *steps), snapshot, self.slot, self.param_id)

    def steps(self) -> list[str]:
        """Return the operations as text, each once, in their order."""
        steps = [str(step) for origin in self.origins for step in origin.operations]
        if len(self.origins) > 1 and not isinstance(self.operations[0] if self.operations else None, Apply):
            steps.append(f"joined from {len(self.origins)}")
        steps += [str(step) for step in self.operations if step != CONCAT]
        return list(dict.fromkeys(steps))

    def to_json(self) -> dict[str, Any]:
        """Return the move as plain data; UnsupportedError if it has a function of the user."""
        for step in (*(step for origin in self.origins for step in origin.operations), *self.operations):
            if isinstance(step, Apply):
                raise UnsupportedError(
                    f"{step.function_name} is a function of the caller and cannot be stored",
                    tensor=self.target,
                    hint="a receipt needs adapters that transpose and cast with burnstore's functions, or none",
                )
        origins = [
            [origin.source, origin.input, [step.to_json() for step in origin.operations]] for origin in self.origins
        ]
        return {"name": self.target, "from": origins, "operations": [step.to_json() for step in self.operations]}


@dataclass(slots=True)
class Plan:
    """What will be done with the tensors of one or several sources."""

    moves: list[Move] = field(default_factory=list)
    layout: str | None = None
    """The layout of the target's tensors; None if it is unknown."""

    source_layout: str | None = None
    fates: dict[str, str] = field(default_factory=dict)
    """Source tensors that no move uses, each with the reason."""

    constants: list[tuple[TensorSnapshot, float]] = field(default_factory=list)
    """Tensors that the target leaves out because they are constant; their values are checked first."""

    equals: list[tuple[TensorSnapshot, TensorSnapshot]] = field(default_factory=list)
    """Tensors that the target leaves out because they equal others; their values are compared first."""

    notes: list[Note] = field(default_factory=list)
    view: LayoutView | None = None
    """What is known of the modules, where the layout was converted or a record has to be kept."""

    is_converted: bool = False
    guess: Guess | None = None
    renames: dict[str, str] = field(default_factory=dict)
    """New names by old ones: of source tensors when reading, of a model's tensors in the file's layout when saving."""

    counts: dict[str, TensorSnapshot] = field(default_factory=dict)
    """Counters of the source (PyTorch's paths), which the target records with its modules."""

    tied: Sequence[Sequence[str]] = ()
    """Groups of target tensors that the model given as like has as one tensor."""

    def check_constants(self) -> None:
        """Read the constants and equal tensors; ModelError if one has another value, which would be lost."""
        for given, value in self.constants:
            check_constant(given, value)
        for given, other in self.equals:
            if given.dtype is not other.dtype or given.shape != other.shape or given.to_bytes() != other.to_bytes():
                raise ModelError(
                    f"it is left out as equal to {other.path!r}, and differs from it",
                    tensor=given.path,
                    hint="change the rules so that they keep it, or make the two equal",
                )

    def check_not_empty(self, *, allow_empty: bool, path: str | None = None) -> None:
        """Raise SaveError if no tensor would be written and that was not asked for: a file may be lost for nothing."""
        if self.moves or allow_empty:
            return
        filtered = sum(note_kind(why) == "filtered" for why in self.fates.values())
        patterns = [repr(note.subject) for note in self.notes if note.kind == "unmatched" and note.subject is not None]
        why = "the source has no tensors"
        if filtered:
            named = f" {', '.join(patterns)}" if patterns else ""
            why = f"the filter{named} matches none of {filtered} tensor{'' if filtered == 1 else 's'}"
        elif self.fates:
            name, reason = next(iter(self.fates.items()))
            why = f"all {len(self.fates)} are left out, the first, {name!r}, because {reason}"
        fix = "correct the filter" if filtered else "check the source"
        raise SaveError(
            f"not written: no tensor would be in the file, because {why}",
            stage="check",
            path=path,
            hint=f"{fix}, or pass allow_empty=True to write a file without tensors",
        )

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the source tensors, of these, that neither a move uses nor a reason covers: always none."""
        used = {origin.source for move in self.moves for origin in move.origins}
        used |= {*self.fates, *self.counts, *(tensor.path for tensor, _ in self.constants)}
        return [name for name in names if name not in used]


@dataclass(slots=True)
class LoadPlan(Plan):
    """A plan into the slots of a model, with what a load will report."""

    result: ApplyResult = field(default_factory=ApplyResult)
    slots: Sequence[Slot] = ()
    hint: str | None = None
    """What to do about missing tensors."""

    followers: list[Slot] = field(default_factory=list)
    """Slots without a tensor of their own, which take that of another slot with which they share one."""

    part_ids: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)


def lower(target: str, origins: Sequence[Origin], operations: Sequence[Operation], sources: Sources) -> TensorSnapshot:
    """Return the lazy tensor that operations make of source tensors, under the target's name."""
    parts = []
    for origin in origins:
        if origin.source is None:
            fill = origin.operations[0] if origin.operations else None
            if not isinstance(fill, Fill):
                raise CorruptError("a tensor without a source must be filled", tensor=target)
            parts.append(fill.make(target))
            continue
        found = sources[origin.input].get(origin.source)
        if found is None:
            raise TensorNotFoundError(f"the source has no tensor {origin.source!r}", tensor=target)
        for step in origin.operations:
            found = step(found)
        parts.append(found)
    rest = list(operations)
    if len(parts) > 1:
        if not rest or not rest[0].joins:
            raise CorruptError("several sources must be joined", tensor=target)
        with located(tensor=target):
            parts = [rest.pop(0).combine(parts)]
    if not parts:
        raise CorruptError("a tensor needs a source", tensor=target)
    whole = parts[0]
    for step in rest:
        whole = step(whole)
    return whole if whole.path == target else whole.with_path(target)


Sources = Sequence[Mapping[str, TensorSnapshot]]

_MOST_STEPS = 64  # Each is a level of lazy data; plans of ours have less than ten.
_MOST_ORIGINS = 1 << 14


def moves_from_json(document: Any, sources: Sources, *, most_filled: int) -> Iterator[Move]:
    """Return stored moves bound to the tensors of open sources.

    CorruptError where they are not what `to_json` writes, or fill more than ``most_filled`` bytes with constants.
    """
    filled = 0
    for given in document:
        try:
            name, origins = given["name"], given["from"]
            if not isinstance(name, str) or not all(
                isinstance(source, (str, type(None))) and type(at) is int and 0 <= at < len(sources)
                for source, at, _ in origins
            ):
                raise ValueError("expected [name or null, input index, operations]")
            bound = tuple(Origin(source, tuple(map(operation_from_json, steps)), at) for source, at, steps in origins)
            operations = tuple(map(operation_from_json, given["operations"]))
            most = max([len(operations), *(len(each.operations) for each in bound)])
            if most > _MOST_STEPS or len(bound) > _MOST_ORIGINS:
                raise ValueError(f"more than {_MOST_STEPS} operations in a row, or {_MOST_ORIGINS} sources")
            fills = [step for each in bound for step in each.operations if isinstance(step, Fill)]
            filled += sum(step.dtype.nbytes(step.shape) for step in fills)
            if filled > most_filled:  # a constant is made at once
                raise ValueError(f"more than {most_filled:,} bytes of constants")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(f"expected a move, found {str(given)[:80]!r}: {error}") from None
        yield Move(name, bound, operations, lower(name, bound, operations, sources))
