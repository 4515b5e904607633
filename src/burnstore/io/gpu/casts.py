"""Casts: values that arrived on a device, turned there into the dtype of the tensor that they are for.

A CPU and a GPU agree on numbers and not on NaNs: each keeps, drops or sets other bits of them. So a cast works on bits:

    Tabled    elements of 8 or 16 bits are looked up in a table of all of them, which the host has made
    Shifted   elements that are the upper half of the new ones
    Native    wider elements, among which there is no NaN, as a look at them has shown: torch's own conversion

What a cast needs beside the values is scratch memory, some megabytes: longer ones are cast in pieces.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..source import Array

SCRATCH_BYTES = 6 << 20
"""How much memory a cast may use, beside that of the values and of the target."""

AT_ONCE = SCRATCH_BYTES // 12
"""How many elements `Cast.cast` takes at most: each needs an index of 4 bytes, and 8 for what it becomes."""

_INDEX_BYTES = 4
_WIDEST = 8  # where elements of this width may begin, all can

Torch = Any
"""The torch package."""

Tensor = Any
"""A torch.Tensor on the device."""


class Cast(Protocol):
    """What makes values of one dtype those of another."""

    given: Any
    """The torch dtype as which the values are seen."""

    held: Any
    """The torch dtype as which the memory of the target is seen."""

    def fill(self, target: Tensor, values: Tensor, scratch: Tensor) -> None:
        """Fill a tensor of any strides with contiguous values of its shape; no row may have more than `AT_ONCE`."""

    def cast(self, values: Tensor, scratch: Tensor) -> Tensor:
        """Flat values as they will be held, in the scratch memory; `AT_ONCE` of them at most."""


class Native:
    """Torch's own conversion, which is the same everywhere for numbers: it rounds to nearest even, as all do."""

    __slots__ = ("given", "held")

    def __init__(self, given: Any, held: Any) -> None:
        self.given = given
        self.held = held

    def fill(self, target: Tensor, values: Tensor, scratch: Tensor) -> None:
        target.copy_(values)

    def cast(self, values: Tensor, scratch: Tensor) -> Tensor:
        return _room(scratch, self.held, len(values)).copy_(values)


class Shifted:
    """Values of 16 bits that are the upper half of 32: a float of BF16 in one of F32."""

    __slots__ = ("_half", "_torch", "given", "held")

    def __init__(self, torch: Torch, device: Any) -> None:
        self.given = torch.int16
        self.held = torch.int32
        self._torch = torch
        self._half = torch.full((1,), 16, dtype=torch.int32, device=device)  # of this dtype, so will be the result

    def fill(self, target: Tensor, values: Tensor, scratch: Tensor) -> None:
        self._torch.bitwise_left_shift(values, self._half, out=target)

    def cast(self, values: Tensor, scratch: Tensor) -> Tensor:
        found = _room(scratch, self.held, len(values))
        self.fill(found, values, scratch)
        return found


class Tabled:
    """Values of 8 or 16 bits, looked up. The table has what becomes of every bit pattern, in the order of these."""

    __slots__ = ("_first", "_table", "_torch", "given", "held")

    def __init__(self, torch: Torch, device: Any, table: Array) -> None:
        is_byte = len(table) == 1 << 8
        self._torch = torch
        self._table = torch.from_numpy(table).to(device)
        if not is_byte:  # torch counts from the lowest of signed integers
            self._table = self._table.roll(1 << 15)
        self._first = torch.full((1,), 0 if is_byte else 1 << 15, dtype=torch.int32, device=device)
        self.given = torch.uint8 if is_byte else torch.int16
        self.held = self._table.dtype

    def fill(self, target: Tensor, values: Tensor, scratch: Tensor) -> None:
        row = max(values[:1].numel(), 1)
        height = max((SCRATCH_BYTES - _WIDEST) // (_INDEX_BYTES + self.held.itemsize) // row, 1)
        for rows, part in zip(target.split(height), values.split(height), strict=True):
            if rows.is_contiguous():
                self._look_up(part, scratch, rows.view(-1))
            else:
                rows.copy_(self.cast(part, scratch).view(rows.shape))

    def cast(self, values: Tensor, scratch: Tensor) -> Tensor:
        count = values.numel()
        found = _room(scratch[-(-count * _INDEX_BYTES // _WIDEST) * _WIDEST :], self.held, count)
        self._look_up(values, scratch, found)
        return found

    def _look_up(self, values: Tensor, scratch: Tensor, found: Tensor) -> None:
        torch = self._torch
        index = _room(scratch, torch.int32, values.numel())
        torch.add(values.view(-1), self._first, out=index)
        torch.index_select(self._table, 0, index, out=found)


def _room(scratch: Tensor, dtype: Any, count: int) -> Tensor:
    """So many elements of scratch memory."""
    return scratch[: count * dtype.itemsize].view(dtype)
