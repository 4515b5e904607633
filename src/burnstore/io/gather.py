"""Gather: many ranges of one source in few reads, without reading what was not asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .source import Source

# Ranges below this are read together with their neighbours, into buffers of at most this many bytes in all.
_SMALL = 256 << 10
_SHARED_BITS = 23
_WIDEST = 8  # no element asks for more of its address in host memory
_PADDING = 256  # what formats put between two tensors at most: zeros, or the header of the next one

Buffer = Any
"""An array of bytes or a memoryview."""


Column = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Groups:
    """Ranges of a source, neighbouring small ones together: what each group is, and where in which each range lies."""

    bases: Column
    lengths: Column
    skipped: Column
    """How many bytes to leave before a group, so that its ranges lie in memory as they lie in the file."""
    firsts: Column
    """The first range of each group; the others follow it."""
    which: Column
    places: Column


def gather(
    source: Source, offsets: Sequence[int], sizes: Sequence[int], alignments: Sequence[int] | None = None
) -> tuple[list[Buffer], list[int]]:
    """A buffer, and a place in it, for each range.

    Where the source shares its memory, the buffer is that memory. Otherwise ranges are read: large ones into buffers of
    their own, neighbouring small ones into a shared one of up to 8 MiB. ``alignments`` (of 1, 2, 4 or 8 bytes; 8 if not
    given) say what each address must be a multiple of, if it can be without a copy.
    """
    whole = source.view(0, source.size)
    if whole is not None:
        return [whole] * len(offsets), list(offsets)
    if not offsets:
        return [], []
    if source.view(offsets[0], sizes[0]) is not None:  # shared, but not as one piece: several files that are mapped
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
    small: int = _SMALL,
    widest: int = _WIDEST,
) -> Groups:
    """The groups in which ranges are best read: one of ``small`` bytes or more is a group of its own.

    ``widest`` is the largest alignment that there is, and what each range has if none are given.
    """
    start = np.array(offsets, np.int64)
    end = start + np.array(sizes, np.int64)
    # A range begins a new group when it, or the one before it, is large, when anything but padding lies between them,
    # or when it would not lie at an address that NumPy likes (files of Burn 0.19 do not align their tensors).
    crooked = start % (widest if alignments is None else np.array(alignments, np.int64)) != 0
    alone = (end - start >= small) | crooked
    neighbours = (start[1:] >= end[:-1]) & (start[1:] - end[:-1] <= _PADDING)
    begins = np.ones(len(start), bool)
    begins[1:] = alone[1:] | alone[:-1] | ~neighbours | (start[1:] >> _SHARED_BITS != start[:-1] >> _SHARED_BITS)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(start)) - 1
    base = start[first]
    # What lies aligned in the file lies so in memory if the group begins as crooked as its first range does.
    skipped = np.where(crooked[first], 0, base % widest)
    which = np.cumsum(begins) - 1
    return Groups(base, end[last] - base, skipped, first, which, start - base[which])
