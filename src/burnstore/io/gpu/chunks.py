"""The plan of a transfer: ranges of sources, split into chunks that fit one staging buffer.

A chunk is a part of one large range, or many small ranges that are near each other. Every chunk can be read with the
pages around it, so that a file can be read without the page cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from ...errors import BurnstoreError, located
from ..kernel_reads import ReadRequest
from ..sizes import GPU_GAP_BYTES, PAGE
from ..source import PageReader, Source, page_reader

# The first chunks are smaller, a quarter and then a half: the bus is idle until the first one is read.
_HALVINGS = 2
_CHUNKS_PER_SIZE = 8

Memory = Any
"""A part of a staging buffer, as `HostStaging.memory` gives it; slices of it are parts of it."""


class Sink(Protocol):
    """A destination of bytes."""

    def write(self, memory: Memory, offset: int) -> None:
        """Take bytes for the sink's ``offset``; the copy may end after the return."""


class Range(NamedTuple):
    """Bytes of a source and their sink, which gets whole multiples of ``unit`` (at most `max_unit` bytes).

    ``name`` is the tensor that errors name.
    """

    source: Source
    offset: int
    length: int
    sink: Sink
    name: str | None = None
    unit: int = 1


def max_unit(buffer_bytes: int) -> int:
    """Return the longest unit that fits into a buffer wherever in a file it is."""
    return buffer_bytes - 2 * PAGE


class ChunkPart(NamedTuple):
    """The part of a chunk that belongs to one sink: ``start`` counts in the chunk, ``place`` in the sink."""

    start: int
    length: int
    sink: Sink
    place: int
    name: str | None


@dataclass(slots=True)
class Chunk:
    """Bytes of a source that fit one staging buffer."""

    source: Source
    read: PageReader
    offset: int
    limit: int
    """The offset that it must not exceed."""
    length: int = 0
    parts: list[ChunkPart] = field(default_factory=list)

    def fits(self, offset: int, length: int) -> bool:
        """Return whether a range is near this chunk, and fits as a whole."""
        return self.offset <= offset <= self.stop + GPU_GAP_BYTES and offset + length <= self.limit

    @property
    def stop(self) -> int:
        """The offset in the source at which it ends."""
        return self.offset + self.length

    def fill(self, buffer: memoryview, first: int, last: int) -> None:
        """Read some or all of its bytes; each gets the place in the buffer that it has in its page.

        The buffer begins with the page of the chunk's first byte; ``first`` is that byte or the begin of a page.
        """
        try:
            self.read(first, last - first, buffer[first // PAGE * PAGE - self.offset // PAGE * PAGE :])
        except BurnstoreError as error:
            with located(path=self.source.name, tensor=self._name_at(error.offset)):
                raise

    def kernel_read(self) -> ReadRequest:
        """Return the read that the kernel can do for it, of a `KernelReadable` source."""
        source: Any = self.source
        try:
            found: ReadRequest = source.kernel_read(self.offset, self.length)
            return found
        except BurnstoreError as error:
            with located(path=self.source.name, tensor=self._name_at(error.offset)):
                raise

    def _name_at(self, offset: int | None) -> str | None:
        """Return the tensor at an offset of the source; None if unknown."""
        if offset is None:
            return self.parts[0].name if len(self.parts) == 1 else None
        at = offset - self.offset
        return next((part.name for part in self.parts if at < part.start + part.length), None)


def split_chunks(groups: Iterable[Sequence[Range]], buffer_bytes: int) -> Iterator[Chunk]:
    """Split ranges into chunks, file by file in the order of the bytes; a group has the sorted ranges of one source.

    Later chunks are planned while the first are being read. A range that needs several chunks is split evenly: the copy
    of a small remainder would cost as much as that of a whole chunk.
    """
    begun = 0
    for group in groups:
        read = page_reader(group[0].source)
        chunk: Chunk | None = None
        for range_ in group:
            done = 0
            while done < range_.length:
                at, left = range_.offset + done, range_.length - done
                if chunk is not None and chunk.fits(at, left):
                    taken = left
                else:
                    if chunk is not None:
                        yield chunk
                    limit = at // PAGE * PAGE + _chunk_bytes(begun, range_.unit, buffer_bytes)
                    taken = _share(left, limit - at, range_.unit)
                    chunk = Chunk(range_.source, read, at, limit)
                    begun += 1
                chunk.parts.append(ChunkPart(at - chunk.offset, taken, range_.sink, done, range_.name))
                chunk.length = max(chunk.length, at - chunk.offset + taken)
                done += taken
        if chunk is not None:
            yield chunk


def _chunk_bytes(begun: int, unit: int, buffer_bytes: int) -> int:
    """Return the most that the next chunk may have with its pages."""
    size = buffer_bytes >> max(_HALVINGS - begun // _CHUNKS_PER_SIZE, 0)
    return size if unit <= size - PAGE else buffer_bytes


def _share(left: int, most: int, unit: int) -> int:
    """Return the bytes of a chunk, in whole units, if the rest of a range is split into chunks of equal size."""
    if left <= most:
        return left
    even = -(-left // -(-left // most))
    step = unit if unit > 1 else PAGE
    return min(-(-even // step), most // step) * step


def page_windows(first: int, last: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Split a range at pages into windows of ``nbytes`` with their pages.

    >>> list(page_windows(5000, 20000, 8192))
    [(5000, 12288), (12288, 20000)]
    """
    while first < last:
        stop = min(first // PAGE * PAGE + nbytes, last)
        yield first, stop
        first = stop


def by_source(ranges: Iterable[Range]) -> list[list[Range]]:
    """Return the ranges of each source that have bytes, sorted."""
    groups: dict[int, list[Range]] = {}
    for range_ in ranges:
        if range_.length:
            groups.setdefault(id(range_.source), []).append(range_)
    for group in groups.values():
        group.sort(key=attrgetter("offset"))
    return list(groups.values())
