"""Hints are followed: what a hint says is done, and the error is gone."""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import errors
from burnstore.cli import main

nn = torch.nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.norm = nn.LayerNorm(2)


def normed() -> nn.Module:
    conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old form is deprecated, and in many files
        old = nn.utils.weight_norm(nn.Conv1d(2, 3, 3))
    return nn.ModuleDict({"a": nn.Sequential(conv, nn.Conv1d(2, 3, 3)), "b": old})


def plain(model: nn.Module) -> nn.Module:
    """Follow the hint about a live model with a weight norm."""
    for module in model.modules():
        if hasattr(module, "parametrizations"):
            nn.utils.parametrize.remove_parametrizations(module, "weight")
        elif hasattr(module, "weight_g"):
            nn.utils.remove_weight_norm(module)
    return model


class Plus(nn.Module):
    """Gemma's norms, in lists and outside of them."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

        self.layers = nn.ModuleList([nn.ModuleDict({"in": GemmaRMSNorm(4), "fc": nn.Linear(4, 4)}) for _ in range(2)])
        self.norm = GemmaRMSNorm(4)


def refused(verb: str, call: Callable[[], Any]) -> str:
    """Return the hint of the error that a public function raises, which names only options of that function."""
    with pytest.raises(errors.BurnstoreError) as caught:
        call()
    hint = caught.value.hint
    assert hint, caught.value
    known = inspect.signature(getattr(bs, verb)).parameters
    for match in re.finditer(errors._CALL_OR_OPTION, str(hint)):
        if match["option"]:
            assert match["option"] in known, f"{verb} has no {match['option']}: {hint}"
        elif match["call"].startswith("burnstore."):
            function = getattr(bs, match["call"].split("(")[0].split(".")[1])
            words = re.findall(r"(\w+)=", match["call"])
            accepted = inspect.signature(function).parameters
            assert "options" in accepted or set(words) <= set(accepted), hint
    return str(hint)


def rules_in(hint: str, folder: Path) -> Path:
    """Return a rules file with the lines that a hint shows."""
    lines = re.findall(r"(?:kinds = \{.*\}|tensors = \[.*\])", hint)
    assert lines, hint
    path = folder / "rules.toml"
    path.write_text("\n".join(lines))
    return path


def test_the_rules_for_norms_that_add_one_work(tmp_path: Path) -> None:
    model, target = Plus(), tmp_path / "a.bpk"
    with torch.no_grad():
        model.norm.weight += 0.5
    hint = refused("save", lambda: bs.save(model, target))
    assert ".safetensors" in hint and "burnstore.convert(source, target, like=model, rules=path)" in hint
    source = tmp_path / "a.safetensors"
    bs.save(model, source)
    for asked in (hint, refused("convert", lambda: bs.convert(source, target, like=model))):
        bs.convert(source, target, like=model, rules=rules_in(asked, tmp_path), overwrite=True)
        with bs.open(target) as file:
            assert np.allclose(file["norm.gamma"], 1.5) and np.allclose(file["layers.1.in.gamma"], 1)


def test_the_rules_for_a_weight_norm_work(tmp_path: Path) -> None:
    model, source, target = normed(), tmp_path / "a.safetensors", tmp_path / "a.bpk"
    bs.save(model, source)
    weight = model["a"][0].weight.detach().numpy().copy()
    hints = [
        refused("save", lambda: bs.save(model, target)),
        refused("convert", lambda: bs.convert(source, target, like=model)),
        refused("convert", lambda: bs.convert(source, target, like=plain(normed()))),
        refused("convert", lambda: bs.convert(source, target)),
        refused("load", lambda: bs.load(plain(normed()), source)),
    ]
    for hint in hints:
        rules = rules_in(hint, tmp_path)
        bs.convert(source, target, like=plain(normed()), rules=rules, overwrite=True)
        other = plain(normed())
        bs.load(other, source, rules=rules)
        assert np.allclose(other["a"][0].weight.detach().numpy(), weight)
        with bs.open(target) as file:
            assert np.allclose(file["a.0.weight"], weight)
    assert "remove_weight_norm" in hints[0]
    bs.save(plain(model), target, overwrite=True)


def test_the_ways_out_of_unknown_modules_work(tmp_path: Path) -> None:
    source, target = tmp_path / "a.pt", tmp_path / "a.bpk"
    torch.save(Net().state_dict(), source)
    hint = refused("convert", lambda: bs.convert(source, target))
    for way in (
        {"like": Net()},
        {"rules": {"^fc$": "Linear", "^norm$": "LayerNorm"}},
        {"guess": True},
        {"keep_layout": True},
    ):
        assert all(f"{option}=" in hint for option in way)
        bs.convert(source, target, overwrite=True, **way)  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    assert "like= a transformers.BertModel, which config.json names" in refused(
        "convert", lambda: bs.convert(source, tmp_path / "b.bpk")
    )
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DModel"}))
    assert "diffusers.UNet2DModel" in refused("convert", lambda: bs.convert(source, tmp_path / "b.bpk"))


def test_the_ways_out_of_a_refused_module_work(tmp_path: Path) -> None:
    model, target = nn.Bilinear(2, 3, 4), tmp_path / "a.bpk"
    hint = refused("save", lambda: bs.save(model, target))
    assert 'layout="torch"' in hint and 'rules={pattern: "AsIs"}' in hint and "keep_layout" not in hint
    bs.save(model, target, rules={"^$": "AsIs"})
    bs.save(model, target, layout="torch", overwrite=True)
    store = bs.BurnpackStore.from_file(target).overwrite(True)
    with pytest.raises(errors.ModelError) as caught:
        store.save(model)
    assert '.layout("torch")' in str(caught.value.hint) and ".rules(" in str(caught.value.hint)
    store.layout("torch").save(model)


def test_a_prefix_is_renamed_as_the_hint_says(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    bs.save({f"net.{name}": value for name, value in Net().state_dict().items()}, source, metadata={"format": "pt"})
    hint = refused("load", lambda: bs.load(Net(), source))
    match = re.search(r"rename=(\[r'.*?'\])", hint)
    assert match
    bs.load(Net(), source, rename=eval(match[1]))  # what a reader pastes
    with pytest.raises(errors.LoadError) as caught:
        bs.SafetensorsStore.from_file(source).load(Net())
    assert f".remap({match[1]})" in str(caught.value.hint)
    bs.SafetensorsStore.from_file(source).remap(eval(match[1])).load(Net())


def test_missing_and_unfit_tensors(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    bs.save({"fc.weight": np.zeros((2, 3), "f4")}, source, metadata={"format": "pt"})
    assert "allow_partial=True" in refused("load", lambda: bs.load(Net(), source))
    bs.load(Net(), source, allow_partial=True)
    bs.save({"fc.weight": np.zeros((7, 7), "f4")}, source, metadata={"format": "pt"}, overwrite=True)
    with pytest.raises(errors.LoadError) as caught:
        bs.load(Net(), source, allow_partial=True)
    assert caught.value.path == str(source) and "applied" not in str(caught.value)
    assert "the model is unchanged" in str(caught.value) and "validate=False" in str(caught.value.hint)
    assert bs.load(Net(), source, allow_partial=True, validate=False, pipeline=None).errors


def test_an_unstated_layout_is_stated(tmp_path: Path) -> None:
    source, target = tmp_path / "a.safetensors", tmp_path / "a.bpk"
    bs.save({"fc.weight": np.zeros((2, 3), "f4")}, source, metadata={})
    hint = refused("convert", lambda: bs.convert(source, target))
    assert 'layout="torch"' in hint and 'layout="burn"' in hint
    bs.convert(source, target, layout="torch", rules={"^fc$": "Linear"})
    bs.convert(source, target, layout="burn", overwrite=True)


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    source, target = tmp_path / "a.bpk", tmp_path / "b.bpk"
    bs.save({"a.0.w": np.zeros(2, "f4"), "a.1.w": np.ones(2, "f4")}, source, layout="burn")
    rename = [r"\.\d\.=>."]
    hint = refused("convert", lambda: bs.convert(source, target, rename=rename))
    assert 'pipeline=Pipeline(on_collision="first")' in hint
    bs.convert(source, target, rename=rename, pipeline=bs.Pipeline(on_collision="first"))
    store = bs.BurnpackStore.from_file(source).remap(rename)
    with pytest.raises(errors.DuplicateNameError) as caught:
        store.keys()
    assert '.on_collision("first")' in str(caught.value.hint)
    assert store.on_collision("first").keys() == ["a.w"]


def test_limits_are_raised_as_the_hint_says(tmp_path: Path) -> None:
    source = tmp_path / "a.bpk"
    bs.save({f"t{at}": np.zeros(1, "f4") for at in range(9)}, source, layout="burn")
    hint = refused("open", lambda: bs.open(source, limits=bs.Limits(tensors=3)))
    match = re.search(r"Limits\(tensors=(\d+)\)", hint)
    assert match
    bs.open(source, limits=bs.Limits(tensors=int(match[1]))).close()


def test_a_damaged_file_is_salvaged(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"
    torch.save({f"w{at}": torch.ones(3000) for at in range(4)}, source)
    source.write_bytes(source.read_bytes()[:-20_000])
    for verb, call in (
        ("open", lambda: bs.open(source)),
        ("convert", lambda: bs.convert(source, tmp_path / "b.safetensors")),
    ):
        assert "burnstore.open(path, salvage=True)" in refused(verb, call)
    with bs.open(source, salvage=True) as file:
        assert len(file) >= 1


def test_options_of_a_write(tmp_path: Path) -> None:
    source, target = tmp_path / "a.bpk", tmp_path / "b.bpk"
    bs.save({"w": np.zeros(2, "f4")}, source, layout="burn")
    assert refused("save", lambda: bs.save({"w": np.zeros(2)}, source)) == "pass overwrite=True"
    bs.save({"w": np.ones(2, "f4")}, source, overwrite=True, layout="burn")
    assert 'format="safetensors"' in refused("save", lambda: bs.save({"w": np.zeros(2)}, tmp_path / "a.xyz"))
    bs.save({"w": np.zeros(2)}, tmp_path / "a.xyz", format="safetensors")
    bs.save({"w": np.zeros(2, "f4")}, target, layout="burn")
    sources = [source, target]
    hint = refused("merge", lambda: bs.merge(sources, tmp_path / "c.bpk"))
    assert 'conflicts="first"' in hint
    for at, conflicts in enumerate(("first", "last", "skip")):
        if conflicts != "skip":
            bs.merge(sources, tmp_path / f"c{at}.bpk", conflicts=conflicts)
    hint = refused("merge", lambda: bs.merge(sources, tmp_path / "d.bpk", method="linear", weights=[1, 2]))
    assert "normalize=True" in hint
    bs.merge(sources, tmp_path / "d.bpk", method="linear", weights=[1, 2], normalize=True)
    hint = refused("convert", lambda: bs.convert(source, tmp_path / "e.bpk", rename=["^w=>x"], filter="^w"))
    assert "write the new names, because rename= comes first" in hint
    bs.convert(source, tmp_path / "e.bpk", rename=["^w=>x"], filter="^x")


FLAG = re.compile(r"--[a-z][a-z-]*")


def cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the hint that a verb prints, which names only options of that verb."""
    from hints.test_inventory import FLAGS

    assert main([str(each) for each in arguments]) == 2
    shown = capsys.readouterr().err
    hint = shown.partition("hint: ")[2]
    assert hint, shown
    own = re.sub(r"burnstore [a-z]+ [^,;]*", "", hint)
    assert set(FLAG.findall(own)) <= FLAGS[str(arguments[0])], hint
    if not hint.startswith("in Python: "):
        for match in re.finditer(errors._CALL_OR_OPTION, hint.partition("tensors = [")[0]):
            assert match["option"] is None, hint
    return hint


