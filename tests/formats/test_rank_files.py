"""Files with parts of tensors, opened together: files of ranks with DTensors, and torch's shards as SafeTensors.

The files in fixtures/dcp4 are of torch's own writers in four processes (fixtures/make_dcp.py).
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import burnstore as bs
from burnstore.errors import BurnstoreError, CorruptError, LimitError, UnsupportedError
from burnstore.formats.pieces import Box, assemble
from burnstore.tensor.dtype import DType
from burnstore.tensor.sources import ArrayData

SAVED = Path(__file__).parents[1] / "fixtures" / "dcp4"
KINDS = ("ranks", "hf")


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAVED / request.param, tmp_path / request.param))


def expected() -> dict[str, bytes]:
    with bs.open(SAVED / "expected.safetensors") as file:
        return {name: file[name].to_bytes() for name in file if name.startswith("model.")}


WAYS: dict[str, Callable[[Path], Any]] = {
    "folder": lambda folder: folder,
    "glob": lambda folder: folder / "*",
    "list": lambda folder: sorted(folder.iterdir()),
    "another order": lambda folder: sorted(folder.iterdir(), reverse=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_opened_together_they_are_the_whole_tensors(folder: Path, way: str) -> None:
    with bs.open(WAYS[way](folder)) as file:
        assert {name: file[name].to_bytes() for name in file} == expected()
        assert all(file[name].piece is None for name in file)
        assert file["model.grid.weight"][1:5, 3:7].shape == (4, 4)


def test_every_verb_takes_them(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    bs.convert(folder, target, receipt=True)
    assert bs.diff(folder, target).is_equal and bs.verify(folder).ok
    bs.replay(f"{target}.receipt.json", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == target.read_bytes()
    bs.convert(sorted(folder.iterdir()), tmp_path / "listed.safetensors")
    assert (tmp_path / "listed.safetensors").read_bytes() == target.read_bytes()
    bs.convert(folder, tmp_path / "out.dcp")
    assert bs.diff(tmp_path / "out.dcp", target).is_equal
    bs.convert(folder, tmp_path / "shards.safetensors", max_shard_size=200)
    assert bs.diff(tmp_path / "shards.safetensors.index.json", target).is_equal
    assert len(bs.inspect(folder).tensors) == 7
    with pytest.raises(BurnstoreError):
        bs.merge(sorted(folder.iterdir()), tmp_path / "merged.safetensors")


@pytest.mark.parametrize("number", range(4))
def test_one_file_alone_is_known_as_a_part(number: int, tmp_path: Path) -> None:
    path = SAVED / "ranks" / f"model_world_size_4_rank_{number}.pt"
    with bs.open(path) as file:
        assert [name for name in file if file[name].piece is not None] == [
            f"model.{name}.weight" for name in ("rows", "few", "grid", "columns")
        ]
        piece = file["model.rows.weight"].piece
        assert piece is not None and piece.global_shape == (10, 3) and piece.offset == (3 * number, 0)
        assert piece.text == f"DTensor {number} of 4, rows {3 * number}–{min(3 * number + 2, 9)} of 10"
        assert not file.notes
    with pytest.raises(UnsupportedError, match=f"DTensor {number} of 4"):
        bs.convert(path, tmp_path / "model.safetensors")
    assert bs.scan(path).verdict == "clean"


def test_shards_of_tensor_parallelism_and_fsdp_are_the_whole_tensors(tmp_path: Path) -> None:
    """FSDP2 over tensor parallelism along one axis: the ranks' rows do not follow one another."""
    from tests.fixtures.make_dcp import parallel_model

    with bs.open(SAVED / "strided") as file:
        values = {name: file[name].numpy() for name in file}
    for name, parameter in parallel_model().state_dict().items():
        np.testing.assert_array_equal(values[name], parameter.numpy())
    with bs.open(SAVED / "strided" / "model_world_size_4_rank_1.pt") as file:
        assert [file[name].piece is not None for name in file] == [True] * 4
        assert str(file["0.weight"].piece.text) == "DTensor 1 of 4, rows 7–9 of 13"  # type: ignore[union-attr]


