"""Put the pieces of a tensor together: boxes that cover it exactly, each with the bytes of a file.

Every reader of a checkpoint in parts uses `assemble`: distributed checkpoints of torch, rank files, shards of torch as
SafeTensors, DeepSpeed's partitions. The rules. Errors and tests cite them.

    PC-01  A piece has as many axes as the whole tensor, its dtype, and is inside of it.
    PC-02  No two pieces overlap, and none is there twice. Replicas, where a format has them, are equal: every read
           compares them.
    PC-03  No element of the whole tensor is without a piece.

A format without the global shape (torch's shards as SafeTensors) gives it by the pieces that are there. A missing piece
at the end cannot be noticed then, and the reader notes that. Files of which none adds a piece to a tensor of another
stay parts: they may be those of one rank.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..errors import CorruptError, LimitError, UnsupportedError, counted, located, printable
from ..io.source import Source, same_bytes
from ..tensor.data import Array, Shape
from ..tensor.dtype import DType
from ..tensor.facts import Facts, Piece, PieceData, describe_place
from ..tensor.note import Note
from ..tensor.sources import AxisSlice, ComputedData, Data, JoinedData, SourceData, element_dtype
from .base import Table

_MOST_CUT_AXES = 8  # a box of so many axes has 256 corners
_MOST_COMPARISONS = 200_000  # that are made to name a missing piece, or two that overlap


class Box(NamedTuple):
    """A piece: its place in the whole tensor, its bytes, and where they are from, for messages."""

    offset: Shape
    shape: Shape
    data: Data
    where: str
    is_replica: bool = False
    """Whether the format allows another piece with this place, whose values are then the same."""

    def place(self, whole: Shape) -> str:
        """Describe the place in words."""
        return describe_place(self.offset, self.shape, whole)


def extent_of(boxes: Sequence[Box]) -> Shape:
    """Return the smallest shape that has a place for all pieces."""
    return tuple(max(o + n for o, n in zip(*axis, strict=True)) for axis in _by_axis(boxes))


def _by_axis(boxes: Sequence[Box]) -> Iterator[tuple[list[int], list[int]]]:
    for axis in range(len(boxes[0].shape)):
        yield [box.offset[axis] for box in boxes], [box.shape[axis] for box in boxes]


def assemble(dtype: DType, whole: Shape, boxes: Sequence[Box]) -> Data:
    """Return the bytes of the whole tensor, whose reads take what they need of each piece.

    Raises CorruptError, with the name of a piece, unless the pieces cover the tensor exactly.
    """
    for box in boxes:
        if len(box.shape) != len(whole) or len(box.offset) != len(whole):
            raise CorruptError(
                f"{printable(box.where)} has a piece of {len(box.shape)} axes, the whole has {len(whole)}", rule="PC-01"
            )
        if any(o + n > w for o, n, w in zip(box.offset, box.shape, whole, strict=True)):
            raise CorruptError(
                f"the piece of {printable(box.where)}, {list(box.shape)} from {list(box.offset)} on, is outside of "
                f"{list(whole)}",
                rule="PC-01",
            )
    held = _distinct([box for box in boxes if math.prod(box.shape)], whole)
    _check_cover(held, whole)
    if not held:
        return JoinedData([])
    if len(held) == 1:
        return held[0].data
    if dtype.bits % 8 or dtype.is_quantized:
        raise UnsupportedError(f"pieces of {dtype.name}, whose elements are not whole bytes")
    ordered = tuple(sorted(held, key=lambda box: box.offset))
    return BoxesData(ordered, (0,) * len(whole), whole, dtype.bits // 8)


def assemble_table(table: Table, source: Source, owners: Sequence[str], *, are_ranks: bool) -> tuple[Table, list[Note]]:
    """Return a table of whole tensors, made of one in which a name occurs once for each piece; and what to note.

    ``owners`` are the files of the rows. With ``are_ranks`` equal pieces, and tensors that several files have as a
    whole, are replicas.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(table.names):
        rows.setdefault(name, []).append(row)
    stated = [fact.piece.global_shape for fact in table.facts.values() if fact.piece is not None]
    if len(rows) == len(table.names) and None in stated:
        return table, []  # no tensor has two pieces: these may be the files of one rank, and stay parts
    firsts = [own[0] for own in rows.values()]
    whole = table.picked(firsts)
    apart, facts = dict(whole.apart), dict(whole.facts)
    unproved = 0
    for at, (name, own) in enumerate(rows.items()):
        pieces = [table.facts[row].piece if row in table.facts else None for row in own]
        if len(own) == 1 and pieces[0] is None:
            continue
        with located(tensor=name):
            shape, data, is_proved = _assemble_rows(table, source, own, pieces, owners, are_ranks=are_ranks)
        apart[at] = data
        scheme = facts[at].scheme if at in facts else None
        facts.pop(at, None)
        if scheme is not None:
            facts[at] = Facts(None, scheme)
        whole.shapes[at], whole.sizes[at] = shape, whole.dtypes[at].nbytes(shape)
        unproved += not is_proved
    notes = []
    if unproved:
        many = counted(unproved, "tensor has", "tensors have")
        text = f"{many} pieces without a global shape: a missing piece at the end cannot be noticed"
        notes.append(Note("check", text))
    return replace(whole, apart=apart, facts=facts, known_kinds=None), notes


