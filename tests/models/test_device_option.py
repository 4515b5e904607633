"""The option ``device``: where a model without memory is made, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import burnstore as bs


def net() -> nn.Module:
    return nn.ModuleDict({"first": nn.Linear(30, 20), "second": nn.Linear(20, 4)})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    bs.save(net(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def meta_net() -> nn.Module:
    with torch.device("meta"):
        return net()


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_a_model_without_memory_is_made_on_the_device_that_is_named(device: str | torch.device, file: Path) -> None:
    model = meta_net()
    with torch.device("meta"):  # and not where torch would make it
        assert bs.load(model, file, device=device).is_complete
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    with bs.open(file) as opened:
        assert all(torch.equal(parameter, opened[name].torch()) for name, parameter in model.named_parameters())


def test_stores_have_the_option_and_their_copies_too(file: Path) -> None:
    for store in (bs.SafetensorsStore.from_file(file).device("cpu"), bs.Store.from_file(file).device("cpu").copy()):
        model = meta_net()
        assert store.load(model).is_complete
        assert not any(parameter.is_meta for parameter in model.parameters())


def test_a_model_that_is_on_the_device_is_filled_there(file: Path) -> None:
    model = net()
    places = [parameter.data_ptr() for parameter in model.parameters()]
    assert bs.load(model, file, device="cpu").is_complete
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_a_model_that_is_elsewhere_is_not_moved(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    given = torch.empty
    # There is no second device here: one that can be asked for, and is another.
    monkeypatch.setattr(torch, "empty", lambda *size, device: given(*size, device="cpu"))
    with pytest.raises(bs.errors.ModelError, match=r"expected a tensor on cuda:1, found it on cpu") as caught:
        bs.load(model, file, device="cuda:1")
    assert caught.value.tensor == "first.weight" and "move the model" in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_model_that_is_on_two_devices_is_refused_for_its_other_part(file: Path) -> None:
    model = meta_net()
    model["second"] = nn.Linear(20, 4)
    assert bs.load(model, file, device="cpu").is_complete
    assert not any(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("device", ["no such device", 3.5, "privateuseone", "cuda:77"])
def test_a_device_that_there_is_not_is_an_error_of_its_own(device: object, file: Path) -> None:
    model = meta_net()
    with pytest.raises(bs.errors.DeviceError, match="cannot use the device"):
        bs.load(model, file, device=device)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_the_meta_device_has_no_values(file: Path) -> None:
    with pytest.raises(ValueError, match="meta"):
        bs.load(meta_net(), file, device="meta")


def test_a_model_of_arrays_is_on_no_device(file: Path) -> None:
    model = {"first.weight": np.zeros((20, 30), np.float32)}
    with pytest.raises(bs.errors.ModelError, match="device"):
        bs.load(model, file, device="cpu", allow_partial=True)
    assert not model["first.weight"].any()
