"""Check constructor arguments that several layers share; an error names the argument, what it must be, what it is."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Padding = Literal["Same", "Valid"] | Sequence[int]
"""Burn's padding enums: a name, or the numbers of ``Explicit``."""

BURN_VERSION = "0.22.1"
_EXPLICIT = {1: "left, right", 2: "top, left, bottom, right", 3: "depth, height, width"}
_VERSION = re.compile(r"0\.(?:(19|20|21|22)(?:\.\d+)?|(23)(?:\.\d+)?(?:-pre(?:\.\d+)?)?)")


def extent(name: str, value: Any, *, least: int = 0) -> int:
    """Return a size or a count as an int."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def extents(name: str, value: Any, meaning: str) -> tuple[int, ...]:
    """Return a fixed number of sizes; ``meaning`` names each: ``"in, out"``."""
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        raise TypeError(f"{name} must be [{meaning}], got {value!r}")
    if len(value) != meaning.count(",") + 1:
        raise ValueError(f"{name} must be [{meaning}], got {list(value)}")
    return tuple(extent(name, each) for each in value)


def flag(name: str, value: Any) -> bool:
    """Return a bool; refuse numbers, because ``bias=2`` is a mistake and not a choice."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def padding_of(value: Any, kernel_size: Sequence[int], *, odd_for_same: bool = False) -> str | tuple[int, ...]:
    """Return a padding of Burn's enum for this number of axes."""
    axes = len(kernel_size)
    if not isinstance(value, str):
        return extents("padding", value, _EXPLICIT[axes])
    if value not in ("Same", "Valid"):
        raise ValueError(f"padding must be 'Same', 'Valid' or ({_EXPLICIT[axes]}), got {value!r}")
    if value == "Same" and odd_for_same and any(size % 2 == 0 for size in kernel_size):
        raise ValueError(f"padding 'Same' needs odd kernel sizes here, got {list(kernel_size)}")
    return value


def check_divisible(name: str, value: int, by_name: str, by: int) -> None:
    """Refuse a count that cannot be split evenly."""
    if by == 0 or value % by:
        raise ValueError(f"{name} ({value}) must be divisible by {by_name} ({by})")


def positive(name: str, value: float) -> float:
    """Return a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return float(value)


def minor_version(burn_version: str) -> int:
    """Return the 22 of Burn 0.22.1; raise ValueError for versions whose layers are not known here."""
    match = _VERSION.fullmatch(burn_version)
    if match is None:
        raise ValueError(f"burn_version must be from 0.19 to 0.23, such as {BURN_VERSION!r}, got {burn_version!r}")
    return int(match[1] or match[2])