def _assemble_rows(
    table: Table,
    source: Source,
    rows: Sequence[int],
    pieces: Sequence[Piece | None],
    owners: Sequence[str],
    *,
    are_ranks: bool,
) -> tuple[Shape, Data, bool]:
    """Return the shape and bytes of one tensor, and whether its pieces prove its shape."""
    dtypes = {table.dtypes[row] for row in rows}
    if len(dtypes) > 1:
        shown = ", ".join(f"{table.dtypes[row].name} in {owners[row]}" for row in rows[:4])
        raise CorruptError(f"its pieces have several dtypes: {shown}", rule="PC-01")
    numbers: dict[int, str] = {}
    boxes: list[Box] = []
    wholes: set[Shape] = set()
    for row, piece in zip(rows, pieces, strict=True):
        shape = table.shapes[row]
        data = table.apart.get(row) or SourceData(source, table.offsets[row], table.sizes[row])
        if isinstance(data, PieceData):
            data = data.data
        offset = (0,) * len(shape) if piece is None else piece.offset
        if piece is None or piece.global_shape is not None:
            wholes.add(shape if piece is None or piece.global_shape is None else piece.global_shape)
        if offset is None:
            raise UnsupportedError(f"part of a tensor whose place is not known: {piece.text if piece else ''}")
        if piece is not None and piece.number is not None:
            other = numbers.setdefault(piece.number, owners[row])
            if other != owners[row]:
                raise CorruptError(f"{piece.text} is there twice: in {other} and in {owners[row]}", rule="PC-02")
        boxes.append(Box(offset, shape, data, owners[row], is_replica=are_ranks))
    if len(wholes) > 1:
        shown = " and ".join(str(list(shape)) for shape in sorted(wholes)[:4])
        raise CorruptError(f"its pieces state different shapes of the whole: {shown}", rule="PC-01")
    ranks = {len(box.shape) for box in boxes}
    if len(ranks) > 1:
        raise CorruptError("its pieces have different numbers of axes", rule="PC-01")
    shape = next(iter(wholes)) if wholes else extent_of(boxes)
    return shape, assemble(next(iter(dtypes)), shape, boxes), bool(wholes)


def _distinct(boxes: Sequence[Box], whole: Shape) -> list[Box]:
    """Return one box for each place; replicas are compared when they are read."""
    groups: dict[tuple[Shape, Shape], list[Box]] = {}
    for box in boxes:
        groups.setdefault((box.offset, box.shape), []).append(box)
    distinct = []
    for group in groups.values():
        first = group[0]
        if len(group) > 1:
            if not all(box.is_replica for box in group):
                raise CorruptError(
                    f"the piece {first.place(whole)} is there twice: in {printable(group[0].where)} and in "
                    f"{printable(group[1].where)}",
                    rule="PC-02",
                )
            first = first._replace(data=ReplicatedData([box.data for box in group], [box.where for box in group]))
        distinct.append(first)
    return distinct


