"""Save a file whole or not at all: the only code in burnstore that renames.

    check      follow symlinks to the real target (the link stays), open its folder, refuse what may not be replaced
    create     exclusive scratch file ``.<base>.<pid>-<n>.burnstore-tmp`` beside the target, locked while it is written
    metadata   owner, extended attributes and mode of the file that will be replaced
    allocate   room for the whole file, where the file system can promise it: a full disk is noticed before any work
    write      the caller's bytes
    sync       the size is checked, fsync, close (one fsync: after a failed one the kernel may call lost pages clean)
    publish    rename over the target; without ``overwrite`` a hard link, which never replaces what appeared meanwhile
    published  fsync of the folder, so that the new name survives a power cut

These words are the values of `SaveError.stage`. Up to and including ``publish`` any failure, also Ctrl-C, removes the
scratch file and leaves the destination as it was; after it the new file is in place, and an error says "saved, but".
A process that is killed leaves at most its scratch file, which `stale_scratch_files` finds later.

Kept from the replaced file: permission bits and ACL (or the save fails), owner and extended attributes where permitted.
Not kept: hard links (other names keep the old content), setuid and setgid. Promised for local POSIX file systems;
Windows and network file systems give the same order of calls, and their own durability.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from burnstore.errors import ClosedError, SaveError
from burnstore.io.destination import (
    HAS_DIR_FD,
    UNSUPPORTED,
    Folder,
    already_exists,
    failure,
    flush,
    hold,
    open_flags,
    resolve,
    saving_stage,
)
from burnstore.io.portions import Place

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Buffer

# One system call moves at most this much, so that Ctrl-C is answered between two of them even on a slow disk.
_WINDOW = 16 << 20
_MOST_BUFFERS = 1024  # IOV_MAX of Linux, macOS and the BSDs
_MOST_NAMES = 10_000
_SCRATCH_NAME = re.compile(r"\..+\.[0-9]+-[0-9]+\.burnstore-tmp", re.DOTALL)
_ACL = "system.posix_acl_access"
# They vouch for the old content; the kernel drops the first when a file is written in place.
_XATTRS_OF_CONTENT = frozenset({"security.capability", "security.ima", "security.evm"})
_numbers = itertools.count()
_nbytes = attrgetter("nbytes")


@contextmanager
def atomic_file(
    path: str | os.PathLike[str], *, overwrite: bool = False, durable: bool = True, size: int | None = None
) -> Iterator[ScratchFile]:
    """Open a scratch file that becomes `path`, whole and on disk, when the ``with`` block ends without an exception.

    `size`, when known, reserves the room before the first byte and is checked at the end. ``durable=False`` skips both
    fsyncs: the file is still never seen half-written by a reader, but a power cut soon after may lose or empty it.
    Raises `AlreadyExistsError` before any work, and again at publishing, when something is at `path` and `overwrite`
    was not given; `FileNotFoundError` when the folder does not exist; `SaveError` for all else that the system refuses.
    What the block itself raises passes unchanged. One thread writes at a time.

    >>> import os, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "model.bpk")
    >>> with atomic_file(path) as scratch:
    ...     scratch.write(b"header", bytearray(10))
    ...     os.path.exists(path), scratch.position
    (False, 16)
    >>> os.path.getsize(path)
    16
    >>> folder.cleanup()
    """
    if size is not None and size < 0:
        raise ValueError(f"size must not be negative, got {size}")
    shown = os.fsdecode(path)
    folder, base, old = resolve(shown, overwrite=overwrite, durable=durable)
    try:
        scratch = ScratchFile(shown, folder, base)
        try:
            # Beside an old file the scratch is private until it has that file's owner and mode, so that nobody
            # who may not read the one can open the other in between.
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
            with saving_stage("published", shown, "saved, but durability unconfirmed: the folder could not be flushed"):
                folder.sync()
        if leftover is not None:
            message = f"saved, but the scratch file {scratch._name} could not be removed"
            raise failure("published", shown, message, leftover) from leftover
    finally:
        folder.close()


def stale_scratch_files(directory: str | os.PathLike[str], *, older_than: float = 86400) -> list[str]:
    """List the scratch files that killed saves left in `directory`; nothing is deleted.

    A file counts when it has our name, was last written more than `older_than` seconds ago, and no process holds the
    lock that a running save keeps. One that cannot be opened to ask for its lock is not listed.

    >>> stale_scratch_files(".", older_than=7 * 86400)
    []
    """
    newest = time.time() - older_than
    flags = os.O_RDONLY | open_flags("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
    found = []
    for name in sorted(os.listdir(directory)):
        if _SCRATCH_NAME.fullmatch(name) is None:
            continue
        path = os.path.join(directory, name)
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_mtime > newest:
                continue
            if fcntl is not None:
                fd = os.open(path, flags)
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                finally:
                    os.close(fd)
        except OSError:  # locked, gone, or not ours to look at
            continue
        found.append(path)
    return found


def remove_files(directory: str, names: Sequence[str]) -> list[str]:
    """Remove these files of a folder, as far as they are there; the names of those that could not be removed."""
    left = []
    for name in names:
        try:
            os.unlink(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        except OSError:
            left.append(name)
    return left


class ScratchFile:
    """The file being written by one `atomic_file` block.

    ``position`` is the number of bytes written so far.
    """

    __slots__ = ("_base", "_closed", "_fds", "_folder", "_identity", "_name", "_path", "_pid", "_whole", "position")

    def __init__(self, path: str, folder: Folder, base: str) -> None:
        self.position = 0
        self._path = path
        self._folder = folder
        self._base = base
        self._name = ""
        self._fds: list[int] = []  # holds the descriptor from the instant the file exists; never emptied
        self._closed = False
        self._whole = True  # every write so far was finished
        self._identity = (0, 0)
        self._pid = os.getpid()

    def write(self, *buffers: Buffer) -> None:
        """Append all bytes of every buffer, in order; each must be bytes-like and C-contiguous.

        Small buffers are gathered into few system calls and large ones are written in windows, none is copied. After a
        write that failed or was interrupted the file cannot be published any more, even if the error is caught.
        """
        if self._closed or not self._fds:
            raise ClosedError("the save that this scratch file belongs to has ended", path=self._path)
        self._check_whole()
        self._whole = False
        fd = self._fds[0]
        try:
            for batch, left in _batches(buffers):
                while True:
                    # An EINTR is retried inside the call (PEP 475), unless the signal's handler raises.
                    done = _write_some(fd, batch)
                    self.position += done
                    left -= done
                    if left <= 0:
                        break
                    if done <= 0:
                        raise OSError(errno.EIO, "the system accepts no more bytes and gives no reason")
                    batch = _after(batch, done)
        except OSError as error:
            message = f"not saved: writing failed after {self.position} bytes"
            raise failure("write", self._path, message, error) from error
        self._whole = True

    def shared(self, size: int) -> Place:
        """Make the file as long as this and let others write into it, at positions; they are done when the block ends.

        What nobody writes is zeros. Whoever failed must make the block fail: here nothing is known of what was written.
        """
        if self.position or self._closed or not self._fds:
            raise ClosedError("only a new scratch file can be shared", path=self._path)
        with saving_stage("allocate", self._path, f"not saved: there is no room for {size} bytes"):
            os.ftruncate(self._fds[0], size)
            status = os.fstat(self._fds[0])
        self.position = size
        absolute = os.path.join(os.path.abspath(self._folder.path), self._name)
        return Place(absolute, (status.st_dev, status.st_ino), self._path)

    def _check_whole(self) -> None:
        if not self._whole:
            raise SaveError("not saved: an earlier write did not finish", stage="write", path=self._path)

    def _create(self, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | open_flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
        longest = self._folder.longest_name()
        with saving_stage("create", self._path, "not saved: the scratch file could not be created"):
            for number in itertools.islice(_numbers, _MOST_NAMES):
                self._name = _scratch_name(self._base, number, longest)
                create = partial(os.open, self._folder.at(self._name), flags, mode, dir_fd=self._folder.fd)
                with suppress(FileExistsError):  # left by a killed process of this pid, or laid there: take the next
                    hold(self._fds, create)
                    break
            else:
                raise FileExistsError(errno.EEXIST, f"{_MOST_NAMES} scratch names are taken")
        if fcntl is not None:
            with suppress(OSError):  # only tells `stale_scratch_files` that we live; its age does so as well
                fcntl.flock(self._fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _keep_metadata(self, old: os.stat_result) -> None:
        if not hasattr(os, "fchmod") or not hasattr(os, "fchown"):
            return
        fd = self._fds[0]
        with saving_stage("metadata", self._path, "not saved: the permissions of the old file could not be kept"):
            mine = os.fstat(fd)
            if (mine.st_uid, mine.st_gid) != (old.st_uid, old.st_gid):
                try:
                    os.fchown(fd, old.st_uid, old.st_gid)
                except OSError:  # only root gives files away; the group alone may still be allowed
                    with suppress(OSError):
                        os.fchown(fd, -1, old.st_gid)
            self._keep_xattrs(fd)
            # Setuid and setgid are dropped, as the kernel drops them when a file is written in place: the right to run
            # as its owner was given to the old content. Last, because a change of owner or ACL changes the mode too.
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
            if error.errno in UNSUPPORTED or error.errno == errno.ENOENT:
                return
            raise
        if _ACL in inherited:  # from the folder's default ACL: it would let in whom the old file did not
            os.removexattr(fd, _ACL)
        for name in sorted(names - _XATTRS_OF_CONTENT):
            try:
                os.setxattr(fd, name, os.getxattr(source, name, follow_symlinks=False))
            except OSError:
                if name == _ACL:  # the mode bits alone would mean something else
                    raise

    def _allocate(self, size: int) -> None:
        # Measured on ext4: 1 ms for 1 GiB, and the writes after it are not slower. (Where a file system has no such
        # call, glibc touches each block instead; a caller that minds gives no size.)
        if not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self._fds[0], 0, size)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                message = f"not saved: there is no room for {size} bytes"
                raise failure("allocate", self._path, message, error) from error

    def _finish(self, size: int | None, *, durable: bool) -> None:
        if os.getpid() != self._pid:
            raise SaveError("not saved: a forked child cannot finish its parent's save", stage="write", path=self._path)
        self._check_whole()
        if size is not None and self.position != size:
            message = f"not saved: {self.position} bytes were written where {size} were announced"
            raise SaveError(message, stage="write", path=self._path)
        with saving_stage("sync", self._path, "not saved: the bytes could not be brought to disk"):
            status = os.fstat(self._fds[0])
            if status.st_size != self.position:
                raise OSError(errno.EIO, f"{self.position} bytes were written, the file has {status.st_size}")
            self._identity = (status.st_dev, status.st_ino)
            if durable:
                flush(self._fds[0])
            self._close()

    def _publish(self, *, overwrite: bool) -> OSError | None:
        """Give the scratch file its name; the error, if any, with which its scratch name refused to go."""
        folder = self._folder
        scratch, target = folder.at(self._name), folder.at(self._base)
        at: dict[str, Any] = {"src_dir_fd": folder.fd, "dst_dir_fd": folder.fd}
        with saving_stage("publish", self._path, "not saved: the new file could not be moved into place"):
            if overwrite:
                try:
                    os.replace(scratch, target, **at)
                except OSError:
                    if not self._landed():  # a network file system may do it and lose the answer
                        raise
                return None
            try:
                if HAS_DIR_FD:
                    at["follow_symlinks"] = False
                os.link(scratch, target, **at)
            except FileExistsError as error:
                if not self._landed():
                    raise already_exists(self._path, stage="publish") from error
            except (OSError, AttributeError, NotImplementedError) as error:
                if not self._landed():
                    # No hard links here, it seems. `rename` has a gap between the look and the move on POSIX, and none
                    # on Windows, where it does not replace.
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

    def _landed(self) -> bool:
        with suppress(OSError):
            status = self._folder.status(self._base)
            return status is not None and status.st_ino != 0 and (status.st_dev, status.st_ino) == self._identity
        return False

    def _close(self) -> None:
        if self._fds and not self._closed:
            self._closed = True  # before: a descriptor is gone even when its close reports an error
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


def _scratch_name(base: str, number: int, longest: int) -> str:
    tail = f".{os.getpid()}-{number}.burnstore-tmp"
    while len(os.fsencode(base)) + len(tail) >= longest:  # whole characters: macOS refuses names that are not UTF-8
        base = base[:-1]
    return f".{base}{tail}"


def _batches(buffers: Sequence[Buffer]) -> Iterator[tuple[list[memoryview], int]]:
    """The buffers in lists that one system call takes, each list with its size in bytes."""
    for start in range(0, len(buffers), _MOST_BUFFERS):
        views = [memoryview(buffer) for buffer in buffers[start : start + _MOST_BUFFERS]]
        total = sum(map(_nbytes, views))  # in C: a file may have very many small tensors
        if total > _WINDOW:
            yield from _windows(views)
        elif total:
            yield views, total


def _windows(views: list[memoryview]) -> Iterator[tuple[list[memoryview], int]]:
    """The same for buffers that are too much for one call: cut where a window ends."""
    batch: list[memoryview] = []
    room = _WINDOW
    for view in views:
        size = view.nbytes
        if size > room:
            view = view.cast("B")
            while size > room:
                batch.append(view[:room])
                yield batch, _WINDOW
                view = view[room:]
                size -= room
                batch, room = [], _WINDOW
        batch.append(view)
        room -= size
    yield batch, _WINDOW - room


def _write_some(fd: int, batch: list[memoryview]) -> int:
    if hasattr(os, "writev"):
        return os.writev(fd, batch)
    return os.write(fd, batch[0] if len(batch) == 1 else b"".join(batch))  # Windows: small pieces are worth a copy


def _after(batch: list[memoryview], done: int) -> list[memoryview]:
    """What is left of a batch after a short write of `done` bytes."""
    for index, view in enumerate(batch):
        if done < view.nbytes:
            return [view.cast("B")[done:], *batch[index + 1 :]]
        done -= view.nbytes
    return []
