"""Find the file or the set of files that a path stands for; called for every path, so it imports little.

The rules of a set, SH-01 to SH-07, are in `burnstore.formats.sharded.read`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from ...errors import CorruptError, ReadError, located, printable
from ...io.paths import names_in

INDEX_SUFFIX = ".index.json"
MOST_SHARDS = 10_000

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.[a-z]+)", re.DOTALL)
_SHARD_SUFFIX = ".safetensors"


def begins_like_index(head: bytes) -> bool:
    """Tell whether a file with these first bytes may be an index: a JSON object, never the length of a header."""
    if not int.from_bytes(head[:8], "little") >> 48:
        return False
    return head.lstrip(b" \t\n\r")[:1] == b"{" and (b'"weight_map"' in head or b'"total_size"' in head)


def locate(path: str) -> tuple[str, dict[str, Any]]:
    """Return the file that a path stands for, and the options to read it with.

    A folder stands for the one checkpoint in it, and the name under which a set of shards was saved for its index.
    """
    if not os.path.isdir(path):
        index = path + INDEX_SUFFIX
        return (index if not os.path.lexists(path) and os.path.isfile(index) else path), {}
    with located(path=path):
        names = [name for name in names_in(path) if not name.startswith(".")]
        indexes = [name for name in names if name.endswith(_SHARD_SUFFIX + INDEX_SUFFIX)]
        files = [name for name in names if name.endswith(_SHARD_SUFFIX)]
        if len(indexes) > 1:
            raise ReadError(f"the directory has {len(indexes)} indexes: {_some(indexes)}", hint="open one by its name")
        if indexes:
            whole = indexes[0].removesuffix(INDEX_SUFFIX)
            if whole in files:
                raise ReadError(
                    f"the directory has both {printable(whole)} and its index", hint="open one of them by its name"
                )
            return os.path.join(path, indexes[0]), {}
        if not files:
            raise ReadError("it is a directory without SafeTensors files; a file is needed")
        if len(files) == 1 and _NUMBERED.fullmatch(files[0]) is None:
            return os.path.join(path, files[0]), {}
        return os.path.join(path, files[0]), {"shards": _complete_set(files)}


def _complete_set(files: Sequence[str]) -> list[str]:
    """Return the files, if they are numbered as one set and none is missing (SH-05)."""
    found = [_NUMBERED.fullmatch(name) for name in files]
    sets = {(match[1], match[3]) if match else None for match in found}
    if None in sets or len(sets) != 1:
        raise ReadError(
            f"the directory has {len(files)} SafeTensors files and no index: {_some(files)}",
            rule="SH-05",
            hint="open one of them by its name",
        )
    count = int(next(match for match in found if match)[3])
    numbers = [int(match[2]) for match in found if match]
    if sorted(numbers) != list(range(1, count + 1)):
        missing = sorted(set(range(1, min(count, MOST_SHARDS) + 1)) - set(numbers))
        raise CorruptError(
            f"{len(numbers)} of {count} shards are there, number {missing[0] if missing else count} is missing",
            rule="SH-05",
        )
    return list(files)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown}, ..."
