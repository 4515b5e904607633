"""The part of fuzzing that runs with every change: 20,000 mutants, all prefixes, all bits of ten headers, crashers.

`python -m tests.fuzz.run` is the long form.
"""

from __future__ import annotations

import pickle
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import burnstore as bs
from burnstore.formats.burnpack import fast_header, header, reader

from . import mutate, reference
from .corpus import Corpus, with_bit_flipped
from .oracle import Oracle, ViolationError, audit_hook
from .seeds import build, fixtures, made, plain
from .structure import Seed

MUTANTS, SEED = 20_000, 20_261_115
CRASHERS = sorted((Path(__file__).parent / "crashers").glob("*.bpk"))
QUANTIZED = [name for name in made() if name.startswith("quantized")]
CUT = {**fixtures(), **{name: data for name, data in made().items() if name not in QUANTIZED[8:-4]}}
FLIPPED = ["single", "single-0.19-stamped", "empty", "scalars", "bools", "bool-text-0.19", "zero-size", "null-id"]
FLIPPED += ["quantized-T-6", "quantized-P-4"]


@cache
def corpus() -> Corpus:
    return Corpus()


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    made_once = Oracle()
    made_once.warm_up(corpus().files)
    yield made_once
    made_once.close()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail, wherever the code is, when the time is over (where the system has an alarm)."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def over(*_: Any) -> None:
        raise TimeoutError(f"still at work after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ------------------------------------------------------------------------------- mutants


@pytest.mark.slow("fuzzing")
def test_mutants_are_opened_and_right_or_refused_by_rule(oracle: Oracle) -> None:
    outcomes: Counter[str] = Counter()
    for first in range(0, MUTANTS, 1000):
        with at_most(60):
            for index in range(first, first + 1000):
                try:
                    verdict = oracle.judge(corpus().mutant(SEED, index))
                except ViolationError as violation:
                    pytest.fail(f"{violation}; python -m tests.fuzz.run --seed {SEED} --only {index}")
                outcomes["opened" if verdict.opened else verdict.error] += 1
    # The mutators must reach deep: enough files are opened, and every kind of refusal is met.
    assert outcomes["opened"] > MUTANTS // 20
    kinds = {"opened", "CorruptError", "TruncatedError", "UnsupportedError", "LimitError", "UnknownFormatError"}
    assert set(outcomes) == kinds


def test_a_mutant_follows_from_its_number() -> None:
    again = Corpus()
    for index in range(400):
        assert again.mutant(SEED, index) == corpus().mutant(SEED, index)
    assert len({corpus().mutant(SEED, index) for index in range(400)}) > 350


def test_byte_mutation_takes_any_file() -> None:
    rng = Random(5)
    for data in (b"", b"\0", b"NRUB"):
        for _ in range(200):
            mutate.mutate(data, 10, [data], rng)


@pytest.mark.parametrize("path", CRASHERS, ids=lambda path: path.stem)
def test_a_file_that_once_broke_a_promise_does_so_no_more(oracle: Oracle, path: Path) -> None:
    with at_most(5):
        oracle.judge(path.read_bytes(), thorough=True)


@pytest.mark.parametrize("name", [*fixtures(), *made()])
def test_a_seed_is_opened(oracle: Oracle, name: str) -> None:
    data = {**fixtures(), **made()}[name]
    with at_most(5):
        assert oracle.judge(data, thorough=name not in QUANTIZED[20:]).opened


def test_the_scan_takes_every_file_of_a_real_burn(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def spy(*arguments: Any) -> Any:
        taken.append(real(*arguments))
        return taken[-1]

    real = fast_header.read_descriptors
    monkeypatch.setattr(fast_header, "read_descriptors", spy)
    for name, data in fixtures().items():
        taken.clear()
        count = len(bs.open(data))
        assert (taken[0] is not None) == (count > 0), name


# ------------------------------------------------------------------------------- the oracle itself


class _Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import this_module_is_nowhere",)


def test_the_audit_hook_fires_on_a_pickle() -> None:
    payload = pickle.dumps(_Payload())
    hook = audit_hook()
    hook.armed = True
    try:
        with pytest.raises(ImportError):
            pickle.loads(payload)
    finally:
        hook.armed = False
    events, hook.events = hook.events, []
    assert {event.split()[0] for event in events} >= {"pickle.find_class", "compile", "exec", "import"}


def test_the_audit_hook_fires_on_another_file(oracle: Oracle) -> None:
    with pytest.raises(ViolationError, match=r"\(d\) audit events .*open"):
        oracle._watched(lambda: Path(__file__).read_bytes())


def test_the_oracle_sees_a_foreign_exception(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "read_metadata", lambda *_: {}["no"])
    with pytest.raises(ViolationError, match=r"\(a\) KeyError"):
        oracle.judge(made()["single"])


def test_the_oracle_sees_a_reader_that_takes_0_19_for_a_later_file(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_ends_like_0_19", lambda *_: True)
    cut = made()["single"][: 10 + 58 + 8]
    with pytest.raises(ViolationError, match=r"\(f\) read as Burn 0.19, but"):
        oracle.judge(cut)


@pytest.mark.parametrize(
    ("check", "name", "letter"),
    [
        ("check_end", "trailing", "f"),
        ("_check_sizes", "short", "f"),
    ],
)
def test_the_oracle_sees_a_missing_check(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch, check: str, name: str, letter: str
) -> None:
    rng = Random(1)
    files = {
        "trailing": made()["single"] + b"\0",
        "short": made()["single"].replace(b"eshape\x81\x02", b"eshape\x81\x01"),
    }
    with pytest.raises(bs.errors.CorruptError):
        bs.open(files[name])
    monkeypatch.setattr(reader, check, lambda *_: None)
    with pytest.raises(ViolationError, match=rf"\({letter}\)"):
        oracle.judge(files[name], thorough=True)
    assert oracle.judge(build([plain("a", "F32", (2,), rng)])).opened


def test_the_oracle_sees_a_scan_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fast_header.read_descriptors

    def wrong(*arguments: Any) -> Any:
        columns = real(*arguments)
        if columns is not None:
            columns.names = [name + "x" for name in columns.names]
        return columns

    monkeypatch.setattr(fast_header, "read_descriptors", wrong)
    suspicious = Oracle()
    try:
        with pytest.raises(ViolationError, match=r"\(g\) the scan gives other columns"):
            suspicious.judge(made()["single"])
    finally:
        suspicious.close()


def test_the_oracle_sees_what_takes_too_long(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> Any:
        started = time.process_time()
        while time.process_time() - started < 0.06:
            pass
        return header.read_metadata(*arguments)

    monkeypatch.setattr(reader, "read_metadata", slow)
    with pytest.raises(ViolationError, match=r"\(b\) 0.06"):
        oracle.judge(made()["single"])


# ------------------------------------------------------------------------------- H3: prefixes


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the metadata of a file once for all its prefixes: it is a function of bytes that they share."""
    real, memory = reader.read_metadata, {}

    def read_metadata(raw: bytes, limits: bs.Limits) -> Any:
        if raw not in memory:
            memory.clear()
            memory[raw] = real(raw, limits)
        return memory[raw]

    monkeypatch.setattr(reader, "read_metadata", read_metadata)


def whole_prefixes(data: bytes) -> set[int]:
    """The lengths at which a file, cut, is another file that is whole.

    There is one case. A file without any tensor bytes (no tensors, or only empty ones) ends, for Burn 0.19, where its
    metadata do; later releases pad to 256. Cut there, the later file *is* the earlier one, unless something in its
    metadata says that no Burn 0.19 wrote it: the stamp, scalars, or a dtype in a later spelling.
    """
    reading = reference.read(data)
    spelled_later = any(
        tensor.dtype not in reference.WIDTHS or "(" in str(tensor.dtype) for tensor in reading.tensors.values()
    )
    stamped = reading.metadata.get("producer") == "burn"
    if reading.extent or reading.scalars or spelled_later or stamped or reading.metadata_end == len(data):
        return set()
    return {reading.metadata_end}


@pytest.mark.matrix(every=24)
@pytest.mark.parametrize("name", CUT)
@pytest.mark.usefixtures("remembered")
def test_every_prefix_is_refused(name: str) -> None:
    data, opened = CUT[name], set()
    kinds: Counter[tuple[str, str | None]] = Counter()
    for length in range(len(data)):
        try:
            bs.open(data[:length])
        except bs.errors.FormatError as error:
            kinds[type(error).__name__, error.rule] += 1
        else:
            opened.add(length)
    assert opened == whole_prefixes(data)
    assert kinds.pop(("UnknownFormatError", None)) == 4  # without the four bytes of the magic number
    assert kinds.pop(("TruncatedError", "BP-01")) == 6
    assert kinds.pop(("TruncatedError", "BP-03")) == Seed(name, data).metadata_end - 10
    # What has exactly the length of a file of Burn 0.19: which of the two it is cannot be told.
    assert kinds.pop(("CorruptError", "BP-14"), 0) <= 1
    # A file of Burn 0.19 that is too short for one, and might be a later one but for what stands in its padding.
    assert kinds.pop(("CorruptError", "BP-16"), 0) == 0 or Seed(name, data).unaligned
    kinds.pop(("TruncatedError", "BP-15"), None)
    assert not kinds


# ------------------------------------------------------------------------------- H4: bits


@pytest.mark.matrix(every=5)
@pytest.mark.parametrize("name", FLIPPED)
def test_a_flipped_bit_of_the_header_is_refused_or_harmless(oracle: Oracle, name: str) -> None:
    data = made()[name]
    seed = Seed(name, data)
    with at_most(60):
        for bit in range(8 * seed.metadata_end):
            try:
                verdict = oracle.judge(with_bit_flipped(data, bit))
            except ViolationError as violation:
                pytest.fail(f"bit {bit}: {violation}")
            if bit < 80:
                assert not verdict.opened, f"bit {bit} of the fixed header"
