"""Runs: equally spaced pieces of a source, whichever way they are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore.io import pages, parallel
from burnstore.io.gpu.buffers import page_aligned
from burnstore.io.runs import RunsSource, read_runs
from burnstore.io.sizes import PAGE
from burnstore.io.source import BytesSource, FileSource, JoinedSource, MmapSource, page_reader
from burnstore.testing import CountingSource

needs_vectors = pytest.mark.skipif(
    not hasattr(os, "RWF_NOWAIT") or pages._vector_copy() is None, reason="needs process_vm_writev of Linux"
)


def content(nbytes: int) -> bytes:
    return np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).tobytes()


def wanted(data: bytes, offset: int, row: int, run: int, count: int) -> bytes:
    return b"".join(data[offset + at * row : offset + at * row + run] for at in range(count))


def read(source: Any, offset: int, row: int, run: int, count: int) -> bytes:
    buffer = np.empty(run * count, np.uint8)
    read_runs(source, offset, row, run, memoryview(buffer))
    return buffer.tobytes()


@given(
    offset=st.integers(0, 50),
    run=st.integers(1, 20),
    between=st.integers(0, 30),
    count=st.integers(0, 40),
    data=st.data(),
)
def test_the_runs_are_those_bytes(offset: int, run: int, between: int, count: int, data: Any) -> None:
    row = run + between
    raw = content(offset + row * count + data.draw(st.integers(0, 9)))
    for source in (BytesSource(raw), BytesSource(raw, share=True), JoinedSource("both", [BytesSource(raw)])):
        assert read(source, offset, row, run, count) == wanted(raw, offset, row, run, count)


# short rows; rows with a page between their runs; rows whose runs are always read alone
SIZES = [(512, 100, 5000), (16 << 10, 2048, 400), (130 << 10, 5000, 9), (3 << 20, 2 << 20, 3)]


@pytest.fixture(params=SIZES, ids=str)
def sizes(request: Any) -> tuple[int, int, int]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def raw(sizes: tuple[int, int, int]) -> bytes:
    row, _, count = sizes
    return content(77 + row * count)


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_a_file_gives_them_however_much_of_it_is_cached(
    tmp_path: Path, kind: Any, raw: bytes, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, run, count = sizes
    (tmp_path / "file").write_bytes(raw)
    source = kind(tmp_path / "file")
    expected = wanted(raw, 77, row, run, count)
    assert read(source, 77, row, run, count) == expected
    monkeypatch.setattr(pages, "_NOWAIT", None)  # nobody tells
    assert read(source, 77, row, run, count) == expected
    source.close()


def vector_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs are copied by each call, from now on."""
    real, calls = pages._vector_copy(), []
    assert real is not None

    def noted(pid: int, runs: int, count: int, target: int, targets: int, flags: int) -> int:
        calls.append(count)
        return real(pid, runs, count, target, targets, flags)

    monkeypatch.setattr(pages, "_vector_copy", lambda: noted)
    return calls


