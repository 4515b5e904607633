"""Axes: a matrix transposed, some rows of a tensor, several tensors as one; moved when they are read, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..errors import DTypeError, ModelError
from ..io.parallel import for_each
from ..snapshot import Data, SourceData, TensorSnapshot
from ..tensor_data import Array, Shape, TensorData, bytes_of_array

# A tile is first copied to where its rows lie a cache line apart: rows of a matrix are often a power of two long, and
# then all of a column falls into the same few places of the cache. Sizes by measurement.
_TILE_ROWS, _TILE_COLUMNS, _LINE = 512, 128, 64
# Rows are read and moved in bands of about this size: a whole second copy of the tensor is never in memory.
_BAND_BYTES = 4 << 20


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
    data = TransposedData(snapshot._data, rows, columns, width)
    return _moved(snapshot, (columns, rows), data, snapshot._param_id)


def row_range(snapshot: TensorSnapshot, start: int, stop: int) -> TensorSnapshot:
    """Some of the tensor's rows; only they are read.

    >>> snapshot = TensorSnapshot.from_numpy("w", np.arange(6, dtype=np.int16).reshape(3, 2))
    >>> row_range(snapshot, 1, 3).numpy().tolist()
    [[2, 3], [4, 5]]
    """
    _element_width(snapshot)
    rows = snapshot.shape[0]
    if not 0 <= start <= stop <= rows:
        raise ModelError(f"rows {start} to {stop} of a tensor that has {rows}", tensor=snapshot.path)
    row_bytes = snapshot.nbytes // rows if rows else 0
    first, nbytes = start * row_bytes, (stop - start) * row_bytes
    held, data = snapshot._data, RangeData(snapshot._data, first, nbytes)
    part: Data = SourceData(held.source, held.offset + first, nbytes) if isinstance(held, SourceData) else data
    return _moved(snapshot, (stop - start, *snapshot.shape[1:]), part, None)


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
    return _moved(first, shape, JoinedData([(part._data, part.nbytes) for part in parts]), None)


def _moved(like: TensorSnapshot, shape: Shape, data: Data, param_id: int | None) -> TensorSnapshot:
    stack = like._container_stack
    return TensorSnapshot(like.path, like.dtype, shape, data, param_id=param_id, container_stack=stack)


def _element_width(snapshot: TensorSnapshot) -> int:
    if snapshot.dtype.bits % 8 or snapshot.dtype.is_quantized:
        raise DTypeError(f"elements of {snapshot.dtype.name} cannot be moved", tensor=snapshot.path)
    return snapshot.dtype.bits // 8


def _bits(width: int) -> str:
    """Elements as unsigned integers (or raw bytes) of their width: no dtype can change a bit on the way."""
    return f"<u{width}" if width <= 8 else f"V{width}"


class _MadeWhole:
    """Data that exist only when they are asked for, and then as a whole in memory of their own."""

    __slots__ = ()

    nbytes: int

    def into(self, buffer: Array) -> None:
        """Fill a buffer of bytes with them."""
        raise NotImplementedError

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.owned(start, stop))

    def owned(self, start: int, stop: int) -> Array:
        buffer: Array = np.empty(self.nbytes, np.uint8)
        self.into(buffer)
        return buffer[start:stop]

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.window(0, nbytes)


class TransposedData(_MadeWhole):
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


class JoinedData(_MadeWhole):
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


def fill(buffer: Array, data: Data) -> None:
    """Fill a buffer of bytes with data, straight from where they lie."""
    if isinstance(data, SourceData):
        data.source.read_into([(data.offset, memoryview(buffer))])
    elif isinstance(data, _MadeWhole):
        data.into(buffer)
    else:
        buffer[:] = np.frombuffer(data.window(0, len(buffer)), np.uint8)
