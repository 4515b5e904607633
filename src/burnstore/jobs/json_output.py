"""Make JSON values that every strict reader accepts unchanged."""

from __future__ import annotations

import math

_SAFE_INTEGER = 1 << 53


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


def json_text(name: str) -> str:
    r"""Return a file name without lone surrogates (from names that are not UTF-8), which strict readers refuse.

    >>> print(json_text("caf\udce9.bpk"))
    caf\udce9.bpk
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
