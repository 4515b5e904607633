"""Burnpack (`.bpk`): saving, opening, reading and header work, against raw system calls, safetensors and NumPy.

A contestant *primes* its library with a tiny file before the timing, because burnstore imports a format at its first
use and imports are not what these cases ask about. What priming hides is paid once by every user: ``open-views`` shows
the unprimed first call beside the primed one, and `benchmarks.startup` counts import and first use together.

The bars on saving are tight and a disk is not steady, so there the peer runs twice, as itself and as ``.., again``: as
far as these two differ, a verdict says something about the machine and nothing about burnstore.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, Unit, at_most, below, faster

_MB = 1_000_000
_TENSORS_OF_MEMORY_CASE = 16


def cases(scale: Scale) -> list[Case]:
    """Every Burnpack case at this scale."""
    size = {"nbytes": scale.big_bytes}
    big_bpk = Input("big.bpk", make_bpk, {"model": "big_model", "args": [scale.big_bytes]})
    big_st = Input("big.safetensors", make_safetensors, big_bpk.params)
    big_raw = Input("big.raw", make_raw, big_bpk.params)
    count = scale.tensors(20_000)
    small_bpk = Input("small.bpk", make_bpk, {"model": "small_tensors", "args": [count]})
    small_st = Input("small.safetensors", make_safetensors, small_bpk.params)
    small_npz = Input("small.npz", make_npz, small_bpk.params)
    many = [(n, _tiny_input(scale.tensors(n))) for n in (1_000, 20_000, 100_000)]
    tiny_st = Input("tiny.safetensors", make_safetensors, many[-1][1].params)
    largest = scale.big_bytes // 8
    equal = {"model": "equal_tensors", "args": [_TENSORS_OF_MEMORY_CASE, largest]}
    equal_bpk = Input("equal.bpk", make_bpk, equal)
    equal_st = Input("equal.safetensors", make_safetensors, equal)
    return [
        Case(
            "save-durable",
            "save the big model, fsync included",
            (
                Contestant("burnstore", save_burnstore, params={**size, "durable": True}),
                Contestant("raw write", save_raw, params={**size, "durable": True}),
                Contestant("raw write, again", save_raw, params={**size, "durable": True}),
            ),
            at_most(1.15, "burnstore", "raw write"),
            scale.long,
        ),
        Case(
            "save-fast",
            "save the big model, durable=False",
            (
                Contestant("burnstore", save_burnstore, params={**size, "durable": False}),
                Contestant("safetensors", save_safetensors, params=size),
                Contestant("safetensors, again", save_safetensors, params=size),
                Contestant("raw write", save_raw, params={**size, "durable": False}),
            ),
            at_most(1.0, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "open-views",
            "open the big model, every array as a view",
            (
                Contestant("burnstore", views_burnstore, big_bpk, size),
                Contestant("safetensors", load_safetensors, big_st, size),
                Contestant("raw mmap", views_raw, big_raw, size),
                Contestant("burnstore, first call", views_burnstore, big_bpk, {**size, "prime": False}),
            ),
            faster(100, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "open-views-touched",
            "open the big model as views, then read a byte of every page",
            (
                Contestant("burnstore", views_burnstore, big_bpk, {**size, "touch": True}),
                Contestant("safetensors", load_safetensors, big_st, {**size, "touch": True}),
                Contestant("raw mmap", views_raw, big_raw, {**size, "touch": True}),
            ),
            faster(4, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "open-owned",
            "open the big model, every array an owned copy",
            (
                Contestant("burnstore", owned_burnstore, big_bpk, size),
                Contestant("safetensors", load_safetensors, big_st, size),
                Contestant("safetensors, pread", load_safetensors, big_st, {**size, "backend": "pread"}),
                Contestant("raw pread", owned_raw, big_raw, {**size, "threads": 1}),
                Contestant("raw pread, threads", owned_raw, big_raw, {**size, "threads": min(4, os.cpu_count() or 1)}),
            ),
            faster(3, "burnstore", "safetensors"),
            scale.long,
        ),
        Case(
            "many-small",
            f"open {count:,} small tensors, every array an owned copy",
            (
                Contestant("burnstore", owned_burnstore, small_bpk, {"small": count}),
                Contestant("safetensors", load_safetensors, small_st, {"small": count}),
                Contestant("burnstore, views", views_burnstore, small_bpk, {"small": count}),
                Contestant("numpy savez", load_npz, small_npz, {"small": count}),
            ),
            faster(2, "burnstore", "safetensors"),
            scale.short,
        ),
        Case(
            "save-memory-file",
            f"peak extra memory: save {_TENSORS_OF_MEMORY_CASE} lazy tensors of {largest >> 20} MiB from a file",
            (
                Contestant("burnstore", memory_from_file_burnstore, equal_bpk),
                Contestant("safetensors", memory_from_file_safetensors, equal_st),
            ),
            below(largest + 64 * _MB, "burnstore"),
            min(3, scale.long),
            Unit.BYTES,
        ),
        Case(
            "save-memory-arrays",
            f"peak extra memory: save {_TENSORS_OF_MEMORY_CASE} arrays of {largest >> 20} MiB from memory",
            (
                Contestant("burnstore", memory_from_arrays_burnstore, params=equal),
                Contestant("safetensors", memory_from_arrays_safetensors, params=equal),
            ),
            below(largest + 64 * _MB, "burnstore"),
            min(3, scale.long),
            Unit.BYTES,
        ),
        *(
            Case(
                name,
                f"{what}, time per tensor",
                (
                    *(
                        Contestant(f"{_count(made)}", header_burnstore, made, {**made.params, "list": listing})
                        for _, made in many
                    ),
                    Contestant("safetensors", header_safetensors, tiny_st, {**tiny_st.params, "list": listing}),
                ),
                at_most(1.5, f"{_count(many[-1][1])}", f"{_count(many[-2][1])}"),
                scale.short,
            )
            for name, what, listing in (
                ("header-open", "open files of ever more tensors", False),
                ("header-list", "open files of ever more tensors and list every name and shape", True),
            )
        ),
    ]


def _tiny_input(count: int) -> Input:
    return Input(f"tiny-{count}.bpk", make_bpk, {"model": "tiny_tensors", "args": [count]})


def _count(made: Input) -> str:
    return f"{made.params['args'][0]:,} tensors"


# Inputs


def make_bpk(job: Job) -> None:
    """Write a model with burnstore."""
    import burnstore as bs

    bs.save(_model(job.params), job.fresh(job.params["name"]), durable=False)


def make_safetensors(job: Job) -> None:
    """Write a model with safetensors."""
    from safetensors.numpy import save_file

    save_file(_model(job.params), job.fresh(job.params["name"]))


def make_npz(job: Job) -> None:
    """Write a model with NumPy."""
    arrays: dict[str, Any] = _model(job.params)
    np.savez(job.fresh(job.params["name"]), **arrays)


def make_raw(job: Job) -> None:
    """Write a model's bytes, one tensor after the other, with nothing around them."""
    with job.fresh(job.params["name"]).open("wb") as file:
        for array in _model(job.params).values():
            file.write(data.raw_bytes(array).data)


