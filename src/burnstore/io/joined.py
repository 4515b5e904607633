"""JoinedSource: several sources as one, each at an offset of its own; no range spans two of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ..errors import TruncatedError
from .parallel import for_each
from .sizes import PAGE, PARALLEL_BYTES, SYSCALL_BYTES
from .source import Read, Source


class JoinedSource:
    """Sources one after the other.

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
            # Pages keep the alignment of each file; a free page keeps `gather` from joining ranges of two files.
            self.bases.append(-(-(self.size + PAGE) // PAGE) * PAGE if self.bases else 0)
            self.size = self.bases[-1] + part.size

    def read_at(self, offset: int, length: int) -> bytes:
        part, at = self.part_at(offset, length)
        return part.read_at(at, length)

    def read_into(self, reads: Sequence[Read]) -> None:
        batches: list[tuple[Source, list[Read]]] = []
        left = 0
        for offset, buffer in reads:
            part, at = self.part_at(offset, len(buffer))
            for start in range(0, len(buffer) or 1, SYSCALL_BYTES):
                window = buffer[start : start + SYSCALL_BYTES]
                if not batches or batches[-1][0] is not part or left < len(window):
                    batches.append((part, []))
                    left = SYSCALL_BYTES
                batches[-1][1].append((at + start, window))
                left -= len(window)
        if sum(len(buffer) for _, buffer in reads) >= PARALLEL_BYTES:
            for_each(_read_batch, batches)
        else:
            for batch in batches:
                _read_batch(batch)

    def view(self, offset: int, length: int) -> memoryview | None:
        index = self._index(offset)
        if index < 0 or offset - self.bases[index] + length > self.parts[index].size:
            return None
        return self.parts[index].view(offset - self.bases[index], length)

    def place_of(self, offset: int) -> tuple[str, int]:
        """Return the name of the source that has this offset, and the offset within it."""
        index = self._index(offset)
        return self.parts[index].name, offset - self.bases[index]

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _index(self, offset: int) -> int:
        return bisect_right(self.bases, offset) - 1

    def part_at(self, offset: int, length: int) -> tuple[Source, int]:
        """Return the source that has this range and the offset within it; TruncatedError if none has."""
        index = self._index(offset)
        if index < 0 or offset - self.bases[index] + length > self.parts[index].size:
            raise TruncatedError(f"no file contains these {length} bytes", path=self.name, offset=offset)
        return self.parts[index], offset - self.bases[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedSource, (self.name, self.parts)


def _read_batch(batch: tuple[Source, list[Read]]) -> None:
    source, reads = batch
    source.read_into(reads)


def part_of(source: Source, offset: int, length: int) -> tuple[Source, int]:
    """Return the single source that has this range, and the offset within it."""
    return source.part_at(offset, length) if isinstance(source, JoinedSource) else (source, offset)
