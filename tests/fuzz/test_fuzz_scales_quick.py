"""Some mutants of GGUF files and of quantized weights; `python -m tests.fuzz.scales` is the long form."""

from __future__ import annotations

import pytest

from .drive import outcomes
from .scales import SUBJECTS


@pytest.mark.parametrize("subject", SUBJECTS)
def test_mutants_are_read_or_refused_by_an_error_of_burnstore(subject: str) -> None:
    found = outcomes(SUBJECTS[subject], 20_261_117, range(600))
    assert found.foreign == []
    assert found.counts["opened and read"] > 30
    assert sum(count for outcome, count in found.counts.items() if "refused" in outcome) > 100
