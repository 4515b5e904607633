"""The questions: sources, models and options, which are combined with each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

import burnstore as bs
from burnstore import nn

# --- models: one network in three frameworks; fc is square, so that no shape shows a transposed weight ----------------


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)
        self.norm = torch.nn.LayerNorm(3)
        self.head = torch.nn.Linear(3, 2)


class SquareNet(torch.nn.Module):
    """A network of which neither a name nor a shape proves the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)
        self.emb = torch.nn.Embedding(4, 3)


class BurnNet(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 2)


class BurnSquareNet(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 3)
        self.emb = nn.Embedding(4, 3)


def plain_net() -> dict[str, Any]:
    """The network as arrays in dicts, which state neither layout nor module kinds; the names are PyTorch's."""
    return {
        "fc": {"weight": np.zeros((3, 3), np.float32), "bias": np.zeros(3, np.float32)},
        "norm": {"weight": np.zeros(3, np.float32), "bias": np.zeros(3, np.float32)},
        "head": {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)},
    }


MODELS: dict[str, Callable[[], Any]] = {
    "torch": TorchNet,
    "burn": BurnNet,
    "plain": plain_net,
    "torch-square": SquareNet,
    "burn-square": BurnSquareNet,
}


def zeroed(model: Any) -> Any:
    """Set all values of a model to 0, so that what a load leaves alone is the same in every model."""
    zeros = {each.path: np.zeros(each.shape, np.float32) for each in bs.collect(model)}
    bs.load(model, bs.serialize(zeros, format="burnpack", layout=bs.collect(model)[0].layout))
    return model


def tensors_of(model: Any) -> dict[str, Any]:
    """Return the values of a model by path."""
    return {each.path: np.array(each.numpy(), np.float64) for each in bs.collect(model)}


# --- values -----------------------------------------------------------------------------------------------------------


def _rand(number: int, *shape: int) -> Any:
    return np.random.default_rng(number).standard_normal(shape).astype(np.float32)


TORCH = {
    "fc.weight": _rand(1, 3, 3),
    "fc.bias": _rand(2, 3),
    "norm.weight": _rand(3, 3),
    "norm.bias": _rand(4, 3),
    "head.weight": _rand(5, 2, 3),
    "head.bias": _rand(6, 2),
}
BURN = {
    "fc.weight": TORCH["fc.weight"].T.copy(),
    "fc.bias": TORCH["fc.bias"],
    "norm.gamma": TORCH["norm.weight"],
    "norm.beta": TORCH["norm.bias"],
    "head.weight": TORCH["head.weight"].T.copy(),
    "head.bias": TORCH["head.bias"],
}
SQUARE = {"fc.weight": TORCH["fc.weight"], "fc.bias": TORCH["fc.bias"], "emb.weight": _rand(7, 4, 3)}


def in_torch() -> TorchNet:
    """Return the network with its values in PyTorch."""
    model = TorchNet()
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in TORCH.items()})
    return model


def in_burn() -> BurnNet:
    """Return the network with its values in Burn's layout."""
    model = BurnNet()
    bs.load(model, bs.serialize(BURN, format="burnpack", layout="burn"))
    return model


def _state(prefix: str = "", tensors: Mapping[str, Any] = TORCH) -> dict[str, torch.Tensor]:
    return {prefix + name: torch.from_numpy(array.copy()) for name, array in tensors.items()}


# --- sources ----------------------------------------------------------------------------------------------------------

_SILENT = {"made": "by hand"}
_Writer = Callable[[str], object]


