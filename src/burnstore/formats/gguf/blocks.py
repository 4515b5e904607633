"""Blocks of GGUF: the sizes of every type, and its values in float32, bit-equal to those of the ``gguf`` package.

A function per type takes blocks, a row of bytes each, and fills a row of floats each. The steps are few, and each runs
over a whole tile that stays in the processor's cache: fields are separated eight bytes at a time and put into place as
runs of bytes, cast once, and scaled in place. Products are made in the package's order, since float arithmetic depends
on it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...tensor.dtype import DType
from .grids import GRIDS, SIGNS

Array = np.ndarray[Any, np.dtype[Any]]
Fill = Callable[[Array, Array], None]


class BlockType(NamedTuple):
    """A type of elements: its name, the elements and bytes of a block, and the dtype of plain ones."""

    name: str
    elements: int
    nbytes: int
    dtype: DType | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the elements are numbers of their own, without a scale."""
        return self.dtype is not None


TYPES = {
    0: BlockType("F32", 1, 4, DType.F32),
    1: BlockType("F16", 1, 2, DType.F16),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    9: BlockType("Q8_1", 32, 40),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    15: BlockType("Q8_K", 256, 292),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136),
    24: BlockType("I8", 1, 1, DType.I8),
    25: BlockType("I16", 1, 2, DType.I16),
    26: BlockType("I32", 1, 4, DType.I32),
    27: BlockType("I64", 1, 8, DType.I64),
    28: BlockType("F64", 1, 8, DType.F64),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2, DType.BF16),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
    40: BlockType("NVFP4", 64, 36),
    41: BlockType("Q1_0", 128, 18),
}
"""The types by their number in a file. Q8_1, Q8_K and Q1_0 have no values that the ``gguf`` package defines."""

NUMBERS = {kind.name: number for number, kind in TYPES.items()}

_TILE = 1 << 17  # elements: 512 KiB of floats, and as much again for the steps


def _every(byte: int) -> np.uint64:
    """Return eight times the same byte."""
    return np.uint64(byte * 0x0101010101010101)


_LOW4, _LOW2, _LOW1 = _every(0x0F), _every(0x03), _every(0x01)


