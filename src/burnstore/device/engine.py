"""Engine: ranges of sources, carried through a ring of buffers to where they are to land.

    readers   threads; each takes a free buffer and the next piece of the plan, and reads the one into the other
    issuer    the caller's own thread, so that Ctrl-C reaches it and the GPU's context is its own: hands what was read
              to the landings, which start their copies, and frees the buffers whose copies are done

A piece is as much of a source as a buffer holds: a part of one large range, or many small ones that lie together. All
reads begin and end where pages do, so that a file can be read past the page cache. The engine knows nothing of formats,
tensors or GPUs: a `Carrier` has the buffers and says when one is free again, a `Landing` copies out of them.

All threads share the interpreter's lock, and a dozen that read make the issuer wait for it: so what is done per piece
is little, with one system call in it, and what can be done once per file is done at the end.

When `carry` returns or raises, every reader has ended, every copy that was started is done, and the buffers are back
with the carrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol

from ..errors import BurnstoreError, located
from ..io.pages import PAGE, PageReader, ReadsPages, page_reader
from ..io.source import Source

NEAR = 64 << 10
"""What lies between two ranges is read with them up to here: a read of its own would cost more."""

# So many pieces are small, for the first of them to be there soon: nothing is on the bus until then.
_EARLY = 16
# Pieces that were read meanwhile are handed on together: what is called once for all of them waits once for the lock.
_MOST_AT_ONCE = 4

Memory = Any
"""A part of a buffer, as its carrier gives it to landings; slices of it are parts of it."""


class Landing(Protocol):
    """Where bytes go."""

    def land(self, memory: Memory, place: int) -> None:
        """Take these bytes, the first of which is the landing's byte ``place``; the copy may end after the return."""


class Ticket(Protocol):
    """Copies that were started, and tell when they are done."""

    def query(self) -> bool:
        """Whether they are."""

    def synchronize(self) -> None:
        """Return when they are."""


class Carrier(Protocol):
    """A ring of buffers in host memory, and the way on from there. Entered before and left after a transfer."""

    buffer_bytes: int
    most_buffers: int

    def buffer(self, index: int) -> memoryview:
        """The memory of a buffer, which begins at a page; asked for once, with 0, 1, 2 in turn, as more are needed."""

    def begin(self) -> None:
        """Take note that a batch of buffers is to be copied from: all that is started until `sent` belongs to it."""

    def memory(self, index: int) -> Memory:
        """A whole buffer, for landings to copy from."""

    def sent(self) -> Ticket:
        """Start what landings asked for and is not started yet; the end of the batch."""

    def __enter__(self) -> Carrier: ...

    def __exit__(self, *_: object) -> None:
        """Wait for all copies that were started, also after a failure; then the buffers may be used by others."""


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


class _Part(NamedTuple):
    """What a range has in a piece: where in the piece, how much, and where it goes."""

    start: int
    length: int
    landing: Landing
    place: int
    name: str | None


@dataclass(slots=True)
class _Piece:
    """A stretch of a source that one buffer takes."""

    source: Source
    read: PageReader
    offset: int
    end: int
    """Where it ends at most."""
    length: int = 0
    parts: list[_Part] = field(default_factory=list)

    def fill(self, buffer: memoryview) -> None:
        """Read it into a buffer."""
        try:
            self.read(self.offset, self.length, buffer)
        except BurnstoreError as error:
            with located(path=self.source.name, tensor=self._name_at(error.offset)):
                raise

    def _name_at(self, offset: int | None) -> str | None:
        """Whose bytes lie at an offset of the source; None if that is not known."""
        if offset is None:
            return self.parts[0].name if len(self.parts) == 1 else None
        at = offset - self.offset
        return next((part.name for part in self.parts if at < part.start + part.length), None)


def cut(groups: Iterable[Sequence[Range]], buffer_bytes: int) -> Iterator[_Piece]:
    """The pieces in which ranges are carried, file by file in the order of the bytes.

    A group has the ranges of one source, sorted. It is cut while the first pieces are being read already.
    """
    begun = 0
    for group in groups:
        read = page_reader(group[0].source)
        piece: _Piece | None = None
        for range_ in group:
            done = 0
            while done < range_.length:
                at, left = range_.offset + done, range_.length - done
                taken = 0
                if piece is not None and piece.offset <= at <= piece.offset + piece.length + NEAR:
                    taken = _fitting(left, piece.end - at, range_.unit)
                if piece is None or not taken:
                    begin = at // PAGE * PAGE
                    size = buffer_bytes >> 3 if begun < _EARLY else buffer_bytes
                    taken = _fitting(left, begin + size - at, range_.unit)
                    if not taken:
                        size = buffer_bytes
                        taken = _fitting(left, begin + size - at, range_.unit)
                    if piece is not None:
                        yield piece
                    piece = _Piece(range_.source, read, at, begin + size)
                    begun += 1
                piece.parts.append(_Part(at - piece.offset, taken, range_.landing, done, range_.name))
                piece.length = max(piece.length, at - piece.offset + taken)
                done += taken
        if piece is not None:
            yield piece


def _fitting(left: int, room: int, unit: int) -> int:
    """How much of what is left fits into the room, in whole units."""
    return left if left <= room else max(room, 0) // unit * unit


def _by_source(ranges: Iterable[Range]) -> list[list[Range]]:
    groups: dict[int, list[Range]] = {}
    for range_ in ranges:
        if range_.length:
            groups.setdefault(id(range_.source), []).append(range_)
    for group in groups.values():
        group.sort(key=_offset_of)
    return list(groups.values())


