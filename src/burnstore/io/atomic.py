"""Save a file whole or not at all: the only code in burnstore that renames.

    check      follow symlinks to the real target (the link stays), open its folder, refuse what may not be replaced
    create     exclusive scratch file ``.<base>.<pid>-<n>.burnstore-tmp`` beside the target, locked while it is written
    metadata   owner, extended attributes and mode of the file that will be replaced
    allocate   disk space for the whole file, where the file system can promise it: a full disk shows before any work
    write      the caller's bytes, or portions that threads, processes and other machines write (`SharedScratch`)
    sync       the size is checked, fsync, close (one fsync: after a failed one the kernel may call lost pages clean)
    publish    rename over the target; without ``overwrite`` a hard link, which never replaces what appeared meanwhile
    published  fsync of the folder, so that the new name survives a power cut

These words are the values of `SaveError.stage`. Up to and including ``publish`` any failure, also Ctrl-C, removes the
scratch file and leaves the destination unchanged; after it the new file is there, and errors begin with "saved, but".
A process that is killed leaves at most its scratch file, which `stale_scratch_files` finds later.

Kept from the replaced file: permission bits and ACL (or the save fails), owner and extended attributes where permitted.
Not kept: hard links (other names keep the old content), setuid and setgid. Promised for local POSIX file systems;
Windows and network file systems get the same order of calls, and have their own durability.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from ..errors import AlreadyExistsError, ClosedError, SaveError
from .paths import OpenFile, as_path, join
from .remote.location import Location
from .sizes import SYSCALL_BYTES

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_BUFFERS = 1024  # IOV_MAX of Linux, macOS and the BSDs
_MAX_NAMES = 10_000
_MAX_LINKS = 40  # as Linux
_HAS_DIR_FD = {os.open, os.stat, os.unlink, os.rename, getattr(os, "link", None)} <= os.supports_dir_fd
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
_SCRATCH_NAME = re.compile(r"\..+\.[0-9]+-[0-9]+\.burnstore-tmp", re.DOTALL)
_ACL = "system.posix_acl_access"
# Attributes that vouch for the old content; the kernel drops the first when a file is written in place.
_CONTENT_XATTRS = frozenset({"security.capability", "security.ima", "security.evm"})
_numbers = itertools.count()
_nbytes = attrgetter("nbytes")


@contextmanager
def atomic_file(
    path: str | os.PathLike[str], *, overwrite: bool = False, durable: bool = True, size: int | None = None
) -> Iterator[ScratchFile]:
    """Open a scratch file that becomes `path`, whole and on disk, when the ``with`` block ends without an exception.

    `size`, when known, reserves disk space before the first byte and is checked at the end. ``durable=False`` skips
    both fsyncs: no reader ever sees a half-written file, but a power cut soon after may lose or empty it. Raises
    `AlreadyExistsError` before any work, and again at publishing, when something is at `path` without `overwrite`;
    `FileNotFoundError` when the folder does not exist; `SaveError` for every other refusal of the system. Exceptions of
    the block pass unchanged. One thread writes at a time.
    """
    if size is not None and size < 0:
        raise ValueError(f"size must not be negative, got {size}")
    if isinstance(path, OpenFile):
        with _file_object(path, size) as writer:
            yield cast(ScratchFile, writer)
        return
    shown = os.fsdecode(path)
    place = as_path(path) if "://" in shown else shown
    if isinstance(place, Location):
        from .remote.upload import remote_file  # not at import: few programs have a URL

        with remote_file(place, overwrite=overwrite, size=size, exists=already_exists) as upload:
            yield cast(ScratchFile, upload)  # it has `write` and `position`; nothing shares it
        return
    folder, base, old = _resolve(shown, overwrite=overwrite, durable=durable)
    try:
        scratch = ScratchFile(shown, folder, base)
        try:
            # The scratch file is private until it has the old file's owner and mode: users who may not read the old one
            # cannot open it in between.
            scratch._create(0o666 if old is None else 0o600)
            if old is not None:
                scratch._keep_metadata(old)
            if size:
                scratch._allocate(size)
            yield scratch
            scratch._finish(size, durable=durable)
            leftover = scratch._publish(overwrite=overwrite)
        except BaseException as error:
            scratch._discard(error)
            raise
        if durable:
            with _stage("published", shown, "saved, but durability unconfirmed: the folder could not be flushed"):
                folder.sync()
        if leftover is not None:
            with _stage("published", shown, f"saved, but the scratch file {scratch._name} could not be removed"):
                raise leftover
    finally:
        folder.close()


def stale_scratch_files(directory: str | os.PathLike[str], *, older_than: float = 86400) -> list[str]:
    """List the scratch files that killed saves left in `directory`; nothing is deleted.

    A file is listed when it has our name, was last written more than `older_than` seconds ago, and can be locked: a
    running save holds the lock.
    """
    newest = time.time() - older_than
    flags = os.O_RDONLY | _flags("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
    found = []
    for name in filter(_SCRATCH_NAME.fullmatch, sorted(os.listdir(directory))):
        path = os.path.join(directory, name)
        with suppress(OSError):  # locked, gone, or not accessible
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_mtime <= newest:
                if fcntl is not None:
                    fd = os.open(path, flags)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    finally:
                        os.close(fd)
                found.append(path)
    return found


@contextmanager
def folder_locked(directory: str, *, seconds: float = 10) -> Iterator[None]:
    """Keep other blocks of this kind, of any process of this machine, out of a folder while this one runs.

    The lock is on the folder itself, so no file is left behind, and it ends with its process. Where it cannot be had
    (Windows, some network file systems, a process that was stopped and holds it), the block runs without it.
    """
    fd = _lock_folder(directory or os.curdir, time.monotonic() + seconds) if fcntl is not None else None
    try:
        yield
    finally:
        if fd is not None:
            with suppress(OSError):  # nothing was written through it, and the lock ends all the same
                os.close(fd)


def _lock_folder(directory: str, end: float) -> int | None:
    """Return a descriptor that holds the lock of a folder, until this time at the latest; None if there is none."""
    try:
        fd = os.open(directory, os.O_RDONLY | _flags("O_DIRECTORY", "O_CLOEXEC"))
    except OSError:
        return None
    while time.monotonic() < end:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.002)
        except OSError:  # a file system without locks
            break
        else:
            break
    return fd


def remove_files(directory: str, names: Sequence[str]) -> list[str]:
    """Remove these files of a folder, local or remote, if they exist; return the names that could not be removed."""
    if isinstance(directory, Location):
        from .remote.upload import remove_object

        return [name for name in names if not remove_object(cast(Location, join(directory, name)))]
    left = []
    for name in names:
        try:
            os.unlink(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        except OSError:
            left.append(name)
    return left


def remove_empty_folder(path: str) -> None:
    """Remove a folder that this process made and that has nothing in it; leave any other."""
    with suppress(OSError):
        os.rmdir(path)


@contextmanager
def _file_object(path: OpenFile, size: int | None) -> Iterator[_FileObjectWriter]:
    """Write to a caller's file object at its position; after a failure it is cut back to there, where it can be."""
    file, start = path.file, None
    with suppress(AttributeError, OSError, ValueError):
        start = file.tell()
    writer = _FileObjectWriter(file, path)
    try:
        yield writer
        if size is not None and writer.position != size:
            message = f"not saved: expected {size} bytes, {writer.position} were written"
            raise SaveError(message, stage="write", path=path)
    except BaseException:
        if start is not None:
            with suppress(Exception):  # the first failure is being raised already
                file.seek(start)
                file.truncate()
        raise


