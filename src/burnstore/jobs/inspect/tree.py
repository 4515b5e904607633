"""Outlining: the tensors of a file by the modules that their names tell of, each with its totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .inspect import TensorRow, Totals

# What is nested deeper stays one name: no file makes a tree that cannot be shown.
DEEPEST = 64


@dataclass(slots=True)
class Outline:
    """A module: how much it holds in all, of which dtypes, and what lies in it.

    ``tensors`` are its own, by the rest of their names; ``modules`` those inside it, by theirs.
    """

    count: int = 0
    elements: int = 0
    nbytes: int = 0
    dtypes: dict[str, None] = field(default_factory=dict)
    modules: dict[str, Outline] = field(default_factory=dict)
    tensors: dict[str, TensorRow] = field(default_factory=dict)

    @property
    def total(self) -> Totals:
        """How many tensors lie in it, at any depth, with how many elements and bytes."""
        return Totals(self.count, self.elements, self.nbytes)

    def walk(self) -> Iterator[tuple[tuple[str, ...], Outline]]:
        """This module and all below it, each with the names on the way to it, parents first."""
        todo: list[tuple[tuple[str, ...], Outline]] = [((), self)]
        while todo:
            path, module = todo.pop()
            yield path, module
            todo += [((*path, name), inner) for name, inner in reversed(module.modules.items())]

    def to_dicts(self) -> list[dict[str, Any]]:
        """The same as plain data for JSON: every module by its path, the whole first, under no name."""
        return [
            {"path": ".".join(path), **module.total.to_dict(), "dtypes": list(module.dtypes)}
            for path, module in self.walk()
        ]


def outline(rows: Iterable[TensorRow], *, depth: int = DEEPEST) -> Outline:
    """The modules that the names of these tensors tell of, at most so many levels deep.

    Names are taken apart at their dots; what lies deeper than ``depth`` counts for the module above it.

    >>> import numpy as np, burnstore as bs
    >>> tensors = {"conv.weight": np.zeros((3, 3)), "conv.bias": np.zeros(3), "fc.weight": np.zeros(4)}
    >>> whole = bs.outline(bs.inspect(bs.serialize(tensors, format="burnpack")).tensors)
    >>> [(".".join(path), module.total.elements) for path, module in whole.walk()]
    [('', 16), ('conv', 12), ('fc', 4)]
    """
    if depth < 0:
        raise ValueError(f"a depth is not negative, got {depth}")
    whole = Outline()
    deepest = min(depth, DEEPEST)
    for row in rows:
        *names, last = row.name.split(".", DEEPEST)
        module = whole
        _count(module, row)
        for name in names[:deepest]:
            inner = module.modules.get(name)
            if inner is None:
                inner = module.modules[name] = Outline()
            module = inner
            _count(module, row)
        if len(names) <= deepest:
            module.tensors[last] = row
    return whole


def _count(module: Outline, row: TensorRow) -> None:
    module.count += 1
    module.elements += row.elements
    module.nbytes += row.nbytes
    module.dtypes[row.dtype.name] = None
