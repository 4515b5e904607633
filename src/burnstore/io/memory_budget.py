"""MemoryBudget: the memory that the threads of one job share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .source import Array


class MemoryBudget:
    """A number of bytes from which threads reserve what they need; they wait while too little is left.

    A reservation larger than the budget is granted while no other exists. Each process that unpickles a budget has its
    own.
    """

    def __init__(self, nbytes: int) -> None:
        self._total = self._free = nbytes
        self._spare: list[Array] = []  # buffers for the next caller, as far as the budget has room for them
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, nbytes: int) -> Iterator[None]:
        """Reserve this many bytes while the block runs."""
        with self._changed:
            self._take(nbytes)
        try:
            yield
        finally:
            self._release(nbytes)

    @contextmanager
    def buffer(self, nbytes: int) -> Iterator[Array]:
        """Lend a buffer of this size while the block runs; buffers are reused, as fresh memory costs time."""
        with self._changed:
            found = next((place for place, spare in enumerate(self._spare) if len(spare) == nbytes), None)
            buffer = None if found is None else self._spare.pop(found)
            self._take(nbytes)
        if buffer is None:
            buffer = np.empty(nbytes, np.uint8)
        try:
            yield buffer
        finally:
            self._release(nbytes, buffer)

    def _take(self, nbytes: int) -> None:
        self._changed.wait_for(lambda: nbytes <= self._free or self._free == self._total)
        self._free -= nbytes
        self._trim()

    def _release(self, nbytes: int, *buffers: Array) -> None:
        with self._changed:
            self._free += nbytes
            self._spare += buffers
            self._trim()
            self._changed.notify_all()

    def _trim(self) -> None:
        while self._spare and sum(map(len, self._spare)) > self._free:
            self._spare.pop(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryBudget, (self._total,)
