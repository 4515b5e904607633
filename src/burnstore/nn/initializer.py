"""Initializer: how Burn fills a new parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Initializer:
    """The ways to fill a parameter, by Burn's names and formulas; each is a subclass with its numbers as fields.

    ``fan_in`` and ``fan_out`` are what the layer passes; an initializer that needs one the layer does not have raises
    ValueError, where Burn panics.

    >>> import numpy as np
    >>> from burnstore import nn
    >>> values = nn.KaimingUniform().fill([4, 2], np.random.default_rng(0), fan_in=4)  # on [-1/2, 1/2)
    >>> values.shape, bool(abs(values).max() <= 0.5)
    ((4, 2), True)
    """

    def fill(
        self,
        shape: Sequence[int],
        rng: np.random.Generator,
        *,
        fan_in: int | None = None,
        fan_out: int | None = None,
    ) -> Array:
        """Float32 values of this shape."""
        return np.asarray(self._values(tuple(shape), rng, fan_in, fan_out), np.float32)

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
        raise TypeError("Initializer itself fills nothing; take one of its kinds")


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """One value everywhere."""

    value: float

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
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

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
        return _uniform(rng, self.min, self.max, shape)


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Normal with this mean and standard deviation."""

    mean: float
    std: float

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
        return _normal(rng, self.mean, self.std, shape)


@dataclass(frozen=True, slots=True)
class KaimingUniform(Initializer):
    """Uniform on [-a, a) with a = √3 · gain / √fan."""

    gain: float = 1 / math.sqrt(3)
    fan_out_only: bool = False

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
        bound = math.sqrt(3) * self.gain / math.sqrt(_one_fan(self, fan_out if self.fan_out_only else fan_in))
        return _uniform(rng, -bound, bound, shape)


@dataclass(frozen=True, slots=True)
class KaimingNormal(Initializer):
    """Normal around 0 with standard deviation gain / √fan."""

    gain: float = 1 / math.sqrt(3)
    fan_out_only: bool = False

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
        return _normal(rng, 0.0, self.gain / math.sqrt(_one_fan(self, fan_out if self.fan_out_only else fan_in)), shape)


@dataclass(frozen=True, slots=True)
class XavierUniform(Initializer):
    """Uniform on [-a, a) with a = √3 · gain · √(2 / (fan_in + fan_out))."""

    gain: float = 1.0

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
        bound = math.sqrt(3) * self.gain * math.sqrt(2 / (_one_fan(self, fan_in) + _one_fan(self, fan_out)))
        return _uniform(rng, -bound, bound, shape)


@dataclass(frozen=True, slots=True)
class XavierNormal(Initializer):
    """Normal around 0 with standard deviation gain · √(2 / (fan_in + fan_out))."""

    gain: float = 1.0

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
        return _normal(rng, 0.0, self.gain * math.sqrt(2 / (_one_fan(self, fan_in) + _one_fan(self, fan_out))), shape)


@dataclass(frozen=True, slots=True)
class Orthogonal(Initializer):
    """A random orthogonal matrix times gain; needs at least two axes."""

    gain: float = 1.0

    def _values(
        self, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None, fan_out: int | None
    ) -> Array:
        if len(shape) < 2:
            raise ValueError(f"Orthogonal needs at least two axes, not shape {list(shape)}")
        rows, columns = shape[0], math.prod(shape[1:])
        drawn = rng.standard_normal((max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(drawn)
        q *= np.sign(np.diagonal(r))
        return self.gain * (q.T if rows < columns else q).reshape(shape)


def _one_fan(initializer: Initializer, fan: int | None) -> int:
    if fan is None:
        raise ValueError(f"{type(initializer).__name__} needs a fan that this parameter does not have")
    if fan == 0:
        raise ValueError(f"{type(initializer).__name__} divides by the fan, which is 0 for this parameter")
    return fan


def _uniform(rng: np.random.Generator, low: float, high: float, shape: tuple[int, ...]) -> Array:
    if not low < high or not _fits_float32(high - low):
        raise ValueError(f"a uniform range needs finite bounds with min < max, not [{low}, {high})")
    drawn = rng.random(shape, np.float32)
    drawn *= np.float32(high - low)
    drawn += np.float32(low)
    # Rounding may reach the upper bound, which is not part of the range.
    largest = max(np.nextafter(np.float32(high), np.float32(low)), np.float32(low))
    np.minimum(drawn, largest, out=drawn)
    return drawn


def _normal(rng: np.random.Generator, mean: float, std: float, shape: tuple[int, ...]) -> Array:
    if not _fits_float32(mean) or not _fits_float32(std) or std < 0:
        raise ValueError(f"a normal distribution needs a finite mean and deviation (not negative), not {mean}, {std}")
    drawn = rng.standard_normal(shape, np.float32)
    drawn *= np.float32(std)
    drawn += np.float32(mean)
    return drawn


def _fits_float32(value: float) -> bool:
    return abs(value) <= float(np.finfo(np.float32).max)  # false for NaN, too
