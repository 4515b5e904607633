"""Casting: which tensors of another dtype than the model's can be cast on a device, bit for bit as on the host.

Some dtypes cannot hold every value of another: on the host a load is then refused before the model is changed. For
a device that is found out in a look at the values, which go there once more for it. Whatever it finds (a value that is
too large, an infinity, a NaN where the host keeps its bits and a device might not) is left to the host, which casts or
refuses as it always does. So nothing here has an opinion of its own: the bounds between which every value is held, and
the tables by which narrow ones are cast, come from the host's own code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DTypeError
from ...io.gpu.casts import Cast, Native, Shifted, Tabled
from ...tensor.data import Array
from ...tensor.dtype import DType, Kind
from ...transforms.precision import held_as

Bounds = tuple[Any, Any]
"""The least and the greatest value."""

_INTEGERS = (Kind.INT, Kind.UINT)
_BITS = {8: "uint8", 16: "int16", 32: "int32", 64: "int64"}
# What torch finds the least and the greatest of, by the name under which it does.
_COMPARED = {
    **{dtype: dtype.torch_name for dtype in (DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16)},
    **{dtype: dtype.torch_name for dtype in (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)},
}
# By which torch rounds once, as NumPy does. From F64 to 16 bits it rounds to F32 first.
_ROUNDED = {
    DType.F64: (DType.F32,),
    DType.F32: (DType.F64, DType.F16, DType.BF16),
    DType.Flex32: (DType.F64, DType.F16, DType.BF16),
}


@dataclass(frozen=True, slots=True)
class Casting:
    """How values of one dtype come to be those of another on a device."""

    bounds: Bounds | None = None
    """Between which all values must be, and none a NaN; None if they may be any."""

    compared: str = ""
    """The name of the torch dtype by which that is found out."""

    make: Callable[[Any, Any], Cast] | None = None
    """The cast, given torch and a device; None where the bits stay as they are."""

    def takes(self, values: Iterable[Any]) -> bool:
        """Whether these are such as the device casts."""
        if self.bounds is None:
            return True
        low, high = self.bounds
        return all(low <= value <= high for value in values)  # which of a NaN is not true


_AS_THEY_ARE = Casting()


@functools.cache  # it is asked for every tensor
def casting(given: DType, held: DType) -> Casting | None:
    """How a device turns the one into the other; None if the host must.

    >>> casting(DType.BF16, DType.F32).bounds, casting(DType.F32, DType.F16).bounds
    (None, (-65519.99609375, 65519.99609375))
    """
    if given is held and not given.is_bool and not given.is_quantized:
        return _AS_THEY_ARE
    if held.is_bool:
        return _of_bools(given)
    if given.bits % 8 or held.bits % 8:
        return None
    if given.kind in _INTEGERS and held.kind in _INTEGERS:
        return _of_integers(given, held)
    # Of F8_E8M0 there is no range of which it holds all.
    return _of_floats(given, held) if given.is_float and held.is_float and held is not DType.F8_E8M0 else None


def _of_bools(given: DType) -> Casting | None:
    """Bytes that must be 0 or 1, and those that take four bytes for it."""
    if given in (DType.Bool, DType.BoolU8, DType.U8):
        return Casting((0, 1), "uint8")
    if given in (DType.BoolU32, DType.U32):
        return Casting((0, 1), "int32", lambda torch, device: Native(torch.int32, torch.uint8))
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
        return _AS_THEY_ARE
    if given.bits > 16:
        bounds = _farthest(given, held, -1), _farthest(given, held, 1)
        return _native(given, held.torch_name, bounds) if held in _ROUNDED[given] else None
    if held.bits > given.bits:
        return Casting(make=Shifted) if given is DType.BF16 and held is DType.F32 else _tabled(given, held, None)
    if given.bits == 8:  # torch does not compare such floats
        return None
    bounds = _farthest(given, held, -1), _farthest(given, held, 1)
    return _tabled(given, held, None if bounds == _extremes(given) else bounds)


def _tabled(given: DType, held: DType, bounds: Bounds | None) -> Casting:
    def make(torch: Any, device: Any) -> Cast:
        return Tabled(torch, device, _table(given, held, bounds))

    return Casting(bounds, _COMPARED.get(given, ""), make)


def _native(given: DType, held: str, bounds: Bounds | None) -> Casting:
    compared = _COMPARED[given]
    return Casting(bounds, compared, lambda torch, device: Native(getattr(torch, compared), getattr(torch, held)))


def _table(given: DType, held: DType, bounds: Bounds | None) -> Array:
    """What the host makes of every bit pattern; zeros for those outside of the bounds, of which none will come."""
    values = np.arange(1 << given.bits, dtype=f"<u{given.bits // 8}").view(given.numpy)
    table: Array = np.zeros(len(values), _BITS[held.bits])
    with np.errstate(invalid="ignore"):
        kept = slice(None) if bounds is None else (values >= bounds[0]) & (values <= bounds[1])
        table[kept] = held_as(values[kept], held).view(table.dtype)
    return table


def _extremes(dtype: DType) -> Bounds:
    """The least and the greatest number that there is."""
    if dtype.kind in _INTEGERS:
        range_ = np.iinfo(dtype.numpy)
        return int(range_.min), int(range_.max)
    greatest = _number(dtype, _count(dtype), 1)
    return -greatest, greatest


def _farthest(given: DType, held: DType, sign: int) -> float:
    """The number farthest from zero that the host holds; found by halving, as what is too large stays so beyond."""
    known, beyond = 0, _count(given) + 1
    while beyond - known > 1:
        tried = (known + beyond) // 2
        try:
            held_as(np.array([_number(given, tried, sign)], given.numpy), held)
            known = tried
        except DTypeError:
            beyond = tried
    return _number(given, known, sign)


def _count(dtype: DType) -> int:
    """How many numbers above zero a float dtype has: their bit patterns are 1, 2, 3 and so on until infinity."""
    return int(np.array([np.inf], dtype.numpy).view(f"<u{dtype.bits // 8}")[0]) - 1


def _number(dtype: DType, pattern: int, sign: int) -> float:
    value = np.array([pattern], f"<u{dtype.bits // 8}").view(dtype.numpy).astype(np.float64)[0]
    return math.copysign(float(value), sign)
