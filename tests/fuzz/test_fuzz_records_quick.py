"""The part of fuzzing records that runs with every change: 10,000 mutants; all bits of some files.

`python -m tests.fuzz.run --format record` is the long form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .oracle import ViolationError
from .records_corpus import RecordsCorpus
from .records_oracle import RecordsOracle
from .test_fuzz_quick import at_most

MUTANTS, SEED = 10_000, 20_261_115
CRASHERS = sorted((Path(__file__).parent / "crashers").glob("*.record"))


@cache
def corpus() -> RecordsCorpus:
    return RecordsCorpus()


@pytest.fixture(scope="module")
def oracle() -> Iterator[RecordsOracle]:
    made_once = RecordsOracle()
    made_once.warm_up(corpus().files)
    yield made_once
    made_once.close()


@pytest.mark.slow("fuzzing")
def test_mutants_are_opened_and_right_or_refused_by_rule(oracle: RecordsOracle) -> None:
    outcomes: Counter[str] = Counter()
    for first in range(0, MUTANTS, 1000):
        with at_most(120):
            for index in range(first, first + 1000):
                try:
                    verdict = oracle.judge(corpus().mutant(SEED, index))
                except ViolationError as violation:
                    pytest.fail(f"{violation}; run --format record --seed {SEED} --only {index}")
                outcomes[verdict.opened or f"{verdict.error} {verdict.rule}"] += 1
    for encoding in ("NamedMpk", "NamedMpkGz", "Json", "Bin"):
        assert outcomes[encoding] > MUTANTS // 400, outcomes
    met = {key.split()[-1] for key in outcomes} & {f"BR-{n:02}" for n in range(1, 22)}
    assert met >= {f"BR-{n:02}" for n in (1, 3, 4, 6, 7, 8, 9, 11, 12, 15, 18)}, outcomes


def test_a_file_that_once_broke_a_promise_does_so_no_more(oracle: RecordsOracle) -> None:
    for path in CRASHERS:
        with at_most(5):
            oracle.judge(path.read_bytes(), thorough=True)


@pytest.mark.slow("fuzzing")
def test_every_flipped_bit_of_some_files_is_refused_or_right(oracle: RecordsOracle) -> None:
    for index in range(0, corpus().count_bits(), 397):
        oracle.judge(corpus().flipped(index))
