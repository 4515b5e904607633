"""Compile what is written to a file: the tensors of a model, or those of other files.

A format has no slots: each tensor that survives the stages makes a move. With `like` the plan is also held against a
model or a file: every tensor must be one of its tensors, and it must get all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ..errors import DuplicateNameError, ModelError, PatternError, Ways, add_hint, quoted
from ..models.binding import Slot
from ..models.bindings import binding_for
from ..tensor.dtype import DType
from ..tensor.facts import DecodedData
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import FunctionAdapter, IdentityAdapter, ModuleAdapter
from ..transforms.layout import Layout
from ..transforms.operations import CONCAT, Apply, Cast, Fill, Operation, operations_between
from ..transforms.precision import cast
from ..transforms.remap import KeyRemapper, keep_distinct
from ..transforms.shapes import weight_norm_hint, weight_norm_rules
from ..transforms.view import ConvertedView, LayoutView, Origin, join
from .compile import WRAPPER_STRIPPED, adapter_name, check_adapted, listed, unknown_notes
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
from .layouts import check_not_burn, layout_note, proved_layout
from .names import Named, follow_rules, name_tensors, rename_tensors
from .options import Pipeline
from .plan import Move, Plan
from .stored import stored_for
from .unify import convertible, unify
from .wrappers import prefix_hint, wrapper_rule

FILTERED = Note("filtered", "the filter does not match it")
"""The reason for a tensor that the filter leaves out."""

_Row = tuple[TensorSnapshot, tuple[Origin, ...], tuple[Operation, ...]]
"""A tensor on its way, its origins, and what was done to the whole of it."""


# --- model → file -----------------------------------------------------------------------------------------------------


def compile_save(model: Any, layout: Layout | None, pipeline: Pipeline) -> Plan:
    """Return the plan of writing a model's tensors in a layout (None: the model's own).

    Filters see the model's paths and containers; then come rules for tensors, layout, adapter, cast and renames.
    """
    own = layout_of(model)
    skip = bool(pipeline.skip_enum_variants)
    slots = list(binding_for(model).walk(model, skip_enum_variants=skip))
    plan = Plan(slots=slots, source_layout=own, layout=own)
    given = [slot.snapshot() for slot in slots]
    snapshots = select_tensors(plan, given, pipeline)
    if pipeline.rules:  # a rule that matches nothing is refused, needed or not
        kinds_by_rules([slot.path for slot in slots], pipeline.rules, own)
    adapter = pipeline.adapter
    rows: list[_Row]
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
        rows = _unchanged(snapshots)
    elif wanted == own:
        rows = _unchanged(snapshots)
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
        rows = _converted_rows(seen, kept)
        plan.notes += unknown_notes(view, own, lambda: {slot.path: slot.container_stack for slot in slots})
        plan.notes += _filled_note(seen, {each.path for each in kept}, "the model declares them absent")
        plan.notes += _count_note(seen.lost) if wanted == "torch" else []
    rows = _adapt(rows, adapter, plan)
    rows = _cast(rows, pipeline)
    if named is not None:
        rows = [(row[0], *named.traced(row[1], row[2])) for row in rows]
    _finish(plan, rows, pipeline)
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
    filter = pipeline.filter
    if filter is None:
        return given
    selection = filter.select([(each.path, each.container_stack) for each in given])
    _note_unmatched(plan, selection.unmatched, pipeline, "tensor of the model")
    plan.fates |= {each.path: FILTERED for each, kept in zip(given, selection, strict=True) if not kept}
    return [each for each, kept in zip(given, selection, strict=True) if kept]


def _note_unmatched(plan: Plan, unmatched: Sequence[str], pipeline: Pipeline, what: str) -> None:
    if unmatched and pipeline.unmatched == "error":
        after = "" if pipeline.rename is None else "write the new names, because rename= comes first; "
        raise PatternError(
            f"the filter {quoted(unmatched[0])} matched no {what}",
            hint=f"{after}look up the names with burnstore inspect FILE",
        )
    plan.notes += [Note("unmatched", f"the filter's {quoted(text)} matched no {what}", text) for text in unmatched]


def _unchanged(snapshots: Sequence[TensorSnapshot]) -> list[_Row]:
    return [(each, (Origin(each._path),), ()) for each in snapshots]


def _converted_rows(seen: ConvertedView, kept: Sequence[TensorSnapshot]) -> list[_Row]:
    origins = [seen.origins.get(each._path) or (Origin(each._path),) for each in kept]
    return [(each, own, (CONCAT,) if len(own) > 1 else ()) for each, own in zip(kept, origins, strict=True)]


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
    conversion = _Conversion(replace(source, notes=()), _without_wrapper(source, pipeline, like)[0], like)
    return conversion.own_layout(), conversion.plan.notes


def _without_wrapper(source: Input, pipeline: Pipeline, like: Target | None) -> tuple[Pipeline, bool]:
    """Return a pipeline that also strips a wrapper from the names of the source, and whether there is one."""
    rule = None if like is None else wrapper_rule([each.path for each in source.snapshots], like.slots)
    if rule is None:
        return pipeline, False
    return pipeline.replace(rename=(pipeline.rename or KeyRemapper()) + KeyRemapper.from_patterns([rule])), True


def _compile_convert(source: Input, pipeline: Pipeline, layout: Layout | None, like: Target | None) -> Plan:
    if like is not None:
        source = stored_for(source, like.slots)
    pipeline, is_wrapped = _without_wrapper(source, pipeline, like)
    try:
        plan = _Conversion(source, pipeline, like).compiled(layout)
    except ModelError as error:
        shapes = {each.path: each.shape for each in source.snapshots}
        wanted = [] if like is None else [slot.path for slot in like.slots]
        more = prefix_hint([path for path in wanted if path not in shapes], shapes)
        if more is None and (weight_norm_rules(shapes) or "") not in (error.hint or ""):
            more = weight_norm_hint(shapes)
        if more is not None:
            error.hint = add_hint(error.hint, more)
        raise
    if is_wrapped:
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
        self.index = {snapshot.path: snapshot for snapshot in self.named.snapshots}
        if len(self.index) < len(self.named.snapshots):
            seen: set[str] = set()
            for snapshot in self.named.snapshots:
                if snapshot.path in seen:
                    raise DuplicateNameError("two tensors have this name", tensor=snapshot.path)
                seen.add(snapshot.path)

    def compiled(self, layout: Layout | None) -> Plan:
        plan, pipeline, adapter = self.plan, self.pipeline, self.pipeline.adapter
        plan.notes += self.named.notes
        plan.fates |= self.named.dropped
        plan.equals += self.named.equals
        own = self.own_layout()
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
        rows = _unchanged(list(self.index.values()))
        if known is not None and is_converted:
            rows = self._converted(known, wanted)
        is_like_given = replaced and self.like is not None and gives == self.like.layout != own
        if self.like is not None:
            if not is_like_given:
                self._check_like(own, wanted, rows, known)
            if plan.layout == self.like.layout:
                plan.tied = _tied_in(self.like)
        rows = self._filtered(rows, known if is_converted else None)
        rows = _adapt(rows, adapter, plan, self._owners(known))
        if replaced:
            plan.layout = gives or own
        if is_like_given:  # the adapter has made what like has
            self._compare_like({row[0].path: row[0] for row in rows})
        if adapter is not None and known is None:
            self._check_effect(adapter, rows)
        rows = _cast(rows, pipeline)
        rows = self._with_full_paths(rows)
        if self.named.made or self.named.originals:
            rows = [(row[0], *self.named.traced(row[1], row[2])) for row in rows]
        plan.moves = _moves(rows)
        plan.renames = {original: name for name, original in self.named.originals.items()}
        return plan

    def own_layout(self) -> str | None:
        """Return the layout of the source: given, stated, or proved against a model."""
        layout = self.source.layout_given(self.pipeline.layout, self.plan.notes, self.pipeline.adapter)
        recipe = self.pipeline.recipe
        if recipe is not None and recipe.target_layout is not None:
            return recipe.target_layout
        if self.like is not None:
            self.plan.notes += self.like.meets(self.source, layout)
        if layout is not None or self.like is None or self.like.layout is None:
            return layout
        if self.like.layout == "torch":
            slots = {slot.path: slot.shape for slot in self.like.slots}
            ignored = {path: shape for path, shape in slots.items() if not self._keeps(path)}
            check_not_burn(self.index, slots, ignored, self.source.name)
            self.plan.notes.append(layout_note(self.source.name, "torch", "PyTorch models are saved so"))
            return "torch"
        view = self.like.view(self.index)
        shapes = {slot.path: slot.shape for slot in self.like.slots}
        kept = None if self.pipeline.filter is None else {path for path in shapes if self._keeps(path)}
        proved = proved_layout(view, self.index, shapes, kept, self.source.name)
        if proved is None:  # no tensor that takes part differs between the layouts, if the kinds are known
            return self.like.layout if self.like.states_layout() else None
        self.plan.notes.append(layout_note(self.source.name, *proved))
        return proved[0]

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

    def _converted(self, known: Known, layout: str | None) -> list[_Row]:
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
        return _converted_rows(seen, seen.snapshots)

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

    def _check_like(self, own: str | None, wanted: str | None, rows: Sequence[_Row], known: Known | None) -> None:
        """Refuse a tensor that the model or file given as like does not have, and one that the source lacks."""
        like = self.like
        assert like is not None
        given = self.index
        origins: Mapping[str, Sequence[Origin]] = {}
        layout = convertible(like.layout)
        if layout is not None and own != layout and convertible(own) is not None:
            if wanted == layout:
                given = {snapshot.path: snapshot for snapshot, _, _ in rows}
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
            if slot.dtype.kind is not snapshot.dtype.kind and not _alike(slot, snapshot):
                raise ModelError(
                    f"its dtype is {snapshot.dtype}; {like.name}, given as like, has {slot.dtype}", tensor=name
                )
        for name in slots if like.is_whole else ():
            if name not in given and self._keeps(name):
                raise ModelError(f"{like.name}, given as like, has this tensor, and the source has not", tensor=name)

    def _filtered(self, rows: list[_Row], known: Known | None) -> list[_Row]:
        filter = self.pipeline.filter
        if filter is None:
            return rows
        pairs = [(row[0].path, self._containers.get(row[0].path) or row[0].container_stack) for row in rows]
        selection = filter.select(pairs)
        own = convertible(self.plan.source_layout)
        is_refused = selection.unmatched and self.pipeline.unmatched == "error"
        if is_refused and known is not None and own is not None:
            known.view.check(self.index, own)  # a module that cannot be converted: its tensors are not there
        _note_unmatched(self.plan, selection.unmatched, self.pipeline, "tensor of the target")
        kept = [row for row, is_kept in zip(rows, selection, strict=True) if is_kept]
        used = {origin.source for _, origins, _ in kept for origin in origins}
        for (_, origins, _), is_kept in zip(rows, selection, strict=True):
            for origin in origins:
                if not is_kept and origin.source is not None and origin.source not in used:
                    self.plan.fates[self.named.original(origin.source)] = FILTERED
        return kept

    def _owners(self, known: Known | None) -> dict[str, str]:
        """Return the module type that an adapter sees for each tensor, by its name in the target."""
        owners: dict[str, str] = {}
        for module in known.view.modules if known is not None else ():
            for link in module.map.links:
                name = join(module.burn, link.burn) if self.plan.layout == "burn" else join(module.torch, link.torch)
                if module.map.owner:
                    owners[name] = f"Struct:{module.map.owner}"
        return owners

    def _check_effect(self, adapter: ModuleAdapter, rows: Sequence[_Row]) -> None:
        """Refuse an adapter that goes by the modules where nothing states them: it would do nothing, silently."""
        if isinstance(adapter, (IdentityAdapter, FunctionAdapter)) or any(steps for _, _, steps in rows):
            return
        if all(row[0].path == name for row, name in zip(rows, self.index, strict=False)):
            raise ModelError(
                f"{adapter_name(adapter)} goes by the kinds of modules, and nothing states them",
                hint=Ways("like= a model or declaration", "rules={pattern: kind}", "guess=True"),
            )

    def _with_full_paths(self, rows: list[_Row]) -> list[_Row]:
        full = {} if self.like is None or self.plan.layout != "burn" else self.like.full_paths
        if not full:
            return rows
        return [(row[0].with_path(full.get(row[0].path, row[0].path)), *row[1:]) for row in rows]


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


def _alike(slot: Slot, snapshot: TensorSnapshot) -> bool:
    """Return whether dtypes of different kinds stand for each other: integers of both signs, quantized floats."""
    kinds = {slot.dtype.kind.name, snapshot.dtype.kind.name}
    return kinds in ({"INT", "UINT"}, {"FLOAT", "QUANTIZED"}, {"BOOL", "UINT"})


# --- stages of both ---------------------------------------------------------------------------------------------------


def _adapt(
    rows: list[_Row], adapter: ModuleAdapter | None, plan: Plan, owners: Mapping[str, str] | None = None
) -> list[_Row]:
    """Return the tensors after an adapter, module by module where it asks for that."""
    if adapter is None:
        return rows
    if owners:
        rows = [
            (row[0].replace(container_stack=(owners[row[0].path],)), *row[1:]) if row[0].path in owners else row
            for row in rows
        ]
    if adapter.is_structural:
        rows = _module_by_module(rows, adapter)
    adapted: list[_Row] = []
    name = adapter_name(adapter)
    changed = 0
    for snapshot, origins, steps in rows:
        after = adapter.adapt(snapshot)
        more = () if after is snapshot else operations_between(snapshot, after, name)
        check_adapted(adapter, snapshot, after, more, is_converted=plan.is_converted)
        changed += after.path != snapshot.path or after.shape != snapshot.shape
        adapted.append((after, origins, (*steps, *more)))
    if changed and not adapter.replaces_layout:
        stated = f"the file still states the layout {plan.layout or 'unknown'}"
        plan.notes.append(Note("layout", f"{name} changes the names or axes of {changed} tensors; {stated}", name))
    return adapted


def _module_by_module(rows: Sequence[_Row], adapter: ModuleAdapter) -> list[_Row]:
    """Return the tensors after the adapter has seen each module once and whole; its result takes the first place."""
    modules: dict[tuple[str, str], dict[str, _Row]] = {}
    owners: list[tuple[str, str] | None] = []
    for row in rows:
        snapshot = row[0]
        parent, _, name = snapshot.path.rpartition(".")
        module_type = snapshot.module_type
        owners.append(None if module_type is None else (parent, module_type))
        if module_type is not None:
            members = modules.setdefault((parent, module_type), {})
            if name in members:
                raise DuplicateNameError("two tensors of the model have this path", tensor=snapshot.path)
            members[name] = row
    replaced: dict[tuple[str, str], list[_Row]] = {}
    step = Apply(adapter_name(adapter))
    for (parent, module_type), members in modules.items():
        given = {name: row[0] for name, row in members.items()}
        found = adapter.adapt_module(module_type, dict(given))
        if list(found.items()) != list(given.items()):
            prefix = f"{parent}." if parent else ""
            origins = tuple(origin for row in members.values() for origin in row[1])
            replaced[parent, module_type] = [
                (_named(prefix + name, tensor), origins, (step,)) for name, tensor in found.items()
            ]
    result: list[_Row] = []
    shown: set[tuple[str, str]] = set()
    for row, owner in zip(rows, owners, strict=True):
        if owner is None or owner not in replaced:
            result.append(row)
        elif owner not in shown:
            shown.add(owner)
            result += replaced[owner]
    return result


def _named(path: str, snapshot: TensorSnapshot) -> TensorSnapshot:
    return snapshot if snapshot.path == path else snapshot.with_path(path)


def _cast(rows: list[_Row], pipeline: Pipeline) -> list[_Row]:
    dtype = pipeline.cast
    if dtype is None:
        return rows
    step = Cast(dtype)
    return [
        (cast(row[0], dtype), row[1], (*row[2], step))
        if row[0].dtype.is_quantized
        or (row[0].dtype.is_float and (row[0].dtype is not dtype or isinstance(row[0]._data, DecodedData)))
        else row
        for row in rows
    ]


def _finish(plan: Plan, rows: list[_Row], pipeline: Pipeline) -> None:
    """Rename the tensors of a model as the file is to have them, and make their moves."""
    remapper = pipeline.rename
    names = [row[0].path for row in rows]
    if remapper is not None:
        renaming = remapper.remap_names(names)
        if renaming.unmatched and pipeline.unmatched == "error":
            raise PatternError(f"the rename {quoted(renaming.unmatched[0])} matched no tensor")
        plan.notes += [
            Note("unmatched", f"the remapping {quoted(rule)} matched no tensor of the model", rule)
            for rule in renaming.unmatched
        ]
        kept = keep_distinct(renaming.names, names, pipeline.on_collision)
        is_kept = set(kept)
        for row, name in enumerate(names):
            if row not in is_kept:
                plan.fates[name] = f"another tensor is renamed to {renaming.names[row]!r} as well"
                plan.notes.append(Note("names", f"{name!r} was left out: {plan.fates[name]}", name))
        plan.renames = {names[row]: renaming.names[row] for row in kept}
        rows = [(_named(renaming.names[row], rows[row][0]), *rows[row][1:]) for row in kept]
    plan.moves = _moves(rows)


def _moves(rows: Sequence[_Row]) -> list[Move]:
    return [Move(snapshot._path, origins, steps, snapshot) for snapshot, origins, steps in rows]
