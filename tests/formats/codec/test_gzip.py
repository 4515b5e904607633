"""Gzip: one member, checked to its last byte, and no more of it than allowed."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import BurnstoreError, CorruptError, LimitError, TruncatedError
from burnstore.formats.codec.gzip import begins, deflated, inflated
from burnstore.io.source import BytesSource


def unpacked(data: bytes, most: int = 1 << 30) -> bytes:
    return b"".join(inflated(BytesSource(data), most=most))


@given(st.lists(st.binary(max_size=2000), max_size=20))
def test_what_is_packed_the_package_unpacks(pieces: list[bytes]) -> None:
    packed = b"".join(deflated(pieces))
    assert gzip.decompress(packed) == b"".join(pieces)
    assert unpacked(packed) == b"".join(pieces)
    assert packed[:10].hex() == "1f8b08000000000000ff"


@given(st.binary(max_size=5000), st.integers(0, 9))
def test_what_the_package_packs_is_unpacked(data: bytes, level: int) -> None:
    assert unpacked(gzip.compress(data, level)) == data


def test_a_name_in_the_header_does_no_harm(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "model.mpk.gz", "wb") as file:
        file.write(b"content")
    assert unpacked((tmp_path / "model.mpk.gz").read_bytes()) == b"content"


def test_large_data_come_by_the_piece() -> None:
    data = np.random.default_rng(1).integers(0, 4, 5 << 20, np.uint8).tobytes()
    pieces = list(inflated(BytesSource(gzip.compress(data, 1)), most=len(data)))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 1 << 20


CONTENT = b"the content of a file" * 20
PACKED = gzip.compress(CONTENT, mtime=0)


def test_a_file_cut_at_any_byte_is_refused() -> None:
    for length in range(len(PACKED)):
        with pytest.raises((TruncatedError, CorruptError)):
            unpacked(PACKED[:length])


def test_no_flipped_bit_of_the_data_or_the_trailer_goes_unnoticed() -> None:
    for place in range(10, len(PACKED)):
        for bit in range(8):
            damaged = bytearray(PACKED)
            damaged[place] ^= 1 << bit
            try:
                found = unpacked(bytes(damaged), most=10_000)
            except (TruncatedError, CorruptError, LimitError):
                continue
            assert found == CONTENT  # a bit between the end of the data and the next byte says nothing


@pytest.mark.parametrize("tail", [b"\0", b"x", PACKED, bytes(100)], ids=["zero", "x", "member", "zeros"])
def test_bytes_after_the_member_are_refused(tail: bytes) -> None:
    with pytest.raises(CorruptError, match="follow"):
        unpacked(PACKED + tail)


def test_a_bomb_is_stopped_at_the_bound() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = packer.compress(bytes(64 << 20)) + packer.flush()
    assert len(bomb) < 100_000
    pieces: list[int] = []
    with pytest.raises(LimitError, match="more than"):
        pieces.extend(map(len, inflated(BytesSource(bomb), most=1 << 20)))
    assert sum(pieces) <= 1 << 20


@given(st.binary(max_size=100))
def test_bytes_of_any_kind_raise_nothing_but_errors_of_burnstore(data: bytes) -> None:
    for content in (data, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + data):
        begins(content, 50)
        try:
            unpacked(content)
        except BurnstoreError:
            continue


def test_the_beginning_is_seen_without_the_rest() -> None:
    data = bytes(range(256)) * 100
    assert begins(gzip.compress(data)[:400], 20) == data[:20]
    assert begins(b"no gzip", 20) == b""
