"""JoinedSource: several sources as one, each at an offset of its own; no range reaches from one into another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ..errors import TruncatedError
from .parallel import for_each
from .source import Read, Source

# Each source begins at a multiple of this, so that what lies aligned in a file does so here, and so far behind the one
# before that `gather` takes nothing of both for neighbours.
_STEP = 4096
# Pieces of this size are read side by side, of whichever file they are; less in all is not worth a thread.
_PIECE = 16 << 20
_PARALLEL_FROM = 32 << 20


class JoinedSource:
    """Sources one behind the other.

    >>> from burnstore.io.source import BytesSource
    >>> joined = JoinedSource("both", [BytesSource(b"one"), BytesSource(b"two")])
    >>> joined.bases, joined.read_at(8192, 3)
    ([0, 8192], b'two')
    """

    def __init__(self, name: str, parts: Sequence[Source]) -> None:
        self.name = name
        self.parts = list(parts)
        self.bases: list[int] = []
        self.size = 0
        for part in self.parts:
            self.bases.append(-(-(self.size + _STEP) // _STEP) * _STEP if self.bases else 0)
            self.size = self.bases[-1] + part.size

    def read_at(self, offset: int, length: int) -> bytes:
        part, at = self.part_at(offset, length)
        return part.read_at(at, length)

    def read_into(self, reads: Sequence[Read]) -> None:
        pieces: list[tuple[Source, list[Read]]] = []
        room = 0
        for offset, buffer in reads:
            part, at = self.part_at(offset, len(buffer))
            for start in range(0, len(buffer) or 1, _PIECE):
                window = buffer[start : start + _PIECE]
                if not pieces or pieces[-1][0] is not part or room < len(window):
                    pieces.append((part, []))
                    room = _PIECE
                pieces[-1][1].append((at + start, window))
                room -= len(window)
        if sum(len(buffer) for _, buffer in reads) >= _PARALLEL_FROM:
            for_each(_read_piece, pieces)
        else:
            for piece in pieces:
                _read_piece(piece)

    def view(self, offset: int, length: int) -> memoryview | None:
        index = self._index(offset)
        if index < 0 or offset - self.bases[index] + length > self.parts[index].size:
            return None  # of no single source, so nobody has these bytes as one
        return self.parts[index].view(offset - self.bases[index], length)

    def place_of(self, offset: int) -> tuple[str, int]:
        """The name of the source in which an offset lies, and where in it."""
        index = self._index(offset)
        return self.parts[index].name, offset - self.bases[index]

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _index(self, offset: int) -> int:
        return bisect_right(self.bases, offset) - 1

    def part_at(self, offset: int, length: int) -> tuple[Source, int]:
        """The source in which a range lies, and where in it; TruncatedError if it lies in none."""
        index = self._index(offset)
        if index < 0 or offset - self.bases[index] + length > self.parts[index].size:
            raise TruncatedError(f"{length} bytes are in no file of it", path=self.name, offset=offset)
        return self.parts[index], offset - self.bases[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedSource, (self.name, self.parts)


def _read_piece(piece: tuple[Source, list[Read]]) -> None:
    source, reads = piece
    source.read_into(reads)


def part_of(source: Source, offset: int, length: int) -> tuple[Source, int]:
    """The source in which a range really lies, and where in it."""
    return source.part_at(offset, length) if isinstance(source, JoinedSource) else (source, offset)
