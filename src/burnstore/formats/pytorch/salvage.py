"""Salvage: the tensors of a damaged file whose bytes are all there, and the names of those that are lost.

The pickle must be whole, as without it nothing has a name. The directory of a zip, which is at its end, may be missing:
then members are found by their own headers, one after the other, and the descriptor behind each states its length and
its checksum. Nothing is ever filled in: a tensor is as it was written, or it is left out.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from ...errors import CorruptError, FormatError, UnsafeContentError, UnsupportedError, counted, located
from ...io.sizes import CHUNK_BYTES
from ...io.source import Source
from ...limits import Limits
from ...tensor.note import Note
from ...tensor.sources import SourceData
from ..base import LAYOUT_KEY
from ..codec.zip import DEFLATED, DESCRIPTOR_MAGIC, LOCAL_MAGIC, STORED, Member
from .archive import PICKLE, ZipFile
from .data import DeflatedData, check_member, read_member
from .graph import Found
from .stream import Broken, PickledFile, begins_like_legacy, parse, read_legacy, read_tar, torch_dialect
from .tensors import ITEM_SIZES, CompositeTensor, PickledTensor, Storage, Storages, last_element, shown_names

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_DESCRIPTOR, _WIDE_DESCRIPTOR = struct.Struct("<4sIII"), struct.Struct("<4sIQQ")
_DEFERRED = 1 << 3


def salvaged(source: Source, limits: Limits) -> tuple[PickledFile, Broken]:
    """Read a damaged file; return its object graph and its damaged storages."""
    head = source.read_at(0, min(512, source.size))
    if head[257:262] == b"ustar":
        return read_tar(source, limits, salvage=True)
    if begins_like_legacy(head):
        return read_legacy(source, limits, salvage=True)
    if not head.startswith(LOCAL_MAGIC):
        raise UnsupportedError("a file of this kind can only be read if it is whole", rule="PT-28")
    members = _members(source, limits)
    name = next((name for name in members if name == PICKLE or name.endswith("/" + PICKLE)), None)
    if name is None or members[name].size is None:
        raise CorruptError("the pickle that names the tensors is missing, or not whole", rule="PT-28")
    return _read(source, limits, members, name.removesuffix(PICKLE))


def without_lost(found: Found, broken: Broken) -> Found:
    """Return the tensors whose bytes are all there; the notes name the others, and those without a checksum."""
    kept = {name: leaf for name, leaf in found.tensors.items() if _is_whole(leaf, broken)}
    lost = [name for name in found.tensors if name not in kept]
    unproved = [name for name, leaf in kept.items() if _is_unproved(leaf)]
    whole = "are whole" if not unproved else "have all of their bytes"
    text = f"salvaged: {len(kept)} of {counted(len(found.tensors), 'tensor')} {whole}"
    text += f"; lost: {shown_names(lost)}" if lost else ""
    if unproved:
        which = "" if len(unproved) == len(kept) else f" of {shown_names(unproved)}"
        text += f"; no checksum proves that the bytes{which} are unchanged"
    return Found(kept, [*found.notes, Note("left out", text)])


def _is_unproved(leaf: object) -> bool:
    """Return whether no checksum was compared with the bytes of a tensor."""
    if isinstance(leaf, CompositeTensor):
        return any(map(_is_unproved, leaf.parts.values()))
    if not isinstance(leaf, PickledTensor) or leaf.storage is None:
        return False
    return leaf.nbytes > 0 and not leaf.storage.is_proved


def _is_whole(leaf: object, broken: Broken) -> bool:
    if isinstance(leaf, CompositeTensor):
        return all(_is_whole(part, broken) for part in leaf.parts.values())
    if not isinstance(leaf, PickledTensor) or leaf.storage is None or leaf.storage.key not in broken:
        return True
    end = last_element(leaf.offset, leaf.shape, leaf.strides) + 1
    return leaf.nbytes == 0 or end * ITEM_SIZES[leaf.dtype] <= broken[leaf.storage.key]


def _members(source: Source, limits: Limits) -> dict[str, Member]:
    """Return the members by name: from the directory if it is valid, otherwise from their own headers."""
    try:
        directory = ZipFile(source, limits).directory
    except (FormatError, UnsafeContentError):
        pass
    else:
        return dict(zip(directory.names, directory.members(), strict=True))
    members: dict[str, Member] = {}
    repeated: set[str] = set()
    position = 0
    while (position := find_bytes(source, LOCAL_MAGIC, position)) >= 0:
        found = _member(source, position)
        if found is None:
            position += 1
            continue
        name, member = found
        if name in members:
            repeated.add(name)  # Nothing shows which of them is the right one.
        members[name] = member
        position = member.start + (member.packed if member.size is not None else 0)
    return {name: member for name, member in members.items() if name not in repeated}


def _member(source: Source, position: int) -> tuple[str, Member] | None:
    """Return the member whose header is here; None if there is no header."""
    if position + LOCAL_HEADER.size > source.size:
        return None
    header = LOCAL_HEADER.unpack(source.read_at(position, LOCAL_HEADER.size))
    _, _, flags, method, _, _, crc, packed, size, length, extra = header
    start = position + LOCAL_HEADER.size + length + extra
    if method not in (STORED, DEFLATED) or not 0 < length <= 4096 or start > source.size:
        return None
    name = source.read_at(position + LOCAL_HEADER.size, length).decode("utf-8", "replace")
    if not name.isprintable():
        return None
    if not flags & _DEFERRED:
        whole = start + packed <= source.size and 0xFFFFFFFF not in (packed, size)
        return name, Member(start, packed, size if whole else None, crc, method)
    at = start
    while (at := find_bytes(source, DESCRIPTOR_MAGIC, at)) >= 0:
        for form in (_DESCRIPTOR, _WIDE_DESCRIPTOR):
            if at + form.size <= source.size:
                _, crc, packed, size = form.unpack(source.read_at(at, form.size))
                if packed == at - start and (method == DEFLATED or size == packed):
                    return name, Member(start, packed, size, crc, method)
        at += 1
    return name, Member(start, 0, None, 0, method)


def find_bytes(source: Source, needle: bytes, position: int) -> int:
    """Return where these bytes occur next; -1 if they do not."""
    while position + len(needle) <= source.size:
        block = source.read_at(position, min(CHUNK_BYTES, source.size - position))
        at = block.find(needle)
        if at >= 0:
            return position + at
        position += max(len(block) - len(needle) + 1, 1)
    return -1


def _read(source: Source, limits: Limits, members: dict[str, Member], root: str) -> tuple[PickledFile, Broken]:
    order = members.get(root + "byteorder")
    big_endian = order is not None and read_member(source, order) == b"big"
    storages, pickle = Storages(), members[root + PICKLE]
    with located(hint="without its pickle, no tensor of the file has a name"):
        found = parse(read_member(source, pickle), 0, torch_dialect(storages), limits, base=pickle.start)
    broken: Broken = {}
    for storage in storages:
        intact = _attach(source, storage, members.get(f"{root}data/{storage.key}"), big_endian=big_endian)
        if intact < storage.nbytes:
            broken[storage.key] = intact
    facts = {"root": root}
    layout = members.get(root + LAYOUT_KEY)
    if layout is not None:
        facts[LAYOUT_KEY] = read_member(source, layout).decode("ascii", "replace")
    file = PickledFile("zip", found.value, found.globals, found.protocol, storages, big_endian, facts)
    return replace(file, pickle_bytes=pickle.size or 0), broken


def _attach(source: Source, storage: Storage, member: Member | None, *, big_endian: bool) -> int:
    """Set where the bytes of a storage are; return how many of the first are intact."""
    storage.offset = 0 if member is None else member.start
    storage.data = SourceData(source, storage.offset, storage.nbytes) if big_endian else None
    if member is None:
        return 0
    if member.size is None:  # No end was found: if the file ends inside it, what precedes the end is intact.
        left = source.size - member.start
        ends_here = member.method == STORED and left < storage.nbytes + _WIDE_DESCRIPTOR.size
        return min(left, storage.nbytes) if ends_here else 0
    if member.size != storage.nbytes:
        return 0
    if member.method == DEFLATED:
        storage.data, storage.offset = DeflatedData(source, member), -1
    try:
        check_member(source, member)
    except FormatError:
        return 0
    storage.is_proved = bool(member.crc)  # A checksum of 0 was left out by the writer.
    return storage.nbytes
