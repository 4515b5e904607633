"""Fuzz the reader of torch's files: ``python -m tests.fuzz.pytorch --mutants 1000000 --seed 1 --minutes 10``.

What must be true of whatever is done with a mutant, each violation by its letter:

    (a) it is opened and read, or refused with an error of burnstore that carries path and rule and prints as text;
    (b) within 50 ms + 20 µs a byte of CPU time, and never more than 5 s;
    (d) without an import, exec, compile, unpickling, process, socket, ctypes call, or another file opened;
    (f) if torch (``weights_only=True``) opens it too, both give the same names and bits.

``--sequences 4`` runs every sequence of up to four opcodes; ``--random 2000`` compares random checkpoints with torch.
"""

from __future__ import annotations

import argparse
import io
import itertools
import multiprocessing
import pickle
import signal
import sys
import time
import warnings
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import burnstore as bs

from . import torch_bytes as tb
from .mutate import mutate
from .oracle import ViolationError, audit_hook

HARD_SECONDS = 5
TORCH_1_IN = 4
_REFUSALS = (bs.errors.FormatError, bs.errors.UnsafeContentError, bs.errors.DuplicateNameError, bs.errors.DTypeError)
_LONGEST_MESSAGE = 5000


class Seed:
    """A checkpoint, as its pickle and storages: so that either can be changed and the container put around it again."""

    def __init__(self, name: str, pickle_bytes: bytes, storages: dict[str, bytes]) -> None:
        self.name = name
        self.pickle = pickle_bytes
        self.storages = storages


def seeds() -> list[Seed]:
    """Small checkpoints of every kind of value, written by torch, and one put together by hand."""
    import torch

    from .torch_checkpoints import checkpoint

    made = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values: list[tuple[str, Any, int]] = [
            ("state dict", torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict(), 2),
            ("many", {f"layer.{n}.weight": torch.randn(2, n % 3 + 1) for n in range(50)}, 2),
            (
                "protocol 4",
                {"a": torch.randn(2, 3).t(), "b": [torch.tensor(1), {"c": torch.ones(2, dtype=torch.bool)}]},
                4,
            ),
            ("complex", {"a": torch.randn(2, dtype=torch.complex64).conj(), "b": np.arange(3), "c": np.float64(1)}, 2),
            ("sparse", {"s": torch.eye(3).to_sparse(), "u": torch.ones(2, dtype=torch.uint16)}, 2),
            *((f"random {n}", checkpoint(Random(n)), 2 + n % 4) for n in range(6)),
        ]
        for name, value, protocol in values:
            out = io.BytesIO()
            torch.save(value, out, pickle_protocol=protocol)
            members = _members(out.getvalue())
            stored = {key[5:]: raw for key, raw in members.items() if key.startswith("data/")}
            made.append(Seed(name, members["data.pkl"], stored))
    hand = tb.state_dict({"a": ("Float", (2, 3)), "b": ("Long", ())})
    made.append(Seed("by hand", hand, {"0": np.arange(6, dtype="<f4").tobytes(), "1": np.array(7, "<i8").tobytes()}))
    return made


def _members(data: bytes) -> dict[str, bytes]:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.removeprefix("archive/"): archive.read(name) for name in archive.namelist()}


