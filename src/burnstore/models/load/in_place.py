"""Load tensors directly into the memory of a model, without a copy in between.

Everything that can be checked is checked before: names, shapes, dtypes, that the bytes are inside the file. If the disk
fails or the file is truncated during the read, some parameters have new values and others not, which the error states.
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
from ...tensor.snapshot import TensorSnapshot
from ...tensor.sources import Data, SourceData
from ...transforms.precision import CastData
from ..binding import Slot
from .casting import Casting, casting
from .ties import same_values

if TYPE_CHECKING:
    from .gpu import Delivery, DeviceSlot

# Smaller tensors are read together with their neighbours: a copy then costs less than a separate read.
_LARGE = 64 << 10

Matched = tuple[Slot, TensorSnapshot, "int | None"]
"""A slot, its tensor, and the parameter id that comes with it."""


class DirectRead(NamedTuple):
    """Data of a file to read into the memory of slots: bytes on the host, or a tensor on a GPU."""

    holders: Sequence[tuple[Slot, int | None]]
    """The slots that have this memory with the id that each gets: one, or several that share a tensor."""

    data: Data
    memory: memoryview | Delivery


@dataclass(slots=True)
class _Tensor:
    """A tensor of a model that the file has, under one or several names."""

    matched: list[Matched]
    followers: list[Slot] = field(default_factory=list)
    """The slots that share it and are not in the file."""

    memory: Delivery | memoryview | None = None
    """The memory to read it into; None if it must be loaded otherwise."""

    @property
    def holders(self) -> list[tuple[Slot, int | None]]:
        found = [(slot, param_id) for slot, _, param_id in self.matched]
        return found + [(slot, found[0][1]) for slot in self.followers] if self.followers else found


def direct_reads(
    matched: Sequence[Matched], followers: Iterable[Slot] = (), overlapping: Collection[int] = ()
) -> tuple[list[DirectRead], list[Matched]]:
    """Return the tensors that can be read directly into the model, and all others.

    ``followers`` are slots that get the tensor of another slot with which they share theirs. ``overlapping`` are the
    identities of slots that share bytes otherwise: their values must be compared before one is written.
    """
    if not any(snapshot._nbytes >= _LARGE or _may_be_on_gpu(slot) for slot, snapshot, _ in matched):
        return [], list(matched)
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
        if not overlapping or tensor.matched[0][0].identity() not in overlapping:
            tensor.memory = _memory_for(tensor)
    _exclude_by_values(tensors.values())
    reads = [_read(tensor, tensor.memory) for tensor in tensors.values() if tensor.memory is not None]
    if len(reads) == len(tensors):
        return reads, []
    return reads, [each for each in matched if tensors[each[0].identity()].memory is None]


def _read(tensor: _Tensor, memory: Delivery | memoryview) -> DirectRead:
    if isinstance(memory, memoryview):
        return DirectRead(tensor.holders, tensor.matched[0][1]._data, memory)
    return DirectRead(tensor.holders, memory.data, memory.prepare())


@functools.cache
def _gpu() -> ModuleType:
    from . import gpu  # not at import: only a torch model has slots on devices

    return gpu


def _memory_for(tensor: _Tensor) -> Delivery | memoryview | None:
    """Return the memory to read a tensor into, as far as that can be decided without reading."""
    slot, snapshot, _ = tensor.matched[0]
    memory: Delivery | memoryview | None = None
    if _may_be_on_gpu(slot):
        found = _casting(snapshot, tensor.matched[0][0].dtype)
        memory = None if found is None else _gpu().delivery(slot, *found)
    if memory is None and snapshot.nbytes >= _LARGE and _same_bytes(slot, snapshot) and snapshot._data.in_source:
        memory = slot.buffer()
    if memory is not None and (len(tensor.matched) > 1 or tensor.followers):
        are_fixed = {other.fixed for other, _ in tensor.holders}
        return memory if len(are_fixed) == 1 else None  # where one is filled, none can be replaced
    return memory


def _exclude_by_values(tensors: Collection[_Tensor]) -> None:
    """Exclude tensors whose values, which are read for it, need more than a direct read."""
    deliveries = [
        tensor.memory for tensor in tensors if tensor.memory is not None and not isinstance(tensor.memory, memoryview)
    ]
    excluded = _out_of_bounds([each for each in deliveries if each.casting.bounds is not None])
    for tensor in tensors:
        if tensor.memory is not None and (id(tensor.memory) in excluded or not _has_one_value(tensor)):
            tensor.memory = None


def _out_of_bounds(deliveries: Sequence[Delivery]) -> set[int]:
    """Return the ids of those with values that a device does not cast."""
    if not deliveries:
        return set()
    try:
        return set(map(id, _gpu().out_of_bounds(deliveries)))
    except DeviceError:
        raise
    except BurnstoreError:  # the read that follows reports it for each tensor
        return set(map(id, deliveries))


def _has_one_value(tensor: _Tensor) -> bool:
    """Return whether a tensor that the file has under several names has the same values under each."""
    if len(tensor.matched) == 1:
        return True
    first = tensor.matched[0][1]
    return all(other._data.in_source and same_values(first, other) for _, other, _ in tensor.matched[1:])


def _casting(snapshot: TensorSnapshot, held: DType) -> tuple[Data, Casting] | None:
    """Return the data of the file and the cast to do on the device; None if the host must do it."""
    data, given = snapshot._data, snapshot.dtype
    if isinstance(data, CastData) and data.dtype is held:  # the host would cast to the same dtype
        given, data = data.given, data.data
    found = casting(given, held)
    return None if found is None else (data, found)


def _same_bytes(slot: Slot, snapshot: TensorSnapshot) -> bool:
    dtype = snapshot.dtype  # a byte of a bool may be neither 0 nor 1, which must be checked first
    return dtype is slot.dtype and not dtype.is_bool and not dtype.is_quantized


def _may_be_on_gpu(slot: Slot | DeviceSlot) -> TypeGuard[DeviceSlot]:
    return getattr(slot, "may_be_on_gpu", False)


def read_directly(reads: Sequence[DirectRead], result: object) -> None:
    """Do these reads; LoadError if one fails, and the model is then partly loaded."""
    by_source: dict[int, list[tuple[SourceData, memoryview]]] = {}
    moved: list[tuple[DirectRead, memoryview]] = []
    delivered: list[Delivery] = []
    for read in reads:
        if not isinstance(read.memory, memoryview):
            delivered.append(read.memory)
        elif isinstance(read.data, SourceData):
            by_source.setdefault(id(read.data.source), []).append((read.data, read.memory))
        else:
            moved.append((read, read.memory))
    # A new tensor replaces the old one only when it is complete; a write into the old one counts in any case.
    changed = [read for read in reads if isinstance(read.memory, memoryview) or not read.memory.replaces]
    try:
        for group in by_source.values():
            source = group[0][0].source
            with located(path=source.name):
                source.read_into([(data.offset, buffer) for data, buffer in group])
        for read, buffer in moved:
            with located(tensor=read.holders[0][0].path, path=read.data.file):
                read.data.fill(np.frombuffer(buffer, np.uint8))
        if delivered:
            _gpu().deliver(delivered)
        changed = list(reads)
    except BurnstoreError as error:
        raise failed_load(error, result, unchanged=not changed) from error
    finally:
        for read in changed:
            for slot, param_id in read.holders:
                slot.filled(param_id)


def failed_load(error: BurnstoreError, result: object, *, unchanged: bool) -> LoadError:
    """Return the error of a load that a disk or a device ended; it states the condition of the model."""
    state = "unchanged" if unchanged else "partly loaded"
    failed = "the device" if isinstance(error, DeviceError) else "reading"
    hint = "load again; in_place=False reads everything before it changes anything, in memory of its own"
    return LoadError(
        f"the model is {state}, because {failed} failed: {error.message}",
        result=result,
        path=error.path,
        tensor=error.tensor,
        offset=error.offset,
        hint=error.hint if unchanged or isinstance(error, DeviceError) else hint,
    )
