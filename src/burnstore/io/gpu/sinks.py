"""Sinks: where bytes of a file end in the memory of a device, and what happens to them on arrival.

`DirectSink` copies bytes unchanged, `NewSink` into memory that it makes. The others go through staging memory on the
device: `RowsSink` fills a tensor of other strides (a transposed one) or of another dtype, `ScatterSink` many small
tensors from one range. `MinMaxSink` keeps nothing: it finds the bounds of the values.

Processors and GPUs agree on numbers but not on NaNs: each keeps, drops or sets other bits of them. So a cast on the
device works on bits: `TableCast` looks elements of 8 or 16 bits up in a table of all bit patterns, which the host has
made; `ShiftCast` is for elements that are the upper half of the new ones; `NativeCast` is torch's own conversion, for
wider elements without a NaN, as a first pass has shown. A cast needs a few megabytes of scratch memory: longer values
are cast in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..sizes import GPU_CAST_BYTES
from ..source import Array
from .staging import Tensor, TensorStaging, Torch

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
    """The least and the greatest of the values that arrive, and the smallest size other than 0 where it is wanted.

    With spans only these bytes of the range count, which then is a single unit.
    """

    staging: TensorStaging
    dtype: Any
    spans: Sequence[tuple[int, int]] = ()
    finds_smallest: bool = False
    found: list[Tensor] = field(default_factory=list)
    """The least and the greatest value of each write; NaN if there is one."""

    smallest: list[Tensor] = field(default_factory=list)
    """The smallest size other than 0 of each slice; infinity if all are 0."""

    def write(self, memory: Tensor, offset: int) -> None:
        torch, staged = self.staging.torch, self.staging.stage(memory)
        if self.spans:
            staged = torch.cat([staged[first:last] for first, last in self.spans])
        values = staged.view(self.dtype)
        self.found += torch.aminmax(values)
        for part in values.split(_SLICE) if self.finds_smallest else ():
            sizes = part.abs()
            self.smallest.append(sizes.masked_fill_(sizes == 0, float("inf")).amin())


_SLICE = 2 << 20  # elements: their sizes take at most 16 MB, and as bools 2 MB
MAX_CAST = GPU_CAST_BYTES // 12
"""The most elements that `Cast.cast` takes: each needs an index of 4 bytes, and up to 8 for its result."""

_INDEX_BYTES = 4
_WIDEST = 8  # an address that suits elements of this width suits all


class Cast(Protocol):
    """A conversion from one dtype to another."""

    given: Any
    """The torch dtype by which the values are viewed."""

    held: Any
    """The torch dtype by which the memory of the target is viewed."""

    def fill(self, target: Tensor, values: Tensor, scratch: Tensor) -> None:
        """Fill a tensor of any strides with contiguous values of its shape; no row may have more than `MAX_CAST`."""

    def cast(self, values: Tensor, scratch: Tensor) -> Tensor:
        """Return flat values, at most `MAX_CAST`, as the target holds them, in the scratch memory."""


class NativeCast:
    """Torch's own conversion, which gives the same numbers everywhere: it rounds to nearest even."""

    __slots__ = ("given", "held")

    def __init__(self, given: Any, held: Any) -> None:
        self.given = given
        self.held = held

    def fill(self, target: Tensor, values: Tensor, scratch: Tensor) -> None:
        target.copy_(values)

    def cast(self, values: Tensor, scratch: Tensor) -> Tensor:
        return _elements(scratch, self.held, len(values)).copy_(values)


class ShiftCast:
    """Values of 16 bits that are the upper half of 32: BF16 to F32."""

    __slots__ = ("_half", "_torch", "given", "held")

    def __init__(self, torch: Torch, device: Any) -> None:
        self.given = torch.int16
        self.held = torch.int32
        self._torch = torch
        self._half = torch.full((1,), 16, dtype=torch.int32, device=device)  # its dtype is that of the result

    def fill(self, target: Tensor, values: Tensor, scratch: Tensor) -> None:
        self._torch.bitwise_left_shift(values, self._half, out=target)

    def cast(self, values: Tensor, scratch: Tensor) -> Tensor:
        found = _elements(scratch, self.held, len(values))
        self.fill(found, values, scratch)
        return found


class TableCast:
    """Values of 8 or 16 bits, looked up in a table that has the result of every bit pattern, in their order."""

    __slots__ = ("_first", "_table", "_torch", "given", "held")

    def __init__(self, torch: Torch, device: Any, table: Array) -> None:
        is_byte = len(table) == 1 << 8
        self._torch = torch
        self._table = torch.from_numpy(table).to(device)
        if not is_byte:  # torch's int16 is signed: the table begins with the lowest one
            self._table = self._table.roll(1 << 15)
        self._first = torch.full((1,), 0 if is_byte else 1 << 15, dtype=torch.int32, device=device)
        self.given = torch.uint8 if is_byte else torch.int16
        self.held = self._table.dtype

    def fill(self, target: Tensor, values: Tensor, scratch: Tensor) -> None:
        row = max(values[:1].numel(), 1)
        height = max((GPU_CAST_BYTES - _WIDEST) // (_INDEX_BYTES + self.held.itemsize) // row, 1)
        for rows, part in zip(target.split(height), values.split(height), strict=True):
            if rows.is_contiguous():
                self._look_up(part, scratch, rows.view(-1))
            else:
                rows.copy_(self.cast(part, scratch).view(rows.shape))

    def cast(self, values: Tensor, scratch: Tensor) -> Tensor:
        count = values.numel()
        found = _elements(scratch[-(-count * _INDEX_BYTES // _WIDEST) * _WIDEST :], self.held, count)
        self._look_up(values, scratch, found)
        return found

    def _look_up(self, values: Tensor, scratch: Tensor, found: Tensor) -> None:
        torch = self._torch
        index = _elements(scratch, torch.int32, values.numel())
        torch.add(values.view(-1), self._first, out=index)
        torch.index_select(self._table, 0, index, out=found)


def _elements(scratch: Tensor, dtype: Any, count: int) -> Tensor:
    return scratch[: count * dtype.itemsize].view(dtype)
