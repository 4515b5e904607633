"""A part of a tensor is never taken for the whole one, whichever function reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import burnstore as bs
from burnstore.errors import FormatError, UnsupportedError
from burnstore.tensor.facts import Piece, describe_place

PIECE = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def shard(tmp_path: Path) -> str:
    """One file of a sharded save, as torch's HuggingFaceStorageWriter writes it: rows 0 and 1 of more."""
    path = tmp_path / "shard-00001-model-00001-of-00001.safetensors"
    info = {"m.weight": {"saved_offsets": [0, 0]}}
    save_file({"m.weight": PIECE}, path, metadata={"DCP_SHARDING_INFO": json.dumps(info), "format": "pt"})
    return str(path)


class Net:
    def __init__(self) -> None:
        self.weight = np.zeros((2, 4), np.float32)


USES: dict[str, Callable[[str, Path], Any]] = {
    "numpy": lambda path, out: bs.open(path)["m.weight"].numpy(),
    "torch": lambda path, out: bs.open(path)["m.weight"].torch(),
    "rows": lambda path, out: bs.open(path)["m.weight"][0:1],
    "bytes": lambda path, out: bs.open(path)["m.weight"].to_bytes(),
    "data": lambda path, out: bs.open(path)["m.weight"].to_data(),
    "chunks": lambda path, out: list(bs.open(path)["m.weight"].chunks()),
    "all": lambda path, out: bs.open(path).numpy(),
    "all torch": lambda path, out: bs.open(path).torch(),
    "get_tensor": lambda path, out: bs.open(path).get_tensor("m.weight"),
    "renamed": lambda path, out: bs.open(path)["m.weight"].with_path("other").numpy(),
    "mapped": lambda path, out: bs.open(path, zero_copy=True).numpy(),
    "convert": lambda path, out: bs.convert(path, out / "model.safetensors"),
    "cast": lambda path, out: bs.convert(path, out / "model.safetensors", cast="bf16"),
    "part of a convert": lambda path, out: bs.convert([path], out / "model.npz"),
    "merge": lambda path, out: bs.merge([path, path], out / "model.safetensors"),
    "diff": lambda path, out: bs.diff(path, path),
    "load": lambda path, out: bs.load({"m.weight": np.zeros((2, 4), np.float32)}, path),
    "save": lambda path, out: bs.save(bs.open(path), out / "model.safetensors"),
    "save of a snapshot": lambda path, out: bs.save({"x": bs.open(path)["m.weight"]}, out / "model.safetensors"),
    "serialize": lambda path, out: bs.serialize(dict(bs.open(path)), format="safetensors"),
    "explain": lambda path, out: bs.explain(path, into="burnpack"),
    "store": lambda path, out: bs.SafetensorsStore.from_file(path).load({"m.weight": np.zeros((2, 4), np.float32)}),
}


@pytest.mark.matrix(every=5)
@pytest.mark.parametrize("use", USES)
def test_a_part_is_refused_by_name(use: str, shard: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="part of a tensor: rows 0–1") as caught:
        USES[use](shard, tmp_path)
    assert caught.value.tensor in ("m.weight", "other", "x")
    assert "together" in str(caught.value.hint)
    assert [each.name for each in tmp_path.iterdir()] == [Path(shard).name]  # nothing was written


def test_the_part_itself_is_read_by_an_explicit_way(shard: str) -> None:
    with bs.open(shard) as file:
        tensor = file["m.weight"]
        assert tensor.piece is not None and tensor.piece.offset == (0, 0) and tensor.piece.global_shape is None
        assert "rows 0–1" in repr(tensor)
        local = tensor.local()
        assert local.piece is None and local.numpy().tolist() == PIECE.tolist()
        assert tensor.replace(layout="torch").piece == tensor.piece
        assert local.local() is local


def test_verify_reads_the_bytes_of_a_part_and_says_so(shard: str) -> None:
    found = bs.verify(shard)
    assert found.ok and any("part of another" in note and "m.weight" in note for note in found.notes)


def test_a_whole_tensor_has_no_facts() -> None:
    tensor = bs.TensorSnapshot.from_numpy("x", PIECE)
    assert tensor.piece is None and tensor.scheme is None and tensor.local() is tensor


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ("[]", "not a JSON object"),
        ("{}", "states no saved_offsets"),
        ('{"m.weight": {"saved_offsets": [0]}}', "not 2 natural numbers"),
        ('{"m.weight": {"saved_offsets": [0, -1]}}', "not 2 natural numbers"),
        ('{"m.weight": {"saved_offsets": [0, 9223372036854775808]}}', "beyond 63 bits"),
        ('{"m.weight": {"saved_offsets": [4, 0], "global_shape": [5, 4]}}', "exceeds"),
        ("{", "ST-15"),
    ],
)
def test_places_that_cannot_be_are_refused(info: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"m.weight": PIECE}, path, metadata={"DCP_SHARDING_INFO": info})
    with pytest.raises(FormatError, match=message):
        bs.open(path)


def test_a_file_that_states_that_it_is_whole_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    info = '{"m.weight": {"saved_offsets": [0, 0], "global_shape": [2, 4]}}'
    save_file({"m.weight": PIECE}, path, metadata={"DCP_SHARDING_INFO": info})
    assert bs.open(path)["m.weight"].numpy().tolist() == PIECE.tolist()


def test_a_place_is_described_by_its_rows_and_columns() -> None:
    assert describe_place((3, 0), (3, 4), (10, 4)) == "rows 3–5 of 10"
    assert describe_place((10, 0), (0, 4), (10, 4)) == "no rows of 10"
    assert describe_place((0, 0, 1), (2, 2, 1), (2, 2, 4)) == "axis 2: 1–1 of 4"
    assert str(Piece((10,), (0,), "rows 0–4 of 10").refusal("a", "b")).startswith("a: tensor 'b': part of a tensor")
