"""Spool: bytes that are made once and then read at any position, in memory while few and on disk when many."""

from __future__ import annotations

import os
import tempfile
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, BinaryIO

from ..errors import ClosedError, ReadError
from .source import BytesSource, FileSource, Source, _stamp_of

IN_MEMORY = 8 << 20
"""What is larger goes into a temporary file, so that inflating a file of any size costs little memory."""

Remake = tuple[Callable[..., Source], tuple[Any, ...]]
"""How to make the same bytes again: a function and its arguments, as pickling wants them."""


class Spool:
    """Takes bytes in order; `source` ends it and gives them back as a `Source`.

    The temporary file has no name, so nothing is left behind, whatever happens.

    >>> spool = Spool()
    >>> spool.write(b"one ")
    >>> spool.write(b"two")
    >>> spool.source("example").read_at(4, 3)
    b'two'
    """

    __slots__ = ("_file", "_held", "_most", "size")

    def __init__(self, *, in_memory: int = IN_MEMORY) -> None:
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
        """What was written, named for errors; ``remake`` is how a pickled snapshot of it finds its bytes again."""
        if self._file is None:
            return BytesSource(self._held, name=name)
        try:
            self._file.flush()
            return _SpooledFile(self._file, name, remake)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Let go of what was written, where it did not become a source."""
        if self._file is not None:
            self._file.close()

    def _failure(self, error: OSError) -> ReadError:
        self.close()
        failure = ReadError(
            f"the temporary file for what is unpacked failed after {self.size} bytes: {error.strerror or error}",
            hint="TMPDIR names the folder of temporary files; it needs room",
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
        self._direct = None  # it was written just now: the page cache has it
        self._fd = file.fileno()
        status = os.fstat(self._fd)
        self.size = status.st_size
        self._stamp = _stamp_of(status)

    def close(self) -> None:
        self._fd = -1
        self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._remake is None:
            raise ClosedError("what was unpacked into a temporary file cannot be pickled", path=self.name)
        return self._remake
