"""Casting: values for slots of another dtype, on the host, and on a device bit for bit as on the host.

Some dtypes cannot represent every value of another: the host then refuses a load before the model is changed. For a
device the bounds of the values are computed there first. Values outside of them (too large, an infinity, a NaN whose
bits a device might change) are left to the host, which casts or refuses. The bounds, and the tables by which narrow
values are cast, come from the host's own code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import DTypeError
from ...io.gpu.sinks import Cast, NativeCast, ShiftCast, TableCast
from ...tensor.data import Array, TensorData, array_from_bytes
from ...tensor.dtype import DType, Kind
from ...tensor.snapshot import TensorSnapshot
from ...transforms.precision import held_as
from ..binding import Slot

# Dtypes that an array alone determines; of others the stored bytes are kept.
_PLAIN_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "Bool")
_ARRAY_DTYPES = frozenset(map(DType.parse, _PLAIN_DTYPES))
_BOOLS_OF_INTEGERS = {DType.U8: DType.BoolU8, DType.U32: DType.BoolU32}  # some backends store bools so


def value_for(slot: Slot, snapshot: TensorSnapshot, raw: Any) -> Array | TensorData:
    """Return the value of these bytes of the snapshot for the slot; DTypeError where it cannot represent them."""
    dtype = snapshot.dtype
    if dtype in _BOOLS_OF_INTEGERS and slot.dtype.is_bool:
        dtype = _BOOLS_OF_INTEGERS[dtype]
    if slot.keeps_dtype and dtype is slot.dtype and not dtype.is_bool:
        return TensorData(memoryview(raw), dtype, snapshot.shape)  # NumPy may not have this dtype
    array = array_from_bytes(raw, dtype, snapshot.shape)
    if slot.keeps_dtype:
        return array if dtype is slot.dtype else held_as(array, slot.dtype)
    return array if dtype in _ARRAY_DTYPES else TensorData(memoryview(raw), dtype, snapshot.shape)


Bounds = tuple[Any, Any]
"""The least and the greatest value."""

_INTEGERS = (Kind.INT, Kind.UINT)
_BITS = {8: "uint8", 16: "int16", 32: "int32", 64: "int64"}
# The torch dtypes whose least and greatest values torch computes.
_COMPARED = {
    **{dtype: dtype.torch_name for dtype in (DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16)},
    **{dtype: dtype.torch_name for dtype in (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)},
}
# The casts that torch rounds once, as NumPy does. From F64 to 16 bits it rounds to F32 first.
_ROUNDED = {
    DType.F64: (DType.F32,),
    DType.F32: (DType.F64, DType.F16, DType.BF16),
    DType.Flex32: (DType.F64, DType.F16, DType.BF16),
}


@dataclass(frozen=True, slots=True)
class Casting:
    """How a device casts values of one dtype to another."""

    bounds: Bounds | None = None
    """The bounds of the values that the device casts, without NaN; None for all values."""

    compared: str = ""
    """The name of the torch dtype by which values are compared with the bounds."""

    make: Callable[[Any, Any], Cast] | None = None
    """A function of torch and a device that returns the cast; None where the bits stay unchanged."""

    least: float = 0.0
    """The smallest size of a value that does not become 0; 0 where none does."""

    def accepts(self, values: Iterable[Any]) -> bool:
        """Return whether the device casts these values."""
        if self.bounds is None:
            return True
        low, high = self.bounds
        return all(low <= value <= high for value in values)  # False for a NaN


_UNCHANGED = Casting()


@functools.cache  # called for every tensor
def casting(given: DType, held: DType) -> Casting | None:
    """Return how a device casts one dtype to the other; None if the host must.

    >>> casting(DType.BF16, DType.F32).bounds, casting(DType.F32, DType.F16).bounds
    (None, (-65519.99609375, 65519.99609375))
    """
    if given is held and not given.is_bool and not given.is_quantized:
        return _UNCHANGED
    if held.is_bool:
        return _of_bools(given)
    if given.bits % 8 or held.bits % 8:
        return None
    if given.kind in _INTEGERS and held.kind in _INTEGERS:
        return _of_integers(given, held)
    if not (given.is_float and held.is_float) or held is DType.F8_E8M0:  # it does not have all values of any range
        return None
    if given is DType.F8_E8M0 and held not in (DType.BF16, DType.F32, DType.Flex32, DType.F64):  # these have all of its
        return None
    return _of_floats(given, held)


def _of_bools(given: DType) -> Casting | None:
    """Cast bytes, or 32-bit words, that must be 0 or 1."""
    if given in (DType.Bool, DType.BoolU8, DType.U8):
        return Casting((0, 1), "uint8")
    if given in (DType.BoolU32, DType.U32):
        return Casting((0, 1), "int32", lambda torch, device: NativeCast(torch.int32, torch.uint8))
    return None


def _of_integers(given: DType, held: DType) -> Casting | None:
    (low, high), (least, most) = _extremes(given), _extremes(held)
    bounds = None if least <= low and high <= most else (max(low, least), min(high, most))
    if bounds is not None and given not in _COMPARED:
        return None
    if given.bits <= 16:
        return _tabled(given, held, bounds)
    return _native(given, _BITS[held.bits], bounds) if given in _COMPARED else None


def _of_floats(given: DType, held: DType) -> Casting | None:
    if given is DType.Flex32 and held is DType.F32:
        return _UNCHANGED
    if given.bits > 16:
        bounds = _farthest(given, held, -1), _farthest(given, held, 1)
        found = _native(given, held.torch_name, bounds) if held in _ROUNDED[given] else None
        return found and replace(found, least=_least(given, held))
    if held.bits > given.bits:
        return Casting(make=ShiftCast) if given is DType.BF16 and held is DType.F32 else _tabled(given, held, None)
    if given.bits == 8:  # torch does not compare 8-bit floats
        return None
    bounds = _farthest(given, held, -1), _farthest(given, held, 1)
    return _tabled(given, held, None if bounds == _extremes(given) else bounds)


def _tabled(given: DType, held: DType, bounds: Bounds | None) -> Casting:
    def make(torch: Any, device: Any) -> Cast:
        return TableCast(torch, device, _table(given, held, bounds))

    return Casting(bounds, _COMPARED.get(given, ""), make, _least(given, held))


def _native(given: DType, held: str, bounds: Bounds | None) -> Casting:
    compared = _COMPARED[given]
    return Casting(bounds, compared, lambda torch, device: NativeCast(getattr(torch, compared), getattr(torch, held)))


def _table(given: DType, held: DType, bounds: Bounds | None) -> Array:
    """Return the host's cast of every bit pattern; zeros for those outside of the bounds, which do not occur."""
    values = np.arange(1 << given.bits, dtype=f"<u{given.bits // 8}").view(given.numpy)
    table: Array = np.zeros(len(values), _BITS[held.bits])
    with np.errstate(invalid="ignore"):
        kept = slice(None) if bounds is None else (values >= bounds[0]) & (values <= bounds[1])
        table[kept] = held_as(values[kept], held).view(table.dtype)
    return table


