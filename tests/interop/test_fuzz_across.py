"""The part of fuzzing across that runs with every change; `make fuzz-interop` is the long form."""

from __future__ import annotations

import pytest

from . import fuzz
from .program import NEWEST

CONTENTS, MUTANTS, SEED = 500, 5_000, 20_261_115


@pytest.fixture
def newest(burn):
    if burn.version != NEWEST:
        pytest.skip(f"the rules of docs/formats/burnpack.md are about Burn {NEWEST}")
    return burn


def test_random_contents_are_written_and_read_alike(newest, tmp_path):
    figures = fuzz.contents(newest, SEED, range(CONTENTS), tmp_path)
    assert figures.disagreements == []
    assert figures.done == CONTENTS


def test_mutants_are_opened_alike_or_refused_by_a_rule(newest, tmp_path):
    figures = fuzz.mutants(newest, SEED, range(MUTANTS), tmp_path)
    assert figures.disagreements == []
    assert figures.done == MUTANTS
    assert figures.outcomes["both opened it, equal"] > MUTANTS / 20, str(figures)
    assert figures.outcomes["both refused it"] > MUTANTS / 10, str(figures)
