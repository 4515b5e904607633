"""The page of layouts has every exception to the rule that all verbs give one answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.parity.exceptions import EXCEPTIONS, Exempt


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=lambda exception: exception.words)
def test_an_exception_stands_in_the_documentation(exception: Exempt) -> None:
    page = Path(__file__).parents[2] / "docs/howto/layouts.md"
    assert " ".join(exception.why.split()) in " ".join(page.read_text().split())