def test_verbs_name_their_own_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, unstated, target = tmp_path / "a.pt", tmp_path / "u.safetensors", tmp_path / "a.bpk"
    torch.save(Net().state_dict(), source)
    bs.save({"fc.weight": np.zeros((2, 3), "f4")}, unstated, metadata={})
    bs.save({"fc.weight": np.zeros((2, 3), "f4")}, target, layout="burn")
    assert cli(capsys, "convert", source, target) == "pass --overwrite\n"
    hint = cli(capsys, "convert", source, tmp_path / "n.bpk")
    assert all(way in hint for way in ("--like MODULE:NAME", "--rules FILE", "--guess", "--keep-layout"))
    assert "--layout torch" in cli(capsys, "convert", unstated, tmp_path / "n.bpk")
    assert "--layout" in cli(capsys, "merge", unstated, target, tmp_path / "n.bpk")
    assert "--guess" in cli(capsys, "diff", source, target)
    assert "--guess" in cli(capsys, "report", source, target, "-o", tmp_path / "page.html")
    cli(capsys, "convert", source, tmp_path / "n.bpk", "--rename", r"\.weight=>.x", "--rename", r"\.bias=>.x")
    cli(capsys, "convert", source, tmp_path / "n.bpk", "--filter", "^nothing", "--guess")
    cli(capsys, "map", source, "--like", target)
    cli(capsys, "verify", source, "--receipt", target)
    broken = tmp_path / "b.pt"
    torch.save({f"w{at}": torch.ones(3000) for at in range(4)}, broken)
    broken.write_bytes(broken.read_bytes()[:-20_000])
    for verb in ("inspect", "verify"):
        assert cli(capsys, verb, broken).startswith("in Python: burnstore.open(path, salvage=True)")
    assert cli(capsys, "convert", broken, tmp_path / "n.safetensors").startswith("in Python: ")


