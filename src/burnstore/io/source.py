"""Sources: a size and positional reads, whatever lies behind them.

Nothing outside this package knows whether bytes come from a file, a memory map or memory. A file is read with
positional reads by default: a mapping whose file is truncated by somebody else kills the process (SIGBUS), a positional
read returns short and becomes a `TruncatedError`. A memory map is the caller's choice (``zero_copy=True``).
"""

from __future__ import annotations

import mmap
import os
import stat
from _thread import allocate_lock
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..errors import ChangedError, ClosedError, ReadError, TruncatedError
from .cached_runs import read_cached_runs
from .pages import PAGE, is_cached, open_direct, read_cached, read_directly
from .parallel import for_each

# One pread of more than this blocks Ctrl-C for long and cannot be shared between threads; Linux caps one at 2 GiB.
_WINDOW = 16 << 20
# Below this, starting threads costs more than they save.
_PARALLEL_FROM = 32 << 20

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

Array = np.ndarray[Any, np.dtype[Any]]
"""An array of any dtype."""

Read = tuple[int, memoryview]
"""One read of a batch: where from, and the buffer to fill."""


class Source(Protocol):
    """Bytes that can be read at any position, by many threads at once."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly these bytes, as a copy."""

    def read_into(self, reads: Sequence[Read]) -> None:
        """Fill every buffer from its offset; large batches are read in parallel."""

    def view(self, offset: int, length: int) -> memoryview | None:
        """These bytes themselves, read-only and kept alive by the view; None where the source does not share."""

    def close(self) -> None:
        """Let go of what lies behind; later reads raise ClosedError, views that were handed out stay valid."""


class BytesSource:
    """Bytes in memory. With ``share`` views are the caller's own bytes, which must then stay unchanged."""

    def __init__(self, data: bytes | bytearray | memoryview, *, share: bool = False, name: str = "<bytes>") -> None:
        self._data: memoryview | None = memoryview(data).cast("B").toreadonly()
        self._share = share
        self.name = name
        self.size = len(self._data)

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self._window(offset, length))

    def read_into(self, reads: Sequence[Read]) -> None:
        for offset, buffer in reads:
            buffer[:] = self._window(offset, len(buffer))

    def view(self, offset: int, length: int) -> memoryview | None:
        return self._window(offset, length) if self._share else None

    def close(self) -> None:
        self._data = None

    def _window(self, offset: int, length: int) -> memoryview:
        data = self._data
        if data is None:
            raise ClosedError(f"{self.name} is closed")
        if offset + length > self.size:
            raise _ends_early(self.name, offset, length, self.size)
        return data[offset : offset + length]

    def __reduce__(self) -> tuple[Any, ...]:
        return _bytes_source, (self.read_at(0, self.size), self._share, self.name)


def _bytes_source(data: bytes, share: bool, name: str) -> BytesSource:
    return BytesSource(data, share=share, name=name)


