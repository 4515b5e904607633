"""How a Burnpack file is planned and written: places, padding, order, scalars, floats, limits, and what is refused."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore import DType, Limits, Scalar, TensorData, TensorSnapshot
from burnstore.errors import CorruptError, DTypeError, DuplicateNameError, FormatError, LimitError
from burnstore.formats.burnpack import plan
from burnstore.tensor.quantization import QuantBlock, QuantScheme, QuantStore


def packed(tensors: Any, metadata: dict[str, str] | None = None, **options: Any) -> bytes:
    return bs.serialize(
        tensors, format="burnpack", metadata={} if metadata is None else metadata, **{"layout": "burn", **options}
    )


def header(data: bytes) -> dict[str, Any]:
    """The metadata as an independent decoder sees it."""
    length = int.from_bytes(data[6:10], "little")
    return cbor2.loads(data[10 : 10 + length])


def data_start(data: bytes) -> int:
    return -(-(10 + int.from_bytes(data[6:10], "little")) // 256) * 256


def zeros(count: int) -> np.ndarray[Any, Any]:
    return np.zeros(count, np.uint8)


@pytest.mark.parametrize(
    ("sizes", "starts", "end"),
    [
        ([3, 1, 2], [0, 256, 512], 514),
        ([256, 1], [0, 256], 257),
        ([257, 1], [0, 512], 513),
        ([255, 256, 0, 1], [0, 256, 512, 512], 513),
        ([0], [0], 0),
        ([0, 0, 0], [0, 0, 0], 0),
        ([5, 0], [0, 256], 256),
        ([0, 5], [0, 0], 5),
        ([3, 16, 64, 1, 400], [0, 256, 512, 768, 1024], 1424),
    ],
)
def test_each_tensor_starts_at_the_next_multiple_of_256(sizes: list[int], starts: list[int], end: int) -> None:
    data = packed({f"t{n}": zeros(size) for n, size in enumerate(sizes)})
    tensors = header(data)["tensors"]
    assert [tensors[f"t{n}"]["data_offsets"] for n in range(len(sizes))] == [
        [start, start + size] for start, size in zip(starts, sizes, strict=True)
    ]
    assert len(data) == data_start(data) + end
    with bs.open(data) as f:
        assert f.data_offset == data_start(data)
        assert [f[name].nbytes for name in (f"t{n}" for n in range(len(sizes)))] == sizes


def test_the_form_of_0_19_has_no_gaps() -> None:
    data = packed({f"t{n}": zeros(size) + n for n, size in enumerate([3, 0, 1, 2])}, burn_version="0.19")
    tensors = header(data)["tensors"]
    assert [tensors[f"t{n}"]["data_offsets"] for n in range(4)] == [[0, 3], [3, 3], [3, 4], [4, 6]]
    assert data[-6:] == b"\0\0\0\2\3\3"


def test_a_last_tensor_without_bytes_is_preceded_by_its_padding() -> None:
    data = packed({"a": np.full(5, 7, np.uint8), "last": zeros(0)})
    assert len(data) == data_start(data) + 256
    assert data[-256:] == b"\7" * 5 + bytes(251)
    with bs.open(data) as f:
        assert list(f) == ["a", "last"]
        assert f["last"].numpy().shape == (0,)


@pytest.mark.parametrize("length", range(200, 300, 7))
def test_the_data_start_is_the_next_multiple_of_256_after_the_metadata(length: int) -> None:
    data = packed({"t": np.full(1, 9, np.uint8)}, {"k": "x" * length})
    end = 10 + int.from_bytes(data[6:10], "little")
    start = data_start(data)
    assert 0 <= start - end < 256
    assert not any(data[end:start])
    assert data[start:] == b"\t"


def test_metadata_that_ends_on_a_multiple_of_256_has_no_padding() -> None:
    for length in range(256):
        data = packed({"t": np.full(1, 9, np.uint8)}, {"k": "x" * length})
        if int.from_bytes(data[6:10], "little") == 246:
            assert (len(data), data[255:257]) == (257, b"x\t")
            with bs.open(data) as f:
                assert (f.data_offset, f["t"][0]) == (256, 9)
            break
    else:
        pytest.fail("no metadata has 246 bytes")


def test_gaps_between_tensors_are_zeros() -> None:
    data = packed({"a": np.full(3, 255, np.uint8), "b": np.full(3, 255, np.uint8)})
    start = data_start(data)
    assert data[start:] == b"\xff" * 3 + bytes(253) + b"\xff" * 3


def test_names_are_sorted_by_their_utf_8_bytes() -> None:
    names = ["b", "a", "ab", "a.b", "Z", "é", "\uffff", "\U00010000", "", "z"]
    data = packed({name: zeros(1) for name in names})
    assert list(header(data)["tensors"]) == sorted(names, key=str.encode)
    assert sorted(names, key=str.encode).index("\uffff") < sorted(names, key=str.encode).index("\U00010000")
    with bs.open(data) as f:
        assert list(f) == names


def test_metadata_and_scalars_are_sorted_and_left_out_where_empty() -> None:
    full = header(packed({}, {"b": "1", "a": "2", "é": "3"}, scalars={"y": 1, "x": 2}))
    assert list(full) == ["tensors", "metadata", "scalars"]
    assert list(full["metadata"]) == ["a", "b", "é"]
    assert list(full["scalars"]) == ["x", "y"]
    assert list(header(packed({}))) == ["tensors"]
    assert list(header(packed({}, {"a": ""}))) == ["tensors", "metadata"]
    assert list(header(packed({}, scalars={"a": 1}))) == ["tensors", "scalars"]
    assert list(header(packed({}, scalars={}))) == ["tensors"]


def test_a_descriptor_has_its_keys_in_the_order_of_burn() -> None:
    data = packed([TensorSnapshot.from_numpy("t", zeros(2).reshape(1, 2), param_id=7)])
    assert list(header(data)["tensors"]["t"].items()) == [
        ("dtype", "U8"),
        ("shape", [1, 2]),
        ("data_offsets", [0, 2]),
        ("param_id", 7),
    ]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (5, {"Int": 5}),
        (-1, {"Int": -1}),
        (2**63 - 1, {"Int": 2**63 - 1}),
        (-(2**63), {"Int": -(2**63)}),
        (2**63, {"UInt": 2**63}),
        (2**64 - 1, {"UInt": 2**64 - 1}),
        (Scalar("UInt", 0), {"UInt": 0}),
        (True, {"Bool": True}),
        (False, {"Bool": False}),
        (0.5, {"Float": 0.5}),
        (np.float64(0.1), {"Float": 0.1}),
        (-0.0, {"Float": -0.0}),
        (math.inf, {"Float": math.inf}),
    ],
)
def test_a_scalar_keeps_its_kind(value: Any, stored: dict[str, Any]) -> None:
    data = packed({}, scalars={"s": value})
    assert header(data)["scalars"] == {"s": stored}
    with bs.open(data) as f:
        assert f.scalars["s"] == Scalar.of(value)
        assert repr(f.scalars["s"]) == repr(Scalar.of(value))
        assert packed(f, dict(f.metadata), scalars=f.scalars) == data


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0.0, "f9 0000"),
        (-0.0, "f9 8000"),
        (1.0, "f9 3c00"),
        (65504.0, "f9 7bff"),
        (65505.0, "fa 477fe100"),
        (2.0**-24, "f9 0001"),
        (2.0**-25, "fa 33000000"),
        (0.1, "fb 3fb999999999999a"),
        (float(np.float32(0.1)), "fa 3dcccccd"),
        (3.4028234663852886e38, "fa 7f7fffff"),
        (1e39, "fb 48078287f49c4a1d"),
        (5e-324, "fb 0000000000000001"),
        (math.inf, "f9 7c00"),
        (-math.inf, "f9 fc00"),
        (math.nan, "f9 7e00"),
        (-math.nan, "f9 fe00"),
        (struct.unpack(">d", bytes.fromhex("7ffc000000000000"))[0], "f9 7f00"),
        (struct.unpack(">d", bytes.fromhex("fff8000020000000"))[0], "fa ffc00001"),
        (struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0], "fb 7ff8000000000001"),
        (struct.unpack(">d", bytes.fromhex("7ff4000000000000"))[0], "fb 7ff4000000000000"),
    ],
)
def test_a_float_takes_the_shortest_form_that_keeps_all_bits(value: float, encoded: str) -> None:
    data = packed({}, scalars={"s": value})
    assert b"eFloat" + bytes.fromhex(encoded) in data


NAN_BITS = st.builds(
    lambda sign, payload, shift: sign << 63 | 0x7FF << 52 | (payload << shift) % 2**52,
    st.integers(0, 1),
    st.integers(1, 2**52 - 1),
    st.sampled_from([0, 29, 42, 51]),
)


@given(st.integers(0, 2**64 - 1) | NAN_BITS)
def test_a_float_of_any_bits_comes_back_bit_for_bit(bits: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    with bs.open(packed({}, scalars={"s": value})) as f:
        assert struct.pack("<d", f.scalars["s"].value) == struct.pack("<Q", bits)


@given(st.dictionaries(st.text(max_size=300), st.integers(0, 5000), max_size=8), st.sampled_from(["0.19", "0.22"]))
def test_planned_and_written_length_agree(sizes: dict[str, int], version: str) -> None:
    tensors = [TensorSnapshot.from_numpy(name, zeros(size)) for name, size in sizes.items()]
    planned = plan(tensors, {"a": "b"}, Limits(), burn_version=version)
    data = bs.serialize(tensors, format="burnpack", metadata={"a": "b"}, layout="burn", burn_version=version)
    assert planned.size == len(data)
    assert list(planned.offsets) == sorted(planned.offsets)
    with bs.open(data, burn_version=version) as f:
        assert {name: f[name].nbytes for name in f} == sizes


def test_planning_reads_nothing() -> None:
    def never() -> Any:
        pytest.fail("asked while planning")

    plan([TensorSnapshot.from_closure("t", DType.F32, [4], never)], None, Limits())


def test_a_length_that_contradicts_the_shape_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Rule BP-12, on the way out: what a snapshot announces must be what its dtype and shape need."""
    held = TensorSnapshot.from_numpy("t", np.zeros(2, np.float32))._data
    wrong = TensorSnapshot("t", DType.F32, (4,), held, nbytes=8)
    with pytest.raises(FormatError, match=r"declares 8 bytes, but F32 of shape \[4\] need 16") as caught:
        bs.save([wrong], tmp_path / "model.bpk")
    assert (caught.value.rule, caught.value.tensor) == ("BP-12", "t")
    assert list(tmp_path.iterdir()) == []


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(DuplicateNameError) as caught:
        packed([TensorSnapshot.from_numpy(name, zeros(1)) for name in ("a", "b", "a")])
    assert caught.value.tensor == "a"


