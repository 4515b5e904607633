"""Comparing: whether two buffers hold the same bytes, at the speed of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

_WORD = np.dtype("<u8")
# What is compared at a time stays in a core's own cache together with the answer.
_BLOCK = 1 << 16


def same_bytes(one: Any, other: Any) -> bool:
    """Whether two contiguous buffers have the same bytes; a comparison of memoryviews would go byte by byte.

    >>> same_bytes(b"weights", bytearray(b"weights")), same_bytes(b"weights", b"weighty")
    (True, False)
    """
    left, right = memoryview(one).cast("B"), memoryview(other).cast("B")
    if len(left) != len(right):
        return False
    words = len(left) // _WORD.itemsize
    a, b = (np.frombuffer(view, _WORD, words) for view in (left, right))
    for start in range(0, words, _BLOCK):
        if not np.array_equal(a[start : start + _BLOCK], b[start : start + _BLOCK]):
            return False
    rest = words * _WORD.itemsize
    return bytes(left[rest:]) == bytes(right[rest:])
