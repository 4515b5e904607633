"""SafeTensors files of the package and ours: the same bytes for the same tensors, each read by the other."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load, load_file, save, save_file

import burnstore as bs
from burnstore import DType, TensorData, TensorSnapshot
from burnstore.formats.safetensors import fast_header, header
from burnstore.formats.safetensors.header import BY_SPELLING

PACKAGE = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8]
PACKAGE += [np.uint64, np.uint32, np.uint16, np.uint8, np.bool_, np.complex64]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TENSORS = st.dictionaries(
    TEXT.filter(lambda name: name != "__metadata__"),
    st.sampled_from(PACKAGE).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    ),
    max_size=6,
)


def ours(tensors: Any, metadata: dict[str, str] | None = None) -> bytes:
    return bs.serialize(tensors, format="safetensors", metadata=metadata)


@given(TENSORS, st.none() | st.dictionaries(TEXT, TEXT, max_size=1))
def test_the_bytes_are_those_of_the_package(tensors: dict[str, Any], metadata: dict[str, str] | None) -> None:
    if not tensors and metadata == {}:
        return  # there the package writes a header that is no JSON: see below
    in_order = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    assert ours(tensors, metadata) == save(in_order, metadata)


@given(TENSORS, st.dictionaries(TEXT, TEXT, max_size=3))
def test_the_package_reads_ours(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    packed = ours(tensors, metadata)
    found = load(packed)
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
    with bs.open(packed) as f:
        assert dict(f.metadata) == metadata


@given(TENSORS)
def test_we_read_the_package_s(tensors: dict[str, Any]) -> None:
    in_order = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    with bs.open(save(in_order)) as f:
        for zero_copy in (f, bs.open(save(in_order), zero_copy=True)):
            found = zero_copy.numpy()
            assert found.keys() == tensors.keys()
            for name, array in tensors.items():
                assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
                assert found[name].tobytes() == array.tobytes()


def test_no_tensors_and_no_texts_make_a_file_that_the_package_reads() -> None:
    with pytest.raises(safetensors.SafetensorError):
        load(save({}, {}))  # its own
    assert load(ours({}, {})) == {}
    assert ours({}, {})[8:].rstrip() == b'{"__metadata__":{}}'
    assert ours({}) == save({})


def reference_bytes(tensors: list[tuple[str, str, list[int], bytes]]) -> bytes:
    """A file as the package writes it, for dtypes that its NumPy face does not know."""
    keep = {name: np.frombuffer(raw or b"\0", np.uint8) for name, _, _, raw in tensors}
    named = {
        name: safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=keep[name].ctypes.data, data_len=len(raw))
        for name, dtype, shape, raw in tensors
    }
    return bytes(safetensors.serialize(named))


# What the package's `serialize` calls them.
NAMES = {
    "BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
    "U64": "uint64",
}  # fmt: skip


def test_all_dtypes_are_ordered_and_spelled_as_the_package_does() -> None:
    random = np.random.default_rng(1)
    tensors, expected = {}, []
    for place, (spelling, dtype) in enumerate(BY_SPELLING.items()):
        if spelling not in NAMES:
            continue  # 6 bits: the package reads them and has no word to write them
        for name in (f"b{place}", f"a{place}"):
            raw = random.integers(0, 2, dtype.nbytes([2, 4]), np.uint8).tobytes()
            tensors[name] = TensorData.from_bytes(raw, dtype, [2, 4])
            shape = [2, 2] if spelling == "F4" else [2, 4]  # torch counts pairs
            expected.append((name, NAMES[spelling], shape, raw))
    assert ours(tensors) == reference_bytes(expected)


@pytest.mark.parametrize("spelling", BY_SPELLING)
def test_the_package_reads_every_dtype_of_ours(spelling: str) -> None:
    dtype = BY_SPELLING[spelling]
    raw = bytes(n % 2 for n in range(dtype.nbytes([2, 4])))
    [(name, found)] = safetensors.deserialize(ours({"t": TensorData.from_bytes(raw, dtype, [2, 4])}))
    assert (name, found["dtype"], found["shape"], bytes(found["data"])) == ("t", spelling, [2, 4], raw)


def test_every_spelling_of_the_package_is_known() -> None:
    broken = struct.pack("<Q", 52) + b'{"a":{"dtype":"?","shape":[0],"data_offsets":[0,0]}}'
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(broken)
    listed = str(caught.value).split("expected one of ")[1].split(" at line")[0]
    assert [spelling.strip("` ") for spelling in listed.split(",")] == list(BY_SPELLING)


def test_ml_dtypes_arrays_are_saved_under_their_names() -> None:
    arrays = {
        "bf16": np.arange(4).astype(ml_dtypes.bfloat16),
        "e4m3": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
        "e5m2": np.arange(4).astype(ml_dtypes.float8_e5m2),
        "e8m0": np.array([1, 2, 4]).astype(ml_dtypes.float8_e8m0fnu),
    }
    with bs.open(ours(arrays)) as f:
        assert {name: str(t.dtype) for name, t in f.items()} == {
            "bf16": "BF16", "e8m0": "F8_E8M0", "e4m3": "F8_E4M3", "e5m2": "F8_E5M2",
        }  # fmt: skip
        assert list(f) == ["bf16", "e8m0", "e4m3", "e5m2"]
        assert all(np.array_equal(f[name].numpy(), array) for name, array in arrays.items())


def test_arrays_that_do_not_lie_in_order_are_not_scrambled(tmp_path: Path) -> None:
    square = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = {
        "transposed": square.T,
        "every other": np.arange(8, dtype=np.int16)[::2],
        "backwards": np.arange(4, dtype=np.float64)[::-1],
        "big-endian": np.arange(4, dtype=">i4"),
        "broadcast": np.broadcast_to(np.float16(2), (3, 2)),
    }
    path = tmp_path / "model.safetensors"
    bs.save(arrays, path, durable=False)
    found = load_file(path)
    for name, array in arrays.items():
        assert np.array_equal(found[name], array), name
    save_file({"transposed": square.T}, tmp_path / "theirs.safetensors")
    theirs = load_file(tmp_path / "theirs.safetensors")["transposed"]
    assert not np.array_equal(theirs, square.T)  # why the package's own writer is no help here


def test_names_are_escaped_as_the_package_does() -> None:
    name = 'q"\\/\x7f\x01\b\f\n\r\t\u2028é😀\x1b'
    array = np.zeros(1, np.float32)
    assert ours({name: array}, {name: name}) == save({name: array}, {name: name})


def test_the_name_of_the_metadata_cannot_be_a_tensor_s() -> None:
    with pytest.raises(bs.errors.FormatError, match="no tensor can have this name") as caught:
        ours({"__metadata__": np.zeros(1)})
    assert (caught.value.tensor, caught.value.rule) == ("__metadata__", "ST-05")


def test_text_that_is_not_unicode_is_refused() -> None:
    array = np.zeros(1, np.float32)
    for name, metadata in (("\ud800", None), ("a", {"\ud800": ""}), ("a", {"": "\udfff"})):
        with pytest.raises(bs.errors.FormatError) as caught:
            ours({name: array}, metadata)
        assert caught.value.rule == "ST-02"


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        (bs.Limits(tensors=1), "ST-04"),
        (bs.Limits(header_bytes=20), "ST-01"),
        (bs.Limits(name_bytes=1), "ST-13"),
        (bs.Limits(rank=1), "ST-08"),
        (bs.Limits(tensor_bytes=3), None),
    ],
)
def test_what_could_not_be_read_again_is_not_written(limits: bs.Limits, rule: str | None) -> None:
    with pytest.raises(bs.errors.LimitError) as caught:
        bs.serialize({"aa": np.zeros((2, 2), np.uint8), "b": np.zeros(1)}, format="safetensors", limits=limits)
    assert caught.value.rule == rule


def test_a_shape_that_no_reader_takes_is_not_written() -> None:
    absurd = TensorSnapshot.from_closure("t", DType.F32, [0, 1 << 40, 1 << 40], lambda: np.zeros(0))
    with pytest.raises(bs.errors.FormatError) as caught:
        ours([absurd])
    assert (caught.value.tensor, caught.value.rule) == ("t", "ST-08")


# --- the quick scan ---------------------------------------------------------------------------------------------------


def scanned(packed: bytes) -> Any:
    text = packed[8 : 8 + struct.unpack("<Q", packed[:8])[0]].decode()
    return fast_header.read_header(text, bs.Limits(tensors=1000))


def test_the_scan_takes_what_the_package_and_burnstore_write() -> None:
    tensors = {f"layers.{n}.größe": np.zeros((n % 3, 2), np.float32) for n in range(50)}
    for metadata in (None, {}, {"format": "pt", "a": 'x"}{\\'}):
        for packed in (save(tensors, metadata), ours(tensors, metadata)):
            columns = scanned(packed)
            assert columns is not None
            text = packed[8 : 8 + struct.unpack("<Q", packed[:8])[0]].decode()
            strict = header.read_header(text, bs.Limits(tensors=1000))
            assert (columns.names, columns.metadata) == (strict.names, strict.metadata)
            assert [columns.kinds[n] for n in columns.kind] == [strict.kinds[n] for n in strict.kind]
            assert (columns.starts == strict.starts).all()
            assert (columns.ends == strict.ends).all()


def test_another_spelling_is_left_to_the_strict_reader() -> None:
    spaced = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    packed = struct.pack("<Q", len(spaced)) + spaced + bytes(4)
    assert scanned(packed) is None
    with bs.open(packed) as f:
        assert f["a"].shape == (1,)


def test_twenty_thousand_small_tensors_are_read_in_few_reads(tmp_path: Path) -> None:
    """Elements of four bytes at odd multiples of four share a buffer with their neighbours, aligned."""
    tensors = {f"t{n:05}": np.full(1 + n % 3, n, np.float32) for n in range(20_000)}
    path = tmp_path / "small.safetensors"
    save_file(tensors, path)
    with bs.open(path) as f:
        found = f.numpy()
    assert all(np.array_equal(found[name], array) for name, array in tensors.items())
    assert all(array.flags.aligned and array.flags.writeable for array in found.values())
    assert len({id(array.base) for array in found.values()}) < 100


@pytest.mark.parametrize("padding", range(8))
def test_a_header_of_any_length_is_read_right(padding: int) -> None:
    packed = ours({"a": np.arange(3.0), "b": np.arange(5, dtype=np.int16), "c": np.arange(3, dtype=np.int8)})
    length = struct.unpack("<Q", packed[:8])[0]
    shifted = struct.pack("<Q", length + padding) + packed[8 : 8 + length] + b" " * padding + packed[8 + length :]
    for zero_copy in (False, True):
        with bs.open(shifted, zero_copy=zero_copy) as f:
            found = f.numpy()
            assert found["a"].tolist() == [0, 1, 2]
            assert found["b"].tolist() == [0, 1, 2, 3, 4]
            assert found["c"].tolist() == [0, 1, 2]
