"""Decode codes and scales into float32: one function per scheme, in the arithmetic of the scheme's own library."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...errors import CorruptError, UnsupportedError
from ...tensor.data import Array, Shape
from ...tensor.dtype import DType
from ...tensor.facts import Stored


class CodedParts(Protocol):
    """The parts of a quantized tensor, and what its decoder needs to know."""

    parts: tuple[Stored, ...]
    options: tuple[Any, ...]
    shape: Shape

    def part(self, number: int) -> Array:
        """Return a part as an array."""

    def part_rows(self, number: int, start: int, stop: int) -> Array:
        """Return some rows of a part."""


class Decoder(NamedTuple):
    """How a scheme is decoded: a function of the parts and a range of rows, and whether it takes less than all rows."""

    decode: Callable[[CodedParts, int, int], Array]
    by_rows: bool


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])


@cache
def _pairs(kind: str) -> Array:
    """Return, for every two bytes of 8-bit floats, their two values in float32; for FP4, of every byte."""
    if kind == "F4":
        codes = np.arange(256)
        pairs = np.stack([_E2M1[codes & 15], _E2M1[codes >> 4]], axis=1)
    else:
        one = np.arange(256, dtype=np.uint8).view(DType.parse(kind).numpy).astype(np.float32)
        codes = np.arange(65536)
        pairs = np.stack([one[codes & 255], one[codes >> 8]], axis=1)
    return np.ascontiguousarray(pairs).view(np.uint64).reshape(-1)


def _wide(codes: Array, dtype: DType) -> Array:
    """Return 8-bit codes as float32; 8-bit floats by a table, two at a time."""
    if dtype.name in ("I8", "U8"):
        return codes.astype(np.float32)
    flat = codes.reshape(-1).view(np.uint8)
    out: Array = np.empty(flat.size, np.float32)
    even = flat.size & ~1
    if even:
        np.take(_pairs(dtype.name), flat[:even].view("<u2"), out=out[:even].view(np.uint64), mode="clip")
    if even < flat.size:
        out[even:] = flat[even:].view(dtype.numpy).astype(np.float32)
    return out.reshape(codes.shape)


def _two_each(codes: Array) -> Array:
    """Return the two FP4 values of every byte, the low one first."""
    flat = codes.reshape(-1).view(np.uint8)
    out: Array = np.empty(2 * flat.size, np.float32)
    np.take(_pairs("F4"), flat, out=out.view(np.uint64), mode="clip")
    shaped: Array = out.reshape(*codes.shape[:-1], 2 * codes.shape[-1])
    return shaped


def scales_of(array: Array, dtype: DType) -> Array:
    """Return scales as float32; those of U8 are exponents of two."""
    floats: Array = array.astype(np.float32)
    if dtype is DType.U8:
        floats = np.exp2(floats - np.float32(127))
    return floats


def _apply(values: Array, scales: Array, blocks: Shape, first: int, *, subtract: bool = False) -> None:
    """Multiply values, whose rows begin at ``first``, by the scales of their blocks; or subtract them."""
    step = np.subtract if subtract else np.multiply
    if scales.size == 1:
        step(values, scales.reshape(()), out=values)
        return
    if scales.ndim > 2:  # each of the first axis is a tensor of its own
        for place in range(len(values)):
            own = scales[min((first + place) // blocks[0], scales.shape[0] - 1)]
            _apply(values[place], own, blocks[1:], 0, subtract=subtract)
        return
    if scales.ndim < 2:
        scales = scales.reshape(-1, 1)
        values, blocks = values.reshape(values.shape[0], -1), (blocks[0], max(values.size, 1))
    rows, columns = values.shape
    if scales.shape[1] == 1:
        step(values, scales[np.arange(first, first + rows) // blocks[0]], out=values)
        return
    start = 0
    while start < rows:  # the rows of one block share a row of scales
        band = (first + start) // blocks[0]
        stop = min(rows, (band + 1) * blocks[0] - first)
        row = np.repeat(scales[band], blocks[1])[:columns]
        step(values[start:stop], row, out=values[start:stop])
        start = stop


def _scaled(data: CodedParts, start: int, stop: int) -> Array:
    """Decode FP8, INT8 and FP4 codes with scales: options are blocks, whether a byte has two codes, and the grid."""
    blocks, is_packed, grid = data.options
    codes = data.part_rows(0, start, stop) if data.shape else data.part(0)
    values = _two_each(codes) if is_packed else _wide(codes, data.parts[0].dtype)
    flat = values.reshape(1) if not data.shape else values
    if len(data.parts) > 2:
        _apply(flat, data.part(2).astype(np.float32).reshape(grid), blocks, start, subtract=True)
    _apply(flat, scales_of(data.part(1), data.parts[1].dtype).reshape(grid), blocks, start)
    return values


def _grouped(data: CodedParts, start: int, stop: int) -> Array:
    """Decode FP4 with two levels of scales: options are the size of a group, and whether the outer scale divides."""
    group, divides = data.options
    values = _two_each(data.part_rows(0, start, stop))
    scales = data.part_rows(1, start, stop).astype(np.float32)
    if len(data.parts) > 2:
        outer = data.part(2).astype(np.float32).reshape(-1)[0]
        scales = scales / outer if divides else scales * outer
    grouped = values.reshape(*scales.shape, group)
    grouped *= scales[..., None]
    return values


def _exponents(data: CodedParts, start: int, stop: int) -> Array:
    """Decode MXFP4 of compressed-tensors: groups of 32 with an exponent each."""
    values = _two_each(data.part_rows(0, start, stop))
    scales = scales_of(data.part_rows(1, start, stop).view(np.uint8), DType.U8)
    grouped = values.reshape(*scales.shape, -1)
    grouped *= scales[..., None]
    return values


def _gpt_oss(data: CodedParts, start: int, stop: int) -> Array:
    """Decode the experts of gpt-oss: [experts, out, groups, 16] bytes become [experts, in, out]."""
    blocks, exponents = data.part_rows(0, start, stop), data.part_rows(1, start, stop)
    values = _two_each(blocks)
    values *= scales_of(exponents, DType.U8)[..., None]
    return np.ascontiguousarray(values.reshape(*blocks.shape[:2], -1).swapaxes(1, 2))


# --- integers of some bits in words of 32 -----------------------------------------------------------------------------


def unpack_dense(words: Array, bits: int, count: int) -> Array:
    """Return the integers of ``bits`` bits along the last axis of 32-bit words, without gaps, lowest bits first."""
    raw = np.ascontiguousarray(words.astype("<i4", copy=False)).view(np.uint8)
    if bits == 8:
        return raw[..., :count]
    if bits in (1, 2, 4):
        per = 8 // bits
        fields: Array = np.empty((*raw.shape[:-1], raw.shape[-1] * per), np.uint8)
        for place in range(per):
            fields[..., place::per] = (raw >> np.uint8(place * bits)) & np.uint8((1 << bits) - 1)
        return fields[..., :count]
    stream = np.unpackbits(raw, axis=-1, bitorder="little")[..., : count * bits]
    weights = (1 << np.arange(bits)).astype(np.uint8)
    found: Array = (stream.reshape(*stream.shape[:-1], count, bits) * weights).sum(axis=-1, dtype=np.uint8)
    return found


def unpack_padded(words: Array, bits: int, count: int) -> Array:
    """Return the integers of words that hold whole integers only: ten of 3 bits, as compressed-tensors once wrote."""
    per = 32 // bits
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    shifts = (np.arange(per) * bits).astype(np.uint32)
    fields = (unsigned[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return fields.astype(np.uint8).reshape(*words.shape[:-1], -1)[..., :count]


def _packed(data: CodedParts, start: int, stop: int) -> Array:
    """Decode compressed-tensors' packed integers: options are bits, whether packing is dense, groups, the parts."""
    bits, dense, groups, has_zeros, has_index = data.options
    unpack = unpack_dense if dense else unpack_padded
    rows, columns = data.shape[0], data.shape[1]
    offset = np.float32(1 << (bits - 1))
    values = unpack(data.part_rows(0, start, stop), bits, columns).astype(np.float32)
    values -= offset
    scales = data.part(1).astype(np.float32).reshape(-1, groups)
    zeros = None
    if has_zeros:  # packed along the rows
        packed = data.part(2)
        zeros = unpack(np.ascontiguousarray(packed.T), bits, rows).T.astype(np.float32) - offset
    own = slice(start, stop) if len(scales) > 1 else slice(0, 1)
    if has_index:
        index = _checked_index(data.part(2 + has_zeros), groups)
        if zeros is not None:
            values -= zeros[start:stop][:, index]
        return values * scales[own][:, index]
    grouped = values.reshape(stop - start, groups, -1)
    if zeros is not None:
        grouped -= zeros[start:stop][:, :, None]
    grouped *= scales[own][:, :, None]
    return values


