"""The numbered rules of records, each with documents that break it, and what breaks records in any way."""

from __future__ import annotations

import gzip
import json
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hostile import at_most, in_little_memory, refused
from record_models import declared
from test_record_files import FILES, FIXTURES, UUID, heading, of

import burnstore as bs
from burnstore.formats.codec.bincode import encode_text, encode_uint
from burnstore.limits import Limits
from burnstore.stores.records import NamedMpkFileRecorder, Record, RecordTensor, open_record

ID = "0400000000000"
ONE = np.arange(6, dtype="<f4").tobytes()


def tensor(**changes: Any) -> dict[str, Any]:
    return {
        key: value
        for key, value in {"bytes": ONE, "shape": [2, 3], "dtype": "F32", **changes}.items()
        if value is not ...
    }


def parameter(**changes: Any) -> dict[str, Any]:
    return {"id": changes.pop("id", ID), "param": tensor(**changes)}


def document(item: Any = ..., **changes: Any) -> dict[str, Any]:
    parts = {"metadata": heading(), "item": {"w": parameter()} if item is ... else item, "_b": [], **changes}
    return {key: value for key, value in parts.items() if value is not ...}


def packed(item: Any = ..., **changes: Any) -> bytes:
    return msgpack.packb(document(item, **changes), use_single_float=True)


def spelled(item: Any = ..., **changes: Any) -> bytes:
    def listed(value: bytes) -> list[int]:
        return list(value)

    changes.setdefault("_b", None)
    return json.dumps(document(item, **changes), default=listed).encode()


BOTH = pytest.mark.parametrize("encode", [packed, spelled], ids=["mpk", "json"])
Encode = Callable[..., bytes]


@BOTH
def test_a_document_that_follows_the_rules_is_read(encode: Encode) -> None:
    with bs.open(encode()) as f:
        assert f["w"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert f["w"].param_id == 1
        assert f.metadata["settings"] == "FullPrecisionSettings"
    with bs.open(encode(_b=...)) as f:  # up to Burn 0.11
        assert list(f) == ["w"]


# --- what the file is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\x83", b"\x83\xa8metadat", b"{", b"\x03f32", b"\x1f\x8b\x08", b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]
)
def test_what_does_not_begin_like_a_record_is_none(data: bytes) -> None:
    refused(data, bs.errors.UnknownFormatError, None)
    kind = bs.errors.TruncatedError if data.startswith(b"\x1f\x8b") else bs.errors.UnknownFormatError
    refused(data, kind, "BR-02" if data.startswith(b"\x1f\x8b") else "BR-01", format="record")


def test_compressed_data_are_checked_to_the_last_byte() -> None:
    data = gzip.compress(packed())
    for length in range(18, len(data)):
        refused(data[:length], bs.errors.TruncatedError, "BR-02", format="record")
    refused(data + b"\0", bs.errors.CorruptError, "BR-02")
    refused(data + data, bs.errors.CorruptError, "BR-02")
    refused(data[:-5] + bytes(5), bs.errors.CorruptError, "BR-02")


