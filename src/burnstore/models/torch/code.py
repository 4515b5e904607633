"""What the code of a class does with the tensors of the layer that it derives from.

A class that derives from a layer of PyTorch has the layer's tensors, and may compute something else with them: timm's
StdConv2d standardizes its weight first. What a class computes decides, inheritance does not. The source is read, and
nothing is run:

    LAYER     the class defines none of the methods that compute, so it is the layer
    AROUND    its own methods call those of the layer, or give the unchanged tensors to the layer's own function: the
              tensors are those of the layer, and the code around it is the model's own
    OTHER     anything else
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Literal

from ...tensor.torch import torch_package

Use = Literal["layer", "around", "other"]

_TENSORS = frozenset(
    (
        *("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "in_proj_weight", "in_proj_bias"),
        *("q_proj_weight", "k_proj_weight", "v_proj_weight", "bias_k", "bias_v", "weight_ih", "weight_hh", "bias_ih"),
        *("bias_hh", "_flat_weights", "all_weights"),
    )
)
_HIDING = frozenset({"__dict__", "_parameters", "_buffers", "parameters", "named_parameters", "state_dict", "buffers"})
_COMPUTING = frozenset({"forward", "_conv_forward", "__call__", "_call_impl", "__getattr__", "__getattribute__"})
_ELSEWHERE = frozenset(
    {"reset_parameters", "_reset_parameters", "extra_repr", "_check_input_dim", "flatten_parameters"}
)
_FACTS = frozenset({"dtype", "device", "shape", "ndim", "is_cuda", "requires_grad", "size", "dim", "numel"})
_SAME_VALUES = frozenset({"to", "float", "type_as", "contiguous"})
_FUNCTIONS = {
    "Linear": {"linear"},
    "Embedding": {"embedding"},
    "EmbeddingBag": {"embedding_bag"},
    "LayerNorm": {"layer_norm"},
    "RMSNorm": {"rms_norm"},
    "GroupNorm": {"group_norm"},
    "PReLU": {"prelu"},
    "MultiheadAttention": {"multi_head_attention_forward"},
    **{f"BatchNorm{n}d": {"batch_norm"} for n in (1, 2, 3)},
    "SyncBatchNorm": {"batch_norm"},
    **{f"InstanceNorm{n}d": {"instance_norm"} for n in (1, 2, 3)},
    **{f"Conv{n}d": {f"conv{n}d", "_conv_forward"} for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": {f"conv_transpose{n}d"} for n in (1, 2, 3)},
}


def own_classes(kind: type, layer: str) -> list[type]:
    """Return the classes between a class and the layer of PyTorch of this name that it derives from."""
    found: list[type] = []
    for cls in kind.__mro__:
        if cls.__name__ == layer and cls.__module__.startswith(("torch.", "torchvision.ops.")):
            return found
        found.append(cls)
    return []


@functools.cache
def use_of_tensors(kind: type, layer: str) -> Use:
    """Return how a class uses the tensors of the layer of PyTorch from which it derives."""
    classes = own_classes(kind, layer)
    if not classes:
        return "layer"
    base = kind.__mro__[len(classes)]
    methods = {name: member for cls in reversed(classes) for name, member in vars(cls).items()}
    ours = set(dir(base)) - set(dir(torch_package().nn.Module)) - _ELSEWHERE
    computing = [name for name in methods if name in _COMPUTING or name in _TENSORS or name in ours]
    computing = [name for name in computing if callable(methods[name]) or isinstance(methods[name], property)]
    defined = {name: [vars(cls)[name] for cls in classes if name in vars(cls)] for name in methods}
    if set(computing) == {"__getattr__"}:  # asked for what the object's dictionary does not have: tensors, too
        return "layer" if all(_passes_tensors_on(each, layer) for each in defined["__getattr__"]) else "other"
    if not computing:
        return "layer"
    if any(name in _TENSORS or name.startswith("__") for name in computing):
        return "other"
    reached, pending = set(computing), list(computing)
    is_used = False
    while pending:
        for method in defined[pending.pop()]:
            reading = _read(method, layer)
            if reading is None or reading.changes:
                return "other"
            is_used = is_used or reading.uses
            pending += [name for name in reading.called if name in methods and name not in reached]
            reached.update(reading.called)
            if not reading.defers:
                break  # no other class's method of this name is run
    return "around" if is_used else "other"


class _Reading:
    """What one method does: whether it uses the layer or changes tensors first, and which methods it calls."""

    def __init__(self) -> None:
        self.uses = False
        self.changes = False
        self.defers = False  # to the method of a class that it derives from
        self.called: set[str] = set()


def _read(method: Any, layer: str) -> _Reading | None:
    """Read the source of a method; None if there is none."""
    function = inspect.unwrap(getattr(method, "fget", method))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    reading, functions = _Reading(), _FUNCTIONS.get(layer, set())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in ("getattr", "setattr", "vars", "eval", "exec"):
            reading.changes = True
        if isinstance(node, ast.Name) and node.id == "super":
            reading.defers = True
        if isinstance(node, ast.Attribute) and node.attr in _HIDING:
            reading.changes = True
        if isinstance(node, ast.Call) and _is_of_layer(node.func):
            reading.uses = True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            reading.called.add(node.attr)
        if _is_tensor(node) and not _is_declared(node, parents):
            use = _use(node, parents, functions, layer)
            reading.uses = reading.uses or use == "function"
            reading.changes = reading.changes or use == "other"
    return reading


def _passes_tensors_on(method: Any, layer: str) -> bool:
    """Return whether a ``__getattr__`` gives tensors as they are: what it answers itself is no tensor, by its name.

    PyTorch keeps parameters and buffers outside the object's dictionary, so that ``self.weight`` asks ``__getattr__``.
    """
    reading = _read(method, layer)
    if reading is None or reading.changes:
        return False
    function = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(method)))).body[0]
    if not isinstance(function, ast.FunctionDef) or function.decorator_list or len(function.args.args) != 2:
        return False
    name = function.args.args[1].arg
    pending: list[ast.AST | None] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            pending.append(node.value)
        elif isinstance(node, (ast.If, ast.IfExp)) and _is_asked_for_no_tensor(node.test, name):
            pending += node.orelse if isinstance(node, ast.If) else [node.orelse]
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) and (
            node is None or ast.unparse(node) != f"super().__getattr__({name})"
        ):
            return False
    return True


def _is_asked_for_no_tensor(test: ast.expr, name: str) -> bool:
    """Match ``name == "padding_mode"``."""
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name) or test.left.id != name:
        return False
    asked = test.comparators[0]
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq) or not isinstance(asked, ast.Constant):
        return False
    return isinstance(asked.value, str) and not asked.value.startswith((*_TENSORS, "out_proj"))


def _is_of_layer(function: ast.expr) -> bool:
    """Match ``super().forward`` and ``nn.Linear.forward``."""
    if not isinstance(function, ast.Attribute) or function.attr not in ("forward", "__call__", "_conv_forward"):
        return False
    owner = function.value
    if isinstance(owner, ast.Call):
        return isinstance(owner.func, ast.Name) and owner.func.id == "super"
    return isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "nn"


def _is_tensor(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _TENSORS and isinstance(node.value, ast.Name) and node.value.id == "self"
    return isinstance(node, ast.Name) and node.id in _TENSORS


def _is_declared(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Match a name in an annotation."""
    return isinstance(parents.get(node), (ast.arg, ast.arguments))


