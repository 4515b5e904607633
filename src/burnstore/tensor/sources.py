"""Where the bytes of a snapshot come from: a file, memory, a function, or other data that are rearranged when read."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from ..errors import CorruptError
from ..io.parallel import for_each
from ..io.runs import RunsSource
from ..io.sizes import CHUNK_BYTES
from ..io.source import Source
from .data import Array, Shape, TensorData, bytes_of_array, little_endian
from .dtype import DType

# A tile is first copied to where its rows are a cache line apart: rows of a matrix are often a power of two long, and
# then a whole column falls into the same few places of the cache. Sizes by measurement.
_TILE_ROWS, _TILE_COLUMNS, _LINE = 512, 128, 64
# A matrix that the cache holds as a whole needs no tiles.
_SMALL_BYTES = 16 << 10
# Rows are read and moved in bands of about this size: there is never a second copy of the whole tensor.
_BAND_BYTES = 4 << 20


class AxisSlice(NamedTuple):
    """The part ``start`` to ``stop`` along one axis of a tensor whose elements have ``bits`` bits."""

    bits: int
    shape: Shape
    axis: int
    start: int
    stop: int

    @property
    def runs(self) -> int:
        """The number of runs of bytes that the part has."""
        return math.prod(self.shape[: self.axis])

    def nbytes(self, extent: int) -> int:
        """Return the bytes of a run of this many steps along the axis."""
        return math.prod(self.shape[self.axis + 1 :]) * extent * self.bits // 8


class Data:
    """The bytes of one tensor. A subclass defines `window`, and overrides what it can do better."""

    __slots__ = ()

    @property
    def file(self) -> str | None:
        """The file that errors about these bytes name, if there is one."""
        return None

    @property
    def streams(self) -> bool:
        """Whether a window needs no more memory than its own bytes."""
        return False

    @property
    def in_source(self) -> bool:
        """Whether all bytes come from sources: none from a function, a model or memory."""
        return False

    @property
    def inner(self) -> Sequence[Data]:
        """The data from which these are made."""
        return ()

    @property
    def batch_key(self) -> Any:
        """A key that is equal for small data which `fetch_batch` fetches best together; None for all others."""
        return None

    def window(self, start: int, stop: int) -> memoryview:
        """Return these bytes; they may share memory with the source."""
        raise NotImplementedError

    def owned(self, start: int, stop: int) -> Array:
        """Return these bytes in new memory that belongs to the caller."""
        return np.array(np.frombuffer(self.window(start, stop), np.uint8))

    def fill(self, buffer: Array) -> None:
        """Fill a buffer of bytes with all of them."""
        buffer[:] = np.frombuffer(self.window(0, len(buffer)), np.uint8)

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        """Yield all bytes in order; no chunk is needed once the next is asked for."""
        step = CHUNK_BYTES if self.streams else max(nbytes, 1)
        for start in range(0, nbytes, step):
            yield self.window(start, min(start + step, nbytes))

    def bytes_held(self, nbytes: int) -> int:
        """Return the most bytes that `chunks` has in memory at a time."""
        return min(nbytes, CHUNK_BYTES) if self.streams else nbytes

    @property
    def reads_boxes(self) -> bool:
        """Whether `read_box` reads less than the rows that a box spans."""
        return False

    def read_box(self, low: Shape, extents: Shape) -> Array:
        """Return the elements of a box of the tensor, of any dtype of their width."""
        raise NotImplementedError

    def range(self, start: int, nbytes: int) -> Data:
        """Return some of the bytes."""
        return RangeData(self, start, nbytes)

    def sliced(self, part: AxisSlice) -> Data:
        """Return the bytes of a part of the tensor, read where they are."""
        return self._sliced(part) if part.nbytes(part.stop - part.start) * part.runs else JoinedData([])

    def _sliced(self, part: AxisSlice) -> Data:
        first, run, row = map(part.nbytes, (part.start, part.stop - part.start, part.shape[part.axis]))
        return self.range(first, run) if part.runs == 1 else CutData(self, first, row, run, part.runs)

    def transposed(self, rows: int, columns: int, width: int) -> Data:
        """Return the bytes of a matrix with its axes exchanged; ``width`` is that of an element."""
        return TransposedData(self, rows, columns, width)

    def permuted(self) -> tuple[SourceData, tuple[int, ...]] | None:
        """Return the range of a source that has the elements in another order of the axes, and that order; or None."""
        return None

    @property
    def identity(self) -> Hashable | None:
        """A key that is equal for data which read the same bytes in the same way; None where that is not known."""
        return None

    @property
    def address(self) -> int | None:
        """A number that is equal for data of equal `identity`, and cheaper to find; None if that is None."""
        identity = self.identity
        return None if identity is None else hash(identity)


@dataclass(slots=True, eq=False)
class SourceData(Data):
    """A range of a source."""

    source: Source
    offset: int
    nbytes: int

    streams = True
    in_source = True

    @property
    def file(self) -> str | None:
        return self.source.name

    @property
    def identity(self) -> Hashable | None:
        return id(self.source), self.offset, self.nbytes

    @property
    def address(self) -> int | None:
        return self.offset

    def window(self, start: int, stop: int) -> memoryview:
        shared = self.source.view(self.offset + start, stop - start)
        return memoryview(self.owned(start, stop)) if shared is None else shared

    def owned(self, start: int, stop: int) -> Array:
        buffer = np.empty(stop - start, np.uint8)
        self.source.read_into([(self.offset + start, memoryview(buffer))])
        return buffer

    def fill(self, buffer: Array) -> None:
        self.source.read_into([(self.offset, memoryview(buffer))])

    def range(self, start: int, nbytes: int) -> Data:
        return SourceData(self.source, self.offset + start, nbytes)

    def _sliced(self, part: AxisSlice) -> Data:
        first, run, row = map(part.nbytes, (part.start, part.stop - part.start, part.shape[part.axis]))
        if part.runs == 1:
            return self.range(first, run)
        runs = RunsSource(self.source, self.offset + first, row=row, run=run, count=part.runs)
        return SourceData(runs, 0, runs.size)


@dataclass(slots=True, eq=False)
class ArrayData(Data):
    """An array in memory, of any strides and byte order."""

    array: Array

    def window(self, start: int, stop: int) -> memoryview:
        return bytes_of_array(self.array)[start:stop]

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        return iter((bytes_of_array(self.array),) if nbytes else ())

    def owned(self, start: int, stop: int) -> Array:
        copied = np.array(self.array, little_endian(self.array.dtype), order="C")
        return copied.reshape(-1).view(np.uint8)[start:stop] if copied.size else np.empty(0, np.uint8)

    def _sliced(self, part: AxisSlice) -> Data:
        return ArrayData(self.array[(slice(None),) * part.axis + (slice(part.start, part.stop),)])


@dataclass(slots=True, eq=False)
class HeldData(Data):
    """Bytes in memory, in the order of a file."""

    data: TensorData

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.data.raw)[start:stop].toreadonly()  # the caller may still use this memory


@dataclass(slots=True, eq=False)
class ProvidedData(Data):
    """The result of a function, which is called and checked for every read."""

    provide: Callable[[], Any]
    dtype: DType
    shape: Shape

    def window(self, start: int, stop: int) -> memoryview:
        given = self.provide()
        if isinstance(given, np.generic):  # NumPy often turns an array without axes into a scalar
            given = np.asarray(given)
        data = TensorData.from_numpy(given) if isinstance(given, np.ndarray) else given
        if not isinstance(data, TensorData):
            raise TypeError(f"a snapshot's function must return TensorData or an array, got {type(given).__name__}")
        # Bool has one NumPy dtype and three stores, Flex32 shares F32's: an array may be any of them of its width.
        matches = data.dtype == self.dtype or (
            isinstance(given, np.ndarray)
            and self.dtype.scheme is None
            and data.dtype is DType.of(self.dtype.numpy)
            and data.dtype.bits == self.dtype.bits
        )
        if not matches or data.shape != self.shape:
            raise CorruptError(
                f"declared {self.dtype.name} {list(self.shape)}, its function returned {data.dtype.name} "
                f"{list(data.shape)}"
            )
        if data.nbytes != self.dtype.nbytes(self.shape):  # quantized data of an old release may have another length
            raise CorruptError(f"declared {self.dtype.nbytes(self.shape)} bytes, its function returned {data.nbytes}")
        return data.raw[start:stop]


@dataclass(slots=True, eq=False)
class WrappedData(Data):
    """Data that are made from other data."""

    data: Data

    @property
    def inner(self) -> Sequence[Data]:
        return (self.data,)

    @property
    def file(self) -> str | None:
        return self.data.file

    @property
    def identity(self) -> Hashable | None:
        inner = self.data.identity
        own = tuple(getattr(self, each.name) for each in fields(self) if each.name != "data")
        return None if inner is None else (type(self), inner, own)

    @property
    def address(self) -> int | None:
        return self.data.address


@dataclass(slots=True, eq=False)
class RangeData(WrappedData):
    """Some of the bytes of other data."""

    start: int
    nbytes: int

    @property
    def in_source(self) -> bool:
        return self.data.in_source

    def window(self, start: int, stop: int) -> memoryview:
        return self.data.window(self.start + start, self.start + stop)

    def owned(self, start: int, stop: int) -> Array:
        return self.data.owned(self.start + start, self.start + stop)

    def range(self, start: int, nbytes: int) -> Data:
        return RangeData(self.data, self.start + start, nbytes)


class ComputedData(Data):
    """Data that `fill` computes as a whole, in new memory."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        raise NotImplementedError

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.owned(start, stop))

    def owned(self, start: int, stop: int) -> Array:
        buffer: Array = np.empty(self.nbytes, np.uint8)
        self.fill(buffer)
        return buffer[start:stop]


