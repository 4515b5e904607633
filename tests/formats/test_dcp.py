"""Distributed checkpoints of torch: read without running anything, put together exactly, written for torch.

The files in fixtures/dcp4 are of torch's own writers in four processes (fixtures/make_dcp.py).
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import (
    AlreadyExistsError,
    BurnstoreError,
    CorruptError,
    SaveError,
    UnsafeContentError,
    UnsupportedError,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
SAVED = FIXTURES / "dcp4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a checkpoint that may be damaged."""
    return Path(shutil.copytree(SAVED / "dcp", tmp_path / "dcp"))


def expected() -> dict[str, Any]:
    with bs.open(SAVED / "expected.safetensors") as file:
        return {name: (file[name].dtype, file[name].shape, file[name].to_bytes()) for name in file}


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_copy", [False, True])
def test_the_pieces_of_four_ranks_are_the_whole_tensors(zero_copy: bool) -> None:
    with bs.open(SAVED / "dcp", top_level_key="", zero_copy=zero_copy) as file:
        assert {n: (file[n].dtype, file[n].shape, file[n].to_bytes()) for n in file} == expected()
        assert file.format == "dcp" and file.layout == "torch"
        arrays, tensors = file.numpy(), file.torch()
        for name in file:
            assert arrays[name].tobytes() == file[name].to_bytes()
            assert tensors[name].shape == file[name].shape


def test_the_model_is_taken_and_the_rest_is_noted() -> None:
    with bs.open(SAVED / "dcp") as file:
        assert sorted(file) == sorted(name[6:] for name in expected() if name.startswith("model."))
        assert any("iteration = 42" in note and "lr = 0.001" in note for note in file.notes)
        assert any('top_level_key="" takes everything' in note for note in file.notes)
    with bs.open(SAVED / "dcp", top_level_key="optim.state") as file:
        assert sorted(file) == ["rows.weight.exp_avg", "rows.weight.step"]


INDICES = [np.s_[1:4, 2:9:3], np.s_[2], np.s_[:, 3], np.s_[::-2, 5:1:-1], np.s_[5:2], np.s_[-1, -1], np.s_[..., 0:1]]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("name", ["grid.weight", "rows.weight", "columns.weight"])
def test_a_slice_is_that_of_the_whole(name: str, index: Any) -> None:
    with bs.open(SAVED / "dcp") as file:
        whole = file[name].numpy()
        index = index if name == "grid.weight" else tuple(np.s_[0:3] for _ in range(2))
        assert file[name][index].tobytes() == np.ascontiguousarray(whole[index]).tobytes()


def test_a_slice_reads_only_the_pieces_that_it_needs(folder: Path) -> None:
    for name in ("__0_0.distcp", "__2_0.distcp", "__3_0.distcp"):  # rows 3 to 5 are of rank 1
        (folder / name).write_bytes(bytes((folder / name).stat().st_size))
    with bs.open(folder) as file:
        assert file["rows.weight"][3:6].tolist() == [[9.0, 10.0, 11.0], [12.0, 13.0, 14.0], [15.0, 16.0, 17.0]]
        assert file["grid.weight"][0:3, 5:10].shape == (3, 5)
        with pytest.raises(BurnstoreError) as caught:
            file["rows.weight"].numpy()
        assert caught.value.tensor == "rows.weight" and "__0_0" in str(caught.value)


def test_every_verb_takes_the_folder(tmp_path: Path) -> None:
    source = SAVED / "dcp"
    for name in ("m.safetensors", "m.pt"):
        bs.convert(source, tmp_path / name)
        assert bs.diff(source, tmp_path / name).is_equal
    bs.convert(source, tmp_path / "m.bpk", keep_layout=True)
    assert bs.diff(source, tmp_path / "m.bpk", layout="torch") is not None
    assert len(bs.inspect(source).tensors) == 7
    assert bs.verify(source).ok and bs.verify(SAVED).ok is not None
    bs.merge([source, tmp_path / "m.safetensors"], tmp_path / "both.safetensors", method="linear", weights=[0.5, 0.5])
    assert bs.diff(tmp_path / "both.safetensors", tmp_path / "m.safetensors").is_equal
    bs.convert(source, tmp_path / "r.safetensors", receipt=True)
    bs.replay(tmp_path / "r.safetensors.receipt.json", tmp_path / "again.safetensors")
    assert (tmp_path / "r.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    model = {"plain": {"bias": np.zeros(5, np.float32)}}
    assert bs.load(model, source, allow_partial=True).applied == ["plain.bias"]


def test_a_file_of_pieces_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="part of a distributed checkpoint") as caught:
        bs.open(SAVED / "dcp" / "__3_0.distcp")
    assert "open its folder" in str(caught.value.hint) and "format_utils" not in str(caught.value)
    shutil.copy(SAVED / "dcp" / "__3_0.distcp", tmp_path / "model.pt")
    with pytest.raises(BurnstoreError):
        bs.open(tmp_path / "model.pt")


