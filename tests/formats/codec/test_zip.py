"""The zip reader: what it takes is what zipfile finds, and what two readers would see differently is refused."""

from __future__ import annotations

import io
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import CorruptError, FormatError, LimitError, TruncatedError, UnsafeContentError, UnsupportedError
from burnstore.formats.codec.zip import Directory, inflate, read_directory
from fuzz.torch_bytes import Member, deflated, zipped

A, B = Member("x/a", b"first"), Member("x/b", b"second one")
Refusal = type[FormatError] | type[UnsafeContentError]


def directory(data: bytes) -> Directory:
    return read_directory(lambda at, length: data[at : at + length], len(data))


def contents(data: bytes) -> dict[str, bytes]:
    found = directory(data)
    columns = (found.starts, found.packed, found.sizes, found.methods)
    rows = zip(found.names, *(column.tolist() for column in columns), strict=True)
    raw = {name: (data[start : start + packed], size, method) for name, start, packed, size, method in rows}
    return {name: inflate(held, size, most=size) if method else held for name, (held, size, method) in raw.items()}


@given(
    members=st.dictionaries(
        st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=8),
        st.binary(max_size=200),
        max_size=8,
    ),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    comment=st.binary(max_size=10),
    stream=st.booleans(),
)
def test_archives_of_zipfile_are_read_as_zipfile_reads_them(
    members: dict[str, bytes], method: int, comment: bytes, stream: bool
) -> None:
    out = io.BytesIO()
    if stream:  # a file that cannot seek makes zipfile write descriptors behind the data
        out.seek = None  # type: ignore[assignment,method-assign]
        out.tell = None  # type: ignore[assignment,method-assign]
    with zipfile.ZipFile(io.BytesIO() if stream else out, "w", method) as archive:
        for member, data in members.items():
            archive.writestr(f"x/{member}", data)
        archive.comment = comment
        if stream:
            out = archive.fp  # type: ignore[assignment]
    data = out.getvalue()
    assert contents(data) == {f"x/{member}": raw for member, raw in members.items()}


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize("method", [0, 8])
def test_an_archive_as_torch_writes_it_is_read(zip64: bool, method: int) -> None:
    data = zipped(
        [replace(A, method=method), replace(B, method=method), Member("x/empty", b"", flags=0x0800)], zip64=zip64
    )
    assert contents(data) == {"x/a": b"first", "x/b": b"second one", "x/empty": b""}


def test_places_are_those_that_zipfile_finds_and_multiples_of_64() -> None:
    data = zipped([A, B, Member("x/" + "long" * 30, b"third")])
    found = directory(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name, start in zip(found.names, found.starts.tolist(), strict=True):
            assert start % 64 == 0
            assert data[start:].startswith(archive.read(name))


def test_more_members_than_16_bits_can_count_are_read() -> None:
    data = zipped([Member(f"x/{number}", b"") for number in range(70_000)])
    assert len(directory(data).names) == 70_000


def test_a_member_beyond_4_gib_is_found() -> None:
    """A file that is not there in full: only what is read of it exists."""
    size = 5 << 30
    wide = struct.pack("<HHQQ", 1, 16, size, size)
    head = struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0x0808, 0, 0, 0, 0, 0, 0, 3, 0) + b"x/a"
    second_at = len(head) + size + 24
    second = struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0x0808, 0, 0, 0, 0, 0, 0, 3, 0) + b"x/b" + b"tail"
    full = 0xFFFFFFFF
    entries = struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0x0808, 0, 0, 0, 0, full, full, 3, len(wide), 0, 0, 0, 0, 0)
    entries += b"x/a" + wide
    place = struct.pack("<HHQ", 1, 8, second_at)
    entries += struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0x0808, 0, 0, 0, 0, 4, 4, 3, len(place), 0, 0, 0, 0, full)
    entries += b"x/b" + place
    start = second_at + len(second)
    end = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0, 0, 0, 0, 2, 2, len(entries), start)
    end += struct.pack("<4sIQI", b"PK\6\7", 0, start + len(entries), 1)
    end += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(entries), full, 0)
    pieces = {0: head, second_at: second, start: entries + end}

    def read_at(at: int, length: int) -> bytes:
        out = bytearray(length)
        for origin, piece in pieces.items():
            first, last = max(at, origin), min(at + length, origin + len(piece))
            if first < last:
                out[first - at : last - at] = piece[first - origin : last - origin]
        return bytes(out)

    found = read_directory(read_at, start + len(entries) + len(end))
    assert found.sizes.tolist() == [size, 4]
    assert found.starts.tolist() == [len(head), second_at + len(second) - 4]


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def end_edited(data: bytes, offset: int, value: int, code: str = "<H") -> bytes:
    at = data.rindex(b"PK\5\6") + offset
    return data[:at] + struct.pack(code, value) + data[at + struct.calcsize(code) :]