def test_what_the_reader_would_refuse_is_not_written() -> None:
    def of_shape(*shape: int) -> list[TensorSnapshot]:
        return [TensorSnapshot.from_closure("t", DType.F32, shape, lambda: np.zeros(0, np.float32))]

    for shape, rule in [((1,) * 65, "BP-10"), ((2**63, 0), "BP-10"), ((2**64, 0), "BP-10"), ((2**62, 4), "BP-10")]:
        with pytest.raises(FormatError) as caught:
            packed(of_shape(*shape))
        assert (caught.value.rule, caught.value.tensor) == (rule, "t")
    with pytest.raises(LimitError, match="more than the limit"):
        packed(of_shape(2**50))
    with pytest.raises(LimitError) as caught:
        packed({"x" * 65_537: zeros(1)})
    assert caught.value.rule == "BP-08"
    packed({"x" * 65_536: zeros(1)})
    with pytest.raises(LimitError) as caught:
        packed({"a": zeros(1), "b": zeros(1)}, limits=Limits(tensors=1))
    assert caught.value.rule == "BP-07"
    with pytest.raises(LimitError) as caught:
        packed({}, {"a": "x" * 100}, limits=Limits(header_bytes=100))
    assert caught.value.rule == "BP-03"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_text_that_is_not_unicode_is_refused(text: str) -> None:
    for call, rule in [
        (lambda: packed({text: zeros(1)}), "BP-08"),
        (lambda: packed({}, {text: "a"}), "BP-17"),
        (lambda: packed({}, {"a": text}), "BP-17"),
        (lambda: packed({}, scalars={text: 1}), "BP-18"),
    ]:
        with pytest.raises(FormatError, match="UTF-8") as caught:
            call()
        assert caught.value.rule == rule
        str(caught.value).encode()  # the message itself can be printed