def test_a_folder_without_its_metadata_is_refused(folder: Path) -> None:
    (folder / ".metadata").unlink()
    with pytest.raises(CorruptError, match=r"no \.metadata") as caught:
        bs.open(folder)
    assert "begins with a dot" in str(caught.value.hint)


def test_of_two_checkpoints_in_a_folder_safetensors_are_taken(folder: Path) -> None:
    (folder / "common.pt").write_bytes(b"beside it, as of Megatron")
    assert len(bs.open(folder)) == 7
    shutil.copy(SAVED / "expected.safetensors", folder / "model.safetensors")
    assert len(bs.open(folder)) == 9
    assert len(bs.open(folder / ".metadata")) == 7


def test_damage_is_found_by_verify(folder: Path) -> None:
    name = folder / "__1_0.distcp"
    raw = bytearray(name.read_bytes())
    at = raw.index(np.arange(9, 18, dtype=np.float32).tobytes())
    raw[at + 3] ^= 1
    name.write_bytes(raw)
    found = bs.verify(folder)
    assert not found.ok and any("__1_0" in str(error) and "checksum" in str(error) for error in found.errors)


# --- hostile metadata -------------------------------------------------------------------------------------------------

Change = Callable[[Any], None]


def _with_metadata(folder: Path, change: Change) -> Path:
    import torch.distributed.checkpoint.metadata  # noqa: F401  (the classes of the pickle)

    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())  # our own fixture
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))
    return folder


def _index(metadata: Any, name: str, number: int = 0) -> Any:
    return [index for index in metadata.storage_data if index.fqn == name][number]


def _drop_piece(metadata: Any) -> None:
    del metadata.storage_data[_index(metadata, "model.rows.weight", 1)]


def _drop_chunk(metadata: Any) -> None:
    index = _index(metadata, "model.rows.weight", 1)
    metadata.state_dict_metadata["model.rows.weight"].chunks = [
        chunk for chunk in metadata.state_dict_metadata["model.rows.weight"].chunks if chunk.offsets != index.offset
    ]
    del metadata.storage_data[index]


def _double_chunk(metadata: Any) -> None:
    chunks = metadata.state_dict_metadata["model.rows.weight"].chunks
    chunks.append(chunks[0])


def _set(**facts: Any) -> Change:
    def change(metadata: Any) -> None:
        info = metadata.storage_data[_index(metadata, "model.rows.weight")]
        for name, value in facts.items():
            setattr(info, name, value)

    return change


def _overlap(metadata: Any) -> None:
    import torch

    chunk = metadata.state_dict_metadata["model.rows.weight"].chunks[1]
    index = next(i for i in metadata.storage_data if i.fqn == "model.rows.weight" and i.offset == chunk.offsets)
    info = metadata.storage_data.pop(index)
    chunk.offsets = torch.Size((2, 0))
    metadata.storage_data[type(index)("model.rows.weight", (2, 0), 1)] = info


def _resize(*size: int) -> Change:
    def change(metadata: Any) -> None:
        import torch

        metadata.state_dict_metadata["model.rows.weight"].size = torch.Size(size)

    return change


def _retype(metadata: Any) -> None:
    import torch

    metadata.state_dict_metadata["model.rows.weight"].properties.dtype = torch.int32


def _swap(metadata: Any) -> None:
    one, other = _index(metadata, "model.rows.weight"), _index(metadata, "model.few.weight")
    data = metadata.storage_data
    data[one], data[other] = data[other], data[one]


def _share(metadata: Any) -> None:
    one, other = _index(metadata, "model.rows.weight"), _index(metadata, "model.rows.weight", 1)
    metadata.storage_data[other] = metadata.storage_data[one]


