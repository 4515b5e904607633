"""PyTorch models on a GPU: the same tensors, wherever they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import burnstore as bs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


def model_on(device: str) -> nn.Module:
    model = nn.Module()
    model.large = nn.Linear(2000, 1500, device=device)  # 12 MB: more than one piece
    model.small = nn.BatchNorm1d(3, device=device)
    model.turned = nn.Parameter(torch.arange(60_000.0, device=device).reshape(200, 300).t())
    model.narrow = nn.Parameter(torch.ones(3, dtype=torch.bfloat16, device=device))
    model.again = nn.ParameterList([model.narrow])
    return model


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, nn.Module]:
    model = model_on("cuda")
    bs.save(model, tmp_path / "model.bpk", layout="torch")
    return tmp_path / "model.bpk", model


def test_a_model_on_a_gpu_is_saved_bit_by_bit(file: tuple[Path, nn.Module]) -> None:
    path, model = file
    with bs.open(path) as opened:
        for name, tensor in model.state_dict().items():
            assert torch.equal(opened[name].torch(), tensor.cpu()), name


def test_tensors_are_given_on_the_gpu(file: tuple[Path, nn.Module]) -> None:
    path, model = file
    for zero_copy in (False, True):
        with bs.open(path, zero_copy=zero_copy) as opened:
            found = opened.torch(device="cuda")
            one = opened["large.weight"].torch(device="cuda")
        assert one.is_cuda and torch.equal(one, model.large.weight)
        for name, tensor in model.state_dict().items():
            assert found[name].is_cuda and torch.equal(found[name], tensor), name


def test_a_model_on_a_gpu_is_filled_where_it_is(file: tuple[Path, nn.Module]) -> None:
    path, source = file
    model = model_on("cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    places = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in model.state_dict().items()}
    assert bs.load(model, path, layout="torch").is_complete
    for name, tensor in model.state_dict().items():
        assert (tensor.data_ptr(), tensor.stride()) == places[name]
        assert torch.equal(tensor, source.state_dict()[name]), name


def test_a_model_without_memory_is_made_on_the_default_device(file: tuple[Path, nn.Module]) -> None:
    path, source = file
    model = model_on("meta")
    with torch.device("cuda"):
        bs.load(model, path, layout="torch")
    assert model.large.weight.is_cuda and torch.equal(model.large.weight, source.large.weight)
    assert model.again[0] is model.narrow


def test_a_part_of_a_tensor_is_read_from_the_gpu() -> None:
    tensor = torch.arange(12.0, device="cuda").reshape(4, 3)
    assert bs.TensorSnapshot.from_torch("t", tensor)[1:3].tolist() == [[3, 4, 5], [6, 7, 8]]
    assert bs.TensorSnapshot.from_torch("t", tensor).torch().is_cuda
    assert not bs.TensorSnapshot.from_torch("t", tensor).torch(device="cpu").is_cuda
