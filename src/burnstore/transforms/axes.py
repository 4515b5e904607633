"""Axes: a matrix transposed, a part of a tensor, several tensors as one; moved when they are read, bit for bit."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from ..errors import DTypeError, ModelError
from ..io.parallel import for_each
from ..io.runs import RunsSource
from ..tensor.data import Array, Shape, TensorData, bytes_of_array
from ..tensor.snapshot import ArrayData, Data, SourceData, TensorSnapshot
from .precision import CastData

# A tile is first copied to where its rows lie a cache line apart: rows of a matrix are often a power of two long, and
# then all of a column falls into the same few places of the cache. Sizes by measurement.
_TILE_ROWS, _TILE_COLUMNS, _LINE = 512, 128, 64
# Rows are read and moved in bands of about this size: a whole second copy of the tensor is never in memory.
_BAND_BYTES = 4 << 20


@runtime_checkable
class Movable(Protocol):
    """Data that are more than bytes and can be moved as what they are: a tensor on whatever device."""

    def transposed(self) -> Data | None:
        """These data with their two axes exchanged; None where their bytes are moved as well."""

    def sliced(self, axis: int, start: int, stop: int) -> Data:
        """A part of them along an axis of the tensor that they are."""


def rearranged(snapshot: TensorSnapshot, shape: Sequence[int], move: Callable[[Array], Array]) -> TensorSnapshot:
    """The tensor's elements as ``move`` orders them; bits are kept whatever the dtype.

    ``move`` is given an array of the tensor's shape and must return one of ``shape`` (a permutation of axes, ...).

    >>> snapshot = TensorSnapshot.from_numpy("w", np.arange(6, dtype=np.int16).reshape(2, 3))
    >>> rearranged(snapshot, (2, 3), lambda elements: elements[::-1]).numpy().tolist()
    [[3, 4, 5], [0, 1, 2]]
    """
    width = _element_width(snapshot)

    def provide() -> TensorData:
        data = snapshot.to_data()
        elements: Array = np.ndarray(data.shape, _bits(width), data.raw)
        moved = np.array(move(elements), order="C")  # a copy: what is given out must not be somebody else's memory
        return TensorData(bytes_of_array(moved), data.dtype, tuple(shape))

    return TensorSnapshot.from_closure(
        snapshot.path,
        snapshot.dtype,
        shape,
        provide,
        param_id=snapshot.param_id,
        container_stack=snapshot.container_stack,
    )


def _is_movable(data: Data) -> TypeGuard[Movable]:
    """Whether data move themselves; found out once per type, as a protocol has a whole class looked through."""
    kind = type(data)
    found = _MOVABLE.get(kind)
    if found is None:
        found = _MOVABLE[kind] = isinstance(data, Movable)
    return found


_MOVABLE: dict[type, bool] = {}


def transposed(snapshot: TensorSnapshot) -> TensorSnapshot:
    """A matrix with its axes exchanged.

    >>> snapshot = TensorSnapshot.from_numpy("w", np.arange(6, dtype=np.int16).reshape(2, 3))
    >>> transposed(snapshot).numpy().tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    width = _element_width(snapshot)
    if len(snapshot.shape) != 2:
        raise ModelError(
            f"only a matrix can be transposed, not a tensor of shape {list(snapshot.shape)}", tensor=snapshot.path
        )
    rows, columns = snapshot.shape
    held = snapshot._data
    turned = held.transposed() if _is_movable(held) else None
    data = TransposedData(held, rows, columns, width) if turned is None else turned
    return snapshot.replace(shape=(columns, rows), data=data, nbytes=rows * columns * width)


def sliced(snapshot: TensorSnapshot, axis: int, start: int, stop: int) -> TensorSnapshot:
    """A part of a tensor along one axis. Of a file, and of what is made from one, only that part is read: rows as one
    range, others as `burnstore.io.runs` says.

    DTypeError where elements are narrower than a byte and the part does not begin and end at whole bytes.

    >>> snapshot = TensorSnapshot.from_numpy("w", np.arange(6, dtype=np.int16).reshape(3, 2))
    >>> sliced(snapshot, 0, 1, 3).numpy().tolist(), sliced(snapshot, 1, 0, 1).numpy().tolist()
    ([[2, 3], [4, 5]], [[0], [2], [4]])
    """
    shape, bits = snapshot.shape, snapshot.dtype.bits
    if not 0 <= axis < len(shape):
        raise ModelError(f"it has no axis {axis}, its shape is {list(shape)}", tensor=snapshot.path)
    if not 0 <= start <= stop <= shape[axis]:
        raise ModelError(f"{start} to {stop} of an axis that has {shape[axis]}", tensor=snapshot.path)
    if stop - start == shape[axis]:
        return snapshot
    if snapshot.dtype.is_quantized:
        raise DTypeError(f"elements of {snapshot.dtype.name} cannot be moved", tensor=snapshot.path)
    inner = math.prod(shape[axis + 1 :]) * bits
    if any(before % 8 for before in (start * inner, stop * inner, shape[axis] * inner)):
        raise DTypeError(
            f"{start} to {stop} of axis {axis} of {list(shape)} are not whole bytes of packed {snapshot.dtype.name}",
            tensor=snapshot.path,
        )
    part = (*shape[:axis], stop - start, *shape[axis + 1 :])
    return snapshot.replace(shape=part, data=sliced_data(snapshot._data, bits, shape, axis, start, stop))


