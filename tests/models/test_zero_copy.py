"""Zero-copy: what one holder of an array or a tensor does to it, nobody else sees: no checkpoint, reader or model."""

from __future__ import annotations

import copy
import gc
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore.io import source as source_module

VALUES = np.arange(6000, dtype=np.float32)


@pytest.fixture(params=["bpk", "safetensors", "pt"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"model.{request.param}"
    tensors = {"a": VALUES, "b": VALUES[::-1].copy(), "h": np.ones(7, np.float16)}
    if request.param == "pt":
        torch.save({name: torch.from_numpy(each) for name, each in tensors.items()}, path)
    else:
        bs.save(tensors, path)
    return path


def assert_unchanged(file: bs.Checkpoint, path: Path) -> None:
    """Every way of reading gives the file's values."""
    with bs.open(path, zero_copy=True) as other:
        for each in (file, other):
            assert np.array_equal(each["a"].numpy(), VALUES)
            assert np.array_equal(each.numpy()["a"], VALUES)
            assert np.array_equal(each["a"].torch().numpy(), VALUES)
            assert np.array_equal(each.torch()["a"].numpy(), VALUES)
            assert each["a"].to_bytes() == VALUES.tobytes()
            assert np.array_equal(each["b"].numpy(), VALUES[::-1])


def tensors_of(file: bs.Checkpoint) -> list[torch.Tensor]:
    """Tensors of "a" from every way there is."""
    model: dict[str, Any] = {name: torch.zeros_like(tensor) for name, tensor in file.torch().items()}
    bs.apply(model, file.values())
    return [
        file["a"].torch(),
        file["a"].torch(),
        file.torch()["a"],
        file.torch()["a"],
        model["a"],
        torch.from_numpy(file["a"].numpy(copy=True)),
        bs.TensorSnapshot.from_numpy("x", file["a"].numpy()).torch(),
        bs.TensorSnapshot.from_numpy("x", file["a"].numpy()[:]).torch(),
    ]


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda tensor: tensor.zero_(),
    "its array": lambda tensor: tensor.numpy().fill(7),
    "a view": lambda tensor: tensor[3:10].fill_(5),
    "its storage": lambda tensor: tensor.untyped_storage().fill_(1),
    "resized": lambda tensor: torch.tensor([]).set_(tensor.untyped_storage()).fill_(1),
    "a deep copy's original": lambda tensor: (copy.deepcopy(tensor), tensor.mul_(3)),
    "numpy's view of torch's array": lambda tensor: np.asarray(memoryview(tensor.numpy())).fill(9),
}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("way", range(8))
def test_what_is_written_to_a_tensor_stays_there(path: Path, write: str, way: int) -> None:
    before = path.read_bytes()
    with bs.open(path, zero_copy=True) as file:
        tensors = tensors_of(file)
        WRITES[write](tensors[way])
        for number, other in enumerate(tensors):
            if number != way:
                assert np.array_equal(other.numpy(), VALUES), number
        assert_unchanged(file, path)
    assert path.read_bytes() == before


def test_a_tensor_that_outlives_its_checkpoint_is_private_too(path: Path) -> None:
    with bs.open(path, zero_copy=True) as file:
        array, tensor, other = file["a"].numpy(), file["a"].torch(), file["a"].torch()
    tensor.zero_()
    later = bs.TensorSnapshot.from_numpy("x", array).torch()  # the file is closed: a copy
    later.add_(1)
    assert np.array_equal(array, VALUES)
    assert np.array_equal(other.numpy(), VALUES)


def roots(array: Any) -> list[Any]:
    """The objects that an array is a view of."""
    found, todo = [], [array]
    while todo:
        each = todo.pop()
        found.append(each)
        todo += [getattr(each, name) for name in ("base", "obj") if getattr(each, name, None) is not None]
    return found


@pytest.mark.parametrize("name", ["file", "bytes"])
def test_an_array_cannot_be_made_writable(path: Path, name: str) -> None:
    with bs.open(path if name == "file" else path.read_bytes(), zero_copy=True) as file:
        for array in (file["a"].numpy(), file.numpy()["a"], file["a"][10:20], file["a"].numpy()[::2]):
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.setflags(write=True)
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
            with pytest.raises(ValueError, match="read-only"):
                array.view(np.int32)[...] = 0
            for root in roots(array):  # whatever can be reached from it
                if isinstance(root, np.ndarray):
                    continue
                assert memoryview(root).readonly
                with pytest.raises(TypeError):
                    memoryview(root)[0] = 0
                with pytest.raises(TypeError):
                    root[0:1] = b"x"
                assert not np.frombuffer(root, np.uint8).flags.writeable
        assert np.array_equal(file["a"].numpy(), VALUES)


def test_the_memory_of_a_bytearray_is_its_owners_alone(path: Path) -> None:
    data = bytearray(path.read_bytes())
    with bs.open(data, zero_copy=True) as file:
        for tensor in (file["a"].torch(), file.torch()["a"]):
            tensor.zero_()
        held = bs.TensorSnapshot.from_data("h", bs.TensorData.from_bytes(bytearray(8), bs.DType.F32, (2,)))
        held.torch().add_(1)
        assert held.numpy().tolist() == [0, 0] and not held.numpy().flags.writeable
        assert np.array_equal(file["a"].numpy(), VALUES)
    assert data == path.read_bytes()


@pytest.mark.matrix(every=4)
def test_many_tensors_of_one_file_need_few_descriptors(path: Path) -> None:
    with bs.open(path, zero_copy=True) as file:
        before = len(os.listdir("/proc/self/fd"))
        kept = [file[name].torch() for _ in range(200) for name in ("a", "b", "h")]
        assert len(os.listdir("/proc/self/fd")) - before <= 20
        kept[0].zero_()
        assert all(np.array_equal(each.numpy(), VALUES) for each in kept[3::3])
        kept.clear()
        gc.collect()
        for _ in range(100):  # what is let go is no reason to copy the next one
            file["a"].torch()
        assert len(os.listdir("/proc/self/fd")) - before <= 3


@pytest.mark.parametrize("error", [(12, "Cannot allocate memory"), (24, "Too many open files")])
def test_where_no_private_mapping_is_granted_tensors_are_copies(
    path: Path, error: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> mmap.mmap:
        raise OSError(*error)

    with bs.open(path, zero_copy=True) as file:
        monkeypatch.setattr(source_module.mmap, "mmap", refuse)
        file["a"].torch().zero_()
        file.torch()["a"].zero_()
        monkeypatch.undo()
        assert np.array_equal(file["a"].numpy(), VALUES)
        assert np.array_equal(file["a"].torch().numpy(), VALUES)


def test_a_tensor_shares_the_pages_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    bs.save({"w": np.ones(8 << 20, np.float32)}, path)
    with bs.open(path, zero_copy=True) as file:
        tensor = file["w"].torch()
        file.torch()
        before = written_kib()
        assert tensor.sum() == 8 << 20
        assert written_kib() - before < 8 << 10  # it was read and not copied


def written_kib() -> int:
    """The memory of this process that no other one or file has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))
