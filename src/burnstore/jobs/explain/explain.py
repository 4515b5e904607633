"""Explain: print what a load or a conversion will do, before any tensor is read.

`load` and `convert` execute the same plan that is shown, so they cannot disagree. Only what depends on values is
unknown: whether a number fits a narrower dtype, whether shared tensors are equal in the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import LoadError, ModelError, counted, entry_point, located, printable
from ...formats.registry import format_for_path
from ...io.paths import as_path, is_path, with_options
from ...limits import Limits, check_options
from ...models.result import ApplyResult
from ...pipeline.compile import compile_load, is_cast
from ...pipeline.compile_file import compile_convert
from ...pipeline.ends import UNKNOWN_LAYOUT, Input, Target, input_of_file, layout_evidence, target_of_file
from ...pipeline.execute import raise_if_refused
from ...pipeline.load import model_target
from ...pipeline.options import AdapterLike, FilterLike, Pipeline, RenameLike, RulesLike, pipeline_of, refuse_unused
from ...pipeline.plan import LoadPlan, Move, Plan
from ...pipeline.unify import convertible
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.plain import Plain
from ...tensor.tabular import Result
from ...transforms.guess import guess_kinds
from ...transforms.layout import LAYOUTS, Layout
from ...transforms.operations import Split
from ...transforms.partition import Part
from ..convert.convert import like_target, plan_of_files

File = str | os.PathLike[str] | bytes | bytearray | memoryview

RATE = 1e9
"""Bytes per second that an estimate of time assumes by default."""

_READ_IN_PLACE = 64 << 10  # a smaller tensor is read together with its neighbours, and then copied
_MOST_SHOWN = 3
# Endings of names that only one of the frameworks uses.
_TYPICAL_ENDINGS = {
    "burn": (".gamma", ".beta", ".input_transform.weight", ".linear_inner.weight"),
    "torch": (".num_batches_tracked", ".in_proj_weight", ".weight_ih_l0", ".weight_hh_l0"),
}


@dataclass(frozen=True, slots=True)
class TensorPlan(Plain):
    """How one tensor of the target will be made: from which tensors of the file, and by which steps."""

    target: str
    sources: tuple[str, ...]
    steps: tuple[str, ...]
    shape: Shape
    dtype: str
    nbytes: int
    """The bytes of the file that are read for it."""


@dataclass(frozen=True, slots=True)
class LayoutChange(Plain):
    """What the conversion of a file into a layout needs, and how many tensors it changes, as far as that is known.

    ``is_known`` states that no further information is needed.
    """

    layout: str
    is_known: bool
    needs: str
    renamed: int = 0
    transposed: int = 0
    split: int = 0
    joined: int = 0


@dataclass(frozen=True, slots=True)
class Explanation(Result):
    """What a file is, and what a load into a model (or a conversion into another file) will do.

    ``result`` is what a load will report if all values can be read and cast, None if nothing is loaded; ``refusal`` is
    the error that it would raise. ``peak_bytes`` is the memory needed besides the model. Bytes, memory and time are
    estimates: the time is that of reading at ``rate`` bytes per second.
    """

    path: str
    format: str
    variant: str
    layout: str | None
    evidence: list[str]
    tensors: int
    nbytes: int
    target: str | None = None
    target_layout: str | None = None
    moves: list[TensorPlan] = field(default_factory=list)
    result: ApplyResult | None = None
    refusal: str | None = None
    changes: list[LayoutChange] = field(default_factory=list)
    bytes_to_read: int = 0
    peak_bytes: int = 0
    rate: float = RATE
    notes: list[Note] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The estimated time of reading."""
        return self.bytes_to_read / self.rate

    @property
    def is_clean(self) -> bool:
        """Whether every tensor has a parameter, every parameter a tensor, and all fit."""
        return self.result is None or not (self.result.errors or self.result.missing or self.result.unused)

    @property
    def ok(self) -> bool:
        """Whether the load would not be refused, and would do something unless doing nothing is allowed."""
        return self.refusal is None and (self.result is None or self.result.ok)

    def nearest(self, missing: str) -> str | None:
        """Return the unused tensor that most resembles a missing one."""
        return None if self.result is None else self.result.suggestion(missing)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON; that of a load has the fields of its result beside the others."""
        facts = super(Explanation, self).to_dict()
        result = facts.pop("result")
        if result is not None:
            missing = [{**each, "nearest": self.nearest(each["path"])} for each in result["missing"]]
            facts |= {name: result[name] for name in ("skipped", "unused", "errors", "notes")} | {"missing": missing}
        estimate = {name: facts.pop(name) for name in ("bytes_to_read", "peak_bytes", "rate")}
        return {**facts, "estimate": {**estimate, "seconds": self.seconds}}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        size = f"{counted(self.tensors, 'tensor')}, {counted(self.nbytes, 'byte')}"
        yield f"{printable(self.path)}: {self.format}, {size}"
        yield from self.evidence
        for change in self.changes:
            yield f"into {change.layout}'s layout: {change.needs}"
        for move in self.moves:
            origin = " + ".join(map(printable, move.sources)) or "nothing"
            yield f"{printable(move.target)} <- {origin}" + "".join(f"; {step}" for step in move.steps)
        for name, why in self.left_out.items():
            yield f"{printable(name)}: left out, {why}"
        yield from (f"note: {note}" for note in self.notes)
        if self.result is not None:
            yield str(self.result)


@entry_point("explain")
def explain(
    source: File,
    into: Any = None,
    *,
    target: str | os.PathLike[str] | None = None,
    like: Any = None,
    filter: FilterLike | None = None,
    rename: RenameLike | None = None,
    layout: str | None = None,
    target_layout: str | None = None,
    keep_layout: bool = False,
    rules: RulesLike | None = None,
    invert: bool = False,
    guess: bool = False,
    adapter: AdapterLike | None = None,
    cast: DType | str | None = None,
    part: Part | None = None,
    top_level_key: str | None = None,
    allow_partial: bool = False,
    validate: bool = True,
    strict: bool = False,
    allow_empty: bool = False,
    in_place: bool = True,
    format: str | None = None,
    limits: Limits | None = None,
    rate: float = RATE,
    storage_options: Mapping[str, Any] | None = None,
    pipeline: Pipeline | None = None,
) -> Explanation:
    """Explain what a load or a conversion of a file (or bytes) would do; no tensor is read, and nothing is changed.

    ``into`` is a model, or the path of a file whose tensors the load would replace. ``target`` is the path of a file
    that a conversion would write. Without either, the explanation covers the file alone: its layout, the evidence for
    it, and what a conversion into the other layout needs. Options are those of `load` and `convert`, with the same
    meaning; ``rate`` is the number of bytes read per second, for the estimate of time.

    Raises what the load would raise before it reads anything, except for tensors that are missing or do not fit, which
    are part of the explanation.

    >>> import numpy as np, burnstore as bs
    >>> packed = bs.serialize({"fc.weight": np.ones((3, 4), np.float32)}, format="burnpack")
    >>> plan = bs.explain(packed, {"fc": {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(4, np.float32)}})
    >>> plan.moves[0].sources, plan.result.missing, plan.refusal, plan.bytes_to_read
    (('fc.weight',), ['fc.bias'], 'MissingTensorsError', 48)
    """
    if not rate > 0:
        raise ValueError(f"rate must be a positive number of bytes per second, got {rate!r}")
    if into is not None and target is not None:
        raise TypeError("into= and target= exclude each other: explain a load, or a conversion")
    check_options(limits=limits, in_place=in_place)
    chosen = pipeline_of(
        pipeline,
        filter=filter,
        rename=rename,
        layout=layout,
        target_layout=target_layout,
        keep_layout=keep_layout,
        rules=rules,
        invert=invert,
        guess=guess,
        adapter=adapter,
        cast=cast,
        part=part,
        allow_partial=allow_partial,
        validate=validate,
        strict=strict,
        allow_empty=allow_empty,
    )
    source, into, target, like = with_options(storage_options, source, into, target, like)
    if target is not None:
        chosen = refuse_unused(chosen, "explain of a conversion", "part", "strict").with_defaults(unmatched="error")
    elif into is not None:
        refuse_unused(chosen, "explain of a load", "keep_layout", "target_layout")
    if into is not None and (like is not None or format is not None):
        raise TypeError("like= and format= are for target=, the explanation of a conversion")
    with open_checkpoint(source, limits=limits, top_level_key=top_level_key) as file:
        given = input_of_file(file)
        own = chosen.layout or given.layout
        known: dict[str, Any] = {
            "path": file.path,
            "format": file.format,
            "variant": file.variant,
            "layout": own,
            "evidence": _evidence(file, chosen.layout),
            "tensors": len(file),
            "nbytes": file.nbytes,
            "rate": rate,
        }
        if target is not None:
            return _explained_conversion(given, as_path(target), format, like, chosen, known)
        if into is None:
            return Explanation(**known, changes=[_change(given, own, wanted) for wanted in LAYOUTS])
        if is_path(into):
            with open_checkpoint(into) as other:
                slots = target_of_file(other, given, chosen)
                return _explained(given, slots, chosen, known, as_path(into), in_place=in_place)
        with located(path=given.name):  # an error names the file, as that of a load does
            slots = model_target(into, given, chosen)
            return _explained(given, slots, chosen, known, type(into).__name__, in_place=in_place)


def _explained(
    source: Input, target: Target, pipeline: Pipeline, known: dict[str, Any], name: str, *, in_place: bool
) -> Explanation:
    plan = compile_load(source, target, pipeline)
    sizes = {each.path: each.nbytes for each in source.snapshots}
    leaders = {move.slot.identity(): move.target for move in reversed(plan.moves) if move.slot is not None}
    made = {move.target: _row(move, plan, sizes, pipeline) for move in plan.moves}
    for slot in plan.followers:
        steps = (f"shared with {leaders[slot.identity()]}",)
        made[slot.path] = TensorPlan(slot.path, (), steps, slot.shape, str(slot.dtype), 0)
    rows = [made[slot.path] for slot in plan.slots if slot.path in made]
    return Explanation(
        **known,
        target=name,
        target_layout=target.layout,
        moves=rows,
        result=plan.result,
        refusal=_refusal(plan.result, pipeline),
        bytes_to_read=sum(row.nbytes for row in rows),
        peak_bytes=_peak(plan, in_place=in_place),
    )


def _explained_conversion(
    source: Input, path: str, format: str | None, like: Any, pipeline: Pipeline, known: dict[str, Any]
) -> Explanation:
    chosen = format_for_path(path, format)
    with like_target(like, source, pipeline, is_whole=not pipeline.allow_partial) as target:
        plan, _ = plan_of_files([source], pipeline, chosen, target)
    plan.check_not_empty(allow_empty=pipeline.allow_empty or bool(source.scalars), path=path)
    sizes = {each.path: each.nbytes for each in source.snapshots}
    rows = [_row(move, plan, sizes, pipeline) for move in plan.moves]
    return Explanation(
        **known,
        target=path,
        target_layout=plan.layout,
        moves=rows,
        bytes_to_read=sum(row.nbytes for row in rows),
        peak_bytes=max((move.snapshot.bytes_held for move in plan.moves), default=0),
        notes=plan.notes,
        left_out=plan.fates,
    )


def _refusal(result: ApplyResult, pipeline: Pipeline) -> str | None:
    """Return the name of the error that a load with this result raises."""
    try:
        raise_if_refused(result, pipeline)
    except LoadError as error:
        return type(error).__name__
    return None


def _peak(plan: LoadPlan, *, in_place: bool) -> int:
    """Return the memory that a load needs beside the model.

    All tensors are read before the first is assigned, except large ones of a torch model, which are read into its own
    memory. A tensor that is cast exists in both dtypes for a moment.
    """
    held = [0]
    for move in plan.moves:
        slot, snapshot = move.slot, move.snapshot
        assert slot is not None
        is_straight = slot.keeps_dtype and snapshot.dtype is slot.dtype and snapshot.nbytes >= _READ_IN_PLACE
        if not (is_straight and in_place):
            held.append(max(snapshot.nbytes, slot.dtype.nbytes(slot.shape) if is_cast(slot, snapshot) else 0))
    return sum(held) + max(held)


def _row(move: Move, plan: Plan, sizes: Mapping[str, int], pipeline: Pipeline) -> TensorPlan:
    names = tuple(origin.source for origin in move.origins if origin.source is not None)
    steps = [step for name in names for step in _renames(name, plan, pipeline)]
    steps += move.steps() if move.origins else ["from the metadata"]
    if plan.is_converted and len(names) == 1 and plan.renames.get(names[0], names[0]) != move.target:
        steps.append("renamed by layout")
    whole = 0
    for origin in move.origins:
        parts = next((step.parts for step in origin.operations if isinstance(step, Split)), 1)
        whole += 0 if origin.source is None else sizes.get(origin.source, 0) // parts
    nbytes = whole if pipeline.part is None else min(whole, move.snapshot.nbytes)
    dtype = move.snapshot.dtype if move.slot is None or not move.slot.keeps_dtype else move.slot.dtype
    return TensorPlan(move.target, names, tuple(dict.fromkeys(steps)), move.snapshot.shape, str(dtype), nbytes)


def _renames(source: str, plan: Plan, pipeline: Pipeline) -> Iterator[str]:
    renames = [] if pipeline.rename is None else pipeline.rename.trace(source)
    yield from (f"renamed by {rule}" for rule, _ in renames)
    name = plan.renames.get(source, source)
    if name != (renames[-1][1] if renames else source):
        yield f"renumbered without gaps to {name}"


# --- a file alone -----------------------------------------------------------------------------------------------------


def _evidence(file: Checkpoint, given: Layout | None) -> list[str]:
    """Return the evidence for the layout of a file: what states it, or names that suggest one."""
    known = layout_evidence(file, given)
    if known is not None:
        return [printable(known)]
    found = [UNKNOWN_LAYOUT]
    for layout, endings in _TYPICAL_ENDINGS.items():
        names = [name for name in file if name.endswith(endings)]
        if names:
            shown = ", ".join(printable(name) for name in names[:_MOST_SHOWN])
            more = " …" if len(names) > _MOST_SHOWN else ""
            found.append(f"{counted(len(names), 'name')} that only {layout} uses: {shown}{more}")
    return found


def _change(source: Input, stated: str | None, wanted: Layout) -> LayoutChange:
    """Return what a conversion into that layout needs."""
    layout = convertible(stated)
    if layout == wanted:
        return LayoutChange(wanted, True, "nothing, the file has this layout")
    if layout is None and stated is not None:
        needed = f"another program: {stated}'s layout is not converted; layout= says that the tensors have another"
        return LayoutChange(wanted, False, needed)
    if layout is None:
        return LayoutChange(wanted, False, "pass layout= to state which layout the file has")
    is_recorded = source.recorded is not None
    if not is_recorded and not source.classes:
        return LayoutChange(wanted, False, _wanting(source, layout))
    try:
        plan = compile_convert(replace(source, layout=layout), Pipeline(), wanted)
    except ModelError as error:
        why = "the recorded modules" if is_recorded else "the modules of the named classes"
        return LayoutChange(wanted, False, f"{why} cannot be converted: {error}")
    stated = "records" if is_recorded else "names the classes of"
    return LayoutChange(wanted, True, f"nothing, the file {stated} its modules", **_counts(plan.moves))


def _wanting(source: Input, layout: Layout) -> str:
    """Return what is needed for a file that does not record its modules."""
    needed = "the kinds of its modules: like= a model, or rules="
    if layout != "torch":
        return needed
    guess = guess_kinds({each.path: each.shape for each in source.snapshots})
    if not guess.ambiguous:
        return f"{needed}; or guess=True, because names and shapes decide {counted(len(guess.kinds), 'module')}"
    path, why = next(iter(guess.ambiguous.items()))
    verb = "is" if len(guess.ambiguous) == 1 else "are"
    return (
        f"{needed}; a guess is not enough, because {len(guess.ambiguous)} of "
        f"{counted(len(guess.kinds.keys() | guess.ambiguous.keys()), 'module')} {verb} ambiguous, the first: "
        f"{printable(path) or '(the file)'} ({why})"
    )


def _counts(moves: Sequence[Move]) -> dict[str, int]:
    made = [move for move in moves if move.origins[0].source is not None]
    steps = [{step.name for origin in move.origins for step in origin.operations} for move in made]
    return {
        "renamed": sum(len(move.origins) == 1 and move.origins[0].source != move.target for move in made),
        "transposed": sum("transpose" in names for names in steps),
        "split": sum("split" in names for names in steps),
        "joined": sum(len(move.origins) > 1 for move in made),
    }
