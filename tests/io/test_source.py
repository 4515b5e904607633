"""Sources: exactly the bytes asked for, or an error that says what the world did to the file meanwhile."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import ChangedError, ClosedError, ReadError, TruncatedError
from burnstore.io import parallel
from burnstore.io import source as source_module
from burnstore.io.source import BytesSource, FileSource, MmapSource, Source

DATA = bytes(range(256)) * 64
needs_preadv = pytest.mark.skipif(not hasattr(os, "preadv"), reason="needs preadv")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    return path


KINDS: dict[str, Callable[[Path], Source]] = {
    "file": FileSource,
    "mapped": MmapSource,
    "bytes": lambda path: BytesSource(path.read_bytes()),
    "bytearray": lambda path: BytesSource(bytearray(path.read_bytes())),
    "shared": lambda path: BytesSource(path.read_bytes(), share=True),
    "wide-memoryview": lambda path: BytesSource(memoryview(np.frombuffer(path.read_bytes(), np.float64))),
}


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, path: Path) -> Iterator[Source]:
    opened = KINDS[request.param](path)
    yield opened
    opened.close()


def filled(source: Source, *ranges: tuple[int, int]) -> list[bytes]:
    buffers = [bytearray(length) for _, length in ranges]
    source.read_into([(offset, memoryview(buffer)) for (offset, _), buffer in zip(ranges, buffers, strict=True)])
    return [bytes(buffer) for buffer in buffers]


def test_every_kind_of_source_gives_the_same_bytes(source: Source) -> None:
    assert source.size == len(DATA)
    for offset, length in [(0, 1), (0, len(DATA)), (7, 1000), (len(DATA) - 1, 1), (len(DATA), 0), (5, 0)]:
        wanted = DATA[offset : offset + length]
        assert source.read_at(offset, length) == wanted
        assert filled(source, (offset, length)) == [wanted]
        view = source.view(offset, length)
        assert view is None or (bytes(view) == wanted and view.readonly)
    assert filled(source, (9, 3), (0, 4), (9, 3)) == [DATA[9:12], DATA[:4], DATA[9:12]]
    assert filled(source) == []


def test_what_lies_outside_is_truncated(source: Source) -> None:
    shares = source.view(0, 0) is not None
    for offset, length in [(len(DATA), 1), (0, len(DATA) + 1), (len(DATA) + 5, 0), (2**62, 10), (1, 2**62)]:
        for read in (source.read_at, source.view) if shares else (source.read_at,):
            with pytest.raises(TruncatedError) as caught:
                read(offset, length)
            assert (caught.value.offset, caught.value.path) == (offset, source.name)


def test_a_closed_source_says_so(source: Source) -> None:
    source.close()
    source.close()
    for read in (lambda: source.read_at(0, 1), lambda: filled(source, (0, 1))):
        with pytest.raises(ClosedError):
            read()


def test_views_outlive_their_source(path: Path) -> None:
    for opened in (MmapSource(path), BytesSource(DATA, share=True)):
        view = opened.view(10, 1000)
        opened.close()
        del opened
        gc.collect()
        assert view is not None
        assert bytes(view) == DATA[10:1010]
        with pytest.raises(TypeError):
            view[0] = 1


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_an_empty_file_has_no_bytes(kind: type[FileSource], tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    opened = kind(path)
    assert (opened.size, opened.read_at(0, 0)) == (0, b"")
    with pytest.raises(TruncatedError):
        opened.read_at(0, 1)
    opened.close()


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_what_is_no_regular_file_is_refused_and_does_not_hang(kind: type[FileSource], tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="directory"):
        kind(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(ReadError, match="not a regular file"):
            kind(tmp_path / "fifo")
    if os.path.exists("/dev/zero"):
        with pytest.raises(ReadError, match="not a regular file"):
            kind("/dev/zero")
    with pytest.raises(FileNotFoundError):
        kind(tmp_path / "nothing")


def test_a_path_can_be_text_a_path_or_bytes_of_one(path: Path) -> None:
    class AsBytes:
        def __fspath__(self) -> bytes:
            return os.fsencode(path)

    for given in (str(path), path, AsBytes()):
        opened = FileSource(given)  # type: ignore[arg-type]
        assert opened.name == str(path)
        assert opened.read_at(0, 4) == DATA[:4]
        opened.close()


# --- the file changes while it is open (C2) ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 100, len(DATA) - 1])
def test_a_file_that_is_cut_is_reported_and_the_process_lives(path: Path, length: int) -> None:
    opened = FileSource(path)
    os.truncate(path, length)
    for read in (lambda: opened.read_at(0, len(DATA)), lambda: filled(opened, (0, len(DATA)))):
        with pytest.raises((TruncatedError, ChangedError)) as caught:
            read()
        assert caught.value.path == str(path)
    with pytest.raises((TruncatedError, ChangedError)):
        opened.read_at(0, min(1, length) or 1)  # also of bytes that are still there
    opened.close()


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_a_file_that_is_overwritten_in_place_is_reported(kind: type[FileSource], path: Path) -> None:
    opened = kind(path)
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))  # whatever the clock's grain
    for read in (lambda: opened.read_at(100, 5), lambda: filled(opened, (100, 5))):
        with pytest.raises(ChangedError, match="changed in place") as caught:
            read()
        assert caught.value.hint == "open it again"
        assert isinstance(caught.value, OSError)
    opened.close()


def test_a_mapped_file_that_was_cut_before_it_is_looked_at_is_reported(path: Path) -> None:
    opened = MmapSource(path)
    os.truncate(path, 10)
    with pytest.raises(ChangedError):
        opened.view(0, len(DATA))
    opened.close()


def test_a_file_that_cannot_be_mapped_is_a_read_error_and_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for failure in (OSError(errno.ENOMEM, "no memory"), ValueError("mmap length is greater than file size")):

        def fail(*_: object, failure: Exception = failure, **__: object) -> None:
            raise failure

        monkeypatch.setattr(source_module, "FileMap", fail)
        with pytest.raises(ReadError, match="cannot be mapped") as caught:
            MmapSource(path)
        assert caught.value.path == str(path)


def test_a_file_that_is_replaced_or_unlinked_is_read_on_as_it_was(path: Path) -> None:
    opened = FileSource(path)
    other = path.with_name("other")
    other.write_bytes(b"x" * len(DATA))
    other.rename(path)
    assert opened.read_at(0, 300) == DATA[:300]
    path.unlink()
    assert opened.read_at(300, 300) == DATA[300:600]
    path.parent.joinpath("moved").mkdir()
    assert filled(opened, (0, 10)) == [DATA[:10]]
    opened.close()


# --- the operating system fails reads (C5) ----------------------------------------------------------------------------


@needs_preadv
@pytest.mark.parametrize("most", [1, 7, 255])
def test_short_reads_are_continued(path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, real_pread = os.preadv, os.pread
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:most]], offset))
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real_pread(fd, min(length, most), offset))
    opened = FileSource(path)
    assert opened.read_at(3, 2000) == DATA[3:2003]
    assert filled(opened, (0, 999), (50, 3)) == [DATA[:999], DATA[50:53]]
    opened.close()


@needs_preadv
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENXIO])
@pytest.mark.parametrize("at", [0, 2])
def test_a_read_that_fails_names_file_tensor_and_place(
    number: int, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.bpk"
    bs.save({"first": np.zeros(4, np.float32), "the.second": np.ones(500, np.float32)}, path, durable=False)
    real, calls = os.preadv, []

    def failing(fd: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        if len(calls) > at:
            raise OSError(number, os.strerror(number))
        return real(fd, [buffers[0][:100]], offset)

    with bs.open(path) as f:
        start = f.offset_of("the.second")
        monkeypatch.setattr(os, "preadv", failing)
        with pytest.raises(ReadError) as caught:
            f["the.second"].numpy()
        assert (caught.value.errno, caught.value.path, caught.value.tensor) == (number, str(path), "the.second")
        assert caught.value.offset == start + at * 100
        assert os.strerror(number) in str(caught.value)
        with pytest.raises(ReadError):
            f.numpy()
        monkeypatch.setattr(os, "preadv", real)
        assert f["the.second"][499] == 1  # the failure was the system's; the checkpoint is as good as before


@needs_preadv
def test_an_interrupted_read_passes_the_interrupt_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    opened = FileSource(path)
    monkeypatch.setattr(os, "preadv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        filled(opened, (0, 10))
    opened.close()


@needs_preadv
def test_an_end_of_file_that_comes_early_is_truncation_and_no_endless_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = FileSource(path)
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(TruncatedError):
        filled(opened, (0, 10))
    opened.close()


# --- large reads ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few kilobytes count as a large read."""
    monkeypatch.setattr(source_module, "SYSCALL_BYTES", 1000)
    monkeypatch.setattr(source_module, "PARALLEL_BYTES", 4000)
    monkeypatch.setattr(parallel, "IO_THREADS", 4)


