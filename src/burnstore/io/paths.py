"""Turn text from a file into a path: the only code that does, and it allows little.

An index names the files that contain its tensors. It may come from anyone, so a name must be a plain one, valid on
every system, of a regular file in the index's own folder. A symbolic link is followed only within that folder or the
real folder of the index: the Hugging Face hub's cache keeps an index and its shards as links into one folder. (A hard
link cannot be distinguished from a file.)
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from ..errors import ReadError, UnsafeContentError, printable, redact
from .remote.location import Location, is_url, location_of, refuse_collapsed
from .source import FileObjectSource, FileSource, InFolder, OpensSiblings, is_file_object

_LONGEST_NAME = 255
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_SNAPSHOT = re.compile(r"(.*[/\\](?:models|datasets|spaces)--[^/\\]+)[/\\]snapshots[/\\].+", re.DOTALL)
_DEVICES = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE | re.DOTALL
)


def plain_name(text: str) -> str:
    """Return the text if it is a plain file name on every system, otherwise raise UnsafeContentError.

    >>> plain_name("model-00001-of-00002.safetensors")
    'model-00001-of-00002.safetensors'
    """
    reason = None
    if text in ("", ".", "..") or _UNSAFE.search(text):
        reason = "a separator, a drive or a character that is not allowed in names"
    elif text[-1] in ". " or text[0] == " ":
        reason = "a leading space, or a final dot or space, which some systems drop"
    elif _DEVICES.fullmatch(text):
        reason = "the name of a device"
    elif len(os.fsencode(text)) > _LONGEST_NAME:
        reason = f"more than {_LONGEST_NAME} bytes"
    if reason is not None:
        raise UnsafeContentError(f"{printable(text)!r} is not the plain name of a file beside the index: {reason}")
    return text


def with_options(storage_options: Mapping[str, Any] | None, *values: Any) -> list[Any]:
    """Return the values, those that name files as `as_path` returns them; a list of values is taken for each of it.

    ValueError if there are options and none of the values is a URL.
    """

    def taken(value: Any) -> Any:
        if is_path(value):
            return as_path(value, storage_options)
        is_list = isinstance(value, (list, tuple)) and any(map(is_path, value))
        return [taken(each) for each in value] if is_list else value

    results = [taken(value) for value in values]
    flat = [each for value in results for each in (value if isinstance(value, list) else [value])]
    if storage_options and not any(isinstance(each, Location) for each in flat):
        raise ValueError("storage_options are for URLs such as s3://bucket/file; these files are local")
    return results


class OpenFile(str):
    """The name of a file object that a caller passed instead of a path, with the object."""

    file: Any

    def __new__(cls, file: Any) -> OpenFile:
        name = getattr(file, "name", None)
        handle = super().__new__(cls, redact(name) if isinstance(name, str) and name else f"<{type(file).__name__}>")
        handle.file = file
        return handle

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFile, (self.file,)


def as_path(path: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Return a path as text; the `Location` that a URL names, with these options to reach it.

    A file object becomes an `OpenFile`. TypeError for anything else.

    Every function that takes a path passes it through here first: from then on no text made of it has a secret.

    >>> as_path("https://me:secret@host/model.bpk")
    'https://***@host/model.bpk'
    """
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise TypeError(f"storage_options must be a mapping, got {type(storage_options).__name__}")
    if isinstance(path, OpenFile):
        return path
    if is_file_object(path):
        return OpenFile(path)
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"expected a path, got {type(path).__name__}")
    text = os.fsdecode(path)
    if is_url(text):
        return location_of(text, storage_options)
    if ":" in text:
        refuse_collapsed(text)
    return text


def is_path(value: Any) -> bool:
    """Return whether a value names a file: a path, a URL, or a file object."""
    return isinstance(value, (str, os.PathLike)) or is_file_object(value)


def is_same_file(one: str, other: str) -> bool:
    """Return whether two paths, as `as_path` returns them, name the same file; False if one is missing."""
    if isinstance(one, Location) or isinstance(other, Location):
        return isinstance(one, Location) and isinstance(other, Location) and one.url == other.url
    if isinstance(one, OpenFile) or isinstance(other, OpenFile):
        return isinstance(one, OpenFile) and isinstance(other, OpenFile) and one.file is other.file
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def identity_at(path: str) -> tuple[Any, ...]:
    """Return what the file at a path is known by: device and inode, or its address; OSError if it is missing."""
    if isinstance(path, Location):
        return (path.url,)
    if isinstance(path, OpenFile):
        return (id(path.file),)
    status = os.stat(path)
    return status.st_dev, status.st_ino


def identity_of(path: str) -> tuple[Any, ...] | None:
    """Return the address and ETag of a remote file; None if there is none."""
    from .remote.folder import open_remote

    try:
        source = open_remote(cast(Location, path))
    except FileNotFoundError:
        return None
    source.close()
    return source.identity if isinstance(source, InFolder) else None


