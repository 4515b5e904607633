"""Precision: a tensor's values in another float dtype, cast when they are read."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import DTypeError, counted
from ..io.sizes import CHUNK_BYTES
from ..tensor.data import Array, array_from_bytes, bytes_of_array
from ..tensor.dtype import DType, Kind
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import AxisSlice, Data, WrappedData

BURN_FLOATS = (DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16)


def cast(snapshot: TensorSnapshot, dtype: DType) -> TensorSnapshot:
    """Return the tensor in another float dtype, rounded to nearest even.

    Reading raises DTypeError for a value that would become something else than a rounded number: a finite one that is
    too large, an infinity where the dtype has none, and any rounding from or to F8_E8M0, which has powers of two only.

    >>> half = cast(TensorSnapshot.from_numpy("w", np.float32([1.0, 2.5])), DType.F16)
    >>> str(half.dtype), half.nbytes, half.numpy().tolist()
    ('F16', 4, [1.0, 2.5])
    """
    if snapshot.dtype.is_quantized:
        snapshot = snapshot.decoded()
    if not (snapshot.dtype.is_float and dtype.is_float):
        raise DTypeError(
            f"cannot cast {snapshot.dtype.name} to {dtype.name}: both must be floats", tensor=snapshot.path
        )
    if snapshot.dtype is dtype:
        return snapshot.decoded()
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
    underflowed: bool = False
    """Whether a value that was read so far became 0."""

    @property
    def identity(self) -> Hashable | None:
        inner = self.data.identity
        return None if inner is None else (CastData, inner, self.given, self.dtype, self.count)

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
        converted = converted_array(values, self.dtype)
        if _changed(values, converted).any():
            raise self._refusal()
        if not self.underflowed and underflows(values, converted):
            self.underflowed = True
        return converted

    def _refusal(self) -> DTypeError:
        """Return the error about the whole tensor, whichever part of it was read."""
        refused = _Refused()
        for values in self._values():
            refused.add(values, converted_array(values, self.dtype))
        return refused.error(self.given, self.dtype)


def cast_array(values: Array, dtype: DType) -> Array:
    """Return the values in that dtype, rounded to nearest even; DTypeError where one becomes something else."""
    converted = converted_array(values, dtype)
    if _changed(values, converted).any():
        refused = _Refused()
        refused.add(values, converted)
        raise refused.error(DType.of(values.dtype), dtype)
    return converted


def converted_array(values: Array, dtype: DType) -> Array:
    """Return the nearest values of a dtype, ties to even; what it cannot represent becomes an infinity or NaN."""
    target = dtype.numpy
    with np.errstate(all="ignore"):
        if values.dtype == np.float64 and dtype.bits <= 16 and dtype is not DType.F16:
            values = _round_to_odd(values)  # ml_dtypes rounds by way of float32: twice
        try:
            return values.astype(target)
        except TypeError:  # between F8_E8M0 and other 8-bit floats: F32 has all numbers of both
            return values.astype(np.float32).astype(target)


def _round_to_odd(values: Array) -> Array:
    """Return float64 values as float32 such that a second rounding to fewer bits gives the nearest value.

    An inexact value becomes the neighbour whose last bit is 1: it stays on its side of every tie of narrower dtypes.
    """
    single: Array = values.astype(np.float32)
    wide = single.astype(np.float64)
    inexact = (wide != values) & ~np.isnan(values)
    bits = single.view(np.uint32)
    bits[inexact & (np.abs(wide) > np.abs(values))] -= 1  # towards zero, also from infinity
    bits[inexact] |= 1
    return single


def underflows(values: Array, converted: Array) -> bool:
    """Return whether a value that is not 0 became 0 by a cast between floats.

    >>> underflows(np.float32([0, 1]), np.float16([0, 1])), underflows(np.float32([1e-20]), np.float16([0]))
    (False, True)
    """
    if converted.dtype.itemsize > values.dtype.itemsize or DType.of(converted.dtype) is DType.F8_E8M0:
        return False
    if values.dtype.kind == "c":
        values, converted = (np.ascontiguousarray(each).view(each.real.dtype) for each in (values, converted))
    bits = np.ascontiguousarray(converted).reshape(-1).view(f"<u{converted.dtype.itemsize}")
    zeros = (bits << bits.dtype.type(1)) == 0  # apart from the sign
    if not zeros.any():
        return False
    with np.errstate(all="ignore"):
        lost = values.reshape(-1)[zeros]
        return bool(((lost != 0) & (lost == lost)).any())  # some dtypes have a NaN where others have -0


def underflowed(data: Data) -> bool:
    """Return whether a cast or a computation has rounded a value that was read from these data to 0."""
    kind: type = type(data)
    return _computes(kind) and (getattr(data, "underflowed", False) or any(map(underflowed, data.inner)))


@functools.cache
def _computes(kind: type) -> bool:
    """Return whether data of this class are cast, computed, or made of others."""
    return hasattr(kind, "underflowed") or getattr(kind, "inner", None) is not Data.inner


def rounded_results(results: Array, dtype: DType, given: Sequence[Array]) -> Array:
    """Return what was computed from finite and other values in a dtype; DTypeError where only finite ones gave another.

    >>> rounded_results(np.float64([1e300]), DType.F32, [np.float64([1e150])])
    Traceback (most recent call last):
        ...
    burnstore.errors.DTypeError: 1 result of finite values is too large for F32, or undefined
    """
    converted = converted_array(results, dtype)
    lost = ~np.isfinite(converted)
    if lost.any() and all(np.isfinite(values).all() for values in given):
        many = counted(int(lost.sum()), "result of finite values is", "results of finite values are")
        raise DTypeError(f"{many} too large for {dtype.name}, or undefined")
    if _changed(results, converted).any():
        raise DTypeError(f"results are too large for {dtype.name}")
    return converted


_NONE = np.empty(0, np.bool_)


def _changed(values: Array, converted: Array) -> Array:
    """Return where a value became something else than a rounded number; empty where none can.

    That is a finite value which became infinite or NaN, and an infinity which became NaN. F8_E8M0 has powers of two
    only, neither zero nor signs: casts from and to it must be exact.
    """
    if DType.F8_E8M0 in (DType.of(values.dtype), DType.of(converted.dtype)):
        with np.errstate(all="ignore"):
            given, found = values.astype(np.float64), converted.astype(np.float64)
            differs: Array = (given != found) & ~(np.isnan(given) & np.isnan(found))
            return differs
    if converted.dtype.itemsize > values.dtype.itemsize:  # F16 has the width of BF16 and not its range
        return _NONE
    with np.errstate(all="ignore"):  # ml_dtypes' isfinite raises a flag for a signalling NaN
        odd = ~np.isfinite(converted)
        if odd.any():
            odd &= np.isnan(converted) ^ np.isnan(values) | np.isfinite(values)
        return odd


@dataclass(slots=True)
class _Refused:
    """The values of a tensor that a dtype cannot represent."""

    count: int = 0
    infinite: int = 0
    smallest: float = np.inf
    largest: float = 0.0

    def add(self, values: Array, converted: Array) -> None:
        changed = _changed(values, converted)
        if not changed.any():
            return
        with np.errstate(all="ignore"):
            sizes = np.abs(values[changed].astype(np.complex128 if values.dtype.kind == "c" else np.float64))
        finite = sizes[np.isfinite(sizes)]
        self.count += len(finite)
        self.infinite += len(sizes) - len(finite)
        if len(finite):
            self.smallest = min(self.smallest, float(finite.min()))
            self.largest = max(self.largest, float(finite.max()))

    def error(self, given: DType, dtype: DType) -> DTypeError:
        if dtype is DType.F8_E8M0:
            return DTypeError(
                f"{self.count + self.infinite} values are not powers of two, which is all that F8_E8M0 has"
            )
        if given is DType.F8_E8M0:
            return DTypeError(
                f"{self.count} powers of two, from {self.smallest:g} to {self.largest:g}, do not fit {dtype.name}",
                hint="BF16 and F32 have all values of F8_E8M0",
            )
        if not self.count:
            many = counted(self.infinite, "value is", "values are")
            return DTypeError(f"{many} infinite, and {dtype.name} has no infinities")
        verb = "is" if self.count == 1 else "are"
        return DTypeError(
            f"{counted(self.count, 'finite value')}, up to {self.largest:g}, {verb} too large for {dtype.name}",
            hint="BF16 has the range of F32" if dtype is DType.F16 else None,
        )


def held_as(values: Array, dtype: DType) -> Array:
    """Return the values in the dtype of a target that keeps its own: floats are rounded, integers must fit.

    DTypeError where a value does not fit, see `cast_array`.

    >>> held_as(np.array([1, 255]), DType.U8).tolist()
    [1, 255]
    """
    if dtype.kind in (Kind.INT, Kind.UINT):
        range_ = np.iinfo(dtype.numpy)
        if values.size and (int(values.min()) < range_.min or int(values.max()) > range_.max):
            raise DTypeError(f"integers from {int(values.min())} to {int(values.max())} do not fit {dtype.name}")
        return values.astype(dtype.numpy)
    return values.astype(dtype.numpy) if dtype.is_bool else cast_array(values, dtype)
