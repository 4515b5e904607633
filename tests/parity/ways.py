"""The ways: each verb answers a question with the tensors that a model then has, or refuses."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.cli import main

from .questions import MODELS, Question, rules_file, tensors_of

REFUSALS = (bs.BurnstoreError, ValueError, TypeError)
"""What a verb raises for a question that it does not answer."""

Answer = dict[str, Any] | str
"""Tensors by path, or the text of a refusal."""


class NotAskedError(Exception):
    """This way has no word for the question."""


def load(question: Question, folder: Path) -> Answer:
    """Answer with `burnstore.load`."""
    model = question.fresh()
    bs.load(model, question.path, **question.options)
    return tensors_of(model)


def load_checkpoint(question: Question, folder: Path) -> Answer:
    """Answer with `burnstore.load` of an open file, and a pipeline instead of keywords."""
    model, options = question.fresh(), question.options
    with bs.open(question.path, top_level_key=options.pop("top_level_key", None)) as file:
        bs.load(model, file, pipeline=bs.Pipeline(**options))
    return tensors_of(model)


def _converted(suffix: str) -> Callable[[Question, Path], Answer]:
    def convert(question: Question, folder: Path) -> Answer:
        target, options = str(folder / f"converted{suffix}"), question.options
        partial = options.pop("allow_partial", False)
        pipeline = bs.Pipeline(allow_partial=True) if partial else None
        bs.convert(question.path, target, like=question.fresh(), durable=False, pipeline=pipeline, **options)
        return _loaded(question, target)

    return convert


def merge(question: Question, folder: Path) -> Answer:
    """Answer with a merge of one source."""
    options, target = question.options, str(folder / "merged.bpk")
    own = {name: options.pop(name) for name in ("filter", "rename") if name in options}
    pipeline = bs.Pipeline(**{name: options.pop(name) for name in ("adapter", "allow_partial") if name in options})
    source = bs.MergeSource(question.path, **own)
    bs.merge([source], target, like=question.fresh(), durable=False, pipeline=pipeline, **options)
    return _loaded(question, target)


def store(question: Question, folder: Path) -> Answer:
    """Answer with the store of the format."""
    kinds = {".pt": bs.PytorchStore, ".bpk": bs.BurnpackStore, ".safetensors": bs.SafetensorsStore}
    kind = kinds.get(Path(question.path).suffix)
    if kind is None:
        raise NotAskedError("NumPy files have no store")
    options = question.options
    made: Any = kind.from_file(question.path)
    names = {"filter": "with_filter", "rename": "remap", "adapter": "with_from_adapter"}
    names["top_level_key"] = "with_top_level_key"
    for name, value in options.items():
        method = getattr(made, names.get(name, name), None)
        if method is None:
            raise NotAskedError(f"{kind.__name__} has no {name}")
        made = method(value)
    model = question.fresh()
    made.load(model)
    return tensors_of(model)


def command_line(question: Question, folder: Path) -> Answer:
    """Answer with ``burnstore convert``."""
    options, target = question.options, str(folder / "by_command.bpk")
    arguments = ["convert", question.path, target, "--json", "--quiet"]
    arguments += ["--like", f"parity.questions:{MODELS[question.model].__name__}"]
    for name, value in options.items():
        if name in ("adapter", "allow_partial") and not isinstance(value, str):
            raise NotAskedError(f"burnstore convert has no such {name}")
        value = rules_file(value, folder) if name == "rules" else value
        for each in value if isinstance(value, list) else [value]:
            arguments += [f"--{name.replace('_', '-')}", each]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    if code:
        error = json.loads(out.getvalue())["error"] if out.getvalue() else {}
        raise bs.BurnstoreError(error.get("message") or err.getvalue())
    return _loaded(question, target)


def _loaded(question: Question, path: str) -> Answer:
    """Return what a model has after a load of a written file, of which the filter may have left out a part."""
    model, options = question.fresh(), question.options
    kinds = options.get("rules")
    rules = kinds if kinds and "tensors" not in kinds else None  # kinds are facts of the model, here too
    bs.load(model, path, allow_partial="filter" in options or options.get("allow_partial", False), rules=rules)
    return tensors_of(model)


WAYS: dict[str, Callable[[Question, Path], Answer]] = {
    "load": load,
    "load of an open file": load_checkpoint,
    "convert to bpk": _converted(".bpk"),
    "convert to safetensors": _converted(".safetensors"),
    "convert to pt": _converted(".pt"),
    "merge": merge,
    "store": store,
    "command line": command_line,
}


def answer(way: str, question: Question, folder: Path) -> Answer | None:
    """Return the answer of a way; None if it has no word for the question."""
    try:
        return WAYS[way](question, folder)
    except NotAskedError:
        return None
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"


def same(one: Answer, other: Answer) -> bool:
    """Return whether two answers are the same: equal tensors, or two refusals."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str)
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
