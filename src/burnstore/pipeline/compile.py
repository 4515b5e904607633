"""Compile a load: find the tensor for each slot of a target, before anything is read.

The result is a `Plan`. `load` executes it and `explain` prints it, so the two cannot disagree. Misfits are reasons in
the plan; only what makes a plan impossible is raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..errors import BurnstoreError, DuplicateNameError, quoted
from ..models.binding import Slot
from ..models.load.casting import value_for
from ..models.result import ApplyError, MissingTensor
from ..tensor.dtype import DType, Kind
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import ModuleAdapter
from ..transforms.layout import Layout
from ..transforms.operations import CONCAT, Operation, SlotCast, slot_cast
from ..transforms.precision import underflowed
from ..transforms.remap import KeyRemapper
from ..transforms.view import ConvertedView, LayoutView, Origin
from .ends import Input, Target
from .kinds import kinds_by_rules, recorded_counts
from .layouts import decide_layout
from .names import name_tensors
from .options import Pipeline
from .plan import LoadPlan, Move
from .stages import FILTERED, adapt, adapt_modules, cast_floats, check_given, select, take_part
from .stored import stored_for
from .unify import convertible
from .wrappers import strip_rules, wrapper_hint, wrapper_rule

_NO_STEPS: tuple[Operation, ...] = ()
_JOINED: tuple[Operation, ...] = (CONCAT,)

WRAPPER_STRIPPED = Note("names", "the file was saved from a wrapped model: stripped the wrapper from its names")


def compile_load(source: Input, target: Target, pipeline: Pipeline) -> LoadPlan:
    """Return the plan of a load of named tensors into the slots of a target.

    Where the layouts of source and target differ, the target is viewed in the source's layout, unless an adapter
    converts layouts itself.
    """
    source = stored_for(source, target.slots)
    if pipeline.recipe is not None:  # rules have the names of the model inside a wrapper
        inner = wrapper_rule([each.path for each in source.snapshots], target.slots)
        if inner is not None:
            plan = _Load(source, target, without_wrapper(pipeline, inner)).compiled()
            plan.result.notes.append(WRAPPER_STRIPPED)
            return plan
    plan = _Load(source, target, pipeline).compiled()
    missing, names = plan.result.missing, [snapshot.path for snapshot in source.snapshots]
    for rule in strip_rules(missing, plan.result.unused, names) if missing else ():
        # The file was saved from a wrapped model: only its names keep it from fitting.
        again = _Load(source, target, without_wrapper(pipeline, rule)).compiled()
        if not again.result.missing:
            again.result.notes.append(WRAPPER_STRIPPED)
            return again
    return plan


def without_wrapper(pipeline: Pipeline, rule: tuple[str, str]) -> Pipeline:
    """Return a pipeline that also strips a wrapper from the names of the source."""
    return pipeline.replace(rename=(pipeline.rename or KeyRemapper()) + KeyRemapper.from_patterns([rule]))


class _Load:
    """The stages of a load, in their order; see `burnstore.pipeline.options`."""

    def __init__(self, source: Input, target: Target, pipeline: Pipeline) -> None:
        self.source = source
        self.target = target
        self.pipeline = pipeline
        self.plan = LoadPlan(slots=target.slots)
        if pipeline.rules and target.layout is not None:  # a rule that matches nothing is refused, needed or not
            kinds_by_rules((slot.path for slot in target.slots), pipeline.rules, convertible(target.layout) or "burn")
        self.named = name_tensors(source, pipeline, target)

    def compiled(self) -> LoadPlan:
        plan, pipeline = self.plan, self.pipeline
        result = plan.result
        chosen = select(self.target.slots, pipeline, result.notes, "parameter")
        index = {snapshot.path: snapshot for snapshot in self.named.snapshots}
        given = set(index)
        adapter = pipeline.adapter
        if adapter is not None and adapter.is_structural:
            index = self._with_adapted_modules(index, adapter)
        seen = self._converted(index, adapter, chosen)
        in_layout = index if seen is None else {snapshot.path: snapshot for snapshot in seen.snapshots}
        unmatched, consumed = self._matched(in_layout, seen, chosen)
        used = consumed if seen is None else seen.used
        # An adapter uses what it takes away, under whatever name it comes out again.
        result.unused = sorted(given - used - (given - index.keys()))
        if pipeline.part is not None:
            self._note_part()
        if seen is not None:
            unmatched = self._note_view(seen, unmatched, given, self._kept(chosen))
        result.notes += [*self.source.notes, *self.target.notes, *self.named.notes]
        self._note_casts()
        self._share(unmatched)
        unclear = [note for note in self.source.notes if note.kind == "unclear part" and result.missing]
        shapes = {each.path: each.shape for each in self.named.snapshots} if result.missing and result.unused else {}
        unused = {name: shapes.get(name, ()) for name in result.unused}
        plan.hint = unclear[0] if unclear else wrapper_hint(result.missing, unused)
        if plan.hint is None and result.missing and result.unused:
            plan.hint = self.target.hint
        result.notes += [] if plan.hint is None or unclear else [Note("hint", plan.hint)]
        plan.fates |= {self.named.original(name): "no parameter takes it" for name in result.unused}
        plan.fates |= self.named.dropped
        plan.equals += self.named.equals
        plan.renames = {original: name for name, original in self.named.originals.items()}
        return plan

    # --- stages

    def _with_adapted_modules(
        self, index: dict[str, TensorSnapshot], adapter: ModuleAdapter
    ) -> dict[str, TensorSnapshot]:
        """Return the tensors after the adapter has seen those of each of the target's modules as a whole."""
        modules: dict[str, str] = {}
        for slot in self.target.slots:
            for place, module_type in _modules_around(slot):
                modules.setdefault(place, module_type)
        moves = [Move(path, *self.named.traced((Origin(path),), ()), tensor) for path, tensor in index.items()]
        adapted: dict[str, Move] = {}
        for move in adapt_modules(moves, adapter, lambda move: modules.get(move.target.rpartition(".")[0])):
            if adapted.setdefault(move.target, move) is not move:
                raise DuplicateNameError("the adapter returns a second tensor of this name", tensor=move.target)
        made = {move.target: (move.origins, move.operations) for move in adapted.values()}
        self.named = replace(self.named, made=made)
        return {path: move.snapshot for path, move in adapted.items()}

    def _converted(
        self, index: Mapping[str, TensorSnapshot], adapter: ModuleAdapter | None, chosen: Sequence[bool] | None
    ) -> ConvertedView | None:
        """Return the tensors in the target's layout; None if they are in it already, or no layout matters."""
        plan, target, notes = self.plan, self.target, self.plan.result.notes
        plan.layout = target.layout
        wanted, kept = convertible(target.layout), self._kept(chosen)
        if adapter is not None and adapter.replaces_layout:
            plan.source_layout, _ = decide_layout(self.source, None, self.pipeline, index, kept, notes)
            check_given(adapter, target)
            return None
        layout, view = decide_layout(self.source, target, self.pipeline, index, kept, notes)
        plan.source_layout = layout
        if wanted is None or layout == wanted or convertible(layout) is None:
            return None
        view = view or target.view(index)
        view.check(kept, wanted)
        seen = view.convert(index, wanted)
        plan.view, plan.is_converted = view, True
        plan.constants, plan.part_ids = seen.constants, seen.part_ids
        return seen

    def _kept(self, chosen: Sequence[bool] | None) -> set[str] | None:
        if chosen is None:
            return None
        return {slot.path for slot, is_kept in zip(self.target.slots, chosen, strict=True) if is_kept}

    def _matched(
        self, index: Mapping[str, TensorSnapshot], seen: ConvertedView | None, chosen: Sequence[bool] | None
    ) -> tuple[list[Slot], set[str]]:
        """Add a move for each slot that finds its tensor by name and can hold it.

        Return the slots without, and the names.
        """
        pipeline, plan = self.pipeline, self.plan
        adapter, part, dtype = pipeline.adapter, pipeline.part, pipeline.cast
        is_traced = bool(self.named.originals or self.named.made)
        origins = {} if seen is None else seen.origins
        is_simple = adapter is None and part is None and dtype is None
        unmatched: list[Slot] = []
        consumed: set[str] = set()
        left: list[tuple[tuple[Origin, ...], str]] = []
        moves, errors, skipped = plan.moves, plan.result.errors, plan.result.skipped
        held = _Held()
        fitting: DType | None = None
        keeps = False
        for row, slot in enumerate(self.target.slots):
            path = slot.path
            found = index.get(path)
            if found is None and adapter is not None:
                found = _by_alternative_name(slot, index, adapter)
            if found is None:
                unmatched.append(slot)
                continue
            name = found.path
            consumed.add(name)
            if chosen is not None and not chosen[row]:
                skipped.append(path)
                left.append((self.named.traced(origins.get(name) or (Origin(name),), ())[0], FILTERED))
                continue
            made_of, steps = origins.get(name), _NO_STEPS
            if made_of is None:
                made_of = (Origin(name),)
            elif len(made_of) > 1:
                steps = _JOINED
            if is_traced:
                made_of, steps = self.named.traced(made_of, steps)
            move = Move(path, made_of, steps, found, slot, found._param_id)
            if not is_simple:
                move = self._changed(move)
                found = move.snapshot
            given = found._dtype
            fits = given is fitting and slot.dtype is given and slot.keeps_dtype is keeps  # as the tensor before did
            if not fits or slot.shape != found._shape:
                problem = _mismatch(slot, found) or held.problem(slot, found)
                if problem is not None:
                    errors.append(problem)
                    left.append((move.origins, str(problem)))
                    continue
                fitting, keeps = given if slot.dtype is given else None, slot.keeps_dtype
                if is_cast(slot, found):
                    move = move.becoming(found, slot_cast(given, slot.dtype))
            moves.append(move)
        if left:
            used = {origin.source for move in moves for origin in move.origins}
            plan.fates = {str(each.source): why for made_of, why in left for each in made_of if each.source not in used}
        skipped.sort()
        return unmatched, consumed

    def _changed(self, move: Move) -> Move:
        """Return a tensor after its adapter, cast and part of a rank."""
        pipeline, slot = self.pipeline, move.slot
        if pipeline.adapter is not None and slot is not None:
            placed = move._replace(snapshot=move.snapshot.replace(container_stack=slot.container_stack))
            move = adapt(placed, pipeline.adapter, is_converted=self.plan.is_converted)
        if pipeline.cast is not None:
            move = cast_floats(move, pipeline.cast)
        return move if pipeline.part is None else take_part(move, pipeline.part)

    # --- notes

    def _note_view(
        self, seen: ConvertedView, unmatched: list[Slot], given: Container[str], chosen: Container[str] | None
    ) -> list[Slot]:
        """Add notes about the layout conversion; return the slots that still need a tensor."""
        plan, view = self.plan, self.plan.view
        assert view is not None
        layout = convertible(self.target.layout)
        assert layout is not None
        result = plan.result
        for path, parts in seen.incomplete.items():
            text = f"'{path}' is made of several tensors, and {', '.join(parts)} is missing"
            result.notes.append(Note("layout", text, path))
        if any(error.kind == "ShapeMismatch" and error.expected == error.found[::-1] for error in result.errors):
            text = "shapes look as if the source had the model's own layout, not the one that it states: pass layout="
            result.notes.append(Note("hint", text))
        recorded = recorded_counts(self.named.renamed(self.source).recorded)
        lost = set(seen.lost)
        without = [slot for slot in unmatched if slot.path in lost]
        for slot in without:
            if slot.path in recorded and (chosen is None or slot.path in chosen):
                plan.moves.append(Move(slot.path, (), _NO_STEPS, recorded[slot.path], slot))
            elif slot.path in recorded:
                result.skipped.append(slot.path)
        result.skipped.sort()
        kept = [slot.path for slot in without if slot.path not in recorded]
        if kept:
            result.notes.append(Note("layout", f"Burn has no {listed(kept)}: left unchanged in the model"))
        unloaded = [path for path in seen.lost if path in given] if self.target.layout == "burn" else []
        if unloaded:
            result.notes.append(Note("layout", f"Burn has no {listed(unloaded)}: not loaded"))
        result.notes += unknown_notes(view, layout, lambda: {slot.path: slot.container_stack for slot in plan.slots})
        applied = {move.target for move in plan.moves}
        filled = [path for path, made in seen.filled.items() if made in applied]
        if filled:
            result.notes.append(Note("filled", f"filled with constants that the file leaves out: {listed(filled)}"))
        return [slot for slot in unmatched if slot.path not in lost]

    def _note_part(self) -> None:
        part, result = self.pipeline.part, self.plan.result
        assert part is not None
        unmatched = part.unmatched([slot.path for slot in self.target.slots])
        result.notes += [
            Note("unmatched", f"the partition's {quoted(text)} matched no parameter", text) for text in unmatched
        ]
        if any(error.kind == "ShapeMismatch" for error in result.errors):
            result.notes.append(Note("hint", f"the shapes found are those of {part}; the model must have them, too"))

    def _note_casts(self) -> None:
        last = (move.operations[-1] for move in self.plan.moves if move.operations)
        for step, count in Counter(step for step in last if isinstance(step, SlotCast)).items():
            text = f"cast from {step.given} to {step.dtype}, the dtype of the model: {count} tensor"
            self.plan.result.notes.append(Note("cast", text + ("" if count == 1 else "s")))

    def _share(self, unmatched: Sequence[Slot]) -> None:
        """Let slots without a tensor take that of a slot with which they share one; the others are missing.

        Shared parameters are written once per path, as Burn does, and must come back as one. If a file has a tensor for
        one of the paths only, it is for all.
        """
        plan, result = self.plan, self.plan.result
        taking = {id(move.slot) for move in plan.moves}
        if unmatched or result.skipped:
            first: dict[int, Slot] = {}
            for move in plan.moves:
                assert move.slot is not None
                first.setdefault(move.slot.identity(), move.slot)
            skipped = set(result.skipped)
            for slot in plan.slots if skipped else ():
                leader = first.get(slot.identity()) if slot.path in skipped else None
                if leader is not None and getattr(slot, "put", None) is None:  # It is filled where it is.
                    text = f"changed with '{leader.path}', whose memory they share: {slot.path}"
                    result.notes.append(Note("tied", f"{text}, which the filter leaves out", slot.path))
            for slot in unmatched:
                leader = first.get(slot.identity())
                if leader is None:
                    result.missing.append(MissingTensor.at(slot.path, ".".join(slot.container_stack)))
                else:
                    plan.followers.append(slot)
                    taking.add(id(slot))
                    text = f"'{slot.path}' is shared with '{leader.path}' and took its tensor"
                    result.notes.append(Note("tied", text, slot.path))
            result.missing.sort()
        result.applied = [slot.path for slot in plan.slots if id(slot) in taking]


