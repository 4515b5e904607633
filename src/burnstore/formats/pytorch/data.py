"""Where values come from that are not stored as a plain range of the file: computed each time they are read."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...errors import BurnstoreError, CorruptError, LimitError, UnsupportedError, located
from ...io.sizes import CHUNK_BYTES
from ...io.source import Source
from ...tensor.data import Array, Shape, array_from_bytes, bytes_of_array
from ...tensor.dtype import DType, Kind
from ...tensor.sources import AxisSlice, Data, SourceData
from ..codec.zip import DEFLATED, Member, inflate
from .tensors import ITEM_SIZES, MAX_EXPANDED, CompositeTensor, PickledTensor, is_contiguous, last_element

_UNITS: dict[int, np.dtype[Any]] = {
    size: np.dtype(code) for size, code in ((1, "u1"), (2, "<u2"), (4, "<u4"), (8, "<u8"), (16, "<c16"))
}


_Bytes = TypeVar("_Bytes", memoryview, Array)


class UnsavedData(Data):
    """The values of a meta tensor, which were never saved."""

    __slots__ = ()

    def window(self, start: int, stop: int) -> memoryview:
        raise UnsupportedError("a tensor on the meta device: its values were never saved", rule="PT-22")


class PickledArray(Data):
    """An array that was in the pickle itself."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(bytearray(bytes_of_array(self.array)[start:stop]))


class DeflatedData(Data):
    """The bytes of a compressed member; inflated, and compared with its checksum, each time they are read."""

    __slots__ = ("member", "source")

    def __init__(self, source: Source, member: Member) -> None:
        self.source = source
        self.member = member

    @property
    def file(self) -> str | None:
        return self.source.name

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(read_member(self.source, self.member))[start:stop]


@dataclass(slots=True, eq=False)
class CheckedData(Data):
    """The last bytes of a stored member, behind its own header; compared with the member's checksum when first read.

    Parts of the tensor that are read on their own (`range`, `sliced`) are not compared: that would read the rest.
    """

    source: Source
    member: Member
    nbytes: int
    head_crc: int
    """The checksum of the member's own header."""

    is_checked: bool = False

    streams = True
    in_source = True

    @property
    def file(self) -> str | None:
        return self.source.name

    @property
    def offset(self) -> int:
        """Where the bytes begin in the source."""
        return self.member.start + self.member.packed - self.nbytes

    @property
    def identity(self) -> Hashable | None:
        return id(self.source), self.offset, self.nbytes

    @property
    def address(self) -> int | None:
        return self.offset

    def window(self, start: int, stop: int) -> memoryview:
        return self._compared(self._plain().window(start, stop))

    def owned(self, start: int, stop: int) -> Array:
        return self._compared(self._plain().owned(start, stop))

    def fill(self, buffer: Array) -> None:
        self._plain().fill(buffer)
        self._compared(buffer)

    def range(self, start: int, nbytes: int) -> Data:
        return self._plain().range(start, nbytes)

    def _sliced(self, part: AxisSlice) -> Data:
        return self._plain().sliced(part)

    def _plain(self) -> SourceData:
        return SourceData(self.source, self.offset, self.nbytes)

    def _compared(self, values: _Bytes) -> _Bytes:
        """Return bytes that were read after the checksum of the whole member was compared."""
        if not self.is_checked:
            if len(values) == self.nbytes:
                _compare(zlib.crc32(values, self.head_crc) if self.member.crc else 0, self.member)
            else:
                check_member(self.source, self.member)
            self.is_checked = True
        return values


def read_member(source: Source, member: Member) -> bytes:
    """Return all bytes of a member, compared with its checksum (PT-07, PT-09)."""
    if member.size is None:
        raise CorruptError("a record is not whole", rule="PT-28", offset=member.start)
    data = source.read_at(member.start, member.packed)
    if member.method == DEFLATED:
        with located(rule="PT-07", offset=member.start):
            data = inflate(data, member.size, most=member.size)
    _compare(zlib.crc32(data) if member.crc else 0, member)
    return data


def check_member(source: Source, member: Member) -> None:
    """Compare the checksum of a member; a stored one is read a few megabytes at a time."""
    if member.method == DEFLATED or member.size is None:
        read_member(source, member)
        return
    found = 0
    for at in range(0, member.size if member.crc else 0, CHUNK_BYTES):
        found = zlib.crc32(source.read_at(member.start + at, min(CHUNK_BYTES, member.size - at)), found)
    _compare(found, member)


def _compare(found: int, member: Member) -> None:
    if member.crc and found != member.crc:  # A writer that leaves the checksum out writes 0.
        raise CorruptError(
            f"Invalid checksum: expected {member.crc:08x}, found {found:08x}", rule="PT-09", offset=member.start
        )


