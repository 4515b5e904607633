"""FormatConformance: the tests that every format of burnstore passes, for formats of others."""

from __future__ import annotations

from .damage import Damage
from .reading import Reading
from .round_trips import RoundTrips
from .writing import Writing


class FormatConformance(RoundTrips, Reading, Writing, Damage):
    """Some two hundred tests for one format; pytest collects them from a subclass whose name begins with Test.

    Register the format, then say what it is called and what it can do; `Abilities` lists everything there is to say.

    >>> from burnstore import DType
    >>> class TestMine(FormatConformance):
    ...     format = "mine"
    ...     suffix = ".mine"
    ...     dtypes = (DType.F32, DType.F64)
    ...     holds_param_ids = False
    >>> sum(name.startswith("test_") for name in dir(TestMine)) > 50
    True

    A test that does not fit a format is replaced by overriding it, with the reason beside it.
    """
