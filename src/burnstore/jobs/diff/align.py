"""Comparable: two checkpoints, models or mappings as tensors by name in one layout, so that they can be compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import DuplicateNameError, ModelError, located
from ...limits import Limits
from ...models.bindings import binding_for
from ...models.collect import collect
from ...models.layouts import (
    Rules,
    kinds_by_rules,
    layout_of,
    recorded_counts,
    recorded_modules,
    view_of,
    view_of_record,
)
from ...pipeline.translation import view_of_kinds
from ...tensor.scalar import Scalar
from ...tensor.snapshot import TensorSnapshot
from ...transforms.filter import PathFilter
from ...transforms.layout import LAYOUTS, Layout
from ...transforms.view import LayoutView

_WAYS_OUT = (
    "like= a model, a declaration or a file that records its modules, rules={pattern: kind}, "
    "or keep_layout=True to compare the tensors as they are"
)


@dataclass(slots=True)
class Side:
    """One of the two things that are compared: its tensors by name, and what else it says."""

    name: str
    tensors: dict[str, TensorSnapshot]
    layout: Layout | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    model: Any = None

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint) -> Side:
        """An open file."""
        return cls(
            checkpoint.path,
            dict(checkpoint),
            next((layout for layout in LAYOUTS if layout == checkpoint.layout), None),
            checkpoint.metadata,
            checkpoint.scalars,
        )

    @classmethod
    def of_model(cls, model: Any, name: str) -> Side:
        """A model, or a mapping of arrays, which says nothing of its layout unless it holds torch's tensors."""
        layout: Layout | None = layout_of(model)
        if isinstance(model, Mapping) and layout == "burn" and not hasattr(model, "burnstore_layout"):
            layout = None
        return cls(name, _by_name(collect(model)), layout, model=model)


@contextmanager
def opened_sides(a: Any, b: Any, limits: Limits | None) -> Iterator[tuple[Side, Side]]:
    """Both sides, open while the block lasts; one and the same file is opened once, and has the same tensors twice."""
    with ExitStack() as opened:
        first = _side(a, "a", limits, opened)
        if a is b:
            yield first, first
        elif _is_same_file(a, b):
            yield first, replace(first, name=os.fsdecode(b))
        else:
            yield first, _side(b, "b", limits, opened)


def _side(given: Any, name: str, limits: Limits | None, opened: ExitStack) -> Side:
    if isinstance(given, Checkpoint):
        return Side.of_checkpoint(given)
    if isinstance(given, (str, os.PathLike, bytes, bytearray, memoryview)):
        return Side.of_checkpoint(opened.enter_context(open_checkpoint(given, limits=limits)))
    shown = f"<{name}: {type(given).__name__}>"
    if isinstance(given, (list, tuple)) and all(isinstance(each, TensorSnapshot) for each in given):
        return Side(shown, _by_name(given), None)
    return Side.of_model(given, shown)


def _by_name(snapshots: Iterable[TensorSnapshot]) -> dict[str, TensorSnapshot]:
    found: dict[str, TensorSnapshot] = {}
    for snapshot in snapshots:
        if found.setdefault(snapshot.path, snapshot) is not snapshot:
            raise DuplicateNameError("two tensors have this name", tensor=snapshot.path)
    return found


def _is_same_file(a: Any, b: Any) -> bool:
    if not isinstance(a, (str, os.PathLike)) or not isinstance(b, (str, os.PathLike)):
        return False
    try:
        return os.path.samefile(a, b)
    except OSError:  # one of them is not there, and is told of when it is opened
        return False


@dataclass(frozen=True, slots=True)
class Aligned:
    """The tensors of both sides by the names under which they are compared, and in which layout that is."""

    first: dict[str, TensorSnapshot]
    second: dict[str, TensorSnapshot]
    layout: Layout | None
    notes: list[str]


