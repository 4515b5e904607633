"""Zip archives, strictly: where each member's bytes are, if every reader would agree on it.

Own code, because a general reader believes one of the two descriptions that a zip has of each member and ignores the
other: what one program scans is then not what another loads. Here both are read and must agree.

* The end record ends the file; the directory ends where the end record begins; nothing is claimed to be on other disks.
  A 64-bit end record is used if present, and the 32-bit one must not contradict it.
* A member's local header has the same name, method and flags as its entry in the directory, and the same sizes and
  checksum unless it leaves them to a descriptor behind the data.
* Members are stored or deflated; none is encrypted or patched; a stored one has equal packed and unpacked sizes.
* No two members have one name, and none overlaps another.
* Unless the caller accepts any name, a name is a relative path without ``..``, backslashes or control characters, and
  names differ also if case is ignored. Nothing is ever extracted to a name.
* Inflating stops at the announced length, which must be met exactly. No deflated data give more than 1032 times their
  own length, and the total is bounded.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import (
    CorruptError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsafeContentError,
    UnsupportedError,
    printable,
)

STORED, DEFLATED = 0, 8
MAX_MEMBERS = 1_000_000
MAX_RATIO = 1032  # of deflate: 258 bytes are at least 2 bits
_SLACK = 64  # bytes of a block's frame
MAX_INFLATED = 1 << 30

_SHARED = "flags:u2 method:u2 time:u4 crc:u4 packed:u4 size:u4 name:u2 extra:u2"


def _record_type(fields: str) -> np.dtype[Any]:
    return np.dtype([(name, f"<{code}") for name, code in (field.split(":") for field in fields.split())])


_LOCAL = _record_type(f"magic:u4 needs:u2 {_SHARED}")
_CENTRAL = _record_type(
    f"magic:u4 made_by:u2 needs:u2 {_SHARED} comment:u2 disk:u2 attributes:u2 more_attributes:u4 header:u4"
)
_LENGTHS, _LENGTHS_AT = struct.Struct("<3H"), 28
END = struct.Struct("<4s4H2IH")
END_64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR_64 = struct.Struct("<4sIQI")
LOCAL_MAGIC, CENTRAL_MAGIC, END_MAGIC = b"PK\3\4", b"PK\1\2", b"PK\5\6"
DESCRIPTOR_MAGIC = b"PK\7\x08"
_LOCAL_NUMBER, _CENTRAL_NUMBER = (int.from_bytes(magic, "little") for magic in (LOCAL_MAGIC, CENTRAL_MAGIC))
_END_64_MAGIC, _LOCATOR_64_MAGIC = b"PK\6\6", b"PK\6\7"
_ENCRYPTED, _DESCRIPTOR, _STRONG, _UTF8, _MASKED = 1, 1 << 3, 1 << 6, 1 << 11, 1 << 13
_UNKNOWN_FLAGS = 0xFFFF & ~(_DESCRIPTOR | _UTF8 | 0b110)  # The last two are the compression level.
_FOLDER = 0x10  # In the attributes: torch's reader gives no bytes of such a member, others do.
FULL_16, FULL_32 = 0xFFFF, 0xFFFFFFFF
_MAX_COMMENT = 0xFFFF
_NEAR, _BLOCK = 16 << 10, 4 << 20

Array = np.ndarray[Any, np.dtype[Any]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
ReadAt = Callable[[int, int], bytes]
Expect = Callable[[list[tuple[int, int]]], None]
"""Announces reads, each an offset and a length, which then follow."""


class Member(NamedTuple):
    """Where the bytes of a member are, and what its header states of them; a checksum of 0 was left out.

    ``size`` is the number of bytes when unpacked; None where the end of a damaged member was not found.
    """

    start: int
    packed: int
    size: int | None
    crc: int
    method: int


@dataclass(frozen=True, slots=True)
class Directory:
    """The members of an archive as columns, in the order of the directory, so that many are handled in one step.

    ``starts`` are the offsets of the bytes, ``packed`` their lengths in the file and ``sizes`` when unpacked.
    """

    names: list[str]
    methods: Int64s
    crcs: Int64s
    packed: Int64s
    sizes: Int64s
    headers: Int64s
    starts: Int64s
    comment: bytes = b""

    def members(self) -> list[Member]:
        """Return the members one by one."""
        columns = (self.starts, self.packed, self.sizes, self.crcs, self.methods)
        return [Member(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def member(self, row: int) -> Member:
        """Return one member."""
        columns = (self.starts, self.packed, self.sizes, self.crcs, self.methods)
        return Member(*(int(column[row]) for column in columns))


def read_directory(
    read_at: ReadAt,
    size: int,
    expect: Expect | None = None,
    *,
    any_names: bool = False,
    most_inflated: int | None = None,
) -> Directory:
    """Return all members of the archive of ``size`` bytes; ``expect`` gets the headers that will be read.

    ``any_names`` accepts names that are no paths, and ones that differ in case only. Deflated members may have
    ``most_inflated`` bytes in total, by default four times the file or 1 GiB.
    """
    start, end, count, comment = _find_directory(read_at, size)
    if count > MAX_MEMBERS:
        raise LimitError(f"a zip of {count} members, more than the limit of {MAX_MEMBERS}")
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
    names = _names(raw_names, entries["flags"], start + places, any_names=any_names)
    sizes, packed, headers = _wide_columns(directory, entries, name_ends)
    _check_members(names, entries, sizes, packed, start + places)
    _check_distinct(names if any_names else "\n".join(names).casefold().split("\n") if names else [])
    inflated = int(sizes[entries["method"] == DEFLATED].sum())
    if inflated > (max(4 * size, MAX_INFLATED) if most_inflated is None else most_inflated):
        raise LimitError(
            f"members that inflate to {inflated} bytes in a file of {size}",
            hint="if you trust the file, open it with limits=Limits.trusted()",
        )
    _refuse(headers + _LOCAL.itemsize + entries["name"] > start, "starts inside the directory", names, headers)
    order = np.argsort(headers, kind="stable")
    local, local_names = _local_headers(read_at, order, headers, entries["name"], expect)
    agree = np.array([name == raw_names[row] for name, row in zip(local_names, order.tolist(), strict=True)], bool)
    agree &= local["magic"] == _LOCAL_NUMBER
    for field in ("flags", "method", "name"):
        agree &= local[field] == entries[field][order]
    agree &= _sizes_agree(local, entries["crc"][order], packed[order], sizes[order])
    agree[order] = agree.copy()
    _refuse(~agree, "has another header than its entry in the directory", names, headers)
    starts = np.zeros(count, np.int64)
    starts[order] = headers[order] + _LOCAL.itemsize + local["name"] + local["extra"].astype(np.int64)
    after = np.full(count, start, np.int64)
    after[order[:-1]] = headers[order[1:]]
    too_long = starts + packed > after
    _refuse(too_long & (after == start), "reaches into the directory", names, after, TruncatedError)
    _refuse(too_long, "overlaps what follows it", names, after)
    methods, crcs = _int64(entries["method"], entries["crc"])
    return Directory(names, methods, crcs, packed, sizes, headers, starts, comment)


def _refuse(
    wrong: Array, problem: str, names: list[str], offsets: Int64s, error: type[FormatError] = CorruptError
) -> None:
    """Raise an error about the first of the wrong members, if there is any."""
    if wrong.any():
        row = int(wrong.argmax())
        raise error(f"the member {printable(names[row])!r} {problem}", offset=int(offsets[row]))


def _find_directory(read_at: ReadAt, size: int) -> tuple[int, int, int, bytes]:
    """Return where the directory starts and ends, how many members it lists, and the comment of the archive."""
    tail_at = max(0, size - END.size - _MAX_COMMENT)
    tail = read_at(tail_at, size - tail_at)
    ends = []
    at = tail.find(END_MAGIC)
    while at >= 0:
        if at + END.size <= len(tail) and at + END.size + END.unpack_from(tail, at)[-1] == len(tail):
            ends.append(at)
        at = tail.find(END_MAGIC, at + 1)
    if not ends:
        raise TruncatedError("a zip without an end record, or with bytes behind it", offset=size)
    if len(ends) > 1:
        raise CorruptError("a zip with two end records: one is in the comment of the other", offset=tail_at + ends[0])
    end_at = tail_at + ends[0]
    _, disk, first_disk, here, count, length, start, _ = END.unpack_from(tail, ends[0])
    if disk or first_disk or here != count:
        raise UnsupportedError("a zip in several parts", offset=end_at)
    directory_end = end_at
    locator_at = end_at - LOCATOR_64.size
    locator = LOCATOR_64.unpack(read_at(locator_at, LOCATOR_64.size)) if locator_at >= 0 else (b"", 0, 0, 0)
    if locator[0] == _LOCATOR_64_MAGIC:
        directory_end = locator[2]
        if directory_end + END_64.size > locator_at:
            raise CorruptError("the 64-bit end record is outside of the archive", offset=locator_at)
        end_64 = END_64.unpack(read_at(directory_end, END_64.size))
        magic, rest, _, _, disk, first_disk, here, count_64, length_64, start_64 = end_64
        if magic != _END_64_MAGIC or rest + 12 != locator_at - directory_end:
            raise CorruptError("no 64-bit end record where its locator points", offset=directory_end)
        if disk or first_disk or locator[1] or locator[3] > 1 or here != count_64:
            raise UnsupportedError("a zip in several parts", offset=directory_end)
        pairs = ((count, FULL_16, count_64), (length, FULL_32, length_64), (start, FULL_32, start_64))
        for short, full, wide in pairs:
            if short not in (full, wide):
                raise CorruptError(f"the end records disagree: {short} and {wide}", offset=end_at)
        count, length, start = count_64, length_64, start_64
    elif count == FULL_16 or length == FULL_32 or start == FULL_32:
        raise CorruptError("the end record refers to a 64-bit one that is not there", offset=end_at)
    if start + length != directory_end:
        found = f"the directory is at {start} to {start + length}, the end record begins at {directory_end}"
        raise CorruptError(found, offset=end_at)
    return start, directory_end, count, bytes(tail[ends[0] + END.size :])


def _places(directory: bytes, count: int, base: int) -> Int64s:
    """Return where the entries of the directory begin; each one determines the next."""
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
    """Return the fixed parts at these positions, which are inside the data."""
    raw = np.frombuffer(data, np.uint8)
    rows: Array = raw[places[:, None] + np.arange(kind.itemsize)]
    return rows.reshape(-1).view(kind)


def _slices(data: bytes, starts: Int64s, ends: Int64s) -> list[bytes]:
    return [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def _int64(*columns: Array) -> list[Int64s]:
    return [column.astype(np.int64) for column in columns]


def _names(raw: list[bytes], flags: Array, offsets: Int64s, *, any_names: bool) -> list[str]:
    together = b"\n".join(raw)
    if together.isascii():
        names = together.decode("ascii").split("\n") if raw else []
        # Nearly every archive: no name contains anything to object to, so none is checked on its own.
        plain = "".join(names)
        objections = any(sign in plain for sign in ("\\", ":", "..")) or not plain.isprintable()
        if len(names) == len(raw) and not objections and b"\n/" not in b"\n" + together and b"" not in raw:
            return names
    rows = zip(raw, flags, offsets, strict=True)
    return [_name(one, int(flag), int(at), any_names=any_names) for one, flag, at in rows]


def is_plain_path(name: str) -> bool:
    """Return whether a name is a relative path on every system, of printable characters and without ``..``."""
    is_relative = bool(name) and name[0] != "/" and name[1:2] != ":" and ".." not in name.split("/")
    return is_relative and name.isprintable() and "\\" not in name


def _name(raw: bytes, flags: int, offset: int, *, any_names: bool) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 or raw.isascii() else "cp437")
    except UnicodeDecodeError as error:
        raise CorruptError(f"the name of a member is not UTF-8: {error.reason}", offset=offset) from None
    if not name:
        raise CorruptError("a member without a name", offset=offset)
    if "\0" in name or (not any_names and not is_plain_path(name)):
        raise UnsafeContentError(
            f"a member is called {printable(name)!r}, which is not a plain relative path", offset=offset
        )
    return name


def _wide_columns(directory: bytes, entries: Array, name_ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return sizes, packed sizes and header offsets; those that do not fit 32 bits are in an extra field."""
    sizes, packed, headers = _int64(entries["size"], entries["packed"], entries["header"])
    full = (sizes == FULL_32) | (packed == FULL_32) | (headers == FULL_32)
    for row in np.flatnonzero(full).tolist():
        at = int(name_ends[row])
        values = [int(sizes[row]), int(packed[row]), int(headers[row])]
        sizes[row], packed[row], headers[row] = _wide(directory[at : at + int(entries["extra"][row])], values)
    return sizes, packed, headers