def _check_cover(boxes: Sequence[Box], whole: Shape) -> None:
    """Check that the boxes are the whole, each element once (PC-02, PC-03).

    The mixed difference of a function that is 1 inside a box and 0 outside is +1 or -1 at the corners of the box, and 0
    elsewhere. So the boxes add up to the whole exactly if their signed corners add up to those of the whole. That takes
    time in proportion to their number, whoever chose them.
    """
    axes = [a for a, extent in enumerate(whole) if any(box.shape[a] != extent for box in boxes)]
    if not boxes and 0 not in whole:
        raise CorruptError("none of its pieces is there", rule="PC-03")
    if not axes:
        return  # one box, of the whole: equal ones are one
    if len(axes) > _MOST_CUT_AXES:
        raise LimitError(f"a tensor that is cut along {len(axes)} axes, more than the limit of {_MOST_CUT_AXES}")
    corners: Counter[Shape] = Counter()
    for offset, shape, sign in [*((b.offset, b.shape, 1) for b in boxes), ((0,) * len(whole), whole, -1)]:
        for ends in itertools.product((0, 1), repeat=len(axes)):
            corner = tuple(offset[a] + shape[a] * end for a, end in zip(axes, ends, strict=True))
            corners[corner] += sign * (-1) ** sum(ends)
    if any(corners.values()):
        raise _uncovered(boxes, whole, axes)


