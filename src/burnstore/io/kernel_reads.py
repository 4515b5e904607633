"""Kernel reads: many reads of files at a time, done by threads of the kernel; this one asks and is told (io_uring).

A dozen threads of Python that read share the interpreter's lock with whoever uses what they read, and wait for it, and
for each other to be woken, longer than a read takes. The kernel's threads need no lock of ours. What is to be read is
written into a queue in memory that is shared with the kernel; what was read is found in another.

Only on Linux, where it is allowed, and on x86-64: there memory is seen by all processors in the order in which it was
written, which other machines promise only to code that asks for it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, partial
from time import sleep
from typing import NamedTuple

# Numbers and layouts of <linux/io_uring.h>.
_SETUP, _ENTER, _REGISTER = 425, 426, 427
_ENTRIES_AT = 0x10000000
_SINGLE_MAPPING = 1
_GET_EVENTS = 1
_SET_WORKERS = 19
_READ = 22
_BY_A_WORKER = 16
_PARAMETERS = struct.Struct("<6I4x12x")
_OFFSETS = struct.Struct("<8I8x")
_REQUEST = struct.Struct("<BBHiQQIIQ24x")
_RESULT = struct.Struct("<Qi4x")
_WRAP = 0xFFFFFFFF

ENABLED = True
"""Whether the kernel reads for GPU transfers; False leaves all reads to Python threads."""

SystemCall = Callable[..., int]

Asked = tuple[int, int, int]
"""A read: a descriptor, where from, and how much."""


class KernelReads:
    """Reads that are under way, up to ``most``; as many threads of the kernel as there are workers do them.

    OSError where the system does not do this. Not for several threads.
    """

    _fd = -1
    _is_open = False

    def __init__(self, most: int, workers: int) -> None:
        parameters = bytearray(_PARAMETERS.size + 2 * _OFFSETS.size)
        shared = (ctypes.c_char * len(parameters)).from_buffer(parameters)
        self._held = ExitStack()
        self._enter = _calls().enter
        self._fd = _called(_calls().setup(most, ctypes.addressof(shared)))
        self._held.callback(os.close, self._fd)
        try:
            entries, results, _, _, _, features = _PARAMETERS.unpack_from(parameters)
            if not features & _SINGLE_MAPPING:
                raise OSError(errno.ENOSYS, "an old kernel")
            asked = _OFFSETS.unpack_from(parameters, _PARAMETERS.size)
            done = _OFFSETS.unpack_from(parameters, _PARAMETERS.size + _OFFSETS.size)
            size = max(asked[6] + 4 * entries, done[5] + _RESULT.size * results)
            self._queues = self._mapped(-(-size // 4) * 4, 0)
            self._requests = self._mapped(_REQUEST.size * entries, _ENTRIES_AT)
            words = self._words = self._held.enter_context(memoryview(self._queues).cast("I"))
            # Where the words are that count: what was asked, begun, done, and taken note of, each one after the other.
            self._asked, self._begun, self._done, self._noted = asked[1] // 4, asked[0] // 4, done[1] // 4, done[0] // 4
            self._asked_mask, self._done_mask, self._results = words[asked[2] // 4], words[done[2] // 4], done[5]
            order = asked[6] // 4
            words[order : order + entries] = memoryview(struct.pack(f"<{entries}I", *range(entries))).cast("I")
            before = set_workers(self._fd, workers, 0)  # they are the thread's, which may have reads of others
            self._held.callback(_give_back_workers, self._fd, before)
            self._is_open = True
        except BaseException:
            self.close()
            raise

    def _mapped(self, size: int, offset: int) -> mmap.mmap:
        mapping = mmap.mmap(self._fd, size, offset=offset)
        self._held.callback(_unmap, mapping)
        return mapping

    def ask(self, asked: Asked, address: int, key: int) -> None:
        """Have a read begun with the next call of `finished`, into memory that must stay until it is told as finished.

        There may be no more of them than ``most``.
        """
        fd, offset, length = asked
        number = self._words[self._asked]
        at = (number & self._asked_mask) * _REQUEST.size
        _REQUEST.pack_into(self._requests, at, _READ, _BY_A_WORKER, 0, fd, offset, address, length, 0, key)
        self._words[self._asked] = number + 1 & _WRAP

    def finished(self, most: int, *, wait: bool = False) -> list[tuple[int, int]]:
        """The keys of reads that are done, and how much was read or minus the number of an error, at most so many.

        With ``wait`` at least one if any was asked for, unless a signal comes first.
        """
        found = self._found(most)
        words = self._words
        new = (words[self._asked] - words[self._begun]) & _WRAP
        awaited = int(wait and not found and (new > 0 or self._under_way > 0))
        if new or awaited:
            try:
                _called(self._enter(self._fd, new, awaited, _GET_EVENTS if awaited else 0, None, 0))
            except OSError as error:
                if error.errno not in (errno.EINTR, errno.EAGAIN, errno.EBUSY):  # those are over when asked again
                    raise
            found += self._found(most - len(found))
        return found

    def settle(self) -> None:
        """Return when nothing is under way: nobody writes into memory any more. What was only asked for is not done."""
        try:
            while self._under_way:
                sleep(0.0002)
        except BaseException:  # of a signal, whatever its handler raises: told when it is over
            self.settle()
            raise

    def close(self) -> None:
        """Let go of the queues, when nothing is under way."""
        self._is_open = False
        self._held.close()
        self._fd = -1

    def __del__(self) -> None:
        if self._fd >= 0:  # a signal came before anybody could close it
            self.settle()
            self.close()

    @property
    def _under_way(self) -> int:
        """How many reads the kernel has begun and not ended; it counts them itself, so that no signal confuses that."""
        if not self._is_open:  # a signal came while the queues were being made, or closed
            return 0
        under_way: int = (self._words[self._begun] - self._words[self._done]) & _WRAP
        return under_way

    def _found(self, most: int) -> list[tuple[int, int]]:
        words = self._words
        noted = words[self._noted]
        count = min((words[self._done] - noted) & _WRAP, most)
        if not count:
            return []
        places = [(number & self._done_mask) * _RESULT.size + self._results for number in range(noted, noted + count)]
        found = [_RESULT.unpack_from(self._queues, place) for place in places]
        words[self._noted] = noted + count & _WRAP
        return found


def set_workers(fd: int, bounded: int, unbounded: int) -> tuple[int, int]:
    """How many threads of the kernel may read for this thread, of files and of what may never end; as before if zero.

    What it was before.
    """
    numbers = (ctypes.c_uint * 2)(bounded, unbounded)
    _called(_calls().register(fd, _SET_WORKERS, ctypes.addressof(numbers), 2))
    return numbers[0], numbers[1]


def _unmap(mapping: mmap.mmap) -> None:
    with suppress(BufferError):  # a signal came while it was being looked at: it goes with what is left of that
        mapping.close()


def _give_back_workers(fd: int, before: tuple[int, int]) -> None:
    with suppress(OSError):
        set_workers(fd, *before)


def kernel_reads(most: int, workers: int) -> KernelReads | None:
    """The way to have reads done by the kernel; None where it does none for this process."""
    if not ENABLED or sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return None
    try:
        return KernelReads(most, workers)
    except OSError:  # not built in, not allowed, too old; no memory for it
        return None


class _Calls(NamedTuple):
    """The three system calls, which C has no names for."""

    setup: SystemCall
    enter: SystemCall
    register: SystemCall


@cache
def _calls() -> _Calls:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *kinds: type) -> SystemCall:
        made = libc["syscall"]  # by index: each has argument types of its own
        made.argtypes = (ctypes.c_long, *kinds)
        made.restype = ctypes.c_long
        return partial(made, number)

    address, count = ctypes.c_void_p, ctypes.c_uint
    return _Calls(
        setup=call(_SETUP, count, address),
        enter=call(_ENTER, count, count, count, count, address, ctypes.c_size_t),
        register=call(_REGISTER, count, count, address, count),
    )


def _called(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
