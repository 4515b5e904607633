"""JSON values: numbers and texts in the form that every strict reader takes, and none changes."""

from __future__ import annotations

import math

_SAFE_INTEGER = 1 << 53


def json_number(value: int | float | bool | None) -> int | float | bool | str | None:
    """A number; what JSON has no word for, or what readers round, as text.

    >>> json_number(0.5), json_number(float("nan")), json_number(2**64)
    (0.5, 'NaN', '18446744073709551616')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return str(value)
    return value


def json_text(name: str) -> str:
    r"""A file's name; one that is not UTF-8 has lone surrogates in Python, which strict readers refuse.

    >>> print(json_text("caf\udce9.bpk"))
    caf\udce9.bpk
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
