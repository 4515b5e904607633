"""Compile what is written to a file: the tensors of a model, or those of other files.

A format has no slots: each tensor that survives the stages makes a move. With `like` the plan is also held against a
model or a file: every tensor must be one of its tensors, and it must get all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ..errors import ModelError, PatternError, Ways, add_hint, counted
from ..models.binding import Slot
from ..models.bindings import binding_for
from ..tensor.dtype import DType
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import FunctionAdapter, IdentityAdapter, ModuleAdapter
from ..transforms.layout import Layout
from ..transforms.operations import CONCAT, Fill
from ..transforms.shapes import weight_norm_hint, weight_norm_rules
from ..transforms.view import ConvertedView, LayoutView, Origin, join
from .compile import WRAPPER_STRIPPED, is_same_kind, listed, unknown_notes, without_wrapper
from .ends import Input, Target
from .kinds import (
    WAYS_OUT,
    Known,
    kinds_by_rules,
    known_for_file,
    layout_of,
    recorded_counts,
    view_of_model,
    ways_out,
    zero_count,
)
from .layouts import decide_layout
from .names import Named, distinct_rows, follow_rules, index_tensors, name_tensors, new_names, rename_tensors
from .options import Pipeline
from .plan import Move, Plan
from .stages import FILTERED, adapt, adapt_modules, adapter_name, cast_floats, keep, select, with_name
from .stored import stored_for
from .unify import convertible, unify
from .wrappers import prefix_hint, wrapper_rule

# --- model → file -----------------------------------------------------------------------------------------------------


def compile_save(model: Any, layout: Layout | None, pipeline: Pipeline) -> Plan:
    """Return the plan of writing a model's tensors in a layout (None: the model's own).

    Filters see the model's paths and containers; then come rules for tensors, layout, adapter, cast and renames.
    """
    own = layout_of(model)
    skip = bool(pipeline.skip_enum_variants)
    slots = list(binding_for(model).walk(model, skip_enum_variants=skip))
    plan = Plan(source_layout=own, layout=own)
    given = [slot.snapshot() for slot in slots]
    snapshots = select_tensors(plan, given, pipeline)
    if pipeline.rules:  # a rule that matches nothing is refused, needed or not
        kinds_by_rules([slot.path for slot in slots], pipeline.rules, own)
    adapter = pipeline.adapter
    moves: list[Move]
    wanted = own if layout is None else layout
    named = None
    if pipeline.recipe is not None:
        wanted = layout or pipeline.recipe.target_layout or own
        named = _model_by_rules(plan, snapshots, wanted, pipeline, type(model).__name__)
        snapshots, own = list(named.snapshots), pipeline.recipe.target_layout or own
    if adapter is not None and adapter.replaces_layout:
        if adapter.gives_layout is not None and layout not in (None, adapter.gives_layout) and pipeline.layout:
            raise ValueError(
                f"layout={layout!r} contradicts {adapter_name(adapter)}, which gives {adapter.gives_layout}'s"
            )
        plan.layout = adapter.gives_layout or own
        moves = _unchanged(snapshots)
    elif wanted == own:
        moves = _unchanged(snapshots)
    else:
        view = view_of_model(model, slots, skip_enum_variants=skip, rules=pipeline.rules)
        is_filtered = pipeline.filter is not None or named is not None
        seen = _model_in(wanted, own, view, slots, snapshots, is_filtered=is_filtered)
        plan.view, plan.is_converted, plan.layout, plan.constants = view, True, wanted, seen.constants
        kept = seen.snapshots
        if pipeline.filter is not None:  # a constant has no path in the model: the filter sees its path in the file
            made = set(seen.filled)
            matches = pipeline.filter.matches_with_container_path
            kept = [each for each in kept if each.path not in made or matches(each.path, each.container_stack)]
        moves = _converted_moves(seen, kept)
        plan.notes += unknown_notes(view, own, lambda: {slot.path: slot.container_stack for slot in slots})
        plan.notes += _filled_note(seen, {each.path for each in kept}, "the model declares them absent")
        plan.notes += _count_note(seen.lost) if wanted == "torch" else []
    if named is not None:
        moves = _traced(moves, named)
    _finish(plan, _cast(_adapted(plan, moves, pipeline), pipeline), pipeline)
    return plan


def _model_by_rules(
    plan: Plan, snapshots: Sequence[TensorSnapshot], wanted: Layout, pipeline: Pipeline, name: str
) -> Named:
    """Return the tensors of a model after the rules for tensors; the plan then has the layout that they give."""
    recipe, own = pipeline.recipe, plan.source_layout
    assert recipe is not None
    assert own is not None
    named = follow_rules(snapshots, name, own, pipeline)
    plan.notes += named.notes
    plan.fates |= named.dropped
    plan.equals += named.equals
    plan.layout = recipe.target_layout or own
    if recipe.target_layout not in (None, wanted):
        raise ModelError(
            f"the rules give {recipe.target_layout}'s layout, and the file is to have {wanted}'s",
            hint=f'pass layout="{recipe.target_layout}", or another format',
        )
    if recipe.target_layout is None and wanted != own:
        shapes = {each.path: each.shape for each in snapshots}
        for each in named.snapshots:
            if shapes.get(each.path) != each.shape:
                raise ModelError(
                    f"the rules change the name or the shape of a tensor whose layout is then converted to {wanted}'s",
                    tensor=each.path,
                    hint=f'add source_layout and target_layout to the rules, or pass layout="{own}" and convert later',
                )
    return named


def select_tensors(plan: Plan, given: list[TensorSnapshot], pipeline: Pipeline) -> list[TensorSnapshot]:
    """Return the tensors that the filter keeps; the plan records the reason for the others."""
    selection = select(given, pipeline, plan.notes, "tensor of the model")
    if selection is None:
        return given
    plan.fates |= {each.path: FILTERED for each, kept in zip(given, selection, strict=True) if not kept}
    return [each for each, kept in zip(given, selection, strict=True) if kept]


def _unchanged(snapshots: Iterable[TensorSnapshot]) -> list[Move]:
    return [Move(each._path, (Origin(each._path),), (), each) for each in snapshots]


def _converted_moves(seen: ConvertedView, kept: Sequence[TensorSnapshot]) -> list[Move]:
    origins = [seen.origins.get(each._path) or (Origin(each._path),) for each in kept]
    return [
        Move(each._path, own, (CONCAT,) if len(own) > 1 else (), each) for each, own in zip(kept, origins, strict=True)
    ]


def _traced(moves: list[Move], named: Named) -> list[Move]:
    """Return moves from the source's own tensors, where names or rules were between."""
    if not named.made and not named.originals:
        return moves
    return [Move(move.target, *named.traced(move.origins, move.operations), move.snapshot) for move in moves]


