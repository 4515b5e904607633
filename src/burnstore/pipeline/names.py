"""Names: the first stage of reading. Tensors get the names under which they are matched or written.

Renames come first, then indices. PyTorch numbers every child of a `Sequential`, Burn only those in its `Vec`, so
``fc.0, fc.2`` of a file is usually ``fc.0, fc.1`` of a model. But a file with a part of a model looks the same, and
closing its gaps would put the third layer's weights into the second. Only the model can decide, by the number of its
entries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..errors import DuplicateNameError, ModelError, PatternError, Ways, located, printable, quoted
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.indices import ClosedGap, closed_gaps, contiguous_names, index_of
from ..transforms.operations import Apply, Operation
from ..transforms.remap import Renaming, keep_distinct
from ..transforms.view import Origin
from .ends import Input, Target
from .options import Pipeline

_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Named:
    """The tensors of an input under the names that a target knows, and what was done to the names."""

    snapshots: Sequence[TensorSnapshot]
    originals: dict[str, str]
    """The name in the source of every renamed tensor, by the new name; other tensors keep theirs."""

    notes: list[Note]
    dropped: dict[str, str]
    """Tensors of the source that another one displaced or rules drop, and why."""

    made: dict[str, tuple[tuple[Origin, ...], tuple[Operation, ...]]] = field(default_factory=dict)
    """The origins of tensors that rules make, and what is done to the whole of each."""

    equals: Sequence[tuple[TensorSnapshot, TensorSnapshot]] = ()
    """Tensors that rules leave out because they equal others."""

    def original(self, name: str) -> str:
        """Return the name that a tensor has in the source."""
        return self.originals.get(name, name)

    def renamed(self, source: Input) -> Input:
        """Return the source with these names, so that the modules it states have them, too."""
        names = {self.original(each.path): each.path for each in self.snapshots} if self.originals else {}
        return replace(source, names=names)

    def traced(
        self, origins: tuple[Origin, ...], steps: tuple[Operation, ...]
    ) -> tuple[tuple[Origin, ...], tuple[Operation, ...]]:
        """Return the origins of a tensor in the source itself, and what is done to the whole of it."""
        if self.made and len(origins) == 1 and origins[0].source in self.made:
            first, whole = self.made[str(origins[0].source)]
            return first, (*whole, *origins[0].operations, *steps)
        if not self.made and not self.originals:
            return origins, steps
        found: list[Origin] = []
        for origin in origins:
            first, whole = self.made.get(str(origin.source), ((), ()))
            if any(isinstance(step, Apply) for step in whole):  # of a function, only what it sees is known
                found += [each for each in first if each not in found]
                steps = (*whole, *steps)
            elif len(first) > 1:
                raise ModelError("rules join it, and its layout joins it again", tensor=origin.source)
            elif first:
                found.append(first[0]._replace(operations=(*first[0].operations, *whole, *origin.operations)))
            else:
                found.append(origin._replace(source=self.originals.get(origin.source or "", origin.source)))
        return tuple(found), steps


def index_tensors(snapshots: Sequence[TensorSnapshot]) -> dict[str, TensorSnapshot]:
    """Return tensors by name; DuplicateNameError if two have one name."""
    index = {snapshot._path: snapshot for snapshot in snapshots}
    if len(index) < len(snapshots):
        counts = Counter(snapshot.path for snapshot in snapshots)
        raise DuplicateNameError("two tensors have this name", tensor=next(name for name in counts if counts[name] > 1))
    return index


def name_tensors(source: Input, pipeline: Pipeline, target: Target | None) -> Named:
    """Rename the tensors of a source, apply the rules for tensors, and number the indices (see `_numbered`)."""
    return _numbered(source, pipeline, target) if pipeline.recipe is None else rename_tensors(source, pipeline)


def follow_rules(snapshots: Sequence[TensorSnapshot], name: str, layout: str, pipeline: Pipeline) -> Named:
    """Return the tensors of a model after the rules for tensors, which take the model's layout."""
    source = Input(name, snapshots, layout)
    return _followed(Named(snapshots, {}, [], {}), source, pipeline.replace(layout=None))


