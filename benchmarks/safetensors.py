"""SafeTensors: the same files saved and opened by burnstore and by the `safetensors` package's NumPy face.

Contestants that are not burnstore are those of `benchmarks.burnpack`; peers whose bar is tight run twice, as there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.burnpack import load_safetensors, make_safetensors, save_raw, save_safetensors
from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, Unit, at_most, below, faster

_MB = 1_000_000
_SHARDS = 8


def cases(scale: Scale) -> list[Case]:
    """Every SafeTensors case at this scale."""
    size = {"nbytes": scale.big_bytes}
    big = Input("st-big.safetensors", make_safetensors, {"model": "big_model", "args": [scale.big_bytes]})
    index = Input("st-big.safetensors.index.json", make_shards, big.params)
    count = scale.tensors(20_000)
    small = Input("st-small.safetensors", make_safetensors, {"model": "small_tensors", "args": [count]})
    largest = scale.big_bytes // 8
    equal = Input("st-equal.safetensors", make_safetensors, {"model": "equal_tensors", "args": [16, largest]})
    return [
        Case(
            "st-save-durable",
            "save the big model as SafeTensors, fsync included",
            (
                Contestant("burnstore", save_burnstore, params={**size, "durable": True}),
                Contestant("raw write", save_raw, params={**size, "durable": True}),
                Contestant("raw write, again", save_raw, params={**size, "durable": True}),
            ),
            at_most(1.15, "burnstore", "raw write"),
            scale.long,
        ),
        Case(
            "st-save-fast",
            "save the big model as SafeTensors, durable=False",
            (
                Contestant("burnstore", save_burnstore, params={**size, "durable": False}),
                Contestant("safetensors", save_safetensors, params=size),
                Contestant("safetensors, again", save_safetensors, params=size),
            ),
            at_most(1.0, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "st-open-views",
            "open the big SafeTensors file, every array as a view",
            (
                Contestant("burnstore", open_burnstore, big, {**size, "zero_copy": True}),
                Contestant("safetensors", load_safetensors, big, size),
            ),
            faster(100, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "st-open-owned",
            "open the big SafeTensors file, every array an owned copy",
            (
                Contestant("burnstore", open_burnstore, big, size),
                Contestant("safetensors", load_safetensors, big, size),
                Contestant("safetensors, pread", load_safetensors, big, {**size, "backend": "pread"}),
            ),
            faster(3, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "st-many-small",
            f"open a SafeTensors file of {count:,} small tensors, every array an owned copy",
            (
                Contestant("burnstore", open_burnstore, small, {"small": count}),
                Contestant("safetensors", load_safetensors, small, {"small": count}),
                Contestant("burnstore, views", open_burnstore, small, {"small": count, "zero_copy": True}),
            ),
            faster(2, "burnstore", "safetensors"),
            scale.short,
        ),
        Case(
            "st-shards-owned",
            f"open {_SHARDS} shards by their index, every array an owned copy",
            (
                Contestant("burnstore", open_burnstore, index, size),
                Contestant("safetensors", load_shards_safetensors, index, size),
            ),
            faster(3, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "st-save-memory",
            f"peak extra memory: save 16 lazy tensors of {largest >> 20} MiB from one SafeTensors file into another",
            (Contestant("burnstore", memory_from_file_burnstore, equal),),
            below(largest + 64 * _MB, "burnstore"),
            min(3, scale.long),
            Unit.BYTES,
        ),
    ]


def make_shards(job: Job) -> None:
    """Write a model as shards and an index; the input is the index."""
    import burnstore as bs

    arrays: data.Arrays = getattr(data, job.params["model"])(*job.params["args"])
    path = str(job.fresh(job.params["name"])).removesuffix(".index.json")
    most = sum(array.nbytes for array in arrays.values()) // (_SHARDS - 1)
    bs.save(arrays, path, max_shard_size=most, durable=False)


def save_burnstore(job: Job) -> None:
    """Save with burnstore, durable or not."""
    from safetensors.numpy import load_file

    import burnstore as bs

    arrays, path, durable = _expected(job), job.fresh("model.safetensors"), job.params["durable"]
    _prime(job)
    with job.timed():
        bs.save(arrays, path, durable=durable)
    job.check(lambda: data.assert_same(load_file(path), arrays))


def open_burnstore(job: Job) -> None:
    """Open with burnstore and take every array, as a copy of its own or as a view of the mapped file."""
    import burnstore as bs

    _prime(job)
    path, zero_copy = job.input, job.params.get("zero_copy", False)
    with job.timed():
        file = bs.open(path, zero_copy=zero_copy)
        arrays = file.numpy()
        if not zero_copy:
            file.close()

    def verify() -> None:
        data.assert_same(arrays, _expected(job))
        wrong = [name for name, array in arrays.items() if array.flags.writeable == zero_copy]
        if wrong:
            raise AssertionError(f"{len(wrong)} arrays are no {'views' if zero_copy else 'copies'}: {wrong[:3]}")

    job.check(verify)


def load_shards_safetensors(job: Job) -> None:
    """Load every shard with safetensors' own load_file, as its users do."""
    from safetensors.numpy import load_file, save_file

    tiny = job.fresh("prime.safetensors")
    save_file({"a": np.zeros(1, np.float32)}, tiny)
    load_file(tiny)
    path = job.input
    with job.timed():
        names = sorted(set(json.loads(path.read_text())["weight_map"].values()))
        arrays: dict[str, Any] = {}
        for name in names:
            arrays.update(load_file(path.parent / name))
    job.check(lambda: data.assert_same(arrays, _expected(job)))


def memory_from_file_burnstore(job: Job) -> None:
    """Save the lazy snapshots of one file into another."""
    import burnstore as bs

    _prime(job)
    path = job.fresh("copy.safetensors")
    with job.memory(), bs.open(job.input) as file:
        bs.save(dict(file), path, durable=False)
    job.check(lambda: _assert_equal_files(job.input, path))


def _assert_equal_files(first: Path, second: Path) -> None:
    if first.read_bytes() != second.read_bytes():
        raise AssertionError("the copy differs")


def _expected(job: Job) -> data.Arrays:
    return data.small_tensors(job.params["small"]) if "small" in job.params else data.big_model(job.params["nbytes"])


def _prime(job: Job) -> None:
    """Save and open a tiny file, so that what burnstore imports at its first call is outside the timing."""
    import burnstore as bs

    tiny = job.fresh("prime.safetensors")
    bs.save({"a": np.zeros(1, np.float32)}, tiny, durable=False)
    for zero_copy in (False, True):
        with bs.open(tiny, zero_copy=zero_copy) as file:
            file.numpy()
