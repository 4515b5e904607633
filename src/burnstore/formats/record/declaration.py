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
    names = list(enum.variants()) if own else _newest(_VARIANTS[enum.__name__], minor).split()
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
    return isinstance(node, (Parameter, Choice)) or any(_holds_tensors(each) for _, each in _children(node, ""))


def _children(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Yield the nodes inside of a node, with their paths."""
    if isinstance(node, Maybe):
        yield path, node.content
    elif isinstance(node, Choice):
        yield below(path, node.name), node.content
    elif isinstance(node, Fields):
        yield from ((below(path, name), each) for name, each in node.entries)
    elif isinstance(node, Items):
        yield from ((below(path, str(index)), each) for index, each in enumerate(node.entries))


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
    if isinstance(node, Parameter):
        yield path, node
    for place, each in _children(node, path):
        yield from parameters_of(each, place)


_CONV = "weight bias? stride/{n} kernel_size/{n} dilation/{n}"
_TRANSPOSED = f"{_CONV} groups/ padding/{{n}} padding_out/{{n}}"
_ATTENTION = "query key value output dropout/ activation/"
_STACK = "layers d_model/ d_ff/ n_heads/ n_layers/ dropout/ norm_first/ quiet_softmax/"
_GATES = "input_gate forget_gate output_gate cell_gate d_hidden/"

# The fields that Burn's own layers have in a record, in their order. A word is the name of a field. ``name/`` is a
# constant; ``name/2`` one that is an array of two, whose entries releases up to 0.20 store one by one. ``name?`` is an
# Option. ``name=Layer`` holds the same tensors as a layer of that kind. A layer that is not listed is one constant.
# Each row: the first release that it describes, and the fields; the last row that applies counts.
_FIELDS: dict[str, tuple[tuple[int, str], ...]] = {
    "Linear": ((0, "weight bias?"),),
    "Embedding": ((0, "weight"),),
    "Conv1d": ((0, _CONV.format(n="") + " groups/ padding/"),),
    "Conv2d": ((0, _CONV.format(n=2) + " groups/ padding/"),),
    "Conv3d": ((0, _CONV.format(n=3) + " groups/ padding/"),),
    "ConvTranspose1d": ((0, _TRANSPOSED.format(n="")), (14, _TRANSPOSED.format(n="") + " channels/2")),
    "ConvTranspose2d": ((0, _TRANSPOSED.format(n=2)), (14, _TRANSPOSED.format(n=2) + " channels/2")),
    "ConvTranspose3d": ((0, _TRANSPOSED.format(n=3)), (14, _TRANSPOSED.format(n=3) + " channels/2")),
    "DeformConv2d": ((0, _CONV.format(n=2) + " weight_groups/ offset_groups/ padding/"),),
    "BatchNorm": ((0, "gamma beta running_mean running_var momentum/ epsilon/"),),
    "LayerNorm": ((0, "gamma beta epsilon/"), (20, "gamma beta? epsilon/")),
    "GroupNorm": (
        (0, "num_groups/ num_channels/ gamma? beta? epsilon/ affine/"),
        (14, "gamma? beta? num_groups/ num_channels/ epsilon/ affine/"),
    ),
    "InstanceNorm": ((0, "group_norm=GroupNorm"), (14, "gamma? beta? num_channels/ epsilon/ affine/")),
    "RmsNorm": ((0, "gamma epsilon/"),),
    "PRelu": ((0, "alpha"), (14, "alpha alpha_value/")),
    "SwiGlu": ((0, "linear_inner linear_outer"),),
    "GateController": ((0, "input_transform hidden_transform"),),
    "Lstm": (
        (0, _GATES),
        (20, f"{_GATES} batch_first/ reverse/ clip/ input_forget/ gate_activation cell_activation hidden_activation"),
    ),
    "BiLstm": ((0, "forward reverse d_hidden/"), (20, "forward reverse d_hidden/ batch_first/")),
    "Gru": (
        (0, "update_gate reset_gate new_gate d_hidden/"),
        (17, "update_gate reset_gate new_gate d_hidden/ reset_after/"),
        (21, "update_gate reset_gate new_gate d_hidden/ reset_after/ gate_activation hidden_activation clip/"),
    ),
    "BiGru": ((0, "forward reverse d_hidden/ batch_first/"),),
    "Rnn": ((0, "gate d_hidden/ batch_first/ reverse/ clip/ hidden_activation"),),
    "BiRnn": ((0, "forward reverse d_hidden/ batch_first/"),),
    "MultiHeadAttention": (
        (0, f"{_ATTENTION} n_heads/ d_k/ min_float/ quiet_softmax/"),
        (14, f"{_ATTENTION} d_model/ n_heads/ d_k/ min_float/ quiet_softmax/"),
    ),
    "CrossAttention": (
        (0, "query key value output dropout/ n_heads/ n_heads_kv/ d_head/ scale/ min_float/ quiet_softmax/"),
    ),
    "PositionWiseFeedForward": (
        (0, "linear_inner linear_outer dropout/ gelu/"),
        (21, "linear_inner linear_outer dropout/ activation/"),
    ),
    "TransformerEncoderLayer": ((0, "mha pwff norm_1 norm_2 dropout/ norm_first/"),),
    "TransformerDecoderLayer": ((0, "cross_attn self_attn pwff norm_1 norm_2 norm_3 dropout/ norm_first/"),),
    "TransformerEncoder": ((0, "layers"), (14, _STACK)),
    "TransformerDecoder": ((0, "layers"), (14, _STACK)),
    "PositionalEncoding": ((0, "sinusoids/"), (14, "sinusoids/ max_sequence_size/ max_timescale/")),
    "RotaryEncoding": (
        (0, "freq_complex/"),
        (14, "freq_complex/ max_sequence_length/ theta/"),
        (18, "freq_complex/ theta/ start_offset/"),
    ),
}

_VARIANTS: dict[str, tuple[tuple[int, str], ...]] = {
    "Activation": (
        (19, "Gelu PRelu Relu LeakyRelu SwiGlu Sigmoid Tanh HardSigmoid"),
        (20, "Gelu PRelu Relu LeakyRelu SwiGlu Sigmoid Tanh HardSigmoid HardSwish Softplus"),
        (
            21,
            "Gelu PRelu Relu LeakyRelu SwiGlu Selu Sigmoid Tanh HardSigmoid HardSwish Softplus Softsign Elu Celu "
            "ThresholdedRelu HardShrink SoftShrink Shrink",
        ),
    ),
    "Normalization": ((19, "Batch Group Instance Layer Rms"),),
}


def fields_of(layer: str, minor: int) -> list[str] | None:
    """Return the words of a layer's fields in that release; None for a constant."""
    rows = _FIELDS.get(layer)
    return None if rows is None else _newest(rows, minor).split()


def _newest(rows: tuple[tuple[int, str], ...], minor: int) -> str:
    return [words for since, words in rows if since <= minor or since == rows[0][0]][-1]
