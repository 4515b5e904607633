"""A mixin for results: a table for pandas and HTML for notebooks, both made of their plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..errors import MissingDependencyError
from .note import note_kind
from .plain import Plain

_TABLES = ("tensors", "moves", "findings", "records", "files")
_OUTCOMES = {name: name for name in ("applied", "skipped", "missing", "unused", "errors")}
_OUTCOMES |= {"tensors": "tensor", "left_out": "left out", "files": "file"}


class Tabular:
    """A mixin for classes with ``to_dict``: `to_pandas`, and what a notebook shows."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each tensor (or file), and a column for each fact about it.

        Facts of facts have names such as ``stats.mean``. Raises MissingDependencyError without pandas.
        """
        try:
            import pandas as pd  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError as error:
            raise MissingDependencyError("to_pandas needs pandas", hint="pip install pandas") from error
        return pd.DataFrame(records_of(self.to_dict()))

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        from .notebook import records_panel  # not at import: only notebooks need it

        document = self.to_dict()
        return records_panel(type(self).__name__, document, records_of(document))


class Result(Plain, Tabular):
    """What a job did or found: its plain data, whether that is good, and a table. A bad result is false.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Count(Result):
    ...     tensors: int
    ...     ok = property(lambda count: count.tensors > 0)
    >>> bool(Count(0)), Count(2).to_dict()
    (False, {'ok': True, 'tensors': 2})
    """

    __slots__ = ()

    _facts: ClassVar[tuple[str, ...]] = ("ok",)

    @property
    def ok(self) -> bool:
        """Whether the job did what it was asked for; doing nothing counts only where that was allowed."""
        return not any(note_kind(note) == "empty" for note in getattr(self, "notes", ()))

    def __bool__(self) -> bool:
        return self.ok

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON; the bytes of all tensors together are called ``bytes``."""
        return {"bytes" if name == "nbytes" else name: fact for name, fact in Plain.to_dict(self).items()}


def records_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a result's plain data: its list of tensors, or each name with what became of it.

    >>> records_of({"tensors": [{"name": "a", "stats": {"mean": 0.5}}]})
    [{'name': 'a', 'stats.mean': 0.5}]
    >>> records_of({"applied": ["a"], "left_out": {"b": "filtered"}})
    [{'name': 'a', 'outcome': 'applied', 'reason': None}, {'name': 'b', 'outcome': 'left out', 'reason': 'filtered'}]
    """
    for key in _TABLES:
        rows = document.get(key)
        if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
            return [dict(_flat(row)) for row in rows]
    found = []
    for key, outcome in _OUTCOMES.items():
        entries = document.get(key)
        if isinstance(entries, Mapping):
            found += [{"name": name, "outcome": outcome, "reason": why} for name, why in entries.items()]
        elif isinstance(entries, list):
            for entry in entries:
                name, why = (entry, None) if isinstance(entry, str) else (entry.get("path"), entry.get("message"))
                found.append({"name": name, "outcome": outcome, "reason": why})
    return found


def _flat(row: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in row.items():
        found += _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else [(before + key, value)]
    return found
