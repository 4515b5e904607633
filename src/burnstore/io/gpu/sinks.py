"""Landings: where bytes of a file end in the memory of a device, and what happens to them on arrival.

`Straight` are bytes that are wanted as they are. The others go through a small staging area on the device: `Rows` are
for a tensor whose memory lies otherwise (transposed, of other strides), `CastRows` for one of another dtype.
`Scattered` are many small tensors that come as one range, and are distributed on the device. `Looks` land nowhere:
they find out between which bounds the values are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from .casts import Cast

SMALL = 1 << 20
"""Tensors below this travel with their neighbours in the file."""

_AT_ONCE = 256 << 20

Tensor = Any
"""A torch.Tensor on the device."""


class TensorCarrier(Protocol):
    """A carrier to a device with tensors."""

    torch: Any

    def copy(self, target: Tensor, memory: Tensor) -> None:
        """Copy bytes of a buffer into memory of the device, before the batch ends."""

    def empty(self, sizes: Sequence[int]) -> list[Tensor]:
        """Fresh memory on the device, of so many bytes each."""

    def copy_rows(self, rows: Tensor, memory: Tensor, dtype: Any) -> None:
        """Fill rows of a tensor with elements of this dtype, whatever its own strides and dtype, as `copy`."""

    def staged(self, memory: Tensor) -> Tensor:
        """The bytes on the device, until the next ones are staged: for what is more than a copy."""

    def scratch(self) -> Tensor:
        """Memory on the device beside what is staged, for casts; as long as that."""


class Fresh:
    """Memory on the device that is made when the first byte arrives: readers are at work by then.

    With it that of the next ones is made, some hundred megabytes in all: one by one takes longer.
    """

    __slots__ = ("_carrier", "_memory", "_nbytes", "_next", "_skipped")

    def __init__(self, carrier: TensorCarrier, nbytes: int, skipped: int = 0, before: Fresh | None = None) -> None:
        self._carrier = carrier
        self._nbytes = nbytes
        self._skipped = skipped
        self._memory: Tensor | None = None
        self._next: Fresh | None = None
        if before is not None:
            before._next = self

    def land(self, memory: Tensor, place: int) -> None:
        at = place + self._skipped
        self._carrier.copy(self.memory[at : at + memory.numel()], memory)

    @property
    def memory(self) -> Tensor:
        """The bytes; the first that lands lies behind those that were to be skipped."""
        if self._memory is None:
            made = list(self._due())
            for fresh, memory in zip(made, self._carrier.empty([fresh._nbytes for fresh in made]), strict=True):
                fresh._memory = memory
        return self._memory

    def _due(self) -> Iterator[Fresh]:
        fresh: Fresh | None = self
        room = _AT_ONCE
        while fresh is not None and fresh._memory is None and (room >= fresh._nbytes or fresh is self):
            yield fresh
            room -= fresh._nbytes
            fresh = fresh._next


class Straight:
    """Memory of a tensor that is there, as a flat tensor of bytes."""

    __slots__ = ("_carrier", "_memory")

    def __init__(self, carrier: TensorCarrier, memory: Tensor) -> None:
        self._carrier = carrier
        self._memory = memory

    def land(self, memory: Tensor, place: int) -> None:
        self._carrier.copy(self._memory[place : place + memory.numel()], memory)


class Rows:
    """A tensor of any strides, filled by whole rows of its first axis."""

    __slots__ = ("_carrier", "_row_bytes", "_target")

    def __init__(self, carrier: TensorCarrier, target: Tensor, row_bytes: int) -> None:
        self._carrier = carrier
        self._target = target
        self._row_bytes = row_bytes

    def land(self, memory: Tensor, place: int) -> None:
        first = place // self._row_bytes
        count = memory.numel() // self._row_bytes
        self._carrier.copy_rows(self._target[first : first + count], memory, self._target.dtype)


class CastRows:
    """A tensor of any strides, filled by whole rows of its first axis with values of another dtype."""

    __slots__ = ("_carrier", "_cast", "_row_bytes", "_target")

    def __init__(self, carrier: TensorCarrier, target: Tensor, cast: Cast, row_bytes: int) -> None:
        self._carrier = carrier
        self._target = target
        self._cast = cast
        self._row_bytes = row_bytes

    def land(self, memory: Tensor, place: int) -> None:
        first = place // self._row_bytes
        rows = self._target[first : first + memory.numel() // self._row_bytes]
        values = self._carrier.staged(memory).view(self._cast.given).view(rows.shape)
        self._cast.fill(rows, values, self._carrier.scratch())


class Scattered:
    """Tensors that lie near each other in the file; what lies between them is dropped on the device.

    A target is a contiguous tensor, and its place the byte at which its values begin. All must come at once: the range
    is a single unit. With a cast all of the range is cast, so all places must be multiples of an element's width.
    """

    __slots__ = ("_carrier", "_cast", "_places", "_targets")

    def __init__(
        self, carrier: TensorCarrier, targets: Sequence[Tensor], places: Sequence[int], cast: Cast | None = None
    ) -> None:
        self._carrier = carrier
        self._targets = targets
        self._places = places
        self._cast = cast

    def land(self, memory: Tensor, place: int) -> None:
        staged = self._carrier.staged(memory)
        if self._cast is not None:
            self._distribute_cast(staged, self._cast)
            return
        batches: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        typed: dict[Any, Tensor] = {}
        for target, at in zip(self._targets, self._places, strict=True):
            dtype = target.dtype
            width = target.element_size()
            if at % width:  # it begins where no such element can
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
            self._carrier.torch._foreach_copy_(into, given)

    def _distribute_cast(self, staged: Tensor, cast: Cast) -> None:
        width = cast.given.itemsize
        values = cast.cast(staged.view(cast.given), self._carrier.scratch())
        first = values.storage_offset()
        given = [
            values.as_strided(target.shape, target.stride(), first + at // width)
            for target, at in zip(self._targets, self._places, strict=True)
        ]
        self._carrier.torch._foreach_copy_(self._targets, given)


class Looks:
    """Values that are looked at on the device, and go nowhere.

    With spans only what lies in these is looked at: bytes from the first to the last of the range, which then is
    a single unit.
    """

    __slots__ = ("_carrier", "_dtype", "_spans", "found")

    def __init__(self, carrier: TensorCarrier, dtype: Any, spans: Sequence[tuple[int, int]] = ()) -> None:
        self._carrier = carrier
        self._dtype = dtype
        self._spans = spans
        self.found: list[Tensor] = []
        """The least and the greatest value of each piece that came; NaN if one is among them."""

    def land(self, memory: Tensor, place: int) -> None:
        torch, staged = self._carrier.torch, self._carrier.staged(memory)
        if self._spans:
            staged = torch.cat([staged[first:last] for first, last in self._spans])
        self.found += torch.aminmax(staged.view(self._dtype))
