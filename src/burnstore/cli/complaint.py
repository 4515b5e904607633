"""Complaints: errors on stderr, in the words of our own, whoever raised them; a line each."""

from __future__ import annotations

import os
import sys

from ..errors import BurnstoreError, printable
from . import ERROR
from .hints import in_options
from .text import escape_controls


def complain(error: BaseException, path: str, *, label: str = "error") -> None:
    """Tell of an error about this file, with control characters of the file escaped."""
    told = in_our_words(error, path)
    if told.hint is not None:
        told.hint = in_options(told.hint)
    sys.stdout.flush()  # so that the two streams, seen in one place, keep their order
    for line in in_one_line(f"burnstore: {label}: {told}").split("\n"):
        print(escape_controls(line), file=sys.stderr)


def in_one_line(message: str) -> str:
    """A message with its hint beside it: what went wrong and what to do are one line, for people and for logs."""
    return message.replace("\n  hint: ", "; hint: ")


def misuse(message: str, verb: str) -> int:
    """Tell of arguments that do not go together, as of any that are wrong; the exit code."""
    print(f"burnstore: error: {message}; hint: burnstore {verb} --help", file=sys.stderr)
    return ERROR


def in_our_words(error: BaseException, path: str) -> BurnstoreError:
    """The error as one of ours, about this file unless it says which; of a name that is not there, what is like it."""
    if isinstance(error, BurnstoreError):
        if error.path is None:
            error.path = path
        return error
    if isinstance(error, FileNotFoundError):
        missing = os.fsdecode(error.filename or path)
        return BurnstoreError("there is no such file", path=missing, hint=_similar(missing))
    if isinstance(error, MemoryError):
        return BurnstoreError("there is not enough memory", path=path)
    return BurnstoreError(getattr(error, "strerror", None) or str(error), path=path)


def _similar(path: str) -> str | None:
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    try:
        close = get_close_matches(name, os.listdir(folder or os.curdir)[:10_000], n=1)
    except OSError:
        return f"nor is there a folder {printable(folder)}" if not os.path.lexists(folder) else None
    return f"did you mean {printable(os.path.join(folder, close[0]))}?" if close else None
