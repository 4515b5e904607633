"""Staging: rings of host buffers from which bytes are copied to a GPU.

`CudaStaging` has two streams. One is the bus: all copies, one after the other, as copies of several streams that take
turns are sometimes three times as slow. The other runs what a sink does on the device after a copy (a transposition, a
cast), beside the next copies. Staging memory on the device has two halves: while one is worked on, the other is filled.
Both streams begin after everything that the caller's stream was given before, and are awaited at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..sizes import GPU_CAST_BYTES, GPU_STAGING_BYTES
from .buffers import POOL, CopyEvent, TransferSettings, page_aligned, transfer_settings

_MAX_STAGED = 4  # chunks that are copied into one half of the staging memory

Torch = Any
"""The torch package, which this package gets from its callers and does not import."""

Tensor = Any
"""A torch.Tensor."""


class HostStaging:
    """A ring of buffers in plain memory whose copies are done when they are started: what a GPU's ring is on a CPU.

    It is entered before a transfer and left after it. Leaving waits for all copies that were started, also after a
    failure; then others may use the buffers.
    """

    def __init__(self, settings: TransferSettings | None = None) -> None:
        settings = transfer_settings() if settings is None else settings
        self.buffer_bytes = settings.buffer_bytes
        self.max_buffers = settings.buffers
        self.readers = settings.readers
        self._buffers: list[memoryview] = []

    def buffer(self, index: int) -> memoryview:
        """Return the memory of a new buffer, which begins at a page; called with 0, 1, 2 in turn."""
        self._buffers.append(memoryview(page_aligned(self.buffer_bytes)))
        return self._buffers[index]

    def begin_batch(self) -> None:
        """Begin a batch of copies."""

    def memory(self, index: int) -> Any:
        """Return a whole buffer, for sinks to copy from."""
        return self._buffers[index]

    def end_batch(self) -> CopyEvent:
        """Start the copies of the batch that are not started yet, and return their end."""
        return self

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def __enter__(self) -> HostStaging:
        return self

    def __exit__(self, *_: object) -> None:
        self._buffers.clear()


class TensorStaging(HostStaging):
    """A ring for torch tensors on the CPU."""

    def __init__(self, torch: Torch, device: Any, settings: TransferSettings | None = None) -> None:
        super().__init__(settings)
        self.torch = torch
        self.device = device

    def memory(self, index: int) -> Tensor:
        return self.torch.frombuffer(self._buffers[index], dtype=self.torch.uint8)

    def copy(self, target: Tensor, memory: Tensor) -> None:
        """Copy bytes of a buffer into memory of the device, before the batch ends."""
        target.copy_(memory)

    def empty(self, sizes: Sequence[int]) -> list[Tensor]:
        """Return new memory on the device, of these sizes, that sinks of this transfer may copy into."""
        return [self.torch.empty(nbytes, dtype=self.torch.uint8, device=self.device) for nbytes in sizes]

    def copy_rows(self, rows: Tensor, memory: Tensor, dtype: Any) -> None:
        """Fill rows of a tensor of any strides with elements of this dtype, before the batch ends."""
        rows.copy_(_shaped(memory.clone(), dtype, tuple(rows.shape[1:]))[: rows.shape[0]])

    def stage(self, memory: Tensor) -> Tensor:
        """Return the bytes on the device; they stay there until others are staged."""
        return memory.clone()

    def scratch(self) -> Tensor:
        """Return memory on the device for casts; it is valid as long as what is staged."""
        return self.empty([GPU_CAST_BYTES])[0]


def _shaped(memory: Tensor, dtype: Any, row_shape: tuple[int, ...]) -> Tensor:
    """View memory as rows of elements, as many whole ones as it has."""
    row_bytes = dtype.itemsize * math.prod(row_shape)
    return memory[: memory.numel() // row_bytes * row_bytes].view(dtype).view(-1, *row_shape)


class _Copies:
    """Copies that are started with one call."""

    __slots__ = ("_sources", "_targets")

    def __init__(self) -> None:
        self.clear()

    def add(self, target: Tensor, source: Tensor) -> None:
        self._targets.append(target)
        self._sources.append(source)

    def start(self, torch: Torch) -> None:
        if self._targets:
            torch._foreach_copy_(self._targets, self._sources, non_blocking=True)
            self.clear()

    def clear(self) -> None:
        self._targets: list[Tensor] = []
        self._sources: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._targets)


class CudaStaging(TensorStaging):
    """A ring in pinned memory for a GPU of CUDA or ROCm."""

    def __init__(self, torch: Torch, device: Any, settings: TransferSettings | None = None) -> None:
        super().__init__(torch, device, settings)
        self._pinned: list[tuple[Tensor, int]] = []
        self._copies = _Copies()
        self._staged_copies = _Copies()
        self._staged_rows = _Copies()
        self._staging: tuple[list[Tensor], list[Tensor]] = [], []
        self._scratch: Tensor | None = None
        self._max_staged = max(min(_MAX_STAGED, GPU_STAGING_BYTES // self.buffer_bytes // 2), 1)
        self._shaped: dict[tuple[Any, ...], Tensor] = {}
        self._half = 0
        self._worked: list[Any] = [None, None]  # when the content of each half was worked on
        self._is_worked_on = False
        self._callers: Any = None

    def buffer(self, index: int) -> memoryview:
        self._pinned.append(POOL.take(self._pin))
        return memoryview(self._pinned[index][0].numpy())

    def _pin(self, nbytes: int) -> Tensor:
        return self.torch.empty(nbytes, dtype=self.torch.uint8, device="cpu", pin_memory=True)

    def begin_batch(self) -> None:
        self.torch.cuda.set_stream(self._bus)

    def memory(self, index: int) -> Tensor:
        return self._pinned[index][0]

    def copy(self, target: Tensor, memory: Tensor) -> None:
        self._copies.add(target, memory)

    def copy_rows(self, rows: Tensor, memory: Tensor, dtype: Any) -> None:
        self._end_work()
        if len(self._staged_copies) == self._max_staged:
            self._start_rows()
        slot = len(self._staged_copies)
        staging = self._staging_slot(slot)
        shape = rows.shape
        key = self._half, slot, dtype, shape[1:]
        shaped = self._shaped.get(key)
        if shaped is None:
            shaped = self._shaped[key] = _shaped(staging, dtype, tuple(shape[1:]))
        nbytes, count = memory.numel(), shape[0]  # a slice costs a call: none where all is taken
        self._staged_copies.add(staging if nbytes == self.buffer_bytes else staging[:nbytes], memory)
        self._staged_rows.add(rows, shaped if count == shaped.shape[0] else shaped[:count])

    def stage(self, memory: Tensor) -> Tensor:
        self._start()
        staged = self._staging_slot(0)[: memory.numel()]
        self._await_half()
        staged.copy_(memory, non_blocking=True)
        self._begin_work()
        return staged

    def scratch(self) -> Tensor:
        if self._scratch is None:
            (self._scratch,) = self.empty([GPU_CAST_BYTES])
        return self._scratch

    def end_batch(self) -> CopyEvent:
        self._start()
        event = self.torch.cuda.Event(blocking=True)  # one that spins would take a reader's processor
        event.record(self._bus)
        done: CopyEvent = event
        return done

    def _start(self) -> None:
        """Start all copies that were asked for."""
        self._end_work()
        self._copies.start(self.torch)
        self._start_rows()

    def _start_rows(self) -> None:
        if self._staged_copies:
            self._await_half()
            self._staged_copies.start(self.torch)
            self._begin_work()
            self._staged_rows.start(self.torch)
            self._end_work()

    def _staging_slot(self, slot: int) -> Tensor:
        slots = self._staging[self._half]
        if slot == len(slots):
            slots += self.empty([self.buffer_bytes])
        return slots[slot]

    def _await_half(self) -> None:
        """Let the bus wait until this half may be filled again."""
        if self._worked[self._half] is not None:
            self._bus.wait_event(self._worked[self._half])

    def _begin_work(self) -> None:
        """Switch to the stream that works on what the bus brings into this half."""
        self._work.wait_event(self._bus.record_event())
        self.torch.cuda.set_stream(self._work)
        self._is_worked_on = True

    def _end_work(self) -> None:
        """Switch back to copies, and to the other half if this one was worked on."""
        if not self._is_worked_on:
            return
        self._worked[self._half] = self._work.record_event()
        self.torch.cuda.set_stream(self._bus)
        self._is_worked_on = False
        self._half ^= 1

    def empty(self, sizes: Sequence[int]) -> list[Tensor]:
        """Return new memory that belongs to the caller's stream, as all that the caller makes: it can be freed anytime.

        Whatever that stream did with the memory before must be over when ours begin to fill it.
        """
        torch = self.torch
        if self._callers is None:  # outside of a transfer no stream fills it
            return TensorStaging.empty(self, sizes)
        ours = torch.cuda.current_stream()
        torch.cuda.set_stream(self._callers)
        try:
            made = TensorStaging.empty(self, sizes)
            free = self._callers.record_event()
        finally:
            torch.cuda.set_stream(ours)
        for stream in (self._bus, self._work):
            stream.wait_event(free)
        return made

    def __enter__(self) -> CudaStaging:
        cuda = self.torch.cuda
        self._selected = cuda.device(self.device)
        self._selected.__enter__()
        self._callers = cuda.current_stream()
        self._bus, self._work = cuda.Stream(), cuda.Stream()
        for stream in (self._bus, self._work):
            stream.wait_stream(self._callers)
        return self

    def __exit__(self, *failure: object) -> None:
        idle = False
        try:
            self._synchronize()
            idle = True
        finally:
            self.torch.cuda.set_stream(self._callers)
            self._callers = None
            self._selected.__exit__(*failure)
            self._staging = [], []
            self._scratch = None
            self._shaped.clear()
            self._worked = [None, None]
            self._is_worked_on = False
            for copies in (self._copies, self._staged_copies, self._staged_rows):
                copies.clear()
            for pinned, generation in self._pinned:
                POOL.give_back(pinned if idle else None, generation)  # a broken GPU may still read a buffer
            self._pinned.clear()

    def _synchronize(self) -> None:
        try:
            self._bus.synchronize()
            self._work.synchronize()
        except BaseException:  # of a signal, for example: memory that is being copied into must not be freed
            self._bus.synchronize()
            self._work.synchronize()
            raise
