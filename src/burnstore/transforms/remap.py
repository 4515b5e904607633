"""Rename tensors by rules: `KeyRemapper`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import DuplicateNameError, PatternError, Ways, quoted
from ..tensor.snapshot import TensorSnapshot
from .patterns import Replacement, compile_pattern, compile_replacement

OnCollision = Literal["error", "first", "last"]


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    replacement: str
    expand: Replacement
    is_optional: bool = False


Rule = _Rule | dict[str, str] | Callable[[str], str]


class KeyRemapper:
    """Rename by rules in order: each replaces every match of its pattern in the name that the rules before it returned.

    Replacements take groups as ``$1``, ``${1}``, ``${name}`` and as ``\\1``, ``\\g<name>``; ``$$`` is a dollar.
    Invalid patterns and unknown groups raise where they are given. `add_pattern` changes the remapper and returns it.
    Nothing limits the time of a pattern that backtracks without end: patterns are the caller's (see `PathFilter`).

    >>> remapper = KeyRemapper().add_pattern(r"^transformer\\.h\\.(\\d+)\\.", "transformer.layer$1.")
    >>> remapper.remap_name("transformer.h.12.attn.weight")
    'transformer.layer12.attn.weight'
    """

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    @classmethod
    def from_patterns(cls, patterns: Iterable[tuple[str | re.Pattern[str], str]]) -> KeyRemapper:
        """Return a remapper of these (pattern, replacement) pairs."""
        remapper = cls()
        for pattern, replacement in patterns.items() if isinstance(patterns, Mapping) else patterns:
            remapper.add_pattern(pattern, replacement)
        return remapper

    from_pattern_iter = from_patterns
    from_compiled_patterns = from_patterns

    @classmethod
    def from_dict(cls, names: Mapping[str, str]) -> KeyRemapper:
        """Return a remapper of whole names: each key becomes its value, other names stay."""
        return cls().add_names(names)

    def add_pattern(self, pattern: str | re.Pattern[str], replacement: str) -> KeyRemapper:
        """Add a rule after the others; a pattern that starts with ``?`` may match nothing."""
        is_optional = isinstance(pattern, str) and pattern.startswith("?")  # no regular expression starts so
        compiled = compile_pattern(pattern[1:] if is_optional and isinstance(pattern, str) else pattern)
        self._rules.append(_Rule(compiled, replacement, compile_replacement(compiled, replacement), is_optional))
        return self

    def add_function(self, function: Callable[[str], str]) -> KeyRemapper:
        """Add a rule that calls a function with each name."""
        if not callable(function):
            raise TypeError(f"a rename must be a function of a name, got {type(function).__name__}")
        self._rules.append(function)
        return self

    def add_names(self, names: Mapping[str, str]) -> KeyRemapper:
        """Add a rule that renames whole names."""
        if not isinstance(names, Mapping):
            raise TypeError(f"names must be a mapping of old to new, got {type(names).__name__}")
        for old, new in names.items():
            if not isinstance(old, str) or not isinstance(new, str):
                raise TypeError(f"names must be str, got {type(old).__name__} to {type(new).__name__}")
        self._rules.append(dict(names))
        return self

    def copy(self) -> KeyRemapper:
        """Return an independent remapper with the same rules."""
        copied = KeyRemapper()
        copied._rules = list(self._rules)
        return copied

    def __add__(self, other: KeyRemapper) -> KeyRemapper:
        """Return a remapper with the rules of both, the other's after these."""
        both = self.copy()
        both._rules += other._rules
        return both

    def is_empty(self) -> bool:
        """Return whether the remapper has no rules."""
        return not self._rules

    def to_regex_pairs(self) -> list[tuple[re.Pattern[str], str]]:
        """Return the rules as pairs of pattern and replacement; whole names as patterns that match only them."""
        pairs: list[tuple[re.Pattern[str], str]] = []
        for rule in self._rules:
            if isinstance(rule, _Rule):
                pairs.append((rule.pattern, rule.replacement))
            elif isinstance(rule, dict):
                pairs += [(re.compile(rf"\A{re.escape(old)}\Z"), new.replace("$", "$$")) for old, new in rule.items()]
        return pairs

    def remap_name(self, name: str) -> str:
        """Return the new name of a tensor."""
        return self.remap_names([name]).names[0]

    def remap_names(self, names: Sequence[str]) -> Renaming:
        """Return the new names, and the rules that changed none of them."""
        current = list(names)
        unmatched: list[str] = []
        for rule in self._rules:
            before = current
            if isinstance(rule, _Rule):
                search, sub, expand = rule.pattern.search, rule.pattern.sub, rule.expand
                found = [search(name) is not None for name in before]
                current = [sub(expand, name) if hit else name for name, hit in zip(before, found, strict=True)]
                if True not in found and not rule.is_optional:
                    unmatched.append(rule.pattern.pattern)
            elif isinstance(rule, dict):
                current = [rule.get(name, name) for name in before]
                unmatched += sorted(rule.keys() - set(before))
            else:
                current = [_called(rule, name) for name in before]
        return Renaming(current, list(names), unmatched)

    def trace(self, name: str) -> list[tuple[str, str]]:
        """Return the rules that change this name, as text, each with the name after it.

        >>> KeyRemapper.from_patterns([("^h", "layer"), ("bias", "b")]).trace("h.0")
        [('^h => layer', 'layer.0')]
        """
        steps: list[tuple[str, str]] = []
        for rule in self._rules:
            before = name
            if isinstance(rule, _Rule):
                name = rule.pattern.sub(rule.expand, name)
                text = f"{rule.pattern.pattern} => {rule.replacement}"
            else:
                name = rule.get(name, name) if isinstance(rule, dict) else _called(rule, name)
                text = f"{before} => {name}"
            if name != before:
                steps.append((text, name))
        return steps

    def remap(
        self, snapshots: Iterable[TensorSnapshot], *, on_collision: OnCollision = "error"
    ) -> tuple[list[TensorSnapshot], list[tuple[str, str]]]:
        """Return the snapshots under their new names, and all pairs of (new, old) name.

        Raises DuplicateNameError, with both names, if two tensors get one; ``on_collision`` keeps the first or last.
        """
        given = list(snapshots)
        renaming = self.remap_names([snapshot.path for snapshot in given])
        kept = keep_distinct(renaming.names, renaming.originals, on_collision)
        renamed = [
            given[row] if given[row].path == renaming.names[row] else given[row].with_path(renaming.names[row])
            for row in kept
        ]
        return renamed, [(renaming.names[row], renaming.originals[row]) for row in kept]

    def inverse(self) -> KeyRemapper:
        """Return the remapper that undoes this one; PatternError with the reason if the rules do not allow it.

        Rules can be inverted if they rename whole names one to one, or replace one fixed text by another at a fixed
        place (``^old\\.`` → ``new.``, ``\\.gamma$`` → ``.weight``). The caller must know that no other name contains
        the new text already.
        """
        undone = KeyRemapper()
        for rule in reversed(self._rules):
            if isinstance(rule, _Rule):
                undone.add_pattern(*_inverted(rule))
            elif not isinstance(rule, dict):
                raise PatternError("a rename by a function cannot be inverted")
            else:
                if len(set(rule.values())) != len(rule):
                    raise PatternError("two names become one, which cannot be inverted")
                undone.add_names({new: old for old, new in rule.items()})
        return undone

    def __repr__(self) -> str:
        return f"KeyRemapper({[(pattern.pattern, replacement) for pattern, replacement in self.to_regex_pairs()]})"


