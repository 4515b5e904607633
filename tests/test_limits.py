"""Limits: how much a file may ask for."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import Limits
from burnstore.pipeline.kinds import kinds_by_rules
from burnstore.transforms import view
from burnstore.transforms.guess import guess_kinds

NAMES = [field.name for field in fields(Limits)]


def test_the_defaults_are_those_that_are_promised() -> None:
    limits = Limits()
    assert (limits.header_bytes, limits.tensors) == (None, None)  # each format has its own
    assert (limits.rank, limits.name_bytes) == (64, 65_536)
    filled = limits.or_defaults(header_bytes=100 << 20, tensors=100_000)
    assert (filled.header_bytes, filled.tensors) == (100 << 20, 100_000)
    assert filled.rank == 64


def test_what_the_caller_set_is_not_replaced_by_a_default() -> None:
    filled = Limits(header_bytes=5, tensors=0).or_defaults(header_bytes=100, tensors=100)
    assert (filled.header_bytes, filled.tensors) == (5, 0)


def test_trusted_lifts_sizes_and_keeps_the_rank() -> None:
    trusted = Limits.trusted()
    assert all(getattr(trusted, name) > 2**60 for name in NAMES if name != "rank")
    assert trusted.rank == 64


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_is_a_number_of_zero_or_more(name: str) -> None:
    assert getattr(Limits(**{name: 0}), name) == 0
    with pytest.raises(ValueError, match=f"{name}.*negative"):
        Limits(**{name: -1})
    wrong: Any
    for wrong in (1.0, "1", True, [1]):
        with pytest.raises(TypeError, match=name):
            Limits(**{name: wrong})


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("header_bytes", "tensors")])
def test_only_a_formats_own_limits_can_be_left_open(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        Limits(**{name: None})


def test_limits_are_values_given_by_name() -> None:
    assert Limits(tensors=5) == Limits(tensors=5) != Limits(tensors=6)
    assert hash(Limits(tensors=5)) == hash(Limits(tensors=5))
    assert pickle.loads(pickle.dumps(Limits(tensors=5))) == Limits(tensors=5)
    with pytest.raises(TypeError):
        Limits(5)  # type: ignore[misc]
    with pytest.raises(TypeError):
        Limits(depth=5)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        Limits().rank = 5  # type: ignore[misc]


def test_names_of_many_levels_are_refused_before_their_modules_are_walked(tmp_path: Path) -> None:
    """A walk over the modules around such a name takes the square of its length: 45 s for a file of 3 MB."""
    names = [f"{n}{'.a' * 10_000}" for n in range(2)]
    with pytest.raises(bs.errors.ModelError, match="levels, more than 256"):
        guess_kinds(dict.fromkeys(names, (2, 3)))
    with pytest.raises(bs.errors.ModelError, match="levels, more than 256"):
        kinds_by_rules(names, {"^b$": "Linear"}, "torch")
    assert not view._Names(names).modules
    path = tmp_path / "x.safetensors"
    bs.save({name: np.zeros(0, np.float32) for name in names}, path, layout="torch")
    assert len(bs.load(bs.nn.Linear(2, 3), path, allow_partial=True, allow_empty=True).unused) == 2
    bs.convert(path, tmp_path / "y.safetensors", keep_layout=True)
