"""Readers: Python threads that read chunks into buffers, many at a time, while the issuer goes on.

They share the interpreter's lock with the issuer, so they do little per chunk: one system call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from ...errors import ReadError
from ..parallel import ThreadGroup
from ..sizes import GPU_READ_BYTES
from .chunks import Chunk, page_windows

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
