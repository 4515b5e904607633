"""Histogram: how often values fall into each of at most 64 equal ranges, found in one pass.

The ranges are ``2**exponent`` wide and begin at multiples of that. The exponent is the smallest that covers the values
with so many ranges; when a later block needs more room it grows, and neighbouring ranges are joined. So the result
depends on the values alone, not on how they were cut into blocks, and every edge is a number that floats have exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor.data import Array
from ..json_output import json_number

MOST_BINS = 64
# Scaling a float32 by a power of two within this is exact; beyond it the power, or the product, may leave its range.
_EASY = 60
# With fewer values the room for pairs of them costs more than it saves.
_PAIRS_FROM = 1 << 14


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[i]`` values are at least ``(first + i) * 2**exponent`` and below ``(first + i + 1) * 2**exponent``."""

    first: int
    exponent: int
    counts: tuple[int, ...]

    @property
    def edges(self) -> tuple[float, ...]:
        """The bounds of the ranges, one more than there are counts."""
        return tuple(math.ldexp(self.first + at, self.exponent) for at in range(len(self.counts) + 1))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON."""
        return {"first": json_number(self.first), "exponent": self.exponent, "counts": list(self.counts)}


class RunningHistogram:
    """A histogram that grows block by block.

    >>> running = RunningHistogram()
    >>> for block in (np.array([0.0, 1.0]), np.array([63.5])):
    ...     running.add(block, block.min().item(), block.max().item())
    >>> found = running.result()
    >>> found.first, found.exponent, len(found.counts), sum(found.counts)
    (0, 0, 64, 3)
    """

    def __init__(self) -> None:
        self._least: Any = None
        self._most: Any = None
        self._first = self._exponent = 0
        self._counts: Array | None = None  # None while all values are equal: then they need no ranges, only their count
        self._equal = 0

    def add(self, block: Array, least: int | float, most: int | float) -> None:
        """Take finite values, of which these are the least and the largest."""
        if self._has_ranges_for(least, most):
            self._counts += _counted(block, self._exponent, self._first)
        else:
            self._equal += block.size

    def merge(self, other: RunningHistogram) -> None:
        """Take what another has counted."""
        if other._least is None:
            return
        if self._has_ranges_for(other._least, other._most):
            self._counts += other._in_ranges(self._exponent, self._first)
        else:
            self._equal += other._equal

    def _has_ranges_for(self, least: Any, most: Any) -> bool:
        """Make room for values from the one to the other; False if all values are still equal."""
        if self._least is not None:
            least, most = min(self._least, least), max(self._most, most)
        if least != most:
            exponent, first = _ranges(least, most)
            self._counts = self._in_ranges(exponent, first)
            self._exponent, self._first = exponent, first
        self._least, self._most = least, most
        return bool(least != most)

    def _in_ranges(self, exponent: int, first: int) -> Array:
        """The counts so far in these ranges, which are as wide or wider."""
        counts = np.zeros(MOST_BINS, np.int64)
        if self._counts is None:
            if self._equal:
                counts[_range_of(self._least, exponent) - first] = self._equal
            return counts
        if (exponent, first) == (self._exponent, self._first):
            return self._counts
        filled = np.flatnonzero(self._counts)
        for at, count in zip(filled.tolist(), self._counts[filled].tolist(), strict=True):
            counts[((self._first + at) >> (exponent - self._exponent)) - first] += count
        return counts

    def result(self) -> Histogram | None:
        """The histogram so far; None without a value, and where all are equal, for which a count says everything."""
        if self._counts is None:
            return None
        used = _range_of(self._most, self._exponent) - self._first + 1
        return Histogram(self._first, self._exponent, tuple(self._counts[:used].tolist()))


def _ranges(least: Any, most: Any) -> tuple[int, int]:
    """The smallest exponent for which so many ranges cover these values, and the number of the first range."""
    if isinstance(least, int):
        exponent = max(((most - least) // MOST_BINS).bit_length() - 1, 0)
    else:
        spread = most - least
        exponent = math.frexp(spread)[1] - 8 if math.isfinite(spread) else 1024 - 8
    while _range_of(most, exponent) - _range_of(least, exponent) >= MOST_BINS:
        exponent += 1
    return exponent, _range_of(least, exponent)


def _range_of(value: Any, exponent: int) -> int:
    if isinstance(value, int):
        return value >> exponent
    scaled = math.ldexp(value, -exponent)
    return -1 if scaled == 0.0 and value < 0.0 else math.floor(scaled)  # so small that scaling leaves nothing of it


def _counted(block: Array, exponent: int, first: int) -> Array:
    """How many values of the block are in each range."""
    if block.dtype.kind in "iu":
        places = (block >> exponent) - np.asarray(first, block.dtype)
    else:
        if block.dtype.itemsize == 4 and abs(exponent) <= _EASY:
            places = block * np.float32(2.0**-exponent)
        else:
            places = np.ldexp(block.astype(np.float64), -exponent)
        # First down to a whole number, then the difference: both are exact, so that no value slips over an edge.
        np.floor(places, out=places)
        if exponent > 0:
            places[(places == 0) & (block < 0)] = -1  # as in _range_of
        places -= places.dtype.type(first)
    codes = places.astype(np.uint8)
    if len(codes) < _PAIRS_FROM:
        return np.bincount(codes, minlength=MOST_BINS)
    # Two neighbours counted as one number of 16 bits take half the time of counting each.
    pairs = np.bincount(codes[: len(codes) // 2 * 2].view(np.uint16), minlength=MOST_BINS << 8).reshape(MOST_BINS, 256)
    counts: Array = pairs.sum(axis=1) + pairs.sum(axis=0)[:MOST_BINS]
    if len(codes) % 2:
        counts[codes[-1]] += 1
    return counts
