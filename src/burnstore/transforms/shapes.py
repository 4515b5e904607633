"""Which shapes the tensors of a module can have; a kind that they contradict was named by mistake."""

from __future__ import annotations

import re
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
    if name == "Conv1D" and len(weight) != 2:
        return f"a weight with 2 axes, found {list(weight)}"
    if name in ("Linear", "Conv1D"):
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


def weight_norm_hint(tensors: Tensors) -> str | None:
    """Return the line of a rules file that folds the weight norm among these tensors; None if there is none.

    >>> weight_norm_hint({"ups.0.weight_g": (4, 1, 1), "ups.0.weight_v": (4, 2, 3)}).partition("[{ ")[2]
    'source = ["ups.{i}.weight_g", "ups.{i}.weight_v"], target = "ups.{i}.weight", fold_weight_norm = { axis = 0 } }]'
    """
    for path, shape in tensors.items():
        found = _MAGNITUDE.fullmatch(path)
        direction = f"{path[:-1]}{'v' if path.endswith('g') else 1}"
        if found is None or direction not in tensors or len(shape) != len(tensors[direction]):
            continue
        source, other, target = map(_form, (path, direction, f"{found[1]}{found[2] or found[3]}"))
        axis = next((at for at, extent in enumerate(shape) if extent != 1), 0)
        line = f'source = ["{source}", "{other}"], target = "{target}", fold_weight_norm = {{ axis = {axis} }}'
        return f"it has a weight norm; a rules file folds it, with the line tensors = [{{ {line} }}]"
    return None


def add_one_hint(path: str) -> str:
    """Return the line of a rules file that makes a plain norm of one that multiplies by 1 + weight.

    >>> add_one_hint("layers.0.norm.weight").partition("line ")[2].partition(";")[0]
    'tensors = [{ source = "layers.{i}.norm.weight", target = "layers.{i}.norm.weight", add_one = true }]'
    """
    name = _form(path)
    line = f'tensors = [{{ source = "{name}", target = "{name}", add_one = true }}]'
    return f'a rules file makes a plain norm of it, with the line {line}; the kind "AsIs" copies the weight unchanged'


def _form(name: str) -> str:
    """Return a name with a placeholder for each number in it."""
    letters = iter("ijklmnopqrstuvwxyz")
    return ".".join(f"{{{next(letters, 'z')}}}" if part.isdecimal() else part for part in name.split("."))


_MAGNITUDE = re.compile(r"(|.*\.)(?:(\w+)_g|parametrizations\.(\w+)\.original0)", re.DOTALL)


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
