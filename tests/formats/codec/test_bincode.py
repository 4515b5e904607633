"""Bincode: integers of variable length in their one form, texts, places of bytes, numbers by runs."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import BurnstoreError, CorruptError, LimitError, TruncatedError
from burnstore.formats.codec.bincode import BincodeReader, encode_float, encode_integer, encode_text, encode_uint
from burnstore.formats.codec.window import NumberForm
from burnstore.io.source import BytesSource
from burnstore.io.spool import Spool

I64 = NumberForm(np.dtype("<i8"), -(1 << 63), (1 << 63) - 1)


def reader(data: bytes) -> BincodeReader:
    return BincodeReader(BytesSource(data))


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        *(
            (0, "00"),
            (250, "fa"),
            (251, "fbfb00"),
            (65535, "fbffff"),
            (65536, "fc00000100"),
            ((1 << 32) - 1, "fcffffffff"),
        ),
        *((1 << 32, "fd0000000001000000"), ((1 << 64) - 1, "fdffffffffffffffff")),
    ],
)
def test_an_unsigned_integer_has_one_form(value: int, spelled: str) -> None:
    assert encode_uint(value).hex() == spelled
    assert reader(bytes.fromhex(spelled)).uint() == value


@given(st.integers(0, (1 << 64) - 1))
def test_unsigned_integers_come_back(value: int) -> None:
    found = reader(encode_uint(value))
    assert found.uint() == value and found.left == 0


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_signed_integers_come_back(value: int) -> None:
    assert reader(encode_integer(value)).integer() == value


@pytest.mark.parametrize(("value", "spelled"), [(0, 0), (-1, 1), (1, 2), (-2, 3), (2, 4), (-64, 127)])
def test_signs_alternate(value: int, spelled: int) -> None:
    assert encode_integer(value) == bytes((spelled,))


@given(st.text(max_size=400), st.floats(allow_nan=False))
def test_texts_and_floats_come_back(text: str, number: float) -> None:
    found = reader(encode_text(text) + encode_float(number))
    assert found.text(1 << 16) == text
    assert found.float() == number


@pytest.mark.parametrize("spelled", ["fb0000", "fbfa00", "fcffff0000", "fdffffffff00000000"])
def test_a_longer_form_than_needed_is_refused(spelled: str) -> None:
    with pytest.raises(CorruptError, match="never"):
        reader(bytes.fromhex(spelled)).uint()


@pytest.mark.parametrize("first", [0xFE, 0xFF])
def test_what_is_no_integer_of_64_bits_is_refused(first: int) -> None:
    with pytest.raises(CorruptError, match="integer"):
        reader(bytes((first,)) + bytes(20)).uint()
    with pytest.raises(CorruptError, match="integer"):
        reader(bytes((first,)) + bytes(20)).integers(1, I64, Spool(), signed=True)


@pytest.mark.parametrize("length", [6, 250, 65535, 1 << 31, 1 << 62, (1 << 64) - 1])
def test_a_length_beyond_the_file_is_refused_before_anything_is_allocated(length: int) -> None:
    data = encode_uint(length) + b"12345"
    for ask in (BincodeReader.bytes, BincodeReader.count):
        with pytest.raises(TruncatedError):
            ask(reader(data))
    with pytest.raises((TruncatedError, LimitError)):
        reader(data).text(1 << 70)
    with pytest.raises(LimitError):
        reader(data).text(5)
    with pytest.raises(TruncatedError):
        reader(data).raw(length, 8)


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_text_that_is_not_utf8_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptError, match="UTF-8"):
        reader(encode_uint(len(raw)) + raw).text(10)


def test_every_cut_is_refused() -> None:
    for data, ask in (
        (encode_uint(1 << 40), BincodeReader.uint),
        (encode_text("some text"), lambda found: found.text(20)),
        (encode_float(1.5), BincodeReader.float),
        (encode_uint(20) + bytes(20), BincodeReader.bytes),
    ):
        for length in range(len(data)):
            with pytest.raises(TruncatedError):
                ask(reader(data[:length]))


@given(st.lists(st.integers(-(1 << 62), 1 << 62), min_size=1, max_size=300))
def test_arrays_of_signed_integers_come_back(values: list[int]) -> None:
    spool = Spool()
    found = reader(b"".join(map(encode_integer, values))).integers(len(values), I64, spool, signed=True)
    raw = spool.source("x").read_at(found.extent.offset, found.extent.nbytes)
    assert np.frombuffer(raw, "<i8").tolist() == values


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=300))
def test_arrays_of_bits_come_back(values: list[int]) -> None:
    spool = Spool()
    form = NumberForm(np.dtype("<u2"), 0, 65535)
    found = reader(b"".join(map(encode_uint, values))).integers(len(values), form, spool, signed=False)
    raw = spool.source("x").read_at(found.extent.offset, found.extent.nbytes)
    assert np.frombuffer(raw, "<u2").tolist() == values


@pytest.mark.parametrize("spelled", ["fb0000", "01fb0100", "fdffffffffffffffff"])
def test_numbers_in_a_wrong_form_or_range_are_refused(spelled: str) -> None:
    with pytest.raises(CorruptError):
        reader(bytes.fromhex(spelled) * 2).integers(2, I64, Spool(), signed=False)


@given(st.binary(max_size=40))
def test_bytes_of_any_kind_raise_nothing_but_errors_of_burnstore(data: bytes) -> None:
    for ask in (
        BincodeReader.uint,
        BincodeReader.integer,
        BincodeReader.float,
        BincodeReader.bytes,
        BincodeReader.count,
        lambda found: found.text(20),
        lambda found: found.integers(4, I64, Spool(), signed=True),
    ):
        try:
            ask(reader(data))
        except BurnstoreError:
            continue


def test_a_reader_can_go_back() -> None:
    found = reader(struct.pack("<B", 7) + bytes(200_000) + b"\x09")
    assert found.uint() == 7
    found.skip(200_000)
    assert found.uint() == 9
    found.move_to(0)
    assert found.uint() == 7
