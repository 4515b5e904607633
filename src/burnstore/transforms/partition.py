"""Partition: how the tensors of a model are divided among ranks, and the part that one rank has.

A rule is a pattern that is found in a tensor's name, and what becomes of such a tensor: ``"rows"`` divides its first
axis, ``"columns"`` its second, an integer any other, ``"replicate"`` leaves it whole. Axes are those of the tensor as
the model has it, after everything else was done to it: the rows of a Linear's weight are its outputs in PyTorch and its
inputs in Burn. The first rule that matches counts; a name that none matches is an error, because a tensor that was
forgotten would be wrong on every rank.

Several matrices in one tensor, such as the queries, keys and values of an attention, must be divided each by itself:
``("rows", 3)`` says that there are three of equal size, ``("rows", (4096, 1024, 1024))`` how many rows each has.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError, located
from ..tensor.snapshot import TensorSnapshot
from .axes import joined, sliced
from .codes import sliced_codes
from .patterns import compile_pattern

_AXES = {"rows": 0, "columns": 1}
_REPLICATE = "replicate"


@dataclass(frozen=True, slots=True)
class _Division:
    """The axis along which a tensor is divided, None for none, and the blocks in which that is done one by one."""

    axis: int | None
    blocks: int | tuple[int, ...] = 1

    def __repr__(self) -> str:
        name = next((word for word, axis in _AXES.items() if axis == self.axis), self.axis)
        if name is None:
            return repr(_REPLICATE)
        return repr(name) if self.blocks == 1 else repr((name, self.blocks))


class Partition:
    """Which part of every tensor each of several ranks has: patterns that are found in names, and how to divide.

    ``uneven`` also divides what does not come out even: the first ranks then have one row or column more, as with
    ``torch.tensor_split``. Immutable, picklable, and equal to a partition of equal rules.

    >>> import numpy as np, burnstore as bs
    >>> rules = bs.Partition({
    ...     r"\\.(q|k|v)_proj\\.": "rows",
    ...     r"\\.o_proj\\.weight$": "columns",
    ...     r".*": "replicate",
    ... })
    >>> whole = [TensorSnapshot.from_numpy("h.0.q_proj.weight", np.arange(8, dtype=np.int16).reshape(4, 2))]
    >>> [part] = rules.slice(whole, rank=1, world=2)
    >>> part, part.numpy().tolist()
    (TensorSnapshot('h.0.q_proj.weight', I16, [2, 2]), [[4, 5], [6, 7]])
    """

    __slots__ = ("_rules", "_uneven")

    def __init__(self, rules: Mapping[str | re.Pattern[str], Any], *, uneven: bool = False) -> None:
        if not isinstance(rules, Mapping):
            raise TypeError(f"rules map patterns to how a tensor is divided, they cannot be a {type(rules).__name__}")
        if not isinstance(uneven, bool):
            raise TypeError(f"uneven is a bool, not {type(uneven).__name__}")
        self._rules = tuple((compile_pattern(pattern), _division(how)) for pattern, how in rules.items())
        self._uneven = uneven

    def slice(self, snapshots: Iterable[TensorSnapshot], *, rank: int, world: int) -> list[TensorSnapshot]:
        """The part that a rank has of each of these tensors, under the same names; nothing is read yet.

        Rows are later read as one range. Other parts are read by the runs of bytes that they consist of where these are
        in the page cache or rows are long (128 KiB), and otherwise with what lies between them.

        Raises ModelError for a name that no rule matches, for a tensor without the axis, and for an extent that does
        not divide by ``world``; DTypeError where a block of a quantized tensor would be cut.
        """
        if isinstance(snapshots, Mapping):
            raise TypeError(f"snapshots are a list, not a {type(snapshots).__name__}; give its values()")
        part = Part(self, rank, world)
        return [part.of(snapshot, snapshot.path) for snapshot in snapshots]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        return (self._rules, self._uneven) == (other._rules, other._uneven)

    def __hash__(self) -> int:
        return hash((self._rules, self._uneven))

    def __repr__(self) -> str:
        rules = ", ".join(f"{pattern.pattern!r}: {division!r}" for pattern, division in self._rules)
        return f"Partition({{{rules}}}{', uneven=True' if self._uneven else ''})"


@dataclass(frozen=True, slots=True)
class Part:
    """What one of several ranks has of every tensor."""

    partition: Partition
    rank: int
    world: int

    def __post_init__(self) -> None:
        if not isinstance(self.partition, Partition):
            raise TypeError(f"a partition is a Partition, not {type(self.partition).__name__}")
        for name in ("rank", "world"):
            if isinstance(getattr(self, name), bool) or not hasattr(getattr(self, name), "__index__"):
                raise TypeError(f"{name} is an int, not {type(getattr(self, name)).__name__}")
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if not 0 <= self.rank < self.world:
            raise ValueError(f"there is no rank {self.rank} in a world of {self.world}: ranks are counted from 0")

    def of(self, snapshot: TensorSnapshot, name: str) -> TensorSnapshot:
        """This rank's part of the tensor that the model calls by this name."""
        with located(tensor=name):
            division = self._division_of(name)
            axis = division.axis
            if axis is None:
                return snapshot
            if axis >= len(snapshot.shape):
                raise ModelError(
                    f"it is divided by {division!r}, and its shape {list(snapshot.shape)} has no axis {axis}",
                    hint='a bias that is added once, after the ranks\' results, is whole everywhere: "replicate"',
                )
            cut = sliced_codes if snapshot.dtype.is_quantized else sliced
            parts = [cut(snapshot, axis, *ends) for ends in self._ends(snapshot.shape[axis], division)]
            return parts[0] if len(parts) == 1 else joined(parts)

    def unmatched(self, names: Sequence[str]) -> list[str]:
        """The patterns that are found in none of these names, which is seldom meant."""
        patterns = [pattern for pattern, _ in self.partition._rules]
        return [pattern.pattern for pattern in patterns if not any(map(pattern.search, names))]

    def _division_of(self, name: str) -> _Division:
        for pattern, division in self.partition._rules:
            if pattern.search(name):
                return division
        raise ModelError("no rule of the partition matches it", hint='a last rule ".*": "replicate" takes the rest')

    def _ends(self, extent: int, division: _Division) -> Iterator[tuple[int, int]]:
        """Where this rank's part of each block begins and ends."""
        start = 0
        for size in _sizes(extent, division):
            each, more = divmod(size, self.world)
            if more and not self.partition._uneven:
                block = "" if division.blocks == 1 else f" (in a block of {size})"
                raise ModelError(
                    f"axis {division.axis} has {extent}{block}, which {self.world} ranks cannot have equal parts of",
                    hint="Partition(rules, uneven=True) gives the first ranks one more",
                )
            begin = start + self.rank * each + min(self.rank, more)
            yield begin, begin + each + (self.rank < more)
            start += size

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} by {self.partition!r}"


