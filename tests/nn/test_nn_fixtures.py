"""The declared models against files that Burn wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnstore import nn
from burnstore.models.plain import walk
from declared_models import MODELS, Dtypes

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "burn"
VERSIONS = ("0.20.1", "0.21.0", "0.22.1", "0.23.0-pre.1")  # 0.19 spells containers without their kind


def described(model: nn.Module) -> list[dict[str, object]]:
    return [
        {
            "path": slot.path,
            "shape": list(slot.shape),
            "dtype": str(slot.dtype),
            "containers": list(slot.container_stack),
        }
        for slot in walk(model)
    ]


def expected(version: str, name: str) -> list[dict[str, object]]:
    written = json.loads((FIXTURES / version / f"{name}.expected.json").read_text(encoding="utf-8"))
    return [
        {key: tensor[key] for key in ("path", "shape", "containers")} | {"dtype": tensor["dtype"].partition("(")[0]}
        for tensor in written["tensors"]
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_declared_model_has_the_tensors_of_burns_file(version, name):
    half = version >= "0.22"
    model = Dtypes(half=half) if name == "dtypes" else MODELS[name]()
    assert described(model) == expected(version, name)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"dtypes", "nested"}))
def test_version_0_19_differs_only_in_how_it_spells_containers(name):
    declared = [
        entry | {"containers": [container.rpartition(":")[2] for container in entry["containers"]]}
        for entry in described(MODELS[name]())
    ]
    assert declared == expected("0.19.1", name)


def test_nothing_of_a_declared_model_is_drawn_but_running_states():
    for name, make in MODELS.items():
        drawn = [slot.path for slot in walk(make()) if slot.holder.is_initialized]
        assert drawn == (["batch.running_mean", "batch.running_var"] if name == "basic" else [])
