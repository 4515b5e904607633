"""TensorData: one tensor in memory as row-major little-endian bytes; and the conversion to and from NumPy."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CorruptError, DTypeError, UnsupportedError, expect
from ..io.source import Array as Array
from .dtype import DType, Kind

if TYPE_CHECKING:
    from .quantization import QuantizedTensor

_LITTLE = sys.byteorder == "little"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TensorData:
    """A tensor's bytes with their dtype and shape.

    ``raw`` is exactly ``dtype.nbytes(shape)`` bytes, the same as in Burn's TensorData.

    >>> data = TensorData.from_numpy(np.array([[1, 2]], dtype=np.int16))
    >>> data.shape, str(data.dtype), data.to_bytes()
    ((1, 2), 'I16', b'\\x01\\x00\\x02\\x00')
    """

    raw: memoryview
    dtype: DType
    shape: Shape

    def __post_init__(self) -> None:
        if self.dtype.scheme is not None:
            self.dtype.scheme.check_length(self.shape, len(self.raw))
        elif len(self.raw) != self.dtype.nbytes(self.shape):
            need = self.dtype.nbytes(self.shape)
            raise CorruptError(
                f"expected {need} bytes for {self.dtype.name} of shape {list(self.shape)}, got {len(self.raw)}"
            )
        check_bools(self.raw, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorData.from_bytes, (bytes(self.raw), self.dtype, self.shape)

    @classmethod
    def from_numpy(cls, array: Array) -> TensorData:
        """Return the data of an array of any strides and byte order; shares its memory where no copy is needed."""
        array, dtype = checked_array(array)
        return cls(bytes_of_array(array), dtype, array.shape)

    @classmethod
    def from_bytes(cls, raw: bytes | bytearray | memoryview, dtype: DType, shape: Sequence[int]) -> TensorData:
        """Return bytes with their dtype and shape; ValueError if their number does not fit."""
        return cls(memoryview(raw).cast("B"), expect(dtype, DType, "dtype"), checked_shape(shape))

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return len(self.raw)

    def to_bytes(self) -> bytes:
        """Return a copy of the bytes."""
        return bytes(self.raw)

    def numpy(self) -> Array:
        """Return the values, a view of the bytes where NumPy has the dtype; quantized ones are dequantized."""
        return array_from_bytes(self.raw, self.dtype, self.shape)

    def quantized(self) -> QuantizedTensor:
        """Return the codes and scales of a quantized tensor."""
        return quantized_from_bytes(self.raw, self.dtype, self.shape)


def checked_shape(shape: Sequence[int]) -> Shape:
    """Return a caller's shape as plain integers."""
    extents = tuple(operator.index(extent) for extent in shape)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"shape {list(extents)} has a negative extent")
    return extents


def checked_array(array: Array) -> tuple[Array, DType]:
    """Return a caller's array and its dtype; refuse an array that a file cannot store."""
    array = np.asanyarray(array)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("cannot store a masked array: its mask would be lost; call filled() first")
    dtype = DType.of(array.dtype)
    if dtype.bits % 8:
        raise DTypeError(
            f"NumPy has one {dtype.name} value per byte, files pack {8 / dtype.bits:g}",
            hint="pack the values and use TensorData.from_bytes",
        )
    return array, dtype


def little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype with the byte order of files."""
    return dtype.newbyteorder("<") if dtype.byteorder == ">" or (not _LITTLE and dtype.byteorder == "=") else dtype


def bytes_of_array(array: Array) -> memoryview:
    """Return the row-major little-endian bytes of an array, without a copy where its memory has them."""
    flat = np.ascontiguousarray(array, little_endian(array.dtype)).reshape(-1)
    return memoryview(flat.view(np.uint8)) if flat.size else memoryview(b"")


def array_from_bytes(raw: memoryview | Array, dtype: DType, shape: Shape) -> Array:
    """Return the values of these bytes; shares their memory where NumPy has the dtype."""
    if dtype.kind is Kind.QUANTIZED:
        return quantized_from_bytes(memoryview(raw), dtype, shape).dequantize()
    if dtype.bits % 8:
        raise DTypeError(
            f"{dtype.name} values are packed {8 / dtype.bits:g} to a byte, which NumPy cannot represent",
            hint="read the bytes with to_bytes()",
        )
    try:
        if dtype.kind is Kind.BOOL:
            return _bools(raw, dtype, shape)
        array: Array = np.ndarray(shape, dtype.numpy, raw)
        return array
    except CorruptError:
        raise
    except ValueError as error:  # too many axes, or extents beside a zero whose product overflows
        raise UnsupportedError(f"NumPy has no array of shape {list(shape)}: {error}") from error


def quantized_from_bytes(raw: memoryview, dtype: DType, shape: Shape) -> QuantizedTensor:
    """Return the codes and scales of these bytes."""
    from . import quantization as quant  # not at import: only quantized tensors need it

    if dtype.scheme is None:
        raise DTypeError(f"a tensor of {dtype.name} is not quantized", hint="call numpy() for its values")
    return quant.decode(raw, dtype.scheme, shape)


def check_bools(raw: bytes | memoryview | Array, dtype: DType) -> None:
    """Refuse bytes of bools that are neither 0 nor 1; bytes of other dtypes are not looked at.

    NumPy and torch hold a bool in one byte: a third value would equal neither True nor False. So such bytes are neither
    read nor written, wherever they come from.
    """
    if dtype.kind is not Kind.BOOL:
        return
    stored: Array = np.frombuffer(raw, np.dtype("<u4") if dtype.bits == 32 else np.dtype("u1"))
    if stored.size and stored.max() > 1:
        raise CorruptError(f"expected 0 or 1 in a {dtype.name}, found {int(stored.max())}")


def _bools(raw: memoryview | Array, dtype: DType, shape: Shape) -> Array:
    check_bools(raw, dtype)
    stored: Array = np.ndarray(shape, np.dtype("<u4") if dtype.bits == 32 else np.dtype("u1"), raw)
    return stored.view(np.bool_) if dtype.bits == 8 else stored.astype(np.bool_)
