"""The same model and options saved by every verb give the same file, or all refuse; `diff` sees what `load` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs

from .exceptions import exempt
from .questions import OPTIONS, SOURCES, Question, doubled, in_burn, in_torch, write_sources
from .ways import REFUSALS, answer

_RULES = {"tensors": [{"source": "norm.bias", "target": "shift", "cast": "bf16"}]}
_NEVER = {"tensors": [{"source": "nowhere", "target": "shift"}]}
_DROPS = {"tensors": [{"source": "head.bias", "drop": "not needed"}]}
_TO_BURN = OPTIONS["tensor rules, layouts"]["rules"]

OPTIONS_OF_SAVE: dict[str, dict[str, Any]] = {
    "none": {},
    "filter": {"filter": "^fc"},
    "rename": {"rename": [r"^fc\.=>first."]},
    "kinds": {"rules": {r"^fc$": "Linear"}},
    "kinds of nothing": {"rules": {r"^nowhere$": "Linear"}},
    "tensor rules": {"rules": _RULES},
    "tensor rules of nothing": {"rules": _NEVER},
    "tensor rules that drop": {"rules": _DROPS},
    "tensor rules, layouts": {"rules": _TO_BURN},
    "adapter": {"adapter": doubled},
    "cast": {"cast": "f16"},
    "layout torch": {"layout": "torch"},
    "layout burn": {"layout": "burn"},
    "layout and rules": {"layout": "torch", "rules": _RULES},
}


def _file(given: Any) -> tuple[dict[str, Any], str | None]:
    with bs.open(given) as file:
        return {name: (str(each.dtype), each.numpy().tolist()) for name, each in file.items()}, file.layout


def by_save(model: Any, suffix: str, options: dict[str, Any], folder: Path) -> Any:
    done = bs.save(model, folder / f"a{suffix}", durable=False, **options)
    tensors, layout = _file(folder / f"a{suffix}")
    assert (done.layout, sorted(done.tensors)) == (layout, sorted(tensors))
    return tensors, layout, dict(done.left_out)


def by_serialize(model: Any, suffix: str, options: dict[str, Any], folder: Path) -> Any:
    format = {".bpk": "burnpack", ".safetensors": "safetensors", ".pt": "pytorch", ".npz": "npz"}[suffix]
    return *_file(bs.serialize(model, format=format, **options)), None


def by_store(model: Any, suffix: str, options: dict[str, Any], folder: Path) -> Any:
    kind: Any = {".bpk": bs.BurnpackStore, ".safetensors": bs.SafetensorsStore}.get(suffix)
    if kind is None:
        return None
    store = kind.from_file(folder / f"b{suffix}").durable(False)
    names = {"filter": "with_filter", "rename": "remap", "adapter": "with_to_adapter"}
    for name, value in options.items():
        store = getattr(store, names.get(name, name))(value)
    done = store.save(model)
    tensors, layout = _file(folder / f"b{suffix}")
    assert (done.layout, sorted(done.tensors)) == (layout, sorted(tensors))
    return tensors, layout, dict(done.left_out)


_WAYS: dict[str, Callable[[Any, str, dict[str, Any], Path], Any]] = {
    "save": by_save,
    "serialize": by_serialize,
    "store": by_store,
}


@pytest.mark.filterwarnings("ignore::burnstore.errors.BurnstoreWarning")
@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("option", OPTIONS_OF_SAVE)
@pytest.mark.parametrize("make", [in_torch, in_burn])
@pytest.mark.parametrize("suffix", [".bpk", ".safetensors", ".pt", ".npz"])
def test_every_way_to_save_writes_the_same(make: Any, option: str, suffix: str, tmp_path: Path) -> None:
    answers: dict[str, Any] = {}
    for name, way in _WAYS.items():
        try:
            answers[name] = way(make(), suffix, dict(OPTIONS_OF_SAVE[option]), tmp_path)
        except REFUSALS as error:
            answers[name] = f"{type(error).__name__}: {error}"
    first = answers["save"]
    for name, found in answers.items():
        if found is None or (isinstance(first, str) and isinstance(found, str)):
            continue
        assert found[:2] == first[:2], f"{name}: {found}\nsave: {first}"
        assert found[2] in (None, first[2])


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("option", [each for each in OPTIONS_OF_SAVE if "rules" in each])
@pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
def test_rules_do_the_same_in_save_and_in_a_conversion_of_the_saved_model(
    option: str, suffix: str, tmp_path: Path
) -> None:
    options = OPTIONS_OF_SAVE[option]
    try:
        by_rules: Any = by_save(in_torch(), suffix, dict(options), tmp_path)[:2]
    except REFUSALS as error:
        by_rules = str(error)
    raw, target = tmp_path / "raw.safetensors", tmp_path / f"c{suffix}"
    bs.save(in_torch(), raw)
    given = {"target_layout" if name == "layout" else name: value for name, value in options.items()}
    try:
        bs.convert(raw, target, **given)
        converted: Any = _file(target)
    except REFUSALS as error:
        converted = str(error)
    if isinstance(converted, str) and not isinstance(by_rules, str):
        assert "kind" in converted  # the live model states the kinds of its modules, and the file does not
    else:
        assert by_rules == converted or (isinstance(by_rules, str) and isinstance(converted, str))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the path of every source."""
    return write_sources(tmp_path_factory.mktemp("sources"))


_COMPARED = ("none", "filter", "rename", "tensor rules, layouts", "layout torch", "layout burn", "key")


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("option", _COMPARED)
@pytest.mark.parametrize("model", ["torch", "burn"])
@pytest.mark.parametrize("source", [each for each in SOURCES if "square" not in each])
def test_a_source_does_not_differ_from_the_model_that_it_was_loaded_into(
    source: str, model: str, option: str, paths: dict[str, str], tmp_path: Path
) -> None:
    question = Question(source, model, option, paths[source])
    if isinstance(answer("load", question, tmp_path), str):
        return
    loaded, options = question.fresh(), question.options
    result = bs.load(loaded, question.path, **options)
    found = bs.diff(question.path, loaded, **options)
    same = {
        each.path_a if hasattr(each, "path_a") else each.shown_name for each in found.tensors if each.status == "equal"
    }
    assert len(same) >= len(result.applied) - len(result.skipped)
    assert not found.changed


def test_an_exception_is_one_sided() -> None:
    question = Question("more", "torch", "none")
    tensors = {"fc.weight": np.ones(2)}
    refusal = "ModelError: TorchNet, given as like, has no such tensor"
    assert exempt(question, "convert to bpk", tensors, refusal)
    assert not exempt(question, "convert to bpk", refusal, tensors)
    assert not exempt(question, "store", tensors, refusal)
    assert not exempt(question, "convert to bpk", tensors, {"fc.weight": np.zeros(2)})
