"""Binary records: bincode does not describe itself, so every byte is checked against a declaration (BR-17).

The reader determines what the declaration leaves open: a parameter that may be an ``Option`` is one if a byte 01 is
before it, a struct without tensors may be a single constant. Where several readings are possible, each is followed:
reading a node at a position gives every position at which it can end. The record is accepted if exactly one reading
ends with the file. Without a declaration the tensors are found by their ids and stay without names (BR-18).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CorruptError, FormatError, LimitError, TruncatedError, UnsupportedError, located
from ...io.spool import Spool
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType, Kind
from ..codec.bincode import BincodeReader
from ..codec.window import Extent, NumberForm
from .declaration import Absent, Choice, Constant, Fields, Items, Maybe, Node, Parameter, below
from .document import Document, Rows, check_size, number_forms, param_id
from .heading import Heading
from .spelling import read_dtype

_MOST_READINGS = 1_000_000
_NONE, _SOME = 0, 1
_LONGEST_ID = 64
_ID_LENGTHS = (13, 10, 36)
_ALIKE = {Kind.INT, Kind.UINT}
_ID = re.compile(rb"\x0d([0-9a-v]{13})|\x0a([0-9a-v]{10})|\x24([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_DECLARE_ALL = "declare every field of the model, constants included, in its order"


@dataclass(frozen=True, slots=True)
class _Tensor:
    id: str
    dtype: DType
    shape: Shape
    extent: Extent


@dataclass(frozen=True, slots=True)
class _Some:
    """A value after the byte that marks an Option."""

    value: Any


_Ends = dict[int, Any]
"""The positions at which a node can end, and the value that was read up to there."""


class Reading:
    """Read the item of one binary record along a declaration."""

    def __init__(self, reader: BincodeReader, heading: Heading, limits: Limits, sink: Spool, *, as_lists: bool) -> None:
        self._reader = reader
        self._heading = heading
        self._minor = heading.minor
        self._limits = limits
        self._sink = sink
        self._as_lists = as_lists
        self._known: dict[tuple[int, int], _Ends] = {}
        self._furthest: FormatError | None = None

    def document(self, declared: Node) -> Document:
        """Read the record of the declared shape, from the reader's position to the end of the file."""
        ends = self._read(declared, "", self._reader.position)
        if self._reader.end not in ends:
            if ends:
                left, at = self._reader.end - max(ends), max(ends)
                message = f"{left} bytes follow the last declared field"
                self._note(CorruptError(message, rule="BR-17", offset=at, hint=_DECLARE_ALL))
            assert self._furthest is not None
            raise self._furthest
        rows, marks = Rows(), set[str]()
        item = self._planted(ends[self._reader.end], "", rows, marks)
        return Document(self._heading, item, rows, frozenset(marks))

    def _read(self, node: Node, path: str, start: int) -> _Ends:
        """Return every way to read a node from a position on; an empty dict where there is none."""
        ends = self._known.get((id(node), start))
        if ends is not None:
            return ends
        if len(self._known) > _MOST_READINGS:
            raise LimitError("the declaration fits the file in too many ways", rule="BR-17")
        self._reader.move_to(start)
        try:
            with located(tensor=path, rule="BR-17", offset=start):
                ends = self._ends(node, path, start)
        except (LimitError, UnsupportedError):
            raise
        except FormatError as error:
            self._note(error)
            ends = {}
        self._known[id(node), start] = ends
        return ends

    def _ends(self, node: Node, path: str, start: int) -> _Ends:
        if isinstance(node, Maybe) and not isinstance(node.content, Constant):
            return self._option(node, path, start)
        if isinstance(node, Maybe):  # a constant reads its own mark
            return self._read(node.content, path, start)
        if isinstance(node, Fields):
            names = [name for name, _ in node.entries]
            sequence = self._sequence(((below(path, name), each) for name, each in node.entries), start)
            ends: _Ends = {end: dict(zip(names, values, strict=True)) for end, values in sequence.items()}
            return _merged(ends, self._read(_BARE, path, start)) if node.bare else ends
        if isinstance(node, Items):
            if node.counted:
                self._count(len(node.entries), "a Vec of")
            entries = ((below(path, str(index)), each) for index, each in enumerate(node.entries))
            return dict(self._sequence(entries, self._reader.position))
        if isinstance(node, Choice):
            self._count(node.index, "variant number")
            ends = self._read(node.content, below(path, node.name), self._reader.position)
            return {end: {node.name: value} for end, value in ends.items()}
        # From 0.21 on a plain tensor in an Option, which stores nothing, has a mark.
        is_marked = (
            self._minor >= 21 and isinstance(node, Constant) and bool(self._reader.left) and self._peek() == _SOME
        )
        value = self._take(node)
        return {self._reader.position: _Some(value) if is_marked else value}

    def _option(self, node: Maybe, path: str, start: int) -> _Ends:
        byte = self._peek()
        if node.declared and byte != _SOME:
            found = "None" if byte == _NONE else f"the byte {byte:02X}, which begins no Option"
            raise CorruptError(f"the declaration has a value, the file has {found}")
        if byte != _SOME:
            return self._read(node.content, path, start)
        marked = {end: _Some(value) for end, value in self._read(node.content, path, start + 1).items()}
        if node.declared or not _starts_with_one(node.content):
            return marked
        return _merged(self._read(node.content, path, start), marked)

    def _sequence(self, entries: Iterable[tuple[str, Node]], start: int) -> dict[int, list[Any]]:
        """Read nodes one after the other; return the values up to each position at which the last can end."""
        states: dict[int, tuple[Any, Any]] = {start: (None, None)}  # the newest value first: beginnings are shared
        for path, node in entries:
            following: dict[int, tuple[Any, Any]] = {}
            for position, before in states.items():
                ends = {end: (value, before) for end, value in self._read(node, path, position).items()}
                following = _merged(following, ends) if following else ends
            states = following
        return {end: _in_order(values) for end, values in states.items()}

    def _note(self, error: FormatError) -> None:
        """Keep the error of the reading that came furthest."""
        if self._furthest is None or (error.offset or 0) > (self._furthest.offset or 0):
            self._furthest = error

    def _peek(self) -> int:
        self._reader.need(1)
        return self._reader.buffer[self._reader.at]

    def _count(self, wanted: int, what: str) -> None:
        found = self._reader.uint()
        if found != wanted:
            raise CorruptError(f"{what} {found} in the file, {wanted} in the declaration")

    def _take(self, node: Parameter | Constant | Absent) -> Any:
        if isinstance(node, Parameter):
            return self._parameter(node.kind)
        if isinstance(node, Absent) or node.length is None or self._minor >= 21:
            self._nothing()
            return None
        count = self._reader.count() if node.counted else node.length
        for _ in range(count):
            self._nothing()
        return [None] * count

    def _nothing(self) -> None:
        """Take a constant: 00, or 01 00 if it is an Option with something in it."""
        reader = self._reader
        start = reader.position
        byte = reader.take(1)[0]
        if byte == _SOME and reader.left:
            byte = reader.take(1)[0]
        if byte != _NONE:
            raise CorruptError(
                f"expected 00, for a constant or None, found the byte {byte:02X}",
                offset=start,
                hint="check whether this field has a value in the file",
            )

    def _parameter(self, kind: Kind) -> _Tensor:
        reader = self._reader
        start = reader.position
        byte = self._peek()
        if byte not in _ID_LENGTHS:
            raise CorruptError(f"expected the id of a parameter, found the byte {byte:02X}", hint=_DECLARE_ALL)
        text = reader.text(_LONGEST_ID)
        param_id(text)
        as_kind = kind if self._as_lists else None
        dtype, extent, shape = read_tensor(reader, self._heading, self._limits, self._sink, as_kind)
        check_size(dtype, shape, extent.nbytes, self._limits)
        if dtype.kind is not kind and not {dtype.kind, kind} <= _ALIKE:
            raise CorruptError(f"a tensor of {dtype.name} where the declaration has {kind.value}", offset=start)
        return _Tensor(text, dtype, shape, extent)

    def _planted(self, value: Any, path: str, rows: Rows, marks: set[str]) -> Any:
        """Return the tree of a reading; collect its tensors in ``rows``, the paths of marked Options in ``marks``."""
        if isinstance(value, _Some):
            marks.add(path)
            return self._planted(value.value, path, rows, marks)
        if isinstance(value, dict):
            return {name: self._planted(each, below(path, name), rows, marks) for name, each in value.items()}
        if isinstance(value, list):
            return [self._planted(each, below(path, str(at)), rows, marks) for at, each in enumerate(value)]
        if not isinstance(value, _Tensor):
            return value
        with located(tensor=path):
            return rows.add(path, value.dtype, value.shape, value.extent, value.id, self._limits)


