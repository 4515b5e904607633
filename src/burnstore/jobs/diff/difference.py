"""Measure how much the values of two tensors of one shape differ, block by block, whatever their size.

equal          two elements are equal if their bits are: NaN equals NaN of the same bits, 0.0 and -0.0 differ
max_abs …      cover the pairs of finite values; a NaN or infinity opposite to another value is counted
max_abs        the largest distance; in the plane for complex numbers, exact for integers
max_ulp        the largest distance in steps from one float of the dtype to the next; 0.0 and -0.0 are 0 steps apart.
               None if the dtypes differ or are not floats
rel_l2         the L2 norm of the difference divided by that of the first tensor
cosine         of the angle between the two; None if one of them is all zeros
tolerance      a pair is within it if its distance is at most the absolute tolerance, or the relative tolerance times
               the larger of the two; NaN of any bits are within it, as are 0.0 and -0.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ...tensor.data import Array, Shape
from ...tensor.dtype import DType, Kind
from ...tensor.lowbit import unpack_fields
from ...tensor.plain import Plain
from ...tensor.upcast import steps, upcast
from ..stats import unravel

# If fewer than one in this many elements differ, only those are examined one by one.
_SPARSE = 8


@dataclass(frozen=True, slots=True)
class Tolerance(Plain):
    """The distance at which two values still count as equal: absolute, or relative to the larger value.

    >>> Tolerance(absolute=1e-6).absolute
    1e-06
    """

    absolute: float = 0.0
    relative: float = 0.0

    def __post_init__(self) -> None:
        for name in ("absolute", "relative"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise TypeError(f"a tolerance must be a number, got {type(value).__name__}")
            if not value >= 0:
                raise ValueError(f"a tolerance must be 0 or more, got {value!r}")


@dataclass(frozen=True, slots=True)
class Difference(Plain):
    """The difference of two tensors of one shape; the module's docstring defines the figures.

    ``differing`` of the ``elements`` are not equal; ``beyond`` of them exceed the tolerance (all, without one).
    ``index`` is the place of ``max_abs``, and ``values`` are the values there. Counted separately: ``nan_mismatches``
    (a NaN opposite to a number), ``nan_payloads`` (NaN of other bits), ``inf_mismatches`` and ``zero_signs`` (0.0
    opposite to -0.0).

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

    def __str__(self) -> str:
        """Return the figures in one line."""
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
            (self.zero_signs, "zeros of opposite sign"),
        ):
            if count:
                parts.append(f"{count} {what}")
        return "; ".join(parts) if self.differing else "the values are equal"


def _short(value: Any, digits: int = 6) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