def sliced_data(data: Data, bits: int, shape: Shape, axis: int, start: int, stop: int) -> Data:
    """The bytes of a part of a tensor, of which each element has so many bits; the part is taken where the data lie."""
    inner, count = math.prod(shape[axis + 1 :]) * bits, math.prod(shape[:axis])
    first, run, row = start * inner // 8, (stop - start) * inner // 8, shape[axis] * inner // 8
    if not run * count:
        return JoinedData([])
    if isinstance(data, TransposedData):
        source = sliced_data(data.data, bits, (data.rows, data.columns), 1 - axis, start, stop)
        rows, columns = (data.rows, stop - start) if axis == 0 else (stop - start, data.columns)
        return TransposedData(source, rows, columns, data.width)
    if isinstance(data, CastData):
        values = sliced_data(data.data, data.given.bits, shape, axis, start, stop)
        return CastData(values, data.given, data.dtype, run * count * 8 // bits)
    if isinstance(data, JoinedData):
        return _sliced_parts(data, bits, shape, axis, start, stop)
    if isinstance(data, ArrayData):
        return ArrayData(data.array[(slice(None),) * axis + (slice(start, stop),)])
    if _is_movable(data):
        return data.sliced(axis, start, stop)
    if count == 1:
        return range_of(data, first, run)
    if isinstance(data, SourceData):
        runs = RunsSource(data.source, data.offset + first, row=row, run=run, count=count)
        return SourceData(runs, 0, runs.size)
    return CutData(data, first, row, run, count)


def _sliced_parts(data: JoinedData, bits: int, shape: Shape, axis: int, start: int, stop: int) -> Data:
    row_bytes = math.prod(shape[1:]) * bits // 8
    parts: list[tuple[Data, int]] = []
    before = 0
    for part, nbytes in data.parts:
        rows = nbytes // row_bytes
        low, high = (max(start - before, 0), min(stop - before, rows)) if axis == 0 else (start, stop)
        before += rows
        if low < high:
            taken = sliced_data(part, bits, (rows, *shape[1:]), axis, low, high)
            parts.append((taken, nbytes * (high - low) // (rows if axis == 0 else shape[axis])))
    return parts[0][0] if len(parts) == 1 else JoinedData(parts)


def range_of(data: Data, start: int, nbytes: int) -> Data:
    """Some of the bytes of data, as directly as they can be had."""
    if isinstance(data, SourceData):
        return SourceData(data.source, data.offset + start, nbytes)
    if isinstance(data, RangeData):
        return RangeData(data.data, data.start + start, nbytes)
    return RangeData(data, start, nbytes)


def joined(parts: Sequence[TensorSnapshot]) -> TensorSnapshot:
    """Several tensors as one, along the first axis.

    >>> parts = [TensorSnapshot.from_numpy(name, np.array([value], np.int16)) for name, value in (("a", 1), ("b", 2))]
    >>> joined(parts).numpy().tolist()
    [1, 2]
    """
    first = parts[0]
    for part in parts:
        _element_width(part)
        if part.dtype is not first.dtype or part.shape[1:] != first.shape[1:] or not part.shape:
            raise ModelError(
                f"{first.path} ({first.dtype} {list(first.shape)}) and {part.path} ({part.dtype} {list(part.shape)}) "
                "belong into one tensor and do not fit together"
            )
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    data = JoinedData([(part._data, part.nbytes) for part in parts])
    return first.replace(shape=shape, data=data, param_id=None)


def _element_width(snapshot: TensorSnapshot) -> int:
    if snapshot.dtype.bits % 8 or snapshot.dtype.is_quantized:
        raise DTypeError(f"elements of {snapshot.dtype.name} cannot be moved", tensor=snapshot.path)
    return snapshot.dtype.bits // 8


def _bits(width: int) -> str:
    """Elements as unsigned integers (or raw bytes) of their width: no dtype can change a bit on the way."""
    return f"<u{width}" if width <= 8 else f"V{width}"


class MadeWhole(ABC):
    """Data that exist only when they are asked for, and then as a whole in memory of their own."""

    __slots__ = ()

    nbytes: int

    @abstractmethod
    def into(self, buffer: Array) -> None:
        """Fill a buffer of bytes with them."""

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.owned(start, stop))

    def owned(self, start: int, stop: int) -> Array:
        buffer: Array = np.empty(self.nbytes, np.uint8)
        self.into(buffer)
        return buffer[start:stop]

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.window(0, nbytes)


class TransposedData(MadeWhole):
    """The elements of a matrix, column by column."""

    __slots__ = ("columns", "data", "nbytes", "rows", "width")

    def __init__(self, data: Data, rows: int, columns: int, width: int) -> None:
        self.data = data
        self.rows = rows
        self.columns = columns
        self.width = width
        self.nbytes = rows * columns * width

    @property
    def file(self) -> str | None:
        return self.data.file

    def into(self, buffer: Array) -> None:
        if not self.nbytes:
            return
        target = buffer.view(_bits(self.width)).reshape(self.columns, self.rows)
        row_bytes = self.columns * self.width
        height = max(_BAND_BYTES // row_bytes // _TILE_ROWS, 1) * _TILE_ROWS
        whole = None if isinstance(self.data, SourceData) else self.data.window(0, self.nbytes)

        def move(start: int) -> None:
            stop = min(start + height, self.rows)
            ends = start * row_bytes, stop * row_bytes
            raw = self.data.window(*ends) if whole is None else whole[slice(*ends)]
            band: Array = np.frombuffer(raw, target.dtype).reshape(stop - start, self.columns)
            apart: Array = np.empty((_TILE_ROWS, _TILE_COLUMNS + _LINE // self.width), target.dtype)
            for row in range(0, stop - start, _TILE_ROWS):
                for column in range(0, self.columns, _TILE_COLUMNS):
                    tile = band[row : row + _TILE_ROWS, column : column + _TILE_COLUMNS]
                    spread = apart[: tile.shape[0], : tile.shape[1]]
                    spread[...] = tile
                    place = start + row
                    target[column : column + _TILE_COLUMNS, place : place + len(tile)] = spread.T

        for_each(move, range(0, self.rows, height))


class JoinedData(MadeWhole):
    """The bytes of several tensors, end to end."""

    __slots__ = ("nbytes", "parts")

    file = None

    def __init__(self, parts: Sequence[tuple[Data, int]]) -> None:
        self.parts = parts
        self.nbytes = sum(nbytes for _, nbytes in parts)

    def into(self, buffer: Array) -> None:
        position = 0
        for data, nbytes in self.parts:
            fill(buffer[position : position + nbytes], data)
            position += nbytes

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        for data, length in self.parts:
            yield from data.chunks(length)


class RangeData:
    """Some of the bytes of other data."""

    __slots__ = ("data", "nbytes", "start")

    def __init__(self, data: Data, start: int, nbytes: int) -> None:
        self.data = data
        self.start = start
        self.nbytes = nbytes

    @property
    def file(self) -> str | None:
        return self.data.file

    def window(self, start: int, stop: int) -> memoryview:
        return self.data.window(self.start + start, self.start + stop)

    def owned(self, start: int, stop: int) -> Array:
        return self.data.owned(self.start + start, self.start + stop)

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.window(0, nbytes)


class CutData(MadeWhole):
    """One run out of each of many equally long rows of bytes, which lie in no source: some columns of a matrix."""

    __slots__ = ("count", "data", "first", "nbytes", "row", "run")

    def __init__(self, data: Data, first: int, row: int, run: int, count: int) -> None:
        self.data = data
        self.first = first
        self.row = row
        self.run = run
        self.count = count
        self.nbytes = run * count

    @property
    def file(self) -> str | None:
        return self.data.file

    def into(self, buffer: Array) -> None:
        reach = (self.count - 1) * self.row + self.run
        raw = np.frombuffer(self.data.window(self.first, self.first + reach), np.uint8)
        runs = np.lib.stride_tricks.as_strided(raw, (self.count, self.run), (self.row, 1), writeable=False)
        buffer.reshape(self.count, self.run)[...] = runs


def fill(buffer: Array, data: Data) -> None:
    """Fill a buffer of bytes with data, straight from where they lie."""
    if isinstance(data, SourceData):
        data.source.read_into([(data.offset, memoryview(buffer))])
    elif isinstance(data, MadeWhole):
        data.into(buffer)
    else:
        buffer[:] = np.frombuffer(data.window(0, len(buffer)), np.uint8)
