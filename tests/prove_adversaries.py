"""Wrong mappings that fit every shape: `prove` must find each of them, and name the module.

A case is a small torch model with a Burn model of other names, whose recorded outputs are torch's own with the true
mapping; then one or two mistakes are planted into the rules. ``python tests/prove_adversaries.py --cases 200 --seed 1``
counts what was found and named. Half of the cases have intermediate outputs.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import burnstore as bs
from burnstore.jobs.prove.proof import TOLERANCE
from burnstore.jobs.prove.prove import ProveResult, prove
from burnstore.models.outline import OUTLINE_KEY
from burnstore.models.recording import FORWARD_KEY, Recording
from burnstore.transforms.recipe import recipe_from

Rule = dict[str, Any]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, fused: bool, rotary: bool) -> None:
        super().__init__()
        self.num_heads, self.rotary = heads, rotary
        if fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        parts = self.qkv(x).chunk(3, -1) if hasattr(self, "qkv") else (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10.0 ** (torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self, width: int, *, fused: bool, rotary: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, 2, fused=fused, rotary=rotary)
        self.up, self.gate, self.down = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Transformer(nn.Module):
    def __init__(self, *, fused: bool = False, rotary: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(12, 8), nn.Embedding(12, 8)
        self.layers = nn.ModuleList(Block(8, fused=fused, rotary=rotary) for _ in range(3))
        self.final, self.head = nn.LayerNorm(8), nn.Linear(8, 12)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final(x))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        scale = self.excite(self.squeeze(y.mean((2, 3))).relu()).sigmoid()
        return (x + y * scale[..., None, None]).relu()


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.stages = nn.ModuleList(Residual(6) for _ in range(3))
        self.hidden, self.classifier = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, images: Any) -> Any:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.classifier(self.hidden(x.mean((2, 3))).tanh())


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(7) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(7))
        self.shift = nn.Parameter(torch.zeros(7))

    def forward(self, x: Any) -> Any:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + norm(layer(x)).tanh()
        return x * self.scale + self.shift


WORDS = {"layers": "blocks", "stages": "steps", "attn": "attention", "q_proj": "query", "k_proj": "key"}
WORDS |= {"v_proj": "value", "o_proj": "output", "norm1": "first_norm", "norm2": "second_norm", "stem": "entry"}
WORDS |= {"hidden": "inner", "classifier": "last", "conv1": "conv_a", "conv2": "conv_b", "bn1": "norm_a"}
WORDS |= {"bn2": "norm_b", "tokens": "token_table", "positions": "position_table", "head": "decoder"}
KINDS = {nn.Linear: "Linear", nn.LayerNorm: "LayerNorm", nn.Embedding: "Embedding", nn.Conv2d: "Conv2d"}
KINDS |= {nn.BatchNorm2d: "BatchNorm"}


@dataclass
class Case:
    """A model, the true rules of its tensors, and how it is fed."""

    name: str
    model: Any
    inputs: dict[str, Any]
    rules: list[Rule] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        return {name: tensor for name, tensor in self.model.state_dict().items() if not name.endswith("tracked")}


def case_of(name: str, seed: int, *, is_stirred: bool = True) -> Case:
    """Return a model of that name with random values."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    tokens = {"tokens": rng.integers(0, 12, (2, 9))}
    model, inputs = {
        "transformer": lambda: (Transformer(), tokens),
        "rotary": lambda: (Transformer(rotary=True), tokens),
        "fused": lambda: (Transformer(fused=True), tokens),
        "images": lambda: (Images(), {"images": rng.standard_normal((2, 3, 8, 7)).astype(np.float32)}),
        "layers": lambda: (Layers(), {"x": rng.standard_normal((3, 7)).astype(np.float32)}),
    }[name]()
    if is_stirred:
        stir(model)
    case = Case(name, model.eval(), inputs)
    for path, module in model.named_modules():
        case.modules[burn_path(path)] = f"Struct:{KINDS.get(type(module), type(module).__name__)}"
    for own in case.values:
        case.rules += rules_of(own, model)
    return case


def stir(model: Any) -> None:
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                is_scale = tensor.ndim < 2
                noise = torch.rand(tensor.shape) if is_scale else torch.randn(tensor.shape) / tensor[0].numel() ** 0.5
                tensor.copy_(noise + (0.5 if is_scale and not name.endswith("bias") else 0.0))


def burn_path(path: str) -> str:
    return ".".join(WORDS.get(segment, segment) for segment in path.split("."))


