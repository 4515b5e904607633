"""Tests for formats of one's own: subclass `FormatConformance` in a test-suite and pytest does the rest.

Only this package imports pytest; ``import burnstore`` does not import this package.
"""

from __future__ import annotations

from .abilities import Abilities
from .conformance import FormatConformance
from .counting import CountingSource

__all__ = ["Abilities", "CountingSource", "FormatConformance"]
