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

from ..errors import ReadError, UnsafeContentError, printable
from .source import FileSource

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


def sibling(source: FileSource, text: str) -> FileSource:
    """Open the file of that name beside a source, as the source is opened; `text` may be anything.

    Raises UnsafeContentError for a name or link outside the folder, FileNotFoundError if there is no such file,
    ReadError if it is not a regular file.
    """
    name = plain_name(text)
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
    opened = type(source)(path)
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
    """Return the names in a folder, sorted."""
    return sorted(os.listdir(folder))
