"""Devices that fail while a model is loaded: an error of our own that says what became of the model, nothing left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.checks import ring_for
from tests.gpu.fake_cuda import FakeTorch, gpu_that_is_none
from torch import nn

import burnstore as bs
from burnstore.io.gpu.buffers import POOL

Failure = Callable[[], Exception]


def out_of_memory() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 MiB.\nMore lines of advice")


def broken() -> Exception:
    return RuntimeError("CUDA error: an illegal memory access was encountered")


class FailingTorch(FakeTorch):
    """A torch whose calls of one name fail, from some number on."""

    def __init__(self, name: str, failure: Failure) -> None:
        super().__init__()
        self._name = name
        self._failure = failure

    def empty(self, *args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if self._name == ("pin" if pin_memory else "empty"):
            raise self._failure()
        return super().empty(*args, pin_memory=pin_memory, **options)

    def __getattr__(self, name: str) -> Any:
        given = getattr(torch, name)
        if name != self._name:
            return given

        def failing(*args: Any, **options: Any) -> Any:
            raise self._failure()

        return failing


Failing = Callable[..., None]


@pytest.fixture
def failing() -> Iterator[Failing]:
    """Let tensors be carried by a GPU that is none, and fails; afterwards nothing may be left behind."""
    failures: list[tuple[str, Failure]] = []

    def fail(name: str, failure: Failure = out_of_memory) -> None:
        failures.append((name, failure))

    threads = threading.active_count()
    with ring_for("cpu"), gpu_that_is_none(lambda: FailingTorch(*failures[-1])):
        yield fail
        assert threading.active_count() == threads
        assert POOL._lent == 0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    bs.save(net(), tmp_path / "model.bpk")  # in Burn's layout: the matrices pass through staging
    return tmp_path / "model.bpk"


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.ModuleDict({"first": nn.Linear(1000, 700, dtype=dtype), "second": nn.Linear(700, 400, dtype=dtype)})


def meta_net() -> nn.Module:
    with torch.device("meta"):
        return net()


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def refused(job: Callable[[], Any], failure: Failure = out_of_memory) -> bs.errors.LoadError:
    with pytest.raises(bs.errors.LoadError) as caught:
        job()
    error = caught.value
    assert isinstance(error.__cause__, bs.errors.DeviceError)
    assert isinstance(error.__cause__, RuntimeError)  # who catches torch's errors catches it
    assert repr(error.__cause__.__cause__) == repr(failure())
    assert "advice" not in str(error)
    return error


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize(
    ("name", "failure"),
    [("empty", out_of_memory), ("pin", out_of_memory), ("_foreach_copy_", broken), ("_foreach_copy_", out_of_memory)],
)
def test_a_model_whose_memory_was_being_filled_is_said_to_be_partly_loaded(
    name: str, failure: Failure, failing: Failing, file: Path
) -> None:
    failing(name, failure)
    told = refused(lambda: bs.load(net(), file), failure)
    assert "the model is partly loaded, because the device failed" in str(told)
    assert f"{sum(tensor.nbytes for tensor in net().parameters()):,} bytes" in str(told)
    assert ("has no memory left" in str(told)) == (failure is out_of_memory)


@pytest.mark.parametrize("name", ["empty", "pin", "_foreach_copy_"])
def test_tensors_that_were_to_be_replaced_stay_until_all_are_there(name: str, failing: Failing, file: Path) -> None:
    failing(name)
    model = meta_net()
    told = refused(lambda: bs.load(model, file))
    assert "the model is unchanged, because the device failed" in str(told)
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", ["aminmax", "empty"])
def test_a_look_that_fails_changes_nothing(name: str, failing: Failing, file: Path) -> None:
    failing(name)
    model = net(torch.bfloat16)
    before = values(model)
    told = refused(lambda: bs.load(model, file))
    assert "the model is unchanged" in str(told)
    assert all(torch.equal(tensor, before[each]) for each, tensor in model.state_dict().items())


def test_the_tensor_for_which_there_was_no_memory_is_named(
    failing: Failing, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("nothing")
    given = torch.empty_like
    made: list[Any] = []

    def empty_like(*args: Any, **options: Any) -> torch.Tensor:
        if len(made) == 2:
            raise out_of_memory()
        made.append(0)
        return given(*args, **options)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    model = meta_net()
    told = refused(lambda: bs.load(model, file))
    assert told.tensor == "second.weight" and "the model is unchanged" in str(told) and "1,120,000 bytes" in str(told)
    assert all(parameter.is_meta for parameter in model.parameters())
    monkeypatch.undo()
    assert bs.load(model, file).is_complete


@pytest.mark.parametrize(("name", "failure"), [("empty", out_of_memory), ("pin", broken), ("_foreach_copy_", broken)])
def test_tensors_of_a_file_are_not_given_and_the_file_is_named(
    name: str, failure: Failure, failing: Failing, file: Path
) -> None:
    failing(name, failure)
    with bs.open(file) as opened:
        for job in (lambda: opened.torch(device="cpu"), lambda: opened["first.weight"].torch(device="cpu")):
            with pytest.raises(bs.errors.DeviceError) as caught:
                job()
            assert repr(caught.value.__cause__) == repr(failure()) and caught.value.path == str(file)
        assert caught.value.tensor == "first.weight" and "2,800,000 bytes" in str(caught.value)


def test_a_device_that_fails_for_values_of_the_host_is_told_of(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        raise out_of_memory()

    monkeypatch.setattr(torch.Tensor, "copy_", fail)
    told = refused(lambda: bs.load(net(), file, in_place=False))
    assert "the model is unchanged" in str(told) and told.tensor == "first.weight"
    monkeypatch.undo()
    monkeypatch.setattr(torch.Tensor, "to", fail)
    told = refused(lambda: bs.load(meta_net(), file, in_place=False))
    assert "the model is unchanged" in str(told) and told.tensor == "first.weight"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool])
def test_a_file_that_is_cut_before_the_look_leaves_the_model_as_it_was(
    dtype: torch.dtype, tmp_path: Path, failing: Failing
) -> None:
    failing("nothing")
    path = tmp_path / "cut.safetensors"
    given = torch.ones(3_000_000, dtype=torch.float32 if dtype.is_floating_point else torch.bool)
    bs.save({"first": given, "second": given}, path)
    model = nn.Module()
    for name in ("first", "second"):
        model.register_buffer(name, torch.zeros(3_000_000, dtype=dtype))
    store = bs.SafetensorsStore.from_file(path)
    store.keys()
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(bs.errors.LoadError, match="second"):
        store.load(model)
    assert not model.first.any() and not model.second.any()
