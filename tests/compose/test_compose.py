"""The part of the oracle that runs with every change; `make fuzz-compose` is the long form."""

from __future__ import annotations

import pytest

from .run import run

SEED = 20_261_116


def check(first: int, cases: int) -> None:
    tally = run(SEED, first, cases, most=3)
    assert not tally.violations, "\n".join(text for _, text in tally.violations)
    verdicts = {name.partition(" ")[2] for name in tally.counts}
    assert {"right", "refused", "noted"} <= verdicts


def test_compositions_are_right_refused_or_noted() -> None:
    check(0, 100)


@pytest.mark.slow("1,500 compositions")
def test_more_compositions_are_right_refused_or_noted() -> None:
    check(100, 1500)
