"""Window: the bytes of a source a piece at a time, for readers that go through them once from front to back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...errors import TruncatedError

_FIRST_PIECE = 64 << 10
_PIECE_AFTER_A_SKIP = 4 << 10
_LARGEST_PIECE = 1 << 20


class Readable(Protocol):
    """What a window needs of a source."""

    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly these bytes."""


class Sink(Protocol):
    """Takes the bytes that a text spells out."""

    size: int

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append these bytes."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where bytes lie: in the source, or with ``spelled_out`` in the sink that numbers were written to."""

    offset: int
    nbytes: int
    spelled_out: bool = False


class Window:
    """``buffer[at]`` is the next byte; `need` makes sure of more of them, `skip` passes over any number unread."""

    __slots__ = ("_base", "_piece", "_source", "at", "buffer", "end")

    def __init__(self, source: Readable, position: int = 0) -> None:
        self._source = source
        self._base = position
        self._piece = _FIRST_PIECE
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
        if length > self.end - position:
            raise TruncatedError(f"{length} bytes needed, the file ends at {self.end}", offset=position)
        self.buffer = self._source.read_at(position, min(max(length, self._piece), self.end - position))
        self._base, self.at = position, 0
        self._piece = min(self._piece * 2, _LARGEST_PIECE)

    def more(self) -> bool:
        """Have a longer buffer from ``at`` on; whether there was more to be had."""
        held = len(self.buffer) - self.at
        if held >= self.end - self.position:
            return False
        self.need(min(held + max(held, self._piece), self.end - self.position))
        return True

    def take(self, length: int) -> bytes:
        """These many bytes, passed over."""
        self.need(length)
        self.at += length
        return self.buffer[self.at - length : self.at]

    def skip(self, length: int) -> None:
        """Pass over this many bytes without reading them."""
        if length > self.end - self.position:
            raise TruncatedError(
                f"{length} bytes announced, {self.end - self.position} left in the file", offset=self.position
            )
        self.at += length
        if self.at > len(self.buffer):
            self._base, self.at = self._base + self.at, 0
            self.buffer = b""
            self._piece = _PIECE_AFTER_A_SKIP

    def move_to(self, position: int) -> None:
        """Go on at this offset of the source, before or after the present one."""
        at = position - self._base
        if 0 <= at <= len(self.buffer):
            self.at = at
        else:
            self._base, self.at, self.buffer = position, 0, b""
