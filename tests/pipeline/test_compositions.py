"""Compositions that the oracle of tests/compose found wrong once, each as a small test."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import nn
from burnstore.stores.records import BinFileRecorder, save_file


class Net(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.act = nn.PRelu()


class Norms(nn.Module):
    def __init__(self) -> None:
        self.bn = nn.BatchNorm(4)


def named(path: Path) -> dict[str, Any]:
    with bs.open(path) as file:
        return {name: file[name].numpy() for name in file}


# --- like -------------------------------------------------------------------------------------------------------------


def test_a_burn_file_gets_all_of_torchs_names_when_like_is_a_burn_model(tmp_path: Path) -> None:
    bs.save(Net(), tmp_path / "a.bpk")
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", target_layout="torch", like=Net())
    made = named(tmp_path / "b.safetensors")
    assert set(made) == {"fc.weight", "fc.bias", "norm.weight", "norm.bias", "act.weight"}
    assert made["fc.weight"].shape == (4, 3)


def test_like_of_the_other_layout_refuses_tensors_that_it_does_not_have(tmp_path: Path) -> None:
    bs.save({"0.weight": np.ones((2, 2), "f4"), "1.weight": np.ones(2, "f4")}, tmp_path / "a.bpk", layout="burn")
    like = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
    with pytest.raises(bs.errors.ModelError, match=r"1\.weight.*has no such tensor"):
        bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", like=like)


def test_like_of_the_other_layout_does_not_ask_for_counters_that_burn_lacks(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    bs.save(model, tmp_path / "a.bpk")
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", like=model, cast="f64")
    assert named(tmp_path / "b.bpk")["0.gamma"].dtype == np.float64


def test_ties_of_like_add_no_tensors_to_a_file_in_the_other_layout(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False))
    model[2].weight = model[0].weight
    bs.save(model, tmp_path / "a.bpk")
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", like=model, cast="f64")
    assert set(named(tmp_path / "b.bpk")) == {"0.weight", "1.weight"}


def test_like_refuses_values_in_a_tensor_that_it_does_not_have(tmp_path: Path) -> None:
    like = torch.nn.Sequential(torch.nn.BatchNorm1d(2, affine=False))
    for scale in (1, 3):
        numbers = {"gamma": scale, "beta": 0, "running_mean": 1, "running_var": 1}
        tensors = {f"0.{name}": np.full(2, number, "f4") for name, number in numbers.items()}
        bs.save(tensors, tmp_path / f"{scale}.bpk", layout="burn")
    bs.convert(tmp_path / "1.bpk", tmp_path / "b.bpk", like=like)
    with pytest.raises(bs.errors.ModelError, match=r"0\.gamma.*not all 1"):
        bs.convert(tmp_path / "3.bpk", tmp_path / "c.bpk", like=like, filter="mean")


# --- counters ---------------------------------------------------------------------------------------------------------


def test_a_counter_that_burn_does_not_have_is_noted() -> None:
    saved = bs.serialize(torch.nn.ModuleDict({"bn": torch.nn.BatchNorm1d(4)}), format="safetensors")
    result = bs.load(Norms(), saved)
    assert result.notes == ["Burn has no 'bn.num_batches_tracked': not loaded"]


def test_a_recorded_counter_obeys_the_filter() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    model[0].num_batches_tracked.fill_(7)
    other = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    result = bs.load(other, bs.serialize(model, format="burnpack"), filter="weight")
    assert int(other[0].num_batches_tracked) == 0 and "0.num_batches_tracked" in result.skipped


def test_a_counter_that_starts_at_zero_is_noted(tmp_path: Path) -> None:
    saved = bs.save(Norms(), tmp_path / "a.safetensors", layout="torch")
    assert any("'bn.num_batches_tracked'" in note for note in saved.notes)
    bs.save(Norms(), tmp_path / "a.bpk")
    done = bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", target_layout="torch", rules={"bn": "BatchNorm"})
    assert any("'bn.num_batches_tracked'" in note for note in done.notes)


# --- rules and guesses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["BatchNorm", "BatchNorm1d"])
def test_rules_name_kinds_in_the_words_of_either_framework(tmp_path: Path, kind: str) -> None:
    torch_model = torch.nn.ModuleDict({"bn": torch.nn.BatchNorm1d(4)})
    bs.save(Norms(), tmp_path / "burn.bpk")
    bs.save(torch_model, tmp_path / "recorded.bpk")
    bs.save(torch_model, tmp_path / "torch.safetensors")
    for source in ("burn.bpk", "recorded.bpk"):
        bs.convert(tmp_path / source, tmp_path / "b.bpk", target_layout="torch", rules={"bn": kind}, overwrite=True)
        assert "bn.weight" in named(tmp_path / "b.bpk")
    bs.convert(tmp_path / "torch.safetensors", tmp_path / "c.bpk", rules={"bn": kind})
    assert "bn.gamma" in named(tmp_path / "c.bpk")


def test_a_rule_that_names_no_kind_is_refused_for_burn_files_too(tmp_path: Path) -> None:
    bs.save(Norms(), tmp_path / "burn.bpk")
    with pytest.raises(bs.errors.ModelError, match="Norm3 is not a kind"):
        bs.convert(tmp_path / "burn.bpk", tmp_path / "b.bpk", target_layout="torch", rules={"bn": "Norm3"})


def test_a_transposed_convolution_can_be_guessed(tmp_path: Path) -> None:
    tensors = {"up.weight": np.ones((1, 4, 2), "f4"), "up.bias": np.ones(4, "f4")}
    bs.save(tensors, tmp_path / "a.safetensors", layout="torch")
    bs.convert(tmp_path / "a.safetensors", tmp_path / "b.bpk", guess=True)
    assert set(named(tmp_path / "b.bpk")) == set(tensors)


@pytest.mark.parametrize("kind", ["GroupNorm", "InstanceNorm1d", "LayerNorm", "BatchNorm1d"])
def test_a_norm_with_a_bias_alone_is_refused(tmp_path: Path, kind: str) -> None:
    tensors = {"n.bias": np.ones(4, "f4"), "n.running_mean": np.ones(4, "f4"), "n.running_var": np.ones(4, "f4")}
    tensors = tensors if kind == "BatchNorm1d" else {"n.bias": tensors["n.bias"]}
    bs.save(tensors, tmp_path / "a.safetensors", layout="torch")
    with pytest.raises(bs.errors.ModelError, match="has a bias but no weight"):
        bs.convert(tmp_path / "a.safetensors", tmp_path / "b.bpk", rules={"n": kind})


def test_a_filter_does_not_change_what_is_guessed(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(2, 3)})
    bs.save(model, tmp_path / "a.safetensors")
    bs.convert(tmp_path / "a.safetensors", tmp_path / "b.bpk", guess=True, filter="bias")
    assert "rnn.input_gate.input_transform.bias" in named(tmp_path / "b.bpk")


def test_kinds_that_nothing_needs_do_not_stop_a_function(tmp_path: Path) -> None:
    bs.save(Norms(), tmp_path / "a.bpk")
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", adapter=lambda snapshot: snapshot, guess=True)
    assert len(named(tmp_path / "b.bpk")) == 4


def test_a_rule_that_matches_no_module_is_refused_by_every_verb(tmp_path: Path) -> None:
    rules = {"absent": "Linear"}
    bs.save(Norms(), tmp_path / "a.bpk")
    for act in (
        lambda: bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", rules=rules),
        lambda: bs.load(Norms(), tmp_path / "a.bpk", rules=rules),
        lambda: bs.save(Norms(), tmp_path / "c.bpk", rules=rules),
        lambda: bs.merge([tmp_path / "a.bpk"], tmp_path / "d.bpk", rules=rules),
        lambda: bs.diff(tmp_path / "a.bpk", Norms(), rules=rules),
        lambda: bs.BurnpackStore.from_bytes(None).rules(rules).save(Norms()),
        lambda: bs.BurnpackStore.from_file(tmp_path / "a.bpk").rules(rules).load(Norms()),
    ):
        with pytest.raises(bs.errors.PatternError, match="matched no module"):
            act()


# --- parts of fused modules -------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        self.mha = nn.MultiHeadAttention(4, 2)


@pytest.mark.parametrize("kept", [[r"key\.bias$"], [r"key\.bias$", r"weight$"]])
def test_no_zeros_stand_for_biases_that_a_filter_leaves_out(tmp_path: Path, kept: list[str]) -> None:
    with pytest.raises(bs.errors.ModelError, match=r"in_proj_bias|query\.bias"):
        bs.save(Attention(), tmp_path / "a.safetensors", layout="torch", filter=kept)


def test_no_zeros_stand_for_a_bias_whose_weight_is_not_there_either(tmp_path: Path) -> None:
    bs.save({"0.key.bias": np.ones(4, "f4")}, tmp_path / "a.bpk", layout="burn")
    model = torch.nn.Sequential(torch.nn.MultiheadAttention(4, 2))
    before = model[0].in_proj_bias.detach().clone()
    bs.load(model, tmp_path / "a.bpk", allow_partial=True, allow_empty=True)
    assert torch.equal(model[0].in_proj_bias, before)


@pytest.mark.parametrize("kind", ["MultiheadAttention", "CrossAttention"])
@pytest.mark.parametrize("absent", [("key.bias", "output.weight"), ("query.weight", "query.bias")])
def test_an_attention_of_a_burn_file_without_a_weight_is_refused(
    tmp_path: Path, kind: str, absent: tuple[str, ...]
) -> None:
    names = [f"{part}.{name}" for part in ("query", "key", "value", "output") for name in ("weight", "bias")]
    shapes = {name: (4, 4) if name.endswith("weight") else (4,) for name in names if name not in absent}
    bs.save({f"a.{name}": np.ones(shape, "f4") for name, shape in shapes.items()}, tmp_path / "a.bpk", layout="burn")
    with pytest.raises(bs.errors.ModelError, match=absent[0].replace(".", r"\.")):
        bs.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", target_layout="torch", rules={"^a$": kind})


def test_zeros_for_a_bias_that_a_burn_file_leaves_out_are_noted(tmp_path: Path) -> None:
    bs.save(torch.nn.Sequential(torch.nn.MultiheadAttention(4, 2)), tmp_path / "a.bpk")
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", filter=r"(?<!value\.bias)$")
    done = bs.load(torch.nn.Sequential(torch.nn.MultiheadAttention(4, 2)), tmp_path / "b.bpk")
    assert any("filled with constants" in note and "0.value.bias" in note for note in done.notes)


def test_the_output_of_an_attention_is_loaded_without_its_inputs() -> None:
    weight = np.arange(16, dtype="f4").reshape(4, 4)
    model = Attention()
    done = bs.load(model, bs.serialize({"mha.out_proj.weight": weight}, format="safetensors"), allow_partial=True)
    assert np.array_equal(model.mha.output.weight.value, weight.T)
    assert any("PyTorch's" in note for note in done.notes)


@pytest.mark.parametrize("lost", ["weight_ih_l0", "weight_ih_l1", "weight_ih_l0_reverse"])
def test_the_layers_of_a_recurrent_module_are_found_without_one_of_its_tensors(tmp_path: Path, lost: str) -> None:
    whole = {
        name: each.detach().numpy() for name, each in torch.nn.LSTM(3, 2, 2, bidirectional=True).named_parameters()
    }
    for name, tensors in (("whole", whole), ("part", {name: each for name, each in whole.items() if name != lost})):
        source = tmp_path / f"{name}.safetensors"
        bs.save({f"up.{name}": each for name, each in tensors.items()}, source, layout="torch")
        bs.convert(source, tmp_path / f"{name}.bpk", rules={"^up$": "LSTM"})
    made, part = named(tmp_path / "whole.bpk"), named(tmp_path / "part.bpk")
    assert len(part) == len(made) - 4
    assert all(np.array_equal(made[name], each) for name, each in part.items())


def test_a_recurrent_module_without_a_whole_layer_is_refused(tmp_path: Path) -> None:
    bs.save({"up.weight_hh_l1": np.ones((8, 2), "f4")}, tmp_path / "a.safetensors", layout="torch")
    with pytest.raises(bs.errors.ModelError, match="weight_hh_l1 has no place"):
        bs.convert(tmp_path / "a.safetensors", tmp_path / "b.bpk", rules={"^up$": "LSTM"})


@pytest.mark.parametrize(
    ("kind", "tensors", "message"),
    [
        ("GRU", {"weight_hh_l0": (6, 2), "weight_ih_l0": (6,)}, "a weight_ih_l0 with 2 axes"),
        ("GRU", {"weight_hh_l0": (6, 2), "bias_ih_l0": (6, 4)}, "a bias_ih_l0 with 1 axis"),
        ("MultiheadAttention", {"in_proj_weight": (6,), "out_proj.weight": (2, 2)}, "an? in_proj_weight with 2 axes"),
    ],
)
def test_a_weight_that_is_no_matrix_is_refused(tmp_path: Path, kind: str, tensors: Any, message: str) -> None:
    bs.save({f"m.{name}": np.ones(shape, "f4") for name, shape in tensors.items()}, tmp_path / "a.bpk", layout="torch")
    with pytest.raises(bs.errors.ModelError, match=message):
        bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", rules={"^m$": kind}, target_layout="burn")


# --- objects in PyTorch files -----------------------------------------------------------------------------------------


class Pair:
    """An object whose state is a pair of dicts that share a key."""

    def __init__(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.held = first, second

    def __getstate__(self) -> Any:
        return self.held

    def __setstate__(self, state: Any) -> None:
        self.held = state


def test_a_state_of_two_dicts_that_share_a_key_keeps_both_values(tmp_path: Path) -> None:
    pair = Pair({"k": torch.ones(1), "x": torch.zeros(1)}, {"k": torch.full((1,), 2.0)})
    torch.save({"a": pair, "b": torch.full((1,), 3.0)}, tmp_path / "a.pt")
    found = {name: each.item() for name, each in named(tmp_path / "a.pt").items()}
    assert found == {"a.state.0.k": 1, "a.state.0.x": 0, "a.state.1.k": 2, "b": 3}


# --- parts, records and layouts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "absent", "unused"),
    [
        (torch.nn.MultiheadAttention(4, 2), "0.key.weight", {"0.query.weight", "0.value.weight"}),
        (
            torch.nn.LSTM(3, 4),
            "0.forget_gate.input_transform.weight",
            {f"0.{gate}_gate.input_transform.weight" for gate in ("input", "output", "cell")},
        ),
    ],
)
def test_the_parts_of_a_fused_tensor_that_cannot_be_made_are_unused(
    layer: torch.nn.Module, absent: str, unused: set[str], tmp_path: Path
) -> None:
    model = torch.nn.Sequential(layer)
    bs.save(model, tmp_path / "whole.bpk")
    with bs.open(tmp_path / "whole.bpk") as file:
        bs.save([each for each in file.values() if each.path != absent], tmp_path / "part.bpk")
    result = bs.load(model, tmp_path / "part.bpk", allow_partial=True)
    assert set(result.unused) == unused
    assert len(result.missing) == 1


def test_the_parts_of_a_tensor_that_the_filter_leaves_out_need_no_counterpart(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.LSTM(3, 4), torch.nn.Linear(4, 2))
    bs.save(model, tmp_path / "whole.bpk")
    with bs.open(tmp_path / "whole.bpk") as file:
        rest = [each for each in file.values() if each.path != "0.forget_gate.input_transform.bias"]
        bs.save(rest, tmp_path / "part.bpk")
    # Parts of 0.bias_ih_l0 end in "bias" in Burn's file, and torch's tensor does not.
    bs.convert(tmp_path / "part.bpk", tmp_path / "kept.safetensors", like=model, target_layout="torch", filter="bias$")
    with bs.open(tmp_path / "kept.safetensors") as file:
        assert list(file) == ["1.bias"]
    with pytest.raises(bs.errors.ModelError, match=r"cannot be made: 0\.forget_gate\.input_transform\.bias is missing"):
        bs.convert(tmp_path / "part.bpk", tmp_path / "no.safetensors", like=model, target_layout="torch", filter="bias")


def test_a_conversion_of_a_binary_record_hints_at_migrate(tmp_path: Path) -> None:
    save_file(Net(), tmp_path / "old", BinFileRecorder())
    with pytest.raises(bs.errors.BurnstoreError) as caught:
        bs.convert(tmp_path / "old.bin", tmp_path / "new.bpk", like=Net())
    assert "burnstore.migrate(old, new, like=Model())" in (caught.value.hint or "")


@pytest.mark.parametrize("given", [{"fc": {"weight": np.eye(2)}}, [{"weight": np.eye(2)}], {"a": [np.eye(2), None]}])
def test_arrays_in_nested_containers_have_no_stated_layout(given: Any, tmp_path: Path) -> None:
    assert bs.save(given, tmp_path / "a.bpk").layout is None
    with bs.open(tmp_path / "a.bpk") as file:
        assert file.layout is None
    assert bs.save(given, tmp_path / "b.bpk", layout="burn").layout == "burn"
    with bs.open(tmp_path / "b.bpk") as file:
        assert file.layout == "burn"
    assert bs.save(given, tmp_path / "c.safetensors").layout is None


@pytest.mark.parametrize("kind", ["model", "file", "rules"])
def test_a_conversion_records_the_counter_of_its_source_and_not_that_of_like(kind: str, tmp_path: Path) -> None:
    source, other = (torch.nn.Sequential(torch.nn.BatchNorm1d(3)) for _ in range(2))
    for model, count in ((source, 5), (other, 77)):
        model[0].num_batches_tracked.fill_(count)
    torch.save(source.state_dict(), tmp_path / "a.pt")
    bs.save(other, tmp_path / "other.bpk")
    options: dict[str, Any] = {
        "model": {"like": other},
        "file": {"like": tmp_path / "other.bpk"},
        "rules": {"rules": {"^0$": "BatchNorm1d"}},
    }[kind]
    bs.convert(tmp_path / "a.pt", tmp_path / "a.bpk", **options)
    with bs.open(tmp_path / "a.bpk") as file:
        assert "num_batches_tracked=5)" in file.metadata["burnstore.modules"]
    bs.convert(tmp_path / "a.bpk", tmp_path / "back.safetensors", target_layout="torch", **options)
    assert named(tmp_path / "back.safetensors")["0.num_batches_tracked"] == 5


# --- casts and notes --------------------------------------------------------------------------------------------------

ZEROED = "cast: values too small for the new dtype became 0 in 'w'"


@pytest.mark.usefixtures("spawning")
def test_values_that_a_cast_makes_0_are_noted_by_every_verb(tmp_path: Path) -> None:
    tensors = {"w": np.float32([1e-20, 1, 0]), "v": np.float32([1, 0, -0.0])}
    path = tmp_path / "a.safetensors"
    assert ZEROED not in bs.save(tensors, path).notes
    assert ZEROED in bs.save(tensors, tmp_path / "b.safetensors", cast="f16").notes
    for number, executor in enumerate((None, 2)):
        target = tmp_path / f"c{number}.safetensors"
        assert ZEROED in bs.convert(path, target, cast="f16", executor=executor).notes
    assert ZEROED not in bs.convert(path, tmp_path / "d.safetensors", cast="bf16").notes
    assert ZEROED in bs.merge([path, path], tmp_path / "e.safetensors", method="linear", cast="f16").notes
    assert ZEROED in bs.load({name: np.zeros(3, np.float32) for name in tensors}, path, cast="f16").notes
    model = torch.nn.Module()
    for name in tensors:
        model.register_buffer(name, torch.zeros(3, dtype=torch.float16))
    assert ZEROED in bs.load(model, path).notes


def test_values_that_a_computing_rule_or_an_adapter_makes_0_are_noted_and_infinite_ones_refused(tmp_path: Path) -> None:
    rules = {"tensors": [{"source": ["g", "v"], "target": "w", "fold_weight_norm": {"axis": 0}}]}
    half = np.float16
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for magnitude, direction, expected in ((1e-5, [3, 1e-4], ZEROED), (1, [3, 4], ""), (1, [0, 0], None)):
        held = {"g": np.array([[magnitude]], half), "v": np.array([direction], half)}
        bs.save(held, path, layout="torch", overwrite=True)
        model = torch.nn.Module()
        model.register_buffer("w", torch.zeros(1, 2, dtype=torch.float16))
        if expected is None:
            with pytest.raises(bs.errors.DTypeError, match="2 results of finite values are too large for F16"):
                bs.convert(path, target, rules=rules, overwrite=True)
            with pytest.raises(bs.errors.LoadError, match="2 results of finite values"):
                bs.load(model, path, rules=rules)
            continue
        notes = bs.convert(path, target, rules=rules, overwrite=True).notes
        assert (ZEROED in notes) == bool(expected)
        assert (ZEROED in bs.load(model, path, rules=rules).notes) == bool(expected)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sums_of_an_adapter_that_become_0_are_noted_and_infinite_ones_refused(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    tiny = 5e-8 if dtype == "float16" else 1e-45  # the smallest number of the dtype
    for base, factor, expected in ((1, 1, ""), (np.finfo(dtype).max, float(np.finfo(dtype).max), None)):
        bs.save({"w.weight": np.full((1, 1), base, dtype)}, tmp_path / "a.safetensors", layout="torch", overwrite=True)
        parts = {f"base_model.model.w.lora_{side}.weight": np.ones((1, 1), np.float32) for side in "AB"}
        parts["base_model.model.w.lora_A.weight"] *= np.float32(factor)
        bs.save(parts, tmp_path / "lora" / "adapter_model.safetensors", layout="torch", overwrite=True)
        merge = functools.partial(
            bs.merge, [tmp_path / "a.safetensors", tmp_path / "lora"], tmp_path / "b.safetensors", method="lora"
        )
        if expected is None:
            with pytest.raises(bs.errors.DTypeError, match="1 result of finite values is too large"):
                merge(overwrite=True)
        else:
            assert not any("became 0" in note for note in merge(overwrite=True).notes)
    if dtype == "float16":
        bs.save({"w.weight": np.full((1, 1), tiny, dtype)}, tmp_path / "a.safetensors", layout="torch", overwrite=True)
        parts["base_model.model.w.lora_A.weight"][:] = -4e-8
        bs.save(parts, tmp_path / "lora" / "adapter_model.safetensors", layout="torch", overwrite=True)
        assert "cast: values too small for the new dtype became 0 in 'w.weight'" in merge(overwrite=True).notes


def test_serialize_warns_of_what_a_result_would_note() -> None:
    tensors = {"w": np.float32([1e-20]), "v": np.float32([1])}
    with pytest.warns(bs.errors.BurnstoreWarning, match="became 0 in 'w'"):
        bs.serialize(tensors, format="burnpack", cast="f16")
    with pytest.warns(bs.errors.BurnstoreWarning, match="left out: a.w"):
        bs.serialize({"a": {"w": None, "v": np.ones(1)}}, format="burnpack")
    bs.serialize(tensors, format="burnpack", filter="v")  # what a filter leaves out was asked for


@pytest.mark.parametrize("kind", ["LayerNorm", "RmsNorm", "BatchNorm"])
@pytest.mark.parametrize("given", [["weight"], ["gamma", "weight"], ["weight", "gamma", "beta"]])
def test_a_norm_of_burn_with_torchs_name_is_refused_and_never_joined(
    given: list[str], kind: str, tmp_path: Path
) -> None:
    names = [*given, "running_mean", "running_var"] if kind == "BatchNorm" else given
    bs.save({f"n.{name}": np.ones(3, np.float32) for name in names}, tmp_path / "a.bpk", layout="burn")
    with pytest.raises(bs.errors.ModelError, match="Burn calls its weight gamma"):
        bs.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", target_layout="torch", rules={"^n$": kind})


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_mapping_swaps_names_in_every_verb(tmp_path: Path) -> None:
    given, swap = {"a": np.zeros(2, "f4"), "b": np.ones(2, "f4")}, {"a": "b", "b": "a"}
    bs.save(given, tmp_path / "m.bpk", layout="burn")
    bs.save(given, tmp_path / "saved.bpk", layout="burn", rename=swap)
    bs.convert(tmp_path / "m.bpk", tmp_path / "converted.bpk", rename=swap)
    bs.merge([bs.MergeSource(tmp_path / "m.bpk", rename=swap)], tmp_path / "merged.bpk")
    loaded = {name: np.full(2, 9, "f4") for name in given}
    bs.load(loaded, tmp_path / "m.bpk", rename=swap)
    for found in (loaded, *(named(tmp_path / f"{name}.bpk") for name in ("saved", "converted", "merged"))):
        assert {name: array.tolist() for name, array in found.items()} == {"a": [1, 1], "b": [0, 0]}
    assert bs.diff(tmp_path / "m.bpk", tmp_path / "saved.bpk", rename=swap).is_equal


def test_an_adapter_of_values_keeps_the_layout_conversion(tmp_path: Path) -> None:
    source = torch.nn.Linear(3, 4)
    torch.save(source.state_dict(), tmp_path / "m.pt")

    def doubled(snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
        return bs.TensorSnapshot.from_numpy(snapshot.path, snapshot.numpy() * 2)

    model = nn.Linear(3, 4)
    bs.load(model, tmp_path / "m.pt", adapter=doubled)
    bs.convert(tmp_path / "m.pt", tmp_path / "m.bpk", adapter=doubled, like=source)
    wanted = source.weight.detach().numpy().T * 2
    assert np.array_equal(model.weight.value, wanted) and np.array_equal(named(tmp_path / "m.bpk")["weight"], wanted)


def test_parts_of_a_tensor_that_the_filter_leaves_out_do_not_count_as_unknown(tmp_path: Path) -> None:
    """A Burn file lacks one bias of a gate; like= has the fused tensor, whose name the filter does not match."""
    model = torch.nn.Sequential(torch.nn.GRU(2, 3))
    bs.save(model, tmp_path / "whole.bpk")
    with bs.open(tmp_path / "whole.bpk") as file:
        kept = {name: file[name].numpy() for name in file if name != "0.new_gate.input_transform.bias"}
    bs.save(kept, tmp_path / "m.bpk", layout="burn")
    bs.convert(tmp_path / "m.bpk", tmp_path / "biases.bpk", like=model, filter="bias$")
    with bs.open(tmp_path / "biases.bpk") as file:
        assert sorted(file) == sorted(name for name in kept if name.endswith("bias"))
    with pytest.raises(bs.errors.ModelError, match=r"cannot be made: 0\.new_gate\.input_transform\.bias is missing"):
        bs.convert(tmp_path / "m.bpk", tmp_path / "all.bpk", like=model)
