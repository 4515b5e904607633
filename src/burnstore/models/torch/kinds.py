"""The kinds of PyTorch modules: their type, and the options that no tensor shows."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from ...tensor.torch import torch_package
from ...transforms.layout import COUNT, ModuleKind

Module = Any
"""A torch.nn.Module."""

# Classes of PyTorch that others derive from; being one of them says nothing about a module's tensors.
_BASES = frozenset({"Module", "_BatchNorm", "_InstanceNorm", "_NormBase", "_ConvNd", "_ConvTransposeNd", "RNNBase"})


def kind_of(module: Module) -> ModuleKind | None:
    """Return the kind of a module; None for a class that derives from no layer of PyTorch.

    A class that derives from a layer has that layer's tensors. Torchvision's DeformConv2d counts as a layer.
    """
    kind: type = type(module)
    layer = _layer_of(kind)
    if layer is None:
        return None
    if layer == "NonDynamicallyQuantizableLinear":
        return _without_options("Linear")
    options = tuple(_options(layer, module))
    return ModuleKind(layer, options) if options else _without_options(layer)


_without_options = functools.cache(ModuleKind)  # one object for all that are equal
_DEFORMABLE = "torchvision.ops.deform_conv.DeformConv2d"


@functools.cache
def _layer_of(kind: type) -> str | None:
    """Return the name of the layer that a class is, or derives from."""
    for cls in kind.__mro__:
        own = cls.__module__.startswith("torch.nn.") or f"{cls.__module__}.{cls.__name__}" == _DEFORMABLE
        if own and not cls.__name__.startswith("_") and cls.__name__ not in _BASES:
            return cls.__name__
    return None


def _options(name: str, module: Module) -> Iterable[tuple[str, int]]:
    if _has(module, "norm_first"):
        yield "norm_first", bool(module.norm_first)
    weight = module._parameters.get("weight")  # a parametrization would compute the attribute, and may change state
    if name in ("LayerNorm", "RMSNorm") and weight is None:  # Burn's layer has tensors here
        shape = tuple(module.normalized_shape)
        yield "axes", len(shape)
        yield "features", shape[-1]
    if name.startswith(("BatchNorm", "SyncBatchNorm")) and module.running_mean is None:
        yield "features", module.num_features  # a module without any tensor must not be skipped
    if _has(module, "padding_mode") and module.padding_mode != "zeros":
        yield "padding_mode", True
    counted = module._buffers.get(COUNT)
    if counted is not None and not counted.is_meta:
        yield COUNT, int(counted)
    if (
        name == "Embedding"
        and module.max_norm is not None
        and weight is not None
        and _exceeds(weight, module.max_norm, module.norm_type)
    ):
        yield "max_norm", True


def _has(module: Module, option: str) -> bool:
    """Return whether a module has this attribute; torch itself is slow to say no."""
    kind: type = type(module)
    return option in vars(module) or ((hasattr(kind, option) or _searches(kind)) and hasattr(module, option))


@functools.cache
def _searches(kind: type) -> bool:
    """Return whether a class has its own __getattr__."""
    return getattr(kind, "__getattr__", None) is not torch_package().nn.Module.__getattr__


def _exceeds(weight: Any, max_norm: float, norm_type: float) -> bool:
    """Return whether a forward pass would still change a row: one beyond the norm."""
    if weight.is_meta:
        return False  # no values yet
    return bool((weight.detach().float().norm(p=norm_type, dim=-1) > max_norm).any())
