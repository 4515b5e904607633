"""Gather: many ranges of one source in few reads, without reading what was not asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .source import Source

# Ranges below this are read together with their neighbours, into buffers of at most this many bytes in all.
_SMALL = 256 << 10
_SHARED_BITS = 23
_PADDING = 256  # what formats leave unused between two tensors at most

Buffer = Any
"""An array of bytes or a memoryview."""


def gather(source: Source, offsets: Sequence[int], sizes: Sequence[int]) -> tuple[list[Buffer], list[int]]:
    """A buffer, and a place in it, for each range.

    Where the source shares its memory, the buffer is that memory. Otherwise ranges are read: large ones into buffers of
    their own, neighbouring small ones into a shared one of up to 8 MiB.
    """
    whole = source.view(0, source.size)
    if whole is not None:
        return [whole] * len(offsets), list(offsets)
    if not offsets:
        return [], []
    start = np.array(offsets, np.int64)
    end = start + np.array(sizes, np.int64)
    # A range begins a new buffer when it, or the one before it, is large, when anything but padding lies between them,
    # or when it would not lie at an address that NumPy likes (files of Burn 0.19 do not align their tensors).
    alone = (end - start >= _SMALL) | (start % 8 != 0)
    neighbours = (start[1:] == end[:-1]) | (start[1:] == -(-end[:-1] // _PADDING) * _PADDING)
    begins = np.ones(len(start), bool)
    begins[1:] = alone[1:] | alone[:-1] | ~neighbours | (start[1:] >> _SHARED_BITS != start[:-1] >> _SHARED_BITS)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(start)) - 1
    base = start[first]
    # NumPy asks for huge pages for large buffers, which makes their first touch several times cheaper.
    buffers = [np.empty(length, np.uint8) for length in (end[last] - base).tolist()]
    source.read_into([(at, memoryview(buffer)) for at, buffer in zip(base.tolist(), buffers, strict=True)])
    which = np.cumsum(begins) - 1
    return list(map(buffers.__getitem__, which.tolist())), (start - base[which]).tolist()
