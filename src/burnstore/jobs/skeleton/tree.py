"""The tree of a model's modules as Rust will have it: layers, structs, lists, parameters.

Names, lists and order are those of `burnstore.transforms.view`: what a conversion writes, the skeleton declares.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ModelError, located
from ...models.torch.kinds import kind_of
from ...tensor.data import Shape
from ...tensor.dtype import Kind
from ...tensor.torch import described
from ...transforms.layout import AS_IS, SERIES, ModuleKind, is_torch_leaf
from .expression import Expression, array, call
from .layers import layer_of, parameterless

_STACKS = ("TransformerEncoder", "TransformerDecoder")
_LAYERS = ("TransformerEncoderLayer", "TransformerDecoderLayer")


@dataclass
class Layer:
    """A module that Burn has: how it is made."""

    made: Expression


@dataclass
class Series:
    """Modules under numbers; those without tensors are not among them."""

    items: list[Node]
    shown: str = ""
    """What PyTorch has there, for a comment."""


@dataclass
class Struct:
    """A module of one's own."""

    key: str
    """The class, or what else tells apart structs that are not of one class."""

    name: str
    fields: dict[str, Node] = field(default_factory=dict)
    soft: dict[str, Expression | str] = field(default_factory=dict)
    """Children without tensors: how Burn makes them, or what PyTorch shows."""

    order: dict[str, str] = field(default_factory=dict)
    """The names of both, in PyTorch's order, and nothing more."""

    shown: str = ""
    signature: str = ""


Node = Layer | Series | Struct


def tree_of_model(model: Any) -> Node:
    """Return the tree of a torch model; ModelError for what Burn has no place for."""
    found = _node(model, "", type(model).__name__)
    if found is None:
        raise ModelError("the model holds no tensors", hint="give a model with parameters")
    return found


def _node(module: Any, path: str, label: str) -> Node | None:
    """Return the node of a torch module; None for one that Burn has no tensors for."""
    kind = kind_of(module)
    with located(tensor=path or None):
        if kind is not None and (is_torch_leaf(kind) or kind.name in (*_STACKS, *_LAYERS)):
            return _layer(kind, module)
        if kind is not None and kind.name in SERIES and all(name.isdecimal() for name in module._modules):
            _refuse_tensors(module)
            return _series(module, path, label)
        return _struct(module, path, label)


def _refuse_tensors(module: Any) -> None:
    own = next(iter(_own_tensors(module)), None)
    if own is not None:
        raise ModelError(f"a list of modules with a tensor of its own, {own[0]!r}: Burn's has none")


def _layer(kind: ModuleKind, module: Any) -> Node | None:
    tensors = {name: tuple(held.shape) for name, held in module.state_dict(keep_vars=True).items()}
    option = _transformer_option(module) if kind.name in (*_STACKS, *_LAYERS) else _option(module)
    made = layer_of(kind.name, tensors, option)
    if made is None:
        raise ModelError(f"a {kind.name}: Burn has no such module")
    if not tensors and kind.option("features") is None:  # Burn has ones and zeros there
        return None
    return Layer(made[0]) if len(made) == 1 else Series([Layer(each) for each in made], f"{kind.name}, layer by layer")


def _option(module: Any) -> Callable[[str, Any], Any]:
    return lambda name, usual: getattr(module, name, usual)


_ACTIVATIONS = {"relu": "Relu", "gelu": "Gelu", "tanh": "Tanh", "sigmoid": "Sigmoid", "selu": "Selu"}


def _transformer_option(module: Any) -> Callable[[str, Any], Any]:
    """Return what reads the options of a transformer: those of its layers, which Burn makes all alike."""
    layers = list(module.layers) if hasattr(module, "layers") else [module]
    options = [
        {
            "num_heads": layer.self_attn.num_heads,
            "layer_norm_eps": layer.norm1.eps,
            "dropout": layer.dropout.p,
            "norm_first": layer.norm_first,
            "activation": _activation(layer.activation),
        }
        for layer in layers
    ]
    if any(each != options[0] for each in options):
        raise ModelError(f"a {type(module).__name__} whose layers have different options; Burn's are all alike")
    return lambda name, usual: options[0].get(name, usual)


def _activation(function: Any) -> str:
    """Return what Burn calls an activation that is a function or a module."""
    spelled = getattr(function, "__name__", type(function).__name__).lower()
    if spelled not in _ACTIVATIONS:
        raise ModelError(
            f"a transformer layer with the activation {spelled!r}; expected one of {', '.join(_ACTIVATIONS)}",
            hint="write this layer by hand: Burn's transformer has no such activation",
        )
    is_approximate = getattr(function, "approximate", "none") == "tanh"
    return "GeluApproximate" if spelled == "gelu" and is_approximate else _ACTIVATIONS[spelled]


def _series(module: Any, path: str, label: str) -> Node | None:
    numbered = sorted(module._modules.items(), key=lambda item: int(item[0]))
    children = [(f"{path}.{name}".strip("."), child) for name, child in numbered if child is not None]
    items = [_node(child, below, f"{label}_layer") for below, child in children]
    kept = [item for item in items if item is not None]
    shown = ", ".join(type(child).__name__ for _, child in numbered)
    return Series(kept, f"{type(module).__name__}: {shown}" if len(kept) < len(items) else "") if kept else None


