"""Pinned host buffers through which bytes go to a GPU and come from it, and the settings of transfers.

A GPU copies from pinned memory without the processor, at the speed of the bus. Pinning takes longer than filling, so
pinned buffers are kept for the next transfer, up to the bound of `configure_transfers`; `release_pinned_memory` frees
them.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, Protocol

import numpy as np

from ..sizes import GPU_BUFFER_BYTES, GPU_BUFFERS, GPU_READERS, PAGE
from ..source import Array

Tensor = Any
"""A torch.Tensor of bytes in pinned memory."""


class CopyEvent(Protocol):
    """The end of copies that were started."""

    def query(self) -> bool:
        """Return whether they are done."""

    def synchronize(self) -> None:
        """Return when they are done."""


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The number of reader threads and of buffers, and the size of a buffer."""

    readers: int = GPU_READERS
    buffers: int = GPU_BUFFERS
    buffer_bytes: int = GPU_BUFFER_BYTES


_settings = TransferSettings()


def transfer_settings() -> TransferSettings:
    """Return the settings of the next transfer; it has no more readers than there are processors."""
    return replace(_settings, readers=min(_settings.readers, max(os.cpu_count() or 1, 2)))


def configure_transfers(
    *, readers: int | None = None, buffers: int | None = None, buffer_bytes: int | None = None
) -> None:
    """Set how bytes are transferred to and from GPUs; an argument that is not given is reset to its default.

    ``readers`` threads (14, never more than processors) read into at most ``buffers`` (12) pinned buffers of
    ``buffer_bytes`` (16 MiB) each, a power of two from 64 KiB on. Reading and copying overlap from three buffers on.

    >>> from burnstore.io import gpu
    >>> gpu.configure_transfers(buffers=4)  # 64 MiB of pinned memory are enough
    >>> gpu.configure_transfers()
    """
    global _settings
    wanted = TransferSettings(
        readers=GPU_READERS if readers is None else readers,
        buffers=GPU_BUFFERS if buffers is None else buffers,
        buffer_bytes=GPU_BUFFER_BYTES if buffer_bytes is None else buffer_bytes,
    )
    if wanted.readers < 1 or wanted.buffers < 1:
        raise ValueError(f"expected at least one reader and one buffer, got {wanted.readers} and {wanted.buffers}")
    if wanted.buffer_bytes < 64 << 10 or wanted.buffer_bytes & (wanted.buffer_bytes - 1):
        raise ValueError(f"buffer_bytes must be a power of two of at least 65536, got {wanted.buffer_bytes}")
    _settings = wanted
    release_pinned_memory()


def release_pinned_memory() -> None:
    """Free the pinned memory that is kept for the next transfer; buffers in use are freed when they are done.

    >>> import burnstore as bs
    >>> from burnstore.io import gpu
    >>> gpu.release_pinned_memory()
    """
    POOL.clear()
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch._C, "_host_emptyCache"):  # torch has a cache of its own
        torch._C._host_emptyCache()


class Pool:
    """Pinned buffers for the next transfer; thread-safe."""

    def __init__(self) -> None:
        self._lock = RLock()  # the garbage collector may return a buffer at any point
        self._idle: list[Tensor] = []
        self._lent = 0
        self._generation = 0

    def take(self, make: Callable[[int], Tensor]) -> tuple[Tensor, int]:
        """Return a buffer, made if none is idle, and the generation to return it with.

        A caller gets a new buffer when all are in use: waiting for one that it holds itself would never end.
        """
        wanted = _settings
        with self._lock:
            self._lent += 1
            generation = self._generation
            if self._idle:
                return self._idle.pop(), generation
        try:
            return make(wanted.buffer_bytes), generation
        except BaseException:
            self.give_back(None, -1)
            raise

    def give_back(self, buffer: Tensor | None, generation: int) -> None:
        """Keep this buffer for the next caller, unless there are enough or the pool was cleared since."""
        with self._lock:
            self._lent -= 1
            is_current = buffer is not None and generation == self._generation
            if is_current and self._lent + len(self._idle) < _settings.buffers:
                self._idle.append(buffer)

    def clear(self) -> None:
        """Free all idle buffers, and those in use when they are returned."""
        with self._lock:
            self._idle.clear()
            self._generation += 1

    @property
    def waiting(self) -> int:
        """The number of idle buffers."""
        return len(self._idle)


POOL = Pool()


def lend(make: Callable[[int], Tensor]) -> tuple[Tensor, memoryview]:
    """Return a pinned buffer, as a tensor and as its bytes; it is returned when the bytes and all slices are gone."""
    buffer, generation = POOL.take(make)
    memory: Array = buffer.numpy()[:]
    weakref.finalize(memory, POOL.give_back, buffer, generation).atexit = False
    return buffer, memoryview(memory)


def page_aligned(nbytes: int) -> Array:
    """Return memory that begins at a page."""
    memory: Array = np.empty(nbytes + PAGE, np.uint8)
    first = -memory.__array_interface__["data"][0] % PAGE
    return memory[first : first + nbytes]


# A caller that collects many small chunks before it writes them would hold a pinned buffer for each.
_WORTH_PINNING = 1 << 20


def fetched(
    pieces: Iterable[Tensor], pin: Callable[[int], Tensor], record: Callable[[Tensor], CopyEvent]
) -> Iterator[memoryview]:
    """Yield the bytes of pieces, each no longer than a buffer; while the caller has one, the next is on the bus.

    ``pin`` makes a buffer; ``record`` returns an event after the copies that were started from a tensor's device. The
    caller may keep what it gets; its buffer is used again when it is gone.
    """
    started: deque[tuple[memoryview, CopyEvent | None]] = deque()
    try:
        for piece in pieces:
            started.append(_start(piece, pin, record))
            if len(started) > 1:
                yield _finish(started)
        while started:
            yield _finish(started)
    finally:
        while started:  # a buffer that is still being written must not be lent again
            _finish(started)


def _start(
    piece: Tensor, pin: Callable[[int], Tensor], record: Callable[[Tensor], CopyEvent]
) -> tuple[memoryview, CopyEvent | None]:
    if len(piece) < _WORTH_PINNING:
        return memoryview(piece.cpu().numpy()), None
    buffer, memory = lend(pin)
    buffer[: len(piece)].copy_(piece, non_blocking=True)
    return memory[: len(piece)], record(piece)


def _finish(started: deque[tuple[memoryview, CopyEvent | None]]) -> memoryview:
    memory, event = started[0]
    if event is not None:
        event.synchronize()
    started.popleft()
    return memory
