"""Print errors on stderr, one line each, with hints in the words of the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BurnstoreError, printable
from .text import escape_controls, print_json

# The exit codes: nothing to look into, something found, an error.
OK, FOUND, ERROR = 0, 1, 2

JOB_ERRORS = (BurnstoreError, OSError, MemoryError)
"""The exceptions of a job; any other exception is a bug."""

_json_wanted = False
_PHRASES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"rules=\{pattern: kind\}"), "--rules FILE"),
    (re.compile(r"like= a model or declaration"), "--like MODULE:NAME"),
    (re.compile(r"max_shard_size(=\S+)?"), "--shard SIZE"),
    (re.compile(r"resume=True \(--resume\)"), "--resume"),
    (re.compile(r'top_level_key=""'), "--top-level-key ''"),
)
_RENAME = re.compile(r"rename=\[r('[^']*')\]")
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9][0-9,.]*")
_QUOTED = re.compile(r"('[^']*')")
_FLAG = re.compile(r"\b([a-z_]+)=(?:True\b|(?=[\s,;.)]|$))")
_CHOICE = re.compile(r"\b([a-z_]+)=(?:\"(\w+)\"|\.\.\.)")


def print_error(error: BaseException, path: str, *, label: str = "error") -> None:
    """Print an error about this file, with control characters escaped."""
    shown = as_burnstore_error(error, path)
    if shown.hint is not None:
        shown.hint = hint_with_options(shown.hint)
    sys.stdout.flush()  # Both streams may go to one place, in this order.
    for line in f"burnstore: {label}: {shown}".replace("\n  hint: ", "; hint: ").split("\n"):
        print(escape_controls(line), file=sys.stderr)


def fail(error: BaseException, path: str) -> int:
    """Print an error, with ``--json`` also as a document on stdout, and return the exit code."""
    print_error(error, path)
    print_json_error(error_facts(error, path))
    return ERROR


def misuse(message: str, verb: str) -> int:
    """Print an error about arguments that do not combine, and return the exit code."""
    hint = f"burnstore {verb} --help" if verb else "burnstore --help"
    print(f"burnstore: error: {escape_controls(message)}; hint: {hint}", file=sys.stderr)
    print_json_error({"kind": "UsageError", "message": message, "hint": hint})
    return ERROR


def write_errors_as_json(wanted: bool) -> None:
    """Choose whether `fail` and `misuse` also write a JSON document to stdout."""
    global _json_wanted
    _json_wanted = wanted


def print_json_error(facts: Mapping[str, Any]) -> None:
    """Print an error as the JSON document of a verb that has no other, if ``--json`` was given."""
    if _json_wanted:
        print_json({"error": facts})


def error_facts(error: BaseException, path: str) -> dict[str, Any]:
    """Return an error as data for JSON, with the hint in the words of the command line."""
    shown = as_burnstore_error(error, path)
    hint = None if shown.hint is None else hint_with_options(shown.hint)
    facts = {name: _valid(getattr(shown, name)) for name in ("message", "path", "tensor", "rule", "offset")}
    return {"kind": type(error).__name__, **facts, "hint": hint}


def _valid(value: Any) -> Any:
    """Return text without lone surrogates, which strict JSON readers refuse."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def as_burnstore_error(error: BaseException, path: str) -> BurnstoreError:
    """Return the error as a BurnstoreError about this file; of a missing file, suggest a similar name."""
    if isinstance(error, BurnstoreError):
        if error.path is None:
            error.path = path
        return error
    if isinstance(error, FileNotFoundError):
        missing = os.fsdecode(error.filename or path)
        if os.path.islink(missing):
            target = f"its target is {printable(os.path.realpath(missing))}"
            return BurnstoreError("a link to a file that does not exist", path=missing, hint=target)
        if error.strerror and error.strerror.endswith("no such folder"):  # that of a file to be written
            return BurnstoreError(error.strerror, path=missing, hint="create the folder first")
        what = "no file matches this pattern" if any(character in missing for character in "*?") else "no such file"
        return BurnstoreError(what if missing else "the path is empty", path=missing, hint=_similar_name(missing))
    if isinstance(error, MemoryError):
        return BurnstoreError("not enough memory", path=path)
    return BurnstoreError(getattr(error, "strerror", None) or str(error), path=path)


def _similar_name(path: str) -> str | None:
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    if "://" in path:
        return "only files of this machine are read: download it first"
    if os.path.exists(path.replace("\\", "/")):
        return f"did you mean {printable(path.replace(chr(92), '/'))}?"
    try:
        close = get_close_matches(name, os.listdir(folder or os.curdir)[:10_000], n=1)
    except OSError:
        return f"the folder {printable(folder)} does not exist either" if not os.path.lexists(folder) else None
    return f"did you mean {printable(os.path.join(folder, close[0]))}?" if close else None


def hint_with_options(hint: str) -> str:
    """Return a hint of the library with command-line options in place of Python arguments.

    >>> hint_with_options('pass source_layout="torch" or "burn", or keep_layout=True to write them unchanged')
    'pass --source-layout torch or burn, or --keep-layout to write them unchanged'
    >>> hint_with_options("pass overwrite=True")
    'pass --overwrite'
    """
    hint = _FLAG.sub(lambda found: _option(found[1]), _with_choices(_RENAME.sub(r"--rename \1", hint)))
    return re.sub(r'"(burn|torch|first|last|skip)"', r"\1", hint)


def _with_choices(text: str) -> str:
    for pattern, option in _PHRASES:
        text = pattern.sub(option, text)
    return _CHOICE.sub(lambda found: f"{_option(found[1])} {found[2] or '...'}", text)


def group_notes(notes: Iterable[str]) -> list[str]:
    """Return the notes with those that differ only in names and numbers shown once, with their number.

    >>> group_notes(["'a': class Foo is unknown", "'b': class Foo is unknown", "done"])
    ["'a': class Foo is unknown (and 1 more like this)", 'done']
    """
    groups: dict[str, list[str]] = {}
    for note in notes:
        groups.setdefault(_VARYING.sub("*", note), []).append(note)
    return [
        group[0] if len(group) == 1 else f"{group[0]} (and {len(group) - 1:,} more like this)"
        for group in groups.values()
    ]


def shown_notes(notes: Iterable[str]) -> list[str]:
    """Return notes for a screen: those that are alike once, with options in place of Python arguments."""
    return [
        escape_controls("".join(text if text[:1] == "'" else hint_with_options(text) for text in _QUOTED.split(note)))
        for note in group_notes(_RENAME.sub(r"--rename \1", note) for note in notes)
    ]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