HOSTILE: dict[str, tuple[Callable[[], bytes], Refusal]] = {
    "encrypted, both": (lambda: zipped([replace(A, flags=0x0809)]), UnsupportedError),
    "encrypted, local only": (lambda: zipped([replace(A, local_flags=0x0809)]), CorruptError),
    "encrypted, central only": (lambda: zipped([replace(A, flags=0x0809, local_flags=0x0808)]), UnsupportedError),
    "patch, both": (lambda: zipped([replace(A, flags=0x0828)]), UnsupportedError),
    "patch, local only": (lambda: zipped([replace(A, local_flags=0x0828)]), CorruptError),
    "strong encryption": (lambda: zipped([replace(A, flags=0x0848)]), UnsupportedError),
    "strong encryption, local only": (lambda: zipped([replace(A, local_flags=0x0848)]), CorruptError),
    "masked headers": (lambda: zipped([replace(A, flags=0x2808)]), UnsupportedError),
    "reserved flag": (lambda: zipped([replace(A, flags=0x0888)]), UnsupportedError),
    "descriptor flag differs": (lambda: zipped([replace(A, local_flags=0x0800)]), CorruptError),
    "UTF-8 flag differs": (lambda: zipped([replace(A, local_flags=0x0008)]), CorruptError),
    "method 99": (lambda: zipped([replace(A, method=99)]), UnsupportedError),
    "method 12": (lambda: zipped([replace(A, method=12)]), UnsupportedError),
    "method differs": (lambda: zipped([replace(A, local_method=8)]), CorruptError),
    "name differs": (lambda: zipped([replace(A, local_name="x/c")]), CorruptError),
    "name differs in case": (lambda: zipped([replace(A, local_name="x/A")]), CorruptError),
    "name differs in length": (lambda: zipped([replace(A, local_name="x/aa")]), CorruptError),
    "local sizes differ": (lambda: zipped([replace(A, local_sizes=(zlib.crc32(b"first"), 4, 4))]), CorruptError),
    "local checksum differs": (lambda: zipped([replace(A, local_sizes=(1, 5, 5))]), CorruptError),
    "local size zero without descriptor": (
        lambda: zipped([replace(A, flags=0x0800, local_sizes=(0, 0, 0))]),
        CorruptError,
    ),
    "stored, two sizes": (lambda: zipped([replace(A, size=6)]), CorruptError),
    "stored, packed smaller": (lambda: zipped([replace(A, packed=4)]), CorruptError),
    "name twice": (lambda: zipped([A, A]), CorruptError),
    "name twice in other case": (lambda: zipped([A, replace(A, name="X/A", local_name="X/A")]), CorruptError),
    "overlap": (lambda: zipped([replace(A, size=200, packed=200), B]), CorruptError),
    "one header for two": (lambda: zipped([A, replace(A, name="x/c", header=0)]), CorruptError),
    "quoted overlap": (lambda: zipped([Member("x/q", zipped([A])[:70]), replace(A, header=64)]), CorruptError),
    "header in the directory": (lambda: zipped([replace(A, header=10_000)]), CorruptError),
    "header is not one": (lambda: zipped([replace(A, header=3)]), CorruptError),
    "reaches into the directory": (lambda: zipped([replace(A, size=60, packed=60)]), TruncatedError),
    "reaches past the file": (lambda: zipped([replace(A, size=10**6, packed=10**6)]), TruncatedError),
    "prefix": (lambda: zipped([A], prefix=b"MZ" * 30, directory_at=0), CorruptError),
    "prefix, offsets unaware": (lambda: b"junk" + zipped([A]), CorruptError),
    "suffix": (lambda: zipped([A], suffix=b"junk"), TruncatedError),
    "two ends": (lambda: zipped([A], comment=zipped([B])[-22:]), CorruptError),
    "comment length lies": (lambda: end_edited(zipped([A]), 20, 5), TruncatedError),
    "no end": (lambda: zipped([A])[:-22], TruncatedError),
    "no directory": (lambda: zipped([A])[:60], TruncatedError),
    "other disk": (lambda: zipped([replace(A, disk=1)]), UnsupportedError),
    "end on disk 1": (lambda: end_edited(zipped([A]), 4, 1), UnsupportedError),
    "directory on disk 1": (lambda: end_edited(zipped([A]), 6, 1), UnsupportedError),
    "count on this disk differs": (lambda: end_edited(zipped([A]), 8, 2), UnsupportedError),
    "count too large": (lambda: zipped([A], count=2), CorruptError),
    "count too small": (lambda: zipped([A, B], count=1), CorruptError),
    "count absurd": (lambda: zipped([A], count=1 << 40), LimitError),
    "count absurd in 16 bits": (
        lambda: end_edited(end_edited(zipped([A], zip64=False), 8, 65535), 10, 65535),
        CorruptError,
    ),
    "directory elsewhere": (lambda: zipped([A], directory_at=10), CorruptError),
    "directory past the file": (lambda: zipped([A], directory_at=1 << 31), CorruptError),
    "end records disagree": (lambda: zipped([A], start=3), CorruptError),
    "end records disagree in length": (lambda: zipped([A], length=3), CorruptError),
    "locator leads nowhere": (lambda: replaced(zipped([A]), b"PK\6\6", b"PK\6\5"), CorruptError),
    "locator past itself": (
        lambda: (d := zipped([A]))[: d.index(b"PK\6\7") + 8] + struct.pack("<Q", len(d)) + d[d.index(b"PK\6\7") + 16 :],
        CorruptError,
    ),
    "directory entry broken": (lambda: replaced(zipped([A]), b"PK\1\2", b"PK\1\3"), CorruptError),
    "64-bit field missing": (lambda: zipped([replace(A, size=0xFFFFFFFF, packed=0xFFFFFFFF)]), TruncatedError),
    "64-bit field short": (
        lambda: zipped([replace(A, size=0xFFFFFFFF, packed=0xFFFFFFFF, extra=struct.pack("<HHQ", 1, 8, 5))]),
        CorruptError,
    ),
    "64-bit field absurd": (
        lambda: zipped(
            [replace(A, size=0xFFFFFFFF, packed=0xFFFFFFFF, extra=struct.pack("<HHQQ", 1, 16, 1 << 63, 1 << 63))]
        ),
        CorruptError,
    ),
    "ratio": (lambda: zipped([Member("x/a", bytes(1 << 20), method=8, size=1 << 21)]), LimitError),
    "a folder with bytes": (lambda: zipped([replace(A, attributes=0x10)]), CorruptError),
    "folder above": (lambda: zipped([replace(A, name="../a", local_name="../a")]), UnsafeContentError),
    "folder above inside": (lambda: zipped([replace(A, name="x/../../a")]), UnsafeContentError),
    "absolute": (lambda: zipped([replace(A, name="/x/a")]), UnsafeContentError),
    "drive": (lambda: zipped([replace(A, name="C:/a")]), UnsafeContentError),
    "backslash": (lambda: zipped([replace(A, name="x\\a")]), UnsafeContentError),
    "NUL": (lambda: zipped([replace(A, name="x/a\0")]), UnsafeContentError),
    "newline": (lambda: zipped([replace(A, name="x/a\nb")]), UnsafeContentError),
    "escape": (lambda: zipped([replace(A, name="x/\x1b[31m")]), UnsafeContentError),
    "no name": (lambda: zipped([replace(A, name="", local_name="")]), CorruptError),
    "not UTF-8": (lambda: zipped([A]).replace(b"x/a", b"x/\xff"), CorruptError),
}


