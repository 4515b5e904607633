"""GGUF: what the gguf package writes is read bit-equal to it, it reads what is written, hostile headers are refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quants

import burnstore as bs
from burnstore import DType
from burnstore.errors import BurnstoreError, CorruptError, DTypeError, FormatError, LimitError, UnsupportedError
from burnstore.formats.gguf.blocks import FILLS, TYPES, dequantize
from burnstore.formats.gguf.header import read_header
from burnstore.io.source import BytesSource
from burnstore.testing import CountingSource, FormatConformance

LIMITS = bs.Limits().or_defaults(header_bytes=1 << 20, tensors=1000)
DECODED = sorted(FILLS)
WITHOUT_VALUES = ("Q8_1", "Q8_K", "Q1_0")


class TestGguf(FormatConformance):
    format = "gguf"
    suffix = ".gguf"
    dtypes = (DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16, DType.I8)
    stored_as: ClassVar = {DType.Flex32: DType.F32}
    holds_param_ids = False
    most_axes = 4

    def without_padding(self, data: bytes) -> bytes:
        """Return a file without the padding at its end, which some writers leave out (GG-10)."""
        with bs.open(data) as file:
            ends = [file.offset_of(name) + file[name].nbytes for name in file if file[name].nbytes]
        return data[: max(ends, default=read_header(BytesSource(data), LIMITS)[-1])]


def written(path: Path, tensors: dict[str, Any], architecture: str = "llama", **values: Any) -> Path:
    """Write a file with the gguf package; a tensor is an array, or a type and blocks."""
    writer = GGUFWriter(path, architecture)
    for key, value in values.items():
        name = key.replace("__", ".")
        if name == "general.alignment":
            writer.add_custom_alignment(value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[1], raw_dtype=tensor[0])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(name: str, rows: int = 3, per_row: int = 3) -> Any:
    kind = TYPES[Type[name]]
    rng = np.random.default_rng(len(name))
    return rng.integers(0, 256, (rows, per_row * kind.nbytes), dtype=np.uint8)


# --- values -----------------------------------------------------------------------------------------------------------


def test_every_type_that_the_package_dequantizes_is_decoded() -> None:
    assert set(FILLS) == {kind.name for kind in quants._type_traits} - {"BF16"}
    assert {kind.name: (kind.elements, kind.nbytes) for kind in TYPES.values()} == {
        kind.name: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()
    }
    assert {number: kind.name for number, kind in TYPES.items()} == {int(kind): kind.name for kind in Type}


@pytest.mark.parametrize("name", DECODED)
def test_blocks_of_any_bytes_have_the_values_of_the_package(name: str) -> None:
    raw = random_blocks(name, 40, 5)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, Type[name])
    values = np.empty(expected.size, np.float32)
    dequantize(raw.reshape(-1), TYPES[Type[name]], values)
    assert (values.view(np.uint32) == expected.reshape(-1).view(np.uint32)).all()


@pytest.mark.parametrize("name", DECODED)
def test_a_file_of_every_type_is_read_whole_and_in_slices(name: str, tmp_path: Path) -> None:
    raw = random_blocks(name)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, Type[name])
    path = written(tmp_path / "x.gguf", {"w": (Type[name], raw)})
    with bs.open(path) as file:
        tensor = file["w"]
        assert (tensor.dtype, tensor.shape, str(tensor.scheme)) == (DType.F32, expected.shape, name)
        for index in (slice(None), 1, (slice(1, 3), slice(5, 40)), (slice(None, None, -1), 7), (2, slice(-3, None))):
            assert np.array_equal(tensor[index], expected[index], equal_nan=True)
        assert np.array_equal(tensor.torch().numpy(), expected, equal_nan=True)
        assert np.array_equal(file.numpy()["w"], expected, equal_nan=True)
        assert tensor.stored()[0].to_bytes() == raw.tobytes()


def test_a_slice_reads_only_the_blocks_that_it_needs() -> None:
    values = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    with pytest.warns(bs.errors.BurnstoreWarning, match="rounds"):
        source = CountingSource(bs.serialize({"w": values}, format="gguf", quantize="q8_0", layout="torch"))
    file = bs.checkpoint.Checkpoint(source, None, bs.Limits(), {})
    source.forget()
    assert file["w"][3:5].shape == (2, 256)
    assert source.bytes_read == 2 * 256 // 32 * 34


@pytest.mark.parametrize("name", WITHOUT_VALUES)
def test_blocks_without_values_are_listed_and_copied_but_not_read(name: str, tmp_path: Path) -> None:
    raw = random_blocks(name)
    path = written(tmp_path / "x.gguf", {"w": (Type[name], raw)})
    with bs.open(path) as file, pytest.raises(UnsupportedError, match=f"{name} have no values"):
        file["w"].numpy()
    with pytest.raises(UnsupportedError, match="no values"):
        bs.convert(path, tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()
    bs.convert(path, tmp_path / "y.gguf")
    assert (tmp_path / "y.gguf").read_bytes() == path.read_bytes()


# --- copies, metadata, verbs ------------------------------------------------------------------------------------------


def model_file(path: Path) -> Path:
    rng = np.random.default_rng(5)
    tensors = {f"t.{name}": (Type[name], random_blocks(name)) for name in ("Q4_K", "Q6_K", "IQ4_XS")}
    tensors |= {"plain": rng.standard_normal((4, 8)).astype(np.float32), "half": rng.random(6).astype(np.float16)}
    return written(
        path,
        tensors,
        "toy",
        toy__block_count=2,
        toy__epsilon=1e-5,
        toy__flag=True,
        toy__name="größe",
        tokenizer__tokens=["<s>", "a\n", "重み"],
        tokenizer__scores=[0.1, -1.5],
        general__alignment=64,
    )


def test_metadata_is_kept_as_text_and_a_copy_is_equal_byte_for_byte(tmp_path: Path) -> None:
    path = model_file(tmp_path / "x.gguf")
    with bs.open(path) as file:
        assert file.layout == "gguf"
        assert file.metadata["toy.block_count"] == "2"
        assert file.metadata["toy.epsilon"] == "1e-05"
        assert file.metadata["toy.flag"] == "true"
        assert file.metadata["toy.name"] == "größe"
        assert file.metadata["tokenizer.tokens"] == '["<s>","a\\n","重み"]'
        assert file.metadata["tokenizer.scores"] == "[0.1,-1.5]"
    result = bs.convert(path, tmp_path / "copy.gguf")
    assert result.verified
    assert (tmp_path / "copy.gguf").read_bytes() == path.read_bytes()


def test_metadata_survives_the_way_through_another_format(tmp_path: Path) -> None:
    path = model_file(tmp_path / "x.gguf")
    bs.convert(path, tmp_path / "x.safetensors")
    bs.convert(tmp_path / "x.safetensors", tmp_path / "back.gguf")
    reader = gguf.GGUFReader(tmp_path / "back.gguf")
    assert reader.fields["toy.block_count"].contents() == 2
    assert reader.fields["toy.block_count"].types == [gguf.GGUFValueType.UINT32]
    assert reader.fields["tokenizer.tokens"].contents() == ["<s>", "a\n", "重み"]
    assert reader.fields["toy.flag"].contents() is True


def test_a_filtered_copy_keeps_blocks_and_names(tmp_path: Path) -> None:
    path = model_file(tmp_path / "x.gguf")
    bs.convert(path, tmp_path / "y.gguf", filter=r"Q4_K|plain", metadata={"more": "text"})
    reader = gguf.GGUFReader(tmp_path / "y.gguf")
    assert {tensor.name: tensor.tensor_type for tensor in reader.tensors} == {
        "t.Q4_K": Type.Q4_K,
        "plain": Type.F32,
    }
    assert reader.tensors[0].data.tobytes() == random_blocks("Q4_K").tobytes()
    with bs.open(tmp_path / "y.gguf") as file:
        assert file.layout == "gguf"


def test_a_cast_writes_decoded_values(tmp_path: Path) -> None:
    path = model_file(tmp_path / "x.gguf")
    bs.convert(path, tmp_path / "y.gguf", cast="f32", filter="Q6_K")
    reader = gguf.GGUFReader(tmp_path / "y.gguf")
    assert reader.tensors[0].tensor_type is Type.F32
    with np.errstate(all="ignore"):
        expected = quants.dequantize(random_blocks("Q6_K"), Type.Q6_K)
    assert np.array_equal(reader.tensors[0].data, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "Q8_0"])
def test_what_is_written_the_package_reads(dtype: str, tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    options = {"quantize": "q8_0"} if dtype == "Q8_0" else {"cast": dtype.lower()}
    result = bs.save({"w": values, "b": values[0]}, tmp_path / "x.gguf", metadata={"k": "v"}, **options)
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert tensors["w"].tensor_type is Type[dtype]
    assert tensors["w"].data.tobytes() == quants.quantize(values, Type[dtype]).tobytes()
    assert tensors["b"].tensor_type is (Type.F32 if dtype == "Q8_0" else Type[dtype])
    assert reader.fields["k"].contents() == "v"
    assert any("rounds" in note for note in result.notes) is (dtype == "Q8_0")


def test_infinities_and_scales_beyond_float16_are_not_quantized(tmp_path: Path) -> None:
    for value in (np.inf, np.nan, 1e9):
        with pytest.raises(DTypeError, match="Q8_0"):
            bs.save({"w": np.full((2, 32), value, np.float32)}, tmp_path / "x.gguf", quantize="q8_0")
    assert not (tmp_path / "x.gguf").exists()
    with pytest.raises(ValueError, match="quantize must be 'q8_0'"):
        bs.save({"w": np.zeros((2, 32), np.float32)}, tmp_path / "x.gguf", quantize="q4_0")


def test_every_verb_takes_a_file(tmp_path: Path) -> None:
    values = np.random.default_rng(2).standard_normal((8, 32)).astype(np.float32)
    path = tmp_path / "x.gguf"
    bs.save({"w": values}, path, quantize="q8_0")
    inspected = bs.inspect(path)
    assert inspected.tensors[0].scheme == "Q8_0"
    assert bs.verify(path)
    assert bs.scan(path).verdict == "clean"
    assert bs.diff(path, path).equal
    assert "Q8_0" in str(bs.report(path)) or bs.report(path)
    bs.convert(path, tmp_path / "y.safetensors")
    with bs.open(tmp_path / "y.safetensors") as file, bs.open(path) as own:
        assert (file["w"].numpy() == own["w"].numpy()).all()


def test_a_split_model_is_opened_as_one_from_its_folder(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "toy", split_max_tensors=2)
    arrays = {f"t{number}": np.full((2, 4), number, np.float32) for number in range(5)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with bs.open(tmp_path) as file:
        assert set(file) == set(arrays)
        assert all((file[name].numpy() == array).all() for name, array in arrays.items())
        assert "split.count" not in file.metadata
    first = sorted(tmp_path.glob("*.gguf"))[0]
    with bs.open(first) as file:
        assert any("file 1 of 3 of a split model" in note for note in file.notes)
    sorted(tmp_path.glob("*.gguf"))[1].unlink()
    with pytest.raises(CorruptError, match="2 of 3 shards"):
        bs.open(tmp_path)


# --- hostile headers --------------------------------------------------------------------------------------------------


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def info(name: bytes = b"w", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def packed(
    infos: Sequence[bytes],
    pairs: Sequence[bytes] = (),
    *,
    data: bytes = b"",
    version: int = 3,
    counts: Any = None,
) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", version, *(counts or (len(infos), len(pairs))))
    raw = head + b"".join(pairs) + b"".join(infos)
    return raw.ljust(-(-len(raw) // 32) * 32, b"\0") + data


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


ONE = bytes(16)
HOSTILE: dict[str, tuple[bytes, type[FormatError], str]] = {
    "version 1": (packed([], version=1), UnsupportedError, "GG-01"),
    "version 9": (packed([], version=9), UnsupportedError, "GG-01"),
    "big-endian": (packed([], version=3 << 24), UnsupportedError, "GG-01"),
    "short": (b"GGUF\3\0\0\0", FormatError, "GG-01"),
    "many tensors": (packed([], counts=(1 << 63, 0)), LimitError, "GG-02"),
    "many pairs": (packed([], counts=(0, 1 << 63)), LimitError, "GG-02"),
    "counts beyond the file": (packed([], counts=(1000, 0)), FormatError, "GG-02"),
    "a long key": (packed([], [struct.pack("<Q", 1 << 40) + b"abc"]), LimitError, "GG-03"),
    "a long name": (packed([struct.pack("<Q", 1 << 63) + bytes(30)]), LimitError, "GG-03"),
    "a key beyond the file": (packed([], [struct.pack("<Q", 6000) + b"abc"]), FormatError, "GG-03"),
    "a key that is not UTF-8": (packed([], [pair(b"\xff", 4, bytes(4))]), CorruptError, "GG-03"),
    "a name that is not UTF-8": (packed([info(b"\xff")], data=ONE), CorruptError, "GG-03"),
    "a text beyond the file": (packed([], [pair(b"k", 8, struct.pack("<Q", 1 << 62))]), FormatError, "GG-03"),
    "an unknown type": (packed([], [pair(b"k", 13, bytes(8))]), CorruptError, "GG-04"),
    "a bool of 2": (packed([], [pair(b"k", 7, b"\2")]), CorruptError, "GG-04"),
    "an array of bools of 3": (
        packed([], [pair(b"k", 9, struct.pack("<IQ", 7, 2) + b"\1\3")]),
        CorruptError,
        "GG-04",
    ),
    "an array of an unknown type": (packed([], [pair(b"k", 9, struct.pack("<IQ", 77, 0))]), CorruptError, "GG-04"),
    "an array beyond the file": (packed([], [pair(b"k", 9, struct.pack("<IQ", 4, 1 << 60))]), FormatError, "GG-04"),
    "strings beyond the file": (packed([], [pair(b"k", 9, struct.pack("<IQ", 8, 1 << 60))]), FormatError, "GG-04"),
    "a string in an array beyond the file": (
        packed([], [pair(b"k", 9, struct.pack("<IQQ", 8, 1, (1 << 64) - 1))]),
        FormatError,
        "GG-03",
    ),
    "arrays in arrays": (
        packed([], [pair(b"k", 9, struct.pack("<IQ", 9, 1) * 6 + struct.pack("<IQ", 4, 0))]),
        CorruptError,
        "GG-04",
    ),
    "a key twice": (packed([], [pair(b"k", 7, b"\0")] * 2), CorruptError, "GG-05"),
    "a tensor twice": (packed([info(), info(offset=32)], data=bytes(64)), CorruptError, "GG-05"),
    "an alignment of 0": (packed([], [pair(b"general.alignment", 4, bytes(4))]), CorruptError, "GG-06"),
    "an alignment of 48": (packed([], [pair(b"general.alignment", 4, b"\x30\0\0\0")]), CorruptError, "GG-06"),
    "an alignment as text": (packed([], [pair(b"general.alignment", 8, string(b"32"))]), CorruptError, "GG-06"),
    "five axes": (packed([info(dims=(1, 1, 1, 1, 4))], data=ONE), CorruptError, "GG-07"),
    "many axes": (packed([string(b"w") + struct.pack("<I", 1 << 31) + bytes(40)]), CorruptError, "GG-07"),
    "a product that overflows": (packed([info(dims=(1 << 32, 1 << 32))], data=ONE), CorruptError, "GG-07"),
    "a product with a zero": (packed([info(dims=(1 << 62, 0, 1 << 62))], data=ONE), CorruptError, "GG-07"),
    "a large tensor": (packed([info(dims=(1 << 55,))], data=ONE), LimitError, "GG-07"),
    "a type that is gone": (packed([info(kind=4)], data=ONE), UnsupportedError, "GG-08"),
    "a type beyond all": (packed([info(kind=1 << 31)], data=ONE), UnsupportedError, "GG-08"),
    "rows that are no blocks": (packed([info(dims=(33, 2), kind=2)], data=bytes(64)), CorruptError, "GG-08"),
    "an odd offset": (packed([info(offset=3)], data=bytes(32)), CorruptError, "GG-09"),
    "a gap": (packed([info(offset=32)], data=bytes(64)), CorruptError, "GG-09"),
    "an overlap": (packed([info(dims=(16,)), info(b"v", offset=32)], data=bytes(96)), CorruptError, "GG-09"),
    "the same place": (packed([info(), info(b"v")], data=bytes(64)), CorruptError, "GG-09"),
    "an offset near 2^64": (packed([info(offset=(1 << 64) - 32)], data=ONE), CorruptError, "GG-09"),
    "data beyond the file": (packed([info(dims=(100,))], data=ONE), FormatError, "GG-10"),
    "bytes after the end": (packed([info()], data=bytes(64)), CorruptError, "GG-10"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_by_rule(case: str) -> None:
    raw, kind, rule = HOSTILE[case]
    with pytest.raises(kind) as caught:
        bs.open(raw)
    assert caught.value.rule == rule


@pytest.mark.parametrize("seed", range(6))
def test_strings_of_a_vocabulary_are_passed_as_if_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnstore.formats.gguf.header._WINDOW", 1 << (9 + seed))
    rng = np.random.default_rng(seed)
    texts = []
    for number in range(3000):  # text, bytes with zeros, empty, longer than a byte can count
        length = int(rng.choice([0, 1, 3, 7, 255, 256, 700])) if number % 7 == seed else int(rng.integers(1, 9))
        texts.append(bytes(length) if number % 11 == seed else rng.integers(97, 123, length, np.uint8).tobytes())
    value = struct.pack("<IQ", 8, len(texts)) + b"".join(map(string, texts))
    with bs.open(packed([], [pair(b"tokens", 9, value), pair(b"after", 4, bytes(4))])) as file:
        assert file.metadata["after"] == "0"
        assert [text.encode() for text in json.loads(file.metadata["tokens"])] == texts
    at = value.index(string(texts[2000]), 1000)
    hostile = value[:at] + struct.pack("<Q", 2**63) + value[at + 8 :]
    with pytest.raises(BurnstoreError) as refused:
        bs.open(packed([], [pair(b"tokens", 9, hostile)]))
    assert refused.value.rule == "GG-03"


def test_every_prefix_of_a_file_is_refused_or_lacks_only_padding(tmp_path: Path) -> None:
    whole = model_file(tmp_path / "x.gguf").read_bytes()
    with bs.open(whole) as file:
        last = max(file.offset_of(name) + sum(part.nbytes for part in file[name].stored()) for name in file)
    for size in [*range(700), *range(700, len(whole), 97)]:
        try:
            with bs.open(whole[:size]) as cut:
                assert size >= last
                assert list(cut)
        except BurnstoreError:
            assert size < last


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_of_a_header_never_raise_a_foreign_error(seed: int, tmp_path: Path) -> None:
    whole = model_file(tmp_path / "x.gguf").read_bytes()
    rng = np.random.default_rng(seed)
    for _ in range(300):
        mutant = bytearray(whole)
        for place in rng.integers(0, 900, rng.integers(1, 4)):
            mutant[place] = rng.choice([0, 1, 7, 8, 9, 127, 255, int(rng.integers(256))])
        try:
            with bs.open(bytes(mutant)) as file:
                dict(file.metadata)
                file.numpy()
        except BurnstoreError:
            pass


def test_padding_that_is_not_zero_is_a_warning_of_verify(tmp_path: Path) -> None:
    raw = bytearray(packed([info(), info(b"v", offset=32)], data=bytes(64)))
    raw[-40] = 1
    (tmp_path / "x.gguf").write_bytes(raw)
    result = bs.verify(tmp_path / "x.gguf")
    assert any("GG-10" in warning for warning in result.warnings)
