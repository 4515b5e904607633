"""Plan zip archives of stored members: small ones of known bytes, and tensors whose checksums come with their bytes.

The checksum of a tensor is known when the tensor has been written. So it is in a descriptor behind the data, as
PyTorch writes it, and in the directory at the end. Data are aligned by an extra field of zeros. Equal members give
equal bytes: there are no times and no names of machines in the archive.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...tensor.snapshot import TensorSnapshot
from ..base import WritePlan
from .zip import END, END_64, FULL_16, FULL_32, LOCATOR_64

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_NEEDS, _NEEDS_64 = 20, 45
_FLAGS = 1 << 3 | 1 << 11  # a descriptor behind the data; names in UTF-8
_DATE = (1980 - 1980) << 9 | 1 << 5 | 1
_PADDING = 0x4246  # The kind of PyTorch's own padding.
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class NewMember:
    """A member to be written: its first bytes, then a tensor if there is one."""

    name: str
    head: bytes
    tensor: TensorSnapshot | None = None

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.head) + (0 if self.tensor is None else self.tensor.nbytes)


def plan_zip(members: Sequence[NewMember], comment: bytes = b"") -> WritePlan:
    """Plan an archive of these members, in this order, with this comment."""
    chunks, current, headers, position = list[bytes](), bytearray(), list[int](), 0
    offsets: list[int] = []
    for member in members:
        headers.append(position + len(current))
        current += _local_header(member, headers[-1]) + member.head
        if member.tensor is None:
            current += _descriptor(member, zlib.crc32(member.head))
            continue
        position += len(current)
        chunks.append(bytes(current))
        offsets.append(position)
        position += member.tensor.nbytes + len(_descriptor(member, 0))
        current = bytearray()
    chunks.append(bytes(current))
    archive = _Around(members, headers, chunks, position + len(current), comment)
    tensors = [member.tensor for member in members if member.tensor is not None]
    directory = archive.directory([0] * len(tensors))
    header = chunks[0] if tensors else chunks[0] + directory
    return WritePlan(header, tensors, offsets, archive.end + len(directory), archive if tensors else None)


@dataclass(slots=True)
class _Around:
    """The bytes of an archive around its tensors: those before each, those after the last, and the directory."""

    members: Sequence[NewMember]
    headers: Sequence[int]
    chunks: Sequence[bytes]
    end: int
    comment: bytes
    with_tensor: list[NewMember] = field(init=False)

    def __post_init__(self) -> None:
        self.with_tensor = [member for member in self.members if member.tensor is not None]

    def first_crc(self, number: int) -> int:
        return zlib.crc32(self.with_tensor[number].head)

    def after(self, number: int, crcs: Sequence[int]) -> bytes:
        found = _descriptor(self.with_tensor[number], crcs[number]) + self.chunks[number + 1]
        return found if number + 1 < len(self.with_tensor) else found + self.directory(crcs)

    def directory(self, crcs: Sequence[int]) -> bytes:
        """Return the directory and the end record."""
        entries, known = bytearray(), iter(crcs)
        for member, header in zip(self.members, self.headers, strict=True):
            name, size = member.name.encode(), member.size
            crc = zlib.crc32(member.head) if member.tensor is None else next(known)
            wide = [value for value in (size, size, header) if value >= FULL_32]
            extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
            needs = _NEEDS_64 if wide else _NEEDS
            sizes = crc, min(size, FULL_32), min(size, FULL_32), len(name), len(extra)
            entries += _CENTRAL.pack(
                b"PK\1\2", needs, needs, _FLAGS, 0, 0, _DATE, *sizes, 0, 0, 0, 0, min(header, FULL_32)
            )
            entries += name + extra
        start, count, length, end = self.end, len(self.members), len(entries), self.end + len(entries)
        if count >= FULL_16 or end >= FULL_32:
            rest = END_64.size - 12
            entries += END_64.pack(b"PK\6\6", rest, _NEEDS_64, _NEEDS_64, 0, 0, count, count, length, start)
            entries += LOCATOR_64.pack(b"PK\6\7", 0, end, 1)
        short = min(count, FULL_16)
        entries += END.pack(b"PK\5\6", 0, 0, short, short, min(length, FULL_32), min(start, FULL_32), len(self.comment))
        return bytes(entries) + self.comment


def _local_header(member: NewMember, at: int) -> bytes:
    name = member.name.encode()
    wide = struct.pack("<2H2Q", 1, 16, 0, 0) if member.size >= FULL_32 else b""
    begin = at + _LOCAL.size + len(name) + len(wide)
    padding = -(begin + 4) % _ALIGNMENT
    extra = wide + struct.pack("<2H", _PADDING, padding) + bytes(padding)
    needs = _NEEDS_64 if wide else _NEEDS
    return _LOCAL.pack(b"PK\3\4", needs, _FLAGS, 0, 0, _DATE, 0, 0, 0, len(name), len(extra)) + name + extra


def _descriptor(member: NewMember, crc: int) -> bytes:
    return struct.pack("<4sI2Q" if member.size >= FULL_32 else "<4s3I", b"PK\7\x08", crc, member.size, member.size)