def _safetensors(tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> _Writer:
    return lambda path: save_file(dict(tensors), path, metadata)


def _wrapped(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {prefix + name: array for name, array in tensors.items()}


SOURCES: dict[str, tuple[str, _Writer]] = {
    # written by PyTorch
    "state dict": (".pt", lambda path: torch.save(_state(), path)),
    "whole model": (".pt", lambda path: torch.save(in_torch(), path)),
    "below a key": (".pt", lambda path: torch.save({"state_dict": _state(), "epoch": 3}, path)),
    "ddp": (".pt", lambda path: torch.save(_state("module."), path)),
    "compiled": (".pt", lambda path: torch.save(_state("_orig_mod."), path)),
    "prefixed": (".pt", lambda path: torch.save(_state("old."), path)),
    "partial": (".pt", lambda path: torch.save(dict(list(_state().items())[:5]), path)),
    "more": (".pt", lambda path: torch.save({**_state(), "extra.weight": torch.ones(2)}, path)),
    "square": (".pt", lambda path: torch.save(_state(tensors=SQUARE), path)),
    # written by others, with or without a word about the layout
    "st torch": (".safetensors", _safetensors(TORCH, {"format": "pt"})),
    "st silent": (".safetensors", _safetensors(TORCH)),
    "st silent burn": (".safetensors", _safetensors(BURN, _SILENT)),
    "st silent square": (".safetensors", _safetensors(SQUARE)),
    "st ddp": (".safetensors", _safetensors(_wrapped(TORCH, "module."), {"format": "pt"})),
    "st silent ddp": (".safetensors", _safetensors(_wrapped(TORCH, "module."))),
    "st mlx": (".safetensors", _safetensors(TORCH, {"format": "mlx"})),
    "st flax": (".safetensors", _safetensors(TORCH, {"format": "flax"})),
    "st mlx square": (".safetensors", _safetensors(SQUARE, {"format": "mlx"})),
    "npz": (".npz", lambda path: np.savez(path, **TORCH)),
    "npz burn": (".npz", lambda path: np.savez(path, **BURN)),
    "npz square": (".npz", lambda path: np.savez(path, **SQUARE)),
    # written by burnstore
    "bpk": (".bpk", lambda path: bs.save(in_burn(), path)),
    "bpk of torch": (".bpk", lambda path: bs.save(in_torch(), path)),
    "bpk in torch": (".bpk", lambda path: bs.save(in_torch(), path, layout="torch")),
    "bpk silent": (".bpk", lambda path: bs.save(dict(TORCH), path)),
    "st burn": (".safetensors", lambda path: bs.save(in_burn(), path)),
    "st of torch in burn": (".safetensors", lambda path: bs.save(in_torch(), path, layout="burn")),
    "pt of burn": (".pt", lambda path: bs.save(in_burn(), path)),
    "npz of torch": (".npz", lambda path: bs.save(in_torch(), path)),
    "npz of burn": (".npz", lambda path: bs.save(in_burn(), path)),
}


def write_sources(folder: Path) -> dict[str, str]:
    """Write every source into a folder; return the paths by name."""
    paths = {}
    for name, (suffix, write) in SOURCES.items():
        paths[name] = str(folder / f"{name.replace(' ', '_')}{suffix}")
        write(paths[name])
    return paths


# --- options ----------------------------------------------------------------------------------------------------------


def doubled(snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
    """Return a tensor with twice its values."""
    return bs.TensorSnapshot.from_numpy(snapshot.path, snapshot.numpy() * 2)


_SWAP = [{"source": "head.weight", "target": "head.weight", "transpose": True}]
_SPLIT = [
    {"source": "fc.weight", "target": "fc.weight", "transpose": True},
    {"source": "fc.bias", "target": "fc.bias"},
    {"source": "norm.weight", "target": "norm.gamma"},
    {"source": "norm.bias", "target": "norm.beta"},
    {"source": "head.weight", "target": "head.weight", "transpose": True},
    {"source": "head.bias", "target": "head.bias"},
]

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "filter": {"filter": "^fc"},
    "filter of nothing": {"filter": "^nowhere"},
    "filter and partial": {"filter": "^norm", "allow_partial": True},
    "rename": {"rename": [r"^old\.=>"]},
    "rename to wrong": {"rename": [r"^head\.=>tail."]},
    "kinds": {"rules": {r"^fc$": "Linear"}},
    "kinds of nothing": {"rules": {r"^nowhere$": "Linear"}},
    "tensor rules": {"rules": {"tensors": [{"source": "norm.bias", "target": "norm.bias", "cast": "bf16"}]}},
    "tensor rules of nothing": {"rules": {"tensors": [{"source": "nowhere", "target": "norm.bias"}]}},
    "tensor rules, transposed": {"rules": {"tensors": _SWAP}},
    "tensor rules, layouts": {"rules": {"source_layout": "torch", "target_layout": "burn", "tensors": _SPLIT}},
    "adapter": {"adapter": doubled},
    "layout adapter": {"adapter": "PyTorchToBurnAdapter"},
    "cast": {"cast": "bf16"},
    "layout torch": {"layout": "torch"},
    "layout burn": {"layout": "burn"},
    "key": {"top_level_key": "state_dict"},
    "wrong key": {"top_level_key": "nowhere"},
    "partial": {"allow_partial": True},
    "filter, cast, layout": {"filter": "^fc", "cast": "f16", "layout": "torch", "allow_partial": True},
}


@dataclass(frozen=True)
class Question:
    """A source, a model and options."""

    source: str
    model: str
    option: str
    path: str = field(default="", compare=False)

    @property
    def options(self) -> dict[str, Any]:
        return dict(OPTIONS[self.option])

    def fresh(self) -> Any:
        """Return the model, not loaded: all values are 0."""
        return zeroed(MODELS[self.model]())

    def __str__(self) -> str:
        return f"{self.source} / {self.model} / {self.option}"


def rules_file(rules: Mapping[str, Any], folder: Path) -> str:
    """Return the path of a rules file with this content."""
    path = folder / "rules.json"
    path.write_text(json.dumps(rules))
    return str(path)
