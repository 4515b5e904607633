"""Sinks: where bytes of a file end in the memory of a device, and what happens to them on arrival.

`DirectSink` copies bytes unchanged, `NewSink` into memory that it makes. The others go through staging memory on the
device: `RowsSink` fills a tensor of other strides (a transposed one) or of another dtype, `ScatterSink` many small
tensors from one range. `MinMaxSink` keeps nothing: it finds the bounds of the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .casts import Cast
from .staging import Tensor, TensorStaging

_MADE_BYTES = 256 << 20


class NewSink:
    """New memory on the device, made when the first byte arrives: readers are at work by then.

    It is made together with that of the next sinks, some hundred megabytes at a time: one by one takes longer.
    """

    __slots__ = ("_memory", "_nbytes", "_next", "_skipped", "_staging")

    def __init__(self, staging: TensorStaging, nbytes: int, skipped: int = 0, before: NewSink | None = None) -> None:
        self._staging = staging
        self._nbytes = nbytes
        self._skipped = skipped
        self._memory: Tensor | None = None
        self._next: NewSink | None = None
        if before is not None:
            before._next = self

    def write(self, memory: Tensor, offset: int) -> None:
        at = offset + self._skipped
        self._staging.copy(self.memory[at : at + memory.numel()], memory)

    @property
    def memory(self) -> Tensor:
        """The bytes; offset 0 of the sink comes after the skipped ones."""
        if self._memory is None:
            made = list(self._due())
            for sink, memory in zip(made, self._staging.empty([sink._nbytes for sink in made]), strict=True):
                sink._memory = memory
        return self._memory

    def _due(self) -> Iterator[NewSink]:
        sink: NewSink | None = self
        left = _MADE_BYTES
        while sink is not None and sink._memory is None and (left >= sink._nbytes or sink is self):
            yield sink
            left -= sink._nbytes
            sink = sink._next


@dataclass(slots=True, eq=False)
class DirectSink:
    """The memory of an existing tensor, as a flat tensor of bytes."""

    staging: TensorStaging
    target: Tensor

    def write(self, memory: Tensor, offset: int) -> None:
        self.staging.copy(self.target[offset : offset + memory.numel()], memory)


@dataclass(slots=True, eq=False)
class RowsSink:
    """A tensor of any strides, filled by whole rows of its first axis; with a cast by values of another dtype."""

    staging: TensorStaging
    target: Tensor
    row_bytes: int
    cast: Cast | None = None

    def write(self, memory: Tensor, offset: int) -> None:
        first = offset // self.row_bytes
        rows = self.target[first : first + memory.numel() // self.row_bytes]
        if self.cast is None:
            self.staging.copy_rows(rows, memory, self.target.dtype)
        else:
            values = self.staging.stage(memory).view(self.cast.given).view(rows.shape)
            self.cast.fill(rows, values, self.staging.scratch())


@dataclass(slots=True, eq=False)
class ScatterSink:
    """Contiguous tensors that are near each other in the file; gaps between them are dropped on the device.

    A place is the byte at which the values of a target begin. The range is a single unit: all bytes come together.
    With a cast the whole range is cast, so places must be multiples of an element's width.
    """

    staging: TensorStaging
    targets: Sequence[Tensor]
    places: Sequence[int]
    cast: Cast | None = None

    def write(self, memory: Tensor, offset: int) -> None:
        staged = self.staging.stage(memory)
        if self.cast is not None:
            self._write_cast(staged, self.cast)
            return
        batches: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        typed: dict[Any, Tensor] = {}
        for target, at in zip(self.targets, self.places, strict=True):
            dtype = target.dtype
            width = target.element_size()
            if at % width:  # no view of the staged bytes can begin here
                values = staged[at : at + target.nbytes].clone().view(dtype).view(target.shape)
            else:
                seen = typed.get(dtype)
                if seen is None:
                    seen = typed[dtype] = staged[: staged.numel() // width * width].view(dtype)
                values = seen.as_strided(target.shape, target.stride(), seen.storage_offset() + at // width)
            into, given = batches.setdefault(dtype, ([], []))
            into.append(target)
            given.append(values)
        for into, given in batches.values():
            self.staging.torch._foreach_copy_(into, given)

    def _write_cast(self, staged: Tensor, cast: Cast) -> None:
        width = cast.given.itemsize
        values = cast.cast(staged.view(cast.given), self.staging.scratch())
        first = values.storage_offset()
        given = [
            values.as_strided(target.shape, target.stride(), first + at // width)
            for target, at in zip(self.targets, self.places, strict=True)
        ]
        self.staging.torch._foreach_copy_(self.targets, given)


@dataclass(slots=True, eq=False)
class MinMaxSink:
    """The least and the greatest of the values that arrive.

    With spans only these bytes of the range count, which then is a single unit.
    """

    staging: TensorStaging
    dtype: Any
    spans: Sequence[tuple[int, int]] = ()
    found: list[Tensor] = field(default_factory=list)
    """The least and the greatest value of each write; NaN if there is one."""

    def write(self, memory: Tensor, offset: int) -> None:
        torch, staged = self.staging.torch, self.staging.stage(memory)
        if self.spans:
            staged = torch.cat([staged[first:last] for first, last in self.spans])
        self.found += torch.aminmax(staged.view(self.dtype))
