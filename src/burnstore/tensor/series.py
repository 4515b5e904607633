"""Series: rows of a table that are of one kind and lie at equal distances, so that one step does for all of them.

Models repeat their layers, and files are written in the order of the model or of the names. So the same tensor of each
layer comes after the same number of rows, and the same number of bytes behind that of the layer before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..io.gather import Column

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def series(kinds: Column, begins: Column, *, shortest: int) -> Iterator[slice]:
    """Rows of the same kind at equal distances, both in the table and in what it describes; no row comes twice.

    A tensor of one layer and the same of the next are known by the kinds of what follows them: of many tensors of the
    same kind, those that play the same part are taken together.

    >>> kinds, begins = np.array([5, 7, 7, 9] * 100), np.arange(400) * 10
    >>> sorted((rows.start, rows.stop, rows.step) for rows in series(kinds, begins, shortest=50))
    [(0, 393, 4), (1, 390, 4), (2, 391, 4), (3, 392, 4)]
    """
    what_follows = kinds.astype(np.uint64)
    for reach in (1, 2, 4):
        what_follows[:-reach] = what_follows[:-reach] * _MULTIPLIER + what_follows[reach:]
    # 16 bits at a time are sorted in a few passes; where two are equal by chance, a series falls to pieces, no more.
    rows = np.lexsort([(what_follows >> np.uint64(bits)).astype(np.uint16) for bits in (32, 48)])
    steps = np.stack((np.diff(rows), np.diff(begins[rows])))
    alike = [column[rows[1:]] == column[rows[:-1]] for column in (kinds, what_follows)]
    is_linked = np.logical_and.reduce([*alike, *(steps > 0)])
    is_first = np.ones(len(rows), bool)
    is_first[1:] = ~is_linked
    is_first[2:] |= is_linked[:-1] & (steps[:, 1:] != steps[:, :-1]).any(axis=0)
    firsts = np.flatnonzero(is_first)
    counts = np.diff(firsts, append=len(rows))
    for place, count in zip(firsts[counts >= shortest].tolist(), counts[counts >= shortest].tolist(), strict=True):
        first, step = int(rows[place]), int(steps[0, place])
        yield slice(first, first + (count - 1) * step + 1, step)
