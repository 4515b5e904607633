"""Runs: ranges of equal length at equal distances in one source, such as some columns of a matrix, row after row.

Reading each run alone fetches no extra byte; reading through, from the first run to the last, needs far fewer system
calls. Which is cheaper depends on the distance and on where the bytes are (docs/decisions/0018 has the numbers):

* runs in the page cache, of rows of 2 KiB and more: the runs alone, very many with one call;
* uncached runs of rows of 128 KiB and more: the runs alone;
* all others are read through, a megabyte at a time, and copied from there: a disk reads a megabyte in the time of a few
  seeks. The read fills the page cache, where the other ranks of this machine find it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from ..errors import TruncatedError
from .parallel import for_each
from .sizes import LONG_ROW, PAGE, PARALLEL_BYTES, RUNS_BAND_BYTES, RUNS_TASK_BYTES, SHORT_ROW
from .source import Array, Read, ReadsPages, Source, part_of


@runtime_checkable
class ReadsCachedRuns(Protocol):
    """A source that can read runs from the page cache alone."""

    def read_cached_runs(self, offset: int, row: int, run: int, buffer: memoryview) -> int:
        """Fill the buffer with runs as far as they are cached; return how many were."""


class RunsSource:
    """The runs of another source, one after the other, as a source of their own.

    >>> from burnstore.io.source import BytesSource
    >>> runs = RunsSource(BytesSource(b"..ab--cd--ef"), 2, row=4, run=2, count=3)
    >>> runs.size, runs.read_at(1, 4)
    (6, b'bcde')
    """

    def __init__(self, source: Source, offset: int, *, row: int, run: int, count: int) -> None:
        self.name = source.name
        self.size = run * count
        self._source = source
        self._offset = offset
        self._row = row
        self._run = run

    def read_at(self, offset: int, length: int) -> bytes:
        buffer: Array = np.empty(length, np.uint8)
        self.read_into([(offset, memoryview(buffer))])
        return buffer.tobytes()

    def read_into(self, reads: Sequence[Read]) -> None:
        self._fill(reads, read_runs)

    def read_pages(self, offset: int, length: int, pages: memoryview) -> None:
        """Read a range into pages, in this thread: callers that read pages have many threads."""
        first = offset % PAGE
        self._fill([(offset, pages[first : first + length])], _read_here)

    def check_unchanged(self) -> None:
        """Raise ChangedError if the file was changed in place."""
        source, _ = part_of(self._source, self._offset, 1)
        if isinstance(source, ReadsPages):
            source.check_unchanged()

    def view(self, offset: int, length: int) -> memoryview | None:
        return None

    def close(self) -> None:
        self._source.close()

    def _fill(self, reads: Sequence[Read], read: Callable[[Source, int, int, int, memoryview], None]) -> None:
        ends: list[Read] = []  # partial runs at the begin and end of a read
        for offset, buffer in reads:
            if offset + len(buffer) > self.size:
                message = f"expected {len(buffer)} bytes, but the part ends at {self.size}"
                raise TruncatedError(message, path=self.name, offset=offset)
            before = min(-offset % self._run, len(buffer))
            after = before + (len(buffer) - before) // self._run * self._run
            if before < after:
                read(self._source, self._place(offset + before), self._row, self._run, buffer[before:after])
            places = (offset, buffer[:before]), (offset + after, buffer[after:])
            ends += [(self._place(at), piece) for at, piece in places if piece]
        if ends:
            self._source.read_into(ends)

    def _place(self, offset: int) -> int:
        row, within = divmod(offset, self._run)
        return self._offset + row * self._row + within


def read_runs(source: Source, offset: int, row: int, run: int, memory: memoryview) -> None:
    """Fill memory with as many runs as it holds: the first at ``offset``, each ``row`` bytes after the one before.

    >>> from burnstore.io.source import BytesSource
    >>> buffer = bytearray(4)
    >>> read_runs(BytesSource(b"ab--cd--"), 0, 4, 2, memoryview(buffer))
    >>> buffer
    bytearray(b'abcd')
    """
    count = len(memory) // run
    if count * row < PARALLEL_BYTES:
        _read_here(source, offset, row, run, memory)
        return
    height = max(RUNS_TASK_BYTES // row, 1)

    def read(first: int) -> None:
        _read_here(source, offset + first * row, row, run, memory[first * run : (first + height) * run])

    for_each(read, range(0, count, height))


def _read_here(source: Source, offset: int, row: int, run: int, memory: memoryview) -> None:
    """Fill memory in this thread."""
    count = len(memory) // run
    if not count:
        return
    reach = (count - 1) * row + run
    source, offset = part_of(source, offset, reach)
    shared = source.view(offset, reach)
    if shared is not None:
        _copy(shared, row, run, memory)
        return
    cached = source.read_cached_runs if isinstance(source, ReadsCachedRuns) and row >= SHORT_ROW else None
    height = max(RUNS_BAND_BYTES // row, 1)
    through: Array | None = None
    done = 0
    while True:
        if cached is not None and done < count:
            done += cached(offset + done * row, row, run, memory[done * run :])
        rows = min(height, count - done)
        if not rows:
            return
        at, wanted = offset + done * row, memory[done * run : (done + rows) * run]
        if row >= LONG_ROW:
            source.read_into([(at + one * row, wanted[one * run : (one + 1) * run]) for one in range(rows)])
        else:
            through = np.empty(rows * row, np.uint8) if through is None else through
            source.read_into([(at, memoryview(through)[: (rows - 1) * row + run])])
            _copy(through, row, run, wanted)
        done += rows


def _copy(read: memoryview | Array, row: int, run: int, memory: memoryview) -> None:
    """Fill memory with the runs of a buffer that begins with the first of them."""
    target = np.frombuffer(memory, np.uint8).reshape(-1, run)
    raw = np.frombuffer(read, np.uint8)
    target[...] = np.lib.stride_tricks.as_strided(raw, target.shape, (row, 1), writeable=False)
