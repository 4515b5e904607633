"""Spool: bytes made once and read at any position, in memory or in a file without a name."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from pathlib import Path

import pytest

from burnstore.errors import ClosedError, ReadError, TruncatedError
from burnstore.io.source import BytesSource, FileSource
from burnstore.io.spool import Spool


@pytest.mark.parametrize("in_memory", [0, 10, 1 << 20])
def test_what_was_written_is_read_at_any_position(in_memory: int) -> None:
    spool = Spool(in_memory=in_memory)
    for number in range(100):
        spool.write(bytes([number]) * number)
    assert spool.size == sum(range(100))
    source = spool.source("name")
    assert (source.name, source.size) == ("name", spool.size)
    assert isinstance(source, BytesSource if in_memory > 4950 else FileSource)
    assert source.read_at(sum(range(50)), 50) == bytes([50]) * 50
    buffer = bytearray(99)
    source.read_into([(source.size - 99, memoryview(buffer))])
    assert buffer == bytes([99]) * 99
    with pytest.raises(TruncatedError):
        source.read_at(source.size - 1, 2)
    source.close()
    with pytest.raises(ClosedError):
        source.read_at(0, 1)


def test_nothing_is_left_in_the_folder_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool(in_memory=0)
    spool.write(b"content")
    source = spool.source("name")
    assert os.listdir(tmp_path) == []
    source.close()


def test_a_spool_that_is_given_up_lets_its_file_go() -> None:
    spool = Spool(in_memory=0)
    spool.write(b"content")
    spool.close()
    Spool().close()


def test_a_full_disk_is_an_error_of_burnstore_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(ReadError, match="TMPDIR") as caught:
        Spool(in_memory=0).write(b"content")
    assert caught.value.errno == errno.ENOSPC


def _remade(text: str) -> BytesSource:
    return BytesSource(text.encode())


def test_a_pickled_source_is_made_again() -> None:
    spool = Spool(in_memory=0)
    spool.write(b"content")
    source = spool.source("name", (_remade, ("again",)))
    assert pickle.loads(pickle.dumps(source)).read_at(0, 5) == b"again"
    source.close()
    other = Spool(in_memory=0)
    other.write(b"content")
    source = other.source("name")
    with pytest.raises(ClosedError, match="pickled"):
        pickle.dumps(source)
    source.close()
