"""Zip archives, strictly: where each member's bytes lie, if every reader would agree on it.

Own code, as a general reader believes one of the two descriptions that a zip has of each member and lets the other lie:
what one program scans is then not what another loads. Here both are read and must agree.

* The end record ends the file; the directory ends where the end record begins; nothing is claimed to be on other disks.
  Where the 64-bit end record is there, it is used, and the 32-bit one may not contradict it.
* A member's local header has the same name, method and flags as its entry in the directory, and the same sizes and
  checksum unless it leaves them to a descriptor behind the data.
* Members are stored or deflated; none is encrypted or patched; a stored one is as long as it says twice.
* No two members have one name, also if upper and lower case are not told apart, and none overlaps another.
* A name is a relative path without ``..``, backslashes or control characters. Nothing is ever extracted to it.
* Inflating stops at the announced length, which must be met exactly; ratio and total are bounded.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import (
    CorruptError,
    LimitError,
    TruncatedError,
    UnsafeContentError,
    UnsupportedError,
    printable,
)

STORED, DEFLATED = 0, 8
MOST_MEMBERS = 1_000_000
MOST_RATIO = 200
MOST_INFLATED = 1 << 30

_LOCAL = np.dtype(
    [
        *(("magic", "<u4"), ("needs", "<u2"), ("flags", "<u2"), ("method", "<u2"), ("time", "<u4")),
        *(("crc", "<u4"), ("packed", "<u4"), ("size", "<u4"), ("name", "<u2"), ("extra", "<u2")),
    ]
)
_CENTRAL = np.dtype(
    [
        *(("magic", "<u4"), ("made_by", "<u2"), ("needs", "<u2"), ("flags", "<u2"), ("method", "<u2"), ("time", "<u4")),
        *(("crc", "<u4"), ("packed", "<u4"), ("size", "<u4"), ("name", "<u2"), ("extra", "<u2"), ("comment", "<u2")),
        *(("disk", "<u2"), ("attributes", "<u2"), ("more_attributes", "<u4"), ("header", "<u4")),
    ]
)
_LENGTHS, _LENGTHS_AT = struct.Struct("<3H"), 28
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
LOCAL_MAGIC, CENTRAL_MAGIC, END_MAGIC = b"PK\3\4", b"PK\1\2", b"PK\5\6"
DESCRIPTOR_MAGIC = b"PK\7\x08"
_LOCAL_NUMBER, _CENTRAL_NUMBER = (int.from_bytes(magic, "little") for magic in (LOCAL_MAGIC, CENTRAL_MAGIC))
_END_64_MAGIC, _LOCATOR_64_MAGIC = b"PK\6\6", b"PK\6\7"
_ENCRYPTED, _DESCRIPTOR, _PATCH, _STRONG, _UTF8, _MASKED = 1, 1 << 3, 1 << 5, 1 << 6, 1 << 11, 1 << 13
_UNKNOWN_FLAGS = 0xFFFF & ~(_DESCRIPTOR | _UTF8 | 0b110)  # the two last say how hard the writer tried
_FOLDER = 0x10  # in the attributes: torch's reader gives no bytes of such a member, others do
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_LONGEST_COMMENT = 0xFFFF
_NEAR = 16 << 10  # headers this near to one another are read together
_BLOCK = 4 << 20

Array = np.ndarray[Any, np.dtype[Any]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Directory:
    """The members of an archive as columns, in the order of the directory: so many are handled at once.

    ``starts`` are the places of the bytes, ``packed`` their lengths in the file and ``sizes`` when unpacked; a checksum
    of 0 is one that the writer left out.
    """

    names: list[str]
    methods: Int64s
    crcs: Int64s
    packed: Int64s
    sizes: Int64s
    headers: Int64s
    starts: Int64s


def read_directory(read_at: ReadAt, size: int) -> Directory:
    """All members of the archive of ``size`` bytes."""
    start, end, count = _find_directory(read_at, size)
    if count > MOST_MEMBERS:
        raise LimitError(f"a zip of {count} members, more than the limit of {MOST_MEMBERS}")
    if count * _CENTRAL.itemsize > end - start:
        raise CorruptError(f"a directory of {end - start} bytes cannot list {count} members", offset=start)
    directory = read_at(start, end - start)
    places = _places(directory, count, start)
    entries = _records(directory, places, _CENTRAL)
    broken = np.flatnonzero(entries["magic"] != _CENTRAL_NUMBER)
    if broken.size:
        raise CorruptError("the directory of the zip is broken", offset=start + int(places[broken[0]]))
    name_ends = places + _CENTRAL.itemsize + entries["name"]
    raw_names = _slices(directory, places + _CENTRAL.itemsize, name_ends)
    names = _names(raw_names, entries["flags"], start + places)
    sizes, packed, headers = _wide_columns(directory, entries, name_ends)
    _check_kinds(names, entries, sizes, packed, start + places)
    _check_unique(names)
    starts = _starts(read_at, names, raw_names, entries, (packed, sizes, headers), start)
    methods, crcs = _int64(entries["method"], entries["crc"])
    return Directory(names, methods, crcs, packed, sizes, headers, starts)


def _find_directory(read_at: ReadAt, size: int) -> tuple[int, int, int]:
    """Where the directory starts and ends, and how many members it lists."""
    tail_at = max(0, size - _END.size - _LONGEST_COMMENT)
    tail = read_at(tail_at, size - tail_at)
    ends = []
    at = tail.find(END_MAGIC)
    while at >= 0:
        if at + _END.size <= len(tail) and at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail):
            ends.append(at)
        at = tail.find(END_MAGIC, at + 1)
    if not ends:
        raise TruncatedError("a zip without its end: no end record, or bytes behind it", offset=size)
    if len(ends) > 1:
        raise CorruptError("a zip with two ends: one hides in the comment of the other", offset=tail_at + ends[0])
    end_at = tail_at + ends[0]
    _, disk, first_disk, here, count, length, start, _ = _END.unpack_from(tail, ends[0])
    if disk or first_disk or here != count:
        raise UnsupportedError("a zip in several parts", offset=end_at)
    directory_end = end_at
    locator_at = end_at - _LOCATOR_64.size
    locator = _LOCATOR_64.unpack(read_at(locator_at, _LOCATOR_64.size)) if locator_at >= 0 else (b"", 0, 0, 0)
    if locator[0] == _LOCATOR_64_MAGIC:
        directory_end = locator[2]
        if directory_end + _END_64.size > locator_at:
            raise CorruptError("the 64-bit end record lies outside of the archive", offset=locator_at)
        magic, rest, _, _, disk, first_disk, here, count_64, length_64, start_64 = _END_64.unpack(
            read_at(directory_end, _END_64.size)
        )
        if magic != _END_64_MAGIC or rest + 12 != locator_at - directory_end:
            raise CorruptError("there is no 64-bit end record where its locator says", offset=directory_end)
        if disk or first_disk or locator[1] or locator[3] > 1 or here != count_64:
            raise UnsupportedError("a zip in several parts", offset=directory_end)
        for short, full, wide in (
            (count, _FULL_16, count_64),
            (length, _FULL_32, length_64),
            (start, _FULL_32, start_64),
        ):
            if short not in (full, wide):
                raise CorruptError(f"the end records disagree: {short} and {wide}", offset=end_at)
        count, length, start = count_64, length_64, start_64
    elif count == _FULL_16 or length == _FULL_32 or start == _FULL_32:
        raise CorruptError("the end record refers to a 64-bit one that is not there", offset=end_at)
    if start + length != directory_end:
        raise CorruptError(
            f"the directory lies from {start} to {start + length}, the end record begins at {directory_end}",
            offset=end_at,
        )
    return start, directory_end, count


def _places(directory: bytes, count: int, base: int) -> Int64s:
    """Where the entries of the directory begin; each says where the next one does."""
    places, position, lengths = [], 0, _LENGTHS.unpack_from
    try:
        for _ in range(count):
            places.append(position)
            name, extra, comment = lengths(directory, position + _LENGTHS_AT)
            position += _CENTRAL.itemsize + name + extra + comment
    except struct.error:
        raise TruncatedError("the directory of the zip ends early", offset=base + position) from None
    if position != len(directory):
        raise CorruptError(f"the directory ends at {base + position}, not where the end record begins", offset=base)
    return np.array(places, np.int64)


def _records(data: bytes, places: Int64s, kind: np.dtype[Any]) -> Array:
    """The fixed parts at these places, which lie inside of the data."""
    raw = np.frombuffer(data, np.uint8)
    rows: Array = raw[places[:, None] + np.arange(kind.itemsize)]
    return rows.reshape(-1).view(kind)


def _slices(data: bytes, starts: Int64s, ends: Int64s) -> list[bytes]:
    return [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def _int64(*columns: Array) -> list[Int64s]:
    return [column.astype(np.int64) for column in columns]


def _names(raw: list[bytes], flags: Array, offsets: Int64s) -> list[str]:
    together = b"\n".join(raw)
    if together.isascii():
        names = together.decode("ascii").split("\n") if raw else []
        # Nearly every archive: nothing in any name that could be an objection, so none is looked at by itself.
        plain = "".join(names)
        objections = any(sign in plain for sign in ("\\", ":", "..")) or not plain.isprintable()
        if len(names) == len(raw) and not objections and b"\n/" not in b"\n" + together and b"" not in raw:
            return names
    return [_name(one, int(flag), int(at)) for one, flag, at in zip(raw, flags, offsets, strict=True)]


def _name(raw: bytes, flags: int, offset: int) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 or raw.isascii() else "cp437")
    except UnicodeDecodeError as error:
        raise CorruptError(f"the name of a member is not UTF-8: {error.reason}", offset=offset) from None
    if not name:
        raise CorruptError("a member without a name", offset=offset)
    if not name.isprintable() or "\\" in name or name[0] == "/" or name[1:2] == ":" or ".." in name.split("/"):
        raise UnsafeContentError(
            f"a member is called {printable(name)!r}, which is no plain relative path", offset=offset
        )
    return name


def _wide_columns(directory: bytes, entries: Array, name_ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Sizes, packed sizes and places of the headers; those that do not fit 32 bits are in a field of their own."""
    sizes, packed, headers = _int64(entries["size"], entries["packed"], entries["header"])
    full = (sizes == _FULL_32) | (packed == _FULL_32) | (headers == _FULL_32)
    for row in np.flatnonzero(full).tolist():
        at = int(name_ends[row])
        values = [int(sizes[row]), int(packed[row]), int(headers[row])]
        sizes[row], packed[row], headers[row] = _wide(directory[at : at + int(entries["extra"][row])], values)
    return sizes, packed, headers


