"""Runs: equally long pieces at equal distances of one source, such as some columns of a matrix, row after row.

Reading each run by itself fetches no byte in vain; reading through, from the first run to the last, asks the system far
less often. Which is cheaper depends on the distance, and on where the bytes are (docs/decisions/0018 has the numbers):

* rows of 128 KiB and more: the runs alone;
* shorter ones, of which at least a page lies between two runs: the runs alone as far as they are in the page cache,
  through what is not, as a disk reads a megabyte in the time of a few jumps;
* otherwise through. What is read through is read once, a megabyte at a time, and the runs are copied out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import TruncatedError
from .joined import part_of
from .pages import PAGE
from .parallel import for_each
from .source import Read, Source

_LONG_ROW = 128 << 10
# What was read through stays in the processor's cache until it is copied.
_BAND = 1 << 20
# Below this, starting threads costs more than they save.
_PARALLEL_FROM = 32 << 20

Array = np.ndarray[Any, np.dtype[Any]]


@runtime_checkable
class ReadsCachedRuns(Protocol):
    """A source that can tell what is in the page cache."""

    def read_cached_runs(self, offset: int, row: int, run: int, buffer: memoryview) -> int:
        """Fill the buffer with runs, as far as they need not be waited for; how many that were."""


class RunsSource:
    """The runs of another source, one behind the other, as a source of their own.

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
        ends: list[Read] = []  # parts of runs, where a read begins or ends within one
        for offset, buffer in reads:
            if offset + len(buffer) > self.size:
                message = f"{len(buffer)} bytes needed, the part ends at {self.size}"
                raise TruncatedError(message, path=self.name, offset=offset)
            before = min(-offset % self._run, len(buffer))
            whole = (len(buffer) - before) // self._run * self._run
            places = (offset, buffer[:before]), (offset + before + whole, buffer[before + whole :])
            ends += [(self._place(at), piece) for at, piece in places if piece]
            if whole:
                between = np.frombuffer(buffer[before : before + whole], np.uint8)
                read_runs(self._source, self._place(offset + before), self._row, self._run, between)
        if ends:
            self._source.read_into(ends)

    def view(self, offset: int, length: int) -> memoryview | None:
        return None

    def close(self) -> None:
        self._source.close()

    def _place(self, offset: int) -> int:
        row, within = divmod(offset, self._run)
        return self._offset + row * self._row + within


def read_runs(source: Source, offset: int, row: int, run: int, buffer: Array) -> None:
    """Fill a buffer of bytes with as many runs as it holds: the first at ``offset``, each ``row`` bytes after the last.

    >>> from burnstore.io.source import BytesSource
    >>> buffer = np.empty(4, np.uint8)
    >>> read_runs(BytesSource(b"ab--cd--"), 0, 4, 2, buffer)
    >>> buffer.tobytes()
    b'abcd'
    """
    count = len(buffer) // run
    if not count:
        return
    reach = (count - 1) * row + run
    shared = source.view(offset, reach)
    if shared is not None:
        _in_bands(lambda rows: _copy(shared[rows.start * row :], row, buffer, run, rows), count, row)
        return
    source, offset = part_of(source, offset, reach)
    memory = memoryview(buffer)
    if row >= _LONG_ROW:
        source.read_into([(offset + at * row, memory[at * run : (at + 1) * run]) for at in range(count)])
        return
    cached = source.read_cached_runs if isinstance(source, ReadsCachedRuns) and row - run >= PAGE else None
    used: list[Array] = []  # what was read into: memory that was touched is cheaper than new memory

    def read(rows: range) -> None:
        if cached is not None:
            wanted = memory[rows.start * run : rows.stop * run]
            rows = rows[cached(offset + rows.start * row, row, run, wanted) :]
        if rows:
            try:
                through = used.pop()
            except IndexError:  # once for each thread
                through = np.empty(max(_BAND, row), np.uint8)
            length = (len(rows) - 1) * row + run
            source.read_into([(offset + rows.start * row, memoryview(through)[:length])])
            _copy(through, row, buffer, run, rows)
            used.append(through)

    _in_bands(read, count, row)


def _in_bands(job: Callable[[range], None], count: int, row: int) -> None:
    """Do a job for all rows, some of them at a time."""
    height = max(_BAND // row, 1)
    bands = [range(at, min(at + height, count)) for at in range(0, count, height)]
    if count * row >= _PARALLEL_FROM:
        for_each(job, bands)
    else:
        for rows in bands:
            job(rows)


def _copy(read: memoryview | Array, row: int, buffer: Array, run: int, rows: range) -> None:
    """Copy the runs of some rows out of what was read from the first of them on."""
    raw = np.frombuffer(read, np.uint8)
    runs = np.lib.stride_tricks.as_strided(raw, (len(rows), run), (row, 1), writeable=False)
    buffer[rows.start * run : rows.stop * run].reshape(len(rows), run)[...] = runs