def test_the_older_sharded_tensors_are_the_whole_tensors(tmp_path: Path) -> None:
    with bs.open(SAVED / "sharded") as file:
        assert (
            list(file) == ["rows.weight", "bias"] and file["rows.weight"].to_bytes() == expected()["model.rows.weight"]
        )
    for rank, place in enumerate(("rows 0–3 of 10", "rows 4–7 of 10", "rows 8–9 of 10", "no shard of [10, 3]")):
        path = SAVED / "sharded" / f"model_world_size_4_rank_{rank}.pt"
        with bs.open(path) as file:
            piece = file["rows.weight"].piece
            assert piece is not None and piece.text == f"ShardedTensor, {place}" and not file.notes
        with pytest.raises(UnsupportedError, match="part of a tensor: ShardedTensor"):
            bs.convert(path, tmp_path / "model.safetensors")
        assert {finding.name for finding in bs.scan(path).findings} <= {
            "__builtin__.getattr"
        }  # torch takes a class by it


def test_several_shards_in_one_file_are_refused_by_name(tmp_path: Path) -> None:
    for source in (SAVED / "several", SAVED / "several" / "model_world_size_4_rank_0.pt"):
        with pytest.raises(UnsupportedError, match="ShardedTensor, 3 shards in this file: rows 0–0 of 10; rows 4–4"):
            bs.convert(source, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAVED / "ranks", tmp_path / "ranks"))
    (folder / "model_world_size_4_rank_2.pt").unlink()
    with pytest.raises(CorruptError, match="the file of rank 2 is missing"):
        bs.open(folder)
    with pytest.raises(CorruptError, match="no file has the piece rows 6–8 of 10") as caught:
        bs.open(folder / "*.pt")
    assert caught.value.tensor == "model.rows.weight"