def _wide(extra: bytes, values: list[int]) -> list[int]:
    """The values with those that did not fit 32 bits taken from the 64-bit extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if kind == 1:
            needed = [row for row, value in enumerate(values) if value == _FULL_32]
            if length < 8 * len(needed) or at + length > len(extra):
                raise CorruptError("a 64-bit extra field is shorter than what refers to it")
            for row, value in zip(needed, struct.unpack_from(f"<{len(needed)}Q", extra, at), strict=True):
                values[row] = value
            break
        at += length
    if max(values) >= 1 << 62:
        raise CorruptError("a size or place beyond any file")
    return values


def _check_kinds(names: list[str], entries: Array, sizes: Int64s, packed: Int64s, offsets: Int64s) -> None:
    method, flags = entries["method"], entries["flags"]
    odd = (flags & _UNKNOWN_FLAGS != 0) | (entries["disk"] != 0) | ((method != STORED) & (method != DEFLATED))
    odd |= ((method == STORED) & (packed != sizes)) | (sizes > MOST_RATIO * np.maximum(packed, 1))
    odd |= (entries["more_attributes"] & _FOLDER != 0) & (sizes > 0)
    for row in np.flatnonzero(odd).tolist():
        _check_kind(names[row], entries[row], int(packed[row]), int(sizes[row]), int(offsets[row]))


def _check_kind(name: str, entry: Any, packed: int, size: int, offset: int) -> None:
    flags, method, shown = int(entry["flags"]), int(entry["method"]), printable(name)
    if entry["disk"]:
        raise UnsupportedError("a zip in several parts", offset=offset)
    if flags & (_ENCRYPTED | _STRONG | _MASKED):
        raise UnsupportedError(f"the member {shown!r} is encrypted", offset=offset)
    if flags & _UNKNOWN_FLAGS:
        what = "a patch" if flags & _PATCH else f"of unknown flags {flags:#x}"
        raise UnsupportedError(f"the member {shown!r} is {what}", offset=offset)
    if method not in (STORED, DEFLATED):
        raise UnsupportedError(f"the member {shown!r} is compressed by method {method}", offset=offset)
    if method == STORED and packed != size:
        raise CorruptError(f"the member {shown!r} declares {size} bytes but stores {packed}", offset=offset)
    if int(entry["more_attributes"]) & _FOLDER:
        raise CorruptError(f"the member {shown!r} has bytes and is said to be a folder", offset=offset)
    if method == DEFLATED:
        raise LimitError(
            f"the member {shown!r} is {size / max(packed, 1):.0f} times as large as its bytes in the file",
            offset=offset,
        )


def _check_unique(names: list[str]) -> None:
    if len(set("\n".join(names).casefold().split("\n"))) == len(names) or not names:
        return
    folded: set[str] = set()
    for name in names:
        if name.casefold() in folded:
            raise CorruptError(f"two members are called {printable(name)!r}, upper and lower case aside")
        folded.add(name.casefold())


def _starts(
    read_at: ReadAt,
    names: list[str],
    raw_names: list[bytes],
    entries: Array,
    columns: tuple[Int64s, Int64s, Int64s],
    directory: int,
) -> Int64s:
    """Where the bytes of each member start, which only the local headers tell, once those agree with the directory."""
    packed, sizes, headers = columns
    starts = np.zeros(len(names), np.int64)
    order = np.argsort(headers, kind="stable")
    outside = np.flatnonzero((headers < 0) | (headers + _LOCAL.itemsize + entries["name"] > directory))
    if outside.size:
        row = int(outside[0])
        raise CorruptError(
            f"the member {printable(names[row])!r} starts at {headers[row]}, which is not before the directory",
            offset=int(headers[row]),
        )
    local, found = _local_headers(read_at, order, headers, entries["name"])
    agree = np.array([one == raw_names[row] for one, row in zip(found, order.tolist(), strict=True)], bool)
    agree &= (local["magic"] == _LOCAL_NUMBER) & (local["flags"] == entries["flags"][order])
    agree &= (local["method"] == entries["method"][order]) & (local["name"] == entries["name"][order])
    agree &= _sizes_agree(local, entries["crc"][order], packed[order], sizes[order])
    if not agree.all():
        row = int(order[np.flatnonzero(~agree)[0]])
        raise CorruptError(
            f"the member {printable(names[row])!r} is another in its own header than in the directory",
            offset=int(headers[row]),
        )
    starts[order] = headers[order] + _LOCAL.itemsize + local["name"] + local["extra"].astype(np.int64)
    _check_ranges(names, order, headers, starts + packed, directory)
    return starts


def _local_headers(read_at: ReadAt, order: Int64s, headers: Int64s, lengths: Array) -> tuple[Array, list[bytes]]:
    """The fixed parts of the local headers in this order, and behind each as many bytes as its name should have."""
    fixed: list[bytes] = []
    names: list[bytes] = []
    for rows in _near_rows(order, headers):
        first, last = int(headers[rows[0]]), int(rows[-1])
        block = read_at(first, int(headers[last]) - first + _LOCAL.itemsize + int(lengths[last]))
        if len(rows) == 1:
            fixed.append(block[: _LOCAL.itemsize])
            names.append(block[_LOCAL.itemsize :])
        else:
            places = headers[rows] - first
            fixed.append(_records(block, places, _LOCAL).tobytes())
            name_at = places + _LOCAL.itemsize
            names += _slices(block, name_at, name_at + lengths[rows])
    return np.frombuffer(b"".join(fixed), _LOCAL), names


def _sizes_agree(local: Array, crc: Array, packed: Int64s, sizes: Int64s) -> Array:
    """Whether headers say the directory's sizes, or leave them to a descriptor or to a 64-bit field."""
    stated = np.stack(_int64(local["crc"], local["packed"], local["size"]))
    deferred = (local["flags"] & _DESCRIPTOR != 0) & ~stated.any(axis=0)
    right = (stated[0] == crc) & (stated[1] == packed) & (stated[2] == sizes)
    wide = (stated[0] == crc) & (stated[1] == _FULL_32) & (stated[2] == _FULL_32)
    both: Array = deferred | right | wide
    return both


