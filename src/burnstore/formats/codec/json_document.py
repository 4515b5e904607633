"""JSON as Burn's recorders use it: documents that are nearly all arrays of numbers, and the pieces of a writer.

A tensor is an array of its bytes, each a number. `parse_document` cuts these arrays out of the text, parses the rest
strictly (see `codec.json`), and leaves the place of each array in the tree; `read_numbers` decodes one with NumPy, so
that numbers never become Python objects. The whole text is in memory: JSON records are those of small models.

The writer's pieces spell what serde_json spells.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import NamedTuple

import numpy as np

from ...errors import CorruptError, LimitError
from . import json as strict
from .numbers import Collector, NumberArray, NumberForm, Numbers
from .window import Sink

_WHITE = rb"[ \t\n\r]*"
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_NOT_IN_NUMBERS = bytes(set(range(256)) - set(b"0123456789+-.eE, \t\n\r"))
# What Python's float takes and JSON does not: a plus sign in front, a bare dot, leading zeros.
_NOT_JSON = re.compile(rb"(?<![eE])\+|(?<![0-9])\.|\.(?![0-9])|(?<![0-9.eE+\-])-?0[0-9]")
_WHOLE_NUMBER = re.compile(rb"(?:^|,)\s*-?[0-9]+\s*(?:,|$)")
_LONGEST_INTEGER = 18
_PIECE = 1 << 20
_BYTES_PER_NODE, _BYTES_OF_FEW = 100, 16 << 20
_COMMA, _MINUS = ord(","), ord("-")
_SPELLED = [str(value).encode() for value in range(256)]


class NumberText(NamedTuple):
    """The place of an array of numbers in the text, without its brackets."""

    start: int
    stop: int


def parse_document(
    raw: bytes, keys: Iterable[str], *, nodes: int, depth: int, longest_text: int, rule_of_end: str | None = None
) -> strict.Tree:
    """Parse a document of at most so many values; an array of numbers under one of ``keys`` stays a `NumberText`."""
    words = b"|".join(re.escape(key.encode()) for key in keys)
    arrays = rb'"(?:%s)"%s:%s(\[%s(?=[-0-9tfn])[^]["{}]*\])' % (words, _WHITE, _WHITE, _WHITE)
    found: list[NumberText] = []
    parts: list[bytes] = []
    position = 0
    for token in re.finditer(rb"%s|%s" % (arrays, _STRING), raw, re.DOTALL):
        if token.start(1) < 0:
            if len(token[0]) - 2 > longest_text:
                _check_length(token[0], longest_text, token.start())
            continue
        start, stop = token.span(1)
        found.append(NumberText(start + 1, stop - 1))
        # JSON has no such word, so the parser calls back for it, in the order of the text.
        parts += (raw[position:start], b"NaN")
        position = stop
    parts.append(raw[position:])
    if len(raw) - sum(text.stop - text.start for text in found) > nodes * _BYTES_PER_NODE + _BYTES_OF_FEW:
        raise LimitError(f"a document longer than {nodes} values need")
    text = strict.decode(b"".join(parts), most_nodes=nodes, most_strings=2 * nodes, most_commas=nodes - 1)
    waiting = iter(found)
    tree = strict.parse(
        text, rule_of_end=rule_of_end, depth=depth, integer=strict.integer_64, constant=partial(_next, waiting)
    )
    if next(waiting, None) is not None:
        raise CorruptError("an array of numbers inside something that is no JSON")
    return tree


def _next(waiting: Iterator[NumberText], word: str) -> NumberText:
    text = next(waiting, None)
    if text is None or word != "NaN":
        raise CorruptError(f"{word} is not JSON")
    return text


def _check_length(token: bytes, longest: int, offset: int) -> None:
    try:
        length = len(json.loads(token).encode())
    except ValueError:
        return  # for the parser to report
    if length > longest:
        raise LimitError(f"text of {length} bytes, more than the limit of {longest}", offset=offset)


def read_numbers(raw: bytes, text: NumberText, form: NumberForm, sink: Sink) -> Numbers | list[None]:
    """Decode an array of numbers into the sink; an array of nothing but null stays a list."""
    found = Collector(form, sink, text.start)
    at = text.start
    while at < text.stop:
        stop = text.stop
        if stop - at > _PIECE:
            stop = raw.rfind(b",", at, at + _PIECE)
            if stop < 0:
                raise CorruptError("a number of too many digits", offset=at)
        piece = raw[at:stop]
        if b"n" in piece:
            words = raw[text.start : text.stop].split(b",")
            if all(word.strip(b" \t\n\r") == b"null" for word in words):
                return [None] * len(words)
            raise CorruptError(
                "null among numbers: so Burn 0.13 spells a NaN or an infinity, and which of them it was is lost",
                offset=at + piece.index(b"n"),
            )
        if b"t" in piece or b"f" in piece:
            words = [word.strip(b" \t\n\r") for word in piece.split(b",")]
            if not set(words) <= {b"true", b"false"}:
                raise CorruptError("an array of bools with something else in it", offset=at)
            found.add("bool", np.array([word == b"true" for word in words]))
        elif b"." in piece or b"e" in piece or b"E" in piece:
            found.add("float", _floats(piece, form, at))
        else:
            found.add("int", _integers(piece, at))
        if stop + 1 == text.stop:
            raise CorruptError("an array of numbers that ends with a comma", offset=stop)
        at = stop + 1
    return found.numbers()


def _floats(text: bytes, form: NumberForm, offset: int) -> NumberArray:
    if text.translate(None, _NOT_IN_NUMBERS) != text or _NOT_JSON.search(text) or _WHOLE_NUMBER.search(text):
        raise CorruptError("an array of floats with something else in it", offset=offset)
    try:
        values = np.array(list(map(float, text.split(b","))), np.float64)
    except ValueError:
        raise CorruptError("an array of floats with something else in it", offset=offset) from None
    largest = float(np.finfo(form.floats).max) if form.floats is not None else np.inf
    if not np.isfinite(values).all() or np.abs(values).max() > largest * (1 + 2.0**-25):
        raise CorruptError("a number that is too large for a float", offset=offset)
    return values


def _integers(text: bytes, offset: int) -> NumberArray:
    """Decode all numbers together: where each begins, how long it is, and then digit by digit."""
    spelled = np.frombuffer(text, np.uint8)
    is_digit = (spelled - np.uint8(ord("0"))) <= 9
    edges = np.flatnonzero(np.diff(is_digit.astype(np.int8), prepend=0, append=0))
    starts, ends = edges[::2], edges[1::2]
    lengths = ends - starts
    commas = np.flatnonzero(spelled == _COMMA)
    minuses = np.flatnonzero(spelled == _MINUS)
    strays = len(text.translate(None, b"0123456789,- \t\n\r"))
    if (
        strays
        or len(starts) == 0
        or len(commas) != len(starts) - 1
        or (commas < ends[:-1]).any()
        or (commas >= starts[1:]).any()
        or (len(minuses) and (minuses[-1] + 1 >= len(spelled) or not is_digit[minuses + 1].all()))
        or (len(minuses) and is_digit[minuses[minuses > 0] - 1].any())
        or ((lengths > 1) & (spelled[starts] == ord("0"))).any()
        or int(lengths.max()) > _LONGEST_INTEGER
    ):
        raise CorruptError("an array of integers with something else in it", offset=offset)
    values = np.zeros(len(starts), np.int64)
    for place in range(int(lengths.max())):
        there = lengths > place
        values[there] = values[there] * 10 + (spelled[starts[there] + place] - np.uint8(ord("0")))
    if len(minuses):
        values[np.searchsorted(starts, minuses + 1)] *= -1
    return values


def encode_scalar(value: bool | int | float | str | None) -> bytes:
    """Encode a value that is not a container, as serde_json does."""
    if isinstance(value, float):
        return _encode_float(value)
    return json.dumps(value, ensure_ascii=False).encode("utf-8")


def encode_bytes(data: memoryview, separator: bytes) -> bytes:
    """Encode bytes as numbers."""
    return separator.join(map(_SPELLED.__getitem__, data))


def _encode_float(value: float) -> bytes:
    """Encode the shortest digits that mean this float: plain between 1e-5 and 1e16, else with an exponent."""
    if not math.isfinite(value):
        return b"null"
    negative, figures, exponent = Decimal(repr(value)).as_tuple()
    point = len(figures) + int(exponent)
    digits = "".join(map(str, figures)).rstrip("0")
    sign = "-" if negative else ""
    if not digits:
        return f"{sign}0.0".encode()
    if len(digits) <= point <= 16:
        return f"{sign}{digits.ljust(point, '0')}.0".encode()
    if 0 < point <= 16:
        return f"{sign}{digits[:point]}.{digits[point:]}".encode()
    if -5 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}".encode()
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1}".encode()
