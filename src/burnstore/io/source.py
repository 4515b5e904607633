"""Sources: a size and positional reads of a file, a memory map or bytes in memory.

A file is read with positional reads by default: a mapping whose file another program truncates kills the process
(SIGBUS), while a positional read returns short and becomes a `TruncatedError`. A memory map is the caller's choice
(``zero_copy=True``).
"""

from __future__ import annotations

import io
import mmap
import os
import stat
import weakref
from _thread import allocate_lock
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import (
    BurnstoreError,
    ChangedError,
    ClosedError,
    ReadError,
    TruncatedError,
    redact,
)
from .pages import is_cached, open_direct, read_cached, read_cached_runs, read_directly
from .parallel import for_each
from .sizes import PAGE, PARALLEL_BYTES, SYSCALL_BYTES

_MAX_PRIVATE_MAPS = 16  # of one file at a time: each has a descriptor
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

Array = np.ndarray[Any, np.dtype[Any]]
"""An array of any dtype."""

Read = tuple[int, memoryview]
"""One read of a batch: an offset, and the buffer to fill."""

PageReader = Callable[[int, int, memoryview], None]


class Source(Protocol):
    """Bytes that can be read at any position, by many threads concurrently."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes, as a copy."""

    def read_into(self, reads: Sequence[Read]) -> None:
        """Fill every buffer from its offset; large batches are read in parallel."""

    def view(self, offset: int, length: int) -> memoryview | None:
        """Return these bytes without a copy, read-only and kept alive by the view; None if the source shares none."""

    def close(self) -> None:
        """Close the file; later reads raise ClosedError, views that were handed out stay valid."""


@runtime_checkable
class ReadsPages(Protocol):
    """A source that can bypass the page cache."""

    def read_pages(self, offset: int, length: int, pages: memoryview) -> None:
        """Read as the function of `page_reader` does."""

    def check_unchanged(self) -> None:
        """Raise ChangedError if the file was changed in place: `read_pages` leaves that to the end of many reads."""


@runtime_checkable
class InFolder(Source, Protocol):
    """A source beside which other files are: a local file, an object of a store, a file on a web server."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """What the opened content is known by, whatever its name refers to now."""

    def is_current(self) -> bool:
        """Return whether the name still refers to the opened content."""


@runtime_checkable
class OpensSiblings(InFolder, Protocol):
    """A remote source that opens the files beside it."""

    def open_sibling(self, name: str) -> InFolder:
        """Open the file of that plain name in the same folder."""

    def prefetch_siblings(self, names: Sequence[str]) -> None:
        """Start to open these files of the same folder."""


@runtime_checkable
class Prefetches(Protocol):
    """A source of which a read takes long, and which can read many ranges in the time of one."""

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read these ranges, each an offset and a length; the next reads of them cost nothing."""


def expect_reads(source: Source, ranges: Sequence[tuple[int, int]]) -> None:
    """Announce many small reads that follow, each an offset and a length."""
    if isinstance(source, Prefetches):
        source.prefetch(ranges)


@runtime_checkable
class KernelReadable(Protocol):
    """A source of which the kernel can read a range through a descriptor (`burnstore.io.kernel_reads`)."""

    def kernel_read(self, offset: int, length: int) -> tuple[int, int, int]:
        """Return a descriptor, and the offset and length to read through it, which cover at least this range.

        It is a read of the page cache if that has the first byte, otherwise a direct one of whole pages.
        """


