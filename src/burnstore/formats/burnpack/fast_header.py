"""The descriptors at full speed, where they are written as every Burn writes them.

A pull reader in Python takes about 10 µs a descriptor; a file of 20,000 tensors would take longer to open than to read.
Every Burn writes descriptors in one form (same keys, same order, definite lengths), so this module finds the places of
two words that each descriptor contains, and NumPy computes the rest by the column. It is a recogniser, not a second
parser: whatever does not fit the form to the last byte gives None and is left to the strict reader, which accepts it or
reports what is wrong. Both give the same columns; a test compares them on every file and on mutants.

    head  name  A3|A4  "dtype"  ‹dtype "shape" shape›  "data_offsets" 82  start  end  ["param_id" id]
                              ↑                                         ↑
                              places of the words, from which all else follows

Why it cannot be fooled: each descriptor must begin where the one before ends; the length that its head announces must
lead exactly to the keys' marker before the first word; the bytes between the two words are decoded by the strict
reader's own functions and must be used up; the marker must agree with there being an id. A name or text that happens to
contain one of the words breaks this chain and leads to the strict reader, never to another reading.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from ...errors import FormatError
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ..codec.cbor import CborReader
from ..columns import Int64s
from .descriptors import Columns, Uint64s, read_dtype, read_shape
from .eras import Era

_DTYPE = b"edtype"
_MARKED_DTYPE = rb"[\xa3\xa4]edtype"  # a block of a quantization scheme has a "dtype", too, without the marker
_OFFSETS = b"ldata_offsets\x82"
_PARAM_ID = b"hparam_id"
_THREE_KEYS, _FOUR_KEYS = 0xA3, 0xA4
_TEXT, _TEXT_WITH_LENGTH = 0x60, 0x78
_LONGEST_NAME = 255
_SMALLEST_DESCRIPTOR = 36
_NO_UINT = 99
_WIDTHS = np.full(256, _NO_UINT, np.int64)  # of an unsigned integer, by its first byte
_WIDTHS[:0x18] = 1
_WIDTHS[0x18:0x1C] = (2, 3, 5, 9)
_BEYOND = b"\xff" * 64  # behind the last byte, so that looking ahead finds no number

_Uint8s = np.ndarray[Any, np.dtype[np.uint8]]


def read_descriptors(reader: CborReader, count: int, limits: Limits) -> Columns | None:
    """Read the next ``count`` descriptors; return None (and leave the reader) where one is not in Burn's form."""
    if count == 0 or count * _SMALLEST_DESCRIPTOR > reader.end - reader.position or limits.name_bytes < _LONGEST_NAME:
        return None
    body = reader.data[reader.position : reader.end]
    fields = _fields(body, count)
    if fields is None:
        return None
    try:
        names = _names(body, fields)
        kinds = [body[a:b] for a, b in zip(fields.kind_begin.tolist(), fields.kind_end.tolist(), strict=True)]
        distinct, eras = _decode_kinds(set(kinds), limits)
    except (UnicodeDecodeError, FormatError):
        return None
    if len(set(names)) != count:
        return None  # equal names are for the strict reader to report
    reader.position += fields.end
    number_of = dict(zip(distinct, range(len(distinct)), strict=True))
    return Columns(
        names=names,
        kinds=list(distinct.values()),
        kind=np.fromiter(map(number_of.__getitem__, kinds), np.int64, count),
        starts=fields.starts,
        ends=fields.ends,
        param_ids=fields.param_ids,
        eras=eras,
    )


class _Fields(NamedTuple):
    name_begin: Int64s
    name_end: Int64s
    kind_begin: Int64s
    kind_end: Int64s
    starts: Uint64s
    ends: Uint64s
    param_ids: list[int | None]
    end: int


