"""Extremes: the values at both ends of a tensor, with their places, found in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...tensor.data import Array

MOST_KEPT = 6
"""How many values are kept of each end."""

Extreme = tuple[Any, int]
"""A value and the flat index of its element; of equal values the first ones are kept."""


class RunningExtremes:
    """The least and the largest values so far.

    >>> running = RunningExtremes()
    >>> running.add(np.array([3, 9, 1, 9]), 0)
    >>> running.largest[:3], running.least[:2]
    ([(9, 1), (9, 3), (3, 0)], [(1, 2), (3, 0)])
    """

    def __init__(self) -> None:
        self.least: list[Extreme] = []
        self.largest: list[Extreme] = []

    def add(self, block: Array, start: int, indices: Array | None = None) -> None:
        """Take finite values whose elements begin at ``start``, or are ``start + indices``."""
        self.least = _furthest(self.least, _found(self.least, block, start, indices, sign=1), sign=1)
        self.largest = _furthest(self.largest, _found(self.largest, block, start, indices, sign=-1), sign=-1)

    def merge(self, other: RunningExtremes, start: int) -> None:
        """Take what another has found, whose elements begin at ``start``."""
        self.least = _furthest(self.least, [(value, start + at) for value, at in other.least], sign=1)
        self.largest = _furthest(self.largest, [(value, start + at) for value, at in other.largest], sign=-1)


def _furthest(kept: list[Extreme], found: list[Extreme], *, sign: int) -> list[Extreme]:
    """The values furthest out of both; ``sign`` is 1 for the least, -1 for the largest."""
    if not found:
        return kept
    return sorted(kept + found, key=lambda extreme: (sign * extreme[0], extreme[1]))[:MOST_KEPT]


def _found(kept: list[Extreme], block: Array, start: int, indices: Array | None, *, sign: int) -> list[Extreme]:
    """The values of the block that are further out than what is kept, no more than may be kept."""
    if len(kept) < MOST_KEPT:
        further = np.arange(block.size)
    else:
        further = np.flatnonzero(block < kept[-1][0] if sign > 0 else block > kept[-1][0])
        if not further.size:  # as almost always
            return []
    values = block[further]
    if values.size > MOST_KEPT:
        at = MOST_KEPT - 1 if sign > 0 else values.size - MOST_KEPT
        edge = np.partition(values, at)[at]
        beyond = np.flatnonzero(values < edge if sign > 0 else values > edge)
        chosen = np.concatenate([beyond, np.flatnonzero(values == edge)[: MOST_KEPT - beyond.size]])
        further, values = further[chosen], values[chosen]
    places = further if indices is None else indices[further]
    return [(value, start + place) for value, place in zip(values.tolist(), places.tolist(), strict=True)]
