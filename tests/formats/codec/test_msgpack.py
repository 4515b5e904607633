"""MessagePack: equal to the msgpack package where both read, strict where it is not, bounded before it builds."""

from __future__ import annotations

import io
import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import BurnstoreError, CorruptError, LimitError, TruncatedError
from burnstore.formats.codec.msgpack import (
    MsgpackReader,
    encode_array_head,
    encode_bytes_head,
    encode_int,
    encode_map_head,
    encode_scalar,
    encode_text,
)
from burnstore.formats.codec.window import Extent, NumberForm, Numbers
from burnstore.io.source import BytesSource
from burnstore.io.spool import Spool

I64 = NumberForm(np.dtype("<i8"), -(1 << 63), (1 << 63) - 1, np.dtype("<f4"), bools=True)


def decoded(data: bytes, *, depth: int = 64, nodes: int = 100_000, longest: int = 1 << 16, forms: Any = None) -> Any:
    """The whole of the data as plain values, byte strings included."""
    spool = Spool()
    reader = MsgpackReader(BytesSource(data), spool, nodes=nodes)
    tree = reader.tree(depth=depth, longest_text=longest, forms=forms)
    if not reader.at_end():
        raise CorruptError("bytes follow")
    return plain(tree, data)


def plain(tree: Any, data: bytes) -> Any:
    if isinstance(tree, Extent):
        return data[tree.offset : tree.offset + tree.nbytes]
    if isinstance(tree, list):
        return [plain(each, data) for each in tree]
    if isinstance(tree, dict):
        return {key: plain(each, data) for key, each in tree.items()}
    return tree


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=20)
)


@pytest.mark.slow("fuzzing")
@given(trees)
def test_it_reads_what_the_package_writes(tree: Any) -> None:
    assert decoded(msgpack.packb(tree)) == tree


@given(st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=300))
def test_scalars_are_written_as_the_package_writes_them(value: Any) -> None:
    assert encode_scalar(value) == msgpack.packb(value)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_heads_are_those_of_the_package(count: int) -> None:
    packer = msgpack.Packer()
    assert encode_array_head(count) == packer.pack_array_header(count)
    assert encode_map_head(count) == packer.pack_map_header(count)
    assert encode_text("x" * count) == msgpack.packb("x" * count)
    assert encode_bytes_head(count) + bytes(count) == msgpack.packb(bytes(count))


@pytest.mark.parametrize("bits", range(65))
def test_integers_have_the_shortest_form(bits: int) -> None:
    for value in {(1 << bits) - 1, 1 << min(bits, 63), -(1 << min(bits, 63)), -(1 << min(bits, 63)) + 1}:
        assert encode_int(value) == msgpack.packb(value)


def test_what_has_no_form_is_an_overflow() -> None:
    for value in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(OverflowError):
            encode_int(value)
    with pytest.raises(OverflowError):
        encode_bytes_head(1 << 32)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_raise_nothing_but_errors_of_burnstore(data: bytes) -> None:
    try:
        found = decoded(data)
    except BurnstoreError:
        return
    theirs = msgpack.unpackb(data, strict_map_key=True)
    assert repr(found) == repr(theirs)  # NaN is not equal to itself


SAMPLE = msgpack.packb(
    {"a": [1, -5, 300, 1 << 40, 1.5, None, True, "text", b"bytes" * 100], "b": {"c": list(range(40)), "é" * 40: {}}}
)


def test_a_document_cut_at_any_byte_is_refused() -> None:
    for length in range(len(SAMPLE)):
        with pytest.raises((TruncatedError, CorruptError)):
            decoded(SAMPLE[:length])


def test_every_flipped_bit_is_refused_or_read_as_the_package_reads_it() -> None:
    for place in range(len(SAMPLE)):
        for bit in range(8):
            damaged = bytearray(SAMPLE)
            damaged[place] ^= 1 << bit
            try:
                found = decoded(bytes(damaged))
            except BurnstoreError:
                continue
            assert repr(found) == repr(msgpack.unpackb(bytes(damaged)))


@pytest.mark.parametrize("code", [0xC1, 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8])
def test_extension_types_and_the_reserved_code_are_refused(code: int) -> None:
    with pytest.raises(CorruptError, match=r"extension|reserved"):
        decoded(bytes([code]) + bytes(40))


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x82\xa1a\xc0\xd9\x01a\xc0",
        b"\x81\xa1x\x82\xa0\xc0\xa0\xc0",
    ],
)
def test_a_key_twice_in_one_map_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match="twice"):
        decoded(data)


@pytest.mark.parametrize("key", [b"\x01", b"\xc0", b"\xc4\x01a", b"\x90", b"\x80", b"\xca\0\0\0\0"])
def test_a_key_that_is_no_text_is_refused(key: bytes) -> None:
    with pytest.raises(CorruptError, match="expected text"):
        decoded(b"\x81" + key + b"\xc0")


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a\x80"])
def test_text_that_is_not_utf8_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptError, match="UTF-8"):
        decoded(bytes([0xA0 | len(raw)]) + raw)


