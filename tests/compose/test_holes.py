"""The oracle finds mistakes that were in burnstore once, and every check that is taken away."""

from __future__ import annotations

import pytest

from .holes import CHECKS, HOLES, Patch, cases_until_found

MOST = 15_000
"""The bar is 20,000 cases; with this seed all are found in fewer."""


@pytest.mark.slow("plants a hole and runs compositions until it is found")
@pytest.mark.parametrize("patch", HOLES.values(), ids=HOLES)
def test_the_oracle_finds_a_hole(patch: Patch) -> None:
    assert cases_until_found(patch, seed=1, most=MOST) is not None


@pytest.mark.slow("removes a check and runs compositions until that is found")
@pytest.mark.parametrize("patch", CHECKS.values(), ids=CHECKS)
def test_no_check_can_be_removed_unnoticed(patch: Patch) -> None:
    assert cases_until_found(patch, seed=1, most=MOST) is not None
