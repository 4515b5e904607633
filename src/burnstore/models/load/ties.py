"""Ties: tensors of a model that share memory, under several names or as views of each other.

Slots that are one tensor get one value: a file that has it under several names must have the same values there. Slots
that overlap otherwise (a transposed tie, a slice, a buffer that views a parameter) are loaded if their values agree on
the bytes that they share, and refused if not. Views that share no byte are independent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np

from ...errors import BurnstoreError
from ...io.parallel import for_each
from ...io.source import same_bytes
from ...tensor.data import Array, Shape, TensorData, bytes_of_array
from ...tensor.note import Note
from ...tensor.snapshot import TensorSnapshot
from ...tensor.sources import AxisSlice, Data, SourceData, TransposedData
from ..binding import Slot

# The bytes that are compared at a time. A band of a transposed matrix is a part of each row of the file.
_BAND_BYTES = 16 << 20


def same_values(one: TensorSnapshot, other: TensorSnapshot) -> bool:
    """Return whether two tensors have the same bits; False also where they cannot be compared part by part.

    The same range of a file is not read, and of the rest never more than some megabytes are in memory.

    >>> import numpy as np
    >>> rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> same_values(TensorSnapshot.from_numpy("a", rows), TensorSnapshot.from_numpy("b", rows.copy()))
    True
    """
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    if _same_range(one._data, other._data) or not one.nbytes:
        return True
    shape, bits = one.shape, one.dtype.bits
    if all(isinstance(each._data, SourceData) for each in (one, other)):  # as bytes, whatever the width of an element
        shape, bits = (one.nbytes,), 8
    if bits % 8 or not shape:
        return False
    row_bytes = one.nbytes // shape[0]
    height = max(_BAND_BYTES // row_bytes, 1)
    differing: list[int] = []

    def band(data: Data, start: int, stop: int) -> memoryview:
        return data.sliced(AxisSlice(bits, shape, 0, start, stop)).window(0, row_bytes * (stop - start))

    def compare(start: int) -> None:
        stop = min(start + height, shape[0])
        if not differing and not same_bytes(band(one._data, start, stop), band(other._data, start, stop)):
            differing.append(start)

    try:
        for_each(compare, range(0, shape[0], height))
    except BurnstoreError:  # the read that follows reports it
        return False
    return not differing


def _same_range(one: Data, other: Data) -> bool:
    if isinstance(one, TransposedData) and isinstance(other, TransposedData):
        return one.columns == other.columns and _same_range(one.data, other.data)
    if isinstance(one, SourceData) and isinstance(other, SourceData):
        return one.source is other.source and one.offset == other.offset and one.nbytes == other.nbytes
    return False


# --- overlapping memory -----------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """The memory of a tensor that is filled in place; strides are in bytes and not negative."""

    device: Any
    start: int
    width: int
    shape: Shape
    strides: Shape
    is_lazy: bool = False
    """Whether torch only noted that the values are negated or conjugated."""

    @property
    def stop(self) -> int:
        """The address after its last byte."""
        return self.start + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)) + self.width

    def bytes_in(self, buffer: Array, first: int) -> Array:
        """Return its bytes as a view of a buffer whose first byte is at the address ``first``."""
        shape, strides = (*self.shape, self.width), (*self.strides, 1)
        return np.lib.stride_tricks.as_strided(buffer[self.start - first :], shape, strides)

    def shares_bytes_with(self, other: Memory) -> bool:
        """Return whether two tensors have a byte in common; True where that is too hard to decide."""
        if self.device != other.device:
            return False
        try:
            return np.shares_memory(_Shown(self), _Shown(other), max_work=1 << 20)  # type: ignore[arg-type]
        except RuntimeError:  # TooHardError, which NumPy has moved
            return True


class _Shown:
    """Memory as NumPy sees it; no byte of it is read."""

    def __init__(self, memory: Memory) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": memory.shape,
            "strides": memory.strides,
            "typestr": f"|V{memory.width}",
            "data": (memory.start, True),
        }


class InPlaceSlot(Protocol):
    """A slot that knows which memory `assign` writes into."""

    def span(self) -> tuple[int, int] | None:
        """Return the first address of the memory that is filled and the one after it; None if a load replaces it."""

    def memory(self) -> Memory:
        """Return that memory."""


def _is_in_place(slot: Slot | InPlaceSlot) -> TypeGuard[InPlaceSlot]:
    return hasattr(slot, "span")


Group = dict[int, tuple[Slot, Memory]]
"""Slots that overlap, by their identity."""


def overlapping(slots: Iterable[Slot]) -> list[Group]:
    """Return the slots that share bytes with others, in groups; those that are one tensor are one of a group."""
    found = [(slot.span(), slot) for slot in slots if _is_in_place(slot)]
    spans = [(*span, slot) for span, slot in found if span is not None]
    spans.sort(key=itemgetter(0))  # addresses of different devices may be equal: that is found out later
    groups: list[Group] = []
    near: list[Any] = []
    end = 0
    for start, stop, slot in spans:
        if start >= end and near:
            if len(near) > 1:
                groups += _connected(near)
            near = []
        if start < stop:
            near.append(slot)
        end = max(end, stop)
    return groups + list(_connected(near) if len(near) > 1 else ())


def _connected(near: Sequence[Any]) -> Iterator[Group]:
    """Yield those that share bytes, directly or through others."""
    tensors: Group = {}
    for slot in near:
        tensors.setdefault(slot.identity(), (slot, slot.memory()))
    left = set(tensors)
    while left:
        todo = [left.pop()]
        met: set[int] = set()
        while todo:
            met.add(identity := todo.pop())
            memory = tensors[identity][1]
            shared = {other for other in left if memory.shares_bytes_with(tensors[other][1])}
            todo += shared
            left -= shared
        if len(met) > 1:
            yield {identity: each for identity, each in tensors.items() if identity in met}


Value = tuple[Slot, Array | TensorData, "int | None"]
"""A slot, its value, and the parameter id that comes with it."""


def disagreeing(groups: Sequence[Group], values: Sequence[Value]) -> dict[int, str]:
    """Return the identities of slots whose values differ, in shared bytes, from those of a slot before, and why."""
    found: dict[int, str] = {}
    for group in groups:
        first, stop = min(each.start for _, each in group.values()), max(each.stop for _, each in group.values())
        content: Array = np.zeros(stop - first, np.uint8)
        is_set: Array = np.zeros(stop - first, np.bool_)
        done: dict[int, str] = {}
        for slot, value, _ in values:
            if slot.identity() not in group or slot.identity() in done:
                continue
            memory = group[slot.identity()][1]
            given = np.frombuffer(value.raw if isinstance(value, TensorData) else bytes_of_array(value), np.uint8)
            held, known = memory.bytes_in(content, first), memory.bytes_in(is_set, first)
            wanted = given.reshape(held.shape)
            is_lazy = any(each.is_lazy for _, each in group.values())  # its bytes are not the bytes of its values
            if np.any(((held != wanted) | is_lazy) & known):
                others = [name for other, name in done.items() if memory.shares_bytes_with(group[other][1])]
                found[slot.identity()] = (
                    f"shares memory with {', '.join(map(repr, others))}, for which the source has other values"
                )
            else:
                held[...], known[...] = wanted, True
                done[slot.identity()] = slot.path
    return found


def changed_with_others(groups: Sequence[Group], filled: Collection[int]) -> list[Note]:
    """Return a note for slots that change because they share bytes with slots of these identities."""
    notes = []
    for group in groups:
        causes = [slot.path for identity, (slot, _) in group.items() if identity in filled]
        changed = [slot.path for identity, (slot, _) in group.items() if identity not in filled]
        if causes and changed:
            shown = f"changed with {', '.join(map(repr, causes))}, whose memory they share: {', '.join(changed)}"
            notes.append(Note("tied", shown, changed[0]))
    return notes
