"""Upcast elements to a dtype that NumPy computes with; no value changes."""

from __future__ import annotations

import functools

import numpy as np

from ..errors import DTypeError
from .data import Array, array_from_bytes
from .dtype import DType
from .lowbit import CODE_TABLES, decode_scales, unpack_fields

_PARTS = {DType.C32: DType.F16, DType.C64: DType.F32, DType.C128: DType.F64}


def upcast(raw: memoryview | Array, dtype: DType) -> Array:
    """Return the elements of these bytes, flat: integers unchanged, bools as 0 and 1, floats as at least float32.

    CorruptError for bytes that are not bools, DTypeError for F6 and quantized elements, MissingDependencyError for the
    FNUZ floats, which need ml_dtypes.

    >>> upcast(memoryview(bytes.fromhex("803f 20c0")), DType.BF16)
    array([ 1. , -2.5], dtype=float32)
    """
    raw = np.frombuffer(raw, np.uint8)
    if dtype is DType.BF16:  # by its bits: several times as fast as ml_dtypes
        return decode_scales(raw, "BF16")
    if dtype is DType.F16:
        return decode_scales(raw, "F16")
    if dtype is DType.F4:
        return CODE_TABLES["E2M1"][unpack_fields(raw, 4)]
    if dtype is DType.C32:  # pairs of float16: NumPy has no dtype for them
        return decode_scales(raw, "F16").view(np.complex64)
    if dtype.is_float and dtype.bits == 8:
        numbers: Array = _numbers_of_codes(dtype)[raw]
        return numbers
    if dtype.is_quantized:
        raise DTypeError(f"the bytes of a {dtype.name} are codes and scales, not elements")
    values = array_from_bytes(raw, dtype, (len(raw) * 8 // dtype.bits,))
    return values.view(np.uint8) if dtype.is_bool else values


def steps(raw: memoryview | Array, dtype: DType) -> Array:
    """Return the rank of each float among all floats of its dtype, as an integer: neighbours differ by one.

    Both zeros have rank 0. A complex number has two ranks, one per part. The rank of a NaN has no meaning.

    >>> steps(np.array([1.0, np.nextafter(np.float32(1), np.float32(2)), -0.0], np.float32), DType.F32).tolist()
    [1065353216, 1065353217, 0]
    """
    dtype = _PARTS.get(dtype, dtype)
    if not dtype.is_float or dtype.bits == 6:
        raise DTypeError(f"{dtype.name} elements have no ranks among floats")
    raw = np.frombuffer(raw, np.uint8)
    if dtype is DType.F8_E8M0:  # powers of two without a sign
        return raw.astype(np.int16)
    if dtype.bits == 4:  # move the sign to where a byte has it
        fields = unpack_fields(raw, 4)
        raw = fields & 7 | (fields & 8) << 4
    signed: Array = raw.view(f"<i{max(dtype.bits // 8, 1)}")
    # From sign and magnitude to two's complement without a branch: the sign's mask is 0 or -1.
    mask: Array = signed >> (8 * signed.itemsize - 1)
    places: Array = (signed ^ (mask & np.iinfo(signed.dtype).max)) - mask
    return places


@functools.cache
def _numbers_of_codes(dtype: DType) -> Array:
    """Return the number of each of the 256 codes of an 8-bit float."""
    codes = np.arange(256, dtype=np.uint8)
    if dtype is DType.F8_E8M0:
        return decode_scales(codes, "UE8M0")
    if dtype in (DType.F8_E4M3, DType.F8_E5M2):
        return CODE_TABLES[dtype.name.removeprefix("F8_")]
    return codes.view(dtype.numpy).astype(np.float32)