_BARE = Constant()


def _merged(first: dict[int, Any], second: dict[int, Any]) -> dict[int, Any]:
    """Join two sets of readings; refuse two that end at one position and read different tensors on their way."""
    for end in first.keys() & second.keys():
        if list(_tensors(first[end])) != list(_tensors(second[end])):
            raise UnsupportedError(
                "it can be read in more than one way",
                rule="BR-17",
                hint="name the fields that are Option in Rust in the class attribute optional_fields",
            )
    return {**second, **first}


def _tensors(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, _Tensor):
            yield value.id, value.extent.nbytes, value.shape, value.dtype
        elif isinstance(value, _Some):
            stack.append(value.value)
        elif isinstance(value, (dict, list, tuple)):
            stack += value.values() if isinstance(value, dict) else value


def _in_order(values: tuple[Any, Any]) -> list[Any]:
    found: list[Any] = []
    while values[1] is not None:
        found.append(values[0])
        values = values[1]
    return found[::-1]


def _starts_with_one(node: Node) -> bool:
    """Return whether the bytes of a node can begin with 01, so that this need not be the mark of an Option."""
    if isinstance(node, Maybe):
        return True
    if isinstance(node, Fields):
        return node.bare or not node.entries or _starts_with_one(node.entries[0][1])
    if isinstance(node, Items):
        return len(node.entries) == 1 if node.counted else not node.entries or _starts_with_one(node.entries[0])
    if isinstance(node, Choice):
        return node.index == 1
    return not isinstance(node, Parameter)


