"""Converted weights compute what they did before: PyTorch's outputs are those of Burn's equations, both directions."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs

from .case import Case, contents
from .plain_cases import PLAIN_CASES
from .structural_cases import STRUCTURAL_CASES

CASES = [*PLAIN_CASES, *STRUCTURAL_CASES]
pytestmark = pytest.mark.matrix(every=8)
TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}  # both sides compute in f64 on the same f32 weights

each_case = pytest.mark.parametrize("case", CASES, ids=repr)


def inputs_of(case: Case) -> tuple[np.ndarray, ...]:
    return case.inputs(np.random.default_rng(7))


@each_case
def test_what_a_torch_module_saved_computes_the_same_in_burn(case: Case, tmp_path: Path) -> None:
    model = case.torch_model()
    bs.save(model, tmp_path / "m.bpk", durable=False)
    inputs = inputs_of(case)
    found = case.burn_output(contents(tmp_path / "m.bpk"), inputs)
    np.testing.assert_allclose(found, case.torch_output(model, inputs), **TOLERANCE)


@each_case
def test_what_burn_saved_computes_the_same_in_a_torch_module(case: Case, tmp_path: Path) -> None:
    declared = case.burn_model()
    bs.save(declared, tmp_path / "m.bpk", durable=False)
    model = case.torch_model(seed=1)
    result = bs.load(model, tmp_path / "m.bpk")
    assert result.is_complete and not result.unused
    inputs = inputs_of(case)
    wanted = case.burn_output({tensor.path: tensor.numpy() for tensor in bs.collect(declared)}, inputs)
    np.testing.assert_allclose(case.torch_output(model, inputs), wanted, **TOLERANCE)


# --- the equations see every tensor: a mistake in any of them would be noticed ----------------------------------------


@each_case
def test_every_tensor_counts_in_the_output(case: Case) -> None:
    weights = {tensor.path: tensor.numpy() for tensor in bs.collect(case.burn_model())}
    inputs = inputs_of(case)
    output = case.burn_output(weights, inputs)
    rng = np.random.default_rng(3)
    for path, value in weights.items():
        changed = case.burn_output({**weights, path: value + rng.uniform(0.2, 1.0, value.shape)}, inputs)
        assert np.allclose(changed, output, **TOLERANCE) == bool(re.fullmatch(case.unseen, path)), path
        if value.ndim == 2 and value.shape[0] == value.shape[1] > 1:
            changed = case.burn_output({**weights, path: value.T}, inputs)
            assert not np.allclose(changed, output, **TOLERANCE), f"{path} transposed"


@pytest.mark.parametrize(
    "case", [case for case in STRUCTURAL_CASES if len(bs.collect(case.burn_model())) <= 30], ids=repr
)
def test_two_tensors_in_each_others_place_would_be_noticed(case: Case) -> None:
    weights = {tensor.path: tensor.numpy() for tensor in bs.collect(case.burn_model())}
    inputs = inputs_of(case)
    output = case.burn_output(weights, inputs)
    for first, second in itertools.combinations(weights, 2):
        alike = weights[first].shape == weights[second].shape
        if not alike or _added_up(first, second) or (weights[first] == weights[second]).all():
            continue
        if re.fullmatch(case.unseen, first) and re.fullmatch(case.unseen, second):
            continue
        swapped = {**weights, first: weights[second], second: weights[first]}
        assert not np.allclose(case.burn_output(swapped, inputs), output, **TOLERANCE), (first, second)


def _added_up(first: str, second: str) -> bool:
    """Whether these are two biases of one gate that are only ever added (the new gate of a GRU keeps them apart)."""
    gates = [path.rpartition(".")[0].rpartition(".")[0] for path in (first, second)]
    biases = first.endswith("transform.bias") and second.endswith("transform.bias")
    return biases and gates[0] == gates[1] and not gates[0].endswith("new_gate")
