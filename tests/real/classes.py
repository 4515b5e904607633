"""Collect the classes of transformers, diffusers, timm and torchvision that are layers of PyTorch in all but name.

``make classes`` writes ``src/burnstore/transforms/classes.json``: library → kind → names of classes. Nothing in it is
taken from a name. A norm is one whose outputs are those of the formula, for random inputs and weights; a class that
derives from a layer of PyTorch is that layer; a router multiplies by its ``weight`` as a Linear does. A name that two
classes of one library share is left out unless both are of one kind.
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
    return layer


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