def _model_in(
    wanted: Layout,
    own: Layout,
    view: LayoutView,
    slots: Sequence[Slot],
    snapshots: Sequence[TensorSnapshot],
    *,
    is_filtered: bool,
) -> ConvertedView:
    """Return a model's tensors in another layout; every one must have a counterpart there."""
    by_path = {snapshot.path: snapshot for snapshot in snapshots}
    view.check(by_path if is_filtered else None, own)
    ids = {slot.path: found for slot in slots if (found := getattr(slot, "part_ids", None)) is not None}
    seen = view.to_burn(by_path, ids) if wanted == "burn" else view.to_torch(by_path)
    for path, parts in seen.incomplete.items():
        raise ModelError(f"it cannot be made without {', '.join(parts)}", tensor=path, hint="do not filter them out")
    left_out = next((path for path in by_path if path not in seen.used), None)
    if left_out is not None:
        raise ModelError(
            f"it has no counterpart in {wanted}'s layout",
            tensor=left_out,
            hint=f'layout="{own}" keeps the layout, a filter leaves the tensor out',
        )
    if wanted == "torch":  # PyTorch counts from zero what Burn does not count
        seen.snapshots.extend(map(zero_count, seen.lost))
    return seen


def _filled_note(seen: ConvertedView, kept: set[str], why: str) -> list[Note]:
    filled = [path for path, made in seen.filled.items() if made in kept]
    return [Note("filled", f"filled with constants, because {why}: {listed(filled)}")] if filled else []