def _near_rows(order: Int64s, headers: Int64s) -> Iterator[Int64s]:
    """The rows in the order of their headers, in groups whose headers are near to one another."""
    at = headers[order]
    far = np.flatnonzero((np.diff(at) > _NEAR) | (np.diff(at // _BLOCK) > 0)) + 1
    yield from (rows for rows in np.split(order, far) if rows.size)


def _check_ranges(names: list[str], order: Int64s, headers: Int64s, ends: Int64s, directory: int) -> None:
    after = np.append(headers[order[1:]], directory)[: len(order)]
    wrong = np.flatnonzero(ends[order] > after)
    if wrong.size:
        place = int(wrong[0])
        name = printable(names[int(order[place])])
        if place + 1 < len(order):
            other = printable(names[int(order[place + 1])])
            raise CorruptError(f"the members {name!r} and {other!r} overlap", offset=int(after[place]))
        raise TruncatedError(f"the member {name!r} reaches into the directory", offset=directory)


def inflate(packed: bytes, size: int, *, most: int) -> bytes:
    """The bytes of a deflated member, which announces ``size`` of them; never more than ``most`` are made."""
    if size > most:
        raise LimitError(f"{size} bytes to inflate, more than the limit of {most}")
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = machine.decompress(packed, size + 1)
    except zlib.error as error:
        raise CorruptError(f"a deflated member is broken: {error}") from None
    if len(data) != size or not machine.eof or machine.unused_data or machine.unconsumed_tail:
        raise CorruptError(f"a deflated member does not give the {size} bytes that it announces")
    return data
