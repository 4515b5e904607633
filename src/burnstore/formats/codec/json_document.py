"""JSON as Burn's recorders use it: a strict streaming reader of trees and numbers, and the pieces of a writer.

A tensor is an array of its bytes, each a number, so nearly all of such a file is digits. They are decoded by the piece
and never become Python objects; the rest is read token by token. The rules, beyond those of the JSON grammar:

* UTF-8 without a byte order mark, no lone surrogates, no key twice in an object;
* integers of at most 64 bits, floats that are finite;
* nesting and the number of values are bounded, and nesting is held on a list.

The writer's pieces spell what serde_json spells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from ...errors import CorruptError, LimitError, TruncatedError, printable
from .msgpack import Tree
from .numbers import Collector, NumberForm, Numbers
from .window import Readable, Sink, Window

_SPACES = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NOT_IN_NUMBERS = bytes(set(range(256)) - set(b"0123456789+-.eE, \t\n\r"))
# What Python's float takes and JSON does not: a plus sign in front, a bare dot, leading zeros.
_NOT_JSON = re.compile(rb"(?<![eE])\+|(?<![0-9])\.|\.(?![0-9])|(?<![0-9.eE+\-])-?0[0-9]")
_WHOLE_NUMBER = re.compile(rb"(?:^|,)\s*-?[0-9]+\s*(?:,|$)")
_LITERALS = {ord("t"): (b"true", True), ord("f"): (b"false", False), ord("n"): (b"null", None)}
_LONGEST_NUMBER = 400
_LONGEST_GAP = 1 << 16  # between two numbers: a line's indentation
_LONGEST_INTEGER = 18
_LONGEST_ESCAPE = 6
_COMMA, _MINUS, _QUOTE = ord(","), ord("-"), ord('"')


class JsonReader(Window):
    """Takes values from a source; numbers that stand for the bytes of a tensor go to ``sink``."""

    __slots__ = ("_nodes", "_sink")

    def __init__(self, source: Readable, sink: Sink, *, nodes: int) -> None:
        super().__init__(source)
        self._sink = sink
        self._nodes = nodes

    def entries(self, longest_text: int) -> Iterator[str]:
        """The keys of the object that is next, one by one; whoever asks takes the value before asking for another."""
        if self._next() != ord("{"):
            raise self._unexpected("an object")
        self.at += 1
        if self._next() == ord("}"):
            self.at += 1
            return
        while True:
            yield self._key(longest_text)
            separator = self._next()
            if separator not in b",}":
                raise self._unexpected("a comma or the end of the object")
            self.at += 1
            if separator == ord("}"):
                return

    def at_end(self) -> bool:
        """Whether nothing but white space is left."""
        while True:
            found = _SPACES.match(self.buffer, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.buffer):
                return False
            if not self.more():
                return True

    def tree(self, *, depth: int, longest_text: int, forms: Mapping[str, NumberForm] | None = None) -> Tree:
        """A value of any kind. An array of numbers under a key of ``forms`` is decoded into the sink."""
        known = forms or {}
        root: list[Tree] = []
        parents: list[list[Tree] | dict[str, Tree]] = []
        container: list[Tree] | dict[str, Tree] = root
        key: str | None = None
        while True:
            byte = self._next()
            value: Tree
            opened = False
            if byte == ord("{"):
                self.at += 1
                value = {}
                opened = not self._closes("}")
            elif byte == ord("["):
                start = self.position
                self.at += 1
                value = []
                if not self._closes("]"):
                    form = known.get(key) if key is not None else None
                    if form is not None and self.buffer[self.at] in b"-0123456789tf":
                        value = self._numbers(form, start)
                    else:
                        opened = True
            else:
                value = self._leaf(byte, longest_text)
            self._nodes -= 1
            if self._nodes < 0:
                raise LimitError("more values than the limit on tensors allows for", offset=self.position)
            if isinstance(container, dict):
                assert key is not None
                container[key] = value
            else:
                container.append(value)
            if opened:
                if len(parents) >= depth:
                    raise LimitError(f"nested deeper than {depth} levels", offset=self.position)
                parents.append(container)
                container = value  # type: ignore[assignment]  # only containers are opened
                key = self._fresh_key(container, longest_text)
                continue
            while True:
                if container is root:
                    return root[0]
                byte = self._next()
                if byte == _COMMA:
                    self.at += 1
                    key = self._fresh_key(container, longest_text)
                    break
                if byte != (ord("}") if isinstance(container, dict) else ord("]")):
                    raise self._unexpected("a comma or the end")
                self.at += 1
                container = parents.pop()

    def _next(self) -> int:
        """The next byte that is not white space."""
        while True:
            found = _SPACES.match(self.buffer, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self.more():
                raise TruncatedError("the document ends inside a value", offset=self.position)

    def _closes(self, bracket: str) -> bool:
        if self._next() != ord(bracket):
            return False
        self.at += 1
        return True

    def _fresh_key(self, container: list[Tree] | dict[str, Tree], longest_text: int) -> str | None:
        if not isinstance(container, dict):
            return None
        self._next()
        start = self.position
        key = self._key(longest_text)
        if key in container:
            raise CorruptError(f"key {printable(key)!r} twice in one object", offset=start)
        return key

    def _key(self, longest_text: int) -> str:
        if self._next() != _QUOTE:
            raise self._unexpected("a key")
        key = self._string(longest_text)
        if self._next() != ord(":"):
            raise self._unexpected("a colon")
        self.at += 1
        return key

    def _leaf(self, byte: int, longest_text: int) -> Tree:
        if byte == _QUOTE:
            return self._string(longest_text)
        if byte in _LITERALS:
            spelled, value = _LITERALS[byte]
            if self.left < len(spelled) or self.buffer[self.at : self.at + len(spelled)] != spelled:
                self.need(min(len(spelled), self.left))
                if self.buffer[self.at : self.at + len(spelled)] != spelled:
                    raise self._unexpected("a value")
            self.at += len(spelled)
            return value
        return self._number()

    def _string(self, longest: int) -> str:
        start = self.position
        while True:
            found = _STRING.match(self.buffer, self.at)
            if found is not None:
                break
            if len(self.buffer) - self.at > longest * _LONGEST_ESCAPE + 2:
                raise LimitError(f"text of more than {longest} bytes", offset=start)
            if not self.more():
                raise CorruptError("text without an end, or with a control character in it", offset=start)
        raw = found.group()
        self.at = found.end()
        try:
            text = raw[1:-1].decode("utf-8") if b"\\" not in raw else _unescaped(raw)
            length = len(text.encode("utf-8"))
        except ValueError as error:  # of the decoder, of the escapes, or of a lone surrogate
            raise CorruptError(f"text is not UTF-8: {getattr(error, 'reason', error)}", offset=start) from None
        if length > longest:
            raise LimitError(f"text of {length} bytes where at most {longest} are allowed", offset=start)
        return text

    def _number(self) -> int | float:
        if len(self.buffer) - self.at <= _LONGEST_NUMBER:
            self.need(min(self.left, _LONGEST_NUMBER + 1))
        found = _NUMBER.match(self.buffer, self.at)
        if found is None:
            raise self._unexpected("a value")
        if found.end() - self.at > _LONGEST_NUMBER:
            raise CorruptError("a number of too many digits", offset=self.position)
        text = found.group()
        value: int | float
        if found[1] is None and found[2] is None:
            value = int(text)
            if not -(1 << 63) <= value < 1 << 64:
                raise CorruptError("an integer of more than 64 bits", offset=self.position)
        else:
            value = float(text)
            if value in (float("inf"), float("-inf")):
                raise CorruptError("a number that is too large for a float", offset=self.position)
        self.at = found.end()
        return value

    def _numbers(self, form: NumberForm, start: int) -> Numbers:
        found = Collector(form, self._sink, start)
        while True:
            stop = self.buffer.find(b"]", self.at)
            last = stop >= 0
            if not last:
                stop = self.buffer.rfind(b",", self.at)
                if stop < 0:
                    if len(self.buffer) - self.at > _LONGEST_GAP or not self.more():
                        raise TruncatedError("an array of numbers without an end", offset=start)
                    continue
            self._add(found, self.buffer[self.at : stop], form)
            self.at = stop + 1
            if last:
                return found.numbers()
            if not self.more():
                raise TruncatedError("an array of numbers without an end", offset=start)

    def _add(self, found: Collector, text: bytes, form: NumberForm) -> None:
        offset = self.position
        if b"n" in text:
            raise CorruptError(
                "null among numbers: so Burn 0.13 spells a NaN or an infinity, and which it was is lost",
                offset=offset + text.index(b"n"),
            )
        if b"t" in text or b"f" in text:
            words = [word.strip(b" \t\n\r") for word in text.split(b",")]
            if not set(words) <= {b"true", b"false"}:
                raise CorruptError("an array of bools with something else in it", offset=offset)
            found.add("bool", np.array([word == b"true" for word in words]))
        elif b"." in text or b"e" in text or b"E" in text:
            found.add("float", _floats(text, form, offset))
        else:
            found.add("int", _integers(text, offset))

    def _unexpected(self, wanted: str) -> CorruptError:
        there = self.buffer[self.at : self.at + 1]
        return CorruptError(f"{wanted} expected, {there!r} found", offset=self.position)


def _unescaped(raw: bytes) -> str:
    import json  # not at import: hardly a record has an escape in it

    text: str = json.loads(raw.decode("utf-8"))
    return text


def _floats(text: bytes, form: NumberForm, offset: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
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


def _integers(text: bytes, offset: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The numbers that are spelled here, all at once: where each begins, how long it is, and then digit by digit."""
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
        negative = np.searchsorted(starts, minuses + 1)
        values[negative] *= -1
    return values