# --- files → file -----------------------------------------------------------------------------------------------------


def compile_convert(source: Input, pipeline: Pipeline, layout: Layout | None, like: Target | None = None) -> Plan:
    """Return the plan of writing the tensors of files in a layout (None: the source's own).

    ``like`` is a model, a declaration or a file that the result must be complete for; it also states module kinds.
    """
    try:
        return _compile_convert(source, pipeline, layout, like)
    except (ModelError, PatternError) as error:
        unclear = next((str(note) for note in source.notes if note.kind == "unclear part"), None)
        error.hint = unclear or error.hint  # whatever did not fit: most likely one part would
        if source.format == "record" and any(note.kind == "nameless" for note in source.notes):
            error.hint = (
                "a binary record has no names; burnstore.migrate(old, new, like=Model()) reads it along a model"
            )
        raise


def resolve_layout(source: Input, pipeline: Pipeline, like: Target | None) -> tuple[str | None, list[Note]]:
    """Return the layout of a source as its conversion would decide it, with notes: given, stated, or proved."""
    notes: list[Note] = []
    return _Conversion(source, _without_wrapper(source, pipeline, like), like).own_layout(notes), notes


def _without_wrapper(source: Input, pipeline: Pipeline, like: Target | None) -> Pipeline:
    """Return a pipeline that also strips the wrapper, if there is one, from the names of the source."""
    rule = None if like is None else wrapper_rule([each.path for each in source.snapshots], like.slots)
    return pipeline if rule is None else without_wrapper(pipeline, rule)


def _compile_convert(source: Input, pipeline: Pipeline, layout: Layout | None, like: Target | None) -> Plan:
    if like is not None:
        source = stored_for(source, like.slots)
    unwrapped = _without_wrapper(source, pipeline, like)
    try:
        plan = _Conversion(source, unwrapped, like).compiled(layout)
    except ModelError as error:
        shapes = {each.path: each.shape for each in source.snapshots}
        wanted = [] if like is None else [slot.path for slot in like.slots]
        more = prefix_hint([path for path in wanted if path not in shapes], shapes)
        if more is None and (weight_norm_rules(shapes) or "") not in (error.hint or ""):
            more = weight_norm_hint(shapes)
        if more is not None:
            error.hint = add_hint(error.hint, more)
        raise
    if unwrapped is not pipeline:
        plan.notes.append(WRAPPER_STRIPPED)
    return plan


