"""TensorData: one tensor in memory, as row-major little-endian bytes with a dtype and a shape."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CorruptError, DTypeError, UnsupportedError
from ..io.source import Array as Array
from .dtype import DType, Kind

if TYPE_CHECKING:
    from .quantization import QuantizedTensor

_LITTLE = sys.byteorder == "little"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TensorData:
    """A tensor's bytes, and what they mean.

    ``raw`` is exactly ``dtype.nbytes(shape)`` bytes, the same that Burn's TensorData holds.

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
            raise CorruptError(f"{self.dtype.name} of shape {list(self.shape)} has {need} bytes, got {len(self.raw)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorData.from_bytes, (bytes(self.raw), self.dtype, self.shape)

    @classmethod
    def from_numpy(cls, array: Array) -> TensorData:
        """The data of an array of any strides and byte order; shares memory where its bytes lie right already."""
        array, dtype = checked_array(array)
        return cls(bytes_of_array(array), dtype, array.shape)

    @classmethod
    def from_bytes(cls, raw: bytes | bytearray | memoryview, dtype: DType, shape: Sequence[int]) -> TensorData:
        """Bytes with their meaning; ValueError where the count does not fit dtype and shape."""
        if not isinstance(dtype, DType):
            raise TypeError(f"dtype is a DType, not {type(dtype).__name__}")
        return cls(memoryview(raw).cast("B"), dtype, checked_shape(shape))

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        return len(self.raw)

    def to_bytes(self) -> bytes:
        """The bytes, as a copy."""
        return bytes(self.raw)

    def numpy(self) -> Array:
        """The values: a view on the bytes where NumPy can hold them as they are; quantized ones are dequantized."""
        return array_from_bytes(self.raw, self.dtype, self.shape)

    def quantized(self) -> QuantizedTensor:
        """The codes and scales of a quantized tensor."""
        return quantized_from_bytes(self.raw, self.dtype, self.shape)


def checked_shape(shape: Sequence[int]) -> Shape:
    """A shape that a caller gave, as plain integers."""
    extents = tuple(operator.index(extent) for extent in shape)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"shape {list(extents)} has a negative extent")
    return extents


def checked_array(array: Array) -> tuple[Array, DType]:
    """An array that a caller gave and its dtype; refused where its memory is not what a file would hold."""
    array = np.asanyarray(array)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("a masked array cannot be stored: its mask would be lost, fill it first")
    dtype = DType.of(array.dtype)
    if dtype.bits % 8:
        raise DTypeError(
            f"NumPy holds {dtype.name} one value to a byte, files pack {8 / dtype.bits:g}",
            hint="pack the values and give TensorData.from_bytes",
        )
    return array, dtype


def little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype with the byte order that files have."""
    return dtype.newbyteorder("<") if dtype.byteorder == ">" or (not _LITTLE and dtype.byteorder == "=") else dtype


def bytes_of_array(array: Array) -> memoryview:
    """The row-major little-endian bytes of an array, without a copy where it lies in memory like that."""
    flat = np.ascontiguousarray(array, little_endian(array.dtype)).reshape(-1)
    return memoryview(flat.view(np.uint8)) if flat.size else memoryview(b"")


def array_from_bytes(raw: memoryview | Array, dtype: DType, shape: Shape) -> Array:
    """The values that these bytes hold; shares their memory where NumPy's form is theirs."""
    if dtype.kind is Kind.QUANTIZED:
        return quantized_from_bytes(memoryview(raw), dtype, shape).dequantize()
    if dtype.bits % 8:
        raise DTypeError(
            f"{dtype.name} values are packed {8 / dtype.bits:g} to a byte, which NumPy cannot show",
            hint="take the bytes with to_bytes()",
        )
    try:
        if dtype.kind is Kind.BOOL:
            return _bools(raw, dtype, shape)
        array: Array = np.ndarray(shape, dtype.numpy, raw)
        return array
    except CorruptError:
        raise
    except ValueError as error:  # more axes than NumPy has, or extents beside a zero whose product overflows
        raise UnsupportedError(f"NumPy has no array of shape {list(shape)}: {error}") from error


def quantized_from_bytes(raw: memoryview, dtype: DType, shape: Shape) -> QuantizedTensor:
    """The codes and scales that these bytes hold."""
    from . import quantization as quant  # not at import: only quantized tensors need it

    if dtype.scheme is None:
        raise DTypeError(f"a tensor of {dtype.name} is not quantized", hint="numpy() gives its values")
    return quant.decode(raw, dtype.scheme, shape)


def _bools(raw: memoryview | Array, dtype: DType, shape: Shape) -> Array:
    # NumPy's bool is one byte that must be 0 or 1; other bytes would be neither equal to True nor to False.
    stored: Array = np.ndarray(shape, np.dtype("<u4") if dtype.bits == 32 else np.dtype("u1"), raw)
    if stored.size and stored.max() > 1:
        raise CorruptError(f"a {dtype.name} holds {int(stored.max())}, which is neither 0 nor 1")
    return stored.view(np.bool_) if dtype.bits == 8 else stored.astype(np.bool_)
