"""PyTorch → Burn → PyTorch is bit-equal, and what is written is what the same model declared in Burn would write."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import burnstore as bs
from burnstore import nn as burn

from .case import Case, Custom, TorchModel, bits, contents, kept, randomised
from .plain_cases import PLAIN_CASES
from .structural_cases import STRUCTURAL_CASES

CASES = [*PLAIN_CASES, *STRUCTURAL_CASES]
pytestmark = [pytest.mark.matrix(every=8), pytest.mark.filterwarnings("ignore::burnstore.errors.BurnstoreWarning")]
each_case = pytest.mark.parametrize("case", CASES, ids=repr)


def shown(snapshots: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(snapshot.path, tuple(snapshot.shape)) for snapshot in snapshots]


# --- every kind -------------------------------------------------------------------------------------------------------


@each_case
def test_there_and_back_is_bit_equal(case: Case, tmp_path: Path) -> None:
    model, other = case.torch_model(), case.torch_model(seed=1)
    bs.save(model, tmp_path / "m.bpk", durable=False)
    result = bs.load(other, tmp_path / "m.bpk")
    assert result.is_complete and not result.unused and not result.skipped
    assert bits(other) == bits(model)
    assert result.applied == list(bits(model))


@each_case
def test_the_root_of_a_model_may_be_the_module_itself(case: Case) -> None:
    model, other = case.torch_model().m, case.torch_model(seed=1).m
    result = bs.load(other, bs.serialize(model, format="burnpack"))
    assert result.is_complete and not result.unused
    assert bits(other) == bits(model)


@each_case
def test_a_model_without_memory_is_filled(case: Case) -> None:
    model, empty = case.torch_model(), case.torch_model(seed=1).to("meta")
    result = bs.load(empty, bs.serialize(model, format="burnpack"))
    assert result.is_complete and not result.unused
    assert bits(empty) == bits(model)


@pytest.mark.parametrize("case", [case for case in CASES if "BatchNorm" in case.name], ids=repr)
def test_a_counter_that_no_file_tells_is_left_and_noted(case: Case, tmp_path: Path) -> None:
    model, other = case.torch_model(), case.torch_model(seed=1)
    counted = int(other.m.num_batches_tracked)
    bs.save(model, tmp_path / "m.bpk", durable=False, pipeline=bs.Pipeline(record_modules=False))
    result = bs.load(other, tmp_path / "m.bpk")
    assert result.is_complete and not result.unused
    assert kept(other) == kept(model)
    assert int(other.m.num_batches_tracked) == counted != int(model.m.num_batches_tracked)
    assert "m.num_batches_tracked" not in result.applied
    assert any("'m.num_batches_tracked'" in note for note in result.notes)


@each_case
def test_a_torch_module_is_written_as_its_declaration_would_be(case: Case, tmp_path: Path) -> None:
    bs.save(case.torch_model(), tmp_path / "m.bpk", durable=False)
    with bs.open(tmp_path / "m.bpk") as written:
        assert shown(written.values()) == shown(bs.collect(case.burn_model()))


with_torch_tensors = pytest.mark.parametrize(
    "case", [case for case in CASES if case.torch_model().state_dict()], ids=repr
)


@with_torch_tensors
def test_a_torch_file_goes_into_the_declaration_and_back(case: Case, tmp_path: Path) -> None:
    """From the other side: the file is PyTorch's, and it is Burn's model that is seen in another layout."""
    model = case.torch_model()
    bs.save(model, tmp_path / "burn.bpk", durable=False)
    bs.save(model, tmp_path / "torch.bpk", layout="torch", durable=False)
    assert list(contents(tmp_path / "torch.bpk")) == list(model.state_dict())
    declared = case.burn_model(seed=1)
    result = bs.load(declared, tmp_path / "torch.bpk", allow_partial=bool(case.constants))
    assert not result.unused
    as_burn = contents(tmp_path / "burn.bpk")
    for tensor in bs.collect(declared):
        np.testing.assert_array_equal(tensor.numpy(), as_burn[tensor.path], err_msg=tensor.path)


def is_of_another_shape(case: Case) -> bool:
    """Whether PyTorch's module puts together what a declaration has apart, or the other way round.

    A list of Lstm may be a list there, too, and a norm beside an encoder a norm beside it: a declaration does not tell.
    """
    words = ("layers", "cell", "-last", "Transformer-p", "separate")
    return any(word in case.name for word in words)


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.constants and not is_of_another_shape(case)], ids=repr
)
def test_a_declaration_saved_in_torch_layout_is_a_torch_file(case: Case, tmp_path: Path) -> None:
    declared = case.burn_model()
    bs.save(declared, tmp_path / "burn.bpk", durable=False)
    bs.save(declared, tmp_path / "torch.bpk", layout="torch", durable=False)
    through_burn, through_torch = case.torch_model(seed=1), case.torch_model(seed=1)
    bs.load(through_burn, tmp_path / "burn.bpk")
    result = bs.load(through_torch, tmp_path / "torch.bpk")
    assert result.is_complete and not result.unused
    assert kept(through_torch) == kept(through_burn)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if is_of_another_shape(case) and not re.search("grouped|one-key|wide", case.name)],
    ids=repr,
)
def test_a_declaration_of_another_shape_is_never_taken_in_part(case: Case, tmp_path: Path) -> None:
    bs.save(case.burn_model(), tmp_path / "torch.bpk", layout="torch", durable=False)
    model = case.torch_model(seed=1)
    before = bits(model)
    with pytest.raises(bs.errors.MissingTensorsError):
        bs.load(model, tmp_path / "torch.bpk")
    assert bits(model) == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_go_there_and_back_too(dtype: torch.dtype, tmp_path: Path) -> None:
    def made(seed: int) -> nn.Module:
        parts = nn.ModuleList([nn.Linear(3, 5), nn.LSTM(3, 4), nn.MultiheadAttention(4, 2), nn.LayerNorm(4)])
        return randomised(TorchModel(parts), seed).to(dtype)

    model, other = made(0), made(1)
    bs.save(model, tmp_path / "m.bpk", durable=False)
    bs.load(other, tmp_path / "m.bpk")
    assert bits(other) == bits(model)


# --- what an output does not show, by bytes ---------------------------------------------------------------------------


def test_the_key_bias_is_the_second_third_of_the_fused_bias(tmp_path: Path) -> None:
    model = randomised(TorchModel(nn.MultiheadAttention(4, 2)))
    bs.save(model, tmp_path / "m.bpk", durable=False)
    fused = model.m.in_proj_bias.detach().numpy()
    found = contents(tmp_path / "m.bpk")
    for part, name in enumerate(("query", "key", "value")):
        np.testing.assert_array_equal(found[f"m.{name}.bias"], fused[4 * part : 4 * part + 4])


@pytest.mark.parametrize(
    ("kind", "gates"),
    [
        (nn.LSTM, ["input_gate", "forget_gate", "cell_gate", "output_gate"]),
        (nn.GRU, ["reset_gate", "update_gate", "new_gate"]),
        (nn.RNN, ["gate"]),
    ],
)
def test_the_two_biases_of_a_gate_stay_apart(kind: Any, gates: list[str], tmp_path: Path) -> None:
    model = randomised(TorchModel(kind(3, 5)))
    bs.save(model, tmp_path / "m.bpk", durable=False)
    found = contents(tmp_path / "m.bpk")
    for part, gate in enumerate(gates):
        rows = slice(5 * part, 5 * part + 5)
        np.testing.assert_array_equal(found[f"m.{gate}.input_transform.bias"], model.m.bias_ih_l0.detach()[rows])
        np.testing.assert_array_equal(found[f"m.{gate}.hidden_transform.bias"], model.m.bias_hh_l0.detach()[rows])


def test_a_bias_that_burn_leaves_out_becomes_zeros_in_the_fused_one(tmp_path: Path) -> None:
    class Net(burn.Module):
        def __init__(self) -> None:
            self.m = burn.MultiHeadAttention(4, 2, key_bias=False, output_bias=False)

    declared = Net()
    for name in ("query", "value"):
        getattr(declared.m, name).bias.set(np.full(4, 2.0, np.float32))
    bs.save(declared, tmp_path / "m.bpk", durable=False)
    model = randomised(TorchModel(nn.MultiheadAttention(4, 2)))
    assert bs.load(model, tmp_path / "m.bpk").is_complete
    assert model.m.in_proj_bias.tolist() == [2.0] * 4 + [0.0] * 4 + [2.0] * 4
    assert model.m.out_proj.bias.tolist() == [0.0] * 4


# --- ties and structure -----------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(count, 4)
        self.head = nn.Linear(4, count, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("count", [7, 4], ids=["oblong", "square"])
def test_a_tied_head_is_written_in_both_forms_and_stays_tied(count: int, tmp_path: Path) -> None:
    model, other = randomised(Tied(count)), randomised(Tied(count), 1)
    bs.save(model, tmp_path / "m.bpk", durable=False)
    found = contents(tmp_path / "m.bpk")
    np.testing.assert_array_equal(found["embed.weight"], model.embed.weight.detach())
    np.testing.assert_array_equal(found["head.weight"], model.embed.weight.detach().T)
    bs.load(other, tmp_path / "m.bpk")
    assert other.head.weight is other.embed.weight
    assert bits(other) == bits(model)


def test_forms_of_a_tied_head_that_differ_are_refused(tmp_path: Path) -> None:
    model, other = randomised(Tied(4)), randomised(Tied(4), 1)
    values = model.embed.weight.detach().numpy()
    bs.save({"embed.weight": values, "head.weight": values}, tmp_path / "m.bpk", durable=False, layout="burn")
    before = bits(other)
    with pytest.raises(bs.errors.LoadError, match=r"embed\.weight"):
        bs.load(other, tmp_path / "m.bpk")
    assert bits(other) == before


class Stack(nn.Module):
    """Sequences with gaps, in lists, dicts and each other."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Identity(),
            nn.Linear(3, 3),
            nn.ReLU(),
            nn.Dropout(),
            nn.Sequential(nn.ReLU(), nn.Conv1d(3, 3, 1), nn.Tanh(), nn.PReLU()),
            nn.Flatten(),
            nn.BatchNorm1d(3),
        )
        self.heads = nn.ModuleList([nn.Dropout(), nn.Linear(3, 2), nn.ModuleList([nn.ReLU(), nn.Linear(2, 2)])])
        self.named = nn.ModuleDict({"left": nn.Linear(2, 2), "5": nn.LayerNorm(2)})
        self.many = nn.Sequential(*itertools.chain.from_iterable((nn.Linear(1, 1), nn.ReLU()) for _ in range(12)))