class _Conversion:
    """The stages of a conversion, in their order."""

    def __init__(self, source: Input, pipeline: Pipeline, like: Target | None) -> None:
        self.source = source
        self.pipeline = pipeline
        self.like = like
        self.plan = Plan(notes=list(source.notes))  # what the reader left out is missing in the target, too
        if like is None:
            self.named: Named = rename_tensors(source, pipeline)
        else:
            self.named = name_tensors(source, pipeline, like)
        self.index = index_tensors(self.named.snapshots)

    def compiled(self, layout: Layout | None) -> Plan:
        plan, pipeline, adapter = self.plan, self.pipeline, self.pipeline.adapter
        plan.notes += self.named.notes
        plan.fates |= self.named.dropped
        plan.equals += self.named.equals
        own = self.own_layout(plan.notes)
        wanted = own if pipeline.keep_layout else pipeline.target_layout or layout or own
        self._add_ties(own)
        self._check_rules(own)
        replaced = adapter is not None and adapter.replaces_layout
        gives = None if adapter is None else adapter.gives_layout
        is_converted = own != wanted and not replaced
        if is_converted and own is not None:
            unify([(self.source.name, own), ("the target", wanted)], "load")
        if own is None and is_converted:
            raise ModelError(
                f"the source does not state its layout, and the target has {wanted}'s",
                hint=Ways('layout="torch"', 'layout="burn"', "keep_layout=True to copy names and axes unchanged"),
            )
        known = self._known(own, is_needed=is_converted, is_wanted=is_converted or adapter is not None)
        plan.source_layout = plan.layout = own
        if pipeline.recipe is not None and not is_converted:
            plan.source_layout = pipeline.recipe.source_layout or own
        plan.view = None if known is None else known.view
        plan.guess = None if known is None else known.guess
        moves = _unchanged(self.index.values())
        if known is not None and is_converted:
            moves = self._converted(known, wanted)
        is_like_given = replaced and self.like is not None and gives == self.like.layout != own
        if self.like is not None:
            if not is_like_given:
                self._check_like(own, wanted, moves, known)
            if plan.layout == self.like.layout:
                plan.tied = _tied_in(self.like)
            if self.like.fills:
                moves = [*moves, *self._lacking(moves)]
        moves = self._filtered(_traced(moves, self.named), known if is_converted else None)
        adapted = _adapted(plan, moves, pipeline, self._owners(known))
        if replaced:
            plan.layout = gives or own
        if is_like_given:  # the adapter has made what like has
            self._compare_like({move.target: move.snapshot for move in adapted})
        if adapter is not None and known is None:
            _check_effect(adapter, moves, adapted)
        plan.moves = self._with_full_paths(self._in_dtypes(adapted))
        plan.renames = {original: name for name, original in self.named.originals.items()}
        return plan

    def _lacking(self, moves: Sequence[Move]) -> list[Move]:
        """Return what the source lacks, with the values of the outline, and note each by name."""
        assert self.like is not None
        if self.plan.layout != self.like.layout:
            raise ModelError(f"the target has {self.plan.layout}'s layout, and the values of the outline have Burn's")
        made = {move.target for move in moves}
        slots = [slot for slot in self.like.slots if slot.path not in made and self._keeps(slot.path)]
        for slot in slots:
            text = f"the source lacks '{slot.path}': its values are those of the outline"
            self.plan.notes.append(Note("filled", text, slot.path))
        return [Move(slot.path, (Origin(None),), (), slot.snapshot()) for slot in slots]

    def _in_dtypes(self, moves: list[Move]) -> list[Move]:
        """Return floats in the wanted dtype, or in those of an outline: Burn keeps a file's, and cannot mix them."""
        like = self.like
        if self.pipeline.cast is not None or like is None or not like.is_outline or self.plan.layout != like.layout:
            return _cast(moves, self.pipeline)
        dtypes = {slot.path: slot.dtype for slot in like.slots}
        made: list[Move] = []
        names: dict[str, list[str]] = {}
        for move in moves:
            own, dtype = move.snapshot.dtype, dtypes.get(move.target, move.snapshot.dtype)
            if own.is_float and dtype.is_float and own is not dtype:
                names.setdefault(f"{own} → {dtype}", []).append(move.target)
                move = cast_floats(move, dtype)
            made.append(move)
        for what, paths in names.items():
            self.plan.notes.append(Note("cast", f"cast to the dtype of the outline, {what}: {listed(paths)}", paths[0]))
        return made

    def own_layout(self, notes: list[Note]) -> str | None:
        """Return the layout of the source: given, stated, or proved against a model."""
        kept = None
        if self.pipeline.filter is not None and self.like is not None:
            kept = {slot.path for slot in self.like.slots if self._keeps(slot.path)}
        return decide_layout(self.source, self.like, self.pipeline, self.index, kept, notes)[0]

    def _check_rules(self, own: str | None) -> None:
        """Refuse a rule for module kinds that matches nothing, whether kinds are needed or not."""
        if self.pipeline.rules:
            like = self.like
            paths = self.index if like is None else [slot.path for slot in like.slots]
            layout = convertible(own if like is None else like.layout)
            kinds_by_rules(paths, self.pipeline.rules, layout or "burn")

    def _add_ties(self, own: str | None) -> None:
        """Give a tied tensor that the source leaves out the values of the tensor that it is tied to."""
        like = self.like
        if like is None or (own is not None and own != like.layout):  # like's paths are names of its layout
            return
        holders: dict[int, str] = {}
        for slot in like.slots:
            if slot.path in self.index:
                holders.setdefault(slot.identity(), slot.path)
        for slot in like.slots:
            leader = holders.get(slot.identity())
            if leader is not None and slot.path not in self.index:
                self.index[slot.path] = self.index[leader].with_path(slot.path)
                self.named.originals[slot.path] = self.named.original(leader)
                text = f"'{slot.path}' is tied to '{leader}' and gets its values"
                self.plan.notes.append(Note("tied", text, slot.path))

    def _known(self, layout: str | None, *, is_needed: bool, is_wanted: bool) -> Known | None:
        """Return what is known about the modules; ModelError if it is needed and nothing states it."""
        own = convertible(layout)
        if not is_wanted or own is None:
            return None
        shapes = {path: snapshot.shape for path, snapshot in self.index.items()}
        if self.like is not None:
            # The view needs the names of the other layout; a source in like's own layout has none of them.
            present = None if own == self.like.layout else self.index
            return Known(self.like.view(present), f"like {self.like.name}", True)
        source = replace(self.named.renamed(self.source), layout=own)
        recorded, classes = (None, {}) if self.named.made else (source.recorded, source.classes)
        is_lost = source.names and not (recorded or classes) and (self.source.recorded or self.source.classes)
        if is_lost and is_needed and not (self.pipeline.rules or self.pipeline.guess):
            raise ModelError(
                "the source states its modules, and the renames change names within a layer, or some of a list",
                hint=Ways("rename whole modules", "pass like= or rules= that use the new names", lead=""),
            )
        try:
            known = known_for_file(shapes, own, self.pipeline, recorded, self._keeps, classes)
        except (ModelError, PatternError):
            if is_needed or not isinstance(self.pipeline.adapter, FunctionAdapter):
                raise
            known = None  # only for the adapter to see, and a function of one snapshot seldom looks
        if known is None and is_needed:
            raise ModelError(
                f"nothing states the kinds of the modules of this file in {own}'s layout",
                hint=ways_out(self.source.name, may_guess=own == "torch"),
            )
        return known

    def _converted(self, known: Known, layout: str | None) -> list[Move]:
        """Return the tensors in the wanted layout; every one is used, and none is made up."""
        plan = self.plan
        wanted, own = convertible(layout), convertible(plan.source_layout)
        assert wanted is not None
        assert own is not None
        known.view.check([path for path in self.index if self._keeps(path)], own)
        seen = known.view.convert(self.index, wanted)
        self._check_parts(seen)
        for path in self.index:
            if path not in seen.used:
                # The filter has left out what stranded parts would make, whatever it says of their own names.
                is_kept = path not in seen.stranded and self._keeps(path)
                if is_kept and self.like is not None:
                    raise self.like.lacks(path)
                if is_kept:
                    raise ModelError(f"it has no counterpart in {wanted}'s layout", tensor=path, hint=WAYS_OUT)
                plan.fates[self.named.original(path)] = FILTERED
        if wanted == "torch" and seen.filled and not known.is_declared:
            raise ModelError(
                "it is absent, and nothing declares that the module has none",
                tensor=next(iter(seen.filled)),
                hint=Ways("like= a model that declares the module"),
            )
        plan.layout, plan.is_converted, plan.constants = wanted, True, seen.constants
        if wanted == "torch":
            counts = known.counts or recorded_counts(self.named.renamed(self.source).recorded)
            plan.counts = {path: counts[path] for path in seen.lost if path in counts}
            plan.notes += _count_note([path for path in seen.lost if path not in counts and self._keeps(path)])
            seen.snapshots.extend(counts.get(path) or zero_count(path) for path in seen.lost)
            seen.origins.update({path: (_count_origin(counts.get(path)),) for path in seen.lost})
        else:
            used = {origin.source for made in seen.origins.values() for origin in made}
            for path in seen.lost:
                if path in self.index and path not in used:
                    plan.counts[path] = self.index[path]
                    plan.fates[self.named.original(path)] = "Burn's layout has no such tensor; its value is recorded"
        of_like = convertible(None if self.like is None else self.like.layout) or own
        names = zip(known.view.unknown(own), known.view.unknown(of_like), strict=True)
        stacks = {name: self._containers.get(path, ()) for name, path in names}
        plan.notes += unknown_notes(known.view, own, lambda: stacks, self._keeps)
        plan.notes += _filled_note(seen, {each.path for each in seen.snapshots}, "the source leaves them out")
        return _converted_moves(seen, seen.snapshots)

    def _check_parts(self, seen: ConvertedView) -> None:
        """Refuse a tensor of which the source has some parts only, if the filter keeps it."""
        for path, parts in seen.incomplete.items():
            if self._keeps(path):
                verb = "is" if len(parts) == 1 else "are"
                raise ModelError(f"cannot be made: {', '.join(parts)} {verb} missing", tensor=path)

    def _keeps(self, name: str) -> bool:
        """Return whether the filter keeps a tensor of this name in the target."""
        filter = self.pipeline.filter
        return filter is None or filter.matches_with_container_path(name, self._containers.get(name, ()))

    @cached_property
    def _containers(self) -> dict[str, tuple[str, ...]]:
        return {} if self.like is None else {slot.path: slot.container_stack for slot in self.like.slots}

    def _check_like(self, own: str | None, wanted: str | None, moves: Sequence[Move], known: Known | None) -> None:
        """Refuse a tensor that the model or file given as like does not have, and one that the source lacks."""
        like = self.like
        assert like is not None
        given = self.index
        origins: Mapping[str, Sequence[Origin]] = {}
        layout = convertible(like.layout)
        if layout is not None and own != layout and convertible(own) is not None:
            if wanted == layout:
                given = {move.target: move.snapshot for move in moves}
            else:
                seen = (known.view if known is not None else like.view(self.index)).convert(self.index, layout)
                self._check_parts(seen)
                used = {*seen.used, *seen.stranded}
                unused = next((name for name in self.index if name not in used and self._keeps(name)), None)
                if unused is not None:
                    raise like.lacks(unused)
                counts = map(zero_count, seen.lost if layout == "torch" else ())
                given = {each.path: each for each in (*seen.snapshots, *counts)}
                origins = seen.origins
                # like has no such tensors: in modules that take part they must have the values that it implies.
                kept = {name.rpartition(".")[0] for name in self.index if self._keeps(name)}
                self.plan.constants = [
                    each
                    for each in seen.constants
                    if self.pipeline.filter is None or each[0].path.rpartition(".")[0] in kept
                ]
        self._compare_like(given, origins)

    def _compare_like(
        self, given: Mapping[str, TensorSnapshot], origins: Mapping[str, Sequence[Origin]] = MappingProxyType({})
    ) -> None:
        """Refuse tensors, in the layout of like, that like does not have or that do not fit, and missing ones."""
        like = self.like
        assert like is not None
        slots = {slot.path: slot for slot in like.slots}
        for name, snapshot in given.items():
            slot = slots.get(name)
            if self.pipeline.filter is not None and not any(
                map(self._keeps, [name, *(each.source for each in origins.get(name, ()) if each.source is not None)])
            ):
                continue  # it is not written, whatever like has in its place
            if slot is None:
                raise like.lacks(name)
            if slot.shape != snapshot.shape:
                raise ModelError(
                    f"its shape is {list(snapshot.shape)}; {like.name}, given as like, has {list(slot.shape)}",
                    tensor=name,
                )
            if not is_same_kind(slot.dtype, snapshot.dtype):
                raise ModelError(
                    f"its dtype is {snapshot.dtype}; {like.name}, given as like, has {slot.dtype}", tensor=name
                )
        for name in slots if like.is_whole else ():
            if name not in given and self._keeps(name):
                raise ModelError(f"{like.name}, given as like, has this tensor, and the source has not", tensor=name)

    def _filtered(self, moves: list[Move], known: Known | None) -> list[Move]:
        tensors = [move.snapshot for move in moves]
        try:
            selection = select(tensors, self.pipeline, self.plan.notes, "tensor of the target", self._containers)
        except PatternError:
            own = convertible(self.plan.source_layout)
            if known is not None and own is not None:
                known.view.check(self.index, own)  # a module that cannot be converted: its tensors are not there
            raise
        return keep(self.plan, moves, selection)

    def _owners(self, known: Known | None) -> dict[str, str]:
        """Return the module type that an adapter sees for each tensor, by its name in the target."""
        owners: dict[str, str] = {}
        for module in known.view.modules if known is not None else ():
            for link in module.map.links:
                name = join(module.burn, link.burn) if self.plan.layout == "burn" else join(module.torch, link.torch)
                if module.map.owner:
                    owners[name] = f"Struct:{module.map.owner}"
        return owners

    def _with_full_paths(self, moves: list[Move]) -> list[Move]:
        full = {} if self.like is None or self.plan.layout != "burn" else self.like.full_paths
        if not full:
            return moves
        return [move.becoming(with_name(full.get(move.target, move.target), move.snapshot)) for move in moves]


