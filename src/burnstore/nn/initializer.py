"""Fill new parameters as Burn does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..tensor.data import Array, Shape

__all__ = [
    *("Constant", "Initializer", "KaimingNormal", "KaimingUniform", "Normal", "Ones", "Orthogonal", "Uniform"),
    *("XavierNormal", "XavierUniform", "Zeros"),
]

_Rng = np.random.Generator
_Fans = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Initializer:
    """The base of the ways to fill a parameter, with Burn's names and formulas; the numbers are fields.

    ``fan_in`` and ``fan_out`` come from the layer. An initializer that needs one the layer does not have raises
    ValueError, where Burn panics.

    >>> import numpy as np
    >>> from burnstore import nn
    >>> values = nn.KaimingUniform().fill([4, 2], np.random.default_rng(0), fan_in=4)  # on [-1/2, 1/2)
    >>> values.shape, bool(abs(values).max() <= 0.5)
    ((4, 2), True)
    """

    def fill(self, shape: Sequence[int], rng: _Rng, *, fan_in: int | None = None, fan_out: int | None = None) -> Array:
        """Return float32 values of this shape."""
        return np.asarray(self._values(tuple(shape), rng, (fan_in, fan_out)), np.float32)

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        raise TypeError("Initializer is abstract; use one of its subclasses, such as Normal")

    def _fan(self, fan: int | None) -> int:
        if fan is None:
            raise ValueError(f"{type(self).__name__} needs a fan that this parameter does not have")
        if fan == 0:
            raise ValueError(f"{type(self).__name__} divides by the fan, which is 0 for this parameter")
        return fan


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """One value everywhere."""

    value: float

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        return np.full(shape, self.value, np.float32)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Ones(Constant):
    """One everywhere."""

    def __init__(self) -> None:
        object.__setattr__(self, "value", 1.0)

    def __repr__(self) -> str:
        return "Ones()"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Zeros(Constant):
    """Zero everywhere."""

    def __init__(self) -> None:
        object.__setattr__(self, "value", 0.0)

    def __repr__(self) -> str:
        return "Zeros()"


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Uniform on [min, max)."""

    min: float
    max: float

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        return _uniform(rng, self.min, self.max, shape)


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Normal with this mean and standard deviation."""

    mean: float
    std: float

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        return _normal(rng, self.mean, self.std, shape)


@dataclass(frozen=True, slots=True)
class _Kaiming(Initializer):
    gain: float = 1 / math.sqrt(3)
    fan_out_only: bool = False

    def _scale(self, fans: _Fans, factor: float = 1.0) -> float:
        return factor * self.gain / math.sqrt(self._fan(fans[self.fan_out_only]))


@dataclass(frozen=True, slots=True)
class KaimingUniform(_Kaiming):
    """Uniform on [-a, a) with a = √3 · gain / √fan."""

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        bound = self._scale(fans, math.sqrt(3))
        return _uniform(rng, -bound, bound, shape)


@dataclass(frozen=True, slots=True)
class KaimingNormal(_Kaiming):
    """Normal around 0 with standard deviation gain / √fan."""

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        return _normal(rng, 0.0, self._scale(fans), shape)


@dataclass(frozen=True, slots=True)
class _Xavier(Initializer):
    gain: float = 1.0

    def _scale(self, fans: _Fans, factor: float = 1.0) -> float:
        return factor * self.gain * math.sqrt(2 / (self._fan(fans[0]) + self._fan(fans[1])))


@dataclass(frozen=True, slots=True)
class XavierUniform(_Xavier):
    """Uniform on [-a, a) with a = √3 · gain · √(2 / (fan_in + fan_out))."""

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        bound = self._scale(fans, math.sqrt(3))
        return _uniform(rng, -bound, bound, shape)


@dataclass(frozen=True, slots=True)
class XavierNormal(_Xavier):
    """Normal around 0 with standard deviation gain · √(2 / (fan_in + fan_out))."""

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        return _normal(rng, 0.0, self._scale(fans), shape)


@dataclass(frozen=True, slots=True)
class Orthogonal(Initializer):
    """A random orthogonal matrix times gain; needs at least two axes."""

    gain: float = 1.0

    def _values(self, shape: Shape, rng: _Rng, fans: _Fans) -> Array:
        if len(shape) < 2:
            raise ValueError(f"Orthogonal needs at least two axes, got shape {list(shape)}")
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diagonal(r))
        return self.gain * (q.T if rows < columns else q).reshape(shape)


KAIMING = KaimingUniform()
"""The default of most layers; on a fan_in f it is uniform on [-1/√f, 1/√f)."""


def _uniform(rng: _Rng, low: float, high: float, shape: Shape) -> Array:
    if not low < high or not _fits_float32(high - low):
        raise ValueError(f"a uniform range needs finite bounds with min < max, got [{low}, {high})")
    drawn = rng.random(shape, np.float32)
    drawn *= np.float32(high - low)
    drawn += np.float32(low)
    # Rounding may reach the upper bound, which is not part of the range.
    largest = max(np.nextafter(np.float32(high), np.float32(low)), np.float32(low))
    np.minimum(drawn, largest, out=drawn)
    return drawn


def _normal(rng: _Rng, mean: float, std: float, shape: Shape) -> Array:
    if not _fits_float32(mean) or not _fits_float32(std) or std < 0:
        raise ValueError(f"a normal distribution needs a finite mean and a finite std of 0 or more, got {mean}, {std}")
    drawn = rng.standard_normal(shape, np.float32)
    drawn *= np.float32(std)
    drawn += np.float32(mean)
    return drawn


def _fits_float32(value: float) -> bool:
    return abs(value) <= float(np.finfo(np.float32).max)  # False for NaN, too.
