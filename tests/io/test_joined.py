"""Several sources as one: ranges find their source, large batches are read side by side, nothing reaches across."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from burnstore.errors import ChangedError, ClosedError, TruncatedError
from burnstore.io.gather import gather
from burnstore.io.source import BytesSource, FileSource, JoinedSource, MmapSource


def joined(*parts: bytes, share: bool = False) -> JoinedSource:
    return JoinedSource("all", [BytesSource(part, share=share) for part in parts])


def test_each_source_has_its_own_range() -> None:
    source = joined(b"abc", b"", b"defgh")
    assert [source.read_at(base, part.size) for base, part in zip(source.bases, source.parts, strict=True)] == [
        b"abc", b"", b"defgh",
    ]  # fmt: skip
    assert source.size == source.bases[-1] + 5
    assert all(base % 4096 == 0 for base in source.bases)


@pytest.mark.parametrize(("offset", "length"), [(2, 2), (0, 4), (3, 1), (100, 1), (8192, 9), (1 << 40, 1)])
def test_a_range_that_is_in_no_source_is_refused(offset: int, length: int) -> None:
    source = joined(b"abc", b"defgh")
    assert source.bases == [0, 8192]
    with pytest.raises(TruncatedError) as caught:
        source.read_at(offset, length)
    assert caught.value.path == "all"
    with pytest.raises(TruncatedError):
        source.read_into([(offset, memoryview(bytearray(length)))])
    assert source.view(offset, length) is None


def test_views_are_those_of_the_sources() -> None:
    first, second = b"abcdefgh", b"ijklmnop"
    source = joined(first, second, share=True)
    found = source.view(source.bases[1] + 2, 3)
    assert found is not None
    assert bytes(found) == b"klm"
    assert np.shares_memory(np.frombuffer(found, np.uint8), np.frombuffer(second, np.uint8))
    assert source.view(0, source.size) is None
    buffers, places = gather(source, [1, source.bases[1]], [2, 4])
    assert ([bytes(buffer) for buffer in buffers], places) == ([b"bc", b"ijkl"], [0, 0])
    assert joined(first).view(0, 8) is None


def test_large_batches_are_read_right(tmp_path: Path) -> None:
    sizes = [20 << 20, 3, 40 << 20, 1 << 20]
    random = np.random.default_rng(1)
    contents = [random.integers(0, 256, size, np.uint8) for size in sizes]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content.data)
    for kind in (FileSource, MmapSource):
        source = JoinedSource("all", [kind(tmp_path / str(number)) for number in range(len(sizes))])
        found = [np.empty(size, np.uint8) for size in sizes]
        source.read_into([(base, memoryview(each)) for base, each in zip(source.bases, found, strict=True)])
        assert all(np.array_equal(one, other) for one, other in zip(found, contents, strict=True))
        again = pickle.loads(pickle.dumps(source))
        assert again.read_at(again.bases[1], 3) == contents[1].tobytes()
        again.close()
        source.close()
        with pytest.raises(ClosedError):
            source.read_at(0, 1)


def test_a_failure_of_one_source_is_raised(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(40 << 20))
    source = JoinedSource("all", [FileSource(tmp_path / name) for name in "ab"])
    with open(tmp_path / "b", "r+b") as file:
        file.truncate(1 << 20)
    buffers = [memoryview(bytearray(40 << 20)) for _ in range(2)]
    with pytest.raises((TruncatedError, ChangedError)) as caught:
        source.read_into(list(zip(source.bases, buffers, strict=True)))
    assert caught.value.path == str(tmp_path / "b")
    source.close()
