"""Load tensors directly into the memory of a model on a GPU.

Values whose order in the file is that of the model are copied to where they belong. Transposed, strided or joined ones,
and those of another dtype, go through staging memory on the device and are moved or cast there (`casting`). Small
tensors travel with their neighbours in the file, and are distributed on the device. No bit changes, whatever the dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import numpy as np

from ...io.gpu.chunks import Range, max_unit
from ...io.gpu.sinks import MAX_CAST, Cast, DirectSink, MinMaxSink, RowsSink, ScatterSink
from ...io.gpu.staging import TensorStaging
from ...io.gpu.transfer import transfer
from ...io.sizes import GPU_GAP_BYTES, GPU_SMALL_BYTES
from ...io.source import BytesSource, Source, part_of
from ...tensor.data import array_from_bytes
from ...tensor.dtype import DType
from ...tensor.sources import ArrayData, Data, HeldData, JoinedData, SourceData, TransposedData
from ...tensor.torch import Device, Tensor, as_bits, device_errors, plain_bytes, staging_for, untracked_views
from .casting import Casting


class DeviceSlot(Protocol):
    """A slot whose tensor can be on a GPU."""

    path: str

    @property
    def may_be_on_gpu(self) -> bool:
        """Whether to ask for `gpu`."""

    def gpu(self) -> Device | None:
        """Return the GPU that the values go to; None if the tensor is on none, or is filled otherwise."""

    def target(self) -> tuple[Tensor, bool]:
        """Return the detached tensor to fill: the slot's own, or a new one that `filled` puts in, and then True."""


@dataclass(slots=True, eq=False)
class Delivery:
    """Data of a file for a slot on a GPU, and how they are cast there."""

    slot: DeviceSlot
    data: Data
    casting: Casting
    device: Device
    underflows: bool = False
    """Whether the cast makes a value 0; set by `out_of_bounds`."""

    target: Tensor = None
    """The tensor to fill, the slot's own or one that replaces it; set by `prepare`."""

    replaces: bool = False

    def prepare(self) -> Delivery:
        """Get the tensor to fill; DeviceError if there is no memory for it."""
        self.target, self.replaces = self.slot.target()
        return self


def delivery(slot: DeviceSlot, data: Data, casting: Casting) -> Delivery | None:
    """Return the delivery of these data to the slot; None if they cannot be transferred."""
    device = slot.gpu() if _is_transferable(data) else None
    return None if device is None else Delivery(slot, data, casting, device)


def _is_transferable(data: Data) -> bool:
    """Return whether these data are ranges of sources, at most transposed, permuted or joined."""
    if isinstance(data, SourceData):
        return True
    if isinstance(data, TransposedData):
        return _is_transferable(data.data)
    if isinstance(data, JoinedData):  # parts that the file does not have are zeros in memory
        return all(_is_transferable(part) or isinstance(part, (ArrayData, HeldData)) for part, _ in data.parts)
    return data.permuted() is not None


def _joined_parts(data: JoinedData) -> Iterator[tuple[Data, int]]:
    """Yield the parts with those in memory as ranges of a source."""
    for part, nbytes in data.parts:
        whole = part if _is_transferable(part) else SourceData(BytesSource(part.window(0, nbytes)), 0, nbytes)
        yield whole, nbytes


# --- bounds of values -------------------------------------------------------------------------------------------------


