"""Assign: pair two sets such that the sum of likeness is greatest, and tell how certain each pair is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_UNPAIRED = 4.0
"""The cost of leaving one out: more than any likeness is worth."""

MOST = 96
"""A set of things that all fit each other is decided up to this size; a larger one counts as ambiguous."""


class Pairing(NamedTuple):
    """A pair, and how much worse the best assignment without it is; infinitely if there is no other.

    ``group`` is the number of the set of things that the pair was chosen from.
    """

    one: int
    other: int
    margin: float
    group: int = 0


def assign(likeness: Mapping[tuple[int, int], float]) -> list[Pairing]:
    """Return the best pairs among those that fit, which are the keys of ``likeness``; each thing is paired once.

    >>> assign({(0, 0): 0.9, (0, 1): 0.1, (1, 1): 0.5})
    [Pairing(one=0, other=0, margin=inf, group=0), Pairing(one=1, other=1, margin=inf, group=0)]
    >>> [round(pair.margin, 1) for pair in assign({(0, 0): 0.9, (0, 1): 0.1, (1, 1): 0.5, (1, 0): 0.4})]
    [0.9, 0.9]
    """
    pairs: list[Pairing] = []
    for group, (ones, others) in enumerate(_components(likeness)):
        if max(len(ones), len(others)) > MOST:
            pairs += [Pairing(one, other, 0.0, group) for one, other in zip(ones, others, strict=False)]
            continue
        cost = [[1 - likeness.get((one, other), -_UNPAIRED) for other in others] for one in ones]
        best, total = _cheapest(cost)
        made = [(row, column) for row, column in best if (ones[row], others[column]) in likeness]
        for row, column in made:
            kept, cost[row][column] = cost[row][column], 1 + _UNPAIRED
            again, worse = _cheapest(cost)
            cost[row][column] = kept
            others_fit = sum((ones[r], others[c]) in likeness and (r, c) != (row, column) for r, c in again)
            margin = worse - total if others_fit >= len(made) else math.inf
            pairs.append(Pairing(ones[row], others[column], margin, group))
    return pairs


def _components(edges: Mapping[tuple[int, int], float]) -> list[tuple[list[int], list[int]]]:
    """Return the sets of things that are connected by fitting each other."""
    beside: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for one, other in edges:
        beside.setdefault((0, one), []).append((1, other))
        beside.setdefault((1, other), []).append((0, one))
    found, seen = [], set()
    for start in beside:
        if start in seen:
            continue
        seen.add(start)
        members = [start]
        for member in members:
            for near in beside[member]:
                if near not in seen:
                    seen.add(near)
                    members.append(near)
        found.append(tuple(sorted(at for side, at in members if side == wanted) for wanted in (0, 1)))
    return found  # type: ignore[return-value]  # pairs of lists


def _cheapest(cost: Sequence[Sequence[float]]) -> tuple[list[tuple[int, int]], float]:
    """Return the cheapest assignment of rows to columns (the Hungarian algorithm), and its cost."""
    if len(cost) > len(cost[0]):
        pairs, total = _cheapest([list(column) for column in zip(*cost, strict=True)])
        return [(row, column) for column, row in pairs], total
    rows, columns = len(cost), len(cost[0])
    of_row, of_column = [0.0] * (rows + 1), [0.0] * (columns + 1)
    taken, way = [0] * (columns + 1), [0] * (columns + 1)
    for row in range(1, rows + 1):
        taken[0], column = row, 0
        least, used = [math.inf] * (columns + 1), [False] * (columns + 1)
        while True:
            used[column] = True
            at, step, nearest = taken[column], math.inf, 0
            for each in range(1, columns + 1):
                if used[each]:
                    continue
                current = cost[at - 1][each - 1] - of_row[at] - of_column[each]
                if current < least[each]:
                    least[each], way[each] = current, column
                if least[each] < step:
                    step, nearest = least[each], each
            for each in range(columns + 1):
                if used[each]:
                    of_row[taken[each]] += step
                    of_column[each] -= step
                else:
                    least[each] -= step
            column = nearest
            if taken[column] == 0:
                break
        while column:
            taken[column], column = taken[way[column]], way[column]
    pairs = [(taken[column] - 1, column - 1) for column in range(1, columns + 1) if taken[column]]
    return pairs, sum(cost[row][column] for row, column in pairs)
