"""A training that begins in Burn 0.21, is migrated here, and goes on in Burn 0.22 as if it had never stopped."""

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

pytestmark = pytest.mark.skipif(
    not {OLD, NEW} <= set(asked_versions()), reason=f"BURN_VERSIONS does not name {OLD} and {NEW}"
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


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_as_if_it_had_not_been_migrated(name: str, tmp_path: Path) -> None:
    expected = trained(OLD, "scheduler", name, tmp_path)
    kind = None if name == "composed" else name
    bs.migrate(tmp_path / "scheduler.mpk", tmp_path / "scheduler.bpk", scheduler=kind, durable=False)
    found = trained(NEW, "scheduler", name, tmp_path)
    np.testing.assert_allclose(found["resumed"], expected, rtol=1e-12)
    assert not np.allclose(found["forgotten"], expected, rtol=1e-12), "the state says nothing"
    assert_that_nothing_was_lost(tmp_path / "scheduler.bpk", tmp_path / "loaded.bpk")