class System:
    """The system as a `FileSource` sees it, with a page cache that has what it is told; notes what is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_cached: Callable[[int], bool]) -> None:
        self.asked: list[int] = []
        self.read: list[tuple[int, int]] = []
        real = os.preadv

        def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
            if not flags:
                self.read.append((offset, len(buffers[0])))
                return real(fd, buffers, offset)
            self.asked.append(offset)
            if not is_cached(offset):
                raise BlockingIOError(errno.EAGAIN, "would wait")
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", preadv)
        monkeypatch.setattr(pages, "_NOWAIT", 8)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[FileSource]:
    (tmp_path / "file").write_bytes(CONTENT)
    opened = FileSource(tmp_path / "file")
    yield opened
    opened.close()


ROW, RUN, COUNT = 16 << 10, 2048, 3000
CONTENT = content(ROW * COUNT)


@needs_vectors
def test_cached_runs_are_copied_very_many_with_one_call(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, lambda offset: True)
    calls = vector_calls(monkeypatch)
    assert read(source, 0, ROW, RUN, 1500) == wanted(CONTENT, 0, ROW, RUN, 1500)
    assert system.read == [] and len(system.asked) == 2  # of 16 MiB of the file one run is asked for
    assert calls == [1023, 475]


@needs_vectors
def test_runs_that_are_not_in_the_page_cache_are_read_through(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(monkeypatch, lambda offset: offset >= 1000 * ROW)
    assert read(source, 0, ROW, RUN, 1500) == wanted(CONTENT, 0, ROW, RUN, 1500)
    bands = -(-1000 // 64)
    assert len(system.read) == bands == len(system.asked) - 1  # asked once in vain for each megabyte, not for each run
    assert all(length <= 1 << 20 for _, length in system.read)


@pytest.mark.parametrize("answer", [-1, 0])
def test_a_system_that_does_not_copy_runs_is_not_needed(
    source: FileSource, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    System(monkeypatch, lambda offset: True)
    monkeypatch.setattr(pages, "_vector_copy", lambda: lambda *_: answer)
    assert read(source, 0, ROW, RUN, 1500) == wanted(CONTENT, 0, ROW, RUN, 1500)
    monkeypatch.setattr(pages, "_vector_copy", lambda: None)
    assert read(source, 0, ROW, RUN, 1500) == wanted(CONTENT, 0, ROW, RUN, 1500)


def test_a_file_that_cannot_be_mapped_is_read(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    System(monkeypatch, lambda offset: True)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENODEV, "not here")

    monkeypatch.setattr(pages.mmap, "mmap", refused)
    assert read(source, 0, ROW, RUN, 1500) == wanted(CONTENT, 0, ROW, RUN, 1500)


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_system_that_does_not_tell_what_is_cached_is_not_needed(
    source: FileSource, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refused(offset: int) -> bool:
        raise OSError(error, "no such flag here")

    System(monkeypatch, refused)
    assert read(source, 0, ROW, RUN, 1500) == wanted(CONTENT, 0, ROW, RUN, 1500)


@needs_vectors
@pytest.mark.parametrize("left", [0, 100 * ROW, 100 * ROW + 7])
def test_a_file_that_is_cut_while_it_is_mapped_kills_nobody(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    real = pages._vector_copy()
    assert real is not None

    def cut_before(*arguments: int) -> int:
        os.truncate(tmp_path / "file", left)
        return real(*arguments)

    System(monkeypatch, lambda offset: True)
    monkeypatch.setattr(pages, "_vector_copy", lambda: cut_before)
    with pytest.raises((bs.errors.TruncatedError, bs.errors.ChangedError)):
        read(source, 0, ROW, RUN, COUNT)


# --- as a source ------------------------------------------------------------------------------------------------------


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(("row", "run"), [(512, 100), (16 << 10, 2048), (130 << 10, 5000), (3 << 20, 2 << 20)])
@pytest.mark.parametrize("is_cached", [True, False])
def test_pages_of_runs_are_read_in_the_thread_that_asks(
    source: FileSource, monkeypatch: pytest.MonkeyPatch, row: int, run: int, is_cached: bool
) -> None:
    System(monkeypatch, lambda offset: is_cached)
    monkeypatch.setattr("burnstore.io.runs.for_each", None)
    monkeypatch.setattr("burnstore.io.source.for_each", None)
    count = len(CONTENT) // row
    everything = wanted(CONTENT, 3, row, run, count - 1)
    for behind in (source, JoinedSource("all", [BytesSource(b"before"), source])):
        at = 3 if behind is source else 8192 + 3
        runs = RunsSource(behind, at, row=row, run=run, count=count - 1)
        for offset in (0, 1, run - 1, run, 5 * run // 2, PAGE + 1):
            length = min(runs.size - offset, (8 << 20) + 17)
            memory = memoryview(page_aligned(length + 2 * PAGE))
            page_reader(runs)(offset, length, memory)
            first = offset % PAGE
            assert memory[first : first + length] == everything[offset : offset + length]
        runs.check_unchanged()
        with pytest.raises(bs.errors.TruncatedError):
            page_reader(runs)(runs.size - 3, 4, memory)


def test_a_part_of_runs_is_runs_and_tells_of_a_change(tmp_path: Path, source: FileSource) -> None:
    inner = RunsSource(source, 0, row=ROW, run=RUN, count=COUNT)
    outer = RunsSource(inner, 10, row=RUN, run=64, count=COUNT)
    memory = memoryview(page_aligned(-(-outer.size // PAGE) * PAGE))
    page_reader(outer)(0, outer.size, memory)
    assert memory[: outer.size] == wanted(CONTENT, 10, ROW, 64, COUNT) == outer.read_at(0, outer.size)
    RunsSource(BytesSource(CONTENT[:100]), 0, row=10, run=2, count=10).check_unchanged()
    os.utime(tmp_path / "file", ns=(1, 1))
    with pytest.raises(bs.errors.ChangedError):
        outer.check_unchanged()


# --- by several threads, and failing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_much_is_read_by_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(parallel, "IO_THREADS", 4)
    monkeypatch.setattr(pages, "_NOWAIT", None)
    raw = content(40 << 20)
    (tmp_path / "file").write_bytes(raw)
    source = kind(tmp_path / "file")
    row, run, count = 10 << 10, 700, 4096
    buffer = np.empty(run * count, np.uint8)
    read_runs(source, 5, row, run, memoryview(buffer))
    rows = np.frombuffer(raw, np.uint8).reshape(count, row)
    assert (buffer.reshape(count, run) == rows[:, 5 : 5 + run]).all()
    source.close()


def test_a_disk_that_fails_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(64 << 10))
    source = FileSource(tmp_path / "file")
    real = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EIO, "broken")
        return real(fd, buffers, offset)

    monkeypatch.setattr(pages, "_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(bs.errors.ReadError, match="broken") as caught:
        read(source, 0, 16 << 10, 2048, 4)
    assert caught.value.errno == errno.EIO
    source.close()


def test_runs_beyond_the_end_or_of_a_closed_or_changed_file_are_errors_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64 << 10))
    source = FileSource(tmp_path / "file")
    for row, run in ((16 << 10, 2048), (600, 100), (130 << 10, 100)):
        with pytest.raises(bs.errors.TruncatedError):
            read(source, 1 << 10, row, run, 1000)
    with (tmp_path / "file").open("r+b") as file:
        file.write(b"other")
    os.utime(tmp_path / "file", ns=(1, 1))
    with pytest.raises(bs.errors.ChangedError):
        read(source, 0, 16 << 10, 2048, 4)
    source.close()
    with pytest.raises(bs.errors.ClosedError):
        read(source, 0, 16 << 10, 2048, 4)


def test_short_rows_are_read_through_once_and_long_ones_not_at_all() -> None:
    source = CountingSource(content(1 << 20))
    read(source, 0, 1024, 128, 1024)
    assert source.ranges == [(0, 1023 * 1024 + 128)]
    source.forget()
    read(source, 0, 128 << 10, 128, 8)
    assert source.ranges == [(at * (128 << 10), 128) for at in range(8)]