def bomb(size: int, head: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(head) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


@pytest.mark.slow("bombs")
def test_a_gzip_bomb_is_stopped() -> None:
    head = packed({"w": parameter(bytes=bytes(1 << 20), shape=[1 << 18])})[:-200_000]
    data = bomb(260 << 20, head)
    assert len(data) < 1 << 20

    def opened() -> str:
        try:
            bs.open(data)
        except bs.errors.LimitError as error:
            return str(error.rule)
        return "opened"

    with at_most(30):
        assert in_little_memory(64 << 20, opened)[0] == "BR-02"
    refused(data, bs.errors.LimitError, "BR-02", limits=Limits(header_bytes=10 << 20))


def test_a_large_compressed_record_goes_to_disk() -> None:
    zeros = np.zeros(12 << 20, np.uint8).tobytes()
    data = gzip.compress(packed({"w": parameter(bytes=zeros, shape=[3 << 20])}), 1)

    def opened() -> Any:
        with bs.open(data) as f:
            return f["w"][5], f["w"].nbytes

    assert in_little_memory(48 << 20, opened)[0] == (0.0, 12 << 20)


# --- the document -----------------------------------------------------------------------------------------------------


@BOTH
def test_a_document_has_its_three_parts(encode: Encode) -> None:
    refused(encode(other=1), bs.errors.CorruptError, "BR-06")
    refused(encode(_b=[1]), bs.errors.CorruptError, "BR-06")
    refused(encode(_b=0), bs.errors.CorruptError, "BR-06")
    refused(encode(_b={}), bs.errors.CorruptError, "BR-06")


def test_parts_that_are_missing_or_out_of_order_are_refused() -> None:
    refused(msgpack.packb({"metadata": heading(), "_b": []}), bs.errors.CorruptError, "BR-06")
    refused(
        b"\x83" + msgpack.packb("metadata") + msgpack.packb(heading()) + packed()[1:], bs.errors.CorruptError, "BR-06"
    )
    twice = msgpack.packb({"metadata": heading(), "item": {}})
    again = msgpack.packb({"item": {}})[1:]
    refused(b"\x83" + twice[1:] + again, bs.errors.CorruptError, "BR-06")
    first = msgpack.packb({"item": {}, "metadata": heading()})
    refused(first, bs.errors.UnknownFormatError, "BR-01", format="record")


@pytest.mark.parametrize(
    "changed",
    [
        {**heading(), "more": "x"},
        {key: value for key, value in heading().items() if key != "version"},
        {**heading(), "version": 21},
        {**heading(), "version": None},
        {**heading(), "settings": "QuarterPrecisionSettings"},
        {**heading(), "settings": "HalfPrecisionSettings"},
        {**heading(), "int": "i64"},
    ],
)
@BOTH
def test_the_five_texts_agree(encode: Encode, changed: dict[str, Any]) -> None:
    with pytest.raises(bs.errors.FormatError) as caught:
        bs.open(encode(metadata=changed))
    assert caught.value.rule == "BR-07"


@pytest.mark.parametrize("tail", [b"\0", b"x", b"\xc0", packed()])
def test_nothing_follows_the_document(tail: bytes) -> None:
    refused(packed() + tail, bs.errors.CorruptError, "BR-16")


def test_nothing_but_white_space_follows_json() -> None:
    bs.open(spelled() + b" \n\t\r").close()
    for tail in (b"x", b"{}", b"\0", b"null"):
        refused(spelled() + tail, bs.errors.CorruptError, "BR-16")


# --- parameters and tensors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "04000000000000", "040000000000", "04000000000w0", "0400000000001", UUID[:-1], UUID + "0", "é" * 13, "0" * 15],
)
@BOTH
def test_an_id_is_one_that_burn_makes(encode: Encode, text: str) -> None:
    refused(encode({"w": parameter(id=text)}), bs.errors.CorruptError, "BR-08", tensor="w")


@BOTH
def test_an_id_is_text_and_may_be_a_uuid(encode: Encode) -> None:
    refused(encode({"w": parameter(id=5)}), bs.errors.CorruptError, "BR-08", tensor="w")
    with bs.open(encode({"w": parameter(id=UUID), "x": parameter(id="0400000000")})) as f:
        assert f["w"].param_id is None and f["x"].param_id == 1
        assert any("UUID" in note for note in f.notes)


@BOTH
@pytest.mark.parametrize(
    "shape", [None, 6, "23", [2, -3], [2, "3"], [2, 3.0], [True, 6], {"0": 2}, [[2, 3]], [2, None]]
)
def test_a_shape_is_an_array_of_extents(encode: Encode, shape: Any) -> None:
    refused(encode({"w": parameter(shape=shape)}), bs.errors.CorruptError, "BR-09", tensor="w")


