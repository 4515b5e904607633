"""Pages: reads into memory that begins at a page, from the page cache what is there, and the rest past it.

A file that was not read lately comes from the disk. Read the usual way, its pages are first brought into the cache and
then copied out of it, which costs more than the disk takes; read directly (O_DIRECT), the disk writes into the caller's
memory. That asks for offsets, lengths and addresses that are multiples of a page: so a range is read with the pages
around it, into a buffer in which every byte lies where it lies in its page.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .source import Source

PAGE = 4096
"""What direct reads are aligned to: no disk in use has larger sectors."""

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None) if hasattr(os, "preadv") else None
# The kernel, the file system, or what lies under it, does not do this.
_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


@runtime_checkable
class ReadsPages(Protocol):
    """A source that can read past the page cache."""

    def read_pages(self, offset: int, length: int, pages: memoryview) -> None:
        """As `page_reader` says of its function."""

    def check_unchanged(self) -> None:
        """Raise ChangedError if the file was changed in place: `read_pages` leaves that to the end of many reads."""


@runtime_checkable
class AskedOfKernel(Protocol):
    """A source of which a range is what the kernel reads through a descriptor (`burnstore.io.kernel_reads`)."""

    def asked_for(self, offset: int, length: int) -> tuple[int, int, int]:
        """The descriptor, and from where and how much is to be read through it, at least this range.

        From the page cache, if that has the first byte; otherwise past it, which is the pages that the range touches.
        """


PageReader = Callable[[int, int, memoryview], None]


def page_reader(source: Source) -> PageReader:
    """A function that reads a range so that the byte at ``offset`` of the source is byte ``offset % PAGE`` of pages.

    Those begin at a page and have room for all pages that the range touches; what lies around the range is changed.

    >>> from burnstore.io.source import BytesSource
    >>> pages = memoryview(bytearray(2 * PAGE))
    >>> page_reader(BytesSource(bytes(PAGE) + b"some bytes"))(PAGE + 5, 5, pages)
    >>> bytes(pages[:10])
    b'\\x00\\x00\\x00\\x00\\x00bytes'
    """
    if isinstance(source, ReadsPages):
        return source.read_pages

    def read(offset: int, length: int, pages: memoryview) -> None:
        first = offset % PAGE
        source.read_into([(offset, pages[first : first + length])])

    return read


def read_cached(fd: int, offset: int, buffer: memoryview) -> int | None:
    """Fill the buffer from the page cache, and how far that went; None where nobody tells what is cached."""
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
        if error.errno not in _REFUSALS:
            raise
        return None
    return done


def is_cached(fd: int, offset: int) -> bool:
    """Whether the page cache has the byte at an offset; True where nobody tells."""
    return read_cached(fd, offset, memoryview(bytearray(1))) != 0


def open_direct(fd: int) -> int | None:
    """A second descriptor of this very file, for `read_directly`; None where that is refused."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except (OSError, AttributeError):  # no such file system, no /proc, no O_DIRECT: files can be read all the same
        return None


def read_directly(fd: int, start: int, stop: int, pages: memoryview, offset: int) -> int:
    """Read the range ``start`` to ``stop`` into pages whose first byte is the file's ``offset``; up to where it went.

    That is ``start`` where direct reads are refused, and less than ``stop`` where the file ends before.
    """
    done = start
    last = -(-stop // PAGE) * PAGE
    while done < stop:
        at = done // PAGE * PAGE
        try:
            count = os.preadv(fd, [pages[at - offset : last - offset]], at)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            return done
        if at + count <= done:
            return done
        done = min(at + count, stop)
    return done
