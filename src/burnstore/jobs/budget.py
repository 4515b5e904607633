"""Bound the work on tensors that share bytes, so that reading all tensors is linear in the file.

A pickle of a few kilobytes can describe thousands of views that expand one storage, or that overlap in it. Equal views
are read once. Other views are read as long as all tensors together have at most four times the bytes behind them, plus
some megabytes. Beyond that budget only the bytes behind the views are read, once, which shows whether all values are
finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from ..errors import UnsupportedError
from ..io.sizes import CHUNK_BYTES
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import SourceData

FREE_BYTES = 64 << 20
_TIMES = 4


class _Range(NamedTuple):
    """The bytes behind a tensor: a range of a source or of a storage, each of whose elements occurs ``times``."""

    base: Any
    start: int
    stop: int
    times: int | None = 1
    cost: int = 0
    identity: Any = None
    plain: bool = True

    @classmethod
    def of(cls, tensor: TensorSnapshot) -> _Range | None:
        data: Any = tensor._data
        if type(data) is SourceData:
            return cls(data.source, data.offset, data.offset + data.nbytes)
        if not hasattr(type(data), "reached"):  # only views have it (`burnstore.formats.pytorch.data.Reached`)
            return None
        found = cls(*data.reached())
        if type(found.base) is SourceData:
            source, offset = found.base.source, found.base.offset
            found = found._replace(base=source, start=offset + found.start, stop=offset + found.stop)
        return found

    def blocks(self) -> Iterator[Any]:
        """Yield the bytes."""
        if hasattr(self.base, "window"):  # a storage, which is decompressed at each read
            yield self.base.window(self.start, self.stop)
            return
        for start in range(self.start, self.stop, CHUNK_BYTES):
            yield self.base.read_at(start, min(CHUNK_BYTES, self.stop - start))


@dataclass(frozen=True, slots=True)
class Shared:
    """Tensors of one dtype whose bytes overlap, by their places, and the range that contains all of them."""

    range: _Range
    places: Sequence[int]
    times: Sequence[int | None]
    """How often each element of the range occurs in each tensor; None where that is not the same for all."""

    @property
    def nbytes(self) -> int:
        """How many bytes to read."""
        return self.range.stop - self.range.start


def too_much(tensor: TensorSnapshot) -> UnsupportedError:
    """Return the error of a tensor that is beyond the budget."""
    return UnsupportedError(
        f"values not read: the tensors that share these bytes need more than {_TIMES} times as many",
        tensor=tensor.path,
        hint="read this tensor alone to see its values",
    )


@dataclass(slots=True)
class ReadPlan:
    """How to read tensors, by their places: one by one, as copies of another, or through the bytes that they share."""

    alone: list[int] = field(default_factory=list)
    copies: dict[int, int] = field(default_factory=dict)
    """Equal views, each with the one that is read."""
    shared: list[Shared] = field(default_factory=list)


def plan_reads(tensors: Sequence[TensorSnapshot]) -> ReadPlan:
    """Plan how to read tensors in time that is linear in the bytes behind them.

    >>> import numpy as np
    >>> plan_reads([TensorSnapshot.from_numpy("a", np.zeros(3))])
    ReadPlan(alone=[0], copies={}, shared=[])
    """
    data = [tensor._data for tensor in tensors]
    plain = [(id(each.source), each.offset, each.offset + each.nbytes) for each in data if type(each) is SourceData]
    if len(plain) == len(data) and _are_apart(plain):  # almost every file: no range has to be made
        return ReadPlan(list(range(len(tensors))))
    ranges = [_Range.of(tensor) for tensor in tensors]
    found = [place for place in ranges if place is not None]
    if all(place.times == 1 for place in found) and _are_apart([(id(p.base), p.start, p.stop) for p in found]):
        return ReadPlan(list(range(len(tensors))))
    placed = [_Placed(at, tensors[at].dtype, place) for at, place in enumerate(ranges) if place is not None]
    budget = FREE_BYTES + _TIMES * sum(shared.nbytes for shared in _merge(placed))
    plan, first, beyond = ReadPlan(), dict[Any, int](), list[_Placed]()
    for at, (tensor, place) in enumerate(zip(tensors, ranges, strict=True)):
        if place is None:
            plan.alone.append(at)
            continue
        key = (id(place.base), place.start, place.stop, tensor.dtype, place.identity)
        same = first.setdefault(key, at)
        if same != at:
            plan.copies[at] = same
            continue
        budget -= max(tensor.nbytes, place.cost)
        if budget >= 0:
            plan.alone.append(at)
        else:
            beyond.append(_Placed(at, tensor.dtype, place))
    plan.shared = _merge(beyond)
    return plan


def _are_apart(places: list[tuple[int, int, int]]) -> bool:
    """Return whether no two of these ranges, each with its base, share bytes."""
    places.sort()
    return all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(places))


class _Placed(NamedTuple):
    at: int
    dtype: DType
    range: _Range

    @property
    def group(self) -> tuple[int, str, int]:
        """Equal for tensors whose elements can be read together: of one base and dtype, at the same alignment."""
        return id(self.range.base), str(self.dtype), self.range.start % max(self.dtype.bits // 8, 1)


def _merge(placed: Sequence[_Placed]) -> list[Shared]:
    """Merge ranges that overlap."""
    merged: list[Shared] = []
    for _, items in groupby(sorted(placed, key=lambda item: (*item.group, item.range.start)), lambda item: item.group):
        run: list[_Placed] = []
        stop = 0
        for item in items:
            if run and item.range.start >= stop:
                merged.append(_shared(run, stop))
                run = []
            stop = max(stop, item.range.stop) if run else item.range.stop
            run.append(item)
        merged.append(_shared(run, stop))
    return merged


def _shared(run: Sequence[_Placed], stop: int) -> Shared:
    base, start = run[0].range.base, run[0].range.start
    whole = _Range(base, start, stop, plain=all(item.range.plain for item in run))
    times = [item.range.times if (item.range.start, item.range.stop) == (start, stop) else None for item in run]
    return Shared(whole, [item.at for item in run], times)
