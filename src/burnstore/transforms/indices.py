"""Contiguous indices: ``fc.0, fc.2, fc.4`` of PyTorch's Sequential as ``fc.0, fc.1, fc.2`` of Burn's Vec."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..tensor.snapshot import TensorSnapshot
from .remap import OnCollision, Renaming, keep_distinct

_MOST_DIGITS = 20
_LARGEST = (1 << 64) - 1


def contiguous_names(names: Sequence[str], keep: Callable[[str], bool] | None = None) -> Renaming:
    """Return the names with the indices below each prefix numbered 0, 1, 2 in their order.

    Every segment that is a number counts; what stands before it, with its own indices as they were, is its prefix.
    ``keep`` is asked with each prefix and may leave the indices below it alone.

    >>> contiguous_names(["fc.0.weight", "fc.2.weight", "fc.10.weight"]).names
    ['fc.0.weight', 'fc.1.weight', 'fc.2.weight']
    """
    found: dict[str, set[int]] = defaultdict(set)
    rows: list[tuple[list[str], list[tuple[int, str, int]]] | None] = []
    for name in names:
        segments = name.split(".")
        places = []
        for at, segment in enumerate(segments):
            number = index_of(segment)
            if number is not None:
                prefix = ".".join(segments[:at])
                found[prefix].add(number)
                places.append((at, prefix, number))
        rows.append((segments, places) if places else None)
    kept = {prefix for prefix in found if keep is not None and keep(prefix)}
    rank = {
        prefix: {number: position for position, number in enumerate(sorted(numbers))}
        for prefix, numbers in found.items()
        if prefix not in kept
    }
    renamed = []
    for name, row in zip(names, rows, strict=True):
        if row is None:
            renamed.append(name)
            continue
        segments, places = list(row[0]), row[1]
        for at, prefix, number in places:
            if prefix in rank:
                segments[at] = str(rank[prefix][number])
        renamed.append(".".join(segments))
    return Renaming(renamed, list(names), [])


@dataclass(frozen=True, slots=True)
class ClosedGap:
    """Indices that were renumbered: the prefix before and after, and the old indices."""

    original: str
    prefix: str
    indices: tuple[int, ...]


def closed_gaps(renaming: Renaming) -> list[ClosedGap]:
    """Return where `contiguous_names` changed indices, and the indices before.

    >>> closed_gaps(contiguous_names(["fc.0.weight", "fc.2.weight", "head.0.weight"]))
    [ClosedGap(original='fc', prefix='fc', indices=(0, 2))]
    """
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    changed: set[tuple[str, str]] = set()
    for old, new in zip(renaming.originals, renaming.names, strict=True):
        if old == new:
            continue
        before, after = old.split("."), new.split(".")
        for at, (was, is_now) in enumerate(zip(before, after, strict=True)):
            if was != is_now:
                changed.add((".".join(before[:at]), ".".join(after[:at])))
    for old, new in zip(renaming.originals, renaming.names, strict=True) if changed else ():
        before, after = old.split("."), new.split(".")
        for at, segment in enumerate(before):
            number = index_of(segment)
            if number is not None and (place := (".".join(before[:at]), ".".join(after[:at]))) in changed:
                found[place].add(number)
    return [ClosedGap(*place, tuple(sorted(numbers))) for place, numbers in found.items()]


def map_indices_contiguous(
    snapshots: Iterable[TensorSnapshot], *, on_collision: OnCollision = "error"
) -> tuple[list[TensorSnapshot], list[tuple[str, str]]]:
    """Return the snapshots with contiguous indices in their names, and all pairs of (new, old) name."""
    return map_indices_contiguous_except(snapshots, lambda prefix: False, on_collision=on_collision)


def map_indices_contiguous_except(
    snapshots: Iterable[TensorSnapshot], keep: Callable[[str], bool], *, on_collision: OnCollision = "error"
) -> tuple[list[TensorSnapshot], list[tuple[str, str]]]:
    """Do the same as `map_indices_contiguous`, except below prefixes for which ``keep`` returns True."""
    given = list(snapshots)
    renaming = contiguous_names([snapshot.path for snapshot in given], keep)
    rows = keep_distinct(renaming.names, renaming.originals, on_collision)
    renamed = [given[row].with_path(renaming.names[row]) for row in rows]
    return renamed, [(renaming.names[row], renaming.originals[row]) for row in rows]


def index_of(segment: str) -> int | None:
    """Return the index that a segment spells, as Rust parses it: decimal digits, a plus allowed, at most 64 bits."""
    digits = segment.removeprefix("+")
    if not digits.isascii() or not digits.isdecimal() or len(digits.lstrip("0")) > _MOST_DIGITS:
        return None
    value = int(digits)
    return value if value <= _LARGEST else None