@pytest.mark.parametrize("wrong", ["", "0", "1.0", "0.18", "0.24", "22", "0.22.", "0.22.1 ", "0.22.0-rc.1", "v0.22"])
def test_a_release_that_burn_never_made_is_a_value_error(wrong: str) -> None:
    for call in (
        lambda: packed({}, burn_version=wrong),
        lambda: bs.serialize({}, format="burnpack", burn_version=wrong),
        lambda: bs.open(packed({}), burn_version=wrong),
    ):
        with pytest.raises(ValueError, match=r"is none of 0\.19, 0\.20"):
            call()


@pytest.mark.parametrize("wrong", [0, 22, 0.22, b"0.22", ["0.22"], True])
def test_a_release_that_is_no_text_is_a_type_error(wrong: Any) -> None:
    for call in (
        lambda: packed({}, burn_version=wrong),
        lambda: bs.serialize({}, format="burnpack", burn_version=wrong),
        lambda: bs.open(packed({}), burn_version=wrong),
    ):
        with pytest.raises(TypeError, match="burn_version must be a str"):
            call()


@pytest.mark.parametrize("wrong", [5, "text", [("a", 1)], {5: 1}, {"a": "text"}, {"a": None}, {"a": 1j}])
def test_scalars_of_the_wrong_type_are_type_errors(wrong: Any) -> None:
    with pytest.raises(TypeError):
        packed({}, scalars=wrong)


