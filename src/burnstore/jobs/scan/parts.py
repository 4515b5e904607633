"""Find every pickle in a file, whether or not the file is whole.

`read_pickled` gives the one pickle of a file that keeps all rules. A file that is made to deceive keeps none, and other
programs read it all the same: so each part that one of them might take for a pickle is returned unchanged. Where a
zip's directory is invalid, members are found by their own headers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import BurnstoreError, LimitError
from ...formats.codec.pickle import Dialect, read_pickle
from ...formats.codec.pickle_names import embedded_files
from ...formats.codec.tar import read_members
from ...formats.codec.zip import DEFLATED, LOCAL_MAGIC
from ...formats.pytorch.archive import ZipFile
from ...formats.pytorch.salvage import LOCAL_HEADER
from ...formats.pytorch.stream import MAX_PICKLE_BYTES, begins_like_legacy
from ...io.source import BytesSource, Source
from ...limits import Limits

ANYTHING = Dialect(persistent=lambda identity: None)
"""Knows no call and accepts every persistent id."""

_LEGACY_PICKLES = 5
_NUMPY = b"\x93NUMPY"
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib", ".p", ".dat", ".data", ".npy")
_MAX_PARTS = 20_000
_MAX_LEVELS = 4
_MAX_INFLATED = 64 << 20


@dataclass(frozen=True, slots=True)
class PicklePart:
    """Bytes that hold one or more pickles, and where they are: the member of an archive, the offset."""

    member: str
    offset: int
    data: bytes


@dataclass(slots=True)
class Parts:
    """The pickles of a file, and the error because of which some may have been missed."""

    found: list[PicklePart]
    error: BurnstoreError | None = None
    is_data: bool = False
    """Whether the file is an array of numbers, in which there is nothing to run."""


def pickle_parts(source: Source, limits: Limits) -> Parts:
    """Return the pickles of a file of torch, of NumPy or of Python, including those inside others."""
    parts = Parts([])
    try:
        _take(parts, source, "", limits, 0)
    except BurnstoreError as error:
        parts.error = parts.error or error
    return parts


def _take(parts: Parts, source: Source, member: str, limits: Limits, level: int) -> None:
    head, offset = source.read_at(0, min(512, source.size)), 0
    if head.startswith(b"PK"):
        _take_zip(parts, source, member, limits, level)
        return
    if head[257:262] == b"ustar":
        for entry in read_members(source.read_at, source.size):
            _add(parts, source.read_at(entry.start, min(entry.size, MAX_PICKLE_BYTES)), entry.name, entry.start, level)
        return
    data = source.read_at(0, min(source.size, MAX_PICKLE_BYTES))
    if head.startswith(_NUMPY):
        data, offset = _objects_of_numpy(data)
        parts.is_data = not data and level == 0
    if data:
        _add(parts, _without_storages(data) if begins_like_legacy(head) else data, member, offset, level)


def _without_storages(data: bytes) -> bytes:
    """Return the pickles of a legacy stream; the elements of tensors follow them."""
    end = 0
    try:
        for _ in range(_LEGACY_PICKLES):
            end = read_pickle(data, end, dialect=ANYTHING).end
    except BurnstoreError:
        return data
    return data[:end]


def _add(parts: Parts, data: bytes, member: str, offset: int, level: int) -> None:
    if len(parts.found) >= _MAX_PARTS or level > _MAX_LEVELS:
        raise LimitError(f"more than {_MAX_PARTS:,} pickles, or pickles nested {_MAX_LEVELS} deep", rule="PT-17")
    parts.found.append(PicklePart(member, offset, data))
    for at, inner in embedded_files(data):
        _take_bytes(parts, inner, f"{member}[{at}]", level)


def _take_zip(parts: Parts, source: Source, member: str, limits: Limits, level: int) -> None:
    try:
        archive = ZipFile(source, limits)
        for name in archive.directory.names:
            if not name.startswith(archive.root):
                continue
            record = name.removeprefix(archive.root)
            if (record.startswith("data/") and archive.has("data.pkl")) or record.startswith("data/weights/"):
                continue  # A storage: torch does not unpickle it.
            small = (archive.size_of(record) or 0) <= _MAX_INFLATED
            if name.endswith(_PICKLE_SUFFIXES) or (small and _looks_like_pickle(archive.read(record))):
                _take_bytes(parts, archive.read(record), _inside(member, name), level)
    except BurnstoreError as error:
        parts.error = parts.error or error
        for name, data in _entries(source.read_at(0, min(source.size, MAX_PICKLE_BYTES))):
            if name.endswith(_PICKLE_SUFFIXES) or _looks_like_pickle(data[:8]):
                _take_bytes(parts, data, _inside(member, name), level)


def _take_bytes(parts: Parts, data: bytes, member: str, level: int) -> None:
    _take(parts, BytesSource(data, share=True), member, Limits(), level + 1)


def _inside(member: str, name: str) -> str:
    return f"{member}/{name}" if member else name


def _looks_like_pickle(head: bytes) -> bool:
    return (head[:1] == b"\x80" and head[1:2] <= b"\x05") or head.startswith((LOCAL_MAGIC, _NUMPY))


def _entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a zip by their own headers alone: name and content, as far as they can be read."""
    at = data.find(LOCAL_MAGIC)
    while 0 <= at <= len(data) - LOCAL_HEADER.size:
        _, _, _, method, _, _, _, packed, size, name_length, extra = LOCAL_HEADER.unpack_from(data, at)
        name_at = at + LOCAL_HEADER.size
        name = data[name_at : name_at + name_length].decode("utf-8", "replace")
        start = name_at + name_length + extra
        after = data.find(LOCAL_MAGIC, start)
        if method == DEFLATED:
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[start:], _MAX_INFLATED)
            except zlib.error:
                content = b""
        else:
            content = data[start : start + size] if 0 < size == packed else data[start : after if after > 0 else None]
        yield name, content
        at = after


def _objects_of_numpy(data: bytes) -> tuple[bytes, int]:
    """Return the pickle in an array of objects, and where it begins; nothing for an array of numbers."""
    header = 10 if data[6:7] == b"\x01" else 12
    begin = header + int.from_bytes(data[8:header], "little")
    return (data[begin:], begin) if b"O" in data[header:begin] else (b"", begin)
