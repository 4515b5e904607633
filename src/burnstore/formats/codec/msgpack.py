"""MessagePack as Burn's recorders use it: a strict reader of trees that leaves byte strings unread; a writer.

Own code, for two reasons. Laziness: a general decoder copies every byte string, which here is nearly the whole file;
this one returns the place of each and skips it. Safety: everything is bounded before it is built. The rules:

* maps have text keys, no key twice; text is UTF-8;
* no extension types, no reserved codes;
* counts and lengths are checked against the bytes that are left before anything is allocated, and all containers
  together against the number of nodes allowed;
* nesting is bounded, and kept on a list: the depth of a document never becomes depth of calls.

The encoder writes what rmp-serde writes: the shortest form of every integer and length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Union

import numpy as np

from ...errors import CorruptError, LimitError, TruncatedError, printable
from ...io.source import Source
from ...io.spool import Spool
from .window import (
    Collector,
    Extent,
    NumberArray,
    NumberForm,
    NumberKind,
    Numbers,
    Run,
    Window,
    checked_int64,
    read_runs,
)


class Found:
    """A value that a subclass of the reader recognised, in its own form."""

    __slots__ = ()


Tree = Union[  # noqa: UP007  # a recursive alias must be quoted inside
    None, bool, int, float, str, Extent, Numbers, Found, list["Tree"], dict[str, "Tree"]
]
"""A document as plain Python; a byte string as its place."""

_MAP_OF_TWO = 0x82
_NIL, _NEVER_USED, _FALSE, _TRUE = 0xC0, 0xC1, 0xC2, 0xC3
_BIN8, _EXT8, _EXT32, _F32, _F64 = 0xC4, 0xC7, 0xC9, 0xCA, 0xCB
_UINT8, _INT8, _FIXEXT1, _FIXEXT16, _STR8, _ARRAY16, _MAP16 = 0xCC, 0xD0, 0xD4, 0xD8, 0xD9, 0xDC, 0xDE
_NEGATIVE_FIXINT = 0xE0

_SCALAR_CODES: dict[int, tuple[struct.Struct, str]] = {
    _F32: (struct.Struct(">f"), ">f4"),
    _F64: (struct.Struct(">d"), ">f8"),
    _UINT8: (struct.Struct(">B"), ">u1"),
    0xCD: (struct.Struct(">H"), ">u2"),
    0xCE: (struct.Struct(">I"), ">u4"),
    0xCF: (struct.Struct(">Q"), ">u8"),
    _INT8: (struct.Struct(">b"), ">i1"),
    0xD1: (struct.Struct(">h"), ">i2"),
    0xD2: (struct.Struct(">i"), ">i4"),
    0xD3: (struct.Struct(">q"), ">i8"),
}
_INTEGER_CODERS = {code: coder for code, (coder, _) in _SCALAR_CODES.items() if code not in (_F32, _F64)}
_WIDEST = 9
_MOST_WORDS = 1000


class MsgpackReader(Window):
    """Take values from a source; numbers that stand for the bytes of a tensor go to ``sink``."""

    __slots__ = ("_nodes", "_sink")

    def __init__(self, source: Source, sink: Spool, *, nodes: int) -> None:
        super().__init__(source)
        self._sink = sink
        self._nodes = nodes

    def entries(self, longest_text: int) -> Iterator[str]:
        """Yield the keys of the next map; the caller takes the value of each before asking for another key."""
        self.need(1)
        code = self.buffer[self.at]
        if not (0x80 <= code <= 0x8F or code in (_MAP16, _MAP16 + 1)):
            raise self._unexpected("a map")
        for _ in range(self._container(code, least_bytes_each=2)):
            yield self.text(longest_text)

    def at_end(self) -> bool:
        """Return whether every byte was taken."""
        return self.left == 0

    def text(self, longest: int) -> str:
        """Take text of at most ``longest`` bytes."""
        self.need(1)
        code = self.buffer[self.at]
        start = self.position
        if 0xA0 <= code <= 0xBF:
            self.at += 1
            length = code & 31
        elif _STR8 <= code <= _STR8 + 2:
            length = self._length(code - _STR8)
        else:
            raise self._unexpected("text")
        if length > longest:
            raise LimitError(f"text of {length} bytes where at most {longest} are allowed", offset=start)
        raw = self.take(length)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptError(f"text is not UTF-8: {error.reason}", offset=start) from None

    def tree(self, *, depth: int, longest_text: int, forms: Mapping[str, NumberForm] | None = None) -> Tree:  # noqa: C901
        """Take a value of any kind; decode an array of numbers under a key of ``forms`` into the sink."""
        # One branch per type byte.
        known = forms or {}
        words: dict[bytes, str] = {}  # texts read before: documents have many keys and few different ones
        root: list[Tree] = []
        open_containers: list[tuple[list[Tree] | dict[str, Tree], int]] = []
        container: list[Tree] | dict[str, Tree] = root
        left = 1
        while True:
            if left == 0:
                if not open_containers:
                    return root[0]
                container, left = open_containers.pop()
                continue
            left -= 1
            key = None
            if isinstance(container, dict):
                key = self._word(words, longest_text)
                if key in container:
                    raise CorruptError(f"key {printable(key)!r} twice in one map", offset=self.position)
            if self.at >= len(self.buffer):
                self.need(1)
            code = self.buffer[self.at]
            value: Tree
            count = 0
            if code <= 0x7F:
                self.at += 1
                value = code
            elif code == _MAP_OF_TWO and (recognised := self._recognised()) is not None:
                value = recognised
            elif code <= 0x8F or code in (_MAP16, _MAP16 + 1):
                count = self._container(code, least_bytes_each=2)
                value = {}
            elif code <= 0x9F or code in (_ARRAY16, _ARRAY16 + 1):
                start = self.position
                form = known.get(key) if key is not None else None
                if form is None:
                    count = self._container(code, least_bytes_each=1)
                    value = []
                else:
                    total = self._counted(code, 1)
                    if total and self._is_number():
                        value = self._numbers(total, form, start)
                    else:
                        count = self._bounded(total, start)
                        value = []
            elif code <= 0xBF:
                value = self._word(words, longest_text)
            else:
                value = self._leaf(code, longest_text)
            if key is None:
                container.append(value)  # type: ignore[union-attr]  # without a key it is a list
            else:
                container[key] = value  # type: ignore[call-overload]
            if count:
                if len(open_containers) >= depth:
                    raise LimitError(f"nested deeper than {depth} levels", offset=self.position)
                open_containers.append((container, left))
                container, left = value, count  # type: ignore[assignment]  # only containers have a count

    def _recognised(self) -> Tree:
        """Take a map of two in one step, if it has a known form; return None to have it read like any other."""
        return None

    def _word(self, words: dict[bytes, str], longest_text: int) -> str:
        """Take text, in few steps where it is short and already in the buffer."""
        at = self.at
        if at < len(self.buffer):
            length = self.buffer[at] - 0xA0
            end = at + 1 + length
            if 0 <= length <= min(31, longest_text) and end <= len(self.buffer):
                raw = self.buffer[at + 1 : end]
                word = words.get(raw)
                if word is None:
                    word = self.text(longest_text)
                    if len(words) < _MOST_WORDS:
                        words[raw] = word
                self.at = end
                return word
        return self.text(longest_text)

    def _leaf(self, code: int, longest_text: int) -> Tree:
        if _STR8 <= code <= _STR8 + 2:
            return self.text(longest_text)
        if code >= _NEGATIVE_FIXINT:
            self.at += 1
            return code - 256
        if code in _SCALAR_CODES:
            self.at += 1
            coder = _SCALAR_CODES[code][0]
            (value,) = coder.unpack(self.take(coder.size))
            return value  # type: ignore[no-any-return]
        if _BIN8 <= code <= _BIN8 + 2:
            length = self._length(code - _BIN8)
            place = Extent(self.position, length)
            self.skip(length)
            return place
        if code in (_NIL, _FALSE, _TRUE):
            self.at += 1
            return None if code == _NIL else code == _TRUE
        raise self._unexpected("a value")

    def _length(self, width_code: int) -> int:
        """Take the length after a head, of 1, 2 or 4 bytes."""
        self.at += 1
        return int.from_bytes(self.take(1 << width_code), "big")

    def _container(self, code: int, *, least_bytes_each: int) -> int:
        start = self.position
        return self._bounded(self._counted(code, least_bytes_each), start)

    def _counted(self, code: int, least_bytes_each: int) -> int:
        """Take the count in the head of a container; the rest of the file must be long enough for it."""
        if code < 0xA0:
            self.at += 1
            count = code & 15
        else:
            count = self._length(1 + (code & 1))
        if count * least_bytes_each > self.left:
            raise TruncatedError(f"{count} items announced in {self.left} bytes", offset=self.position)
        return count

    def _bounded(self, count: int, start: int) -> int:
        self._nodes -= count
        if self._nodes < 0:
            raise LimitError("more values than the limit on tensors allows for", offset=start)
        return count

    def _is_number(self) -> bool:
        self.need(1)
        code = self.buffer[self.at]
        return code <= 0x7F or code >= _NEGATIVE_FIXINT or code in _SCALAR_CODES or code in (_FALSE, _TRUE)

    def _numbers(self, count: int, form: NumberForm, start: int) -> Numbers:
        """Decode an array of numbers into the sink."""

        def run_at(code: int) -> Run:
            if code in (_FALSE, _TRUE):
                return Run(1, lambda heads: (heads == _FALSE) | (heads == _TRUE), bools)
            if code <= 0x7F or code >= _NEGATIVE_FIXINT:
                return Run(1, lambda heads: (heads <= 0x7F) | (heads >= _NEGATIVE_FIXINT), small)
            if code not in _SCALAR_CODES:
                raise self._unexpected("a number")
            return Run(1 + _SCALAR_CODES[code][0].size, lambda heads: heads == code, lambda cells: wide(cells, code))

        def bools(cells: NumberArray) -> tuple[NumberKind, NumberArray]:
            return "bool", cells[:, 0] == _TRUE

        def small(cells: NumberArray) -> tuple[NumberKind, NumberArray]:
            return "int", np.ascontiguousarray(cells[:, 0]).view(np.int8).astype(np.int64)

        def wide(cells: NumberArray, code: int) -> tuple[NumberKind, NumberArray]:
            values: NumberArray = np.ascontiguousarray(cells[:, 1:]).reshape(-1).view(_SCALAR_CODES[code][1])
            if code not in (_F32, _F64):
                return "int", checked_int64(values, start)
            if form.floats is not None and form.floats.itemsize != values.itemsize:
                raise CorruptError(
                    f"expected floats of {form.floats.itemsize} bytes, got {values.itemsize}", offset=start
                )
            return "float", values

        return read_runs(self, count, Collector(form, self._sink, start), run_at, self._integers_one_by_one)

    def _integers_one_by_one(self, most: int) -> list[int]:
        """Take up to so many integers that fit 63 bits, as far as they follow one another."""
        self.need(min(most * _WIDEST, self.left))
        few: list[int] = []
        buffer, at = self.buffer, self.at
        while len(few) < most and at < len(buffer):
            code = buffer[at]
            if code <= 0x7F or code >= _NEGATIVE_FIXINT:
                few.append(code if code <= 0x7F else code - 256)
                at += 1
                continue
            coder = _INTEGER_CODERS.get(code)
            if coder is None or at + 1 + coder.size > len(buffer):
                break
            (value,) = coder.unpack_from(buffer, at + 1)
            if value >= 1 << 63:  # refused where runs are
                break
            few.append(value)
            at += 1 + coder.size
        self.at = at
        return few

    def _unexpected(self, wanted: str) -> CorruptError:
        code = self.buffer[self.at]
        return CorruptError(f"expected {wanted}, found {_name(code)}", offset=self.position)


def _name(code: int) -> str:
    if code <= 0x7F or code >= _NEGATIVE_FIXINT or _UINT8 <= code <= _INT8 + 3:
        return "an integer"
    if code <= 0x8F or code >= _MAP16:
        return "a map"
    if code <= 0x9F or code >= _ARRAY16:
        return "an array"
    if code <= 0xBF or code >= _STR8:
        return "text"
    if _EXT8 <= code <= _EXT32 or _FIXEXT1 <= code <= _FIXEXT16:
        return "an extension type"
    simple = {_NIL: "nil", _NEVER_USED: "the reserved code C1", _FALSE: "a bool", _TRUE: "a bool"}
    return simple.get(code, "a float" if code in (_F32, _F64) else "bytes")


def encode_int(value: int) -> bytes:
    """Encode an integer in its shortest form."""
    if -32 <= value <= 127:
        return struct.pack("b", value)
    if value >= 0:
        for code, most in ((_UINT8, 8), (0xCD, 16), (0xCE, 32), (0xCF, 64)):
            if value < 1 << most:
                return bytes((code,)) + value.to_bytes(most // 8, "big")
    for code, most in ((_INT8, 8), (0xD1, 16), (0xD2, 32), (0xD3, 64)):
        if value >= -(1 << most - 1):
            return bytes((code,)) + value.to_bytes(most // 8, "big", signed=True)
    raise OverflowError(f"{value} has more than 64 bits")


def encode_text(text: str) -> bytes:
    """Encode text."""
    raw = text.encode("utf-8")
    if len(raw) < 32:
        return bytes((0xA0 | len(raw),)) + raw
    return _head(_STR8, len(raw), least=0) + raw


def encode_array_head(count: int) -> bytes:
    """Encode the head of an array of ``count`` items."""
    return bytes((0x90 | count,)) if count < 16 else _head(_ARRAY16, count, least=1)


def encode_map_head(count: int) -> bytes:
    """Encode the head of a map of ``count`` pairs."""
    return bytes((0x80 | count,)) if count < 16 else _head(_MAP16, count, least=1)


def encode_bytes_head(length: int) -> bytes:
    """Encode the head of a byte string of ``length`` bytes."""
    return _head(_BIN8, length, least=0)


def encode_scalar(value: bool | int | float | str | None) -> bytes:
    """Encode a value that is not a container."""
    if value is None:
        return bytes((_NIL,))
    if isinstance(value, bool):
        return bytes((_TRUE if value else _FALSE,))
    if isinstance(value, int):
        return encode_int(value)
    return struct.pack(">Bd", _F64, value) if isinstance(value, float) else encode_text(value)


def _head(code: int, length: int, *, least: int) -> bytes:
    for width in range(least, 3):
        if length < 1 << (8 << width):
            return bytes((code + width - least,)) + length.to_bytes(1 << width, "big")
    raise OverflowError(f"MessagePack has no length of {length}")
