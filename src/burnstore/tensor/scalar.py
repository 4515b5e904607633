"""Scalar: one typed number beside the tensors of a Burnpack file (a learning rate, a step count)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ScalarKind = Literal["Int", "UInt", "Float", "Bool"]

_RANGES = {"Int": (-(1 << 63), (1 << 63) - 1), "UInt": (0, (1 << 64) - 1)}
_INTEGER_TYPES = {
    f"{sign}{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) if sign == "i" else (0, (1 << bits) - 1)
    for sign in "iu"
    for bits in (8, 16, 32, 64)
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number with the kind that Burn stored; kinds are kept, so that a file is written back unchanged.

    >>> Scalar.of(0.5), Scalar("UInt", 42).to("u8")
    (Scalar(kind='Float', value=0.5), 42)
    """

    kind: ScalarKind
    value: int | float | bool

    def __post_init__(self) -> None:
        wanted = {"Int": int, "UInt": int, "Float": float, "Bool": bool}.get(self.kind)
        if wanted is None:
            raise ValueError(f"expected the scalar kind Int, UInt, Float or Bool, got {self.kind!r}")
        if type(self.value) is not wanted:
            raise TypeError(f"a scalar of kind {self.kind} must be {wanted.__name__}, got {type(self.value).__name__}")
        if self.kind in _RANGES:
            low, high = _RANGES[self.kind]
            if not low <= self.value <= high:
                raise ValueError(f"{self.value} does not fit a scalar of kind {self.kind}")

    @classmethod
    def of(cls, value: object) -> Scalar:
        """Return the scalar of a Python bool, float or int (``UInt`` only beyond the range of ``Int``)."""
        if isinstance(value, Scalar):
            return value
        if isinstance(value, bool):
            return cls("Bool", value)
        if isinstance(value, float):
            return cls("Float", float(value))
        if isinstance(value, int):
            return cls("UInt" if value > _RANGES["Int"][1] else "Int", int(value))
        raise TypeError(f"a scalar must be an int, float, bool or Scalar, got {type(value).__name__}")

    def to(self, name: str) -> int | float | bool:
        """Return the value as one of Burn's types (``i8`` .. ``u64``, ``f32``, ``f64``, ``bool``).

        Integers accept Int and UInt in range, floats every number, bool only Bool; otherwise ValueError.
        """
        if name == "bool" and self.kind == "Bool":
            return self.value
        if name in ("f32", "f64") and self.kind != "Bool":
            return float(self.value)
        if name in _INTEGER_TYPES and self.kind in _RANGES:
            low, high = _INTEGER_TYPES[name]
            if low <= self.value <= high:
                return self.value
        raise ValueError(f"{self.kind} {self.value} does not fit {name}")
