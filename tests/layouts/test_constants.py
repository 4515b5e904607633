"""Where PyTorch has no tensor Burn has ones or zeros; any other value would be lost, so it is refused or reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import burnstore as bs
from burnstore import nn as burn

from .case import BurnModel, TorchModel, bits, randomised, rows

Build = Callable[[], nn.Module]


FILLED: dict[str, tuple[Build, Callable[[], Any], str]] = {
    "LayerNorm-gamma": (lambda: nn.LayerNorm(4, elementwise_affine=False), lambda: burn.LayerNorm(4), "gamma"),
    "LayerNorm-beta": (lambda: nn.LayerNorm(4, elementwise_affine=False), lambda: burn.LayerNorm(4), "beta"),
    "RMSNorm-gamma": (lambda: nn.RMSNorm(4, elementwise_affine=False), lambda: burn.RmsNorm(4), "gamma"),
    "GroupNorm-beta": (lambda: nn.GroupNorm(2, 4, bias=False), lambda: burn.GroupNorm(2, 4), "beta"),
    "InstanceNorm-beta": (
        lambda: nn.InstanceNorm1d(4, affine=True, bias=False),
        lambda: burn.InstanceNorm(4),
        "beta",
    ),
    "BatchNorm-gamma": (lambda: nn.BatchNorm1d(4, affine=False), lambda: burn.BatchNorm(4), "gamma"),
    "BatchNorm-beta": (lambda: nn.BatchNorm1d(4, bias=False), lambda: burn.BatchNorm(4), "beta"),
    "attention-with-context": (
        lambda: nn.MultiheadAttention(4, 2, kdim=6, vdim=6, bias=False),
        lambda: burn.CrossAttention(4, 6, 2, 2, 2),
        "key.bias",
    ),
    **{
        f"encoder-layer-{name}": (
            lambda: nn.TransformerEncoderLayer(4, 2, 6, bias=False),
            lambda: burn.TransformerEncoderLayer(4, 6, 2),
            name,
        )
        for name in ("mha.query.bias", "mha.output.bias", "pwff.linear_inner.bias", "norm_2.beta")
    },
    **{
        f"decoder-layer-{name}": (
            lambda: nn.TransformerDecoderLayer(4, 2, 6, bias=False, norm_first=True),
            lambda: burn.TransformerDecoderLayer(4, 6, 2, norm_first=True),
            name,
        )
        for name in ("cross_attn.key.bias", "self_attn.value.bias", "pwff.linear_outer.bias", "norm_3.beta")
    },
}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(("build", "declare", "tensor"), rows(FILLED))
def test_a_constant_that_no_longer_holds_is_refused(
    build: Build, declare: Callable[[], Any], tensor: str, tmp_path: Path
) -> None:
    model = randomised(TorchModel(build()))
    bs.save(model, tmp_path / "same.bpk", durable=False)
    with bs.open(tmp_path / "same.bpk") as checkpoint:
        tensors = checkpoint.numpy()
    assert set(tensors) == {each.path for each in bs.collect(BurnModel(declare()))}
    assert bs.load(model, tmp_path / "same.bpk").is_complete
    before = bits(model)
    tensors[f"m.{tensor}"][-1] += 1e-3
    bs.save(tensors, tmp_path / "other.bpk", durable=False, layout="burn")
    for partly in (False, True):
        with pytest.raises(bs.errors.ModelError) as refused:
            bs.load(model, tmp_path / "other.bpk", allow_partial=partly)
        assert refused.value.tensor == f"m.{tensor}"
        assert bits(model) == before


@pytest.mark.parametrize(
    ("build", "declare", "tensor"),
    [
        pytest.param(lambda: nn.Linear(3, 3, bias=False), lambda: burn.Linear(3, 3), "bias", id="Linear"),
        pytest.param(lambda: nn.LayerNorm(3, bias=False), lambda: burn.LayerNorm(3), "beta", id="LayerNorm"),
        pytest.param(
            lambda: nn.MultiheadAttention(4, 2, bias=False),
            lambda: burn.MultiHeadAttention(4, 2),
            "key.bias",
            id="MultiheadAttention",
        ),
        pytest.param(
            lambda: nn.LSTM(3, 5, bias=False),
            lambda: burn.Lstm(3, 5, True),
            "cell_gate.hidden_transform.bias",
            id="LSTM",
        ),
    ],
)
def test_a_bias_that_the_torch_module_has_not_is_reported_as_unused(
    build: Build, declare: Callable[[], Any], tensor: str, tmp_path: Path
) -> None:
    bs.save(BurnModel(declare()), tmp_path / "m.bpk", durable=False)
    assert f"m.{tensor}" in bs.load(TorchModel(build()), tmp_path / "m.bpk").unused