def _check_effect(adapter: ModuleAdapter, before: Sequence[Move], after: Sequence[Move]) -> None:
    """Refuse an adapter that goes by the modules where nothing states them: it would do nothing, silently."""
    if isinstance(adapter, (IdentityAdapter, FunctionAdapter)):
        return
    if all(one[:3] == other[:3] for one, other in zip(before, after, strict=False)):
        raise ModelError(
            f"{adapter_name(adapter)} goes by the kinds of modules, and nothing states them",
            hint=Ways("like= a model or declaration", "rules={pattern: kind}", "guess=True"),
        )


def _tied_in(target: Target) -> list[list[str]]:
    """Return the paths of slots that are one tensor, for each such tensor."""
    groups: dict[int, list[str]] = {}
    for slot in target.slots:
        groups.setdefault(slot.identity(), []).append(slot.path)
    return [group for group in groups.values() if len(group) > 1]


def _count_note(paths: Sequence[str]) -> list[Note]:
    return [Note("filled", f"Burn does not count, so these start at 0: {listed(paths)}")] if paths else []


def _count_origin(count: TensorSnapshot | None) -> Origin:
    value = 0 if count is None else int(count.numpy())
    return Origin(None, (Fill(value, (), DType.I64),))


# --- stages of both ---------------------------------------------------------------------------------------------------


