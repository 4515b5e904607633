"""Padding: the bytes between tensors, which opening a file does not read (BP-16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...io.source import Source
from ...limits import Limits
from ..base import Check, Contents


@dataclass(frozen=True, slots=True)
class PaddingCheck:
    """Whether the gaps between tensors hold nothing but zeros."""

    source: Source
    gaps: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """How many bytes are read."""
        return sum(length for _, length in self.gaps)

    def __call__(self) -> str | None:
        buffer = np.empty(self.nbytes, np.uint8)
        reads, place = [], 0
        for start, length in self.gaps:
            reads.append((start, memoryview(buffer)[place : place + length]))
            place += length
        self.source.read_into(reads)
        count = int(np.count_nonzero(buffer))
        return f"{count} bytes between tensors are not zero, as padding is (BP-16)" if count else None


def checks(source: Source, contents: Contents, limits: Limits) -> Sequence[Check]:
    """One check, if there is any padding."""
    offsets = np.array(contents.table.offsets, np.int64)
    ends = offsets + np.array(contents.table.sizes, np.int64)
    lengths = offsets[1:] - ends[:-1]
    gaps = [(end, length) for end, length in zip(ends.tolist(), lengths.tolist(), strict=False) if length > 0]
    return [PaddingCheck(source, tuple(gaps))] if gaps else []
