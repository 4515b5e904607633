"""Window: the bytes of a source a block at a time, read once from front to back; long arrays of numbers in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ...errors import CorruptError, TruncatedError
from ...io.source import Source
from ...io.spool import Spool

_FIRST_BLOCK = 64 << 10
_BLOCK_AFTER_SKIP = 4 << 10
_MAX_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes: in the source, or with ``spelled_out`` in the sink that numbers were written to."""

    offset: int
    nbytes: int
    spelled_out: bool = False


class Window:
    """``buffer[at]`` is the next byte; `need` makes more of them available, `skip` passes over any number unread."""

    __slots__ = ("_base", "_block", "_source", "at", "buffer", "end")

    def __init__(self, source: Source, position: int = 0) -> None:
        self._source = source
        self._base = position
        self._block = _FIRST_BLOCK
        self.buffer = b""
        self.at = 0
        self.end = source.size

    @property
    def position(self) -> int:
        """The offset of the next byte in the source."""
        return self._base + self.at

    @property
    def left(self) -> int:
        """How many bytes are left in the source."""
        return self.end - self.position

    def need(self, length: int) -> None:
        """Have this many bytes in the buffer from ``at`` on; TruncatedError where the source ends before."""
        if len(self.buffer) - self.at >= length:
            return
        position = self.position
        if length > self.left:
            raise TruncatedError(f"{length} bytes needed, the file ends at {self.end}", offset=position)
        self.buffer = self._source.read_at(position, min(max(length, self._block), self.left))
        self._base, self.at = position, 0
        self._block = min(self._block * 2, _MAX_BLOCK)

    def more(self) -> bool:
        """Read a longer buffer from ``at`` on; return whether there was more."""
        held = len(self.buffer) - self.at
        if held >= self.left:
            return False
        self.need(min(held + max(held, self._block), self.left))
        return True

    def take(self, length: int) -> bytes:
        """Return this many bytes and pass over them."""
        self.need(length)
        self.at += length
        return self.buffer[self.at - length : self.at]

    def skip(self, length: int) -> None:
        """Pass over this many bytes without reading them."""
        if length > self.left:
            raise TruncatedError(f"{length} bytes announced, {self.left} left in the file", offset=self.position)
        self.at += length
        if self.at > len(self.buffer):
            self._base, self.at, self.buffer = self._base + self.at, 0, b""
            self._block = _BLOCK_AFTER_SKIP

    def move_to(self, position: int) -> None:
        """Continue at this offset of the source."""
        at = position - self._base
        if 0 <= at <= len(self.buffer):
            self.at = at
        else:
            self._base, self.at, self.buffer = position, 0, b""


NumberKind = Literal["float", "int", "bool"]
NumberArray = np.ndarray[Any, np.dtype[Any]]

_LONGEST_RUN = 1 << 17
_SHORT_RUN = 8
_FEW = 512


@dataclass(frozen=True, slots=True)
class NumberForm:
    """The numbers that an array may hold and how they are stored: integers of this dtype and range; floats; bools."""

    integers: np.dtype[Any]
    low: int
    high: int
    floats: np.dtype[Any] | None = None
    bools: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers of one kind, stored in a sink; for integers also the least and the greatest."""

    kind: NumberKind
    count: int
    extent: Extent
    low: int = 0
    high: int = 0


class Collector:
    """Gather the pieces of one array of numbers, check them against a form, and write them to the sink."""

    def __init__(self, form: NumberForm, sink: Spool, offset: int) -> None:
        self._form = form
        self._sink = sink
        self._offset = offset
        self._start = sink.size
        self._kind: NumberKind | None = None
        self._count = 0
        self._low = 0
        self._high = 0

    def add(self, kind: NumberKind, values: NumberArray) -> None:
        """Add the next piece; integers come as int64, floats of the form's own width."""
        if self._kind is None:
            self._kind = kind
        elif self._kind != kind:
            raise CorruptError(f"an array of {self._kind}s with a {kind} in it", offset=self._offset)
        form = self._form
        if kind == "float":
            if form.floats is None:
                raise CorruptError("expected an integer, found a float", offset=self._offset)
            with np.errstate(over="ignore"):
                kept = np.ascontiguousarray(values, form.floats)
            if kept.itemsize < values.itemsize and np.isinf(kept).any():
                raise CorruptError("a number that is too large for a float", offset=self._offset)
        elif kind == "bool":
            if not form.bools:
                raise CorruptError("expected a number, found a bool", offset=self._offset)
            kept = np.ascontiguousarray(values, np.uint8)
        else:
            low, high = int(values.min()), int(values.max())
            if low < form.low or high > form.high:
                wrong = low if low < form.low else high
                raise CorruptError(f"{wrong} is not in {form.low} .. {form.high}", offset=self._offset)
            self._low = low if self._count == 0 else min(self._low, low)
            self._high = high if self._count == 0 else max(self._high, high)
            kept = values.astype(form.integers)
        self._count += len(values)
        self._sink.write(memoryview(kept).cast("B"))

    def numbers(self) -> Numbers:
        """Return the whole array."""
        extent = Extent(self._start, self._sink.size - self._start, spelled_out=True)
        return Numbers(self._kind or "int", self._count, extent, self._low, self._high)


class Run(NamedTuple):
    """Numbers that are encoded alike: the width of each with its head, which heads belong, and how to decode them."""

    width: int
    belongs: Callable[[NumberArray], NumberArray]
    decode: Callable[[NumberArray], tuple[NumberKind, NumberArray]]


def read_runs(
    window: Window, count: int, found: Collector, run_at: Callable[[int], Run], few: Callable[[int], list[int]]
) -> Numbers:
    """Decode ``count`` numbers by runs of equal heads; Burn mostly writes a single run.

    ``run_at`` describes the run that a head begins. Integers of mixed widths come in runs too short for that to pay:
    ``few`` then takes up to so many one by one.
    """
    guess = 16
    while count:
        window.need(1)
        run = run_at(window.buffer[window.at])
        window.need(run.width)
        tried = min(count, guess, (len(window.buffer) - window.at) // run.width)
        cells = np.frombuffer(window.buffer, np.uint8, tried * run.width, window.at).reshape(tried, run.width)
        alike = run.belongs(cells[:, 0])
        length = tried if alike.all() else int(alike.argmin())
        found.add(*run.decode(cells[:length]))
        window.at += length * run.width
        count -= length
        guess = min(guess * 4, _LONGEST_RUN) if length == tried else 16
        if length < _SHORT_RUN and count:
            values = few(min(count, _FEW))
            if values:
                found.add("int", np.array(values, np.int64))
                count -= len(values)
    return found.numbers()


def checked_int64(values: NumberArray, offset: int) -> NumberArray:
    """Return integers as int64; CorruptError where one does not fit."""
    if values.dtype.itemsize == 8 and values.dtype.kind == "u" and int(values.max()) >= 1 << 63:
        raise CorruptError(f"{int(values.max())} is too large for a 64-bit signed integer", offset=offset)
    return values.astype(np.int64)