@pytest.mark.parametrize(("make", "kind"), HOSTILE.values(), ids=HOSTILE)
def test_an_archive_that_lies_is_refused(make: Callable[[], bytes], kind: Refusal) -> None:
    """H19: PT-02, PT-03, PT-04."""
    data = make()
    with pytest.raises(kind):
        directory(data)


def test_a_path_that_only_looks_like_one_above_is_fine() -> None:
    assert list(contents(zipped([replace(A, name="x/a..b", local_name="x/a..b")]))) == ["x/a..b"]


def test_every_prefix_is_refused() -> None:
    """H3."""
    data = zipped([A, replace(B, method=8)])
    for length in range(len(data)):
        with pytest.raises(FormatError):
            directory(data[:length])


def test_a_million_members_announced_cost_nothing() -> None:
    data = zipped([A], count=1_000_000)
    started = time.process_time()
    with pytest.raises(CorruptError):
        directory(data)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("packed", "size"),
    [
        (deflated(b"abc"), 2),
        (deflated(b"abc"), 4),
        (deflated(b"abc") + b"x", 3),
        (deflated(b"abc")[:-1], 3),
        (b"\xff\xff\xff", 3),
        (b"", 3),
        (b"", 0),
    ],
)
def test_deflated_bytes_give_exactly_what_they_announce(packed: bytes, size: int) -> None:
    """PT-07."""
    with pytest.raises(CorruptError):
        inflate(packed, size, most=1000)


def test_inflating_stops_at_the_limit() -> None:
    """PT-07."""
    with pytest.raises(LimitError):
        inflate(deflated(bytes(100)), 100, most=99)


@given(edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutants_are_refused_or_read_as_zipfile_reads_them(edits: list[tuple[int, int]]) -> None:
    data = bytearray(zipped([A, replace(B, method=8)]))
    for at, value in edits:
        data[at % len(data)] = value
    try:
        found = contents(bytes(data))
    except (FormatError, UnsafeContentError):
        return
    try:
        archive = zipfile.ZipFile(io.BytesIO(bytes(data)))
    except NotImplementedError:  # A version that Python's reader is too old for; nothing else depends on it.
        return
    with archive:
        for name, raw in found.items():
            if zlib.crc32(raw) == archive.getinfo(name).CRC:
                assert archive.read(name) == raw
