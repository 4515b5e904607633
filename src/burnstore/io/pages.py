"""Read whole pages through a descriptor: from the page cache what it has, the rest directly from the disk.

Read the usual way, pages from a disk are first brought into the page cache and then copied, which costs more than the
disk takes. A direct read (O_DIRECT) lets the disk write into the caller's memory, and requires that offsets, lengths
and addresses are multiples of a page: a range is read with the pages around it, into a buffer in which every byte has
the place it has in its page.
"""

from __future__ import annotations

import errno
import os

from .sizes import PAGE

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None) if hasattr(os, "preadv") else None
_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


def read_cached(fd: int, offset: int, buffer: memoryview) -> int | None:
    """Fill the buffer from the page cache and return how far that went; None where the system does not say."""
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
