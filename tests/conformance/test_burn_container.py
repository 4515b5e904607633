"""What Burn's own tests ask of the container: header, alignment, damage, odd content, equal bytes when saved again."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import cbor2
import ml_dtypes
import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, Limits, TensorData, TensorSnapshot
from burnstore.errors import (
    CorruptError,
    FormatError,
    LimitError,
    TensorNotFoundError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
)
from burnstore.formats.burnpack.header import ALIGNMENT, HEADER, MAGIC, VERSION, aligned


def packed(tensors: Any, metadata: dict[str, str] | None = None, **options: Any) -> bytes:
    return bs.serialize(tensors, format="burnpack", metadata=metadata or {}, layout="burn", **options)


def descriptors(data: bytes) -> dict[str, Any]:
    """The tensors of a file as an independent decoder sees them."""
    length = int.from_bytes(data[6:10], "little")
    return cbor2.loads(data[10 : 10 + length])["tensors"]


def with_descriptor(data: bytes = bytes(4), **changes: Any) -> bytes:
    """A file of one tensor ``t``, its descriptor changed."""
    content = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **changes}
    metadata = cbor2.dumps({"tensors": {"t": content}})
    head = struct.pack("<4sHI", b"NRUB", 1, len(metadata)) + metadata
    return head + bytes(-len(head) % 256) + data


def refused(data: bytes | Path, kind: type[FormatError], match: str, **options: Any) -> FormatError:
    with pytest.raises(kind, match=match) as caught:
        bs.open(data, format="burnpack", **options)
    return caught.value


# --- header -----------------------------------------------------------------------------------------------------------


def test_the_header_is_ten_bytes_magic_version_and_length() -> None:
    assert (HEADER.size, MAGIC, VERSION) == (10, b"NRUB", 1)
    assert int.from_bytes(MAGIC, "little") == 0x4255524E
    for length in (1234, 12345):
        raw = HEADER.pack(MAGIC, VERSION, length)
        assert len(raw) == 10 and HEADER.unpack(raw) == (b"NRUB", 1, length)
        assert raw[6:] == length.to_bytes(4, "little")
    assert packed({})[:6] == b"NRUB\1\0"


@pytest.mark.parametrize("magic", [b"\xef\xbe\xad\xde", bytes(4), b"BURN"])
def test_another_magic_number_is_refused(magic: bytes) -> None:
    data = magic + packed({})[4:]
    assert refused(data, CorruptError, "NRUB").rule == "BP-01"
    with pytest.raises(UnknownFormatError):
        bs.open(data)


@pytest.mark.parametrize("length", [0, 4, 5, 9])
def test_fewer_bytes_than_a_header_are_refused(length: int) -> None:
    assert refused(packed({})[:length], TruncatedError, "header").rule == "BP-01"


@pytest.mark.parametrize("version", [2, 999, 65535])
def test_a_version_of_the_future_is_refused(version: int) -> None:
    data = packed({})
    assert refused(data[:4] + version.to_bytes(2, "little") + data[6:], UnsupportedError, str(version)).rule == "BP-02"


def test_a_claim_of_more_metadata_than_allowed_is_refused_before_anything_is_read() -> None:
    claim = HEADER.pack(MAGIC, VERSION, (100 << 20) + 1)
    assert refused(claim, LimitError, "104857601").rule == "BP-03"


@pytest.mark.parametrize("claim", [4096, 11])
def test_metadata_past_the_end_of_the_file_are_refused(claim: int) -> None:
    assert refused(HEADER.pack(MAGIC, VERSION, claim) + b"\xa1", TruncatedError, "truncated").rule == "BP-03"


def test_metadata_that_are_no_cbor_are_refused() -> None:
    assert refused(HEADER.pack(MAGIC, VERSION, 246) + b"\xff" * 246, CorruptError, "expected map").offset == 10


# --- alignment --------------------------------------------------------------------------------------------------------


def test_the_data_start_is_aligned_for_every_length_of_metadata() -> None:
    for length in (*range(1024), 4096):
        start = aligned(10 + length)
        assert start % 256 == 0 and 0 <= start - (10 + length) < 256
    assert (aligned(10 + 246), aligned(10 + 247)) == (256, 512)
    assert ALIGNMENT == 256 and all(ALIGNMENT % size == 0 for size in (1, 2, 4, 8))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("counts", [(3, 1, 2), (3, 16, 64, 1, 400), (7, 7, 7, 7, 7)])
def test_every_tensor_lies_at_a_multiple_of_256_where_its_descriptor_says(
    counts: tuple[int, ...], dtype: Any, tmp_path: Path
) -> None:
    tensors = {f"t{n}": np.arange(count).astype(dtype) + n for n, count in enumerate(counts)}
    data = packed(tensors)
    bs.save(tensors, tmp_path / "model.bpk", metadata={}, layout="burn")
    assert (tmp_path / "model.bpk").read_bytes() == data
    end = 10 + int.from_bytes(data[6:10], "little")
    start = aligned(end)
    assert start < len(data) and not any(data[end:start])
    for name, found in descriptors(data).items():
        first, last = found["data_offsets"]
        assert first % 256 == 0 and (start + first) % 256 == 0
        assert data[start + first : start + last] == tensors[name].tobytes()
    for source in (data, tmp_path / "model.bpk"):
        with bs.open(source) as f:
            assert f.data_offset == start and all(f.offset_of(name) % 256 == 0 for name in f)
            assert {name: f[name].numpy().tolist() for name in f} == {name: t.tolist() for name, t in tensors.items()}


def test_offsets_of_two_small_tensors_are_those_of_their_release() -> None:
    two = {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}
    assert [found["data_offsets"] for found in descriptors(packed(two)).values()] == [[0, 4], [256, 260]]
    old = packed(two, burn_version="0.19")
    assert [found["data_offsets"] for found in descriptors(old).values()] == [[0, 4], [4, 8]]


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", [[2**63, 2**63 + 4], [2**64 - 8, 2**64 - 4], [0, 2**62]])
def test_offsets_that_no_file_can_have_are_refused(offsets: list[int]) -> None:
    error = refused(with_descriptor(data_offsets=offsets), CorruptError, "overflow")
    assert (error.rule, error.tensor) == ("BP-11", "t")


def test_an_end_before_its_start_is_refused_with_both_numbers() -> None:
    error = refused(with_descriptor(data_offsets=[100, 50]), CorruptError, "end offset 50 is before start offset 100")
    assert error.rule == "BP-11"


@pytest.mark.parametrize("length", [16, 32])
def test_bytes_that_contradict_the_shape_are_refused_with_both_numbers(length: int) -> None:
    data = with_descriptor(bytes(length), dtype="F32", shape=[2, 3], data_offsets=[0, length])
    assert refused(data, CorruptError, f"declares {length} bytes, .* need 24").tensor == "t"


def test_a_shape_whose_bytes_no_number_holds_is_refused_when_read_and_when_written() -> None:
    data = with_descriptor(dtype="F32", shape=[2**64 - 1, 2])
    assert refused(data, CorruptError, "calculation overflows u64").tensor == "t"
    absurd = TensorSnapshot.from_closure("t", DType.F32, [2**64 - 1, 2], lambda: np.zeros(0, np.float32))
    with pytest.raises(FormatError, match="calculation overflows u64"):
        packed([absurd])


@pytest.mark.parametrize(("size", "kept"), [(2048, "half"), (1024, 512), (2048, 1024), (1024, 1)])
def test_data_that_are_cut_are_refused_with_the_length_they_should_have(
    size: int, kept: int | str, tmp_path: Path
) -> None:
    data = packed({"t": np.ones(size, np.uint8)})
    cut = data[: len(data) // 2] if kept == "half" else data[: len(data) - int(kept)]
    (tmp_path / "cut.bpk").write_bytes(cut)
    for source in (cut, tmp_path / "cut.bpk"):
        for zero_copy in (False, True):
            refused(source, TruncatedError, f"File truncated: expected at least {len(data)}", zero_copy=zero_copy)
    with bs.open(data) as f:  # the exact length is accepted
        assert f["t"].nbytes == size


def test_data_cut_inside_the_padding_before_them_are_refused() -> None:
    data = packed({"t": np.ones(16, np.uint8)}, {"format": "burnpack", "producer": "burn", "version": "0.22.1"})
    end = 10 + int.from_bytes(data[6:10], "little")
    refused(data[: end + 16], TruncatedError, "File truncated:")


# --- reading ----------------------------------------------------------------------------------------------------------


def test_an_empty_file_of_tensors_has_nothing_in_it() -> None:
    with bs.open(packed({})) as f:
        assert (list(f), dict(f.metadata), dict(f.scalars)) == ([], {}, {})


def test_texts_and_tensors_are_found_by_their_names_and_others_are_an_error() -> None:
    arrays = {f"t{n}": np.full(100, n, np.uint8) for n in range(10)}
    texts = {"a": "1", "b": "2", "c": "3", "d": "4"}
    with bs.open(packed(arrays, texts)) as f:
        assert dict(f.metadata) == texts
        assert [f[name].to_bytes() for name in arrays] == [array.tobytes() for array in arrays.values()]
        assert [(t.path, t.shape, str(t.dtype)) for t in f.values()] == [(name, (100,), "U8") for name in arrays]
        with pytest.raises(TensorNotFoundError, match="t99"):
            f["t99"]


@pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "mapped"])
def test_a_large_tensor_of_a_file_is_read_when_it_is_asked_for(zero_copy: bool, tmp_path: Path) -> None:
    array = np.arange(1 << 18, dtype=np.float32)
    bs.save({"small": np.uint8([1, 2, 3]), "large": array}, tmp_path / "model.bpk", metadata={"a": "b"}, layout="burn")
    with bs.open(tmp_path / "model.bpk", zero_copy=zero_copy) as f:
        large = f["large"]
        assert (large.nbytes, large.shape, dict(f.metadata)) == (1 << 20, (1 << 18,), {"a": "b"})
        assert large.to_bytes() == array.tobytes()
        assert f["small"].to_bytes() == b"\1\2\3"


def test_tensors_that_were_written_in_another_order_keep_their_own_data(tmp_path: Path) -> None:
    sizes = {"zebra": 300, "alpha": 1, "mango": 70}
    tensors = {name: np.full(size, size % 256, np.uint8) for name, size in sizes.items()}
    data = packed(tensors)
    assert list(descriptors(data)) == sorted(sizes)
    with bs.open(data) as f:
        assert list(f) == list(sizes)  # in the order of the data; a store sorts
        assert all(f[name].to_bytes() == tensors[name].tobytes() for name in sizes)
    assert bs.BurnpackStore.from_bytes(data).keys() == list(bs.BurnpackStore.from_bytes(data).get_all_snapshots())
    assert bs.BurnpackStore.from_bytes(data).keys() == sorted(sizes)


def test_one_tensor_comes_back_with_everything_it_had(tmp_path: Path) -> None:
    given = TensorSnapshot.from_numpy("weight", np.float32([[1, 2], [3, 4]]), param_id=7)
    bs.save([given], tmp_path / "model.bpk", metadata={"a": "b"}, layout="burn")
    for source in (packed([given]), tmp_path / "model.bpk"):
        with bs.open(source) as f:
            found = f["weight"]
            assert (found.path, found.dtype, found.shape, found.param_id) == ("weight", DType.F32, (2, 2), 7)
            assert (found.nbytes, found.numpy().tolist()) == (16, [[1, 2], [3, 4]])


def test_scalars_are_absent_unless_given_and_keep_their_kinds() -> None:
    with bs.open(packed({})) as f:
        assert dict(f.scalars) == {}
    numbers = {"step": bs.Scalar("UInt", 42), "lr": 0.001, "on": True, "offset": -3}
    with bs.open(packed({}, scalars=numbers)) as f:
        assert {name: (s.kind, s.value) for name, s in f.scalars.items()} == {
            "step": ("UInt", 42), "lr": ("Float", 0.001), "on": ("Bool", True), "offset": ("Int", -3),
        }  # fmt: skip


# --- odd content ------------------------------------------------------------------------------------------------------


def test_shapes_with_zeros_keep_every_entry() -> None:
    shapes = [(0,), (0, 5), (5, 0), (2, 0, 3), (1, 1, 0, 1)]
    tensors = {f"t{n}": np.zeros(shape, np.float32) for n, shape in enumerate(shapes)}
    with bs.open(packed(tensors)) as f:
        assert [f[name].shape for name in tensors] == shapes
        assert {f[name].nbytes for name in f} == {0}
        assert [f[name].numpy().shape for name in tensors] == shapes


ODD_NAMES = [
    "a" * 10_000, "层.权重", "кодировщик", "🔥.🚀", "path/to/tensor", "path\\to\\tensor", "a:b:c", "a.b.c", "a b",
    "a-b_c", "a\tb", "'quoted'", '"double"', "$dollar", "100%", "",
]  # fmt: skip


def test_odd_names_and_texts_are_kept() -> None:
    tensors = {name: np.uint8([number]) for number, name in enumerate(ODD_NAMES)}
    texts = {name: name[::-1] for name in ODD_NAMES}
    with bs.open(packed(tensors, texts)) as f:
        assert list(f) == ODD_NAMES and dict(f.metadata) == texts
        assert [f[name].numpy().tolist() for name in ODD_NAMES] == [[number] for number in range(len(ODD_NAMES))]


def test_of_texts_with_one_key_the_last_is_written() -> None:
    store = bs.BurnpackStore.from_bytes(None).metadata("key", "first").metadata("key", "last")
    store.save({"a": np.zeros(1)})
    assert bs.open(store.get_bytes()).metadata["key"] == "last"


def boundaries() -> dict[str, TensorData]:
    """For every dtype of Burn the ends of its range, and for floats what is not a number."""
    arrays: dict[str, Any] = {}
    for dtype in (np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.uint8):
        info = np.iinfo(dtype)
        arrays[np.dtype(dtype).name] = np.array([info.min, 0, info.max], dtype)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        info = ml_dtypes.finfo(dtype)
        values = [info.min, 0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.smallest_normal, info.smallest_subnormal]
        arrays[np.dtype(dtype).name] = np.array(values, dtype)
    arrays["nan payloads"] = np.uint32([0x7FC00001, 0xFFC12345, 0x7F800001]).view(np.float32)
    arrays["bool"] = np.array([True, False, True, True, False])
    data = {name: TensorData.from_numpy(array) for name, array in arrays.items()}
    data["flex"] = TensorData.from_bytes(np.float32([1, 2]).tobytes(), DType.Flex32, [2])
    data["bool u8"] = TensorData.from_bytes(b"\0\1", DType.BoolU8, [2])
    data["bool u32"] = TensorData.from_bytes(b"\0\0\0\0\1\0\0\0", DType.BoolU32, [2])
    return data


def test_every_dtype_keeps_its_ends_and_its_special_values_bit_for_bit() -> None:
    given = boundaries()
    assert {str(data.dtype) for data in given.values()} >= {
        "F64",
        "F32",
        "F16",
        "BF16",
        "I64",
        "I8",
        "U64",
        "U8",
        "Bool",
    }
    packed_bytes = packed(given)
    with bs.open(packed_bytes) as f:
        for name, data in given.items():
            assert (f[name].dtype, f[name].shape, f[name].nbytes) == (data.dtype, data.shape, data.nbytes)
            assert f[name].to_bytes() == data.to_bytes()
    found = descriptors(packed_bytes)
    assert all(found[name]["data_offsets"][1] - found[name]["data_offsets"][0] == given[name].nbytes for name in given)


def test_one_byte_ten_axes_and_a_megabyte_are_tensors_too() -> None:
    tensors = {
        "byte": np.uint8([255]),
        "axes": np.arange(1024, dtype=np.float32).reshape((2,) * 10),
        "large": np.zeros(1 << 20, np.uint8),
    }
    with bs.open(packed(tensors)) as f:
        assert {name: f[name].shape for name in f} == {"byte": (1,), "axes": (2,) * 10, "large": (1 << 20,)}
        assert all(f[name].to_bytes() == tensors[name].tobytes() for name in f)
        assert descriptors(packed(tensors))["large"]["data_offsets"][1] % (1 << 20) == 4096 + 256


# --- written, read and written again ----------------------------------------------------------------------------------


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


AGAIN: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "empty": ({}, {}),
    "metadata only": ({}, {"a": "1", "b": "2", "c": "3"}),
    "f32": ({"t": f32(1, 2, 3, 4, 5)}, {}),
    "f64": ({"t": np.array([1.1, 2.2, 3.3])}, {}),
    "i32": ({"t": np.int32([-1, 0, 1, 2**31 - 1])}, {}),
    "i64": ({"t": np.int64([-(2**63), 0, 2**63 - 1])}, {}),
    "u32": ({"t": np.uint32([0, 1, 2**32 - 1])}, {}),
    "u64": ({"t": np.uint64([0, 1, 2**64 - 1])}, {}),
    "u8": ({"t": np.uint8([0, 127, 255])}, {}),
    "bool": ({"t": np.array([True, False, True, True, False])}, {}),
    "mixed dtypes": ({"f": f32(1), "i": np.int64([2]), "b": np.array([True])}, {}),
    "many axes": ({f"d{n}": np.zeros((2, 3, 2, 2)[:n], np.float32) for n in (2, 3, 4)}, {}),
    "metadata and tensors": ({"a.w": f32(1), "a.b.w": f32(2)}, {"x": "1", "y": "2", "z": "3"}),
    "special values": ({name: data for name, data in boundaries().items() if name.startswith(("f", "nan"))}, {}),
    "large": ({"t": np.arange(25_600, dtype=np.float32)}, {}),
    "empty shapes": ({"scalar": np.float32(7), "none": np.zeros(0, np.float32)}, {}),
}


@pytest.mark.parametrize("case", AGAIN)
def test_what_is_written_read_and_written_again_is_byte_identical(case: str, tmp_path: Path) -> None:
    tensors, metadata = AGAIN[case]
    first = packed(tensors, metadata)
    with bs.open(first) as f:
        assert packed(f, dict(f.metadata)) == first
        bs.save(f, tmp_path / "first.bpk", metadata=f.metadata)
    with bs.open(tmp_path / "first.bpk") as f:
        bs.save(f, tmp_path / "second.bpk", metadata=f.metadata)
    assert (tmp_path / "first.bpk").read_bytes() == (tmp_path / "second.bpk").read_bytes() == first


def test_ids_are_kept_apart_and_an_absent_one_stays_absent() -> None:
    ids = {"a": 123456789, "b": 1, "c": 2**64 - 1, "none": None}
    given = [TensorSnapshot.from_numpy(name, f32(1), param_id=number) for name, number in ids.items()]
    data = packed(given)
    with bs.open(data) as f:
        assert {name: f[name].param_id for name in f} == ids
        assert packed(f) == data
    assert "param_id" not in descriptors(data)["none"]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_size_of_a_tensor_is_limited_as_the_caller_says() -> None:
    data = packed({"t": np.zeros(16, np.uint8)})
    with pytest.raises(LimitError, match="16 bytes, more than the limit of 15") as caught:
        bs.open(data, limits=Limits(tensor_bytes=15))
    assert caught.value.tensor == "t"
    bs.open(data, limits=Limits(tensor_bytes=16)).close()


def test_the_size_of_a_file_is_limited_as_the_caller_says() -> None:
    data = packed({"t": np.zeros(16, np.uint8)})
    with pytest.raises(LimitError):
        bs.open(data, limits=Limits(file_bytes=len(data) - 1))
    bs.open(data, limits=Limits(file_bytes=len(data))).close()
