"""In place: tensors that are read straight into the memory of a model, with no copy of them in between.

All that can be known beforehand is checked before: names, shapes, dtypes, that the bytes are inside the file. What is
left is that the disk fails, or that somebody cuts the file, while it is read; then some parameters have new values and
others not, which the error says.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import numpy as np

from ...errors import BurnstoreError, DeviceError, LoadError, located
from ...tensor.dtype import DType
from ...tensor.snapshot import Data, SourceData, TensorSnapshot
from ...transforms.axes import JoinedData, RangeData, TransposedData, fill
from ...transforms.precision import CastData
from ..binding import Slot
from .casting import Casting, casting
from .ties import same_values

if TYPE_CHECKING:
    from .gpu import Delivery, OnDevice

# Smaller tensors are read together with their neighbours: a copy then costs less than a read of its own.
_LARGE = 64 << 10

Matched = tuple[Slot, TensorSnapshot, "int | None"]
"""A slot, the tensor for it, and the id that comes with that."""


class StraightRead(NamedTuple):
    """Data of a file that are to be read into the memory of slots: bytes on the host, or a tensor on a GPU."""

    holders: Sequence[tuple[Slot, int | None]]
    """The slots that have this memory, and the id that each is given: one, or several that share a tensor."""

    data: Data
    memory: memoryview | Delivery


@dataclass(slots=True)
class _Tensor:
    """A tensor of a model that was found in the file, under one or several names."""

    matched: list[Matched]
    followers: list[Slot] = field(default_factory=list)
    """The slots that share it and were not found."""

    way: Delivery | memoryview | None = None
    """Where it can be read to; None if it must be brought to the model otherwise."""

    @property
    def holders(self) -> list[tuple[Slot, int | None]]:
        found = [(slot, given) for slot, _, given in self.matched]
        return found + [(slot, found[0][1]) for slot in self.followers] if self.followers else found


def straight_reads(
    matched: Sequence[Matched], followers: Iterable[Slot] = ()
) -> tuple[list[StraightRead], list[Matched]]:
    """Which of these tensors can be read straight into the model, and all the others.

    ``followers`` are slots that take the tensor of one that they share theirs with.
    """
    tensors: dict[int, _Tensor] = {}
    for each in matched:
        identity = each[0].identity()
        if identity in tensors:
            tensors[identity].matched.append(each)
        else:
            tensors[identity] = _Tensor([each])
    for slot in followers:
        if slot.identity() in tensors:
            tensors[slot.identity()].followers.append(slot)
    for tensor in tensors.values():
        tensor.way = _way(tensor)
    _leave_to_the_host(tensors.values())
    reads = [_read(tensor, tensor.way) for tensor in tensors.values() if tensor.way is not None]
    if len(reads) == len(tensors):
        return reads, []
    return reads, [each for each in matched if tensors[each[0].identity()].way is None]


def _read(tensor: _Tensor, way: Delivery | memoryview) -> StraightRead:
    if isinstance(way, memoryview):
        return StraightRead(tensor.holders, tensor.matched[0][1]._data, way)
    return StraightRead(tensor.holders, way.data, way.prepare())


@functools.cache
def _on_device() -> ModuleType:
    """The module of that name, which is not imported before: only a model of torch has slots on devices."""
    from . import gpu as on_device

    return on_device


def _way(tensor: _Tensor) -> Delivery | memoryview | None:
    """Where a tensor can be read to, as far as it can be told without reading."""
    slot, snapshot, _ = tensor.matched[0]
    way: Delivery | memoryview | None = None
    if _is_carried(slot):
        found = _casting(snapshot, tensor.matched[0][0].dtype)
        way = None if found is None else _on_device().delivery(slot, *found)
    if way is None and snapshot.nbytes >= _LARGE and _same_bytes(slot, snapshot) and _of_file(snapshot._data):
        way = slot.buffer()
    if way is not None and (len(tensor.matched) > 1 or tensor.followers):
        are_fixed = {other.fixed for other, _ in tensor.holders}
        return way if len(are_fixed) == 1 else None  # where one is filled, none can be replaced
    return way


def _leave_to_the_host(tensors: Collection[_Tensor]) -> None:
    """Take from the straight way what turns out, by reading, to need more than that."""
    carried = [tensor.way for tensor in tensors if tensor.way is not None and not isinstance(tensor.way, memoryview)]
    odd = _odd([way for way in carried if way.casting.bounds is not None])
    for tensor in tensors:
        if tensor.way is not None and (id(tensor.way) in odd or not _has_one_value(tensor)):
            tensor.way = None


def _odd(carried: Sequence[Delivery]) -> set[int]:
    """Those of which not all values are such as a device casts."""
    if not carried:
        return set()
    try:
        return set(map(id, _on_device().out_of_bounds(carried)))
    except DeviceError:
        raise
    except BurnstoreError:  # it cannot be read: whoever tries next will say so of each tensor
        return set(map(id, carried))


def _has_one_value(tensor: _Tensor) -> bool:
    """Whether a tensor that has several names in the file has the same values under each of them."""
    if len(tensor.matched) == 1:
        return True
    first = tensor.matched[0][1]
    return all(_of_file(other._data) and same_values(first, other) for _, other, _ in tensor.matched[1:])


def _casting(snapshot: TensorSnapshot, held: DType) -> tuple[Data, Casting] | None:
    """The data as they lie in the file, and what is to be done to them on the device; None if the host must do it."""
    data, given = snapshot._data, snapshot.dtype
    if isinstance(data, CastData) and data.dtype is held:  # it was to be cast on the host, to the same
        given, data = data.given, data.data
    found = casting(given, held)
    return None if found is None else (data, found)


def _same_bytes(slot: Slot, snapshot: TensorSnapshot) -> bool:
    dtype = snapshot.dtype  # a bool may be a byte that is neither 0 nor 1: that is found out first
    return dtype is slot.dtype and not dtype.is_bool and not dtype.is_quantized


def _is_carried(slot: Slot | OnDevice) -> TypeGuard[OnDevice]:
    return getattr(slot, "is_carried", False)


def _of_file(data: Data) -> bool:
    """Whether these bytes come from a source and nowhere else: not from a function, not from the very model."""
    if isinstance(data, (TransposedData, RangeData)):
        return _of_file(data.data)
    if isinstance(data, JoinedData):
        return all(_of_file(part) for part, _ in data.parts)
    return isinstance(data, SourceData)


def read_straight(reads: Sequence[StraightRead], result: object) -> None:
    """Do these reads; LoadError if one fails, and the model is then partly loaded."""
    by_source: dict[int, list[tuple[SourceData, memoryview]]] = {}
    moved: list[tuple[StraightRead, memoryview]] = []
    delivered: list[Delivery] = []
    for read in reads:
        if not isinstance(read.memory, memoryview):
            delivered.append(read.memory)
        elif isinstance(read.data, SourceData):
            by_source.setdefault(id(read.data.source), []).append((read.data, read.memory))
        else:
            moved.append((read, read.memory))
    # What was to replace a tensor does so only as a whole; what was written into one is to be noticed.
    changed = [read for read in reads if isinstance(read.memory, memoryview) or not read.memory.replaces]
    try:
        for group in by_source.values():
            source = group[0][0].source
            with located(path=source.name):
                source.read_into([(data.offset, buffer) for data, buffer in group])
        for read, buffer in moved:
            with located(tensor=read.holders[0][0].path, path=read.data.file):
                fill(np.frombuffer(buffer, np.uint8), read.data)
        if delivered:
            _on_device().deliver(delivered)
        changed = list(reads)
    except BurnstoreError as error:
        raise failed_load(error, result, unchanged=not changed) from error
    finally:
        for read in changed:
            for slot, param_id in read.holders:
                slot.filled(param_id)


def failed_load(error: BurnstoreError, result: object, *, unchanged: bool) -> LoadError:
    """The error that says what became of the model when a load failed for no fault of the file or the model."""
    became = "as it was" if unchanged else "partly loaded"
    failed = "the device" if isinstance(error, DeviceError) else "reading"
    hint = "load again; in_place=False reads everything before it changes anything, in memory of its own"
    return LoadError(
        f"the model is {became}, because {failed} failed: {error.message}",
        result=result,
        path=error.path,
        tensor=error.tensor,
        offset=error.offset,
        hint=error.hint if unchanged or isinstance(error, DeviceError) else hint,
    )
