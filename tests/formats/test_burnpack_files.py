"""Files that real Burn wrote, of every release: read as Burn read them, written back as Burn wrote them."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, ParamId, TensorData, TensorSnapshot
from burnstore.formats.burnpack.quant_spelling import scheme_to_tree
from burnstore.tensor.quantization import QuantScheme, QuantStore

BURN = Path(__file__).parent.parent / "fixtures" / "burn"
VERSIONS = sorted(folder.name for folder in BURN.iterdir() if folder.is_dir())
FILES = sorted(path.relative_to(BURN).as_posix() for path in BURN.glob("*/*.bpk"))
# Their stamp is gone (a user's metadata took its place; the low-level writer gives none), so nothing in these two says
# which release they are of, and one must name it to get the same bytes back.
UNSTAMPED = {"0.19.1/names.bpk": "0.19", "0.20.1/dtypes_raw.bpk": "0.20"}


def expected(file: str) -> dict[str, Any]:
    return json.loads((BURN / file).with_suffix(".expected.json").read_text("utf-8"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def as_burn_prints_it(dtype: DType) -> str:
    """The debug text that the release which wrote this dtype has for it."""
    if dtype.scheme is None or not dtype.scheme.old_style:
        return str(dtype)
    tree = scheme_to_tree(dtype.scheme, "P")
    level = tree["level"]
    if level != "Tensor":
        size = level["Block"]
        level = f"Block(BlockSize({size['storage'][: size['len']]}))"
    return (
        f"QFloat(QuantScheme {{ value: {tree['value']}, param: {tree['param']}, store: {tree['store']}, "
        f"level: {level}, mode: {tree['mode']} }})"
    )


def test_the_fixtures_are_the_files_that_burn_wrote() -> None:
    assert VERSIONS == ["0.19.1", "0.20.1", "0.21.0", "0.22.1", "0.23.0-pre.1"]
    assert len(FILES) == 54
    for file in FILES:
        data = (BURN / file).read_bytes()
        assert expected(file)["files"][Path(file).name] == {"bytes": len(data), "sha256": sha256(data)}


@pytest.mark.parametrize("way", ["pread", "zero_copy", "bytes", "static_bytes"])
@pytest.mark.parametrize("file", FILES)
def test_a_file_reads_as_burn_reads_it(file: str, way: str) -> None:
    path = BURN / file
    source = path.read_bytes() if "bytes" in way else path
    want = expected(file)
    with bs.open(source, zero_copy=way in ("zero_copy", "static_bytes")) as f:
        assert (f.format, f.layout) == ("burnpack", "burn")
        assert dict(f.metadata) == want["metadata"]
        assert dict(f.scalars) == {}
        assert list(f) == [tensor["path"] for tensor in want["tensors"]]  # the order of the data
        arrays = f.numpy()
        for tensor in want["tensors"]:
            found = f[tensor["path"]]
            if found.dtype.is_quantized:
                assert as_burn_prints_it(found.dtype) == tensor["dtype"]
                assert found.to_bytes().hex() == tensor["bytes_hex"]
                assert sha256(found.numpy().tobytes()) == tensor["dequantized_sha256"]
            else:
                assert found.dtype is DType.parse(tensor["dtype"])
            assert found.shape == tuple(tensor["shape"])
            assert found.param_id == int(tensor["param_id"])
            assert sha256(found.to_bytes()) == tensor["sha256"]
            first = found.numpy().reshape(-1)[: len(tensor["first"])]
            assert first.astype(np.float64).tolist() == tensor["first"]
            assert arrays[tensor["path"]].tobytes() == found.numpy().tobytes()


@pytest.mark.parametrize("file", FILES)
def test_the_variant_of_a_file_covers_the_release_that_wrote_it(file: str) -> None:
    names = ["0.19", "0.20", "0.21", "0.22-pre", "0.22", "0.23-pre"]
    wrote = next(name for name in reversed(names) if file.startswith(name.split("-")[0]))
    wrote = {"0.22-pre": "0.22"}.get(wrote, wrote)
    with bs.open(BURN / file) as f:
        span = f.variant.split(",")[0].split(" .. ")
        assert names.index(span[0]) <= names.index(wrote) <= names.index(span[-1])
        assert ("unaligned" in f.variant) == file.startswith("0.19")
        assert f.data_offset % 256 == 0 or file.startswith("0.19")


@pytest.mark.parametrize("file", FILES)
def test_a_file_saved_again_has_the_same_bytes(file: str, tmp_path: Path) -> None:
    other = tmp_path / "again.bpk"
    version = UNSTAMPED.get(file)
    with bs.open(BURN / file) as f:
        if version is not None:
            bs.save(dict(f), other, metadata=dict(f.metadata), durable=False, burn_version=version)
        elif file.startswith("0.19"):
            with pytest.warns(UserWarning, match="which no newer Burn opens") as caught:
                bs.save(dict(f), other, metadata=dict(f.metadata), durable=False)
            assert [warning.filename for warning in caught] == [__file__]
        else:
            bs.save(dict(f), other, metadata=dict(f.metadata), durable=False)
    assert other.read_bytes() == (BURN / file).read_bytes()


@pytest.mark.parametrize("file", UNSTAMPED)
def test_a_file_without_a_stamp_is_written_in_the_current_form_unless_a_release_is_named(file: str) -> None:
    with bs.open(BURN / file) as f:
        current = bs.serialize(f, format="burnpack", metadata=f.metadata)
        assert current == bs.serialize(f, format="burnpack", metadata=f.metadata, burn_version="0.22")
        assert current != (BURN / file).read_bytes()
        with bs.open(current) as again:
            assert {name: t.to_bytes() for name, t in again.items()} == {name: t.to_bytes() for name, t in f.items()}


def content(f: bs.Checkpoint) -> list[tuple[Any, ...]]:
    """All that is in a file but the spelling."""

    def plain(dtype: DType) -> Any:
        return dtype if dtype.scheme is None else replace(dtype.scheme, old_style=False)

    return [(name, plain(t.dtype), t.shape, t.param_id, t.to_bytes()) for name, t in f.items()]


def pairs_of_equal_content() -> list[tuple[str, str]]:
    pairs = []
    contents = {}
    for file in FILES:
        with bs.open(BURN / file) as f:
            contents[file] = content(f)
    for first, second in itertools.permutations(FILES, 2):
        if Path(first).name == Path(second).name and contents[first] == contents[second]:
            pairs.append((first, second))
    return pairs


PAIRS = pairs_of_equal_content()


def test_most_models_are_the_same_in_all_releases() -> None:
    counts = {
        name: sum(Path(first).stem == name for first, _ in PAIRS) for name in ("basic", "enums", "bools", "names")
    }
    assert counts == {"basic": 20, "enums": 20, "bools": 20, "names": 20}
    same = {Path(first).stem for first, _ in PAIRS}
    assert same >= {"empty", "scalars", "nested", "dtypes", "dtypes_raw", "quant_q8s_tensor_native"}


@pytest.mark.parametrize(("file", "other"), PAIRS)
def test_content_written_for_another_release_is_that_releases_file(file: str, other: str) -> None:
    with bs.open(BURN / file) as f, bs.open(BURN / other) as target:
        written = bs.serialize(f, format="burnpack", metadata=target.metadata, burn_version=Path(other).parent.name)
    assert written == (BURN / other).read_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_stamp_follows_the_release_that_is_asked_for(version: str) -> None:
    with bs.open(BURN / "0.21.0" / "basic.bpk") as f:
        for written in (
            bs.serialize(f, format="burnpack", burn_version=version),
            bs.serialize(f, format="burnpack", burn_version=version, metadata=f.metadata),
        ):
            assert written == (BURN / version / "basic.bpk").read_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_cut_at_the_length_of_the_other_form_is_refused(version: str) -> None:
    """The trap of the specification's part V: a newer file cut at 10 + M + end has the length of one of 0.19."""
    data = (BURN / version / "bools.bpk").read_bytes()
    metadata_end = 10 + int.from_bytes(data[6:10], "little")
    with bs.open(data) as f:
        extent = max(f.offset_of(name) + f[name].nbytes for name in f) - f.data_offset
    for length in (metadata_end + extent, -(-metadata_end // 256) * 256 + extent):
        if length != len(data):
            with pytest.raises(bs.errors.FormatError):
                bs.open(data[:length].ljust(length, b"\0"))


# The worked examples of the specification (part 1.6 of the sheet on Burnpack; the table in the sheet on 0.22 and 0.23).

W = TensorSnapshot.from_numpy("w", np.array([1, 2], np.float32), param_id=42)


def packed(*tensors: TensorSnapshot, metadata: dict[str, str] | None = None, **options: Any) -> bytes:
    return bs.serialize(
        tensors, format="burnpack", metadata={} if metadata is None else metadata, **{"layout": "burn", **options}
    )


def metadata_of(data: bytes) -> bytes:
    return data[10 : 10 + int.from_bytes(data[6:10], "little")]


def test_example_a_one_tensor_with_an_id() -> None:
    data = packed(W)
    assert data[:0x42].hex(" ") == (
        "4e 52 55 42 01 00 3a 00 00 00 a1 67 74 65 6e 73 6f 72 73 a1 61 77 a4 65 64 74 79 70 65 63 46 33 "
        "32 65 73 68 61 70 65 81 02 6c 64 61 74 61 5f 6f 66 66 73 65 74 73 82 00 08 68 70 61 72 61 6d 5f 69 64"
    )
    assert data[0x42:0x44].hex(" ") == "18 2a"
    assert not any(data[0x44:0x100])
    assert data[0x100:].hex(" ") == "00 00 80 3f 00 00 00 40"
    assert (len(data), sha256(data)) == (264, "dd64b0b027d56e047b48d587340993b678ddac7cc0e88e271837f1a97b1fc545")


def test_example_a_in_the_form_of_0_19() -> None:
    data = packed(W, burn_version="0.19")
    assert data == packed(W)[:68] + bytes.fromhex("0000803f 00000040")
    assert (len(data), sha256(data)) == (76, "c3e23b8da62631c80aeee46a51ecb5d581d754d6d50798523696e07866a5446c")
    with bs.open(data) as f:
        assert f["w"].numpy().tolist() == [1, 2]


def test_example_b_without_an_id() -> None:
    data = packed(TensorSnapshot.from_numpy("w", np.array([1, 2], np.float32)))
    assert len(metadata_of(data)) == 47
    assert b"aw\xa3edtype" in data


def test_example_c_nothing_at_all() -> None:
    assert metadata_of(packed()).hex(" ") == "a1 67 74 65 6e 73 6f 72 73 a0"
    assert len(packed()) == 256
    assert len(packed(burn_version="0.19")) == 20


@pytest.mark.parametrize(
    ("version", "length", "digest"),
    [
        ("0.21.0", 113, None),
        ("0.22.0", 113, "76971974c679956b01ad9c94746793af104985504287d36dc036114c1b8521c5"),
        ("0.22.1", 113, "d924b563e01a8ccbeb0afc00f033bb94ed6e686313b37c6fee26b718a07f7d2e"),
        ("0.23.0-pre.1", 119, "d83c244e3658510bd12e5588dccf78c5a3324d4c43d18465888721161bfcb67a"),
    ],
)
def test_example_d_with_the_stamp_of_the_store(version: str, length: int, digest: str | None) -> None:
    data = bs.serialize([W], format="burnpack", layout="burn", burn_version=version)
    text = metadata_of(data)
    tail = b"hmetadata\xa3fformathburnpackhproducerdburngversion" + bytes((0x60 + len(version),)) + version.encode()
    assert text[:1] == b"\xa2"
    assert text.endswith(tail)
    assert (len(text), len(data)) == (length, 264)
    assert digest is None or sha256(data) == digest


def test_example_d_is_what_is_written_when_nothing_is_asked_for() -> None:
    assert bs.serialize([W], format="burnpack") == bs.serialize([W], format="burnpack", burn_version="0.22.1")


def test_example_e_scalars_alone() -> None:
    scalars = {"step": bs.Scalar("UInt", 42), "lr": 0.001, "flag": True, "offset": -3, "half": 2.5}
    data = packed(scalars=scalars)
    assert metadata_of(data) == (
        b"\xa2gtensors\xa0gscalars\xa5dflag\xa1dBool\xf5dhalf\xa1eFloat\xf9\x41\x00"
        b"blr\xa1eFloat\xfb\x3f\x50\x62\x4d\xd2\xf1\xa9\xfcfoffset\xa1cInt\x22dstep\xa1dUInt\x18\x2a"
    )
    assert len(metadata_of(data)) == 91
    with bs.open(data) as f:
        assert dict(f.scalars) == {name: bs.Scalar.of(value) for name, value in sorted(scalars.items())}
        assert list(f) == []


def test_example_f_data_lie_in_the_order_given_and_names_are_sorted() -> None:
    zebra = TensorSnapshot.from_numpy("zebra", np.array([1, 2, 3], np.uint8))
    alpha = TensorSnapshot.from_numpy("alpha", np.array([4, 5], np.uint8))
    data = packed(zebra, alpha)
    text = metadata_of(data)
    assert text.index(b"ealpha") < text.index(b"ezebra")
    assert b"data_offsets\x82\x19\x01\x00\x19\x01\x02" in text
    assert b"data_offsets\x82\x00\x03" in text
    assert len(data) == 514
    assert (data[256:259], data[512:514]) == (b"\1\2\3", b"\4\5")


def test_example_g_spellings_of_dtypes() -> None:
    flag = TensorSnapshot.from_numpy("b", np.array([True]))
    assert b"edtype\x64\x42\x6f\x6f\x6ceshape" in packed(flag, burn_version="0.20")
    assert b"edtype\xa1\x64\x42\x6f\x6f\x6c\x66\x4e\x61\x74\x69\x76\x65eshape" in packed(flag, burn_version="0.21")
    codes = TensorData.from_bytes(bytes(12), DType.qfloat(QuantScheme("Q8S", QuantStore("Native"))), [8])
    q = TensorSnapshot.from_data("q", codes)
    old = b"\xa1fQFloat\xa5evaluecQ8SeparamcF32estorefNativeelevelfTensordmodeiSymmetric"
    new = b"\xa1fQFloat\xa5evaluecQ8SestorefNativedmodeiSymmetricftensor\xf6eblock\xf6"
    assert b"edtype" + old + b"eshape" in packed(q, burn_version="0.21")
    assert b"edtype" + new + b"eshape" in packed(q, burn_version="0.22")


def test_example_h_the_bytes_of_a_quantized_tensor() -> None:
    scheme = QuantScheme("Q8S", QuantStore("Native"))
    data = TensorData.from_bytes(bytes.fromhex("00 19 33 4c 66 7f 85 42 21 3d"), DType.qfloat(scheme), [6])
    with bs.open(packed(TensorSnapshot.from_data("q", data))) as f:
        assert f["q"].quantized().codes.tolist() == [0, 25, 51, 76, 102, 127]
        assert f["q"].quantized().scales.tolist() == [np.float32(0.03937008)]
        assert f["q"].numpy()[-1] == np.float32(127) * np.float32(0.03937008)


@pytest.mark.parametrize(
    ("store", "values", "length", "metadata_length", "digest"),
    [
        (
            QuantStore("PackedU32"),
            "10325476 ffffffff",
            268,
            111,
            "924e1ae73209c4553e80c046f0751a1159a6cfa666bab6cafb0b818281ce8ce0",
        ),
        (
            QuantStore("Native"),
            "0001020304050607 ffffffffffffffff",
            276,
            106,
            "7c2130626e4b5d912865c5069c23163beb642b071cf87f8d2b63ac6224ca303e",
        ),
    ],
    ids=["packed", "native"],
)
def test_the_whole_file_of_a_quantized_tensor(
    store: QuantStore, values: str, length: int, metadata_length: int, digest: str
) -> None:
    raw = bytes.fromhex(values) + np.float32(1).tobytes()
    data = packed(
        TensorSnapshot.from_data("q", TensorData.from_bytes(raw, DType.qfloat(QuantScheme("Q4S", store)), [2, 8]))
    )
    assert (len(data), len(metadata_of(data)), sha256(data)) == (length, metadata_length, digest)
    with bs.open(data) as f:
        assert f["q"].numpy().tolist() == [list(range(8)), [-1] * 8]


def test_ids_print_as_burn_prints_them() -> None:
    with bs.open(BURN / "0.22.1" / "basic.bpk") as f:
        assert all(ParamId.parse(str(t.param_id)) == t.param_id for t in f.values())


def test_no_release_but_0_19_is_unaligned() -> None:
    for version in ("0.19", "0.19.0", "0.19.1", "0.20.0-pre.1", "0.20.0-pre.4"):
        assert len(packed(W, burn_version=version)) == 76
    for version in ("0.20.0-pre.5", "0.20", "0.20.1", "0.21", "0.22-pre", "0.22.0-pre.2", "0.22", "0.23-pre", "0.23"):
        assert len(packed(W, burn_version=version)) == 264