def _adapted(plan: Plan, moves: list[Move], pipeline: Pipeline, owners: Mapping[str, str] | None = None) -> list[Move]:
    """Return the tensors after the adapter; ``owners`` are the module types that it sees, by name."""
    adapter = pipeline.adapter
    if adapter is None:
        return moves
    if owners:
        moves = [
            move._replace(snapshot=move.snapshot.replace(container_stack=(owners[move.target],)))
            if move.target in owners
            else move
            for move in moves
        ]
    if adapter.is_structural:
        moves = adapt_modules(moves, adapter, lambda move: move.snapshot.module_type)
    adapted = [adapt(move, adapter, is_converted=plan.is_converted) for move in moves]
    changed = sum(
        one.target != other.target or one.snapshot.shape != other.snapshot.shape
        for one, other in zip(moves, adapted, strict=True)
    )
    if changed and not adapter.replaces_layout:
        name, stated = adapter_name(adapter), f"the file still states the layout {plan.layout or 'unknown'}"
        plan.notes.append(
            Note("layout", f"{name} changes the names or axes of {counted(changed, 'tensor')}; {stated}", name)
        )
    return adapted


def _cast(moves: list[Move], pipeline: Pipeline) -> list[Move]:
    return moves if pipeline.cast is None else [cast_floats(move, pipeline.cast) for move in moves]


def _finish(plan: Plan, moves: list[Move], pipeline: Pipeline) -> None:
    """Rename the tensors of a model as the file is to have them, and make their moves."""
    if pipeline.rename is not None:
        given = [move.target for move in moves]
        names, notes = new_names(given, pipeline, "model")
        kept, dropped = distinct_rows(given, names, notes, pipeline)
        plan.notes += notes
        plan.fates |= dropped
        plan.renames = {given[row]: names[row] for row in kept}
        moves = [moves[row].becoming(with_name(names[row], moves[row].snapshot)) for row in kept]
    plan.moves = moves
