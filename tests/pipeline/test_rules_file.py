"""Rules for tensors, in a rules file: each operation, its way back, receipts, explanations, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import DuplicateNameError, FormatError, ModelError, PatternError
from burnstore.transforms.recipe import recipe_from

_RANDOM = np.random.default_rng(7)


def _floats(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _written(folder: Path, tensors: Mapping[str, Any], name: str = "in.safetensors", layout: str = "torch") -> Path:
    bs.save(dict(tensors), folder / name, metadata={"format": "pt"} if layout == "torch" else None)
    return folder / name


def _read(path: Path) -> dict[str, Any]:
    with bs.open(path) as file:
        return {name: file[name].numpy() for name in file}


def _rules(folder: Path, *rules: Mapping[str, Any], whole: bool = True) -> Path:
    document: dict[str, Any] = {"tensors": list(rules)}
    if whole:
        document |= {"source_layout": "torch", "target_layout": "burn"}
    (folder / "rules.json").write_text(json.dumps(document), encoding="utf-8")
    return folder / "rules.json"


def _there_and_back(folder: Path, tensors: Mapping[str, Any], *rules: Mapping[str, Any]) -> tuple[Any, Any]:
    """Convert by rules with a receipt, replay it, convert back; return the tensors there and back."""
    source, path = _written(folder, tensors), _rules(folder, *rules)
    done = bs.convert(source, folder / "there.bpk", rules=path, receipt=True)
    bs.replay(done.receipt, folder / "again.bpk")
    assert (folder / "again.bpk").read_bytes() == (folder / "there.bpk").read_bytes()
    bs.convert(folder / "there.bpk", folder / "back.safetensors", rules=path, invert=True)
    return _read(folder / "there.bpk"), _read(folder / "back.safetensors")


def _same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_names_with_numbers_and_a_transposed_matrix(tmp_path: Path) -> None:
    given = {f"layer{i}.fc.weight": _floats(3, 4) for i in (1, 2, 11)}
    rule = {"source": "layer{i+1}.fc.weight", "target": "stages.{i}.fc.weight", "transpose": True}
    there, back = _there_and_back(tmp_path, given, rule)
    _same(there, {f"stages.{i - 1}.fc.weight": given[f"layer{i}.fc.weight"].T for i in (1, 2, 11)})
    _same(back, given)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("sizes", [[], [4, 1, 1]])
def test_parts_of_a_fused_matrix(tmp_path: Path, axis: int, sizes: list[int]) -> None:
    given = {"qkv": _floats(6, 6)}
    rule = {"source": "qkv", "target": ["q", "k", "v"], "axis": axis, "sizes": sizes, "transpose": True}
    there, back = _there_and_back(tmp_path, given, rule)
    parts = np.split(given["qkv"], [4, 5] if sizes else 3, axis)
    _same(there, {name: part.T for name, part in zip("qkv", parts, strict=True)})
    _same(back, given)


@pytest.mark.parametrize("shape", [(24,), (24, 5)])
@pytest.mark.parametrize(("sizes", "shares"), [([], (2, 2, 2)), ([16, 4, 4], (4, 1, 1))])
def test_parts_within_each_head(tmp_path: Path, shape: tuple[int, ...], sizes: list[int], shares: Any) -> None:
    """As GPT-NeoX and BLOOM have them, and with several queries for one key as Falcon."""
    given = {"h.0.qkv": _floats(*shape)}
    rule = {"source": "h.{i}.qkv", "target": ["{i}.q", "{i}.k", "{i}.v"], "heads": 4, "sizes": sizes}
    there, back = _there_and_back(tmp_path, given, rule)
    heads = given["h.0.qkv"].reshape(4, 6, *shape[1:])
    ends = np.cumsum(shares)
    wanted = {f"0.{name}": heads[:, end - share : end] for name, share, end in zip("qkv", shares, ends, strict=True)}
    _same(there, {name: part.reshape(-1, *shape[1:]) for name, part in wanted.items()})
    _same(back, given)
    other = {"source": list(there), "target": "qkv", "heads": 4, "sizes": sizes}
    assert recipe_from({"tensors": [other]}).rules[0].after  # the same from the side of the parts
    (tmp_path / "parts").mkdir()
    joined, apart = _there_and_back(tmp_path / "parts", there, other)
    _same(joined, {"qkv": given["h.0.qkv"]})
    _same(apart, there)


@pytest.mark.parametrize(("axis", "sizes"), [(0, [2, 1]), (1, [])])
def test_joined_tensors(tmp_path: Path, axis: int, sizes: list[int]) -> None:
    given = {"a.0": _floats(2, 3), "b.0": _floats(1, 3) if axis == 0 else _floats(2, 3)}
    rule = {"source": ["a.{i}", "b.{i}"], "target": "ab.{i}", "axis": axis, "sizes": sizes}
    there, back = _there_and_back(tmp_path, given, rule)
    _same(there, {"ab.0": np.concatenate([given["a.0"], given["b.0"]], axis)})
    _same(back, given)


def test_rotary_features_of_grouped_queries_equal_those_of_the_rotation(tmp_path: Path) -> None:
    heads, size = 2, 6
    given = {"q": _floats(heads * size, 5), "q.bias": _floats(heads * size)}
    rules = [{"source": name, "target": name, "permute_rope": {"heads": heads}} for name in given]
    there, back = _there_and_back(tmp_path, given, *rules)
    halves = given["q"].reshape(heads, 2, size // 2, 5)
    pairs = there["q"].reshape(heads, size // 2, 2, 5)
    np.testing.assert_array_equal(pairs[:, :, 0], halves[:, 0])
    np.testing.assert_array_equal(pairs[:, :, 1], halves[:, 1])
    assert not np.array_equal(there["q"], given["q"])
    _same(back, given)


def test_a_folded_weight_norm_is_what_torch_computes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 2))
    held = {name: tensor.detach().numpy() for name, tensor in layer.state_dict().items()}
    rules = [
        {
            "source": ["parametrizations.weight.original0", "parametrizations.weight.original1"],
            "target": "weight",
            "fold_weight_norm": {"axis": 0},
        },
        {"source": "bias", "target": "bias"},
    ]
    there, back = _there_and_back(tmp_path, held, *rules)
    np.testing.assert_allclose(there["weight"], layer.weight.detach().numpy(), rtol=1e-6)
    again = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 2))
    again.load_state_dict({name: torch.from_numpy(values) for name, values in back.items()})
    np.testing.assert_allclose(again.weight.detach().numpy(), layer.weight.detach().numpy(), rtol=1e-6)


def test_one_is_added_to_a_norm_in_float32(tmp_path: Path) -> None:
    given = {"norm": np.array([0.5, 2**-12], np.float16)}
    there, back = _there_and_back(tmp_path, given, {"source": "norm", "target": "gamma", "add_one": True})
    assert there["gamma"].dtype == np.float32
    np.testing.assert_array_equal(there["gamma"], 1 + given["norm"].astype(np.float32))
    np.testing.assert_array_equal(back["norm"], given["norm"])


def test_a_tied_head_must_equal_its_embedding_on_the_way_back(tmp_path: Path) -> None:
    given = {"wte": _floats(5, 3)}
    rules = [
        {"source": "wte", "target": "embedding"},
        {"source": "wte", "target": "head", "tie": True, "transpose": True},
    ]
    there, back = _there_and_back(tmp_path, given, *rules)
    _same(there, {"embedding": given["wte"], "head": given["wte"].T})
    _same(back, given)
    trained = _written(tmp_path, {**there, "head": there["head"] + 1}, "trained.bpk", "burn")
    with pytest.raises(ModelError, match="left out as equal to 'wte', and differs"):
        bs.convert(trained, tmp_path / "lost.safetensors", rules=tmp_path / "rules.json", invert=True, layout="burn")


def test_constants_are_made_and_left_out_again_if_they_are_unchanged(tmp_path: Path) -> None:
    given = {"fc": _floats(2)}
    rules = [
        {"source": "fc", "target": "fc"},
        {"target": "ids", "constant": {"value": "arange", "shape": [1, 3], "dtype": "I64"}},
        {"target": "mask", "constant": {"value": "tril", "shape": [3, 3]}},
        {"target": "scale", "constant": {"value": 2, "shape": [1]}},
    ]
    there, back = _there_and_back(tmp_path, given, *rules)
    assert there["ids"].tolist() == [[0, 1, 2]]
    assert there["mask"].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert there["scale"].tolist() == [2]
    _same(back, given)
    changed = _written(tmp_path, {**there, "scale": there["scale"] + 1}, "changed.bpk", "burn")
    with pytest.raises(ModelError, match="left out as equal"):
        bs.convert(changed, tmp_path / "lost.safetensors", rules=tmp_path / "rules.json", invert=True, layout="burn")


def test_what_is_dropped_has_a_reason_and_comes_back_where_its_value_is_known(tmp_path: Path) -> None:
    given: dict[str, Any] = {f"bn.{i}.weight": _floats(2) for i in range(2)}
    given |= {f"bn.{i}.num_batches_tracked": np.zeros((), np.int64) for i in range(2)}
    given["rotary.inv_freq"] = _floats(2)
    count = {"value": 0, "shape": [], "dtype": "I64"}
    rules = [
        {"source": "bn.{i}.weight", "target": "norm.{i}.gamma"},
        {"source": "bn.{i}.num_batches_tracked", "drop": "Burn does not count batches", "constant": count},
        {"source": "*.inv_freq", "drop": "computed"},
    ]
    source, path = _written(tmp_path, given), _rules(tmp_path, *rules)
    done = bs.convert(source, tmp_path / "there.bpk", rules=path)
    assert done.left_out["rotary.inv_freq"] == "computed"
    assert done.left_out["bn.1.num_batches_tracked"] == "Burn does not count batches"
    back = bs.convert(tmp_path / "there.bpk", tmp_path / "back.safetensors", rules=path, invert=True)
    del given["rotary.inv_freq"]
    _same(_read(tmp_path / "back.safetensors"), given)
    assert any("*.inv_freq" in note for note in back.notes)


def test_a_copy_is_dropped_if_it_is_one_and_comes_back(tmp_path: Path) -> None:
    given = {"shared": _floats(5, 3)}
    given["encoder"] = given["shared"].copy()
    rules = [{"source": "shared", "target": "s"}, {"source": "encoder", "drop": "a copy", "equals": "shared"}]
    there, back = _there_and_back(tmp_path, given, *rules)
    _same(there, {"s": given["shared"]})
    _same(back, given)
    other = _written(tmp_path, {**given, "encoder": given["shared"] + 1}, "other.safetensors")
    with pytest.raises(ModelError, match="left out as equal to 'shared', and differs"):
        bs.convert(other, tmp_path / "x.bpk", rules=tmp_path / "rules.json")


def test_a_reshaped_scalar(tmp_path: Path) -> None:
    given = {"scale": np.array(2.5, np.float32)}
    rule = {"source": "scale", "target": "scale", "reshape": {"from": [], "to": [1]}}
    there, back = _there_and_back(tmp_path, given, rule)
    assert there["scale"].shape == (1,)
    _same(back, given)


def test_a_cast_has_no_way_back(tmp_path: Path) -> None:
    source = _written(tmp_path, {"a": _floats(2)})
    path = _rules(tmp_path, {"source": "a", "target": "b", "cast": "bf16"})
    bs.convert(source, tmp_path / "there.bpk", rules=path)
    with bs.open(tmp_path / "there.bpk") as file:
        assert str(file["b"].dtype) == "BF16"
    with pytest.raises(ModelError, match="cannot be inverted: 'cast to BF16' has no inverse"):
        bs.convert(tmp_path / "there.bpk", tmp_path / "back.safetensors", rules=path, invert=True)


def test_rules_without_layouts_come_before_the_conversion_of_the_layout(tmp_path: Path) -> None:
    given = {"fc.weight": _floats(4, 3), "norm.weight": _floats(3), "stray": _floats(1)}
    rules = {
        "kinds": {"^fc$": "Linear", "^norm$": "RMSNorm"},
        "tensors": [
            {"source": "norm.weight", "target": "norm.weight", "add_one": True},
            {"source": "stray", "drop": "no"},
        ],
    }
    bs.convert(_written(tmp_path, given), tmp_path / "there.bpk", rules=rules)
    _same(_read(tmp_path / "there.bpk"), {"fc.weight": given["fc.weight"].T, "norm.gamma": 1 + given["norm.weight"]})


def test_rules_apply_to_a_load_and_are_explained(tmp_path: Path) -> None:
    given = {"q_proj.weight": _floats(4, 3), "k_proj.weight": _floats(2, 3)}
    rules = {"tensors": [{"source": list(given), "target": "qk.weight"}]}
    model = {"qk": {"weight": np.zeros((6, 3), np.float32)}}
    source = _written(tmp_path, given)
    plan = bs.explain(source, model, rules=rules, layout="torch")
    assert plan.moves[0].sources == tuple(given)
    assert "joined from 2" in plan.moves[0].steps
    bs.load(model, source, rules=rules, layout="torch")
    np.testing.assert_array_equal(model["qk"]["weight"], np.concatenate(list(given.values())))
    into = bs.explain(source, target=tmp_path / "x.safetensors", rules=rules)
    assert into.moves[0].target == "qk.weight"


@pytest.mark.parametrize(
    ("rule", "error", "words"),
    [
        ({"source": "nothing", "target": "b"}, PatternError, "no tensor is named as in the rule nothing"),
        ({"source": "a", "target": "b", "transpose": True}, ModelError, "only a matrix"),
        ({"source": "a", "target": ["b", "c"]}, ModelError, "not divisible into 2"),
        ({"source": "a", "target": ["b", "c"], "sizes": [1, 1]}, ModelError, "sizes are"),
        ({"source": "a", "target": "b", "permute_rope": {"heads": 2}}, ModelError, "2 heads"),
        ({"source": "a", "target": ["b", "c", "d"], "heads": 2}, ModelError, "2 groups of 3 parts do not divide"),
        ({"source": "a", "target": "b", "heads": 2}, PatternError, "heads is a count"),
        ({"source": "a", "target": ["b", "c"], "heads": 2, "axis": 1}, PatternError, "heads is a count"),
        ({"source": "a", "target": "b", "reshape": {"from": [4], "to": [2, 2]}}, ModelError, "expected \\[4\\]"),
        ({"source": "a", "target": "b", "twist": True}, PatternError, "unknown key 'twist'"),
        ({"source": "a.{i}", "target": "b"}, PatternError, "same placeholders"),
        ({"source": "a*", "target": "b"}, PatternError, "for sources that are dropped"),
        ({"source": "a"}, PatternError, "give source and target"),
        ({"source": "a", "drop": ""}, PatternError, "the reason"),
        ({"target": "a", "constant": {"value": "x", "shape": []}}, PatternError, "a number or one of"),
    ],
)
def test_a_wrong_rule_is_refused_by_name(tmp_path: Path, rule: Any, error: type[Exception], words: str) -> None:
    source, path = _written(tmp_path, {"a": _floats(3)}), _rules(tmp_path, rule, whole=False)
    with pytest.raises(error, match=words):
        bs.convert(source, tmp_path / "there.safetensors", rules=path)
    assert not (tmp_path / "there.safetensors").exists()


def test_nothing_is_left_out_or_used_twice_silently(tmp_path: Path) -> None:
    source = _written(tmp_path, {"a": _floats(3), "b": _floats(3)})
    with pytest.raises(ModelError, match="no rule has this tensor"):
        bs.convert(source, tmp_path / "x.bpk", rules=_rules(tmp_path, {"source": "a", "target": "a"}))
    twice = [{"source": name, "target": f"{name}{at}"} for at, name in enumerate("aab")]
    with pytest.raises(DuplicateNameError, match="two rules use it"):
        bs.convert(source, tmp_path / "x.bpk", rules=_rules(tmp_path, *twice))
    onto = [{"source": name, "target": "c"} for name in "ab"]
    with pytest.raises(DuplicateNameError, match="two rules make"):
        bs.convert(source, tmp_path / "x.bpk", rules=_rules(tmp_path, *onto))


def test_rules_of_the_other_direction_are_refused(tmp_path: Path) -> None:
    path = _rules(tmp_path, {"source": "a", "target": "b"})
    bs.convert(_written(tmp_path, {"a": _floats(3)}), tmp_path / "there.bpk", rules=path)
    with pytest.raises(ModelError, match="the rules take torch's layout, and the source has burn's"):
        bs.convert(tmp_path / "there.bpk", tmp_path / "back.safetensors", rules=path)


def test_toml_has_the_same_form(tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    (tmp_path / "rules.toml").write_text('[kinds]\n"^fc$" = "Linear"\n[[tensors]]\nsource = "a"\ntarget = "b"\n')
    pipeline = bs.Pipeline(rules=tmp_path / "rules.toml")
    assert pipeline.rules == {"^fc$": "Linear"}
    assert pipeline.recipe is not None
    assert pipeline.recipe.rules[0].targets == ("b",)
    for text, words in (("a = [", "not a rules file"), ("other = 1\nx = [1]", "unknown key 'other'")):
        (tmp_path / "rules.toml").write_text(text)
        with pytest.raises(FormatError, match=words):
            bs.Pipeline(rules=tmp_path / "rules.toml")


def test_tensors_on_their_way_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    given = {"q": _floats(8, 5), "g": _floats(8, 1), "v": _floats(8, 5), "f": _floats(8, 5)}
    rules = [
        {"source": "q", "target": "q", "permute_rope": {"heads": 2}, "add_one": True},
        {"source": ["g", "v"], "target": "w", "fold_weight_norm": True},
        {"source": "f", "target": ["f.0", "f.1"], "heads": 2},
    ]
    with bs.open(_written(tmp_path, given)) as file:
        made = recipe_from({"tensors": rules}).apply({name: file[name] for name in file}).made
        for snapshot, _, _ in made.values():
            assert pickle.loads(pickle.dumps(snapshot)).to_bytes() == snapshot.to_bytes()


_EDITED = """\
source_layout = "torch"
target_layout = "burn"
# "q.weight" is a comment
tensors = [
  { source = "q.weight", target = "a.weight" },
  { source = "q.weight", target = "q.weight", tie = true EDIT },
  { source = "v.weight", target = TARGET },
]
"""


@pytest.mark.parametrize(
    ("edit", "target", "message"),
    [
        (', taget = "x"', '"v"', "r.toml: line 6, rule 2 .*unknown key 'taget'; did you mean 'target'"),
        (', transpose = "no"', '"v"', "line 6, .*transpose is true or false, got 'no'"),
        (", add_one = 1", '"v"', "line 6, .*add_one is true or false, got 1"),
        (", fold_weight_norm = false", '"v"', "line 6, .*fold_weight_norm is a table of axis, got False"),
        (", permute_rope = 2", '"v"', "line 6, .*permute_rope is a table of heads, to, got 2"),
        (', permute_rope = { heads = 2, too = "halves" }', '"v"', "line 6, .*unknown key 'too'; did you mean 'to'"),
        (", permute_rope = { heads = [2, 2] }", '"v"', "line 6, .*one number per target"),
        (", permute_rope = { heads = 3 }", '"v"', r"3 heads of pairs do not divide \[line 6 of the rules\]"),
        (', reshape = { from = "8", to = [64] }', '"v"', "line 6, .*from must be a list of counts"),
        (", axis = 1", '"v"', "line 6, .*axis is a number, for several sources or targets"),
        ("", '["v", "w"], axis = 5', r"it has no axis 5: its shape is \[12, 4\] \[line 7 of the rules\]"),
        ("", '["v", "w"], axis = -3', "it has no axis -3"),
        ("", '["v", "w"], sizes = "12"', "line 7, .*sizes must be a list of counts, got '12'"),
        ("", '["v", "w"], sizes = [5, 6]', r"sizes are \[5, 6\] \[line 7 of the rules\]"),
        (
            "",
            '"q.weight"',
            r"two rules make this tensor: q.weight → q.weight \(line 6\) and v.weight → q.weight \(line 7\)",
        ),
        ("", '"v", cast = "f61"', "line 7, .*unknown dtype 'F61'"),
        (' }, "v.weight', '"v"', "not a rules file: .*at line 6"),
        (' }, "v.weight", { source = "v.weight"', '"v"', "line 6, rule 3 of tensors, v.weight: a rule is a table of"),
        (
            "",
            '"v" }, { source = "v.weight", target = "w"',
            r"two rules use it: .*\(line 7\) and v.weight → w \(line 7\)",
        ),
    ],
)
def test_a_wrong_edit_is_refused_with_its_line(edit: str, target: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    tensors = {"q.weight": np.ones((8, 8), np.float32), "v.weight": np.ones((12, 4), np.float32)}
    bs.save(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    text = _EDITED.replace(" EDIT", edit).replace("TARGET", target)
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    with pytest.raises(bs.BurnstoreError, match=message):
        bs.convert(tmp_path / "m.safetensors", tmp_path / "m.bpk", rules=tmp_path / "r.toml")
    assert not (tmp_path / "m.bpk").exists()


@pytest.mark.parametrize("invert", [False, True])
def test_rules_for_the_other_direction_are_refused_with_what_to_do(invert: bool, tmp_path: Path) -> None:
    rules = _rules(tmp_path, {"source": "a", "target": "b"})
    name = "in.safetensors" if invert else "in.bpk"
    _written(tmp_path, {"a": _floats(2)}, name, "torch" if invert else "burn")
    layout = None if invert else "burn"
    with pytest.raises(ModelError, match="the rules take") as caught:
        bs.convert(tmp_path / name, tmp_path / "out.bpk", rules=rules, invert=invert, layout=layout)
    assert "pass invert=True, or leave it out" in str(caught.value.hint)
