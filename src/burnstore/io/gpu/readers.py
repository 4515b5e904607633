"""Readers: threads that read chunks into buffers, many at a time, while the issuer goes on.

`KernelReaders` are threads of the kernel, for files on systems that have them: no Python runs while they read.
`ThreadReaders` are Python threads, for everything else. They share the interpreter's lock with the issuer, so they do
little per chunk: one system call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np

from ...errors import ReadError
from ..kernel_reads import KernelReads, kernel_reads
from ..parallel import ThreadGroup
from ..sizes import GPU_READ_BYTES, PAGE
from ..source import KernelReadable, Source
from .chunks import Chunk, page_windows

# More reads would only wait, in buffers that leave the processor's cache meanwhile.
_FEW = 4

Filled = tuple[int, Chunk]
"""A buffer, and the chunk that was read into it."""


class Readers(Protocol):
    """Threads that read. After `close` none does, and others may use the buffers."""

    workers: int
    """The reads that are done at a time."""
    ahead: int
    """The reads that should be under way, so that no worker waits for the next one."""
    patience: float
    """The seconds to poll before waiting: waking up takes longer than a chunk, but polling keeps the GIL."""

    @property
    def under_way(self) -> int:
        """The reads that were begun and not returned by `finished`; a chunk may be several."""

    def begin(self, index: int, chunk: Chunk, buffer: memoryview) -> None:
        """Have a chunk read into a buffer."""

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        """Return chunks that were read, at most so many; with ``wait`` at least one, unless a signal comes first.

        The first failure of a read is raised here.
        """

    def close(self) -> None:
        """Return when no thread reads any more."""


def readers_for(sources: Sequence[Source], workers: int, buffer_bytes: int) -> Readers:
    """Return the fastest readers for these sources."""
    if all(isinstance(source, KernelReadable) for source in sources):
        reads = kernel_reads(workers + _FEW + -(-buffer_bytes // GPU_READ_BYTES), workers)
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

    def begin(self, index: int, chunk: Chunk, buffer: memoryview) -> None:
        fd, offset, length = chunk.asked()
        memory = self._addresses.get(index)
        if memory is None:
            memory = self._addresses[index] = _address(buffer)
        memory -= chunk.offset // PAGE * PAGE
        begun = self._begun[index] = _Begun(chunk, buffer)
        for first, last in page_windows(offset, offset + length, GPU_READ_BYTES):
            self._asked[self._number] = index, min(last, chunk.stop) - first
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
                if not begun.is_whole:  # short or refused: a plain read succeeds or raises the proper error
                    begun.chunk.fill(begun.buffer, begun.chunk.offset, begun.chunk.stop)
                filled.append((index, begun.chunk))
        return filled

    def close(self) -> None:
        try:
            self._reads.settle()
        finally:
            self._reads.close()


@dataclass(slots=True)
class _Begun:
    """A chunk that is being read: the reads that are under way, and whether the others were complete."""

    chunk: Chunk
    buffer: memoryview
    left: int = 0
    is_whole: bool = True


def _address(buffer: memoryview) -> int:
    found: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return found


@dataclass(frozen=True, slots=True)
class _Job:
    """A part of a chunk for a thread to read."""

    index: int
    chunk: Chunk
    buffer: memoryview
    first: int
    last: int


class ThreadReaders:
    """Python threads, started when there is something to read."""

    patience = 0.0

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.ahead = 2 * workers
        self.under_way = 0
        self._threads = ThreadGroup()
        self._left: dict[int, int] = {}
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[_Job | Exception] = SimpleQueue()
        self._has_ended = False

    def begin(self, index: int, chunk: Chunk, buffer: memoryview) -> None:
        jobs = [_Job(index, chunk, buffer, *part) for part in page_windows(chunk.offset, chunk.stop, GPU_READ_BYTES)]
        self._left[index] = len(jobs)
        for job in jobs:
            self.under_way += 1
            self._jobs.put(job)
            if len(self._threads) < min(self.under_way, self.workers) and not self._threads.start(self._read):
                self.workers = len(self._threads)  # one is enough
                if not self.workers:
                    raise ReadError("the system starts no thread to read with")

    def _read(self) -> None:
        while (job := self._jobs.get()) is not None and not self._has_ended:
            try:
                job.chunk.fill(job.buffer, job.first, job.last)
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
                    filled.append((found.index, found.chunk))
        except Empty:
            pass
        return filled

    def close(self) -> None:
        self._has_ended = True
        for _ in range(len(self._threads)):
            self._jobs.put(None)
        self._threads.wait()
