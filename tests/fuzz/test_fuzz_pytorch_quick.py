"""Mutants of torch's files in each container: a short run of what `python -m tests.fuzz.pytorch` does for long."""

from __future__ import annotations

import pytest

from .oracle import ViolationError
from .pytorch import Corpus, Oracle

MUTANTS = 3000


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


@pytest.fixture(scope="module")
def oracle(corpus: Corpus) -> Oracle:
    made = Oracle()
    made.warm_up(corpus.files)
    return made


def test_seeds_are_opened_and_are_what_torch_reads(corpus: Corpus, oracle: Oracle) -> None:
    verdicts = [oracle.judge(data, compare=True) for data in corpus.files]
    assert verdicts.count("opened") > len(verdicts) // 2


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize("part", range(6))
def test_mutants_break_no_promise(part: int, corpus: Corpus, oracle: Oracle) -> None:
    opened = 0
    for number in range(part * MUTANTS // 6, (part + 1) * MUTANTS // 6):
        try:
            opened += oracle.judge(corpus.mutant(11, number), compare=number % 8 == 0) == "opened"
        except ViolationError as violation:
            pytest.fail(f"mutant {number} of seed 11: {violation}")
    assert opened
