"""Hints: what the library advises in the words of Python, in those of the command line."""

from __future__ import annotations

import re

_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"rules=\{pattern: kind\}"), "--rules FILE"),
    (re.compile(r"like= a model or declaration"), "--like MODULE:NAME"),
    (re.compile(r"max_shard_size(=\S+)?"), "--shard SIZE"),
    (re.compile(r"resume=True \(--resume\)"), "--resume"),
    (re.compile(r"pass (?=overwrite=True)"), ""),
)
_FLAG = re.compile(r"\b([a-z_]+)=(?:True\b|(?=[\s,;.)]|$))")
_CHOICE = re.compile(r"\b([a-z_]+)=(?:\"(\w+)\"|\.\.\.)")


def in_options(hint: str) -> str:
    """The same advice for somebody at a terminal.

    >>> in_options('pass source_layout="torch" or "burn", or keep_layout=True to write them as they are')
    'pass --source-layout torch or burn, or --keep-layout to write them as they are'
    >>> in_options("pass overwrite=True")
    '--overwrite'
    """
    for pattern, option in _WORDS:
        hint = pattern.sub(option, hint)
    hint = _CHOICE.sub(lambda found: f"{_option(found[1])} {found[2] or '...'}", hint)
    hint = _FLAG.sub(lambda found: _option(found[1]), hint)
    return re.sub(r'"(burn|torch|first|last|skip)"', r"\1", hint)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
