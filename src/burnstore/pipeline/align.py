"""Align: convert two inputs into a common layout, so that their tensors can be compared by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import AmbiguousError, ModelError, Ways, located, printable
from ..io.paths import as_path, is_path, is_same_file
from ..limits import Limits
from ..models.bindings import binding_for, left_out_of
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.constant import check_constant
from ..transforms.layout import Layout
from ..transforms.remap import KeyRemapper
from ..transforms.view import LayoutView
from .compile import WRAPPER_STRIPPED, listed
from .compile_file import compile_save, resolve_layout
from .ends import Input, input_of_file, input_of_snapshots, target_of_model, with_layouts_given
from .kinds import (
    kinds_by_rules,
    known_for_file,
    layout_of,
    recorded_counts,
    recorded_modules,
    states_layout,
    view_of_model,
    view_of_record,
)
from .names import index_tensors, rename_tensors
from .options import Pipeline
from .plan import Plan
from .stages import select, with_name
from .stored import stored_for
from .unify import hides_transpose, unify
from .wrappers import strip_rule

_WAYS_OUT = Ways(
    "like= a model, a declaration or a file that records its modules",
    "rules={pattern: kind}",
    "guess=True",
    "keep_layout=True to compare the tensors unchanged",
)


@dataclass(frozen=True, slots=True)
class Aligned:
    """The tensors of both sides by the names under which they are compared, and the layout in which that is done."""

    first: dict[str, TensorSnapshot]
    second: dict[str, TensorSnapshot]
    layout: Layout | None
    notes: list[Note] = field(default_factory=list)


@contextmanager
def opened_inputs(
    a: Any, b: Any, limits: Limits | None, top_level_key: str | None = None
) -> Iterator[tuple[Input, Input]]:
    """Yield both sides as inputs, open while the block lasts; the same file is opened once."""
    with ExitStack() as opened:
        first = _input(a, "a", limits, top_level_key, opened)
        if a is b:
            yield first, first
        elif _is_same_file(a, b):
            yield first, replace(first, name=as_path(b))
        else:
            yield first, _input(b, "b", limits, top_level_key, opened)


def _input(given: Any, name: str, limits: Limits | None, top_level_key: str | None, opened: ExitStack) -> Input:
    if isinstance(given, Checkpoint):
        return input_of_file(given)
    if isinstance(given, (bytes, bytearray, memoryview)) or is_path(given):
        file = open_checkpoint(given, limits=limits, top_level_key=top_level_key)
        return input_of_file(opened.enter_context(file))
    return input_of_model(given, f"<{name}: {type(given).__name__}>")


def input_of_model(given: Any, shown: str) -> Input:
    """Return a model, a mapping or a list of snapshots as an input, with what a walk of it leaves out."""
    if isinstance(given, (list, tuple)) and all(isinstance(each, TensorSnapshot) for each in given):
        return replace(input_of_snapshots(shown, given), left_out=getattr(given, "left_out", {}))
    if isinstance(given, Mapping) and given and all(isinstance(each, TensorSnapshot) for each in given.values()):
        return input_of_snapshots(shown, [with_name(name, each) for name, each in given.items()])
    snapshots = [move.snapshot for move in compile_save(given, None, Pipeline()).moves]
    layout = layout_of(given) if states_layout(given) else None
    return Input(shown, snapshots, layout, model=given, left_out=left_out_of(given))


def _is_same_file(a: Any, b: Any) -> bool:
    return is_path(a) and is_path(b) and is_same_file(as_path(a), as_path(b))


def align(first: Input, second: Input, pipeline: Pipeline, like: Any = None) -> Aligned:
    """Return both sides in one layout: their own where they agree, Burn's where one of them is PyTorch's.

    Everything in PyTorch's layout can be converted to Burn's: fused tensors are split, constants are added. Only
    counters that Burn does not have are left over; they are compared if the other side recorded them. Renames apply to
    the first side, the filter to the names under which tensors are compared.
    """
    notes: list[Note] = []
    first, second = with_layouts_given([first, second], pipeline.layout, notes)
    first, second = stored_for(first, second.snapshots), stored_for(second, first.snapshots)
    if pipeline.rename is not None:
        first = _followed(first, pipeline.replace(recipe=None), notes)
    first, second = _without_wrappers(first, second, notes)
    if pipeline.recipe is not None:
        first = _followed(first, pipeline.replace(rename=None), notes)
    first, second = _proved(first, second, notes), _proved(second, first, notes)
    if pipeline.rules:  # a rule that matches nothing is refused, needed or not
        paths = {each.path for side in (first, second) for each in side.snapshots}
        kinds_by_rules(paths, pipeline.rules, "torch")
    aligned = _in_one_layout(first, second, pipeline, like)
    aligned.notes[:0] = notes
    return _filtered(aligned, pipeline)


def _followed(source: Input, pipeline: Pipeline, notes: list[Note]) -> Input:
    """Return a side after the renames and the rules for tensors."""
    named, recipe = rename_tensors(source, pipeline), pipeline.recipe
    notes += [
        *named.notes,
        *(Note("left out", f"{name!r} is left out: {why}", name) for name, why in named.dropped.items()),
    ]
    Plan(equals=list(named.equals)).check_constants()
    layout = source.layout if recipe is None else recipe.target_layout or source.layout
    return replace(named.renamed(source), snapshots=named.snapshots, layout=layout)


def _proved(side: Input, other: Input, notes: list[Note]) -> Input:
    """Return a side that does not state its layout with the one that the other proves, as a load would decide it."""
    model = other.model
    if side.layout is not None or model is None or isinstance(model, Mapping):
        return side
    target = target_of_model(model)
    try:
        layout, proof = resolve_layout(side, Pipeline(), target)
    except ModelError:  # nothing proves it, which is noted where the two sides meet
        return side
    notes += proof
    return replace(side, layout=layout)


def _without_wrappers(first: Input, second: Input, notes: list[Note]) -> tuple[Input, Input]:
    """Return both sides without the wrapper that only one of them has around its model, see `strip_rule`."""
    sides = [first, second]
    names = [{each.path for each in side.snapshots} for side in sides]
    for at, side in enumerate(sides):
        own, other = names[at] - names[1 - at], names[1 - at] - names[at]
        rule = strip_rule(other, own) if own and other else None
        if rule is not None:
            named = rename_tensors(side, Pipeline(rename=KeyRemapper.from_patterns([rule])))
            sides[at] = replace(named.renamed(side), snapshots=named.snapshots)
            notes.append(WRAPPER_STRIPPED.about(printable(side.name)))
    return sides[0], sides[1]


def _in_one_layout(first: Input, second: Input, pipeline: Pipeline, like: Any) -> Aligned:
    ours, theirs = index_tensors(first.snapshots), index_tensors(second.snapshots)
    one = first.layout
    sides = (
        [(first.name, one)]
        if first.snapshots is second.snapshots
        else [(first.name, one), (second.name, second.layout)]
    )
    met = unify(sides, "compare", keep=pipeline.keep_layout, is_clear=not hides_transpose(ours, theirs))
    if not met.is_converted:
        return Aligned(ours, theirs, None, met.notes)
    torch, burn = (first, second) if one == "torch" else (second, first)
    given, wanted = (ours, theirs) if one == "torch" else (theirs, ours)
    notes: list[Note] = []
    with located(path=torch.name, hint=_WAYS_OUT):
        view = _view(torch, burn, given, pipeline, like)
        view.check(None, "torch")
        seen = view.to_burn(given)
        # A tensor that the view does not know is compared under its own name.
        unknown = [snapshot for path, snapshot in given.items() if path not in seen.used]
        tensors: dict[str, TensorSnapshot] = {}
        for snapshot in [*seen.snapshots, *unknown]:
            if tensors.setdefault(snapshot.path, snapshot) is not snapshot:
                raise ModelError("two of its tensors would have this name in Burn's layout", tensor=snapshot.path)
    for given_constant, value in seen.constants:
        try:
            check_constant(given_constant, value)
        except ModelError:  # it has a value that the other side cannot have
            tensors[given_constant.path] = given_constant
    counts = {path: count for path, count in recorded_counts(burn.recorded).items() if path in seen.lost}
    tensors.update({path: given[path] for path in counts if path in given})
    uncounted = [path for path in seen.lost if path in given and path not in counts]
    if uncounted:
        text = f"not compared, because Burn's layout has no such tensors: {listed(uncounted)}"
        notes.append(Note("check", text))
    wanted = {**wanted, **{path: count for path, count in counts.items() if path in given}}
    both = (tensors, wanted) if first is torch else (wanted, tensors)
    return Aligned(*both, "burn", notes)


def _filtered(aligned: Aligned, pipeline: Pipeline) -> Aligned:
    sides = (aligned.first, aligned.second)
    tensors = [each for side in sides for each in side.values()]
    selection = select(tensors, pipeline, aligned.notes, "tensor")
    if selection is None:
        return aligned
    kept = {each.path for each, is_kept in zip(tensors, selection, strict=True) if is_kept}
    first, second = ({path: each for path, each in side.items() if path in kept} for side in sides)
    return replace(aligned, first=first, second=second)


def _view(torch: Input, burn: Input, given: Mapping[str, TensorSnapshot], pipeline: Pipeline, like: Any) -> LayoutView:
    """Return the tensors of the PyTorch side in both layouts, by whatever states the kinds of its modules."""
    shapes = {path: snapshot.shape for path, snapshot in given.items()}
    if is_path(like):
        with open_checkpoint(like) as pattern:
            recorded = recorded_modules(pattern.metadata)
        if recorded is None:
            raise ModelError(f"{as_path(like)!r} does not record its modules", hint=_WAYS_OUT)
        return view_of_record(recorded, shapes, "torch")
    if like is not None:
        return view_of_model(like, list(binding_for(like).walk(like)), rules=pipeline.rules, present=shapes)
    if pipeline.rules is not None or pipeline.guess or torch.classes:
        try:
            known = known_for_file(shapes, "torch", pipeline, None, lambda name: True, torch.classes)
        except AmbiguousError:
            raise
        except ModelError as error:
            error.hint = _WAYS_OUT  # that of a conversion speaks of writing
            raise
        assert known is not None
        return known.view
    for side in (torch, burn):
        if side.model is not None and not isinstance(side.model, Mapping):  # a mapping states no modules
            return view_of_model(side.model, list(binding_for(side.model).walk(side.model)), present=shapes)
        recorded = side.recorded
        if recorded is not None:
            return view_of_record(recorded, shapes, "torch")
    raise ModelError(
        f"its tensors have torch's layout, those of {burn.name} Burn's, and nothing states the kinds of the modules",
        hint=_WAYS_OUT,
    )
