"""Difference: by how much the values of two tensors of one shape differ, found part by part whatever their size.

equal          two elements are equal if their bits are: NaN equals NaN of the same bits, 0.0 and -0.0 differ
figures        taken over the pairs of which both are finite; a NaN or infinity opposite to something else is counted
max_abs        the largest distance; of complex numbers that in the plane, of integers exact
max_ulp        the largest distance in steps from one float of the dtype to the next; 0.0 and -0.0 are 0 steps apart.
               None where the dtypes differ, and for what is no float
rel_l2         the length of the difference over the length of the first tensor, both as vectors
cosine         of the angle between the two; None where one of them is all zeros
tolerance      a pair is within it if it is no further apart than the absolute one, or than the relative one times the
               larger of the two; NaN of any bits are within it, as are 0.0 and -0.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...tensor.data import Shape
from ..json_output import json_number


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far apart two values may be and still count as the same: absolutely, or relative to the larger one.

    >>> Tolerance(absolute=1e-6).absolute
    1e-06
    """

    absolute: float = 0.0
    relative: float = 0.0

    def __post_init__(self) -> None:
        for name in ("absolute", "relative"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise TypeError(f"a tolerance is a number, not {type(value).__name__}")
            if not value >= 0:
                raise ValueError(f"a tolerance is not negative, as {value!r} is")


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much two tensors of one shape differ; this module says what the figures mean.

    ``differing`` of the ``elements`` are not equal, ``beyond`` of them are further apart than the tolerance (all, where
    there was none). ``index`` is where ``max_abs`` is found, and ``values`` are what the tensors have there. Counted
    apart: ``nan_mismatches`` (a NaN opposite to a number), ``nan_payloads`` (NaN of other bits), ``inf_mismatches`` and
    ``zero_signs`` (0.0 opposite to -0.0).

    >>> import numpy as np, burnstore as bs
    >>> found = bs.diff({"a": np.float32([1, 0])}, {"a": np.float32([1, -0.0])}).tensors[0].difference
    >>> found.differing, found.max_abs, found.max_ulp, found.zero_signs
    (1, 0.0, 0, 1)
    """

    elements: int
    differing: int
    beyond: int
    max_abs: int | float | None
    max_ulp: int | None
    rel_l2: float | None
    cosine: float | None
    index: Shape | None
    values: tuple[Any, Any] | None
    nan_mismatches: int = 0
    nan_payloads: int = 0
    inf_mismatches: int = 0
    zero_signs: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for strict JSON; complex numbers as pairs."""
        return {
            "elements": self.elements,
            "differing": self.differing,
            "beyond": self.beyond,
            "max_abs": json_number(self.max_abs),
            "max_ulp": json_number(self.max_ulp),
            "rel_l2": json_number(self.rel_l2),
            "cosine": json_number(self.cosine),
            "index": None if self.index is None else list(self.index),
            "values": None if self.values is None else [_json_value(value) for value in self.values],
            "nan_mismatches": self.nan_mismatches,
            "nan_payloads": self.nan_payloads,
            "inf_mismatches": self.inf_mismatches,
            "zero_signs": self.zero_signs,
        }

    def __str__(self) -> str:
        """The figures in one line, numbers shortened."""
        parts = [f"{self.differing} of {self.elements} values"]
        if self.max_abs:
            steps = "" if self.max_ulp is None else f" ({self.max_ulp} ulp)"
            parts[0] += f", by at most {_short(self.max_abs)}{steps}"
        if self.index is not None and self.values is not None:
            parts[0] += f" at {list(self.index)}: {' -> '.join(map(_short, self.values))}"
        if self.rel_l2:
            cosine = "" if self.cosine is None else f", cosine {_short(self.cosine)}"
            parts.append(f"relative L2 {_short(self.rel_l2, 3)}{cosine}")
        for count, what in (
            (self.nan_mismatches, "NaN on one side"),
            (self.inf_mismatches, "infinite on one side"),
            (self.nan_payloads, "NaN of other bits"),
            (self.zero_signs, "zeros of the other sign"),
        ):
            if count:
                parts.append(f"{count} {what}")
        return "; ".join(parts) if self.differing else "the values are the same"


def _short(value: Any, digits: int = 6) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def _json_value(value: Any) -> Any:
    if isinstance(value, complex):
        return [json_number(value.real), json_number(value.imag)]
    return json_number(value)
