"""Every layer of Burn that holds parameters has its place in records: written and read back along its declaration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore import nn
from burnstore.formats.record.declaration import declare, fields_of, parameters_of
from burnstore.stores.records import BinFileRecorder, JsonGzFileRecorder, NamedMpkFileRecorder, save_file

LAYERS: dict[str, Callable[[], Any]] = {
    "Linear": lambda: nn.Linear(2, 3),
    "Embedding": lambda: nn.Embedding(3, 2),
    "Conv1d": lambda: nn.Conv1d(2, 3, 2),
    "Conv2d": lambda: nn.Conv2d([2, 3], [2, 2]),
    "Conv3d": lambda: nn.Conv3d([2, 3], [1, 1, 1]),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d([2, 3], 2),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d([2, 3], [2, 2]),
    "ConvTranspose3d": lambda: nn.ConvTranspose3d([2, 3], [1, 1, 1], bias=False),
    "DeformConv2d": lambda: nn.DeformConv2d([2, 3], [1, 1]),
    "BatchNorm": lambda: nn.BatchNorm(2),
    "LayerNorm": lambda: nn.LayerNorm(2),
    "GroupNorm": lambda: nn.GroupNorm(1, 2),
    "InstanceNorm": lambda: nn.InstanceNorm(2, affine=False),
    "RmsNorm": lambda: nn.RmsNorm(2),
    "PRelu": lambda: nn.PRelu(),
    "SwiGlu": lambda: nn.SwiGlu(2, 3),
    "Lstm": lambda: nn.Lstm(2, 3, True, burn_version="0.21"),
    "BiLstm": lambda: nn.BiLstm(2, 3, False, burn_version="0.21"),
    "Gru": lambda: nn.Gru(2, 3, True),
    "BiGru": lambda: nn.BiGru(2, 3, True, gate_activation="PRelu"),
    "Rnn": lambda: nn.Rnn(2, 3, True),
    "BiRnn": lambda: nn.BiRnn(2, 3, True),
    "MultiHeadAttention": lambda: nn.MultiHeadAttention(4, 2),
    "CrossAttention": lambda: nn.CrossAttention(4, 4, 2, 2, 2),
    "PositionWiseFeedForward": lambda: nn.PositionWiseFeedForward(2, 3),
    "TransformerEncoder": lambda: nn.TransformerEncoder(2, 3, 1, 2),
    "TransformerDecoder": lambda: nn.TransformerDecoder(2, 3, 1, 1),
}


class Wrapped(nn.Module):
    """A layer between others, so that a byte too few or too many is noticed."""

    def __init__(self, layer: Any) -> None:
        self.before = nn.Linear(1, 1)
        self.layer = layer
        self.position = nn.PositionalEncoding(2)
        self.rotary = nn.RotaryEncoding(4, 2)
        self.dropout = nn.Dropout(0.5)
        self.after = nn.Linear(1, 1, bias=False)


@pytest.mark.parametrize("recorder", [BinFileRecorder, NamedMpkFileRecorder, JsonGzFileRecorder])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_comes_back_from_its_record(name: str, recorder: Any, tmp_path: Path) -> None:
    model = Wrapped(LAYERS[name]())
    save_file(model, tmp_path / "m", recorder(), durable=False)
    with recorder().load(tmp_path / "m", like=Wrapped(LAYERS[name]())) as record:
        assert list(record.tensors()) == [tensor.path for tensor in bs.collect(model)]
        for tensor in bs.collect(model):
            assert record.tensors()[tensor.path].to_bytes() == tensor.to_bytes()


@pytest.mark.parametrize("minor", [13, 14, 16, 17, 18, 19, 20, 21])
@pytest.mark.parametrize("name", LAYERS)
def test_in_every_release_a_layer_has_the_same_tensors(name: str, minor: int) -> None:
    layer = LAYERS[name]()
    found = {id(parameter.holder) for _, parameter in parameters_of(declare(layer, minor))}
    wanted = {id(slot.holder) for slot in nn.module.walk(layer)}
    activations = {id(slot.holder) for slot in nn.module.walk(layer) if "activation" in slot.path}
    assert wanted - activations <= found <= wanted


def test_every_layer_with_parameters_is_known() -> None:
    holders = {
        name
        for name, kind in vars(nn).items()
        if isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and kind is not nn.Module
        and fields_of(name, 21) is None
    }
    made = {name for name in holders if name in LAYERS}
    assert made == set(), "these are taken for constants"


def test_a_variant_that_a_release_lacks_is_refused() -> None:
    model = nn.Module()
    model.activation = nn.Activation.build("Selu")
    declare(model, 21)
    with pytest.raises(bs.errors.ModelError, match=r"Burn 0\.20 has no Activation::Selu"):
        declare(model, 20)


@pytest.mark.parametrize("norm", [nn.BatchNorm(2), nn.LayerNorm(2), nn.RmsNorm(2)])
def test_normalizations_have_the_numbers_of_0_21(norm: Any, tmp_path: Path) -> None:
    model = nn.Module()
    model.norm = nn.Normalization.of(norm)
    save_file(model, tmp_path / "m", BinFileRecorder())
    data = (tmp_path / "m.bin").read_bytes()
    index = {"BatchNorm": 0, "LayerNorm": 3, "RmsNorm": 4}[type(norm).__name__]
    assert data[data.rindex(b"FullPrecisionSettings") + 21] == index


def test_a_declaration_that_contains_itself_is_refused() -> None:
    model = nn.Module()
    model.inner = [model]
    with pytest.raises(bs.errors.ModelError, match="contains itself"):
        declare(model, 21)