_SPELLED = [str(value).encode() for value in range(256)]


def encode_text(text: str) -> bytes:
    """A string with its quotes."""
    import json

    return json.dumps(text, ensure_ascii=False).encode("utf-8")


def encode_scalar(value: bool | int | float | str | None) -> bytes:
    """A value that is not a container, spelled as serde_json does."""
    if isinstance(value, str):
        return encode_text(value)
    if isinstance(value, float):
        return _encode_float(value)
    return (
        {None: b"null", True: b"true", False: b"false"}[value]
        if value is None or isinstance(value, bool)
        else (str(value).encode())
    )


def encode_bytes(data: memoryview, separator: bytes) -> bytes:
    """Bytes as numbers."""
    return separator.join(map(_SPELLED.__getitem__, data))


def _encode_float(value: float) -> bytes:
    """The shortest digits that mean this float: plain between 1e-5 and 1e16, else with an exponent."""
    if value != value or value in (float("inf"), float("-inf")):
        return b"null"
    digits, _, exponent = f"{abs(value):.17g}".partition("e")
    sign = "-" if np.signbit(value) else ""
    shortest = repr(abs(value))
    mantissa, _, exponent = shortest.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction.rstrip("0")).lstrip("0") or "0"
    point = (
        len(whole) + int(exponent or 0)
        if whole != "0"
        else -(len(fraction) - len(fraction.lstrip("0"))) + int(exponent or 0)
    )
    digits = digits.rstrip("0") or "0"
    if digits == "0":
        return f"{sign}0.0".encode()
    if len(digits) <= point <= 16:
        return f"{sign}{digits.ljust(point, '0')}.0".encode()
    if 0 < point <= 16:
        return f"{sign}{digits[:point]}.{digits[point:]}".encode()
    if -5 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}".encode()
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1}".encode()
