"""Every pickle in a file, whether or not the file is whole: what a scanner has to look at.

`read_pickled` gives the one pickle of a file that keeps all rules. A file that is made to deceive keeps none, and other
programs read it all the same: so here each part that one of them might take for a pickle is handed out as it is. Where
a zip's directory cannot be believed, members are looked for by their own headers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import BurnstoreError, LimitError
from ...io.source import BytesSource, Source
from ...limits import Limits
from ..codec.pickle import Dialect, read_pickle
from ..codec.pickle_names import embedded_files
from ..codec.tar import read_members
from ..codec.zip import DEFLATED
from .archive import MOST_PICKLE_BYTES
from .legacy_file import begins_like_legacy
from .zip_file import ZipFile

ANYTHING = Dialect(persistent=lambda identity: None)
"""Knows nothing: every call stays a note, whatever a persistent id stands for."""

_PICKLES_OF_A_STREAM = 5
_ZIP, _ENTRY = b"PK", b"PK\x03\x04"
_NUMPY = b"\x93NUMPY"
_LOCAL = struct.Struct("<4s5H3I2H")
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib", ".p", ".dat", ".data", ".npy")
_MOST_PARTS = 20_000
_MOST_LEVELS = 4
_MOST_INFLATED = 64 << 20


@dataclass(frozen=True, slots=True)
class PicklePart:
    """Bytes that hold one or more pickles, and where they are: the member of an archive, the byte."""

    member: str
    offset: int
    data: bytes


@dataclass(slots=True)
class Parts:
    """The pickles of a file, and the error for which some may have been missed."""

    found: list[PicklePart]
    error: BurnstoreError | None = None
    is_data: bool = False
    """Whether it is an array of numbers, in which there is nothing to run."""


def pickle_parts(source: Source, limits: Limits) -> Parts:
    """The pickles of a file of torch, of NumPy or of Python, those inside others included."""
    parts = Parts([])
    try:
        _take(parts, source, "", 0, limits, 0)
    except BurnstoreError as error:
        parts.error = parts.error or error
    return parts


def _take(parts: Parts, source: Source, member: str, offset: int, limits: Limits, level: int) -> None:
    head = source.read_at(0, min(512, source.size))
    if head.startswith(_ZIP):
        _take_zip(parts, source, member, limits, level)
        return
    if head[257:262] == b"ustar":
        for entry in read_members(source.read_at, source.size):
            _add(parts, source.read_at(entry.start, min(entry.size, MOST_PICKLE_BYTES)), entry.name, entry.start, level)
        return
    data = source.read_at(0, min(source.size, MOST_PICKLE_BYTES))
    if head.startswith(_NUMPY):
        data, skipped = _objects_of_numpy(data)
        offset += skipped
        parts.is_data = not data and level == 0
    if data:
        _add(parts, _without_storages(data) if begins_like_legacy(head) else data, member, offset, level)


def _without_storages(data: bytes) -> bytes:
    """The pickles of a legacy stream; what follows them are the elements of tensors."""
    end = 0
    try:
        for _ in range(_PICKLES_OF_A_STREAM):
            end = read_pickle(data, end, dialect=ANYTHING).end
    except BurnstoreError:
        return data
    return data[:end]


def _add(parts: Parts, data: bytes, member: str, offset: int, level: int) -> None:
    if len(parts.found) >= _MOST_PARTS or level > _MOST_LEVELS:
        raise LimitError(f"more than {_MOST_PARTS:,} pickles, or pickles in pickles {_MOST_LEVELS} deep", rule="PT-17")
    parts.found.append(PicklePart(member, offset, data))
    for at, inner in embedded_files(data):
        inside = f"{member}[{at}]" if member else f"[{at}]"
        _take_bytes(parts, inner, inside, level)


def _take_zip(parts: Parts, source: Source, member: str, limits: Limits, level: int) -> None:
    try:
        archive = ZipFile(source, limits)
        names = [name for name in archive.directory.names if name.startswith(archive.root)]
        for name in names:
            record = name.removeprefix(archive.root)
            if (record.startswith("data/") and archive.has("data.pkl")) or record.startswith("data/weights/"):
                continue  # a storage: torch makes no pickle of it
            small = (archive.size_of(record) or 0) <= _MOST_INFLATED
            if name.endswith(_PICKLE_SUFFIXES) or (small and _looks_like_pickle(archive.read(record))):
                _take_bytes(parts, archive.read(record), _inside(member, name), level)
    except BurnstoreError as error:
        parts.error = parts.error or error
        for name, data in _entries(source.read_at(0, min(source.size, MOST_PICKLE_BYTES))):
            if name.endswith(_PICKLE_SUFFIXES) or _looks_like_pickle(data[:8]):
                _take_bytes(parts, data, _inside(member, name), level)


def _take_bytes(parts: Parts, data: bytes, member: str, level: int) -> None:
    _take(parts, BytesSource(data, share=True), member, 0, Limits(), level + 1)


def _inside(member: str, name: str) -> str:
    return f"{member}/{name}" if member else name


def _looks_like_pickle(head: bytes) -> bool:
    return (head[:1] == b"\x80" and head[1:2] <= b"\x05") or head.startswith((_ENTRY, _NUMPY))


def _entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The members of a zip by their own headers alone: name and content, as far as they can be had."""
    at = data.find(_ENTRY)
    while 0 <= at <= len(data) - _LOCAL.size:
        _, _, _, method, _, _, _, packed, size, name_length, extra = _LOCAL.unpack_from(data, at)
        name = data[at + _LOCAL.size : at + _LOCAL.size + name_length].decode("utf-8", "replace")
        start = at + _LOCAL.size + name_length + extra
        after = data.find(_ENTRY, start)
        if method == DEFLATED:
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[start:], _MOST_INFLATED)
            except zlib.error:
                content = b""
        else:
            content = data[start : start + size] if 0 < size == packed else data[start : after if after > 0 else None]
        yield name, content
        at = after


def _objects_of_numpy(data: bytes) -> tuple[bytes, int]:
    """The pickle in an array of objects, and where it begins; nothing for an array of numbers."""
    wide = data[6:7] != b"\x01"
    header = 12 if wide else 10
    length = int.from_bytes(data[8:header], "little")
    begin = header + length
    return (data[begin:], begin) if b"O" in data[header:begin] else (b"", begin)
