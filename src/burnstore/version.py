"""The version, for those parts that write it down and may not import the whole."""

from __future__ import annotations

__version__ = "0.1.0"
