"""Runs: equally spaced pieces of a source, whichever way they are read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore.io import pages, parallel
from burnstore.io.joined import JoinedSource
from burnstore.io.runs import read_runs
from burnstore.io.source import BytesSource, FileSource, MmapSource
from burnstore.testing.counting import CountingSource


def content(nbytes: int) -> bytes:
    return np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).tobytes()


def wanted(data: bytes, offset: int, row: int, run: int, count: int) -> bytes:
    return b"".join(data[offset + at * row : offset + at * row + run] for at in range(count))


def read(source: Any, offset: int, row: int, run: int, count: int) -> bytes:
    buffer = np.empty(run * count, np.uint8)
    read_runs(source, offset, row, run, buffer)
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


@pytest.mark.parametrize("behaviour", ["not cached", "refused", "every other", "short"])
def test_what_is_not_in_the_page_cache_is_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    row, run, count = 16 << 10, 2048, 400
    raw = content(row * count)
    (tmp_path / "file").write_bytes(raw)
    source = FileSource(tmp_path / "file")
    real, asked = os.preadv, []

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            asked.append(offset)
            if behaviour == "not cached" or (behaviour == "every other" and offset // row % 2):
                raise BlockingIOError(errno.EAGAIN, "would wait")
            if behaviour == "refused":
                raise OSError(errno.EOPNOTSUPP, "no such flag here")
            if behaviour == "short":
                return real(fd, [buffers[0][:100]], offset)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(pages, "_NOWAIT", 8)
    assert read(source, 0, row, run, count) == wanted(raw, 0, row, run, count)
    bands = -(-count // 64)
    assert len(asked) == (2 * bands if behaviour == "every other" else bands)  # asked once in vain, not for each run
    source.close()


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_much_is_read_by_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(parallel, "THREADS", 4)
    monkeypatch.setattr(pages, "_NOWAIT", None)
    raw = content(40 << 20)
    (tmp_path / "file").write_bytes(raw)
    source = kind(tmp_path / "file")
    row, run, count = 10 << 10, 700, 4096
    buffer = np.empty(run * count, np.uint8)
    read_runs(source, 5, row, run, buffer)
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
    with pytest.raises(bs.ReadError, match="broken") as caught:
        read(source, 0, 16 << 10, 2048, 4)
    assert caught.value.errno == errno.EIO
    source.close()


def test_runs_beyond_the_end_or_of_a_closed_or_changed_file_are_errors_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64 << 10))
    source = FileSource(tmp_path / "file")
    for row, run in ((16 << 10, 2048), (600, 100), (130 << 10, 100)):
        with pytest.raises(bs.TruncatedError):
            read(source, 1 << 10, row, run, 1000)
    with (tmp_path / "file").open("r+b") as file:
        file.write(b"other")
    os.utime(tmp_path / "file", ns=(1, 1))
    with pytest.raises(bs.ChangedError):
        read(source, 0, 16 << 10, 2048, 4)
    source.close()
    with pytest.raises(bs.ClosedError):
        read(source, 0, 16 << 10, 2048, 4)


def test_short_rows_are_read_through_once_and_long_ones_not_at_all() -> None:
    source = CountingSource(content(1 << 20))
    read(source, 0, 1024, 128, 1024)
    assert source.ranges == [(0, 1023 * 1024 + 128)]
    source.forget()
    read(source, 0, 128 << 10, 128, 8)
    assert source.ranges == [(at * (128 << 10), 128) for at in range(8)]
