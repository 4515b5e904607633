"""The kinds of PyTorch modules: their type, and the options that no tensor shows."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable
from types import CodeType
from typing import Any

from ...errors import ModelError, Ways
from ...tensor.torch import torch_package
from ...transforms.classes import kind_of_class
from ...transforms.layout import COUNT, PLUS_ONE, ModuleKind, is_torch_leaf
from .code import own_classes, use_of_tensors

Module = Any
"""A torch.nn.Module."""

# Classes of PyTorch that others derive from; they do not determine a module's tensors.
_BASES = frozenset({"Module", "_BatchNorm", "_InstanceNorm", "_NormBase", "_ConvNd", "_ConvTransposeNd", "RNNBase"})


def kind_of(module: Module) -> ModuleKind | None:
    """Return the kind of a module; None for a class that derives from no layer of PyTorch.

    A class that derives from a layer has that layer's tensors. It is that layer unless it computes something else with
    them (see `code`): then its kind is one that no rule knows, unless burnstore knows the class by name. Torchvision's
    DeformConv2d counts as a layer, and the classes of other libraries that burnstore knows by name count as what they
    are. A scripted or traced module is of the class that its TorchScript
    type names; one that is no layer of PyTorch has a kind that no rule knows.
    """
    kind: type = type(module)
    layer = _scripted_layer(module) if _is_scripted(kind) else layer_of(kind)
    if layer is None and not _is_scripted(kind) and (cls := _named_class(kind)) is not None:
        named = None if module._modules else kind_of_class(cls.__module__, cls.__name__, _own_shapes(module))
        return None if named is None else _without_options(named)
    if layer is None:
        # Whether the class behind a script derives from a layer is lost: its tensors are not copied unasked.
        return _without_options(f"scripted {module.original_name}") if _is_scripted(kind) else None
    if layer == "NonDynamicallyQuantizableLinear":
        return _without_options("Linear")
    if computes_otherwise(module, layer):
        if _is_replaced(module):
            return _without_options(f"{class_name(module)} whose forward was replaced")
        return _without_options(f"{class_name(module)}, which derives from {layer} and has a forward of its own")
    options = tuple(_options(layer, module))
    return ModuleKind(layer, options) if options else _without_options(layer)


def computes_otherwise(module: Module, layer: str) -> bool:
    """Return whether a module may compute something else with its tensors than the layer that it derives from."""
    kind: type = type(module)
    if _is_scripted(kind) or not is_torch_leaf(ModuleKind(layer)) or layer in _WITHOUT_OWN - {"Linear"}:
        return False
    return _is_replaced(module) or (use_of_tensors(kind, layer) == "other" and not _is_known_as(kind, layer))


def own_code(module: Module) -> str | None:
    """Return the class and the layer of a module whose class computes more than the layer; None for other modules."""
    kind: type = type(module)
    layer = None if _is_scripted(kind) else layer_of(kind)
    if layer is None or layer in _WITHOUT_OWN - {"Linear"} or use_of_tensors(kind, layer) == "layer":
        return None
    return f"{kind.__name__} (from {layer})"


def _is_replaced(module: Module) -> bool:
    """Return whether an object has a forward that its class has not; accelerate's only moves tensors."""
    return "forward" in module.__dict__ and "_hf_hook" not in module.__dict__


@functools.cache
def _is_known_as(kind: type, layer: str) -> bool:
    """Return whether the class that defines what is computed is known by name, and uses the tensors as the layer."""
    for cls in own_classes(kind, layer):
        if kind_of_class(cls.__module__, cls.__name__) == layer:
            return True
        if "forward" in vars(cls) or "_conv_forward" in vars(cls):
            return False
    return False


_WITHOUT_OWN = frozenset({"Linear", "Sequential", "ModuleList", "ModuleDict"})
_without_options = functools.cache(ModuleKind)  # one object for all that are equal
_DEFORMABLE = "torchvision.ops.deform_conv.DeformConv2d"


@functools.cache
def _named_class(kind: type) -> type | None:
    """Return the class of another library, known by name, that a class is or derives from."""
    return next((cls for cls in kind.__mro__ if kind_of_class(cls.__module__, cls.__name__) is not None), None)


def _own_shapes(module: Module) -> dict[str, tuple[int, ...]]:
    held = [*module._parameters.items(), *module._buffers.items()]
    unsaved = module._non_persistent_buffers_set
    return {name: tuple(tensor.shape) for name, tensor in held if tensor is not None and name not in unsaved}


@functools.cache
def layer_of(kind: type) -> str | None:
    """Return the name of the layer that a class is, or derives from; None for a norm that scales by 1 + weight."""
    codes: list[CodeType] = []
    for cls in kind.__mro__:
        if (named := kind_of_class(cls.__module__, cls.__name__)) in PLUS_ONE:
            return named  # such a norm may derive from the plain one
        own = cls.__module__.startswith("torch.nn.") or f"{cls.__module__}.{cls.__name__}" == _DEFORMABLE
        if own and not cls.__name__.startswith("_") and cls.__name__ not in _BASES:
            return None if "Norm" in cls.__name__ and any(map(_adds_one_to_weight, codes)) else cls.__name__
        members = (getattr(member, "fget", member) for member in vars(cls).values())
        codes += [code for member in members if isinstance(code := getattr(member, "__code__", None), CodeType)]
    return None


