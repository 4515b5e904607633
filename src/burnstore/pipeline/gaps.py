"""Gaps: whether the indices of a file may be closed up for a model.

PyTorch numbers every child of a `Sequential`, Burn only those in its `Vec`, so ``fc.0, fc.2`` of a file is mostly
``fc.0, fc.1`` of a model. But a file that holds a part of a model looks the same, and closing its gaps would put the
third layer's weights into the second. Only the model tells: it has as many entries there as the file, or it does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from ..errors import ModelError, printable
from ..transforms.indices import ClosedGap, closed_gaps, contiguous_names, index_of
from ..transforms.remap import Renaming

_MOST_SHOWN = 12


class ModelIndices:
    """The indices that the paths of a model have, by what stands before them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._found: dict[str, set[int]] = defaultdict(set)
        for path in paths:
            segments = path.split(".")
            for at, segment in enumerate(segments):
                number = index_of(segment)
                if number is not None:
                    self._found[".".join(segments[:at])].add(number)

    def below(self, prefix: str) -> tuple[int, ...]:
        """Those that follow this prefix, sorted; none if the model has no such part."""
        return tuple(sorted(self._found.get(prefix, ())))


def closed_for(
    names: Sequence[str], indices: ModelIndices, keep: Callable[[str], bool], *, asked_for: bool
) -> tuple[Renaming, list[str]]:
    """The names with their gaps closed as far as the model wants it, and notes about where that is not clear.

    Unless ``asked_for``, indices that the model itself has with these gaps stay. Raises ModelError where the model has
    more entries than the file: nobody can tell then which layers the file has.
    """
    kept: set[str] = set()
    while True:
        renaming = contiguous_names(names, _either(kept, keep))
        gaps = closed_gaps(renaming)
        same = {gap.original for gap in gaps if not asked_for and indices.below(gap.prefix) == gap.indices}
        if not same:
            return renaming, [note for gap in gaps if (note := _judged(gap, indices.below(gap.prefix))) is not None]
        kept |= same


def _either(kept: set[str], keep: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda prefix: prefix in kept or keep(prefix)


def _judged(gap: ClosedGap, wanted: Sequence[int]) -> str | None:
    """What is to be said about a gap that was closed, if anything; raises where it must not be closed."""
    if wanted and wanted[-1] >= len(gap.indices):
        where = f"below {printable(gap.prefix)!r}" if gap.prefix else "at the root"
        raise ModelError(
            f"{where} the file has the indices {_listed(gap.indices)} and the model {_listed(wanted)}: whether the "
            "file has gaps where layers have no parameters, or lacks layers of the model, nobody can tell",
            hint="map_indices_contiguous(False) takes the indices as they are, map_indices_contiguous_except(pattern) "
            "those below some prefixes, and a key remapping gives them the model's own",
        )
    if wanted and len(wanted) < len(gap.indices):
        return (
            f"below {printable(gap.prefix)!r} the file's indices {_listed(gap.indices)} were numbered anew, and the "
            f"model has only {_listed(wanted)}"
        )
    return None


def _listed(indices: Iterable[int]) -> str:
    shown = list(indices)
    if len(shown) > _MOST_SHOWN:
        return f"{', '.join(map(str, shown[: _MOST_SHOWN - 2]))}, … {shown[-1]}"
    return ", ".join(map(str, shown))
