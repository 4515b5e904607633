"""The biases of an attention, one by one: each is written, filled where the module declares it absent, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import burnstore as bs
import burnstore.nn as bn


def attention(*, inputs: bool, output: bool, **options: int) -> torch.nn.MultiheadAttention:
    made = torch.nn.MultiheadAttention(8, 2, **options)
    for bias in (made.in_proj_bias, made.out_proj.bias):
        torch.nn.init.normal_(bias)
    if not inputs:
        made.in_proj_bias = None
    if not output:
        made.out_proj.bias = None
    return made


def model_of(form: str, *, inputs: bool, output: bool) -> torch.nn.Module:
    if form != "layer":
        return attention(inputs=inputs, output=output, **({"kdim": 6, "vdim": 6} if form == "widths" else {}))
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
    layer.self_attn = attention(inputs=inputs, output=output)
    return layer


@pytest.mark.parametrize("form", ["plain", "widths", "layer"])
@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("output", [False, True])
def test_each_bias_of_an_attention_survives_the_way_to_burn_and_back(
    tmp_path: Path, form: str, inputs: bool, output: bool
) -> None:
    model = model_of(form, inputs=inputs, output=output)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    bs.save(model, tmp_path / "m.bpk")
    place = "mha." if form == "layer" else ""
    with bs.open(tmp_path / "m.bpk") as file:
        for name, is_present in (("output", output), ("query", inputs), ("key", inputs), ("value", inputs)):
            path = f"{place}{name}.bias"
            assert (path in file) == (is_present or form != "plain")
            if path in file:
                assert bool(file[path].numpy().any()) == is_present
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.zero_()
    bs.load(model, tmp_path / "m.bpk")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    if form != "plain":
        bs.convert(tmp_path / "m.bpk", tmp_path / "back.pt")
        back = torch.load(tmp_path / "back.pt")
        assert sorted(back) == sorted(before)
        assert all(torch.equal(tensor, before[name]) for name, tensor in back.items())


@pytest.mark.parametrize("inputs", [False, True])
def test_one_bias_without_the_other_needs_a_declaration(tmp_path: Path, inputs: bool) -> None:
    model = model_of("widths", inputs=inputs, output=not inputs)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    with pytest.raises(bs.errors.ModelError, match="nothing declares that it has none"):
        bs.convert(tmp_path / "m.pt", tmp_path / "m.bpk", guess=True)
    bs.convert(tmp_path / "m.pt", tmp_path / "m.bpk", like=model)
    bs.save(model, tmp_path / "saved.bpk")
    assert bs.diff(tmp_path / "m.bpk", tmp_path / "saved.bpk").is_equal


def test_a_part_that_burns_attention_does_without_must_be_zero(tmp_path: Path) -> None:
    source = attention(inputs=True, output=True)
    target = bn.MultiHeadAttention(8, 2)
    target.query.bias = None
    torch.save(source.state_dict(), tmp_path / "m.pt")
    with pytest.raises(bs.errors.ModelError, match=r"query\.bias.*not all 0"):
        bs.load(target, tmp_path / "m.pt")
    assert "query.bias" in [tensor.name for tensor in bs.diff(tmp_path / "m.pt", target).removed]
    with torch.no_grad():
        source.in_proj_bias[:8] = 0
    torch.save(source.state_dict(), tmp_path / "m.pt")
    bs.load(target, tmp_path / "m.pt")
    assert target.key.bias.value.tolist() == source.in_proj_bias[8:16].tolist()
    assert bs.diff(tmp_path / "m.pt", target).is_equal
