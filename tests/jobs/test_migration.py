"""Migration: what old records hold arrives in new files, verified, and nothing that was there goes."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.cli import main
from burnstore.jobs import migrate as migration
from burnstore.jobs.migrate import migrate_each
from burnstore.pipeline import write
from burnstore.stores.records import NamedMpkFileRecorder, NamedMpkGzFileRecorder, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))
from record_models import declared
from test_record_files import UUID, expected, expected_facts, facts, heading, of, options

VERSIONS = ["0.13.2", "0.16.1", "0.21.0"]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", ["tiny", "basic", "nested", "enums", "constants"])
@pytest.mark.parametrize("recorder", ["namedmpkgz", "prettyjson", "bin"])
def test_every_tensor_of_a_model_arrives(version: str, model: str, recorder: str, tmp_path: Path) -> None:
    path = of(version, model, recorder, "half")
    done = bs.migrate(path, tmp_path / "new.bpk", **options(path), durable=False)
    wanted = expected(path)
    assert (done.kind, done.tensors, done.error) == ("module", len(wanted), None)
    with bs.open(tmp_path / "new.bpk") as f:
        assert f.format == "burnpack"
        assert {name: facts(tensor) for name, tensor in f.items()} == {
            name: expected_facts(each) for name, each in wanted.items()
        }
        if version != "0.13.2":
            assert {name: str(f[name].param_id) for name in f} == {name: each["id"] for name, each in wanted.items()}
    assert os.listdir(tmp_path) == ["new.bpk"]


def test_a_layer_that_moved_is_brought_to_its_place(tmp_path: Path) -> None:
    """InstanceNorm of Burn 0.13 kept its parameters in a GroupNorm."""
    tensor = {"value": [1.5, 2.5], "shape": [2]}
    norm = {"group_norm": {name: {"id": UUID, "param": tensor} for name in ("gamma", "beta")}}
    document = {"metadata": heading("0.13.2"), "item": {"norm": norm}, "_b": []}
    (tmp_path / "old.mpk").write_bytes(msgpack.packb(document, use_single_float=True))
    model = nn.Module()
    model.norm = nn.InstanceNorm(2)
    bs.migrate(tmp_path / "old.mpk", tmp_path / "new.bpk", like=model)
    with bs.open(tmp_path / "new.bpk") as f:
        assert list(f) == ["norm.gamma", "norm.beta"]


def test_a_quantized_model_keeps_its_values(tmp_path: Path) -> None:
    path = of("0.21.0", "quant_block", "namedmpk", "full")
    bs.migrate(path, tmp_path / "new.bpk")
    with bs.open(path) as old, bs.open(tmp_path / "new.bpk") as new:
        assert new["weight"].to_bytes() == old["weight"].to_bytes()
        assert new["weight"].numpy().tolist() == old["weight"].numpy().tolist()


def test_other_formats_are_written_where_the_name_says_so(tmp_path: Path) -> None:
    bs.migrate(of("0.21.0", "tiny", "namedmpk", "full"), tmp_path / "new.safetensors")
    with bs.open(tmp_path / "new.safetensors") as f:
        assert f.format == "safetensors"
        assert f["fc.weight"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_optimizer_becomes_training_state_with_the_paths_of_its_model(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    save_file(model, tmp_path / "model-1", NamedMpkFileRecorder())
    _adam(tmp_path / "optim-1.mpk", model)
    done = bs.migrate(tmp_path / "optim-1.mpk", tmp_path / "optim.bpk", model=tmp_path / "model-1.mpk")
    assert (done.kind, done.tensors) == ("optimizer", 2)
    with bs.open(tmp_path / "optim.bpk") as f:
        number = int(model.weight.id)
        assert dict(f.metadata) == {str(number): "weight"}
        assert f.scalars[f"{number}.momentum.time"] == bs.Scalar("UInt", 5)
        assert f.scalars[f"{number}.__rank"] == bs.Scalar("UInt", 2)
        assert f[f"{number}.momentum.moment_1"].param_id == number


REFACTORED: list[dict[str, Any]] = [
    {"rename": {"weight": "up.kernel"}},
    {
        "rules": {
            "source_layout": "burn",
            "target_layout": "burn",
            "tensors": [
                {"source": "weight", "target": "up.kernel", "transpose": True},
                {"source": "bias", "drop": "the new struct has none"},
            ],
        }
    },
]


@pytest.mark.parametrize("how", REFACTORED, ids=lambda how: next(iter(how)))
def test_parameters_get_other_names_and_their_state_follows(how: dict[str, Any], tmp_path: Path) -> None:
    folder, model = tmp_path / "run", nn.Linear(3, 2)
    save_file(model, folder / "model-1", NamedMpkFileRecorder())
    _adam(folder / "optim-1.mpk", model, np.arange(6, dtype="<f4").tobytes())
    done = {Path(each.source).name: each for each in bs.migrate(folder, tmp_path / "new", **how).records}
    assert [each.error for each in done.values()] == [None, None]
    number = int(model.weight.id)
    with bs.open(tmp_path / "new" / "model-1.bpk") as f, bs.open(tmp_path / "new" / "optim-1.bpk") as state:
        assert set(f) == ({"up.kernel"} if "rules" in how else {"up.kernel", "bias"})
        assert f["up.kernel"].param_id == number
        given, moment = model.weight.value, np.arange(6, dtype="<f4").reshape(3, 2)
        is_turned = "rules" in how
        np.testing.assert_array_equal(f["up.kernel"].numpy(), given.T if is_turned else given)
        np.testing.assert_array_equal(state[f"{number}.momentum.moment_1"].numpy(), moment.T if is_turned else moment)
        assert dict(state.metadata) == {str(number): "up.kernel"}
        assert state.scalars[f"{number}.momentum.time"] == bs.Scalar("UInt", 5)
    assert done["model-1.mpk"].left_out == ({"bias": "the new struct has none"} if "rules" in how else {})
    assert "1 of them under new names" in done["optim-1.mpk"].notes[0]


def test_state_is_not_renamed_without_the_paths_of_its_parameters(tmp_path: Path) -> None:
    _adam(tmp_path / "optim.mpk", nn.Linear(3, 2))
    with pytest.raises(bs.errors.ModelError, match="paths of this optimizer's parameters are not known") as caught:
        bs.migrate(tmp_path / "optim.mpk", tmp_path / "optim.bpk", rename={"weight": "kernel"})
    assert "model= the record" in str(caught.value.hint)
    assert not (tmp_path / "optim.bpk").exists()


def test_a_rename_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(bs.errors.PatternError, match="matched no tensor"):
        bs.migrate(of("0.21.0", "tiny", "namedmpk", "full"), tmp_path / "new.bpk", rename=["^fd=>up"])
    assert os.listdir(tmp_path) == []


def test_the_verb_takes_renames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(3, 2)
    save_file(model, tmp_path / "model", NamedMpkFileRecorder())
    _adam(tmp_path / "optim.mpk", model)
    record, rename = str(tmp_path / "model.mpk"), ["--rename", "^weight$=>kernel"]
    assert main(["migrate", str(tmp_path / "optim.mpk"), str(tmp_path / "optim.bpk"), "--model", record, *rename]) == 0
    assert "training state of 1 parameter, 1 of them under new names" in capsys.readouterr().out
    with bs.open(tmp_path / "optim.bpk") as f:
        assert list(f.metadata.values()) == ["kernel"]


def _adam(path: Path, model: Any, moment: bytes = bytes(24)) -> None:
    tensor = {"bytes": moment, "shape": [3, 2], "dtype": "F32"}
    state = {"momentum": {"time": 5, "moment_1": tensor, "moment_2": tensor, "max_moment_2": None}}
    item = {str(model.weight.id): {"V1": {"Rank2": state}}}
    path.write_bytes(msgpack.packb({"metadata": heading(), "item": item, "_b": []}))


def _scheduler(path: Path, item: Any) -> None:
    path.write_bytes(msgpack.packb({"metadata": heading(), "item": item, "_b": []}))


def test_a_scheduler_becomes_scalars(tmp_path: Path) -> None:
    _scheduler(tmp_path / "s.mpk", 12)
    with pytest.raises(bs.errors.UnsupportedError, match="name it"):
        bs.migrate(tmp_path / "s.mpk", tmp_path / "s.bpk")
    assert not (tmp_path / "s.bpk").exists()
    done = bs.migrate(tmp_path / "s.mpk", tmp_path / "s.bpk", scheduler="Cosine")
    assert (done.kind, done.tensors) == ("scheduler", 0)
    with bs.open(tmp_path / "s.bpk") as f:
        assert dict(f.scalars) == {"0.current_iter": bs.Scalar("UInt", 12)}


def test_a_binary_record_without_a_declaration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(bs.errors.UnsupportedError, match="like=") as caught:
        bs.migrate(of("0.21.0", "tiny", "bin", "full"), tmp_path / "new.bpk")
    assert caught.value.rule == "BR-18"
    assert os.listdir(tmp_path) == []


def test_a_file_that_exists_is_replaced_only_when_asked(tmp_path: Path) -> None:
    source = of("0.21.0", "tiny", "namedmpk", "full")
    (tmp_path / "new.bpk").write_bytes(b"mine")
    with pytest.raises(bs.errors.AlreadyExistsError):
        bs.migrate(source, tmp_path / "new.bpk")
    assert (tmp_path / "new.bpk").read_bytes() == b"mine"
    bs.migrate(source, tmp_path / "new.bpk", overwrite=True)
    assert bs.load(declared("tiny", "0.21.0"), tmp_path / "new.bpk").is_success()


def test_a_new_file_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And before it has its name: nothing is left of it, and a file that was there stays."""
    real = write._write_together

    def careless(portion: Any, run: Any) -> None:
        real(portion, run)
        last, offset = run[-1]
        portion.write_at(offset + last.nbytes - 1, b"\xff")

    monkeypatch.setattr(write, "_write_together", careless)
    for kept in (False, True):
        if kept:
            (tmp_path / "new.bpk").write_bytes(b"mine")
        with pytest.raises(bs.errors.CorruptError, match="read back differs from the source") as caught:
            bs.migrate(of("0.21.0", "tiny", "namedmpk", "full"), tmp_path / "new.bpk", overwrite=True)
        assert caught.value.tensor == "fc.bias"
        assert os.listdir(tmp_path) == (["new.bpk"] if kept else [])
    assert (tmp_path / "new.bpk").read_bytes() == b"mine"


