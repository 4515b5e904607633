"""LoRA: a pair of small trained matrices on a frozen parameter (Burn 0.22 on)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ModelError
from ..models.plain import ArraySlot, HolderSlot, walk
from ..tensor.dtype import DType
from .arguments import extent
from .initializer import Normal, Zeros
from .module import Module
from .param import Param, RunningState

__all__ = ["LoraAdapter", "apply_lora"]

NAME = "lora"
"""The segment of the path between the parameter and the two matrices."""


class LoraAdapter(Module):
    """The matrices ``a`` [d_input, rank] and ``b`` [rank, d_output]; ``scale`` = alpha / rank is not stored."""

    def __init__(
        self, d_input: int, d_output: int, rank: int, alpha: float, *, init_std: float | None = None,
        dtype: DType = DType.F32,
    ) -> None:  # fmt: skip
        rank = extent("rank", rank, least=1)
        std = 1 / rank if init_std is None else float(init_std)
        self.a = Param([extent("d_input", d_input), rank], Normal(0.0, std), dtype=dtype)
        self.b = Param([rank, extent("d_output", d_output)], Zeros(), dtype=dtype)
        self.scale = alpha / rank


def apply_lora(
    model: Any,
    rank: int,
    alpha: float,
    *,
    init_std: float | None = None,
    select: Callable[[str], bool] | None = None,
) -> list[str]:
    """Give every float parameter of two axes a `LoraAdapter`, freeze all others, and return the paths that got one.

    ``select`` decides by path; without it embeddings get one too, as in Burn. The parameter keeps its place in the
    file, and ``<path>.lora.a`` and ``<path>.lora.b`` follow it. Raises ModelError, and changes nothing, where no
    parameter qualifies or one has an adapter already.

    >>> from burnstore import nn
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         self.fc = nn.Linear(8, 4)
    >>> net = Net()
    >>> nn.apply_lora(net, 2, 4.0)
    ['fc.weight']
    >>> import burnstore as bs
    >>> [tensor.path for tensor in bs.collect(net)]
    ['fc.weight', 'fc.weight.lora.a', 'fc.weight.lora.b', 'fc.bias']
    """
    floats: list[Param] = []
    chosen: dict[str, Param] = {}
    for slot in walk(model):
        if not (slot.dtype.is_float or slot.dtype.is_quantized):
            continue
        wanted = len(slot.shape) == 2 and (select is None or select(slot.path))
        if isinstance(slot, HolderSlot) and isinstance(slot.holder, Param):
            if slot.holder.reparameterization is not None:
                raise ModelError("the parameter already has an adapter", tensor=slot.path)
            floats.append(slot.holder)
            if wanted and not isinstance(slot.holder, RunningState):
                chosen[slot.path] = slot.holder
        elif isinstance(slot, ArraySlot) and wanted:
            raise ModelError("a bare array cannot have an adapter", tensor=slot.path, hint="wrap the array in a Param")
    if not chosen:
        raise ModelError("no float parameter of two axes was selected for an adapter")
    adapters = []
    for param in chosen.values():  # all of them before the model changes: a wrong rank raises here
        dtype = param.dtype if param.dtype.is_float else DType.F32
        d_input, d_output = param.memory_shape
        adapters.append(LoraAdapter(d_input, d_output, rank, alpha, init_std=init_std, dtype=dtype))
    for param in floats:
        param.require_grad = False
    for param, adapter in zip(chosen.values(), adapters, strict=True):
        param.reparameterization = (NAME, adapter)
    return list(chosen)
