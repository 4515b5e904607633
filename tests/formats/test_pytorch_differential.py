"""Random checkpoints, read here and by torch: the same names, shapes, dtypes and bits."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from fuzz import torch_checkpoints as tc

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # torch's own


def loaded(data: bytes) -> Any:
    """What torch makes of the file; None where it cannot read what it wrote (untyped storages in old containers)."""
    import pickle

    try:
        legacy = bytes.fromhex("6cfc9c46f9206aa85019") in data[:30]
        if data[:1] == b"P" or legacy:
            return torch.load(io.BytesIO(data), weights_only=False)
        return pickle.loads(data)
    except (AttributeError, pickle.UnpicklingError):
        return None


@given(seed=st.integers(0, 2**32))
def test_random_checkpoints_are_read_as_torch_reads_them(seed: int) -> None:
    """`python -m tests.fuzz.pytorch --random 2000` runs more of them."""
    rng = Random(seed)
    value = tc.checkpoint(rng)
    data = tc.save(value, rng)
    expected = tc.flat(value)
    again = loaded(data)
    if isinstance(again, dict):
        assert [(name, tc.bits(tensor)) for name, tensor in tc.flat(again)] == [
            (name, tc.bits(t)) for name, t in expected
        ]
    names = [name for name, _ in expected]
    if len(set(names)) != len(names):
        with pytest.raises(bs.errors.DuplicateNameError):
            bs.open(data, top_level_key="")
        return
    with bs.open(data, top_level_key="", zero_copy=rng.random() < 0.5) as f:
        assert list(f) == names
        arrays = f.numpy()
        for name, tensor in expected:
            assert f[name].shape == tuple(tensor.shape), name
            assert f[name].dtype.torch_name == str(tensor.dtype).removeprefix("torch."), name
            assert f[name].to_bytes() == tc.bits(tensor), name
            assert arrays[name].tobytes() == tc.bits(tensor), name