@dataclass(slots=True, eq=False)
class CutData(WrappedData, ComputedData):
    """One run of each of many rows of bytes that are in no source: some columns of a matrix."""

    first: int
    row: int
    run: int
    count: int

    @property
    def nbytes(self) -> int:
        return self.run * self.count

    def fill(self, buffer: Array) -> None:
        reach = (self.count - 1) * self.row + self.run
        raw = np.frombuffer(self.data.window(self.first, self.first + reach), np.uint8)
        runs = np.lib.stride_tricks.as_strided(raw, (self.count, self.run), (self.row, 1), writeable=False)
        buffer.reshape(self.count, self.run)[...] = runs


@dataclass(slots=True, eq=False)
class JoinedData(ComputedData):
    """The bytes of several data, one after the other."""

    parts: Sequence[tuple[Data, int]]

    @property
    def inner(self) -> Sequence[Data]:
        return [part for part, _ in self.parts]

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.parts)

    @property
    def in_source(self) -> bool:
        return all(data.in_source for data, _ in self.parts)

    def fill(self, buffer: Array) -> None:
        position = 0
        for data, nbytes in self.parts:
            data.fill(buffer[position : position + nbytes])
            position += nbytes

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        for data, length in self.parts:
            yield from data.chunks(length)

    def _sliced(self, part: AxisSlice) -> Data:
        bits, shape, axis, start, stop = part
        row_bytes = math.prod(shape[1:]) * bits // 8
        parts: list[tuple[Data, int]] = []
        before = 0
        for data, nbytes in self.parts:
            rows = nbytes // row_bytes
            low, high = (max(start - before, 0), min(stop - before, rows)) if axis == 0 else (start, stop)
            before += rows
            if low < high:
                taken = data.sliced(AxisSlice(bits, (rows, *shape[1:]), axis, low, high))
                parts.append((taken, nbytes * (high - low) // (rows if axis == 0 else shape[axis])))
        return parts[0][0] if len(parts) == 1 else JoinedData(parts)


@dataclass(slots=True, eq=False)
class TransposedData(WrappedData, ComputedData):
    """The elements of a matrix, column by column."""

    rows: int
    columns: int
    width: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * self.width

    @property
    def in_source(self) -> bool:
        return self.data.in_source

    def _sliced(self, part: AxisSlice) -> Data:
        axis, start, stop = 1 - part.axis, part.start, part.stop
        data = self.data.sliced(AxisSlice(part.bits, (self.rows, self.columns), axis, start, stop))
        rows, columns = (stop - start, self.columns) if axis == 0 else (self.rows, stop - start)
        return TransposedData(data, rows, columns, self.width)

    def fill(self, buffer: Array) -> None:
        if not self.nbytes:
            return
        target = buffer.view(element_dtype(self.width)).reshape(self.columns, self.rows)
        if self.nbytes <= _SMALL_BYTES:
            small: Array = np.frombuffer(self.data.window(0, self.nbytes), target.dtype)
            target[...] = small.reshape(self.rows, self.columns).T
            return
        row_bytes = self.columns * self.width
        height = max(_BAND_BYTES // row_bytes // _TILE_ROWS, 1) * _TILE_ROWS
        whole = None if self.data.streams else self.data.window(0, self.nbytes)

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


def element_dtype(width: int) -> str:
    """Return the NumPy dtype of unsigned integers (or raw bytes) of a width: moving them changes no bit."""
    return f"<u{width}" if width <= 8 else f"V{width}"