def test_limits_hold_for_the_new_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = of("0.21.0", "tiny", "namedmpk", "full")
    read = migration.open_record
    monkeypatch.setattr(migration, "open_record", lambda path, **options: read(path, **{**options, "limits": None}))
    with pytest.raises(bs.errors.LimitError) as caught:
        bs.migrate(record, tmp_path / "new.bpk", limits=bs.Limits(tensors=1))
    assert caught.value.rule == "BP-07" and os.listdir(tmp_path) == []


def test_a_record_is_never_replaced_by_its_own_migration(tmp_path: Path) -> None:
    _scheduler(tmp_path / "s.mpk", 12)
    before = digests(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "s.mpk")
    for name in ("s.mpk", "link"):
        with pytest.raises(bs.errors.SaveError, match="the record itself"):
            bs.migrate(tmp_path / "s.mpk", tmp_path / name, scheduler="Cosine", overwrite=True)
    (tmp_path / "link").unlink()
    assert digests(tmp_path) == before


def test_two_records_of_a_folder_that_would_get_one_name_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for value, recorder in ((3, NamedMpkFileRecorder()), (4, NamedMpkGzFileRecorder())):
        save_file(nn.Linear(value, 2), folder / "model", recorder, durable=False)
    save_file(nn.Linear(5, 2), folder / "other", NamedMpkFileRecorder(), durable=False)
    done = bs.migrate(folder, tmp_path / "new", overwrite=True, durable=False)
    wrong = {Path(each.source).name: each.error for each in done.records if each.error is not None}
    assert set(wrong) == {"model.mpk", "model.mpk.gz"}
    assert all("model.mpk and model.mpk.gz would get the same name" in str(error) for error in wrong.values())
    assert sorted(digests(tmp_path / "new")) == ["other.bpk"]


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A folder as Burn's checkpointer leaves it, and other things beside."""
    folder = tmp_path / "run"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "final").mkdir()
    for epoch in (1, 2):
        model = nn.Linear(3, 2)
        save_file(model, folder / "checkpoint" / f"model-{epoch}", NamedMpkGzFileRecorder(), durable=False)
        _adam(folder / "checkpoint" / f"aoptim-{epoch}.mpk", model)
        _scheduler(folder / "checkpoint" / f"scheduler-{epoch}.mpk", epoch)
    shutil.copy(of("0.21.0", "nested", "bin", "full"), folder / "final" / "model.bin")
    shutil.copy(of("0.16.1", "basic", "jsongz", "full"), folder / "final" / "basic.json.gz")
    (folder / "config.json").write_text('{"metadata": 1}')
    (folder / "notes.mpk").write_text("no record")
    (folder / "log.gz").write_bytes(gzip.compress(b"log"))
    (folder / "final" / "link.mpk").symlink_to(folder / "checkpoint" / "aoptim-1.mpk")
    (folder / "broken.mpk").write_bytes((folder / "checkpoint" / "aoptim-1.mpk").read_bytes()[:-9])
    return folder


