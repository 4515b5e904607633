"""Precision: a tensor's values in another float dtype, cast when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import DTypeError
from ..io.sizes import CHUNK_BYTES
from ..tensor.data import Array, array_from_bytes, bytes_of_array
from ..tensor.dtype import DType, Kind
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import AxisSlice, Data, WrappedData

BURN_FLOATS = (DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16)


def cast(snapshot: TensorSnapshot, dtype: DType) -> TensorSnapshot:
    """Return the tensor in another float dtype, rounded to nearest even.

    A finite value that the dtype cannot represent would become infinite; reading it raises DTypeError instead.

    >>> half = cast(TensorSnapshot.from_numpy("w", np.float32([1.0, 2.5])), DType.F16)
    >>> str(half.dtype), half.nbytes, half.numpy().tolist()
    ('F16', 4, [1.0, 2.5])
    """
    if not (snapshot.dtype.is_float and dtype.is_float):
        raise DTypeError(
            f"cannot cast {snapshot.dtype.name} to {dtype.name}: both must be floats", tensor=snapshot.path
        )
    if snapshot.dtype is dtype:
        return snapshot
    for each in (snapshot.dtype, dtype):
        if each.bits % 8:
            raise DTypeError(f"{each.name} values are packed {8 / each.bits:g} to a byte", tensor=snapshot.path)
    data = CastData(snapshot._data, snapshot.dtype, dtype, snapshot.nbytes * 8 // snapshot.dtype.bits)
    return snapshot.replace(dtype=dtype, data=data)


@dataclass(slots=True, eq=False)
class CastData(WrappedData):
    """The values of other data in another float dtype; a few megabytes at a time where those stream."""

    given: DType
    dtype: DType
    count: int

    @property
    def streams(self) -> bool:
        return self.data.streams

    def bytes_held(self, nbytes: int) -> int:
        return self.data.bytes_held(self.count * self.given.bits // 8) + min(nbytes, CHUNK_BYTES)

    def window(self, start: int, stop: int) -> memoryview:
        width, wide = self.dtype.bits // 8, self.given.bits // 8
        first, last = start // width, -(-stop // width)
        values = array_from_bytes(self.data.window(first * wide, last * wide), self.given, (last - first,))
        return bytes_of_array(self._cast(values))[start - first * width : stop - first * width]

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        for values in self._values():
            yield bytes_of_array(self._cast(values))

    def _sliced(self, part: AxisSlice) -> Data:
        values = self.data.sliced(part._replace(bits=self.given.bits))
        count = part.nbytes(part.stop - part.start) * part.runs * 8 // part.bits
        return CastData(values, self.given, self.dtype, count)

    def _values(self) -> Iterator[Array]:
        """Yield the values before the cast, a part at a time."""
        wide = self.given.bits // 8
        step = CHUNK_BYTES // max(wide, self.dtype.bits // 8)
        kept = b""  # a chunk may end within an element
        for chunk in self.data.chunks(self.count * wide):
            raw = memoryview(bytes(kept) + bytes(chunk)) if kept else chunk
            whole = len(raw) // wide
            for at in range(0, whole, step):
                part = raw[at * wide : min(at + step, whole) * wide]
                yield array_from_bytes(part, self.given, (len(part) // wide,))
            kept = bytes(raw[whole * wide :])
            del chunk, raw  # or they would stay while the next is made

    def _cast(self, values: Array) -> Array:
        converted = _converted(values, self.dtype)
        if _lost(values, converted).any():
            raise self._too_large()
        return converted

    def _too_large(self) -> DTypeError:
        """Return the error about the whole tensor, whichever part of it was read."""
        count, largest = 0, 0.0
        for values in self._values():
            lost = _lost(values, _converted(values, self.dtype))
            if lost.any():
                count += int(lost.sum())
                largest = max(largest, _largest(values[lost]))
        return _too_large(count, largest, self.dtype)


def cast_array(values: Array, dtype: DType) -> Array:
    """Return the values in that dtype; DTypeError where a finite one does not fit."""
    converted = _converted(values, dtype)
    lost = _lost(values, converted)
    if lost.any():
        raise _too_large(int(lost.sum()), _largest(values[lost]), dtype)
    return converted


def _converted(values: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            return values.astype(dtype.numpy)
        except TypeError:  # between F8_E8M0 and other 8-bit floats: F32 has all numbers of both
            return values.astype(np.float32).astype(dtype.numpy)


def _lost(values: Array, converted: Array) -> Array:
    """Return where a finite value became something else; empty where none can."""
    if converted.dtype.itemsize > values.dtype.itemsize:  # F16 has the width of BF16 and not its range
        return np.empty(0, np.bool_)
    with np.errstate(invalid="ignore"):  # ml_dtypes' isfinite raises the flag for a signalling NaN
        lost = ~np.isfinite(converted)
        return lost & np.isfinite(values) if lost.any() else lost


def _largest(values: Array) -> float:
    return float(np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)).max())


def _too_large(count: int, largest: float, dtype: DType) -> DTypeError:
    return DTypeError(
        f"{count} finite values, up to {largest:g}, are too large for {dtype.name}",
        hint="BF16 has the range of F32" if dtype is DType.F16 else None,
    )


def held_as(values: Array, dtype: DType) -> Array:
    """Return the values in the dtype of a target that keeps its own: floats are rounded, integers must fit.

    F8_E8M0 has powers of two and nothing else, not even zero: values must be such. DTypeError otherwise.

    >>> held_as(np.array([1, 255]), DType.U8).tolist()
    [1, 255]
    """
    if dtype.kind in (Kind.INT, Kind.UINT):
        range_ = np.iinfo(dtype.numpy)
        if values.size and (int(values.min()) < range_.min or int(values.max()) > range_.max):
            raise DTypeError(f"integers from {int(values.min())} to {int(values.max())} do not fit {dtype.name}")
        return values.astype(dtype.numpy)
    if dtype.is_bool:
        return values.astype(dtype.numpy)
    converted = cast_array(values, dtype)
    if dtype is DType.F8_E8M0 and not np.array_equal(converted.astype(np.float64), values.astype(np.float64)):
        raise DTypeError("F8_E8M0 has powers of two only; other values do not fit")
    return converted
