"""TensorData: one tensor in memory, as row-major little-endian bytes with a dtype and a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .dtype import DType, Kind
from .errors import CorruptError, DTypeError

if TYPE_CHECKING:
    from .quant import QuantizedTensor

Array = np.ndarray[Any, np.dtype[Any]]
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

    @classmethod
    def from_numpy(cls, array: Array) -> TensorData:
        """The data of an array of any strides and byte order; shares memory where its bytes lie right already."""
        return cls(bytes_of_array(array), DType.of(array.dtype), array.shape)

    @classmethod
    def from_bytes(cls, raw: bytes | bytearray | memoryview, dtype: DType, shape: Sequence[int]) -> TensorData:
        """Bytes with their meaning; ValueError where the count does not fit dtype and shape."""
        view = memoryview(raw).cast("B")
        data = cls(view, dtype, tuple(shape))
        need = dtype.nbytes(shape)
        if len(view) != need:
            raise CorruptError(f"{dtype.name} of shape {list(shape)} has {need} bytes, got {len(view)}")
        return data

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


def bytes_of_array(array: Array) -> memoryview:
    """The row-major little-endian bytes of an array, without a copy where it lies in memory like that."""
    native = (
        array.dtype.newbyteorder("<") if array.dtype.byteorder in ">=" and array.dtype.kind in "fiuc" else array.dtype
    )
    flat = np.ascontiguousarray(array, dtype=native).reshape(-1)
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
    if dtype.kind is Kind.BOOL:
        return _bools(raw, dtype, shape)
    array: Array = np.ndarray(shape, dtype.numpy, raw)
    return array


def quantized_from_bytes(raw: memoryview, dtype: DType, shape: Shape) -> QuantizedTensor:
    """The codes and scales that these bytes hold."""
    from . import quant  # not at import: only quantized tensors need it

    if dtype.scheme is None:
        raise DTypeError(f"a tensor of {dtype.name} is not quantized", hint="numpy() gives its values")
    return quant.decode(raw, dtype.scheme, shape)


def _bools(raw: memoryview | Array, dtype: DType, shape: Shape) -> Array:
    # NumPy's bool is one byte that must be 0 or 1; other bytes would be neither equal to True nor to False.
    stored: Array = np.ndarray(shape, np.dtype("<u4") if dtype.bits == 32 else np.dtype("u1"), raw)
    if stored.size and stored.max() > 1:
        raise CorruptError(f"a {dtype.name} holds {int(stored.max())}, which is neither 0 nor 1")
    return stored.view(np.bool_) if dtype.bits == 8 else stored.astype(np.bool_)
