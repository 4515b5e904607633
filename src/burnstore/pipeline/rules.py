"""Rules files: the kinds of a file's modules, and how its tensors are converted.

TOML (``.toml``) or JSON of the same form:

    [kinds]                     module kinds by pattern
    '^fc$' = "Linear"

    source_layout, target_layout, tensors   see `burnstore.transforms.recipe`

Any other file has lines ``pattern = kind``, which are kinds only; lines that begin with # are comments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BurnstoreError, FormatError, located
from ..io.documents import Bounds, read_json, read_toml
from ..io.opening import read_whole
from ..io.paths import as_path
from ..transforms.layout import ModuleKind
from ..transforms.patterns import compile_pattern
from ..transforms.recipe import Recipe, recipe_from

_FORM = "write lines such as: ^encoder\\.fc\\d$ = Linear, or TOML"
_BOUNDS = Bounds(1 << 20)
_KEYS = ("kinds", "tensors", "source_layout", "target_layout")


@dataclass(frozen=True, slots=True)
class Rules:
    """The kinds of modules by pattern, and the rules for tensors; either may be absent."""

    kinds: Mapping[str, str] | None
    recipe: Recipe | None


def rules_of(given: Any) -> Rules:
    """Return rules, checked: a file, a mapping of patterns to kinds, or the data of a rules file.

    >>> rules_of({"^fc$": "Linear"}).kinds
    {'^fc$': 'Linear'}
    >>> len(rules_of({"tensors": [{"source": "a", "target": "b"}]}).recipe.rules)
    1
    """
    if isinstance(given, (str, os.PathLike)):
        with located(path=as_path(given)):
            return _checked(*_from_file(given))
    if not isinstance(given, Mapping):
        raise TypeError(f"rules must map patterns to module kinds, or be a rules file, got {type(given).__name__}")
    return _checked(given)


def _checked(given: Mapping[str, Any], text: str = "") -> Rules:
    if not any(isinstance(value, (list, Mapping)) for value in given.values()):
        given = {"kinds": given}
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise FormatError(f"unknown key {unknown[0]!r} in the rules", hint=f"known: {', '.join(_KEYS)}")
    kinds = given.get("kinds", {})
    if not isinstance(kinds, Mapping) or not all(isinstance(kind, str) for kind in kinds.values()):
        raise FormatError("a module kind must be a string", hint=_FORM)
    for pattern, kind in kinds.items():
        compile_pattern(pattern)
        ModuleKind.parse(kind)
    recipe = recipe_from(given, _rule_lines(text, given["tensors"])) if given.get("tensors") else None
    return Rules(dict(kinds) if kinds or recipe is None else None, recipe)


def _rule_lines(text: str, rules: Any) -> list[int]:
    """Return the line of each rule in the text that they are from: of its first name, after the names before it."""
    lines, place = [], 0
    for rule in rules if text and isinstance(rules, list) else ():
        found = []
        names = (
            [name for value in rule.values() for name in _texts(value)] if isinstance(rule, Mapping) else [str(rule)]
        )
        for name in names:
            spelled = json.dumps(name, ensure_ascii=False), f"'{name}'"
            places = [at for quoted in spelled if (at := text.find(quoted, place)) >= 0]
            found += [min(places, default=place)]
            place = found[-1] + 1
        lines.append(text.count("\n", 0, found[0]) + 1 if found else 0)
    return lines


def _texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _from_file(path: str | os.PathLike[str]) -> tuple[Mapping[str, Any], str]:
    try:
        text = read_whole(path, _BOUNDS.nbytes).decode("utf-8")
        if as_path(path).endswith(".toml"):
            rules = read_toml(text, _BOUNDS)
        else:
            rules = read_json(text, _BOUNDS) if text.lstrip().startswith("{") else dict(_lines(text))
    except ValueError as error:
        why = error.message if isinstance(error, BurnstoreError) else error
        raise FormatError(f"this is not a rules file: {why}", hint=_FORM) from error
    if not rules:
        raise FormatError("the rules file is empty", hint=_FORM)
    return rules, text


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pattern, equals, kind = line.strip().partition(" = ")
        if not equals:
            raise ValueError(f"line {number} has no ' = ' between pattern and kind")
        yield pattern.strip(), kind.strip()
