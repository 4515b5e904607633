"""PyTorch: models and state dicts saved, loaded and opened, against safetensors' torch face and raw system calls.

The big model is that of `benchmarks.burnpack` as torch tensors, 112 parameters of F32 and BF16 in a tree of modules. As
there, a contestant primes its library with a tiny file first, and peers whose bar is tight run twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.burnpack import make_bpk, make_safetensors
from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, Unit, at_most, below, faster

_MB = 1_000_000
_MATRICES = {"float32": 4, "bfloat16": 2, "float64": 8, "int8": 1}


def cases(scale: Scale) -> list[Case]:
    """Every case about torch."""
    size = {"nbytes": scale.big_bytes}
    big = {"model": "big_model", "args": [scale.big_bytes]}
    big_bpk, big_st = Input("torch.bpk", make_bpk, big), Input("torch.safetensors", make_safetensors, big)
    count = scale.tensors(20_000)
    small = {"model": "small_tensors", "args": [count]}
    small_bpk, small_st = Input("torch-small.bpk", make_bpk, small), Input("torch-small.st", make_safetensors, small)
    largest = max(array.nbytes for array in data.big_model(1 << 20).values()) * (scale.big_bytes >> 20)
    return [
        Case(
            "torch-save-durable",
            "save the big torch model, fsync included",
            (
                Contestant("burnstore", save_burnstore, params={**size, "durable": True}),
                Contestant("raw write", save_raw, params=size),
                Contestant("raw write, again", save_raw, params=size),
            ),
            at_most(1.15, "burnstore", "raw write"),
            scale.long,
        ),
        Case(
            "torch-save-fast",
            "save the big torch model, durable=False",
            (
                Contestant("burnstore", save_burnstore, params={**size, "durable": False}),
                Contestant("safetensors", save_safetensors, params=size),
                Contestant("safetensors, again", save_safetensors, params=size),
            ),
            at_most(1.0, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "torch-load",
            "load the big model into an existing torch model",
            (
                Contestant("burnstore", load_burnstore, big_st, size),
                Contestant("safetensors", load_safetensors, big_st, size),
                Contestant("burnstore, in_place=False", load_burnstore, big_st, {**size, "in_place": False}),
                Contestant("burnstore, .bpk", load_burnstore, big_bpk, {**size, "layout": "torch"}),
            ),
            at_most(1.0, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "torch-load-memory",
            "peak extra memory: load the big model into an existing torch model",
            (
                Contestant("burnstore", load_burnstore, big_st, {**size, "memory": True}),
                Contestant("safetensors", load_safetensors, big_st, {**size, "memory": True}),
            ),
            below(largest + 64 * _MB, "burnstore"),
            min(3, scale.long),
            Unit.BYTES,
        ),
        Case(
            "torch-open-views",
            "open the big model, every tensor a view of the file",
            (
                Contestant("burnstore", open_burnstore, big_st, {**size, "zero_copy": True}),
                Contestant("safetensors", open_safetensors, big_st, size),
                Contestant("burnstore, .bpk", open_burnstore, big_bpk, {**size, "zero_copy": True}),
            ),
            at_most(1.0, "burnstore", "safetensors"),
            scale.short,
        ),
        Case(
            "torch-many-small",
            f"open {count:,} small tensors as torch tensors",
            (
                Contestant("burnstore", open_burnstore, small_bpk, {"small": count}),
                Contestant("safetensors", open_safetensors, small_st, {"small": count}),
                Contestant("burnstore, .safetensors", open_burnstore, small_st, {"small": count}),
                Contestant("burnstore, views", open_burnstore, small_bpk, {"small": count, "zero_copy": True}),
            ),
            faster(5, "burnstore", "safetensors"),
            scale.short,
        ),
        *(
            Case(
                f"torch-transpose-{dtype}",
                f"a file of {dtype} Linears in torch's layout as arrays in Burn's, against torch's .t().contiguous()",
                (
                    Contestant("burnstore", transpose_burnstore, params={**size, "dtype": dtype}),
                    Contestant("torch", transpose_torch, params={**size, "dtype": dtype}),
                ),
                faster(2, "burnstore", "torch"),
                scale.long,
            )
            for dtype in _MATRICES
        ),
    ]


# Models


def _expected(job: Job) -> data.Arrays:
    return data.small_tensors(job.params["small"]) if "small" in job.params else data.big_model(job.params["nbytes"])


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    import torch

    if array.dtype == np.float32:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def _model(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """A tree of modules with these parameters, which share the arrays."""
    import torch

    root = torch.nn.Module()
    for name, array in arrays.items():
        *path, last = name.split(".")
        module = root
        for segment in path:
            if not hasattr(module, segment):
                module.add_module(segment, torch.nn.Module())
            module = getattr(module, segment)
        module.register_parameter(last, torch.nn.Parameter(_tensor(array)))
    return root


def _empty_model(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """The same, with memory of its own that was touched: an existing model, not pages that are yet to be made."""
    return _model({name: np.ones_like(array) for name, array in arrays.items()})


def _assert_same(tensors: Mapping[str, Any], expected: Mapping[str, np.ndarray[Any, Any]]) -> None:
    import torch

    if set(tensors) != set(expected):
        raise AssertionError("the names differ")
    for name, array in expected.items():
        wanted = _tensor(array)
        found = tensors[name].detach()
        if found.dtype is not wanted.dtype or found.shape != wanted.shape:
            raise AssertionError(f"{name}: {found.dtype}{list(found.shape)}")
        if not torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)):
            raise AssertionError(f"{name}: the bytes differ")


def _prime(job: Job) -> None:
    """Save, open and load tiny files with both libraries' torch faces, so that imports are outside the timing."""
    import torch
    from safetensors.torch import load_file, load_model, save_file

    import burnstore as bs

    model = torch.nn.Linear(1, 1)
    for suffix in (".bpk", ".safetensors"):
        tiny = job.fresh(f"prime{suffix}")
        bs.save(model, tiny, durable=False)
        bs.load(model, tiny)
        for zero_copy in (False, True):
            with bs.open(tiny, zero_copy=zero_copy) as file:
                file.torch()
    other = job.fresh("prime.st")
    save_file(model.state_dict(), other)
    load_file(other)
    load_model(model, other)


