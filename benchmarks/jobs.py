"""Whole jobs on files: what they take next to the reading or copying that cannot be avoided.

Each job adds its cases below and puts them together in `cases`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, at_most

_WINDOW = 32 << 20
_BUFFER = 1 << 20
_OTHER = ".other.bpk"


def cases(scale: Scale) -> list[Case]:
    """Every job at this scale."""
    return [*convert_cases(scale), *diff_cases(scale), *verify_cases(scale), *merge_cases(scale)]


# --- convert ----------------------------------------------------------------------------------------------------------


def convert_cases(scale: Scale) -> list[Case]:
    """A file of PyTorch converted and proved, against a plain copy of it that is on disk."""
    big = Input("convert-big.pt", make_torch, {"args": [scale.big_bytes]})
    copies = (Contestant("copy, fsync", copy_file, big), Contestant("copy, fsync, again", copy_file, big))
    return [
        Case(
            "convert-same-layout",
            "convert the big model from .pt to .bpk as it is, every tensor proved, fsync included",
            (Contestant("burnstore", convert_burnstore, big, {"turned": False}), *copies),
            at_most(2.5, "burnstore", "copy, fsync"),
            scale.long,
        ),
        Case(
            "convert-transposed",
            "convert the big model from .pt to .bpk into Burn's layout, all matrices transposed and proved",
            (Contestant("burnstore", convert_burnstore, big, {"turned": True}), *copies),
            at_most(4.0, "burnstore", "copy, fsync"),
            scale.long,
        ),
    ]


def make_torch(job: Job) -> None:
    """Write the big model as torch writes it."""
    import torch

    arrays = data.big_model(*job.params["args"])
    state = {}
    for name, array in arrays.items():
        tensor = torch.from_numpy(array.view(np.int16) if array.dtype.name == "bfloat16" else array)
        state[name] = tensor.view(torch.bfloat16) if array.dtype.name == "bfloat16" else tensor
    torch.save(state, job.fresh(job.params["name"]))


def convert_burnstore(job: Job) -> None:
    """Convert it, as it is or with every matrix transposed."""
    import burnstore as bs

    turned = job.params["turned"]
    with bs.open(job.input) as f:
        shapes = {name: tensor.shape for name, tensor in f.items()}
    how: dict[str, Any] = {"keep_layout": True}
    if turned:  # every module with a matrix counts as a Linear, whatever it is called
        kinds = {name.rpartition(".")[0]: "AsIs" for name in shapes}
        kinds |= {name.rpartition(".")[0]: "Linear" for name, shape in shapes.items() if len(shape) == 2}
        how = {"rules": {f"^{module}$": kind for module, kind in kinds.items()}}
    target, small = job.fresh("converted.bpk"), job.fresh("small.bpk")
    bs.save({"w": np.zeros((9, 9))}, small)
    bs.convert(small, job.fresh("small.safetensors"))  # what is imported at first use
    with job.timed():
        done = bs.convert(job.input, target, **how)

    def verify() -> None:
        with bs.open(target) as f:
            for name, shape in shapes.items():
                if f[name].shape != (shape[::-1] if turned and len(shape) == 2 else shape):
                    raise AssertionError(f"{name} is {f[name].shape}")
        if not done.verified or done.tensors != len(shapes):
            raise AssertionError(f"{done}")

    job.check(verify)


def copy_file(job: Job) -> None:
    """Copy the file and bring the copy to disk: what moving so many bytes costs."""
    target = job.fresh("copy.pt")
    with job.timed(), job.input.open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, _BUFFER)
        copy.flush()
        os.fsync(copy.fileno())

    def verify() -> None:
        if target.stat().st_size != job.input.stat().st_size:
            raise AssertionError("the copy has another length")

    job.check(verify)


# --- diff -------------------------------------------------------------------------------------------------------------


def diff_cases(scale: Scale) -> list[Case]:
    """Two files compared, against reading both."""
    size = {"model": "big_model", "args": [scale.big_bytes]}
    equal = Input("diff-equal.bpk", make_pair, {**size, "changed": 0})
    changed = Input("diff-changed.bpk", make_pair, {**size, "changed": 2})
    count = scale.tensors(20_000)
    small = Input("diff-small.bpk", make_pair, {"model": "small_tensors", "args": [count], "changed": 0})
    reading = (
        Contestant("reading both", read_both, equal, {"threads": os.cpu_count()}),
        Contestant("reading both, one thread", read_both, equal, {"threads": 1}),
    )
    return [
        Case(
            "diff-equal",
            "compare two equal files of the big model",
            (Contestant("burnstore", diff_burnstore, equal, {"changed": 0}), *reading),
            at_most(1.3, "burnstore", "reading both"),
            scale.long,
        ),
        Case(
            "diff-changed",
            "compare two files of the big model, every second tensor changed: figures of 112 tensors",
            (Contestant("burnstore", diff_burnstore, changed, {"changed": 56}), *reading),
            None,
            scale.long,
        ),
        Case(
            "diff-small-tensors",
            f"compare two equal files of {count:,} small tensors",
            (
                Contestant("burnstore", diff_burnstore, small, {"changed": 0}),
                Contestant("reading both as arrays", arrays_of_both, small),
            ),
            None,
            scale.short,
        ),
    ]


def make_pair(job: Job) -> None:
    """Write a model, and beside it the same with every so many-th tensor changed in some places."""
    import burnstore as bs

    path = job.fresh(job.params["name"])
    arrays: data.Arrays = getattr(data, job.params["model"])(*job.params["args"])
    bs.save(arrays, path, durable=False)
    if job.params["changed"]:
        for name in list(arrays)[:: job.params["changed"]]:
            data.raw_bytes(arrays[name])[5::777] ^= 1
    bs.save(arrays, other_of(path), durable=False)


def other_of(path: Path) -> Path:
    """The second file of a pair."""
    return path.with_name(path.name + _OTHER)


def diff_burnstore(job: Job) -> None:
    """Compare the pair."""
    import burnstore as bs

    first, second = job.input, other_of(job.input)
    tiny = [job.fresh(name) for name in ("prime-0.bpk", "prime-1.bpk")]
    for at, path in enumerate(tiny):
        bs.save({"a": np.full(1, at, np.float32)}, path, durable=False)
    bs.diff(*tiny)  # what is imported at first use
    with job.timed():
        found = bs.diff(first, second)

    def verify() -> None:
        changed = len(found.changed)
        if changed != job.params["changed"] or changed + len(found.equal) != len(found.tensors):
            raise AssertionError(f"{found.counts}")

    job.check(verify)


def read_both(job: Job) -> None:
    """Read both files into a buffer that is used again and again, which is the least that a comparison must do."""
    paths, threads = (job.input, other_of(job.input)), job.params["threads"]
    with job.timed(), ThreadPoolExecutor(threads) as pool:
        files = [path.open("rb", buffering=0) for path in paths]
        windows = [(file.fileno(), start, size) for file in files for start, size in _windows(file.fileno())]
        count = sum(pool.map(_read_window, windows) if threads > 1 else map(_read_window, windows))
        for file in files:
            file.close()

    def verify() -> None:
        if count != sum(path.stat().st_size for path in paths):
            raise AssertionError(f"{count} bytes were read")

    job.check(verify)


def _windows(fd: int) -> Iterator[tuple[int, int]]:
    size = os.fstat(fd).st_size
    return ((start, min(_WINDOW, size - start)) for start in range(0, size, _WINDOW))


def _read_window(window: tuple[int, int, int]) -> int:
    fd, start, size = window
    buffer = memoryview(bytearray(_BUFFER))
    done = 0
    while done < size:
        done += os.preadv(fd, [buffer[: min(_BUFFER, size - done)]], start + done)
    return done


def arrays_of_both(job: Job) -> None:
    """Read both files into arrays, as whoever compares by hand does."""
    import burnstore as bs

    with job.timed(), bs.open(job.input) as first, bs.open(other_of(job.input)) as second:
        both = first.numpy(), second.numpy()
    job.check(lambda: data.assert_same(*both))


# --- verify -----------------------------------------------------------------------------------------------------------


def verify_cases(scale: Scale) -> list[Case]:
    """A file verified, against reading it."""
    pair = Input("diff-equal.bpk", make_pair, {"model": "big_model", "args": [scale.big_bytes], "changed": 0})
    return [
        Case(
            "verify",
            "verify a file of the big model: every tensor read, NaN and Inf counted",
            (
                Contestant("burnstore", verify_burnstore, pair),
                Contestant("reading it", read_one, pair, {"threads": os.cpu_count()}),
            ),
            None,
            scale.long,
        )
    ]


def verify_burnstore(job: Job) -> None:
    """Verify the file."""
    import burnstore as bs

    path, tiny = job.input, job.fresh("prime.bpk")
    bs.save({"a": np.zeros(1, np.float32)}, tiny, durable=False)
    bs.verify(tiny)  # what is imported at first use
    with job.timed():
        found = bs.verify(path)

    def verify() -> None:
        if not found.ok:
            raise AssertionError(str(found))

    job.check(verify)


def read_one(job: Job) -> None:
    """Read the file into a buffer that is used again and again."""
    path, threads = job.input, job.params["threads"]
    with job.timed(), ThreadPoolExecutor(threads) as pool, path.open("rb", buffering=0) as file:
        count = sum(pool.map(_read_window, [(file.fileno(), *window) for window in _windows(file.fileno())]))

    def verify() -> None:
        if count != path.stat().st_size:
            raise AssertionError(f"{count} bytes were read")

    job.check(verify)


# --- merge ------------------------------------------------------------------------------------------------------------


def merge_cases(scale: Scale) -> list[Case]:
    """Two files blended into a third, against copying one of them."""
    pair = Input("merge.bpk", make_weights, {"bytes": scale.big_bytes})
    copying = Contestant("copying one, fsync included", copy_one, pair)

    def case(name: str, what: str, bar: bool, **options: object) -> Case:
        return Case(
            name,
            f"{what} of two files of the big model, verified, fsync included",
            (Contestant("burnstore", merge_burnstore, pair, options), copying),
            at_most(3, "burnstore", copying.name) if bar else None,
            scale.long,
        )

    return [
        case("merge-linear", "the weighted mean", True, method="linear", t=0.3),
        case("merge-slerp", "the point between them on an arc", False, method="slerp", t=0.3),
        case("merge-overlay", "the second over the first", True, method="overlay", conflicts="last"),
    ]


def make_weights(job: Job) -> None:
    """Write the big model twice, with numbers as trained weights are: whoever computes with random bits meets subnormal
    ones, which processors are slow with, in every other place.
    """
    import burnstore as bs

    path = job.fresh(job.params["name"])
    for seed, target in enumerate((path, other_of(path))):
        block = np.random.default_rng(seed).standard_normal(1 << 20, np.float32)
        arrays = data.big_model(job.params["bytes"])
        for at, array in enumerate(arrays.values()):
            array[...] = np.resize(np.roll(block, 7919 * at), array.shape).astype(array.dtype)
        bs.save(arrays, target, layout="burn", durable=False)


def merge_burnstore(job: Job) -> None:
    """Merge the pair into a file that is proved and on the disk."""
    import burnstore as bs

    first, second, target = job.input, other_of(job.input), job.fresh("merged.bpk")
    bs.merge  # noqa: B018 - imported when it is first asked for
    with job.timed():
        done = bs.merge([first, second], target, **job.params)

    def verify() -> None:
        if not done.verified or target.stat().st_size != first.stat().st_size:
            raise AssertionError(f"{len(done.tensors)} tensors of {done.nbytes} bytes")

    job.check(verify)


def copy_one(job: Job) -> None:
    """Copy the file, and wait until the copy is on the disk."""
    target = job.fresh("copy.bpk")
    with job.timed(), job.input.open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, _WINDOW)
        copy.flush()
        os.fsync(copy.fileno())

    def verify() -> None:
        if target.stat().st_size != job.input.stat().st_size:
            raise AssertionError("the copy is shorter")

    job.check(verify)
