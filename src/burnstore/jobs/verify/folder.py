"""Folder verification: every file of tensors below a folder, a set of shards as one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import CorruptError, FormatError, ReadError, UnknownFormatError
from ...formats.registry import format_for_path
from ...formats.safetensors.header import MOST_HEADER_BYTES, MOST_TENSORS
from ...formats.sharded.locate import INDEX_SUFFIX, locate
from ...formats.sharded.read import read_weight_map
from ...io.source import FileSource
from ...limits import Limits
from .verify import Verification, verify

_INDEX = ".safetensors" + INDEX_SUFFIX


def verify_folder(folder: str | os.PathLike[str], **options: Any) -> Iterator[Verification]:
    """Verify every file of tensors below a folder, in the order of their names; ``options`` are those of `verify`.

    A set of shards is verified as one, by its index or by its numbers. Files are told by their suffixes; those that
    begin with a dot are passed over, folders that are links as well.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"w": np.ones(2)}, f"{folder}/a.bpk")
    ...     bs.save({"w": np.ones(2)}, f"{folder}/b.safetensors")
    ...     [found.format for found in verify_folder(folder) if found.is_fine]
    ['burnpack', 'safetensors']
    """
    shown = os.fsdecode(folder)
    if not os.path.isdir(shown):
        raise NotADirectoryError(20, "it is not a folder", shown)
    for place, folders, names in os.walk(shown, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in names if not name.startswith("."))
        belonging: set[str] = set()
        for path, shards in _sets(place, names):
            belonging |= shards
            yield verify(path, **options)
        for name in names:
            if name not in belonging and _has_format(name):
                yield verify(os.path.join(place, name), **options)


def _sets(place: str, names: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
    """What in a folder stands for several files, and the names of those."""
    indexes = [name for name in names if name.endswith(_INDEX)]
    for name in indexes:
        path = os.path.join(place, name)
        yield path, _named_by(path)
    try:
        shards = [] if indexes else locate(place)[1].get("shards", [])
    except CorruptError:  # a set that is not complete: verifying the folder tells
        yield place, set()
    except ReadError:  # several files, or none
        return
    else:
        if shards:
            yield place, set(shards)


def _named_by(index: str) -> set[str]:
    source = FileSource(index)
    try:
        limits = Limits().or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
        return set(read_weight_map(source, limits).values())
    except FormatError:  # what is wrong with it, verifying it tells
        return set()
    finally:
        source.close()


def _has_format(name: str) -> bool:
    try:
        return bool(format_for_path(name))
    except UnknownFormatError:
        return False


def _raise(error: OSError) -> None:
    raise error