def unknown_notes(
    view: LayoutView,
    layout: Layout,
    containers: Callable[[], Mapping[str, Sequence[str]]],
    keeps: Callable[[str], bool] = lambda name: True,
) -> list[Note]:
    """Return a note for each class of modules whose kind is unknown and whose tensors are copied unchanged.

    Code of the model besides its layers is noted, too.
    """
    classes: dict[str, list[str]] = {}
    names = list(filter(keeps, view.unknown(layout)))
    stacks = containers() if names else {}
    for name in names:
        stack = stacks.get(name, ())
        owner = next((entry.partition(":")[2] for entry in reversed(stack) if ":" in entry), "")
        classes.setdefault(owner, []).append(name)
    return [
        Note(
            "unknown",
            f"copied unchanged, {f'modules of class {owner}' if owner else 'modules'} of unknown kind: {listed(names)}",
            owner or None,
        )
        for owner, names in classes.items()
    ] + list(view.notes)


def underflow_notes(snapshots: Iterable[TensorSnapshot], names: Iterable[str] = ()) -> list[Note]:
    """Return the note about tensors in which a cast made a value 0: these names, and what was read of the snapshots."""
    found = sorted({snapshot.path for snapshot in snapshots if underflowed(snapshot._data)}.union(names))
    return [Note("cast", f"cast: values too small for the new dtype became 0 in {listed(found)}")] if found else []


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names in quotes, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def is_cast(slot: Slot, snapshot: TensorSnapshot) -> bool:
    """Return whether the slot will hold these values in another dtype."""
    return slot.keeps_dtype and slot.dtype.name != snapshot.dtype.name and not slot.dtype.is_bool