def out_of_bounds(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Return those with a value that the host must cast; the values go to the device once, and change nothing.

    A small tensor may be returned for the value of a neighbour: those that are near each other are checked as one.
    """
    groups: dict[tuple[Any, str], list[Delivery]] = {}
    for each in deliveries:
        if each.casting.bounds is not None:
            groups.setdefault((each.device, each.casting.compared), []).append(each)
    return [each for (device, compared), group in groups.items() for each in _out_of_bounds(group, device, compared)]


_Span = tuple[int, int, Delivery]
"""The begin and end of a delivery's values in their source."""


def _out_of_bounds(group: Sequence[Delivery], device: Device, compared: str) -> Iterator[Delivery]:
    staging = staging_for(device)
    dtype = getattr(staging.torch, compared)
    sinks: list[tuple[MinMaxSink, list[Delivery]]] = []
    ranges: list[Range] = []
    for source, spans in _spans_by_source(group):
        for near in _neighbours(spans, min(GPU_SMALL_BYTES, max_unit(staging.buffer_bytes))):
            first = near[0][0]
            length = max(last for _, last, _ in near) - first
            crowd = [(begin - first, end - first) for begin, end, _ in near] if len(near) > 1 else []
            sink = MinMaxSink(staging, dtype, crowd, any(each.casting.least for _, _, each in near))
            sinks.append((sink, [each for _, _, each in near]))
            name = near[0][2].slot.path if len(near) == 1 else None
            ranges.append(Range(source, first, length, sink, name, length if crowd else dtype.itemsize))
    with device_errors(device, sum(range_.length for range_ in ranges)):
        transfer(ranges, staging, readers=staging.readers)
        every = [found for sink, _ in sinks for found in (*sink.found, *sink.smallest)]
        values = iter(staging.torch.stack(every).tolist() if every else [])
    outside: dict[int, Delivery] = {}
    for sink, members in sinks:
        extremes = [next(values) for _ in sink.found]
        smallest = min((next(values) for _ in sink.smallest), default=0.0)
        for each in members:
            if not each.casting.accepts(extremes):
                outside[id(each)] = each
            elif sink.smallest and smallest < each.casting.least:  # of neighbours the host finds out which one it is
                each.underflows = each.underflows or len(members) == 1 or _underflows(each, DType.of(dtype))
    yield from outside.values()


def _underflows(each: Delivery, dtype: DType) -> bool:
    """Return whether the cast of a small tensor makes a value 0; its bytes are read once more."""
    for part in _source_ranges(each.data):
        sizes = np.abs(array_from_bytes(part.window(0, part.nbytes), dtype, (part.nbytes * 8 // dtype.bits,)))
        if ((sizes > 0) & (sizes < each.casting.least)).any():
            return True
    return False


def _spans_by_source(group: Iterable[Delivery]) -> Iterator[tuple[Source, list[_Span]]]:
    """Yield each source with the spans of these deliveries, in the order of the file."""
    by_source: dict[int, tuple[Source, list[_Span]]] = {}
    for each in group:
        for part in _source_ranges(each.data):
            source, offset = part_of(part.source, part.offset, part.nbytes)
            by_source.setdefault(id(source), (source, []))[1].append((offset, offset + part.nbytes, each))
    for source, spans in by_source.values():
        spans.sort(key=itemgetter(0))
        yield source, spans


def _source_ranges(data: Data) -> Iterator[SourceData]:
    """Yield the ranges of sources that data consist of."""
    if isinstance(data, SourceData):
        yield from [data] if data.nbytes else []
    elif isinstance(data, TransposedData):
        yield from _source_ranges(data.data)
    elif isinstance(data, JoinedData):
        for part, _ in _joined_parts(data):
            yield from _source_ranges(part)
    elif (found := data.permuted()) is not None:
        yield from _source_ranges(found[0])


_Place = TypeVar("_Place", bound="tuple[int, int, Any]")


def _neighbours(places: Iterable[_Place], most: int, width: int = 1) -> Iterator[list[_Place]]:
    """Group sorted places that are near each other, at most ``most`` bytes and whole elements of ``width`` apart."""
    batch: list[_Place] = []
    end = 0
    for place in places:
        first, last, _ = place
        if batch and (first > end + GPU_GAP_BYTES or last - batch[0][0] > most or (first - batch[0][0]) % width):
            yield batch
            batch = []
        batch.append(place)
        end = max(end, last)
    if batch:
        yield batch


# --- transfer ---------------------------------------------------------------------------------------------------------


def deliver(deliveries: Sequence[Delivery]) -> None:
    """Transfer them all, device by device; DeviceError if a device fails or has no memory left."""
    by_device: dict[Any, list[Delivery]] = {}
    for each in deliveries:
        by_device.setdefault(each.target.device, []).append(each)
    for device, group in by_device.items():
        with device_errors(device, sum(each.target.nbytes for each in group)):
            staging = staging_for(device)
            with untracked_views():
                ranges = _ranges(staging, group)
            transfer(ranges, staging, readers=staging.readers)


def _ranges(staging: TensorStaging, deliveries: Iterable[Delivery]) -> list[Range]:
    ranges: list[Range] = []
    planners: dict[int, _Planner] = {}  # by the casting's id: there are few, and each is a single object
    small: dict[tuple[int, _Planner], tuple[Source, list[_Span]]] = {}
    for each in deliveries:
        data, target = each.data, each.target
        planner = planners.get(id(each.casting))
        if planner is None:
            planner = planners[id(each.casting)] = _Planner(ranges, staging, each.casting, target.device)
        if isinstance(data, SourceData) and data.nbytes < planner.small and target.is_contiguous():
            if data.nbytes:
                source, offset = part_of(data.source, data.offset, data.nbytes)
                small.setdefault((id(source), planner), (source, []))[1].append((offset, offset + data.nbytes, each))
        else:
            planner.add(data, target, each.slot.path)
    for (_, planner), (source, found) in small.items():
        found.sort(key=itemgetter(0))
        for near in _neighbours(found, planner.most, planner.width):
            planner.add_together(source, near)
    return ranges


class _Planner:
    """Adds the ranges that fill tensors which have no cast, or the same one."""

    __slots__ = ("_cast", "_ranges", "_staging", "most", "small", "width")

    def __init__(self, ranges: list[Range], staging: TensorStaging, casting: Casting, device: Device) -> None:
        self._ranges = ranges
        self._staging = staging
        self._cast: Cast | None = None
        self.width = 1
        """The distance of tensors that come together must be a multiple of this."""
        self.most = max_unit(staging.buffer_bytes)
        """The most bytes that are worked on at a time on the device."""
        if casting.make is not None:
            self._cast = casting.make(staging.torch, device)
            self.width = self._cast.given.itemsize
            self.most = min(self.most, MAX_CAST * self.width)
        self.small = min(GPU_SMALL_BYTES, self.most)
        """Tensors below this come with their neighbours."""

    def add(self, data: Data, target: Tensor, name: str) -> None:
        """Have one tensor filled with data."""
        if isinstance(data, SourceData):
            if data.nbytes:
                self._add_whole(*part_of(data.source, data.offset, data.nbytes), target, name)
        elif isinstance(data, TransposedData):
            self.add(data.data, target.t(), name)
        elif isinstance(data, JoinedData):
            row_bytes = self._row_bytes(target)
            first = 0
            for part, nbytes in _joined_parts(data):
                rows = nbytes // row_bytes if row_bytes else 0
                self.add(part, target[first : first + rows], name)
                first += rows
        elif (found := data.permuted()) is not None:
            whole, order = found
            self.add(whole, target.permute(order), name)

    def add_together(self, source: Source, batch: Sequence[_Span]) -> None:
        """Have small tensors filled that come as one range."""
        first = batch[0][0]
        length = max(end for _, end, _ in batch) - first
        if len(batch) == 1 and self._cast is None:
            self._add_whole(source, first, batch[0][2].target, batch[0][2].slot.path)
            return
        targets = [self._bits(each.target) for _, _, each in batch]
        places = [at - first for at, _, _ in batch]
        name = batch[0][2].slot.path if len(batch) == 1 else None
        sink = ScatterSink(self._staging, targets, places, self._cast)
        self._ranges.append(Range(source, first, length, sink, name, length))

    def _add_whole(self, source: Source, offset: int, target: Tensor, name: str) -> None:
        if not target.is_contiguous():
            self._add_rows(source, offset, self._bits(target), name)
        elif self._cast is None:
            sink = DirectSink(self._staging, plain_bytes(target))
            self._ranges.append(Range(source, offset, target.nbytes, sink, name))
        else:  # a contiguous tensor can be split anywhere
            self._add_rows(source, offset, self._bits(target).view(-1), name)

    def _add_rows(self, source: Source, offset: int, target: Tensor, name: str) -> None:
        """Have a tensor filled by its rows; it is viewed as bits, or as what a cast returns."""
        row_bytes = self._row_bytes(target)
        if row_bytes > self.most:
            for row, each in enumerate(target):
                self._add_whole(source, offset + row * row_bytes, each, name)
            return
        sink = RowsSink(self._staging, target, row_bytes, self._cast)
        self._ranges.append(Range(source, offset, target.shape[0] * row_bytes, sink, name, row_bytes))

    def _bits(self, target: Tensor) -> Tensor:
        return as_bits(target) if self._cast is None else target.view(self._cast.held)

    def _row_bytes(self, target: Tensor) -> int:
        """Return the bytes of one row in the file."""
        width = target.element_size() if self._cast is None else self.width
        return int(target.numel() // max(target.shape[0], 1) * width)