@BOTH
@pytest.mark.parametrize("shape", [[1 << 63], [1 << 32, 1 << 32], [1 << 62, 4], [(1 << 64) - 1], [0, 1 << 63]])
def test_a_shape_of_more_elements_than_files_have_is_refused(encode: Encode, shape: list[int]) -> None:
    refused(encode({"w": parameter(shape=shape)}), bs.errors.CorruptError, "BR-10", tensor="w")


@BOTH
def test_a_shape_has_a_limited_number_of_axes(encode: Encode) -> None:
    data = encode({"w": parameter(shape=[1] * 63 + [6])})
    bs.open(data).close()
    refused(encode({"w": parameter(shape=[1] * 64 + [6])}), bs.errors.LimitError, "BR-10", tensor="w")
    refused(data, bs.errors.LimitError, "BR-10", tensor="w", limits=Limits(rank=63))
    refused(data, bs.errors.LimitError, "BR-10", tensor="w", limits=Limits(tensor_bytes=23))


@BOTH
@pytest.mark.parametrize("shape", [[], [2], [3, 3], [2, 3, 0], [7], [6, 2]])
def test_bytes_are_exactly_as_many_as_the_shape_needs(encode: Encode, shape: list[int]) -> None:
    refused(encode({"w": parameter(shape=shape)}), bs.errors.CorruptError, "BR-11", tensor="w")


@BOTH
@pytest.mark.parametrize(
    "dtype",
    [
        "f32",
        "F8_E4M3",
        "",
        None,
        1,
        "QFloat",
        ["F32"],
        {"Bool": "Other"},
        {"Bool": None},
        {"F32": None},
        {"QFloat": {}},
    ],
)
def test_a_dtype_is_spelled_as_some_burn_spells_it(encode: Encode, dtype: Any) -> None:
    refused(encode({"w": parameter(dtype=dtype)}), bs.errors.CorruptError, "BR-12", tensor="w")


@BOTH
@pytest.mark.parametrize("spelling", ["Bool", {"Bool": "Native"}, {"Bool": "U8"}])
def test_bools_are_zero_or_one(encode: Encode, spelling: Any) -> None:
    """BR-19"""
    with bs.open(encode({"w": parameter(bytes=b"\0\1", shape=[2], dtype=spelling)})) as f:
        assert f["w"].numpy().tolist() == [False, True]
    with (
        bs.open(encode({"w": parameter(bytes=b"\0\2", shape=[2], dtype=spelling)})) as f,
        pytest.raises(bs.errors.CorruptError),
    ):
        f["w"].numpy()


@BOTH
def test_a_quantized_tensor_has_the_length_of_its_scheme(encode: Encode) -> None:
    scheme = {"value": "Q8S", "param": "F32", "store": "Native", "level": "Tensor", "mode": "Symmetric"}
    with bs.open(encode({"w": parameter(bytes=bytes(10), shape=[2, 3], dtype={"QFloat": scheme})})) as f:
        assert f["w"].numpy().shape == (2, 3)
    for length in (9, 11, 6, 0):
        data = encode({"w": parameter(bytes=bytes(length), shape=[2, 3], dtype={"QFloat": scheme})})
        refused(data, bs.errors.CorruptError, "BR-20", tensor="w")


@BOTH
def test_two_tensors_of_one_path_are_refused(encode: Encode) -> None:
    refused(encode({"a": {"b": parameter()}, "a.b": parameter()}), bs.errors.CorruptError, "BR-14", tensor="a.b")


@BOTH
def test_paths_and_tensors_are_limited(encode: Encode) -> None:
    refused(encode({"x" * 200: {"y" * 200: parameter()}}), bs.errors.LimitError, "BR-14", limits=Limits(name_bytes=300))
    data = encode({str(number): parameter() for number in range(10)})
    refused(data, bs.errors.LimitError, "BR-14", tensor="9", limits=Limits(tensors=9))
    bs.open(data, limits=Limits(tensors=10)).close()


def test_bytes_stand_nowhere_but_in_a_tensor() -> None:
    for item in ({"w": b"bytes"}, [b"bytes"], b"bytes", {"w": {"bytes": ONE, "shape": [6]}}, {"a": {"value": [1, 2]}}):
        with pytest.raises(bs.errors.CorruptError) as caught:
            bs.open(packed(item))
        assert caught.value.rule == "BR-15"


