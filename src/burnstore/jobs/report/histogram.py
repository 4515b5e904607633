"""Histogram: count values in at most 64 bins of equal width, in one pass.

Bins are ``2**exponent`` wide and begin at multiples of that. The exponent is the smallest that covers the values; when
a later block needs a larger range, it grows and adjacent bins are joined. So the result depends only on the values, not
on how they were split into blocks, and every edge is exactly representable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor.data import Array
from ...tensor.plain import Plain

MOST_BINS = 64
# Scaling a float32 by a power of two within this range is exact.
_EXACT_SCALE = 60
# With fewer values, counting pairs costs more than it saves.
_PAIRS_FROM = 1 << 14


@dataclass(frozen=True, slots=True)
class Histogram(Plain):
    """``counts[i]`` values are at least ``(first + i) * 2**exponent`` and below ``(first + i + 1) * 2**exponent``."""

    first: int
    exponent: int
    counts: tuple[int, ...]

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges of the bins, one more than counts."""
        return tuple(math.ldexp(self.first + at, self.exponent) for at in range(len(self.counts) + 1))


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
        self._counts: Array | None = None  # None while all values are equal: their number is enough.
        self._equal = 0

    def add(self, block: Array, least: int | float, most: int | float) -> None:
        """Add finite values with this minimum and maximum."""
        if self._extend(least, most):
            self._counts += _count(block, self._exponent, self._first)
        else:
            self._equal += block.size

    def merge(self, other: RunningHistogram) -> None:
        """Add the counts of another."""
        if other._least is None:
            return
        if self._extend(other._least, other._most):
            self._counts += other._rebinned(self._exponent, self._first)
        else:
            self._equal += other._equal

    def _extend(self, least: Any, most: Any) -> bool:
        """Extend the bins to cover these values; return False if all values so far are equal."""
        if self._least is not None:
            least, most = min(self._least, least), max(self._most, most)
        if least != most:
            exponent, first = _bins(least, most)
            self._counts = self._rebinned(exponent, first)
            self._exponent, self._first = exponent, first
        self._least, self._most = least, most
        return bool(least != most)

    def _rebinned(self, exponent: int, first: int) -> Array:
        """Return the counts so far in these bins, which are as wide or wider."""
        counts = np.zeros(MOST_BINS, np.int64)
        if self._counts is None:
            if self._equal:
                counts[_bin_of(self._least, exponent) - first] = self._equal
            return counts
        if (exponent, first) == (self._exponent, self._first):
            return self._counts
        filled = np.flatnonzero(self._counts)
        for at, count in zip(filled.tolist(), self._counts[filled].tolist(), strict=True):
            counts[((self._first + at) >> (exponent - self._exponent)) - first] += count
        return counts

    def result(self) -> Histogram | None:
        """Return the histogram; None without values, or if all values are equal."""
        if self._counts is None:
            return None
        used = _bin_of(self._most, self._exponent) - self._first + 1
        return Histogram(self._first, self._exponent, tuple(self._counts[:used].tolist()))


def _bins(least: Any, most: Any) -> tuple[int, int]:
    """Return the smallest exponent whose bins cover these values, and the number of the first bin."""
    if isinstance(least, int):
        exponent = max(((most - least) // MOST_BINS).bit_length() - 1, 0)
    else:
        spread = most - least
        exponent = math.frexp(spread)[1] - 8 if math.isfinite(spread) else 1024 - 8
    while _bin_of(most, exponent) - _bin_of(least, exponent) >= MOST_BINS:
        exponent += 1
    return exponent, _bin_of(least, exponent)


def _bin_of(value: Any, exponent: int) -> int:
    if isinstance(value, int):
        return value >> exponent
    scaled = math.ldexp(value, -exponent)
    return -1 if scaled == 0.0 and value < 0.0 else math.floor(scaled)  # scaled to nothing


def _count(block: Array, exponent: int, first: int) -> Array:
    """Return how many values of the block are in each bin."""
    if block.dtype.kind in "iu":
        places = (block >> exponent) - np.asarray(first, block.dtype)
    else:
        if block.dtype.itemsize == 4 and abs(exponent) <= _EXACT_SCALE:
            places = block * np.float32(2.0**-exponent)
        else:
            places = np.ldexp(block.astype(np.float64), -exponent)
        # First floor, then the difference: both are exact, so that no value slips over an edge.
        np.floor(places, out=places)
        if exponent > 0:
            places[(places == 0) & (block < 0)] = -1  # as in _bin_of
        places -= places.dtype.type(first)
    codes = places.astype(np.uint8)
    if len(codes) < _PAIRS_FROM:
        return np.bincount(codes, minlength=MOST_BINS)
    # Counting two neighbours as one 16-bit number takes half the time.
    pairs = np.bincount(codes[: len(codes) // 2 * 2].view(np.uint16), minlength=MOST_BINS << 8).reshape(MOST_BINS, 256)
    counts: Array = pairs.sum(axis=1) + pairs.sum(axis=0)[:MOST_BINS]
    if len(codes) % 2:
        counts[codes[-1]] += 1
    return counts
