"""A record as a tree whose leaves are tensors, whatever it was encoded in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import CorruptError, LimitError, TruncatedError, UnsupportedError, Ways, located
from ...io.source import Source
from ...io.spool import Spool
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType, Kind
from ...tensor.param_id import ParamId
from ..codec.json_document import NumberText, NumberTexts, lost_number
from ..codec.msgpack import Found, MsgpackReader, Tree
from ..codec.window import Extent, NumberForm, Numbers
from .declaration import below
from .heading import Heading, PrecisionSettings
from .spelling import dtype_from_tree

MOST_TENSORS = 100_000
NODES_PER_TENSOR = 10
MOST_DEPTH = 256

_NAMES_OF_FEW, _NAMES_PER_BYTE = 64 << 20, 32

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ID_LENGTH = 13
_ID_SHOWN = 40


_HEAD = re.compile(rb"\x82\xa2id\xad([0-9a-v]{13})\xa5param\x83\xa5bytes(?:\xc4(.)|\xc5(..)|\xc6(.{4}))", re.DOTALL)
_TAIL = re.compile(
    rb"\xa5shape([\x90-\x98](?:[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}){0,8})\xa5dtype\xa3([FI](?:32|64|16))", re.DOTALL
)
_LONGEST_HEAD = 41
_LONGEST_TAIL = 64
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4}
_NODES = 5  # id and param; bytes, shape and dtype


@dataclass(frozen=True, slots=True)
class FoundParameter(Found):
    """A recognised parameter: its id, and the description and place of its tensor."""

    id: str
    dtype: DType
    shape: Shape
    extent: Extent


class ParameterReader(MsgpackReader):
    """Read MessagePack records, and parameters that are spelled as Burn spells them in one step.

    A parameter is three maps, an array and a dozen values, always in the same order. Reading it value by value is slow
    for records of many thousand tensors; a regular expression matches it as a whole. It is a recogniser, not a second
    reader: a parameter of another form is read value by value.
    """

    __slots__ = ("_tails",)

    def __init__(self, source: Source, sink: Spool, *, nodes: int) -> None:
        super().__init__(source, sink, nodes=nodes)
        self._tails: dict[bytes, tuple[DType, Shape]] = {}

    def _recognised(self) -> Tree:
        if len(self.buffer) - self.at < _LONGEST_HEAD:
            self.need(min(self.left, _LONGEST_HEAD))
        head = _HEAD.match(self.buffer, self.at)
        if head is None:
            return None
        start = self.position
        length = int.from_bytes(head[2] or head[3] or head[4] or b"\0", "big")
        self.at = head.end()
        place = Extent(self.position, length)
        try:
            self.skip(length)
        except TruncatedError:
            self.move_to(start)
            return None
        if len(self.buffer) - self.at < _LONGEST_TAIL:
            self.need(min(self.left, _LONGEST_TAIL))
        tail = _TAIL.match(self.buffer, self.at)
        known = None if tail is None else self._tails.get(tail.group()) or self._read_tail(tail)
        if tail is None or known is None:
            self.move_to(start)
            return None
        self.at = tail.end()
        self._bounded(_NODES + len(known[1]), start)
        return FoundParameter(head[1].decode("ascii"), *known, place)

    def _read_tail(self, tail: re.Match[bytes]) -> tuple[DType, Shape] | None:
        spelled = tail[1]
        extents = []
        at = 1
        while at < len(spelled):
            width = _WIDTHS.get(spelled[at], 0)
            extents.append(int.from_bytes(spelled[at + 1 : at + 1 + width], "big") if width else spelled[at])
            at += 1 + width
        if len(extents) != spelled[0] & 15:
            return None
        known = self._tails[tail.group()] = DType.parse(tail[2].decode("ascii")), tuple(extents)
        return known


_BRANCHES = (dict, list, FoundParameter, Extent, Numbers, NumberText)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor in the tree: its row in the table, and the text of its id; None where it is not a parameter."""

    row: int
    id: str | None


