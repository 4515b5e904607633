"""Without ml_dtypes, msgpack, cbor2 and rich: what needs bytes and torch alone works, the rest says what it lacks.

Every test runs in a process in which those packages cannot be imported.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from burnstore import BurnstoreError
from burnstore.errors import MissingDependencyError

pytest.importorskip("torch")
pytest.importorskip("safetensors")

_WITHOUT = """
import sys

ABSENT = ("ml_dtypes", "msgpack", "cbor2", "rich")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
assert not any(name in sys.modules for name in ABSENT)

import numpy as np
import safetensors.torch
import torch
import burnstore as bs

folder = sys.argv[1]
torch.manual_seed(0)
tensors = {
    "bf16": torch.randn(6, 4).bfloat16(),
    "e4m3": torch.randn(6, 4).to(torch.float8_e4m3fn),
    "e5m2": torch.randn(3).to(torch.float8_e5m2),
    "f32": torch.randn(3),
    "flags": torch.tensor([True, False]),
}
path = folder + "/given.safetensors"
safetensors.torch.save_file(tensors, path)

def same(first, second):
    first, second = (tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (first, second))
    return torch.equal(first, second)

def same_all(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype is second[name].dtype and first[name].shape == second[name].shape, name
        assert same(first[name], second[name]), name

def refused(action, *words):
    try:
        action()
    except bs.BurnstoreError as error:
        text = str(error)
        assert all(word in text for word in ("ml_dtypes", *words)), text
        return error
    raise AssertionError("it should have said that ml_dtypes is missing")
"""


@pytest.fixture
def run(run_python: Any, tmp_path: Any) -> Any:
    return lambda code: run_python(_WITHOUT + code + "\nprint('done')", tmp_path).endswith("done\n")


@pytest.mark.slow("starts PyTorch")
@pytest.mark.parametrize("zero_copy", [False, True])
def test_safetensors_are_read_as_torch_tensors_whatever_their_dtype(run: Any, zero_copy: bool) -> None:
    assert run(f"""
with bs.open(path, zero_copy={zero_copy}) as f:
    same_all(f.torch(), tensors)
    same_all({{name: f[name].torch() for name in f}}, tensors)
    assert f["bf16"].to_bytes() == bytes(tensors["bf16"].view(torch.uint8).reshape(-1).tolist())
    assert f["f32"].numpy().tolist() == tensors["f32"].tolist()
""")


@pytest.mark.slow("starts PyTorch")
def test_they_are_saved_and_sharded_and_read_by_the_package(run: Any) -> None:
    assert run("""
bs.save(tensors, folder + "/saved.safetensors")
same_all(safetensors.torch.load_file(folder + "/saved.safetensors"), tensors)
import os
os.mkdir(folder + "/shards")
bs.save(tensors, folder + "/shards/model.safetensors", max_shard_size=60)
with bs.open(folder + "/shards") as f:
    same_all(f.torch(), tensors)
torch.save({**tensors, "turned": tensors["bf16"].T}, folder + "/saved.pt")
with bs.open(folder + "/saved.pt") as f:
    same_all(f.torch(), {**tensors, "turned": tensors["bf16"].T})
""")


@pytest.mark.slow("starts PyTorch")
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32"])
@pytest.mark.parametrize("width", [4, 512])  # below and above what is read straight into the model
def test_a_torch_model_is_saved_and_loaded(run: Any, dtype: str, width: int) -> None:
    assert run(f"""
def model():
    made = torch.nn.Sequential(torch.nn.Linear({width}, 8 * {width}), torch.nn.LayerNorm({width}))
    for parameter in made.parameters():
        parameter.data = parameter.data.to(torch.{dtype})
    return made

first = model()
bs.save(first, folder + "/model.safetensors")
for in_place in (True, False):
    second = model()
    bs.load(second, folder + "/model.safetensors", in_place=in_place)
    same_all(second.state_dict(), first.state_dict())
with torch.device("meta"):
    empty = model()
bs.load(empty, folder + "/model.safetensors")
same_all(empty.state_dict(), first.state_dict())
held = {{name: torch.zeros_like(tensor) for name, tensor in first.state_dict().items()}}
bs.load(held, folder + "/model.safetensors")
same_all(held, first.state_dict())
""")


@pytest.mark.slow("starts PyTorch")
def test_bf16_goes_into_burns_layout_and_back(run: Any) -> None:
    assert run("""
def model():
    parts = torch.nn.ModuleDict({
        "linear": torch.nn.Linear(4, 6),
        "lstm": torch.nn.LSTM(3, 5),
        "attention": torch.nn.MultiheadAttention(8, 2, bias=False),
        "norm": torch.nn.LayerNorm(4, elementwise_affine=False),  # Burn stores its ones and zeros
    })
    return parts.bfloat16()

first, second = model(), model()
bs.save(first, folder + "/model.bpk")
bs.load(second, folder + "/model.bpk")
same_all(second.state_dict(), first.state_dict())
bs.save(first, folder + "/model.safetensors")
bs.convert(folder + "/model.safetensors", folder + "/converted.bpk", like=first)
with bs.open(folder + "/converted.bpk") as f:
    assert same(f["linear.weight"].torch(), first["linear"].weight.T)
    assert f["norm.gamma"].torch().tolist() == [1.0] * 4
    assert f["norm.beta"].torch().tolist() == [0.0] * 4
""")


@pytest.mark.slow("starts PyTorch")
def test_a_rank_loads_its_part_of_bf16_out_of_either_layout(run: Any) -> None:
    assert run("""
whole = torch.nn.ModuleDict({"up": torch.nn.Linear(8, 16), "down": torch.nn.Linear(16, 8)}).bfloat16()
rules = bs.Partition({"^up": "rows", "^down.weight": "columns", "": "replicate"})
for name in ("/model.safetensors", "/model.bpk"):
    bs.save(whole, folder + name)
    part = torch.nn.ModuleDict({"up": torch.nn.Linear(8, 4), "down": torch.nn.Linear(4, 8)}).bfloat16()
    bs.load(part, folder + name, part=rules.part(rank=2, world=4))
    assert same(part["up"].weight, whole["up"].weight[8:12]) and same(part["up"].bias, whole["up"].bias[8:12])
    assert same(part["down"].weight, whole["down"].weight[:, 8:12]) and same(part["down"].bias, whole["down"].bias)
""")


@pytest.mark.slow("starts PyTorch")
def test_a_constant_that_is_another_number_is_still_found(run: Any) -> None:
    assert run("""
class Net(torch.nn.Module):
    def __init__(self, affine):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4, elementwise_affine=affine).bfloat16()

