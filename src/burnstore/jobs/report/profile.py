"""Profile: the statistics of a tensor, its histogram and its outliers, all in one pass over its values."""

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
from ...tensor.snapshot import TensorSnapshot
from ..json_output import json_number
from ..stats import BLOCK, Running, TensorStats, accumulated
from .extremes import Extreme, RunningExtremes
from .histogram import Histogram, RunningHistogram

MOST_OUTLIERS = 6


@dataclass(frozen=True, slots=True)
class Outlier:
    """A value far from the mean: its index, and by how many standard deviations (``z``)."""

    index: Shape
    value: int | float
    z: float

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON."""
        return {"index": list(self.index), "value": json_number(self.value), "z": self.z}


@dataclass(frozen=True, slots=True)
class Profile:
    """What the values of one tensor are like.

    ``histogram`` is None where all values are equal, or none is a finite number. ``outliers`` are the values furthest
    from the mean, whether or not that is far; furthest first.
    """

    stats: TensorStats
    histogram: Histogram | None
    outliers: tuple[Outlier, ...]


class RunningProfile:
    """A profile that grows block by block; parts of one tensor can be profiled apart, and merged in their order."""

    def __init__(self) -> None:
        self._stats, self._histogram, self._extremes = Running(), RunningHistogram(), RunningExtremes()
        self._elements = 0

    def add_all(self, values: Array) -> None:
        """Take these values, which follow those before."""
        for at in range(0, values.size, BLOCK):
            block = _as_numbers(values[at : at + BLOCK])
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
        """Take what another has seen, as following what was seen here."""
        self._stats.merge(other._stats)
        self._histogram.merge(other._histogram)
        self._extremes.merge(other._extremes, self._elements)
        self._elements += other._elements

    def result(self, shape: Shape) -> Profile:
        """The profile of a tensor of this shape."""
        stats = self._stats.result()
        extremes = [*self._extremes.least, *self._extremes.largest]
        return Profile(stats, self._histogram.result(), _outliers(stats, extremes, shape))


def all_profiles(
    snapshots: Sequence[TensorSnapshot], *, workers: Workers = None, progress: Progress | None = None
) -> list[Profile | BurnstoreError]:
    """The profiles of many tensors, or for each that has none the error that says why; as for `all_stats`.

    >>> (found,) = all_profiles([TensorSnapshot.from_numpy("x", np.array([[0.0, 1.0], [np.nan, 5.0]]))])
    >>> found.stats.mean, found.outliers[0].index, sum(found.histogram.counts)
    (2.0, (1, 1), 3)
    """
    found = accumulated(snapshots, RunningProfile, workers=workers, progress=progress)
    return [
        each if isinstance(each, BurnstoreError) else each.result(snapshot.shape)
        for each, snapshot in zip(found, snapshots, strict=True)
    ]


def _as_numbers(block: Array) -> Array:
    """The same values in a dtype that NumPy computes with: 0 and 1 for bools, float32 for all narrower floats."""
    if block.dtype == np.bool_:
        return block.view(np.uint8)
    if block.dtype.kind in "iuc" or (block.dtype.kind == "f" and block.dtype.itemsize >= 4):
        return block
    return block.astype(np.float32)


def _outliers(stats: TensorStats, extremes: Sequence[Extreme], shape: Shape) -> tuple[Outlier, ...]:
    mean, std = stats.mean, stats.std
    if mean is None or not std or not math.isfinite(std):
        return ()
    # Divided one by one: at the ends of the range of float64 a difference could overflow.
    distances = {index: (value, value / std - mean / std) for value, index in extremes}
    furthest = sorted(distances.items(), key=lambda item: (-abs(item[1][1]), item[0]))[:MOST_OUTLIERS]
    return tuple(Outlier(_unravelled(index, shape), value, z) for index, (value, z) in furthest)


def _unravelled(index: int, shape: Shape) -> Shape:
    places = []
    for extent in reversed(shape):
        index, place = divmod(index, extent)
        places.append(place)
    return tuple(reversed(places))
