"""Transfer ranges of sources through a ring of staging buffers to their sinks.

    readers   threads that read the next chunks of the plan into free buffers: of the kernel for files where the system
              permits it, otherwise of Python, which share the interpreter's lock with the issuer and do little per
              chunk, one system call
    issuer    the caller's own thread, so that Ctrl-C reaches it and the GPU's context is its own: hands chunks that
              were read to their sinks, which start copies, and has buffers refilled whose copies are done

Nothing here knows formats, tensors or GPUs: a `HostStaging` has the buffers and states when one is free again, a `Sink`
copies from them. When `transfer` returns or raises, no thread reads, every copy that was started is done, and the
buffers are released. `transferring` is the same for a caller with work to do while the last chunks are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Protocol

import numpy as np

from ...errors import ReadError
from ..kernel_reads import KernelReads, kernel_reads
from ..parallel import ThreadGroup
from ..sizes import GPU_READ_BYTES, PAGE
from ..source import KernelReadable, ReadsPages, Source
from .buffers import CopyEvent
from .chunks import Chunk, Range, by_source, page_windows, split_chunks
from .staging import HostStaging

# Chunks that were read meanwhile are handed on together: calls for all of them are made less often.
_MAX_BATCH = 4
# The reads that are queued for the kernel besides those under way: more would only wait, in buffers that leave the
# processor's cache meanwhile.
_QUEUED = 4

Filled = tuple[int, Chunk]
"""A buffer, and the chunk that was read into it."""


class Readers(Protocol):
    """Threads that read. After `close` none reads, and others may use the buffers."""

    workers: int
    """The reads that are done at a time."""
    ahead: int
    """The reads that should be begun, so that no worker waits for the next one."""
    patience: float
    """The seconds to poll before waiting: waking up takes longer than a chunk, but polling keeps the GIL."""

    @property
    def under_way(self) -> int:
        """The reads that were begun and not returned by `finished`; a chunk may be several."""

    def begin(self, index: int, chunk: Chunk, buffer: memoryview) -> None:
        """Have a chunk read into a buffer, by several threads if it is long."""

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        """Return chunks that were read, at most so many; with ``wait`` at least one, unless a signal comes first.

        Raise the first failure.
        """

    def close(self) -> None:
        """Return when no thread reads any more."""


def readers_for(sources: Sequence[Source], workers: int, buffer_bytes: int) -> Readers:
    """Return kernel threads where all sources and the system permit them, otherwise Python threads."""
    if all(isinstance(source, KernelReadable) for source in sources):
        reads = kernel_reads(workers + _QUEUED + -(-buffer_bytes // GPU_READ_BYTES), workers)
        if reads is not None:
            return KernelReaders(reads, workers)
    return ThreadReaders(workers)


class KernelReaders:
    """Kernel threads: no Python runs while they read."""

    patience = 0.001

    def __init__(self, reads: KernelReads, workers: int) -> None:
        self.workers = workers
        self.ahead = workers + _QUEUED
        self._reads = reads
        self._number = 0
        self._requested: dict[int, tuple[int, int]] = {}
        self._begun: dict[int, _Begun] = {}
        self._addresses: dict[int, int] = {}

    @property
    def under_way(self) -> int:
        return len(self._requested)

    def begin(self, index: int, chunk: Chunk, buffer: memoryview) -> None:
        fd, offset, length = chunk.kernel_read()
        address = self._addresses.get(index)
        if address is None:
            address = self._addresses[index] = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        address -= chunk.offset // PAGE * PAGE
        begun = self._begun[index] = _Begun(chunk, buffer)
        for first, last in page_windows(offset, offset + length, GPU_READ_BYTES):
            self._requested[self._number] = index, min(last, chunk.stop) - first
            self._reads.request((fd, first, last - first), address + first, self._number)
            self._number += 1
            begun.left += 1

    def finished(self, most: int, *, wait: bool = False) -> Sequence[Filled]:
        try:
            found = self._reads.finished(most, wait=wait)
        except OSError as error:
            raise ReadError(f"the kernel accepts no more reads: {error.strerror or error}") from error
        filled = []
        for number, count in found:
            index, needed = self._requested.pop(number)
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
    """A chunk that the kernel reads: how many of its reads are under way, and whether the others were complete."""

    chunk: Chunk
    buffer: memoryview
    left: int = 0
    is_whole: bool = True


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


def transfer(ranges: Iterable[Range], staging: HostStaging, *, readers: int) -> None:
    """Bring all ranges to their sinks; the first failure, of a reader or of a sink, is raised here.

    >>> from burnstore.io.gpu.staging import HostStaging
    >>> from burnstore.io.source import BytesSource
    >>> class Print:
    ...     def write(self, memory, offset):
    ...         print(offset, bytes(memory))
    >>> source = BytesSource(b"some bytes")
    >>> transfer([Range(source, 0, 4, Print()), Range(source, 5, 5, Print())], HostStaging(), readers=2)
    0 b'some'
    0 b'bytes'
    """
    with transferring(ranges, staging, readers=readers):
        pass


@contextmanager
def transferring(ranges: Iterable[Range], staging: HostStaging, *, readers: int) -> Iterator[None]:
    """Transfer ranges: in the block every byte is read or being read, after it all have arrived."""
    groups = by_source(ranges)
    if not groups:
        yield
        return
    with staging:
        running = _Transfer(groups, staging, readers)
        try:
            running.begin()
            yield
            running.finish()
        finally:
            running.close()


class _Transfer:
    """One run, in the issuer's thread."""

    def __init__(self, groups: Sequence[Sequence[Range]], staging: HostStaging, readers: int) -> None:
        self._staging = staging
        self._sources = [group[0].source for group in groups]
        self._nbytes = sum(range_.length for group in groups for range_ in group)
        self._max_buffers = min(staging.max_buffers, self._nbytes // staging.buffer_bytes + 2)
        self._readers = readers_for(self._sources, readers, staging.buffer_bytes)
        self._chunks = split_chunks(groups, staging.buffer_bytes)
        self._next = next(self._chunks, None)
        self._buffers: list[memoryview] = []
        self._free: list[int] = []
        self._reading = 0
        self._written = 0
        self._in_flight: deque[tuple[CopyEvent, list[int]]] = deque()
        self._patient_until = 0.0

    def begin(self) -> None:
        """Transfer until everything is at least being read."""
        self._grow()
        while self._next is not None:
            self._step()

    def finish(self) -> None:
        """Hand on what was still being read; the last copies may end after the return."""
        while self._reading:
            self._step()
        if self._written != self._nbytes:
            raise AssertionError(f"{self._written} of {self._nbytes} bytes were transferred")
        for source in self._sources:
            if isinstance(source, ReadsPages):
                source.check_unchanged()

    def close(self) -> None:
        """Return when no thread reads any more."""
        self._readers.close()

    def _step(self) -> None:
        found = self._readers.finished(_MAX_BATCH)
        if found:
            self._issue(found)
        if self._refill() or found:
            self._patient_until = perf_counter() + self._readers.patience
        elif perf_counter() >= self._patient_until:
            self._wait()

    def _issue(self, batch: Sequence[Filled]) -> None:
        """Hand chunks that were read to their sinks."""
        staging = self._staging
        self._reading -= len(batch)
        staging.begin_batch()
        for index, chunk in batch:
            memory = staging.memory(index)
            first = chunk.offset % PAGE
            for start, length, sink, place, _ in chunk.parts:
                sink.write(memory[first + start : first + start + length], place)
                self._written += length
        self._in_flight.append((staging.end_batch(), [index for index, _ in batch]))

    def _refill(self) -> bool:
        """Take back buffers whose copies are done and have the next chunks read; False if there was nothing to do.

        The buffer that came last is used first: it is still in the processor's cache.
        """
        in_flight, readers = self._in_flight, self._readers
        is_done = bool(in_flight) and in_flight[0][0].query()
        if is_done:
            self._free += in_flight.popleft()[1]
        while readers.under_way < readers.ahead and self._free and self._begin(self._free[-1]):
            self._free.pop()
        return is_done or (readers.under_way < readers.ahead and self._grow())

    def _grow(self) -> bool:
        """Add a buffer to the ring and have a chunk read into it; False if it may not or need not grow.

        One at a time, as pinning memory takes a while.
        """
        index = len(self._buffers)
        if index >= self._max_buffers or self._next is None:
            return False
        self._buffers.append(self._staging.buffer(index))
        return self._begin(index)

    def _begin(self, index: int) -> bool:
        """Have the next chunk read into a buffer; False if there is none."""
        chunk = self._next
        if chunk is None:
            return False
        self._readers.begin(index, chunk, self._buffers[index])
        self._reading += 1
        self._next = next(self._chunks, None)
        return True

    def _wait(self) -> None:
        """Wait for the buffers that were sent first, if readers could use them; otherwise for the next read."""
        if self._in_flight and self._readers.under_way < self._readers.workers:
            self._in_flight[0][0].synchronize()
        else:
            found = self._readers.finished(_MAX_BATCH, wait=True)
            if found:
                self._issue(found)
