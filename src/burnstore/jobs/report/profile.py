"""Profile: compute statistics, histogram and outliers of a tensor in one pass over its values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import BurnstoreError
from ...io.workers import Workers
from ...progress import Progress
from ...tensor.data import Array, Shape
from ...tensor.plain import Plain
from ...tensor.snapshot import TensorSnapshot
from ..stats import BLOCK, RunningStats, TensorStats, accumulate, as_numbers, unravel
from .histogram import Histogram, RunningHistogram

MOST_OUTLIERS = 6
_Extreme = tuple[Any, int]
"""A value and the flat index of its element; of equal values the first are kept."""


@dataclass(frozen=True, slots=True)
class Outlier(Plain):
    """A value far from the mean: its index, and its distance in standard deviations (``z``)."""

    index: Shape
    value: int | float
    z: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The distribution of the values of one tensor.

    ``histogram`` is None if all values are equal or no value is finite. ``outliers`` are the values furthest from the
    mean, whatever their distance; furthest first.
    """

    stats: TensorStats
    histogram: Histogram | None
    outliers: tuple[Outlier, ...]


class RunningProfile:
    """A profile that grows block by block; profiles of parts of one tensor can be merged in their order."""

    def __init__(self) -> None:
        self._stats, self._histogram, self._extremes = RunningStats(), RunningHistogram(), _RunningExtremes()
        self._elements = 0

    def add_all(self, values: Array) -> None:
        """Add the next values."""
        for at in range(0, values.size, BLOCK):
            block = as_numbers(values[at : at + BLOCK])
            self._stats.add(block)
            if block.dtype.kind != "c":
                self._add_spread(block)
            self._elements += block.size

    def _add_spread(self, block: Array) -> None:
        least, most, indices = block.min().item(), block.max().item(), None
        if not (math.isfinite(least) and math.isfinite(most)):
            indices = np.flatnonzero(np.isfinite(block))
            block = block[indices]
            if not block.size:
                return
            least, most = block.min().item(), block.max().item()
        self._histogram.add(block, least, most)
        self._extremes.add(block, self._elements, indices)

    def merge(self, other: RunningProfile) -> None:
        """Add the profile of the values that follow."""
        self._stats.merge(other._stats)
        self._histogram.merge(other._histogram)
        self._extremes.merge(other._extremes, self._elements)
        self._elements += other._elements

    def result(self, shape: Shape) -> Profile:
        """Return the profile of a tensor of this shape."""
        stats = self._stats.result()
        extremes = [*self._extremes.least, *self._extremes.largest]
        return Profile(stats, self._histogram.result(), _outliers(stats, extremes, shape))


def all_profiles(
    snapshots: Sequence[TensorSnapshot], *, workers: Workers = None, progress: Progress | None = None
) -> list[Profile | BurnstoreError]:
    """Return the profiles of many tensors, or the error for each tensor whose values cannot be read; as `all_stats`.

    >>> (found,) = all_profiles([TensorSnapshot.from_numpy("x", np.array([[0.0, 1.0], [np.nan, 5.0]]))])
    >>> found.stats.mean, found.outliers[0].index, sum(found.histogram.counts)
    (2.0, (1, 1), 3)
    """
    found = accumulate(snapshots, RunningProfile, workers=workers, progress=progress)
    return [
        each if isinstance(each, BurnstoreError) else each.result(snapshot.shape)
        for each, snapshot in zip(found, snapshots, strict=True)
    ]


def _outliers(stats: TensorStats, extremes: Sequence[_Extreme], shape: Shape) -> tuple[Outlier, ...]:
    mean, std = stats.mean, stats.std
    if mean is None or not std or not math.isfinite(std):
        return ()
    # Two divisions, because the difference of extreme values could overflow.
    distances = {index: (value, value / std - mean / std) for value, index in extremes}
    furthest = sorted(distances.items(), key=lambda item: (-abs(item[1][1]), item[0]))[:MOST_OUTLIERS]
    return tuple(Outlier(unravel(index, shape), value, z) for index, (value, z) in furthest)


class _RunningExtremes:
    """The least and the largest values so far, with their places.

    >>> running = _RunningExtremes()
    >>> running.add(np.array([3, 9, 1, 9]), 0)
    >>> running.largest[:3], running.least[:2]
    ([(9, 1), (9, 3), (3, 0)], [(1, 2), (3, 0)])
    """

    def __init__(self) -> None:
        self.least: list[_Extreme] = []
        self.largest: list[_Extreme] = []

    def add(self, block: Array, start: int, indices: Array | None = None) -> None:
        """Add finite values whose elements begin at ``start``, or are at ``start + indices``."""
        self.least = _furthest(self.least, _found(self.least, block, start, indices, sign=1), sign=1)
        self.largest = _furthest(self.largest, _found(self.largest, block, start, indices, sign=-1), sign=-1)

    def merge(self, other: _RunningExtremes, start: int) -> None:
        """Add the extremes of another, whose elements begin at ``start``."""
        self.least = _furthest(self.least, [(value, start + at) for value, at in other.least], sign=1)
        self.largest = _furthest(self.largest, [(value, start + at) for value, at in other.largest], sign=-1)


def _furthest(kept: list[_Extreme], found: list[_Extreme], *, sign: int) -> list[_Extreme]:
    """Return the most extreme values of both lists; ``sign`` is 1 for the least, -1 for the largest."""
    if not found:
        return kept
    return sorted(kept + found, key=lambda extreme: (sign * extreme[0], extreme[1]))[:MOST_OUTLIERS]


def _found(kept: list[_Extreme], block: Array, start: int, indices: Array | None, *, sign: int) -> list[_Extreme]:
    """Return the values of the block that are more extreme than the kept ones, at most as many as are kept."""
    if len(kept) < MOST_OUTLIERS:
        further = np.arange(block.size)
    else:
        further = np.flatnonzero(block < kept[-1][0] if sign > 0 else block > kept[-1][0])
        if not further.size:  # almost always
            return []
    values = block[further]
    if values.size > MOST_OUTLIERS:
        at = MOST_OUTLIERS - 1 if sign > 0 else values.size - MOST_OUTLIERS
        edge = np.partition(values, at)[at]
        beyond = np.flatnonzero(values < edge if sign > 0 else values > edge)
        chosen = np.concatenate([beyond, np.flatnonzero(values == edge)[: MOST_OUTLIERS - beyond.size]])
        further, values = further[chosen], values[chosen]
    places = further if indices is None else indices[further]
    return [(value, start + place) for value, place in zip(values.tolist(), places.tolist(), strict=True)]
