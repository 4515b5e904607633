"""Records: opening a MessagePack record against decoding it whole, and what a migration takes of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, Unit, below, faster

_MEGABYTES = 200
_LARGEST = 16 << 20
_SPARE = 64 << 20


def cases(scale: Scale) -> list[Case]:
    """The cases of records."""
    nbytes = (20 if scale.quick else _MEGABYTES) * 1_000_000
    largest = _LARGEST // 4 if scale.quick else _LARGEST
    model = {"model": "big_model", "args": [nbytes]}
    whole = _input("records.mpk", **model)
    small = _input("records-small.mpk", model="small_tensors", args=[scale.tensors(10_000)])
    plain, packed = (_input(name, model="equal_tensors", args=[12, largest]) for name in ("equal.mpk", "equal.mpk.gz"))
    return [
        Case(
            "record-open",
            f"open a .mpk of {nbytes // 1_000_000} MB: names, dtypes, shapes, ids",
            (
                Contestant("burnstore", open_burnstore, whole, model),
                Contestant("msgpack.unpackb", open_msgpack, whole, model),
            ),
            faster(3.0, "burnstore", "msgpack.unpackb"),
            scale.short,
        ),
        Case(
            "record-open-small-tensors",
            "open a .mpk of many small tensors",
            (
                Contestant("burnstore", open_burnstore, small, small.params),
                Contestant("msgpack.unpackb", open_msgpack, small, small.params),
            ),
            None,
            scale.short,
        ),
        Case(
            "record-migrate-memory",
            f"peak extra memory: migrate and verify a .mpk of 12 tensors of {largest >> 20} MiB",
            (Contestant("burnstore", migrate_memory, plain),),
            below(2 * largest + _SPARE, "burnstore"),
            scale.short,
            Unit.BYTES,
        ),
        Case(
            "record-migrate-memory-gz",
            "the same, compressed; what is inflated goes to disk",
            (Contestant("burnstore", migrate_memory, packed),),
            below(2 * largest + _SPARE, "burnstore"),
            scale.short,
            Unit.BYTES,
        ),
    ]


def _input(name: str, **params: Any) -> Input:
    return Input(name, make_record, {**params, "file": name})


def _model(params: dict[str, Any]) -> data.Arrays:
    model: data.Arrays = getattr(data, params["model"])(*params["args"])
    return model


def make_record(job: Job) -> None:
    """The model as a record in full precision."""
    from burnstore.stores.records import NamedMpkFileRecorder, NamedMpkGzFileRecorder, save_file

    nested: dict[str, Any] = {}
    for name, array in _model(job.params).items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = array.astype(np.float32)
    name = job.params["file"]
    recorder = NamedMpkGzFileRecorder() if name.endswith(".gz") else NamedMpkFileRecorder()
    save_file(nested, job.fresh(name), recorder, durable=False)


def open_burnstore(job: Job) -> None:
    """Open, and have every description at hand."""
    import burnstore as bs

    _warm_burnstore()
    with job.timed():
        file = bs.open(job.input)
        count = sum(len(tensor.shape) for tensor in file.values())
    expected = _model(job.params) if job.checking else {}
    job.check(lambda: _same(file, expected, count))
    file.close()


def _warm_burnstore() -> None:
    """Import what opening a record imports, as the peer's package is imported before its clock starts."""
    import burnstore.formats.record.reader  # noqa: F401


def open_msgpack(job: Job) -> None:
    """Read the file and decode all of it, as one does without burnstore."""
    import msgpack

    with job.timed():
        document = msgpack.unpackb(job.input.read_bytes(), max_bin_len=1 << 31)
    job.check(lambda: document["item"])


def _same(file: Any, expected: data.Arrays, count: int) -> None:
    assert len(file) == len(expected)
    assert count == sum(array.ndim for array in expected.values())
    for name, array in list(expected.items())[::50]:
        assert np.array_equal(file[name].numpy(), array.astype(np.float32))


def migrate_memory(job: Job) -> None:
    """Migrate, which verifies."""
    import burnstore as bs

    target = job.fresh("migrated.bpk")
    _ = bs.migrate, bs.open
    with job.memory():
        done = bs.migrate(job.input, target, durable=False)
    job.check(lambda: _migrated(done))


def _migrated(done: Any) -> None:
    assert (done.tensors, done.kind) == (12, "module")
