"""On a device: tensors that are carried straight into the memory of a model on a GPU.

Values that lie in the file as they lie in the model arrive where they belong. What layouts turn, strides change or
joints put together, and what has another dtype, passes through a staging area of two buffers on the device and is moved
or cast there (`casting`). Small tensors travel with their neighbours in the file, and are distributed
there. Bits are kept whatever the dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from ...io.gpu.casts import AT_ONCE, Cast
from ...io.gpu.chunks import NEAR, Range, longest_unit
from ...io.gpu.engine import carry
from ...io.gpu.sinks import SMALL, CastRows, Looks, Rows, Scattered, Straight
from ...io.joined import part_of
from ...io.source import BytesSource, Source
from ...tensor.snapshot import ArrayData, Data, HeldData, SourceData
from ...tensor.torch import Device, Tensor, apart, as_bits, carrier_to, device_errors
from ...tensor.torch_source import plain_bytes
from ...transforms.axes import JoinedData, TransposedData
from .casting import Casting


class OnDevice(Protocol):
    """A slot whose tensor can be on a GPU."""

    path: str

    @property
    def is_carried(self) -> bool:
        """Whether it may be on one: then `home` is asked."""

    def home(self) -> Device | None:
        """The GPU that the values are to arrive on; None if the tensor is on none, or takes values otherwise."""

    def target(self) -> tuple[Tensor, bool]:
        """The tensor there that they are to arrive in, detached: the one of the slot, or a new one, and then True.

        `filled` puts the new one in its place.
        """


@runtime_checkable
class Permutable(Protocol):
    """Data that may lie in a source as they are, but for the order of the axes."""

    def permuted(self) -> tuple[SourceData, tuple[int, ...]] | None:
        """Where they lie, and which axis of the tensor is the first there, the second and so on; None if not so."""


@dataclass(slots=True, eq=False)
class Delivery:
    """Data of a file for a slot on a GPU, and what is to be done to them there."""

    slot: OnDevice
    data: Data
    casting: Casting
    device: Device

    target: Tensor = None
    """The tensor that they arrive in: the slot's own, or one that replaces it; there once `prepare` was called."""

    replaces: bool = False

    def prepare(self) -> Delivery:
        """Have the tensor there; DeviceError if there is no memory for it."""
        self.target, self.replaces = self.slot.target()
        return self


def delivery(slot: OnDevice, data: Data, casting: Casting) -> Delivery | None:
    """These data for the slot; None if they cannot be carried to where it has its tensor."""
    device = slot.home() if _is_deliverable(data) else None
    return None if device is None else Delivery(slot, data, casting, device)


def _is_deliverable(data: Data) -> bool:
    """Whether these bytes can be carried: they lie in a source, turned or joined at most."""
    if isinstance(data, SourceData):
        return True
    if isinstance(data, TransposedData):
        return _is_deliverable(data.data)
    if isinstance(data, JoinedData):  # zeros stand for parts that the file has not
        return all(_is_deliverable(part) or isinstance(part, (ArrayData, HeldData)) for part, _ in data.parts)
    return isinstance(data, Permutable) and data.permuted() is not None


def _held(data: Data, nbytes: int) -> SourceData:
    """Data that are in memory, as a range of a source."""
    return SourceData(BytesSource(data.window(0, nbytes)), 0, nbytes)


# --- looking ----------------------------------------------------------------------------------------------------------


