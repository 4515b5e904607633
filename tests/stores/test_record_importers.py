"""The old importers: PyTorch's weights as records of Burn models, in the words and with the output of old guides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.stores.records import (
    AdapterType,
    BinGzFileRecorder,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    LoadArgs,
    NamedMpkFileRecorder,
    PyTorchFileRecorder,
    SafetensorsFileRecorder,
    load_file,
    load_record,
    open_record,
    save_file,
)

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(2, 2, (2, 2))
        self.conv2 = torch.nn.Conv2d(2, 2, (2, 2), bias=False)


class Net(nn.Module):
    def __init__(self) -> None:
        self.conv1 = nn.Conv2d([2, 2], [2, 2])
        self.conv2 = nn.Conv2d([2, 2], [2, 2], bias=False)


KINDS = {"pytorch": PyTorchFileRecorder, "safetensors": SafetensorsFileRecorder}
BOTH = pytest.mark.parametrize("kind", KINDS)


def saved(kind: str, tensors: dict[str, Any], folder: Path) -> Path:
    path = folder / ("weights.pt" if kind == "pytorch" else "weights.safetensors")
    if kind == "pytorch":
        torch.save(tensors, path)
    else:
        safetensors_torch.save_file(tensors, path)
    return path


@BOTH
def test_the_guides_first_example(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(42)
    weights = TorchNet().state_dict()
    path = saved(kind, weights, tmp_path)
    record = KINDS[kind](FullPrecisionSettings).load(path, like=Net())
    model = Net()
    assert load_record(model, record).is_success()
    found = {tensor.path: tensor.numpy().tolist() for tensor in bs.collect(model)}
    assert found == {name: value.tolist() for name, value in weights.items()}


@BOTH
def test_pre_conversion_to_mpk_in_one_call(kind: str, tmp_path: Path) -> None:
    path = saved(kind, TorchNet().state_dict(), tmp_path)
    declared = Net()
    KINDS[kind]().convert(path, tmp_path / "model.mpk", like=declared)
    two_steps = KINDS[kind]().load(path, like=declared)
    NamedMpkFileRecorder().record(two_steps, tmp_path / "other.mpk")
    assert (tmp_path / "model.mpk").read_bytes() == (tmp_path / "other.mpk").read_bytes()
    assert load_file(Net(), tmp_path / "model", NamedMpkFileRecorder()).is_success()
    with pytest.raises(bs.errors.AlreadyExistsError):
        KINDS[kind]().convert(path, tmp_path / "model.mpk", like=declared)
    KINDS[kind](HalfPrecisionSettings).convert(path, tmp_path / "model.mpk", like=declared, overwrite=True)
    with bs.open(tmp_path / "model.mpk") as f:
        assert {str(tensor.dtype) for tensor in f.values()} == {"F16"}
    KINDS[kind]().convert(path, tmp_path / "model", like=declared, recorder=BinGzFileRecorder())
    assert load_file(Net(), tmp_path / "model", BinGzFileRecorder()).is_success()


GUIDE = """\
Debug information of keys and tensor shapes:
---
Original Key: conv.conv1.bias
Remapped Key: conv1.bias
Shape: [2]
Dtype: F32
---
Original Key: conv.conv1.weight
Remapped Key: conv1.weight
Shape: [2, 2, 2, 2]
Dtype: F32
---
Original Key: conv.conv2.weight
Remapped Key: conv2.weight
Shape: [2, 2, 2, 2]
Dtype: F32
---
"""


@BOTH
def test_the_debug_print_is_that_of_the_guide(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {f"conv.{name}": value for name, value in TorchNet().state_dict().items()}
    args = LoadArgs(saved(kind, weights, tmp_path)).with_key_remap("conv\\.(.*)", "$1").with_debug_print()
    record = KINDS[kind]().load(args, like=Net())
    assert capsys.readouterr().out == GUIDE
    assert load_record(Net(), record).is_success()


def test_the_debug_print_comes_before_a_load_that_fails(tmp_path: Path) -> None:
    path = saved("pytorch", {"scalar": torch.tensor(1.5), "mask": torch.tensor([True])}, tmp_path)
    lines: list[str] = []
    with pytest.raises(bs.errors.MissingTensorsError):
        PyTorchFileRecorder().load(LoadArgs(path).with_debug_print(lines.append), like=Net())
    assert lines == [
        "Debug information of keys and tensor shapes:\n---\n"
        "Key: mask\nShape: [1]\nDtype: Bool\n---\nKey: scalar\nShape: []\nDtype: F32\n---"
    ]


class Layers(nn.Module):
    def __init__(self, count: int = 3) -> None:
        self.layers = [nn.Linear(3, 2) for _ in range(count)]
        self.norm = nn.BatchNorm(2)


def with_gaps() -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for index in (0, 2, 4):
        tensors[f"layers.{index}.weight"] = torch.full((2, 3), float(index)) + torch.arange(3)
        tensors[f"layers.{index}.bias"] = torch.full((2,), float(index))
    norm = torch.nn.BatchNorm1d(2)
    torch.nn.init.constant_(norm.weight, 7)
    return {**tensors, **{f"norm.{name}": value for name, value in norm.state_dict().items()}}


@BOTH
def test_gaps_in_indices_are_closed_linears_transposed_and_norms_renamed(kind: str, tmp_path: Path) -> None:
    record = KINDS[kind]().load(saved(kind, with_gaps(), tmp_path), like=Layers())
    tensors = {path: tensor.numpy() for path, tensor in record.tensors().items()}
    assert [tensors[f"layers.{index}.bias"][0] for index in range(3)] == [0, 2, 4]
    assert tensors["layers.1.weight"].tolist() == [[2, 2], [3, 3], [4, 4]]
    assert tensors["norm.gamma"].tolist() == [7, 7]
    assert "norm.running_mean" in tensors and "norm.num_batches_tracked" not in tensors


def test_without_an_adapter_tensors_are_taken_as_they_are(tmp_path: Path) -> None:
    tensors = {"weight": torch.arange(6.0).reshape(3, 2), "bias": torch.zeros(2)}
    args = LoadArgs(saved("safetensors", tensors, tmp_path)).with_adapter_type(AdapterType.NoAdapter)
    record = SafetensorsFileRecorder().load(args, like=nn.Linear(3, 2))
    assert record.tensors()["weight"].numpy().tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(bs.errors.LoadError):
        SafetensorsFileRecorder().load(tmp_path / "weights.safetensors", like=nn.Linear(3, 2))


def test_a_state_dict_below_a_top_level_key(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"my_state_dict": TorchNet().state_dict(), "epoch": 3}, path)
    record = PyTorchFileRecorder().load(LoadArgs(path).with_top_level_key("my_state_dict"), like=Net())
    assert list(record.tensors()) == ["conv1.weight", "conv1.bias", "conv2.weight"]
    with pytest.raises(bs.BurnstoreError, match="nope"):
        PyTorchFileRecorder().load(LoadArgs(path).with_top_level_key("nope"), like=Net())
    with pytest.raises(ValueError, match="top-level"):
        SafetensorsFileRecorder().load(LoadArgs(path).with_top_level_key("x"), like=Net())


class Feature(nn.Enum):
    Plain = nn.variant(nn.Linear)
    Conv = nn.variant(nn.Conv2d)


@BOTH
def test_enum_modules_take_the_tensors_of_their_live_variant(kind: str, tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.feature = Feature.Conv(nn.Conv2d([2, 2], [2, 2]))

    tensors = {"feature.weight": torch.ones(2, 2, 2, 2), "feature.bias": torch.ones(2)}
    record = KINDS[kind]().load(saved(kind, tensors, tmp_path), like=Model())
    assert list(record.tensors()) == ["feature.Conv.weight", "feature.Conv.bias"]
    assert record.tensors()["feature.Conv.bias"].numpy().tolist() == [1, 1]


@BOTH
def test_what_the_model_has_no_place_for_is_left_out_and_what_lacks_is_an_error(kind: str, tmp_path: Path) -> None:
    weights = TorchNet().state_dict()
    path = saved(kind, {**weights, "head.weight": torch.ones(2)}, tmp_path)
    declared = Net()
    before = declared.conv1.weight.value.copy()
    record = KINDS[kind]().load(path, like=declared)
    assert len(record.tensors()) == 3
    assert np.array_equal(declared.conv1.weight.value, before)
    del weights["conv1.bias"]
    with pytest.raises(bs.errors.MissingTensorsError) as caught:
        KINDS[kind]().load(saved(kind, weights, tmp_path), like=Net())
    assert caught.value.result.missing == ["conv1.bias"]


def test_names_that_become_one_are_refused(tmp_path: Path) -> None:
    args = LoadArgs(saved("pytorch", TorchNet().state_dict(), tmp_path)).with_key_remap("conv[12]", "conv1")
    with pytest.raises(bs.errors.DuplicateNameError):
        PyTorchFileRecorder().load(args, like=Net())


def test_a_file_of_another_kind_is_refused_by_its_bytes(tmp_path: Path) -> None:
    path = saved("safetensors", TorchNet().state_dict(), tmp_path)
    path.rename(tmp_path / "weights.pt")
    with pytest.raises(bs.errors.UnknownFormatError, match="safetensors"):
        PyTorchFileRecorder().load(tmp_path / "weights.pt", like=Net())


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: LoadArgs("x").with_key_remap("(", ""), bs.errors.PatternError),
        (lambda: LoadArgs("x").with_adapter_type("PyTorch"), TypeError),
        (lambda: LoadArgs("x").with_top_level_key(5), TypeError),
        (lambda: PyTorchFileRecorder("Full"), TypeError),
        (lambda: PyTorchFileRecorder().load("nothing.pt", like=Net()), FileNotFoundError),
    ],
)
def test_a_wrong_argument_is_told_where_it_is_given(call: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        call()


class Missing(nn.Module):
    optional_fields: ClassVar = {"fc"}

    def __init__(self) -> None:
        self.fc = nn.Linear(2, 2)


def test_load_record_is_strict_unless_told_otherwise(tmp_path: Path) -> None:
    save_file(Missing(), tmp_path / "m", NamedMpkFileRecorder())
    model = Missing()
    model.more = nn.Linear(2, 2)
    with open_record(tmp_path / "m.mpk") as record:
        with pytest.raises(bs.errors.MissingTensorsError):
            load_record(model, record)
        assert load_record(model, record, allow_partial=True).missing == ["more.bias", "more.weight"]
        other = Missing()
        other.fc = nn.Linear(3, 2)
        with pytest.raises(bs.errors.LoadError):
            load_record(other, record)
    with pytest.raises(TypeError, match="Record"):
        load_record(model, {})
