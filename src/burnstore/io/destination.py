"""Where a save goes: the real target behind symlinks, and its folder held open while the save lasts."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice

from burnstore.errors import AlreadyExistsError, SaveError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_DIR_FD = {os.open, os.stat, os.unlink, os.rename, getattr(os, "link", None)} <= os.supports_dir_fd
UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
_MOST_LINKS = 40  # as Linux


class Folder:
    """The target's folder, held open: what is done by its descriptor no swapped link or renamed parent can divert."""

    __slots__ = ("_closed", "_fds", "path")

    def __init__(self, path: str) -> None:
        self.path = path or os.curdir
        self._fds: list[int] = []
        self._closed = False

    def open(self, *, durable: bool) -> None:
        if not HAS_DIR_FD:
            if not stat.S_ISDIR(os.stat(self.path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
            return
        flags = os.O_RDONLY | open_flags("O_DIRECTORY", "O_CLOEXEC")
        try:
            hold(self._fds, partial(os.open, self.path, flags))
        except PermissionError:
            # One may write into a folder that one may not list, but fsync needs it open for reading: refused now and
            # not after the work, when durability is wanted.
            if durable or not hasattr(os, "O_PATH"):
                raise
            hold(self._fds, partial(os.open, self.path, flags | os.O_PATH))

    @property
    def fd(self) -> int | None:
        return self._fds[0] if self._fds else None

    def at(self, name: str) -> str:
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
                flush(self.fd)
            except OSError as error:  # some network file systems cannot flush a folder at all; PostgreSQL does the same
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
                    raise

    def close(self) -> None:
        with suppress(OSError):  # it was only read
            if self._fds and not self._closed:
                self._closed = True
                os.close(self._fds[0])


def hold(fds: list[int], create: Callable[[], int]) -> None:
    """Put the descriptor that `create` makes into the list, with no instant in which it exists and is not there.

    A Ctrl-C is raised between two steps of Python, so it can fall between a call and the assignment of its result, but
    not inside this one call into C. What is in the list is ours to close and, for a scratch file, to remove.
    """
    fds.extend(islice(iter(create, -1), 1))


def resolve(shown: str, *, overwrite: bool, durable: bool) -> tuple[Folder, str, os.stat_result | None]:
    """The folder and name that `shown` leads to through its symlinks, and the status of the file there, if any."""
    try:
        return _follow(shown, overwrite=overwrite, durable=durable)
    except SaveError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "not saved: there is no such folder", error.filename) from error
    except OSError as error:
        raise failure("check", shown, "not saved", error) from error


def _follow(shown: str, *, overwrite: bool, durable: bool) -> tuple[Folder, str, os.stat_result | None]:
    path = shown
    if "\0" in path:
        raise OSError(errno.EINVAL, "not a file path: it contains a NUL character")
    for _ in range(_MOST_LINKS):
        parent, base = os.path.split(path)
        if base in ("", os.curdir, os.pardir):
            raise OSError(errno.EISDIR, "not a file path" if path == shown else f"not a file path: {path!r}")
        try:
            link = os.readlink(path)
        except OSError:  # a file, or nothing; trouble of another kind shows below
            folder = Folder(parent)
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
            folder.close()  # it has become a link just now: once more
        else:
            if not overwrite:
                try:
                    found = os.stat(path)
                except OSError:  # a dangling link, but something is there all the same
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


def already_exists(shown: str, *, stage: str) -> AlreadyExistsError:
    """The refusal to replace what is at the path, in the words of the original."""
    error = AlreadyExistsError("File already exists", stage=stage, path=shown, hint="pass overwrite=True")
    error.errno = errno.EEXIST
    return error


def failure(stage: str, shown: str, message: str, cause: OSError) -> SaveError:
    """The error for a step that the system refused, with the reason it gave."""
    error = SaveError(f"{message}: {cause.strerror or cause}", stage=stage, path=shown)
    error.errno = cause.errno
    return error


@contextmanager
def saving_stage(stage: str, shown: str, message: str) -> Iterator[None]:
    """Turn what the system refuses inside the block into a `SaveError` of that stage."""
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        raise failure(stage, shown, message, error) from error


def open_flags(*names: str) -> int:
    """The open flags of these names, as far as this platform has them."""
    flags = 0
    for name in names:
        flags |= getattr(os, name, 0)
    return flags


def flush(fd: int) -> None:
    """Bring a file or folder to the disk itself; once: a second call after a failed one proves nothing."""
    if sys.platform == "darwin" and fcntl is not None:  # there fsync leaves the bytes in the drive's own cache
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in (*UNSUPPORTED, errno.ENOTTY):
                raise
    os.fsync(fd)
