"""Literals: the opcodes of a pickle that push a value which is written in it, and those that only frame others."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import CorruptError, LimitError, TruncatedError, UnsupportedError

NEWEST_PROTOCOL = 5
LONGEST_LINE = 1 << 16
LONGEST_INT = 1024

U32, I32, U64 = (struct.Struct(code).unpack_from for code in ("<I", "<i", "<Q"))
_F64 = struct.Struct(">d").unpack_from


class Literals:
    """Takes values out of the bytes. Lengths are checked against the bytes that are there before any are copied."""

    def __init__(self, data: bytes, text_bytes: int) -> None:
        self._data = data
        self._text_bytes = text_bytes
        self._protocol = 0

    def _text(self, start: int, end: int) -> str:
        try:
            return self._bytes(start, end, self._text_bytes).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise CorruptError(f"text is not UTF-8: {error.reason}", offset=start + error.start) from None

    def _bytes(self, start: int, end: int, most: int | None = None) -> bytes:
        if end > len(self._data):
            raise TruncatedError(f"{end - start} bytes announced, {len(self._data) - start} left in the pickle")
        if most is not None and end - start > most:
            raise LimitError(f"a text of {end - start} bytes, more than the limit of {most}")
        return self._data[start:end]

    def _line(self, position: int) -> tuple[bytes, int]:
        end = self._data.find(b"\n", position, position + LONGEST_LINE)
        if end < 0:
            if len(self._data) - position < LONGEST_LINE:
                raise TruncatedError("the pickle ends inside a line")
            raise LimitError(f"a line of more than {LONGEST_LINE} bytes")
        return self._data[position:end], end + 1

    def _number(self, position: int) -> tuple[int, int]:
        line, after = self._line(position)
        return _int_of(line, 10), after

    def _binunicode(self, stack: list[Any], position: int, start: int, length: int) -> int:
        stack.append(self._text(start, start + length))
        return start + length

    def _binbytes(self, stack: list[Any], start: int, length: int) -> int:
        stack.append(self._bytes(start, start + length))
        return start + length

    def _binstring(self, stack: list[Any], start: int, length: int) -> int:
        raw = self._bytes(start, start + length, self._text_bytes)
        stack.append(_python_2_text(raw))
        return start + length

    def _string(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        line = line.strip()
        if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
            raise CorruptError("a text without its quotes")
        try:
            raw = codecs.escape_decode(line[1:-1])[0]
        except ValueError as error:
            raise CorruptError(f"a text with a wrong escape: {error}") from None
        stack.append(_python_2_text(bytes(raw)))
        return after

    def _unicode(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        try:
            stack.append(codecs.raw_unicode_escape_decode(line)[0])
        except UnicodeDecodeError as error:
            raise CorruptError(f"text with a wrong escape: {error.reason}") from None
        return after

    def _int(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        stack.append({b"00": False, b"01": True}[line] if line in (b"00", b"01") else _int_of(line, 0))
        return after

    def _long(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        stack.append(_int_of(line[:-1] if line.endswith(b"L") else line, 0))
        return after

    def _binlong(self, stack: list[Any], start: int, length: int) -> int:
        if length < 0:
            raise CorruptError("an integer of a negative number of bytes")
        if length > LONGEST_INT:
            raise LimitError(f"an integer of {length} bytes, more than the limit of {LONGEST_INT}")
        stack.append(int.from_bytes(self._bytes(start, start + length), "little", signed=True))
        return start + length

    def _float(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        try:
            stack.append(float(line))
        except ValueError:
            raise CorruptError("a number that is none") from None
        return after

    def _push(self, stack: list[Any], value: Any, position: int) -> int:
        stack.append(value)
        return position

    def _proto(self, stack: list[Any], position: int) -> int:
        self._protocol = self._data[position]
        if self._protocol > NEWEST_PROTOCOL:
            raise UnsupportedError(f"pickle protocol {self._protocol}; the newest known is {NEWEST_PROTOCOL}")
        return position + 1

    def _frame(self, stack: list[Any], position: int) -> int:
        (length,) = U64(self._data, position)
        if length > len(self._data) - position - 8:
            raise TruncatedError(f"a frame of {length} bytes, {len(self._data) - position - 8} are left")
        return position + 8

    def _bytearray(self, stack: list[Any], position: int) -> int:
        return self._binbytes(stack, position + 8, U64(self._data, position)[0])

    LITERALS: Mapping[int, Callable[[Any, list[Any], int], int]] = {
        0x4E: lambda m, s, p: m._push(s, None, p),  # NONE
        0x88: lambda m, s, p: m._push(s, True, p),  # NEWTRUE
        0x47: lambda m, s, p: m._push(s, _F64(m._data, p)[0], p + 8),  # BINFLOAT
        0x46: _float,
        0x49: _int,
        0x4C: _long,
        0x8A: lambda m, s, p: m._binlong(s, p + 1, m._data[p]),  # LONG1
        0x8B: lambda m, s, p: m._binlong(s, p + 4, I32(m._data, p)[0]),  # LONG4
        0x56: _unicode,
        0x53: _string,
        0x8C: lambda m, s, p: m._binunicode(s, p, p + 1, m._data[p]),  # SHORT_BINUNICODE
        0x8D: lambda m, s, p: m._binunicode(s, p, p + 8, U64(m._data, p)[0]),  # BINUNICODE8
        0x55: lambda m, s, p: m._binstring(s, p + 1, m._data[p]),  # SHORT_BINSTRING
        0x54: lambda m, s, p: m._binstring(s, p + 4, U32(m._data, p)[0]),  # BINSTRING
        0x43: lambda m, s, p: m._binbytes(s, p + 1, m._data[p]),  # SHORT_BINBYTES
        0x42: lambda m, s, p: m._binbytes(s, p + 4, U32(m._data, p)[0]),  # BINBYTES
        0x8E: lambda m, s, p: m._binbytes(s, p + 8, U64(m._data, p)[0]),  # BINBYTES8
        0x96: _bytearray,
        0x80: _proto,
        0x95: _frame,
    }


def _python_2_text(raw: bytes) -> str:
    """A str of Python 2, which may be text or bytes; as Latin-1 the bytes can still be had."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _int_of(line: bytes, base: int) -> int:
    if len(line) > 2 * LONGEST_INT:
        raise LimitError(f"an integer of {len(line)} digits")
    try:
        return int(line, base)
    except ValueError:
        raise CorruptError("an integer that is none") from None