def _followed(named: Named, source: Input, pipeline: Pipeline) -> Named:
    """Return the tensors after the rules for tensors."""
    recipe = pipeline.recipe
    assert recipe is not None
    stated = pipeline.layout or source.layout
    if recipe.source_layout is not None and stated not in (None, recipe.source_layout):
        raise ModelError(
            f"the rules take {recipe.source_layout}'s layout, and the source has {stated}'s",
            path=source.name,
            hint=Ways("the rules lead the other way: pass invert=True, or leave it out if you passed it", lead="")
            if stated == recipe.target_layout
            else None,
        )
    done = recipe.apply({snapshot.path: snapshot for snapshot in named.snapshots})
    made = {
        name: (
            tuple(each._replace(source=named.originals.get(each.source or "", each.source)) for each in origins),
            steps,
        )
        for name, (_, origins, steps) in done.made.items()
    }
    return replace(
        named,
        snapshots=[snapshot for snapshot, _, _ in done.made.values()],
        originals={},
        notes=[*named.notes, *done.notes],
        dropped={**named.dropped, **{named.original(name): why for name, why in done.dropped.items()}},
        made=made,
        equals=done.equals,
    )


def _numbered(source: Input, pipeline: Pipeline, target: Target | None) -> Named:
    """Rename the tensors of a source and number their indices as the pipeline requires.

    Without a target, as for keys and snapshots of a store, indices of PyTorch files are numbered as for a Burn model.
    """
    is_default = pipeline.indices is None and source.format == "pytorch" and (target is None or target.layout == "burn")
    is_indexed = bool(pipeline.indices) or is_default
    if pipeline.rename is None and not is_indexed:
        return Named(source.snapshots, {}, [], {})
    given = [snapshot.path for snapshot in source.snapshots]
    names, notes = new_names(given, pipeline)
    if is_indexed:
        keep = _kept(pipeline)
        if target is None:
            names = contiguous_names(names, keep).names
        else:
            indices = _Indices(slot.path for slot in target.slots)
            with located(path=source.name):
                closed, more = _closed_for(names, indices, keep, is_requested=not is_default)
            names, notes = closed.names, [*notes, *more]
    return _named(source, given, names, notes, pipeline)


def rename_tensors(source: Input, pipeline: Pipeline) -> Named:
    """Rename the tensors of a source that is written to a file; indices are numbered only on request."""
    given = [snapshot.path for snapshot in source.snapshots]
    names, notes = new_names(given, pipeline)
    if pipeline.indices:
        names = contiguous_names(names, _kept(pipeline)).names
    named = _named(source, given, names, notes, pipeline)
    return named if pipeline.recipe is None else _followed(named, source, pipeline)


def new_names(given: list[str], pipeline: Pipeline, owner: str = "file") -> tuple[list[str], list[Note]]:
    """Return the names after the renames; a rule that matches nothing is noted or refused."""
    if pipeline.rename is None:
        return given, []
    renaming = pipeline.rename.remap_names(given)
    if renaming.unmatched and pipeline.unmatched == "error":
        raise PatternError(
            f"the rename {quoted(renaming.unmatched[0])} matched no tensor",
            hint="patterns are a list and apply one after the other, a mapping renames whole names; "
            "a pattern that starts with ? may match nothing",
        )
    notes = [
        Note("unmatched", f"the remapping {quoted(rule)} matched no tensor of the {owner}", rule)
        for rule in renaming.unmatched
    ]
    return renaming.names, notes


