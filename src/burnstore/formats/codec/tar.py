"""Tar archives, strictly: where the bytes of regular members are.

Only what a plain archive needs is accepted: regular files and folders, names and sizes in the header itself, and the
extended headers that Python writes before a member (its times, or a size that the header cannot hold). Links, sparse
files, long names and everything else that makes two readers see two archives are refused. Every step goes forward, so
no header can lead back to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...errors import CorruptError, LimitError, TruncatedError, UnsupportedError, printable

BLOCK = 512
MAX_MEMBERS = 10_000
_MAX_EXTENDED = 64 << 10
_MAX_PADDING = 1 << 20
_REGULAR, _FOLDER, _EXTENDED = (b"0", b"\0"), b"5", b"x"
_HARMLESS = {"mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment"}


class Member(NamedTuple):
    """A regular member: its name, and where its bytes are."""

    name: str
    start: int
    size: int


def read_members(read_at: Callable[[int, int], bytes], size: int, *, cut: bool = False) -> list[Member]:
    """Return the regular members of an archive of ``size`` bytes, in their order.

    ``cut`` accepts an archive that ends early: its last member may reach beyond the end.
    """
    members: list[Member] = []
    position, wide = 0, None
    for _ in range(2 * MAX_MEMBERS):
        header = read_at(position, BLOCK) if position + BLOCK <= size else b""
        if cut and not any(header):
            return members
        if not header:
            raise TruncatedError("the tar ends without its closing blocks", offset=position)
        if not any(header):
            _check_closed(read_at, position, size)
            return members
        stated, found = _octal(header[148:156], position), sum(header) - sum(header[148:156]) + 8 * ord(" ")
        if stated != found:
            raise CorruptError("the checksum of a member's header is wrong", offset=position)
        kind, length = header[156:157], _octal(header[124:136], position)
        data = position + BLOCK
        if kind == _EXTENDED:
            if length > _MAX_EXTENDED:
                raise LimitError(f"an extended header of {length} bytes", offset=position)
            _need(data, length, size)
            wide = _extended(read_at(data, length), data)
        elif kind in _REGULAR or kind == _FOLDER:
            if wide is not None and length:
                raise CorruptError("a member with two sizes", offset=position)
            length, wide = (length if wide is None else wide), None
            if not cut:
                _need(data, length, size)
            if kind != _FOLDER:
                members.append(Member(_name(header, position), data, length))
        else:
            raise UnsupportedError(f"a tar with a member of the type {printable(repr(kind))}", offset=position)
        position = data + -(-length // BLOCK) * BLOCK
    raise LimitError(f"a tar of more than {MAX_MEMBERS} members")


def _need(start: int, length: int, size: int) -> None:
    if start + length > size:
        raise TruncatedError(f"a member of {length} bytes, {size - start} follow", offset=start)


def _check_closed(read_at: Callable[[int, int], bytes], position: int, size: int) -> None:
    """Check that two blocks of zeros end the archive, and that only zeros follow."""
    if size - position < 2 * BLOCK:
        raise TruncatedError("the tar ends without its closing blocks", offset=position)
    if size - position > _MAX_PADDING or any(read_at(position, size - position)):
        raise CorruptError("bytes follow the end of the tar", offset=position)


def _octal(field: bytes, position: int) -> int:
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    if not all(digit in b"01234567" for digit in digits):
        raise CorruptError("a number in a header is not octal", offset=position)
    return int(digits or b"0", 8)


def _name(header: bytes, position: int) -> str:
    if header[345:500].strip(b"\0"):
        raise UnsupportedError("a member with a long name", offset=position)
    raw = header[:100].rstrip(b"\0")
    if b"\0" in raw or not raw.isascii():
        raise CorruptError("a member whose name is not plain text", offset=position)
    return raw.decode("ascii").removeprefix("./")


def _extended(raw: bytes, offset: int) -> int | None:
    """Return the size in an extended header; None if it has none."""
    found, at = None, 0
    while at < len(raw):
        space = raw.find(b" ", at, at + 8)
        digits = raw[at:space] if space > 0 else b""
        end = at + (int(digits) if digits.isdigit() else 0)
        if not at + 5 <= end <= len(raw) or raw[end - 1 : end] != b"\n":
            raise CorruptError("an extended header is broken", offset=offset + at)
        key, equals, value = raw[space + 1 : end - 1].partition(b"=")
        name = key.decode("ascii", "replace")
        if name == "size" and equals and value.isdigit() and len(value) < 19 and found is None:
            found = int(value)
        elif name not in _HARMLESS:
            raise UnsupportedError(f"an extended header with {printable(name)!r}", offset=offset + at)
        at = end
    return found
