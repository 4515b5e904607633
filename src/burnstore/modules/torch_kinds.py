"""What PyTorch's modules are, as far as layouts go: their type, and those options that no tensor shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..transforms.layout import COUNT, ModuleKind

Module = Any
"""A torch.nn.Module."""

# Classes of PyTorch that others derive from; being one of them says nothing about a module's tensors.
_BASES = frozenset({"Module", "_BatchNorm", "_InstanceNorm", "_NormBase", "_ConvNd", "_ConvTransposeNd", "RNNBase"})


def kind_of(module: Module) -> ModuleKind | None:
    """The kind of a module; None for a class of one's own that derives from no layer of PyTorch.

    A class that derives from a layer has that layer's tensors. Torchvision's DeformConv2d counts as a layer.
    """
    for cls in type(module).__mro__:
        own = cls.__module__.startswith("torch.nn.") or f"{cls.__module__}.{cls.__name__}" == _DEFORMABLE
        if own and not cls.__name__.startswith("_") and cls.__name__ not in _BASES:
            if cls.__name__ == "NonDynamicallyQuantizableLinear":
                return ModuleKind("Linear")
            return ModuleKind(cls.__name__, tuple(_options(cls.__name__, module)))
    return None


_DEFORMABLE = "torchvision.ops.deform_conv.DeformConv2d"


def _options(name: str, module: Module) -> Iterable[tuple[str, int]]:
    if hasattr(module, "norm_first"):
        yield "norm_first", bool(module.norm_first)
    weight = module._parameters.get("weight")  # not the attribute: a parametrization computes it, and may change state
    if name in ("LayerNorm", "RMSNorm") and weight is None:  # Burn's has tensors where this one has none
        shape = tuple(module.normalized_shape)
        yield "axes", len(shape)
        yield "features", shape[-1]
    if name.startswith(("BatchNorm", "SyncBatchNorm")) and module.running_mean is None:
        yield "features", module.num_features  # it may hold nothing at all, and must not be passed over
    if getattr(module, "padding_mode", "zeros") != "zeros":
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


def _exceeds(weight: Any, max_norm: float, norm_type: float) -> bool:
    """Whether a forward pass would still change a row. One that lies within the norm stays as it is."""
    if weight.is_meta:
        return False  # it has no rows yet
    return bool((weight.detach().float().norm(p=norm_type, dim=-1) > max_norm).any())
