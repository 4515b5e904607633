"""Read whole pages through a descriptor: from the page cache what it has, the rest directly from the disk.

Read the usual way, pages from a disk are first brought into the page cache and then copied, which costs more than the
disk takes. A direct read (O_DIRECT) lets the disk write into the caller's memory, and requires that offsets, lengths
and addresses are multiples of a page: a range is read with the pages around it, into a buffer in which every byte has
the place it has in its page.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .sizes import PAGE

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None) if hasattr(os, "preadv") else None
_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


def read_cached(fd: int, offset: int, buffer: memoryview) -> int | None:
    """Fill the buffer from the page cache and return how far that went; None if the system does not report it."""
    if _NOWAIT is None:
        return None
    done = 0
    try:
        while done < len(buffer):
            count = os.preadv(fd, [buffer[done:]], offset + done, _NOWAIT)
            if count == 0:
                break
            done += count
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return None
    return done


def is_cached(fd: int, offset: int) -> bool:
    """Return whether the page cache has the byte at an offset; True if the system does not report it."""
    return read_cached(fd, offset, memoryview(bytearray(1))) != 0


def open_direct(fd: int) -> int | None:
    """Open a second descriptor of the same file for `read_directly`; None where that is refused."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except (OSError, AttributeError):  # the file system, /proc or O_DIRECT is missing
        return None


def read_directly(fd: int, start: int, stop: int, pages: memoryview, offset: int) -> int:
    """Read ``start`` to ``stop`` into pages whose first byte is the file's ``offset``; return where it ended.

    That is ``start`` where direct reads are refused, and less than ``stop`` where the file ends early.
    """
    done = start
    last = -(-stop // PAGE) * PAGE
    while done < stop:
        at = done // PAGE * PAGE
        try:
            count = os.preadv(fd, [pages[at - offset : last - offset]], at)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return done
        if at + count <= done:
            return done
        done = min(at + count, stop)
    return done


# So many runs are copied by one call, the system's limit; as much of the file is taken to be cached if its begin is.
_MOST_RUNS = 1024
_SPAN = 16 << 20

VectorCopy = Callable[[int, int, int, int, int, int], int]
"""process_vm_writev(2): a process, addresses and numbers of the vectors to copy from and to, and flags."""


def read_cached_runs(fd: int, offset: int, row: int, run: int, buffer: memoryview) -> int:
    """Fill the buffer with runs, each ``row`` bytes after the last, as far as they are cached; return how many were.

    A read of its own for each of thousands of runs costs more than the bytes do. So the file is mapped, and the kernel
    copies a thousand runs with one call within this process (`process_vm_writev`). Nothing here touches the mapping:
    where a file that was cut meanwhile would kill the process that does, the call returns short. The first run of every
    16 MiB of the file decides whether the others are taken to be cached.
    """
    count = len(buffer) // run
    height = min(max(_SPAN // row, 1), _MOST_RUNS)
    mapped: _MappedRuns | None = None
    done = 0
    while done < count and read_cached(fd, offset + done * row, buffer[done * run : (done + 1) * run]) == run:
        done += 1
        more = min(height - 1, count - done)
        if more:
            try:
                mapped = mapped or _MappedRuns(fd, offset, row, run, count)
            except (OSError, ValueError):  # no such file system, no room in the address space; it ends before the runs
                return done
            copied = mapped.copy(done, buffer[done * run : (done + more) * run])
            done += copied
            if copied < more:
                return done
    return done


class _MappedRuns:
    """Runs of a file, mapped."""

    def __init__(self, fd: int, offset: int, row: int, run: int, count: int) -> None:
        start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        length = offset - start + (count - 1) * row + run
        self._mapping = np.frombuffer(mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start), np.uint8)
        self._first = _address(self._mapping) + offset - start
        self._row = row
        self._run = run

    def copy(self, first: int, buffer: memoryview) -> int:
        """Copy runs, of which this is the first; how many were copied whole."""
        vector_copy = _vector_copy()
        if vector_copy is None:
            return 0
        count = len(buffer) // self._run
        runs = np.empty((count, 2), np.uintp)
        runs[:, 0] = np.arange(first, first + count, dtype=np.uintp) * np.uintp(self._row) + np.uintp(self._first)
        runs[:, 1] = self._run
        target = np.array([_address(np.frombuffer(buffer, np.uint8)), len(buffer)], np.uintp)
        return max(vector_copy(os.getpid(), _address(runs), count, _address(target), 1, 0), 0) // self._run


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@cache
def _vector_copy() -> VectorCopy | None:
    """Return the system call; None where the system has none."""
    try:
        import ctypes  # not at import: only parts of tensors are read so

        call = ctypes.CDLL(None).process_vm_writev
    except (ImportError, OSError, AttributeError):
        return None
    vector = ctypes.c_void_p, ctypes.c_ulong
    call.argtypes = (ctypes.c_int, *vector, *vector, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    found: VectorCopy = call
    return found
