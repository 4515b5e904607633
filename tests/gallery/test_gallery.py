"""Each model of the gallery: its outline is the target, real Burn loads strictly, and outputs are torch's."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.models.outline import outline_of

from .conftest import Gallery

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("torchvision")
pytest.importorskip("tomllib")

from . import sources
from .convert import converted, rules_of

RULES = Path(__file__).resolve().parents[2] / "docs" / "gallery" / "rules"

RTOL = 1e-5
"""Far below 1e-3: the two forms of GELU differ by some 5e-5."""

_ASKED = os.environ.get("GALLERY", "llama").split()
CASES = list(sources.CASES) if _ASKED == ["all"] else _ASKED


@dataclass(frozen=True)
class Case:
    """A model on both sides."""

    gallery: Gallery
    name: str
    model: str
    source: sources.Source
    folder: Path

    @property
    def outline(self) -> Path:
        return self.folder / "model.outline.bpk"

    def tensors(self, rules: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The checkpoint's tensors as Burn has them, by the expected mapping or another."""
        return converted(self.source.checkpoint, self.outline, rules or rules_of(self.model), self.source.numbers)

    def complaint(self, tensors: Mapping[str, Any], name: str) -> str:
        """Return Burn's error for these tensors; it is empty, and outputs are written, if there is none."""
        bs.save(tensors, self.folder / f"{name}.bpk", overwrite=True)
        bs.save(dict(self.source.inputs), self.folder / "inputs.bpk", overwrite=True)
        words = (self.source.config, *(self.folder / f"{each}.bpk" for each in (name, "inputs", f"{name}.out")))
        return self.gallery.run(self.model, "forward", *words)

    def outputs(self, tensors: Mapping[str, Any], name: str) -> dict[str, Any]:
        assert self.complaint(tensors, name) == ""
        with bs.open(self.folder / f"{name}.out.bpk") as found:
            return {each: found[each].numpy() for each in found}


