"""Some mutants of GGUF files and of quantized weights; `python -m tests.fuzz.scales` is the long form."""

from __future__ import annotations

import time

import pytest

from .scales import SUBJECTS, outcomes


@pytest.mark.parametrize("subject", SUBJECTS)
def test_mutants_are_read_or_refused_by_an_error_of_burnstore(subject: str) -> None:
    found = list(outcomes(subject, 20_261_117, 600, time.monotonic() + 60))
    assert [(number, outcome) for number, outcome, error in found if error is not None] == []
    assert sum("opened and read" in outcome for _, outcome, _ in found) > 30
    assert sum("refused" in outcome for _, outcome, _ in found) > 100
