"""The programs and their files, made once for all tests; nothing is collected here unless asked for by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.models.plain import walk
from burnstore.tensor.param_id import ParamId

from . import zoo
from .program import Program, Tensor, UnavailableError, asked_versions, program

HERE = Path(__file__).resolve().parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    start = config.invocation_params.dir
    asked = [(start / argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of `burn` runs with each version asked for; every test of `model` with each of its models."""
    if "burn" not in metafunc.fixturenames:
        return
    versions = asked_versions()
    if "model" in metafunc.fixturenames:
        pairs = [(version, model) for version in versions for model in zoo.models_of(version)]
        metafunc.parametrize(("burn", "model"), pairs, indirect=["burn"], ids=[f"{v}-{m}" for v, m in pairs])
    else:
        metafunc.parametrize("burn", versions, indirect=True)


@pytest.fixture(scope="session")
def burn(request: pytest.FixtureRequest) -> Program:
    """Real Burn of one version; a skip that says why where there is none."""
    try:
        return program(request.param)
    except UnavailableError as reason:
        pytest.skip(str(reason))


@dataclass(frozen=True)
class Generated:
    """The files that one Burn made of its zoo."""

    folder: Path

    def file(self, model: str, suffix: str = "bpk") -> Path:
        return self.folder / f"{model}.{suffix}"

    def tensors(self, model: str) -> list[Tensor]:
        """The module's tensors in the order in which Burn collects them."""
        return [Tensor.from_json(tree) for tree in self._description(model)["tensors"]]

    def paths(self, model: str) -> list[str]:
        return [tensor.path for tensor in self.tensors(model)]

    def metadata(self, model: str, key: str = "metadata") -> dict[str, str]:
        return dict(self._description(model)[key])

    def filled(self, model: str, version: str, ids: Sequence[int] | None = None) -> Any:
        """The declared model with the values and ids of Burn's file.

        A running state keeps its own id when it is loaded, here as in Burn, so ids are put in by hand: those of the
        file, or ``ids`` in the model's order.
        """
        tensors = self.tensors(model)
        declared = zoo.declare(model, version, self.paths(model))
        bs.BurnpackStore.from_file(self.file(model)).load(declared)
        known = [tensor.param_id for tensor in tensors] if ids is None else ids
        for slot, param_id in zip(walk(declared), known, strict=True):
            slot.holder.id = ParamId(param_id)
        return declared

    def failure(self, model: str, suffix: str) -> str:
        """Why Burn did not write that file."""
        return str(self._description(model)["failed"].get(suffix))

    def _description(self, model: str) -> dict[str, Any]:
        return _parsed(self.file(model, "json"))


@cache
def _parsed(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def zoos() -> dict[str, Generated]:
    """The zoos made so far."""
    return {}


@pytest.fixture
def generated(burn: Program, zoos: dict[str, Generated], tmp_path_factory: pytest.TempPathFactory) -> Generated:
    """The zoo of that version, made once: a fixture of the session would be made for each pair with a model."""
    if burn.version not in zoos:
        folder = tmp_path_factory.mktemp(f"burn-{burn.version}")
        burn.gen(folder)
        zoos[burn.version] = Generated(folder)
    return zoos[burn.version]