@pytest.fixture(scope="session", params=CASES)
def case(request: pytest.FixtureRequest, gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    model = request.param.partition("-")[0]
    found = Case(gallery, request.param, model, sources.make(request.param, folder), folder)
    assert gallery.run(model, "outline", found.source.config, found.outline) == ""
    return found


def _error(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """The largest difference of any output, as a part of its largest number."""
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name].shape == values.shape
        assert np.isfinite(found[name]).all()
    return max(float(np.abs(found[name] - values).max() / np.abs(values).max()) for name, values in wanted.items())


def test_burn_loads_the_converted_file_and_computes_what_torch_computes(
    case: Case, record_property: Callable[[str, object], None]
) -> None:
    error = _error(case.outputs(case.tensors(), "model"), case.source.outputs)
    record_property("error", f"{case.model}: {error:.1e}")
    print(f"{case.folder.name}: largest error {error:.1e}")
    assert error < RTOL


def test_map_finds_the_expected_mapping_without_a_line_of_the_user(case: Case) -> None:
    """The rules in docs/gallery are what map finds; burnstore follows them to the same bits as the tests' own NumPy."""
    rope = "halves" if case.model == "llama" else None
    found = bs.map_names(case.source.checkpoint, like=case.outline, rope=rope)
    assert found.ok
    assert found.text == (RULES / f"{case.name}.toml").read_text(encoding="utf-8")
    path = case.folder / "mapped.bpk"
    bs.convert(case.source.checkpoint, path, like=case.outline, map=True, rope=rope, overwrite=True)
    wanted = case.tensors()
    with bs.open(path) as file:
        tensors = {name: file[name].numpy() for name in file}
    assert tensors.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(tensors[name], values, err_msg=name)
    assert _error(case.outputs(tensors, "by_map"), case.source.outputs) < RTOL


NAMES = {
    "bert": {"tokens": "input_ids", "types": "token_type_ids", "mask": "attention_mask", "hidden": "last_hidden_state"}
    | {"pooled": "pooler_output"},
    "gpt2": {"tokens": "input_ids"},
    "llama": {"tokens": "input_ids"},
    # Without ViT: transformers saves it under other names than its modules have, and prove refuses that.
    "resnet": {"images": "x"},
}
"""The names of PyTorch for what the gallery feeds its models and gets from them."""


@pytest.mark.parametrize("case", [each for each in CASES if each.partition("-")[0] in NAMES], indirect=True)
def test_the_mapping_is_proved_by_the_outputs_of_burn(case: Case) -> None:
    """Burn records a stirred model, and later the one with the checkpoint's values; a mistake in the rules shows."""
    inputs, recorded, trained = (case.folder / f"{name}.bpk" for name in ("fed", "recorded.outline", "trained.outline"))
    bs.save(dict(case.source.inputs), inputs, overwrite=True)
    assert case.gallery.run(case.model, "record", case.source.config, inputs, recorded) == ""
    rules = RULES / f"{case.name}.toml"
    converted = case.folder / "proved.bpk"
    bs.convert(case.source.checkpoint, converted, rules=rules, overwrite=True)
    options: dict[str, Any] = {"model": case.source.model, "names": NAMES[case.model]}
    found = bs.prove(converted, like=recorded, weights=case.source.checkpoint, rules=rules, **options)
    print(case.name, found)
    assert (found.outcome, found.is_copy) == ("proved", True)
    assert case.gallery.run(case.model, "record", case.source.config, inputs, trained, converted) == ""
    assert bs.prove(trained, rules=rules, **options).outcome != "differs"
    wrong = _wrong_rules(rules.read_text(encoding="utf-8"))
    if wrong is not None:
        (case.folder / "wrong.toml").write_text(wrong, encoding="utf-8")
        assert bs.prove(recorded, rules=case.folder / "wrong.toml", **options, seconds=20).outcome == "differs"


def _wrong_rules(text: str) -> str | None:
    """Return rules with the query and the value exchanged, where the model has both as separate layers."""
    if ".key." not in text or '["' in text:
        return None
    return text.replace(".key.", ".?.").replace(".value.", ".key.").replace(".?.", ".value.")


def test_the_way_back_gives_the_checkpoint_again(case: Case) -> None:
    rules = RULES / f"{case.name}.toml"
    done = bs.convert(case.source.checkpoint, case.folder / "there.bpk", rules=rules, overwrite=True)
    bs.convert(case.folder / "there.bpk", case.folder / "back.safetensors", rules=rules, invert=True, overwrite=True)
    with bs.open(case.folder / "back.safetensors") as back, bs.open(case.source.checkpoint) as given:
        assert set(given) - set(back) <= done.left_out.keys()
        for name in back:
            np.testing.assert_array_equal(back[name].numpy(), given[name].numpy(), err_msg=name)


def test_the_outline_declares_every_tensor_and_the_kind_of_its_module(case: Case) -> None:
    with bs.open(case.outline) as file:
        outline = outline_of(file.metadata)
        assert outline is not None
        for path in file:
            assert path.rpartition(".")[0] in outline.modules


def test_a_lost_tensor_is_not_loaded(case: Case) -> None:
    tensors = case.tensors()
    lost = list(tensors)[len(tensors) // 2]
    del tensors[lost]
    assert lost in case.complaint(tensors, "lost")


def test_a_tensor_too_many_is_not_loaded(case: Case) -> None:
    assert "stray" in case.complaint({**case.tensors(), "stray": np.zeros(3, np.float32)}, "stray")


def test_other_values_in_any_module_give_other_outputs(case: Case) -> None:
    """Each tensor counts, apart from the biases of keys: a softmax does not see them."""
    tensors = case.tensors()
    for path in [path for path in tensors if not path.endswith("key.bias")][3::7]:
        noise = np.random.default_rng(5).random(tensors[path].shape, np.float32)  # positive: variances stay so
        changed = {**tensors, path: tensors[path] + noise}
        assert _error(case.outputs(changed, "changed"), case.source.outputs) > RTOL, path


def _unpermuted(case: Case) -> dict[str, Any]:
    """The tensors of Llama with queries and keys as Hugging Face rotates them."""
    rules = copy.deepcopy(rules_of(case.model))
    assert sum("permute_rope" in rule and bool(rule.pop("permute_rope")) for rule in rules["tensor"]) == 2
    return case.tensors(rules)


def _swapped(case: Case) -> dict[str, Any]:
    """The tensors of ViT with the norms of a layer by their numbers, and not by what they do."""
    tensors = case.tensors()
    for first in [path for path in tensors if ".norm_1." in path]:
        second = first.replace("norm_1", "norm_2")
        tensors[first], tensors[second] = tensors[second], tensors[first]
    return tensors


def _transposed(case: Case) -> dict[str, Any]:
    """The tensors of GPT-2 with its square matrices transposed, as a Linear's would have to be."""
    tensors = case.tensors()
    return {path: held.T.copy() if path.endswith("output.weight") else held for path, held in tensors.items()}


MISTAKES = {"llama": _unpermuted, "vit": _swapped, "gpt2": _transposed}
"""Mistakes that no name and no shape shows."""


@pytest.mark.parametrize("case", [each for each in CASES if each in MISTAKES], indirect=True)
def test_a_mistake_that_fits_by_name_and_shape_gives_other_outputs(case: Case) -> None:
    found = case.outputs(MISTAKES[case.model](case), "mistaken")
    assert _error(found, case.source.outputs) > 1000 * RTOL
