"""In place: tensors that are read straight into the memory of a model, with no copy of them in between.

All that can be known beforehand is checked before: names, shapes, dtypes, that the bytes are inside the file. What is
left is that the disk fails, or that somebody cuts the file, while it is read; then some parameters have new values and
others not, which the error says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from ..errors import BurnstoreError, LoadError, located
from ..snapshot import Data, SourceData, TensorSnapshot
from ..transforms.axes import JoinedData, RangeData, TransposedData, fill
from .binding import Slot

if TYPE_CHECKING:
    from .on_device import Delivery, OnDevice

# Smaller tensors are read together with their neighbours: a copy then costs less than a read of its own.
_LARGE = 64 << 10

Matched = tuple[Slot, TensorSnapshot, "int | None"]
"""A slot, the tensor for it, and the id that comes with that."""


@dataclass(frozen=True, slots=True)
class StraightRead:
    """Data of a file that are to be read into a slot's own memory: bytes on the host, or a tensor on a GPU."""

    slot: Slot
    data: Data
    memory: memoryview | Delivery
    param_id: int | None


def straight_reads(matched: Sequence[Matched], slots: Sequence[Slot]) -> tuple[list[StraightRead], list[Matched]]:
    """Which of these tensors can be read straight into the model, and all the others."""
    reads: list[StraightRead] = []
    others: list[Matched] = []
    shared: set[int] | None = None
    for slot, snapshot, param_id in matched:
        memory = None
        if _same_bytes(slot, snapshot) and (snapshot.nbytes >= _LARGE or _is_carried(slot)):
            shared = _shared(slots) if shared is None else shared
            # What has several names may have several values in the file, which must be compared first.
            memory = None if slot.identity() in shared else _memory(slot, snapshot)
        if memory is None:
            others.append((slot, snapshot, param_id))
        else:
            reads.append(StraightRead(slot, snapshot._data, memory, param_id))
    return reads, others


def _same_bytes(slot: Slot, snapshot: TensorSnapshot) -> bool:
    dtype = snapshot.dtype  # a bool may be a byte that is neither 0 nor 1: that is found out first
    return dtype is slot.dtype and not dtype.is_bool and not dtype.is_quantized


def _memory(slot: Slot, snapshot: TensorSnapshot) -> memoryview | Delivery | None:
    """Where the slot's values can be read to; None if they must be brought to it otherwise."""
    data = snapshot._data
    if _is_carried(slot):
        from .on_device import delivery  # not at import: only a model of torch has such slots

        carried = delivery(slot, data)
        if carried is not None:
            return carried
    return slot.buffer() if snapshot.nbytes >= _LARGE and _of_file(data) else None


def _is_carried(slot: Slot | OnDevice) -> TypeGuard[OnDevice]:
    return getattr(slot, "is_carried", False)


def _of_file(data: Data) -> bool:
    """Whether these bytes come from a source and nowhere else: not from a function, not from the very model."""
    if isinstance(data, (TransposedData, RangeData)):
        return _of_file(data.data)
    if isinstance(data, JoinedData):
        return all(_of_file(part) for part, _ in data.parts)
    return isinstance(data, SourceData)


def _shared(slots: Sequence[Slot]) -> set[int]:
    counts = Counter(slot.identity() for slot in slots)
    return {identity for identity, count in counts.items() if count > 1}


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
    arrived = False
    try:
        for group in by_source.values():
            source = group[0][0].source
            with located(path=source.name):
                source.read_into([(data.offset, buffer) for data, buffer in group])
        for read, buffer in moved:
            with located(tensor=read.slot.path, path=read.data.file):
                fill(np.frombuffer(buffer, np.uint8), read.data)
        if delivered:
            from .on_device import deliver

            deliver(delivered)
        arrived = True
    except BurnstoreError as error:
        raise LoadError(
            f"the model is partly loaded, because reading failed: {error}",
            result=result,
            path=error.path,
            hint="load again; in_place=False reads everything before it changes anything, in memory of its own",
        ) from error
    finally:
        for read in reads:
            # What was to replace a tensor does so only as a whole; what was written into one is to be noticed.
            if arrived or isinstance(read.memory, memoryview) or not read.memory.replaces:
                read.slot.filled(read.param_id)
