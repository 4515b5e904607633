"""The header at full speed, where it has the form that the package and most other writers give it.

A tree of Python objects for 20,000 tensors, and a check of each, takes some 100 ms. Nearly all files spell a descriptor
in one form, in which a tensor has ten quotes:

    ,"name":{"dtype":"F32","shape":[16,16],"data_offsets":[0,1024]}
     0    1  2     3 4   5 6     7         8            9

So NumPy finds the quotes, which cut the header into columns. It is a recogniser, not a second parser: whatever does not
fit the form to the last character gives None and is left to the strict reader, which accepts it or reports what is
wrong. Both give the same columns; a test compares them on every file and on mutants.

Why it cannot be fooled: each character of the text is part of exactly one thing that is checked. The text has no
backslash and no control character, so a name ends at its next quote and means what it shows. The text between that
quote and the offsets is the same for all tensors of a dtype and shape, and is checked to the last character once for
all of them. The offsets fill what is left: digits, a comma, digits, without sign, fraction or leading zero, few enough
for int64. Then come ``]}`` and, directly, the comma and quote of the next name or the end. Each step is one pass over
the header, so one made to fit almost everywhere costs no more than its length.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...errors import FormatError
from ...io import json
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ..columns import Int64s
from .header import BY_SPELLING, METADATA, Columns

Codes = np.ndarray[Any, np.dtype[np.uint8]]
"""The bytes of the text."""

_QUOTES = 10
_EXTENT = "(?:0|[1-9][0-9]{0,17})"
_KIND = re.compile(rf'":\{{"dtype":"([^"]+)","shape":\[((?:{_EXTENT}(?:,{_EXTENT})*)?)\],"data_offsets":\[')
_MOST_DIGITS = 18  # what int64 can hold for sure
_WORD = 8
_LONGEST_PIECE = 128  # more than a dtype and shape in use need
_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
_METADATA = f'{{"{METADATA}":'
_WHITE = " \t\n\r"


def read_header(text: str, limits: Limits) -> Columns | None:
    """Read a header in the common form; return None for any other."""
    text = text.strip(_WHITE)
    if text[:1] != "{" or text[-1:] != "}":
        return None
    if not text.startswith(_METADATA):
        return _read_tensors("," + text[1:-1], {}, limits)
    try:
        found = json.parse_texts(text, len(_METADATA))
    except FormatError:
        return None
    if found is None or len(found[0]) > limits.metadata_entries:
        return None
    metadata, end = found
    return _read_tensors(text[end:-1], metadata, limits)


def _read_tensors(body: str, metadata: dict[str, str], limits: Limits) -> Columns | None:
    """Read the rest of a header without its braces and metadata: for each tensor a comma and its entry."""
    if body[:2] != ',"' or "\\" in body:
        return None  # also where there are no tensors
    codes: Codes = np.frombuffer(body.encode(), np.uint8)
    quotes = np.flatnonzero(codes == ord('"'))
    count, odd = divmod(len(quotes), _QUOTES)
    if odd or count > (limits.tensors or 0) or codes.min() < ord(" "):
        return None
    begins, ends = quotes[::_QUOTES] + 1, quotes[1::_QUOTES].copy()
    if int((ends - begins).max()) > limits.name_bytes:
        return None
    offsets = quotes[_QUOTES - 1 :: _QUOTES] + len('":[')
    found = _read_offsets(codes, offsets, np.append(begins[1:] - len(']},"'), len(codes) - len("]}")))
    if found is None:
        return None
    names = _pieces(body, codes, begins, ends)
    distinct = set(names)
    if len(distinct) != count or METADATA in distinct:
        return None
    alike = _first_alike(codes, ends, offsets)
    if alike is None:
        return None
    firsts = np.flatnonzero(alike == np.arange(count))
    kinds = []
    for piece in _pieces(body, codes, ends[firsts], offsets[firsts]):
        kind = _kind(piece, limits)
        if kind is None:
            return None
        kinds.append(kind)
    return Columns(names, kinds, np.searchsorted(firsts, alike), *found, metadata)


def _read_offsets(codes: Codes, begins: Int64s, stops: Int64s) -> tuple[Int64s, Int64s] | None:
    """Read the two numbers that fill the text between these places, if ``]},"`` or the end follows each pair."""
    after = stops[:-1] + len("]}")
    if (codes[stops] != ord("]")).any() or (codes[stops + 1] != ord("}")).any() or (codes[after] != ord(",")).any():
        return None
    ends, at = _naturals_before(codes, stops)
    commas = at - 1
    starts, first = _naturals_before(codes, commas)
    if (first != begins).any() or (codes[commas] != ord(",")).any() or (starts > ends).any():
        return None
    for digits, stop in ((first, commas), (at, stops)):
        if ((digits == stop) | ((codes[digits] == ord("0")) & (stop - digits > 1))).any():
            return None
    return starts, ends


