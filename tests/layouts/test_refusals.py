"""What has no counterpart is refused by name, and nothing is written or changed then."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import burnstore as bs

from .case import TorchModel, bits, randomised, rows

Build = Callable[[], nn.Module]


def quietly(build: Build) -> nn.Module:
    """What PyTorch no longer recommends is still met in files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build()


class Extended(nn.Linear):
    """A Linear with a further parameter, of which no table knows."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.scale = nn.Parameter(torch.ones(3))


def extended_layer(extra: Any) -> nn.Module:
    module = nn.TransformerEncoderLayer(4, 2, 6)
    module.extra = extra
    return module


def spectrally_normed() -> nn.Module:
    """In training, with vectors that are far from their end: every look at the weight takes them a step further."""
    module = parametrizations.spectral_norm(nn.Linear(4, 5))
    with torch.no_grad():
        for vector in (module.parametrizations.weight[0]._u, module.parametrizations.weight[0]._v):
            vector.zero_()
            vector[0] = 1.0
    return module


def rewritten_embedding() -> nn.Module:
    module = nn.Embedding(5, 3, max_norm=0.1)
    with torch.no_grad():
        module.weight.fill_(1.0)
    return module


def prepared(module: nn.Module) -> nn.Module:
    """A module as it is while it is trained for quantization."""
    from torch.ao import quantization

    def build() -> nn.Module:
        chosen = copy.deepcopy(module).train()
        chosen.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        return quantization.prepare_qat(chosen)

    return quietly(build)


def fused_for_training() -> nn.Module:
    from torch.ao import quantization

    def build() -> nn.Module:
        pair = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).train()
        fused = quantization.fuse_modules_qat(pair, [["0", "1"]])
        fused.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        return quantization.prepare_qat(fused)

    return quietly(build)


def quantized() -> nn.Module:
    from torch.ao import quantization

    return quietly(lambda: quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 3)), {nn.Linear}))


WITHOUT_COUNTERPART: dict[str, tuple[Build, str]] = {
    "Bilinear": (lambda: nn.Bilinear(2, 3, 4), "Bilinear"),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(5, 3), "EmbeddingBag"),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6], div_value=2.0),
        "AdaptiveLogSoftmaxWithLoss",
    ),
    "CrossEntropyLoss-weighted": (lambda: nn.CrossEntropyLoss(torch.ones(3)), "CrossEntropyLoss"),
    "NLLLoss-weighted": (lambda: nn.NLLLoss(torch.ones(3)), "NLLLoss"),
    "BCELoss-weighted": (lambda: nn.BCELoss(torch.ones(3)), "BCELoss"),
    "BCEWithLogitsLoss-weighted": (lambda: nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), "BCEWithLogitsLoss"),
    "MultiMarginLoss-weighted": (lambda: nn.MultiMarginLoss(weight=torch.ones(3)), "MultiMarginLoss"),
    "LSTM-proj": (lambda: nn.LSTM(3, 5, proj_size=2), "LSTM"),
    "LSTM-proj-both-ways": (lambda: nn.LSTM(3, 5, 2, proj_size=2, bidirectional=True), "LSTM"),
    "MultiheadAttention-bias-kv": (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), "MultiheadAttention"),
    "MultiheadAttention-two-widths": (lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5), "MultiheadAttention"),
    "MultiheadAttention-kdim-only": (lambda: nn.MultiheadAttention(4, 2, kdim=3), "MultiheadAttention"),
    "MultiheadAttention-vdim-only": (lambda: nn.MultiheadAttention(4, 2, vdim=3), "MultiheadAttention"),
    "LayerNorm-two-axes": (lambda: nn.LayerNorm([2, 3]), "LayerNorm"),
    "RMSNorm-two-axes": (lambda: nn.RMSNorm([2, 3]), "RMSNorm"),
    "InstanceNorm-statistics": (lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), "InstanceNorm1d"),
    "InstanceNorm-bare-statistics": (lambda: nn.InstanceNorm2d(3, track_running_stats=True), "InstanceNorm2d"),
    "BatchNorm-no-statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), "BatchNorm2d"),
    "BatchNorm-bare": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False, track_running_stats=False)),
        "BatchNorm1d",
    ),
    "LayerNorm-bare-two-axes": (lambda: nn.LayerNorm([2, 3], elementwise_affine=False), "LayerNorm"),
    "Conv-reflecting": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "Conv2d"),
    "LazyLinear": (lambda: quietly(lambda: nn.LazyLinear(3)), "lazy"),
    "LazyConv2d": (lambda: quietly(lambda: nn.LazyConv2d(3, 2)), "lazy"),
    "LazyBatchNorm1d": (lambda: quietly(nn.LazyBatchNorm1d), "lazy"),
    "Embedding-max-norm-exceeded": (rewritten_embedding, "Embedding"),
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(3, 2)), "Linear"),
    "weight_norm-whole": (lambda: parametrizations.weight_norm(nn.Linear(3, 2), dim=None), "Linear"),
    "weight_norm-conv": (lambda: parametrizations.weight_norm(nn.Conv1d(2, 3, 1)), "Conv1d"),
    "weight_norm-LSTM": (lambda: parametrizations.weight_norm(nn.LSTM(3, 5), "weight_hh_l0"), "LSTM"),
    "spectral_norm": (spectrally_normed, "Linear"),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(3, 3)), "Linear"),
    "old-weight_norm": (lambda: quietly(lambda: nn.utils.weight_norm(nn.Linear(3, 2))), "Linear"),
    "old-spectral_norm": (lambda: quietly(lambda: nn.utils.spectral_norm(nn.Linear(3, 2))), "Linear"),
    "pruned": (lambda: prune.random_unstructured(nn.Linear(3, 2), "weight", 0.5), "Linear"),
    "trained-for-quantization": (lambda: prepared(nn.Sequential(nn.Linear(3, 3))), "Linear"),
    "fused-for-quantization": (fused_for_training, "Conv"),
    "a-Linear-with-more": (Extended, "Linear"),
    "an-encoder-layer-with-more": (lambda: extended_layer(nn.Parameter(torch.ones(2))), "TransformerEncoderLayer"),
    "an-encoder-layer-with-another-child": (lambda: extended_layer(nn.Linear(2, 2)), "TransformerEncoderLayer"),
    "an-encoder-layer-with-a-learned-activation": (
        lambda: nn.TransformerEncoderLayer(4, 2, 6, activation=nn.PReLU()),
        "TransformerEncoderLayer",
    ),
}

each_refused = pytest.mark.parametrize(("build", "kind"), rows(WITHOUT_COUNTERPART))


@each_refused
def test_a_torch_module_without_counterpart_is_not_written(build: Build, kind: str, tmp_path: Path) -> None:
    model = TorchModel(build())
    before = None if kind == "lazy" else bits(model)
    with pytest.raises(bs.errors.ModelError) as refused:
        bs.save(model, tmp_path / "m.bpk")
    assert kind in str(refused.value)
    assert (refused.value.tensor or "").split(".")[0] == "m"
    assert not list(tmp_path.iterdir())
    assert before is None or bits(model) == before


@pytest.mark.matrix(every=6)
@each_refused
def test_a_torch_module_without_counterpart_is_not_loaded_into(build: Build, kind: str, tmp_path: Path) -> None:
    model = TorchModel(build())
    bs.save({"m.weight": np.ones((2, 2), np.float32)}, tmp_path / "m.bpk", durable=False, layout="burn")
    before = None if kind == "lazy" else bits(model)
    with pytest.raises(bs.errors.ModelError) as refused:
        bs.load(model, tmp_path / "m.bpk", allow_partial=True)
    assert kind in str(refused.value)
    assert before is None or bits(model) == before


def test_a_quantized_module_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(bs.errors.ModelError, match="Linear"):
        bs.save(TorchModel(quantized()), tmp_path / "m.bpk")
    assert not list(tmp_path.iterdir())


def test_a_lazy_module_is_a_plain_one_after_its_first_use(tmp_path: Path) -> None:
    module = quietly(lambda: nn.LazyLinear(3))
    module(torch.zeros(1, 4))
    bs.save(TorchModel(module), tmp_path / "m.bpk", durable=False)
    with bs.open(tmp_path / "m.bpk") as checkpoint:
        assert checkpoint["m.weight"].shape == (4, 3)


def test_a_refused_module_can_be_copied_by_a_rule(tmp_path: Path) -> None:
    model = TorchModel(nn.Bilinear(2, 3, 4))
    bs.save(model, tmp_path / "m.bpk", rules={"^m$": "AsIs"}, durable=False)
    with bs.open(tmp_path / "m.bpk") as checkpoint:
        np.testing.assert_array_equal(checkpoint["m.weight"].numpy(), model.m.weight.detach())


def test_a_kind_whose_options_are_not_told_is_refused(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.TransformerEncoderLayer(4, 2, 6)

    model = TorchModel(Own())
    with pytest.raises(bs.errors.ModelError, match="norm_first"):
        bs.save(model, tmp_path / "m.bpk", rules={"inner$": "TransformerEncoderLayer"})
    assert not list(tmp_path.iterdir())


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["m.0.weight", "m.1.bias"])
def test_a_sequence_is_not_filled_with_its_neighbours(missing: str, tmp_path: Path) -> None:
    """Indices are closed by what the model has, never by what the file lacks."""

    def made(seed: int) -> nn.Module:
        return randomised(TorchModel(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2))), seed)

    model, other = made(0), made(1)
    bs.save(model, tmp_path / "m.bpk", durable=False)
    with bs.open(tmp_path / "m.bpk") as checkpoint:
        tensors = {name: value for name, value in checkpoint.numpy().items() if name != missing}
    bs.save(tensors, tmp_path / "part.bpk", durable=False, layout="burn")
    result = bs.load(other, tmp_path / "part.bpk", allow_partial=True)
    [lacking] = result.missing
    assert lacking == {"m.0.weight": "m.0.weight", "m.1.bias": "m.2.bias"}[missing]
    wanted, found, untouched = model.state_dict(), other.state_dict(), made(1).state_dict()
    for name in wanted:
        assert torch.equal(found[name], (untouched if name == lacking else wanted)[name])


def test_a_fused_tensor_is_not_filled_in_part(tmp_path: Path) -> None:
    model, other = (randomised(TorchModel(nn.MultiheadAttention(4, 2)), seed) for seed in (0, 1))
    bs.save(model, tmp_path / "m.bpk", durable=False)
    with bs.open(tmp_path / "m.bpk") as checkpoint:
        tensors = {name: value for name, value in checkpoint.numpy().items() if name != "m.key.weight"}
    bs.save(tensors, tmp_path / "part.bpk", durable=False, layout="burn")
    before = bits(other)
    with pytest.raises(bs.errors.MissingTensorsError, match=r"m\.key\.weight"):
        bs.load(other, tmp_path / "part.bpk")
    assert bits(other) == before
    result = bs.load(other, tmp_path / "part.bpk", allow_partial=True)
    assert result.missing == ["m.in_proj_weight"]
    assert bits(other)["m.in_proj_weight"] == before["m.in_proj_weight"]


def test_a_wider_gate_does_not_fit(tmp_path: Path) -> None:
    model, other = randomised(TorchModel(nn.LSTM(3, 5))), randomised(TorchModel(nn.LSTM(3, 4)), 1)
    bs.save(model, tmp_path / "m.bpk", durable=False)
    before = bits(other)
    with pytest.raises(bs.errors.LoadError, match="Shape mismatch"):
        bs.load(other, tmp_path / "m.bpk")
    assert bits(other) == before
