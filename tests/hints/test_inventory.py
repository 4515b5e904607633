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


TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCES.rglob("*.py"))}
JOINED = ("Ways", "add_hint", "quoted", "join")
"""Functions whose arguments are texts of the hint."""


Definitions = dict[tuple[Path, str], list[ast.expr]]


def _definitions() -> tuple[Definitions, Definitions]:
    """Return what is assigned to each name of a module, and what each of its functions returns."""
    assigned: Definitions = {}
    returned: Definitions = {}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                returned.setdefault((path, node.name), []).extend(found)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    name = getattr(target, "attr", getattr(target, "id", ""))
                    assigned.setdefault((path, name), []).append(node.value)
    return assigned, returned


ASSIGNED, RETURNED = _definitions()


def _defined(where: Definitions, path: Path, name: str) -> list[tuple[Path, ast.expr]]:
    """Return the definitions of a name in its module, or else in those that it may be imported from."""
    own = [(path, value) for value in where.get((path, name), ())]
    if own or (where is ASSIGNED and not name.isupper()):
        return own
    return [(other, value) for (other, known), values in where.items() if known == name for value in values]


def _texts(path: Path, value: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the texts that an expression may be: constants, and what names and functions stand for."""
    parts: list[ast.expr] = []
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in value.values)
    elif isinstance(value, ast.IfExp):
        parts = [value.body, value.orelse]
    elif isinstance(value, ast.BoolOp):
        parts = value.values
    elif isinstance(value, (ast.Tuple, ast.List)):
        parts = value.elts
    elif isinstance(value, ast.BinOp):
        parts = [value.left, value.right]
    elif isinstance(value, ast.Starred):
        parts = [value.value]
    elif isinstance(value, (ast.GeneratorExp, ast.ListComp)):
        parts = [value.elt]
    elif isinstance(value, ast.Name) and value.id not in seen:
        for other, each in _defined(ASSIGNED, path, value.id):
            yield from _texts(other, each, seen | {value.id})
    elif isinstance(value, ast.Call):
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        parts = value.args if name in JOINED else []
        for other, each in _defined(RETURNED, path, name) if name not in JOINED and name not in seen else ():
            yield from _texts(other, each, seen | {name})
    for part in parts:
        yield from _texts(path, part, seen)


def _values(path: Path, node: ast.AST) -> list[ast.expr]:
    """Return the expressions that are hints in a node."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        values = [word.value for word in node.keywords if word.arg == "hint"]
        is_appended = name == "append" and "hint" in ast.unparse(node.func)
        return values + (list(node.args) if name in ("Ways", "add_hint") or is_appended else [])
    if isinstance(node, ast.Assign):
        names = [getattr(target, "attr", getattr(target, "id", "")) for target in node.targets]
        return [node.value] if any("hint" in name.lower() for name in names) else []
    if isinstance(node, ast.FunctionDef) and ("hint" in node.name or "ways" in node.name):
        return RETURNED.get((path, node.name), [])
    return []


def _hints() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every hint, with X for what a format string fills in."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            for text in dict.fromkeys(text for value in _values(path, node) for text in _texts(path, value)):
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", text  # type: ignore[attr-defined]


PASSED_ON = {"hint", "more", "refused.hint", "self.hint", "error.hint", "getattr(error, 'hint', None)", "None"}
PASSED_ON |= {"getattr(inner, 'hint', None)", "'; '.join(hints) or None"}  # each is appended, and so in the inventory
"""What hands on a hint that is made elsewhere, or none."""


def test_every_hint_is_in_the_inventory() -> None:
    """A hint whose text this test cannot find would escape all checks."""
    lost = [
        f"{path.relative_to(SOURCES)}:{node.lineno}: {ast.unparse(value)[:80]}"  # type: ignore[attr-defined]
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for value in [word.value for word in node.keywords if word.arg == "hint"]
        if ast.unparse(value) not in PASSED_ON and not list(_texts(path, value))
    ]
    assert lost == []


HINTS = list(_hints())


def test_the_inventory_finds_the_hints() -> None:
    assert len(HINTS) > 200
    for name in ("prefix_hint", "weight_norm_hint", "wrapper_hint", "ways_out"):
        assert list(_texts(SOURCES, ast.parse(f"{name}()", mode="eval").body)), name


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
