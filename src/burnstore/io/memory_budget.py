"""Room: how much memory a job may use, shared by the threads that work on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .source import Array


class Room:
    """Memory that several threads share: each takes what it needs and waits while there is too little left.

    One that needs more than there is gets it when it is alone. A pickled one is another's: each process has its own.
    """

    def __init__(self, nbytes: int) -> None:
        self._all = self._free = nbytes
        self._spare: list[Array] = []  # buffers that nobody uses now, as far as there is room for them
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        """So many bytes, while the block lasts."""
        with self._changed:
            self._take(nbytes)
        try:
            yield
        finally:
            self._give_back(nbytes)

    @contextmanager
    def buffer(self, nbytes: int) -> Iterator[Array]:
        """A buffer of so many bytes, while the block lasts: an earlier one again, as fresh memory costs time."""
        with self._changed:
            found = next((place for place, spare in enumerate(self._spare) if len(spare) == nbytes), None)
            buffer = None if found is None else self._spare.pop(found)
            self._take(nbytes)
        if buffer is None:
            buffer = np.empty(nbytes, np.uint8)
        try:
            yield buffer
        finally:
            self._give_back(nbytes, buffer)

    def _take(self, nbytes: int) -> None:
        self._changed.wait_for(lambda: nbytes <= self._free or self._free == self._all)
        self._free -= nbytes
        self._let_go()

    def _give_back(self, nbytes: int, *buffers: Array) -> None:
        with self._changed:
            self._free += nbytes
            self._spare += buffers
            self._let_go()
            self._changed.notify_all()

    def _let_go(self) -> None:
        while self._spare and sum(map(len, self._spare)) > self._free:
            self._spare.pop(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Room, (self._all,)
