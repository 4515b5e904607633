"""Outlines that mislead: models of `map_models` with swapped, reversed, copied, mirrored, renamed or lost layers.

A case is a model with one to three such changes. The true mapping is known, so a pair that is stated without a mark and
is wrong is a silent error of `map`. ``python tests/map_adversaries.py --cases 500 --seed 1`` counts them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.jobs.map.map import MapResult, map_names
from burnstore.models.outline import OUTLINE_KEY, outline_of
from burnstore.transforms.recipe import Template
from map_models import LATER, MODELS, Model, Truth
from map_models_third import THIRD

ALL = [*MODELS, *LATER, *THIRD]

Shape = tuple[int, ...]


@dataclasses.dataclass
class Case:
    """A checkpoint and an outline as names and shapes, with the true source of every target (None: it has none)."""

    name: str
    tensors: dict[str, Shape]
    config: Mapping[str, Any]
    modules: dict[str, str]
    targets: dict[str, Shape]
    truth: dict[str, Truth | None]
    attributes: dict[str, dict[str, str]]
    changes: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model, folder: Path) -> Case:
        source, outline, truth = model.write(folder)
        with bs.open(source) as given, bs.open(outline) as wanted:
            record = json.loads(wanted.metadata[OUTLINE_KEY])
            found = outline_of(wanted.metadata)
            assert found is not None
            return cls(
                model.name,
                {name: tuple(given[name].shape) for name in given},
                model.source["config"],
                record["modules"],
                {name: tuple(wanted[name].shape) for name in wanted},
                dict(truth),
                {path: dict(values) for path, values in found.attributes.items()},
            )

    def write(self, folder: Path) -> tuple[Path, Path]:
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self.targets.items()}
        rng = np.random.default_rng(1)
        values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in self.tensors.items()}
        bs.save(values, folder / "model.safetensors", metadata={"format": "pt"}, durable=False)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        outline = {"format": 1, "burn": "0.22.1", "modules": self.modules, "display": self._display("")}
        metadata = {OUTLINE_KEY: json.dumps(outline)}
        bs.save(zeros, folder / "model.outline.bpk", metadata=metadata, layout="burn", durable=False)
        return folder / "model.safetensors", folder / "model.outline.bpk"

    def _display(self, path: str) -> str:
        kind = self.modules[path].removeprefix("Struct:")
        fields = [f"{key}: {value}" for key, value in self.attributes.get(path, {}).items()]
        for other in self.modules:
            owner, _, name = other.rpartition(".")
            if owner == path and other:
                fields.append(f"{name}: {self._display(other)}")
        return f"{kind} {{ {', '.join(fields)} }}"

    def with_paths(self, rename: Callable[[str], str], order: Callable[[str], Any] | None = None) -> Case:
        """Return the case with other paths in the Burn model, and its fields in another order."""

        def renamed(held: Mapping[str, Any]) -> dict[str, Any]:
            rows = [(rename(path), value) for path, value in held.items()]
            return dict(sorted(rows, key=lambda row: order(row[0])) if order is not None else rows)

        fields = {name: renamed(getattr(self, name)) for name in ("modules", "targets", "truth", "attributes")}
        return dataclasses.replace(self, **fields)


# --- changes ----------------------------------------------------------------------------------------------------------


def _lists(case: Case) -> list[str]:
    return [path for path, kind in case.modules.items() if kind == "Vec" and f"{path}.1" in case.modules]


def _replace(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if path == old or path.startswith(f"{old}.") else path


def reverse(case: Case, chance: random.Random) -> Case | None:
    """Reverse a list of the Burn model."""
    lists = _lists(case)
    if not lists:
        return None
    owner = chance.choice(lists)
    count = sum(path.rpartition(".")[0] == owner and path.rpartition(".")[2].isdecimal() for path in case.modules)

    def rename(path: str) -> str:
        found = re.fullmatch(re.escape(owner) + r"\.(\d+)((?:\..*)?)", path)
        return path if found is None else f"{owner}.{count - 1 - int(found[1])}{found[2]}"

    changed = case.with_paths(rename)
    for name in ("modules", "targets", "truth"):
        held = getattr(changed, name)
        rows = list(held.items())
        inside = [row for row in rows if row[0].startswith(f"{owner}.")]
        inside.sort(key=lambda row: int(row[0][len(owner) + 1 :].partition(".")[0]))
        fresh = iter(inside)
        setattr(changed, name, dict(next(fresh) if row[0].startswith(f"{owner}.") else row for row in rows))
    return changed


def _siblings(case: Case) -> dict[tuple[str, str, tuple[Shape, ...]], list[str]]:
    """Return the layers of one module that have the same kind and shapes, by owner."""
    held: dict[str, list[Shape]] = {}
    for target, shape in case.targets.items():
        held.setdefault(target.rpartition(".")[0], []).append(shape)
    groups: dict[tuple[str, str, tuple[Shape, ...]], list[str]] = {}
    for path, shapes in held.items():
        owner, _, name = path.rpartition(".")
        if path in case.modules and not name.isdecimal():
            groups.setdefault((re.sub(r"\d+", "#", owner), case.modules[path], tuple(shapes)), []).append(name)
    return {key: list(dict.fromkeys(names)) for key, names in groups.items() if len(set(names)) > 1}


_BURNS_OWN = {"Struct:TransformerEncoderLayer", "Struct:TransformerDecoderLayer", "Struct:SwiGlu"}


def swap(case: Case, chance: random.Random) -> Case | None:
    """Exchange the order, and with it the numbers, of two layers of one module that have the same kind and shapes."""
    groups = _siblings(case)
    if not groups:
        return None
    (form, _, _), names = chance.choice(list(groups.items()))
    one, other = chance.sample(names, 2)
    numbered = all(re.fullmatch(r"[a-z_]*\d", name) for name in (one, other))
    sources = {
        source
        for target, true in case.truth.items()
        if true is not None and target.rpartition(".")[0].rpartition(".")[2] in (one, other)
        for source in true.names
    }
    is_numbered_there = any(re.search(r"\d$", name.rpartition(".")[0]) for name in sources)
    is_burns_own = any(re.sub(r"\d+", "#", path) == form and kind in _BURNS_OWN for path, kind in case.modules.items())

    def rename(path: str) -> str:
        segments = path.split(".")
        for at, segment in enumerate(segments):
            owner = re.sub(r"\d+", "#", ".".join(segments[:at]))
            if owner == form and segment in (one, other):
                fresh = (other if segment == one else one) if numbered else segment
                return ".".join([*segments[:at], fresh, *segments[at + 1 :]])
        return path

    if numbered and (is_numbered_there or is_burns_own):
        return None  # the source, or Burn, numbers them too: exchanged numbers would be lies
    changed = case.with_paths(rename)
    for name in ("modules", "targets", "truth"):
        setattr(
            changed, name, dict(reversed(getattr(changed, name).items())) if not numbered else getattr(changed, name)
        )
    return changed


def rename_neutrally(case: Case, chance: random.Random) -> Case | None:
    """Give every field a name without a meaning."""
    names: dict[str, str] = {}

    def rename(path: str) -> str:
        return ".".join(_neutral(segment, path, at, case, names) for at, segment in enumerate(path.split(".")) if path)

    return case.with_paths(lambda path: rename(path) if path else path)


_LEAVES = {"weight", "bias", "gamma", "beta", "running_mean", "running_var", "alpha"}


def _neutral(segment: str, path: str, at: int, case: Case, names: dict[str, str]) -> str:
    is_leaf = at == path.count(".") and segment in _LEAVES and path.rpartition(".")[0] in case.modules
    if segment.isdecimal() or is_leaf:
        return segment
    return names.setdefault(segment, f"field_{'abcdefghijklmnopqrstuvwxyz'[len(names) % 26]}{'x' * (len(names) // 26)}")


_WORDS = (
    "alpha left right first other main proj lin net part core norm conv attn mlp w x out a b norm1 fc1 dense gate up"
)


def rename_misleadingly(case: Case, chance: random.Random) -> Case | None:
    """Give some fields names that mean something else."""
    names: dict[str, str] = {}

    def name(segment: str) -> str:
        other = f"{chance.choice(_WORDS.split())}{len(names)}"
        return names.setdefault(segment, other if chance.random() < 0.3 else segment)

    def rename(path: str) -> str:
        segments = path.split(".")
        return ".".join(
            segment
            if segment.isdecimal() or (at == len(segments) - 1 and segment in _LEAVES) or not path
            else name(segment)
            for at, segment in enumerate(segments)
        )

    return case.with_paths(rename)


def copy(case: Case, chance: random.Random) -> Case | None:
    """Declare a layer or module of the Burn model twice; only one of the two has a source."""
    paths = [path for path in case.modules if path and not path.rpartition(".")[2].isdecimal()]
    path = chance.choice(paths)
    owner, dot, name = path.rpartition(".")
    fresh = owner + dot + chance.choice([f"{name}_copy", f"ema_{name}", f"{name}2", "other"])
    if fresh in case.modules or not any(target.startswith(f"{path}.") for target in case.targets):
        return None
    changed = dataclasses.replace(case)
    for field in ("modules", "targets", "truth", "attributes"):
        held = dict(getattr(case, field))
        more = {
            _replace(key, path, fresh): None if field == "truth" else value
            for key, value in held.items()
            if key == path or key.startswith(f"{path}.")
        }
        setattr(changed, field, {**more, **held} if chance.random() < 0.5 else {**held, **more})
    return changed


def duplicate(case: Case, chance: random.Random) -> Case | None:
    """Store a module of the source twice, under another name."""
    owners = {name.rpartition(".")[0] for name in case.tensors} - {""}
    owner = chance.choice(sorted(owners))
    owner = ".".join(owner.split(".")[: chance.randint(1, owner.count(".") + 1)])
    fresh = chance.choice([f"ema.{owner}", f"{owner}_copy", f"old_{owner}"])
    tensors = dict(case.tensors)
    for name, shape in case.tensors.items():
        if name.startswith(f"{owner}."):
            tensors[_replace(name, owner, fresh)] = shape
    return dataclasses.replace(case, tensors=tensors)


def drop(case: Case, chance: random.Random) -> Case | None:
    """Lose a tensor of the source."""
    names = [name for name in case.tensors if "num_batches_tracked" not in name]
    lost = chance.choice(names)
    truth = {target: None if true is not None and lost in true.names else true for target, true in case.truth.items()}
    return dataclasses.replace(
        case, tensors={name: shape for name, shape in case.tensors.items() if name != lost}, truth=truth
    )


_MIRRORED = ["down", "up", "squeeze", "excite", "w1", "w2", "a", "b"]


def mirror(case: Case, chance: random.Random) -> Case | None:
    """Take the biases from pairs of Linears with mirrored shapes, so that each fits the other untransposed."""
    linears = {path for path, kind in case.modules.items() if kind == "Struct:Linear"}
    shapes = {path: case.targets[f"{path}.weight"] for path in linears if f"{path}.weight" in case.targets}
    mirrored = {
        path
        for path, shape in shapes.items()
        for other, its in shapes.items()
        if path != other and shape == its[::-1] and path.rpartition(".")[0] == other.rpartition(".")[0]
    }
    if not mirrored:
        return None
    lost = {true.names[0] for path in mirrored if (true := case.truth.get(f"{path}.bias")) is not None}
    drop_targets = {f"{path}.bias" for path in mirrored}
    changed = dataclasses.replace(
        case,
        tensors={name: shape for name, shape in case.tensors.items() if name not in lost},
        targets={name: shape for name, shape in case.targets.items() if name not in drop_targets},
        truth={name: true for name, true in case.truth.items() if name not in drop_targets},
    )
    names = {path.rpartition(".")[2] for path in mirrored}
    if chance.random() < 0.7 and len(names) <= len(_MIRRORED):
        fresh = dict(zip(sorted(names), chance.sample(_MIRRORED, len(names)), strict=True))
        owners = {path.rpartition(".")[0] for path in mirrored}

        def rename(path: str) -> str:
            for at in range(path.count(".") + 1):
                segments = path.split(".")
                if ".".join(segments[:at]) in owners and segments[at] in fresh:
                    segments[at] = fresh[segments[at]]
                    return ".".join(segments)
            return path

        changed = changed.with_paths(rename)
    return changed


def square(case: Case, chance: random.Random) -> Case | None:
    """Give all matrices one size, so that shapes decide nothing and show no orientation."""
    if any(true is not None and true.part is not None for true in case.truth.values()):
        return None
    counts = Counter(size for shape in case.tensors.values() for size in shape if size > 3)
    sizes = [size for size, _ in counts.most_common(3)]
    if len(sizes) < 2:
        return None

    def sized(shape: Shape) -> Shape:
        return tuple(sizes[0] if size in sizes else size for size in shape)

    return dataclasses.replace(
        case,
        tensors={name: sized(shape) for name, shape in case.tensors.items()},
        targets={name: sized(shape) for name, shape in case.targets.items()},
    )


CHANGES = {
    "swap": swap,
    "reverse": reverse,
    "copy": copy,
    "mirror": mirror,
    "neutral": rename_neutrally,
    "misleading": rename_misleadingly,
    "drop": drop,
    "duplicate": duplicate,
    "square": square,
}


# --- the count --------------------------------------------------------------------------------------------------------


def draw(bases: list[Case], seed: int) -> Case:
    """Return the case of a seed: a model with one to three changes."""
    chance = random.Random(seed)
    while True:
        case = chance.choice(bases)
        for name in chance.sample(list(CHANGES), chance.choice([1, 1, 2, 3])):
            changed = CHANGES[name](case, chance)
            if changed is not None:
                case = dataclasses.replace(changed, changes=(*case.changes, name))
        if case.changes and case.targets:
            return case


def silent_errors(case: Case, found: MapResult) -> list[str]:
    """Return the pairs that are wrong, and neither marked as decided by order nor asked about."""
    marked = {*found.by_order, *found.by_list} | {target for question in found.questions for target in question.targets}
    marked_owners = {target.rpartition(".")[0] for target in marked} | marked
    wrong = []
    for each in found.tensors:
        true = case.truth[each.target]
        is_marked = each.target in marked or each.target.rpartition(".")[0] in marked_owners
        if (true is None or true.names != each.sources) and not is_marked:
            wrong.append(f"{each.target} <- {each.sources} ({each.evidence}), not {true and true.names}")
            continue
        if true is not None and len(case.targets[each.target]) == 2 and not is_marked and true.part is None:
            turned = _is_turned(found, each.target)
            if turned is not None and turned != true.is_turned:
                wrong.append(f"{each.target} <- {each.sources}: transposed = {turned}, not {true.is_turned}")
    return wrong


def _is_turned(found: MapResult, target: str) -> bool | None:
    for rule in found.rules["tensors"]:
        form = rule.get("target")
        if isinstance(form, str) and Template(form).match(target) is not None:
            return bool(rule.get("transpose"))
    return None


def bases() -> list[Case]:
    """Return the models without a change."""
    cases = []
    for model in ALL:
        with tempfile.TemporaryDirectory() as folder:
            cases.append(Case.of(model, Path(folder)))
    return cases


def main() -> int:
    """Count silent errors over seeds."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=20)
    options = parser.parse_args()
    known = bases()
    outcomes: Counter[str] = Counter()
    by_change: Counter[str] = Counter()
    bad = asked = total = shown = 0
    for seed in range(options.seed, options.seed + options.cases):
        case = draw(known, seed)
        with tempfile.TemporaryDirectory() as folder:
            source, outline = case.write(Path(folder))
            found = map_names(source, like=outline)
        wrong = silent_errors(case, found)
        outcomes["certain" if found.is_certain else "complete" if found.is_complete else "open"] += 1
        total += len(case.targets)
        asked += len(case.targets) - len(found.tensors)
        if wrong:
            bad += 1
            by_change.update(case.changes)
            if shown < options.show:
                shown += 1
                print(seed, case.name, case.changes, f"certain={found.is_certain}", *wrong[:3], sep="\n    ")
    print(
        f"{options.cases} cases: {bad} with silent errors {dict(by_change)}; {dict(outcomes)}; {asked} of {total} open"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
