"""Buffers: host memory through which bytes go to a GPU and come from it; pinned, kept, and lent out.

A GPU copies from pinned memory by itself, and only then at the bus's speed. Pinning takes longer than filling, so
what was pinned is kept for the next transfer, up to the bound of `configure_transfers`; `release_pinned_memory` gives
it back.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import numpy as np

from ..pages import PAGE
from ..source import Array

Tensor = Any
"""A torch.Tensor of bytes in pinned memory."""

# By measurement; see docs/decisions/0024.
_BUFFER_BYTES = 16 << 20
_BUFFERS = 12
_READERS = 14


@dataclass(frozen=True, slots=True)
class Settings:
    """How bytes go to a GPU: so many threads read into so many buffers of such a size."""

    readers: int = _READERS
    buffers: int = _BUFFERS
    buffer_bytes: int = _BUFFER_BYTES


_settings = Settings()


def settings() -> Settings:
    """How the next transfer is done; no more readers than there are processors."""
    return replace(_settings, readers=min(_settings.readers, max(os.cpu_count() or 1, 2)))


def configure_transfers(
    *, readers: int | None = None, buffers: int | None = None, buffer_bytes: int | None = None
) -> None:
    """Change how bytes are carried to GPUs and from them: what is not given goes back to its default.

    ``readers`` threads (14, never more than processors) read into at most ``buffers`` (12) pinned buffers of
    ``buffer_bytes`` (16 MiB) each, a power of two from 64 KiB on. More than two buffers are needed for reading and
    copying to overlap.

    >>> import burnstore as bs
    >>> bs.configure_transfers(buffers=4)  # 64 MiB of pinned memory are enough
    >>> bs.configure_transfers()
    """
    global _settings
    wanted = Settings(
        readers=_READERS if readers is None else readers,
        buffers=_BUFFERS if buffers is None else buffers,
        buffer_bytes=_BUFFER_BYTES if buffer_bytes is None else buffer_bytes,
    )
    if wanted.readers < 1 or wanted.buffers < 1:
        raise ValueError(f"at least one reader and one buffer are needed, not {wanted.readers} and {wanted.buffers}")
    if wanted.buffer_bytes < 64 << 10 or wanted.buffer_bytes & (wanted.buffer_bytes - 1):
        raise ValueError(f"a buffer has a power of two of bytes, from 65536 on, not {wanted.buffer_bytes}")
    _settings = wanted
    release_pinned_memory()


def release_pinned_memory() -> None:
    """Give back the pinned memory that is kept for the next transfer; what is in use follows when it is done.

    >>> import burnstore as bs
    >>> bs.release_pinned_memory()
    """
    POOL.clear()
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch._C, "_host_emptyCache"):  # it keeps pinned memory itself, too
        torch._C._host_emptyCache()


class Pool:
    """Pinned buffers that wait for their next use; safe from threads."""

    def __init__(self) -> None:
        self._lock = RLock()  # a buffer may come back from the garbage collector, which runs wherever it likes
        self._waiting: list[Tensor] = []
        self._lent = 0
        self._era = 0

    def take(self, make: Callable[[int], Tensor]) -> tuple[Tensor, int]:
        """A buffer, made if none waits, and the era to give it back with.

        Who comes while others have all of them gets one of its own, rather than to wait for what it may itself hold.
        """
        wanted = _settings
        with self._lock:
            self._lent += 1
            era = self._era
            if self._waiting:
                return self._waiting.pop(), era
        try:
            return make(wanted.buffer_bytes), era
        except BaseException:
            self.give_back(None, -1)
            raise

    def give_back(self, buffer: Tensor | None, era: int) -> None:
        """Keep this buffer for the next who asks, unless there are enough, or all were given up since it was taken."""
        with self._lock:
            self._lent -= 1
            if buffer is not None and era == self._era and self._lent + len(self._waiting) < _settings.buffers:
                self._waiting.append(buffer)

    def clear(self) -> None:
        """Let go of all that wait, and of those in use when they come back."""
        with self._lock:
            self._waiting.clear()
            self._era += 1

    @property
    def waiting(self) -> int:
        """How many buffers are kept."""
        return len(self._waiting)


POOL = Pool()


def lent(make: Callable[[int], Tensor]) -> tuple[Tensor, memoryview]:
    """A pinned buffer, as a tensor and as its bytes; it goes back when the bytes and all slices of them are gone."""
    buffer, era = POOL.take(make)
    memory: Array = buffer.numpy()[:]
    weakref.finalize(memory, POOL.give_back, buffer, era).atexit = False
    return buffer, memoryview(memory)


def page_aligned(nbytes: int) -> Array:
    """Memory that begins at a page."""
    memory: Array = np.empty(nbytes + PAGE, np.uint8)
    first = -memory.__array_interface__["data"][0] % PAGE
    return memory[first : first + nbytes]
