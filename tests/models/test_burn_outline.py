"""Outlines as texts: what they say of a model, and what is not believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from burnstore.errors import CorruptError, UnsupportedError
from burnstore.models.outline import OUTLINE_KEY, Outline, outline_of


def _read(**members: Any) -> Outline:
    found = outline_of({OUTLINE_KEY: json.dumps({"format": 1, "burn": "0.22.1", **members})})
    assert found is not None
    return found


def test_a_file_without_the_entry_is_no_outline() -> None:
    assert outline_of({"format": "burnpack"}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '"text"',
        "{}",
        '{"format": "1"}',
        '{"format": 1, "modules": []}',
        '{"format": 1, "modules": {"a": 1}}',
        '{"format": 1, "burn": 22}',
        '{"format": 1, "display": null}',
        "[" * 100_000,
    ],
)
def test_a_damaged_entry_is_an_error_of_our_own(text: str) -> None:
    with pytest.raises(CorruptError, match=OUTLINE_KEY):
        outline_of({OUTLINE_KEY: text})


def test_a_later_format_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="format 2"):
        outline_of({OUTLINE_KEY: '{"format": 2}'})


ENCODER = {"": "Struct:Net", "text": "Struct:Layer", "layers": "Vec", "layers.0": "Struct:TransformerEncoderLayer"}


def test_constants_are_found_below_lists_and_tuples_and_variants() -> None:
    outline = _read(
        modules={"": "Struct:Net", "a": "Vec", "a.0": "Enum:Block", "a.0.Conv": "Struct:Conv2d", "p": "Tuple"},
        variants={"a.0": "Conv"},
        display="Net {a: Vec<0..1> {0: Conv {_0: Conv2d {weight: ParamTensor {rank: 4, shape: [1, 2, 3, 3], kind: "
        "float}, bias: None, stride: [1, 2], padding: Explicit(1, 0, 1, 0)}}}, p: (L0, L1) {0: Gelu {approximate: "
        "true}, 1: Relu}, scale: 0.5}",
    )
    assert outline.attributes == {
        "a.0.Conv": {"bias": "None", "stride": "[1, 2]", "padding": "Explicit(1, 0, 1, 0)"},
        "p.0": {"approximate": "true"},
        "p": {"1": "Relu"},
        "": {"scale": "0.5"},
    }


@pytest.mark.parametrize("shown", ["true", "false"])
def test_whether_norms_come_first_is_part_of_the_kind(shown: str) -> None:
    display = f"Net {{layers: Vec<0..1> {{0: TransformerEncoderLayer {{norm_first: {shown}}}}}}}"
    outline = _read(modules=ENCODER, display=display)
    assert str(outline.kinds["layers.0"]) == f"TransformerEncoderLayer(norm_first={shown.title()})"


@pytest.mark.parametrize(
    "display",
    [
        "",
        "Net {layers: Vec<0..1> {0: Other {norm_first: true}}}",
        "Other {layers: Vec<0..1> {0: TransformerEncoderLayer {norm_first: true}}}",
        "Net {layers: Vec<0..1> {0: TransformerEncoderLayer {norm_first: true}}",
        "Net {name: }}, layers: Vec<0..1> {0: TransformerEncoderLayer {norm_first: true}}}",
        "Net }{",
    ],
)
def test_what_is_shown_under_another_name_or_with_braces_that_do_not_fit_is_not_believed(display: str) -> None:
    assert str(_read(modules=ENCODER, display=display).kinds["layers.0"]) == "TransformerEncoderLayer"


def test_a_transposed_linear_is_of_another_kind() -> None:
    outline = _read(modules={"": "Struct:Net", "fc": "Struct:Linear"}, layouts={"fc": "Col"})
    assert str(outline.kinds["fc"]) == "Linear(col=True)"


@pytest.mark.parametrize(
    ("display", "kind"),
    [
        ("Gru {reset_after: true, clip: None}", "Gru"),
        ("Gru {reset_after: false, clip: None}", "Gru(unlike_torch=True)"),
        ("Gru {reset_after: true, clip: Some(1.0)}", "Gru(unlike_torch=True)"),
        ("", "Gru(unlike_torch=True)"),
    ],
)
def test_a_recurrent_layer_is_pytorchs_only_if_its_options_say_so(display: str, kind: str) -> None:
    assert str(_read(modules={"": "Struct:Gru"}, display=display).kinds[""]) == kind


def test_a_deep_text_does_not_exhaust_the_stack() -> None:
    depth = 100_000
    assert _read(modules={"": "Struct:A"}, display="A {a: " * depth + "1" + "}" * depth).attributes == {}