def test_a_pattern_is_printed_as_it_was_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a.bpk"
    bs.save({"encoder.w": np.zeros(2, "f4")}, source, layout="burn")
    assert main(["convert", str(source), str(tmp_path / "b.bpk"), "--filter", r"^decoder\.\w's"]) == 2
    assert r"the filter '^decoder\.\w'\''s' matched" in capsys.readouterr().err
    assert main(["inspect", str(source), "--filter", r"^encoder\."]) == 0
    assert r"filter    '^encoder\.' matches" in capsys.readouterr().out
    with pytest.raises(errors.PatternError, match=re.escape(r"'(\d' ".strip())):
        bs.convert(source, tmp_path / "b.bpk", filter=r"(\d")


def test_a_file_that_exists_is_refused_before_a_model_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bs.save({"w": np.zeros(2, "f4")}, "a.bpk", layout="burn")
    Path("heavy.py").write_text("raise SystemExit('imported')")
    for verb in (
        ["convert", "missing.pt", "a.bpk", "--like", "heavy:Net"],
        ["merge", "missing.bpk", "a.bpk", "--like", "heavy:Net"],
        ["report", "missing.bpk", "other.bpk", "-o", "a.bpk", "--like", "heavy:Net"],
    ):
        assert main(verb) == 2
        assert "File already exists; hint: pass --overwrite" in capsys.readouterr().err
    for call in (
        lambda: bs.convert("missing.pt", "a.bpk"),
        lambda: bs.merge(["missing.bpk"], "a.bpk"),
        lambda: bs.save(object(), "a.bpk"),
    ):
        with pytest.raises(errors.AlreadyExistsError):
            call()