def dequantize(raw: Array, kind: BlockType, out: Array) -> None:
    """Fill ``out`` (flat, float32) with the values of whole blocks (flat, uint8)."""
    fill = FILLS[kind.name]
    blocks, values = raw.reshape(-1, kind.nbytes), out.reshape(-1, kind.elements)
    step = max(_TILE // kind.elements, 1)
    with np.errstate(all="ignore"):  # infinities and NaN of an unusual scale are results like any other
        for start in range(0, len(blocks), step):
            fill(blocks[start : start + step], values[start : start + step])


def quantize_q8_0(values: Array) -> Array:
    """Return the blocks of Q8_0 (flat, uint8) of floats (flat, whole blocks), as ggml's reference makes them."""
    rows = values.reshape(-1, 32)
    with np.errstate(all="ignore"):
        scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        scaled = rows * inverse
        magnitude = np.abs(scaled)
        floored = np.floor(magnitude)
        rounded = floored + np.floor(np.float32(2) * (magnitude - floored))  # halves away from zero
        blocks = np.empty((len(rows), 34), np.uint8)
        blocks[:, :2] = scale.astype("<f2").view(np.uint8)
        blocks[:, 2:] = (np.sign(scaled) * rounded).astype(np.int8).view(np.uint8)
    return blocks.reshape(-1)


# --- steps ------------------------------------------------------------------------------------------------------------


def _half(b: Array, at: int) -> Array:
    """Return the float16 at this byte of every block, as a column of float32."""
    return b.view("<f2")[:, at // 2 : at // 2 + 1].astype(np.float32)


def _bytes(b: Array, start: int, stop: int) -> Array:
    """Return these bytes of every block together, so that they can be taken eight at a time."""
    return np.ascontiguousarray(b[:, start:stop])


def _words(b: Array, start: int, stop: int) -> Array:
    return _bytes(b, start, stop).reshape(-1).view("<u8")


def _place(codes: Array, values: Array, *place: int | slice) -> None:
    """Put bytes into place: the elements of ``codes`` are runs of bytes."""
    target = codes[(slice(None), *place)]
    target[...] = values.reshape(-1).view(codes.dtype).reshape(target.shape)


def _nibbles(b: Array, start: int, count: int, run: int) -> Array:
    """Return the low, then the high nibbles of every run of bytes, a byte each."""
    words = _words(b, start, start + count // 2)
    codes = np.empty((len(b), count // (2 * run), 2), f"V{run}")
    _place(codes, words & _LOW4, slice(None), 0)
    words >>= np.uint64(4)
    words &= _LOW4
    _place(codes, words, slice(None), 1)
    return codes.view(np.uint8).reshape(len(b), count)


def _quarters(b: Array, start: int) -> Array:
    """Return the fields of two bits of 64 bytes, a byte each: the lowest of 32 bytes, then their next ones."""
    words = _words(b, start, start + 64)
    codes = np.empty((len(b), 2, 4), "V32")
    for at in range(4):
        plane = np.right_shift(words, np.uint64(2 * at))
        plane &= _LOW2
        _place(codes, plane, slice(None), at)
    return codes.view(np.uint8).reshape(len(b), 256)


def _shifted(codes: Array, by: int) -> Array:
    """Return small codes less a number, in 8 bits."""
    signed = codes.view(np.int8)
    signed -= np.int8(by)
    return signed


def _spread(factors: Array, out: Array) -> Array:
    """Return each factor as often as it has values: one product of two long arrays is faster than many short ones."""
    return np.repeat(factors.reshape(-1), out.size // factors.size)


def _times(out: Array, factors: Array) -> None:
    flat = out.reshape(-1)
    np.multiply(_spread(factors, flat), flat, out=flat)


def _plus(out: Array, offsets: Array) -> None:
    flat = out.reshape(-1)
    flat += _spread(offsets, flat)


def _minus(out: Array, offsets: Array) -> None:
    flat = out.reshape(-1)
    flat -= _spread(offsets, flat)


def _put_codes(b: Array, start: int, out: Array, run: int, table: tuple[bytes, bytes]) -> None:
    """Put what a table has for the low, then for the high nibbles of every run of bytes into place."""
    n = len(b)
    raw = _bytes(b, start, start + out.shape[1] // 2).tobytes()
    placed = out.reshape(n, -1, 2, run)
    for place in (0, 1):
        placed[:, :, place] = np.frombuffer(raw.translate(table[place]), np.int8).reshape(n, -1, run)


def _nibble_table(values: tuple[int, ...]) -> tuple[bytes, bytes]:
    codes = np.array(values, np.int8)
    every = np.arange(256)
    return codes[every & 15].tobytes(), codes[every >> 4].tobytes()


def _bits_of(b: Array, start: int, stop: int) -> Array:
    """Return the bits of these bytes of every block, lowest first, a byte each."""
    return np.unpackbits(_bytes(b, start, stop), axis=1, bitorder="little")


_E2M1 = _nibble_table((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))  # doubled, as ggml has them
_IQ4 = _nibble_table((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))


# --- types of 32 ------------------------------------------------------------------------------------------------------


def _q4_0(b: Array, out: Array) -> None:
    out[...] = _shifted(_nibbles(b, 2, 32, 16), 8)
    _times(out, _half(b, 0))


def _q4_1(b: Array, out: Array) -> None:
    out[...] = _nibbles(b, 4, 32, 16)
    _times(out, _half(b, 0))
    _plus(out, _half(b, 2))


def _fives(b: Array, high_at: int) -> Array:
    """Return codes of five bits: 32 high bits, then the nibbles."""
    codes = _nibbles(b, high_at + 4, 32, 16)
    high = np.unpackbits(_bytes(b, high_at, high_at + 4).reshape(-1), bitorder="little").view("<u8")
    high <<= np.uint64(4)
    words = codes.reshape(-1).view("<u8")
    words |= high
    return codes


def _q5_0(b: Array, out: Array) -> None:
    out[...] = _shifted(_fives(b, 2), 16)
    _times(out, _half(b, 0))


def _q5_1(b: Array, out: Array) -> None:
    out[...] = _fives(b, 4)
    _times(out, _half(b, 0))
    _plus(out, _half(b, 2))


def _q8_0(b: Array, out: Array) -> None:
    out[...] = b[:, 2:].view(np.int8)
    _times(out, _half(b, 0))


def _iq4_nl(b: Array, out: Array) -> None:
    _put_codes(b, 2, out, 16, _IQ4)
    out *= _half(b, 0)


@cache
def _exponents() -> Array:
    """Return half of 2^(e - 127) for every e, as ggml computes it."""
    codes = np.arange(256, dtype=np.uint32)
    bits = np.where(codes < 2, np.uint32(0x00200000) << np.minimum(codes, 1), (codes - 1) << np.uint32(23))
    return bits.astype(np.uint32).view(np.float32)


def _mxfp4(b: Array, out: Array) -> None:
    _put_codes(b, 1, out, 16, _E2M1)
    out *= _exponents()[b[:, :1]]


@cache
def _unsigned_e4m3() -> Array:
    """Return half of the value of every unsigned E4M3 code, as ggml computes it."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float32)
    normal = (np.float32(1) + mantissa / np.float32(8)) * np.float32(2) ** (exponent.astype(np.float32) - 7)
    values = np.where(exponent == 0, mantissa * np.float32(2**-9), normal) * np.float32(0.5)
    return np.where((codes == 0) | (codes == 0x7F), np.float32(0), values).astype(np.float32)


def _nvfp4(b: Array, out: Array) -> None:
    _put_codes(b, 4, out, 8, _E2M1)
    scaled = out.reshape(len(b), 4, 16)
    scaled *= _unsigned_e4m3()[b[:, :4]][:, :, None]


# --- types of 256 -----------------------------------------------------------------------------------------------------


def _q2_k(b: Array, out: Array) -> None:
    out[...] = _quarters(b, 16)
    scales = _bytes(b, 0, 16)
    _times(out, _half(b, 80) * (scales & np.uint8(15)).astype(np.float32))
    _minus(out, _half(b, 82) * (scales >> np.uint8(4)).astype(np.float32))


def _fours(b: Array, start: int, stop: int) -> list[Array]:
    """Return these bytes of every block, four at a time: a column of each."""
    return list(np.ascontiguousarray(_bytes(b, start, stop).view("<u4").T))


def _beside(*columns: Array) -> Array:
    """Return columns of four bytes beside one another, as bytes."""
    joined = np.empty((len(columns[0]), len(columns)), "<u4")
    for at, column in enumerate(columns):
        joined[:, at] = column
    return joined.view(np.uint8)


def _q3_k(b: Array, out: Array) -> None:
    n = len(b)
    codes = _quarters(b, 32)
    planes = codes.view("V32").reshape(n, 2, 4)
    high = np.empty((n, 2, 4), "V32")
    words = _words(b, 0, 32)
    for half in (0, 1):  # a code is 4 more where its bit is set
        for at in range(4):
            bits = np.right_shift(words, np.uint64(4 * half + at))
            bits &= _LOW1
            _place(high, bits, half, at)
    upper = high.reshape(-1).view("<u8")
    upper <<= np.uint64(2)
    whole = planes.reshape(-1).view("<u8")
    whole |= upper
    out[...] = _shifted(codes, 4)
    first, second, third = _fours(b, 96, 108)
    low, two = np.uint32(0x0F0F0F0F), np.uint32(0x03030303)
    parts = (first & low, second & low, (first >> np.uint32(4)) & low, (second >> np.uint32(4)) & low)
    scales = _beside(*(part | ((third >> np.uint32(2 * at)) & two) << np.uint32(4) for at, part in enumerate(parts)))
    _times(out, _half(b, 108) * _shifted(scales, 32).astype(np.float32))


def _scale_k(b: Array, out: Array) -> None:
    """Apply the scales and minima of Q4_K and Q5_K, eight each."""
    first, second, third = _fours(b, 4, 16)
    six, four, two = np.uint32(0x3F3F3F3F), np.uint32(0x0F0F0F0F), np.uint32(0x30303030)
    scales = _beside(first & six, (third & four) | ((first >> np.uint32(2)) & two))
    mins = _beside(second & six, ((third >> np.uint32(4)) & four) | ((second >> np.uint32(2)) & two))
    _times(out, _half(b, 0) * scales.astype(np.float32))
    _minus(out, _half(b, 2) * mins.astype(np.float32))


def _q4_k(b: Array, out: Array) -> None:
    out[...] = _nibbles(b, 16, 256, 32)
    _scale_k(b, out)


def _q5_k(b: Array, out: Array) -> None:
    codes = _nibbles(b, 48, 256, 32)
    high = np.empty((len(b), 8), "V32")
    words = _words(b, 16, 48)
    for at in range(8):
        _place(high, words >> np.uint64(at), at)
    bits = high.reshape(-1).view("<u8")
    bits &= _LOW1
    bits <<= np.uint64(4)
    whole = codes.reshape(-1).view("<u8")
    whole |= bits
    out[...] = codes
    _scale_k(b, out)


def _q6_k(b: Array, out: Array) -> None:
    n = len(b)
    codes = _nibbles(b, 0, 256, 64)
    high = np.empty((n, 2, 4), "V32")
    words = _words(b, 128, 192)
    for at in range(4):
        _place(high, words >> np.uint64(2 * at), slice(None), at)
    bits = high.reshape(-1).view("<u8")
    bits &= _LOW2
    bits <<= np.uint64(4)
    whole = codes.reshape(-1).view("<u8")
    whole |= bits
    out[...] = _shifted(codes, 32)
    _times(out, _half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32))


_POWERS = np.repeat(3 ** np.array([*range(5), *range(5), *range(4)]), [32] * 5 + [16] * 5 + [4] * 4).astype(np.uint8)


def _tq1_0(b: Array, out: Array) -> None:
    """Five digits in base 3 are in a byte: the product with a power of 3, below 256, has one of them in its thirds."""
    codes = np.empty((len(b), 256), np.uint8)
    for start, stop, place, digits in ((0, 32, 0, 5), (32, 48, 160, 5), (48, 52, 240, 4)):
        run = stop - start
        columns, raw = codes.view(f"V{run}"), _bytes(b, start, stop)
        for at in range(place // run, place // run + digits):
            _place(columns, raw, at)
    codes *= _POWERS
    digit = (codes >= 86).view(np.int8)  # 86 * 3 >= 256, and 171 * 3 >= 512
    digit += codes >= 171
    out[...] = _shifted(digit, 1)
    _times(out, _half(b, 52))


def _tq2_0(b: Array, out: Array) -> None:
    out[...] = _shifted(_quarters(b, 0), 1)
    _times(out, _half(b, 64))


def _iq4_xs(b: Array, out: Array) -> None:
    n = len(b)
    _put_codes(b, 8, out, 16, _IQ4)
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2")
    scales = np.empty((n, 8), np.uint8)
    scales[:, ::2], scales[:, 1::2] = b[:, 4:8] & np.uint8(15), b[:, 4:8] >> np.uint8(4)
    upper = (high >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scales |= upper.astype(np.uint8) << np.uint8(4)
    scaled = out.reshape(n, 8, 32)
    scaled *= (_half(b, 0) * (scales.astype(np.float32) - np.float32(32)))[:, :, None]


# --- types with a grid: a code is the number of eight (or four) values ------------------------------------------------


@cache
def _signs() -> Array:
    """Return the signs of eight values for every byte of sign bits, as the sign bits of float32."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return bits.astype(np.uint32) << np.uint32(31)


@cache
def _parity_signs() -> Array:
    """Return the same for seven stored bits, of which the eighth follows."""
    return np.ascontiguousarray(_signs()[np.frombuffer(SIGNS, np.uint8)])


def _look_up(name: str, codes: Array, out: Array) -> None:
    """Put the values of these codes into place."""
    grid = GRIDS[name]()
    np.take(grid, codes.reshape(-1), axis=0, out=out.reshape(-1, grid.shape[1]), mode="clip")


def _apply_signs(signs: Array, codes: Array, out: Array) -> None:
    flat = out.reshape(-1, 8).view(np.uint32)
    flat ^= np.take(signs, codes.reshape(-1), axis=0, mode="clip")


def _sub_scales(b: Array, start: int, stop: int) -> Array:
    """Return the scales of four bits, the low one of each byte first."""
    scales = np.empty((len(b), 2 * (stop - start)), np.uint8)
    scales[:, ::2], scales[:, 1::2] = b[:, start:stop] & np.uint8(15), b[:, start:stop] >> np.uint8(4)
    return scales


def _iq2_xxs(b: Array, out: Array) -> None:
    n = len(b)
    pairs = _bytes(b, 2, 66).view("<u4").reshape(n, 8, 2)
    _look_up("IQ2_XXS", np.ascontiguousarray(pairs[:, :, 0]).view(np.uint8), out)
    packed = pairs[:, :, 1]
    signs = (packed[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & np.uint32(127)
    _apply_signs(_parity_signs(), signs, out)
    _times(out, _half(b, 0) * (np.float32(0.5) + (packed >> np.uint32(28)).astype(np.float32)) * np.float32(0.25))


def _iq2_xs(b: Array, out: Array) -> None:
    codes = _bytes(b, 2, 66).view("<u2")
    _look_up("IQ2_XS", codes & np.uint16(511), out)
    _apply_signs(_parity_signs(), codes >> np.uint16(9), out)
    scales = _sub_scales(b, 66, 74).astype(np.float32)
    _times(out, _half(b, 0) * (np.float32(0.5) + scales) * np.float32(0.25))


def _iq2_s(b: Array, out: Array) -> None:
    n = len(b)
    codes = b[:, 2:34].astype(np.uint16).reshape(n, 8, 4)
    high = (b[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    codes |= high.astype(np.uint16) << np.uint16(8)
    _look_up("IQ2_S", codes, out)
    _apply_signs(_signs(), b[:, 34:66], out)
    scales = _sub_scales(b, 74, 82).astype(np.float32)
    _times(out, _half(b, 0) * (np.float32(0.5) + scales) * np.float32(0.25))


def _iq3_xxs(b: Array, out: Array) -> None:
    packed = _bytes(b, 66, 98).view("<u4")
    _look_up("IQ3_XXS", b[:, 2:66], out)
    signs = (packed[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & np.uint32(127)
    _apply_signs(_parity_signs(), signs, out)
    _times(out, _half(b, 0) * (np.float32(0.5) + (packed >> np.uint32(28)).astype(np.float32)) * np.float32(0.5))


def _iq3_s(b: Array, out: Array) -> None:
    codes = b[:, 2:66].astype(np.uint16)
    codes |= _bits_of(b, 66, 74).astype(np.uint16) << np.uint16(8)
    _look_up("IQ3_S", codes, out)
    _apply_signs(_signs(), b[:, 74:106], out)
    _times(out, _half(b, 0) * (np.uint8(1) + np.uint8(2) * _sub_scales(b, 106, 110)).astype(np.float32))


_DELTA = np.float32(0.125)


def _iq1_s(b: Array, out: Array) -> None:
    n = len(b)
    high = _bytes(b, 34, 50).view("<u2")
    codes = b[:, 2:34].astype(np.uint16).reshape(n, 8, 4)
    codes |= ((high[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)) << np.uint16(8)
    _look_up("IQ1_S", codes, out)
    shifted = out.reshape(n, 8, 32)
    shifted += np.where((high & np.uint16(0x8000)) == 0, _DELTA, -_DELTA)[:, :, None]
    _times(out, _half(b, 0) * (2 * ((high >> np.uint16(12)) & np.uint16(7)) + 1).astype(np.float32))


def _iq1_m(b: Array, out: Array) -> None:
    n = len(b)
    scales = _bytes(b, 48, 56).view("<u2")
    parts = (scales & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16)
    half = np.bitwise_or.reduce(parts, axis=1).astype("<u2").view("<f2").astype(np.float32).reshape(n, 1)
    high = _sub_scales(b, 32, 48)
    codes = b[:, :32].astype(np.uint16)
    codes |= (high & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    _look_up("IQ1_S", codes, out)
    shifted = out.reshape(n, 32, 8)
    shifted += np.where(high & np.uint8(8) == 0, _DELTA, -_DELTA)[:, :, None]
    three = ((scales[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)).reshape(n, 16)
    _times(out, half * (2 * three + 1).astype(np.float32))


FILLS: dict[str, Fill] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
"""The function of every type of blocks that has values."""