def _checked_index(index: Array, groups: int) -> Array:
    flat = index.reshape(-1).astype(np.int64)
    if flat.size and (flat.min() < 0 or flat.max() >= groups):
        raise CorruptError(f"the group of a column is {int(flat.max())}, of {groups} groups", rule="QW-04")
    return flat


def _gptq(data: CodedParts, start: int, stop: int) -> Array:
    """Decode GPTQ: options are bits, what is added to zero points (None: to be found), and whether g_idx is there."""
    bits, added, has_index = data.options
    columns, rows = data.shape[1], data.shape[0]  # in and out
    qweight, qzeros, scales = data.part(0), data.part(1), data.part(2).astype(np.float32)
    codes = unpack_dense(np.ascontiguousarray(qweight.T), bits, columns)  # [out, in]
    zeros = unpack_dense(qzeros, bits, rows).astype(np.float32)  # [groups, out]
    zeros += np.float32(_added(zeros, bits) if added is None else added)
    groups = len(scales)
    index = _checked_index(data.part(3), groups) if has_index else np.arange(columns) // -(-columns // groups)
    values = codes[start:stop].astype(np.float32)
    values -= zeros.T[start:stop][:, index]
    values *= scales.T[start:stop][:, index]
    return values


def _added(zeros: Array, bits: int) -> int:
    """Return what is added to stored zero points, where those of a symmetric tensor show it."""
    middle = 1 << (bits - 1)
    if zeros.size and (zeros == middle - 1).all():
        return 1
    if zeros.size and (zeros == middle).all():
        return 0
    raise UnsupportedError(
        "GPTQ's zero points are those of version 1, which stores them less one, or of version 2: nothing states it",
        rule="QW-02",
        hint='put the config.json beside the file; its quantization_config has checkpoint_format, "gptq" or "gptq_v2"',
    )


