"""Outlines that real Burn writes, by the crate and by the snippet, against Burn's own collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.models.outline import OUTLINE_KEY, outline_of
from burnstore.models.plain import kinds

from . import zoo
from .conftest import Generated
from .program import Program

MODELS = (
    "linear",
    "linear_col",
    "linear_col_square",
    "basic",
    "nested",
    "enums",
    "nested_enums",
    "containers",
    "names",
    "activations",
    "norms",
    "lstm",
    "gru",
    "gru_no_bias",
    "bi_lstm",
    "multi_head_attention",
    "transformer_encoder",
    "transformer_encoder_norm_first",
    "transformer_decoder",
    "dtypes_signed",
    "tied",
    "empty",
    "lora",
    "parameterless",
    "positional",
)

pytestmark = pytest.mark.usefixtures("_since_0_20")


@pytest.fixture
def _since_0_20(burn: Program) -> None:
    if burn.version == "0.19":
        pytest.skip("Burn 0.19 names containers without their kind: there are no outlines of it")


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest, burn: Program) -> str:
    if request.param not in burn.models:
        pytest.skip(f"Burn {burn.version} has no {request.param}")
    return str(request.param)


def _read(path: Path) -> tuple[Any, dict[str, tuple[Any, tuple[int, ...]]]]:
    with bs.open(path) as file:
        found = outline_of(file.metadata)
        return found, {each: (file[each].dtype, tuple(file[each].shape)) for each in file}


def test_an_outline_has_the_tensors_and_the_containers_of_burns_collector(
    burn: Program, generated: Generated, name: str, tmp_path: Path
) -> None:
    burn.outline(name, tmp_path / "model.outline.bpk")
    outline, tensors = _read(tmp_path / "model.outline.bpk")
    assert outline.burn == burn.release
    collected = generated.tensors(name)
    assert tensors == {tensor.path: (tensor.dtype, tensor.shape) for tensor in collected}
    assert list(tensors) == [tensor.path for tensor in collected]
    for tensor in collected:
        segments = tensor.path.split(".")
        for depth, container in enumerate(tensor.containers):
            path = ".".join(segments[:depth])
            assert outline.modules[path] == container
            if container.startswith("Enum:"):
                assert outline.variants[path] == segments[depth]


def test_the_kinds_of_an_outline_are_those_of_the_declaration_in_python(
    burn: Program, generated: Generated, name: str, tmp_path: Path
) -> None:
    """Options that no tensor shows are among them: transposed Linears, norms that come first, unusual gates."""
    burn.outline(name, tmp_path / "model.outline.bpk")
    outline, _ = _read(tmp_path / "model.outline.bpk")
    declared = kinds(zoo.declare(name, burn.version, generated.paths(name)))
    assert {path: str(kind) for path, kind in outline.kinds.items()} == {
        path: str(kind) for path, kind in declared.items()
    }


def test_the_snippet_writes_the_same_outline_as_the_crate(burn: Program, name: str, tmp_path: Path) -> None:
    burn.outline(name, tmp_path / "crate.outline.bpk")
    burn.outline(name, tmp_path / "snippet.outline.bpk", "--snippet")
    with bs.open(tmp_path / "crate.outline.bpk") as crate, bs.open(tmp_path / "snippet.outline.bpk") as snippet:
        assert crate.metadata[OUTLINE_KEY] == snippet.metadata[OUTLINE_KEY]
        assert list(crate) == list(snippet)


def test_burn_loads_an_outline_as_a_file_of_the_model(burn: Program, tmp_path: Path) -> None:
    burn.outline("basic", tmp_path / "model.outline.bpk")
    assert burn.load("basic", tmp_path / "model.outline.bpk").ok


@pytest.mark.parametrize("option", [(), ("--snippet",)])
def test_only_an_outline_is_replaced(burn: Program, tmp_path: Path, option: tuple[str, ...]) -> None:
    for _ in range(2):
        burn.outline("linear", tmp_path / "model.outline.bpk", *option)
    (tmp_path / "weights.bpk").write_bytes(b"trained")
    assert "exists" in burn.complaint("outline", "linear", tmp_path / "weights.bpk", *option)
    assert (tmp_path / "weights.bpk").read_bytes() == b"trained"


def test_constants_of_modules_are_attributes(burn: Program, tmp_path: Path) -> None:
    burn.outline("transformer_encoder_norm_first", tmp_path / "model.outline.bpk")
    outline, _ = _read(tmp_path / "model.outline.bpk")
    assert outline.attributes["layers.0.mha"]["n_heads"] == "2"
    assert outline.attributes["layers.0"]["norm_first"] == "true"
    assert float(outline.attributes["layers.0.norm_1"]["epsilon"]) == 1e-5
