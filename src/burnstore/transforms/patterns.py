"""Patterns: regular expressions and replacement texts from the user, checked where they are given."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import PatternError, quoted

Replacement = Callable[[re.Match[str]], str]

# Rust's (?<name>...) is Python's (?P<name>...); look-behinds (?<=...) and (?<!...) stay unchanged.
_RUST_GROUP = re.compile(r"\(\?<(?![=!])")
# $$, ${1}, ${name}, $1, $name as Rust has them, and Python's \1 and \g<name>; an escaped backslash is one backslash.
_REFERENCE = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))|\\(?:(\\)|g<(\w+)>|(\d{1,2}))")


def compile_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return the compiled pattern; PatternError if it is invalid."""
    if isinstance(pattern, re.Pattern):
        if not isinstance(pattern.pattern, str):
            raise TypeError("a pattern must be of str, got one of bytes")
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern must be a str or a compiled pattern, got {type(pattern).__name__}")
    try:
        return re.compile(_RUST_GROUP.sub("(?P<", pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"Invalid regex pattern {quoted(pattern)}: {error}") from None


def compile_replacement(pattern: re.Pattern[str], replacement: str) -> Replacement:
    """Return the function that expands a match; PatternError if the text names a group that the pattern lacks.

    Rust takes the longest name after an unbraced ``$`` (``$1_x`` is a group called ``1_x``) and replaces unknown groups
    by nothing. Here that is an error, because it is never what was meant.
    """
    if not isinstance(replacement, str):
        raise TypeError(f"a replacement must be a str, got {type(replacement).__name__}")
    parts: list[str | int] = []
    position = 0
    for reference in _REFERENCE.finditer(replacement):
        parts.append(replacement[position : reference.start()])
        position = reference.end()
        dollar, braced, bare, backslash, named, number = reference.groups()
        if dollar or backslash:
            parts.append(dollar or backslash)
        else:
            parts.append(_group(pattern, replacement, braced or bare or named or number))
    parts.append(replacement[position:])

    def expand(match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match.group(part) or "" for part in parts)

    return expand


def _group(pattern: re.Pattern[str], replacement: str, name: str) -> int:
    number = int(name) if name.isdecimal() else pattern.groupindex.get(name)
    if number is None or number > pattern.groups:
        digits = re.match(r"\d+", name)
        raise PatternError(
            f"replacement {quoted(replacement)} names group {name!r}, "
            f"which pattern {quoted(pattern.pattern)} does not have",
            hint=f"write ${{{digits.group()}}}{name[digits.end() :]}" if digits and digits.end() < len(name) else None,
        )
    return number