def page_reader(source: Source) -> PageReader:
    """Return a function that reads a range into pages: the byte at ``offset`` becomes byte ``offset % PAGE`` of them.

    The pages begin at a page of memory and cover all pages of the range; bytes around the range are overwritten.

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
            raise _truncated(self.name, offset, length, self.size)
        return data[offset : offset + length]

    def __reduce__(self) -> tuple[Any, ...]:
        return _bytes_source, (self.read_at(0, self.size), self._share, self.name)


def _bytes_source(data: bytes, share: bool, name: str) -> BytesSource:
    return BytesSource(data, share=share, name=name)


class FileSource:
    """A regular file, read by position through one descriptor that stays on the inode it opened.

    The old content of a file that is replaced (as every save of burnstore does) can still be read; a file that is
    changed in place raises `ChangedError`, one that is cut `TruncatedError`.
    """

    _was_cached = True  # whether the page cache had the last range: then it probably has the next one

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fsdecode(path)
        self._absolute = os.path.abspath(self.name)
        self._fd = -1
        self._direct: int | None = -1  # a second descriptor, opened when needed; None if that was refused
        self._close_lock = allocate_lock()
        self._fd = os.open(self.name, _OPEN_FLAGS)  # O_NONBLOCK: a FIFO must not hang before it is refused
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                found = " but a directory" if stat.S_ISDIR(status.st_mode) else ""
                raise ReadError(f"not a regular file{found}", path=self.name)
        except BaseException:
            self.close()
            raise
        self.size = status.st_size
        self._stamp = _stamp_of(status)

    @property
    def identity(self) -> tuple[int, int]:
        """The device and inode of the opened file, whatever its name refers to now."""
        return self._stamp[:2]

    def is_current(self) -> bool:
        """Return whether the name still refers to the opened file."""
        try:
            status = os.stat(self._absolute)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.identity

    def read_at(self, offset: int, length: int) -> bytes:
        self._check_inside(offset, length)
        if length <= SYSCALL_BYTES:
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
            if len(buffer) <= SYSCALL_BYTES:
                windows.append((offset, buffer))
                continue
            for at in range(0, len(buffer), SYSCALL_BYTES):
                windows.append((offset + at, buffer[at : at + SYSCALL_BYTES]))
        if sum(len(buffer) for _, buffer in windows) >= PARALLEL_BYTES:
            for_each(lambda window: self._fill(*window), windows)
        else:
            for offset, buffer in windows:
                self._fill(offset, buffer)
        self.check_unchanged()

    def read_pages(self, offset: int, length: int, pages: memoryview) -> None:
        """Read a range into pages, see `page_reader`: the part that is not in the page cache directly from the disk."""
        self._check_inside(offset, length)
        first = offset % PAGE
        wanted = pages[first : first + length]
        try:
            # Asked for a page that is not cached, the kernel starts to read ahead, which is wasted here: where the last
            # range was not cached, ask for one byte first.
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

    def kernel_read(self, offset: int, length: int) -> tuple[int, int, int]:
        """Return the read that the kernel can do for a range, see `KernelReadable`."""
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
        """Read as many of these runs as are in the page cache and return their number; see `burnstore.io.runs`."""
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
        with self._close_lock:  # no thread opens the second descriptor meanwhile
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
                raise _truncated(self.name, offset, len(buffer), self._status().st_size)
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
        self._open_fd()  # report a close by another thread as such
        failure = ReadError(f"reading failed: {error.strerror or error}", path=self.name, offset=offset)
        failure.errno = error.errno
        return failure

    def _check_inside(self, offset: int, length: int) -> None:
        self._open_fd()
        if offset + length > self.size:
            raise _truncated(self.name, offset, length, self.size)

    def _status(self) -> os.stat_result:
        try:
            return os.fstat(self._open_fd())
        except OSError as error:
            raise self._read_error(error) from error

    def check_unchanged(self) -> None:
        """Raise ChangedError if the file was changed in place since it was opened."""
        if _stamp_of(self._status()) != self._stamp:
            self._open_fd()  # the descriptor of a closed file may already belong to another file
            raise ChangedError("the file was changed in place while it was open", path=self.name, hint="open it again")

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self._absolute, self._stamp)


class MmapSource(FileSource):
    """A regular file, mapped; views share the mapping. Truncating the file under it kills the process.

    The mapping is read-only: no view can change what others see. Memory that must be writable (a torch tensor cannot
    be read-only) comes from `FileMap.writable`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._map: FileMap | None = None
        try:
            if self.size:
                self._map = FileMap(self._fd, self.size, access=mmap.ACCESS_READ)
                self._map.source = weakref.ref(self)
        except (OSError, ValueError) as error:  # ValueError: the file was cut since its size was taken
            self.close()
            raise ReadError(
                f"the file cannot be mapped: {error}", path=self.name, hint="pass zero_copy=False"
            ) from error

    def view(self, offset: int, length: int) -> memoryview | None:
        mapped = self._map  # before the checks: another thread may close the source after them
        self._check_inside(offset, length)
        self.check_unchanged()  # a cut after this line still kills the process; an earlier one is reported
        if mapped is None:
            return memoryview(b"")
        return memoryview(mapped)[offset : offset + length]

    def close(self) -> None:
        super().close()
        self._map = None  # not closed: views may still point into it, and the last one frees it


