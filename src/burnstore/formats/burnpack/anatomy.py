"""What the first bytes of a Burnpack file are, in the words of its specification."""

from __future__ import annotations

from ..base import Part
from .reader import HEADER, MAGIC, VERSION, aligned


def anatomy(head: bytes, size: int) -> list[Part]:
    """The header, field by field, the metadata, and where the data of a file of Burn 0.20 and later begin."""
    if len(head) < HEADER.size:
        return [Part(0, len(head), f"less than the {HEADER.size} bytes of a header")]
    magic, version, length = HEADER.unpack_from(head)
    stop = HEADER.size + length
    parts = [
        Part(0, 4, "magic: NRUB" if magic == MAGIC else "not the magic, which is NRUB"),
        Part(4, 2, f"version: {version}" if version == VERSION else f"version: {version}, not {VERSION}"),
        Part(6, 4, f"length of the metadata: {length:,}"),
        Part(HEADER.size, min(stop, size) - HEADER.size, "metadata: CBOR" if stop <= size else "metadata, cut off"),
    ]
    if stop < size:
        parts.append(Part(stop, min(aligned(stop), size) - stop, "zeros up to a multiple of 256, or data of Burn 0.19"))
    return parts