def _wide(extra: bytes, values: list[int]) -> list[int]:
    """Return the values, with those that did not fit 32 bits taken from the 64-bit extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if kind == 1:
            needed = [row for row, value in enumerate(values) if value == FULL_32]
            if length < 8 * len(needed) or at + length > len(extra):
                raise CorruptError("a 64-bit extra field is shorter than what refers to it")
            for row, value in zip(needed, struct.unpack_from(f"<{len(needed)}Q", extra, at), strict=True):
                values[row] = value
            break
        at += length
    if max(values) >= 1 << 62:
        raise CorruptError("a size or an offset beyond any file")
    return values


def _check_members(names: list[str], entries: Array, sizes: Int64s, packed: Int64s, offsets: Int64s) -> None:
    method, flags, stored = entries["method"], entries["flags"], entries["method"] == STORED
    is_folder = entries["more_attributes"] & _FOLDER != 0
    checks: tuple[tuple[Array, type[FormatError], str], ...] = (
        (entries["disk"] != 0, UnsupportedError, "is in a zip in several parts"),
        (flags & (_ENCRYPTED | _STRONG | _MASKED) != 0, UnsupportedError, "is encrypted"),
        (flags & _UNKNOWN_FLAGS != 0, UnsupportedError, "is a patch, or has unknown flags"),
        (~stored & (method != DEFLATED), UnsupportedError, "is compressed by an unsupported method"),
        (stored & (packed != sizes), CorruptError, "declares another size than it stores"),
        (is_folder & (sizes > 0), CorruptError, "is a folder with bytes"),
        (sizes > MAX_RATIO * packed + _SLACK, LimitError, f"is more than {MAX_RATIO} times its packed size"),
    )
    for wrong, error, problem in checks:
        _refuse(wrong, problem, names, offsets, error)


def _check_distinct(names: list[str]) -> None:
    if len(set(names)) < len(names):
        repeated = next(name for name, count in Counter(names).items() if count > 1)
        raise CorruptError(f"two members are called {printable(repeated)!r}, ignoring case")


def _local_headers(
    read_at: ReadAt, order: Int64s, headers: Int64s, lengths: Array, expect: Expect | None
) -> tuple[Array, list[bytes]]:
    """Return the fixed parts of the local headers in this order, and the names behind them.

    Headers that are near to one another are read together.
    """
    fixed: list[bytes] = []
    names: list[bytes] = []
    at = headers[order]
    far = np.flatnonzero((np.diff(at) > _NEAR) | (np.diff(at // _BLOCK) > 0)) + 1
    groups = np.split(order, far) if len(order) else []
    ranges = []
    for rows in groups:
        first, last = int(headers[rows[0]]), int(rows[-1])
        ranges.append((first, int(headers[last]) - first + _LOCAL.itemsize + int(lengths[last])))
    if expect is not None:
        expect(ranges)
    for rows, (first, length) in zip(groups, ranges, strict=True):
        block = read_at(first, length)
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
    """Return which headers state the directory's sizes, or leave them to a descriptor or to a 64-bit field."""
    stated = np.stack(_int64(local["crc"], local["packed"], local["size"]))
    deferred = (local["flags"] & _DESCRIPTOR != 0) & ~stated.any(axis=0)
    right = (stated[1] == packed) & (stated[2] == sizes)
    wide = (stated[1] == FULL_32) & (stated[2] == FULL_32)
    agree: Array = deferred | ((stated[0] == crc) & (right | wide))
    return agree


def inflate_start(packed: bytes, length: int) -> bytes:
    """Return the first ``length`` bytes of a deflated member, or fewer where it ends before."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, length)
    except zlib.error as error:
        raise CorruptError(f"invalid deflated data: {error}") from None


def inflate(packed: bytes, size: int, *, most: int) -> bytes:
    """Return the ``size`` bytes of a deflated member; LimitError if they are more than ``most``."""
    if size > most:
        raise LimitError(f"{size} bytes to inflate, more than the limit of {most}")
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = machine.decompress(packed, size + 1)
    except zlib.error as error:
        raise CorruptError(f"invalid deflated data: {error}") from None
    if len(data) != size or not machine.eof or machine.unused_data or machine.unconsumed_tail:
        raise CorruptError(f"a deflated member does not hold the {size} bytes that it announces")
    return data
