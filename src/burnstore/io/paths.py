"""Paths: the only code that turns text from a file into a path, and the little it allows.

An index names the files in which tensors lie. It may come from anybody, so a name in it must be a plain name, the same
on every system, of a regular file in the index's own folder. A symbolic link there is followed only to where the index
itself may really lie: the cache of the Hugging Face hub keeps an index and its shards as links into one folder, and
that must work; a link to anywhere else is refused. (A hard link cannot be told from a file and is one.)
"""

from __future__ import annotations

import os
import re
import stat

from ..errors import ReadError, UnsafeContentError, printable
from .source import FileSource

_LONGEST_NAME = 255
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_DEVICES = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE | re.DOTALL
)


def plain_name(text: str) -> str:
    """The text, if it is the plain name of a file on every system; UnsafeContentError if not.

    >>> plain_name("model-00001-of-00002.safetensors")
    'model-00001-of-00002.safetensors'
    """
    reason = None
    if text in ("", ".", "..") or _UNSAFE.search(text):
        reason = "a separator, a drive or a character that no name has"
    elif text[-1] in ". " or text[0] == " ":
        reason = "a dot or space at its end, which some systems drop"
    elif _DEVICES.fullmatch(text):
        reason = "the name of a device"
    elif len(os.fsencode(text)) > _LONGEST_NAME:
        reason = f"more than {_LONGEST_NAME} bytes"
    if reason is not None:
        raise UnsafeContentError(f"{printable(text)!r} is not the plain name of a file beside the index: {reason}")
    return text


def sibling(source: FileSource, text: str) -> FileSource:
    """The file of that name beside a source, opened as the source is; `text` may be anything.

    Raises UnsafeContentError for a name or a link that leads elsewhere, FileNotFoundError if there is no such file,
    ReadError for what is not a regular file.
    """
    name = plain_name(text)
    folder = os.path.dirname(source.name)
    path = os.path.join(folder, name)
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        path = os.path.realpath(path)
        if os.path.dirname(path) not in (os.path.realpath(folder or os.curdir), _real_folder(source.name)):
            raise UnsafeContentError(
                f"{name!r} is a link that leads out of the folder",
                path=source.name,
                hint=f"it leads to {printable(path)}",
            )
        found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ReadError("it is not a regular file; a file is needed", path=path)
    opened = type(source)(path)
    try:
        # What was opened is what was looked at: nobody put a link in its place in between.
        if (found.st_dev, found.st_ino) != opened.identity:
            raise UnsafeContentError(f"{name!r} was exchanged while it was opened", path=source.name)
    except BaseException:
        opened.close()
        raise
    return opened


def names_in(folder: str) -> list[str]:
    """What lies in a folder, sorted."""
    return sorted(os.listdir(folder))


def _real_folder(path: str) -> str:
    return os.path.dirname(os.path.realpath(path))