def rules_of(name: str, model: Any) -> list[Rule]:
    """Return the true rule of a tensor."""
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    is_norm = isinstance(module, (nn.LayerNorm, nn.BatchNorm2d))
    leaf = {"weight": "gamma", "bias": "beta"}.get(leaf, leaf) if is_norm else leaf
    rule: Rule = {"source": name, "target": f"{burn_path(owner)}.{leaf}".lstrip(".")}
    if owner.endswith(".qkv"):
        above = burn_path(owner.rpartition(".")[0])
        rule["target"] = [f"{above}.{part}.{leaf}" for part in ("query", "key", "value")]
    block = model.get_submodule(owner.rpartition(".")[0])
    if getattr(block, "rotary", False) and owner.endswith(("q_proj", "k_proj")):
        rule["permute_rope"] = {"heads": block.num_heads}
    if isinstance(module, nn.Linear) and leaf == "weight":
        rule["transpose"] = True
    return [rule]


# --- mistakes ---------------------------------------------------------------------------------------------------------


def owner_of(rule: Rule) -> str:
    return rule["source"].rpartition(".")[0]


def exchange(rules: list[Rule], pairs: list[tuple[str, str]]) -> None:
    """Exchange the targets of layers or tensors of torch."""
    by_source = {rule["source"]: rule for rule in rules}
    for one, other in pairs:
        for source, rule in by_source.items():
            if source == one or source.startswith(f"{one}."):
                twin = by_source[other + source[len(one) :]]
                rule["target"], twin["target"] = twin["target"], rule["target"]


def alike_layers(case: Case) -> list[tuple[str, str]]:
    shapes: dict[str, list[Any]] = {}
    for name, tensor in case.values.items():
        shapes.setdefault(name.rpartition(".")[0], []).append((name.rpartition(".")[2], tuple(tensor.shape)))
    fused = [owner for owner in shapes if owner.endswith("qkv")]
    pairs = itertools.combinations([owner for owner in shapes if owner and owner not in fused], 2)
    return [(one, other) for one, other in pairs if shapes[one] == shapes[other]]


def plant(case: Case, rules: list[Rule], rng: random.Random) -> str:
    """Change the rules by one mistake that keeps all shapes; return which."""
    squares = [rule for rule in rules if rule.get("transpose") and len({*case.values[rule["source"]].shape}) == 1]
    rotary = [rule for rule in rules if "permute_rope" in rule]
    fused = [rule for rule in rules if isinstance(rule["target"], list)]
    kinds = ["layers", "tensors", "family", "transposed", "entries", "reversed", "circle", "rotary", "fused", "one of"]
    kind = rng.choice(kinds)
    if kind == "layers":
        exchange(rules, [rng.choice(alike_layers(case))])
    elif kind == "tensors":
        leaf = rng.choice(["weight", "bias"])
        one, other = rng.choice(alike_layers(case))
        if f"{one}.{leaf}" in case.values:
            exchange(rules, [(f"{one}.{leaf}", f"{other}.{leaf}")])
    elif kind == "family":
        pairs = [pair for pair in alike_layers(case) if pair[0].split(".")[:2] == pair[1].split(".")[:2]]
        if pairs:
            one, other = rng.choice(pairs)
            stem, _, rest = one.partition(".0.")
            if rest:
                names = [(f"{stem}.{at}.{rest}", other.replace(".0.", f".{at}.", 1)) for at in range(3)]
                exchange(rules, names)
    elif kind == "transposed" and squares:
        for rule in squares if rng.random() < 0.2 else [rng.choice(squares)]:
            rule.pop("transpose")
    elif kind in ("entries", "reversed"):
        owner = next(name for name in ("layers", "stages") if hasattr(case.model, name))
        count = len(getattr(case.model, owner))
        one, other = (0, count - 1) if kind == "reversed" else rng.sample(range(count), 2)
        exchange(rules, [(f"{owner}.{one}", f"{owner}.{other}")])
    elif kind == "circle" and not fused and hasattr(case.model, "tokens"):
        at = rng.randrange(3)
        places = [f"layers.{at}.attn.{name}" for name in ("q_proj", "k_proj", "v_proj")]
        exchange(rules, [(places[0], places[1]), (places[1], places[2])])
    elif kind == "rotary" and rotary:
        for rule in rotary if rng.random() < 0.5 else [rng.choice(rotary)]:
            rule.pop("permute_rope", None)
    elif kind == "fused" and fused:
        order = rng.sample(range(3), 3)
        form = rng.choice(["weight", "bias"])
        for rule in fused:
            if rng.random() < 0.5 or rule["source"].endswith(form):
                rule["target"] = [rule["target"][at] for at in order]
    elif kind == "one of" and squares:
        rule = rng.choice(squares)
        rule.pop("transpose", None)
    return kind


def planted(case: Case, rng: random.Random) -> tuple[list[Rule], list[str]]:
    """Return rules with one or two mistakes that change the outputs, and what they are."""
    while True:
        rules = copy.deepcopy(case.rules)
        kinds = [plant(case, rules, rng) for _ in range(rng.choice([1, 1, 2]))]
        if rules != case.rules and differs(case, rules):
            return rules, kinds


