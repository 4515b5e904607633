"""Options are declared once: signatures have the types of `PipelineOptions`, and pass their options on by name."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import pytest

import burnstore as bs
from burnstore.pipeline.options import _CHECKS, Pipeline, PipelineOptions

DECLARED = {name: str(each.__forward_arg__) for name, each in PipelineOptions.__annotations__.items()}
VERBS = ("load", "save", "serialize", "convert", "merge", "diff", "report", "explain")


def test_the_declarations_are_those_of_the_pipeline() -> None:
    assert list(DECLARED) == [each.name for each in fields(Pipeline)] == list(inspect.signature(Pipeline).parameters)
    assert set(_CHECKS) == set(DECLARED)


@pytest.mark.parametrize("verb", VERBS)
def test_a_signature_has_the_declared_types(verb: str) -> None:
    parameters = inspect.signature(getattr(bs, verb)).parameters
    for name in DECLARED.keys() & parameters.keys():
        assert parameters[name].annotation == DECLARED[name], f"{verb}({name}=)"
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_is_passed_on_by_name(verb: str) -> None:
    """A reader who follows ``filter`` finds where it goes, and so does a type checker."""
    function = inspect.unwrap(getattr(bs, verb))
    text = inspect.getsource(function)
    assert "locals()" not in text and "**unknown" not in text
    names = {node.arg for node in ast.walk(ast.parse(text)) if isinstance(node, ast.keyword)}
    names |= {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    own = DECLARED.keys() & inspect.signature(function).parameters.keys()
    assert own - ({"cast"} if verb == "merge" else set()) <= names  # a merge blends in that dtype, after the pipeline


def test_no_source_collects_its_arguments_with_locals() -> None:
    for path in Path(bs.__file__).parent.rglob("*.py"):
        assert "locals()" not in path.read_text(encoding="utf-8"), path
