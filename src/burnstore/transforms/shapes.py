"""Which shapes the tensors of a module can have; a kind that they contradict was named by mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping

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


def weight_norm_rules(tensors: Tensors) -> str | None:
    """Return the line of a rules file that folds every weight norm among these tensors; None if there is none.

    >>> print(weight_norm_rules({"ups.0.weight_g": (4, 1, 1), "ups.0.weight_v": (4, 2, 3)}))
    tensors = [{ source = ["ups.{i}.weight_g", "ups.{i}.weight_v"], target = "ups.{i}.weight", \
fold_weight_norm = { axis = 0 } }]
    """
    axes: dict[tuple[str, str, str], dict[tuple[str, str, str], int]] = {}
    for path, shape in tensors.items():
        magnitude = _MAGNITUDE.fullmatch(path)
        direction = f"{path[:-1]}{'v' if path.endswith('g') else 1}"
        if magnitude is None or direction not in tensors or len(shape) != len(tensors[direction]):
            continue
        names = (path, direction, f"{magnitude[1]}{magnitude[2] or magnitude[3]}")
        axis = next((at for at, extent in enumerate(shape) if extent != 1), 0)
        forms = (_form(names[0]), _form(names[1]), _form(names[2]))
        axes.setdefault(forms, {})[names] = axis
    rows = []
    for forms, members in axes.items():
        same = len(set(members.values())) == 1
        for (source, other, target), axis in {forms: next(iter(members.values()))}.items() if same else members.items():
            sources = f"[{_toml(source)}, {_toml(other)}]"
            rows.append(f"source = {sources}, target = {_toml(target)}, fold_weight_norm = {{ axis = {axis} }}")
    return _table("tensors", rows) if rows else None


def weight_norm_hint(tensors: Tensors) -> str | None:
    """Return how a rules file folds the weight norms among the tensors of a file; None if there is none."""
    line = weight_norm_rules(tensors)
    return None if line is None else f"the file has a weight norm: fold it with rules= a file with the line {line}"


def add_one_rules(norms: Mapping[str, str], others: Collection[str]) -> str:
    """Return lines of a rules file that make plain norms of those that multiply by 1 + weight.

    ``norms`` maps their paths to the kind that each becomes, ``others`` are the paths of other modules.

    >>> print(add_one_rules({"layers.0.norm": "RMSNorm", "layers.1.norm": "RMSNorm"}, ["layers.0.fc"]))
    kinds = { '^layers\\.\\d+\\.norm$' = "RMSNorm" }
    tensors = [{ source = "layers.{i}.norm.weight", target = "layers.{i}.norm.weight", add_one = true }]
    """
    taken = {_form(path) for path in others}
    kinds: dict[str, str] = {}
    names: dict[str, None] = {}
    for path, kind in norms.items():
        form = path if _form(path) in taken else _form(path)
        pattern = r"\.".join(r"\d+" if part.startswith("{") else re.escape(part) for part in form.split("."))
        kinds[f"^{pattern}$"] = kind
        names[f"{form}.weight" if form else "weight"] = None
    rows = [f"source = {_toml(name)}, target = {_toml(name)}, add_one = true" for name in names]
    stated = ", ".join(f"{_toml(pattern)} = {_toml(kind)}" for pattern, kind in kinds.items())
    return f"kinds = {{ {stated} }}\n{_table('tensors', rows)}"


def _table(key: str, rows: Iterable[str]) -> str:
    return f"{key} = [{', '.join(f'{{ {row} }}' for row in rows)}]"


def _toml(text: str) -> str:
    """Return text as a string of TOML: literal where it has backslashes, as a pattern has."""
    return f"'{text}'" if "\\" in text and "'" not in text and text.isprintable() else json.dumps(text)


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
