"""Runs: equally long pieces at equal distances of one source, such as some columns of a matrix, row after row.

Reading each run by itself fetches no byte in vain; reading through, from the first run to the last, asks the system far
less often. Which is cheaper depends on the distance, and on where the bytes are (docs/decisions/0018 has the numbers):

* runs that are in the page cache, of rows of 2 KiB and more: the runs alone, very many with one call;
* those that are not, of rows of 128 KiB and more: the runs alone;
* the rest is read through, once, a megabyte at a time, and the runs are copied out of that: a disk reads a megabyte in
  the time of a few jumps. It comes by way of the page cache, where the other ranks of this machine find it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import TruncatedError
from .joined import part_of
from .pages import PAGE, ReadsPages
from .parallel import for_each
from .source import Read, Source

_SHORT_ROW = 2 << 10
_LONG_ROW = 128 << 10
# What was read through stays in the processor's cache until it is copied.
_BAND = 1 << 20
# Below this, starting threads costs more than they save; each then takes so many rows at a time.
_PARALLEL_FROM = 32 << 20
_SLICE = 8 << 20

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
        self._fill(reads, read_runs)

    def read_pages(self, offset: int, length: int, pages: memoryview) -> None:
        """Read a range as `burnstore.io.pages.page_reader` says, in this thread: who asks for pages has many."""
        first = offset % PAGE
        self._fill([(offset, pages[first : first + length])], _read_here)

    def check_unchanged(self) -> None:
        """Raise ChangedError if the file behind was changed in place."""
        source, _ = part_of(self._source, self._offset, 1)
        if isinstance(source, ReadsPages):
            source.check_unchanged()

    def view(self, offset: int, length: int) -> memoryview | None:
        return None

    def close(self) -> None:
        self._source.close()

    def _fill(self, reads: Sequence[Read], read: Callable[[Source, int, int, int, memoryview], None]) -> None:
        ends: list[Read] = []  # parts of runs, where a read begins or ends within one
        for offset, buffer in reads:
            if offset + len(buffer) > self.size:
                message = f"{len(buffer)} bytes needed, the part ends at {self.size}"
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
    """Fill memory with as many runs as it holds: the first at ``offset``, each ``row`` bytes after the last.

    >>> from burnstore.io.source import BytesSource
    >>> buffer = bytearray(4)
    >>> read_runs(BytesSource(b"ab--cd--"), 0, 4, 2, memoryview(buffer))
    >>> buffer
    bytearray(b'abcd')
    """
    count = len(memory) // run
    if count * row < _PARALLEL_FROM:
        _read_here(source, offset, row, run, memory)
        return
    height = max(_SLICE // row, 1)

    def read(first: int) -> None:
        _read_here(source, offset + first * row, row, run, memory[first * run : (first + height) * run])

    for_each(read, range(0, count, height))


def _read_here(source: Source, offset: int, row: int, run: int, memory: memoryview) -> None:
    """The same in this thread alone."""
    count = len(memory) // run
    if not count:
        return
    reach = (count - 1) * row + run
    source, offset = part_of(source, offset, reach)
    shared = source.view(offset, reach)
    if shared is not None:
        _copy(shared, row, run, memory)
        return
    cached = source.read_cached_runs if isinstance(source, ReadsCachedRuns) and row >= _SHORT_ROW else None
    height = max(_BAND // row, 1)
    through: Array | None = None
    done = 0
    while True:
        if cached is not None and done < count:
            done += cached(offset + done * row, row, run, memory[done * run :])
        rows = min(height, count - done)
        if not rows:
            return
        at, wanted = offset + done * row, memory[done * run : (done + rows) * run]
        if row >= _LONG_ROW:
            source.read_into([(at + one * row, wanted[one * run : (one + 1) * run]) for one in range(rows)])
        else:
            through = np.empty(rows * row, np.uint8) if through is None else through
            source.read_into([(at, memoryview(through)[: (rows - 1) * row + run])])
            _copy(through, row, run, wanted)
        done += rows


def _copy(read: memoryview | Array, row: int, run: int, memory: memoryview) -> None:
    """Fill memory with runs out of what was read from the first of them on."""
    target = np.frombuffer(memory, np.uint8).reshape(-1, run)
    raw = np.frombuffer(read, np.uint8)
    target[...] = np.lib.stride_tricks.as_strided(raw, target.shape, (row, 1), writeable=False)
