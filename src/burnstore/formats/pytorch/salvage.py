"""Rescue: the tensors of a damaged file whose bytes are all there, and the names of those that are lost.

The pickle must be whole, as without it nothing has a name. Of a zip the directory at the end may be gone: then members
are found by their own headers, one after the other, and the descriptor behind each says how long it is and what its
checksum must be. Nothing is ever filled in: a tensor is as it was written, or it is not there.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...errors import CorruptError, FormatError, UnsafeContentError, UnsupportedError, located, printable
from ...io.source import Source
from ...limits import Limits
from ...tensor.snapshot import CHUNK_BYTES, SourceData
from ..codec.pickle import Dialect
from ..codec.zip import DEFLATED, DESCRIPTOR_MAGIC, LOCAL_MAGIC, STORED
from .archive import Broken, DeflatedData, PickledFile, check_stored_crc, parse
from .graph import Found
from .legacy_file import begins_like_legacy, read_legacy
from .runs import TensorRuns
from .storages import ITEM_SIZES, Storage, Storages
from .tar_file import read_tar
from .tensor_calls import TensorCalls
from .tensors import CompositeTensor, PickledTensor
from .zip_file import ZipFile

_HEADER = struct.Struct("<4s5H3I2H")
_DESCRIPTOR, _WIDE_DESCRIPTOR = struct.Struct("<4sIII"), struct.Struct("<4sIQQ")
_DEFERRED = 1 << 3
_PICKLE = "data.pkl"
_SHOWN = 20


class Piece(NamedTuple):
    """A member that was found; ``size`` is None where the file ends in it, or its end was not found."""

    start: int
    packed: int
    size: int | None
    crc: int
    method: int


def salvaged(source: Source, limits: Limits) -> tuple[PickledFile, Broken]:
    """The object graph of a damaged file, and what is left of each storage that is not whole."""
    head = source.read_at(0, min(512, source.size))
    if head[257:262] == b"ustar":
        return read_tar(source, limits, salvage=True)
    if begins_like_legacy(head):
        return read_legacy(source, limits, salvage=True)
    if not head.startswith(LOCAL_MAGIC):
        raise UnsupportedError("of such a file nothing can be had unless it is whole", rule="PT-28")
    pieces = _pieces(source, limits)
    name = next((name for name in pieces if name == _PICKLE or name.endswith("/" + _PICKLE)), None)
    if name is None or pieces[name].size is None:
        raise CorruptError("the pickle that names the tensors is not there, or not whole", rule="PT-28")
    return _read(source, limits, pieces, name.removesuffix(_PICKLE))


def without_lost(found: Found, broken: Broken) -> Found:
    """The tensors whose bytes are all there; the notes name the others."""
    kept = {name: leaf for name, leaf in found.tensors.items() if _is_whole(leaf, broken)}
    lost = [printable(name) for name in found.tensors if name not in kept]
    shown = ", ".join(lost[:_SHOWN]) + (f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else "")
    note = f"salvaged: {len(kept)} of {len(found.tensors)} tensors are whole" + (f"; lost: {shown}" if lost else "")
    return Found(kept, [*found.notes, note])


def _is_whole(leaf: object, broken: Broken) -> bool:
    if isinstance(leaf, CompositeTensor):
        return all(_is_whole(part, broken) for part in leaf.parts.values())
    if not isinstance(leaf, PickledTensor) or leaf.storage is None or leaf.storage.key not in broken:
        return True
    if leaf.nbytes == 0:
        return True
    last = leaf.offset + sum((extent - 1) * stride for extent, stride in zip(leaf.shape, leaf.strides, strict=True))
    return (last + 1) * ITEM_SIZES[leaf.dtype] <= broken[leaf.storage.key]


def _pieces(source: Source, limits: Limits) -> dict[str, Piece]:
    """The members by name: from the directory if it can be trusted, otherwise from their own headers."""
    try:
        directory = ZipFile(source, limits).directory
    except (FormatError, UnsafeContentError):
        return _walked(source)
    columns = (directory.starts, directory.packed, directory.sizes, directory.crcs, directory.methods)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {name: Piece(*row) for name, row in zip(directory.names, rows, strict=True)}


def _walked(source: Source) -> dict[str, Piece]:
    pieces: dict[str, Piece] = {}
    twice: set[str] = set()
    position = 0
    while (position := _find(source, LOCAL_MAGIC, position)) >= 0:
        found = _piece(source, position)
        if found is None:
            position += 1
            continue
        name, piece = found
        if name in pieces:
            twice.add(name)  # which of them is the right one cannot be known
        pieces[name] = piece
        position = piece.start + (piece.packed if piece.size is not None else 0)
    return {name: piece for name, piece in pieces.items() if name not in twice}


def _piece(source: Source, position: int) -> tuple[str, Piece] | None:
    """The member whose header is here, if there is a header."""
    if position + _HEADER.size > source.size:
        return None
    _, _, flags, method, _, _, crc, packed, size, length, extra = _HEADER.unpack(source.read_at(position, _HEADER.size))
    start = position + _HEADER.size + length + extra
    if method not in (STORED, DEFLATED) or not 0 < length <= 4096 or start > source.size:
        return None
    name = source.read_at(position + _HEADER.size, length).decode("utf-8", "replace")
    if not name.isprintable():
        return None
    if not flags & _DEFERRED:
        there = start + packed <= source.size and 0xFFFFFFFF not in (packed, size)
        return name, Piece(start, packed, size if there else None, crc, method)
    at = start
    while (at := _find(source, DESCRIPTOR_MAGIC, at)) >= 0:
        for form in (_DESCRIPTOR, _WIDE_DESCRIPTOR):
            if at + form.size <= source.size:
                _, crc, packed, size = form.unpack(source.read_at(at, form.size))
                if packed == at - start and (method == DEFLATED or size == packed):
                    return name, Piece(start, packed, size, crc, method)
        at += 1
    return name, Piece(start, 0, None, 0, method)


def _find(source: Source, needle: bytes, position: int) -> int:
    """Where these bytes come next; -1 if they do not."""
    while position + len(needle) <= source.size:
        block = source.read_at(position, min(CHUNK_BYTES, source.size - position))
        at = block.find(needle)
        if at >= 0:
            return position + at
        position += max(len(block) - len(needle) + 1, 1)
    return -1


def _read(source: Source, limits: Limits, pieces: dict[str, Piece], root: str) -> tuple[PickledFile, Broken]:
    order = pieces.get(root + "byteorder")
    big_endian = order is not None and bytes(_bytes_of(source, order)) == b"big"
    storages = Storages()
    calls = TensorCalls(storages)
    dialect = Dialect(builders=calls.builders(), persistent=calls.persistent, recogniser=TensorRuns(storages).recognise)
    piece = pieces[root + _PICKLE]
    with located(hint="without its pickle, nothing of the file has a name"):
        data = bytes(_bytes_of(source, piece))
        found = parse(data, 0, dialect, limits, base=piece.start)
    broken: Broken = {}
    for storage in storages:
        whole = _attached(source, storage, pieces.get(f"{root}data/{storage.key}"), big_endian=big_endian)
        if whole < storage.nbytes:
            broken[storage.key] = whole
    file = PickledFile("zip", found.value, found.globals, found.protocol, storages, big_endian, {"root": root})
    return file, broken


def _bytes_of(source: Source, piece: Piece) -> memoryview:
    if piece.size is None:
        raise CorruptError("a record is not whole", rule="PT-28", offset=piece.start)
    if piece.method == DEFLATED:
        return DeflatedData(source, piece.start, piece.packed, piece.size, piece.crc).window(0, piece.size)
    check_stored_crc(source, piece.start, piece.packed, piece.crc)
    return memoryview(source.read_at(piece.start, piece.packed))


def _attached(source: Source, storage: Storage, piece: Piece | None, *, big_endian: bool) -> int:
    """How many of the first bytes of a storage are as they were; says where they are."""
    storage.offset = 0 if piece is None else piece.start
    storage.data = SourceData(source, storage.offset, storage.nbytes) if big_endian else None
    if piece is None:
        return 0
    if piece.size is None:  # no end was found: if the file ends in it, what is before the end is as it was
        left = source.size - piece.start
        ends_here = piece.method == STORED and left < storage.nbytes + _WIDE_DESCRIPTOR.size
        return min(left, storage.nbytes) if ends_here else 0
    if piece.size != storage.nbytes:
        return 0
    try:
        if piece.method == DEFLATED:
            storage.data = DeflatedData(source, piece.start, piece.packed, piece.size, piece.crc)
            storage.offset = -1
            storage.data.window(0, 0)
        else:
            check_stored_crc(source, piece.start, piece.packed, piece.crc)
    except FormatError:
        return 0
    return storage.nbytes