def _named(source: Input, given: list[str], names: list[str], notes: list[Note], pipeline: Pipeline) -> Named:
    if names == given:
        return Named(source.snapshots, {}, notes, {})
    rows, dropped = distinct_rows(given, names, notes, pipeline)
    tensors = source.snapshots
    renamed = [tensors[row] if given[row] == names[row] else tensors[row].with_path(names[row]) for row in rows]
    originals = {names[row]: given[row] for row in rows if given[row] != names[row]}
    return Named(renamed, originals, notes, dropped)


def distinct_rows(
    given: Sequence[str], names: Sequence[str], notes: list[Note], pipeline: Pipeline
) -> tuple[list[int], dict[str, str]]:
    """Return the rows to keep of tensors with new names, and the reasons for the others, which are noted, too."""
    rows = keep_distinct(names, given, pipeline.on_collision)
    kept = {names[row]: row for row in rows} if len(rows) < len(names) else {}
    dropped = {
        given[row]: f"{given[kept[name]]!r} has the same name, {name!r}"
        for row, name in enumerate(names if kept else ())
        if kept[name] != row
    }
    notes += [Note("names", f"{name!r} was left out: {why}", name) for name, why in dropped.items()]
    return rows, dropped


def _kept(pipeline: Pipeline) -> Callable[[str], bool]:
    patterns = pipeline.indices_except
    return lambda prefix: any(pattern.search(prefix) for pattern in patterns)


class _Indices:
    """The indices that the paths of a model have, by their prefix."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._found: dict[str, set[int]] = defaultdict(set)
        for path in paths:
            segments = path.split(".")
            for at, segment in enumerate(segments):
                number = index_of(segment)
                if number is not None:
                    self._found[".".join(segments[:at])].add(number)

    def below(self, prefix: str) -> tuple[int, ...]:
        """Return the indices below a prefix, sorted; none if the model has no such part."""
        return tuple(sorted(self._found.get(prefix, ())))


def _closed_for(
    names: Sequence[str], indices: _Indices, keep: Callable[[str], bool], *, is_requested: bool
) -> tuple[Renaming, list[Note]]:
    """Return the names with gaps closed as far as the model wants it, and notes about places where that is unclear.

    Unless it is requested, indices that the model itself has with these gaps stay. Raises ModelError where the model
    has more entries than the file: then nothing decides which layers the file has.
    """
    kept: set[str] = set()
    while True:
        renaming = contiguous_names(names, _either(kept, keep))
        gaps = closed_gaps(renaming)
        same = {gap.original for gap in gaps if not is_requested and indices.below(gap.prefix) == gap.indices}
        if not same:
            return renaming, [note for gap in gaps if (note := _judged(gap, indices.below(gap.prefix))) is not None]
        kept |= same


def _either(kept: set[str], keep: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda prefix: prefix in kept or keep(prefix)


def _judged(gap: ClosedGap, wanted: Sequence[int]) -> Note | None:
    """Return a note about a closed gap if the model has other indices; ModelError if the gap must not be closed."""
    if wanted and wanted[-1] >= len(gap.indices):
        where = f"below {printable(gap.prefix)!r}" if gap.prefix else "at the root"
        raise ModelError(
            f"{where} the file has the indices {_listed(gap.indices)} and the model {_listed(wanted)}: cannot decide "
            "whether the file has gaps where layers have no parameters, or lacks layers of the model",
            hint=Ways(
                "indices=False to take them unchanged",
                "indices_except=[pattern] for those below some prefixes",
                "rename= to give them the model's own",
            ),
        )
    if wanted and len(wanted) < len(gap.indices):
        text = (
            f"below {printable(gap.prefix)!r} the file's indices {_listed(gap.indices)} were renumbered, and the "
            f"model has only {_listed(wanted)}"
        )
        return Note("names", text, gap.prefix)
    return None


def _listed(indices: Iterable[int]) -> str:
    shown = list(indices)
    if len(shown) > _MOST_SHOWN:
        return f"{', '.join(map(str, shown[: _MOST_SHOWN - 2]))}, … {shown[-1]}"
    return ", ".join(map(str, shown))
