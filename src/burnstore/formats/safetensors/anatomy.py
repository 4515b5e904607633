"""What the first bytes of a SafeTensors file are, in the words of its specification."""

from __future__ import annotations

from ..base import Part
from ..sharded.locate import begins_like_index


def anatomy(head: bytes, size: int) -> list[Part]:
    """The length, the header and the data; of an index, that it is one."""
    if begins_like_index(head):
        return [Part(0, size, "index of a sharded set: JSON")]
    if len(head) < 8:
        return [Part(0, len(head), "less than the 8 bytes of a length")]
    length = int.from_bytes(head[:8], "little")
    stop = 8 + length
    parts = [
        Part(0, 8, f"length of the header: {length:,}"),
        Part(8, min(stop, size) - 8, "header: JSON" if stop <= size else "header, cut off"),
    ]
    return [*parts, Part(stop, size - stop, "data")] if stop < size else parts