class FileSource:
    """A regular file, read by position through one descriptor that stays on the inode it opened.

    A file that is replaced (as every save of burnstore does) is read on as it was; one that is changed in place is
    reported as `ChangedError`, one that is cut as `TruncatedError`.
    """

    _was_cached = True  # whether the page cache had the range that was read last: so likely the next one

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fsdecode(path)
        self._absolute = os.path.abspath(self.name)
        self._fd = -1
        self._direct: int | None = -1  # a second descriptor, opened when it is needed; None if that was refused
        self._close_lock = allocate_lock()
        self._fd = os.open(self.name, _OPEN_FLAGS)  # O_NONBLOCK: a FIFO must not hang before it is refused
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                raise ReadError(f"it is {what}; a file is needed", path=self.name)
        except BaseException:
            self.close()
            raise
        self.size = status.st_size
        self._stamp = _stamp_of(status)

    @property
    def identity(self) -> tuple[int, int]:
        """The device and number of the file that was opened, whatever its name leads to now."""
        return self._stamp[:2]

    def is_current(self) -> bool:
        """Whether the name still leads to the file that was opened."""
        try:
            status = os.stat(self._absolute)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.identity

    def read_at(self, offset: int, length: int) -> bytes:
        self._check_inside(offset, length)
        if length <= _WINDOW:
            data = self._pread(offset, length)
            if len(data) == length:
                self.check_unchanged()
                return data
        buffer = bytearray(length)
        self.read_into([(offset, memoryview(buffer))])
        return bytes(buffer)

    def read_into(self, reads: Sequence[Read]) -> None:
        windows: list[Read] = []
        for offset, buffer in reads:
            self._check_inside(offset, len(buffer))
            if len(buffer) <= _WINDOW:
                windows.append((offset, buffer))
                continue
            windows.extend((offset + at, buffer[at : at + _WINDOW]) for at in range(0, len(buffer), _WINDOW))
        if sum(len(buffer) for _, buffer in windows) >= _PARALLEL_FROM:
            for_each(lambda window: self._fill(*window), windows)
        else:
            for offset, buffer in windows:
                self._fill(offset, buffer)
        self.check_unchanged()

    def read_pages(self, offset: int, length: int, pages: memoryview) -> None:
        """Read a range as `burnstore.io.pages.page_reader` says: what is not in the page cache, past it."""
        self._check_inside(offset, length)
        first = offset % PAGE
        wanted = pages[first : first + length]
        try:
            # Asked for a page that it has not, the kernel begins to read ahead, in vain here: so where the last range
            # was not cached, it is first asked for one byte.
            done: int | None = 0
            if self._was_cached or read_cached(self._open_fd(), offset, wanted[:1]):
                done = read_cached(self._open_fd(), offset, wanted)
            self._was_cached = done is None or done == length
            if done is not None and done < length:
                direct = self._direct_fd()
                if direct is not None:
                    done = read_directly(direct, offset + done, offset + length, pages, offset - first) - offset
        except OSError as error:
            raise self._read_error(error, offset) from error
        if done is None or done < length:
            self._fill(offset + (done or 0), wanted[done or 0 :])

    def asked_for(self, offset: int, length: int) -> tuple[int, int, int]:
        """How the kernel is to be asked for a range; see `burnstore.io.pages.AskedOfKernel`."""
        self._check_inside(offset, length)
        fd = self._open_fd()
        try:
            direct = None if is_cached(fd, offset) else self._direct_fd()
        except OSError as error:
            raise self._read_error(error, offset) from error
        if direct is None:
            return fd, offset, length
        first = offset // PAGE * PAGE
        return direct, first, -(-(offset + length) // PAGE) * PAGE - first

    def read_cached_runs(self, offset: int, row: int, run: int, buffer: memoryview) -> int:
        """Read as many of these runs as are in the page cache; see `burnstore.io.runs`."""
        self._check_inside(offset, (len(buffer) // run - 1) * row + run)
        try:
            done = read_cached_runs(self._open_fd(), offset, row, run, buffer)
        except OSError as error:
            raise self._read_error(error, offset) from error
        self.check_unchanged()
        return done

    def view(self, offset: int, length: int) -> memoryview | None:
        return None

    def close(self) -> None:
        with self._close_lock:  # nobody opens the second descriptor meanwhile
            fd, direct, self._fd, self._direct = self._fd, self._direct, -1, -1
        for each in (fd, direct):
            if each is not None and each >= 0:
                os.close(each)

    def _direct_fd(self) -> int | None:
        if self._direct == -1:
            with self._close_lock:
                if self._direct == -1:
                    self._direct = open_direct(self._open_fd())
        return self._direct

    def _fill(self, offset: int, buffer: memoryview) -> None:
        while buffer:
            count = self._preadv(offset, buffer)
            if count == 0:
                raise _ends_early(self.name, offset, len(buffer), self._status().st_size)
            offset += count
            buffer = buffer[count:]

    def _preadv(self, offset: int, buffer: memoryview) -> int:
        try:
            if hasattr(os, "preadv"):
                return os.preadv(self._open_fd(), [buffer], offset)
            data = self._pread(offset, len(buffer))
            buffer[: len(data)] = data
            return len(data)
        except OSError as error:
            raise self._read_error(error, offset) from error

    def _pread(self, offset: int, length: int) -> bytes:
        try:
            if hasattr(os, "pread"):
                return os.pread(self._open_fd(), length, offset)
            with self._close_lock:  # no positional reads on this platform: the file position is shared, so serialise
                os.lseek(self._open_fd(), offset, os.SEEK_SET)
                return os.read(self._open_fd(), length)
        except OSError as error:
            raise self._read_error(error, offset) from error

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise ClosedError("the file was closed", path=self.name, hint="read inside the `with bs.open(...)` block")
        return self._fd

    def _read_error(self, error: OSError, offset: int | None = None) -> OSError:
        if isinstance(error, ReadError):
            return error
        self._open_fd()  # closed meanwhile by another thread: that is what the caller should hear
        failure = ReadError(f"reading failed: {error.strerror or error}", path=self.name, offset=offset)
        failure.errno = error.errno
        return failure

    def _check_inside(self, offset: int, length: int) -> None:
        self._open_fd()
        if offset + length > self.size:
            raise _ends_early(self.name, offset, length, self.size)

    def _status(self) -> os.stat_result:
        try:
            return os.fstat(self._open_fd())
        except OSError as error:
            raise self._read_error(error) from error

    def check_unchanged(self) -> None:
        """Raise ChangedError if the file is no longer as it was when it was opened."""
        if _stamp_of(self._status()) != self._stamp:
            self._open_fd()  # closed meanwhile: the number may already be another file's
            raise ChangedError("the file was changed in place while it was open", path=self.name, hint="open it again")

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self._absolute, self._stamp)


class MmapSource(FileSource):
    """A regular file, mapped; views share the mapping. Truncating the file under it kills the process.

    It is mapped privately: views are read-only, but who must hand out memory that can be written (a torch tensor cannot
    be read-only) may do so, and the file stays as it is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._map: mmap.mmap | None = None
        try:
            if self.size:
                self._map = _private_map(self._fd, self.size)
        except (OSError, ValueError) as error:  # ValueError: it was cut since its size was asked
            self.close()
            raise ReadError(f"the file cannot be mapped: {error}", path=self.name, hint="zero_copy=False") from error

    def view(self, offset: int, length: int) -> memoryview | None:
        mapped = self._map  # before the checks: another thread may close the source after them
        self._check_inside(offset, length)
        self.check_unchanged()  # what is cut after this still kills the process; what was cut before is reported
        if mapped is None:
            return memoryview(b"")
        return memoryview(mapped).toreadonly()[offset : offset + length]

    def close(self) -> None:
        super().close()
        self._map = None  # not closed: views may still point into it, the last one takes it along


def _private_map(fd: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
    except OSError:  # no memory is set apart for so many pages that might be written: then none can be
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)


def _stamp_of(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _reopen(kind: type[FileSource], path: str, stamp: tuple[int, int, int, int]) -> FileSource:
    source = kind(path)
    if source._stamp != stamp:
        source.close()
        raise ChangedError("the file is no longer the one that was pickled", path=path)
    return source


def _ends_early(name: str, offset: int, length: int, size: int) -> TruncatedError:
    return TruncatedError(f"File truncated: {length} bytes needed, the file ends at {size}", path=name, offset=offset)