def test_indices_are_those_of_a_vec_which_has_no_gaps(tmp_path: Path) -> None:
    model, other = randomised(Stack()), randomised(Stack(), 1)
    bs.save(model, tmp_path / "m.bpk", durable=False)
    found = contents(tmp_path / "m.bpk")
    assert list(found) == [
        "net.0.weight",
        "net.0.bias",
        "net.1.0.weight",
        "net.1.0.bias",
        "net.1.1.alpha",
        "net.2.gamma",
        "net.2.beta",
        "net.2.running_mean",
        "net.2.running_var",
        "heads.0.weight",
        "heads.0.bias",
        "heads.1.0.weight",
        "heads.1.0.bias",
        "named.left.weight",
        "named.left.bias",
        "named.5.gamma",
        "named.5.beta",
        *(f"many.{place}.{name}" for place in range(12) for name in ("weight", "bias")),
    ]
    np.testing.assert_array_equal(found["many.11.weight"], model.many[22].weight.detach().T)
    result = bs.load(other, tmp_path / "m.bpk")
    assert result.is_complete and not result.unused
    assert kept(other) == kept(model)


def test_plain_parameters_pass_as_they_are_and_the_result_says_whose(tmp_path: Path) -> None:
    model, other = randomised(TorchModel(Custom())), randomised(TorchModel(Custom()), 1)
    bs.save(model, tmp_path / "m.bpk", durable=False)
    found = contents(tmp_path / "m.bpk")
    for name in ("scale", "weight", "table", "listed.0", "listed.1", "by_name.a"):
        np.testing.assert_array_equal(found[f"m.{name}"], model.state_dict()[f"m.{name}"])
    np.testing.assert_array_equal(found["m.inner.weight"], model.m.inner.weight.detach().T)
    result = bs.load(other, tmp_path / "m.bpk")
    assert bits(other) == bits(model)
    [note] = [note for note in result.notes if "copied unchanged" in note]
    assert "'m.scale'" in note and "m.inner" not in note


