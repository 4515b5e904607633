"""What a class computes decides its kind: one that computes something else than its layer is no such layer."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import burnstore as bs


class Doubled(nn.Linear):
    def forward(self, x: Any) -> Any:
        return F.linear(x, self.weight * 2, self.bias)


class Absolute(nn.Linear):
    def forward(self, x: Any) -> Any:
        return F.linear(x, self.weight.abs(), self.bias)


class ByMatrix(nn.Linear):
    def forward(self, x: Any) -> Any:
        return x @ self.weight


class ByProperty(nn.Linear):
    @property
    def effective(self) -> Any:
        return self.weight * 3

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.effective, self.bias)


class ByMethod(nn.Linear):
    def scaled(self) -> Any:
        return self.weight * 3

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.scaled(), self.bias)


class ByName(nn.Linear):
    def forward(self, x: Any) -> Any:
        return F.linear(x, getattr(self, "weigh" + "t") * 3, self.bias)


class Unused(nn.Linear):
    def forward(self, x: Any) -> Any:
        return x


class Called(nn.Linear):
    def __call__(self, x: Any) -> Any:
        return x


class Standardized(nn.Conv2d):
    def forward(self, x: Any) -> Any:
        weight = self.weight
        weight = (weight - weight.mean()) / weight.std()
        return F.conv2d(x, weight, self.bias)


class HalvedConv(nn.Conv2d):
    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return super()._conv_forward(input, weight / 2, bias)


class ChangedFirst(nn.Linear):
    def forward(self, x: Any) -> Any:
        self.weight.data.mul_(2)
        return super().forward(x)


class Inherits(Doubled):
    pass


class OtherNorm(nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        return F.layer_norm(x, self.normalized_shape, self.weight.exp(), self.bias)


class OtherMemory(nn.LSTM):
    def forward(self, x: Any, h: Any = None) -> Any:
        return x @ self.weight_ih_l0.T


class Made(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.weight.data.normal_()

    def extra_repr(self) -> str:
        return "made"


class Twice(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


class Converted(nn.Linear):
    def forward(self, x: Any) -> Any:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Scaled(nn.Embedding):
    def forward(self, ids: Any) -> Any:
        return super().forward(ids) * self.embedding_dim**0.5


class Single(nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)


class FloatConv(nn.Conv2d):
    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return super()._conv_forward(input.float(), weight, bias)


class First(nn.MultiheadAttention):
    def forward(self, *args: Any, **options: Any) -> Any:
        return super().forward(*args, **options)[0]


def replaced() -> Any:
    made = nn.Linear(3, 2)
    made.forward = types.MethodType(lambda self, x: x @ self.weight.T * 2, made)
    return made


def inside(layer: Any) -> Any:
    model = nn.Module()
    model.part = layer
    return model


LINEARS = (Doubled, Absolute, ByMatrix, ByProperty, ByMethod, ByName, Unused, Called, ChangedFirst, Inherits)
OTHERS = [*(kind(3, 2) for kind in LINEARS), Standardized(3, 4, 3), HalvedConv(3, 4, 3), OtherNorm(4)]
OTHERS += [OtherMemory(3, 4), replaced()]


@pytest.mark.parametrize("layer", OTHERS, ids=lambda layer: type(layer).__name__)
def test_a_class_that_computes_something_else_is_refused_with_ways_out(tmp_path: Path, layer: Any) -> None:
    model = inside(layer)
    with pytest.raises(bs.errors.ModelError, match=r"a forward of its own|whose forward was replaced") as caught:
        bs.save(model, tmp_path / "a.bpk")
    assert caught.value.tensor == "part"
    assert "rules={pattern: kind}" in str(caught.value)
    assert not (tmp_path / "a.bpk").exists()
    bs.save(model, tmp_path / "a.safetensors")  # its own layout needs no kinds
    torch.save(model.state_dict(), tmp_path / "a.pt")
    with pytest.raises(bs.errors.ModelError, match="forward"):
        bs.convert(tmp_path / "a.pt", tmp_path / "a.bpk", like=model)


def test_rules_name_the_kind_of_a_class_with_its_own_forward(tmp_path: Path) -> None:
    layer = Standardized(3, 4, 3)
    done = bs.save(inside(layer), tmp_path / "a.bpk", rules={"^part$": "Conv2d"})
    assert done.tensors == ("part.weight", "part.bias")
    layer = Doubled(3, 2)
    bs.save(inside(layer), tmp_path / "b.bpk", rules={"^part$": "AsIs"})
    with bs.open(tmp_path / "b.bpk") as file:
        assert file["part.weight"].shape == (2, 3)


AROUND = [Twice(3, 2), Converted(3, 2), Scaled(5, 4), Single(4), FloatConv(3, 4, 3), First(4, 2)]


@pytest.mark.parametrize("layer", AROUND, ids=lambda layer: type(layer).__name__)
def test_code_around_a_layer_is_noted(tmp_path: Path, layer: Any) -> None:
    done = bs.save(inside(layer), tmp_path / "a.bpk")
    plain = type(layer).__mro__[1]
    assert [note for note in done.notes if f"{type(layer).__name__} (from {plain.__name__})" in note]
    found = bs.load(inside(layer), tmp_path / "a.bpk")
    assert [note for note in found.notes if type(layer).__name__ in note]


def test_a_class_without_code_of_its_own_is_its_layer(tmp_path: Path) -> None:
    layer = Made(3, 2)
    assert bs.save(inside(layer), tmp_path / "a.bpk").notes == ()
    with bs.open(tmp_path / "a.bpk") as file:
        assert file["part.weight"].shape == (3, 2)


def test_forward_hooks_are_noted(tmp_path: Path) -> None:
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda module, given, output: output * 2)
    assert "forward hooks" in " ".join(bs.save(inside(layer), tmp_path / "a.bpk").notes)


@pytest.mark.slow("imports timm")
def test_timms_standardized_convolutions_are_refused_and_its_others_are_not(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    with pytest.raises(bs.errors.ModelError, match="StdConv2d"):
        bs.save(timm.create_model("resnetv2_50x1_bit"), tmp_path / "a.bpk")
    bs.save(timm.create_model("efficientnet_b0"), tmp_path / "b.bpk")
    bs.save(timm.create_model("convnext_atto"), tmp_path / "c.bpk")
