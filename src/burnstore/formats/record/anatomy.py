"""What the first bytes of a record are: how it is packed, and in which of the three encodings."""

from __future__ import annotations

from ..base import Part

_GZIP = b"\x1f\x8b"
_GZIP_HEADER = 10


def anatomy(head: bytes, size: int) -> list[Part]:
    """The header of gzip, or the beginning of the document."""
    if head.startswith(_GZIP):
        rest = size - _GZIP_HEADER
        return [Part(0, min(size, _GZIP_HEADER), "gzip"), *([Part(_GZIP_HEADER, rest, "deflated")] if rest > 0 else [])]
    first = head[:1]
    if first.lstrip() == b"" or first == b"{":
        return [Part(0, size, "JSON")]
    if first >= b"\x80":
        pairs = head[0] & 0x0F
        return [Part(0, 1, f"MessagePack: a map of {pairs}"), Part(1, size - 1, "its keys and values")]
    return [Part(0, 1, f"bincode: a text of {head[0]} bytes, the float type"), Part(1, size - 1, "the fields in order")]
