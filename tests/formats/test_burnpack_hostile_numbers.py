"""Hostile numbers: what stands where a count is due (row H9), and sizes that overflow (H13)."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hostile import (
    ARRAY,
    BYTES,
    EMPTY,
    FOUR,
    MAP,
    NINT,
    NULL,
    ONE_TENSOR,
    TAG,
    TEXT,
    UINT,
    array,
    at_most,
    block_size,
    descriptor,
    head,
    mapping,
    pack,
    quantized,
    refused,
    scalar,
    scheme,
    tensors,
    text,
    uints,
)

import burnstore as bs
from burnstore.errors import CorruptError, LimitError, TruncatedError, UnsupportedError

# ------------------------------------------------------------------------------- H9: numbers

NOT_A_COUNT = {
    "-1": head(NINT, 0),
    "-2^64": head(NINT, 2**64 - 1),
    "1.0, half": b"\xf9\x3c\x00",
    "1.0, single": b"\xfa\x3f\x80\x00\x00",
    "1.0, double": b"\xfb" + struct.pack(">d", 1.0),
    "1e3": b"\xfb" + struct.pack(">d", 1e3),
    "-0.0": b"\xf9\x80\x00",
    "NaN": b"\xf9\x7e\x00",
    "infinity": b"\xf9\x7c\x00",
    "true": b"\xf5",
    "undefined": b"\xf7",
    "a simple value": b"\xf8\x20",
    "a break": b"\xff",
    "a bignum": head(TAG, 2) + head(BYTES, 1) + b"\4",
    "10^30": head(TAG, 2) + head(BYTES, 13) + (10**30).to_bytes(13, "big"),
    "5000 digits": head(TAG, 2) + head(BYTES, 2077) + (10**5000).to_bytes(2077, "big"),
    "a negative bignum": head(TAG, 3) + head(BYTES, 1) + b"\4",
    "a decimal fraction": head(TAG, 4) + uints(0, 4),
    "a rational": head(TAG, 30) + uints(4, 1),
    "a tagged 4": head(TAG, 24) + b"\4",
    "a text": text("4"),
    "a text, leading zeros": text("0004"),
    "bytes": head(BYTES, 1) + b"\4",
    "an array": array(b"\4"),
    "a map": mapping(),
    "a reserved head": b"\x1c",
    "an endless integer": b"\x1f",
}
COUNTS: dict[str, tuple[Callable[[bytes], bytes], str, str | None]] = {
    "extent": (lambda item: tensors(("t", descriptor(shape=array(item)))), "BP-10", "t"),
    "start": (lambda item: tensors(("t", descriptor(offsets=array(item, b"\4")))), "BP-11", "t"),
    "end": (lambda item: tensors(("t", descriptor(offsets=array(b"\0", item)))), "BP-11", "t"),
    "param_id": (lambda item: tensors(("t", descriptor(more=text("param_id") + item, keys=4))), "BP-06", "t"),
    "UInt": (lambda item: scalar("UInt", item), "BP-18", None),
    "packed dimension": (lambda item: quantized(scheme(store=mapping(("PackedU32", item)))), "BP-09", "t"),
    "block extent": (
        lambda item: quantized(
            scheme(block=mapping(("size", block_size(array(item, *[b"\1"] * 4))), ("dtype", text("F32"))))
        ),
        "BP-09",
        "t",
    ),
    "block rank": (
        lambda item: quantized(scheme(block=mapping(("size", block_size(length=item)), ("dtype", text("F32"))))),
        "BP-09",
        "t",
    ),
}


@pytest.mark.parametrize("number", NOT_A_COUNT)
@pytest.mark.parametrize("place", COUNTS)
def test_what_is_no_unsigned_integer_is_refused(place: str, number: str) -> None:
    put, rule, tensor = COUNTS[place]
    error = refused(pack(put(NOT_A_COUNT[number]), FOUR), CorruptError, rule, tensor=tensor)
    assert error.offset is not None


OTHER_NUMBERS: dict[str, tuple[bytes, type[bs.errors.FormatError], str]] = {
    "Int of 2^63": (scalar("Int", head(UINT, 2**63)), CorruptError, "BP-18"),
    "Int of -2^63 - 1": (scalar("Int", head(NINT, 2**63)), CorruptError, "BP-18"),
    "Int of -2^64": (scalar("Int", head(NINT, 2**64 - 1)), CorruptError, "BP-18"),
    "Int of a float": (scalar("Int", b"\xf9\x3c\x00"), CorruptError, "BP-18"),
    "Int of a bool": (scalar("Int", b"\xf4"), CorruptError, "BP-18"),
    "Int of null": (scalar("Int", NULL), CorruptError, "BP-18"),
    "Float of an integer": (scalar("Float", b"\1"), CorruptError, "BP-18"),
    "Float of a text": (scalar("Float", text("nan")), CorruptError, "BP-18"),
    "Float of null": (scalar("Float", NULL), CorruptError, "BP-18"),
    "Float cut short": (scalar("Float", b"\xfb\0\0"), TruncatedError, "BP-18"),
    "Float tagged": (scalar("Float", b"\xc1\xf9\x3c\x00"), CorruptError, "BP-18"),
    "Bool of 1": (scalar("Bool", b"\1"), CorruptError, "BP-18"),
    "Bool of null": (scalar("Bool", NULL), CorruptError, "BP-18"),
    "Bool in two bytes": (scalar("Bool", b"\xf8\x15"), CorruptError, "BP-18"),
    "a kind of no Burn": (scalar("Int64", b"\1"), UnsupportedError, "BP-18"),
    "no kind": (mapping(EMPTY, ("scalars", mapping(("s", b"\1")))), CorruptError, "BP-18"),
    "an extent of 2^64 - 1": (tensors(("t", descriptor(shape=uints(2**64 - 1)))), CorruptError, "BP-10"),
    "an offset of 2^62": (tensors(("t", descriptor(offsets=uints(2**62, 2**62 + 4)))), CorruptError, "BP-11"),
    "an offset of 2^64 - 1": (tensors(("t", descriptor(offsets=uints(0, 2**64 - 1)))), CorruptError, "BP-11"),
    "offsets of one": (tensors(("t", descriptor(offsets=uints(0)))), CorruptError, "BP-11"),
    "offsets of none": (tensors(("t", descriptor(offsets=uints()))), CorruptError, "BP-11"),
    "offsets of three": (tensors(("t", descriptor(offsets=uints(0, 4, 4)))), CorruptError, "BP-11"),
    "a block of 0": (
        quantized(scheme(block=mapping(("size", block_size(uints(0, 1, 1, 1, 1))), ("dtype", text("F32"))))),
        CorruptError,
        "BP-09",
    ),
    "a block of 256": (
        quantized(scheme(block=mapping(("size", block_size(uints(256, 1, 1, 1, 1))), ("dtype", text("F32"))))),
        CorruptError,
        "BP-09",
    ),
    "a block of rank 6": (
        quantized(scheme(block=mapping(("size", block_size(length=b"\6")), ("dtype", text("F32"))))),
        CorruptError,
        "BP-09",
    ),
    "a packed dimension past the rank": (quantized(scheme(store=mapping(("PackedU32", b"\1")))), CorruptError, "BP-20"),
    "a packed dimension of 2^64 - 1": (
        quantized(scheme(store=mapping(("PackedU32", head(UINT, 2**64 - 1))))),
        CorruptError,
        "BP-20",
    ),
}


@pytest.mark.parametrize("name", OTHER_NUMBERS)
def test_a_number_out_of_its_range_is_refused(name: str) -> None:
    metadata, kind, rule = OTHER_NUMBERS[name]
    refused(pack(metadata, FOUR), kind, rule, tensor=None if b"scalars" in metadata else "t")


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_an_integer_may_be_longer_than_it_need_be(width: int) -> None:
    numbers = array(head(UINT, 0, width), head(UINT, 4, width))
    spelled = descriptor(
        shape=head(ARRAY, 1, width) + head(UINT, 4, width),
        offsets=numbers,
        more=text("param_id") + head(UINT, 7, width),
        keys=4,
    )
    metadata = head(MAP, 1, width) + text("tensors") + head(MAP, 1, width) + head(TEXT, 1, width) + b"t" + spelled
    with bs.open(pack(metadata, FOUR)) as f:
        assert f["t"].to_bytes() == FOUR
        assert f["t"].param_id == 7


@pytest.mark.parametrize(
    ("raw", "bits"),
    [
        (b"\xf9\x7e\x00", 0x7FF8000000000000),
        (b"\xf9\x7e\x01", 0x7FF8040000000000),
        (b"\xf9\xfe\x55", 0xFFF9540000000000),
        (b"\xf9\x7c\x01", 0x7FF8040000000000),  # a signalling NaN is quiet after it was converted
        (b"\xfa\x7f\xc0\x00\x01", 0x7FF8000020000000),
        (b"\xfb\x7f\xf8\x00\x00\x00\x00\x00\x01", 0x7FF8000000000001),
        (b"\xf9\x80\x00", 0x8000000000000000),
        (b"\xf9\x00\x01", 0x3E70000000000000),
    ],
)
def test_a_float_keeps_every_bit_and_is_written_as_short_as_it_was(raw: bytes, bits: int) -> None:
    with bs.open(pack(scalar("Float", raw))) as f:
        value = f.scalars["s"].value
        assert struct.pack(">d", value) == bits.to_bytes(8, "big")
        again = bs.serialize({}, format="burnpack", metadata={}, scalars=f.scalars)
    if raw != b"\xf9\x7c\x01":
        assert again == pack(scalar("Float", raw))
    assert struct.pack(">d", bs.open(again).scalars["s"].value) == bits.to_bytes(8, "big")


# ------------------------------------------------------------------------------- H13: sizes

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "U8": 1}
WRAPPING: list[tuple[int, ...]] = [
    (2**64 - 1,),
    (2**63,),
    (2**32, 2**32),
    (2**32 + 1, 2**32 - 1),
    (2**63, 2),
    (2**64 - 1, 2),
    (2**62, 4),
    (2**31, 2**31, 4),
    (2**61 + 1, 8),
    (2**16,) * 4,
    (3, 6148914691236517206),  # the product is 2 modulo 2^64
    (5, 3689348814741910324),  # ... 4
    (2**60, 16, 1),
    (0, 2**63),
    (2**64 - 1, 0),
    (1, 2**64 - 1, 0, 1),
    (2,) * 64,
    (2**64 - 1,) * 64,
]


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("shape", WRAPPING, ids=str)
def test_a_shape_whose_size_wraps_is_refused(dtype: str, shape: tuple[int, ...]) -> None:
    count = WIDTHS[dtype]
    for extent in shape:
        count *= extent
    for stated in {count % 2**64, count % 2**32, 0, 4}:
        if stated < 1000:
            named = descriptor(dtype=text(dtype), shape=uints(*shape), offsets=uints(0, stated))
            refused(pack(tensors(("t", named)), bytes(stated)), CorruptError, "BP-10", tensor="t")


@pytest.mark.parametrize(
    ("dtype", "shape", "stated"),
    [
        ("F64", (2**60 - 1,), 0),
        ("F64", (2**59,), 0),
        ("U8", (2**63 - 1,), 4),
        ("F32", (2**32, 2**28), 0),
        ("U8", (5,), 4),
    ],
)
def test_a_size_that_is_only_wrong_is_refused_as_that(dtype: str, shape: tuple[int, ...], stated: int) -> None:
    named = descriptor(dtype=text(dtype), shape=uints(*shape), offsets=uints(0, stated))
    error = refused(pack(tensors(("t", named)), bytes(stated)), CorruptError, "BP-12", tensor="t")
    assert "declares" in str(error)
    assert "need" in str(error)


@pytest.mark.parametrize("shape", [(2**64 - 1,), (2**63, 2), (0, 2**64 - 1), (2**32, 2**32)], ids=str)
def test_a_quantized_shape_whose_size_wraps_is_refused(shape: tuple[int, ...]) -> None:
    for stated in (0, 4, 5):
        named = descriptor(dtype=mapping(("QFloat", scheme())), shape=uints(*shape), offsets=uints(0, stated))
        with pytest.raises(CorruptError) as caught:
            bs.open(pack(tensors(("t", named)), bytes(stated)))
        assert (caught.value.rule, caught.value.tensor) in (("BP-10", "t"), ("BP-20", "t"))


@pytest.mark.parametrize("rank", [65, 66, 255, 256, 10_000, 10**6])
def test_a_rank_past_the_limit_is_refused(rank: int) -> None:
    named = descriptor(shape=head(ARRAY, rank) + b"\1" * rank, offsets=uints(0, 1))
    with at_most(2):
        refused(pack(tensors(("t", named)), b"\1"), LimitError, "BP-10", tensor="t")
        refused(pack(ONE_TENSOR, FOUR), LimitError, "BP-10", tensor="t", limits=bs.Limits(rank=0))


def test_a_shape_that_numpy_has_not_is_opened_and_refused_when_read() -> None:
    named = descriptor(dtype=text("F32"), shape=uints(0, 2**62), offsets=uints(0, 0))
    with bs.open(pack(tensors(("t", named)))) as f:
        assert f["t"].shape == (0, 2**62)
        assert f["t"].to_bytes() == b""
        for read in (f.numpy, f["t"].numpy):
            with pytest.raises(UnsupportedError) as caught:
                read()
            assert caught.value.tensor == "t"


def test_of_two_quantized_tensors_the_wrong_one_is_named() -> None:
    good = descriptor(dtype=mapping(("QFloat", scheme())), offsets=uints(0, 8))
    bad = descriptor(dtype=mapping(("QFloat", scheme())), offsets=uints(256, 265))
    refused(pack(tensors(("good", good), ("bad", bad)), bytes(265)), CorruptError, "BP-20", tensor="bad")


def test_the_table_of_numbers_is_as_long_as_it_should_be() -> None:
    assert len(NOT_A_COUNT) * len(COUNTS) + len(OTHER_NUMBERS) > 60
