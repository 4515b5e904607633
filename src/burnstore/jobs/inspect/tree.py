"""Describe the tensors of a file, one row each, and group them by the modules in their names, with totals."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.param_id import ParamId
from ...tensor.plain import Plain, json_text
from ..stats import TensorStats

# Names nested deeper are not split further, so that every tree can be shown.
DEEPEST = 64
_DIGITS = re.compile("([0-9]+)")


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor of a file: its description, the place of its bytes, and its statistics if wanted.

    ``offset`` is None if the bytes are compressed or in several places. ``shard`` is the file of a set that contains
    them, None for a single file. ``problem`` is the reason why wanted statistics could not be computed. ``tied_to`` is
    an earlier tensor with the same bytes; totals count the two once. ``scheme`` is how the file stores a tensor in
    codes (``Q4_K``); ``dtype``, ``shape`` and ``nbytes`` are then those of the decoded values.
    """

    name: str
    dtype: DType
    shape: Shape
    elements: int
    nbytes: int
    offset: int | None
    param_id: ParamId | None
    shard: str | None = None
    stats: TensorStats | None = None
    problem: str | None = None
    tied_to: str | None = None
    scheme: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; the id is a decimal string, because JavaScript rounds 64-bit numbers."""
        identity = None if self.param_id is None else {"number": f"{int(self.param_id)}", "text": str(self.param_id)}
        return {
            "name": self.name,
            "dtype": self.dtype.name,
            "quantization": self.scheme or (None if self.dtype.scheme is None else str(self.dtype.scheme)),
            "shape": list(self.shape),
            "elements": self.elements,
            "nbytes": self.nbytes,
            "offset": self.offset,
            "shard": None if self.shard is None else json_text(self.shard),
            "param_id": identity,
            "stats": None if self.stats is None else self.stats.to_dict(),
            "problem": self.problem,
            "tied_to": self.tied_to,
        }


@dataclass(frozen=True, slots=True)
class Totals(Plain):
    """A number of tensors, with their elements and bytes."""

    tensors: int = 0
    elements: int = 0
    nbytes: int = 0

    @classmethod
    def of(cls, rows: Iterable[TensorRow]) -> Totals:
        """Return the totals of these tensors."""
        rows = list(rows)
        counted = list({row.tied_to or row.name: row for row in rows}.values()) if any_tied(rows) else rows
        return cls(len(rows), sum([row.elements for row in counted]), sum([row.nbytes for row in counted]))


def any_tied(rows: Iterable[TensorRow]) -> bool:
    """Return whether two tensors have the same bytes."""
    return bool({row.tied_to for row in rows} - {None})


@dataclass(slots=True)
class ModuleTree:
    """A module: the totals of everything in it, its dtypes, its own tensors, and its modules by name.

    >>> import numpy as np, burnstore as bs
    >>> tensors = {"conv.weight": np.zeros((3, 3)), "conv.bias": np.zeros(3), "fc.weight": np.zeros(4)}
    >>> tree = bs.inspect(bs.serialize(tensors, format="burnpack")).tree
    >>> [(".".join(path), module.total.elements) for path, module in tree.walk()]
    [('', 16), ('conv', 12), ('fc', 4)]
    """

    count: int = 0
    elements: int = 0
    nbytes: int = 0
    dtypes: dict[str, None] = field(default_factory=dict)
    modules: dict[str, ModuleTree] = field(default_factory=dict)
    tensors: dict[str, TensorRow] = field(default_factory=dict)
    _counted: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def of(cls, rows: Iterable[TensorRow], *, depth: int = DEEPEST) -> ModuleTree:
        """Return the modules of these tensors, whose names are split at dots, at most ``depth`` levels deep.

        Deeper tensors count for the module above them.
        """
        if depth < 0:
            raise ValueError(f"depth must be 0 or more, got {depth}")
        whole = cls()
        deepest = min(depth, DEEPEST)
        rows = list(rows)
        tied = {row.tied_to for row in rows}
        for row in rows:
            *names, last = row.name.split(".", DEEPEST)
            module = whole
            module._add(row, tied)
            for name in names[:deepest]:
                inner = module.modules.get(name)
                if inner is None:
                    inner = module.modules[name] = cls()
                module = inner
                module._add(row, tied)
            if len(names) <= deepest:
                module.tensors[last] = row
        return whole

    def _add(self, row: TensorRow, tied: Collection[str | None]) -> None:
        self.count += 1
        self.dtypes[row.dtype.name] = None
        first = row.tied_to or row.name
        if first in tied:
            if first in self._counted:
                return
            self._counted.add(first)
        self.elements += row.elements
        self.nbytes += row.nbytes

    @property
    def total(self) -> Totals:
        """The totals of the tensors in the module, at any depth."""
        return Totals(self.count, self.elements, self.nbytes)

    def walk(self) -> Iterator[tuple[tuple[str, ...], ModuleTree]]:
        """Yield this module and all below it, parents first, each with its path."""
        pending: list[tuple[tuple[str, ...], ModuleTree]] = [((), self)]
        while pending:
            path, module = pending.pop()
            yield path, module
            pending += [((*path, name), inner) for name, inner in reversed(module.modules.items())]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return plain data for JSON: every module with its path, the whole first with an empty path."""
        return [
            {"path": ".".join(path), **module.total.to_dict(), "dtypes": list(module.dtypes)}
            for path, module in self.walk()
        ]


def natural_order(name: str) -> list[Any]:
    """Return a key that puts ``layers.2`` before ``layers.10``: text and numbers alternate in it."""
    parts: list[Any] = _DIGITS.split(name)
    for at in range(1, len(parts), 2):
        digits = parts[at].lstrip("0")
        parts[at] = (len(digits), digits, parts[at])  # int() refuses thousands of digits.
    return parts