def _modules_around(slot: Slot) -> Iterator[tuple[str, str]]:
    """Return the path and type of each module that a parameter is in, the innermost first.

    The outer ones matter where a module's parameters are deeper than the source's (the gates of an LSTM).
    """
    segments, stack = slot.path.split("."), slot.container_stack
    if len(stack) > len(segments):  # skipped variants are not segments
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


def _by_alternative_name(
    slot: Slot, index: Mapping[str, TensorSnapshot], adapter: ModuleAdapter
) -> TensorSnapshot | None:
    module_type = _module_type(slot.container_stack)
    if module_type is None:
        return None
    parent, dot, name = slot.path.rpartition(".")
    other = adapter.alternative_param_name(name, module_type)
    return None if other is None else index.get(parent + dot + other)


def _mismatch(slot: Slot, snapshot: TensorSnapshot) -> ApplyError | None:
    wanted, given = slot.dtype, snapshot.dtype
    if wanted is not given and not is_same_kind(wanted, given):
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
    """Whether slots can hold tensors of a dtype; computed once per pair of dtypes."""

    def __init__(self) -> None:
        self._found: dict[tuple[DType | None, DType], BurnstoreError | None] = {}

    def problem(self, slot: Slot, snapshot: TensorSnapshot) -> ApplyError | None:
        """Return why this slot cannot hold this tensor, whatever its values are."""
        key = (slot.dtype if slot.keeps_dtype else None, snapshot.dtype)
        if key not in self._found:
            self._found[key] = _tried(slot, snapshot)
        why = self._found[key]
        return None if why is None else load_error(slot.path, why)


def _tried(slot: Slot, snapshot: TensorSnapshot) -> BurnstoreError | None:
    """Return the error that a tensor of this dtype and no elements gives."""
    if snapshot.dtype.is_quantized:
        return None
    nothing = snapshot.replace(shape=(0,), nbytes=0)
    try:
        value_for(slot, nothing, b"")
    except BurnstoreError as error:
        return error
    return None


def load_error(path: str, why: object) -> ApplyError:
    """Return the report of a tensor that fits and still cannot be loaded."""
    found = why if isinstance(why, BaseException) else None
    return ApplyError("LoadError", path, f"Load error for '{path}': {why}", found=found)


def is_same_kind(wanted: DType, given: DType) -> bool:
    """Return whether values of one dtype may stand for those of another."""
    if wanted.kind in (Kind.FLOAT, Kind.QUANTIZED):
        return given.kind in (Kind.FLOAT, Kind.QUANTIZED)
    if wanted.kind in (Kind.INT, Kind.UINT):
        return given.kind in (Kind.INT, Kind.UINT)
    if wanted.kind is Kind.BOOL:
        return given.kind is Kind.BOOL or given in (DType.U8, DType.U32)
    return given.kind is wanted.kind