HOSTILE: dict[str, tuple[Change, type[BurnstoreError], str]] = {
    "a piece without a place": (_drop_piece, CorruptError, "no file has the piece"),
    "a missing chunk": (_drop_chunk, CorruptError, "no file has the piece rows"),
    "a doubled chunk": (_double_chunk, CorruptError, "DC-04|there twice"),
    "overlapping pieces": (_overlap, CorruptError, "overlaps"),
    "a path above": (_set(relative_path="../__0_0.distcp"), UnsafeContentError, "plain name"),
    "an absolute path": (_set(relative_path="/etc/passwd"), UnsafeContentError, "plain name"),
    "a missing file": (_set(relative_path="__9_0.distcp"), CorruptError, "is missing"),
    "a negative offset": (_set(offset=-5), CorruptError, "a place at -5"),
    "a place beyond the file": (_set(offset=1 << 40), CorruptError, "which has"),
    "a huge length": (_set(length=1 << 61), CorruptError, "which has"),
    "an offset that is no number": (_set(offset="0"), CorruptError, "not a file, an offset"),
    "a codec": (_set(transform_descriptors=["zstd"]), UnsupportedError, "zstd"),
    "a larger tensor": (_resize(11, 3), CorruptError, "no file has the piece rows 10–10 of 11"),
    "a smaller tensor": (_resize(9, 3), CorruptError, "outside of"),
    "an enormous tensor": (_resize(1 << 62, 1 << 62), BurnstoreError, "limit|no file has"),
    "other axes": (_resize(10, 3, 1), CorruptError, "axes"),
    "pieces that share bytes": (_share, CorruptError, "share"),
    "an unknown version": (lambda m: setattr(m, "version", "2.0.0"), UnsupportedError, "version"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_metadata_that_cannot_be_is_refused_when_opened(case: str, folder: Path) -> None:
    change, error, message = HOSTILE[case]
    with pytest.raises(error, match=message):
        bs.open(_with_metadata(folder, change))


class Properties:
    """The properties of a tensor whose pickle has this state, as another release writes it."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        import torch.distributed.checkpoint.metadata as md

        return md.TensorProperties, (), self.state


def _properties(*more: Any, as_dict: bool = False) -> Change:
    def change(metadata: Any) -> None:
        for entry in metadata.state_dict_metadata.values():
            if hasattr(entry, "properties"):
                state = entry.properties.__getstate__()[:5]
                names = ("dtype", "layout", "requires_grad", "memory_format", "pin_memory")
                entry.properties = Properties(dict(zip(names, state, strict=True)) if as_dict else (*state, *more))

    return change


def _without(*names: str) -> Change:
    def change(metadata: Any) -> None:
        for name in names:
            metadata.__dict__.pop(name, None)

    return change


OTHER_RELEASES = {
    "2.4, without a version": _without("version", "storage_meta"),
    "2.15, with strides": _properties((3, 1)),
    "attributes as a dict": _properties(as_dict=True),
    "no codecs": _set(transform_descriptors=None),
    "an empty list of codecs": _set(transform_descriptors=[]),
    "no paths": lambda metadata: setattr(metadata, "planner_data", None),
    "integers that became text": lambda m: m.planner_data.update({"x": ("model", "0", 1)}),
}


@pytest.mark.parametrize("case", OTHER_RELEASES)
def test_metadata_of_other_releases_is_read(case: str, folder: Path) -> None:
    with (
        bs.open(_with_metadata(folder, OTHER_RELEASES[case])) as file,
        bs.open(SAVED / "expected.safetensors") as whole,
    ):
        for name in file:
            expected = whole[name if name in whole else f"model.{name}"]
            assert file[name].to_bytes() == expected.to_bytes()


@pytest.mark.parametrize("case", ["seven properties", "sparse"])
def test_properties_of_no_release_are_refused(case: str, folder: Path) -> None:
    def sparse(metadata: Any) -> None:
        import torch

        metadata.state_dict_metadata["model.rows.weight"].properties.layout = torch.sparse_coo

    change = _properties((3, 1), None) if case == "seven properties" else sparse
    with pytest.raises(BurnstoreError, match=r"impossible form|layout"):
        bs.open(_with_metadata(folder, change))


def test_what_megatron_stores_in_another_shape_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    """Megatron's ``mcore_data`` names the tensors that it flattens for its optimizer."""

    def change(metadata: Any) -> None:
        metadata.mcore_data = {"model.rows.weight": {"nd_reformulated_orig_global_shape": (5, 6)}}

    with bs.open(_with_metadata(folder, change)) as file:
        assert file["rows.weight"].piece is not None
        assert any("padding rows" in note for note in file.notes)
        assert file["few.weight"].numpy().shape == (3, 5)
        with pytest.raises(UnsupportedError, match="Megatron stores it in another shape"):
            file["rows.weight"].numpy()
    with pytest.raises(UnsupportedError, match="Megatron stores it in another shape"):
        bs.convert(folder, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("change", [_retype, _swap])
def test_pieces_that_contradict_the_metadata_are_refused_when_read(change: Change, folder: Path) -> None:
    with (
        bs.open(_with_metadata(folder, change)) as file,
        pytest.raises(CorruptError, match="the metadata states"),
    ):
        file["rows.weight"].numpy()


class Boom:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.mark.parametrize("place", ["storage_meta", "planner_data", "version", "state_dict_metadata", "storage_data"])
def test_nothing_in_the_metadata_runs(place: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    _with_metadata(folder, lambda metadata: setattr(metadata, place, Boom()))
    try:
        bs.open(folder).close()
    except BurnstoreError:
        assert place in ("version", "state_dict_metadata", "storage_data")
    assert not Path("ran").exists()


def test_metadata_that_is_cut_is_refused(folder: Path) -> None:
    raw = (folder / ".metadata").read_bytes()
    for length in range(1, len(raw), 97):
        (folder / ".metadata").write_bytes(raw[:length])
        with pytest.raises(BurnstoreError):
            bs.open(folder)


def test_files_that_are_cut_are_refused(folder: Path) -> None:
    raw = (folder / "__3_0.distcp").read_bytes()
    (folder / "__3_0.distcp").write_bytes(raw[:-1])
    with pytest.raises(CorruptError, match="__3_0"):
        bs.open(folder)


# --- metadata of each rank --------------------------------------------------------------------------------------------


def test_metadata_of_each_rank_is_read_together(tmp_path: Path) -> None:
    """Without collectives each rank writes its own metadata, with replicas of what is not sharded."""
    import torch
    import torch.distributed.checkpoint.filesystem as fs
    import torch.distributed.checkpoint.metadata as md

    for rank in range(2):
        rows = md.TensorStorageMetadata(
            md.TensorProperties(torch.float32),
            torch.Size((4, 2)),
            [md.ChunkStorageMetadata(torch.Size((2 * rank, 0)), torch.Size((2, 2)))],
        )
        bias = md.TensorStorageMetadata(
            md.TensorProperties(torch.float32),
            torch.Size((3,)),
            [md.ChunkStorageMetadata(torch.Size((0,)), torch.Size((3,)))],
        )
        entries, places, raw = {"rows": rows, "bias": bias}, {}, b""
        for name, value in {"rows": torch.full((2, 2), float(rank)), "bias": torch.arange(3.0)}.items():
            import io

            stream = io.BytesIO()
            torch.save(value, stream)
            offset = (2 * rank, 0) if name == "rows" else (0,)
            info = fs._StorageInfo(f"__{rank}_0.distcp", len(raw), len(stream.getvalue()))
            places[md.MetadataIndex(name, offset)] = info
            raw += stream.getvalue()
        (tmp_path / f"__{rank}_0.distcp").write_bytes(raw)
        (tmp_path / f"__{rank}.metadata").write_bytes(pickle.dumps(md.Metadata(entries, None, places)))
    with bs.open(tmp_path) as file:
        assert file["rows"].numpy().tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
        assert file["bias"].numpy().tolist() == [0, 1, 2]
    (tmp_path / "__1_0.distcp").write_bytes(
        (tmp_path / "__1_0.distcp").read_bytes().replace(np.arange(3, dtype=np.float32).tobytes(), bytes(12))
    )
    with (
        bs.open(tmp_path) as file,
        pytest.raises(CorruptError, match=r"replicas of __0_0.distcp and __1_0.distcp differ"),
    ):
        file["bias"].numpy()
    last = (tmp_path / "__1.metadata").read_bytes()
    (tmp_path / "__1.metadata").unlink()
    with pytest.raises(CorruptError, match="metadata of rank 1 is missing"):
        bs.open(tmp_path)
    (tmp_path / "__1.metadata").write_bytes(last)
    (tmp_path / "__0.metadata").unlink()
    with pytest.raises(CorruptError, match="metadata of rank 0 is missing"):
        bs.open(tmp_path)


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_what_is_written(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    bs.convert(SAVED / "expected.safetensors", tmp_path / "out", format="dcp")
    tensors = bs.open(SAVED / "expected.safetensors").torch()
    state = {name: torch.zeros_like(value) for name, value in tensors.items()}
    dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    for name, value in tensors.items():
        assert torch.equal(state[name], value)
    assert bs.verify(tmp_path / "out").ok
    assert bs.diff(tmp_path / "out", SAVED / "expected.safetensors").is_equal


def test_a_folder_is_written_by_its_suffix_and_by_save(tmp_path: Path) -> None:
    arrays = {"a": np.arange(5), "empty": np.zeros((0, 3), np.float32), "scalar": np.float32(2).reshape(())}
    result = bs.save(arrays, tmp_path / "out.dcp", layout="torch")
    assert [Path(file).name for file in result.files] == [".metadata", "__0_0.distcp"]
    with bs.open(tmp_path / "out.dcp") as file:
        assert {name: value.tolist() for name, value in file.numpy().items()} == {
            "a": [0, 1, 2, 3, 4],
            "empty": [],
            "scalar": 2.0,
        }
    bs.save({}, tmp_path / "none.dcp", layout="torch")
    assert len(bs.open(tmp_path / "none.dcp")) == 0
    with pytest.raises(UnsupportedError, match="is a folder"):
        bs.serialize(arrays, format="dcp", layout="torch")


def test_an_existing_checkpoint_is_replaced_with_overwrite_only(tmp_path: Path) -> None:
    arrays = {"a": np.arange(5)}
    bs.save(arrays, tmp_path / "out.dcp", layout="torch")
    with pytest.raises(AlreadyExistsError):
        bs.save(arrays, tmp_path / "out.dcp", layout="torch")
    held = bs.open(tmp_path / "out.dcp")
    bs.save({"b": np.ones(3)}, tmp_path / "out.dcp", layout="torch", overwrite=True)
    assert list(bs.open(tmp_path / "out.dcp")) == ["b"] and len(os.listdir(tmp_path / "out.dcp")) == 2
    assert held["a"].numpy().tolist() == [0, 1, 2, 3, 4]  # a reader keeps the files that it opened
    with pytest.raises(SaveError, match="same file"):
        bs.convert(tmp_path / "out.dcp", tmp_path / "out.dcp", overwrite=True)


@pytest.mark.parametrize("occupied", ["file", "other checkpoint"])
def test_a_place_that_is_taken_is_refused(occupied: str, tmp_path: Path) -> None:
    target = tmp_path / "out.dcp"
    if occupied == "file":
        target.write_bytes(b"x")
    else:
        target.mkdir()
        (target / "model.safetensors").write_bytes(b"x")
    with pytest.raises(SaveError):
        bs.save({"a": np.ones(2)}, target, layout="torch", overwrite=True)


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Any:
        raise ValueError("no values")

    bad = bs.TensorSnapshot.from_closure("bad", bs.DType.F32, (2,), fail)
    with pytest.raises(ValueError, match="no values"):
        bs.save([bad], tmp_path / "out.dcp", layout="torch")
    assert list(tmp_path.iterdir()) == []


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one.dcp", "two.dcp"):
        bs.save({"a": np.arange(5)}, tmp_path / name, layout="torch")
    for file in (".metadata", "__0_0.distcp"):
        assert (tmp_path / "one.dcp" / file).read_bytes() == (tmp_path / "two.dcp" / file).read_bytes()


@pytest.mark.slow("starts eight processes of torch")
def test_eight_ranks_of_torch(tmp_path: Path) -> None:
    command = [sys.executable, str(FIXTURES / "make_dcp.py"), str(tmp_path / "saved"), "8"]
    subprocess.run(command, check=True, timeout=300)  # a process of its own: torch leaves pipes open
    for name in ("hf", "ranks"):
        with bs.open(tmp_path / "saved" / name) as file:
            assert {n: file[n].to_bytes() for n in file} == {n: expected()[n][2] for n in file} and len(file) == 7
    with bs.open(tmp_path / "saved" / "dcp", top_level_key="") as file:
        assert {n: (file[n].dtype, file[n].shape, file[n].to_bytes()) for n in file} == expected()