def test_a_model_is_named_with_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net_with_size.py").write_text(
        "import torch\ndef make(n, bias=True):\n    return torch.nn.Linear(n, 2, bias)\n"
    )
    torch.save(nn.Linear(3, 2, False).state_dict(), "a.pt")
    assert main(["convert", "a.pt", "a.bpk", "--like", "net_with_size:make(3, bias=False)"]) == 0
    capsys.readouterr()
    for wrong in ("make(open('x'))", "make(n)", "make(*[1])", "make(3)(4)", "make(**{})"):
        assert main(["convert", "a.pt", "b.bpk", "--like", f"net_with_size:{wrong}"]) == 2
        assert "are not literals of Python" in capsys.readouterr().err
    assert main(["convert", "a.pt", "b.bpk", "--like", "net_with_size:make(1, 2, 3)"]) == 2
    assert "make" in capsys.readouterr().err


_ARGUMENTS: dict[Any, tuple[Any, ...]] = {bs.load: ({}, "a.bpk"), bs.save: ({}, "a.bpk")}


def test_misspelt_options_are_explained() -> None:
    for function, option, words in (
        (bs.load, "stric", "load has no option 'stric'"),
        (bs.load, "allow_partail", "did you mean 'allow_partial'"),
        (bs.load, "map_location", "device="),
        (bs.save, "overwrit", "did you mean 'overwrite'"),
        (bs.verify, "digset", "did you mean 'digest'"),
        (bs.inspect, "patern", "did you mean 'pattern'"),
        (bs.report, "tolerence", "did you mean 'tolerance'"),
        (bs.scan, "limit", "did you mean 'limits'"),
    ):
        with pytest.raises(TypeError, match=words) as caught:
            function(*_ARGUMENTS.get(function, ("a.bpk",)), **{option: 1})  # type: ignore[operator]
        assert "unexpected keyword" not in str(caught.value)


def test_streams_are_read_or_explained(tmp_path: Path) -> None:
    import io

    def problem(call: Callable[[], Any]) -> str:
        try:
            call()
        except (TypeError, errors.BurnstoreError) as error:
            return str(error)
        return ""

    packed = bs.serialize({"w": np.zeros(2, "f4")}, format="burnpack", layout="burn")
    for function in (bs.open, bs.inspect, bs.verify, bs.scan):
        found = problem(lambda function=function: function(io.BytesIO(packed)))  # type: ignore[misc]
        assert not found or "write it to a file first" in found, function
