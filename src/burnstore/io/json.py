"""JSON, read strictly: what RFC 8259 allows, no key twice, and no more work than the text is worth.

The parser is the standard library's, in C. It was not made for text from strangers, so this module adds:

    UTF-8 and nothing else          ``json.loads`` guesses UTF-16 and UTF-32 and takes a byte order mark
    no key twice in an object       it keeps the last one
    no NaN, no Infinity             it takes both; a number that float64 cannot hold is refused, too
    no lone surrogate               it makes a str of it that cannot be encoded
    integers unchanged              ``-0`` and numbers beyond 64 bits are floats by default, as for serde_json
    brackets and quotes are counted, and the depth is measured, before the first object is made
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..errors import CorruptError, LimitError, located, printable

Tree = Any
"""None, bool, int, float, str, list or dict of such."""

MOST_DEPTH = 16

_LONGEST_INTEGER = 20  # no integer of 64 bits has more characters
_PIECE = 1 << 20
_STRINGS = re.compile('"[^"]*"')
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_BRACKETS = re.compile(r"[^][{}]+")


def decode(raw: bytes, *, most_nodes: int, most_strings: int, most_commas: int | None = None) -> str:
    """Decode bytes that can be JSON of at most so many objects, arrays, strings and commas (all are upper bounds)."""
    # A text that is shorter than that cannot have so many: most need no counting.
    if len(raw) > most_nodes and (nodes := count(raw, b"{[")) > most_nodes:
        raise LimitError(f"JSON with {nodes} brackets, more than the limit of {most_nodes}")
    if len(raw) > 2 * most_strings and (quotes := count(raw, b'"')) > 2 * most_strings:
        raise LimitError(f"JSON with {quotes} quotes, more than {most_strings} strings need")
    if most_commas is not None and len(raw) > most_commas and (commas := count(raw, b",")) > most_commas:
        raise LimitError(f"JSON with {commas} commas, more than the limit of {most_commas}")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(f"the JSON is not UTF-8: {error.reason}", offset=error.start) from None


def serde_integer(text: str) -> int | float:
    """Return an integer of 64 bits as int, any other as float, as serde_json does."""
    if text == "-0" or len(text) > _LONGEST_INTEGER:
        return _float(text)
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 64 else float(value)


def exact_integer(text: str) -> int:
    """Return an integer of any size that Python converts."""
    try:
        return int(text)
    except ValueError:  # more digits than Python's limit, which bounds a conversion that takes quadratic time
        raise CorruptError(f"an integer of {len(text)} digits") from None


def integer_64(text: str) -> int:
    """Return an integer of at most 64 bits."""
    if len(text) > _LONGEST_INTEGER or not -(1 << 63) <= int(text) < 1 << 64:
        raise CorruptError(f"the integer {text[:40]} has more than 64 bits")
    return int(text)


def parse(
    text: str,
    *,
    rule: str | None = None,
    rule_of_keys: str | None = None,
    rule_of_end: str | None = None,
    depth: int = MOST_DEPTH,
    longest: int | None = None,
    integer: Callable[[str], int | float] = serde_integer,
    constant: Callable[[str], Tree] | None = None,
) -> Tree:
    """Parse the one value that fills the text, white space aside.

    Errors cite ``rule``, ``rule_of_keys`` where a key comes twice, ``rule_of_end`` where text follows the value; their
    offsets count the bytes of the text. ``longest`` is the most bytes of a string, if there is a limit.
    ``integer`` converts integers, ``constant`` the words NaN and Infinity, which are refused by default.
    """
    with located(rule=rule):
        _check_depth(text, depth)
        try:
            value = decoder(rule_of_keys, integer, constant).decode(text)
        except json.JSONDecodeError as error:
            at = len(text[: error.pos].encode())
            if error.msg == "Extra data":
                raise CorruptError("text follows the JSON value", offset=at, rule=rule_of_end) from None
            raise CorruptError(f"it is not JSON: {error.msg}", offset=at) from None
        except RecursionError:  # the caller's own stack is nearly full
            raise LimitError("JSON nested too deep for the stack that is left") from None
        # Strings are looked at one by one only where there may be something to refuse.
        if "\\u" in text or (longest is not None and re.search(f'"[^"]{{{longest // 4}}}', text)):
            _check_strings(value, longest)
        return value


def parse_texts(text: str, start: int) -> tuple[dict[str, str], int] | None:
    """Parse the object of strings that begins at this place; return it and its end, None for anything else."""
    try:
        value, end = decoder().raw_decode(text, start)
    except (json.JSONDecodeError, RecursionError):
        return None
    if type(value) is not dict or not all(type(each) is str for each in value.values()):
        return None
    if "\\u" in text[start:end]:
        _check_strings(value, None)
    return value, end


def decoder(
    rule_of_keys: str | None = None,
    integer: Callable[[str], int | float] = serde_integer,
    constant: Callable[[str], Tree] | None = None,
) -> json.JSONDecoder:
    """Return a decoder that refuses keys that come twice, NaN, and numbers beyond float64."""
    return json.JSONDecoder(
        object_pairs_hook=partial(_object, rule_of_keys),
        parse_int=integer,
        parse_float=_float,
        parse_constant=constant or _constant,
    )


def quote(text: str) -> str:
    """Encode a str as JSON, with the escapes of serde_json: quotes, backslashes and control characters."""
    return json.encoder.encode_basestring(text)


def count(raw: bytes | memoryview, characters: bytes) -> int:
    """Count these bytes; in NumPy and by the piece, as `bytes.count` is slow where there are many."""
    whole = np.frombuffer(raw, np.uint8)
    pieces = [whole[start : start + _PIECE] for start in range(0, len(whole), _PIECE)]
    return sum(int(np.count_nonzero(piece == character)) for piece in pieces for character in characters)


def _check_depth(text: str, most: int) -> None:
    """Refuse text that is nested too deep.

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
    if deepest > most:
        raise LimitError(f"JSON nested {deepest} deep, more than the limit of {most}")


def _object(rule: str | None, pairs: list[tuple[str, Tree]]) -> dict[str, Tree]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise CorruptError(f"the key {printable(twice)!r} comes twice in one object", rule=rule)
    return made


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise CorruptError(f"the number {text[:40]} is out of range")
    return value


def _constant(text: str) -> Tree:
    raise CorruptError(f"{text} is not JSON")


def _check_strings(value: Tree, longest: int | None) -> None:
    """Refuse lone surrogates, and strings of more than ``longest`` bytes."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if not item.isascii() and _SURROGATE.search(item):
                raise CorruptError(f"{printable(item)!r} contains a lone surrogate")
            if longest is not None and len(item.encode()) > longest:
                raise LimitError(f"text of {len(item.encode())} bytes, more than the limit of {longest}")
        elif isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