def differs(case: Case, rules: list[Rule]) -> bool:
    """Return whether the mistakes change anything: some exchanges compute the same."""
    there = {name: snapshot.numpy() for name, snapshot in burn_tensors(case, case.rules).items()}
    back = recipe_from(document(rules)).inverse().apply(snapshots(there)).made
    values = {name: torch.from_numpy(row[0].numpy().copy()) for name, row in back.items()}
    inputs = tuple(torch.from_numpy(array) for array in case.inputs.values())
    with torch.no_grad():
        wanted = case.model(*inputs).numpy()
        made = torch.func.functional_call(case.model, values, inputs).numpy()
    return bool(np.max(np.abs(made - wanted)) / np.sqrt(np.mean(wanted**2)) > 2 * TOLERANCE)


def document(rules: list[Rule]) -> dict[str, Any]:
    return {"source_layout": "torch", "target_layout": "burn", "tensors": rules}


def snapshots(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: bs.TensorSnapshot.from_numpy(name, np.ascontiguousarray(array)) for name, array in arrays.items()}


def burn_tensors(case: Case, rules: list[Rule]) -> dict[str, Any]:
    made = recipe_from(document(rules)).apply(snapshots({name: held.numpy() for name, held in case.values.items()}))
    return {name: row[0] for name, row in made.made.items()}


def write(case: Case, path: Path, *, with_inner: bool) -> None:
    """Write the outline of the Burn model with its forward pass, by the true rules."""
    inner: dict[str, Any] = {}
    hooks = []
    for name, module in case.model.named_modules():
        if with_inner and (name.split(".")[-1].isdecimal() or name.endswith("attn")):

            def keep(_module: Any, _inputs: Any, output: Any, name: str = name) -> None:
                inner[burn_path(name)] = output.detach().numpy()

            hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        outputs = case.model(*(torch.from_numpy(array) for array in case.inputs.values())).numpy()
    for hook in hooks:
        hook.remove()
    metadata = {
        OUTLINE_KEY: json.dumps({"format": 1, "burn": "0.22.1", "modules": case.modules}),
        FORWARD_KEY: Recording(case.inputs, {"output": outputs}, inner).to_text(),
    }
    tensors = {name: each.numpy() for name, each in burn_tensors(case, case.rules).items()}
    bs.save(tensors, path, metadata=metadata, layout="burn", durable=False, overwrite=True)


def changed_modules(case: Case, rules: list[Rule]) -> set[str]:
    """Return the Burn modules whose tensors come from elsewhere, or otherwise, than they should."""
    true, wrong = ({json.dumps(rule["target"]): rule for rule in each} for each in (case.rules, rules))
    modules = set()
    for rule in rules:
        if true.get(json.dumps(rule["target"])) != rule:
            targets = rule["target"] if isinstance(rule["target"], list) else [rule["target"]]
            modules |= {target.rpartition(".")[0] for target in targets}
    assert len(wrong) == len(true)
    return modules


def is_named(result: ProveResult, changed: set[str]) -> bool:
    """Return whether the module that is named is one that the mistakes are in, or the one around it."""
    module = result.module or ""
    if any(name == module or name.startswith(f"{module}.") for name in changed) and module:
        return True
    return any(name in changed for suspect in result.suspects if suspect.explains for name in suspect.modules)


MODELS = ("transformer", "rotary", "fused", "images", "layers")


def run_case(
    number: int, seed: int, folder: Path, seconds: float = 60.0
) -> tuple[str, list[str], ProveResult, set[str]]:
    """Plant mistakes into one case, and prove it."""
    rng = random.Random(f"{seed}.{number}")
    case = case_of(MODELS[number % len(MODELS)], seed * 10_000 + number)
    rules, kinds = planted(case, rng)
    path = folder / "case.outline.bpk"
    with_inner = number // len(MODELS) % 2 == 0
    write(case, path, with_inner=with_inner)
    torch.manual_seed(0)
    stir(case.model)  # the model that proves has other values than the one that was recorded
    result = prove(path, model=case.model, rules=document(rules), seconds=seconds)
    what = f"{case.name}{' with inner outputs' if with_inner else ''}"
    return what, kinds, result, changed_modules(case, rules)


def main() -> int:
    """Count what was found and named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.first, arguments.first + arguments.cases):
            what, kinds, result, changed = run_case(number, arguments.seed, Path(folder))
            found, named = result.outcome == "differs", is_named(result, changed)
            counts.update(cases=1, found=found, named=named, explained=any(each.explains for each in result.suspects))
            if not (found and named):
                print(number, what, kinds, result.outcome, result.module, sorted(changed)[:4], result.suspects[:2])
    print(json.dumps({**counts, "seconds": round(time.monotonic() - start, 1)}))
    return 0 if counts["found"] == counts["named"] == arguments.cases else 1


if __name__ == "__main__":
    sys.exit(main())
