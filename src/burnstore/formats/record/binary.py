"""Binary records, read along a declaration: bincode says nothing of itself, so every byte is held against it (BR-17).

What the declaration leaves open is found out: a parameter that may be an ``Option`` is one if a byte 01 stands before
it, a struct without tensors may be a single constant. Where more than one reading is possible each is followed; the
record counts as read if exactly one of them ends with the last byte of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from ...errors import CorruptError, FormatError, LimitError, UnsupportedError, located
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType, Kind
from ..codec.bincode import BincodeReader
from ..codec.numbers import NumberForm
from ..codec.window import Extent, Sink
from .declaration import Absent, Choice, Constant, Fields, Items, Maybe, Node, Parameter
from .document import Document, Rows, check_size, joined, number_forms, param_id
from .heading import Heading
from .spelling import read_dtype

_MOST_READINGS = 10_000
_NONE, _SOME = 0, 1
_LONGEST_ID = 64
_ID_LENGTHS = (13, 10, 36)


@dataclass(frozen=True, slots=True)
class _Option:
    """A byte that says whether something follows; without ``declared`` it is to be found out whether there is one."""

    path: str
    declared: bool
    starts_with_one: bool


@dataclass(frozen=True, slots=True)
class _Count:
    """A varint that must be this number: how many items a Vec has, or which variant an enum."""

    path: str
    wanted: int
    what: str


@dataclass(frozen=True, slots=True)
class _Fork:
    """Either what follows, or what stands from ``other`` on."""

    other: int


@dataclass(frozen=True, slots=True)
class _Jump:
    """Go on from ``to``."""

    to: int


@dataclass(frozen=True, slots=True)
class _Take:
    """A parameter, a constant or nothing, at this path."""

    path: str
    node: Parameter | Constant | Absent


_Step = Union[_Option, _Count, _Fork, _Jump, _Take]  # noqa: UP007


@dataclass(frozen=True, slots=True)
class _Tensor:
    id: str
    dtype: DType
    shape: Shape
    extent: Extent


@dataclass(frozen=True, slots=True)
class _Mark:
    """The byte before the value of an Option."""

    path: str


_Outcome = tuple[Any, "_Outcome | None"]
"""What was read so far, the newest first: readings that share a beginning share its memory."""


class Reading:
    """Reads the item of one binary record."""

    def __init__(self, reader: BincodeReader, heading: Heading, limits: Limits, sink: Sink, *, as_lists: bool) -> None:
        self._reader = reader
        self._heading = heading
        self._minor = heading.minor
        self._limits = limits
        self._sink = sink
        self._as_lists = as_lists
        self._form: NumberForm = number_forms(heading.precision)["value"]

    def document(self, declared: Node) -> Document:
        """The record of the declared shape, from the reader's position to the end of the file."""
        steps: list[_Step] = []
        _compile(declared, "", steps)
        outcomes = self._outcomes(steps)
        marks = frozenset(each.path for each in outcomes if isinstance(each, _Mark))
        rows = Rows()
        item = self._planted(declared, "", (each for each in outcomes if not isinstance(each, _Mark)), rows)
        return Document(self._heading, item, rows, marks)

    def _outcomes(self, steps: list[_Step]) -> list[Any]:
        """What the one reading that ends with the file gave, step by step."""
        todo: list[tuple[int, int, _Outcome | None]] = [(0, self._reader.position, None)]
        met: dict[tuple[int, int], list[Any]] = {}
        found: list[Any] | None = None
        furthest: FormatError | None = None
        forks = 0
        while todo:
            at, position, outcome = todo.pop()
            self._reader.move_to(position)
            try:
                while at < len(steps):
                    step = steps[at]
                    at += 1
                    if isinstance(step, _Jump):
                        at = step.to
                    elif isinstance(step, _Fork) or (isinstance(step, _Option) and self._is_open(step)):
                        forks += 1
                        if forks > _MOST_READINGS:
                            raise LimitError("the declaration can be read into the file in too many ways", rule="BR-17")
                        state = (at, self._reader.position)
                        if self._met_before(met, state, outcome):
                            break
                        if isinstance(step, _Fork):
                            todo.append((step.other, self._reader.position, (True, outcome)))
                            outcome = (False, outcome)
                        else:
                            todo.append((at, self._reader.position + 1, (_Mark(step.path), outcome)))
                    elif isinstance(step, _Option):
                        if self._option(step):
                            outcome = (_Mark(step.path), outcome)
                    elif isinstance(step, _Count):
                        self._count(step)
                    else:
                        with located(tensor=step.path, rule="BR-17"):
                            if self._is_optional_tensor(step.node):
                                outcome = (_Mark(step.path), outcome)
                            outcome = (self._take(step.node), outcome)
                else:
                    if self._reader.left:
                        raise CorruptError(
                            f"{self._reader.left} bytes follow what is declared",
                            rule="BR-17",
                            offset=self._reader.position,
                            hint="the declaration must have every field of the model, constants included, in its order",
                        )
                    complete = _in_order(outcome)
                    if found is not None and _tensors(found) != _tensors(complete):
                        raise UnsupportedError("it can be read in more than one way", rule="BR-17", hint=_OPTIONAL_HINT)
                    found = found or complete
            except (LimitError, UnsupportedError):
                raise
            except FormatError as error:
                if furthest is None or (error.offset or 0) > (furthest.offset or 0):
                    furthest = error
        if found is None:
            assert furthest is not None
            raise furthest
        return found

    def _met_before(
        self, met: dict[tuple[int, int], list[Any]], state: tuple[int, int], outcome: _Outcome | None
    ) -> bool:
        """Whether another reading came by here; if it read other tensors on its way, the file is not clear."""
        so_far = _tensors(_in_order(outcome))
        if state not in met:
            met[state] = so_far
            return False
        if met[state] != so_far:
            raise UnsupportedError("it can be read in more than one way", rule="BR-17", hint=_OPTIONAL_HINT)
        return True

    def _is_open(self, step: _Option) -> bool:
        """Whether a byte 01 here can be either the mark of an Option or the beginning of what may be in it."""
        return not step.declared and step.starts_with_one and bool(self._reader.left) and self._peek() == _SOME

    def _is_optional_tensor(self, node: Parameter | Constant | Absent) -> bool:
        """Whether a plain tensor in an Option is next: it stores nothing, but from 0.21 on it alone has a mark."""
        return self._minor >= 21 and isinstance(node, Constant) and bool(self._reader.left) and self._peek() == _SOME

    def _peek(self) -> int:
        self._reader.need(1)
        return self._reader.buffer[self._reader.at]

    def _option(self, step: _Option) -> bool:
        """Pass over the mark of an Option; whether there was one."""
        reader = self._reader
        start = reader.position
        byte = self._peek()
        if step.declared and byte == _NONE:
            raise CorruptError(
                "the file has None here, the declaration a value", tensor=step.path, rule="BR-17", offset=start
            )
        if step.declared and byte != _SOME:
            raise CorruptError(
                f"the byte {byte:02X} where an Option begins with 00 or 01",
                tensor=step.path,
                rule="BR-17",
                offset=start,
            )
        if byte != _SOME or (step.starts_with_one and not step.declared):
            return False
        reader.at += 1
        return True

    def _count(self, step: _Count) -> None:
        start = self._reader.position
        found = self._reader.uint()
        if found != step.wanted:
            raise CorruptError(
                f"{step.what} {found} in the file, {step.wanted} in the declaration",
                tensor=step.path,
                rule="BR-17",
                offset=start,
            )

    def _take(self, node: Parameter | Constant | Absent) -> Any:
        if isinstance(node, Parameter):
            return self._parameter(node.kind)
        if isinstance(node, Absent):
            self._nothing()
            return None
        if node.length is None or self._minor >= 21:
            self._nothing()
            return None
        count = self._reader.count() if node.counted else node.length
        for _ in range(count):
            self._nothing()
        return [None] * count

    def _nothing(self) -> None:
        """A constant: 00, or 01 00 if it is an Option with something in it."""
        reader = self._reader
        start = reader.position
        byte = reader.take(1)[0]
        if byte == _SOME and reader.left:
            byte = reader.take(1)[0]
        if byte != _NONE:
            raise CorruptError(
                f"the byte {byte:02X} where a constant or None has 00",
                offset=start,
                hint="has the file a value here?",
            )

    def _parameter(self, kind: Kind) -> _Tensor:
        reader = self._reader
        start = reader.position
        reader.need(1)
        if reader.buffer[reader.at] not in _ID_LENGTHS:
            raise CorruptError(
                f"the byte {reader.buffer[reader.at]:02X} where the id of a parameter begins",
                offset=start,
                hint="the declaration must have every field of the model, constants included, in its order",
            )
        with located(offset=start):
            text = reader.text(_LONGEST_ID)
            param_id(text)
        dtype, extent, shape = self._elements(kind) if self._as_lists else self._bytes()
        with located(offset=start):
            check_size(dtype, shape, extent.nbytes, self._limits)
        if dtype.kind is not kind and not {dtype.kind, kind} <= _ALIKE:
            raise CorruptError(f"a tensor of {dtype.name} where the declaration has {kind.value}", offset=start)
        return _Tensor(text, dtype, shape, extent)

    def _bytes(self) -> tuple[DType, Extent, Shape]:
        extent = self._reader.bytes()
        shape = read_shape(self._reader, self._limits)
        return read_dtype(self._reader, self._minor), extent, shape

    def _elements(self, kind: Kind) -> tuple[DType, Extent, Shape]:
        """The elements of a tensor up to Burn 0.13, spelled one by one (BR-13)."""
        reader, precision = self._reader, self._heading.precision
        count = reader.count()
        if kind is Kind.BOOL:
            dtype, extent = DType.Bool, reader.raw(count, 1)
        elif kind is Kind.FLOAT and precision.float is not DType.F16:
            dtype, extent = precision.float, reader.raw(count, precision.float.bits // 8)
        else:
            dtype = precision.float if kind is Kind.FLOAT else precision.int
            form = self._form
            if dtype is DType.F16:
                form = NumberForm(np.dtype("<u2"), 0, (1 << 16) - 1)
            elif dtype is DType.I16:
                form = NumberForm(np.dtype("<i2"), -(1 << 15), (1 << 15) - 1)
            extent = reader.integers(count, form, self._sink, signed=kind is not Kind.FLOAT).extent
        return dtype, extent, read_shape(reader, self._limits)

    def _planted(self, node: Node, path: str, outcomes: Iterator[Any], rows: Rows) -> Any:
        """The tree of what was read, and its tensors in the rows."""
        if isinstance(node, Maybe):
            return self._planted(node.content, path, outcomes, rows)
        if isinstance(node, Fields):
            if node.bare and next(outcomes):
                return next(outcomes)
            return {name: self._planted(each, joined(path, name), outcomes, rows) for name, each in node.entries}
        if isinstance(node, Items):
            return [
                self._planted(each, joined(path, str(index)), outcomes, rows) for index, each in enumerate(node.entries)
            ]
        if isinstance(node, Choice):
            return {node.name: self._planted(node.content, joined(path, node.name), outcomes, rows)}
        taken = next(outcomes)
        if not isinstance(taken, _Tensor):
            return taken
        with located(tensor=path):
            return rows.add(path, taken.dtype, taken.shape, taken.extent, taken.id, self._limits)


_ALIKE = {Kind.INT, Kind.UINT}
_OPTIONAL_HINT = "name the fields that are Option in Rust in the class attribute optional_fields"


def read_shape(reader: BincodeReader, limits: Limits) -> Shape:
    """The extents of a tensor."""
    start = reader.position
    rank = reader.count()
    if rank > limits.rank:
        raise CorruptError(f"{rank} axes, more than the limit of {limits.rank}", rule="BR-10", offset=start)
    return tuple(reader.uint() for _ in range(rank))


def _compile(node: Node, path: str, steps: list[_Step]) -> None:
    if isinstance(node, Maybe):
        if not isinstance(node.content, Constant):  # a constant sees to its own mark
            steps.append(_Option(path, node.declared, _starts_with_one(node.content)))
        _compile(node.content, path, steps)
    elif isinstance(node, Fields):
        fork = len(steps)
        if node.bare:
            steps.append(_Fork(0))
        for name, each in node.entries:
            _compile(each, joined(path, name), steps)
        if node.bare:
            jump = len(steps)
            steps += (_Jump(0), _Take(path, Constant()))
            steps[fork], steps[jump] = _Fork(jump + 1), _Jump(len(steps))
    elif isinstance(node, Items):
        if node.counted:
            steps.append(_Count(path, len(node.entries), "a Vec of"))
        for index, each in enumerate(node.entries):
            _compile(each, joined(path, str(index)), steps)
    elif isinstance(node, Choice):
        steps.append(_Count(path, node.index, "variant number"))
        _compile(node.content, joined(path, node.name), steps)
    else:
        steps.append(_Take(path, node))


def _starts_with_one(node: Node) -> bool:
    """Whether the bytes of this can begin with 01, so that this would not have to be the mark of an Option."""
    if isinstance(node, Maybe):
        return True
    if isinstance(node, Fields):
        return node.bare or not node.entries or _starts_with_one(node.entries[0][1])
    if isinstance(node, Items):
        return len(node.entries) == 1 if node.counted else not node.entries or _starts_with_one(node.entries[0])
    if isinstance(node, Choice):
        return node.index == 1
    return not isinstance(node, Parameter)


def _in_order(outcome: _Outcome | None) -> list[Any]:
    found = []
    while outcome is not None:
        value, outcome = outcome
        found.append(value)
    return found[::-1]


def _tensors(outcomes: list[Any]) -> list[Any]:
    return [(each.id, each.extent.nbytes, each.shape, each.dtype) for each in outcomes if isinstance(each, _Tensor)]