def test_a_missing_shard_in_the_middle_is_named_and_one_at_the_end_is_noted(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAVED / "hf", tmp_path / "hf"))
    with bs.open(folder) as file:
        assert any("cannot be noticed" in note for note in file.notes)
    (folder / "shard-00002-model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CorruptError, match="no file has the piece") as caught:
        bs.open(folder)
    assert caught.value.tensor is not None
    for name in folder.glob("*-model-00001-*"):
        name.unlink()
    with pytest.raises(CorruptError, match="output 1 of 2 is missing"):
        bs.open(folder)


def test_the_shards_of_one_rank_are_never_taken_for_whole_tensors(tmp_path: Path) -> None:
    """They state no global shape: whether there were other ranks is not known."""
    folder = tmp_path / "rank1"
    folder.mkdir()
    for shard in (SAVED / "hf").glob("shard-00001-*"):
        shutil.copy(shard, folder)
    for source in (folder, sorted(folder.iterdir())):
        with bs.open(source) as file:
            assert all(file[name].piece is not None for name in file)
        with pytest.raises(UnsupportedError, match="part of a tensor"):
            bs.convert(source, tmp_path / "model.safetensors")
    with bs.open(next(folder.glob("*-00001-of-*"))) as file:
        weight_map = dict.fromkeys(file, "shard-00001-model-00001-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    for source in (folder, index):
        with pytest.raises(UnsupportedError, match="part of a tensor"):
            bs.open(source)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_rank_that_is_there_twice_is_named(tmp_path: Path) -> None:
    files = sorted((SAVED / "ranks").iterdir())
    shutil.copy(files[1], tmp_path / "copy.pt")
    with pytest.raises(CorruptError, match=r"DTensor 1 of 4.*is there twice: in .*rank_1.pt and in .*copy.pt"):
        bs.open([*files, tmp_path / "copy.pt"])
    shards = sorted((SAVED / "hf").iterdir())
    shutil.copy(shards[0], tmp_path / "copy.safetensors")
    with pytest.raises(CorruptError, match="is there twice"):
        bs.open([*shards, tmp_path / "copy.safetensors"])


def test_replicas_are_compared_and_never_joined(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAVED / "ranks", tmp_path / "ranks"))
    path = folder / "model_world_size_4_rank_3.pt"
    old = np.arange(500, 505, dtype=np.float32)
    raw = path.read_bytes()
    assert raw.count(old.tobytes()) == 1
    path.write_bytes(raw.replace(old.tobytes(), (old + 1).tobytes()))
    with bs.open(folder) as file:
        assert file["model.plain.bias"].shape == (5,)
        with pytest.raises(CorruptError, match=r"replicas of .*rank_0.pt and .*rank_3.pt differ") as caught:
            file["model.plain.bias"].numpy()
        assert caught.value.tensor == "model.plain.bias"
    with pytest.raises(CorruptError, match="replicas"):
        bs.convert(folder, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_files_of_the_optimizer_beside_the_ranks_are_not_the_model(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAVED / "ranks", tmp_path / "ranks"))
    for rank in range(4):  # as verl writes them
        for stem in ("optim", "extra_state"):
            (folder / f"{stem}_world_size_4_rank_{rank}.pt").write_bytes(b"not read")
    assert len(bs.open(folder)) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(saved_offsets=[1, 0]), "overlaps|no file has"),
        (lambda f: f.update(saved_offsets=[2, 0], global_shape=[5, 4]), "no file has the piece rows 4–4 of 5"),
        (lambda f: f.update(saved_offsets=[2, 0], global_shape=[3, 4]), "exceeds"),
    ],
)
def test_pieces_that_contradict_each_other_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    for number in range(2):
        facts: dict[str, Any] = {"saved_offsets": [2 * number, 0]}
        if number:
            change(facts)
        info = json.dumps({"w": facts})
        name = f"shard-{number + 1:05}-model-00001-of-00001.safetensors"
        save_file({"w": np.ones((2, 4), np.float32)}, tmp_path / name, metadata={"DCP_SHARDING_INFO": info})
    with pytest.raises(CorruptError, match=message):
        bs.open(tmp_path)


def test_pieces_of_several_dtypes_or_axes_are_refused(tmp_path: Path) -> None:
    arrays = [np.ones((2, 4), np.float32), np.ones((2, 4), np.float16)]
    for number, array in enumerate(arrays):
        info = json.dumps({"w": {"saved_offsets": [2 * number, 0]}})
        name = f"shard-{number + 1:05}-model-00001-of-00001.safetensors"
        save_file({"w": array}, tmp_path / name, metadata={"DCP_SHARDING_INFO": info})
    with pytest.raises(CorruptError, match=r"several dtypes: F32 in .*, F16 in"):
        bs.open(tmp_path)