@dataclass(slots=True)
class Rows:
    """The tensors of a record in the order of the file, column by column."""

    names: list[str] = field(default_factory=list)
    dtypes: list[DType] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    param_ids: list[int | None] = field(default_factory=list)
    """The ids as numbers; those of Burn 0.13 are UUIDs and have none."""
    _seen: set[str] = field(default_factory=set)

    def add(self, name: str, dtype: DType, shape: Shape, extent: Extent, id_text: str | None, limits: Limits) -> Leaf:
        """Add a tensor, checked as far as possible without reading it (BR-08, BR-10, BR-11, BR-14)."""
        number = None if id_text is None else param_id(id_text)
        check_size(dtype, shape, extent.nbytes, limits)
        if name in self._seen:
            raise CorruptError("two tensors have this path", rule="BR-14")
        self._seen.add(name)
        if len(self._seen) > (limits.tensors or 0):
            raise LimitError(f"more than {limits.tensors} tensors", rule="BR-14")
        self.names.append(name)
        self.dtypes.append(dtype)
        self.shapes.append(shape)
        self.extents.append(extent)
        self.ids.append(id_text)
        self.param_ids.append(number)
        return Leaf(len(self.names) - 1, id_text)


@dataclass(frozen=True, slots=True)
class Document:
    """A decoded record: its heading, its tree with a `Leaf` for each tensor, and the places of the tensors' bytes."""

    heading: Heading
    item: Any
    rows: Rows
    options: frozenset[str] = frozenset()
    """The paths at which a binary record marks an Option with a value; other encodings do not mark them."""

    most_names: int = 1 << 62
    """The most characters that all paths together may have (BR-14)."""

    def constants(self) -> dict[str, Any]:
        """Return everything but tensors, by path: numbers, strings, and None for a field that stores no value."""
        return {path: node for path, node in walk(self.item, self.most_names) if not isinstance(node, Leaf)}


