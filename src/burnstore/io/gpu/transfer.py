"""Transfer ranges of sources through a ring of staging buffers to their sinks.

    readers   threads that read the next chunks of the plan into free buffers; they share the interpreter's lock with
              the issuer, so they do little per chunk: one system call
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

from ...errors import ReadError
from ..parallel import ThreadGroup
from ..sizes import GPU_READ_BYTES, PAGE
from ..source import ReadsPages
from .buffers import CopyEvent
from .chunks import Chunk, Range, by_source, page_windows, split_chunks
from .staging import HostStaging

# Chunks that were read meanwhile are handed on together: calls for all of them are made less often.
_MAX_BATCH = 4


Filled = tuple[int, Chunk]
"""A buffer, and the chunk that was read into it."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A part of a chunk for a thread to read."""

    index: int
    chunk: Chunk
    buffer: memoryview
    first: int
    last: int


class Readers:
    """Threads, started when there is something to read. After `close` none reads, and others may use the buffers.

    ``workers`` is the number of reads that are done at a time, ``ahead`` how many should be begun so that no thread
    waits for the next one, ``under_way`` how many were begun and not returned by `finished`.
    """

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
        """Have a chunk read into a buffer, by several threads if it is long."""
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
        """Return chunks that were read, at most so many; with ``wait`` at least one. Raise the first failure."""
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
        """Return when no thread reads any more."""
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
        self._readers = Readers(readers)
        self._chunks = split_chunks(groups, staging.buffer_bytes)
        self._next = next(self._chunks, None)
        self._buffers: list[memoryview] = []
        self._free: list[int] = []
        self._reading = 0
        self._written = 0
        self._in_flight: deque[tuple[CopyEvent, list[int]]] = deque()

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
        if not self._refill() and not found:
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
