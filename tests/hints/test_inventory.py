"""Every hint in the sources names only options, functions and commands that exist."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import burnstore as bs
from burnstore import errors
from burnstore.cli.parser import VERBS, build_parser
from burnstore.pipeline.options import Pipeline

SOURCES = Path(bs.__file__).parent
FUNCTIONS = [name for name in bs.__all__ if inspect.isfunction(getattr(bs, name))]
KEYWORDS = {word for name in FUNCTIONS for word in inspect.signature(getattr(bs, name)).parameters}
KEYWORDS |= set(inspect.signature(Pipeline).parameters) | {"burn_version", "salvage", "undecided", "like"}


def _flags() -> dict[str, set[str]]:
    (verbs,) = build_parser()._subparsers._group_actions  # type: ignore[union-attr]
    found = {}
    for name, parser in verbs.choices.items():  # type: ignore[union-attr]
        parser.load()
        found[name] = {flag for action in parser._actions for flag in action.option_strings}
    return found


FLAGS = _flags()


def _hints() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every hint, with X for what a format string fills in."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call):
                values = [word.value for word in node.keywords if word.arg == "hint"]
                if isinstance(node.func, ast.Name) and node.func.id == "Ways":
                    values += node.args
            elif isinstance(node, ast.Assign):
                names = [getattr(target, "attr", getattr(target, "id", "")) for target in node.targets]
                values = [node.value] if any("hint" in name.lower() for name in names) else []
            for value in values:
                for text in _texts(value):
                    yield f"{path.relative_to(SOURCES)}:{node.lineno}", text


def _texts(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in value.values)
    elif isinstance(value, ast.IfExp):
        yield from (*_texts(value.body), *_texts(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (text for part in value.values for text in _texts(part))


HINTS = list(_hints())


def test_the_inventory_finds_the_hints() -> None:
    assert len(HINTS) > 150


@pytest.mark.parametrize("place", sorted({place for place, _ in HINTS}))
def test_a_hint_names_what_exists(place: str) -> None:
    for text in (text for where, text in HINTS if where == place):
        for match in re.finditer(errors._CALL_OR_OPTION, text):
            if match["option"]:
                assert match["option"] in KEYWORDS, text
        for function in re.findall(r"\bburnstore\.(\w+)\(", text):
            assert function in bs.__all__, text
        for verb, rest in re.findall(r"\bburnstore ([a-z]+)\b((?: +(?:[A-Z:.]+|[\w.]+|--[\w-]+))*)", text):
            if verb in VERBS:
                assert set(re.findall(r"--[\w-]+", rest)) <= FLAGS[verb], text
        outside = re.sub(r"burnstore [a-z]+ [^,;]*", "", text)
        assert not re.findall(r"--[a-z]", outside) or place.startswith("cli/"), f"a flag in a hint of Python: {text}"
