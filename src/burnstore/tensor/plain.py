"""Convert results into plain data that every strict JSON reader accepts unchanged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from ..errors import BurnstoreError
from ..tensor.dtype import DType
from ..tensor.scalar import Scalar

_SAFE_INTEGER = 1 << 53


class Plain:
    """A mixin for dataclasses: `to_dict` returns the facts and the fields as plain data."""

    __slots__ = ()

    _facts: ClassVar[tuple[str, ...]] = ()
    """Properties that the plain data have besides the fields, before them."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON: NaN, and numbers that a reader might round, are strings."""
        names = (*self._facts, *(each.name for each in fields(self) if each.name[0] != "_"))  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in names}


def plain(value: Any) -> Any:
    """Return a value as plain data for strict JSON.

    >>> plain({"shape": (2, 3), "max": float("inf"), "dtype": DType.F32, "at": 1j})
    {'shape': [2, 3], 'max': 'Infinity', 'dtype': 'F32', 'at': [0.0, 1.0]}
    """
    if isinstance(value, (int, float)) or value is None:
        return json_number(value)
    if isinstance(value, str) and not hasattr(value, "to_dict"):
        return json_text(value)
    if isinstance(value, complex):
        return [json_number(value.real), json_number(value.imag)]
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, DType):
        return str(value)
    if isinstance(value, Scalar):
        return {"kind": value.kind, "value": json_number(value.value)}
    if isinstance(value, BurnstoreError):
        facts = ("message", "rule", "tensor", "offset", "hint")
        return {"kind": type(value).__name__, **{fact: getattr(value, fact) for fact in facts}}
    if isinstance(value, OSError):
        return {"kind": type(value).__name__, "message": json_text(str(value))}
    return value.to_dict()


def json_number(value: int | float | bool | None) -> int | float | bool | str | None:
    """Return a number, or a string for numbers that JSON lacks or readers round.

    >>> json_number(0.5), json_number(float("nan")), json_number(2**64)
    (0.5, 'NaN', '18446744073709551616')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return str(value)
    return value


def json_text(text: str) -> str:
    r"""Return text without lone surrogates (from file names that are not UTF-8), which strict readers refuse.

    >>> print(json_text("caf\udce9.bpk"))
    caf\udce9.bpk
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
