"""Scalar: a single typed number beside the tensors of a Burnpack file (learning rates, step counts, ranks)."""

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
    """A number with the kind that Burn stored it under; kinds are kept, so a file is written back as it was.

    >>> Scalar.of(0.5), Scalar("UInt", 42).to("u8")
    (Scalar(kind='Float', value=0.5), 42)
    """

    kind: ScalarKind
    value: int | float | bool

    def __post_init__(self) -> None:
        wanted = {"Int": int, "UInt": int, "Float": float, "Bool": bool}.get(self.kind)
        if wanted is None:
            raise ValueError(f"a scalar's kind is Int, UInt, Float or Bool, not {self.kind!r}")
        if type(self.value) is not wanted:
            raise TypeError(f"a scalar of kind {self.kind} holds {wanted.__name__}, not {type(self.value).__name__}")
        if self.kind in _RANGES:
            low, high = _RANGES[self.kind]
            if not low <= self.value <= high:
                raise ValueError(f"{self.value} does not fit a scalar of kind {self.kind}")

    @classmethod
    def of(cls, value: object) -> Scalar:
        """The scalar of a Python number: bool, float, or int (``Int``, and ``UInt`` only where it must be)."""
        if isinstance(value, Scalar):
            return value
        if isinstance(value, bool):
            return cls("Bool", value)
        if isinstance(value, float):
            return cls("Float", float(value))
        if isinstance(value, int):
            return cls("UInt" if value > _RANGES["Int"][1] else "Int", int(value))
        raise TypeError(f"a scalar is an int, float, bool or Scalar, not {type(value).__name__}")

    def to(self, name: str) -> int | float | bool:
        """The value as one of Burn's types (``i8`` .. ``u64``, ``f32``, ``f64``, ``bool``), if it fits it.

        Integers take Int and UInt in range, floats every number, bool only Bool; all else is a ValueError.
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