def _fields(body: bytes, count: int) -> _Fields | None:
    """Find the fields of all descriptors, if each is in Burn's form."""
    after_offsets = _places(body.split(_OFFSETS, count), len(_OFFSETS), count)
    first = body.find(_DTYPE)
    marked = body[first - 1 : first + len(_DTYPE)]  # mostly all tensors have an id, or none has: one marker for all
    after_dtype = _places(body.split(marked, count), len(marked), count) if first > 0 else None
    if after_dtype is None:
        after_dtype = _places(re.split(_MARKED_DTYPE, body, maxsplit=count), len(_DTYPE) + 1, count)
    if after_dtype is None or after_offsets is None:
        return None
    raw = np.frombuffer(body + _BEYOND, np.uint8)
    starts, start_width = _uints(raw, after_offsets)
    ends, end_width = _uints(raw, after_offsets + start_width)
    end = after_offsets + start_width + end_width
    marker_at = after_dtype - len(_DTYPE) - 1
    has_id = raw[marker_at] == _FOUR_KEYS
    if (start_width + end_width >= _NO_UINT).any() or not (has_id | (raw[marker_at] == _THREE_KEYS)).all():
        return None
    param_ids: list[int | None] = [None] * count
    if has_id.any():
        id_at = end[has_id] + len(_PARAM_ID)
        words = raw[end[has_id, None] + np.arange(len(_PARAM_ID))]
        ids, id_width = _uints(raw, id_at)
        if (words != np.frombuffer(_PARAM_ID, np.uint8)).any() or (id_width == _NO_UINT).any():
            return None
        end[has_id] = id_at + id_width
        found = iter(ids.tolist())
        param_ids = ids.tolist() if len(ids) == count else [next(found) if there else None for there in has_id.tolist()]
    begin = np.concatenate((np.zeros(1, np.int64), end[:-1]))
    announced = raw[begin].astype(np.int64) - _TEXT
    long_name = announced == _TEXT_WITH_LENGTH - _TEXT
    name_begin = begin + 1 + long_name
    name_end = name_begin + np.where(long_name, raw[begin + 1], announced)
    kind_end = after_offsets - len(_OFFSETS)
    short_enough = (announced >= 0) & (announced <= _TEXT_WITH_LENGTH - _TEXT)
    if not short_enough.all() or (name_end != marker_at).any() or (after_dtype > kind_end).any() or end[-1] > len(body):
        return None
    return _Fields(name_begin, name_end, after_dtype, kind_end, starts, ends, param_ids, int(end[-1]))


def _places(between: list[bytes], length: int, count: int) -> Int64s | None:
    """Return the places just behind the first ``count`` words of this length, given the bytes between them."""
    if len(between) <= count:
        return None
    return np.cumsum(np.fromiter(map(len, between[:count]), np.int64, count) + length)


def _names(body: bytes, fields: _Fields) -> list[str]:
    text = body.decode("latin-1")  # one character a byte, so places stay places
    names = [text[a:b] for a, b in zip(fields.name_begin.tolist(), fields.name_end.tolist(), strict=True)]
    if "".join(names).isascii():
        return names
    return [name.encode("latin-1").decode("utf-8") for name in names]


def _decode_kinds(kinds: set[bytes], limits: Limits) -> tuple[dict[bytes, tuple[DType, Shape]], Era]:
    """Decode dtypes and shapes; many descriptors share few different ones, so each is decoded once."""
    decoded: dict[bytes, tuple[DType, Shape]] = {}
    eras = Era.ALL
    for kind in kinds:
        reader = CborReader(kind)
        dtype, of_dtype = read_dtype(reader)
        if reader.text() != "shape":
            raise FormatError("the shape does not follow the dtype")
        decoded[kind] = dtype, read_shape(reader, limits.rank)
        if not reader.at_end():
            raise FormatError("the shape has another length than it announces")
        eras &= of_dtype
    return decoded, eras


def _uints(raw: _Uint8s, at: Int64s) -> tuple[Uint64s, Int64s]:
    """Decode the unsigned integers at these places; return them and their widths, _NO_UINT where there is none."""
    at = np.minimum(at, len(raw) - 10)  # a place that a wrong width led beyond the end: padding, and so no number
    first = raw[at]
    width = _WIDTHS[first]
    values = first.astype(np.uint64)
    for wide in (2, 3, 5, 9):
        rows = np.flatnonzero(width == wide)
        if rows.size:
            padded = np.zeros((rows.size, 8), np.uint8)
            padded[:, 9 - wide :] = raw[at[rows, None] + np.arange(1, wide)]
            values[rows] = padded.view(">u8").ravel()
    return values, width
