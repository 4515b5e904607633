"""Engine: ranges of sources, carried through a ring of buffers to where they are to land.

    readers   read the next pieces of the plan into free buffers, many at a time (`burnstore.io.gpu.readers`)
    issuer    the caller's own thread, so that Ctrl-C reaches it and the GPU's context is its own: hands what was read
              to the landings, which start their copies, and has buffers filled again whose copies are done

The engine knows nothing of formats, tensors or GPUs: a `Carrier` has the buffers and says when one is free again, a
`Landing` copies out of them. What is done per piece is little, and what can be done once per file is done at the end.

When `carry` returns or raises, nobody reads, every copy that was started is done, and the buffers are back with the
carrier. `carrying` is the same for who has something to do while the last pieces are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

from ..pages import PAGE, ReadsPages
from .chunks import Memory, Range, by_source, cut
from .readers import Filled, Readers, readers_for

# Pieces that were read meanwhile are handed on together: what is called for all of them at once is called less often.
_MOST_AT_ONCE = 4


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


def carry(ranges: Iterable[Range], carrier: Carrier, *, readers: int) -> None:
    """Bring all ranges to their landings; the first failure, of a reader or of a landing, is raised here.

    >>> from burnstore.io.gpu.transfer import HostCarrier
    >>> from burnstore.io.source import BytesSource
    >>> class Print:
    ...     def land(self, memory, place):
    ...         print(place, bytes(memory))
    >>> source = BytesSource(b"some bytes")
    >>> carry([Range(source, 0, 4, Print()), Range(source, 5, 5, Print())], HostCarrier(), readers=2)
    0 b'some'
    0 b'bytes'
    """
    with carrying(ranges, carrier, readers=readers):
        pass


@contextmanager
def carrying(ranges: Iterable[Range], carrier: Carrier, *, readers: int) -> Iterator[None]:
    """In the block all that there was to read is there or being read; after it all has arrived, as after `carry`."""
    groups = by_source(ranges)
    if not groups:
        yield
        return
    with carrier:
        transfer = _Transfer(groups, carrier, readers)
        try:
            transfer.begin()
            yield
            transfer.finish()
        finally:
            transfer.close()


class _Transfer:
    """One run of the engine, in the issuer's thread."""

    def __init__(self, groups: Sequence[Sequence[Range]], carrier: Carrier, readers: int) -> None:
        self._carrier = carrier
        self._sources = [group[0].source for group in groups]
        self._nbytes = sum(range_.length for group in groups for range_ in group)
        self._most_buffers = min(carrier.most_buffers, self._nbytes // carrier.buffer_bytes + 2)
        self._readers: Readers = readers_for(self._sources, readers, carrier.buffer_bytes)
        self._pieces = cut(groups, carrier.buffer_bytes)
        self._next = next(self._pieces, None)
        self._buffers: list[memoryview] = []
        self._free: list[int] = []
        self._reading = 0
        self._landed = 0
        self._in_flight: deque[tuple[Ticket, list[int]]] = deque()
        self._patient_until = 0.0

    def begin(self) -> None:
        """Carry until nothing is left that is not at least being read."""
        self._grow()
        while self._next is not None:
            self._go_on()

    def finish(self) -> None:
        """Hand on what was still being read; the last copies may end after the return."""
        while self._reading:
            self._go_on()
        if self._landed != self._nbytes:
            raise AssertionError(f"{self._landed} of {self._nbytes} bytes were carried")
        for source in self._sources:
            if isinstance(source, ReadsPages):
                source.check_unchanged()

    def close(self) -> None:
        """Return when nobody reads any more."""
        self._readers.close()

    def _go_on(self) -> None:
        found = self._readers.finished(_MOST_AT_ONCE)
        if found:
            self._issue(found)
        if self._refill() or found:
            self._patient_until = perf_counter() + self._readers.patience
        elif self._has_no_patience():
            self._wait()

    def _issue(self, batch: Sequence[Filled]) -> None:
        """Hand what was read to its landings."""
        carrier = self._carrier
        self._reading -= len(batch)
        carrier.begin()
        for index, piece in batch:
            memory = carrier.memory(index)
            first = piece.offset % PAGE
            for start, length, landing, place, _ in piece.parts:
                landing.land(memory[first + start : first + start + length], place)
                self._landed += length
        self._in_flight.append((carrier.sent(), [index for index, _ in batch]))

    def _refill(self) -> bool:
        """Take back the buffers whose copies are done, and have the next pieces read; False if there was nothing to do.

        The buffer that came last is used first: it is the one that is still in the processor's cache.
        """
        in_flight, readers = self._in_flight, self._readers
        is_done = bool(in_flight) and in_flight[0][0].query()
        if is_done:
            self._free += in_flight.popleft()[1]
        while readers.under_way < readers.ahead and self._free and self._begin(self._free[-1]):
            self._free.pop()
        return is_done or (readers.under_way < readers.ahead and self._grow())

    def _grow(self) -> bool:
        """Add a buffer to the ring, and have a piece read into it; False if it may not grow, or need not.

        One at a time, as it takes a while to pin memory.
        """
        index = len(self._buffers)
        if index >= self._most_buffers or self._next is None:
            return False
        self._buffers.append(self._carrier.buffer(index))
        return self._begin(index)

    def _begin(self, index: int) -> bool:
        """Have the next piece read into a buffer; False if there is none."""
        piece = self._next
        if piece is None:
            return False
        self._readers.begin(index, piece, self._buffers[index])
        self._reading += 1
        self._next = next(self._pieces, None)
        return True

    def _has_no_patience(self) -> bool:
        return perf_counter() >= self._patient_until

    def _wait(self) -> None:
        """Wait for the buffers that were sent first, if readers could use them; otherwise for what is read next."""
        if self._in_flight and self._readers.under_way < self._readers.workers:
            self._in_flight[0][0].synchronize()
        else:
            found = self._readers.finished(_MOST_AT_ONCE, wait=True)
            if found:
                self._issue(found)
