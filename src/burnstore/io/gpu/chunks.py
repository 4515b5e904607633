"""Pieces: ranges of sources, cut into what one buffer takes; the plan of a transfer.

A piece is as much of a source as a buffer holds: a part of one large range, or many small ones that lie together. All
pieces can be read with the pages around them, so that a file can be read past the page cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...errors import BurnstoreError, located
from ..kernel_reads import Asked
from ..pages import PAGE, PageReader, page_reader
from ..source import Source

NEAR = 64 << 10
"""What lies between two ranges is read with them up to here: a read of its own would cost more."""

# The first pieces are so many times halved, and after so many of them one time less: nothing is on the bus until the
# first is there.
_HALVED = 2
_SO_MANY = 8

Memory = Any
"""A part of a buffer, as its carrier gives it to landings; slices of it are parts of it."""


class Landing(Protocol):
    """Where bytes go."""

    def land(self, memory: Memory, place: int) -> None:
        """Take these bytes, the first of which is the landing's byte ``place``; the copy may end after the return."""


class Range(NamedTuple):
    """Bytes of a source and where they go; ``unit`` is what must not be cut: the landing gets multiples of it.

    A unit must be no longer than `longest_unit` allows. ``name`` is whose bytes these are, for errors.
    """

    source: Source
    offset: int
    length: int
    landing: Landing
    name: str | None = None
    unit: int = 1


def longest_unit(buffer_bytes: int) -> int:
    """The longest unit that fits into a buffer wherever in a file it lies."""
    return buffer_bytes - 2 * PAGE


class Part(NamedTuple):
    """What a range has in a piece: where in the piece, how much, and where it goes."""

    start: int
    length: int
    landing: Landing
    place: int
    name: str | None


@dataclass(slots=True)
class Piece:
    """A stretch of a source that one buffer takes."""

    source: Source
    read: PageReader
    offset: int
    end: int
    """Where it ends at most."""
    length: int = 0
    parts: list[Part] = field(default_factory=list)

    def has_room(self, offset: int, length: int) -> bool:
        """Whether a range lies near what is in it, and fits in whole."""
        return self.offset <= offset <= self.stop + NEAR and offset + length <= self.end

    @property
    def stop(self) -> int:
        """Where in the source it ends."""
        return self.offset + self.length

    def fill(self, buffer: memoryview, first: int, last: int) -> None:
        """Read what lies there in the source, all of it or a part, so that every byte lies where it lies in its page.

        The buffer begins with the page in which the piece does, and so does every part but the first at a page.
        """
        try:
            self.read(first, last - first, buffer[first // PAGE * PAGE - self.offset // PAGE * PAGE :])
        except BurnstoreError as error:
            with located(path=self.source.name, tensor=self._name_at(error.offset)):
                raise

    def asked(self) -> Asked:
        """What the kernel is to be asked to read for it, of a source that is read by a descriptor."""
        source: Any = self.source
        try:
            found: Asked = source.asked_for(self.offset, self.length)
            return found
        except BurnstoreError as error:
            with located(path=self.source.name, tensor=self._name_at(error.offset)):
                raise

    def _name_at(self, offset: int | None) -> str | None:
        """Whose bytes lie at an offset of the source; None if that is not known."""
        if offset is None:
            return self.parts[0].name if len(self.parts) == 1 else None
        at = offset - self.offset
        return next((part.name for part in self.parts if at < part.start + part.length), None)


def cut(groups: Iterable[Sequence[Range]], buffer_bytes: int) -> Iterator[Piece]:
    """The pieces in which ranges are carried, file by file in the order of the bytes.

    A group has the ranges of one source, sorted. It is cut while the first pieces are being read already. What does not
    fit into one piece is cut evenly: a copy of what little is left over would cost as much as one of a whole piece.
    """
    begun = 0
    for group in groups:
        read = page_reader(group[0].source)
        piece: Piece | None = None
        for range_ in group:
            done = 0
            while done < range_.length:
                at, left = range_.offset + done, range_.length - done
                if piece is not None and piece.has_room(at, left):
                    taken = left
                else:
                    if piece is not None:
                        yield piece
                    end = at // PAGE * PAGE + _size(begun, range_.unit, buffer_bytes)
                    taken = _share(left, end - at, range_.unit)
                    piece = Piece(range_.source, read, at, end)
                    begun += 1
                piece.parts.append(Part(at - piece.offset, taken, range_.landing, done, range_.name))
                piece.length = max(piece.length, at - piece.offset + taken)
                done += taken
        if piece is not None:
            yield piece


def _size(begun: int, unit: int, buffer_bytes: int) -> int:
    """How large the next piece may be with its pages, if so many were begun and this unit must fit."""
    size = buffer_bytes >> max(_HALVED - begun // _SO_MANY, 0)
    return size if unit <= size - PAGE else buffer_bytes


def _share(left: int, room: int, unit: int) -> int:
    """How much of what is left goes into a piece of its own, in whole units, if all pieces are to be of one size."""
    if left <= room:
        return left
    even = -(-left // -(-left // room))
    step = unit if unit > 1 else PAGE
    return min(-(-even // step), room // step) * step


def at_pages(first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """A range in parts of so many bytes with their pages, which are those of one part alone.

    >>> list(at_pages(5000, 20000, 8192))
    [(5000, 12288), (12288, 20000)]
    """
    while first < last:
        upto = min(first // PAGE * PAGE + most, last)
        yield first, upto
        first = upto


def by_source(ranges: Iterable[Range]) -> list[list[Range]]:
    """The ranges of each source that have bytes, sorted."""
    groups: dict[int, list[Range]] = {}
    for range_ in ranges:
        if range_.length:
            groups.setdefault(id(range_.source), []).append(range_)
    for group in groups.values():
        group.sort(key=_offset_of)
    return list(groups.values())


def _offset_of(range_: Range) -> int:
    return range_.offset