class FileMap(mmap.mmap):
    """A read-only mapping of a file, and private ones beside it whose memory can be written.

    A private mapping shares the file's pages until they are written. Each of its bytes is handed out once: a second
    request gets another mapping, so that no caller sees what another one writes.
    """

    source: weakref.ref[MmapSource]
    _private: mmap.mmap | None = None

    def writable(self, offset: int, length: int) -> memoryview | None:
        """Return the file's bytes as writable memory that no other caller has; None where the system grants none."""
        source = self.source()
        if source is None or source._fd < 0:
            return None
        with source._close_lock:
            if self._private is None:
                self._lent: list[tuple[int, int]] = []
                self._alive: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
            at = bisect_right(self._lent, (offset, offset))
            near = self._lent[max(at - 1, 0) : at + 1]
            if self._private is None or any(first < offset + length and offset < last for first, last in near):
                if len(self._alive) >= _MAX_PRIVATE_MAPS:
                    return None
                try:
                    self._private = mmap.mmap(source._fd, len(self), access=mmap.ACCESS_COPY)
                except (OSError, ValueError):  # no memory or descriptor for it, or the file was cut
                    return None
                self._alive.add(self._private)
                self._lent, at = [], 0
            self._lent.insert(at, (offset, offset + length))
            return memoryview(self._private)[offset : offset + length]


