"""Spool: bytes that are written once and then read at any position; in memory, or in a temporary file if many."""

from __future__ import annotations

import os
import tempfile
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, BinaryIO

from ..errors import ClosedError, ReadError
from .sizes import SPOOL_BYTES
from .source import BytesSource, FileSource, Source, _stamp_of

Remake = tuple[Callable[..., Source], tuple[Any, ...]]
"""A function and its arguments that produce the same bytes again, for pickling."""


class Spool:
    """Collect bytes in order; `source` returns them as a `Source`. The temporary file has no name: nothing is left.

    >>> spool = Spool()
    >>> spool.write(b"one ")
    >>> spool.write(b"two")
    >>> spool.source("example").read_at(4, 3)
    b'two'
    """

    __slots__ = ("_file", "_held", "_most", "size")

    def __init__(self, *, in_memory: int = SPOOL_BYTES) -> None:
        self.size = 0
        self._most = in_memory
        self._held = bytearray()
        self._file: BinaryIO | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append these bytes."""
        self.size += len(data)
        try:
            if self._file is None:
                if self.size <= self._most:
                    self._held += data
                    return
                self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the source
                self._file.write(self._held)
                self._held = bytearray()
            self._file.write(data)
        except OSError as error:
            raise self._failure(error) from error

    def source(self, name: str, remake: Remake | None = None) -> Source:
        """Return the bytes as a source, named for errors; ``remake`` restores those of a pickled snapshot."""
        if self._file is None:
            return BytesSource(self._held, name=name)
        try:
            self._file.flush()
            return _SpooledFile(self._file, name, remake)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Drop the bytes, if they did not become a source."""
        if self._file is not None:
            self._file.close()

    def _failure(self, error: OSError) -> ReadError:
        self.close()
        failure = ReadError(
            f"cannot write unpacked data to a temporary file after {self.size} bytes: {error.strerror or error}",
            hint="set TMPDIR to a folder with enough space",
        )
        failure.errno = error.errno
        return failure


class _SpooledFile(FileSource):
    """The temporary file of a spool, read by position like any other."""

    def __init__(self, file: BinaryIO, name: str, remake: Remake | None) -> None:
        self.name = name
        self._file = file
        self._remake = remake
        self._close_lock = allocate_lock()
        self._direct = None  # the page cache has what was just written
        self._fd = file.fileno()
        status = os.fstat(self._fd)
        self.size = status.st_size
        self._stamp = _stamp_of(status)

    def close(self) -> None:
        self._fd = -1
        self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._remake is None:
            raise ClosedError("data unpacked into a temporary file cannot be pickled", path=self.name)
        return self._remake