@pytest.mark.parametrize("head", [b"\xc6", b"\xdb", b"\xdd", b"\xdf"])
@pytest.mark.parametrize("length", [6, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_a_length_beyond_the_file_is_refused_before_anything_is_allocated(head: bytes, length: int) -> None:
    with pytest.raises((TruncatedError, LimitError)):
        decoded(head + length.to_bytes(4, "big") + b"\xc0" * 5)


@pytest.mark.parametrize("depth", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdc\0\1"])
def test_nesting_is_bounded_and_is_no_recursion(depth: int, opening: bytes) -> None:
    with pytest.raises(LimitError, match="nested"):
        decoded(opening * depth + b"\xc0", depth=64)


def test_nesting_within_the_bound_is_read() -> None:
    reader = MsgpackReader(BytesSource(b"\x91" * 3000 + b"\xc0"), Spool(), nodes=3000)
    tree: Any = reader.tree(depth=4000, longest_text=10)
    for _ in range(3000):
        [tree] = tree
    assert tree is None


@pytest.mark.parametrize("item", [b"\xc0", b"\x90", b"\x80", b"\xa0", b"\x01"])
def test_more_values_than_allowed_are_refused_before_they_are_made(item: bytes) -> None:
    with pytest.raises(LimitError):
        decoded(b"\xdd" + (1_000_001).to_bytes(4, "big") + item * 1_000_001, nodes=1_000_000)
    with pytest.raises(LimitError):
        decoded(b"\x9f" + (b"\xdc\x03\xe8" + item * 1000) * 15, nodes=10_000)


def test_text_beyond_the_limit_is_refused() -> None:
    with pytest.raises(LimitError, match="at most 10"):
        decoded(msgpack.packb("x" * 11), longest=10)
    assert decoded(msgpack.packb("x" * 10), longest=10) == "x" * 10


def numbers(values: Any, form: NumberForm = I64, *, packed: bytes | None = None) -> tuple[Numbers, np.ndarray]:
    data = b"\x81\xa1v" + (msgpack.packb(values, use_single_float=True) if packed is None else packed)
    spool = Spool()
    tree = MsgpackReader(BytesSource(data), spool, nodes=10).tree(depth=2, longest_text=10, forms={"v": form})
    found = tree["v"]
    assert isinstance(found, Numbers)
    raw = spool.source("x").read_at(found.extent.offset, found.extent.nbytes)
    kept = {"float": form.floats, "bool": np.dtype(bool), "int": form.integers}[found.kind]
    return found, np.frombuffer(raw, kept)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=400))
def test_arrays_of_integers_are_decoded_whatever_their_forms(values: list[int]) -> None:
    found, array = numbers(values)
    assert array.tolist() == values
    assert (found.kind, found.count, found.low, found.high) == ("int", len(values), min(values), max(values))


@given(st.lists(st.floats(width=32), min_size=1, max_size=400))
def test_arrays_of_floats_keep_every_bit(values: list[float]) -> None:
    _, array = numbers(values)
    assert array.tobytes() == np.array(values, "<f4").tobytes()


def test_long_arrays_are_decoded_by_runs_across_pieces() -> None:
    values = np.random.default_rng(1).integers(-(1 << 40), 1 << 40, 300_000).tolist()
    values[1000:2000] = [0] * 1000
    assert numbers(values)[1].tolist() == values
    floats = np.random.default_rng(2).normal(size=300_000).astype("<f4")
    assert numbers(floats.tolist())[1].tobytes() == floats.tobytes()
    assert numbers([True, False] * 50_000)[1].tolist() == [True, False] * 50_000


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([1, 1.5], I64),
        ([1.5, 1], I64),
        ([True, 1], I64),
        ([1, 256], NumberForm(np.dtype("u1"), 0, 255)),
        ([1, -1], NumberForm(np.dtype("u1"), 0, 255)),
        ([1.5], NumberForm(np.dtype("u1"), 0, 255)),
        ([True], NumberForm(np.dtype("u1"), 0, 255)),
        ([1, None], I64),
        ([1, "x"], I64),
        ([1, []], I64),
        ([(1 << 63)], I64),
    ],
)
def test_an_array_of_numbers_with_something_else_in_it_is_refused(values: list[Any], form: NumberForm) -> None:
    with pytest.raises(CorruptError):
        numbers(values, form)


def test_floats_of_another_width_are_refused() -> None:
    with pytest.raises(CorruptError, match="of 4 bytes, got 8"):
        numbers(None, packed=b"\x91\xcb" + struct.pack(">d", 1.5))


def test_numbers_that_are_cut_short_are_refused() -> None:
    data = b"\x81\xa1v" + msgpack.packb(list(range(-200, 200)))
    for length in range(3, len(data)):
        with pytest.raises((TruncatedError, CorruptError)):
            decoded(data[:length], forms={"v": I64})


def test_what_is_read_is_a_window_of_the_source() -> None:
    class Source(BytesSource):
        def read_at(self, offset: int, length: int) -> bytes:
            ranges.append((offset, length))
            return super().read_at(offset, length)

    ranges: list[tuple[int, int]] = []
    out = io.BytesIO()
    packer = msgpack.Packer()
    out.write(packer.pack_map_header(20))
    for number in range(20):
        out.write(packer.pack(f"key {number}") + packer.pack(bytes(100_000)))
    reader = MsgpackReader(Source(out.getvalue()), Spool(), nodes=100)
    tree = reader.tree(depth=2, longest_text=20)
    assert all(each.nbytes == 100_000 for each in tree.values())
    assert sum(length for _, length in ranges) < 200_000
