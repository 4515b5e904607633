"""Recorders: Burn's names, paths and precisions; files are whole or not there; what is lost is said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.io import atomic
from burnstore.stores.records import (
    BinFileRecorder,
    BinGzFileRecorder,
    CompactRecorder,
    DefaultRecorder,
    DoublePrecisionSettings,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    JsonGzFileRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    PrettyJsonFileRecorder,
    Record,
    RecordTensor,
    load_file,
    open_record,
    record_of,
    save_file,
)

RECORDERS = {
    "mpk": NamedMpkFileRecorder,
    "mpk.gz": NamedMpkGzFileRecorder,
    "bin": BinFileRecorder,
    "bin.gz": BinGzFileRecorder,
    "json.gz": JsonGzFileRecorder,
    "json": PrettyJsonFileRecorder,
}
ALL = pytest.mark.parametrize("recorder", list(RECORDERS.values()), ids=list(RECORDERS))


class Net(nn.Module):
    def __init__(self) -> None:
        self.conv = nn.Conv2d([2, 3], [2, 2])
        self.layers = [nn.Linear(3, 4), nn.Linear(4, 2, bias=False)]
        self.activation = nn.Relu()
        self.steps = nn.Param.from_data(np.array([1, -2, 300], np.int64))
        self.mask = nn.Param.from_data(np.array([True, False]))
        self.rate = 0.5


def values(model: Any) -> dict[str, list[Any]]:
    return {tensor.path: tensor.numpy().tolist() for tensor in bs.collect(model)}


@ALL
def test_a_model_comes_back_from_every_recorder(recorder: Any, tmp_path: Path) -> None:
    model, other = Net(), Net()
    save_file(model, tmp_path / "model", recorder())
    result = load_file(other, tmp_path / "model", recorder())
    assert result.is_success()
    assert values(other) == values(model)
    assert [str(tensor.param_id) for tensor in bs.collect(other)] == [str(t.param_id) for t in bs.collect(model)]
    assert os.listdir(tmp_path) == [f"model.{recorder.extension}"]


@ALL
@pytest.mark.parametrize("given", ["model", "model.v1", "model.{extension}", "model.tar", "a.b/model"])
def test_the_extension_is_the_recorders_own(recorder: Any, given: str, tmp_path: Path) -> None:
    path = tmp_path / given.format(extension=recorder.extension)
    save_file(Net(), path, recorder(), durable=False)
    assert (path.parent / f"model.{recorder.extension}").is_file()
    recorder().load(path, like=Net()).close()


@ALL
def test_a_file_that_exists_is_replaced_only_when_asked(recorder: Any, tmp_path: Path) -> None:
    save_file(Net(), tmp_path / "model", recorder(), durable=False)
    path = tmp_path / f"model.{recorder.extension}"
    before = path.read_bytes()
    with pytest.raises(bs.errors.AlreadyExistsError):
        save_file(Net(), path, recorder(), durable=False)
    assert path.read_bytes() == before
    save_file(Net(), path, recorder(), overwrite=True, durable=False)
    assert path.read_bytes() != before


@ALL
def test_a_record_can_be_written_onto_the_file_it_is_read_from(recorder: Any, tmp_path: Path) -> None:
    model = Net()
    save_file(model, tmp_path / "model", recorder(), durable=False)
    path = tmp_path / f"model.{recorder.extension}"
    before = path.read_bytes()
    with recorder().load(path, like=Net()) as record:
        recorder().record(record, path, overwrite=True, durable=False)
        assert record.tensors()["conv.weight"].numpy().tolist() == model.conv.weight.value.tolist()
    assert path.read_bytes() == before


@ALL
@pytest.mark.parametrize("failing", range(8))
def test_a_tensor_that_cannot_be_read_leaves_nothing_behind(recorder: Any, failing: int, tmp_path: Path) -> None:
    model = Net()
    record = record_of(model)
    paths = list(record.tensors())
    bad = paths[failing % len(paths)]

    def broken() -> Any:
        raise OSError("the disk is gone")

    def changed(node: Any, path: str = "") -> Any:
        if isinstance(node, dict):
            return {key: changed(each, f"{path}.{key}".lstrip(".")) for key, each in node.items()}
        if isinstance(node, list):
            return [changed(each, f"{path}.{index}") for index, each in enumerate(node)]
        if isinstance(node, RecordTensor) and path == bad:
            lost = bs.TensorSnapshot.from_closure(path, node.snapshot.dtype, node.snapshot.shape, broken)
            return RecordTensor(lost, node.id)
        return node

    (tmp_path / f"model.{recorder.extension}").write_bytes(b"old")
    with pytest.raises(OSError, match="the disk is gone"):
        recorder().record(Record(changed(record.item), shape=record.shape), tmp_path / "model", overwrite=True)
    assert os.listdir(tmp_path) == [f"model.{recorder.extension}"]
    assert (tmp_path / f"model.{recorder.extension}").read_bytes() == b"old"


@pytest.mark.parametrize("stage", ["write", "fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.mpk").write_bytes(b"old")

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error")

    target = {"write": (atomic, "_write_some"), "fsync": (atomic, "_fsync"), "replace": (os, "replace")}[stage]
    monkeypatch.setattr(*target, fails)
    with pytest.raises(bs.errors.SaveError):
        save_file(Net(), tmp_path / "model", NamedMpkFileRecorder(), overwrite=True)
    assert os.listdir(tmp_path) == ["model.mpk"]
    assert (tmp_path / "model.mpk").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("settings", "floats", "integers"),
    [
        (FullPrecisionSettings, "F32", "I32"),
        (HalfPrecisionSettings, "F16", "I16"),
        (DoublePrecisionSettings, "F64", "I64"),
    ],
    ids=["full", "half", "double"],
)
@ALL
def test_tensors_are_stored_in_the_precision_asked_for(
    recorder: Any, settings: Any, floats: str, integers: str, tmp_path: Path
) -> None:
    save_file(Net(), tmp_path / "model", recorder(settings), durable=False)
    with recorder().load(tmp_path / "model", like=Net()) as record:
        dtypes = {path: str(tensor.dtype) for path, tensor in record.tensors().items()}
        assert (dtypes["conv.weight"], dtypes["steps"], dtypes["mask"]) == (floats, integers, "Bool")
        assert record.metadata["settings"] == settings.name
        assert record.metadata["version"] == "0.21.0"


def test_an_integer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = nn.Module()
    model.ids = nn.Param.from_data(np.array([1, 40_000], np.int64))
    with pytest.raises(bs.errors.DTypeError, match="40000 does not fit I16") as caught:
        save_file(model, tmp_path / "m", NamedMpkFileRecorder(HalfPrecisionSettings))
    assert caught.value.tensor == "ids"
    assert os.listdir(tmp_path) == []


def test_floats_that_become_infinite_are_warned_of(tmp_path: Path) -> None:
    model = nn.Module()
    model.w = nn.Param.from_data(np.array([1.0, 65520.0, -1e9, np.inf, np.nan, -0.0, 6e-8, 2e-8], np.float32))
    with pytest.warns(UserWarning, match="2 values too large for F16"):
        save_file(model, tmp_path / "m", CompactRecorder())
    with bs.open(tmp_path / "m.mpk") as f:
        bits = f["w"].numpy().view(np.uint16)
    assert [f"{each:04X}" for each in bits] == ["3C00", "7C00", "FC00", "7C00", "7E00", "8000", "0001", "0000"]


@ALL
def test_a_recorder_takes_only_its_own_files_and_says_what_it_found(recorder: Any, tmp_path: Path) -> None:
    other = next(each for each in RECORDERS.values() if each is not recorder)
    save_file(Net(), tmp_path / "model", other(), durable=False)
    [found] = tmp_path.iterdir()
    os.rename(found, tmp_path / f"model.{recorder.extension}")
    with pytest.raises(bs.errors.UnknownFormatError, match="another encoding") as caught:
        recorder().load(tmp_path / "model", like=Net())
    assert caught.value.rule == "BR-01"
    open_record(tmp_path / f"model.{recorder.extension}", like=Net()).close()


def test_default_and_compact_are_burns_shorthands() -> None:
    assert (DefaultRecorder().settings, DefaultRecorder().extension) == (FullPrecisionSettings, "mpk")
    assert (CompactRecorder().settings, CompactRecorder().extension) == (HalfPrecisionSettings, "mpk")
    assert repr(BinGzFileRecorder(HalfPrecisionSettings)) == "BinGzFileRecorder(HalfPrecisionSettings)"


def test_a_binary_record_is_written_only_along_a_declaration(tmp_path: Path) -> None:
    save_file(Net(), tmp_path / "model", NamedMpkFileRecorder(), durable=False)
    with open_record(tmp_path / "model.mpk") as record:
        with pytest.raises(bs.errors.ModelError, match="like="):
            BinFileRecorder().record(record, tmp_path / "model")
        BinFileRecorder().record(record, tmp_path / "model", like=Net())
        other = Net()
        other.layers = [nn.Linear(3, 4)]
        with pytest.raises(bs.errors.ModelError) as caught:
            BinFileRecorder().record(record, tmp_path / "other", like=other)
        assert caught.value.tensor == "layers"
    assert sorted(os.listdir(tmp_path)) == ["model.bin", "model.mpk"]


def test_a_model_that_records_cannot_hold_is_refused(tmp_path: Path) -> None:
    model = Net()
    nn.apply_lora(model, 1, 1.0)
    with pytest.raises(bs.errors.ModelError, match="no place for this tensor"):
        record_of(model)
    torch = pytest.importorskip("torch")
    with pytest.raises(bs.BurnstoreError):
        save_file(torch.nn.Linear(2, 2), tmp_path / "m", NamedMpkFileRecorder())


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: NamedMpkFileRecorder("Full"), TypeError),
        (lambda: save_file(Net(), "m", NamedMpkFileRecorder), TypeError),
        (lambda: NamedMpkFileRecorder().record(Net(), "m"), TypeError),
        (lambda: record_of(5), TypeError),
    ],
)
def test_a_wrong_argument_is_named(call: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        call()


def test_plain_models_are_recorded_with_new_ids(tmp_path: Path) -> None:
    save_file({"a": {"w": np.ones(2, np.float32)}}, tmp_path / "m", NamedMpkFileRecorder())
    with bs.open(tmp_path / "m.mpk") as f:
        assert f["a.w"].numpy().tolist() == [1, 1]
        assert f["a.w"].param_id is not None


def test_bs_save_says_how_records_are_written(tmp_path: Path) -> None:
    with pytest.raises(bs.errors.UnsupportedError, match="save_file"):
        bs.save({"w": np.ones(2, np.float32)}, tmp_path / "model.mpk")


def test_bs_load_takes_records(tmp_path: Path) -> None:
    model, other = Net(), Net()
    save_file(model, tmp_path / "model", NamedMpkGzFileRecorder(), durable=False)
    assert bs.load(other, tmp_path / "model.mpk.gz").is_success()
    assert values(other) == values(model)
