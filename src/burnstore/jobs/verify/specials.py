"""Specials: how many NaN and infinities there are, told from the bits, at the speed of memory."""

from __future__ import annotations

import functools

import numpy as np

from ...tensor.data import Array
from ...tensor.dtype import DType, Kind
from ...tensor.upcast import widened

# Of the floats whose exponent is all ones for NaN and infinities, and for nothing else: the width and that exponent.
_EXPONENTS = {
    DType.F64: ("<u8", 0x7FF0_0000_0000_0000),
    DType.F32: ("<u4", 0x7F80_0000),
    DType.Flex32: ("<u4", 0x7F80_0000),
    DType.F16: ("<u2", 0x7C00),
    DType.BF16: ("<u2", 0x7F80),
}


def count_specials(raw: bytearray | memoryview | Array, dtype: DType) -> tuple[int, int]:
    """How many of the elements that these bytes hold are NaN, and how many infinite.

    A complex number with a NaN in it is one, and not infinite besides. CorruptError for bytes that are no bools.

    >>> count_specials(np.array([1, np.nan, -np.inf, 2], np.float32), DType.F32)
    (1, 1)
    """
    data = np.frombuffer(raw, np.uint8)
    if not data.size:
        return 0, 0
    if dtype in _EXPONENTS:
        width, exponent = _EXPONENTS[dtype]
        bits = data.view(width)
        magnitudes = bits & (2 ** (8 * bits.itemsize - 1) - 1)
        if magnitudes.max() < exponent:  # as almost always
            return 0, 0
        return int(np.count_nonzero(magnitudes > exponent)), int(np.count_nonzero(magnitudes == exponent))
    if dtype.is_bool:
        widened(data, dtype)  # which refuses what is neither 0 nor 1
    if dtype.kind not in (Kind.FLOAT, Kind.COMPLEX) or dtype.bits < 8:  # no float of less than a byte has a NaN
        return 0, 0
    if dtype.bits == 8:
        nans, infinities = _special_codes(dtype)
        return _count_codes(data, nans), _count_codes(data, infinities)
    return count_special_values(widened(data, dtype))


def count_special_values(values: Array) -> tuple[int, int]:
    """The same of numbers that NumPy computes with.

    >>> count_special_values(np.array([complex(np.nan, np.inf), 1]))
    (1, 0)
    """
    nan = np.isnan(values)
    return int(np.count_nonzero(nan)), int(np.count_nonzero(np.isinf(values) & ~nan))


@functools.cache
def _special_codes(dtype: DType) -> tuple[list[int], list[int]]:
    """The codes of a float of 8 bits that are NaN, and those that are infinite."""
    values = widened(np.arange(256, dtype=np.uint8), dtype)
    return np.flatnonzero(np.isnan(values)).tolist(), np.flatnonzero(np.isinf(values)).tolist()


def _count_codes(data: Array, codes: list[int]) -> int:
    return sum(int(np.count_nonzero(data == code)) for code in codes)