def test_a_folder_is_migrated_whole_and_what_cannot_go_is_told(training: Path, tmp_path: Path) -> None:
    before = digests(training)
    done = {Path(each.source).name: each for each in bs.migrate(training, tmp_path / "new", durable=False).records}
    assert digests(training) == before
    failed = {name: type(each.error) for name, each in done.items() if each.error is not None}
    assert failed == {
        "broken.mpk": bs.errors.TruncatedError,
        "model.bin": bs.errors.UnsupportedError,
        "scheduler-1.mpk": bs.errors.UnsupportedError,
        "scheduler-2.mpk": bs.errors.UnsupportedError,
    }
    assert sorted(digests(tmp_path / "new")) == [
        *("checkpoint/aoptim-1.bpk", "checkpoint/aoptim-2.bpk", "checkpoint/model-1.bpk", "checkpoint/model-2.bpk"),
        "final/basic.bpk",
    ]
    for epoch in (1, 2):
        with bs.open(tmp_path / "new" / "checkpoint" / f"aoptim-{epoch}.bpk") as f:
            assert list(f.metadata.values()) == ["weight"]
    again = bs.migrate(training, tmp_path / "new", durable=False)
    assert again.records and all(each.error is not None for each in again.records)
    fine = bs.migrate(training, tmp_path / "new", scheduler="Noam", overwrite=True, durable=False)
    assert sum(each.error is None for each in fine.records) == 7
    assert fine.tensors == sum(each.tensors for each in fine.records) > 0
    with pytest.raises(TypeError, match="like and model need a single record"):
        bs.migrate(training, tmp_path / "new", like=nn.Linear(3, 2))


def test_progress_tells_the_file_and_its_bytes(training: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    report = partial(partial, lambda *each: told.append(each))
    list(migrate_each(str(training / "checkpoint"), str(tmp_path / "new"), progress_of=report))
    assert {Path(path).name for path, _, _ in told} >= {"model-1.mpk.gz", "aoptim-2.mpk"}
    assert all(0 < now <= total for _, now, total in told)
