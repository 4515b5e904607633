"""`prove`: outputs decide whether a mapping is right, name the module that is not, and say what they do not show."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main
from burnstore.models.recording import FORWARD_KEY, Recording, recording_of

torch = pytest.importorskip("torch")
adversaries = pytest.importorskip("prove_adversaries")


def _recorded(folder: Path, name: str = "layers", **options: Any) -> tuple[Any, Path]:
    case = adversaries.case_of(name, 3, **options)
    path = folder / "model.outline.bpk"
    adversaries.write(case, path, with_inner=False)
    return case, path


def _with(path: Path, metadata: dict[str, str]) -> None:
    with bs.open(path) as file:
        tensors = {name: file[name].numpy(copy=True) for name in file}
        kept = {**file.metadata, **metadata}
    bs.save(tensors, path, metadata=kept, layout="burn", overwrite=True)


@pytest.mark.parametrize("name", adversaries.MODELS)
def test_a_right_mapping_is_proved(name: str, tmp_path: Path) -> None:
    case, path = _recorded(tmp_path, name)
    before = {key: held.clone() for key, held in case.values.items()}
    adversaries.stir(case.model)
    own = {key: held.clone() for key, held in case.values.items()}
    found = bs.prove(path, model=case.model, rules=adversaries.document(case.rules))
    assert (found.outcome, found.uncovered, bool(found)) == ("proved", [], True)
    assert found.compared[-1].error < 1e-5
    assert all(torch.equal(held, own[key]) for key, held in case.values.items())  # the model is unchanged
    assert any(not torch.equal(held, before[key]) for key, held in case.values.items())


@pytest.mark.parametrize("number", [2, 4, 7, 9])
def test_a_planted_mistake_is_found_and_its_module_named(number: int, tmp_path: Path) -> None:
    _, _, result, changed = adversaries.run_case(number, 1, tmp_path)
    assert result.outcome == "differs" and not result
    assert adversaries.is_named(result, changed)


@pytest.mark.slow("many small searches")
@pytest.mark.parametrize("number", range(40, 60))
def test_more_planted_mistakes_are_found_and_named(number: int, tmp_path: Path) -> None:
    """Two mistakes at once and no recorded outputs in between can be too much for the search: then it only guesses."""
    _, _, result, changed = adversaries.run_case(number, 2, tmp_path)
    assert result.outcome == "differs"
    assert adversaries.is_named(result, changed) or not any(suspect.explains for suspect in result.suspects)


def test_equal_values_prove_nothing_about_their_places(tmp_path: Path) -> None:
    """Norms of an untrained model are ones and zeros: exchanged, they compute the same."""
    case, path = _recorded(tmp_path, is_stirred=False)
    rules = copy.deepcopy(case.rules)
    adversaries.exchange(rules, [("norms.0", "norms.1")])
    found = bs.prove(path, model=case.model, rules=adversaries.document(rules))
    assert found.outcome == "agrees" and not found
    assert any("norms.0.gamma has the same values as" in text for text in found.uncovered)


def test_a_tensor_without_influence_is_not_proved(tmp_path: Path) -> None:
    case, path = _recorded(tmp_path, "transformer")
    tokens = np.zeros((1, 1), np.int64)  # one position: no softmax has a choice, and no other position is used
    case.inputs = {"tokens": tokens}
    adversaries.write(case, path, with_inner=False)
    found = bs.prove(path, model=case.model, rules=adversaries.document(case.rules))
    assert found.outcome == "agrees"
    assert any("query.weight" in text for text in found.uncovered)


def test_questions_of_a_mapping_are_answered_by_the_outputs(tmp_path: Path) -> None:
    case, path = _recorded(tmp_path, "rotary")
    weights = tmp_path / "model.safetensors"
    bs.save(dict(case.values), weights, metadata={"format": "pt"})
    asked = bs.map_names(weights, like=path)
    assert not asked.ok
    found = bs.prove(path, model=case.model, weights=weights)
    assert found.outcome in ("proved", "differs")
    if found.outcome == "proved":
        found.save_rules(tmp_path / "rules.toml")
        done = bs.convert(weights, tmp_path / "model.bpk", rules=tmp_path / "rules.toml", like=path)
        assert done.tensors == len(case.rules)


def test_a_converted_file_is_a_verified_copy_or_another(tmp_path: Path) -> None:
    case, path = _recorded(tmp_path)
    adversaries.stir(case.model)
    weights, rules = tmp_path / "model.safetensors", adversaries.document(case.rules)
    bs.save(dict(case.values), weights, metadata={"format": "pt"})
    bs.convert(weights, tmp_path / "model.bpk", rules=rules)
    options: dict[str, Any] = {"like": path, "model": case.model, "weights": weights, "rules": rules}
    found = bs.prove(tmp_path / "model.bpk", **options)
    assert (found.ok, found.outcome, found.is_copy) == (True, "proved", True)
    with bs.open(tmp_path / "model.bpk") as file:
        tensors = {name: file[name].numpy(copy=True) for name in file}
    tensors["scale"][0] += 1
    bs.save(tensors, tmp_path / "other.bpk", layout="burn")
    found = bs.prove(tmp_path / "other.bpk", **options)
    assert (found.ok, found.outcome, found.is_copy) == (False, "proved", False)
    assert any(note.subject == "scale" for note in found.notes)


def test_a_file_recorded_after_training_needs_no_checkpoint(tmp_path: Path) -> None:
    case, path = _recorded(tmp_path)
    found = bs.prove(path, model=adversaries.case_of("layers", 9).model, rules=adversaries.document(case.rules))
    assert found.ok and found.is_copy is None


def test_a_forward_pass_that_differs_elsewhere_is_not_explained(tmp_path: Path) -> None:
    case, path = _recorded(tmp_path)
    with bs.open(path) as file:
        recording = recording_of(file.metadata)
    assert recording is not None
    other = Recording(recording.inputs, {"output": recording.outputs["output"] * 1.5})
    _with(path, {FORWARD_KEY: other.to_text()})
    found = bs.prove(path, model=case.model, rules=adversaries.document(case.rules), seconds=5)
    assert found.outcome == "differs"
    assert not any(suspect.explains for suspect in found.suspects)
    assert any(note.kind == "hint" for note in found.notes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "damaged"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1, "inputs": [], "outputs": [], "inner": []}', "no input"),
        (json.dumps({"format": 1, "inputs": [{"name": "x", "dtype": "F32", "shape": [2], "data": "AAAA"}]}), "damaged"),
        (
            json.dumps(
                {
                    "format": 1,
                    "inputs": [{"name": "x", "dtype": "F32", "shape": [2], "data": "AAAAAA=="}],
                    "outputs": [],
                    "inner": [],
                }
            ),
            "4 bytes",
        ),
    ],
)
def test_a_damaged_recording_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    case, path = _recorded(tmp_path)
    _with(path, {FORWARD_KEY: text})
    with pytest.raises(bs.BurnstoreError, match=problem):
        bs.prove(path, model=case.model, rules=adversaries.document(case.rules))


def test_what_cannot_be_proved_is_an_error_with_a_hint(tmp_path: Path) -> None:
    case, path = _recorded(tmp_path)
    bs.save({"w": np.ones(2, np.float32)}, tmp_path / "plain.bpk", layout="burn")
    with pytest.raises(bs.BurnstoreError, match="no recorded forward pass"):
        bs.prove(tmp_path / "plain.bpk", model=case.model)
    with pytest.raises(bs.BurnstoreError, match="no such tensor"):
        bs.prove(path, model=torch.nn.Linear(7, 7), rules=adversaries.document(case.rules))
    with pytest.raises(bs.BurnstoreError, match="do not state how each tensor"):
        bs.prove(path, model=case.model, rules={"^fc$": "Linear"})
    with pytest.raises(bs.BurnstoreError, match="no parameter 'y'"):
        bs.prove(path, model=case.model, rules=adversaries.document(case.rules), names={"x": "y"})


def test_the_command_line_proves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    case, _ = _recorded(tmp_path)
    monkeypatch.chdir(tmp_path)
    from burnstore.jobs.map.rules import toml

    rules = "".join(f"  {toml(rule)},\n" for rule in case.rules)
    text = f'source_layout = "torch"\ntarget_layout = "burn"\ntensors = [\n{rules}]\n'
    Path("rules.toml").write_text(text, encoding="utf-8")
    arguments = ["prove", "model.outline.bpk", "--torch", "prove_adversaries:Layers", "--rules", "rules.toml"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "model.outline.bpk: proved"
    Path("rules.toml").write_text(
        text.replace('"norms.0.gamma"', '"?"')
        .replace('"norms.2.gamma"', '"norms.0.gamma"')
        .replace('"?"', '"norms.2.gamma"'),
        encoding="utf-8",
    )
    assert main(arguments) == 1
    shown = capsys.readouterr().out
    assert "first difference in norms" in shown and "without this, the outputs agree" in shown
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["outcome"] == "differs"


def test_a_conversion_leaves_the_recording_out_with_a_note(tmp_path: Path) -> None:
    _, path = _recorded(tmp_path)
    done = bs.convert(path, tmp_path / "copy.bpk", cast="bf16")
    with bs.open(tmp_path / "copy.bpk") as file:
        assert FORWARD_KEY not in file.metadata
    assert any(note.subject == FORWARD_KEY for note in done.notes)
