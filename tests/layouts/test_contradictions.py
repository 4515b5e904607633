"""Kinds, layouts and files given as like that tensors contradict are refused; nothing is made up for half a norm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import burnstore as bs
from burnstore.errors import ModelError


def saved(folder: Path, tensors: dict[str, Any], **metadata: str) -> Path:
    path = folder / "source.safetensors"
    safetensors.torch.save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata or None)
    return path


def of_shapes(folder: Path, **shapes: tuple[int, ...]) -> Path:
    tensors = {f"m.{name.replace('__', '.')}": torch.ones(shape) for name, shape in shapes.items()}
    return saved(folder, tensors, format="pt")


CELL = {"bias_ih_l0": (12,), "bias_hh_l0": (12,)}


@pytest.mark.parametrize(
    ("kind", "shapes", "expected"),
    [
        ("Linear", {"weight": (3, 5), "bias": (5,)}, "a bias of 3 entries"),
        ("LayerNorm", {"weight": (3,), "bias": (4,)}, "tensors of one shape"),
        ("GroupNorm", {"weight": (3, 5), "bias": (3, 5)}, "tensors with 1 axis"),
        ("BatchNorm1d", {"weight": (3,), "bias": (3,), "running_mean": (4,), "running_var": (3,)}, "of one shape"),
        ("Embedding", {"weight": (3,)}, "2 axes"),
        ("PReLU", {"weight": (2, 2)}, "1 axes"),
        ("Conv1d", {"weight": (3, 4)}, "3 axes"),
        ("ConvTranspose2d", {"weight": (3, 4, 5, 5), "bias": (3,)}, "a multiple of 4"),
        ("GRU", {"weight_ih_l0": (12, 2), "weight_hh_l0": (12, 3), **CELL}, "3 times as many rows"),
        ("LSTM", {"weight_ih_l0": (8, 2), "weight_hh_l0": (12, 3), **CELL}, "12 rows in weight_ih_l0"),
        ("MultiheadAttention", {"in_proj_weight": (9, 4), "out_proj__weight": (3, 3)}, "9 rows in in_proj_weight"),
    ],
)
def test_a_rule_that_the_shapes_contradict_is_refused(
    kind: str, shapes: dict[str, tuple[int, ...]], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=rf"its shapes are not those of {kind}: expected .*{expected}"):
        bs.convert(of_shapes(tmp_path, **shapes), tmp_path / "out.bpk", rules={"^m$": kind})


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("ConvTranspose2d", {"weight": (3, 4, 5, 5), "bias": (8,)}),  # two groups
        ("LSTM", {"weight_ih_l0": (12, 2), "weight_hh_l0": (12, 3), **CELL}),
        ("RNN", {"weight_ih_l0": (3, 2), "weight_hh_l0": (3, 3)}),
        ("GRUCell", {"weight_ih": (9, 2), "weight_hh": (9, 3), "bias_ih": (9,), "bias_hh": (9,)}),
        ("MultiheadAttention", {"in_proj_weight": (9, 3), "in_proj_bias": (9,), "out_proj__weight": (3, 3)}),
        ("LayerNorm", {"weight": (3,)}),  # bias=False, which Burn's has, too
        ("GroupNorm", {"weight": (3,), "bias": (3,)}),
    ],
)
def test_what_the_shapes_allow_is_converted(kind: str, shapes: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    done = bs.convert(of_shapes(tmp_path, **shapes), tmp_path / "out.bpk", rules={"^m$": kind})
    assert done.tensors and not done.notes


@pytest.mark.parametrize("kind", ["LayerNorm", "GroupNorm", "InstanceNorm1d", "BatchNorm1d"])
def test_a_bias_without_a_weight_is_refused_also_where_a_rename_took_it_away(kind: str, tmp_path: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = {"weight": (3,), "bias": (3,)}
    if kind == "BatchNorm1d":
        shapes |= {"running_mean": (3,), "running_var": (3,)}
    source = of_shapes(tmp_path, **shapes)
    with pytest.raises(ModelError, match=f"{kind} has a bias but no weight, and nothing declares"):
        bs.convert(source, tmp_path / "out.bpk", rename={"m.weight": "other"}, rules={"^m$": kind, "^$": "AsIs"})
    kept = bs.convert(
        source, tmp_path / "out.bpk", filter=lambda name: "bias" in name or "beta" in name, rules={"^m$": kind}
    )
    assert kept.tensors == 1 and not kept.notes


def test_half_of_the_running_statistics_are_refused(tmp_path: Path) -> None:
    for name in ("running_mean", "running_var"):
        source = of_shapes(tmp_path, weight=(3,), bias=(3,), **{name: (3,)})
        with pytest.raises(ModelError, match="it has one of running_mean and running_var"):
            bs.convert(source, tmp_path / "out.bpk", rules={"^m$": "BatchNorm1d"})


def test_a_file_given_as_like_in_the_other_layout_must_have_every_tensor_of_the_source(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    bs.save(model, tmp_path / "like.bpk")
    source = saved(tmp_path, {**model.state_dict(), "extra.w": torch.ones(2)}, format="pt")
    for target in ("out.bpk", "out.safetensors"):
        with pytest.raises(ModelError, match=r"'extra\.w': (it has no counterpart|.*has no such tensor)"):
            bs.convert(source, tmp_path / target, like=tmp_path / "like.bpk")


def test_a_file_of_burns_names_is_not_taken_for_pytorchs(tmp_path: Path) -> None:
    """Its square matrix may be transposed, which allow_partial would hide."""
    names = {"norm.gamma": torch.ones(3), "norm.beta": torch.ones(3), "fc.weight": torch.arange(9.0).reshape(3, 3)}
    source = saved(tmp_path, {**names, "fc.bias": torch.ones(3)})
    model = nn.Module()
    model.norm, model.fc = nn.LayerNorm(3), nn.Linear(3, 3)
    with pytest.raises(ModelError, match="this name is Burn's: matrices may be transposed"):
        bs.load(model, source, allow_partial=True)
    bs.load(model, source, layout="burn")
    assert torch.equal(model.fc.weight, names["fc.weight"].T)
    assert bs.load(model, source, layout="torch", allow_partial=True).missing == ["norm.bias", "norm.weight"]
    assert torch.equal(model.fc.weight, names["fc.weight"])
    alone = saved(tmp_path, {"gamma": torch.ones(3), "fc.weight": names["fc.weight"], "fc.bias": torch.ones(3)})
    model.norm = None
    model.gamma = nn.Parameter(torch.zeros(3))  # a parameter of the user's with this name
    bs.load(model, alone)
    assert np.array_equal(model.gamma.detach(), np.ones(3))


def test_convert_groups_modules_of_unknown_kind_by_class(tmp_path: Path) -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 3))

    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.ones(2))
            self.fc = nn.Linear(2, 3)

    model = nn.Sequential(First(), First(), Second(), nn.ReLU(), Second())
    expected = [
        "copied unchanged, modules of class First of unknown kind: '0.w', '1.w'",
        "copied unchanged, modules of class Second of unknown kind: '2.q', '4.q'",
    ]
    bs.save(model, tmp_path / "a.safetensors")
    assert bs.convert(tmp_path / "a.safetensors", tmp_path / "b.bpk", like=model).notes == expected
    assert list(bs.save(model, tmp_path / "c.bpk").notes) == expected
    back = bs.convert(tmp_path / "c.bpk", tmp_path / "d.safetensors", like=model, target_layout="torch")
    assert [note.split(":")[0] for note in back.notes] == [note.split(":")[0] for note in expected]


def test_a_filter_for_tensors_that_cannot_be_made_says_why_they_are_not_there(tmp_path: Path) -> None:
    bs.save(nn.GRU(1, 2), tmp_path / "whole.bpk")
    with bs.open(tmp_path / "whole.bpk") as f:
        parts = {name: f[name].numpy() for name in f if name != "update_gate.hidden_transform.bias"}
    bs.save({f"gru.{name}": value for name, value in parts.items()}, tmp_path / "a.bpk", layout="burn")
    for filter in (None, [r"weight_hh_l0$"]):
        with pytest.raises(ModelError, match=r"without update_gate\.hidden_transform\.bias"):
            bs.convert(tmp_path / "a.bpk", tmp_path / "b.pt", rules={"^gru$": "GRU"}, filter=filter)


@pytest.mark.parametrize("layout", ["torch", "burn"])
def test_a_tensor_that_the_filter_leaves_out_may_differ_from_like(tmp_path: Path, layout: str) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.MultiheadAttention(4, 2))
    other = nn.Sequential(nn.Linear(5, 3), nn.MultiheadAttention(4, 2))
    bs.save(model, tmp_path / "a.bpk", layout="torch")
    target = tmp_path / ("b.pt" if layout == "torch" else "b.bpk")
    done = bs.convert(tmp_path / "a.bpk", target, like=other, filter=[r"^1\."])
    assert done.tensors == (4 if layout == "torch" else 8)
    with pytest.raises(ModelError, match="given as like"):
        bs.convert(tmp_path / "a.bpk", target, like=other, filter=[r"^0\."], overwrite=True)
    other[1] = nn.MultiheadAttention(8, 2)
    with pytest.raises(ModelError, match="given as like"):
        bs.convert(tmp_path / "a.bpk", target, like=other, filter=[r"^1\."], overwrite=True)