def walk(item: Any, most_names: int, *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree with their paths, depth first; a list of nothing but constants is one.

    With ``lists`` every list is yielded before what it holds, and empty dicts are not. Paths repeat the keys above
    them, so a small file may have paths without end: their total length is bounded.
    """
    stack: list[tuple[str, Iterator[tuple[Any, Any]]]] = [("", iter([("", item)]))]
    while stack:
        above, children = stack[-1]
        segment, node = next(children, (None, None))
        if segment is None:
            stack.pop()
            continue
        path = below(above, str(segment))
        most_names -= len(path)
        if most_names < 0:
            raise LimitError("paths that are longer in total than a file of this size needs", rule="BR-14")
        if isinstance(node, list) and (lists or any(isinstance(each, (list, dict, Leaf)) for each in node)):
            if lists:
                yield path, node
            stack.append((path, iter(enumerate(node))))
        elif isinstance(node, dict) and (lists or node):
            stack.append((path, iter(node.items())))
        else:
            yield path, node


def param_id(text: str) -> int | None:
    """Return the number that the text of an id stands for; None for a UUID (BR-08)."""
    if len(text) == _ID_LENGTH and text.isascii() and text.isalnum():
        try:
            bits = int(text, 32)  # Python's base 32 has the same digits: a quick way for nearly all ids
        except ValueError:
            bits = 1
        if not bits & 1:
            return int.from_bytes((bits >> 1).to_bytes(8, "big"), "little")
    if _UUID.fullmatch(text):
        return None
    try:
        return int(ParamId.parse(text))
    except ValueError:
        raise CorruptError(f"{text[:_ID_SHOWN]!r} is not the id of a parameter", rule="BR-08") from None


def number_forms(precision: PrecisionSettings) -> Mapping[str, NumberForm]:
    """Return how the numbers of a tensor are stored: bytes, or the elements of Burn 0.13 by the precision (BR-13)."""
    if precision.int is DType.I16:  # floats are stored as the integers of their bits, so either may be meant
        elements = NumberForm(np.dtype("<u2"), -(1 << 15), (1 << 16) - 1, bools=True)
    else:
        high = 1 << precision.int.bits - 1
        elements = NumberForm(precision.int.numpy, -high, high - 1, precision.float.numpy, bools=True)
    return {"bytes": NumberForm(np.dtype("u1"), 0, 255), "value": elements}


def _check_shape(shape: Shape, limits: Limits) -> None:
    if len(shape) > limits.rank:
        raise LimitError(f"{len(shape)} axes, more than the limit of {limits.rank}", rule="BR-10")
    if any(extent >= 1 << 63 for extent in shape) or math.prod(shape) * 8 >= 1 << 63:
        raise CorruptError(f"shape {list(shape)[:8]}: more elements than any file holds", rule="BR-10")


def _check_count(shape: Shape, count: int, limits: Limits) -> None:
    _check_shape(shape, limits)
    if math.prod(shape) != count:
        raise CorruptError(f"{count} elements, but shape {list(shape)} has {math.prod(shape)}", rule="BR-11")


def check_size(dtype: DType, shape: Shape, nbytes: int, limits: Limits) -> None:
    """Refuse a tensor whose bytes are not as many as its shape needs (BR-10, BR-11, BR-20)."""
    _check_shape(shape, limits)
    if dtype.scheme is not None:
        with located(rule="BR-20"):
            dtype.scheme.check_length(shape, nbytes)
    elif dtype.nbytes(shape) != nbytes:
        raise CorruptError(
            f"{nbytes} bytes, but {dtype.name} of shape {list(shape)} has {dtype.nbytes(shape)}", rule="BR-11"
        )
    if nbytes > limits.tensor_bytes:
        raise LimitError(f"{nbytes} bytes, more than the limit of {limits.tensor_bytes}", rule="BR-10")


class Planter:
    """Turn a decoded tree into a document: find the tensors in it, check them and put leaves in their place.

    ``kinds`` has the family of the tensors at some paths, ``undecided`` is the dtype of those that neither the file nor
    ``kinds`` determines; only Half records of Burn 0.13 leave that open (BR-13). ``size`` is that of the document,
    ``texts`` the arrays of numbers that a JSON document has.
    """

    def __init__(
        self,
        heading: Heading,
        limits: Limits,
        kinds: Mapping[str, Kind],
        undecided: DType | None,
        size: int,
        texts: NumberTexts | None = None,
    ) -> None:
        self._heading = heading
        self._limits = limits
        self._kinds = kinds
        self._undecided = undecided
        self._most_names = _NAMES_OF_FEW + size * _NAMES_PER_BYTE
        self._texts = texts
        self._rows = Rows()

    def document(self, tree: Any) -> Document:
        """Return the document with this item; depth first, without recursion. Constants get no path here."""
        root = [tree]
        stack: list[tuple[Any, Iterator[Any], str]] = [(root, iter([0]), "")]
        left = self._most_names
        while stack:
            container, keys, above = stack[-1]
            key = next(keys, None)
            if key is None:
                stack.pop()
                continue
            node = container[key]
            if not isinstance(node, _BRANCHES):
                continue
            path = "" if container is root else below(above, str(key))
            left -= len(path)
            if len(path) > self._limits.name_bytes or left < 0:
                raise LimitError(f"a path of more than {self._limits.name_bytes} characters, or too many", rule="BR-14")
            with located(tensor=path):
                if isinstance(node, FoundParameter):
                    container[key] = self._rows.add(path, node.dtype, node.shape, node.extent, node.id, self._limits)
                elif isinstance(node, list):
                    stack.append((node, iter(range(len(node))), path))
                elif not isinstance(node, dict):
                    raise CorruptError("bytes that belong to no tensor", rule="BR-15")
                elif (leaf := self._leaf(self._without_nulls(node), path)) is not None:
                    container[key] = leaf
                else:
                    stack.append((node, iter(list(node)), path))
        return Document(self._heading, root[0], self._rows, most_names=self._most_names)

    def _leaf(self, node: dict[str, Any], path: str) -> Leaf | None:
        if node.keys() == {"id", "param"} and (isinstance(node["id"], str) or _is_tensor(node["param"])):
            text = node["id"]
            if not isinstance(text, str):
                raise CorruptError("the id of a parameter is not text", rule="BR-08")
            if not _is_tensor(node["param"]):
                raise CorruptError("a parameter that is not a tensor", rule="BR-09")
            return self._tensor(node["param"], path, text)
        return self._tensor(node, path, None) if _is_tensor(node) else None

    def _tensor(self, node: dict[str, Any], path: str, id_text: str | None) -> Leaf:
        shape = node["shape"]
        if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
            raise CorruptError("the shape of a tensor is not an array of extents", rule="BR-09")
        shape = tuple(shape)
        if "bytes" in node:
            dtype = dtype_from_tree(node["dtype"])
            extent = _bytes(self._decoded(node, "bytes", lambda count: check_size(dtype, shape, count, self._limits)))
        else:
            value = self._decoded(node, "value", lambda count: _check_count(shape, count, self._limits))
            dtype, extent = self._elements(value, path)
        return self._rows.add(path, dtype, shape, extent, id_text, self._limits)

    def _without_nulls(self, node: dict[str, Any]) -> dict[str, Any]:
        """Make lists of the arrays of a JSON document that hold nothing but null: they are constants."""
        for key in ("bytes", "value"):
            text = node.get(key)
            if isinstance(text, NumberText) and self._texts is not None:
                node[key] = self._texts.nulls(text) or text
        return node

    def _decoded(self, node: dict[str, Any], key: str, check: Callable[[int], None]) -> Any:
        """Return the numbers of a tensor; those of a JSON document are decoded if there are as many as needed."""
        value = node[key]
        if isinstance(value, NumberText) and self._texts is not None:
            check(self._texts.count(value))
            value = self._texts.decode(value, number_forms(self._heading.precision)[key])
        return value

    def _elements(self, value: Any, path: str) -> tuple[DType, Extent]:
        """Return the dtype and place of the elements of a tensor of Burn 0.13, which does not state their dtype."""
        precision = self._heading.precision
        if value == []:
            value = Numbers("int", 0, Extent(0, 0, spelled_out=True))
        if isinstance(value, list) and None in value and self._texts is not None:
            raise lost_number(None)
        if not isinstance(value, Numbers):
            raise CorruptError("the value of a tensor is not an array of numbers", rule="BR-09")
        if value.kind != "int":
            return (DType.Bool if value.kind == "bool" else precision.float), value.extent
        if value.low < 0 or (precision.float is not DType.F16 and value.count):
            return precision.int, value.extent
        if value.high > (1 << 15) - 1:
            return precision.float, value.extent
        declared = self._kinds.get(path)
        if declared is not None:
            found = {Kind.FLOAT: precision.float, Kind.BOOL: DType.Bool}.get(declared, precision.int)
        elif self._undecided is not None and self._undecided in (precision.float, precision.int):
            found = self._undecided
        else:
            raise UnsupportedError(
                f"{self._heading.settings} of Burn {self._heading.version} store {precision.float.name} and "
                f"{precision.int.name} alike, and these values could be either",
                rule="BR-13",
                hint=Ways(
                    f'pass undecided="{precision.float.name}" if all are floats',
                    "declare the model: burnstore.migrate(old, new, like=Model())",
                    lead="",
                ),
            )
        if found is DType.Bool and value.count:
            raise CorruptError("numbers where the declaration has bools", rule="BR-13")
        return found, value.extent


def _is_tensor(node: Any) -> bool:
    """Return whether a map has a tensor's keys, and not only constants under them, as a struct may have."""
    if not isinstance(node, dict):
        return False
    if node.keys() == {"bytes", "shape", "dtype"}:
        return not all(map(_is_constant, node.values()))
    return node.keys() == {"value", "shape"} and not _is_constant(node["shape"])


def _is_constant(tree: Any) -> bool:
    return tree is None or (isinstance(tree, list) and bool(tree) and all(each is None for each in tree))


def _bytes(tree: Any) -> Extent:
    if isinstance(tree, Extent):
        return tree
    if isinstance(tree, Numbers):
        return tree.extent
    if tree != []:
        raise CorruptError("the bytes of a tensor are not bytes", rule="BR-09")
    return Extent(0, 0, spelled_out=True)
