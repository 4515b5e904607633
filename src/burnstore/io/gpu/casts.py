"""Casts on a device: values that arrived there become those of the target's dtype.

Processors and GPUs agree on numbers but not on NaNs: each keeps, drops or sets other bits of them. So a cast works on
bits:

    TableCast    elements of 8 or 16 bits are looked up in a table of all bit patterns, which the host has made
    ShiftCast    elements that are the upper half of the new ones
    NativeCast   wider elements without a NaN, as a first pass has shown: torch's own conversion

A cast needs a few megabytes of scratch memory: longer values are cast in parts.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..sizes import GPU_CAST_BYTES
from ..source import Array

MAX_CAST = GPU_CAST_BYTES // 12
"""The most elements that `Cast.cast` takes: each needs an index of 4 bytes, and up to 8 for its result."""

_INDEX_BYTES = 4
_WIDEST = 8  # an address that suits elements of this width suits all

Torch = Any
"""The torch package."""

Tensor = Any
"""A torch.Tensor on the device."""


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
