"""Partition: how the tensors of a model are divided among ranks, and the part of one rank.

A rule is a pattern to search in a tensor's name, and how to divide such a tensor: ``"rows"`` divides its first axis,
``"columns"`` its second, an integer any other, ``"replicate"`` leaves it whole. Axes are those of the model's tensor,
after all conversions: the rows of a Linear's weight are its outputs in PyTorch and its inputs in Burn. The first rule
that matches counts; a name that none matches is an error, because a forgotten tensor would be wrong on every rank.

Several matrices in one tensor, such as the queries, keys and values of an attention, are divided separately:
``("rows", 3)`` for three of equal size, ``("rows", (4096, 1024, 1024))`` for the rows of each.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError, expect, located
from ..tensor.snapshot import TensorSnapshot
from .axes import joined, sliced
from .patterns import compile_pattern
from .quantized_slices import sliced_codes

_AXES = {"rows": 0, "columns": 1}
_REPLICATE = "replicate"


@dataclass(frozen=True, slots=True)
class _Division:
    """The axis along which a tensor is divided, or None, and the blocks that are divided separately."""

    axis: int | None
    blocks: int | tuple[int, ...] = 1

    def __repr__(self) -> str:
        name = next((word for word, axis in _AXES.items() if axis == self.axis), self.axis)
        if name is None:
            return repr(_REPLICATE)
        return repr(name) if self.blocks == 1 else repr((name, self.blocks))


class Partition:
    """The part of every tensor that each of several ranks has: patterns to search in names, and how to divide.

    With ``uneven`` an extent that does not divide evenly gives the first ranks one row or column more, as
    ``torch.tensor_split`` does. Immutable, picklable, and equal to a partition of equal rules.

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
        expect(rules, Mapping, "rules")  # type: ignore[type-abstract]
        self._rules = tuple((compile_pattern(pattern), _division(how)) for pattern, how in rules.items())
        self._uneven = expect(uneven, bool, "uneven")

    def slice(self, snapshots: Iterable[TensorSnapshot], *, rank: int, world: int) -> list[TensorSnapshot]:
        """Return a rank's part of each of these tensors, under the same names; nothing is read yet.

        Rows are later read as one range, other parts as `burnstore.io.runs` describes.

        Raises ModelError for a name that no rule matches, for a tensor without the axis, and for an extent that does
        not divide by ``world``; DTypeError where a block of a quantized tensor would be split.
        """
        if isinstance(snapshots, Mapping):
            raise TypeError(f"snapshots must be a list, got {type(snapshots).__name__}; pass its values()")
        part = Part(self, rank, world)
        return [part.of(snapshot, snapshot.path) for snapshot in snapshots]

    def part(self, *, rank: int, world: int) -> Part:
        """Return what one rank has of every tensor, for ``part=`` of `burnstore.load`."""
        return Part(self, rank, world)

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
    """The part of every tensor that one of several ranks has."""

    partition: Partition
    rank: int
    world: int

    def __post_init__(self) -> None:
        expect(self.partition, Partition, "partition")
        for name in ("rank", "world"):
            value = getattr(self, name)
            is_index = hasattr(value, "__index__") and not isinstance(value, bool)
            object.__setattr__(self, name, operator.index(value) if is_index else expect(value, int, name))
        if not 0 <= self.rank < self.world:
            raise ValueError(f"no rank {self.rank} in a world of {self.world}: ranks count from 0")

    def of(self, snapshot: TensorSnapshot, name: str) -> TensorSnapshot:
        """Return this rank's part of the tensor of this name in the model."""
        with located(tensor=name):
            division = self._division_of(name)
            axis = division.axis
            if axis is None:
                return snapshot
            if axis >= len(snapshot.shape):
                raise ModelError(
                    f"cannot divide by {division!r}: shape {list(snapshot.shape)} has no axis {axis}",
                    hint='use "replicate" for a bias that is added once, after the ranks\' results',
                )
            cut = sliced_codes if snapshot.dtype.is_quantized else sliced
            parts = [cut(snapshot, axis, *ends) for ends in self._ends(snapshot.shape[axis], division)]
            return parts[0] if len(parts) == 1 else joined(parts)

    def unmatched(self, names: Sequence[str]) -> list[str]:
        """Return the patterns that match none of these names, which is seldom intended."""
        patterns = [pattern for pattern, _ in self.partition._rules]
        return [pattern.pattern for pattern in patterns if not any(map(pattern.search, names))]

    def _division_of(self, name: str) -> _Division:
        for pattern, division in self.partition._rules:
            if pattern.search(name):
                return division
        raise ModelError("no rule of the partition matches", hint='add a last rule ".*": "replicate"')

    def _ends(self, extent: int, division: _Division) -> Iterator[tuple[int, int]]:
        """Yield the begin and end of this rank's part of each block."""
        start = 0
        for size in _sizes(extent, division):
            each, more = divmod(size, self.world)
            if more and not self.partition._uneven:
                block = "" if division.blocks == 1 else f" (in a block of {size})"
                raise ModelError(
                    f"cannot divide the extent {extent} of axis {division.axis}{block} evenly among {self.world} ranks",
                    hint="use Partition(rules, uneven=True) to give the first ranks one more",
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
            raise ModelError(
                f"expected blocks of axis {division.axis} that add up to {extent}, got {list(blocks)} ({sum(blocks)})"
            )
        return blocks
    if extent % blocks:
        raise ModelError(f"cannot divide the extent {extent} of axis {division.axis} into {blocks} equal blocks")
    return (extent // blocks,) * blocks


def _division(how: Any) -> _Division:
    blocks: Any = 1
    if isinstance(how, tuple):
        if len(how) != 2:
            raise TypeError(f'expected a tuple ("rows", blocks), got {how!r}')
        how, blocks = how
    if isinstance(how, int) and not isinstance(how, bool):
        if how < 0:
            raise ValueError(f"an axis must not be negative, got {how}")
        axis = how
    elif how == _REPLICATE and blocks == 1:
        return _Division(None)
    elif isinstance(how, str) and how in _AXES:
        axis = _AXES[how]
    else:
        raise ValueError(f'expected "rows", "columns", an axis or "replicate", got {how!r}')
    return _Division(axis, _blocks(blocks, axis))


def _blocks(blocks: Any, axis: int) -> int | tuple[int, ...]:
    given = [blocks] if isinstance(blocks, int) else blocks
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise TypeError(f"blocks must be a number or the rows of each block, got {blocks!r}")
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in given):
        raise ValueError(f"the number and the rows of blocks must be positive, got {blocks!r}")
    if axis != 0 and blocks != 1:
        raise ValueError(f"only rows can be divided in blocks, not axis {axis}")
    return blocks if isinstance(blocks, int) else tuple(blocks)