def _use(
    node: ast.AST, parents: dict[ast.AST, ast.AST], functions: set[str], layer: str
) -> Literal["function", "fact", "other"]:
    """Return what is done with a tensor: given to the layer's function, asked for a fact, or anything else."""
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return "other"
    if _is_spelled_out(node, parents, layer):
        return "function"
    for parent in _around(node, parents):
        if isinstance(parent, ast.Attribute) and parent.attr in _FACTS:
            return "fact"
        if isinstance(parent, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops):
            return "fact"
        if isinstance(parent, ast.keyword):
            continue
        if isinstance(parent, ast.Call):
            function = parent.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in functions:
                return "function"
            if name in _SAME_VALUES:
                continue
            return "other"
        if isinstance(parent, ast.IfExp) or (isinstance(parent, ast.Attribute) and parent.attr in _SAME_VALUES):
            continue
        return "other"
    return "other"


def _is_spelled_out(node: ast.AST, parents: dict[ast.AST, ast.AST], layer: str) -> bool:
    """Match ``x @ self.weight.T`` and ``y + self.bias`` of a Linear, and rows of an Embedding: ``self.weight[ids]``."""
    parent = parents.get(node)
    if layer == "Embedding":
        return isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.ctx, ast.Load)
    if layer != "Linear":
        return False
    name = node.attr if isinstance(node, ast.Attribute) else ""
    if name == "bias":
        return isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add)
    if name == "weight" and isinstance(parent, ast.Attribute) and parent.attr == "T":
        product = parents.get(parent)
        return isinstance(product, ast.BinOp) and isinstance(product.op, ast.MatMult) and product.right is parent
    return False


def _around(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in parents:
        node = parents[node]
        yield node
