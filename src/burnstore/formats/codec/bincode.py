"""Bincode 2 (``standard()``) as Burn's recorders use it: a strict reader and the pieces of a writer.

The bytes say nothing about themselves: no names, no types, no ends. Whoever reads must know what comes next, so this is
a pull reader: it is asked for one thing after the other, and says where what it finds cannot be that. Integers are
little-endian and of variable length: 0 to 250 as one byte, then FB, FC, FD with two, four or eight bytes after it. A
longer form than needed is refused, as bincode itself never writes one.
"""

from __future__ import annotations

import struct

import numpy as np

from ...errors import CorruptError, LimitError, TruncatedError
from .numbers import Collector, NumberForm, Numbers
from .window import Extent, Sink, Window

_WIDTHS = {0xFB: 2, 0xFC: 4, 0xFD: 8}
_LEAST_OF_WIDTH = {2: 251, 4: 1 << 16, 8: 1 << 32}
_LONGEST_RUN = 1 << 17
_SHORT_RUN = 8
_FEW = 512


class BincodeReader(Window):
    """Takes one expected thing after the other from a source; anything else raises with its offset."""

    __slots__ = ()

    def uint(self) -> int:
        """An unsigned integer of at most 64 bits."""
        self.need(1)
        first = self.buffer[self.at]
        if first < 251:
            self.at += 1
            return first
        start = self.position
        width = _WIDTHS.get(first)
        if width is None:
            raise CorruptError(f"an integer expected, the byte {first:02X} found", offset=start)
        self.at += 1
        value = int.from_bytes(self.take(width), "little")
        if value < _LEAST_OF_WIDTH[width]:
            raise CorruptError(f"{value} spelled in {width + 1} bytes, which bincode never does", offset=start)
        return value

    def integer(self) -> int:
        """A signed integer."""
        value = self.uint()
        return value >> 1 if value & 1 == 0 else -(value >> 1) - 1

    def float(self) -> float:
        """A float of 64 bits."""
        (value,) = struct.unpack("<d", self.take(8))
        return float(value)

    def text(self, longest: int) -> str:
        """A text of at most ``longest`` bytes."""
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
        """The place of a byte string, passed over."""
        length = self.uint()
        place = Extent(self.position, length)
        self.skip(length)
        return place

    def count(self) -> int:
        """How many items follow; each has at least one byte."""
        start = self.position
        count = self.uint()
        if count > self.left:
            raise TruncatedError(f"{count} items announced in {self.left} bytes", offset=start)
        return count

    def raw(self, count: int, size: int) -> Extent:
        """The place of ``count`` items of ``size`` bytes each, passed over."""
        place = Extent(self.position, count * size)
        self.skip(count * size)
        return place

    def integers(self, count: int, form: NumberForm, sink: Sink, *, signed: bool) -> Numbers:
        """Integers, decoded by runs of equal width into the sink, or one by one where such runs are short."""
        start = self.position
        found = Collector(form, sink, start)
        guess = 16
        while count:
            self.need(1)
            first = self.buffer[self.at]
            width = _WIDTHS.get(first, 0) if first >= 251 else 0
            if first >= 251 and not width:
                raise CorruptError(f"an integer expected, the byte {first:02X} found", offset=self.position)
            self.need(width + 1)
            tried = min(count, guess, (len(self.buffer) - self.at) // (width + 1))
            cells = np.frombuffer(self.buffer, np.uint8, tried * (width + 1), self.at).reshape(tried, width + 1)
            alike = cells[:, 0] == first if width else cells[:, 0] < 251
            run = tried if alike.all() else int(alike.argmin())
            if width:
                values = np.ascontiguousarray(cells[:run, 1:]).reshape(-1).view(f"<u{width}")
                if int(values.min()) < _LEAST_OF_WIDTH[width]:
                    raise CorruptError("an integer in a longer form than bincode ever writes", offset=self.position)
            else:
                values = cells[:run, 0]
            wide = values.astype(np.uint64)
            if signed:
                decoded = (wide >> np.uint64(1)).astype(np.int64) ^ -(wide & np.uint64(1)).astype(np.int64)
            elif int(wide.max()) >= 1 << 63:
                raise CorruptError(f"{int(wide.max())} is too large", offset=self.position)
            else:
                decoded = wide.astype(np.int64)
            found.add("int", decoded)
            self.at += run * (width + 1)
            count -= run
            guess = min(guess * 4, _LONGEST_RUN) if run == tried else 16
            if run < _SHORT_RUN and count:
                few = [self.integer() if signed else self.uint() for _ in range(min(count, _FEW))]
                if max(few) >= 1 << 63:
                    raise CorruptError(f"{max(few)} is too large", offset=start)
                found.add("int", np.array(few, np.int64))
                count -= len(few)
        return found.numbers()


def encode_uint(value: int) -> bytes:
    """The shortest form of an unsigned integer."""
    if value < 251:
        return bytes((value,))
    for code, width in _WIDTHS.items():
        if value < 1 << 8 * width:
            return bytes((code,)) + value.to_bytes(width, "little")
    raise OverflowError(f"{value} has more than 64 bits")


def encode_integer(value: int) -> bytes:
    """A signed integer."""
    return encode_uint(value * 2 if value >= 0 else -value * 2 - 1)


def encode_text(text: str) -> bytes:
    """A text."""
    raw = text.encode("utf-8")
    return encode_uint(len(raw)) + raw


def encode_float(value: float) -> bytes:
    """A float of 64 bits."""
    return struct.pack("<d", value)