def _adds_one_to_weight(code: CodeType) -> bool:
    """Return whether a method computes ``self.weight + 1`` or ``1 + self.weight``, also of ``weight.float()``."""
    steps = [(step.opname, step.argval, step.argrepr) for step in dis.get_instructions(code)]
    ones = {at for at, (name, value, _) in enumerate(steps) if name.startswith("LOAD_") and value in (1, 1.0)}
    for at, (name, value, _) in enumerate(steps):
        if name == "LOAD_ATTR" and value == "weight":
            after = steps[at + 1 : at + 8]
            sums = [at + 1 + row for row, step in enumerate(after) if step[0] == "BINARY_ADD" or step[2] == "+"]
            if sums and (at - 2 in ones or sums[0] - 1 in ones):
                return True
    return False


@functools.cache
def _is_scripted(kind: type) -> bool:
    return issubclass(kind, torch_package().jit.ScriptModule)


def class_name(module: Module) -> str:
    """Return the name of a module's class; of a scripted or traced one, that of the class it was made from."""
    kind: type = type(module)
    return str(module.original_name) if _is_scripted(kind) else kind.__name__


def _scripted_layer(module: Module) -> str | None:
    """Return the layer of PyTorch from which a module was scripted or traced.

    The type has the module of the class in its name (``__torch__.torch.nn.modules.linear.Linear``, with
    ``___torch_mangle_3`` before the last part where there are several); ``original_name`` alone may be a class of the
    user's with the name of a layer.
    """
    *package, name = [
        part for part in module._c._type().qualified_name().split(".")[1:] if not part.startswith("___torch_mangle_")
    ]
    defined = getattr(sys.modules.get(".".join(package)), name, None)
    if package[:1] == ["torch"]:
        return layer_of(defined) if isinstance(defined, type) else None
    held = {name: tuple(tensor.shape) for name, tensor in module.named_parameters(recurse=False)}
    return kind_of_class(".".join(package), name, held)


def _options(name: str, module: Module) -> Iterable[tuple[str, int]]:
    if _has(module, "norm_first"):
        yield "norm_first", bool(module.norm_first)
    if _has(module, "padding_mode") and module.padding_mode != "zeros":
        yield "padding_mode", True
    if name in _WITHOUT_OWN:
        return
    kind: type = type(module)
    scripted = _is_scripted(kind)
    held = module._parameters  # a parametrization would compute the attribute, and may change state
    weight = getattr(module, "weight", None) if scripted else held.get("weight")
    if name in ("LayerNorm", "RMSNorm") and weight is None:  # Burn's layer has tensors here
        shape = tuple(_kept(module, "normalized_shape"))
        yield "axes", len(shape)
        yield "features", shape[-1]
    if name.startswith(("BatchNorm", "SyncBatchNorm")) and getattr(module, "running_mean", None) is None:
        yield "features", _kept(module, "num_features")  # a module without any tensor must not be skipped
    counted = getattr(module, COUNT, None) if scripted else module._buffers.get(COUNT)
    if counted is not None and not counted.is_meta:
        yield COUNT, int(counted)
    if (
        name == "Embedding"
        and getattr(module, "max_norm", None) is not None
        and weight is not None
        and _exceeds(weight, module.max_norm, module.norm_type)
    ):
        yield "max_norm", True


def _kept(module: Module, option: str) -> Any:
    """Return an attribute; ModelError for a traced module, which keeps tensors only."""
    if hasattr(module, option):
        return getattr(module, option)
    raise ModelError(
        f"a traced {class_name(module)} without tensors that Burn's has: its {option} was lost by tracing",
        hint=Ways("the model that was traced", "keep_layout=True to keep PyTorch's layout"),
    )


def _has(module: Module, option: str) -> bool:
    """Return whether a module has this attribute; torch's own lookup of a missing one is slow."""
    kind: type = type(module)
    return option in module.__dict__ or (_may_have(kind, option) and hasattr(module, option))


@functools.cache
def _may_have(kind: type, option: str) -> bool:
    """Return whether a class has this attribute, or finds attributes by a __getattr__ of its own."""
    own = getattr(kind, "__getattr__", None) is not torch_package().nn.Module.__getattr__
    return own or hasattr(kind, option)


def _exceeds(weight: Any, max_norm: float, norm_type: float) -> bool:
    """Return whether a forward pass would still change a row: one beyond the norm."""
    if weight.is_meta:
        return False  # no values yet
    return bool((weight.detach().float().norm(p=norm_type, dim=-1) > max_norm).any())