class Derived(nn.Linear):
    """A layer of one's own that is a Linear."""


def test_a_class_derived_from_a_layer_has_its_layout(tmp_path: Path) -> None:
    model = randomised(TorchModel(Derived(3, 3)))
    bs.save(model, tmp_path / "m.bpk", durable=False)
    np.testing.assert_array_equal(contents(tmp_path / "m.bpk")["m.weight"], model.m.weight.detach().T)


def test_a_norm_that_burn_fills_takes_its_place_in_a_sequence(tmp_path: Path) -> None:
    def made(seed: int) -> nn.Module:
        bare = nn.LayerNorm(3, elementwise_affine=False)
        return randomised(TorchModel(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), bare, nn.Linear(3, 3))), seed)

    model, other = made(0), made(1)
    bs.save(model, tmp_path / "m.bpk", durable=False)
    found = contents(tmp_path / "m.bpk")
    assert list(found) == ["m.0.weight", "m.0.bias", "m.1.gamma", "m.1.beta", "m.2.weight", "m.2.bias"]
    assert found["m.1.gamma"].tolist() == [1.0] * 3 and found["m.1.beta"].tolist() == [0.0] * 3
    assert not bs.load(other, tmp_path / "m.bpk").unused
    assert bits(other) == bits(model)


def test_the_last_norm_of_an_encoder_in_a_list_has_a_name_that_burn_can_have(tmp_path: Path) -> None:
    def encoder() -> nn.Module:
        layer = nn.TransformerEncoderLayer(4, 2, 6)
        return nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(4), enable_nested_tensor=False)

    try:
        bs.save(nn.ModuleList([encoder(), encoder()]), tmp_path / "m.bpk", durable=False)
    except bs.errors.ModelError:
        return
    for path in contents(tmp_path / "m.bpk"):
        assert all(segment.isdecimal() or segment.isidentifier() for segment in path.split(".")), path