class Corpus:
    """Mutants by number: odd ones of the pickle, with the container made anew; even ones of the whole file."""

    def __init__(self) -> None:
        self.seeds = seeds()
        self.files = [data for seed in self.seeds for data in self._packed(seed.pickle, seed.storages)]
        self.pickles = [seed.pickle for seed in self.seeds]
        self._rng = Random()

    def _packed(self, pickle_bytes: bytes, storages: dict[str, bytes]) -> list[bytes]:
        bare = pickle.dumps({"a": np.arange(3), "b": {"c": [1, 2.5, "x"]}}, 4)
        rows = {key: ("Float", raw[: len(raw) // 4 * 4], 4) for key, raw in storages.items() if key.isdecimal()}
        tensors = {str(int(key) + 50): (key, (len(raw) // 4,), (1,), 0) for key, (_, raw, _) in rows.items()}
        entries = [(tb.text(f"t{key}"), tb.persistent(key)) for key in tensors]
        return [
            tb.torch_zip(pickle_bytes, storages),
            tb.torch_zip(pickle_bytes, storages, method=8),
            tb.legacy(pickle_bytes, storages),
            tb.tar(tb.pickled(tb.dict_of(*entries)), rows, tensors),
            bare,
        ]

    def mutant(self, seed: int, number: int) -> bytes:
        """The mutant of that number."""
        rng = self._rng
        rng.seed(seed << 48 | number)
        if number % 2 == 0:
            data = rng.choice(self.files)
            return mutate(data, rng.choice((100, len(data))), self.files, rng)
        origin = rng.choice(self.seeds)
        changed = mutate(origin.pickle, len(origin.pickle), self.pickles, rng)
        kind = rng.randrange(6)
        if kind < 3:
            return tb.torch_zip(changed, origin.storages, byteorder=rng.choice((None, "little", "little", "big")))
        if kind == 3:
            members = tb.torch_members(changed, origin.storages)
            place = rng.randrange(len(members))
            members[place] = replace(members[place], method=rng.choice((0, 8)), flags=rng.choice((0x0808, 0x0800)))
            return tb.zipped(members)
        return tb.legacy(changed, origin.storages) if kind == 4 else changed


class Oracle:
    """Judges files of torch; one per process."""

    def __init__(self) -> None:
        self._hook = audit_hook()
        self.outcomes: Counter[str] = Counter()
        self.slowest = 0.0

    def warm_up(self, files: list[bytes]) -> None:
        """Open files and be refused, so that what is imported once is imported now."""
        for data in [*files, *(data[: len(data) // 2] for data in files), b"\x80\x02\xff", b"\x80\x02\x82\x01."]:
            self._read(data)
        str(bs.errors.CorruptError("", tensor="\0"))  # the codec that escapes control characters
        b"\xff".decode("cp437")  # the codec of old names in zips

    def judge(self, data: bytes, *, compare: bool) -> str:
        """What became of the file, if all is right; `ViolationError` if not."""
        started = time.process_time()
        self._hook.armed = True
        try:
            found = self._read(data)
        finally:
            self._hook.armed = False
        seconds = time.process_time() - started
        self.slowest = max(self.slowest, seconds)
        if self._hook.events:
            events, self._hook.events = self._hook.events, []
            raise ViolationError("d", f"audit events {events[:3]}")
        if seconds > 0.05 + 20e-6 * len(data) and seconds > 1:
            raise ViolationError("b", f"{seconds:.2f} s for {len(data)} bytes")
        if isinstance(found, str):
            return found
        if compare:
            self._compare(data, found)
        return "opened"

    def _read(self, data: bytes) -> str | dict[str, tuple[Any, bytes]]:
        try:
            with bs.open(data, format="pytorch", top_level_key="") as f:
                read = {name: (t.shape, t.to_bytes()) for name, t in f.items() if "never saved" not in _reason(t)}
                repr([f, f.notes])
                return read
        except _REFUSALS as error:
            message = str(error)
            if error.path != "<bytes>" or error.rule is None:
                raise ViolationError("a", f"{type(error).__name__} without path or rule: {message}"[:300]) from error
            if len(message) > _LONGEST_MESSAGE or not message.replace("\n  hint: ", "").isprintable():
                raise ViolationError("a", f"an unfit message: {message!r}"[:300]) from error
            return f"{type(error).__name__} {error.rule}"
        except ViolationError:
            raise
        except Exception as error:
            raise ViolationError("a", f"{type(error).__name__}: {error}"[:300]) from error

    def _compare(self, data: bytes, found: dict[str, tuple[Any, bytes]]) -> None:
        import torch

        from .torch_checkpoints import bits, flat

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                theirs = torch.load(io.BytesIO(data), weights_only=True)
                expected = [(name, tuple(t.shape), bits(t)) for name, t in flat(theirs) if t.layout is torch.strided]
            except Exception:  # torch refuses, in whichever way
                self.outcomes["torch refuses"] += 1
                return
        self.outcomes["torch opens"] += 1
        for name, shape, raw in expected:
            if name in found and found[name] != (shape, raw):
                raise ViolationError("f", f"{name!r}: {found[name][0]} here, {shape} there, or other bits")
            if name not in found:
                raise ViolationError("f", f"{name!r} is there for torch and not here")


def _reason(snapshot: bs.TensorSnapshot) -> str:
    """Why a tensor cannot be read, if it is a meta tensor: its values were never saved."""
    try:
        snapshot.to_data() if snapshot.nbytes < 1 << 16 else None
    except bs.errors.UnsupportedError as error:
        return str(error)
    return ""


def work(task: tuple[int, int, int, float]) -> tuple[Counter[str], list[tuple[int, str]], float, int]:
    """Judge a stretch of mutants in a process of its own."""
    seed, first, last, deadline = task
    corpus, oracle = Corpus(), Oracle()
    oracle.warm_up(corpus.files)
    violations: list[tuple[int, str]] = []
    done = 0
    for number in range(first, last):
        if time.monotonic() > deadline:
            break
        done += 1
        signal.alarm(HARD_SECONDS)  # ends the process: nothing may take that long
        try:
            oracle.outcomes[oracle.judge(corpus.mutant(seed, number), compare=number % TORCH_1_IN == 0)] += 1
        except ViolationError as violation:
            violations.append((number, str(violation)))
        finally:
            signal.alarm(0)
    return oracle.outcomes, violations, oracle.slowest, done


def sequences(longest: int) -> int:
    """Every sequence of up to so many opcodes: read, or refused with an error of burnstore."""
    from burnstore.formats.codec.pickle import Dialect, read_pickle

    alphabet = (
        *(b"N", b"K\x01", b"X\x01\0\0\0a", b"(", b")", b"]", b"}", b"\x8f", b"t", b"l", b"d", b"a", b"e", b"s", b"u"),
        *(b"cm\nC\n", b"R", b"b", b"\x81", b"q\0", b"h\0", b"0", b"2", b"\x86", b"\x90"),
    )
    counts: Counter[str] = Counter()
    for length in range(longest + 1):
        for ops in itertools.product(alphabet, repeat=length):
            try:
                read_pickle(b"".join(ops) + b".", dialect=Dialect())
                counts["read"] += 1
            except bs.errors.FormatError as error:
                counts[type(error).__name__] += 1
    print(f"{sum(counts.values()):,} sequences: {dict(counts)}")
    return 0


def compare_random(count: int, seed: int) -> int:
    """Random checkpoints, read here: the names, shapes and bits that were saved."""
    from .torch_checkpoints import bits, checkpoint, flat, save

    wrong = 0
    for number in range(count):
        rng = Random(seed << 32 | number)
        value = checkpoint(rng)
        data = save(value, rng)
        expected = flat(value)
        names = [name for name, _ in expected]
        try:
            with bs.open(data, top_level_key="") as f:
                good = list(f) == names and all(
                    (f[n].shape, f[n].to_bytes()) == (tuple(t.shape), bits(t)) for n, t in expected
                )
        except bs.errors.DuplicateNameError:
            good = len(set(names)) != len(names)
        if not good:
            wrong += 1
            print(f"checkpoint {number} differs")
    print(f"{count:,} random checkpoints of seed {seed}, {wrong} differ")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.pytorch", description="Fuzz the reader of torch's files."
    )
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, help="judge the mutant of this number and no other")
    parser.add_argument("--sequences", type=int, help="run every sequence of up to so many opcodes instead")
    parser.add_argument("--random", type=int, help="compare so many random checkpoints instead")
    arguments = parser.parse_args()
    if arguments.sequences is not None:
        return sequences(arguments.sequences)
    if arguments.random is not None:
        return compare_random(arguments.random, arguments.seed)
    if arguments.only is not None:
        print(Oracle().judge(Corpus().mutant(arguments.seed, arguments.only), compare=True))
        return 0
    started, deadline = time.monotonic(), time.monotonic() + 60 * arguments.minutes
    step = -(-arguments.mutants // arguments.jobs)
    starts = range(arguments.first, arguments.first + arguments.mutants, step)
    tasks = [
        (arguments.seed, first, min(first + step, arguments.first + arguments.mutants), deadline) for first in starts
    ]
    if arguments.jobs == 1:
        results = [work(task) for task in tasks]
    else:
        with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            results = pool.map(work, tasks)
    outcomes: Counter[str] = sum((result[0] for result in results), Counter())
    violations = [violation for result in results for violation in result[1]]
    done, seconds = sum(result[3] for result in results), time.monotonic() - started
    slowest = max(result[2] for result in results)
    print(f"{done:,} mutants of seed {arguments.seed} in {seconds:.0f} s, slowest {slowest:.3f} s")
    print(f"{len(violations)} violations")
    for outcome, count in outcomes.most_common():
        print(f"  {outcome:30} {count:>9,}")
    for number, message in violations[:30]:
        print(f"  mutant {number}: {message}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
