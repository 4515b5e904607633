"""Blocks of GGUF: the sizes of every type, and its values in float32, bit-equal to those of the ``gguf`` package.

A function per type takes blocks, a row of bytes each, and fills a row of floats each. The steps are few and each runs
over a whole tile that stays in the processor's cache: fields are separated eight bytes at a time, cast while they are
put into place, and scaled in place. Products are made in the package's order, since float arithmetic depends on it.
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
_LOW4 = np.uint64(0x0F0F0F0F0F0F0F0F)
_LOW2 = np.uint64(0x0303030303030303)
_LOW1 = np.uint64(0x0101010101010101)


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
    return np.ascontiguousarray(b[:, at : at + 2]).view("<f2").astype(np.float32)


def _bytes(b: Array, start: int, stop: int) -> Array:
    """Return these bytes of every block together, so that they can be taken eight at a time."""
    return np.ascontiguousarray(b[:, start:stop])


def _words(b: Array, start: int, stop: int) -> Array:
    return _bytes(b, start, stop).reshape(-1).view("<u8")


def _planes(words: Array, bits: int, mask: np.uint64) -> list[Array]:
    """Return the fields of ``bits`` bits of every byte, lowest first, a flat array of bytes each."""
    found = []
    for shift in range(0, 8, bits):
        plane = np.right_shift(words, np.uint64(shift)) if shift else words
        found.append(np.bitwise_and(plane, mask).view(np.uint8))
    return found


def _nibbles(b: Array, start: int, stop: int) -> list[Array]:
    return _planes(_words(b, start, stop), 4, _LOW4)


def _put_nibbles(b: Array, start: int, out: Array, run: int) -> None:
    """Put the low, then the high nibbles of every run of bytes into place."""
    n = len(b)
    low, high = _nibbles(b, start, start + out.shape[1] // 2)
    placed = out.reshape(n, -1, 2, run)
    placed[:, :, 0] = low.reshape(n, -1, run)
    placed[:, :, 1] = high.reshape(n, -1, run)


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
    _put_nibbles(b, 2, out, 16)
    out -= np.float32(8)
    out *= _half(b, 0)


def _q4_1(b: Array, out: Array) -> None:
    _put_nibbles(b, 4, out, 16)
    out *= _half(b, 0)
    out += _half(b, 2)


def _put_five(b: Array, high_at: int, out: Array) -> None:
    n = len(b)
    low = np.empty((n, 2, 16), np.uint8)
    first, second = _nibbles(b, high_at + 4, high_at + 20)
    low[:, 0], low[:, 1] = first.reshape(n, 16), second.reshape(n, 16)
    high = _bits_of(b, high_at, high_at + 4).reshape(-1).view("<u8")
    codes = low.reshape(-1).view("<u8")
    codes |= high << np.uint64(4)
    out[...] = codes.view(np.uint8).reshape(n, 32)


def _q5_0(b: Array, out: Array) -> None:
    _put_five(b, 2, out)
    out -= np.float32(16)
    out *= _half(b, 0)


def _q5_1(b: Array, out: Array) -> None:
    _put_five(b, 4, out)
    out *= _half(b, 0)
    out += _half(b, 2)


def _q8_0(b: Array, out: Array) -> None:
    out[...] = b[:, 2:].view(np.int8)
    out *= _half(b, 0)


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
    n = len(b)
    placed = out.reshape(n, 2, 4, 32)
    for at, plane in enumerate(_planes(_words(b, 16, 80), 2, _LOW2)):
        placed[:, :, at] = plane.reshape(n, 2, 32)
    scales = b[:, :16]
    scaled = out.reshape(n, 16, 16)
    scaled *= (_half(b, 80) * (scales & np.uint8(15)).astype(np.float32))[:, :, None]
    scaled -= (_half(b, 82) * (scales >> np.uint8(4)).astype(np.float32))[:, :, None]


def _q3_k(b: Array, out: Array) -> None:
    n = len(b)
    codes = np.empty((n, 2, 4, 4), "<u8")
    high = _words(b, 0, 32).reshape(n, 4)
    low = _words(b, 32, 96).reshape(n, 2, 4)
    for at in range(4):
        codes[:, :, at] = (low >> np.uint64(2 * at)) & _LOW2
        for half in (0, 1):  # the offset is 4 where the bit is not set
            codes[:, half, at] |= ((high >> np.uint64(4 * half + at)) & _LOW1) << np.uint64(2)
    out[...] = codes.view(np.uint8).reshape(n, 256)
    out -= np.float32(4)
    packed = b[:, 96:108]
    scales = np.empty((n, 16), np.uint8)
    scales[:, :8], scales[:, 8:] = packed[:, :8] & np.uint8(15), packed[:, :8] >> np.uint8(4)
    for at in range(4):
        scales[:, 4 * at : 4 * at + 4] |= ((packed[:, 8:] >> np.uint8(2 * at)) & np.uint8(3)) << np.uint8(4)
    factors = _half(b, 108) * (scales.astype(np.float32) - np.float32(32))
    scaled = out.reshape(n, 16, 16)
    scaled *= factors[:, :, None]


def _scales_and_mins(b: Array) -> tuple[Array, Array]:
    """Return the scales and minima of Q4_K and Q5_K, eight each."""
    packed = b[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales, mins = np.empty((len(b), 8), np.uint8), np.empty((len(b), 8), np.uint8)
    scales[:, :4], mins[:, :4] = first & np.uint8(63), second & np.uint8(63)
    scales[:, 4:] = (third & np.uint8(15)) | ((first >> np.uint8(2)) & np.uint8(48))
    mins[:, 4:] = (third >> np.uint8(4)) | ((second >> np.uint8(2)) & np.uint8(48))
    return _half(b, 0) * scales.astype(np.float32), _half(b, 2) * mins.astype(np.float32)


def _scale_k(b: Array, out: Array) -> None:
    scales, mins = _scales_and_mins(b)
    scaled = out.reshape(len(b), 8, 32)
    scaled *= scales[:, :, None]
    scaled -= mins[:, :, None]


def _q4_k(b: Array, out: Array) -> None:
    _put_nibbles(b, 16, out, 32)
    _scale_k(b, out)


def _q5_k(b: Array, out: Array) -> None:
    n = len(b)
    codes = np.empty((n, 8, 4), "<u8")
    high, low = _words(b, 16, 48).reshape(n, 4), _words(b, 48, 176).reshape(n, 4, 4)
    codes[:, ::2], codes[:, 1::2] = low & _LOW4, (low >> np.uint64(4)) & _LOW4
    for at in range(8):
        codes[:, at] |= ((high >> np.uint64(at)) & _LOW1) << np.uint64(4)
    out[...] = codes.view(np.uint8).reshape(n, 256)
    _scale_k(b, out)


def _q6_k(b: Array, out: Array) -> None:
    n = len(b)
    codes = np.empty((n, 2, 4, 4), "<u8")
    low, high = _words(b, 0, 128).reshape(n, 2, 8), _words(b, 128, 192).reshape(n, 2, 4)
    codes[:, :, :2] = (low & _LOW4).reshape(n, 2, 2, 4)
    codes[:, :, 2:] = ((low >> np.uint64(4)) & _LOW4).reshape(n, 2, 2, 4)
    for at in range(4):
        codes[:, :, at] |= ((high >> np.uint64(2 * at)) & _LOW2) << np.uint64(4)
    out[...] = codes.view(np.uint8).reshape(n, 256)
    out -= np.float32(32)
    factors = _half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32)
    scaled = out.reshape(n, 16, 16)
    scaled *= factors[:, :, None]


@cache
def _ternary() -> list[bytes]:
    """Return, for each of the five digits in base 3, the value of every byte."""
    codes = np.arange(256)
    return [
        ((((codes * 3**digit) & 255) * 3 >> 8).astype(np.int8) - np.int8(1)).astype(np.int8).tobytes()
        for digit in range(5)
    ]


def _tq1_0(b: Array, out: Array) -> None:
    n = len(b)
    for start, stop, place, digits in ((0, 32, 0, 5), (32, 48, 160, 5), (48, 52, 240, 4)):
        raw, run = _bytes(b, start, stop).tobytes(), stop - start
        for digit, table in enumerate(_ternary()[:digits]):
            codes = np.frombuffer(raw.translate(table), np.int8).reshape(n, run)
            out[:, place + digit * run : place + (digit + 1) * run] = codes
    out *= _half(b, 52)


def _tq2_0(b: Array, out: Array) -> None:
    n = len(b)
    placed = out.reshape(n, 2, 4, 32)
    for at, plane in enumerate(_planes(_words(b, 0, 64), 2, _LOW2)):
        placed[:, :, at] = plane.reshape(n, 2, 32)
    out -= np.float32(1)
    out *= _half(b, 64)


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


def _times(out: Array, factors: Array) -> None:
    scaled = out.reshape(*factors.shape, -1)
    np.multiply(factors[..., None], scaled, out=scaled)


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