def _struct(module: Any, path: str, label: str) -> Struct | None:
    known = kind_of(module)
    is_own = known is None or known.name == AS_IS
    names = tuple(name for name, child in module._modules.items() if child is not None)
    key = f"{type(module).__module__}.{type(module).__qualname__}" if is_own else f"{label} {names}"
    found = Struct(key, type(module).__name__ if is_own else label, signature=_signature(module) if is_own else "")
    found.order = dict.fromkeys((*(name for name, *_ in _own_tensors(module)), *names), "")
    found.shown = f"{type(module).__module__}.{type(module).__qualname__}" if is_own else type(module).__name__
    for name, shape, kind in _own_tensors(module):
        found.fields[name] = Layer(_parameter(shape, kind))
    for name, child in module._modules.items():
        if child is None:
            continue
        below = f"{path}.{name}".strip(".")
        node = _node(child, below, name)
        if node is None:
            is_torchs = type(child).__module__.startswith("torch.nn.")
            made = parameterless(type(child).__name__, _option(child)) if is_torchs else None
            found.soft[name] = made or _shown(child)
            continue
        found.fields[name] = node
        norm = getattr(child, "norm", None) if type(child).__name__ in _STACKS else None
        if norm is not None:  # Burn's stack has no final norm: it is a field beside it
            final = _node(norm, f"{below}.norm", name)
            assert final is not None
            found.fields[f"{name}_norm"] = final
    return found if found.fields else None


def _own_tensors(module: Any) -> Iterator[tuple[str, Shape, str]]:
    """Yield the parameters and persistent buffers of a module itself: name, shape, and what Burn calls the kind."""
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is None or name in module._non_persistent_buffers_set:
            continue
        dtype, shape = described(tensor)
        if not shape:
            raise ModelError(
                f"its {name} has no axes; Burn's tensors have at least one",
                hint="give it the shape [1] in PyTorch, or declare this model by hand",
            )
        if dtype.kind not in _KINDS:
            raise ModelError(f"its {name} is {dtype.name}; Burn has no tensors of this kind")
        yield name, shape, _KINDS[dtype.kind]


_KINDS = {Kind.FLOAT: "Float", Kind.BOOL: "Bool", Kind.INT: "Int", Kind.UINT: "Int"}


def _parameter(shape: Shape, kind: str) -> Expression:
    sizes = array(shape, "size")
    if kind == "Float":
        return Expression("Initializer::Zeros.init({}, device)", f"Param<Tensor<{len(shape)}>>", (sizes,))
    zeros = f"Tensor::<{len(shape)}, Int>::zeros({{}}, device)" + (".equal_elem(1)" if kind == "Bool" else "")
    return Expression(f"Param::initialized(ParamId::new(), {zeros})", f"Param<Tensor<{len(shape)}, {kind}>>", (sizes,))


def _shown(module: Any) -> str:
    return " ".join(repr(module).split())[:100]


def _signature(module: Any) -> str:
    try:
        return " ".join(f"forward{inspect.signature(type(module).forward)}".split())  # a default may have lines
    except (TypeError, ValueError):
        return "forward(...)"


def call_some(made: Expression) -> Expression:
    """Return a value in an Option."""
    return call("Some", f"Option<{made.type}>", made)


def tree_of_shapes(tensors: Mapping[str, Shape], kinds: Mapping[str, ModuleKind], name: str) -> Node:
    """Return the tree of a file's modules by their kinds; options that no file has are PyTorch's defaults."""
    root = _Folder()
    for path, shape in tensors.items():
        root.put(path.split("."), shape)
    found = _folder_node(root, "", name, kinds)
    if found is None:
        raise ModelError("the file holds no tensors")
    return found


@dataclass
class _Folder:
    """The tensors and folders under a path."""

    tensors: dict[str, Shape] = field(default_factory=dict)
    folders: dict[str, _Folder] = field(default_factory=dict)

    def put(self, segments: list[str], shape: Shape) -> None:
        here = self
        for segment in segments[:-1]:
            here = here.folders.setdefault(segment, _Folder())
        here.tensors[segments[-1]] = shape

    def flat(self, prefix: str = "") -> Iterator[tuple[str, Shape]]:
        for name, shape in self.tensors.items():
            yield prefix + name, shape
        for name, folder in self.folders.items():
            yield from folder.flat(f"{prefix}{name}.")


def _folder_node(folder: _Folder, path: str, label: str, kinds: Mapping[str, ModuleKind]) -> Node | None:
    kind = kinds.get(path)
    with located(tensor=path or None):
        if kind is not None and is_torch_leaf(kind):
            made = layer_of(kind.name, dict(folder.flat()), lambda _, usual: usual)
            if made is None:
                raise ModelError(f"a {kind.name}: Burn has no such module")
            return Layer(made[0]) if len(made) == 1 else Series([Layer(each) for each in made])
    if folder.folders and not folder.tensors and all(name.isdecimal() for name in folder.folders):
        numbered = sorted(folder.folders.items(), key=lambda item: int(item[0]))
        items = [_folder_node(held, f"{path}.{name}".strip("."), f"{label}_layer", kinds) for name, held in numbered]
        return Series([item for item in items if item is not None])
    found = Struct(f"{label} {(*folder.tensors, *folder.folders)}", label, shown=path)
    for name, shape in folder.tensors.items():
        if not shape:
            hint = "take the part of the file that is the model, with top_level_key="
            tensor = f"{path}.{name}".strip(".")
            raise ModelError("it has no axes; Burn's tensors have at least one", tensor=tensor, hint=hint)
        found.fields[name] = Layer(_parameter(shape, "Float"))
    for name, held in folder.folders.items():
        node = _folder_node(held, f"{path}.{name}".strip("."), name, kinds)
        if node is not None:
            found.fields[name] = node
    return found if found.fields else None
