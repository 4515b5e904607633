"""The state of an optimizer follows renamed parameters, and a model keeps their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import ModelError

RULES = {
    "source_layout": "burn",
    "target_layout": "burn",
    "tensors": [
        {"source": "layers.{i}.fc.weight", "target": "blocks.{i}.up.weight", "transpose": True},
        {"source": "layers.{i}.fc.bias", "target": "blocks.{i}.up.bias"},
    ],
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A model of Burn and the state of its Adam, as Burn 0.22 saves them."""
    random = np.random.default_rng(4)
    tensors, states, scalars, paths = [], [], {}, {}
    for number, (name, shape) in enumerate(
        {
            f"layers.{i}.fc.{leaf}": shape for i in range(2) for leaf, shape in (("weight", (3, 4)), ("bias", (4,)))
        }.items()
    ):
        key = 7_000 + number
        values = random.standard_normal(shape).astype(np.float32)
        tensors.append(bs.TensorSnapshot.from_numpy(name, values, param_id=bs.ParamId(key)))
        for moment in ("moment_1", "moment_2"):
            path = f"{key}.momentum.{moment}"
            states.append(
                bs.TensorSnapshot.from_numpy(path, random.random(shape, np.float32), param_id=bs.ParamId(key))
            )
        scalars |= {f"{key}.momentum.time": bs.Scalar("UInt", 5), f"{key}.__rank": bs.Scalar("UInt", len(shape))}
        paths[str(key)] = name
    bs.save(tensors, tmp_path / "model.bpk", layout="burn")
    bs.save(states, tmp_path / "optim.bpk", metadata=paths, scalars=scalars, layout="burn")
    return tmp_path


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    with bs.open(path) as file:
        ids = {key: text for key, text in file.metadata.items() if key.isdecimal()}
        return {name: file[name].numpy() for name in file}, ids, dict(file.scalars)


@pytest.mark.parametrize(
    "how", [{"rename": [r"^layers\.(\d+)\.fc=>blocks.$1.up"]}, {"rules": RULES}], ids=["rename", "rules"]
)
def test_the_state_of_an_optimizer_follows_its_parameters(files: Path, how: dict[str, Any]) -> None:
    before, old, scalars = _contents(files / "optim.bpk")
    bs.convert(files / "model.bpk", files / "model2.bpk", **how)
    done = bs.convert(files / "optim.bpk", files / "optim2.bpk", receipt=True, **how)
    after, new, kept = _contents(files / "optim2.bpk")
    assert new == {key: path.replace("layers", "blocks").replace("fc", "up") for key, path in old.items()}
    assert kept == scalars
    for name, values in before.items():
        is_turned = "rules" in how and values.ndim == 2
        np.testing.assert_array_equal(after[name], values.T if is_turned else values)
    with bs.open(files / "model2.bpk") as model:
        assert {str(int(tensor.param_id)): name for name, tensor in model.items()} == new
        for key, path in new.items():
            assert after[f"{key}.momentum.moment_1"].shape == model[path].shape
    bs.replay(done.receipt, files / "again.bpk")
    assert (files / "again.bpk").read_bytes() == (files / "optim2.bpk").read_bytes()


def test_explain_shows_what_a_conversion_of_training_state_does(files: Path) -> None:
    shown = bs.explain(files / "optim.bpk", target=files / "x.bpk", rules=RULES)
    with bs.open(files / "optim.bpk") as file:
        assert {move.target for move in shown.moves} == set(file)
    assert any("transposed" in move.steps for move in shown.moves)
    assert "4 of them under new names" in shown.notes[0]


def test_the_way_back_gives_the_same_files(files: Path) -> None:
    for name in ("model", "optim"):
        bs.convert(files / f"{name}.bpk", files / f"{name}2.bpk", rules=RULES)
        bs.convert(files / f"{name}2.bpk", files / f"{name}3.bpk", rules=RULES, invert=True)
        first, third = _contents(files / f"{name}.bpk"), _contents(files / f"{name}3.bpk")
        assert first[1:] == third[1:]
        assert first[0].keys() == third[0].keys()
        for tensor, values in first[0].items():
            np.testing.assert_array_equal(third[0][tensor], values)


@pytest.mark.parametrize(
    "rule",
    [
        {"source": "layers.{i}.fc.bias", "target": ["a.{i}", "b.{i}"]},
        {"source": "layers.{i}.fc.bias", "target": "a.{i}", "tie": True},
    ],
)
def test_state_that_would_need_other_ids_is_refused(files: Path, rule: dict[str, Any]) -> None:
    rules = {**RULES, "tensors": [*RULES["tensors"][: 2 if rule.get("tie") else 1], rule]}
    with pytest.raises(ModelError, match=r"would have no id|would share"):
        bs.convert(files / "optim.bpk", files / "x.bpk", rules=rules)


def test_the_state_of_a_dropped_parameter_goes_with_it(files: Path) -> None:
    rules = {**RULES, "tensors": [RULES["tensors"][0], {"source": "layers.{i}.fc.bias", "drop": "not any more"}]}
    done = bs.convert(files / "optim.bpk", files / "x.bpk", rules=rules)
    tensors, paths, scalars = _contents(files / "x.bpk")
    assert set(paths.values()) == {"blocks.0.up.weight", "blocks.1.up.weight"}
    assert {name.partition(".")[0] for name in (*tensors, *scalars)} == paths.keys()
    assert set(done.left_out.values()) == {"not any more"}


def test_state_of_another_rank_says_so(files: Path) -> None:
    """Burn leaves out a state whose rank is not that of its parameter."""
    rule = {"source": "layers.{i}.fc.bias", "target": "b.{i}", "reshape": {"from": [4], "to": [1, 4]}}
    bs.convert(files / "optim.bpk", files / "x.bpk", rules={**RULES, "tensors": [RULES["tensors"][0], rule]})
    tensors, paths, scalars = _contents(files / "x.bpk")
    for key, path in paths.items():
        assert len(tensors[f"{key}.momentum.moment_1"].shape) == 2, path
        assert scalars[f"{key}.__rank"] == bs.Scalar("UInt", 2)


@pytest.mark.parametrize("option", [{"cast": "bf16"}, {"filter": "up"}, {"adapter": lambda tensor: tensor}])
def test_what_training_state_cannot_follow_is_refused(files: Path, option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="training state has no use for the option"):
        bs.convert(files / "optim.bpk", files / "x.bpk", rename=["^layers=>blocks"], **option)
    assert not (files / "x.bpk").exists()


def test_renames_may_concern_parameters_without_state(files: Path) -> None:
    """A rename of running statistics has its place in the model, and none in the state of its optimizer."""
    bs.convert(files / "optim.bpk", files / "x.bpk", rename=["^layers=>blocks", "running_mean$=>mean"])
    assert all(path.startswith("blocks.") for path in _contents(files / "x.bpk")[1].values())