def _sizes(extent: int, division: _Division) -> tuple[int, ...]:
    blocks = division.blocks
    if isinstance(blocks, tuple):
        if sum(blocks) != extent:
            raise ModelError(f"axis {division.axis} has {extent}, and blocks of {list(blocks)} make {sum(blocks)}")
        return blocks
    if extent % blocks:
        raise ModelError(f"axis {division.axis} has {extent}, which are not {blocks} blocks of equal size")
    return (extent // blocks,) * blocks


def _division(how: Any) -> _Division:
    blocks: Any = 1
    if isinstance(how, tuple):
        if len(how) != 2:
            raise TypeError(f'a tuple is ("rows", blocks), not {how!r}')
        how, blocks = how
    if isinstance(how, int) and not isinstance(how, bool):
        if how < 0:
            raise ValueError(f"axes are counted from 0, there is no {how}")
        axis = how
    elif how == _REPLICATE and blocks == 1:
        return _Division(None)
    elif isinstance(how, str) and how in _AXES:
        axis = _AXES[how]
    else:
        raise ValueError(
            f'a tensor is divided by "rows", "columns", an axis, or left whole by "replicate"; not {how!r}'
        )
    return _Division(axis, _blocks(blocks, axis))


def _blocks(blocks: Any, axis: int) -> int | tuple[int, ...]:
    given = [blocks] if isinstance(blocks, int) else blocks
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise TypeError(f"blocks are a number, or the rows of each; not {blocks!r}")
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in given):
        raise ValueError(f"blocks are counted and have rows: {blocks!r}")
    if axis != 0 and blocks != 1:
        raise ValueError(f"only rows are divided in blocks, not axis {axis}")
    return blocks if isinstance(blocks, int) else tuple(blocks)
