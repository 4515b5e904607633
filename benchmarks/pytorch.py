"""Files of torch: opened and loaded without running them, against `torch.load` with and without a memory map.

The many-tensor file is a state dict of 20,000 small matrices, the big one 64 matrices of F32 (1 GiB at full size).
torch is imported, and a tiny file is read by everybody, before the timing begins. ``weights_only=True`` is torch's safe
mode and its default: what burnstore always is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, Unit, at_most, below, faster

_MB = 1_000_000
_MATRICES = 64


def cases(scale: Scale) -> list[Case]:
    """Every case about files of torch."""
    count = scale.tensors(20_000)
    many = Input("many.pt", make_many, {"count": count})
    size = {"nbytes": scale.big_bytes}
    big = Input("big.pt", make_big, size)
    return [
        Case(
            "pytorch-many-numpy",
            f"open {count:,} small tensors as NumPy views",
            (
                Contestant("burnstore", open_numpy, many, {"count": count, "zero_copy": True}),
                Contestant("torch.load", load_numpy, many, {"count": count}),
                Contestant("torch.load, mmap", load_numpy, many, {"count": count, "mmap": True}),
                Contestant("burnstore, owned", open_numpy, many, {"count": count}),
            ),
            faster(7, "burnstore", "torch.load, mmap"),
            scale.short,
        ),
        Case(
            "pytorch-many-torch",
            f"open {count:,} small tensors as torch tensors",
            (
                Contestant("burnstore", open_torch, many, {"count": count}),
                Contestant("torch.load", load_torch, many, {"count": count}),
                Contestant("torch.load, mmap", load_torch, many, {"count": count, "mmap": True}),
                Contestant("burnstore, views", open_torch, many, {"count": count, "zero_copy": True}),
            ),
            faster(3, "burnstore", "torch.load"),
            scale.short,
        ),
        Case(
            "pytorch-open",
            f"open the big file of {_MATRICES} tensors, reading none",
            (Contestant("burnstore", open_only, big, size), Contestant("torch.load, mmap", load_only, big, size)),
            below(20e-3, "burnstore"),
            scale.short,
        ),
        Case(
            "pytorch-load",
            "load the big file into an existing torch model",
            (
                Contestant("burnstore", load_burnstore, big, size),
                Contestant("torch.load", load_state, big, size),
                Contestant("torch.load, mmap", load_state, big, {**size, "mmap": True}),
            ),
            faster(4, "burnstore", "torch.load"),
            scale.long,
        ),
        Case(
            "pytorch-load-mapped",
            "the same, against torch with a memory map",
            (
                Contestant("burnstore", load_burnstore, big, size),
                Contestant("torch.load, mmap", load_state, big, {**size, "mmap": True}),
                Contestant("torch.load, mmap, again", load_state, big, {**size, "mmap": True}),
            ),
            at_most(1.0, "burnstore", "torch.load, mmap"),
            scale.long,
        ),
        Case(
            "pytorch-load-memory",
            "peak extra memory: load the big file into an existing torch model",
            (
                Contestant("burnstore", load_burnstore, big, {**size, "memory": True}),
                Contestant("torch.load", load_state, big, {**size, "memory": True}),
            ),
            below(scale.big_bytes // _MATRICES + 64 * _MB, "burnstore"),
            min(3, scale.long),
            Unit.BYTES,
        ),
        Case(
            "pytorch-machine",
            "an opcode of a pickle, the machine alone (1.5 million a second are asked for)",
            (Contestant("burnstore", follow_opcodes, many, {"count": count}),),
            below(1 / 1.5e6, "burnstore"),
            scale.short,
        ),
    ]


# Files


def _small(count: int) -> dict[str, np.ndarray[Any, Any]]:
    pattern = np.random.default_rng(0).standard_normal(count + 64, np.float32)
    return {f"layers.{n // 6}.attention.part{n % 6}.weight": pattern[n : n + 64].reshape(8, 8) for n in range(count)}


def _matrices(nbytes: int) -> dict[str, np.ndarray[Any, Any]]:
    rows = max(nbytes // _MATRICES // 4 // 1024, 1)
    pattern = np.random.default_rng(0).standard_normal(rows * 1024, np.float32)
    return {f"layers.{n}.weight": np.roll(pattern, n).reshape(rows, 1024) for n in range(_MATRICES)}


def _save(arrays: dict[str, np.ndarray[Any, Any]], path: Path) -> None:
    import torch

    torch.save({name: torch.from_numpy(array).clone() for name, array in arrays.items()}, path)


def make_many(job: Job) -> None:
    """A state dict of small tensors."""
    _save(_small(job.params["count"]), job.fresh(job.params["name"]))


def make_big(job: Job) -> None:
    """A state dict of large tensors."""
    _save(_matrices(job.params["nbytes"]), job.fresh(job.params["name"]))


def _prime(job: Job) -> None:
    """Read a tiny file by every way, so that imports are outside the timing."""
    import torch

    import burnstore as bs

    tiny = job.fresh("prime.pt")
    model = torch.nn.Linear(1, 1)
    torch.save(model.state_dict(), tiny)
    for mmap in (False, True):
        torch.load(tiny, weights_only=True, mmap=mmap)
        with bs.open(tiny, zero_copy=mmap) as file:
            file.numpy()
            file.torch()
    bs.load(model, tiny)


def _assert_same(found: dict[str, Any], expected: dict[str, np.ndarray[Any, Any]]) -> None:
    if list(found) != list(expected):
        raise AssertionError("the names differ")
    for name, array in expected.items():
        if np.asarray(found[name]).tobytes() != array.tobytes():
            raise AssertionError(f"{name}: the bytes differ")


# Many small tensors


def open_numpy(job: Job) -> None:
    """Open with burnstore, every tensor an array."""
    import burnstore as bs

    _prime(job)
    with job.timed():
        file = bs.open(job.input, zero_copy=job.params.get("zero_copy", False))
        arrays = file.numpy()
    job.check(lambda: _assert_same(arrays, _small(job.params["count"])))
    file.close()


def load_numpy(job: Job) -> None:
    """Load with torch, every tensor shown as an array."""
    import torch

    _prime(job)
    with job.timed():
        loaded = torch.load(job.input, weights_only=True, mmap=job.params.get("mmap", False))
        arrays = {name: tensor.numpy() for name, tensor in loaded.items()}
    job.check(lambda: _assert_same(arrays, _small(job.params["count"])))


def open_torch(job: Job) -> None:
    """Open with burnstore, every tensor one of torch."""
    import burnstore as bs

    _prime(job)
    with job.timed():
        file = bs.open(job.input, zero_copy=job.params.get("zero_copy", False))
        tensors = file.torch()
    job.check(lambda: _assert_same(tensors, _small(job.params["count"])))
    file.close()


def load_torch(job: Job) -> None:
    """Load with torch."""
    import torch

    _prime(job)
    with job.timed():
        tensors = torch.load(job.input, weights_only=True, mmap=job.params.get("mmap", False))
    job.check(lambda: _assert_same(tensors, _small(job.params["count"])))


def follow_opcodes(job: Job) -> None:
    """Follow every opcode of the pickle, with no stretch taken in one step."""
    import pickletools
    import zipfile

    from burnstore.formats.codec.pickle import Dialect, read_pickle
    from burnstore.formats.pytorch.tensor_calls import TensorCalls
    from burnstore.formats.pytorch.tensors import Storages

    with zipfile.ZipFile(job.input) as archive:
        data = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    opcodes = sum(1 for _ in pickletools.genops(data))
    calls = TensorCalls(Storages())
    dialect = Dialect(builders=calls.builders(), persistent=calls.persistent)
    with job.timed(per=opcodes):
        found = read_pickle(data, dialect=dialect)

    def verify() -> None:
        if len(found.value) != job.params["count"]:
            raise AssertionError("tensors are missing")

    job.check(verify)


# One big file


def open_only(job: Job) -> None:
    """Open with burnstore."""
    import burnstore as bs

    _prime(job)
    with job.timed():
        file = bs.open(job.input)
    job.check(lambda: _assert_same(file.numpy(), _matrices(job.params["nbytes"])))
    file.close()


def load_only(job: Job) -> None:
    """Map with torch."""
    import torch

    _prime(job)
    with job.timed():
        tensors = torch.load(job.input, weights_only=True, mmap=True)
    job.check(lambda: _assert_same(tensors, _matrices(job.params["nbytes"])))


def _model(nbytes: int) -> Any:
    """A model with memory of its own that was touched: an existing one, not pages that are yet to be made."""
    import torch

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList()
    for array in _matrices(nbytes).values():
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(torch.ones(array.shape))
        model.layers.append(layer)
    return model


def load_burnstore(job: Job) -> None:
    """Load into the model with burnstore."""
    import burnstore as bs

    model = _model(job.params["nbytes"])
    _prime(job)
    with job.memory() if job.params.get("memory") else job.timed():
        bs.load(model, job.input)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    job.check(lambda: _assert_same(state, _matrices(job.params["nbytes"])))


def load_state(job: Job) -> None:
    """Load with torch, then into the model."""
    import torch

    model = _model(job.params["nbytes"])
    _prime(job)
    with job.memory() if job.params.get("memory") else job.timed():
        model.load_state_dict(torch.load(job.input, weights_only=True, mmap=job.params.get("mmap", False)))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    job.check(lambda: _assert_same(state, _matrices(job.params["nbytes"])))
