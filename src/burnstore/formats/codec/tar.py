"""Tar archives, strictly: where the bytes of regular members lie.

Only what a plain archive needs is taken: regular files and folders, names and sizes in the header itself, and the
extended headers that Python writes before a member (its times, or a size that the header cannot hold). Links, sparse
files, long names and everything else that makes two readers see two archives are refused. Every step goes forward, so
no header can lead back to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...errors import CorruptError, LimitError, TruncatedError, UnsupportedError, printable

BLOCK = 512
MOST_MEMBERS = 10_000
_LONGEST_EXTENDED = 64 << 10
_LONGEST_PADDING = 1 << 20
_REGULAR, _FOLDER, _EXTENDED = (b"0", b"\0"), b"5", b"x"
_HARMLESS = {"mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment"}


class Member(NamedTuple):
    """A regular member: its name, and where its bytes are."""

    name: str
    start: int
    size: int


def read_members(read_at: Callable[[int, int], bytes], size: int, *, cut: bool = False) -> list[Member]:
    """The regular members of an archive of ``size`` bytes, in their order.

    ``cut`` takes one that ends early: its last member may reach beyond the end.
    """
    members: list[Member] = []
    position, wide = 0, None
    for _ in range(2 * MOST_MEMBERS):
        if cut and position + BLOCK > size:
            return members
        if position + BLOCK > size:
            raise TruncatedError("the tar ends without its closing blocks", offset=position)
        header = read_at(position, BLOCK)
        if cut and not any(header):
            return members
        if not any(header):
            _check_closed(read_at, position, size)
            return members
        _check_sum(header, position)
        kind, length = header[156:157], _octal(header[124:136], position)
        data = position + BLOCK
        if kind == _EXTENDED:
            if length > _LONGEST_EXTENDED:
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
    raise LimitError(f"a tar of more than {MOST_MEMBERS} members")


def _need(start: int, length: int, size: int) -> None:
    if start + length > size:
        raise TruncatedError(f"a member of {length} bytes, {size - start} follow", offset=start)


def _check_closed(read_at: Callable[[int, int], bytes], position: int, size: int) -> None:
    """Two blocks of zeros end an archive, and nothing but zeros may follow."""
    if size - position < 2 * BLOCK:
        raise TruncatedError("the tar ends without its closing blocks", offset=position)
    if size - position > _LONGEST_PADDING or any(read_at(position, size - position)):
        raise CorruptError("bytes follow the end of the tar", offset=position)


def _check_sum(header: bytes, position: int) -> None:
    stated = _octal(header[148:156], position)
    found = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if stated != found:
        raise CorruptError("the checksum of a member's header is wrong", offset=position)


def _octal(field: bytes, position: int) -> int:
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    if not digits:
        return 0
    if not all(digit in b"01234567" for digit in digits):
        raise CorruptError("a number in a header is not octal", offset=position)
    return int(digits, 8)


def _name(header: bytes, position: int) -> str:
    if header[345:500].strip(b"\0"):
        raise UnsupportedError("a member with a long name", offset=position)
    raw = header[:100].rstrip(b"\0")
    if b"\0" in raw or not raw.isascii():
        raise CorruptError("a member whose name is no plain text", offset=position)
    return raw.decode("ascii").removeprefix("./")


def _extended(raw: bytes, offset: int) -> int | None:
    """The size in an extended header; None if it has none."""
    found, at = None, 0
    while at < len(raw):
        end = raw.find(b" ", at, at + 8)
        length = raw[at:end] if end > 0 else b""
        if (
            not length.isdigit()
            or not 5 <= int(length) <= len(raw) - at
            or raw[at + int(length) - 1 : at + int(length)] != b"\n"
        ):
            raise CorruptError("an extended header is broken", offset=offset + at)
        key, equals, value = raw[end + 1 : at + int(length) - 1].partition(b"=")
        name = key.decode("ascii", "replace")
        if name == "size" and equals and value.isdigit() and len(value) < 19 and found is None:
            found = int(value)
        elif name not in _HARMLESS:
            raise UnsupportedError(f"an extended header with {printable(name)!r}", offset=offset + at)
        at += int(length)
    return found
