from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from burnstore.jobs.inspect.inspect import read_first_bytes

FIXTURES = Path(__file__).parents[1] / "fixtures"
EVERY = sorted(
    [*FIXTURES.glob("burn/*/*.bpk"), *FIXTURES.glob("burn/*/*.safetensors"), *FIXTURES.glob("records/*/basic.*")]
)
EVERY = [file for file in EVERY if not file.name.endswith(".expected.json")]


def meanings(path: Path) -> list[str]:
    return [part.meaning for part in read_first_bytes(path).parts]


@pytest.mark.parametrize("file", EVERY, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_the_parts_of_every_file_lie_end_to_end(file: Path) -> None:
    found = read_first_bytes(file)
    assert found.format == {".bpk": "burnpack", ".safetensors": "safetensors"}.get(file.suffix, "record")
    position = 0
    for part in found.parts:
        assert part.offset == position and part.nbytes > 0
        position += part.nbytes
    assert position <= found.size == file.stat().st_size
    json.dumps(found.to_dict(), allow_nan=False)


def test_burnpack_is_told_field_by_field(tmp_path: Path) -> None:
    bs.save({"x": np.zeros(3)}, tmp_path / "x.bpk", metadata={})
    raw = (tmp_path / "x.bpk").read_bytes()
    length = int.from_bytes(raw[6:10], "little")
    assert meanings(tmp_path / "x.bpk") == [
        "magic: NRUB",
        "version: 1",
        f"length of the metadata: {length}",
        "metadata: CBOR",
        "zeros up to a multiple of 256, or data of Burn 0.19",
    ]
    (tmp_path / "x.bpk").write_bytes(raw[:4] + b"\x07\x00" + raw[6:20])
    assert meanings(tmp_path / "x.bpk")[1:] == [
        "version: 7, not 1",
        f"length of the metadata: {length}",
        "metadata, cut off",
    ]
    assert read_first_bytes(tmp_path / "x.bpk").parts[-1].nbytes == 10
    (tmp_path / "x.bpk").write_bytes(raw[:7])
    assert meanings(tmp_path / "x.bpk") == ["less than the 10 bytes of a header"]


def test_safetensors_is_told_field_by_field(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    bs.save({"x": np.zeros(3)}, file)
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert meanings(file) == [f"length of the header: {length}", "header: JSON", "data"]
    assert read_first_bytes(file).parts[-1].nbytes == 24
    file.write_bytes(raw[:40])
    assert meanings(file) == [f"length of the header: {length}", "header, cut off"]


def test_an_index_is_shown_for_its_folder(tmp_path: Path) -> None:
    bs.save({"x": np.zeros(300), "y": np.zeros(300)}, tmp_path / "m.safetensors", max_shard_size=2500)
    found = read_first_bytes(tmp_path)
    assert found.path == str(tmp_path / "m.safetensors.index.json")
    assert [part.meaning for part in found.parts] == ["index of a sharded set: JSON"]


def test_pytorch_files_are_told_by_their_first_member_or_pickle(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"x": torch.zeros(3)}, tmp_path / "new.pt")
    assert meanings(tmp_path / "new.pt") == [
        "zip: the header of a member",
        "its version, flags, method (stored), checksum and sizes",
        "its name",
        "padding, so that its data are aligned",
        "its data, then the other members",
    ]
    assert (
        read_first_bytes(tmp_path / "new.pt").bytes_of(read_first_bytes(tmp_path / "new.pt").parts[2])
        == b"new/data.pkl"
    )
    torch.save({"x": torch.zeros(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert meanings(tmp_path / "old.pt")[0] == "pickle, protocol 2"
    (tmp_path / "bare.pt").write_bytes(pickle.dumps({"x": np.zeros(3)}, protocol=4))
    assert meanings(tmp_path / "bare.pt")[0] == "pickle, protocol 4"


def test_a_record_is_told_by_its_encoding() -> None:
    folder = FIXTURES / "records" / "0.21.0"
    assert meanings(folder / "basic.namedmpk.full.mpk") == ["MessagePack: a map of 3", "its keys and values"]
    assert meanings(folder / "basic.namedmpkgz.full.mpk.gz") == ["gzip", "deflated"]
    assert meanings(folder / "basic.prettyjson.full.json") == ["JSON"]
    assert meanings(folder / "basic.bin.full.bin")[0] == "bincode: a text of 3 bytes, the float type"


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "empty file"), (b"GIF8 and more", "unknown format"), (b"\x00", "unknown format")],
)
def test_what_is_no_file_of_tensors_is_shown_too(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    found = read_first_bytes(tmp_path / "x")
    assert (found.format, found.head) == (None, content)
    assert [(part.offset, part.nbytes, part.meaning) for part in found.parts] == [(0, len(content), told)]


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize("file", EVERY[::7], ids=lambda file: f"{file.parent.name}-{file.name}")
def test_a_file_cut_anywhere_is_told_of_without_an_error(file: Path, tmp_path: Path) -> None:
    raw = file.read_bytes()
    for end in [*range(64), 100, 300, len(raw) - 1]:
        (tmp_path / "cut").write_bytes(raw[:end])
        found = read_first_bytes(tmp_path / "cut")
        assert all(0 <= part.offset <= part.offset + part.nbytes <= end for part in found.parts)


@pytest.mark.parametrize(
    "magic", [b"NRUB", b"PK\x03\x04", b"PK\x05\x06", b"\x80\x02", gzip.compress(b"x")[:4], b"\x83\xa8metadata"]
)
def test_any_bytes_behind_a_signature_are_told_of_without_an_error(magic: bytes, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for length in (0, 1, 5, 26, 40, 600):
        (tmp_path / "x").write_bytes(magic + random.bytes(length))
        found = read_first_bytes(tmp_path / "x")
        size = len(magic) + length
        assert all(0 <= part.offset <= part.offset + part.nbytes <= size for part in found.parts)


def test_a_missing_file_stays_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_first_bytes(tmp_path / "none.bpk")