# --- LinearLayout::Col ------------------------------------------------------------------------------------------------


class Column(burn.Module):
    def __init__(self) -> None:
        self.m = burn.Linear(4, 4, layout="Col")


class Row(burn.Module):
    def __init__(self) -> None:
        self.m = burn.Linear(4, 4)


@pytest.mark.parametrize(("declared", "turned"), [(Column, False), (Row, True)])
def test_a_square_linear_is_transposed_unless_its_layout_is_col(declared: Any, turned: bool, tmp_path: Path) -> None:
    model = randomised(TorchModel(nn.Linear(4, 4)))
    weight = model.m.weight.detach().numpy()
    bs.save(model, tmp_path / "torch.bpk", layout="torch", durable=False)
    target = declared()
    bs.load(target, tmp_path / "torch.bpk")
    np.testing.assert_array_equal(target.m.weight.value, weight.T if turned else weight)
    bs.save(target, tmp_path / "back.bpk", layout="torch", durable=False)
    other = randomised(TorchModel(nn.Linear(4, 4)), 1)
    bs.load(other, tmp_path / "back.bpk")
    assert bits(other) == bits(model)


# --- SafeTensors ------------------------------------------------------------------------------------------------------

SAFE_CASES = [
    case
    for case in CASES
    if case.name.endswith(("3x5", "affine", "plain", "-self", "last", "relu")) and case.torch_model().state_dict()
]


@pytest.mark.parametrize("case", SAFE_CASES, ids=repr)
def test_safetensors_of_a_torch_model_go_into_a_declaration(case: Case, tmp_path: Path) -> None:
    model = case.torch_model()
    bs.save(model, tmp_path / "m.safetensors", durable=False)
    with bs.open(tmp_path / "m.safetensors") as checkpoint:
        assert checkpoint.layout == "torch"
        assert set(checkpoint) == set(model.state_dict())
    bs.save(model, tmp_path / "m.bpk", durable=False)
    declared = case.burn_model(seed=1)
    bs.load(declared, tmp_path / "m.safetensors", allow_partial=bool(case.constants))
    wanted = contents(tmp_path / "m.bpk")
    for tensor in bs.collect(declared):
        np.testing.assert_array_equal(tensor.numpy(), wanted[tensor.path], err_msg=tensor.path)
