"""convert: file to file, with and without another layout, and every way to tell what the modules are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import nn
from burnstore.cli import main
from burnstore.jobs.convert.receipt import check_receipt, read_receipt
from burnstore.pipeline.kinds import MODULES_KEY
from burnstore.transforms.guess import guess_kinds

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
    bs.convert(tmp_path / "burn.bpk", tmp_path / "back.safetensors", target_layout="torch")
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
    with pytest.raises(bs.errors.ModelError, match="neither records its modules"):
        bs.convert(torch_file, tmp_path / "x.bpk", like=torch_file)


def test_where_nothing_tells_the_kinds_the_ways_out_are_named_and_nothing_is_written(
    torch_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(bs.errors.ModelError, match="nothing states the kinds") as caught:
        bs.convert(torch_file, tmp_path / "x.bpk")
    for way in ("like=", "rules=", "guess=True", "keep_layout=True"):
        assert way in str(caught.value)
    assert not (tmp_path / "x.bpk").exists()


def test_a_rule_that_matches_nothing_and_a_module_that_no_rule_matches_are_errors(
    torch_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(bs.errors.PatternError, match="matched no module"):
        bs.convert(torch_file, tmp_path / "x.bpk", rules={**RULES, "nonsense": "Linear"})
    with pytest.raises(bs.errors.ModelError, match="no rule names the kind"):
        bs.convert(torch_file, tmp_path / "x.bpk", rules={k: v for k, v in RULES.items() if k != "^norm$"})
    with pytest.raises(ValueError, match="not a module kind"):
        bs.convert(torch_file, tmp_path / "x.bpk", rules={"^fc$": "Linear!"})


def test_a_model_that_does_not_fit_the_file_is_refused(torch_file: Path, tmp_path: Path) -> None:
    class Less(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(3, 4)

    with pytest.raises(bs.errors.ModelError, match="Less, given as like, has no such tensor"):
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
    with pytest.raises(bs.errors.ModelError, match="does not state its layout"):
        bs.convert(tmp_path / "plain.safetensors", tmp_path / "x.bpk")
    bs.convert(tmp_path / "plain.safetensors", tmp_path / "x.bpk", keep_layout=True)
    with bs.open(tmp_path / "x.bpk") as f:
        assert f.layout not in ("burn", "torch")
    bs.convert(tmp_path / "plain.safetensors", tmp_path / "y.bpk", layout="burn")
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
    guess = guess_kinds(tensors)
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
    with pytest.raises(bs.errors.ModelError, match="levels, more than 256"):
        bs.convert(tmp_path / "deep.safetensors", tmp_path / "x.bpk", guess=True)


def test_what_was_written_is_read_back(torch_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnstore.pipeline import write as assembly

    real = assembly.open_checkpoint

    def damage_and_open(path: Any, **options: Any) -> Any:
        with Path(path).open("r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last[0] ^ 1]))
        return real(path, **options)

    monkeypatch.setattr(assembly, "open_checkpoint", damage_and_open)
    with pytest.raises(bs.errors.CorruptError, match="read back differs from the source"):
        bs.convert(torch_file, tmp_path / "x.bpk", like=Net())
    assert not (tmp_path / "x.bpk").exists()
    bs.convert(torch_file, tmp_path / "y.bpk", like=Net(), verify=False)


def test_an_existing_target_is_refused_and_kept(torch_file: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bpk").write_bytes(b"precious")
    with pytest.raises(bs.errors.AlreadyExistsError):
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
    bs.convert(
        tmp_path / "a.bpk",
        tmp_path / "c.safetensors",
        target_layout="torch",
        pipeline=bs.Pipeline(record_modules=False),
    )
    with bs.open(tmp_path / "c.safetensors") as f:
        assert sorted(f) == ["net.0.weight", "net.2.weight"] and MODULES_KEY not in f.metadata


@pytest.mark.parametrize("new", ["a", "z"])
def test_a_record_with_two_modules_at_one_path_is_no_crash(new: str, tmp_path: Path) -> None:
    record = {"a": ["Linear", "a"], "c": ["Linear", "a"]}
    given = {"a.weight": rand(2, 2)}
    bs.save(given, tmp_path / "x.bpk", layout="burn", metadata={MODULES_KEY: json.dumps(record)})
    bs.convert(tmp_path / "x.bpk", tmp_path / "y.bpk", rename=[(r"^a\.", f"{new}.")])
    with bs.open(tmp_path / "y.bpk") as f:
        assert np.array_equal(f[f"{new}.weight"].numpy(), given["a.weight"])


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
    with pytest.raises(bs.errors.ModelError, match="the source has not") as caught:
        bs.convert(tmp_path / "a.safetensors", tmp_path / "a.bpk", like=Three())
    assert caught.value.tensor == "net.1.weight" and not (tmp_path / "a.bpk").exists()


def test_a_weight_that_is_no_matrix_is_a_shape_that_does_not_fit(tmp_path: Path) -> None:
    bs.save({"weight": rand(6), "bias": rand(3)}, tmp_path / "a.safetensors", metadata={"format": "pt"})
    result = bs.load(nn.Linear(2, 3), tmp_path / "a.safetensors", validate=False, allow_partial=True)
    assert [(error.kind, error.path) for error in result.errors] == [("ShapeMismatch", "weight")]
    with pytest.raises(bs.errors.ModelError, match="expected a matrix"):
        bs.convert(tmp_path / "a.safetensors", tmp_path / "a.bpk", rules={"^$": "Linear"})


def test_tensors_are_in_the_order_of_the_declared_model(torch_file: Path, tmp_path: Path) -> None:
    bs.save(Net(), tmp_path / "declared.bpk")
    bs.convert(torch_file, tmp_path / "converted.bpk", like=Net())
    with bs.open(tmp_path / "declared.bpk") as declared, bs.open(tmp_path / "converted.bpk") as converted:
        assert [name for name in converted if name != "scale"] == [name for name in declared if name != "scale"]


# --- filter, rename, cast, adapters, texts ----------------------------------------------------------------------------


def test_renames_come_before_the_layout_and_the_filter_sees_the_names_of_the_target(
    torch_file: Path, tmp_path: Path
) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            self.head = nn.Linear(3, 4)

    done = bs.convert(
        torch_file, tmp_path / "x.bpk", filter=r"^head\.", rename=[r"^fc\.=>head."], like=Head(), receipt=True
    )
    assert done.tensors == 2
    with bs.open(tmp_path / "x.bpk") as f:
        assert list(f) == ["head.weight", "head.bias"] and np.array_equal(
            f["head.weight"].numpy(), TORCH["fc.weight"].T
        )
    said = read_receipt(tmp_path / "x.bpk.receipt.json")
    assert [(tensor.name, tensor.sources) for tensor in said.tensors] == [
        ("head.weight", ("fc.weight",)),
        ("head.bias", ("fc.bias",)),
    ]


@pytest.mark.parametrize(
    "renames",
    [
        {"fc.weight": "head.weight", "fc.bias": "head.bias"},
        lambda name: name.replace("fc.", "head."),
        [(r"^fc\.(\w+)$", r"head.\1")],
        [r"^fc\.(\w+)$=>head.$1"],
        r"^fc\.(\w+)$=>head.${1}",
        bs.KeyRemapper().add_pattern(r"^fc\.(\w+)$", "head.$1"),
    ],
    ids=["mapping", "function", "pairs", "texts", "text", "remapper"],
)
def test_renames_can_be_said_in_every_way(torch_file: Path, tmp_path: Path, renames: Any) -> None:
    bs.convert(torch_file, tmp_path / "x.safetensors", rename=renames)
    with bs.open(tmp_path / "x.safetensors") as f:
        assert {"head.weight", "head.bias"} <= set(f) and "fc.weight" not in f


def test_filters_with_flags_and_several_of_them(torch_file: Path, tmp_path: Path) -> None:
    import re

    done = bs.convert(
        torch_file, tmp_path / "x.safetensors", filter=["^fc", re.compile("^NORM", re.IGNORECASE)], receipt=True
    )
    assert done.tensors == 4
    assert bs.replay(f"{tmp_path}/x.safetensors.receipt.json", tmp_path / "y.safetensors").tensors == 4


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"filter": "^nothing"}, bs.errors.PatternError, "matched no tensor"),
        ({"filter": ["^fc", "^nothing"]}, bs.errors.PatternError, "'\\^nothing'"),
        ({"filter": "("}, bs.errors.PatternError, "Invalid regex"),
        ({"rename": ["^nothing=>x"]}, bs.errors.PatternError, "matched no tensor"),
        ({"rename": ["nothing"]}, bs.errors.PatternError, "is not a rename rule"),
        ({"rename": [r"^fc=>$2"]}, bs.errors.PatternError, "names group"),
        ({"rename": [(1, 2, 3)]}, TypeError, "a rename rule must be"),
        ({"rename": [r"^fc\.\w+$=>x"]}, bs.errors.DuplicateNameError, "both renamed"),
        ({"cast": "i64"}, bs.errors.DTypeError, "cannot cast values to I64"),
        ({"cast": "f4"}, bs.errors.DTypeError, "cannot cast values to F4"),
        ({"cast": "F8_E8M0"}, bs.errors.DTypeError, "cannot cast values to F8_E8M0"),
        ({"cast": "bf17"}, bs.errors.DTypeError, "unknown dtype"),
        ({"adapter": "Unheard"}, ValueError, "unknown adapter"),
        ({"adapter": 3}, TypeError, "adapter must be"),
        ({"metadata": {"burnstore.layout": "burn"}}, ValueError, "is reserved"),
        ({"metadata": {"a": 3}}, TypeError, "must map str to str"),
        ({"layout": "jax"}, ValueError, "layout must be one of"),
        ({"target_layout": "jax"}, ValueError, "layout must be one of"),
        ({"resume": True}, ValueError, "max_shard_size"),
        ({"receipt": True, "verify": False}, ValueError, "verify"),
        ({"executor": 0}, ValueError, "positive"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_and_nothing_written(
    torch_file: Path, tmp_path: Path, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        bs.convert(torch_file, tmp_path / "x.safetensors", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["torch.safetensors"]


def test_casting_takes_floats_only_and_equals_numpys(tmp_path: Path) -> None:
    values = {"f": rand(300, 7), "i": np.arange(5), "b": np.array([True]), "d": rand(4).astype(np.float64)}
    bs.save(values, tmp_path / "a.safetensors")
    bs.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", cast="f16")
    with bs.open(tmp_path / "b.safetensors") as f:
        assert {name: str(f[name].dtype) for name in f} == {"f": "F16", "d": "F16", "i": "I64", "b": "Bool"}
        assert np.array_equal(f["f"].numpy(), values["f"].astype(np.float16))
    bs.save({"f": np.array([1e6, 1.0], F32)}, tmp_path / "c.safetensors")
    with pytest.raises(bs.errors.DTypeError, match="1 finite value, up to 1e\\+06, is too large for F16") as caught:
        bs.convert(tmp_path / "c.safetensors", tmp_path / "d.safetensors", cast="f16")
    assert caught.value.tensor == "f" and not (tmp_path / "d.safetensors").exists()


def test_an_adapter_goes_by_the_modules(torch_file: Path, tmp_path: Path) -> None:
    with pytest.raises(bs.errors.ModelError, match="nothing states them"):
        bs.convert(torch_file, tmp_path / "x.safetensors", adapter="HalfPrecisionAdapter")
    bs.convert(torch_file, tmp_path / "x.safetensors", adapter="HalfPrecisionAdapter", rules=RULES)
    with bs.open(tmp_path / "x.safetensors") as f:
        assert f.layout == "torch" and str(f["fc.weight"].dtype) == "F16" and str(f["scale"].dtype) == "F32"
    bs.convert(torch_file, tmp_path / "y.bpk", adapter=bs.HalfPrecisionAdapter, like=Net(), receipt=True)
    with bs.open(tmp_path / "y.bpk") as f:
        assert f["fc.weight"].shape == (3, 4) and str(f["fc.weight"].dtype) == "F16"
    assert bs.replay(f"{tmp_path}/y.bpk.receipt.json", tmp_path / "z.bpk").tensors == len(bs.open(tmp_path / "y.bpk"))


def test_an_adapter_of_layouts_takes_the_place_of_the_view(tmp_path: Path) -> None:
    values = {name: TORCH[name] for name in TORCH if name.startswith(("fc", "norm"))}
    bs.save(values, tmp_path / "a.safetensors", metadata={"format": "pt"})
    rules = {"^fc$": "Linear", "^norm$": "LayerNorm"}
    bs.convert(tmp_path / "a.safetensors", tmp_path / "a.bpk", adapter="PyTorchToBurnAdapter", rules=rules)
    bs.convert(tmp_path / "a.safetensors", tmp_path / "b.bpk", rules=rules)
    assert contents(tmp_path / "a.bpk") == contents(tmp_path / "b.bpk")
    with bs.open(tmp_path / "a.bpk") as f:
        assert f.layout == "burn"


def test_texts_are_added_replaced_and_taken_away_and_never_lie_about_the_layout(
    torch_file: Path, tmp_path: Path
) -> None:
    bs.convert(torch_file, tmp_path / "x.safetensors", metadata={"author": "me", "epochs": None})
    with bs.open(tmp_path / "x.safetensors") as f:
        assert dict(f.metadata) == {"format": "pt", "author": "me"}
    bs.convert(torch_file, tmp_path / "y.safetensors", metadata={"format": "np"})
    with bs.open(tmp_path / "y.safetensors") as f:
        assert f.layout == "torch" and f.metadata["format"] == "np"


# --- several sources --------------------------------------------------------------------------------------------------


def test_several_sources_make_one_target(torch_file: Path, tmp_path: Path) -> None:
    parts = [{name: TORCH[name] for name in TORCH if name < "l"}, {name: TORCH[name] for name in TORCH if name > "l"}]
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, part, epochs in zip(paths, parts, "12", strict=True):
        bs.save(part, path, metadata={"format": "pt", "epochs": epochs})
    done = bs.convert(paths, tmp_path / "x.bpk", like=Net(), receipt=True)
    assert done.tensors == len(contents(tmp_path / "x.bpk")) and any("epochs" in note for note in done.notes)
    bs.convert(torch_file, tmp_path / "y.bpk", like=Net())
    assert contents(tmp_path / "x.bpk") == contents(tmp_path / "y.bpk")
    assert check_receipt(f"{tmp_path}/x.bpk.receipt.json").ok
    for path, part in zip(("p", "q"), (r"^(fc|norm|attn)\.", r"^(lstm|scale)"), strict=True):
        bs.convert(tmp_path / "x.bpk", tmp_path / f"{path}.bpk", filter=part)
    bs.convert([tmp_path / "p.bpk", tmp_path / "q.bpk"], tmp_path / "back.safetensors", target_layout="torch")
    assert contents(tmp_path / "back.safetensors") == contents(torch_file)


def test_two_sources_with_one_name_or_of_two_layouts_are_refused(torch_file: Path, tmp_path: Path) -> None:
    bs.convert(torch_file, tmp_path / "a.safetensors", filter="^fc")
    with pytest.raises(
        bs.errors.DuplicateNameError, match=r"both .*torch\.safetensors and .*a\.safetensors have this tensor"
    ) as caught:
        bs.convert([torch_file, tmp_path / "a.safetensors"], tmp_path / "x.safetensors")
    assert caught.value.tensor == "fc.bias" and "merge" in str(caught.value)
    with pytest.raises(bs.errors.DuplicateNameError):
        bs.convert([torch_file, torch_file], tmp_path / "x.safetensors")
    bs.save({"other": rand(3)}, tmp_path / "b.bpk", layout="burn")
    with pytest.raises(bs.errors.ModelError, match="have different layouts"):
        bs.convert([torch_file, tmp_path / "b.bpk"], tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="expected at least one source"):
        bs.convert([], tmp_path / "x.safetensors")


# --- scalars, shards, the same file -----------------------------------------------------------------------------------


def test_numbers_beside_the_tensors_go_along_or_are_said_to_be_left_out(tmp_path: Path) -> None:
    bs.save({"w": rand(3)}, tmp_path / "a.bpk", scalars={"step": 7, "rate": 0.5})
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", receipt=True)
    assert (tmp_path / "a.bpk").read_bytes() == (tmp_path / "b.bpk").read_bytes()
    bs.replay(f"{tmp_path}/b.bpk.receipt.json", tmp_path / "c.bpk")
    assert (tmp_path / "a.bpk").read_bytes() == (tmp_path / "c.bpk").read_bytes()
    done = bs.convert(tmp_path / "a.bpk", tmp_path / "a.safetensors")
    assert any("step" in note and "left out" in note for note in done.notes)


def test_a_set_of_shards_is_a_source_and_a_target(torch_file: Path, tmp_path: Path) -> None:
    done = bs.convert(torch_file, tmp_path / "set.safetensors", max_shard_size=200)
    assert len(done.files) > 3 and done.files[0].endswith(".index.json")
    assert contents(tmp_path / "set.safetensors") == contents(torch_file)
    bs.convert(tmp_path / "set.safetensors.index.json", tmp_path / "x.bpk", like=Net())
    bs.convert(torch_file, tmp_path / "y.bpk", like=Net())
    assert contents(tmp_path / "x.bpk") == contents(tmp_path / "y.bpk")


def test_a_source_is_never_its_own_target(torch_file: Path, tmp_path: Path) -> None:
    before = torch_file.read_bytes()
    (tmp_path / "link.safetensors").symlink_to(torch_file)
    (tmp_path / "hard.safetensors").hardlink_to(torch_file)
    for target in (torch_file, tmp_path / "link.safetensors", tmp_path / "hard.safetensors"):
        with pytest.raises(bs.errors.SaveError, match="source and target are the same file"):
            bs.convert(torch_file, target, overwrite=True)
    with pytest.raises(bs.errors.SaveError, match="same file"):
        bs.convert(torch_file, tmp_path / "x.safetensors", receipt=torch_file, overwrite=True)
    bs.convert(torch_file, tmp_path / "set.safetensors", max_shard_size=200)
    shard = next(tmp_path.glob("set-00001*"))
    with pytest.raises(bs.errors.SaveError, match="same file"):  # the shard would go with the set that is replaced
        bs.convert(shard, tmp_path / "set.safetensors", max_shard_size=200, overwrite=True)
    with pytest.raises(bs.errors.SaveError, match="same file"):
        bs.convert(tmp_path / "set.safetensors", tmp_path / "set.safetensors", max_shard_size=300, overwrite=True)
    assert torch_file.read_bytes() == before and contents(tmp_path / "set.safetensors") == contents(torch_file)


@pytest.mark.parametrize("name", ["x.mpk", "x.unknown"])
def test_what_cannot_be_written_is_refused_before_anything_is_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises((bs.errors.UnsupportedError, bs.errors.UnknownFormatError)) as caught:
        bs.convert(tmp_path / "not there", tmp_path / name)
    assert caught.value.hint is not None


# --- rules in files ---------------------------------------------------------------------------------------------------


def test_rules_come_from_files_of_lines_or_json(torch_file: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("# kinds\n\n" + "\n".join(f"{old} = {kind}" for old, kind in RULES.items()) + "\n")
    (tmp_path / "json").write_text(json.dumps(RULES))
    for name in ("lines", "json"):
        bs.convert(torch_file, tmp_path / f"{name}.bpk", rules=tmp_path / name)
    assert contents(tmp_path / "lines.bpk") == contents(tmp_path / "json.bpk")


@pytest.mark.parametrize(
    "text", [b"", b"# nothing\n", b"^fc$ Linear\n", b"{", b'{"a": 3}', b"\xff", b"{" * 10_000, b"[1]", b"x" * (2 << 20)]
)
def test_files_that_hold_no_rules_are_refused(torch_file: Path, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "rules").write_bytes(text)
    with pytest.raises(bs.errors.FormatError, match=r"rules? file|must be a string|more than") as caught:
        bs.convert(torch_file, tmp_path / "x.bpk", rules=tmp_path / "rules")
    assert caught.value.path == str(tmp_path / "rules") and "= Linear" in str(caught.value.hint)


def test_a_guess_that_is_ambiguous_carries_its_evidence(torch_file: Path, tmp_path: Path) -> None:
    bs.save({"a.weight": rand(4, 4), "a.bias": rand(4)}, tmp_path / "a.safetensors", metadata={"format": "pt"})
    with pytest.raises(bs.errors.AmbiguousError, match="ambiguous: a square") as caught:
        bs.convert(tmp_path / "a.safetensors", tmp_path / "x.bpk", guess=True)
    assert "square" in caught.value.guess.ambiguous["a"] and "\n" not in caught.value.message
    assert not (tmp_path / "x.bpk").exists()
    done = bs.convert(torch_file, tmp_path / "y.bpk", guess=True, filter="^(fc|norm)")
    assert done.guess is not None and set(done.guess.evidence) == {"fc", "norm"}


def test_a_conversion_that_fails_because_the_part_is_unclear_lists_the_parts(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    torch.save({"model": model.state_dict(), "ema": model.state_dict()}, tmp_path / "both.pt")
    for options in ({"like": model}, {"rules": {"^0$": "Linear"}}, {}):
        with pytest.raises(bs.BurnstoreError, match=r"choose one with top_level_key=.*model \(2\), ema \(2\)"):
            bs.convert(tmp_path / "both.pt", tmp_path / "a.bpk", **options)
    with pytest.raises(bs.BurnstoreError, match="choose one with top_level_key="):
        bs.merge([tmp_path / "both.pt"] * 2, tmp_path / "a.bpk", method="linear", like=model)
    assert "note: " in str(bs.diff(tmp_path / "both.pt", model))


def test_no_verb_writes_over_a_file_that_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, like, rules, receipt = (tmp_path / name for name in ("a.bpk", "like.bpk", "rules.txt", "a.receipt"))
    tensors = {f"fc{number}.weight": np.ones((4, 4), np.float32) for number in range(4)}
    for each in (path, like):
        bs.save(tensors, each, layout="burn")
    rules.write_text("^fc = Linear\n")
    bs.convert(path, tmp_path / "b.bpk", receipt=receipt)
    bs.save(tensors, tmp_path / "set.safetensors", max_shard_size=100)
    index = tmp_path / "set.safetensors.index.json"
    shard = next(iter(sorted(tmp_path.glob("set-*"))))
    (tmp_path / "config.json").write_text("{}")
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}

    def refused(job: Callable[..., Any], *args: Any, **options: Any) -> None:
        with pytest.raises(bs.errors.SaveError, match="same file"):
            job(*args, overwrite=True, **options)

    refused(bs.convert, path, like, like=like)
    refused(bs.convert, path, tmp_path / "c.bpk", like=like, receipt=like)
    refused(bs.convert, path, rules, rules=rules, format="burnpack")
    refused(bs.merge, [path], like, like=like)
    refused(bs.replay, receipt, receipt)
    refused(bs.report, path, output=path)
    refused(bs.report, index, output=shard)
    refused(bs.report, path, like, output=like)
    for command in (
        ["convert", path, rules, "--rules", rules, "--format", "burnpack"],
        ["report", path, index, "-o", shard],
        ["config", tmp_path / "config.json", "-o", tmp_path / "config.json"],
        ["map", path, "--like", like, "-o", like],
        ["merge", path, rules, "--rules", rules, "--format", "burnpack"],
    ):
        assert main([*map(str, command), "--overwrite"]) == 2, command
        assert "same file" in capsys.readouterr().err, command
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
