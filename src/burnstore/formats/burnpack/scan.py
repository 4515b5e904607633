"""The descriptors of a Burnpack file at full speed, where they are written as every Burn writes them.

A pull reader in Python takes some ten steps a descriptor, about 10 µs; a file of 20,000 tensors would take longer to
open than to read. Every Burn writes descriptors in one form (same keys, same order, definite lengths), so here one
regular expression cuts the whole map into fields and NumPy decodes the numbers by the column. It is a recogniser, not a
second parser: whatever does not fit the form to the last byte gives None and is left to the strict reader, which
accepts it or says what is wrong. Both give the same columns; a test compares them on every file and on mutants.

Why it cannot be fooled: the expression consumes byte by byte from the first descriptor on (its last alternative takes
any one byte, so nothing is skipped unseen); from the lengths of the fields follows where each descriptor begins, and
there the announced length of its name and the announced number of its keys are compared with what was found; dtypes and
shapes are decoded by the strict reader's own functions. Its work is bounded: at most some 600 bytes are looked at per
announced descriptor.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from ...codec.cbor import CborReader
from ...dtype import DType
from ...errors import FormatError
from ...limits import Limits
from ...tensor_data import Shape
from .descriptors import Columns, Int64s, Uint64s, read_dtype, read_shape
from .eras import Era

_UINT = rb"(?:[\x00-\x17]|\x18.|\x19..|\x1a.{4}|\x1b.{8})"
_DTYPE = (
    rb"(?:c[FIU](?:16|32|64)|b[IU]8|dBF16|fFlex32|dBool|\xa1dBool(?:fNative|bU8|cU32)"
    rb"|\xa1fQFloat\xa5.{40,250}?(?=eshape[\x80-\x97]))"
)
_DESCRIPTOR = re.compile(
    rb"(?:[\x60-\x77]|\x78.)([^\xa3\xa4]{0,255})[\xa3\xa4]edtype"
    rb"(" + _DTYPE + rb"eshape[\x80-\x97]" + _UINT + rb"*)"
    rb"ldata_offsets\x82(" + _UINT + _UINT + rb"(?:hparam_id" + _UINT + rb")?)|.",
    re.DOTALL,
)
_STRIDE = 4  # what split gives for each descriptor: the (empty) text between two, and three groups
_LONGEST_NAME = 255
_SMALLEST_DESCRIPTOR = 36
_TEXT_HEAD = 0x60
_WIDTHS = np.full(256, 99, np.int64)  # of an unsigned integer, by its first byte
_WIDTHS[:0x18] = 1
_WIDTHS[0x18:0x1C] = (2, 3, 5, 9)

_Uint8s = np.ndarray[Any, np.dtype[np.uint8]]


def scan_descriptors(reader: CborReader, count: int, limits: Limits) -> Columns | None:
    """The next ``count`` descriptors, or None (and the reader unmoved) where one is not in Burn's form."""
    if count == 0 or count * _SMALLEST_DESCRIPTOR > reader.end - reader.position or limits.name_bytes < _LONGEST_NAME:
        return None
    body = reader.data[reader.position : reader.end]
    parts = _DESCRIPTOR.split(body, maxsplit=count)
    if len(parts) != count * _STRIDE + 1:
        return None
    raw_names, kinds, tails = parts[1::_STRIDE], parts[2::_STRIDE], parts[3::_STRIDE]
    if None in raw_names:
        return None
    try:
        names = b"\n".join(raw_names).decode("utf-8").split("\n")
        distinct, eras = _decode_kinds(set(kinds), limits)
    except (UnicodeDecodeError, FormatError):
        return None
    # A name that holds the separator gives one name too many; equal names are for the strict reader to report.
    if len(names) != count or len(set(names)) != count:
        return None
    numbers = _numbers(np.frombuffer(body, np.uint8), _lengths(raw_names), _lengths(kinds), _lengths(tails))
    consumed = len(body) - len(parts[-1])
    if numbers is None or numbers.end != consumed:
        return None
    reader.position += consumed
    number_of = dict(zip(distinct, range(len(distinct)), strict=True))
    return Columns(
        names=names,
        kinds=list(distinct.values()),
        kind=np.fromiter(map(number_of.__getitem__, kinds), np.int64, count),
        starts=numbers.starts,
        ends=numbers.ends,
        param_ids=numbers.param_ids,
        eras=eras,
    )


def _lengths(fields: list[bytes]) -> Int64s:
    return np.fromiter(map(len, fields), np.int64, len(fields))


def _decode_kinds(kinds: set[bytes], limits: Limits) -> tuple[dict[bytes, tuple[DType, Shape]], Era]:
    decoded: dict[bytes, tuple[DType, Shape]] = {}
    eras = Era.ALL
    for kind in kinds:
        reader = CborReader(kind)
        dtype, of_dtype = read_dtype(reader)
        reader.text()  # the word "shape", which the expression has matched
        decoded[kind] = dtype, read_shape(reader, limits.rank)
        if not reader.at_end():
            raise FormatError("the shape has another length than it announces")
        eras &= of_dtype
    return decoded, eras


class _Numbers(NamedTuple):
    starts: Uint64s
    ends: Uint64s
    param_ids: list[int | None]
    end: int


def _numbers(body: _Uint8s, name: Int64s, kind: Int64s, tail: Int64s) -> _Numbers | None:
    """Offsets and ids, given the lengths of the fields; None where a head contradicts what follows it."""
    head = 1 + (name >= 24)
    length = head + name + len(b"\xa4edtype") + kind + len(b"ldata_offsets\x82") + tail
    end = np.cumsum(length)
    begin = end - length
    announced = body[begin].astype(np.int64) - _TEXT_HEAD
    announced = np.where(announced == 24, body[begin + 1], announced)
    start_at = end - tail
    starts, start_width = _uints(body, start_at)
    ends, end_width = _uints(body, start_at + start_width)
    has_id = tail > start_width + end_width
    keys_announced = body[begin + head + name] - 0xA0
    if (announced != name).any() or (keys_announced != 3 + has_id).any():
        return None
    ids, _ = _uints(body, (start_at + start_width + end_width + len(b"hparam_id"))[has_id])
    if len(ids) == len(name):
        return _Numbers(starts, ends, ids.tolist(), int(end[-1]))
    found = iter(ids.tolist())
    return _Numbers(starts, ends, [next(found) if there else None for there in has_id.tolist()], int(end[-1]))


def _uints(body: _Uint8s, at: Int64s) -> tuple[Uint64s, Int64s]:
    """The unsigned integers at these places, and the width of each."""
    first = body[at]
    width = _WIDTHS[first]
    values = first.astype(np.uint64)
    for wide in (2, 3, 5, 9):
        rows = np.flatnonzero(width == wide)
        if rows.size:
            padded = np.zeros((rows.size, 8), np.uint8)
            padded[:, 9 - wide :] = body[at[rows, None] + np.arange(1, wide)]
            values[rows] = padded.view(">u8").ravel()
    return values, width
