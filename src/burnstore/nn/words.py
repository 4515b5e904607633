"""The constructor words that several layers share: what they may be, and the errors that name them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Padding = Literal["Same", "Valid"] | Sequence[int]
"""Burn's padding enums: a name, or the numbers of ``Explicit``."""

_EXPLICIT = {1: "left, right", 2: "top, left, bottom, right", 3: "depth, height, width"}
BURN_VERSION = "0.22.1"


def extent(name: str, value: Any, *, least: int = 0) -> int:
    """A size or a count."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is an integer, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is an integer, not {value!r}") from None
    if number < least:
        raise ValueError(f"{name} is at least {least}, not {number}")
    return number


def extents(name: str, value: Any, meaning: str) -> tuple[int, ...]:
    """A fixed number of sizes; ``meaning`` names each: ``"in, out"``."""
    count = meaning.count(",") + 1
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        raise TypeError(f"{name} is [{meaning}], not {value!r}")
    if len(value) != count:
        raise ValueError(f"{name} is [{meaning}], not {list(value)}")
    return tuple(extent(name, each) for each in value)


def flag(name: str, value: Any) -> bool:
    """A choice; other values are refused, because every number would pass for one."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return bool(value)


def checked_padding(value: Any, kernel_size: Sequence[int], *, odd_for_same: bool = False) -> str | tuple[int, ...]:
    """A padding of Burn's enum for this number of axes."""
    axes = len(kernel_size)
    if isinstance(value, str):
        if value not in ("Same", "Valid"):
            raise ValueError(f"padding is 'Same', 'Valid' or ({_EXPLICIT[axes]}), not {value!r}")
        if value == "Same" and odd_for_same and any(size % 2 == 0 for size in kernel_size):
            raise ValueError(f"padding 'Same' needs odd kernel sizes here, not {list(kernel_size)}")
        return value
    return extents("padding", value, _EXPLICIT[axes])


def divisible(name: str, value: int, by_name: str, by: int) -> None:
    """Refuse a count that cannot be split evenly."""
    if by == 0 or value % by:
        raise ValueError(f"{name} ({value}) is not divisible by {by_name} ({by})")


def positive(name: str, value: float) -> float:
    """A finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is a finite number above 0, not {value}")
    return float(value)


def minor_version(burn_version: str) -> int:
    """The 22 of Burn 0.22.1; ValueError for versions whose layers are not known here."""
    match = re.fullmatch(r"0\.(?:(19|20|21|22)(?:\.\d+)?|(23)(?:\.\d+)?(?:-pre(?:\.\d+)?)?)", burn_version)
    if match is None:
        raise ValueError(f"burn_version is one from 0.19 to 0.23, such as {BURN_VERSION!r}, not {burn_version!r}")
    return int(match[1] or match[2])
