"""A few mutants of distributed checkpoints, files of ranks and shards, at every run of the tests."""

from __future__ import annotations

import pytest

from .dcp import SUBJECTS
from .drive import outcomes


@pytest.mark.parametrize("subject", SUBJECTS)
def test_mutants_give_tensors_or_errors_of_our_own(subject: str) -> None:
    found = outcomes(SUBJECTS[subject], 20_261_117, range(60))
    assert found.foreign == []
    assert found.cases == 60 and found.counts["opened and read"]