@pytest.mark.usefixtures("small_windows")
def test_large_reads_are_split_and_read_in_parallel(path: Path) -> None:
    opened = FileSource(path)
    assert opened.read_at(1, 16_000) == DATA[1:16_001]
    ranges = [(offset, 999 + offset) for offset in range(0, 7500, 301)]
    assert filled(opened, *ranges) == [DATA[offset : offset + length] for offset, length in ranges]
    opened.close()


@needs_preadv
@pytest.mark.usefixtures("small_windows")
def test_a_failure_in_one_of_many_threads_is_the_failure_of_the_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def failing(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset == 9000:
            raise OSError(errno.EIO, "broken")
        return real(fd, buffers, offset)

    opened = FileSource(path)
    monkeypatch.setattr(os, "preadv", failing)
    threads = threading.active_count()
    with pytest.raises(ReadError) as caught:
        filled(opened, (0, 16_000))
    assert (caught.value.offset, caught.value.errno) == (9000, errno.EIO)
    assert threading.active_count() == threads
    opened.close()


@pytest.mark.usefixtures("small_windows")
def test_a_source_closed_during_reads_gives_its_bytes_or_says_that_it_is_closed(path: Path, tmp_path: Path) -> None:
    """Its descriptor's number may be given to another file at once; bytes of that one must never come out."""
    other = tmp_path / "other"
    other.write_bytes(b"\xee" * len(DATA))
    wrong: list[Any] = []

    def read(opened: FileSource) -> None:
        try:
            while True:
                if opened.read_at(0, 8000) != DATA[:8000]:
                    wrong.append("bytes of another file")
                    return
        except (ClosedError, ReadError):
            return
        except BaseException as error:
            wrong.append(error)

    for _ in range(30):
        opened = FileSource(path)
        threads = [threading.Thread(target=read, args=(opened,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        opened.close()
        fds = [os.open(other, os.O_RDONLY) for _ in range(3)]
        for thread in threads:
            thread.join()
        for fd in fds:
            os.close(fd)
    assert wrong == []


@pytest.mark.parametrize("call", ["fstat", "pread", "preadv"])
@pytest.mark.parametrize("reopened", [False, True], ids=["descriptor_gone", "descriptor_of_another_file"])
def test_a_source_closed_just_before_a_system_call_says_that_it_is_closed(
    path: Path, tmp_path: Path, call: str, reopened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(os, call):
        pytest.skip(f"no os.{call} on this platform")
    other = tmp_path / "other"
    other.write_bytes(b"")
    real, opened, taken = getattr(os, call), FileSource(path), []

    def closed_before(*arguments: Any) -> Any:
        monkeypatch.setattr(os, call, real)
        opened.close()
        if reopened:
            taken.append(os.open(other, os.O_RDONLY))
        return real(*arguments)

    monkeypatch.setattr(os, call, closed_before)
    with pytest.raises(ClosedError):
        opened.read_into([(0, memoryview(bytearray(100)))]) if call == "preadv" else opened.read_at(0, 100)
    for fd in taken:
        os.close(fd)


# --- pickling and forking (C4) ----------------------------------------------------------------------------------------


def test_a_source_can_be_pickled(source: Source) -> None:
    again = pickle.loads(pickle.dumps(source))
    assert (type(again), again.size, again.name) == (type(source), source.size, source.name)
    assert again.read_at(0, len(DATA)) == DATA
    again.close()


def test_a_pickled_source_is_found_again_from_another_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = FileSource("data.bin")
    pickled = pickle.dumps(opened)
    opened.close()
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert again.read_at(0, 4) == DATA[:4]
    again.close()


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_a_pickled_source_refuses_another_file(kind: type[FileSource], path: Path) -> None:
    opened = kind(path)
    pickled = pickle.dumps(opened)
    opened.close()
    os.utime(path, ns=(0, 0))
    with pytest.raises(ChangedError, match="no longer the one"):
        pickle.loads(pickled)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickled)


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_a_source_that_is_dropped_closes_its_file(kind: type[FileSource], path: Path) -> None:
    kind(path)  # what it opened must be gone when the test ends, see tests/conftest.py
