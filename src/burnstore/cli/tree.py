"""A tree of modules with what each holds, as a table whose first column is the tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from ..jobs.inspect.inspect import TensorRow
from ..jobs.inspect.tree import Outline
from .table import Column, render
from .text import Screen, can_show, escape, size

Part = TypeVar("Part", Outline, TensorRow)

_BRANCHES = ("├─ ", "│  ", "└─ ", "   ")
_PLAIN_BRANCHES = ("|- ", "|  ", "`- ", "   ")


@dataclass(frozen=True, slots=True)
class _Line:
    """A module or a tensor, under the part of its name that tells it from its neighbours."""

    name: str
    tensors: int
    elements: int
    nbytes: int
    dtype: str
    shape: str


def tree_lines(whole: Outline, screen: Screen, *, largest_first: bool = False) -> Iterator[str]:
    """The lines of the table: the whole first, then below each module its own tensors and its modules."""
    branches = _BRANCHES if can_show("".join(_BRANCHES)) else _PLAIN_BRANCHES
    lines = [_of_module("(all)", whole), *_below(whole, "", branches, largest_first)]
    return render(
        [
            Column("MODULE", [line.name for line in lines], least=24),
            Column("TENSORS", [f"{line.tensors:,}" for line in lines], right=True, spare=3),
            Column("PARAMETERS", [f"{line.elements:,}" for line in lines], right=True, spare=6),
            Column("SIZE", [size(line.nbytes, gap="") for line in lines], right=True, spare=5),
            Column("BYTES", [str(line.nbytes) for line in lines], right=True, spare=1),
            Column("DTYPE", [line.dtype for line in lines], least=8, spare=4, style="36"),
            Column("SHAPE", [line.shape for line in lines], least=8, spare=2),
        ],
        screen,
    )


def _below(module: Outline, margin: str, branches: tuple[str, ...], largest_first: bool) -> Iterator[_Line]:
    tensors = _ordered(module.tensors, largest_first)
    modules = _ordered(module.modules, largest_first)
    left = len(tensors) + len(modules)
    for name, row in tensors:
        left -= 1
        branch = branches[0] if left else branches[2]
        yield _Line(
            margin + branch + escape(name),
            1,
            row.elements,
            row.nbytes,
            row.dtype.name,
            f"[{','.join(map(str, row.shape))}]",
        )
    for name, inner in modules:
        left -= 1
        branch, deeper = (branches[0], branches[1]) if left else (branches[2], branches[3])
        yield _of_module(margin + branch + escape(name), inner)
        yield from _below(inner, margin + deeper, branches, largest_first)


def _of_module(name: str, module: Outline) -> _Line:
    return _Line(name, module.count, module.elements, module.nbytes, ",".join(module.dtypes), "")


def _ordered(parts: dict[str, Part], largest_first: bool) -> list[tuple[str, Part]]:
    return sorted(parts.items(), key=lambda part: -part[1].nbytes) if largest_first else list(parts.items())
