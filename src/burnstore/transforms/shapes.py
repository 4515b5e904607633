"""Which shapes the tensors of a module can have: a kind that they contradict is a mistake of whoever named it."""

from __future__ import annotations

from collections.abc import Mapping

from ..tensor.data import Shape

Tensors = Mapping[str, Shape]

_OF_NORMS = ("weight", "bias", "gamma", "beta", "running_mean", "running_var")


def contradiction(name: str, tensors: Tensors, *, outputs_at: int, gates: int | None) -> str | None:
    """Return which shapes are expected of a module of this kind and what was found; None if its tensors have them.

    ``outputs_at`` is the axis of a Linear's weight that its outputs are on, ``gates`` the number of gates of a module
    of PyTorch that is recurrent. Tensors that are absent are not missed here.
    """
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if gates is not None:
        return _of_recurrent(tensors, gates)
    if name == "MultiheadAttention":
        return _of_attention(tensors)
    if "Norm" in name:
        return _of_norm(name, {key: tensors[key] for key in _OF_NORMS if key in tensors})
    if name in ("Embedding", "PReLU", "PRelu"):
        axes = 2 if name == "Embedding" else 1
        wrong = next((shape for shape in tensors.values() if len(shape) != axes), None)
        return None if wrong is None else f"a weight with {axes} axes, found {list(wrong)}"
    if weight is None:
        return None
    if name == "Linear":
        outputs = weight[outputs_at] if weight else None
        is_wrong = len(weight) == 2 and bias is not None and bias != (outputs,)
        return f"a bias of {outputs} entries, {_beside(bias, weight)}" if is_wrong else None
    if name.startswith("Conv") and name[-2:] in ("1d", "2d", "3d"):
        rank = int(name[-2]) + 2
        if len(weight) != rank:
            return f"a weight with {rank} axes, found {list(weight)}"
        if bias is None:
            return None
        if not name.startswith("ConvTranspose"):
            return None if bias == weight[:1] else f"a bias of {weight[0]} entries, {_beside(bias, weight)}"
        if len(bias) != 1 or bias[0] % max(weight[1], 1):
            return f"a bias with a multiple of {weight[1]} entries, {_beside(bias, weight)}"
    return None


def _beside(bias: Shape | None, weight: Shape) -> str:
    return f"found {list(bias or ())} beside a weight of {list(weight)}"


def _of_norm(name: str, tensors: Tensors) -> str | None:
    shapes = set(tensors.values())
    if len(shapes) > 1:
        return "tensors of one shape, found " + ", ".join(f"{list(shape)} ({key})" for key, shape in tensors.items())
    for shape in shapes:
        if len(shape) != 1 and name not in ("LayerNorm", "RMSNorm"):  # those of PyTorch may cover several axes
            return f"tensors with 1 axis, found {list(shape)}"
    return None


def _axes(key: str, shape: Shape) -> str | None:
    """Return which axes are expected of a weight or a bias; None if it has them."""
    axes = 2 if "weight" in key else 1
    return None if len(shape) == axes else f"a {key} with {axes} {'axes' if axes > 1 else 'axis'}, found {list(shape)}"


def _of_recurrent(tensors: Tensors, gates: int) -> str | None:
    if any(key.startswith("weight_hr") for key in tensors):
        return None  # a projection, which is refused in those words
    for key, shape in tensors.items():
        if (wrong := _axes(key, shape)) is not None:
            return wrong
    for key, hidden in tensors.items():
        if key.startswith("weight_hh"):
            if len(hidden) != 2 or hidden[0] != gates * hidden[1]:
                return f"a {key} with {gates} times as many rows as columns, found {list(hidden)}"
            cell = key.removeprefix("weight_hh")
            for other in (f"weight_ih{cell}", f"bias_ih{cell}", f"bias_hh{cell}"):
                if other in tensors and tensors[other][:1] != hidden[:1]:
                    return f"{hidden[0]} rows in {other}, found {list(tensors[other])}"
    return None


def _of_attention(tensors: Tensors) -> str | None:
    for key, shape in tensors.items():
        if key not in ("bias_k", "bias_v") and (wrong := _axes(key, shape)) is not None:
            return wrong
    output = tensors.get("out_proj.weight", ())
    if not output:
        return None
    width, heads = output  # the heads of one rank are narrower than the model
    for key, rows in (("in_proj_weight", 3 * heads), ("in_proj_bias", 3 * heads), ("q_proj_weight", heads)):
        if key in tensors and tensors[key] != (rows, width)[: len(tensors[key])]:
            return f"{rows} rows in {key} beside an out_proj of {list(output)}, found {list(tensors[key])}"
    if tensors.get("out_proj.bias", (width,)) != (width,):
        return f"{width} values in out_proj.bias, found {list(tensors['out_proj.bias'])}"
    return None
