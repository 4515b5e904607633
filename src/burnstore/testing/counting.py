"""A source that remembers what was read from it."""

from __future__ import annotations

from collections.abc import Sequence

from ..io.source import BytesSource, Read


class CountingSource(BytesSource):
    """Bytes in memory that note every range that is read, so that a test can say what was not.

    >>> source = CountingSource(b"header and data")
    >>> source.read_at(0, 6)
    b'header'
    >>> source.ranges, source.bytes_read
    ([(0, 6)], 6)
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data, name="<counted bytes>")
        self.ranges: list[tuple[int, int]] = []

    @property
    def bytes_read(self) -> int:
        """How many bytes were read since the last `forget`; what was read twice counts twice."""
        return sum(length for _, length in self.ranges)

    def forget(self) -> None:
        """Start counting anew."""
        self.ranges.clear()

    def read_at(self, offset: int, length: int) -> bytes:
        self.ranges.append((offset, length))
        return super().read_at(offset, length)

    def read_into(self, reads: Sequence[Read]) -> None:
        self.ranges.extend((offset, len(buffer)) for offset, buffer in reads)
        super().read_into(reads)
