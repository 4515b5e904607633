"""Readers: who reads pieces into buffers, many at a time, while the issuer goes on.

`KernelReaders` are threads of the kernel, for files on systems that have them: nothing of Python runs while they read.
`ThreadReaders` are threads of Python, for all else. Those share the interpreter's lock, and a dozen that read make the
issuer wait for it: so what they do per piece is little, with one system call in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

import numpy as np

from ..errors import ReadError
from ..io.kernel_reads import KernelReads, kernel_reads
from ..io.pages import PAGE, AskedOfKernel
from ..io.source import Source
from .pieces import Piece

# More would wait in vain, in buffers that leave the processor's cache meanwhile.
_FEW = 4

Filled = tuple[int, Piece]
"""A buffer, and the piece that was read into it."""


class Readers(Protocol):
    """Who reads. After `close` nobody does, and all buffers may be used by others."""

    workers: int
    """How many pieces are read at a time."""
    ahead: int
    """How many are to be begun at a time, so that nobody has to wait for the next one."""
    patience: float
    """For how many seconds what happens next is looked for again and again, before one waits for it.

    To be woken takes longer than a piece does. But who looks keeps the interpreter's lock, which threads need.
    """

    def begin(self, index: int, piece: Piece, buffer: memoryview) -> None:
        """Have a piece read into a buffer."""

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        """What was read meanwhile, at most so many; with ``wait`` at least one, unless a signal comes first.

        The first failure of a read is raised here.
        """

    def close(self) -> None:
        """Return when nobody reads any more."""


def readers_for(sources: Sequence[Source], readers: int, buffers: int) -> Readers:
    """Those who read these sources best, so many at a time, into so many buffers at most."""
    if all(isinstance(source, AskedOfKernel) for source in sources):
        reads = kernel_reads(buffers, readers)
        if reads is not None:
            return KernelReaders(reads, readers)
    return ThreadReaders(readers)


class KernelReaders:
    """Threads of the kernel."""

    patience = 0.001

    def __init__(self, reads: KernelReads, workers: int) -> None:
        self.workers = workers
        self.ahead = workers + _FEW
        self._reads = reads
        self._begun: dict[int, tuple[Piece, memoryview, int]] = {}
        self._addresses: dict[int, int] = {}

    def begin(self, index: int, piece: Piece, buffer: memoryview) -> None:
        asked = piece.asked()
        at, offset = piece.offset, asked[1]
        self._begun[index] = piece, buffer, at + piece.length - offset
        memory = self._addresses.get(index)
        if memory is None:
            memory = self._addresses[index] = _address(buffer)
        self._reads.ask(asked, memory + offset - at // PAGE * PAGE, index)

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        try:
            found = self._reads.finished(most, wait=wait)
        except OSError as error:
            raise ReadError(f"the kernel takes no more reads: {error.strerror or error}") from error
        filled = []
        for index, count in found:
            piece, buffer, needed = self._begun.pop(index)
            if count < needed:  # short, or refused: it is read as others are, which also says what is wrong with it
                piece.fill(buffer)
            filled.append((index, piece))
        return filled

    def close(self) -> None:
        try:
            self._reads.settle()
        finally:
            self._reads.close()


def _address(buffer: memoryview) -> int:
    found: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return found


class ThreadReaders:
    """Threads of Python, started when there is something for them to do."""

    patience = 0.0

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.ahead = 2 * workers
        self._threads: list[Thread] = []
        self._under_way = 0
        self._jobs: SimpleQueue[tuple[int, Piece, memoryview] | None] = SimpleQueue()
        self._filled: SimpleQueue[Filled | Exception] = SimpleQueue()
        self._has_ended = False

    def begin(self, index: int, piece: Piece, buffer: memoryview) -> None:
        self._under_way += 1
        self._jobs.put((index, piece, buffer))
        if len(self._threads) < min(self._under_way, self.workers):
            self._start()

    def _start(self) -> None:
        thread = Thread(target=self._read, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads; one is enough
            self._threads.pop()
            self.workers = len(self._threads)
            if not self._threads:
                raise

    def _read(self) -> None:
        """What a thread does."""
        while (job := self._jobs.get()) is not None and not self._has_ended:
            index, piece, buffer = job
            try:
                piece.fill(buffer)
            except Exception as error:
                self._filled.put(error)
            else:
                self._filled.put((index, piece))

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        filled: list[Filled] = []
        try:
            while len(filled) < most:
                found = self._filled.get(block=wait and not filled)
                self._under_way -= 1
                if isinstance(found, Exception):
                    raise found
                filled.append(found)
        except Empty:
            pass
        return filled

    def close(self) -> None:
        self._has_ended = True
        for _ in self._threads:
            self._jobs.put(None)
        self._join()

    def _join(self) -> None:
        """Wait for all threads: one that still reads would write into a buffer that is somebody else's by then."""
        try:
            for thread in self._threads:
                if thread.is_alive():
                    thread.join()
        except BaseException:  # of a signal, whatever its handler raises: told when nobody reads any more
            self._join()
            raise