def _model(params: Mapping[str, Any]) -> data.Arrays:
    made: data.Arrays = getattr(data, params["model"])(*params["args"])
    return made


def _expected(job: Job) -> data.Arrays:
    return data.small_tensors(job.params["small"]) if "small" in job.params else data.big_model(job.params["nbytes"])


# Saving


def save_burnstore(job: Job) -> None:
    """Save with burnstore, durable or not."""
    import burnstore as bs

    arrays, path, durable = _expected(job), job.fresh("model.bpk"), job.params["durable"]
    _prime_burnstore(job)
    with job.timed():
        bs.save(arrays, path, durable=durable)
    job.check(lambda: data.assert_same(_read_burnstore(path), arrays))


def save_safetensors(job: Job) -> None:
    """Save with safetensors, which does not sync."""
    from safetensors.numpy import load_file, save_file

    arrays, path = _expected(job), job.fresh("model.safetensors")
    save_file({"a": np.zeros(1, np.float32)}, job.fresh("prime.safetensors"))
    with job.timed():
        save_file(arrays, path)
    job.check(lambda: data.assert_same(load_file(path), arrays))


def save_raw(job: Job) -> None:
    """Write the same bytes from the same arrays: scratch file, rename; when durable, fsync of file and directory."""
    arrays, path, durable = _expected(job), job.fresh("model.raw"), job.params["durable"]
    scratch = job.fresh("scratch.raw")
    with job.timed():
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        for array in arrays.values():
            rest = data.raw_bytes(array).data
            while rest:
                rest = rest[os.write(file, rest) :]
        if durable:
            os.fsync(file)
        os.close(file)
        os.rename(scratch, path)
        if durable:
            directory = os.open(path.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
    job.check(lambda: data.assert_same(_views(path, arrays), arrays))


# Reading


def views_burnstore(job: Job) -> None:
    """Open with burnstore and take every array as a read-only view of the mapped file."""
    import burnstore as bs

    if job.params.get("prime", True):
        _prime_burnstore(job)
    path, touch = job.input, job.params.get("touch", False)
    with job.timed():
        file = bs.open(path, zero_copy=True)
        arrays = file.numpy()
        if touch:
            data.touch(arrays)

    def verify() -> None:
        data.assert_same(arrays, _expected(job))
        copies = [name for name, array in arrays.items() if array.flags.owndata or array.flags.writeable]
        if copies:
            raise AssertionError(f"{len(copies)} arrays are not read-only views, such as {copies[:3]}")

    job.check(verify)  # the process ends with the file still open: closing is not part of the question


def owned_burnstore(job: Job) -> None:
    """Open with burnstore and take every array as a copy of its own."""
    import burnstore as bs

    _prime_burnstore(job)
    path = job.input
    with job.timed(), bs.open(path) as file:
        arrays = file.numpy()

    def verify() -> None:
        data.assert_same(arrays, _expected(job))
        locked = [name for name, array in arrays.items() if not array.flags.writeable]
        if locked:
            raise AssertionError(f"{len(locked)} arrays are not writable, such as {locked[:3]}")

    job.check(verify)


def load_safetensors(job: Job) -> None:
    """Load everything with safetensors' own load_file."""
    from safetensors.numpy import load_file, save_file

    tiny = job.fresh("prime.safetensors")
    save_file({"a": np.zeros(1, np.float32)}, tiny)
    backend, touch = job.params.get("backend", "mmap"), job.params.get("touch", False)
    load_file(tiny, backend=backend)
    path = job.input
    with job.timed():
        arrays = load_file(path, backend=backend)
        if touch:
            data.touch(arrays)
    job.check(lambda: data.assert_same(arrays, _expected(job)))


def load_npz(job: Job) -> None:
    """Load everything with NumPy's own np.load."""
    path = job.input
    with job.timed(), np.load(path) as file:
        arrays = dict(file)
    job.check(lambda: data.assert_same(arrays, _expected(job)))


def views_raw(job: Job) -> None:
    """Map a file whose layout is known beforehand and take views: the least that any reader can do."""
    plan, path, touch = _layout(_expected(job)), job.input, job.params.get("touch", False)
    with job.timed():
        arrays = _map(path, plan)
        if touch:
            data.touch(arrays)
    job.check(lambda: data.assert_same(arrays, _expected(job)))


def owned_raw(job: Job) -> None:
    """Read a file whose layout is known beforehand straight into new arrays, in one thread or several."""
    plan, path, threads = _layout(_expected(job)), job.input, job.params["threads"]
    with job.timed(), path.open("rb", buffering=0) as file, ThreadPoolExecutor(threads) as pool:

        def read(dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> np.ndarray[Any, Any]:
            array = np.empty(shape, dtype)
            rest = data.raw_bytes(array).data
            while rest:
                count = os.preadv(file.fileno(), [rest], offset)
                if not count:
                    raise EOFError(offset)
                rest, offset = rest[count:], offset + count
            return array

        names, *places = zip(*plan, strict=True)
        arrays = dict(zip(names, (pool.map if threads > 1 else map)(read, *places), strict=True))
    job.check(lambda: data.assert_same(arrays, _expected(job)))


# Memory


def memory_from_file_burnstore(job: Job) -> None:
    """Save the lazy snapshots of one file into another."""
    import burnstore as bs

    _prime_burnstore(job)
    path = job.fresh("copy.bpk")
    with job.memory(), bs.open(job.input) as file:
        bs.save(dict(file), path, durable=False)

    def verify() -> None:
        with bs.open(job.input) as source, bs.open(path) as copy:
            if list(source) != list(copy):
                raise AssertionError("the names differ")
            for name in source:
                data.assert_same({name: copy[name].numpy()}, {name: source[name].numpy()})

    job.check(verify)


def memory_from_file_safetensors(job: Job) -> None:
    """Load a file whole and save it again: the only way that safetensors' NumPy face offers."""
    from safetensors.numpy import load_file, save_file

    path = job.fresh("copy.safetensors")
    with job.memory():
        arrays = load_file(job.input)
        save_file(arrays, path)
    job.check(lambda: data.assert_same(load_file(path), arrays))


def memory_from_arrays_burnstore(job: Job) -> None:
    """Save arrays that are in memory already with burnstore."""
    import burnstore as bs

    arrays, path = _model(job.params), job.fresh("model.bpk")
    _prime_burnstore(job)
    with job.memory():
        bs.save(arrays, path, durable=False)
    job.check(lambda: data.assert_same(_read_burnstore(path), arrays))


def memory_from_arrays_safetensors(job: Job) -> None:
    """Save arrays that are in memory already with safetensors."""
    from safetensors.numpy import load_file, save_file

    arrays, path = _model(job.params), job.fresh("model.safetensors")
    with job.memory():
        save_file(arrays, path)
    job.check(lambda: data.assert_same(load_file(path), arrays))


# Header work


def header_burnstore(job: Job) -> None:
    """Open with burnstore and, where asked, list every name and shape; nothing is read of the tensors."""
    import burnstore as bs

    _prime_burnstore(job)
    path, listing, count = job.input, job.params["list"], job.params["args"][0]
    shapes: dict[str, tuple[int, ...]] = {}
    with job.timed(per=count):
        file = bs.open(path)
        if listing:
            shapes = {name: snapshot.shape for name, snapshot in file.items()}

    def verify() -> None:
        expected = _model(job.params)
        if set(file) != set(expected) or (listing and any(tuple(shape) != (1,) for shape in shapes.values())):
            raise AssertionError("the names or shapes are wrong")
        data.assert_same(file.numpy(), expected)

    job.check(verify)
    file.close()


def header_safetensors(job: Job) -> None:
    """Open with safetensors and, where asked, list every name and shape."""
    from safetensors import safe_open

    path, listing, count = job.input, job.params["list"], job.params["args"][0]
    shapes: dict[str, tuple[int, ...]] = {}
    with job.timed(per=count):
        file: Any = safe_open(path, framework="np")
        if listing:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - not a mapping

    def verify() -> None:
        names = set(file.keys())
        if names != set(_model(job.params)) or (listing and any(list(shape) != [1] for shape in shapes.values())):
            raise AssertionError("the names or shapes are wrong")

    job.check(verify)


# Shared by the contestants


def _prime_burnstore(job: Job) -> None:
    """Save and open a tiny file, so that what burnstore imports at its first call is outside the timing."""
    import burnstore as bs

    tiny = job.fresh("prime.bpk")
    bs.save({"a": np.zeros(1, np.float32)}, tiny, durable=False)
    for zero_copy in (False, True):
        with bs.open(tiny, zero_copy=zero_copy) as file:
            file.numpy()


def _read_burnstore(path: Path) -> data.Arrays:
    import burnstore as bs

    with bs.open(path) as file:
        arrays: data.Arrays = file.numpy()
        return arrays


_Layout = list[tuple[str, "np.dtype[Any]", tuple[int, ...], int]]


def _layout(arrays: Mapping[str, np.ndarray[Any, Any]]) -> _Layout:
    plan: _Layout = []
    offset = 0
    for name, array in arrays.items():
        plan.append((name, array.dtype, array.shape, offset))
        offset += array.nbytes
    return plan


def _map(path: Path, plan: _Layout) -> data.Arrays:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        name: np.frombuffer(mapped, dtype, count=prod(shape), offset=offset).reshape(shape)
        for name, dtype, shape, offset in plan
    }


def _views(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> data.Arrays:
    return _map(path, _layout(arrays))