class Reached(NamedTuple):
    """The bytes behind a view: a range of a storage, and how often each of its elements occurs (None: not equally).

    ``cost`` is how many bytes every read takes at least; views of one range with one ``identity`` have equal values.
    ``plain`` is False if the bytes are not the values' own (big-endian).
    """

    storage: Data
    start: int
    stop: int
    times: int | None
    cost: int
    identity: Hashable
    plain: bool


class StridedData(Data):
    """The values of a view in row-major order, little-endian, with torch's lazy bits applied.

    Only the range of the storage that the requested rows reach is read.
    """

    __slots__ = ("big_endian", "storage", "tensor")

    def __init__(self, tensor: PickledTensor, storage: Data, *, big_endian: bool = False) -> None:
        self.tensor = tensor
        self.storage = storage
        self.big_endian = big_endian

    @property
    def file(self) -> str | None:
        return self.storage.file

    def window(self, start: int, stop: int) -> memoryview:
        row_bytes = self._row_bytes()
        if stop <= start or not row_bytes:
            return memoryview(b"")
        first, last = start // row_bytes, -(-stop // row_bytes)
        values = memoryview(self._rows(first, last))
        return values[start - first * row_bytes : stop - first * row_bytes]

    @property
    def identity(self) -> Hashable | None:
        inner = self.storage.identity or id(self.storage)
        return inner, self.big_endian, self.tensor.dtype, self.tensor.offset, self.reached().identity

    @property
    def address(self) -> int | None:
        found = self.storage.address
        return id(self.storage) if found is None else found

    def reached(self) -> Reached:
        """Return what the view reads."""
        tensor, item = self.tensor, ITEM_SIZES[self.tensor.dtype]
        start, stop, elements = tensor.offset, tensor.offset, 1
        if tensor.nbytes:
            stop = last_element(tensor.offset, tensor.shape, tensor.strides) + 1
        for stride, extent in sorted(zip(tensor.strides, tensor.shape, strict=True)):
            if stride and extent > 1:
                elements = elements * extent if stride == elements else 0
        times = math.prod(tensor.shape) // elements if elements and elements == stop - start else None
        cost = 0 if isinstance(self.storage, SourceData) or tensor.storage is None else tensor.storage.nbytes
        identity = (tensor.shape, tensor.strides, tensor.conjugated, tensor.negated)
        return Reached(self.storage, start * item, stop * item, times, cost, identity, not self.big_endian)

    def permuted(self) -> tuple[SourceData, tuple[int, ...]] | None:
        """Return where the values are stored without gaps, and the order of the axes there; None if they are not."""
        tensor, stored = self.tensor, self.storage
        changed = self.big_endian or tensor.conjugated or tensor.negated or tensor.dtype in (DType.Bool, DType.F4)
        if changed or not isinstance(stored, SourceData):
            return None
        axes = range(len(tensor.shape))
        order = tuple(sorted(axes, key=lambda axis: (-tensor.strides[axis], -tensor.shape[axis])))
        shape, strides = tuple(tensor.shape[axis] for axis in order), tuple(tensor.strides[axis] for axis in order)
        if not is_contiguous(shape, strides):
            return None
        begin = tensor.offset * ITEM_SIZES[tensor.dtype]
        return SourceData(stored.source, stored.offset + begin, tensor.nbytes), order

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        strides = self.tensor.strides
        if strides and strides[0] < max(strides):
            # Columns are stored together: a few rows reach through most of the storage, so it is read once.
            yield self.window(0, nbytes)
            return
        step = max(CHUNK_BYTES // max(self._row_bytes(), 1), 1) * self._row_bytes()
        for start in range(0, nbytes, step or 1):
            yield self.window(start, min(start + step, nbytes))

    def _row_bytes(self) -> int:
        return math.prod(self.tensor.shape[1:]) * ITEM_SIZES[self.tensor.dtype]

    def _rows(self, first: int, last: int) -> Array:
        """Return the bytes of these rows."""
        tensor, item = self.tensor, ITEM_SIZES[self.tensor.dtype]
        shape, strides = (tensor.shape, tensor.strides) if tensor.shape else ((1,), (1,))
        shape, begin = (last - first, *shape[1:]), tensor.offset + first * strides[0]
        end = last_element(begin, shape, strides) + 1
        stored = np.frombuffer(self.storage.window(begin * item, end * item), np.uint8)
        try:
            laid_out: Array = np.lib.stride_tricks.as_strided(
                stored.view(_UNITS[item]), shape, [stride * item for stride in strides], writeable=False
            )
        except ValueError as error:  # More axes than NumPy has.
            raise UnsupportedError(f"NumPy has no array of shape {list(shape)}: {error}", rule="PT-21") from error
        values: Array = np.array(laid_out, order="C").reshape(-1)  # A copy, also where memory could be shared.
        return self._resolved(values).view(np.uint8)

    def _resolved(self, values: Array) -> Array:
        """Apply the byte order, make bools 0 or 1, and apply torch's lazy bits."""
        tensor = self.tensor
        width = tensor.dtype.bits // 16 if tensor.dtype.kind is Kind.COMPLEX else ITEM_SIZES[tensor.dtype]
        if self.big_endian and width > 1:
            # A single element would stay a view that runs backwards.
            values = np.ascontiguousarray(values.view(np.uint8).reshape(-1, width)[:, ::-1]).reshape(-1)
        if tensor.dtype is DType.Bool:
            true: Array = values != 0
            return true.view(np.uint8)
        if tensor.conjugated or tensor.negated:
            # Only the sign bits change: NaNs keep their payload and all other bits.
            signs = np.array(values.view(np.uint8)).reshape(-1, width)
            if tensor.negated and tensor.dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
                raise UnsupportedError(f"a negated view of {tensor.dtype.name}", rule="PT-22")
            if tensor.conjugated and tensor.dtype.kind is Kind.COMPLEX:
                signs[1::2, -1] ^= 0x80
            if tensor.negated:
                signs[:, -1] ^= 0x80
            return signs.reshape(-1)
        return values


# --------------------------------------------------------------------------------------------------- dense values

Parts = Mapping[str, Array]


class DenseData(Data):
    """The plain values of a sparse or quantized tensor."""

    __slots__ = ("composite", "parts")

    def __init__(self, composite: CompositeTensor, parts: Mapping[str, Data]) -> None:
        self.composite = composite
        self.parts = parts

    @property
    def file(self) -> str | None:
        return next((part.file for part in self.parts.values() if part.file is not None), None)

    def window(self, start: int, stop: int) -> memoryview:
        return bytes_of_array(self._apply(_DENSE))[start:stop]

    def check(self) -> None:
        """Check that the parts of a sparse tensor fit: every index is within its size."""
        self._apply(_SPARSE)

    def _apply(self, functions: Mapping[str, Callable[[Parts, CompositeTensor], Any]]) -> Any:
        arrays = {name: self._array(name) for name in self.composite.parts}
        try:
            with np.errstate(all="ignore"):
                return functions[self.composite.kind](arrays, self.composite)
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            if isinstance(error, BurnstoreError):
                raise
            problem = f"a {self.composite.kind} tensor whose parts do not fit: {error}"
            raise CorruptError(problem, rule="PT-22") from None

    def _array(self, name: str) -> Array:
        part = self.composite.parts[name]
        if not isinstance(part, PickledTensor):
            return np.asarray(part)
        return array_from_bytes(self.parts[name].window(0, part.nbytes), part.dtype, part.shape)


def is_sparse(composite: CompositeTensor) -> bool:
    """Return whether a tensor is stored as indices and values."""
    return composite.kind in _SPARSE


def dense_kind(composite: CompositeTensor) -> tuple[DType, Shape] | None:
    """Return the dtype and shape of the plain values, None where they cannot be computed."""
    if composite.kind not in _DENSE:
        return None
    shape: Shape = composite.facts["shape"]
    values: Any = composite.parts["int_repr" if composite.kind == "quantized" else "values"]
    if composite.kind == "quantized":
        dtype = DType.F32
    else:
        dtype = values.dtype if isinstance(values, PickledTensor) else DType.of(values.dtype)
    nbytes = math.prod(shape) * dtype.bits // 8
    if nbytes > MAX_EXPANDED:
        raise LimitError(f"a {composite.kind} tensor with {nbytes} bytes of plain values", rule="PT-21")
    return dtype, shape


def _quantized(parts: Parts, composite: CompositeTensor) -> Array:
    """Compute what torch computes, bit for bit.

    Per tensor, codes are subtracted as 32-bit integers, which wrap, and scaled in single precision. Per channel, codes
    are subtracted in single precision and scaled in double precision.
    """
    codes, scale, zero = parts["int_repr"], parts["scale"], parts["zero_point"]
    if "axis" not in composite.facts:
        difference = codes.astype(np.int32) - zero.astype(np.int32)
        return difference.astype(np.float32) * scale.astype(np.float32)
    along = [1] * codes.ndim
    along[composite.facts["axis"]] = -1
    centred = codes.astype(np.float32) - zero.astype(np.float32).reshape(along)
    return (centred.astype(np.float64) * scale.astype(np.float64).reshape(along)).astype(np.float32)


def _check_coo(parts: Parts, composite: CompositeTensor) -> None:
    indices, values, shape = parts["indices"], parts["values"], composite.facts["shape"]
    if indices.ndim != 2 or values.ndim < 1 or indices.shape[1] != values.shape[0]:
        raise CorruptError("a sparse tensor with another number of indices than values", rule="PT-22")
    axes = indices.shape[0]
    if len(shape) != axes + values.ndim - 1 or shape[axes:] != values.shape[1:]:
        raise CorruptError("a sparse tensor whose values do not fit its size", rule="PT-22")
    _check_indices(indices, np.array(shape[:axes], np.int64).reshape(-1, 1))


def _coo(parts: Parts, composite: CompositeTensor) -> Array:
    _check_coo(parts, composite)
    indices, values, shape = parts["indices"], parts["values"], composite.facts["shape"]
    made: Array = np.zeros(shape, values.dtype)
    # Values of an index that occurs more than once are added up; one more axis covers tensors without axes.
    combine = np.logical_or if made.dtype.kind == "b" else np.add
    combine.at(made[None], (np.zeros(len(values), np.int64), *indices), values)
    return made


def _check_indices(indices: Array, ends: Any) -> None:
    if indices.dtype.kind not in "iu" or (indices < 0).any() or (indices >= ends).any():
        raise CorruptError("a sparse tensor with an index outside of its size", rule="PT-22")


class _Lines(NamedTuple):
    """The rows or columns of the matrices of a compressed tensor: where each starts, and the other index."""

    starts: Array
    others: Array
    tiles: Shape
    """The shape of the whole, as blocks."""
    blocks: Shape
    """The shape of the values, as blocks."""


def _check_compressed(parts: Parts, composite: CompositeTensor) -> _Lines:
    """Check rows or columns (csr, csc), or blocks of them (bsr, bsc); the first axes may be a batch."""
    values, shape = parts["values"], composite.facts["shape"]
    along, across = (parts[name] for name in list(composite.parts)[:2])
    if not along.ndim or not across.ndim or len(shape) < along.ndim + 1:
        raise CorruptError("a sparse tensor whose indices do not fit its size", rule="PT-22")
    blocked = composite.kind in ("sparse_bsr", "sparse_bsc")
    batch = along.shape[:-1]
    first = len(batch) + 1  # Where the axes of a block are, behind the batch and the values of one matrix.
    height, width = values.shape[first : first + 2] if blocked else (1, 1)
    tail = values.shape[first + 2 * blocked :]
    if shape[: len(batch)] != batch or shape[len(batch) + 2 :] != tail or across.shape != values.shape[:first]:
        raise CorruptError("a sparse tensor whose values do not fit its size", rule="PT-22")
    rows, columns = shape[len(batch)] // max(height, 1), shape[len(batch) + 1] // max(width, 1)
    count, stored = math.prod(batch), across.shape[-1]
    lines, extent = (rows, columns) if _by_rows(composite) else (columns, rows)
    starts, others = along.reshape(count, lines + 1), across.reshape(count, stored)
    _check_indices(starts, stored + 1)
    _check_indices(others, extent)
    counts: Any = np.diff(starts.astype(np.int64), axis=1)
    if (starts[:, 0] != 0).any() or (starts[:, -1] != stored).any() or (counts < 0).any():
        raise CorruptError("a sparse tensor whose indices do not fit its size", rule="PT-22")
    tiles = (count, rows, height, columns, width, *tail)
    return _Lines(starts, others, tiles, (count, stored, height, width, *tail))


def _by_rows(composite: CompositeTensor) -> bool:
    return composite.kind in ("sparse_csr", "sparse_bsr")


def _compressed(parts: Parts, composite: CompositeTensor) -> Array:
    """Expand rows or columns (csr, csc), or blocks of them (bsr, bsc)."""
    by_rows, compressed = _by_rows(composite), _check_compressed(parts, composite)
    made: Array = np.zeros(composite.facts["shape"], parts["values"].dtype)
    if not made.size:
        return made
    tiles, blocks = made.reshape(compressed.tiles), parts["values"].reshape(compressed.blocks)
    for at, (starts, others) in enumerate(zip(compressed.starts, compressed.others, strict=True)):
        line = np.repeat(np.arange(len(starts) - 1), np.diff(starts.astype(np.int64)))
        row, column = (line, others) if by_rows else (others, line)
        tiles[at, row, :, column, :] = blocks[at] + blocks.dtype.type(0)  # torch adds to zero, which loses -0.0.
    return made


_SPARSE: dict[str, Callable[[Parts, CompositeTensor], Any]] = {
    "sparse_coo": _check_coo,
    **dict.fromkeys(("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"), _check_compressed),
}
_DENSE: dict[str, Callable[[Parts, CompositeTensor], Array]] = {
    "quantized": _quantized,
    "sparse_coo": _coo,
    **dict.fromkeys(("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"), _compressed),
}