def content_stamp(source: Any) -> str:
    """Return what changes with the content of an open file: the ETag of a remote one, the time of a local one."""
    stamp = getattr(source, "stamp", None)
    if stamp is not None:
        return str(stamp.tag or stamp.modified)
    return str(source._stamp[3]) if isinstance(source, FileSource) else ""


def real_path(path: str) -> str:
    """Return a path without links; the address of a remote file."""
    return path.url if isinstance(path, Location) else os.path.realpath(path)


def is_remote(path: str) -> bool:
    """Return whether a path, as `as_path` returns it, is the location of a remote file."""
    return isinstance(path, Location)


def join(folder: str, *names: str) -> str:
    """Join names to a folder, local or remote."""
    return folder.join(*names) if isinstance(folder, Location) else os.path.join(folder, *names)


def folder_of(path: str) -> str:
    """Return the folder that contains a file, local or remote."""
    return path.folder if isinstance(path, Location) else os.path.dirname(path)


def base_name(path: str) -> str:
    """Return the last part of a path, local or remote."""
    return path.name if isinstance(path, Location) else os.path.basename(path)


def is_folder(path: str) -> bool:
    """Return whether a path is a folder, local or remote; of a store, whether there is an object below it."""
    if not isinstance(path, Location):
        return not isinstance(path, OpenFile) and os.path.isdir(path)
    if path.url.endswith("/"):
        return True
    from .remote.folder import is_remote_folder

    return is_remote_folder(path)


def exists(path: str) -> bool:
    """Return whether there is something at a path, be it a link to nothing."""
    if not isinstance(path, Location):
        return isinstance(path, OpenFile) or os.path.lexists(path)
    from .remote.folder import size_of_object

    return size_of_object(path) is not None


def is_file(path: str) -> bool:
    """Return whether a path is a file, local or remote."""
    return exists(path) if isinstance(path, (Location, OpenFile)) else os.path.isfile(path)


def size_of(path: str) -> int:
    """Return the size of a file, local or remote; FileNotFoundError if there is none."""
    if isinstance(path, OpenFile):
        return FileObjectSource(path.file).size
    if not isinstance(path, Location):
        return os.path.getsize(path)
    from .remote.folder import size_of_object

    size = size_of_object(path)
    if size is None:
        raise FileNotFoundError(2, "No such file or directory", path)
    return size


def walk(folder: str, onerror: Callable[[OSError], object] | None = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below one, local or remote, with the names of its folders and files, as `os.walk` does."""
    if not isinstance(folder, Location):
        yield from os.walk(folder, onerror=onerror)
        return
    from .remote.folder import list_names

    try:
        place, names = list_names(folder)
    except OSError as error:
        if onerror is not None:
            onerror(error)
        return
    folders = [name.rstrip("/") for name in names if name.endswith("/")]
    yield place, folders, [name for name in names if not name.endswith("/")]
    for name in folders:
        yield from walk(join(place, name), onerror)


def sibling(source: InFolder, text: str) -> InFolder:
    """Open the file of that name beside a source, as the source is opened; `text` may be anything.

    Raises UnsafeContentError for a name or link outside the folder, FileNotFoundError if there is no such file,
    ReadError if it is not a regular file.
    """
    name = plain_name(text)
    if isinstance(source, OpensSiblings):
        return source.open_sibling(name)
    folder = os.path.dirname(source.name)
    path = os.path.join(folder, name)
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        target = os.path.realpath(path)
        if os.path.dirname(target) not in (
            os.path.realpath(folder or os.curdir),
            os.path.dirname(os.path.realpath(source.name)),
        ):
            raise UnsafeContentError(
                f"{name!r} is a link to a file outside the folder",
                path=source.name,
                hint=f"its target is {printable(target)}",
            )
        found = os.lstat(target)
    if not stat.S_ISREG(found.st_mode):
        raise ReadError("not a regular file", path=path)
    opened = cast(type[FileSource], type(source))(path)
    try:
        # The opened file must be the one that was checked: a link may have taken its place in between.
        if (found.st_dev, found.st_ino) != opened.identity:
            raise UnsafeContentError(f"{name!r} was replaced while it was being opened", path=source.name)
    except BaseException:
        opened.close()
        raise
    return opened


def is_within(path: str, folder: str) -> bool:
    """Return whether a file is in a folder or, for a snapshot of the Hugging Face hub, in the cache of its files.

    The hub keeps the files of a repository in ``models--NAME/blobs``; a folder in ``models--NAME/snapshots`` has links
    to them. Other links out of the folder are not followed.
    """
    real, target = os.path.realpath(folder), os.path.realpath(path)
    snapshot = _SNAPSHOT.fullmatch(real)
    roots = [real] if snapshot is None else [real, os.path.join(snapshot[1], "blobs")]
    return any(os.path.commonpath([root, target]) == root for root in roots)


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, local or remote, sorted; those of folders in a store are left out."""
    if isinstance(folder, Location):
        from .remote.folder import list_names

        return [name for name in list_names(folder)[1] if not name.endswith("/")]
    return sorted(os.listdir(folder))