# Saving


def save_burnstore(job: Job) -> None:
    """Save a torch model with burnstore, as it lies."""
    import burnstore as bs

    arrays, path, durable = _expected(job), job.fresh("model.safetensors"), job.params["durable"]
    model = _model(arrays)
    _prime(job)
    with job.timed():
        bs.save(model, path, durable=durable)
    job.check(lambda: _assert_same(_opened(path), arrays))


def save_safetensors(job: Job) -> None:
    """Save the same with safetensors, which does not sync."""
    from safetensors.torch import save_file

    arrays, path = _expected(job), job.fresh("model.safetensors")
    model = _model(arrays)
    _prime(job)
    with job.timed():
        save_file(model.state_dict(), path)
    job.check(lambda: _assert_same(_opened(path), arrays))


def save_raw(job: Job) -> None:
    """Write the same bytes: scratch file, fsync, rename, fsync of the directory."""
    arrays, path, scratch = _expected(job), job.fresh("model.raw"), job.fresh("scratch.raw")
    with job.timed():
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        for array in arrays.values():
            rest = data.raw_bytes(array).data
            while rest:
                rest = rest[os.write(file, rest) :]
        os.fsync(file)
        os.close(file)
        os.rename(scratch, path)
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def verify() -> None:
        if path.stat().st_size != sum(array.nbytes for array in arrays.values()):
            raise AssertionError("bytes are missing")

    job.check(verify)


def _opened(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(path)
    return found


# Loading


def load_burnstore(job: Job) -> None:
    """Load a file into a torch model with burnstore."""
    import burnstore as bs

    arrays, path = _expected(job), job.input
    model = _empty_model(arrays)
    _prime(job)
    options = {name: job.params[name] for name in ("in_place", "layout") if name in job.params}
    with job.memory() if job.params.get("memory") else job.timed():
        result = bs.load(model, path, **options)

    def verify() -> None:
        if result.applied != list(model.state_dict()) or not result.is_complete:
            raise AssertionError(str(result))
        _assert_same(model.state_dict(), arrays)

    job.check(verify)


def load_safetensors(job: Job) -> None:
    """Load a file into a torch model with safetensors."""
    from safetensors.torch import load_model

    arrays, path = _expected(job), job.input
    model = _empty_model(arrays)
    _prime(job)
    with job.memory() if job.params.get("memory") else job.timed():
        load_model(model, path)
    job.check(lambda: _assert_same(model.state_dict(), arrays))


# Opening


def open_burnstore(job: Job) -> None:
    """Open a file with burnstore and take every tensor."""
    import burnstore as bs

    _prime(job)
    path, zero_copy = job.input, job.params.get("zero_copy", False)
    with job.timed():
        file = bs.open(path, zero_copy=zero_copy)
        tensors = file.torch()
    job.check(lambda: _assert_same(tensors, _expected(job)))
    file.close()


def open_safetensors(job: Job) -> None:
    """Open a file with safetensors and take every tensor; it maps the file, too."""
    from safetensors.torch import load_file

    _prime(job)
    path = job.input
    with job.timed():
        tensors = load_file(path)
    job.check(lambda: _assert_same(tensors, _expected(job)))


# Layouts


def _matrices(job: Job) -> list[np.ndarray[Any, Any]]:
    """Square matrices of half the big model's bytes, as integers of the dtype's width: only bits are moved."""
    width = _MATRICES[job.params["dtype"]]
    side = 2048
    count = max(1, job.params["nbytes"] // 2 // (side * side * width))
    block = np.random.default_rng(0).integers(0, 256, side * side * width, dtype=np.uint8)
    return [np.roll(block, i).view(f"<i{width}").reshape(side, side) for i in range(count)]


def transpose_burnstore(job: Job) -> None:
    """Transpose with burnstore, in NumPy."""
    from burnstore.tensor.snapshot import TensorSnapshot
    from burnstore.transforms.axes import transposed

    matrices = _matrices(job)
    transposed(TensorSnapshot.from_numpy("prime", np.zeros((4, 4), np.float32))).numpy()
    snapshots = [TensorSnapshot.from_numpy(str(i), matrix) for i, matrix in enumerate(matrices)]
    with job.timed():
        turned = [transposed(snapshot).numpy() for snapshot in snapshots]

    def verify() -> None:
        for matrix, found in zip(matrices, turned, strict=True):
            if not found.flags.c_contiguous or not np.array_equal(found, matrix.T):
                raise AssertionError("it is not the transpose")

    job.check(verify)


def transpose_torch(job: Job) -> None:
    """Transpose with torch."""
    import torch

    matrices = _matrices(job)
    dtype = getattr(torch, job.params["dtype"])
    tensors = [torch.from_numpy(matrix).view(dtype) for matrix in matrices]
    torch.zeros(4, 4).t().contiguous()
    with job.timed():
        turned = [tensor.t().contiguous() for tensor in tensors]

    def verify() -> None:
        for matrix, found in zip(matrices, turned, strict=True):
            if not np.array_equal(found.view(torch.from_numpy(matrix).dtype).numpy(), matrix.T):
                raise AssertionError("it is not the transpose")

    job.check(verify)
