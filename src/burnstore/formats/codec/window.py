"""Window: the bytes of a source a block at a time, for readers that go through them once from front to back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...errors import TruncatedError

_FIRST_BLOCK = 64 << 10
_BLOCK_AFTER_SKIP = 4 << 10
_MAX_BLOCK = 1 << 20


class Readable(Protocol):
    """What a window needs of a source."""

    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes."""


class Sink(Protocol):
    """Takes the bytes that numbers written as text stand for."""

    size: int

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append these bytes."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes: in the source, or with ``spelled_out`` in the sink that numbers were written to."""

    offset: int
    nbytes: int
    spelled_out: bool = False


class Window:
    """``buffer[at]`` is the next byte; `need` makes more of them available, `skip` passes over any number unread."""

    __slots__ = ("_base", "_block", "_source", "at", "buffer", "end")

    def __init__(self, source: Readable, position: int = 0) -> None:
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
