"""Portions: parts of a file that is being saved, written by many at once: threads, processes, other machines.

The one who saves makes the scratch file in its full size and hands out its `Place`, which can be pickled. Whoever gets
it opens the file anew and writes at the positions that are its own; the file is published when all are done.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import SaveError
from .destination import flush, open_flags, saving_stage

if TYPE_CHECKING:
    from typing_extensions import Buffer

# One system call moves at most this much, so that Ctrl-C is answered between two of them.
_WINDOW = 16 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a scratch file lies, which file it must be, and the target that errors speak of."""

    path: str
    identity: tuple[int, int]
    target: str

    @contextmanager
    def opened(self, *, durable: bool) -> Iterator[Portion]:
        """The file to write a portion into; with ``durable`` that portion is on disk when the block ends."""
        flags = os.O_WRONLY | open_flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
        with saving_stage("write", self.target, "not saved: the scratch file could not be opened"):
            fd = os.open(self.path, flags)
        try:
            self._check(os.fstat(fd))
            yield Portion(fd, self.target)
            if durable:
                with saving_stage("sync", self.target, "not saved: the bytes could not be brought to disk"):
                    flush(fd)
        finally:
            os.close(fd)

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != self.identity:
            raise SaveError("not saved: the scratch file was exchanged", stage="write", path=self.target)


class Portion:
    """An open scratch file, and writes at any position of it."""

    __slots__ = ("_fd", "_target")

    def __init__(self, fd: int, target: str) -> None:
        self._fd = fd
        self._target = target

    def write_at(self, offset: int, buffer: Buffer) -> None:
        """Write all bytes of a C-contiguous buffer at this position."""
        left = memoryview(buffer).cast("B")
        with saving_stage("write", self._target, f"not saved: writing failed at byte {offset}"):
            while left:
                done = self._write_some(offset, left[:_WINDOW])
                if done <= 0:
                    raise OSError("the system accepts no more bytes and gives no reason")
                offset += done
                left = left[done:]

    def _write_some(self, offset: int, window: memoryview) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._fd, window, offset)
        os.lseek(self._fd, offset, os.SEEK_SET)  # Windows; the position is this descriptor's own
        return os.write(self._fd, window)