def out_of_bounds(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Those among which a value was found that the host must deal with; nothing is changed by looking.

    Some may be named for a neighbour's sake: small tensors that lie together are looked at as one.
    """
    looked_at: dict[tuple[Any, str], list[Delivery]] = {}
    for each in deliveries:
        if each.casting.bounds is not None:
            looked_at.setdefault((each.device, each.casting.compared), []).append(each)
    return [odd for (device, compared), group in looked_at.items() for odd in _found_odd(group, device, compared)]


_Span = tuple[int, int, Delivery]
"""Where values of a delivery begin and end in their source."""


def _found_odd(group: Sequence[Delivery], device: Device, compared: str) -> Iterator[Delivery]:
    carrier = carrier_to(device)
    dtype = getattr(carrier.torch, compared)
    looks: list[tuple[Looks, list[Delivery]]] = []
    ranges: list[Range] = []
    for source, spans in _spans_by_source(group):
        for near in _neighbours(spans, min(SMALL, longest_unit(carrier.buffer_bytes))):
            first = near[0][0]
            length = max(last for _, last, _ in near) - first
            crowd = [(begin - first, end - first) for begin, end, _ in near] if len(near) > 1 else []
            look = Looks(carrier, dtype, crowd)
            looks.append((look, [each for _, _, each in near]))
            name = near[0][2].slot.path if len(near) == 1 else None
            ranges.append(Range(source, first, length, look, name, length if crowd else dtype.itemsize))
    with device_errors(device, sum(range_.length for range_ in ranges)):
        carry(ranges, carrier, readers=carrier.readers)
        every = [found for look, _ in looks for found in look.found]
        values = iter(carrier.torch.stack(every).tolist() if every else [])
    odd: dict[int, Delivery] = {}
    for look, members in looks:
        extremes = [next(values) for _ in look.found]
        odd |= {id(each): each for each in members if not each.casting.takes(extremes)}
    yield from odd.values()


def _spans_by_source(group: Iterable[Delivery]) -> Iterator[tuple[Source, list[_Span]]]:
    """Where the values of these lie, in the order of the file."""
    by_source: dict[int, tuple[Source, list[_Span]]] = {}
    for each in group:
        for part in _parts(each.data):
            source, offset = part_of(part.source, part.offset, part.nbytes)
            by_source.setdefault(id(source), (source, []))[1].append((offset, offset + part.nbytes, each))
    for source, spans in by_source.values():
        spans.sort(key=_first)
        yield source, spans


def _parts(data: Data) -> Iterator[SourceData]:
    """The ranges of sources that data are made of."""
    if isinstance(data, SourceData):
        yield from [data] if data.nbytes else []
    elif isinstance(data, TransposedData):
        yield from _parts(data.data)
    elif isinstance(data, JoinedData):
        for part, nbytes in data.parts:
            yield from _parts(part if _is_deliverable(part) else _held(part, nbytes))
    elif isinstance(data, Permutable) and (found := data.permuted()) is not None:
        yield from _parts(found[0])


_Place = TypeVar("_Place", bound="tuple[int, int, Any]")


def _neighbours(places: Iterable[_Place], most: int, width: int = 1) -> Iterator[list[_Place]]:
    """Those that lie near each other, as far as they have room together; places are in order.

    From one to the next it must be whole elements of this width.
    """
    batch: list[_Place] = []
    end = 0
    for place in places:
        first, last, _ = place
        if batch and (first > end + NEAR or last - batch[0][0] > most or (first - batch[0][0]) % width):
            yield batch
            batch = []
        batch.append(place)
        end = max(end, last)
    if batch:
        yield batch


def _first(place: tuple[int, int, Any]) -> int:
    return place[0]


# --- carrying ---------------------------------------------------------------------------------------------------------


def deliver(deliveries: Sequence[Delivery]) -> None:
    """Carry them all, device by device; DeviceError if one of these fails, or has no memory left."""
    by_device: dict[Any, list[Delivery]] = {}
    for each in deliveries:
        by_device.setdefault(each.target.device, []).append(each)
    for device, group in by_device.items():
        with device_errors(device, sum(each.target.nbytes for each in group)):
            carrier = carrier_to(device)
            with apart():
                ranges = _ranges(carrier, group)
            carry(ranges, carrier, readers=carrier.readers)


def _ranges(carrier: Any, deliveries: Iterable[Delivery]) -> list[Range]:
    ranges: list[Range] = []
    layings: dict[int, _Laying] = {}  # by the casting's id: there are few, and each is a single object
    small: dict[tuple[int, _Laying], tuple[Source, list[_Span]]] = {}
    for each in deliveries:
        data, target = each.data, each.target
        laying = layings.get(id(each.casting))
        if laying is None:
            laying = layings[id(each.casting)] = _Laying(ranges, carrier, each.casting, target.device)
        if isinstance(data, SourceData) and data.nbytes < laying.small and target.is_contiguous():
            if data.nbytes:
                source, offset = part_of(data.source, data.offset, data.nbytes)
                small.setdefault((id(source), laying), (source, []))[1].append((offset, offset + data.nbytes, each))
        else:
            laying.lay(data, target, each.slot.path)
    for (_, laying), (source, found) in small.items():
        found.sort(key=_first)
        for near in _neighbours(found, laying.most, laying.width):
            laying.lay_together(source, near)
    return ranges


class _Laying:
    """Adds to ranges those that fill tensors, all of which take values as they are, or have them cast alike."""

    __slots__ = ("_carrier", "_cast", "_ranges", "most", "small", "width")

    def __init__(self, ranges: list[Range], carrier: Any, casting: Casting, device: Device) -> None:
        self._ranges = ranges
        self._carrier = carrier
        self._cast: Cast | None = None
        self.width = 1
        """From one tensor of several that come together to the next it must be whole elements of this width."""
        self.most = longest_unit(carrier.buffer_bytes)
        """How many bytes can be dealt with at once on the device."""
        if casting.make is not None:
            self._cast = casting.make(carrier.torch, device)
            self.width = self._cast.given.itemsize
            self.most = min(self.most, AT_ONCE * self.width)
        self.small = min(SMALL, self.most)
        """Tensors below this come with their neighbours."""

    def lay(self, data: Data, target: Tensor, name: str) -> None:
        """Have one tensor filled with data."""
        if isinstance(data, SourceData):
            if data.nbytes:
                self._lay_whole(*part_of(data.source, data.offset, data.nbytes), target, name)
        elif isinstance(data, TransposedData):
            self.lay(data.data, target.t(), name)
        elif isinstance(data, JoinedData):
            row_bytes = self._row_bytes(target)
            first = 0
            for part, nbytes in data.parts:
                rows = nbytes // row_bytes if row_bytes else 0
                whole = part if _is_deliverable(part) else _held(part, nbytes)
                self.lay(whole, target[first : first + rows], name)
                first += rows
        elif isinstance(data, Permutable) and (found := data.permuted()) is not None:
            whole, order = found
            self.lay(whole, target.permute(order), name)

    def lay_together(self, source: Source, batch: Sequence[_Span]) -> None:
        """Have small tensors filled that come as one range."""
        first = batch[0][0]
        length = max(end for _, end, _ in batch) - first
        if len(batch) == 1 and self._cast is None:
            self._lay_whole(source, first, batch[0][2].target, batch[0][2].slot.path)
            return
        targets = [self._bits(each.target) for _, _, each in batch]
        places = [at - first for at, _, _ in batch]
        name = batch[0][2].slot.path if len(batch) == 1 else None
        landing = Scattered(self._carrier, targets, places, self._cast)
        self._ranges.append(Range(source, first, length, landing, name, length))

    def _lay_whole(self, source: Source, offset: int, target: Tensor, name: str) -> None:
        if not target.is_contiguous():
            self._lay_rows(source, offset, self._bits(target), name)
        elif self._cast is None:
            landing = Straight(self._carrier, plain_bytes(target))
            self._ranges.append(Range(source, offset, target.nbytes, landing, name))
        else:  # its rows may be of any length
            self._lay_rows(source, offset, self._bits(target).view(-1), name)

    def _lay_rows(self, source: Source, offset: int, target: Tensor, name: str) -> None:
        """Have a tensor filled by its rows; it is seen as bits, or as what a cast holds."""
        row_bytes = self._row_bytes(target)
        if row_bytes > self.most:
            for row, each in enumerate(target):
                self._lay_whole(source, offset + row * row_bytes, each, name)
            return
        landing = (
            Rows(self._carrier, target, row_bytes)
            if self._cast is None
            else CastRows(self._carrier, target, self._cast, row_bytes)
        )
        self._ranges.append(Range(source, offset, target.shape[0] * row_bytes, landing, name, row_bytes))

    def _bits(self, target: Tensor) -> Tensor:
        return as_bits(target) if self._cast is None else target.view(self._cast.held)

    def _row_bytes(self, target: Tensor) -> int:
        """How many bytes of the file one of its rows takes."""
        width = target.element_size() if self._cast is None else self.width
        return int(target.numel() // max(target.shape[0], 1) * width)
