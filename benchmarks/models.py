"""Models: saving and loading a model next to raw reads and writes of the same bytes, and what walking it costs.

The model is the one of Burn's own store benchmarks: 20 Linear layers, the first 1024 → 2048, the others 2048 → 2048,
all with bias, 40 tensors and 312 MiB of F32. The per-tensor cases have 20,000 parameters of a few numbers each.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, at_most, below

_PARAMETERS = 20_000
_PATTERNS = [rf"^layers\.{i}\d*\.weight$" for i in range(10)]


def cases(scale: Scale) -> list[Case]:
    """Every case about models."""
    layers = {"layers": 2 if scale.quick else 20}
    file = Input("layers.bpk", make_layers, layers)
    raw = Input("layers.raw", make_layers_raw, layers)
    count = {"count": scale.tensors(_PARAMETERS)}
    return [
        Case(
            "model-save",
            "collect and save Burn's bench model, durable=False",
            (
                Contestant("burnstore", save_model, params=layers),
                Contestant("raw write", write_raw, params=layers),
                Contestant("raw write, again", write_raw, params=layers),
            ),
            None,
            scale.long,
        ),
        Case(
            "model-load",
            "load Burn's bench model into an existing model",
            (
                Contestant("burnstore", load_model, file, layers),
                Contestant("raw read", read_raw, raw, layers),
                Contestant("raw read, again", read_raw, raw, layers),
                Contestant("burnstore, zero-copy", load_model, file, {**layers, "zero_copy": True}),
            ),
            at_most(1.3, "burnstore", "raw read"),
            scale.long,
        ),
        Case(
            "model-overhead",
            "walk, match and report, per tensor of a 20,000-parameter model",
            (
                Contestant("nn", overhead_of_apply, params={**count, "kind": "nn"}),
                Contestant("plain objects", overhead_of_apply, params={**count, "kind": "plain"}),
            ),
            below(10e-6, "nn"),
            scale.short,
        ),
        Case(
            "filter",
            "filter 20,000 paths, per tensor and pattern (10 patterns)",
            (Contestant("burnstore", filter_names, params=count),),
            below(3e-6, "burnstore"),
            scale.short,
        ),
        Case(
            "remap",
            "rename 20,000 tensors, per tensor and pattern (10 patterns)",
            (Contestant("burnstore", remap_names, params=count),),
            below(3e-6, "burnstore"),
            scale.short,
        ),
    ]


def _empty_model(layers: int) -> Any:
    """Burn's bench model, declared; nothing is drawn yet."""
    from burnstore import nn

    class LargeModel(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.FixedArray([nn.Linear(1024 if i == 0 else 2048, 2048) for i in range(layers)])

    return LargeModel()


def _model(layers: int) -> Any:
    """Burn's bench model, filled."""
    model = _empty_model(layers)
    pattern = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    for number, layer in enumerate(model.layers):
        for param in (layer.weight, layer.bias):
            param.set(np.resize(np.roll(pattern, number), param.shape))
    return model


def _values(model: Any) -> list[np.ndarray[Any, Any]]:
    return [param.value for layer in model.layers for param in (layer.weight, layer.bias)]


def make_layers(job: Job) -> None:
    """The bench model as a Burnpack file."""
    import burnstore as bs

    bs.save(_model(job.params["layers"]), job.fresh(job.params["name"]), durable=False)


def make_layers_raw(job: Job) -> None:
    """The bench model's bytes, one tensor after the other."""
    with job.fresh(job.params["name"]).open("wb") as out:
        for array in _values(_model(job.params["layers"])):
            out.write(array.data)


def save_model(job: Job) -> None:
    """Collect and save with burnstore."""
    import burnstore as bs

    model, path = _model(job.params["layers"]), job.fresh("model.bpk")
    bs.save({"a": np.zeros(1, np.float32)}, job.fresh("prime.bpk"))
    bs.collect(model)
    with job.timed():
        bs.save(model, path, durable=False)
    job.check(lambda: _assert_same(bs.open(path).numpy().values(), _values(model)))


def write_raw(job: Job) -> None:
    """Write the same bytes from the same arrays."""
    arrays, path = _values(_model(job.params["layers"])), job.fresh("model.raw")
    with job.timed():
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        for array in arrays:
            rest = memoryview(array).cast("B")
            while rest:
                rest = rest[os.write(file, rest) :]
        os.close(file)
    job.check(lambda: _assert_same([np.fromfile(path, np.float32)], [np.concatenate([a.ravel() for a in arrays])]))


def load_model(job: Job) -> None:
    """Load into a model that has values already."""
    import burnstore as bs

    expected = _values(_model(job.params["layers"])) if job.checking else []
    model = _model(job.params["layers"])
    for array in _values(model):
        array.fill(0)
    bs.load({"a": np.zeros(1, np.float32)}, bs.serialize({"a": np.ones(1, np.float32)}, format="burnpack"))
    path, options = job.input, {"zero_copy": True} if job.params.get("zero_copy") else {}
    with job.timed():
        result = bs.load(model, path, **options)
    job.check(lambda: _assert_same(_values(model), expected if result.is_complete else []))


def read_raw(job: Job) -> None:
    """Read the same bytes into the same arrays."""
    expected = _values(_model(job.params["layers"])) if job.checking else []
    arrays = _values(_model(job.params["layers"]))
    for array in arrays:
        array.fill(0)
    path = job.input
    with job.timed(), open(path, "rb", buffering=0) as file:
        for array in arrays:
            rest = memoryview(array).cast("B")
            while rest:
                rest = rest[file.readinto(rest) :]
    job.check(lambda: _assert_same(arrays, expected))


def overhead_of_apply(job: Job) -> None:
    """Apply an open file to a model of many small parameters, less what reading its arrays alone takes."""
    import burnstore as bs
    from burnstore import nn

    half = job.params["count"] // 2

    class Linear:
        def __init__(self) -> None:
            self.weight = np.zeros((4, 4), np.float32)
            self.bias = np.zeros(4, np.float32)

    make = (lambda: nn.Linear(4, 4)) if job.params["kind"] == "nn" else Linear
    model: Any = {"layers": [make() for _ in range(half)]}
    packed = bs.serialize({"layers": [Linear() for _ in range(half)]}, format="burnpack")
    with bs.open(packed) as file:
        snapshots = list(file.values())
        bs.apply({"a": np.zeros(1, np.float32)}, [])
        file.numpy()
        started = time.perf_counter()
        file.numpy()
        read = time.perf_counter()
        result = bs.apply(model, snapshots)
        job.record((time.perf_counter() - read - (read - started)) / (2 * half))

    def verify() -> None:
        if len(result.applied) != 2 * half or not result.is_complete:
            raise AssertionError(str(result))

    job.check(verify)


def _names(count: int) -> list[str]:
    return [f"layers.{i // 2}.{'bias' if i % 2 else 'weight'}" for i in range(count)]


def filter_names(job: Job) -> None:
    """Ten patterns over all paths."""
    import burnstore as bs

    tensors = [(name, ("Struct:Linear",)) for name in _names(job.params["count"])]
    chosen = bs.PathFilter().with_regexes(_PATTERNS)
    with job.timed(per=len(tensors) * len(_PATTERNS)):
        selection = chosen.select(tensors)
    job.check(lambda: _assert_same([np.array(selection)], [np.array([path.endswith("weight") for path, _ in tensors])]))


def remap_names(job: Job) -> None:
    """Ten rules over all names."""
    import burnstore as bs

    names = _names(job.params["count"])
    remapper = bs.KeyRemapper.from_patterns((rf"^layers\.({i}\d*)\.", "block$1.") for i in range(10))
    with job.timed(per=len(names) * 10):
        renaming = remapper.remap_names(names)
    job.check(lambda: _assert_same([np.array(renaming.names[:2])], [np.array(["block0.weight", "block0.bias"])]))


def _assert_same(found: Any, expected: list[np.ndarray[Any, Any]]) -> None:
    found = list(found)
    if len(found) != len(expected) or not all(map(np.array_equal, found, expected)):
        raise AssertionError("the values are not those that were saved")
