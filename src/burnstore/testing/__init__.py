"""Tests for formats of other packages: subclass `FormatConformance` in a test suite and run pytest.

Only this package imports pytest; ``import burnstore`` does not import this package.
"""

from __future__ import annotations

from .abilities import Abilities, CountingSource
from .reading import Damage, Reading
from .round_trips import RoundTrips, Writing

__all__ = ["Abilities", "CountingSource", "FormatConformance"]


class FormatConformance(RoundTrips, Reading, Writing, Damage):
    """Some two hundred tests for one format; pytest collects them from a subclass whose name begins with Test.

    Register the format, then state its name and abilities; `Abilities` lists all of them.

    >>> from burnstore import DType
    >>> class TestMine(FormatConformance):
    ...     format = "mine"
    ...     suffix = ".mine"
    ...     dtypes = (DType.F32, DType.F64)
    ...     holds_param_ids = False
    >>> sum(name.startswith("test_") for name in dir(TestMine)) > 50
    True

    Override a test that does not fit a format, with the reason beside it.
    """