def _stamp_of(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _reopen(kind: type[FileSource], path: str, stamp: tuple[int, int, int, int]) -> FileSource:
    source = kind(path)
    if source._stamp != stamp:
        source.close()
        raise ChangedError("the file is no longer the one that was pickled", path=path)
    return source


def _truncated(name: str, offset: int, length: int, size: int) -> TruncatedError:
    return TruncatedError(f"File truncated: {length} bytes needed, the file ends at {size}", path=name, offset=offset)


class FileObjectSource:
    """A file object of the caller (`io.BytesIO`, an open file, a file of fsspec), read by position under a lock.

    The object stays open and its position unchanged. Its size is taken once: an object that becomes shorter is a
    `TruncatedError`.
    """

    def __init__(self, file: Any, name: str | None = None) -> None:
        shown = getattr(file, "name", None) if name is None else name
        self.name = redact(shown) if isinstance(shown, str) and shown else f"<{type(file).__name__}>"
        self._file: Any = file
        self._lock = allocate_lock()
        if isinstance(file, io.TextIOBase):
            raise TypeError("expected a file opened in binary mode, got one opened as text")
        with self._at(None):
            self.size = int(file.seek(0, os.SEEK_END))

    def read_at(self, offset: int, length: int) -> bytes:
        if offset + length > self.size:
            raise _truncated(self.name, offset, length, self.size)
        with self._lock, self._at(offset):
            pieces, left = [], length
            while left:
                piece = self._file.read(left)
                if not isinstance(piece, bytes):
                    raise TypeError(f"expected bytes from the file object's read(), got {type(piece).__name__}")
                if not piece:
                    raise _truncated(self.name, offset, length, offset + length - left)
                pieces.append(piece)
                left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_into(self, reads: Sequence[Read]) -> None:
        for offset, buffer in reads:
            for at in range(0, len(buffer), SYSCALL_BYTES):
                window = buffer[at : at + SYSCALL_BYTES]
                window[:] = self.read_at(offset + at, len(window))

    def view(self, offset: int, length: int) -> memoryview | None:
        return None

    def close(self) -> None:
        self._file = None  # it is the caller's

    @contextmanager
    def _at(self, offset: int | None) -> Iterator[None]:
        """Move to an offset for the block, and back."""
        file = self._file
        if file is None:
            raise ClosedError("the file was closed", path=self.name, hint="read inside the `with bs.open(...)` block")
        try:
            before = file.tell()
            try:
                if offset is not None:
                    file.seek(offset)
                yield
            finally:
                file.seek(before)
        except BurnstoreError:
            raise
        except (OSError, ValueError, AttributeError) as error:  # ValueError: closed by the caller
            message = f"the file object cannot be read at a position: {redact(str(error))}"
            raise ReadError(message, path=self.name) from None


def is_file_object(value: Any) -> bool:
    """Return whether a value is an object to read from, not a path and not bytes."""
    return not isinstance(value, (str, bytes, os.PathLike)) and hasattr(value, "read") and hasattr(value, "seek")


_WORD = np.dtype("<u8")
_COMPARED_WORDS = 1 << 16  # what is compared at a time stays in a core's cache together with the answer


def same_bytes(one: Any, other: Any) -> bool:
    """Return whether two contiguous buffers hold the same bytes, at the speed of memory.

    >>> same_bytes(b"weights", bytearray(b"weights")), same_bytes(b"weights", b"weighty")
    (True, False)
    """
    left, right = memoryview(one).cast("B"), memoryview(other).cast("B")
    if len(left) != len(right):
        return False
    words = len(left) // _WORD.itemsize  # comparing memoryviews would go byte by byte
    a, b = (np.frombuffer(view, _WORD, words) for view in (left, right))
    for start in range(0, words, _COMPARED_WORDS):
        if not np.array_equal(a[start : start + _COMPARED_WORDS], b[start : start + _COMPARED_WORDS]):
            return False
    rest = words * _WORD.itemsize
    return bytes(left[rest:]) == bytes(right[rest:])


class JoinedSource:
    """Sources one after the other.

    >>> from burnstore.io.source import BytesSource
    >>> joined = JoinedSource("both", [BytesSource(b"one"), BytesSource(b"two")])
    >>> joined.bases, joined.read_at(8192, 3)
    ([0, 8192], b'two')
    """

    def __init__(self, name: str, parts: Sequence[Source]) -> None:
        self.name = name
        self.parts = list(parts)
        self.bases: list[int] = []
        self.size = 0
        for part in self.parts:
            # Pages keep the alignment of each file; a free page keeps `gather` from joining ranges of two files.
            self.bases.append(-(-(self.size + PAGE) // PAGE) * PAGE if self.bases else 0)
            self.size = self.bases[-1] + part.size

    def read_at(self, offset: int, length: int) -> bytes:
        part, at = self.part_at(offset, length)
        return part.read_at(at, length)

    def read_into(self, reads: Sequence[Read]) -> None:
        batches: list[tuple[Source, list[Read]]] = []
        left = 0
        for offset, buffer in reads:
            part, at = self.part_at(offset, len(buffer))
            for start in range(0, len(buffer) or 1, SYSCALL_BYTES):
                window = buffer[start : start + SYSCALL_BYTES]
                if not batches or batches[-1][0] is not part or left < len(window):
                    batches.append((part, []))
                    left = SYSCALL_BYTES
                batches[-1][1].append((at + start, window))
                left -= len(window)
        if sum(len(buffer) for _, buffer in reads) >= PARALLEL_BYTES:
            for_each(_read_batch, batches)
        else:
            for batch in batches:
                _read_batch(batch)

    def view(self, offset: int, length: int) -> memoryview | None:
        index = self._index(offset)
        if index < 0 or offset - self.bases[index] + length > self.parts[index].size:
            return None
        return self.parts[index].view(offset - self.bases[index], length)

    def place_of(self, offset: int) -> tuple[str, int]:
        """Return the name of the source that has this offset, and the offset within it."""
        index = self._index(offset)
        return self.parts[index].name, offset - self.bases[index]

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _index(self, offset: int) -> int:
        return bisect_right(self.bases, offset) - 1

    def part_at(self, offset: int, length: int) -> tuple[Source, int]:
        """Return the source that has this range and the offset within it; TruncatedError if none has."""
        index = self._index(offset)
        if index < 0 or offset - self.bases[index] + length > self.parts[index].size:
            raise TruncatedError(f"no file contains these {length} bytes", path=self.name, offset=offset)
        return self.parts[index], offset - self.bases[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedSource, (self.name, self.parts)


class RangeSource:
    """A range of another source as a source of its own; closing it does not close the other.

    >>> inner = RangeSource(BytesSource(b"one two three"), 4, 3)
    >>> inner.size, inner.read_at(0, 3)
    (3, b'two')
    """

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self.source = source
        self.offset = offset
        self.name = source.name
        self.size = size

    def read_at(self, offset: int, length: int) -> bytes:
        self._check_inside(offset, length)
        return self.source.read_at(self.offset + offset, length)

    def read_into(self, reads: Sequence[Read]) -> None:
        for offset, buffer in reads:
            self._check_inside(offset, len(buffer))
        self.source.read_into([(self.offset + offset, buffer) for offset, buffer in reads])

    def view(self, offset: int, length: int) -> memoryview | None:
        self._check_inside(offset, length)
        return self.source.view(self.offset + offset, length)

    def close(self) -> None:
        return None

    def _check_inside(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > self.size:
            raise _truncated(self.name, offset, length, self.size)


def _read_batch(batch: tuple[Source, list[Read]]) -> None:
    source, reads = batch
    source.read_into(reads)


def part_of(source: Source, offset: int, length: int) -> tuple[Source, int]:
    """Return the single source that has this range, and the offset within it."""
    return source.part_at(offset, length) if isinstance(source, JoinedSource) else (source, offset)
