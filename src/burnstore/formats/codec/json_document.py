"""JSON as Burn's recorders use it: documents that are nearly all arrays of numbers, and the pieces of a writer.

A tensor is an array of its bytes, each a number. `parse_document` cuts these arrays out of the text, parses the rest
strictly (see `io.json`), and leaves the place of each array in the tree; `NumberTexts` decodes
one, a megabyte at a time. The whole text is in memory: JSON records are those of small models.

The writer's pieces spell what serde_json spells.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ...errors import CorruptError, LimitError
from ...io import json as strict
from ...io.spool import Spool
from .window import Collector, NumberArray, NumberForm, NumberKind, Numbers

_WHITE = rb"[ \t\n\r]*"
_NULL = re.compile(rb"%sn" % _WHITE)
_PIECE = 1 << 20
_BYTES_PER_NODE, _BYTES_OF_FEW = 40, 16 << 20
_SPELLED = [str(value).encode() for value in range(256)]
_KINDS: dict[type, NumberKind] = {int: "int", float: "float", bool: "bool"}


class NumberText(NamedTuple):
    """The place of an array of numbers in the text, without its brackets."""

    start: int
    stop: int


def parse_document(
    raw: bytes, keys: Iterable[str], *, nodes: int, depth: int, longest_text: int, rule_of_end: str | None = None
) -> strict.Tree:
    """Parse a document of at most so many values; an array of numbers under one of ``keys`` stays a `NumberText`.

    All bounds but that of a string are checked by passes over the text that build nothing.
    """
    if len(raw) > 4 * nodes and strict.count(raw, b'"') > 4 * nodes + 64:
        raise LimitError(f"JSON with more strings than {nodes} values need")
    found = list(islice(_arrays(raw, keys), nodes // 5 + 1))
    if len(found) > nodes // 5:
        raise LimitError(f"more than {nodes // 5} arrays of numbers")
    if len(raw) - sum(stop - start for start, stop in found) > nodes * _BYTES_PER_NODE + _BYTES_OF_FEW:
        raise LimitError(f"a document longer than {nodes} values need")
    parts: list[bytes] = []
    position = 0
    for start, stop in found:
        # JSON has no such word, so the parser calls back for it, in the order of the text.
        parts += (raw[position : start - 1], b"NaN")
        position = stop + 1
    parts.append(raw[position:])
    text = strict.decode(b"".join(parts), most_nodes=nodes, most_strings=2 * nodes + 32, most_commas=nodes - 1)
    waiting = iter(found)
    tree = strict.parse(
        text,
        rule_of_end=rule_of_end,
        depth=depth,
        longest=longest_text,
        integer=strict.integer_64,
        constant=partial(_next, waiting),
    )
    if next(waiting, None) is not None:
        raise CorruptError("an array of numbers inside something that is not JSON")
    return tree


def _arrays(raw: bytes, keys: Iterable[str]) -> Iterator[NumberText]:
    """Find the arrays under these keys that hold neither strings nor other arrays or objects.

    A quote without a backslash before it is never inside a string, so what is found is a whole key, or is not JSON.
    """
    words = b"|".join(re.escape(key.encode()) for key in keys)
    opening = re.compile(rb'"(?:%s)"%s:%s\[(?=%s[-0-9tfn])' % (words, _WHITE, _WHITE, _WHITE))
    inside = re.compile(rb'[^]["{}]*')
    for match in opening.finditer(raw):
        stop = inside.match(raw, match.end()).end()  # type: ignore[union-attr]  # it matches anything
        if raw[stop : stop + 1] == b"]" and raw[match.start() - 1 : match.start()] != b"\\":
            yield NumberText(match.end(), stop)


def _next(waiting: Iterator[NumberText], word: str) -> NumberText:
    text = next(waiting, None)
    if text is None or word != "NaN":
        raise CorruptError(f"{word} is not JSON")
    return text


class NumberTexts:
    """The arrays of numbers that `parse_document` left in a text; those that are decoded go to ``sink``."""

    def __init__(self, raw: bytes, sink: Spool, *, most_nulls: int = 1_000_000) -> None:
        self._raw = raw
        self._sink = sink
        self._most_nulls = most_nulls

    def count(self, text: NumberText) -> int:
        """Count the numbers of an array, without decoding them."""
        return strict.count(memoryview(self._raw)[text.start : text.stop], b",") + 1

    def nulls(self, text: NumberText) -> list[None] | None:
        """Return an array of nothing but null; None for an array of numbers. One of both is refused."""
        if not _NULL.match(self._raw, text.start, text.stop):
            return None
        for _, piece in self._pieces(text):
            if {word.strip(b" \t\n\r") for word in set(piece.split(b","))} != {b"null"}:
                raise lost_number(text.start)
        count = self.count(text)
        if count > self._most_nulls:
            raise LimitError(f"an array of {count} null, more than the limit of {self._most_nulls}", offset=text.start)
        return [None] * count

    def decode(self, text: NumberText, form: NumberForm) -> Numbers:
        """Decode an array of numbers into the sink."""
        found = Collector(form, self._sink, text.start)
        for at, piece in self._pieces(text):
            values = _plain_integers(piece)
            if values is None:
                found.add(*_numbers(piece, at))
            else:
                found.add("int", values)
        return found.numbers()

    def _pieces(self, text: NumberText) -> Iterator[tuple[int, bytes]]:
        """Yield the text of an array with its place, cut at commas into pieces of about a megabyte."""
        at = text.start
        while at <= text.stop:
            stop = text.stop
            if stop - at > _PIECE:
                stop = self._raw.rfind(b",", at, at + _PIECE)
                if stop < 0:
                    raise CorruptError("a number of too many digits", offset=at)
            yield at, self._raw[at:stop]
            at = stop + 1


def lost_number(offset: int | None) -> CorruptError:
    """Return the error for null among the numbers of a tensor."""
    message = "null among numbers: Burn 0.13 writes a NaN or an infinity as null, and which of them it was is lost"
    return CorruptError(message, offset=offset, rule="BR-13")


def _plain_integers(text: bytes) -> NumberArray | None:
    """Decode digits and commas with NumPy, which is several times as fast; None for anything else."""
    codes = np.frombuffer(text, np.uint8)
    is_comma, digits = codes == ord(","), codes - np.uint8(ord("0"))
    if ((digits > 9) != is_comma).any() or not text:
        return None
    ends = np.append(np.flatnonzero(is_comma), len(codes))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts
    if lengths.min() < 1 or lengths.max() > 18 or ((lengths > 1) & (codes[starts % len(codes)] == ord("0"))).any():
        return None
    values: NumberArray = digits[ends - 1].astype(np.int64)
    for place in range(1, int(lengths.max())):
        rows = np.flatnonzero(lengths > place)
        values[rows] += digits[ends[rows] - 1 - place] * np.int64(10**place)
    return values


def _numbers(text: bytes, offset: int) -> tuple[NumberKind, NumberArray]:
    try:
        values: list[Any] = strict.decoder(integer=strict.integer_64).decode(f"[{text.decode()}]")
    except ValueError as error:  # of the decoder, of UTF-8, or of a number's own check
        raise CorruptError(f"an array of numbers with something else in it: {error}", offset=offset) from None
    kinds = set(map(type, values))
    if type(None) in kinds:
        raise lost_number(offset + text.index(b"n"))
    if len(kinds) != 1 or not kinds <= _KINDS.keys():
        raise CorruptError("an array of numbers with something else in it", offset=offset)
    kind = _KINDS[kinds.pop()]
    try:
        return kind, np.array(values, {"int": np.int64, "float": np.float64, "bool": np.bool_}[kind])
    except OverflowError:
        raise CorruptError("an integer that is too large", offset=offset) from None


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
    mantissa, _, exponent = repr(value).partition("e")
    if exponent == "-05":  # the one exponent at which Python and serde_json differ
        sign, digits = ("-" if value < 0 else ""), mantissa.strip("-").replace(".", "")
        return f"{sign}0.0000{digits}".encode()
    return f"{mantissa}e{int(exponent)}".encode() if exponent else mantissa.encode()
