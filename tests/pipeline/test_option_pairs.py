"""Every pair of options, from the signatures: both take effect, or the pair is refused, in either order.

An option takes effect if the result differs from that without it. Beside another option it must still do so; the pairs
for which that cannot be are listed in `ALIKE`, those that are refused in `REFUSED`, each with the reason.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import nn

Outcome = tuple[Any, ...]
TORCH = {
    "fc.weight": np.arange(6, dtype="f4").reshape(2, 3),
    "fc.bias": np.arange(2, dtype="f4"),
    "norm.weight": np.arange(3, dtype="f4") + 1,
    "norm.bias": np.arange(3, dtype="f4") - 1,
}
RULES = {"^fc$": "Linear", "^norm$": "LayerNorm"}


class Declared(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 2)
        self.norm = nn.LayerNorm(3)


def live() -> torch.nn.Module:
    model = torch.nn.ModuleDict({"fc": torch.nn.Linear(3, 2), "norm": torch.nn.LayerNorm(3)})
    model.load_state_dict({name: torch.from_numpy(array) for name, array in TORCH.items()})
    return model


def negate(snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
    return bs.TensorSnapshot.from_numpy(snapshot.path, -snapshot.numpy())


def values_for(verb: str) -> dict[str, Any]:
    """Return a value for every option of a verb."""
    common: dict[str, Any] = {
        "filter": "weight",
        "rename": ["^fc=>head"],
        "layout": "torch",
        "target_layout": "burn",
        "keep_layout": True,
        "like": live(),
        "rules": RULES,
        "guess": True,
        "adapter": negate,
        "cast": "f64",
        "metadata": {"key": "text"},
        "format": "burnpack",
        "max_shard_size": "40B",
        "overwrite": True,
        "durable": False,
        "verify": False,
        "receipt": True,
        "resume": True,
        "executor": None,
        "limits": bs.Limits(tensors=1000),
        "progress": lambda done, total: None,
        "burn_version": "0.21",
        "allow_partial": True,
        "validate": False,
        "strict": True,
        "allow_empty": True,
        "in_place": False,
        "zero_copy": True,
        "device": "cpu",
        "top_level_key": "model",
        "part": bs.Partition({"fc": 0, "norm": "replicate"}).part(rank=0, world=2),
        "pipeline": bs.Pipeline(unmatched="error"),
        "method": "linear",
        "weights": [0.25, 0.75],
        "t": 0.25,
        "tensor_weights": {"bias": [0.1, 0.9]},
        "normalize": True,
        "conflicts": "first",
        "tolerance": 100.0,
        "relative_tolerance": 100.0,
        "ignore_dtype": True,
        "rate": 1.0,
        "invert": True,
        "map": True,
        "missing": "outline",
        "rope": "halves",
        "qkv": "parts",
        "storage_options": {"timeout": 5.0},
    }
    if verb in ("load", "explain-into"):
        common |= {"format": "safetensors", "rename": ["^norm=>other"]}
    if verb == "save":
        common |= {"rules": {"^fc$": "AsIs"}, "layout": "burn"}
    if verb == "merge":
        common |= {"format": "safetensors"}
    if verb.startswith("explain"):
        common |= {"format": "safetensors"}
    return common


class Bench:
    """One verb in one scenario: files to read, a folder to write into, and a fingerprint of what came out."""

    def __init__(self, verb: str, folder: Path) -> None:
        self.verb, self.folder = verb, folder
        bs.save(TORCH, folder / "a.safetensors", layout="torch")
        other = {name: array + 1 for name, array in TORCH.items()}
        bs.save(other, folder / "b.safetensors", layout="torch")
        self.values = {**values_for(verb), "plan": folder / "out" / "job.json"}
        function: Any = {"explain-into": bs.explain, "explain-target": bs.explain}.get(verb) or getattr(bs, verb)
        names = inspect.signature(function).parameters.values()
        self.options = [each.name for each in names if each.kind is each.KEYWORD_ONLY and each.name != "target"]
        self.known: dict[tuple[str, ...], Outcome] = {}

    def outcome(self, *names: str) -> Outcome:
        if names not in self.known:
            self.known[names] = self._run({name: self.values[name] for name in names})
        return self.known[names]

    def _run(self, options: dict[str, Any]) -> Outcome:
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        a, b = self.folder / "a.safetensors", self.folder / "b.safetensors"
        nn.seed(0)  # values that are not loaded are drawn
        model = Declared()
        act: Callable[[], Any] = {
            "load": lambda: bs.load(model, a, **options),
            "save": lambda: bs.save(live(), out / "x.safetensors", **options),
            "convert": lambda: bs.convert(a, out / "x.safetensors", **options),
            "merge": lambda: bs.merge([a, b], out / "x.safetensors", **options),
            "diff": lambda: bs.diff(a, b, **options),
            "explain-into": lambda: bs.explain(a, model, **options),
            "explain-target": lambda: bs.explain(a, target=out / "x.safetensors", **options),
        }[self.verb]
        try:
            result = act()
        except (bs.BurnstoreError, TypeError, ValueError) as error:
            return "refused", type(error).__name__, self._plain(str(error))
        shown = self._plain(repr(result.to_dict() if hasattr(result, "to_dict") else result))
        held = (
            {slot.path: (str(slot.dtype), slot.numpy().tobytes()) for slot in bs.collect(model)}
            if "load" in self.verb
            else 0
        )
        return "done", shown, str(held), tuple(self._files(out))

    def _plain(self, text: str) -> str:
        return re.sub(r"'time': [\d.]+", "", text.replace(str(self.folder), ""))

    def _files(self, out: Path) -> Iterator[Outcome]:
        for path in sorted(out.rglob("*")):
            if path.name.endswith(".receipt.json"):
                yield (path.name,)
            elif path.name == "job.json":
                job = json.loads(self._plain(path.read_text(encoding="utf-8")))
                yield path.name, repr({key: value for key, value in job.items() if key != "id"})
            elif path.suffix == ".safetensors" and path.is_file():
                with bs.open(path) as file:
                    tensors = {name: (str(file[name].dtype), file[name].numpy().tobytes()) for name in file}
                    digest = hashlib.sha256(repr(sorted(tensors.items())).encode()).hexdigest()
                    yield path.name, file.format, digest, tuple(sorted(file.metadata.items()))
            else:
                yield (path.name,)


NAMES_OF_LIKE = frozenset({"like", "rename"})  # the rename gives a name that like does not have
NAMES_OF_RULES = frozenset({"rename", "rules"})  # rules see the new names, and these match none of them
EXCLUDED = frozenset({"keep_layout", "target_layout"})
STRICT = {frozenset({"strict", "allow_partial"}), frozenset({"strict", "validate"})}  # one refuses, one tolerates
REFUSED: dict[str, set[frozenset[str]]] = {
    "load": STRICT,
    "explain-into": STRICT,
    "convert": {
        NAMES_OF_LIKE,
        NAMES_OF_RULES,
        EXCLUDED,
        frozenset({"receipt", "adapter"}),  # a receipt cannot hold a function
        frozenset({"receipt", "verify"}),  # it states what was proved
        frozenset({"plan", "receipt"}),  # a job that is only compiled proves nothing yet
        frozenset({"plan", "resume"}),
        frozenset({"plan", "adapter"}),  # a job cannot hold a function
    },
    "merge": {EXCLUDED},
    "explain-target": {NAMES_OF_LIKE, NAMES_OF_RULES, EXCLUDED},
}
"""Pairs that are refused although each option alone is not."""

ALIKE: dict[str, set[tuple[str, str]]] = {
    "save": {("layout", "format")},  # Burnpack has Burn's layout without being asked
    "merge": {("conflicts", "method")},  # a blend of tensors that all sources have has no conflicts
}
"""The first option changes nothing beside the second, because that implies it or leaves nothing to decide."""


@pytest.fixture(params=["load", "save", "convert", "merge", "diff", "explain-into", "explain-target"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(request.param, tmp_path)


def test_every_option_has_a_value_here(bench: Bench) -> None:
    assert [name for name in bench.options if name not in bench.values] == []


@pytest.mark.matrix(every=3)
def test_every_pair_combines_or_is_refused_in_either_order(bench: Bench) -> None:
    problems = []
    base = bench.outcome()
    for one, other in itertools.combinations(bench.options, 2):
        found = bench.outcome(one, other)
        if bench.outcome(other, one) != found:
            problems.append(f"{one}, {other}: the order matters")
        if found[0] == "refused":
            is_both = all(bench.outcome(each)[0] == "done" for each in (one, other))
            if is_both and frozenset({one, other}) not in REFUSED.get(bench.verb, set()):
                problems.append(f"{one}, {other}: refused: {found[1:]}")
            continue
        for this, beside in ((one, other), (other, one)):
            has_effect = bench.outcome(this) != base
            if has_effect and found == bench.outcome(beside) and (this, beside) not in ALIKE.get(bench.verb, set()):
                problems.append(f"{this} has no effect beside {beside}")
    assert not problems, "\n".join(problems)


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "save": ({"w": np.ones(2)}, "x.safetensors"),
    "load": ({"w": np.ones(2)}, b""),
    "open": (b"",),
    "convert": ("x", "y.bpk"),
    "replay": ("x",),
    "merge": (["x", "y"], "z.bpk"),
    "diff": ("x", "y"),
    "verify": ("x",),
    "explain": ("x",),
    "inspect": ("x",),
    "report": ("x",),
    "migrate": ("x", "y"),
}


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_an_option_that_is_on_or_off_is_a_bool(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``overwrite="no"`` would replace a file."""
    monkeypatch.chdir(tmp_path)
    function = getattr(bs, verb)
    flags = [name for name, each in inspect.signature(function).parameters.items() if each.annotation == "bool"]
    for name in flags:
        for value in ("no", 1, *([] if hasattr(bs.Pipeline(), name) else [None])):
            with pytest.raises(TypeError, match=rf"^{name}( must be|: expected) a bool"):
                function(*ARGUMENTS[verb], **{name: value})
    if "limits" in inspect.signature(function).parameters:
        with pytest.raises(TypeError, match=r"^limits must be a Limits"):
            function(*ARGUMENTS[verb], limits=3)
    assert not list(tmp_path.iterdir())
