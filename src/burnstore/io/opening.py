"""Open what a path or a URL names: the only place where a name becomes a source."""

from __future__ import annotations

import os
from typing import Any

from ..errors import LimitError, UnsupportedError
from .paths import OpenFile, as_path
from .remote.location import Location
from .source import FileObjectSource, FileSource, MmapSource, Source


def open_source(path: Any, *, zero_copy: bool = False) -> Source:
    """Open a local path, the file that a URL names, or a file object."""
    place = as_path(path)
    if isinstance(place, OpenFile):
        if zero_copy:
            raise ValueError("zero_copy=True is for paths and bytes; a file object cannot be mapped")
        return FileObjectSource(place.file, place)
    if not isinstance(place, Location):
        return MmapSource(place) if zero_copy else FileSource(place)
    if zero_copy:
        raise UnsupportedError("a remote file cannot be mapped", path=place, hint="leave out zero_copy=True")
    from .remote.folder import open_remote  # not at import: few programs have a URL

    return open_remote(place)


def read_head(path: str | os.PathLike[str], nbytes: int) -> bytes:
    """Return the first bytes of a file, at most this many."""
    source = open_source(path)
    try:
        return source.read_at(0, min(nbytes, source.size))
    finally:
        source.close()


def read_whole(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return all bytes of a small file (rules, receipts, journals); LimitError if it is larger than ``max_bytes``."""
    source = open_source(path)
    try:
        if source.size > max_bytes:
            raise LimitError(f"{source.size} bytes, more than {max_bytes}", path=source.name)
        return source.read_at(0, source.size)
    finally:
        source.close()