def _offset_of(range_: Range) -> int:
    return range_.offset


def carry(ranges: Iterable[Range], carrier: Carrier, *, readers: int) -> None:
    """Bring all ranges to their landings; the first failure, of a reader or of a landing, is raised here.

    >>> from burnstore.device.carriers import HostCarrier
    >>> from burnstore.io.source import BytesSource
    >>> class Print:
    ...     def land(self, memory, place):
    ...         print(place, bytes(memory))
    >>> source = BytesSource(b"some bytes")
    >>> carry([Range(source, 0, 4, Print()), Range(source, 5, 5, Print())], HostCarrier(), readers=2)
    0 b'some'
    0 b'bytes'
    """
    groups = _by_source(ranges)
    if groups:
        with carrier:
            _Transfer(groups, carrier, readers).run()


_Job = tuple[int, _Piece]
"""A piece, and the buffer that it is read into."""


class _Transfer:
    """One run of the engine. All but `_read` runs in the issuer's thread."""

    def __init__(self, groups: Sequence[Sequence[Range]], carrier: Carrier, readers: int) -> None:
        self._carrier = carrier
        self._readers = readers
        self._threads: list[Thread] = []
        self._pieces = cut(groups, carrier.buffer_bytes)
        self._sources = [group[0].source for group in groups]
        self._nbytes = sum(range_.length for group in groups for range_ in group)
        self._most_buffers = min(carrier.most_buffers, self._nbytes // carrier.buffer_bytes + 2)
        self._buffers: list[memoryview] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._filled: SimpleQueue[_Job | Exception] = SimpleQueue()
        self._reading = 0
        self._landed = 0
        self._in_flight: deque[tuple[Ticket, list[int]]] = deque()
        self._has_ended = False

    def run(self) -> None:
        try:
            self._grow()
            while self._reading or self._freed():
                if self._reading:
                    self._issue(list(self._found()))
            if self._landed != self._nbytes:
                raise AssertionError(f"{self._landed} of {self._nbytes} bytes were carried")
            for source in self._sources:
                if isinstance(source, ReadsPages):
                    source.check_unchanged()
        finally:
            self._has_ended = True
            for _ in self._threads:
                self._jobs.put(None)
            _join(self._threads)

    def _read(self) -> None:
        """What a reader does."""
        while (job := self._jobs.get()) is not None and not self._has_ended:
            index, piece = job
            try:
                piece.fill(self._buffers[index])
            except Exception as error:
                self._filled.put(error)
            else:
                self._filled.put(job)

    def _found(self) -> Iterator[_Job]:
        """What is read next, and what else was read since."""
        for number in range(_MOST_AT_ONCE):
            try:
                found = self._filled.get_nowait() if number else self._next()
            except Empty:
                return
            self._reading -= 1
            if isinstance(found, Exception):
                raise found
            yield found

    def _next(self) -> _Job | Exception:
        """What a reader gives next; while it is not there, the ring grows, or is freed."""
        while True:
            try:
                return self._filled.get_nowait()
            except Empty:
                # A reader that has nothing to do needs a buffer; while all are busy, one of them will be done next.
                is_idle = self._reading < len(self._threads)
                if (is_idle or len(self._threads) < self._readers) and self._grow():
                    continue
                if is_idle and self._freed():
                    continue
                return self._filled.get()

    def _grow(self) -> bool:
        """Add a buffer to the ring, and a reader if there may be one more; False if it may not grow, or need not.

        It grows while nothing else is to be done, as it takes a while to start a thread and longer to pin memory.
        """
        index = len(self._buffers)
        if index >= self._most_buffers:
            return False
        self._buffers.append(self._carrier.buffer(index))
        if not self._assign(index):
            return False
        if len(self._threads) < self._readers:
            self._start_reader()
        return True

    def _start_reader(self) -> None:
        thread = Thread(target=self._read, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads; one is enough
            self._threads.pop()
            self._readers = len(self._threads)
            if not self._threads:
                raise

    def _freed(self) -> bool:
        """Wait for the buffers that were sent first, and have pieces read into them; False if none is on its way."""
        if not self._in_flight:
            return False
        ticket, indices = self._in_flight.popleft()
        ticket.synchronize()
        for index in indices:
            self._assign(index)
        return True

    def _assign(self, index: int) -> bool:
        """Have the next piece read into a buffer; False if there is none."""
        piece = next(self._pieces, None)
        if piece is None:
            self._most_buffers = 0  # nobody needs more of them
            return False
        self._reading += 1
        self._jobs.put((index, piece))
        return True

    def _issue(self, batch: Sequence[_Job]) -> None:
        """Hand a batch to its landings, and have the buffers filled again whose copies are done."""
        carrier, in_flight = self._carrier, self._in_flight
        carrier.begin()
        for index, piece in batch:
            memory = carrier.memory(index)
            first = piece.offset % PAGE
            for start, length, landing, place, _ in piece.parts:
                landing.land(memory[first + start : first + start + length], place)
                self._landed += length
        in_flight.append((carrier.sent(), [index for index, _ in batch]))
        while in_flight and in_flight[0][0].query():
            for index in in_flight.popleft()[1]:
                self._assign(index)


def _join(threads: Sequence[Thread]) -> None:
    """Wait for threads; one that still reads would write into a buffer that is somebody else's by then."""
    interrupted: KeyboardInterrupt | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt as error:  # raised again when nobody reads any more: a few milliseconds
                interrupted = error
    if interrupted is not None:
        raise interrupted