def _naturals_before(codes: Codes, stops: Int64s) -> tuple[Int64s, Int64s]:
    """Read the number whose digits end before each place, up to 18 of them; return it and where the digits begin."""
    values = np.zeros(len(stops), np.int64)
    last = stops - 1
    for power in range(_MOST_DIGITS):
        digits = codes[last] - np.uint8(ord("0"))  # any other character gives 10 or more: uint8 wraps around
        is_digit = digits < 10
        if not is_digit.any():
            break
        values += np.multiply(digits * is_digit, 10**power, dtype=np.int64)
        last -= is_digit
    return values, last + 1


def _first_alike(codes: Codes, begins: Int64s, ends: Int64s) -> Int64s | None:
    """Return for each piece of the text the first equal one; None where a piece is of an unusual length.

    A dict of as many str takes twice as long. Pieces are compared by words of eight bytes, the last of which overlaps
    the one before. A hash selects the piece to compare with; those that met a different one try another hash.
    """
    lengths = ends - begins
    if lengths.min() < _WORD or lengths.max() > _LONGEST_PIECE:
        return None
    at = np.ndarray(len(codes) - _WORD + 1, np.uint64, codes, strides=(1,))
    last = ends - _WORD
    words = [at[np.minimum(begins + place, last)] for place in range(0, int(lengths.max()), _WORD)]
    words.append(lengths.astype(np.uint64))
    alike = np.arange(len(begins))
    todo = alike.copy()
    for multiplier in _MULTIPLIERS:
        mixed = np.zeros(len(todo), np.uint64)
        for word in words:
            mixed = (mixed ^ word) * multiplier
            mixed ^= mixed >> np.uint64(32)
        slots = (mixed >> np.uint64(48)).astype(np.int64)
        first = np.empty(1 << 16, np.int64)
        first[slots[::-1]] = np.arange(len(todo))[::-1]  # of several in one slot the last stays
        met = first[slots]
        different = np.logical_or.reduce([word != word[met] for word in words])
        alike[todo] = todo[met]
        if not different.any():
            return alike
        todo = todo[different]
        words = [word[different] for word in words]
    return None


def _pieces(body: str, codes: Codes, begins: Int64s, ends: Int64s) -> list[str]:
    """Return the text between each two places, which are not inside a longer character."""
    places = zip(begins.tolist(), ends.tolist(), strict=True)
    if body.isascii():
        return [body[begin:end] for begin, end in places]
    raw = codes.tobytes()
    return [raw[begin:end].decode() for begin, end in places]


def _kind(piece: str, limits: Limits) -> tuple[DType, Shape] | None:
    """Return the dtype and shape that the part of a descriptor before its offsets states."""
    match = _KIND.fullmatch(piece)
    if match is None:
        return None
    dtype = BY_SPELLING.get(match[1])
    shape = tuple(map(int, match[2].split(","))) if match[2] else ()
    return None if dtype is None or len(shape) > limits.rank else (dtype, shape)
