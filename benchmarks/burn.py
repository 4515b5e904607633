"""Burn itself: its own loading and saving benchmark, in its program and in burnstore, in one run.

The model is that of `benchmarks.models`: 20 Linear layers, 40 tensors, 312 MiB. Real Burn is the program of `interop/`,
a fresh process each time like every contestant; it times its own body. Burn since 0.22 reads a file when a tensor is
first used, so loading alone says little: where a case says *read*, every page of every tensor is read afterwards, and
both sides hold all tensors when the clock stops. What Burn calls zero-copy since 0.22 are bytes in memory that it
shares with the caller; it has no other way to a file than reading it, so a file that we map is held against that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, at_most, below
from benchmarks.models import _assert_same, _empty_model, _model, _values, make_layers

VERSION = "0.22"
_PEER = f"Burn {VERSION}"
_LAZY_SECONDS = 2e-3


def cases(scale: Scale) -> list[Case]:
    """Every case next to the original; the model is Burn's own and has one size."""
    layers = {"layers": 20}
    file = Input("model.bpk", make_layers, layers)
    tensors = Input("model.safetensors", make_layers, layers)

    def against_burn(name: str, what: str, run: Any, case: str, needs: Input | None, **params: Any) -> Case:
        return Case(
            f"burn-{name}",
            what,
            (
                Contestant("burnstore", run, needs, {**layers, **params}),
                Contestant(_PEER, run_burn, needs, {"case": case}),
            ),
            at_most(1.0, "burnstore", _PEER),
            scale.long,
        )

    return [
        against_burn("save", "save the model as .bpk, fsync included", save, "save_bpk", None),
        against_burn("load-read", "load .bpk into a model, read every page", load, "read_bpk", file),
        against_burn("mapped-read", "the same, the file mapped here", load, "read_bpk", file, zero_copy=True),
        against_burn("zero-copy-read", "load shared bytes, read every page", load_shared, "read_zero_copy", file),
        against_burn("static-read", "load static bytes, read every page", load_static, "read_static", file),
        Case(
            "burn-lazy-load",
            "load .bpk into a model and read nothing",
            (
                Contestant("burnstore", load, file, {**layers, "read": False, "zero_copy": True}),
                Contestant("burnstore, again", load_again, file, {**layers, "zero_copy": True}),
                Contestant(_PEER, run_burn, file, {"case": "load_bpk"}),
            ),
            below(_LAZY_SECONDS, "burnstore"),
            scale.long,
        ),
        against_burn("safetensors-save", "save the model as .safetensors", save_safetensors, "save_safetensors", None),
        against_burn(
            "safetensors-load-read",
            "load .safetensors into a model, read every page",
            load_safetensors,
            "read_safetensors",
            tensors,
        ),
    ]


def save_safetensors(job: Job) -> None:
    """Save a model that has values; Burn does not wait for the disk here, and so neither do we."""
    import burnstore as bs

    model, path = _model(job.params["layers"]), job.fresh("saved.safetensors")
    bs.SafetensorsStore.from_file(job.fresh("prime.safetensors")).durable(False).save(_small())
    with job.timed():
        bs.SafetensorsStore.from_file(path).durable(False).save(model)

    def verify() -> None:
        found = bs.open(path).numpy()  # in the order of names, which is not the model's
        names = [f"layers.{n}.{part}" for n in range(job.params["layers"]) for part in ("weight", "bias")]
        _assert_same([found[name] for name in names], _values(model))

    job.check(verify)


def load_safetensors(job: Job) -> None:
    """Load a SafeTensors file into a model as it is made, without values."""
    import burnstore as bs

    _timed_load(job, lambda: bs.SafetensorsStore.from_file(job.input))


def save(job: Job) -> None:
    """Save a model that has values, as Burn's store saves: a new file, complete and on the disk."""
    import burnstore as bs

    model, path = _model(job.params["layers"]), job.fresh("saved.bpk")
    bs.BurnpackStore.from_file(job.fresh("prime.bpk")).save(_small())
    with job.timed():
        bs.BurnpackStore.from_file(path).save(model)
    job.check(lambda: _assert_same(bs.open(path).numpy().values(), _values(model)))


def load(job: Job) -> None:
    """Load a file into a model as it is made, without values."""

    _timed_load(job, lambda: _store(job), read=job.params.get("read", True))


def load_again(job: Job) -> None:
    """Load the file a second time: what a load costs without what only the first one of a process pays."""

    _store(job).load(_empty_model(job.params["layers"]))
    _timed_load(job, lambda: _store(job), read=False)


def _store(job: Job) -> Any:
    """The file, mapped if the contestant asks for it."""
    import burnstore as bs

    return bs.BurnpackStore.from_file(job.input).zero_copy(job.params.get("zero_copy", False))


def load_shared(job: Job) -> None:
    """Load bytes that the caller goes on using."""
    import burnstore as bs

    image = job.input.read_bytes()
    _timed_load(job, lambda: bs.BurnpackStore.from_bytes(image).zero_copy(True))


def load_static(job: Job) -> None:
    """Load bytes that stay where they are."""
    import burnstore as bs

    image = job.input.read_bytes()
    _timed_load(job, lambda: bs.BurnpackStore.from_static(image))


def run_burn(job: Job) -> None:
    """One round of a case of the program, which times itself; it checks its own loads by unwrapping them."""
    program = burn()
    folder = job.fresh("burn") if job.params["case"].startswith("save") else job.input.parent
    (seconds,) = program.bench(folder, job.params["case"])[job.params["case"]]
    job.record(seconds)
    if job.params["case"].startswith("save"):
        job.check(lambda: _assert_layout(folder / f"saved.{job.params['case'].removeprefix('save_')}"))
    else:
        job.check(lambda: _assert_layout(job.input))


def burn() -> Any:
    """The program of the original, built if it is not yet."""
    from tests.interop.program import program

    return program(VERSION)


def _timed_load(job: Job, store: Any, *, read: bool = True) -> None:
    import burnstore as bs

    expected = _values(_model(job.params["layers"])) if job.checking else []
    bs.BurnpackStore.from_bytes(bs.serialize(_small(), format="burnpack")).load(_small())
    model = _empty_model(job.params["layers"])
    with job.timed():
        result = store().load(model)
        if read:
            _touch(model)
    job.check(lambda: _assert_same(_values(model), expected if result.is_complete else []))


def _small() -> Any:
    return {"a": np.zeros(1, np.float32)}


def _touch(model: Any) -> float:
    """Read a number of every page, as the program does."""
    return float(sum(float(array.reshape(-1)[:: 4096 // 4].sum()) for array in _values(model)))


def _assert_layout(path: Any) -> None:
    import burnstore as bs

    with bs.open(path) as found:
        if len(found) != 40 or found.nbytes != 327_319_552:
            raise AssertionError(f"not the bench model: {found}")
