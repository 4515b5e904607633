"""Collect the classes of transformers, diffusers, timm and torchvision that are layers of PyTorch in all but name.

``make classes`` writes ``src/burnstore/transforms/classes.json``: library → kind → names of classes. Nothing in it is
taken from a name. A norm is one whose outputs are those of the formula, for random inputs and weights. A class that
derives from a layer of PyTorch and has a forward of its own is that layer if the layer's own function gets the
unchanged weight and bias when an object of it is called, and no other function does (a class that standardizes its
weight first is none). A container is one whatever it computes. A router multiplies by its ``weight`` as a Linear does.
A name that two classes of one library share is left out unless both are of one kind.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
LIBRARIES = ("transformers", "diffusers", "timm", "torchvision")
TABLE = Path(__file__).parents[2] / "src" / "burnstore" / "transforms" / "classes.json"
WIDTH = 8
NO_MODULE = "no module"


def sources(library: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes of a library with the name of their module; nothing is imported."""
    found = importlib.util.find_spec(library)
    assert found is not None and found.origin is not None
    root = Path(found.origin).parent
    for file in sorted(root.rglob("*.py")):
        if not file.name.startswith("modular_"):  # a source from which transformers generates the modeling files
            module = ".".join((library, *file.relative_to(root).with_suffix("").parts))
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    yield module, node


def candidates(library: str) -> Iterator[tuple[str, str, str]]:
    """Yield module, name and why: classes whose source shows that they may be one of these."""
    classes = list(sources(library))
    derived = {"Conv1D"}
    while True:  # also those that derive from a class that derives from a layer
        bases = {node.name: [ast.unparse(base) for base in node.bases] for _, node in classes}
        more = {
            name
            for name, given in bases.items()
            if any(base in derived or re.fullmatch(r"(torch\.)?nn\.(?!Module$)[A-Z]\w+", base) for base in given)
        }
        if more <= derived:
            break
        derived |= more
    for module, node in classes:
        text = ast.unparse(node)
        parameters = set(re.findall(r"self\.(\w+) = (?:torch\.)?nn\.Parameter\(", text))
        if node.name in derived:
            yield module, node.name, "derived"
        elif "Norm" in node.name and parameters and parameters <= {"weight", "bias"}:
            yield module, node.name, "norm"
        elif "Router" in node.name and parameters and parameters <= {"weight", "bias"} and _is_linear(text):
            yield module, node.name, "router"
        elif (
            re.search("Rotary|Rope|RoPE", node.name)
            and not parameters
            and re.search(r"register_buffer\(|nn\.Buffer\(", text)
        ):
            yield module, node.name, "rotary"


def _is_linear(text: str) -> bool:
    """Return whether a router has one matrix of experts × width, multiplies by it as a Linear, and holds no more."""
    calls = re.findall(r"F\.linear\((.*?)self\.weight", text)
    return len(calls) == 1 and not re.search(r"register_buffer\(|nn\.Buffer\(", text)


def kind_of(module: str, name: str, why: str) -> str | None:
    """Return the kind of a class, None if it is none of those in the table."""
    import torch

    from burnstore.models.torch.code import use_of_tensors

    if why in ("router", "rotary"):
        return "Linear" if why == "router" else "AsIs"
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception:  # It needs another library, or is defined only with one.
        return None
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        return NO_MODULE
    if name == "Conv1D":
        return "Conv1D" if _computes_conv1d(found) else None
    layers = (cls.__name__ for cls in found.__mro__ if cls.__module__.startswith("torch.nn."))
    layer = next((each for each in layers if each != "Module" and not each.startswith("_")), None)
    computed = _norm(found)
    if computed is not None and (layer is None or computed.endswith("PlusOne")):
        return computed
    if layer is None or layer in CONTAINERS or not has_own_forward(found):
        return layer
    uses = uses_weight_unchanged(found, layer)
    return layer if uses or (uses is None and use_of_tensors(found, layer) == "around") else None