@BOTH
def test_a_map_that_only_looks_like_a_tensor_is_none(encode: Encode) -> None:
    item = {"value": None, "shape": None, "id": None, "param": None, "inner": {"id": 1, "param": None}}
    with bs.open(encode(item)) as f:
        assert dict(f.constants) == {
            "value": None,
            "shape": None,
            "id": None,
            "param": None,
            "inner.id": 1,
            "inner.param": None,
        }


@BOTH
@pytest.mark.parametrize(
    "damaged",
    [
        *({"bytes": 255, "shape": [6], "dtype": "F32"}, {"bytes": None, "shape": [6], "dtype": "F32"}),
        *({"bytes": {"a": 1}, "shape": [6], "dtype": "F32"}, {"bytes": [None], "shape": None, "dtype": "F32"}),
        *({"value": None, "shape": [6]}, {"value": "x", "shape": [6]}),
    ],
)
def test_a_damaged_tensor_is_not_taken_for_a_struct(encode: Encode, damaged: dict[str, Any]) -> None:
    for item in ({"w": damaged}, {"w": {"id": ID, "param": damaged}}):
        refused(encode(item), bs.errors.CorruptError, "BR-09", tensor="w")
    for param in (None, {}, 5, {"bytes": ONE if encode is packed else [1], "shape": [6]}):
        with pytest.raises(bs.errors.CorruptError):
            bs.open(encode({"w": {"id": ID, "param": param}}))


@pytest.mark.parametrize(
    "values",
    ["null", "null,1.5", "1.5,null", "1.5," * 200_000 + "null", "null," * 300_000 + "1.5"],
    ids=["alone", "first", "last", "last of many", "many"],
)
def test_null_in_a_tensor_of_json_is_refused_as_the_nan_that_it_was(values: str) -> None:
    """Burn 0.13 writes NaN and the infinities so; whatever the size of the tensor and wherever it is."""
    count = values.count(",") + 1
    text = json.dumps(
        {"metadata": heading("0.13.2"), "item": {"w": {"id": ID, "param": {"value": "@", "shape": [count]}}}}
    )
    error = refused(text.replace('"@"', f"[{values}]").encode(), bs.errors.CorruptError, "BR-13", tensor="w")
    assert "writes a NaN or an infinity as null, and which of them it was is lost" in str(error)
    refused(packed({"w": {"value": [None], "shape": []}}), bs.errors.CorruptError, "BR-09", tensor="w")


# --- bounds -----------------------------------------------------------------------------------------------------------

