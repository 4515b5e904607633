"""Print errors on stderr, one line each, with hints in the words of the command line."""

from __future__ import annotations

import os
import re
import sys

from ..errors import BurnstoreError, printable
from . import ERROR
from .text import escape_controls

JOB_ERRORS = (BurnstoreError, OSError, MemoryError)
"""The exceptions of a job; any other exception is a bug."""

_PHRASES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"rules=\{pattern: kind\}"), "--rules FILE"),
    (re.compile(r"like= a model or declaration"), "--like MODULE:NAME"),
    (re.compile(r"max_shard_size(=\S+)?"), "--shard SIZE"),
    (re.compile(r"resume=True \(--resume\)"), "--resume"),
    (re.compile(r"pass (?=overwrite=True)"), ""),
)
_FLAG = re.compile(r"\b([a-z_]+)=(?:True\b|(?=[\s,;.)]|$))")
_CHOICE = re.compile(r"\b([a-z_]+)=(?:\"(\w+)\"|\.\.\.)")


def print_error(error: BaseException, path: str, *, label: str = "error") -> None:
    """Print an error about this file, with control characters escaped."""
    shown = as_burnstore_error(error, path)
    if shown.hint is not None:
        shown.hint = hint_with_options(shown.hint)
    sys.stdout.flush()  # Both streams may go to one place, in this order.
    for line in in_one_line(f"burnstore: {label}: {shown}").split("\n"):
        print(escape_controls(line), file=sys.stderr)


def fail(error: BaseException, path: str) -> int:
    """Print an error and return the exit code."""
    print_error(error, path)
    return ERROR


def misuse(message: str, verb: str) -> int:
    """Print an error about arguments that do not combine, and return the exit code."""
    print(f"burnstore: error: {message}; hint: burnstore {verb} --help", file=sys.stderr)
    return ERROR


def in_one_line(message: str) -> str:
    """Return a message with its hint on the same line, for logs."""
    return message.replace("\n  hint: ", "; hint: ")


def as_burnstore_error(error: BaseException, path: str) -> BurnstoreError:
    """Return the error as a BurnstoreError about this file; of a missing file, suggest a similar name."""
    if isinstance(error, BurnstoreError):
        if error.path is None:
            error.path = path
        return error
    if isinstance(error, FileNotFoundError):
        missing = os.fsdecode(error.filename or path)
        return BurnstoreError("no such file", path=missing, hint=_similar_name(missing))
    if isinstance(error, MemoryError):
        return BurnstoreError("not enough memory", path=path)
    return BurnstoreError(getattr(error, "strerror", None) or str(error), path=path)


def _similar_name(path: str) -> str | None:
    from difflib import get_close_matches

    folder, name = os.path.split(path)
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
    '--overwrite'
    """
    for pattern, option in _PHRASES:
        hint = pattern.sub(option, hint)
    hint = _CHOICE.sub(lambda found: f"{_option(found[1])} {found[2] or '...'}", hint)
    hint = _FLAG.sub(lambda found: _option(found[1]), hint)
    return re.sub(r'"(burn|torch|first|last|skip)"', r"\1", hint)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
