"""Fetch bytes from the memory of a device to the host, a staging buffer at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .buffers import CopyEvent, lend

Tensor = Any
"""A flat torch.Tensor of bytes."""

# A caller that collects many small chunks before it writes them would hold a pinned buffer for each.
_WORTH_PINNING = 1 << 20


def fetched(
    pieces: Iterable[Tensor], pin: Callable[[int], Tensor], record: Callable[[Tensor], CopyEvent]
) -> Iterator[memoryview]:
    """Yield the bytes of pieces, each no longer than a buffer; while the caller has one, the next is on the bus.

    ``pin`` makes a buffer; ``record`` returns an event after the copies that were started from a tensor's device. The
    caller may keep what it gets; its buffer is used again when it is gone.
    """
    started: deque[tuple[memoryview, CopyEvent | None]] = deque()
    try:
        for piece in pieces:
            started.append(_start(piece, pin, record))
            if len(started) > 1:
                yield _finish(started)
        while started:
            yield _finish(started)
    finally:
        while started:  # a buffer that is still being written must not be lent again
            _finish(started)


def _start(
    piece: Tensor, pin: Callable[[int], Tensor], record: Callable[[Tensor], CopyEvent]
) -> tuple[memoryview, CopyEvent | None]:
    if len(piece) < _WORTH_PINNING:
        return memoryview(piece.cpu().numpy()), None
    buffer, memory = lend(pin)
    buffer[: len(piece)].copy_(piece, non_blocking=True)
    return memory[: len(piece)], record(piece)


def _finish(started: deque[tuple[memoryview, CopyEvent | None]]) -> memoryview:
    memory, event = started[0]
    if event is not None:
        event.synchronize()
    started.popleft()
    return memory
