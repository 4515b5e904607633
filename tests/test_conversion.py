"""convert: file to file, with and without another layout, and every way to tell what the modules are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.modules.layouts import MODULES_KEY

F32 = np.float32


def rand(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


TORCH = {
    "fc.weight": rand(4, 3),
    "fc.bias": rand(4),
    "norm.weight": rand(4),
    "norm.bias": rand(4),
    "attn.in_proj_weight": rand(12, 4),
    "attn.in_proj_bias": rand(12),
    "attn.out_proj.weight": rand(4, 4),
    "attn.out_proj.bias": rand(4),
    "lstm.weight_ih_l0": rand(8, 4),
    "lstm.weight_hh_l0": rand(8, 2),
    "lstm.bias_ih_l0": rand(8),
    "lstm.bias_hh_l0": rand(8),
    "scale": rand(3),
}
RULES = {"^fc$": "Linear", "^norm$": "LayerNorm", "^attn$": "MultiheadAttention", "^lstm$": "LSTM", "^$": "AsIs"}


class Net(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.attn = nn.MultiHeadAttention(4, 2)
        self.lstm = nn.Lstm(4, 2, True)
        self.scale = np.zeros(3, F32)


@pytest.fixture
def torch_file(tmp_path: Path) -> Path:
    bs.save(TORCH, tmp_path / "torch.safetensors", metadata={"format": "pt", "epochs": "3"})
    return tmp_path / "torch.safetensors"


def contents(path: Path) -> dict[str, bytes]:
    with bs.open(path) as f:
        return {name: tensor.to_bytes() for name, tensor in f.items()}


@pytest.mark.parametrize("ways", [{"like": Net()}, {"rules": RULES}], ids=["like", "rules"])
def test_into_burns_layout_and_back_is_bit_equal(torch_file: Path, tmp_path: Path, ways: dict[str, Any]) -> None:
    done = bs.convert(torch_file, tmp_path / "burn.bpk", **ways)
    assert (done.source_layout, done.layout, done.verified) == ("torch", "burn", True)
    with bs.open(tmp_path / "burn.bpk") as f:
        assert np.array_equal(f["fc.weight"].numpy(), TORCH["fc.weight"].T)
        assert np.array_equal(f["attn.key.weight"].numpy(), TORCH["attn.in_proj_weight"][4:8].T)
        assert np.array_equal(f["lstm.cell_gate.input_transform.weight"].numpy(), TORCH["lstm.weight_ih_l0"][4:6].T)
        assert f.metadata["epochs"] == "3" and f.metadata["format"] == "burnpack"
    bs.convert(tmp_path / "burn.bpk", tmp_path / "back.safetensors", layout="torch")
    assert contents(tmp_path / "back.safetensors") == contents(torch_file)


def test_what_is_converted_is_what_the_declared_model_would_have_saved(torch_file: Path, tmp_path: Path) -> None:
    model = Net()
    bs.load(model, torch_file)
    bs.save(model, tmp_path / "declared.bpk")
    bs.convert(torch_file, tmp_path / "converted.bpk", like=Net())
    assert contents(tmp_path / "converted.bpk") == contents(tmp_path / "declared.bpk")


def test_a_file_that_records_its_modules_serves_as_like(torch_file: Path, tmp_path: Path) -> None:
    bs.convert(torch_file, tmp_path / "first.bpk", like=Net())
    bs.convert(torch_file, tmp_path / "second.bpk", like=tmp_path / "first.bpk")
    assert contents(tmp_path / "first.bpk") == contents(tmp_path / "second.bpk")


def test_a_file_that_records_nothing_does_not(torch_file: Path, tmp_path: Path) -> None:
    with pytest.raises(bs.ModelError, match="does not record its modules"):
        bs.convert(torch_file, tmp_path / "x.bpk", like=torch_file)


def test_where_nothing_tells_the_kinds_the_ways_out_are_named_and_nothing_is_written(
    torch_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(bs.ModelError, match="nothing tells the kinds") as caught:
        bs.convert(torch_file, tmp_path / "x.bpk")
    for way in ("like=", "rules=", "guess=True", "keep_layout=True"):
        assert way in str(caught.value)
    assert not (tmp_path / "x.bpk").exists()


def test_a_rule_that_matches_nothing_and_a_module_that_no_rule_matches_are_errors(
    torch_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(bs.PatternError, match="matched no module"):
        bs.convert(torch_file, tmp_path / "x.bpk", rules={**RULES, "nonsense": "Linear"})
    with pytest.raises(bs.ModelError, match="no rule names the kind"):
        bs.convert(torch_file, tmp_path / "x.bpk", rules={k: v for k, v in RULES.items() if k != "^norm$"})
    with pytest.raises(ValueError, match="not a module kind"):
        bs.convert(torch_file, tmp_path / "x.bpk", rules={"^fc$": "Linear!"})


def test_a_model_that_does_not_fit_the_file_is_refused(torch_file: Path, tmp_path: Path) -> None:
    class Less(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(3, 4)

    with pytest.raises(bs.ModelError, match="no counterpart"):
        bs.convert(torch_file, tmp_path / "x.bpk", like=Less())
    assert not (tmp_path / "x.bpk").exists()


def test_keeping_the_layout_copies_and_the_file_says_so(torch_file: Path, tmp_path: Path) -> None:
    bs.convert(torch_file, tmp_path / "kept.bpk", keep_layout=True)
    assert contents(tmp_path / "kept.bpk") == contents(torch_file)
    with bs.open(tmp_path / "kept.bpk") as f:
        assert f.layout == "torch"
    model = Net()
    assert bs.load(model, tmp_path / "kept.bpk").is_complete
    assert np.array_equal(model.fc.weight.value, TORCH["fc.weight"].T)


def test_a_file_of_unknown_layout_is_not_passed_off_as_burns(tmp_path: Path) -> None:
    bs.save(TORCH, tmp_path / "plain.safetensors")
    with pytest.raises(bs.ModelError, match="does not say whose layout"):
        bs.convert(tmp_path / "plain.safetensors", tmp_path / "x.bpk")
    bs.convert(tmp_path / "plain.safetensors", tmp_path / "x.bpk", keep_layout=True)
    with bs.open(tmp_path / "x.bpk") as f:
        assert f.layout not in ("burn", "torch")
    bs.convert(tmp_path / "plain.safetensors", tmp_path / "y.bpk", source_layout="burn")
    with bs.open(tmp_path / "y.bpk") as f:
        assert f.layout == "burn"


def test_equal_layouts_need_nothing(torch_file: Path, tmp_path: Path) -> None:
    done = bs.convert(torch_file, tmp_path / "copy.safetensors")
    assert done.layout == "torch" and (tmp_path / "copy.safetensors").read_bytes() == torch_file.read_bytes()
    bs.save(Net(), tmp_path / "a.bpk")
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk")
    assert (tmp_path / "a.bpk").read_bytes() == (tmp_path / "b.bpk").read_bytes()
    bs.convert(tmp_path / "a.bpk", tmp_path / "a.safetensors")
    with bs.open(tmp_path / "a.safetensors") as f:
        assert f.layout == "burn"


def test_guessing_converts_what_is_certain(tmp_path: Path) -> None:
    certain = {name: TORCH[name] for name in TORCH if not name.startswith("attn")}
    bs.save(certain, tmp_path / "a.safetensors", metadata={"format": "pt"})
    bs.convert(tmp_path / "a.safetensors", tmp_path / "a.bpk", guess=True)
    with bs.open(tmp_path / "a.bpk") as f:
        assert f["fc.weight"].shape == (3, 4) and "norm.gamma" in f and "scale" in f


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"a.weight": (4, 4), "a.bias": (4,)}, "square"),
        ({"a.weight": (4, 3)}, "without a bias"),
        ({"a.weight": (3, 4), "a.bias": (4,)}, "Conv1D"),
        ({"a.weight": (4,)}, "one vector"),
        ({"a.weight_g": (4, 1), "a.weight_v": (4, 3), "a.bias": (4,)}, "computed from several"),
        ({"a.bias": (4,)}, "bias without a weight"),
        ({"a.weight_ih_l0": (8, 3), "a.weight_hh_l0": (8, 3)}, "no recurrent module"),
        ({"a.weight": (4, 3), "a.bias": (4,), "a.extra": (1,)}, "beside its weight"),
        ({"a.weight": ()}, "a weight"),
        ({"a.weight": (2, 2, 2, 2, 2, 2)}, "6 axes"),
        (
            {
                "l.self_attn.in_proj_weight": (12, 4),
                "l.self_attn.out_proj.weight": (4, 4),
                "l.linear1.weight": (8, 4),
                "l.linear1.bias": (8,),
                "l.linear2.weight": (4, 8),
                "l.linear2.bias": (4,),
                "l.norm1.weight": (4,),
                "l.norm1.bias": (4,),
                "l.norm2.weight": (4,),
                "l.norm2.bias": (4,),
            },
            "norms come first",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_ambiguous_is_said_to_be(tensors: dict[str, tuple[int, ...]], why: str) -> None:
    guess = bs.guess_kinds(tensors)
    assert any(why in reason for reason in guess.ambiguous.values()), str(guess)


@pytest.mark.parametrize(
    "record",
    [
        *("", "[]", "{", '{"fc": 3}', '{"fc": ["Linear"]}', '{"fc": ["Linear", 3]}', '{"fc": "Li near"}', "[" * 5000),
        *('{"fc": ["Linear", "fc", {"gamma": "x"}]}', '{"fc": ["Linear", "fc", {}, 1]}', '{"fc": "Unheard"}'),
        '{"fc": "Linear"}',  # and the others?
    ],
)
def test_a_damaged_record_of_modules_is_refused(torch_file: Path, tmp_path: Path, record: str) -> None:
    bs.save(TORCH, tmp_path / "bad.safetensors", metadata={"format": "pt", MODULES_KEY: record})
    with pytest.raises(bs.BurnstoreError):
        bs.convert(tmp_path / "bad.safetensors", tmp_path / "x.bpk")
    assert not (tmp_path / "x.bpk").exists()


def test_names_too_deep_for_a_tree_are_refused(tmp_path: Path) -> None:
    bs.save({".".join("a" * 2000): rand(2)}, tmp_path / "deep.safetensors", metadata={"format": "pt"})
    with pytest.raises(bs.ModelError, match="modules deep"):
        bs.convert(tmp_path / "deep.safetensors", tmp_path / "x.bpk", guess=True)


def test_what_was_written_is_read_back(torch_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnstore import conversion

    real = conversion.save

    def save_and_damage(tensors: Any, target: Any, **options: Any) -> None:
        real(tensors, target, **options)
        with Path(target).open("r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last[0] ^ 1]))

    monkeypatch.setattr(conversion, "save", save_and_damage)
    with pytest.raises(bs.CorruptError, match="not what was read"):
        bs.convert(torch_file, tmp_path / "x.bpk", like=Net())
    bs.convert(torch_file, tmp_path / "y.bpk", like=Net(), verify=False)


def test_an_existing_target_is_refused_and_kept(torch_file: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bpk").write_bytes(b"precious")
    with pytest.raises(bs.AlreadyExistsError):
        bs.convert(torch_file, tmp_path / "x.bpk", like=Net())
    assert (tmp_path / "x.bpk").read_bytes() == b"precious"
    bs.convert(torch_file, tmp_path / "x.bpk", like=Net(), overwrite=True)


def test_the_record_is_json_with_both_paths(tmp_path: Path) -> None:
    bs.save(
        {"net.0.weight": rand(2, 3), "net.2.weight": rand(2, 2)}, tmp_path / "a.safetensors", metadata={"format": "pt"}
    )
    bs.convert(tmp_path / "a.safetensors", tmp_path / "a.bpk", rules={r"^net\.\d$": "Linear", "^net$": "Sequential"})
    with bs.open(tmp_path / "a.bpk") as f:
        assert list(f) == ["net.0.weight", "net.1.weight"]
        assert json.loads(f.metadata[MODULES_KEY]) == {"net.0": "Linear", "net.2": ["Linear", "net.1"]}
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", keep_layout=True)
    assert (tmp_path / "a.bpk").read_bytes() == (tmp_path / "b.bpk").read_bytes()
    bs.convert(tmp_path / "a.bpk", tmp_path / "c.safetensors", layout="torch", record_modules=False)
    with bs.open(tmp_path / "c.safetensors") as f:
        assert sorted(f) == ["net.0.weight", "net.2.weight"] and MODULES_KEY not in f.metadata


class Three(nn.Module):
    def __init__(self) -> None:
        self.net = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)]


def test_a_target_that_would_lack_tensors_is_not_written(tmp_path: Path) -> None:
    tensors = {
        f"net.{index}.{name}": rand(2, 2) if name == "weight" else rand(2)
        for index in (0, 2)
        for name in ("weight", "bias")
    }
    bs.save(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    with pytest.raises(bs.ModelError, match="the file has not") as caught:
        bs.convert(tmp_path / "a.safetensors", tmp_path / "a.bpk", like=Three())
    assert caught.value.tensor == "net.1.weight" and not (tmp_path / "a.bpk").exists()


def test_a_weight_that_is_no_matrix_is_a_shape_that_does_not_fit(tmp_path: Path) -> None:
    bs.save({"weight": rand(6), "bias": rand(3)}, tmp_path / "a.safetensors", metadata={"format": "pt"})
    result = bs.load(nn.Linear(2, 3), tmp_path / "a.safetensors", validate=False, allow_partial=True)
    assert [(error.kind, error.path) for error in result.errors] == [("ShapeMismatch", "weight")]
    with pytest.raises(bs.ModelError, match="no matrix"):
        bs.convert(tmp_path / "a.safetensors", tmp_path / "a.bpk", rules={"^$": "Linear"})
