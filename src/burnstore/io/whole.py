"""Whole: a small file at once, as rules, receipts and journals are."""

from __future__ import annotations

import os

from ..errors import LimitError
from .source import FileSource


def read_whole(path: str | os.PathLike[str], most: int) -> bytes:
    """All bytes of a file that has at most so many; LimitError for a larger one."""
    source = FileSource(path)
    try:
        if source.size > most:
            raise LimitError(f"{source.size} bytes, more than {most}", path=source.name)
        return source.read_at(0, source.size)
    finally:
        source.close()