def _called(function: Callable[[str], str], name: str) -> str:
    renamed = function(name)
    if not isinstance(renamed, str):
        raise TypeError(f"a rename function must return a str, got {type(renamed).__name__} for {name!r}")
    return renamed


@dataclass(frozen=True, slots=True)
class Renaming:
    """New names beside the old ones; ``unmatched`` are the rules that matched no name, usually by mistake."""

    names: list[str]
    originals: list[str]
    unmatched: list[str]


def keep_distinct(names: Sequence[str], originals: Sequence[str], on_collision: OnCollision) -> list[int]:
    """Return the rows to keep, by the policy, so that every name is unique."""
    if on_collision not in ("error", "first", "last"):
        raise ValueError(f"on_collision must be 'error', 'first' or 'last', got {on_collision!r}")
    if len(set(names)) == len(names):
        return list(range(len(names)))
    kept: dict[str, int] = {}
    for row, name in enumerate(names):
        if name in kept and on_collision == "error":
            raise DuplicateNameError(
                f"{originals[kept[name]]!r} and {originals[row]!r} are both renamed to it",
                tensor=name,
                hint=Ways("change the rules", 'choose one with on_collision="first" or on_collision="last"', lead=""),
            )
        if name not in kept or on_collision == "last":
            kept[name] = row
    return sorted(kept.values())


_FIXED = re.compile(r"(\^|\\A)?((?:[^\\.^$*+?{}\[\]|()]|\\[^A-Za-z0-9])*)(\$|\\Z)?")


def _inverted(rule: _Rule) -> tuple[str, str]:
    """Return the rule that undoes one, if it replaces one fixed text by another."""
    fixed = _FIXED.fullmatch(rule.pattern.pattern)
    plain = rule.replacement.replace("$$", "").replace("\\\\", "")
    if fixed is None or "$" in plain or "\\" in plain or rule.pattern.flags != re.compile("").flags:
        raise PatternError(
            f"{quoted(rule.pattern.pattern)} → {quoted(rule.replacement)} cannot be inverted: "
            "only fixed text for fixed text can"
        )
    start, text, end = fixed.groups()
    old = re.sub(r"\\(.)", r"\1", text)
    new = rule.replacement.replace("$$", "$").replace("\\\\", "\\")
    if not new and not (start or end):
        raise PatternError(
            f"{quoted(rule.pattern.pattern)} → '' cannot be inverted: the place of the text is not known"
        )
    return f"{'^' if start else ''}{re.escape(new)}{'$' if end else ''}", old.replace("$", "$$").replace("\\", "\\\\")
