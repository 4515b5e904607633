"""Portions: a scratch file in its full size, written at positions by many, published as a whole or not at all."""

from __future__ import annotations

import errno
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from burnstore.errors import ClosedError, SaveError
from burnstore.io import atomic
from burnstore.io.atomic import SharedScratch, atomic_file


def saved(path: Path, size: int, act: Callable[[SharedScratch], None], **options: Any) -> None:
    """Save a shared file into which ``act`` writes."""
    with atomic_file(path, size=size, **options) as scratch:
        act(scratch.shared(size))


def write(place: SharedScratch, offset: int, data: bytes, *, durable: bool = False) -> None:
    with place.opened(durable=durable) as portion:
        portion.write_at(offset, data)


def test_parts_written_in_any_order_by_many_become_one_file(tmp_path: Path) -> None:
    size, step = 1 << 20, 1 << 16
    with atomic_file(tmp_path / "x", size=size) as scratch:
        place = pickle.loads(pickle.dumps(scratch.shared(size)))

        def part(number: int) -> None:
            write(place, number * step, bytes([number]) * step, durable=number % 2 == 0)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(part, reversed(range(size // step))))
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "x").read_bytes() == b"".join(bytes([number]) * step for number in range(size // step))


def test_what_nobody_writes_is_zeros(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "x") as scratch, scratch.shared(100).opened(durable=False) as portion:
        portion.write_at(40, bytearray(b"middle"))
    assert (tmp_path / "x").read_bytes() == bytes(40) + b"middle" + bytes(54)


def test_a_file_that_grew_beyond_its_size_is_not_published(tmp_path: Path, scratch_files: Any) -> None:
    with pytest.raises(SaveError, match="not saved") as caught:
        saved(tmp_path / "x", 10, lambda place: write(place, 8, b"four"))
    assert caught.value.stage == "sync"
    assert not (tmp_path / "x").exists() and not scratch_files(tmp_path)


def test_a_failure_of_a_writer_leaves_the_old_file(tmp_path: Path, scratch_files: Any) -> None:
    (tmp_path / "x").write_bytes(b"old")

    def fail(place: SharedScratch) -> None:
        write(place, 0, b"new", durable=True)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        saved(tmp_path / "x", 10, fail, overwrite=True)
    assert (tmp_path / "x").read_bytes() == b"old" and not scratch_files(tmp_path)


def test_only_a_new_scratch_file_can_be_shared(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "x") as scratch:
        scratch.write(b"whole")
        with pytest.raises(ClosedError):
            scratch.shared(10)
    with pytest.raises(ClosedError):
        scratch.shared(10)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be exchanged there")
@pytest.mark.parametrize("trick", ["file", "link", "gone", "folder"])
def test_a_scratch_file_that_was_exchanged_is_not_written_into(tmp_path: Path, trick: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"somebody's")

    def exchange(place: SharedScratch) -> None:
        os.unlink(place.path)
        if trick == "file":
            Path(place.path).write_bytes(b"0123456789")
        elif trick == "link":
            os.symlink(other, place.path)
        elif trick == "folder":
            os.mkdir(place.path)
        write(place, 0, b"ours")

    with pytest.raises(SaveError, match="not saved"):
        saved(tmp_path / "x", 10, exchange)
    assert other.read_bytes() == b"somebody's" and not (tmp_path / "x").exists()


class FailingOs:
    """The `os` module with one call that fails."""

    def __init__(self, name: str, act: Callable[..., Any]) -> None:
        self._name, self._act = name, act

    def __getattr__(self, name: str) -> Any:
        return self._act if name == self._name else getattr(os, name)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_write_that_the_system_refuses_says_where_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, scratch_files: Any
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic, "os", FailingOs("pwrite", refuse))
    with pytest.raises(SaveError, match="at byte 7") as caught:
        saved(tmp_path / "x", 10, lambda place: write(place, 7, b"abc"))
    assert (caught.value.stage, caught.value.errno, caught.value.path) == ("write", number, str(tmp_path / "x"))
    assert os.listdir(tmp_path) == []


def test_short_writes_are_continued_and_none_at_all_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with atomic_file(tmp_path / "x", size=1000) as scratch:
        place = scratch.shared(1000)
        short = FailingOs("pwrite", lambda fd, data, offset: os.pwrite(fd, data[:7], offset))
        monkeypatch.setattr(atomic, "os", short)
        with place.opened(durable=False) as portion:
            portion.write_at(0, bytes(range(250)) * 4)
    assert (tmp_path / "x").read_bytes() == bytes(range(250)) * 4
    monkeypatch.setattr(atomic, "os", FailingOs("pwrite", lambda *_: 0))
    with pytest.raises(SaveError, match="writing failed"):
        saved(tmp_path / "y", 10, lambda place: write(place, 0, b"abc"))
    assert os.listdir(tmp_path) == ["x"]


def test_without_positional_writes_the_position_is_set_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        def __getattr__(self, name: str) -> Any:
            if name == "pwrite":
                raise AttributeError(name)
            return getattr(os, name)

    monkeypatch.setattr(atomic, "os", Bare())
    with atomic_file(tmp_path / "x", size=6) as scratch, scratch.shared(6).opened(durable=True) as portion:
        portion.write_at(3, b"def")
        portion.write_at(0, b"abc")
    assert (tmp_path / "x").read_bytes() == b"abcdef"


def test_a_large_write_is_cut_so_that_ctrl_c_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(fd: int, data: memoryview, offset: int) -> int:
        sizes.append(len(data))
        return os.pwrite(fd, data, offset)

    monkeypatch.setattr(atomic, "os", FailingOs("pwrite", counted))
    size = 40 << 20
    saved(tmp_path / "x", size, lambda place: write(place, 0, bytes(size)), durable=False)
    assert sizes == [16 << 20, 16 << 20, 8 << 20]


def test_a_flush_that_fails_is_an_error_of_the_portion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(atomic, "_fsync", refuse)
    with pytest.raises(SaveError, match="brought to disk") as caught:
        saved(tmp_path / "x", 3, lambda place: write(place, 0, b"abc", durable=True))
    assert caught.value.stage == "sync" and os.listdir(tmp_path) == []
