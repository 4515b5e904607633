"""Complaints: errors on stderr, in the words of our own, whoever raised them."""

from __future__ import annotations

import os
import sys

from ..errors import BurnstoreError
from .text import escape_controls


def complain(error: BaseException, path: str, *, label: str = "error") -> None:
    """Tell of an error about this file, with control characters of the file escaped."""
    told = _in_our_words(error, path)
    if told.path is None:
        told.path = path
    sys.stdout.flush()  # so that the two streams, seen in one place, keep their order
    for line in f"burnstore: {label}: {told}".split("\n"):
        print(escape_controls(line), file=sys.stderr)


def _in_our_words(error: BaseException, path: str) -> BurnstoreError:
    if isinstance(error, BurnstoreError):
        return error
    if isinstance(error, FileNotFoundError):
        return BurnstoreError("there is no such file", path=os.fsdecode(error.filename or path))
    if isinstance(error, MemoryError):
        return BurnstoreError("there is not enough memory")
    return BurnstoreError(getattr(error, "strerror", None) or str(error))
