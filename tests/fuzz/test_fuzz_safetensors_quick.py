"""The part of fuzzing SafeTensors that runs with every change: 20,000 mutants, all prefixes, all bits of some headers.

`python -m tests.fuzz.run --format safetensors` is the long form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.formats.safetensors import fast_header, reader

from . import valid_safetensors
from .oracle import ViolationError
from .safetensors_corpus import SafetensorsCorpus, Tensor, pack, written
from .safetensors_oracle import STRICTER, SafetensorsOracle
from .test_fuzz_quick import at_most

MUTANTS, SEED = 20_000, 20_261_115
CRASHERS = sorted((Path(__file__).parent / "crashers").glob("*.safetensors"))


@cache
def corpus() -> SafetensorsCorpus:
    return SafetensorsCorpus()


@pytest.fixture(scope="module")
def oracle() -> Iterator[SafetensorsOracle]:
    made_once = SafetensorsOracle()
    made_once.warm_up(corpus().files)
    yield made_once
    made_once.close()


@pytest.mark.slow("fuzzing")
def test_mutants_are_opened_and_right_or_refused_by_rule(oracle: SafetensorsOracle) -> None:
    outcomes: Counter[str] = Counter()
    for first in range(0, MUTANTS, 1000):
        with at_most(60):
            for index in range(first, first + 1000):
                try:
                    verdict = oracle.judge(corpus().mutant(SEED, index))
                except ViolationError as violation:
                    pytest.fail(f"{violation}; run --format safetensors --seed {SEED} --only {index}")
                outcomes[verdict.opened or f"{verdict.error} {verdict.rule}"] += 1
    assert outcomes["scanned"] > MUTANTS // 40
    assert outcomes["read strictly"] > MUTANTS // 40
    met = {key.split()[-1] for key in outcomes} & {f"ST-{n:02}" for n in range(1, 13)}
    assert len(met) == 12


def test_a_file_that_once_broke_a_promise_does_so_no_more(oracle: SafetensorsOracle) -> None:
    for path in CRASHERS:
        with at_most(5):
            oracle.judge(path.read_bytes(), thorough=True)


def test_every_seed_is_opened(oracle: SafetensorsOracle) -> None:
    for data in corpus().files:
        with at_most(5):
            assert oracle.judge(data, thorough=True).opened


def test_every_prefix_is_refused() -> None:
    for data in corpus().files[:20]:
        for length in range(len(data)):
            with pytest.raises(bs.errors.FormatError):
                bs.open(data[:length], format="safetensors")


@pytest.mark.slow("fuzzing")
def test_a_flipped_bit_of_the_header_is_refused_or_harmless(oracle: SafetensorsOracle) -> None:
    total = min(corpus().count_bits(), 12_000)
    with at_most(120):
        for bit in range(total):
            try:
                oracle.judge(corpus().flipped(bit))
            except ViolationError as violation:
                pytest.fail(f"bit {bit}: {violation}")


def test_the_stricter_rules_are_these() -> None:
    assert {"ST-03", "ST-04", "ST-06", "ST-07", "ST-08", "ST-13", "ST-14", "ST-15"} == STRICTER


ONE = written(None, [Tensor("a", "U8", [4], 0, 4)])


@pytest.mark.parametrize(
    ("check", "data"),
    [
        ("check_end", pack(ONE, b"\1\1\1\1\1")),
        ("check_sizes", pack(written(None, [Tensor("a", "U8", [3], 0, 4)]), bytes(4))),
        ("_check_places", pack(written(None, [Tensor("a", "U8", [2], 2, 4)]), bytes(4))),
    ],
)
def test_the_oracle_sees_a_missing_check(
    oracle: SafetensorsOracle, monkeypatch: pytest.MonkeyPatch, check: str, data: bytes
) -> None:
    with pytest.raises(bs.errors.CorruptError):
        bs.open(data)
    monkeypatch.setattr(reader, check, lambda *_: None)
    with pytest.raises(ViolationError, match=r"\(f\) opened, and the package refuses it"):
        oracle.judge(data)


def test_the_oracle_sees_a_rule_that_is_too_strict(oracle: SafetensorsOracle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise bs.errors.CorruptError("no", rule="ST-11")

    monkeypatch.setattr(reader, "_check_places", refuse)
    with pytest.raises(ViolationError, match=r"\(f\) refused by ST-11"):
        oracle.judge(pack(ONE, bytes(4)))


def test_the_oracle_sees_a_scan_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fast_header.read_header

    def wrong(*arguments: Any) -> Any:
        columns = real(*arguments)
        if columns is not None:
            columns.names[0] += "x"
        return columns

    monkeypatch.setattr(fast_header, "read_header", wrong)
    suspicious = SafetensorsOracle()
    try:
        with pytest.raises(ViolationError, match=r"\(g\) the scan gives other columns"):
            suspicious.judge(pack(ONE, bytes(4)))
    finally:
        suspicious.close()


def test_no_file_that_is_valid_for_the_package_is_refused() -> None:
    counts, wrong = valid_safetensors.run(400, seed=20_261_116)
    assert wrong == []
    assert counts["package"] > 50 and counts["hand, some"] > 50 and counts["invalid"] < 40
