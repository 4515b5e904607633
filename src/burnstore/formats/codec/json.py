"""JSON, read strictly: what RFC 8259 allows, no key twice, and no more work than the text is worth.

The parser is the standard library's, in C. It was not made for text from strangers, so this face stands before it:

    UTF-8 and nothing else          ``json.loads`` guesses UTF-16 and UTF-32 and takes a byte order mark
    no key twice in an object       it keeps the last one
    no NaN, no Infinity             it takes both; a number that float64 cannot hold is refused, too
    no half of a surrogate pair     it makes a str of it that cannot be encoded
    integers as they are written    ``-0`` and numbers beyond 64 bits are floats here, as they are for serde_json
    nodes and quotes are counted, and the depth is measured, before the first object is made
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import numpy as np

from ...errors import CorruptError, LimitError, located, printable

Tree = Any
"""None, bool, int, float, str, list or dict of such."""

MOST_DEPTH = 16

_LONGEST_INTEGER = 20  # no integer of 64 bits has more characters
_PIECE = 1 << 20
_STRINGS = re.compile('"[^"]*"')
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_NOT_BRACKETS = re.compile(r"[^][{}]+")


def decode(raw: bytes, *, most_nodes: int, most_strings: int) -> str:
    """The bytes as text, if they can be JSON of at most so many objects, arrays and strings (both are upper bounds)."""
    # A text that is shorter than that cannot have so many: most need no counting.
    if len(raw) > most_nodes and (nodes := _count(raw, b"{[")) > most_nodes:
        raise LimitError(f"JSON with {nodes} brackets, more than the limit of {most_nodes}")
    if len(raw) > 2 * most_strings and (quotes := _count(raw, b'"')) > 2 * most_strings:
        raise LimitError(f"JSON with {quotes} quotes, more than {most_strings} strings need")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(f"the JSON is not UTF-8: {error.reason}", offset=error.start) from None


def parse(text: str, *, rule: str | None = None, rule_of_keys: str | None = None) -> Tree:
    """The one value that fills the text, white space aside.

    Errors cite ``rule``, or ``rule_of_keys`` where a key comes twice; their offsets count the bytes of the text.
    """
    with located(rule=rule):
        _check_depth(text)
        decoder = json.JSONDecoder(
            object_pairs_hook=partial(_object, rule_of_keys),
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
        try:
            value = decoder.decode(text)
        except json.JSONDecodeError as error:
            at = len(text[: error.pos].encode())
            raise CorruptError(f"it is not JSON: {error.msg}", offset=at) from None
        if "\\u" in text:
            _refuse_half_pairs(value)
        return value


def parse_texts(text: str, start: int) -> tuple[dict[str, str], int] | None:
    """The object of texts that begins at this place, written without white space, and its end; None for all else."""
    if text[start : start + 2] == "{}":
        return {}, start + 2
    texts: dict[str, str] = {}
    mark, at = "{", start
    try:
        while text[at : at + 2] == f'{mark}"':
            key, at = json.decoder.scanstring(text, at + 2)  # type: ignore[attr-defined]
            if text[at : at + 2] != ':"' or key in texts:
                return None
            texts[key], at = json.decoder.scanstring(text, at + 2)  # type: ignore[attr-defined]
            mark = ","
    except json.JSONDecodeError:
        return None
    if mark == "{" or text[at : at + 1] != "}":
        return None
    if "\\u" in text[start:at]:
        _refuse_half_pairs(texts)
    return texts, at + 1


def quote(text: str) -> str:
    """A str as JSON, with the escapes of serde_json: quotes, backslashes and control characters."""
    return json.encoder.encode_basestring(text)


def _count(raw: bytes, characters: bytes) -> int:
    """How often any of these bytes occurs; in NumPy and by the piece, as `bytes.count` is slow where there are many."""
    whole = np.frombuffer(raw, np.uint8)
    pieces = [whole[start : start + _PIECE] for start in range(0, len(whole), _PIECE)]
    return sum(int(np.count_nonzero(piece == character)) for piece in pieces for character in characters)


def _check_depth(text: str) -> None:
    """Refuse what is nested too deep.

    Brackets in strings do not count. A closing bracket too many would hide depth behind it, but there the parser ends.
    """
    # Escapes first: without them a string ends at the next quote, which needs no memory to find.
    plain = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
    brackets = _NOT_BRACKETS.sub("", _STRINGS.sub("", plain))
    if not brackets:
        return
    codes = np.frombuffer(brackets.encode("ascii"), np.uint8)
    steps = np.where((codes == ord("{")) | (codes == ord("[")), np.int8(1), np.int8(-1))
    deepest = int(np.cumsum(steps, dtype=np.int32).max())
    if deepest > MOST_DEPTH:
        raise LimitError(f"JSON nested {deepest} deep, more than the limit of {MOST_DEPTH}")


def _object(rule: str | None, pairs: list[tuple[str, Tree]]) -> dict[str, Tree]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise CorruptError(f"the key {printable(twice)!r} comes twice in one object", rule=rule)
    return made


def _integer(text: str) -> int | float:
    if text == "-0" or len(text) > _LONGEST_INTEGER:
        return _float(text)
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 64 else float(value)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise CorruptError(f"the number {text[:40]} is out of range")
    return value


def _constant(text: str) -> Tree:
    raise CorruptError(f"{text} is not JSON")


def _refuse_half_pairs(value: Tree) -> None:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if not item.isascii() and _HALF_PAIR.search(item):
                raise CorruptError(f"half of a surrogate pair in {printable(item)!r}")
        elif isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
