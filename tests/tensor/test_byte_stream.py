from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from burnstore.tensor.snapshot import ByteStream
from burnstore.tensor.sources import HeldData

RAW = bytes(range(100))


class InChunks(HeldData):
    """Bytes that come in pieces of seven."""

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield from (self.data.raw[start : start + 7] for start in range(0, nbytes, 7))


def in_chunks(said: int = 100) -> bs.TensorSnapshot:
    data = bs.TensorData.from_bytes(RAW, bs.DType.U8, (100,))
    return bs.TensorSnapshot("x", bs.DType.U8, (said,), InChunks(data), nbytes=100)


@pytest.mark.parametrize("step", [1, 5, 7, 30, 100])
def test_chunks_are_cut_and_joined_as_asked(step: int) -> None:
    stream = ByteStream(in_chunks())
    taken = [bytes(stream.take(min(step, 100 - start))) for start in range(0, 100, step)]
    assert b"".join(taken) == RAW and all(len(part) <= step for part in taken)


def test_what_ends_early_is_an_error_that_names_the_tensor() -> None:
    stream = ByteStream(in_chunks())
    stream.take(90)
    with pytest.raises(bs.errors.CorruptError, match="tensor 'x': ends 5 bytes early"):
        stream.take(15)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_a_file_is_read_from_any_place_on(tmp_path: Path, zero_copy: bool) -> None:
    bs.save({"x": np.frombuffer(RAW, np.uint8)}, tmp_path / "m.bpk")
    with bs.open(tmp_path / "m.bpk", zero_copy=zero_copy) as f:
        stream = ByteStream(f["x"], 40)
        assert bytes(stream.take(10)) == RAW[40:50] and bytes(stream.take(3)) == RAW[50:53]


def test_streams_share_a_buffer(tmp_path: Path) -> None:
    bs.save({"x": np.frombuffer(RAW, np.uint8), "y": np.frombuffer(RAW[::-1], np.uint8)}, tmp_path / "m.bpk")
    buffer = bytearray(40)
    with bs.open(tmp_path / "m.bpk") as f:
        assert ByteStream(f["x"], 0, buffer).take(40) is buffer and bytes(buffer) == RAW[:40]
        stream = ByteStream(f["y"], 80, buffer)
        assert bytes(stream.take(20)) == RAW[::-1][80:] and bytes(buffer[20:]) == RAW[20:40]


def test_only_files_can_be_begun_anywhere() -> None:
    with pytest.raises(ValueError, match="only tensors of files"):
        ByteStream(in_chunks(), 3)