_MIB = 1 << 20
_TENSOR = b'{"w":{"id":"0000000000000","param":{"bytes":[%s],"shape":[1],"dtype":"F32"}}}'
BOMBS: dict[str, tuple[bytes, bytes, bytes]] = {
    # what it begins with, what is repeated, how it ends
    "brackets": (b"", b"[", b""),
    "objects": (b"", b'{"a":', b""),
    "values": (b'{"x":[', b"1,", b"1]}"),
    "a string": (b'"', b"a", b'"'),
    "strings": (b"[", b'"",', b'""]'),
    "escapes": (b'"', b"\\\\", b'"'),
    "quotes": (b'"', b'\\"', b'"'),
    "bytes": (_TENSOR[: _TENSOR.index(b"%s")], b"0,", b"0" + _TENSOR[_TENSOR.index(b"%s") + 2 :]),
    "digits": (b'{"x":', b"9", b"}"),
    "arrays": (b"", b'{"bytes":[0],"x":', b""),
    "words": (b"", b'"bytes":[', b""),
    "nulls": (_TENSOR[: _TENSOR.index(b"%s")], b"null,", b"null" + _TENSOR[_TENSOR.index(b"%s") + 2 :]),
    "openings": (b"", b'"bytes":[1 ', b"]"),
    "gaps": (b'{"bytes"', b" ", b""),
    "an open array": (b'{"bytes":[', b"1 ", b""),
}


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize("bomb", list(BOMBS))
@pytest.mark.parametrize("compressed", [False, True])
def test_a_bomb_of_json_is_refused_within_a_second(bomb: str, compressed: bool) -> None:
    """60 MiB, or the few hundred kilobytes that hold them. The best of three: the machine may be busy."""
    before, repeated, after = BOMBS[bomb]
    item = before + repeated * (60 * _MIB // len(repeated)) + after
    data = b'{"metadata":' + json.dumps(heading()).encode() + b',"item":' + item + b',"_b":null}'
    if compressed:
        data = gzip.compress(data, 1)
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        with pytest.raises(bs.errors.FormatError) as caught:
            bs.open(data, format="record")
        seconds.append(time.process_time() - begun)
        if seconds[-1] < 1:
            break
    assert min(seconds) < 1
    assert caught.value.rule in ("BR-04", "BR-11")


def nested_names(depth: int, longest: int, leaves: int, leaf: Any) -> dict[str, Any]:
    """Keys above one another, and below them all so many leaves: paths repeat the keys once for each leaf."""
    item: dict[str, Any] = {f"k{n}": leaf for n in range(leaves)}
    for _ in range(depth):
        item = {"x" * longest: item}
    return item


@pytest.mark.matrix(every=5)
@BOTH
@pytest.mark.parametrize("leaf", [None, 1, {}, [], [None]], ids=repr)
def test_paths_of_nested_keys_are_bounded_in_total(encode: Encode, leaf: Any) -> None:
    """50 KB above 40,000 leaves: 600 KB of file, 2 GB of paths."""
    data = encode(nested_names(100, 500, 40_000, leaf))
    assert len(data) < 2 * _MIB
    tracemalloc.start()
    begun = time.process_time()
    try:
        refused(data, bs.errors.LimitError, "BR-14")
        assert tracemalloc.get_traced_memory()[1] < 400 * _MIB
    finally:
        tracemalloc.stop()
    assert time.process_time() - begun < 10


@BOTH
def test_long_paths_that_are_few_are_read(encode: Encode) -> None:
    with bs.open(encode(nested_names(100, 500, 500, None))) as f:
        assert len(f.constants) == 500 and all(len(path) > 50_000 for path in f.constants)


# --- Burn 0.13 --------------------------------------------------------------------------------------------------------


@BOTH
def test_elements_of_0_13_are_of_one_kind_and_as_many_as_the_shape_needs(encode: Encode) -> None:
    def one(value: Any, shape: Any = None) -> bytes:
        item = {"w": {"id": UUID, "param": {"value": value, "shape": [len(value)] if shape is None else shape}}}
        return encode(item, metadata=heading("0.13.2"))

    with bs.open(one([1.5, -2.0])) as f:
        assert (str(f["w"].dtype), f["w"].numpy().tolist()) == ("F32", [1.5, -2.0])
    with bs.open(one([1, -2])) as f:
        assert (str(f["w"].dtype), f["w"].numpy().tolist()) == ("I32", [1, -2])
    with bs.open(one([True, False])) as f:
        assert (str(f["w"].dtype), f["w"].numpy().tolist()) == ("Bool", [True, False])
    refused(one([1.5, 2.5], [3]), bs.errors.CorruptError, "BR-11", tensor="w")
    for mixed in ([1.5, True], [True, 1.5], [1, 1 << 31], [1, True]):
        with pytest.raises(bs.errors.CorruptError):
            bs.open(one(mixed))
    refused(one([], [0]), bs.errors.UnsupportedError, "BR-13", tensor="w")
    with bs.open(one([], [0]), undecided="F32") as f:
        assert f["w"].numpy().shape == (0,)


HALF = {**heading("0.13.2"), "float": "half::binary16::f16", "int": "i16", "settings": "HalfPrecisionSettings"}


@BOTH
@pytest.mark.parametrize(
    ("values", "dtype"),
    [([15360, 48128], "F16"), ([15360, -1], "I16"), ([1, 2], None), ([-1, 65535], "I16"), ([70000], None)],
)
def test_half_elements_of_0_13_are_told_apart_by_their_range(
    encode: Encode, values: list[int], dtype: str | None
) -> None:
    """BR-13"""
    data = encode({"w": {"id": UUID, "param": {"value": values, "shape": [len(values)]}}}, metadata=HALF)
    if dtype is None:
        with pytest.raises(bs.errors.FormatError):
            bs.open(data)
        return
    with bs.open(data) as f:
        assert str(f["w"].dtype) == dtype


# --- binary -----------------------------------------------------------------------------------------------------------


def binary(*item: bytes, version: str = "0.21.0") -> bytes:
    texts = {**heading(version), "format": heading()["format"].replace("NamedMpk", "Bin")}
    return b"".join(map(encode_text, texts.values())) + b"".join(item)


def bin_parameter(raw: bytes = ONE, shape: tuple[int, ...] = (2, 3), dtype: bytes = b"\1") -> bytes:
    extents = b"".join(map(encode_uint, (len(shape), *shape)))
    return encode_text(ID) + encode_uint(len(raw)) + raw + extents + dtype


class One(bs.nn.Module):
    def __init__(self) -> None:
        self.w = bs.nn.Param([2, 3])
        self.count = 3


def test_a_binary_record_is_read_along_its_declaration_to_the_last_byte() -> None:
    good = binary(bin_parameter(), b"\0")
    with bs.open(good, like=One()) as f:
        assert f["w"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert dict(f.constants) == {"count": None}
    for length in range(len(binary()), len(good)):
        with pytest.raises(bs.errors.FormatError):
            bs.open(good[:length], like=One())
    for tail in (b"\0", b"\1", b"more"):
        error = refused(good + tail, bs.errors.CorruptError, "BR-17", like=One())
        assert "follow" in str(error)
    refused(binary(b"\0", bin_parameter(), b"\0"), bs.errors.CorruptError, "BR-17", tensor="w", like=One())
    refused(binary(bin_parameter(), b"\2"), bs.errors.CorruptError, "BR-17", tensor="count", like=One())


def test_what_may_be_an_option_is_found_out() -> None:
    with bs.open(binary(b"\1", bin_parameter(), b"\0"), like=One()) as f:
        assert list(f) == ["w"]
    with bs.open(binary(bin_parameter(), b"\1\0", version="0.16.1"), like=One()) as f:
        assert list(f) == ["w"]
    refused(binary(b"\1\1", bin_parameter(), b"\0"), bs.errors.CorruptError, "BR-17", tensor="w", like=One())


def test_a_declared_option_needs_its_mark() -> None:
    class Declared(One):
        optional_fields = frozenset({"w"})

    bs.open(binary(b"\1", bin_parameter(), b"\0"), like=Declared()).close()
    refused(binary(bin_parameter(), b"\0"), bs.errors.CorruptError, "BR-17", tensor="w", like=Declared())
    error = refused(binary(b"\0\0"), bs.errors.CorruptError, "BR-17", tensor="w", like=Declared())
    assert "None" in str(error)


def test_the_family_of_a_dtype_must_be_the_declared_one() -> None:
    model = One()
    model.w = bs.nn.Param([2, 3], dtype=bs.DType.I32)
    refused(binary(bin_parameter(), b"\0"), bs.errors.CorruptError, "BR-17", tensor="w", like=model)
    refused(binary(bin_parameter(dtype=b"\x20"), b"\0"), bs.errors.CorruptError, "BR-12", tensor="w", like=One())


def test_readings_that_come_to_the_same_are_one() -> None:
    class Inner(bs.nn.Module):
        def __init__(self, *counts: int) -> None:
            for number, count in enumerate(counts):
                setattr(self, f"c{number}", count)

    class Unclear(bs.nn.Module):
        def __init__(self) -> None:
            self.a = [bs.nn.Param([2, 3])]
            self.b = [[bs.nn.Param([2, 3])]]

    # A Vec of one begins with the byte that marks an Option, so both readings are tried; one ends with the file.
    data = binary(b"\1", bin_parameter(), b"\1\1", bin_parameter())
    with bs.open(data, like=Unclear()) as f:
        assert list(f) == ["a.0", "b.0.0"]
    many = bs.nn.Module()
    for number in range(40):
        setattr(many, f"f{number}", Inner(1))
    many.w = bs.nn.Param([2, 3])
    with at_most(5), bs.open(binary(bytes(40), bin_parameter()), like=many) as f:
        assert list(f) == ["w"]


def test_structs_without_tensors_are_one_constant_or_one_for_each_field() -> None:
    class Settings(bs.nn.Module):
        def __init__(self) -> None:
            self.rate, self.size = 0.5, 3

    class Holder(bs.nn.Module):
        def __init__(self) -> None:
            self.settings = Settings()
            self.w = bs.nn.Param([2, 3])

    for constants in (b"\0", b"\0\0"):
        with bs.open(binary(constants, bin_parameter()), like=Holder()) as f:
            assert list(f) == ["w"]


@pytest.mark.parametrize("like", ["Adamax", 5, "w", object()])
def test_what_is_no_declaration_is_refused(like: Any) -> None:
    with pytest.raises(bs.BurnstoreError):
        bs.open(binary(bin_parameter(), b"\0"), like=like)


def test_lengths_in_bincode_are_in_their_shortest_form() -> None:
    data = binary(encode_text(ID) + b"\xfb\x18\0" + ONE + b"\2\2\3\1", b"\0")
    refused(data, bs.errors.CorruptError, "BR-17", tensor="w", like=One())
    refused(b"\x03f32\x03i32\xfe" + binary()[9:], bs.errors.UnknownFormatError, None)


def test_the_five_texts_of_a_binary_record_are_whole() -> None:
    whole = binary()
    start = whole.index(b"burn_core") + len(b"burn_core::record")
    for length in range(start, len(whole)):
        refused(whole[:length], bs.errors.TruncatedError, "BR-05")
    refused(whole.replace(b"0.21.0", b"0.21.\xff"), bs.errors.CorruptError, "BR-05")
    for version in ("0.x.0", "1.0.0", "21"):
        spelled_version = encode_text(version)
        refused(whole.replace(encode_text("0.21.0"), spelled_version), bs.errors.UnsupportedError, "BR-07")


def test_an_id_without_a_tensor_after_it_is_not_passed_over() -> None:
    refused(binary(bin_parameter(), encode_text(ID), b"\5\5\5"), bs.errors.UnsupportedError, "BR-18")
    refused(binary(encode_text(ID) + b"\0\0\1"), bs.errors.UnsupportedError, "BR-18")


def test_a_tensor_of_4_gib_is_not_written() -> None:
    huge = bs.TensorSnapshot.from_closure("w", bs.DType.F32, [1 << 30], lambda: None)
    record = Record({"w": RecordTensor(huge, ID)})
    with pytest.raises(bs.errors.LimitError) as caught:
        NamedMpkFileRecorder().record(record, "never.mpk")
    assert caught.value.rule == "BR-21"
    assert not Path("never.mpk").exists()


# --- any damage -------------------------------------------------------------------------------------------------------

SMALL = [path for path in FILES if path.stat().st_size < 4000 and path.parent.name != "0.16.1"][::3]


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(
    "path",
    [path for path in SMALL if "pretty" not in path.name][::3],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_a_record_cut_at_any_byte_is_refused(path: Path) -> None:
    data = path.read_bytes()
    like = declared(path.name.split(".")[0], path.parent.name)
    for length in range(len(data)):
        with pytest.raises(bs.errors.FormatError):
            bs.open(data[:length], format="record", like=like, undecided="F16")


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("path", SMALL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_damage_raises_only_errors_of_burnstore(path: Path) -> None:
    data = path.read_bytes()
    like = declared(path.name.split(".")[0], path.parent.name)
    random = np.random.default_rng(len(data))
    edges = [
        b"\0",
        b"\xff",
        b"\x7f",
        b"\x80",
        b"\xff" * 8,
        b"\xfd" + b"\xff" * 8,
        b"\xc6\xff\xff\xff\xff",
        b"[[[[",
        b"\xdf\xff\xff\xff\xff",
    ]
    with at_most(60):
        for number in range(120):
            damaged = bytearray(data)
            for place in random.integers(0, len(data), 1 + number % 3).tolist():
                if number % 4 == 0:
                    damaged[place : place + 1] = edges[number // 4 % len(edges)]
                elif number % 4 == 1:
                    del damaged[place : place + 1 + number % 9]
                else:
                    damaged[min(place, len(damaged) - 1)] = int(random.integers(0, 256))
            for options in ({}, {"like": like, "undecided": "F16"}):
                try:
                    with bs.open(bytes(damaged), format="record", **options) as f:
                        f.numpy()
                except bs.BurnstoreError:
                    continue


@pytest.mark.parametrize("depth", [300, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    start = packed({})[: packed({}).index(b"\xa4item") + 5]
    refused(start + b"\x91" * depth + b"\xc0", bs.errors.LimitError, "BR-03")
    text = spelled({}).replace(b'"item": {}', b'"item": ' + b"[" * depth)
    refused(text, bs.errors.LimitError, "BR-04")


@pytest.mark.parametrize("item", [b"\xc0", b"\x90", b"\x80", b"\x00"])
def test_a_bomb_of_values_is_refused_in_little_memory(item: bytes) -> None:
    start = packed({})[: packed({}).index(b"\xa4item") + 5]
    data = start + b"\xdd" + struct.pack(">I", 10_000_000) + item * 10_000_000

    def opened() -> str:
        try:
            bs.open(data)
        except bs.errors.LimitError as error:
            return str(error.rule)
        return "opened"

    found, seconds = in_little_memory(64 << 20, opened)
    assert found == "BR-03"
    assert seconds < 2


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("item", [b"[]", b"null"])
def test_a_bomb_of_json_values_is_refused_in_little_memory(item: bytes) -> None:
    text = spelled({}).replace(b'"item": {}', b'"item": [' + b",".join([item] * 1_100_000) + b"]")

    def opened() -> str:
        try:
            bs.open(text)
        except bs.errors.LimitError as error:
            return str(error.rule)
        return "opened"

    found, _ = in_little_memory(160 << 20, opened)
    assert found == "BR-04"


def test_a_record_beside_other_things_is_no_trap(tmp_path: Path) -> None:
    for what in (tmp_path, Path("/dev/null")):
        with pytest.raises((bs.errors.ReadError, bs.errors.FormatError)):
            open_record(what)
    with pytest.raises(FileNotFoundError):
        open_record(tmp_path / "nothing.mpk")
    (tmp_path / "empty.mpk").touch()
    with pytest.raises(bs.errors.UnknownFormatError):
        open_record(tmp_path / "empty.mpk")
    assert FIXTURES.is_dir() and of("0.21.0", "tiny", "namedmpk", "full").is_file()


@pytest.mark.parametrize("as_lists", [False, True])
def test_a_record_of_0_15_may_still_have_its_elements_one_by_one(as_lists: bool) -> None:
    """The tree of Burn was numbered 0.15 while tensors changed."""
    elements = encode_text(ID) + encode_uint(6) + ONE + b"\2\2\3"
    item = elements if as_lists else bin_parameter()
    with bs.open(binary(item, b"\0", version="0.15.0"), like=One()) as f:
        assert f["w"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    for damaged in (binary(item, b"\2", version="0.15.0"), binary(item, version="0.15.0")):
        with pytest.raises((bs.errors.CorruptError, bs.errors.TruncatedError)) as caught:
            bs.open(damaged, like=One())
        assert caught.value.rule == "BR-17"
