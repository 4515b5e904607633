"""A training that stops in Burn 0.21 or 0.22, passes through here, and goes on in 0.22 as if it had never stopped."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs

from .program import UnavailableError, asked_versions, built

OLD, NEW = "0.21", "0.22"
OPTIMIZERS = ("Adam", "Adam-amsgrad", "AdamW", "Sgd", "AdaGrad", "RmsProp", "RmsProp-centered", "Adan")
SCHEDULERS = ("Linear", "Cosine", "Exponential", "Noam", "Step", "composed")

REFACTORED = (
    """
source_layout = "burn"
target_layout = "burn"
tensors = [
"""
    + "".join(
        f'  {{ source = "{old}.{leaf}", target = "{new}.{leaf}" }},\n'
        for old, new, leaves in (
            ("embed", "stem", ("weight", "bias")),
            ("layers.{i}.norm", "trunk.{i}.pre", ("gamma", "beta")),
            ("layers.{i}.fc1", "trunk.{i}.up", ("weight", "bias")),
            ("layers.{i}.fc2", "trunk.{i}.down", ("weight", "bias")),
            ("head", "classifier", ("weight", "bias")),
        )
        for leaf in leaves
    )
    + "]\n"
)
"""What became of the fields of `Before` in `After`, see interop/shared/refactored.rs."""

needs_both = pytest.mark.skipif(
    not {OLD, NEW} <= set(asked_versions()), reason=f"BURN_VERSIONS does not name {OLD} and {NEW}"
)
needs_new = pytest.mark.skipif(
    NEW not in asked_versions() or len(asked_versions()) < 2,
    reason="BURN_VERSIONS names one version: Burn with its optimizers is a build of its own",
)


def trained(version: str, *words: object) -> Any:
    """What the program of a version tells of its half of a training."""
    try:
        binary = built(version, "burn-training")
    except UnavailableError as reason:
        pytest.skip(str(reason))
    done = subprocess.run([binary, *map(str, words)], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_that_nothing_was_lost(given: Path, loaded: Path) -> None:
    """Burn leaves out a state that it does not understand, so what it saves again is what it understood."""
    with bs.open(given) as ours, bs.open(loaded) as theirs:
        assert dict(theirs.scalars) == dict(ours.scalars)
        assert dict(theirs.metadata) == dict(ours.metadata)
        assert {name: tensor.to_bytes() for name, tensor in theirs.items()} == {
            name: tensor.to_bytes() for name, tensor in ours.items()
        }


@needs_both
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_as_if_it_had_not_been_migrated(name: str, tmp_path: Path) -> None:
    expected = trained(OLD, "optimizer", name, tmp_path)
    bs.migrate(tmp_path / "model.mpk", tmp_path / "model.bpk", durable=False)
    bs.migrate(tmp_path / "optimizer.mpk", tmp_path / "optimizer.bpk", model=tmp_path / "model.mpk", durable=False)
    found = trained(NEW, "optimizer", name, tmp_path)
    for parameter, values in expected.items():
        np.testing.assert_allclose(found["resumed"][parameter], values, rtol=1e-5, atol=1e-7)
        assert not np.allclose(found["forgotten"][parameter], values, rtol=1e-5, atol=1e-7), "the state says nothing"
    assert_that_nothing_was_lost(tmp_path / "optimizer.bpk", tmp_path / "loaded.bpk")


@needs_both
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_as_if_it_had_not_been_migrated(name: str, tmp_path: Path) -> None:
    expected = trained(OLD, "scheduler", name, tmp_path)
    kind = None if name == "composed" else name
    bs.migrate(tmp_path / "scheduler.mpk", tmp_path / "scheduler.bpk", scheduler=kind, durable=False)
    found = trained(NEW, "scheduler", name, tmp_path)
    np.testing.assert_allclose(found["resumed"], expected, rtol=1e-12)
    assert not np.allclose(found["forgotten"], expected, rtol=1e-12), "the state says nothing"
    assert_that_nothing_was_lost(tmp_path / "scheduler.bpk", tmp_path / "loaded.bpk")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "refactoring.toml"
    path.write_text(REFACTORED, encoding="utf-8")
    return path


@needs_new
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_goes_on_bit_by_bit_after_its_fields_were_renamed(name: str, rules: Path, tmp_path: Path) -> None:
    expected = trained(NEW, "begin", name, tmp_path)
    renamed = tmp_path / "renamed"
    for file in ("model.bpk", "optimizer.bpk"):
        renamed.mkdir(exist_ok=True)
        bs.convert(tmp_path / file, renamed / file, rules=rules, durable=False)
    found = trained(NEW, "resume", name, renamed)
    assert found["resumed"] == expected
    assert found["forgotten"] != expected, "the state says nothing"
    assert_that_nothing_was_lost(renamed / "optimizer.bpk", renamed / "loaded.bpk")
    assert trained(NEW, "resume", name, _with_swapped_state(renamed))["resumed"] != expected


def _with_swapped_state(folder: Path) -> Path:
    """Exchange the state of two matrices of one shape: what would come of a rename that mixes them up."""
    swapped = folder / "swapped"
    swapped.mkdir()
    (swapped / "model.bpk").write_bytes((folder / "model.bpk").read_bytes())
    with bs.open(folder / "optimizer.bpk") as state:
        one, other = (
            key for key, path in state.metadata.items() if path in ("trunk.0.up.weight", "trunk.0.down.weight")
        )
        tensors = []
        for name, tensor in state.items():
            key, _, rest = name.partition(".")
            taken = state[f"{ {one: other, other: one}.get(key, key) }.{rest}"]
            tensors.append(bs.TensorSnapshot.from_numpy(name, taken.numpy(), param_id=tensor.param_id))
        bs.save(
            tensors,
            swapped / "optimizer.bpk",
            metadata=dict(state.metadata),
            scalars=dict(state.scalars),
            layout="burn",
            durable=False,
        )
    return swapped


@needs_both
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_migrated_training_goes_on_after_its_fields_were_renamed(name: str, rules: Path, tmp_path: Path) -> None:
    expected = trained(OLD, "begin", name, tmp_path)
    new = tmp_path / "new"
    done = bs.migrate(tmp_path, new, rules=rules, durable=False)
    assert [each.error for each in done.records] == [None, None]
    found = trained(NEW, "resume", name, new)
    np.testing.assert_allclose(found["resumed"], expected, rtol=1e-6, atol=1e-6)
    assert not np.allclose(found["forgotten"], expected, rtol=0, atol=1e-4), "the state says nothing"
    swapped = trained(NEW, "resume", name, _with_swapped_state(new))
    assert not np.allclose(swapped["resumed"], expected, rtol=0, atol=1e-4)
    assert_that_nothing_was_lost(new / "optimizer.bpk", new / "loaded.bpk")
