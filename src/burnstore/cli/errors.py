"""Print errors on stderr, one line each, with hints in the words of the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BurnstoreError, Ways, printable, quoted, redact, spell_options
from .text import escape_controls, print_json

# The exit codes: nothing to look into, something found, an error.
OK, FOUND, ERROR = 0, 1, 2

JOB_ERRORS = (BurnstoreError, OSError, MemoryError)
"""The exceptions of a job; any other exception is a bug."""

_json_wanted = False
_options: frozenset[str] = frozenset()
_NAMES = {
    "executor": "--jobs",
    "filter": "--filter REGEX",
    "max_shard_size": "--shard SIZE",
    "rename": "--rename OLD=>NEW",
    "rules": "--rules FILE",
}
"""Options whose spelling on the command line is not the keyword's, or that need a value."""

_RENAME = re.compile(r"rename=(\[r?'(?:[^'\\]|\\.)*'\])")
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9][0-9,.]*")
_QUOTED = re.compile(r"('[^']*')")


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
    message = redact(message)  # it may quote a URL of the command line
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
        if "://" in missing:
            return BurnstoreError(error.strerror or "no such file", path=missing)
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
        return None
    if os.path.exists(path.replace("\\", "/")):
        return f"did you mean {printable(path.replace(chr(92), '/'))}?"
    try:
        close = get_close_matches(name, os.listdir(folder or os.curdir)[:10_000], n=1)
    except OSError:
        return f"the folder {printable(folder)} does not exist either" if not os.path.lexists(folder) else None
    return f"did you mean {printable(os.path.join(folder, close[0]))}?" if close else None


def use_options(flags: Iterable[str]) -> None:
    """Set the options of the verb that runs; hints name no others."""
    global _options
    _options = frozenset(flags)


def hint_with_options(hint: str) -> str | None:
    """Return a hint of the library with the options of this verb in place of Python arguments.

    Ways that need an option which the verb lacks are left out; a hint for Python only says so. None if nothing is left.

    >>> use_options(["--layout", "--keep-layout", "--overwrite"])
    >>> hint_with_options('pass layout="torch" or layout="burn", or keep_layout=True to write them unchanged')
    'pass --layout torch or --layout burn, or --keep-layout to write them unchanged'
    >>> hint_with_options("pass overwrite=True"), hint_with_options("pass limits=Limits(tensors=...)")
    ('pass --overwrite', 'in Python: pass limits=Limits(tensors=...)')
    """
    lacked: list[str] = []

    def spell(option: str, value: str) -> str | None:
        word = spell_option(option, value)
        if word is None:
            lacked.append(option)
        return word

    shown = spell_options(hint, spell)
    if shown is not None and (isinstance(hint, Ways) or not lacked):
        shown = _CHOICE.sub(r"\1", shown).replace("--like a model or declaration", "--like MODULE:NAME")
        shown = _LIKE_CLASS.sub(r"--like \1:\2", shown)
    if isinstance(hint, Ways) or not lacked:
        return shown if shown is None or not _CALL.search(shown) else f"in Python: {shown}"
    return f"in Python: {hint}"


def spell_option(option: str, value: str) -> str | None:
    """Return how the verb that runs spells an option of the library; None if it has none."""
    spelling = _NAMES.get(option, "--" + option.replace("_", "-"))
    flag = spelling.partition(" ")[0]
    if flag not in _options:
        return None
    if option == "executor" and value == "None":
        return "no --jobs"
    if option == "rules" and value.startswith('{pattern: "'):
        return f"{spelling} with the line 'PATTERN = {value[11:-2]}'"
    if option == "rename" and value[:1] in ("[", "r"):
        return _rename_options(value)
    if value in ("True", "None") or value[:1] in ("{", "["):
        return spelling
    if value == "False":
        return f"--no-{flag[2:]}" if f"--no-{flag[2:]}" in _options else None
    value = value.strip("\"'") or ("''" if value else "")
    return f"{flag} {value}".rstrip()


def _rename_options(rules: str) -> str:
    """Return rename rules, which a hint shows as a list of Python, as options that a shell takes."""
    from ast import literal_eval

    return " ".join(f"--rename {quoted(rule)}" for rule in literal_eval(rules))


_CHOICE = re.compile(r'"(burn|torch|first|last|skip)"')
_LIKE_CLASS = re.compile(r"--like a (\w+)\.(\w+)")
_CALL = re.compile(r"\bburnstore\.\w+\(|\bLimits\b")


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
        escape_controls(with_options(note))
        for note in group_notes(_RENAME.sub(lambda match: _rename_options(match[1]), note) for note in notes)
    ]


def with_options(text: str) -> str:
    """Return a text with the options in it spelled as those of this verb, apart from what is in quotes."""
    return "".join(part if part[:1] == "'" else spell_options(part, spell_option) or "" for part in _QUOTED.split(text))
