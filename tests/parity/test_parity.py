"""The same question gets the same answer from every verb: equal tensors, or refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import burnstore as bs

from .exceptions import exempt
from .questions import MODELS, OPTIONS, SOURCES, Question, tensors_of, write_sources
from .ways import REFUSALS, WAYS, answer, same


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the path of every source."""
    return write_sources(tmp_path_factory.mktemp("sources"))


def _questions() -> Iterator[Question]:
    for source in SOURCES:
        for model in MODELS:
            if ("square" in source) == ("square" in model):
                yield from (Question(source, model, option) for option in OPTIONS)


_QUESTIONS = list(_questions())


@pytest.mark.matrix(every=12)
@pytest.mark.parametrize("question", _QUESTIONS, ids=str)
def test_every_verb_gives_the_same_tensors_or_refuses(
    question: Question, paths: dict[str, str], tmp_path: Path
) -> None:
    asked = replace(question, path=paths[question.source])
    by_load = answer("load", asked, tmp_path)
    for way in WAYS:
        found = answer(way, asked, tmp_path)
        if found is not None and not same(by_load, found):
            assert exempt(asked, way, by_load, found), f"load: {by_load}\n{way}: {found}"


@pytest.mark.matrix(every=12)
@pytest.mark.parametrize("question", _QUESTIONS, ids=str)
def test_explain_says_what_a_load_does(question: Question, paths: dict[str, str], tmp_path: Path) -> None:
    asked = replace(question, path=paths[question.source])
    model, plan, done = asked.fresh(), None, None
    try:
        plan = bs.explain(asked.path, asked.fresh(), **asked.options)
        explained = plan.refusal
    except REFUSALS as error:
        explained = type(error).__name__
    try:
        done, raised = bs.load(model, asked.path, **asked.options), None
    except REFUSALS as error:
        raised = type(error).__name__
    assert explained == raised
    if plan is not None and done is not None:
        assert sorted(move.target for move in plan.moves) == sorted(done.applied)
        assert plan.result.notes == done.notes


def test_the_questions_find_a_transposed_weight(paths: dict[str, str], tmp_path: Path) -> None:
    question = Question("st torch", "burn", "none", paths["st torch"])
    right = answer("load", question, tmp_path)
    model = question.fresh()
    bs.load(model, question.path)
    wrong = {**tensors_of(model), "fc.weight": tensors_of(model)["fc.weight"].T}
    assert same(right, tensors_of(model))
    assert not same(right, wrong)
