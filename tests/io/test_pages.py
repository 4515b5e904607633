"""Reads past the page cache: the same bytes, whatever is cached, refused, short or at the end of the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnstore.errors import ClosedError, ReadError, TruncatedError
from burnstore.io import pages as pages_module
from burnstore.io.gpu.buffers import page_aligned
from burnstore.io.sizes import PAGE
from burnstore.io.source import BytesSource, FileSource, MmapSource, page_reader

DATA = np.random.default_rng(2).integers(0, 256, 300_123, np.uint8).tobytes()
RANGES = [(0, 1), (0, PAGE), (1, PAGE), (PAGE - 1, 2), (PAGE, 2 * PAGE), (12_345, 100_000), (300_122, 1), (0, 300_123)]
needs_nowait = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs preadv2 with RWF_NOWAIT")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[FileSource]:
    (tmp_path / "data").write_bytes(DATA)
    opened = FileSource(tmp_path / "data")
    yield opened
    opened.close()


def read(source: Any, offset: int, length: int) -> bytes:
    memory = memoryview(page_aligned(-(-(offset % PAGE + length) // PAGE) * PAGE))
    page_reader(source)(offset, length, memory)
    return bytes(memory[offset % PAGE : offset % PAGE + length])


def assert_reads(source: Any) -> None:
    for offset, length in RANGES:
        assert read(source, offset, length) == DATA[offset : offset + length]


class Os:
    """The system as `pages` sees it: with a page cache that has what it is told, and calls that fail as they are told.

    ``direct`` is what a direct read does, an errno or the most bytes that it gives.
    """

    def __init__(self, *, cached: range = range(0), nowait: int = 0, direct: int = 1 << 30, opens: int = 0) -> None:
        self.cached, self.nowait, self.direct, self.opens = cached, nowait, direct, opens
        self.direct_reads: list[tuple[int, int]] = []
        self.asked: list[int] = []
        self.fd = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int) -> int:
        assert flags & os.O_DIRECT
        if self.opens:
            raise OSError(self.opens, "refused")
        self.fd = os.open(path, flags & ~os.O_DIRECT)
        return self.fd

    def preadv(self, fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        (buffer,) = buffers
        if flags:
            if self.nowait:
                raise OSError(self.nowait, "refused")
            self.asked.append(len(buffer))
            if offset not in self.cached:
                raise BlockingIOError(errno.EAGAIN, "not cached")
            return os.preadv(fd, [buffer[: self.cached.stop - offset]], offset)
        if fd != self.fd:
            return os.preadv(fd, buffers, offset)
        address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        assert offset % PAGE == len(buffer) % PAGE == address % PAGE == 0, "a disk would refuse this"
        self.direct_reads.append((offset, len(buffer)))
        if self.direct < 200:
            raise OSError(self.direct, "failed")
        return os.preadv(fd, [buffer[: self.direct]], offset)


def system(monkeypatch: pytest.MonkeyPatch, **told: Any) -> Os:
    fake = Os(**told)
    monkeypatch.setattr(pages_module, "os", fake)
    return fake


def test_every_kind_of_source_can_be_read_so(source: FileSource) -> None:
    assert_reads(source)
    assert_reads(BytesSource(DATA))
    with_map = MmapSource(source.name)
    assert_reads(with_map)
    with_map.close()


def test_a_file_that_was_dropped_from_the_cache_is_read(source: FileSource) -> None:
    descriptor = os.open(source.name, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    assert_reads(source)


@needs_nowait
def test_what_is_cached_is_not_read_from_the_disk(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = system(monkeypatch, cached=range(len(DATA)))
    assert_reads(source)
    assert fake.direct_reads == []


@needs_nowait
def test_what_is_not_cached_is_read_directly_with_the_pages_around_it(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = system(monkeypatch)
    assert_reads(source)
    assert len(fake.direct_reads) == len(RANGES)
    assert set(fake.asked[1:]) == {1}  # after the first miss the kernel is asked for one byte, and reads nothing ahead


@needs_nowait
def test_of_a_range_that_is_partly_cached_the_rest_is_read_directly(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = system(monkeypatch, cached=range(20_000))
    assert read(source, 12_345, 100_000) == DATA[12_345:112_345]
    assert fake.direct_reads == [(16_384, 114_688 - 16_384)]


@needs_nowait
@pytest.mark.parametrize("direct", [PAGE, 3 * PAGE, 10_000])
def test_short_direct_reads_are_continued(source: FileSource, monkeypatch: pytest.MonkeyPatch, direct: int) -> None:
    system(monkeypatch, direct=direct)
    assert_reads(source)


@needs_nowait
@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_direct_reads_is_read_plainly(
    source: FileSource, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    for told in ({"opens": refusal}, {"direct": refusal}, {"nowait": refusal}):
        system(monkeypatch, **told)
        assert_reads(source)
        source.close()
        source.__init__(source.name)  # type: ignore[misc]


def test_a_platform_that_does_not_tell_is_read_plainly(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "_NOWAIT", None)
    assert_reads(source)


@needs_nowait
def test_a_disk_that_fails_is_reported(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    for told in ({"direct": errno.EIO}, {"nowait": errno.EIO}):
        system(monkeypatch, **told)
        with pytest.raises(ReadError) as caught:
            read(source, 5000, 10)
        assert (caught.value.path, caught.value.errno, caught.value.offset) == (source.name, errno.EIO, 5000)


@needs_nowait
@pytest.mark.parametrize("cached", [range(0), range(300_123)])
def test_a_file_that_was_cut_is_reported(source: FileSource, monkeypatch: pytest.MonkeyPatch, cached: range) -> None:
    system(monkeypatch, cached=cached)
    os.truncate(source.name, 100_000)
    with pytest.raises(TruncatedError) as caught:
        read(source, 50_000, 100_000)
    assert caught.value.path == source.name
    with pytest.raises(TruncatedError):
        read(source, 300_000, 1000)  # behind the end that the file once had


def test_a_closed_file_is_not_read(source: FileSource) -> None:
    reader = page_reader(source)
    source.close()
    with pytest.raises(ClosedError):
        reader(0, 10, memoryview(page_aligned(PAGE)))