class RunningDifference:
    """A difference that grows block by block; differences of parts of one tensor can be merged in any order.

    The sums are fractions, so that neither the order nor the size of the values affects them.

    >>> running = RunningDifference(Tolerance(absolute=0.5))
    >>> running.add_values(np.float32([1, 2, 4]), np.float32([1, 2.5, 3]), 0)
    >>> found = running.result((3,))
    >>> found.differing, found.beyond, found.max_abs, found.index, found.values
    (2, 1, 1.0, (2,), (4.0, 3.0))
    """

    __slots__ = (
        *("_apart", "_beyond", "_both", "_differing", "_elements", "_first", "_inf_mismatches", "_max_abs", "_max_at"),
        *("_max_ulp", "_max_values", "_nan_mismatches", "_nan_payloads", "_second", "_tolerance", "_zero_signs"),
    )

    def __init__(self, tolerance: Tolerance | None = None) -> None:
        self._tolerance = tolerance
        self._first = self._second = self._both = self._apart = Fraction(0)
        self._max_abs: Any = None
        self._max_at = 0
        self._max_values: tuple[Any, Any] | None = None
        self._max_ulp: int | None = None
        self._elements = self._differing = self._beyond = 0
        self._nan_mismatches = self._nan_payloads = self._inf_mismatches = self._zero_signs = 0

    def add(self, one: memoryview, other: memoryview, dtype: DType, other_dtype: DType, start: int) -> None:
        """Add the bytes of the same elements of both, beginning at the flat index ``start``."""
        with np.errstate(all="ignore"):
            if dtype is not other_dtype:
                self._add(upcast(one, dtype), upcast(other, other_dtype), None, start, None)
            elif dtype.bits not in (8, 16, 32, 64):
                self._add_alike(one, other, dtype, start, None)
            else:
                a, b = (np.frombuffer(raw, f"<u{dtype.bits // 8}") for raw in (one, other))
                places = np.flatnonzero(a != b)
                if _SPARSE * places.size > a.size:
                    self._add_alike(one, other, dtype, start, None)
                else:  # Equal elements only enter the sums.
                    self._add_equal(upcast(one, dtype), places)
                    self._add_alike(a[places], b[places], dtype, start, places)

    def add_values(self, a: Array, b: Array, start: int) -> None:
        """Add the same elements of both as values, for tensors whose bytes are not single elements."""
        with np.errstate(all="ignore"):
            self._add(a, b, None, start, None)

    def add_equal(self, raw: memoryview, dtype: DType) -> None:
        """Add the bytes of elements that are equal in both."""
        with np.errstate(all="ignore"):
            self._add_equal(upcast(raw, dtype), None)

    def _add_equal(self, values: Array, but: Array | None) -> None:
        """Add values that are equal in both, except at some places."""
        self._elements += values.size
        is_float = values.dtype.kind in "fc"
        values = _as_floats(values)
        if but is not None:
            self._elements -= but.size
            values = values.copy()
            values[but] = 0
        square = _product(values, values)
        if square is None:
            finite = values[np.isfinite(values)]
            square = _product(finite, finite) or Fraction(0)
        self._first += square
        self._second += square
        self._both += square
        self._take_largest(0.0, 0, None)
        if is_float:
            self._take_steps(0)

    def _add_alike(self, one: Any, other: Any, dtype: DType, start: int, places: Array | None) -> None:
        """Add bytes of one dtype."""
        a, b = upcast(one, dtype), upcast(other, dtype)
        if dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
            self._add(a, b, None, start, places)
            return
        finite = self._add(a, b, _unlike_bits(one, other, dtype), start, places)
        self._add_steps(steps(one, dtype), steps(other, dtype), finite)

    def merge(self, other: RunningDifference) -> None:
        """Add the difference of another part of the same tensors."""
        for name in self.__slots__:
            if name not in ("_tolerance", "_max_abs", "_max_at", "_max_values", "_max_ulp"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self._take_largest(other._max_abs, other._max_at, other._max_values)
        self._take_steps(other._max_ulp)

    def result(self, shape: Shape) -> Difference:
        """Return the difference of tensors of this shape, after all parts were added."""
        return Difference(
            elements=self._elements,
            differing=self._differing,
            beyond=self._beyond if self._tolerance is not None else self._differing,
            max_abs=self._max_abs,
            max_ulp=self._max_ulp,
            rel_l2=_relative(self._apart, self._first),
            cosine=_cosine(self._both, self._first, self._second),
            index=unravel(self._max_at, shape) if self._max_abs else None,
            values=self._max_values if self._max_abs else None,
            nan_mismatches=self._nan_mismatches,
            nan_payloads=self._nan_payloads,
            inf_mismatches=self._inf_mismatches,
            zero_signs=self._zero_signs,
        )

    def _add(self, a: Array, b: Array, unlike: Array | None, start: int, places: Array | None) -> Array | None:
        """Add values at these places after ``start``; return which pairs are finite, None if all are."""
        self._elements += a.size
        if not a.size:
            return None
        if a.dtype.kind in "iu" and b.dtype.kind in "iu":
            self._add_finite(a, b, _integer_distance(a, b), None, start, places)
            return None
        rounded = _rounded(a) | _rounded(b)
        common = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
        a, b = a.astype(common, copy=False), b.astype(common, copy=False)
        distance: Array = a - b
        distance = np.abs(distance, out=None if distance.dtype.kind == "c" else distance)
        if rounded is not False:  # Such an integer is at least 1 away from every float64.
            distance = np.maximum(distance, rounded)
        if np.isfinite(distance.max()):
            self._add_finite(a, b, distance, unlike, start, places)
            return None
        finite: Array = np.isfinite(a) & np.isfinite(b)
        self._count_special(a, b, unlike)
        places = np.flatnonzero(finite) if places is None else places[finite]
        unlike = None if unlike is None else unlike[finite]
        self._add_finite(a[finite], b[finite], distance[finite], unlike, start, places)
        return finite

    def _count_special(self, a: Array, b: Array, unlike: Array | None) -> None:
        nan_a, nan_b = np.isnan(a), np.isnan(b)
        number = ~(nan_a | nan_b)
        nan_mismatches = _count(nan_a ^ nan_b)
        inf_mismatches = _count((np.isinf(a) | np.isinf(b)) & number & (a != b))
        nan_payloads = 0 if unlike is None else _count(nan_a & nan_b & unlike)
        self._nan_mismatches += nan_mismatches
        self._inf_mismatches += inf_mismatches
        self._nan_payloads += nan_payloads
        self._differing += nan_mismatches + inf_mismatches + nan_payloads
        self._beyond += nan_mismatches + inf_mismatches

    def _add_finite(
        self, a: Array, b: Array, distance: Array, unlike: Array | None, start: int, places: Array | None
    ) -> None:
        if not a.size:
            return
        apart = _count(distance != 0)  # twice as fast as counting floats
        if unlike is not None:
            zero_signs = _count(unlike) - apart
        elif a.dtype.kind == "f" and b.dtype.kind == "f":
            zero_signs = _count((distance == 0) & (np.signbit(a) != np.signbit(b)))
        else:
            zero_signs = 0
        self._zero_signs += zero_signs
        self._differing += apart + zero_signs
        if self._tolerance is not None and apart:
            self._beyond += _count(distance > _bound(a, b, self._tolerance))
        at = int(distance.argmax())
        place = at if places is None else int(places[at])
        self._take_largest(distance[at].item(), start + place, (a[at].item(), b[at].item()))
        self._sum(a, b, distance)

    def _sum(self, a: Array, b: Array, distance: Array) -> None:
        first, second, between = _as_floats(a), _as_floats(b), _as_floats(distance)
        unit = 1
        if not np.isfinite(between.max()):  # A distance beyond float64 is taken at a quarter.
            between, unit = np.abs(first / 4 - second / 4), 16
        for name, x, y in (("_first", first, first), ("_second", second, second), ("_both", first, second)):
            setattr(self, name, getattr(self, name) + (_product(x, y) or 0))
        self._apart += (_product(between, between) or 0) * unit

    def _add_steps(self, one: Array, other: Array, finite: Array | None) -> None:
        if finite is not None:
            of_parts = np.repeat(finite, len(one) // len(finite))  # Complex numbers have two parts.
            one, other = one[of_parts], other[of_parts]
        if one.size:
            self._take_steps(int(_integer_distance(one, other).max()))

    def _take_steps(self, most: int | None) -> None:
        if most is not None:
            self._max_ulp = most if self._max_ulp is None else max(self._max_ulp, most)

    def _take_largest(self, distance: Any, place: int, values: tuple[Any, Any] | None) -> None:
        if distance is None:
            return
        if self._max_abs is None or (distance, -place) > (self._max_abs, -self._max_at):
            self._max_abs, self._max_at, self._max_values = distance, place, values


def _count(found: Array) -> int:
    return int(np.count_nonzero(found))


def _bound(a: Array, b: Array, tolerance: Tolerance) -> Array | float:
    if not tolerance.relative:
        return tolerance.absolute
    larger = np.maximum(np.abs(_as_floats(a)), np.abs(_as_floats(b)))
    bound: Array = np.maximum(tolerance.absolute, tolerance.relative * larger)
    return bound


def _unlike_bits(one: Any, other: Any, dtype: DType) -> Array:
    """Return which elements differ in any bit."""
    width = f"<u{min(dtype.bits // 8, 8)}" if dtype.bits >= 8 else "u1"
    a, b = np.frombuffer(one, width), np.frombuffer(other, width)
    unlike: Array = a != b if dtype.bits >= 8 else unpack_fields(a, dtype.bits) != unpack_fields(b, dtype.bits)
    return np.asarray(unlike.reshape(-1, 2).any(axis=1)) if dtype.bits == 128 else unlike


def _as_floats(values: Array) -> Array:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64, copy=False)


def _rounded(values: Array) -> Any:
    """Return which integers float64 cannot represent; False if it can represent all of the dtype."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return False
    floats = values.astype(np.float64)
    inside = floats < float(np.iinfo(values.dtype).max)  # As a float this is one more than the maximum.
    return ~inside | (np.where(inside, floats, 0).astype(values.dtype) != values)


def _integer_distance(a: Array, b: Array) -> Array:
    """Return the distances of integers; exact unless one is negative and the other beyond 2**63."""
    common = np.result_type(a, b)
    if common.kind == "f":  # NumPy has no common integer for int64 and uint64.
        return _mixed_distance(a, b) if a.dtype.kind == "i" else _mixed_distance(b, a)
    a, b = a.astype(common, copy=False), b.astype(common, copy=False)
    unsigned = common.str.replace("i", "u")  # The difference always fits into it.
    distance: Array = np.maximum(a, b).view(unsigned) - np.minimum(a, b).view(unsigned)
    return distance


def _mixed_distance(signed: Array, unsigned: Array) -> Array:
    wide = signed.astype(np.int64)
    distance = _integer_distance(wide.view(np.uint64), unsigned)
    below = wide < 0
    if below.any():
        distance = np.where(below, unsigned.astype(np.float64) - wide, distance)
    return distance


def _product(x: Array, y: Array) -> Fraction | None:
    """Return the scalar product of two vectors of floats; None if a value is not finite."""
    x, y = x.view(np.float64), y.view(np.float64)  # complex numbers as pairs
    if not x.size:
        return Fraction(0)
    value, exponent = _dot(x, y), 0
    if not 1e-200 < abs(value) < 1e200:  # It may have left the range: repeat, scaled to 1.
        for vector in (x, y):
            peak = float(np.abs(vector).max())
            if not math.isfinite(peak):
                return None
            exponent += math.frexp(peak)[1]
        x, y = (np.ldexp(vector, -math.frexp(float(np.abs(vector).max()))[1]) for vector in (x, y))
        value = _dot(x, y)
    return Fraction(value) * Fraction(2) ** exponent


def _dot(x: Array, y: Array) -> float:
    # Not np.dot, whose BLAS threads compete with the workers.
    return float(np.einsum("i,i->", x, y))


def _relative(apart: Fraction, first: Fraction) -> float:
    if not apart:
        return 0.0
    return _root(apart / first) if first else math.inf


def _cosine(both: Fraction, first: Fraction, second: Fraction) -> float | None:
    if not first or not second:
        return None
    size = min(_root(both * both / (first * second)), 1.0)  # Rounding must not exceed 1.
    return -size if both < 0 else size


def _root(value: Fraction) -> float:
    """Return the square root, also of values beyond float64."""
    shift = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(value / Fraction(4) ** shift), shift) if shift < 1023 else math.inf
