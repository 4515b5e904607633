"""Kernel reads: many reads of files at a time, done by threads of the kernel (io_uring).

Python threads that read share the interpreter's lock with the thread that uses the bytes. They wait for the lock, and
to be woken, longer than a read takes. Kernel threads need no lock of ours. Requests are written into a queue in memory
that is shared with the kernel, and results are found in another queue.

Only on Linux, where the system permits it, and on x86-64: there every processor sees writes to memory in the order in
which they were made. Other machines guarantee that order only to code with memory barriers, which Python has not.
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
_REQUESTS_AT = 0x10000000
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

SystemCall = Callable[..., int]

ReadRequest = tuple[int, int, int]
"""A read: a descriptor, the offset in its file, and the number of bytes."""


class KernelReads:
    """A queue of at most ``most`` reads, done by ``workers`` threads of the kernel. Use it in one thread only.

    Raises OSError where the system refuses.
    """

    _fd = -1
    _is_open = False

    def __init__(self, most: int, workers: int) -> None:
        parameters = bytearray(_PARAMETERS.size + 2 * _OFFSETS.size)
        shared = (ctypes.c_char * len(parameters)).from_buffer(parameters)
        self._held = ExitStack()
        self._enter = _calls().enter
        self._fd = _checked(_calls().setup(most, ctypes.addressof(shared)))
        self._held.callback(os.close, self._fd)
        try:
            entries, results, _, _, _, features = _PARAMETERS.unpack_from(parameters)
            if not features & _SINGLE_MAPPING:
                raise OSError(errno.ENOSYS, "an old kernel")
            requested = _OFFSETS.unpack_from(parameters, _PARAMETERS.size)
            done = _OFFSETS.unpack_from(parameters, _PARAMETERS.size + _OFFSETS.size)
            size = max(requested[6] + 4 * entries, done[5] + _RESULT.size * results)
            self._queues = self._mapped(-(-size // 4) * 4, 0)
            self._requests = self._mapped(_REQUEST.size * entries, _REQUESTS_AT)
            words = self._words = self._held.enter_context(memoryview(self._queues).cast("I"))
            # The indices of four counters: reads requested, begun by the kernel, done, and returned by `finished`.
            self._requested, self._begun = requested[1] // 4, requested[0] // 4
            self._done, self._returned = done[1] // 4, done[0] // 4
            self._request_mask, self._done_mask = words[requested[2] // 4], words[done[2] // 4]
            self._results = done[5]
            order = requested[6] // 4
            words[order : order + entries] = memoryview(struct.pack(f"<{entries}I", *range(entries))).cast("I")
            before = set_workers(self._fd, workers, 0)  # a setting of the thread, which may have other queues
            self._held.callback(_restore_workers, self._fd, before)
            self._is_open = True
        except BaseException:
            self.close()
            raise

    def _mapped(self, size: int, offset: int) -> mmap.mmap:
        mapping = mmap.mmap(self._fd, size, offset=offset)
        self._held.callback(_unmap, mapping)
        return mapping

    def request(self, read: ReadRequest, address: int, key: int) -> None:
        """Queue a read, which the next call of `finished` begins; its memory must stay until `finished` returns it.

        At most ``most`` reads may be queued or under way.
        """
        fd, offset, length = read
        number = self._words[self._requested]
        at = (number & self._request_mask) * _REQUEST.size
        _REQUEST.pack_into(self._requests, at, _READ, _BY_A_WORKER, 0, fd, offset, address, length, 0, key)
        self._words[self._requested] = number + 1 & _WRAP

    def finished(self, most: int, *, wait: bool = False) -> list[tuple[int, int]]:
        """Return at most so many reads that are done, each as its key and the bytes read, or minus an error number.

        With ``wait`` at least one if any is under way, unless a signal comes first.
        """
        found = self._found(most)
        words = self._words
        new = (words[self._requested] - words[self._begun]) & _WRAP
        awaited = int(wait and not found and (new > 0 or self._under_way > 0))
        if new or awaited:
            try:
                _checked(self._enter(self._fd, new, awaited, _GET_EVENTS if awaited else 0, None, 0))
            except OSError as error:
                if error.errno not in (errno.EINTR, errno.EAGAIN, errno.EBUSY):  # the next call tries again
                    raise
            found += self._found(most - len(found))
        return found

    def settle(self) -> None:
        """Return when no read is under way, so that the kernel writes into no memory; queued reads are not begun."""
        try:
            while self._under_way:
                sleep(0.0002)
        except BaseException:  # a signal's handler may raise anything: it is raised after the reads are done
            self.settle()
            raise

    def close(self) -> None:
        """Release the queues; call `settle` before."""
        self._is_open = False
        self._held.close()
        self._fd = -1

    def __del__(self) -> None:
        if self._fd >= 0:  # a signal came before the owner could close it
            self.settle()
            self.close()

    @property
    def _under_way(self) -> int:
        """The reads that the kernel has begun and not ended; the kernel counts them, so no signal falsifies that."""
        if not self._is_open:  # a signal came while the queues were being made, or closed
            return 0
        under_way: int = (self._words[self._begun] - self._words[self._done]) & _WRAP
        return under_way

    def _found(self, most: int) -> list[tuple[int, int]]:
        words = self._words
        returned = words[self._returned]
        count = min((words[self._done] - returned) & _WRAP, most)
        if not count:
            return []
        numbers = range(returned, returned + count)
        places = [(number & self._done_mask) * _RESULT.size + self._results for number in numbers]
        found = [_RESULT.unpack_from(self._queues, place) for place in places]
        words[self._returned] = returned + count & _WRAP
        return found


def set_workers(fd: int, bounded: int, unbounded: int) -> tuple[int, int]:
    """Set how many kernel threads read for this thread, of files and of pipes; zero leaves a number unchanged.

    Return the numbers before.
    """
    numbers = (ctypes.c_uint * 2)(bounded, unbounded)
    _checked(_calls().register(fd, _SET_WORKERS, ctypes.addressof(numbers), 2))
    return numbers[0], numbers[1]


def _unmap(mapping: mmap.mmap) -> None:
    with suppress(BufferError):  # a signal left a view of it in a traceback: it is unmapped with that view
        mapping.close()


def _restore_workers(fd: int, before: tuple[int, int]) -> None:
    with suppress(OSError):
        set_workers(fd, *before)


def kernel_reads(most: int, workers: int) -> KernelReads | None:
    """Return a queue of kernel reads; None where the system does not permit this process to have one."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return None
    try:
        return KernelReads(most, workers)
    except OSError:  # not built in, forbidden (seccomp), too old, or no memory for it
        return None


class _Calls(NamedTuple):
    """The three system calls, for which the C library has no functions."""

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


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