CONTAINERS = ("Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
_READ_ONLY = ("__get__", "size", "dim", "numel", "is_floating_point", "is_complex", "type", "__len__", "get_device")
_SAME_VALUES = ("to", "float", "type_as", "contiguous", "view_as", "detach", "requires_grad_")
_ARGUMENTS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Linear": [((8, 6), {})],
    "Embedding": [((12, 8), {}), ((12, 8, 0), {}), ((12, 8, 1), {}), ((12, 8, 0, 2.0), {})],
    "LayerNorm": [((8,), {}), ((8, 1e-5), {})],
    "GroupNorm": [((8,), {}), ((2, 8), {}), ((8, 2), {}), ((8,), {"num_groups": 2})],
    "BatchNorm2d": [((8,), {})],
    "RMSNorm": [((8,), {})],
    "PReLU": [((), {}), ((8,), {})],
    **{
        f"{name}{n}d": [((8, 6, 3), {}), ((8, 6, (3,) * n), {})]
        for name in ("Conv", "ConvTranspose")
        for n in (1, 2, 3)
    },
}
_FUNCTIONS = {
    "Linear": ("linear",),
    "Embedding": ("embedding", "__getitem__", "index_select"),
    "LayerNorm": ("layer_norm", "native_layer_norm"),
    "GroupNorm": ("group_norm",),
    "BatchNorm2d": ("batch_norm",),
    "RMSNorm": ("rms_norm",),
    "PReLU": ("prelu",),
    **{f"Conv{n}d": (f"conv{n}d",) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": (f"conv_transpose{n}d",) for n in (1, 2, 3)},
}


def has_own_forward(kind: type) -> bool:
    """Return whether a class that derives from a layer defines one of the methods that compute."""
    for cls in kind.__mro__:
        if cls.__module__.startswith("torch.nn."):
            return False
        if {"forward", "_conv_forward", "__call__", "weight", "bias"} & vars(cls).keys():
            return True
    return False


def _inputs(layer: str) -> list[Any]:
    import torch

    if layer == "Embedding":
        ids = torch.tensor([[1, 2, 3, 2]])
        return [(ids,), (ids.shape,), (ids, 0), (torch.ones_like(ids),)]
    rank = int(layer[-2]) if layer[-1] == "d" and layer[-2].isdecimal() else 0
    shapes = [(2, 8, *(7,) * rank)] if rank else [(2, 8), (2, 8, 5, 5), (2, 5, 8), (2, 5, 5, 8)]
    return [(torch.randn(shape),) for shape in shapes]


def uses_weight_unchanged(kind: Any, layer: str) -> bool | None:
    """Return whether the function of the layer gets the weight and bias as they are, and no other function does.

    None if that could not be tried: then the source decides, as for a class of the user's.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Recorder(TorchFunctionMode):
        def __init__(self, tensors: dict[str, Any]) -> None:
            super().__init__()
            self.values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            self.roles = {id(tensor): name for name, tensor in tensors.items()}
            self.kept: list[Any] = list(tensors.values())
            self.used, self.misused = False, False

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            name = getattr(func, "__name__", "")
            held = [self.roles[id(each)] for each in given if id(each) in self.roles]
            result = func(*args, **kwargs)
            if not held or name in _READ_ONLY:
                return result
            if name in _FUNCTIONS[layer]:
                self.used = self.used or "weight" in held
            elif name in _SAME_VALUES and isinstance(result, torch.Tensor) and len(held) == 1:
                if torch.equal(result.detach(), self.values[held[0]]):
                    self.roles[id(result)] = held[0]
                    self.kept.append(result)
                else:
                    self.misused = True
            else:
                self.misused = True
            return result

    for arguments, options in _ARGUMENTS.get(layer, []):
        try:
            made = kind(*arguments, **options).eval()
            tensors = dict(made.named_parameters(recurse=False))
            with torch.no_grad():
                for tensor in tensors.values():
                    tensor.normal_()
        except Exception:
            continue
        if "weight" not in tensors:
            continue
        for given in _inputs(layer):
            recorder = Recorder(tensors)
            try:
                with torch.no_grad(), recorder:
                    made(*given)
            except Exception:
                continue
            if recorder.used or recorder.misused:
                return recorder.used and not recorder.misused
    return None


def _norm(kind: type) -> str | None:
    """Return the kind of norm that a class computes, None if it is none of them or cannot be made from a width."""
    import torch

    made: Any = None
    for arguments in ((WIDTH,), (WIDTH, 1e-6)):
        try:
            made = kind(*arguments)
            break
        except Exception:
            continue
    if not isinstance(made, torch.nn.Module):
        return None
    held = made.state_dict(keep_vars=True)
    if "weight" not in held or not set(held) <= {"weight", "bias"}:
        return None
    if any(tuple(tensor.shape) != (WIDTH,) for tensor in held.values()):
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, WIDTH, generator=generator) * 3 + 1
    with torch.no_grad():
        for tensor in held.values():
            tensor.copy_(torch.randn(WIDTH, generator=generator))
        try:
            y = made(x)
        except Exception:
            return None
        if not isinstance(y, torch.Tensor):
            return None
        weight, bias = held["weight"], held.get("bias", torch.zeros(WIDTH))
        rms = x * x.pow(2).mean(-1, keepdim=True).rsqrt()
        centred = x - x.mean(-1, keepdim=True)
        layer = centred * centred.pow(2).mean(-1, keepdim=True).rsqrt()
        formulas = {
            "RMSNorm": rms * weight,
            "RMSNormPlusOne": rms * (1 + weight),
            "LayerNorm": layer * weight + bias,
            "LayerNormPlusOne": layer * (1 + weight) + bias,
        }
        if "bias" in held:
            del formulas["RMSNorm"], formulas["RMSNormPlusOne"]
        return next((name for name, expected in formulas.items() if torch.allclose(y, expected, atol=1e-3)), None)


def _computes_conv1d(kind: Any) -> bool:
    import torch

    made, x = kind(3, 2), torch.randn(4, 2)
    held = dict(made.named_parameters()) if isinstance(made, torch.nn.Module) else {}
    if set(held) != {"weight", "bias"} or tuple(held["weight"].shape) != (2, 3):
        return False
    return torch.allclose(made(x), x @ made.weight + made.bias, atol=1e-5)


def table() -> dict[str, dict[str, list[str]]]:
    """Return the table, from the libraries that are installed."""
    from burnstore.transforms.classes import KINDS

    found: dict[str, dict[str, list[str]]] = {}
    for library in LIBRARIES:
        names: dict[str, set[str | None]] = defaultdict(set)
        for module, name, why in candidates(library):
            names[name].add(kind_of(module, name, why))
            names[name].discard(NO_MODULE)
        kinds = {name: next(iter(kind)) for name, kind in names.items() if len(kind) == 1}
        rows: dict[str, list[str]] = {}
        for name, kind in sorted(kinds.items(), key=lambda item: (str(item[1]), item[0])):
            if kind in KINDS:
                rows.setdefault(str(kind), []).append(name)
        found[library] = rows
    return found


def text_of(found: dict[str, dict[str, list[str]]]) -> str:
    """Return the table as it is written: one line for each kind, its names in order."""
    libraries = []
    for library, rows in found.items():
        lines = ",\n".join(f"  {json.dumps(kind)}: {json.dumps(' '.join(names))}" for kind, names in rows.items())
        libraries.append(f" {json.dumps(library)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(libraries) + "\n}\n"


def main() -> int:
    """Write the table."""
    warnings.simplefilter("ignore")
    found = table()
    TABLE.write_text(text_of(found))
    for library, rows in found.items():
        sys.stdout.write(f"{library}: {', '.join(f'{len(names)} {kind}' for kind, names in rows.items())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
