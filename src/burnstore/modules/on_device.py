"""On a device: tensors that are carried straight into the memory of a model on a GPU.

Values that lie in the file as they lie in the model arrive where they belong. What layouts turn, strides change or
joints put together passes through a staging area of two buffers on the device and is moved there. Small tensors travel
with their neighbours in the file, and are distributed there. Bits are kept whatever the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..device.engine import NEAR, Range, carry, longest_unit
from ..device.landings import SMALL, Rows, Scattered, Straight
from ..io.joined import part_of
from ..io.source import Source
from ..snapshot import Data, SourceData
from ..torch_tensor import Tensor, as_bits, carrier_to, flat_bytes
from ..transforms.axes import JoinedData, TransposedData


class OnDevice(Protocol):
    """A slot whose tensor can be on a GPU."""

    path: str

    @property
    def is_carried(self) -> bool:
        """Whether it may be on one: then `target` is asked."""

    def target(self) -> tuple[Tensor, bool] | None:
        """The tensor on a GPU that the values are to arrive in; None if it is on none, or takes values otherwise.

        It is the one that is there, or a new one, and then True, which `filled` puts in its place.
        """


@dataclass(frozen=True, slots=True)
class Delivery:
    """Data of a file for a tensor on a GPU: that of a slot, or one that replaces it."""

    name: str
    data: Data
    target: Tensor
    replaces: bool


def delivery(slot: OnDevice, data: Data) -> Delivery | None:
    """How these data come to the slot; None if they cannot be carried to where it has its tensor."""
    target = slot.target() if _is_deliverable(data) else None
    return None if target is None else Delivery(slot.path, data, *target)


def _is_deliverable(data: Data) -> bool:
    """Whether these bytes can be carried: they lie in a source, turned or joined at most."""
    if isinstance(data, JoinedData):
        return all(_is_deliverable(part) for part, _ in data.parts)
    return isinstance(data.data if isinstance(data, TransposedData) else data, SourceData)


def deliver(deliveries: Sequence[Delivery]) -> None:
    """Carry them all, device by device."""
    by_device: dict[Any, list[Delivery]] = {}
    for each in deliveries:
        by_device.setdefault(each.target.device, []).append(each)
    for device, group in by_device.items():
        carrier = carrier_to(device)
        carry(_ranges(carrier, group), carrier, readers=carrier.readers)


def _ranges(carrier: Any, deliveries: Iterable[Delivery]) -> Iterator[Range]:
    most = longest_unit(carrier.buffer_bytes)
    small: list[tuple[SourceData, Delivery]] = []
    for each in deliveries:
        data, target = each.data, each.target
        if isinstance(data, SourceData) and data.nbytes < min(SMALL, most) and target.is_contiguous():
            small.append((data, each))
        else:
            yield from _laid_out(carrier, each.name, data, as_bits(target), most)
    yield from _scattered(carrier, small, most)


def _laid_out(carrier: Any, name: str, data: Data, target: Tensor, most: int) -> Iterator[Range]:
    """The ranges of data that fill a tensor, whose values are bits."""
    if isinstance(data, JoinedData):
        row_bytes = target.element_size() * math.prod(target.shape[1:])
        first = 0
        for part, nbytes in data.parts:
            rows = nbytes // row_bytes if row_bytes else 0
            yield from _laid_out(carrier, name, part, target[first : first + rows], most)
            first += rows
    elif isinstance(data, TransposedData):
        yield from _laid_out(carrier, name, data.data, target.t(), most)
    elif isinstance(data, SourceData) and data.nbytes:
        source, offset = part_of(data.source, data.offset, data.nbytes)
        yield from _by_rows(carrier, name, source, offset, target, most)


def _by_rows(carrier: Any, name: str, source: Source, offset: int, target: Tensor, most: int) -> Iterator[Range]:
    if target.is_contiguous():
        yield Range(source, offset, target.nbytes, Straight(carrier, flat_bytes(target)), name)
        return
    row_bytes = target[0].nbytes
    if row_bytes <= most:
        yield Range(source, offset, target.nbytes, Rows(carrier, target, target.dtype, row_bytes), name, row_bytes)
        return
    for row, each in enumerate(target):
        yield from _by_rows(carrier, name, source, offset + row * row_bytes, each, most)


def _scattered(carrier: Any, small: Iterable[tuple[SourceData, Delivery]], most: int) -> Iterator[Range]:
    """Small tensors, those that lie together in one range, as far as a buffer takes them."""
    by_source: dict[int, list[tuple[int, int, Delivery]]] = {}
    sources: dict[int, Source] = {}
    for data, each in small:
        source, offset = part_of(data.source, data.offset, data.nbytes)
        sources[id(source)] = source
        by_source.setdefault(id(source), []).append((offset, offset + data.nbytes, each))
    for key, found in by_source.items():
        found.sort(key=lambda each: each[0])
        batch: list[tuple[int, int, Delivery]] = []
        end = 0
        for first, last, each in found:
            if batch and (first > end + NEAR or last - batch[0][0] > most):
                yield _batched(carrier, sources[key], batch)
                batch = []
            batch.append((first, last, each))
            end = max(end, last)
        if batch:
            yield _batched(carrier, sources[key], batch)


def _batched(carrier: Any, source: Source, batch: Sequence[tuple[int, int, Delivery]]) -> Range:
    first = batch[0][0]
    length = max(end for _, end, _ in batch) - first
    if len(batch) == 1:
        return Range(source, first, length, Straight(carrier, flat_bytes(batch[0][2].target)), batch[0][2].name)
    targets = [as_bits(each.target) for _, _, each in batch]
    return Range(source, first, length, Scattered(carrier, targets, [at - first for at, _, _ in batch]), None, length)
