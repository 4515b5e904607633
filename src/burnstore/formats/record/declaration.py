"""The shape of a model's record in a release of Burn, made from a model declared in Python.

Formats know nothing of models, so attributes decide what a value is: an enum has ``variant`` and ``payload``, a
parameter ``shape`` and ``dtype``. Every field of a model's own types counts, in the order of the Rust struct: numbers
and strings are constants, a tuple of them is an array, a list of them a Vec. The class attribute ``optional_fields``
names those that are an ``Option`` in Rust, except options of numbers and strings; only ``.bin`` files need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from ...errors import ModelError
from ...tensor.dtype import DType, Kind
from .layers import fields_of, variants_of

_CONSTANTS = (bool, int, float, complex, str, bytes, np.generic)
_DEEPEST = 100


def below(path: str, segment: str) -> str:
    """Return a path with one more segment."""
    return f"{path}.{segment}" if path else segment


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor with an id, of one of the families of dtypes."""

    kind: Kind
    holder: Any = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A field that stores no value: alone, an array of ``length``, or with ``counted`` a Vec."""

    length: int | None = None
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """An Option that is None in the declaration."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A struct; ``bare`` where it has no tensors, and may be a single constant in Rust."""

    entries: tuple[tuple[str, Node], ...]
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """A Vec, or an array or tuple, which stores no count."""

    entries: tuple[Node, ...]
    counted: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The live variant of an enum."""

    name: str
    index: int
    content: Node


@dataclass(frozen=True, slots=True)
class Maybe:
    """A value that may be in an Option: ``declared`` to be, or for the reader to determine."""

    content: Node
    declared: bool = False


Node = Union[Parameter, Constant, Absent, Fields, Items, Choice, Maybe]  # noqa: UP007  # the name is used above


def declare(model: Any, minor: int) -> Node:
    """Return the shape that the record of this model has in Burn 0.``minor``."""
    return _declared(model, minor, "", ())


def _declared(value: Any, minor: int, path: str, above: tuple[int, ...]) -> Node:
    if id(value) in above or len(above) > _DEEPEST:
        raise ModelError("the declaration contains itself here, or is nested too deep", tensor=path)
    if value is None:
        return Absent()
    if isinstance(value, _CONSTANTS):
        return Constant()
    if isinstance(value, np.ndarray):
        return Parameter(DType.of(value.dtype).kind, value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Parameter(value.dtype.kind, value)
    above = (*above, id(value))
    if hasattr(value, "variant") and hasattr(value, "payload"):
        return _choice(value, minor, path, above)
    if isinstance(value, (list, tuple)):
        return _items(value, minor, path, above)
    if type(value).__module__.startswith("burnstore.nn.") and type(value).__name__ != "Module":
        return _layer(value, type(value).__name__, minor, path, above)
    entries = []
    optional = getattr(type(value), "optional_fields", ())
    for name, each in _fields(value):
        node = _declared(each, minor, below(path, name), above)
        entries.append((name, _maybe(node, declared=name in optional)))
    return Fields(tuple(entries), bare=not any(map(_holds_tensors, (node for _, node in entries))))


def _fields(value: Any) -> Iterable[tuple[str, Any]]:
    """Return every field of a struct; those that are not stored are constants."""
    if isinstance(value, Mapping):
        return value.items()
    if not hasattr(value, "__dict__"):
        raise ModelError(
            f"cannot make a record of a {type(value).__name__}", hint="declare the model with burnstore.nn"
        )
    names = getattr(type(value), "field_names", {})
    skipped = getattr(type(value), "skipped", ())
    return [
        (names.get(name, name), 0 if name in skipped else each)
        for name, each in vars(value).items()
        if not name.startswith("_") or name in names
    ]


def _layer(value: Any, layer: str, minor: int, path: str, above: tuple[int, ...]) -> Node:
    words = fields_of(layer, minor)
    if words is None:
        return Constant()
    entries: list[tuple[str, Node]] = []
    for word in words:
        name, slash, length = word.partition("/")
        if slash:
            entries.append((name, Constant(int(length) if length else None)))
            continue
        name, inner, inner_layer = name.partition("=")
        if inner:
            entries.append((name, _layer(value, inner_layer, minor, f"{path}.{name}", above)))
            continue
        optional = name.endswith("?")
        name = name.rstrip("?")
        node = _declared(getattr(value, name), minor, below(path, name), above)
        entries.append((name, Maybe(node, declared=True) if optional and not isinstance(node, Absent) else node))
    return Fields(tuple(entries))


def _choice(value: Any, minor: int, path: str, above: tuple[int, ...]) -> Node:
    enum = type(value)
    own = not enum.__module__.startswith("burnstore.nn.")
    names = list(enum.variants()) if own else variants_of(enum.__name__, minor)
    if value.variant not in names:
        raise ModelError(f"Burn 0.{minor} has no {enum.__name__}::{value.variant}", tensor=path)
    content = _declared(value.payload, minor, f"{path}.{value.variant}", above)
    return Choice(value.variant, names.index(value.variant), content)


def _items(value: list[Any] | tuple[Any, ...], minor: int, path: str, above: tuple[int, ...]) -> Node:
    counted = isinstance(value, list) and getattr(type(value), "burn_container", "Vec") == "Vec"
    nodes = tuple(_declared(each, minor, below(path, str(index)), above) for index, each in enumerate(value))
    if nodes and all(isinstance(node, Constant) for node in nodes):
        return Constant(len(nodes), counted)
    return Items(tuple(map(_maybe, nodes)), counted)


def _maybe(node: Node, *, declared: bool = False) -> Node:
    return node if isinstance(node, Absent) or (isinstance(node, Constant) and not declared) else Maybe(node, declared)


def _holds_tensors(node: Node) -> bool:
    if isinstance(node, Maybe):
        return _holds_tensors(node.content)
    if isinstance(node, Fields):
        return any(_holds_tensors(each) for _, each in node.entries)
    if isinstance(node, Items):
        return any(map(_holds_tensors, node.entries))
    return isinstance(node, (Parameter, Choice))


def marked(node: Node, options: Set[str], path: str = "") -> Node:
    """Return the same with the nodes at these paths declared to be an Option."""
    if isinstance(node, Constant) and path in options:
        return Maybe(node, declared=True)
    if isinstance(node, Maybe):
        inner = node.content if isinstance(node.content, Constant) else marked(node.content, options, path)
        return Maybe(inner, node.declared or path in options)
    if isinstance(node, Fields):
        fields = ((name, marked(each, options, below(path, name))) for name, each in node.entries)
        return Fields(tuple(fields), node.bare)
    if isinstance(node, Items):
        entries = (marked(each, options, below(path, str(index))) for index, each in enumerate(node.entries))
        return Items(tuple(entries), node.counted)
    if isinstance(node, Choice):
        return Choice(node.name, node.index, marked(node.content, options, below(path, node.name)))
    return node


def parameters_of(node: Node, path: str = "") -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of a declaration with their paths, in their order."""
    if isinstance(node, Maybe):
        yield from parameters_of(node.content, path)
    elif isinstance(node, Parameter):
        yield path, node
    children: Iterable[tuple[str, Node]] = ()
    if isinstance(node, Fields):
        children = node.entries
    elif isinstance(node, Items):
        children = ((str(index), each) for index, each in enumerate(node.entries))
    elif isinstance(node, Choice):
        children = ((node.name, node.content),)
    for segment, each in children:
        yield from parameters_of(each, below(path, segment))
