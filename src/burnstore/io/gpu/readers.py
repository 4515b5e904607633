"""Readers: who reads pieces into buffers, many at a time, while the issuer goes on.

`KernelReaders` are threads of the kernel, for files on systems that have them: nothing of Python runs while they read.
`ThreadReaders` are threads of Python, for all else. Those share the interpreter's lock, and a dozen that read make the
issuer wait for it: so what they do per piece is little, with one system call in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

import numpy as np

from ...errors import ReadError
from ..kernel_reads import KernelReads, kernel_reads
from ..pages import PAGE, AskedOfKernel
from ..source import Source
from .chunks import Piece, at_pages

# A piece is read by several workers, each so much of it: it is there sooner, so that fewer are under way at a time, and
# what is in them is still in the processor's cache when the GPU comes for it.
_READ_AT_ONCE = 4 << 20
# More would wait in vain, in buffers that leave that cache meanwhile.
_FEW = 4

Filled = tuple[int, Piece]
"""A buffer, and the piece that was read into it."""


class Readers(Protocol):
    """Who reads. After `close` nobody does, and all buffers may be used by others."""

    workers: int
    """How many reads are done at a time."""
    ahead: int
    """How many are to be under way, so that no worker has to wait for the next one."""
    patience: float
    """For how many seconds what happens next is looked for again and again, before one waits for it.

    To be woken takes longer than a piece does. But who looks keeps the interpreter's lock, which threads need.
    """

    @property
    def under_way(self) -> int:
        """How many are, and have not been told as finished; a piece may be several."""

    def begin(self, index: int, piece: Piece, buffer: memoryview) -> None:
        """Have a piece read into a buffer."""

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        """What was read meanwhile, at most so many; with ``wait`` at least one, unless a signal comes first.

        The first failure of a read is raised here.
        """

    def close(self) -> None:
        """Return when nobody reads any more."""


def readers_for(sources: Sequence[Source], workers: int, buffer_bytes: int) -> Readers:
    """Those who read these sources best, with so many workers, pieces that fit such a buffer."""
    if all(isinstance(source, AskedOfKernel) for source in sources):
        reads = kernel_reads(workers + _FEW + -(-buffer_bytes // _READ_AT_ONCE), workers)
        if reads is not None:
            return KernelReaders(reads, workers)
    return ThreadReaders(workers)


class KernelReaders:
    """Threads of the kernel."""

    patience = 0.001

    def __init__(self, reads: KernelReads, workers: int) -> None:
        self.workers = workers
        self.ahead = workers + _FEW
        self._reads = reads
        self._number = 0
        self._asked: dict[int, tuple[int, int]] = {}
        self._begun: dict[int, _Begun] = {}
        self._addresses: dict[int, int] = {}

    @property
    def under_way(self) -> int:
        return len(self._asked)

    def begin(self, index: int, piece: Piece, buffer: memoryview) -> None:
        fd, offset, length = piece.asked()
        memory = self._addresses.get(index)
        if memory is None:
            memory = self._addresses[index] = _address(buffer)
        memory -= piece.offset // PAGE * PAGE
        begun = self._begun[index] = _Begun(piece, buffer)
        for first, last in at_pages(offset, offset + length, _READ_AT_ONCE):
            self._asked[self._number] = index, min(last, piece.stop) - first
            self._reads.ask((fd, first, last - first), memory + first, self._number)
            self._number += 1
            begun.left += 1

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        try:
            found = self._reads.finished(most, wait=wait)
        except OSError as error:
            raise ReadError(f"the kernel takes no more reads: {error.strerror or error}") from error
        filled = []
        for number, count in found:
            index, needed = self._asked.pop(number)
            begun = self._begun[index]
            begun.left -= 1
            begun.is_whole &= count >= needed
            if not begun.left:
                del self._begun[index]
                if not begun.is_whole:  # short, or refused: read as others are, which also says what is wrong with it
                    begun.piece.fill(begun.buffer, begun.piece.offset, begun.piece.stop)
                filled.append((index, begun.piece))
        return filled

    def close(self) -> None:
        try:
            self._reads.settle()
        finally:
            self._reads.close()


@dataclass(slots=True)
class _Begun:
    """A piece that is being read: how many reads of it are under way, and whether those that ended got all of it."""

    piece: Piece
    buffer: memoryview
    left: int = 0
    is_whole: bool = True


def _address(buffer: memoryview) -> int:
    found: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return found


@dataclass(frozen=True, slots=True)
class _Job:
    """What a thread is to read: a part of a piece."""

    index: int
    piece: Piece
    buffer: memoryview
    first: int
    last: int


class ThreadReaders:
    """Threads of Python, started when there is something for them to do."""

    patience = 0.0

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.ahead = 2 * workers
        self.under_way = 0
        self._threads: list[Thread] = []
        self._left: dict[int, int] = {}
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[_Job | Exception] = SimpleQueue()
        self._has_ended = False

    def begin(self, index: int, piece: Piece, buffer: memoryview) -> None:
        jobs = [_Job(index, piece, buffer, *part) for part in at_pages(piece.offset, piece.stop, _READ_AT_ONCE)]
        self._left[index] = len(jobs)
        for job in jobs:
            self.under_way += 1
            self._jobs.put(job)
            if len(self._threads) < min(self.under_way, self.workers):
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
            try:
                job.piece.fill(job.buffer, job.first, job.last)
            except Exception as error:
                self._done.put(error)
            else:
                self._done.put(job)

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        filled: list[Filled] = []
        try:
            while len(filled) < most:
                found = self._done.get(block=wait and not filled)
                self.under_way -= 1
                if isinstance(found, Exception):
                    raise found
                self._left[found.index] -= 1
                if not self._left[found.index]:
                    filled.append((found.index, found.piece))
        except Empty:
            pass
        return filled

    def close(self) -> None:
        try:
            self._end()
        except BaseException:  # of a signal, whatever its handler raises: told when nobody reads any more
            self.close()
            raise

    def _end(self) -> None:
        """Wait for all threads: one that still reads would write into a buffer that is somebody else's by then."""
        self._has_ended = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
