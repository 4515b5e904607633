"""The tar reader: plain archives as tarfile writes them, and nothing that two readers see differently."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable

import pytest

from burnstore.errors import CorruptError, FormatError, LimitError, TruncatedError, UnsupportedError
from burnstore.formats.codec.tar import BLOCK, Member, read_members
from fuzz.torch_bytes import tarred

FILES = {"sys_info": b"one", "pickle": b"x" * 600, "empty": b""}


def members(data: bytes) -> list[Member]:
    return read_members(lambda at, length: data[at : at + length], len(data))


def with_entry(build: Callable[[tarfile.TarInfo], None], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=form) as archive:
        info = tarfile.TarInfo("pickle")
        info.size = 3
        build(info)
        archive.addfile(info, io.BytesIO(b"abc") if info.isreg() else None)
    return out.getvalue()


def field(data: bytes, start: int, value: bytes) -> bytes:
    """The first header with a field replaced and its checksum put right."""
    header = bytearray(data[:BLOCK])
    header[start : start + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[BLOCK:]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_members_are_found_where_they_are(form: int) -> None:
    data = with_entry(lambda info: None, form)
    (member,) = members(data)
    assert member.name == "pickle" and data[member.start : member.start + member.size] == b"abc"


def test_extended_headers_of_python_are_taken() -> None:
    data = tarred(FILES)
    assert {m.name: data[m.start : m.start + m.size] for m in members(data)} == FILES


def test_a_leading_dot_is_dropped() -> None:
    assert members(tarred({"./pickle": b"x"}))[0].name == "pickle"


def entry(kind: bytes) -> Callable[[], bytes]:
    def set_kind(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, "elsewhere", 0

    return lambda: with_entry(set_kind)


def plain() -> bytes:
    return with_entry(lambda info: None, tarfile.USTAR_FORMAT)


def pax(record: bytes) -> bytes:
    """A member with this record in an extended header before it."""
    data = with_entry(lambda info: info.pax_headers.update(comment="12345678"))
    at = data.index(b" comment=12345678\n") - 2
    old = data[at : data.index(b"\n", at) + 1]
    assert len(record) <= len(old) + 400
    size = data.index(b"pickle", BLOCK)
    body = record.ljust(BLOCK, b"\0")
    header = field(data[:BLOCK], 124, b"%011o\0" % len(record))
    return header + body + data[size:]


HOSTILE: dict[str, tuple[Callable[[], bytes], type[FormatError]]] = {
    "symbolic link": (entry(tarfile.SYMTYPE), UnsupportedError),
    "hard link": (entry(tarfile.LNKTYPE), UnsupportedError),
    "character device": (entry(tarfile.CHRTYPE), UnsupportedError),
    "block device": (entry(tarfile.BLKTYPE), UnsupportedError),
    "FIFO": (entry(tarfile.FIFOTYPE), UnsupportedError),
    "GNU sparse": (entry(b"S"), UnsupportedError),
    "GNU long name": (entry(b"L"), UnsupportedError),
    "GNU long link": (entry(b"K"), UnsupportedError),
    "global header": (entry(b"g"), UnsupportedError),
    "unknown type": (entry(b"Z"), UnsupportedError),
    "negative size": (lambda: field(plain(), 124, b"-0000000001\0"), CorruptError),
    "binary size": (lambda: field(plain(), 124, b"\x80" + bytes(10) + b"\3"), CorruptError),
    "negative binary size": (lambda: field(plain(), 124, b"\xff" * 12), CorruptError),
    "size not octal": (lambda: field(plain(), 124, b"00000000009\0"), CorruptError),
    "size past the end": (lambda: field(plain(), 124, b"77777777777\0"), TruncatedError),
    "checksum wrong": (lambda: plain()[:10] + b"x" + plain()[11:], CorruptError),
    "long name by prefix": (lambda: field(plain(), 345, b"folder"), UnsupportedError),
    "name not ASCII": (lambda: field(plain(), 0, b"\xff"), CorruptError),
    "name with NUL": (lambda: field(plain(), 2, b"\0"), CorruptError),
    "no closing blocks": (lambda: plain()[: 2 * BLOCK], TruncatedError),
    "one closing block": (lambda: plain()[: 3 * BLOCK], TruncatedError),
    "bytes behind the end": (lambda: plain() + b"x" * BLOCK, CorruptError),
    "megabytes of zeros behind the end": (lambda: plain() + bytes(2 << 20), CorruptError),
    "extended size beside a size": (lambda: pax(b"12 size=100\n"), CorruptError),
    "extended path": (lambda: pax(b"11 path=ab\n"), UnsupportedError),
    "extended link": (lambda: pax(b"15 linkpath=ab\n"), UnsupportedError),
    "extended sparse": (lambda: pax(b"22 GNU.sparse.major=1\n"), UnsupportedError),
    "extended length lies": (lambda: pax(b"99 size=1\n"), CorruptError),
    "extended length zero": (lambda: pax(b"0 size=1\n"), CorruptError),
    "extended without length": (lambda: pax(b"size=1\n"), CorruptError),
}


@pytest.mark.parametrize(("make", "kind"), HOSTILE.values(), ids=HOSTILE)
def test_an_archive_that_is_not_plain_is_refused(make: Callable[[], bytes], kind: type[FormatError]) -> None:
    """H20: PT-12."""
    with pytest.raises(kind):
        members(make())


def test_an_extended_header_of_megabytes_is_refused() -> None:
    data = with_entry(lambda info: info.pax_headers.update(comment="x" * 100_000))
    with pytest.raises(LimitError):
        members(data)


def test_a_million_members_are_refused_without_a_loop() -> None:
    header = plain()[:BLOCK]
    empty = field(header, 124, b"00000000000\0")
    many = empty * 30_000
    with pytest.raises(LimitError):
        members(many)


def test_every_prefix_is_refused() -> None:
    """H3: up to the two blocks that close it; the zeros behind them are padding."""
    data = tarred({"pickle": b"abc"})
    closed = data.rindex(b"abc") // BLOCK * BLOCK + 3 * BLOCK
    for length in range(closed):
        with pytest.raises(FormatError):
            members(data[:length])
