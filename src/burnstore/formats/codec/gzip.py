"""Gzip as Burn's recorders use it: one member, inflated by the piece under a bound, and written as flate2 frames it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...errors import CorruptError, LimitError, TruncatedError
from ...io.source import Source

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"\x1f\x8b"
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no flags, no time, no level, unknown system
_LEVEL = 6
_PIECE = 1 << 20
_GZIP_WINDOW, _RAW_WINDOW = 31, -15


def begins(head: bytes, length: int) -> bytes:
    """Inflate the first bytes of a gzip file, as far as this head of it reaches; empty where it is none."""
    try:
        return zlib.decompressobj(_GZIP_WINDOW).decompress(head, length)
    except zlib.error:
        return b""


def inflated(source: Source, *, most: int) -> Iterator[bytes]:
    """Inflate a file by the piece; raise before more than ``most`` bytes are in memory.

    The checksum and the length at the end are checked; a second member or anything else after them is refused.
    """
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    total = position = 0
    while not unpacker.eof:
        packed = unpacker.unconsumed_tail
        if not packed:
            if position == source.size:
                raise TruncatedError("the compressed data end early", offset=position)
            packed = source.read_at(position, min(_PIECE, source.size - position))
            position += len(packed)
        try:
            piece = unpacker.decompress(packed, _PIECE)
        except zlib.error as error:
            raise CorruptError(f"the compressed data are damaged: {error}", offset=position - len(packed)) from None
        total += len(piece)
        if total > most:
            raise LimitError(
                f"{source.size} compressed bytes hold more than {most}",
                hint="if you trust the file, pass limits=Limits.trusted()",
            )
        if piece:
            yield piece
    rest = len(unpacker.unused_data) + source.size - position
    if rest:
        raise CorruptError(f"{rest} bytes follow the compressed data", offset=source.size - rest)


def deflated(pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """Compress these bytes into a gzip file, in the framing of flate2; the compressed bytes are zlib's at level 6."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_WINDOW)
    checksum = total = 0
    yield _HEADER
    for piece in pieces:
        raw = memoryview(piece).cast("B")
        checksum = zlib.crc32(raw, checksum)
        total += len(raw)
        packed = packer.compress(raw)
        if packed:
            yield packed
    yield packer.flush() + checksum.to_bytes(4, "little") + (total & 0xFFFFFFFF).to_bytes(4, "little")