def _uncovered(boxes: Sequence[Box], whole: Shape, axes: Sequence[int]) -> CorruptError:
    """Return the error that names two pieces that overlap, or the place of a missing one."""
    for one, other in itertools.islice(itertools.combinations(boxes, 2), _MOST_COMPARISONS):
        if all(max(one.offset[a], other.offset[a]) < _end(one, other, a) for a in axes):
            return CorruptError(
                f"the piece {one.place(whole)} of {printable(one.where)} overlaps {other.place(whole)} of "
                f"{printable(other.where)}",
                rule="PC-02",
            )
    edges = [sorted({0, *(box.offset[a] + box.shape[a] for box in boxes)} - {whole[a]}) for a in axes]
    for point in itertools.islice(itertools.product(*edges), _MOST_COMPARISONS // (len(boxes) + 1)):
        if not any(all(b.offset[a] <= p < b.offset[a] + b.shape[a] for a, p in _at(axes, point)) for b in boxes):
            missing = list(whole)
            for a, p in _at(axes, point):
                ends = [b.offset[a] for b in boxes if b.offset[a] > p]
                missing[a] = min([*ends, whole[a]]) - p
            first = [0] * len(whole)
            for a, p in _at(axes, point):
                first[a] = p
            return CorruptError(f"no file has the piece {describe_place(first, missing, whole)}", rule="PC-03")
    return CorruptError(f"its {len(boxes)} pieces do not cover {list(whole)} exactly", rule="PC-03")


def _at(axes: Sequence[int], point: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(axes, point, strict=True)


def _end(one: Box, other: Box, axis: int) -> int:
    return min(one.offset[axis] + one.shape[axis], other.offset[axis] + other.shape[axis])


@dataclass(slots=True, eq=False)
class ReplicatedData(Data):
    """Bytes that several files have: every read compares them (PC-02)."""

    copies: Sequence[Data]
    names: Sequence[str]

    @property
    def file(self) -> str | None:
        return self.copies[0].file

    @property
    def streams(self) -> bool:
        return all(copy.streams for copy in self.copies)

    @property
    def in_source(self) -> bool:
        return all(copy.in_source for copy in self.copies)

    @property
    def inner(self) -> Sequence[Data]:
        return self.copies

    def window(self, start: int, stop: int) -> memoryview:
        first = self.copies[0].window(start, stop)
        for copy, name in zip(self.copies[1:], self.names[1:], strict=True):
            if not same_bytes(first, copy.window(start, stop)):
                raise CorruptError(
                    f"the replicas of {printable(self.names[0])} and {printable(name)} differ",
                    rule="PC-02",
                    hint="they are of different saves, or the ranks diverged: open the right file alone",
                )
        return first


@dataclass(slots=True, eq=False)
class BoxesData(ComputedData):
    """A box of a tensor whose pieces are in several places; a read takes of each piece only what it needs."""

    boxes: Sequence[Box]
    origin: Shape
    shape: Shape
    width: int
    """The bytes of an element."""

    reads_boxes = True

    @property
    def file(self) -> str | None:
        return self.boxes[0].data.file if self.boxes else None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.width

    @property
    def streams(self) -> bool:
        return all(box.data.streams for box in self.boxes)

    @property
    def in_source(self) -> bool:
        return all(box.data.in_source for box in self.boxes)

    @property
    def inner(self) -> Sequence[Data]:
        return [box.data for box in self.boxes]

    def owned(self, start: int, stop: int) -> Array:
        if stop <= start:
            return np.empty(0, np.uint8)
        first, last = start // self.width, (stop - 1) // self.width
        low, extents, before = _hull(self.shape, first, last)
        values = self.read_box(low, extents).reshape(-1).view(np.uint8)
        skipped = start - before * self.width
        return values[skipped : skipped + stop - start]

    def fill(self, buffer: Array) -> None:
        if len(buffer):
            self._fill(buffer, (0,) * len(self.shape), self.shape)

    def read_box(self, low: Shape, extents: Shape) -> Array:
        """Return the elements of a box, as an array of their width; ``low`` counts from this tensor's own start."""
        buffer: Array = np.empty(math.prod(extents) * self.width, np.uint8)
        if len(buffer):
            self._fill(buffer, low, extents)
        return buffer.view(element_dtype(self.width)).reshape(extents)

    def _fill(self, buffer: Array, low: Shape, extents: Shape) -> None:
        target = buffer.view(element_dtype(self.width)).reshape(extents)
        low = tuple(map(int.__add__, self.origin, low))
        for box in self.boxes:
            first = tuple(map(max, low, box.offset))
            end = tuple(min(a + n, b + m) for a, n, b, m in zip(low, extents, box.offset, box.shape, strict=True))
            if any(a >= b for a, b in zip(first, end, strict=True)):
                continue
            inside = tuple(slice(f - a, e - a) for f, e, a in zip(first, end, low, strict=True))
            local = tuple(f - o for f, o in zip(first, box.offset, strict=True))
            self._copy(box, local, tuple(e - f for f, e in zip(first, end, strict=True)), target, inside)

    def _copy(self, box: Box, local: Shape, extents: Shape, target: Array, inside: tuple[slice, ...]) -> None:
        """Copy a box of a piece, which begins at ``local`` of it, to its place in the target."""
        begin = _index(box.shape, local)
        last = _index(box.shape, tuple(f + n - 1 for f, n in zip(local, extents, strict=True)))
        count = last + 1 - begin
        view = target[inside]
        if count == math.prod(extents) and view.flags.c_contiguous:
            raw = view.reshape(-1).view(np.uint8)
            box.data.range(begin * self.width, len(raw)).fill(raw)
            return
        raw = np.frombuffer(box.data.window(begin * self.width, (last + 1) * self.width), np.uint8)
        strides = [math.prod(box.shape[axis + 1 :]) * self.width for axis in range(len(box.shape))]
        part = raw.view(element_dtype(self.width))
        view[...] = np.lib.stride_tricks.as_strided(part, extents, strides, writeable=False)

    def _sliced(self, part: AxisSlice) -> Data:
        shape, origin = list(self.shape), list(self.origin)
        shape[part.axis], origin[part.axis] = part.stop - part.start, origin[part.axis] + part.start
        low, high = origin[part.axis], origin[part.axis] + shape[part.axis]
        kept = [b for b in self.boxes if b.offset[part.axis] < high and low < b.offset[part.axis] + b.shape[part.axis]]
        return BoxesData(kept, tuple(origin), tuple(shape), self.width)


def _index(shape: Shape, place: Sequence[int]) -> int:
    """Return the number of an element in row-major order."""
    index = 0
    for extent, at in zip(shape, place, strict=True):
        index = index * extent + at
    return index


def _hull(shape: Shape, first: int, last: int) -> tuple[Shape, Shape, int]:
    """Return the smallest box of whole rows with these elements: its start, its extents, and its first element.

    >>> _hull((4, 5, 6), 31, 44)
    ((1, 0, 0), (1, 3, 6), 30)
    """
    low: list[Any] = []
    inner = math.prod(shape)
    for axis, extent in enumerate(shape):
        inner //= extent
        one, other = first // inner % extent, last // inner % extent
        low.append(one)
        if one != other:
            rest = len(shape) - axis - 1
            start = (*low, *(0,) * rest)
            return start, (*(1,) * axis, other - one + 1, *shape[axis + 1 :]), _index(shape, start)
    return tuple(low), (1,) * len(shape), first