def _awq(data: CodedParts, start: int, stop: int) -> Array:
    """Decode AWQ, four bits: columns are interleaved within each word."""
    scales = data.part(2).astype(np.float32)
    codes, zeros = (_interleaved(data.part(number)) for number in (0, 1))
    group = -(-data.shape[1] // len(scales))
    values = codes.T[start:stop].astype(np.float32)
    index = np.arange(data.shape[1]) // group
    values -= zeros.T[start:stop][:, index].astype(np.float32)
    values *= scales.T[start:stop][:, index]
    return values


def _interleaved(words: Array) -> Array:
    fields = unpack_dense(words, 4, words.shape[-1] * 8)
    return fields.reshape(len(words), -1, 8)[:, :, _AWQ_ORDER].reshape(len(words), -1)


def _bnb4(data: CodedParts, start: int, stop: int) -> Array:
    """Decode bitsandbytes' 4 bits: options are the block, then block and offset of nested scales, or None."""
    block, nested = data.options
    row = math.prod(data.shape[1:])
    first, last = start * row, stop * row
    begin, end = first // (2 * block) * block, -(-last // 2)  # whole blocks of values, in bytes
    raw = np.frombuffer(data.parts[0].data.window(begin, end), np.uint8)
    table = data.part(2).astype(np.float32)
    values: Array = np.empty(2 * raw.size, np.float32)
    values[::2], values[1::2] = table[raw >> 4], table[raw & 15]  # the high one first
    absmax = data.part(1).reshape(-1)
    if nested is not None:
        inner_block, offset = nested
        inner, outer = data.part(4).astype(np.float32)[absmax], data.part(3).astype(np.float32).reshape(-1)
        inner *= outer[np.arange(absmax.size) // inner_block]
        absmax = inner + np.float32(offset)
    values *= np.repeat(absmax[2 * begin // block :].astype(np.float32), block)[: values.size]
    return values[first - 2 * begin : last - 2 * begin].reshape(stop - start, *data.shape[1:])


def _bnb8(data: CodedParts, start: int, stop: int) -> Array:
    """Decode bitsandbytes' INT8: a scale per row, of which 127 is the whole."""
    values = data.part_rows(0, start, stop).astype(np.float32)
    values *= data.part(1).reshape(-1)[start:stop].astype(np.float32).reshape(-1, *(1,) * (values.ndim - 1))
    values *= np.float32(7.874015718698502e-3)
    return values


DECODERS: dict[str, Decoder] = {
    "scaled": Decoder(_scaled, by_rows=True),
    "grouped": Decoder(_grouped, by_rows=True),
    "exponents": Decoder(_exponents, by_rows=True),
    "gpt-oss": Decoder(_gpt_oss, by_rows=True),
    "packed": Decoder(_packed, by_rows=True),
    "gptq": Decoder(_gptq, by_rows=False),
    "awq": Decoder(_awq, by_rows=False),
    "bnb4": Decoder(_bnb4, by_rows=True),
    "bnb8": Decoder(_bnb8, by_rows=True),
}
"""The decoders by name; names are stored in no file."""
