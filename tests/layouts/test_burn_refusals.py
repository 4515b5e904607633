"""What Burn computes and PyTorch cannot is not taken for PyTorch's module of the same tensors, in neither direction."""

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


class Coupled(burn.Module):
    """An Lstm whose forget gate is one minus its input gate, and holds no tensors."""

    def __init__(self) -> None:
        self.m = burn.Lstm(3, 5, True, input_forget=True)


BURN_ONLY: dict[str, tuple[Callable[[], Any], str]] = {
    "Gru-reset-before": (lambda: burn.Gru(3, 5, True, reset_after=False), "Gru"),
    "BiGru-reset-before": (lambda: burn.BiGru(3, 5, True, reset_after=False), "Gru"),
    "Lstm-coupled": (lambda: burn.Lstm(3, 5, True, input_forget=True), "Lstm"),
    "Lstm-coupled-no-bias": (lambda: burn.Lstm(3, 5, False, input_forget=True), "Lstm"),
    "Lstm-coupled-old": (lambda: burn.Lstm(3, 5, True, input_forget=True, burn_version="0.21"), "Lstm"),
    "BiLstm-coupled": (lambda: burn.BiLstm(3, 5, True, input_forget=True), "Lstm"),
    "CrossAttention-grouped": (lambda: burn.CrossAttention(4, 6, 4, 2, 1), "CrossAttention"),
    "CrossAttention-wide-heads": (lambda: burn.CrossAttention(4, 6, 2, 2, 5), "CrossAttention"),
    "Lstm-clip": (lambda: burn.Lstm(3, 5, True, clip=1.0), "Lstm"),
    "Gru-clip": (lambda: burn.Gru(3, 5, True, clip=1.0), "Gru"),
    "Rnn-clip": (lambda: burn.Rnn(3, 5, True, clip=1.0), "Rnn"),
    "Lstm-reverse": (lambda: burn.Lstm(3, 5, True, reverse=True), "Lstm"),
    "Rnn-reverse": (lambda: burn.Rnn(3, 5, True, reverse=True), "Rnn"),
    "Lstm-other-gates": (lambda: burn.Lstm(3, 5, True, gate_activation="HardSigmoid"), "Lstm"),
    "Lstm-other-cell": (lambda: burn.Lstm(3, 5, True, cell_activation="Relu"), "Lstm"),
    "Gru-other-hidden": (lambda: burn.Gru(3, 5, True, hidden_activation="Relu"), "Gru"),
}


@pytest.mark.parametrize(("build", "kind"), rows(BURN_ONLY))
def test_a_burn_module_without_counterpart_is_not_written_as_torch(
    build: Callable[[], Any], kind: str, tmp_path: Path
) -> None:
    with pytest.raises(bs.errors.ModelError) as refused:
        bs.save(BurnModel(build()), tmp_path / "m.bpk", layout="torch")
    assert kind in str(refused.value)
    assert (refused.value.tensor or "").split(".")[0] == "m"
    assert not list(tmp_path.iterdir())


TORCH_SOURCES: dict[str, Build] = {
    "Gru": lambda: nn.GRU(3, 5),
    "BiGru": lambda: nn.GRU(3, 5, bidirectional=True),
    "Lstm": lambda: nn.LSTM(3, 5),
    "BiLstm": lambda: nn.LSTM(3, 5, bidirectional=True),
    "Rnn": lambda: nn.RNN(3, 5),
    "CrossAttention": lambda: nn.MultiheadAttention(4, 2, kdim=6, vdim=6),
}


@pytest.mark.parametrize(("build", "kind"), rows(BURN_ONLY))
def test_a_burn_module_without_counterpart_takes_no_torch_file(
    build: Callable[[], Any], kind: str, tmp_path: Path
) -> None:
    target = BurnModel(build())
    source = randomised(TorchModel(TORCH_SOURCES[type(target.m).__name__]()))
    bs.save(source, tmp_path / "m.bpk", layout="torch", durable=False)
    before = {tensor.path: tensor.numpy().tobytes() for tensor in bs.collect(target)}
    with pytest.raises((bs.errors.ModelError, bs.errors.LoadError)):
        bs.load(target, tmp_path / "m.bpk")
    assert {tensor.path: tensor.numpy().tobytes() for tensor in bs.collect(target)} == before


def test_a_coupled_lstm_does_not_go_into_a_torch_lstm(tmp_path: Path) -> None:
    bs.save(Coupled(), tmp_path / "m.bpk", durable=False)
    model = randomised(TorchModel(nn.LSTM(3, 5)))
    before = bits(model)
    with pytest.raises(bs.errors.MissingTensorsError, match="forget_gate"):
        bs.load(model, tmp_path / "m.bpk")
    assert bits(model) == before


class Stacked(burn.Module):
    """Two layers of which PyTorch would make one GRU, were it not for where they reset."""

    def __init__(self) -> None:
        self.m = [burn.Gru(3, 5, True, reset_after=False), burn.Gru(5, 5, True, reset_after=False)]


def test_a_list_of_gru_that_reset_before_takes_no_torch_file(tmp_path: Path) -> None:
    bs.save(TorchModel(nn.GRU(3, 5, 2)), tmp_path / "m.bpk", layout="torch", durable=False)
    with pytest.raises(bs.errors.ModelError, match="reset_after"):
        bs.load(Stacked(), tmp_path / "m.bpk")


class Clash(nn.Module):
    """Burn keeps the encoder's last norm beside it, where there is another one already."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 6)
        self.encoder = nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(4), enable_nested_tensor=False)
        self.encoder_norm = nn.LayerNorm(4)


def test_two_tensors_of_one_name_in_burn_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(bs.BurnstoreError, match="encoder_norm"):
        bs.save(Clash(), tmp_path / "m.bpk")
    assert not list(tmp_path.iterdir())


def test_one_tensor_of_burn_is_not_taken_twice(tmp_path: Path) -> None:
    model = randomised(Clash())
    single = Clash()
    del single.encoder_norm
    bs.save(single, tmp_path / "m.bpk", durable=False)
    before = bits(model)
    with pytest.raises((bs.errors.ModelError, bs.errors.DuplicateNameError, bs.errors.LoadError)):
        bs.load(model, tmp_path / "m.bpk")
    assert bits(model) == before
