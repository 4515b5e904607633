"""Read many ranges of one source with few reads, and nothing that was not asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .sizes import GATHERED_BYTES, MAX_PADDING, SHARED_BITS
from .source import Source

_WIDEST = 8  # no element requires more of its address in host memory

Buffer = Any
"""An array of bytes or a memoryview."""

Column = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Groups:
    """Ranges of a source, small neighbours grouped: the groups, and the place of each range in one of them."""

    bases: Column
    lengths: Column
    skipped: Column
    """The bytes to leave free before a group, so that its ranges have the alignment they have in the file."""
    firsts: Column
    """The first range of each group; the others follow it."""
    which: Column
    places: Column


def gather(
    source: Source, offsets: Sequence[int], sizes: Sequence[int], alignments: Sequence[int] | None = None
) -> tuple[list[Buffer], list[int]]:
    """Return a buffer, and a place in it, for each range.

    A source that shares its memory gives that memory. Otherwise large ranges are read into buffers of their own,
    neighbouring small ones into shared buffers of up to 8 MiB. ``alignments`` (1, 2, 4 or 8 bytes; 8 if not given) are
    those that the addresses should have where that needs no copy.
    """
    whole = source.view(0, source.size)
    if whole is not None:
        return [whole] * len(offsets), list(offsets)
    if not offsets:
        return [], []
    if source.view(offsets[0], sizes[0]) is not None:  # several mapped files
        return [source.view(*each) for each in zip(offsets, sizes, strict=True)], [0] * len(offsets)
    groups = grouped(offsets, sizes, alignments)
    # NumPy asks for huge pages for large buffers, which makes their first touch several times cheaper.
    buffers = [
        np.empty(length + skipped, np.uint8)[skipped:] if skipped else np.empty(length, np.uint8)
        for length, skipped in zip(groups.lengths.tolist(), groups.skipped.tolist(), strict=True)
    ]
    source.read_into([(at, memoryview(buffer)) for at, buffer in zip(groups.bases.tolist(), buffers, strict=True)])
    return list(map(buffers.__getitem__, groups.which.tolist())), groups.places.tolist()


def grouped(
    offsets: Sequence[int],
    sizes: Sequence[int],
    alignments: Sequence[int] | Column | None = None,
    *,
    small: int = GATHERED_BYTES,
    widest: int = _WIDEST,
) -> Groups:
    """Group ranges for reading: one of ``small`` bytes or more is a group of its own.

    ``widest`` is the largest alignment, and that of every range if ``alignments`` are not given.
    """
    start = np.array(offsets, np.int64)
    end = start + np.array(sizes, np.int64)
    # A range begins a new group when it or the one before it is large, when more than padding separates them, or when
    # it would be at an address that NumPy has to copy from (files of Burn 0.19 do not align their tensors).
    unaligned = start % (widest if alignments is None else np.array(alignments, np.int64)) != 0
    alone = (end - start >= small) | unaligned
    neighbours = (start[1:] >= end[:-1]) & (start[1:] - end[:-1] <= MAX_PADDING)
    begins = np.ones(len(start), bool)
    begins[1:] = alone[1:] | alone[:-1] | ~neighbours | (start[1:] >> SHARED_BITS != start[:-1] >> SHARED_BITS)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(start)) - 1
    base = start[first]
    skipped = np.where(unaligned[first], 0, base % widest)
    which = np.cumsum(begins) - 1
    return Groups(base, end[last] - base, skipped, first, which, start - base[which])