def test_files_that_state_their_global_shape_prove_it(tmp_path: Path) -> None:
    whole = np.arange(20, dtype=np.float32).reshape(5, 4)
    for number, (first, last) in enumerate([(0, 3), (3, 5)]):
        info = json.dumps({"w": {"saved_offsets": [first, 0], "global_shape": [5, 4]}})
        name = f"shard-{number + 1:05}-model-00001-of-00001.safetensors"
        save_file({"w": whole[first:last]}, tmp_path / name, metadata={"DCP_SHARDING_INFO": info})
    with bs.open(tmp_path) as file:
        assert file["w"].numpy().tolist() == whole.tolist() and not file.notes
    (tmp_path / "shard-00002-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(CorruptError, match="no file has the piece rows 3–4 of 5"):
        bs.open(tmp_path)


def test_a_list_of_whole_files_has_no_tensor_twice(tmp_path: Path) -> None:
    for name in "ab":
        save_file({name: np.ones(3, np.float32)}, tmp_path / f"{name}.safetensors")
    with bs.open([tmp_path / "a.safetensors", tmp_path / "b.safetensors"]) as file:
        assert sorted(file) == ["a", "b"]
    shutil.copy(tmp_path / "a.safetensors", tmp_path / "c.safetensors")
    with pytest.raises(CorruptError, match="it is also in"):
        bs.open([tmp_path / "a.safetensors", tmp_path / "c.safetensors"])
    for name in "ab":
        bs.save({name: np.ones(3)}, tmp_path / f"{name}.bpk", layout="burn")
    with pytest.raises(UnsupportedError, match="not opened together"):
        bs.open(tmp_path / "*.bpk")


# --- the assembler ----------------------------------------------------------------------------------------------------


def _boxes(whole: Any, cuts: Any) -> list[Box]:
    boxes = []
    spans = [list(itertools.pairwise(axis)) for axis in cuts]
    for place in itertools.product(*spans):
        index = tuple(slice(*span) for span in place)
        part = np.ascontiguousarray(whole[index])
        boxes.append(Box(tuple(span[0] for span in place), part.shape, ArrayData(part), str(place)))
    return boxes


CUTS = [
    ([0, 2, 6], [0, 5]),
    ([0, 6], [0, 1, 4, 5]),
    ([0, 1, 2, 6], [0, 2, 5]),
    ([0, 0, 3, 3, 6], [0, 5]),
]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128])
def test_boxes_of_any_cut_are_the_whole(cuts: Any, dtype: Any) -> None:
    whole = np.arange(30).reshape(6, 5).astype(dtype)
    data = assemble(DType.of(whole.dtype), (6, 5), _boxes(whole, cuts))
    raw = whole.tobytes()
    for start in range(0, len(raw) + 1, 7):
        for stop in range(start, len(raw) + 1, 11):
            assert bytes(data.window(start, stop)) == raw[start:stop]
    filled = np.empty(len(raw), np.uint8)
    data.fill(filled)
    assert filled.tobytes() == raw
    snapshot = bs.TensorSnapshot("w", DType.of(whole.dtype), (6, 5), data)
    for index in [np.s_[1:3, 2:4], np.s_[::2, ::-1], np.s_[4], np.s_[:, 0], np.s_[2:2]]:
        assert snapshot[index].tobytes() == np.ascontiguousarray(whole[index]).tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_a_box_less_or_more_is_always_noticed(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.integers(1, 7, 3))
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    cuts = [[0, *sorted(set(random.integers(0, n + 1, 2).tolist())), n] for n in shape]
    boxes = _boxes(whole, cuts)
    assert bytes(assemble(DType.I32, shape, boxes).window(0, whole.nbytes)) == whole.tobytes()
    full = [box for box in boxes if np.prod(box.shape)]
    dropped = full[int(random.integers(len(full)))]
    with pytest.raises(CorruptError):
        assemble(DType.I32, shape, [box for box in boxes if box is not dropped])
    with pytest.raises(CorruptError, match="twice"):
        assemble(DType.I32, shape, [*boxes, dropped])
    axis = int(random.integers(3))
    moved = tuple(o + (at == axis) for at, o in enumerate(dropped.offset))
    if len(full) > 1:
        with pytest.raises(CorruptError):
            assemble(DType.I32, shape, [box._replace(offset=moved) if box is dropped else box for box in boxes])


def test_many_pieces_take_no_more_time_than_their_number() -> None:
    empty = ArrayData(np.zeros(1, np.uint8))
    boxes = [Box((row,), (1,), empty, "a") for row in range(5_000)]
    assemble(DType.U8, (5_000,), boxes)
    with pytest.raises(CorruptError, match="do not cover"):
        assemble(DType.U8, (5_001,), boxes)


def test_a_tensor_that_is_cut_along_many_axes_is_refused() -> None:
    shape = (2,) * 9
    box = Box((0,) * 9, (1,) * 9, ArrayData(np.zeros(1, np.uint8)), "a")
    with pytest.raises(LimitError, match="axes"):
        assemble(DType.U8, shape, [box])