def _extremes(dtype: DType) -> Bounds:
    """Return the least and the greatest number of a dtype."""
    if dtype.kind in _INTEGERS:
        range_ = np.iinfo(dtype.numpy)
        return int(range_.min), int(range_.max)
    greatest = _number(dtype, _count(dtype), 1)
    return -greatest, greatest


def _farthest(given: DType, held: DType, sign: int) -> float:
    """Return the number farthest from zero that the host casts, by bisection: larger ones are refused as well."""
    known, beyond = 0, _count(given) + 1
    while beyond - known > 1:
        tried = (known + beyond) // 2
        try:
            held_as(np.array([_number(given, tried, sign)], given.numpy), held)
            known = tried
        except DTypeError:
            beyond = tried
    return _number(given, known, sign)


def _least(given: DType, held: DType) -> float:
    """Return the smallest positive number that the host does not cast to 0, by bisection; 0 if that holds for all."""
    if not given.is_float or held.bits > given.bits:
        return 0.0
    zero, known = 0, int(np.array([1], given.numpy).view(f"<u{given.bits // 8}")[0])
    while known - zero > 1:
        tried = (zero + known) // 2
        kept = held_as(np.array([_number(given, tried, 1)], given.numpy), held).astype(np.float64)[0] != 0
        zero, known = (zero, tried) if kept else (tried, known)
    return _number(given, known, 1) if zero else 0.0


def _count(dtype: DType) -> int:
    """Return how many positive numbers a float dtype has: their bit patterns are 1, 2, 3 and so on until infinity."""
    return int(np.array([np.inf], dtype.numpy).view(f"<u{dtype.bits // 8}")[0]) - 1


def _number(dtype: DType, pattern: int, sign: int) -> float:
    value = np.array([pattern], f"<u{dtype.bits // 8}").view(dtype.numpy).astype(np.float64)[0]
    return math.copysign(float(value), sign)
