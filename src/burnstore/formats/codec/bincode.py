"""Bincode 2 (``standard()``) as Burn's recorders use it: a strict reader and the pieces of a writer.

The bytes do not describe themselves: no names, no types, no ends. So this is a pull reader: the caller asks for one
expected thing after the other. Integers are little-endian and of variable length: 0 to 250 as one byte, then FB, FC, FD
with two, four or eight bytes after it. A longer form than needed is refused, as bincode itself never writes one.
"""

from __future__ import annotations

import struct

import numpy as np

from ...errors import CorruptError, LimitError, TruncatedError
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

_WIDTHS = {0xFB: 2, 0xFC: 4, 0xFD: 8}
_LEAST_OF_WIDTH = {2: 251, 4: 1 << 16, 8: 1 << 32}


class BincodeReader(Window):
    """Take one expected thing after the other from a source; raise for anything else, with its offset."""

    __slots__ = ()

    def uint(self) -> int:
        """Take an unsigned integer of at most 64 bits."""
        self.need(1)
        first = self.buffer[self.at]
        if first < 251:
            self.at += 1
            return first
        start, width = self.position, self._width(first)
        self.at += 1
        value = int.from_bytes(self.take(width), "little")
        if value < _LEAST_OF_WIDTH[width]:
            raise CorruptError(f"{value} spelled in {width + 1} bytes, which bincode never does", offset=start)
        return value

    def integer(self) -> int:
        """Take a signed integer."""
        value = self.uint()
        return value >> 1 if value & 1 == 0 else -(value >> 1) - 1

    def float(self) -> float:
        """Take a float of 64 bits."""
        (value,) = struct.unpack("<d", self.take(8))
        return float(value)

    def text(self, longest: int) -> str:
        """Take text of at most ``longest`` bytes."""
        start = self.position
        length = self.uint()
        if length > longest:
            raise LimitError(f"text of {length} bytes where at most {longest} are allowed", offset=start)
        raw = self.take(length)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptError(f"text is not UTF-8: {error.reason}", offset=start) from None

    def bytes(self) -> Extent:
        """Skip a byte string; return its place."""
        length = self.uint()
        place = Extent(self.position, length)
        self.skip(length)
        return place

    def count(self) -> int:
        """Take the number of items that follow; each has at least one byte."""
        start = self.position
        count = self.uint()
        if count > self.left:
            raise TruncatedError(f"{count} items announced in {self.left} bytes", offset=start)
        return count

    def raw(self, count: int, size: int) -> Extent:
        """Skip ``count`` items of ``size`` bytes each; return their place."""
        place = Extent(self.position, count * size)
        self.skip(count * size)
        return place

    def integers(self, count: int, form: NumberForm, sink: Spool, *, signed: bool) -> Numbers:
        """Decode integers into the sink."""
        start = self.position

        def run_at(first: int) -> Run:
            if first < 251:
                return Run(1, lambda heads: heads < 251, lambda cells: decode(cells[:, 0]))
            width = self._width(first)
            return Run(width + 1, lambda heads: heads == first, lambda cells: decode(wide(cells, width)))

        def wide(cells: NumberArray, width: int) -> NumberArray:
            values: NumberArray = np.ascontiguousarray(cells[:, 1:]).reshape(-1).view(f"<u{width}")
            if int(values.min()) < _LEAST_OF_WIDTH[width]:
                raise CorruptError("an integer in a longer form than bincode ever writes", offset=self.position)
            return values

        def decode(values: NumberArray) -> tuple[NumberKind, NumberArray]:
            if not signed:
                return "int", checked_int64(values, self.position)
            unsigned = values.astype(np.uint64)
            return "int", (unsigned >> np.uint64(1)).astype(np.int64) ^ -(unsigned & np.uint64(1)).astype(np.int64)

        def few(most: int) -> list[int]:
            values = [self.integer() if signed else self.uint() for _ in range(most)]
            if max(values) >= 1 << 63:
                raise CorruptError(f"{max(values)} is too large for a 64-bit signed integer", offset=start)
            return values

        return read_runs(self, count, Collector(form, sink, start), run_at, few)

    def _width(self, first: int) -> int:
        width = _WIDTHS.get(first)
        if width is None:
            raise CorruptError(f"expected an integer, found the byte {first:02X}", offset=self.position)
        return width


def encode_uint(value: int) -> bytes:
    """Encode an unsigned integer in its shortest form."""
    if value < 251:
        return bytes((value,))
    for code, width in _WIDTHS.items():
        if value < 1 << 8 * width:
            return bytes((code,)) + value.to_bytes(width, "little")
    raise OverflowError(f"{value} has more than 64 bits")


def encode_integer(value: int) -> bytes:
    """Encode a signed integer."""
    return encode_uint(value * 2 if value >= 0 else -value * 2 - 1)


def encode_text(text: str) -> bytes:
    """Encode text."""
    raw = text.encode("utf-8")
    return encode_uint(len(raw)) + raw


def encode_float(value: float) -> bytes:
    """Encode a float of 64 bits."""
    return struct.pack("<d", value)
