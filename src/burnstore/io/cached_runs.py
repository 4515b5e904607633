"""Cached runs: equally long pieces at equal distances, copied out of the page cache, very many with one system call.

A read of its own for each of thousands of runs costs more than the bytes do, and what lies between them is most of what
a read through copies. So the file is mapped, and the kernel is asked to copy the runs from there within the memory of
this process (`process_vm_writev`). Nothing here looks at the mapping itself: where a file that was cut meanwhile would
kill the process that does, the call returns short.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from functools import cache

import numpy as np

from .pages import read_cached

ENABLED = True
"""Whether runs in the page cache are copied by `process_vm_writev`; False leaves them to plain reads."""

# So many runs are copied by one call, the system's limit; as much of the file is taken to be cached if its begin is.
_MOST_RUNS = 1024
_SPAN = 16 << 20

VectorCopy = Callable[[int, int, int, int, int, int], int]
"""process_vm_writev(2): a process, addresses and numbers of the vectors to copy from and to, and flags."""


def read_cached_runs(fd: int, offset: int, row: int, run: int, buffer: memoryview) -> int:
    """Fill the buffer with runs, each ``row`` bytes after the last, as far as they are cached; how many that were.

    Of every 16 MiB of the file the first run is asked for, and found to be cached or not. None is, where nobody tells.
    """
    if not ENABLED:
        return 0
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


def _address(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


@cache
def _vector_copy() -> VectorCopy | None:
    """The system call; None where there is none."""
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