class _FileObjectWriter:
    """A file object of the caller that is written; it stays open."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path
        self.position = 0

    def write(self, *buffers: Any) -> None:
        for buffer in buffers:
            left = memoryview(buffer).cast("B")
            with _stage("write", self._path, f"not saved: writing failed after {self.position} bytes"):
                while left:
                    done = self._file.write(left)
                    done = len(left) if done is None else done
                    self.position += done
                    left = left[done:]


class ScratchFile:
    """The file being written by one `atomic_file` block; ``position`` is the number of bytes written so far."""

    __slots__ = ("_base", "_closed", "_fds", "_finished", "_folder", "_identity", "_name", "_path", "_pid", "position")

    def __init__(self, path: str, folder: _Folder, base: str) -> None:
        self.position = 0
        self._path = path
        self._folder = folder
        self._base = base
        self._name = ""
        self._fds: list[int] = []  # has the descriptor from the instant the file exists; never emptied
        self._closed = False
        self._finished = True  # no write so far was cut short
        self._identity = (0, 0)
        self._pid = os.getpid()

    def write(self, *buffers: Buffer) -> None:
        """Append all bytes of every buffer, in order; each must be bytes-like and C-contiguous. None is copied.

        After a write that failed or was interrupted the file can no longer be published, even if the error is caught.
        """
        if self._closed or not self._fds:
            raise ClosedError("the save that this scratch file belongs to has ended", path=self._path)
        self._check_finished()
        self._finished = False
        fd = self._fds[0]
        try:
            for batch, left in _batches(buffers):
                while left > 0:
                    done = _write_some(fd, batch)  # EINTR is retried inside (PEP 475), unless the handler raises
                    if done <= 0:
                        raise OSError(errno.EIO, "the system accepts no more bytes")
                    self.position += done
                    left -= done
                    batch = _after(batch, done) if left > 0 else []
        except OSError as error:
            message = f"not saved: writing failed after {self.position} bytes"
            raise _failure("write", self._path, message, error) from error
        self._finished = True

    def shared(self, size: int) -> SharedScratch:
        """Set the file's size and let others write at positions until the block ends; unwritten bytes are zeros.

        A failed writer must make the block fail: the scratch file does not know what others wrote.
        """
        if self.position or self._closed or not self._fds:
            raise ClosedError("only a new scratch file can be shared", path=self._path)
        with _stage("allocate", self._path, f"not saved: no space for {size} bytes"):
            os.ftruncate(self._fds[0], size)
            status = os.fstat(self._fds[0])
        self.position = size
        absolute = os.path.join(os.path.abspath(self._folder.path), self._name)
        return SharedScratch(absolute, (status.st_dev, status.st_ino), self._path)

    def _check_finished(self) -> None:
        if not self._finished:
            raise SaveError("not saved: an earlier write did not finish", stage="write", path=self._path)

    def _create(self, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
        longest = self._folder.longest_name()
        with _stage("create", self._path, "not saved: the scratch file could not be created"):
            for number in itertools.islice(_numbers, _MAX_NAMES):
                base, tail = self._base, f".{os.getpid()}-{number}.burnstore-tmp"
                while len(os.fsencode(base)) + len(tail) >= longest:  # whole characters: macOS refuses invalid UTF-8
                    base = base[:-1]
                self._name = f".{base}{tail}"
                create = partial(os.open, self._folder.at(self._name), flags, mode, dir_fd=self._folder.fd)
                with suppress(FileExistsError):  # left by a killed process of this pid: take the next name
                    _hold(self._fds, create)
                    break
            else:
                raise FileExistsError(errno.EEXIST, f"{_MAX_NAMES} scratch names are taken")
        if fcntl is not None:
            with suppress(OSError):  # the lock only helps `stale_scratch_files`, which also looks at the age
                fcntl.flock(self._fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _keep_metadata(self, old: os.stat_result) -> None:
        fd = self._fds[0]
        if not hasattr(os, "fchmod") or not hasattr(os, "fchown"):
            return
        with _stage("metadata", self._path, "not saved: the permissions of the old file could not be kept"):
            mine = os.fstat(fd)
            if (mine.st_uid, mine.st_gid) != (old.st_uid, old.st_gid):
                try:
                    os.fchown(fd, old.st_uid, old.st_gid)
                except OSError:  # only root gives files away; the group alone may still be allowed
                    with suppress(OSError):
                        os.fchown(fd, -1, old.st_gid)
            self._keep_xattrs(fd)
            # Setuid and setgid are dropped, as the kernel does when a file is written in place: the right to run as its
            # owner was given to the old content. Last, because a change of owner or ACL changes the mode too.
            wanted = stat.S_IMODE(old.st_mode) & 0o777
            if stat.S_IMODE(os.fstat(fd).st_mode) != wanted:
                os.fchmod(fd, wanted)

    def _keep_xattrs(self, fd: int) -> None:
        if not hasattr(os, "listxattr"):
            return
        source = os.path.join(self._folder.path, self._base)
        try:
            names = set(os.listxattr(source, follow_symlinks=False))
            inherited = set(os.listxattr(fd)) - names
        except OSError as error:
            if error.errno in _UNSUPPORTED or error.errno == errno.ENOENT:
                return
            raise
        if _ACL in inherited:  # the folder's default ACL may allow more than the old file did
            os.removexattr(fd, _ACL)
        for name in sorted(names - _CONTENT_XATTRS):
            try:
                os.setxattr(fd, name, os.getxattr(source, name, follow_symlinks=False))
            except OSError:
                if name == _ACL:  # the mode bits alone would mean something else
                    raise

    def _allocate(self, size: int) -> None:
        # Measured on ext4: 1 ms for 1 GiB, and later writes are not slower. (Where a file system has no such call,
        # glibc touches each block instead.)
        if not hasattr(os, "posix_fallocate"):
            return
        with _stage("allocate", self._path, f"not saved: no space for {size} bytes", ignore=_UNSUPPORTED):
            os.posix_fallocate(self._fds[0], 0, size)

    def _finish(self, size: int | None, *, durable: bool) -> None:
        if os.getpid() != self._pid:
            raise SaveError("not saved: a forked child cannot finish its parent's save", stage="write", path=self._path)
        self._check_finished()
        if size is not None and self.position != size:
            message = f"not saved: expected {size} bytes, {self.position} were written"
            raise SaveError(message, stage="write", path=self._path)
        with _stage("sync", self._path, "not saved: the bytes could not be brought to disk"):
            status = os.fstat(self._fds[0])
            if status.st_size != self.position:
                raise OSError(errno.EIO, f"{self.position} bytes were written, the file has {status.st_size}")
            self._identity = (status.st_dev, status.st_ino)
            if durable:
                _fsync(self._fds[0])
            self._close()

    def _publish(self, *, overwrite: bool) -> OSError | None:
        """Give the scratch file its name; return the error, if any, of removing the scratch name."""
        folder = self._folder
        scratch, target = folder.at(self._name), folder.at(self._base)
        at: dict[str, Any] = {"src_dir_fd": folder.fd, "dst_dir_fd": folder.fd}
        with _stage("publish", self._path, "not saved: the new file could not be moved into place"):
            if overwrite:
                try:
                    os.replace(scratch, target, **at)
                except OSError:
                    if not self._is_published():  # a network file system may rename and lose the answer
                        raise
                return None
            try:
                if _HAS_DIR_FD:
                    at["follow_symlinks"] = False
                os.link(scratch, target, **at)
            except FileExistsError as error:
                if not self._is_published():
                    raise already_exists(self._path, stage="publish") from error
            except (OSError, AttributeError, NotImplementedError) as error:
                if not self._is_published():
                    # No hard links here. On POSIX another file may appear between the check and the rename; on
                    # Windows a rename does not replace.
                    if folder.status(self._base) is not None:
                        raise already_exists(self._path, stage="publish") from error
                    at.pop("follow_symlinks", None)
                    try:
                        os.rename(scratch, target, **at)
                    except FileExistsError as exists:
                        raise already_exists(self._path, stage="publish") from exists
                    return None
        try:
            os.unlink(scratch, dir_fd=folder.fd)
        except OSError as error:
            return error
        return None

    def _is_published(self) -> bool:
        with suppress(OSError):
            status = self._folder.status(self._base)
            return status is not None and status.st_ino != 0 and (status.st_dev, status.st_ino) == self._identity
        return False

    def _close(self) -> None:
        if self._fds and not self._closed:
            self._closed = True  # first: a descriptor is gone even when its close reports an error
            os.close(self._fds[0])

    def _discard(self, error: BaseException) -> None:
        with suppress(OSError):
            self._close()
        if self._fds and os.getpid() == self._pid:
            try:
                os.unlink(self._folder.at(self._name), dir_fd=self._folder.fd)
            except FileNotFoundError:
                pass
            except OSError as reason:
                if isinstance(error, SaveError) and error.hint is None:
                    error.hint = f"the scratch file {self._name} could not be removed either: {reason.strerror}"


@dataclass(frozen=True, slots=True)
class SharedScratch:
    """A scratch file that several writers fill; picklable. ``target`` is the path that errors name."""

    path: str
    identity: tuple[int, int]
    target: str

    @contextmanager
    def opened(self, *, durable: bool) -> Iterator[PortionWriter]:
        """Open the file to write a portion; with ``durable`` that portion is on disk when the block ends."""
        flags = os.O_WRONLY | _flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
        with _stage("write", self.target, "not saved: the scratch file could not be opened"):
            fd = os.open(self.path, flags)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != self.identity:
                raise SaveError("not saved: the scratch file was exchanged", stage="write", path=self.target)
            yield PortionWriter(fd, self.target)
            if durable:
                with _stage("sync", self.target, "not saved: the bytes could not be brought to disk"):
                    _fsync(fd)
        finally:
            os.close(fd)


class PortionWriter:
    """An open scratch file that is written at any position."""

    def __init__(self, fd: int, target: str) -> None:
        self._fd = fd
        self._target = target

    def write_at(self, offset: int, buffer: Buffer) -> None:
        """Write all bytes of a C-contiguous buffer at this position."""
        left = memoryview(buffer).cast("B")
        with _stage("write", self._target, f"not saved: writing failed at byte {offset}"):
            while left:
                done = self._write_some(offset, left[:SYSCALL_BYTES])
                if done <= 0:
                    raise OSError(errno.EIO, "the system accepts no more bytes")
                offset += done
                left = left[done:]

    def _write_some(self, offset: int, window: memoryview) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._fd, window, offset)
        os.lseek(self._fd, offset, os.SEEK_SET)  # Windows; each descriptor has its own position
        return os.write(self._fd, window)


def _batches(buffers: Sequence[Buffer]) -> Iterator[tuple[list[memoryview], int]]:
    """Split buffers into lists for one system call each; yield every list with its size in bytes."""
    for start in range(0, len(buffers), _MAX_BUFFERS):
        views = [memoryview(buffer) for buffer in buffers[start : start + _MAX_BUFFERS]]
        total = sum(map(_nbytes, views))  # in C: a file may have very many small tensors
        if total > SYSCALL_BYTES:
            yield from _windows(views)
        elif total:
            yield views, total


def _windows(views: list[memoryview]) -> Iterator[tuple[list[memoryview], int]]:
    """Split buffers that are too large for one call."""
    batch: list[memoryview] = []
    left = SYSCALL_BYTES
    for view in views:
        size = view.nbytes
        if size > left:
            view = view.cast("B")
            while size > left:
                batch.append(view[:left])
                yield batch, SYSCALL_BYTES
                view = view[left:]
                size -= left
                batch, left = [], SYSCALL_BYTES
        batch.append(view)
        left -= size
    yield batch, SYSCALL_BYTES - left


def _write_some(fd: int, batch: list[memoryview]) -> int:
    if hasattr(os, "writev"):
        return os.writev(fd, batch)
    return os.write(fd, batch[0] if len(batch) == 1 else b"".join(batch))  # Windows


def _after(batch: list[memoryview], done: int) -> list[memoryview]:
    """Return the rest of a batch after a short write of `done` bytes."""
    for index, view in enumerate(batch):
        if done < view.nbytes:
            return [view.cast("B")[done:], *batch[index + 1 :]]
        done -= view.nbytes
    return []


class _Folder:
    """The target's folder, held open: no swapped link or renamed parent can divert calls by its descriptor."""

    def __init__(self, path: str) -> None:
        self.path = path or os.curdir
        self._fds: list[int] = []
        self._closed = False

    def open(self, *, durable: bool) -> None:
        if not _HAS_DIR_FD:
            if not stat.S_ISDIR(os.stat(self.path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
            return
        flags = os.O_RDONLY | _flags("O_DIRECTORY", "O_CLOEXEC")
        try:
            _hold(self._fds, partial(os.open, self.path, flags))
        except PermissionError:
            # A folder may be writable and not readable, but fsync needs it open for reading: refuse before the work.
            if durable or not hasattr(os, "O_PATH"):
                raise
            _hold(self._fds, partial(os.open, self.path, flags | os.O_PATH))

    @property
    def fd(self) -> int | None:
        return self._fds[0] if self._fds else None

    def at(self, name: str) -> str:
        """Return the name to use beside ``dir_fd=self.fd``."""
        return name if self.fd is not None else os.path.join(self.path, name)

    def status(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(self.at(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def longest_name(self) -> int:
        if self.fd is not None:
            with suppress(OSError, ValueError, AttributeError):
                return os.fpathconf(self.fd, "PC_NAME_MAX")
        return 255

    def sync(self) -> None:
        if self.fd is not None:
            try:
                _fsync(self.fd)
            except OSError as error:  # some network file systems cannot sync a folder; PostgreSQL ignores it as well
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
                    raise

    def close(self) -> None:
        with suppress(OSError):
            if self._fds and not self._closed:
                self._closed = True
                os.close(self._fds[0])


def _hold(fds: list[int], create: Callable[[], int]) -> None:
    """Append the descriptor that `create` returns to the list within one call into C.

    Ctrl-C is raised between two steps of Python, so it can fall between a call and the assignment of its result, but
    not inside this call: every descriptor that exists is in the list, and will be closed.
    """
    fds.extend(itertools.islice(iter(create, -1), 1))


def _resolve(shown: str, *, overwrite: bool, durable: bool) -> tuple[_Folder, str, os.stat_result | None]:
    """Follow the symlinks of `shown`; return its folder, its name, and the status of the file there, if any."""
    try:
        return _follow(shown, overwrite=overwrite, durable=durable)
    except SaveError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "not saved: no such folder", error.filename) from error
    except OSError as error:
        raise _failure("check", shown, "not saved", error) from error


def _follow(shown: str, *, overwrite: bool, durable: bool) -> tuple[_Folder, str, os.stat_result | None]:
    path = shown
    if "\0" in path:
        raise OSError(errno.EINVAL, "not a file path: it contains a NUL character")
    for _ in range(_MAX_LINKS):
        parent, base = os.path.split(path)
        if base in ("", os.curdir, os.pardir):
            raise OSError(errno.EISDIR, "not a file path" if path == shown else f"not a file path: {path!r}")
        try:
            link = os.readlink(path)
        except OSError:  # a file, or nothing; any other problem shows below
            folder = _Folder(parent)
            try:
                folder.open(durable=durable)
                old = folder.status(base)
                if old is None or not stat.S_ISLNK(old.st_mode):
                    if old is not None:
                        _check_replaceable(shown, old, overwrite=overwrite)
                    return folder, base, old
            except BaseException:
                folder.close()
                raise
            folder.close()  # a link has just appeared: follow it
        else:
            if not overwrite:
                try:
                    found = os.stat(path)
                except OSError:  # a dangling link is something as well
                    raise already_exists(shown, stage="check") from None
                _check_replaceable(shown, found, overwrite=overwrite)
            path = os.path.join(parent, link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _check_replaceable(shown: str, old: os.stat_result, *, overwrite: bool) -> None:
    if stat.S_ISDIR(old.st_mode):
        raise OSError(errno.EISDIR, "the destination is a folder")
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "the destination is not a regular file")
    if not overwrite:
        raise already_exists(shown, stage="check")


def refuse_existing(path: str, *, overwrite: bool, sources: Iterable[str] = ()) -> None:
    """Raise AlreadyExistsError before any work if a file is there; the write checks again.

    A file that is one of the ``sources`` is left to the check that names it as such, a folder to the write.
    """
    if overwrite or not os.path.lexists(path) or os.path.isdir(path):
        return
    for source in sources:
        with suppress(OSError):
            if os.path.samefile(source, path):
                return
    raise already_exists(path, stage="check")


def already_exists(shown: str, *, stage: str) -> AlreadyExistsError:
    """Return the refusal to replace a file, in the words of the Rust original."""
    error = AlreadyExistsError("File already exists", stage=stage, path=shown, hint="pass overwrite=True")
    error.errno = errno.EEXIST
    return error


def _failure(stage: str, shown: str, message: str, cause: OSError) -> SaveError:
    """Return the error for a step that the system refused, with its reason."""
    error = SaveError(f"{message}: {cause.strerror or cause}", stage=stage, path=shown)
    error.errno = cause.errno
    return error


@contextmanager
def _stage(stage: str, shown: str, message: str, *, ignore: Collection[int] = ()) -> Iterator[None]:
    """Turn an OSError of the block into a `SaveError` of this stage, unless its number is to be ignored."""
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        if error.errno not in ignore:
            raise _failure(stage, shown, message, error) from error


def _flags(*names: str) -> int:
    """Return the open flags of these names, as far as this platform has them."""
    return sum(getattr(os, name, 0) for name in names)


def _fsync(fd: int) -> None:
    """Bring a file or folder to the disk itself; once: a second call after a failed one proves nothing."""
    if sys.platform == "darwin" and fcntl is not None:  # fsync leaves the bytes in the drive's cache there
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in (*_UNSUPPORTED, errno.ENOTTY):
                raise
    os.fsync(fd)
