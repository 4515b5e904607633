"""Fetching: bytes from the memory of a device to the host, a buffer at a time; the way back of the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from .buffers import lent

Tensor = Any
"""A flat torch.Tensor of bytes."""

Each = TypeVar("Each")

# Whoever takes many small chunks before it writes them would hold a pinned buffer for each.
_WORTH_PINNING = 1 << 20


class Arrival(Protocol):
    """The end of a copy."""

    def synchronize(self) -> None:
        """Return when it is there."""


def fetched(
    pieces: Iterable[Tensor], pin: Callable[[int], Tensor], arrival: Callable[[Tensor], Arrival]
) -> Iterator[memoryview]:
    """The bytes of pieces, each no longer than a buffer: while one is in the caller's hands, the next is on the bus.

    ``pin`` makes a buffer; ``arrival`` tells of the copies that were started from a tensor's device until now. What is
    handed out may be kept; its buffer is used again when it is gone.
    """
    coming: deque[tuple[memoryview, Arrival | None]] = deque()
    try:
        for piece in pieces:
            coming.append(_started(piece, pin, arrival))
            if len(coming) > 1:
                yield _awaited(coming)
        while coming:
            yield _awaited(coming)
    finally:
        while coming:  # a buffer that is still being written must not be lent again
            _awaited(coming)


def together(tensors: Sequence[Each], nbytes: Callable[[Each], int], most: int) -> Iterator[list[Each]]:
    """Tensors in their order, as many at a time as have no more than so many bytes in all, and at least one.

    >>> list(together(["one", "two", "three", "four"], len, 6))
    [['one', 'two'], ['three'], ['four']]
    """
    batch: list[Each] = []
    room = most
    for tensor in tensors:
        room -= nbytes(tensor)
        if batch and room < 0:
            yield batch
            batch, room = [], most - nbytes(tensor)
        batch.append(tensor)
    if batch:
        yield batch


def _started(
    piece: Tensor, pin: Callable[[int], Tensor], arrival: Callable[[Tensor], Arrival]
) -> tuple[memoryview, Arrival | None]:
    if len(piece) < _WORTH_PINNING:
        return memoryview(piece.cpu().numpy()), None
    buffer, memory = lent(pin)
    buffer[: len(piece)].copy_(piece, non_blocking=True)
    return memory[: len(piece)], arrival(piece)


def _awaited(coming: deque[tuple[memoryview, Arrival | None]]) -> memoryview:
    memory, arrival = coming[0]
    if arrival is not None:
        arrival.synchronize()
    coming.popleft()
    return memory