def aligned(
    first: Side, second: Side, *, like: Any = None, rules: Rules | None = None, keep_layout: bool = False
) -> Aligned:
    """Both sides in one layout: their own where they agree, Burn's where one of them is of PyTorch's.

    Burn's, as everything of PyTorch can be seen in it: what is fused there comes apart, what is constant is made. Only
    counts that Burn does not keep are left over; they are compared where the other side recorded them.
    """
    notes: list[str] = []
    if keep_layout or first.layout == second.layout:
        return Aligned(first.tensors, second.tensors, None, notes)
    if first.layout is None or second.layout is None:
        silent, other = (first, second) if first.layout is None else (second, first)
        notes.append(
            f"{silent.name} does not say whose layout its tensors have; compared as if it were {other.layout}'s, "
            f"as in {other.name}"
        )
        return Aligned(first.tensors, second.tensors, None, notes)
    torch, burn = (first, second) if first.layout == "torch" else (second, first)
    with located(path=torch.name, hint=_WAYS_OUT):
        view = _view(torch, burn, like, rules)
        seen = view.to_burn(torch.tensors)
        # What the view does not know of is compared under its own name.
        unknown = [snapshot for path, snapshot in torch.tensors.items() if path not in seen.used]
        tensors: dict[str, TensorSnapshot] = {}
        for snapshot in [*seen.snapshots, *unknown]:
            if tensors.setdefault(snapshot.path, snapshot) is not snapshot:
                raise ModelError("two of its tensors would have this name in Burn's layout", tensor=snapshot.path)
    counts = {path: count for path, count in recorded_counts(burn.metadata).items() if path in seen.lost}
    tensors.update({path: torch.tensors[path] for path in counts if path in torch.tensors})
    uncounted = [path for path in seen.lost if path in torch.tensors and path not in counts]
    if uncounted:
        notes.append(
            f"not compared, as Burn's layout has no such tensors: {', '.join(uncounted[:3])}"
            + (f" and {len(uncounted) - 3} more" if len(uncounted) > 3 else "")
        )
    theirs = {**burn.tensors, **{path: count for path, count in counts.items() if path in torch.tensors}}
    both = (tensors, theirs) if first is torch else (theirs, tensors)
    return Aligned(*both, "burn", notes)


def filtered(tensors: Aligned, filter: PathFilter | None) -> Aligned:
    """Those that a filter matches by the names under which they are compared."""
    if filter is None:
        return tensors
    first, second = (
        {path: snapshot for path, snapshot in side.items() if filter.matches(path)}
        for side in (tensors.first, tensors.second)
    )
    return Aligned(first, second, tensors.layout, tensors.notes)


def _view(torch: Side, burn: Side, like: Any, rules: Rules | None) -> LayoutView:
    """The tensors of the side that is of PyTorch in both layouts, by whatever tells the kinds of its modules."""
    shapes = {path: snapshot.shape for path, snapshot in torch.tensors.items()}
    if isinstance(like, (str, os.PathLike)):
        with open_checkpoint(like) as pattern:
            recorded = recorded_modules(pattern.metadata)
        if recorded is None:
            raise ModelError(f"{os.fsdecode(like)!r} does not record its modules", hint=_WAYS_OUT)
        return view_of_record(recorded, shapes, "torch")
    if like is not None:
        return view_of(like, list(binding_for(like).walk(like)), rules=rules, present=shapes)
    if rules is not None:
        try:
            return view_of_kinds(kinds_by_rules(shapes, rules), shapes, "torch")
        except ModelError as error:
            error.hint = _WAYS_OUT  # that of a conversion speaks of what is written
            raise
    for side in (torch, burn):
        if side.model is not None and not isinstance(side.model, Mapping):  # a mapping knows nothing of modules
            return view_of(side.model, list(binding_for(side.model).walk(side.model)), present=shapes)
        recorded = recorded_modules(side.metadata)
        if recorded is not None:
            return view_of_record(recorded, shapes, "torch")
    raise ModelError(
        f"its tensors have torch's layout, those of {burn.name} Burn's, and nothing tells the kinds of the modules",
        hint=_WAYS_OUT,
    )