given = Net(True)
given.norm.weight.data[2] = 3.0
bs.save(given, folder + "/model.bpk")
try:
    bs.load(Net(False), folder + "/model.bpk")
except bs.errors.ModelError as error:
    assert "not all 1" in str(error)
else:
    raise AssertionError
""")


def test_the_packages_are_absent_and_where_numpy_needs_ml_dtypes_the_error_says_so(run: Any) -> None:
    assert run("""
for name in ABSENT:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name)
with bs.open(path) as f:
    for name in ("bf16", "e4m3", "e5m2"):
        for action in (f[name].numpy, lambda: f[name][0], f.numpy, lambda: f[name].to_data().numpy()):
            error = refused(action, "pip install ml_dtypes", "torch()")
            assert isinstance(error, bs.errors.MissingDependencyError) and isinstance(error, ImportError)
single = torch.nn.Linear(4, 6)
before = single.weight.tolist()
bs.save(torch.nn.Linear(4, 6).bfloat16(), folder + "/half.safetensors")
error = refused(lambda: bs.load(single, folder + "/half.safetensors"), "pip install ml_dtypes")
assert isinstance(error, bs.errors.LoadError) and single.weight.tolist() == before
""")


def test_the_error_survives_pickling() -> None:
    error = MissingDependencyError("NumPy has no bfloat16", hint="pip install ml_dtypes", tensor="w")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, BurnstoreError) and (again.tensor, again.hint) == ("w", "pip install ml_dtypes")