def read_tensor(
    reader: BincodeReader, heading: Heading, limits: Limits, sink: Spool | None, kind: Kind | None
) -> tuple[DType, Extent, Shape]:
    """Read a tensor: bytes, shape and dtype; up to Burn 0.13 the elements of a declared kind, one by one (BR-13)."""
    if kind is None or sink is None:
        extent = reader.bytes()
        shape = _read_shape(reader, limits)
        return read_dtype(reader, heading.minor), extent, shape
    precision, count = heading.precision, reader.count()
    dtype = {Kind.BOOL: DType.Bool, Kind.FLOAT: precision.float}.get(kind, precision.int)
    if kind is Kind.BOOL or dtype in (DType.F32, DType.F64):
        extent = reader.raw(count, dtype.bits // 8)
    else:
        form = number_forms(precision)["value"]
        if dtype is DType.F16:
            form = NumberForm(np.dtype("<u2"), 0, (1 << 16) - 1)
        elif dtype is DType.I16:
            form = NumberForm(np.dtype("<i2"), -(1 << 15), (1 << 15) - 1)
        extent = reader.integers(count, form, sink, signed=kind is not Kind.FLOAT).extent
    return dtype, extent, _read_shape(reader, limits)


def _read_shape(reader: BincodeReader, limits: Limits) -> Shape:
    start = reader.position
    rank = reader.count()
    if rank > limits.rank:
        raise CorruptError(f"{rank} axes, more than the limit of {limits.rank}", rule="BR-10", offset=start)
    return tuple(reader.uint() for _ in range(rank))


def read_nameless(reader: BincodeReader, heading: Heading, limits: Limits) -> Document:
    """Read every parameter from the reader's position on, in order, named by its number (BR-18).

    Between tensors there are only marks of a byte or two (options, counts, constants), so an id cannot be missed there.
    An id that no tensor follows is that of an optimizer's state, or the file is damaged: both are refused.
    """
    hint = "declare the model: burnstore.open(path, like=Model()) or burnstore.migrate(old, new, like=Model())"
    if heading.minor <= 13:
        raise UnsupportedError(
            f"a binary record of Burn {heading.version} does not state the dtypes of its tensors",
            rule="BR-18",
            hint=hint,
        )
    rows = Rows()
    item: dict[str, Any] = {}
    while (start := _next_id(reader)) is not None:
        text = reader.text(_LONGEST_ID)
        name = f"tensor_{len(rows.names)}"
        try:
            dtype, extent, shape = read_tensor(reader, heading, limits, None, None)
            if not extent.nbytes:
                raise CorruptError("a tensor without bytes, or the state of an optimizer")
        except FormatError as error:
            raise UnsupportedError(
                f"an id that no tensor follows: {error.message}", rule="BR-18", offset=start, hint=hint
            ) from error
        with located(tensor=name, offset=start):
            item[name] = rows.add(name, dtype, shape, extent, text, limits)
    return Document(heading, item, rows)


def _next_id(reader: BincodeReader) -> int | None:
    """Go to the next id and return its offset; None at the end of the file."""
    longest = max(_ID_LENGTHS) + 1
    while reader.left:
        reader.need(min(reader.left, longest))
        found = _ID.search(reader.buffer, reader.at)
        if found is not None:
            reader.at = found.start()
            return reader.position
        if len(reader.buffer) - reader.at >= reader.left:
            reader.at = len(reader.buffer)
            return None
        reader.at = max(reader.at, len(reader.buffer) - longest)
        if not reader.more():
            raise TruncatedError("the file ends inside an id", offset=reader.position)
    return None