@pytest.mark.parametrize(
    ("version", "tensors", "options"),
    [
        ("0.19", {}, {"scalars": {"a": 1}}),
        ("0.21", {}, {"scalars": {"a": 1}}),
        ("0.20", {"t": TensorData.from_bytes(b"\1", DType.BoolU8, [1])}, {}),
        ("0.19", {"t": TensorData.from_bytes(b"\1\0\0\0", DType.BoolU32, [1])}, {}),
        (
            "0.19",
            {"t": TensorData.from_bytes(bytes(12), DType.qfloat(QuantScheme("Q8S", QuantStore("Native"))), [8])},
            {},
        ),
        ("0.22", {"t": TensorData.from_bytes(bytes(8), DType.C64, [1])}, {}),
        ("0.22", {"t": TensorData.from_bytes(bytes(8), DType.F8_E4M3, [8])}, {}),
    ],
)
def test_what_a_release_cannot_hold_is_refused(version: str, tensors: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(DTypeError) as caught:
        packed(tensors, burn_version=version, **options)
    assert caught.value.hint


def test_quantized_bytes_of_an_old_length_are_not_passed_off_as_new_ones() -> None:
    """Burn 0.20 wrote an F32 scale where the scheme says F16; a newer Burn would take its first half for the scale."""
    scheme = QuantScheme("Q8S", QuantStore("Native"), tensor="F16", old_style=True)
    raw = bytes(range(6)) + np.float32(0.5).tobytes()
    data = TensorSnapshot.from_data("q", TensorData.from_bytes(raw, DType.qfloat(scheme), [6]))
    old = packed([data], burn_version="0.20")
    with bs.open(old) as f:
        assert f["q"].to_bytes() == raw
        assert f["q"].numpy().tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
        assert packed(f, burn_version="0.20") == old
        with pytest.raises(CorruptError) as caught:
            packed(f, burn_version="0.22")
        assert caught.value.tensor == "q"


def test_flat_blocks_of_an_old_file_are_not_passed_off_as_rectangles() -> None:
    scheme = QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((2, 2), "F32"), flat_blocks=True, old_style=True)
    data = TensorData.from_bytes(bytes(16) + np.ones(4, np.float32).tobytes(), DType.qfloat(scheme), [4, 4])
    packed({"q": data}, burn_version="0.20")
    with pytest.raises(DTypeError):
        packed({"q": data}, burn_version="0.22")


def test_more_than_a_mebibyte_of_metadata_and_ten_axes_come_back() -> None:
    texts = {f"key {n}": "x" * 1000 for n in range(1200)}
    array = np.arange(2**10, dtype=np.float32).reshape((2,) * 10)
    with bs.open(packed({"t": array}, texts)) as f:
        assert dict(f.metadata) == texts
        assert f["t"].numpy().tobytes() == array.tobytes()
        assert f["t"].shape == (2,) * 10


def test_a_warning_about_the_old_form_points_at_the_caller() -> None:
    stamp = {"format": "burnpack", "producer": "burn", "version": "0.19.1"}
    with pytest.warns(UserWarning, match="0.19.1") as caught:
        bs.serialize({}, format="burnpack", metadata=stamp)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "texts",
    [
        {"format": "burnpack", "producer": "burn", "version": "1.0"},
        {"format": "burnpack", "producer": "someone", "version": "0.19.1"},
        {"format": "other", "producer": "burn", "version": "0.19.1"},
        {"version": "0.19.1"},
        {"format": "burnpack", "producer": "burn", "version": "0.19"},
    ],
)
def test_only_the_stamp_of_burn_itself_chooses_a_release(texts: dict[str, str]) -> None:
    data = packed({"t": zeros(1)}, texts)
    assert len(data) % 256 == 1
    with bs.open(data) as f:
        assert dict(f.metadata) == texts


def test_a_stamp_that_contradicts_the_release_asked_for_is_renewed_and_other_texts_are_kept() -> None:
    old = {"format": "burnpack", "producer": "burn", "version": "0.20.1", "mine": "kept"}
    assert header(packed({}, old, burn_version="0.22"))["metadata"] == {**old, "version": "0.22.1"}
    assert header(packed({}, old, burn_version="0.20"))["metadata"] == old
