"""Sharded checkpoints: one set of tensors in several files, as Hugging Face keeps large models.

    model.safetensors.index.json          {"metadata": {"total_size": ..}, "weight_map": {tensor: file, ..}}
    model-00001-of-00003.safetensors      the shards, whole files of their own
    model-00002-of-00003.safetensors
    model-00003-of-00003.safetensors

An index is read with all files that it names, as one checkpoint. A folder stands for the one index in it; without an
index for the one file, or for the one complete set of files that are numbered as above. Anything else in a folder
(two indexes, an index and a file of its name, several files that are no set) is refused: which is meant is not known.

The rules. Errors and tests cite them.

    SH-01  The index is no larger than the limit for headers, UTF-8 and strict JSON: one object with a ``weight_map``
           that maps text to text; no key twice. Other keys mean nothing here, ``total_size`` included: writers differ
           in what they count.
    SH-02  A shard's name is the plain name of a file on every system: no separator, no drive, no device, no control
           character (UnsafeContentError).
    SH-03  There are at most 10,000 shards; each is there, a regular file of the index's folder, or a link into the
           folder where the index itself really lies; no two names lead to one file.
    SH-04  Each shard holds exactly the tensors that the index says lie in it.
    SH-05  No tensor lies in two shards; shards without an index are numbered 1 to N of N, and all are there.
    SH-06  Shards that say whose layout their tensors have, or other texts, agree: a layout that differs is refused,
           other texts that differ are left out, and `Checkpoint.notes` says so.

Saving (see `write.py`) writes new shards under names that no file has, then replaces the index, which is the
moment at which the new set counts, then removes the old shards. A reader that has read an index whose shards are gone
finds the index replaced, and opens the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ...errors import (
    ChangedError,
    CorruptError,
    LimitError,
    ReadError,
    UnsafeContentError,
    located,
    printable,
)
from ...io.joined import JoinedSource
from ...io.paths import plain_name, sibling
from ...io.source import FileSource, Source
from ...limits import Limits
from ..base import LAYOUT_KEY, Contents, Table
from ..codec import json
from .locate import MOST_SHARDS

ReadShard = Callable[[Source, Limits], Contents]
"""How the format of the shards reads one."""


def read_index(source: Source, limits: Limits, read_shard: ReadShard) -> Contents:
    """The contents of all shards that an index names."""
    weight_map = read_weight_map(source, limits)
    names: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        names.setdefault(name, []).append(tensor)
    return _read_set(source, list(names), limits, read_shard, names)


def read_set(source: Source, shards: Sequence[str], limits: Limits, read_shard: ReadShard) -> Contents:
    """The contents of these files, of which the source is one; no index says what they hold."""
    if isinstance(shards, str) or not all(isinstance(name, str) for name in shards):
        raise TypeError("shards are the names of all files of the set, a list of str")
    return _read_set(source, list(shards), limits, read_shard, None)


def read_weight_map(source: Source, limits: Limits) -> dict[str, str]:
    """Which file each tensor lies in, as an index says; no name in it was looked at yet."""
    most = limits.header_bytes or 0
    if source.size > most:
        raise LimitError(f"an index of {source.size} bytes, more than the limit of {most}", rule="SH-01")
    entries = (limits.tensors or 0) + limits.metadata_entries
    with located(rule="SH-01"):
        text = json.decode(source.read_at(0, source.size), most_nodes=entries, most_strings=2 * entries)
        tree = json.parse(text)
        weight_map = tree.get("weight_map") if isinstance(tree, dict) else None
        if not isinstance(weight_map, dict):
            raise CorruptError("an index is a JSON object with a 'weight_map'")
        for tensor, name in weight_map.items():
            if not isinstance(name, str):
                raise CorruptError("the index does not name a file", tensor=tensor)
        if len(weight_map) > (limits.tensors or 0):
            raise LimitError(f"{len(weight_map)} tensors, more than the limit of {limits.tensors}")
    return weight_map


def _read_set(
    source: Source,
    names: list[str],
    limits: Limits,
    read_shard: ReadShard,
    expected: Mapping[str, list[str]] | None,
) -> Contents:
    if not isinstance(source, FileSource):
        raise UnsafeContentError(
            "an index in memory lies in no folder, so its shards cannot be found", path=source.name
        )
    if len(names) > MOST_SHARDS:
        raise LimitError(f"{len(names)} shards, more than {MOST_SHARDS}", rule="SH-03")
    with located(rule="SH-02"):
        for name in names:  # all of them before the first is opened
            plain_name(name)
    parts: list[FileSource] = []
    try:
        contents = []
        for name in names:
            parts.append(_opened(source, name))
            with located(path=parts[-1].name):
                contents.append(read_shard(parts[-1], limits))
                if expected is not None:
                    _check_tensors(contents[-1].table.names, expected[name])
        _check_distinct(parts, contents)
        index_size = 0 if expected is None else source.size
        return _joined_contents(JoinedSource(source.name, parts), contents, index_size)
    except BaseException:
        for part in parts:
            part.close()
        raise


def _opened(source: FileSource, name: str) -> FileSource:
    with located(rule="SH-03"):
        try:
            return sibling(source, name)
        except FileNotFoundError as error:
            if not source.is_current():
                raise ChangedError("the index was replaced while it was opened", path=source.name) from error
            raise CorruptError(f"the shard {printable(name)} is not there", path=source.name) from error
        except (ReadError, UnsafeContentError):
            raise
        except OSError as error:
            failure = ReadError(f"the shard {printable(name)} cannot be opened: {error.strerror}", path=source.name)
            failure.errno = error.errno
            raise failure from error


def _check_tensors(found: Sequence[str], expected: Sequence[str]) -> None:
    if len(found) == len(expected) and set(found) == set(expected):
        return
    missing = sorted(set(expected) - set(found))
    if missing:
        raise CorruptError(
            "the index says that it lies in this shard, but it does not", tensor=missing[0], rule="SH-04"
        )
    more = sorted(set(found) - set(expected))
    raise CorruptError("it lies in this shard, but the index does not say so", tensor=more[0], rule="SH-04")


def _check_distinct(parts: Sequence[FileSource], contents: Sequence[Contents]) -> None:
    files: dict[tuple[int, int], str] = {}
    for part in parts:
        if files.setdefault(part.identity, part.name) != part.name:
            raise CorruptError(
                f"it is the same file as {printable(files[part.identity])}", path=part.name, rule="SH-03"
            )
    owners: dict[str, str] = {}
    for part, content in zip(parts, contents, strict=True):
        for tensor in content.table.names:
            if owners.setdefault(tensor, part.name) != part.name:
                raise CorruptError(
                    f"it lies in {printable(owners[tensor])}, too", path=part.name, tensor=tensor, rule="SH-05"
                )


def _joined_contents(joined: JoinedSource, contents: Sequence[Contents], index_size: int) -> Contents:
    layouts = sorted({content.layout for content in contents if content.layout is not None})
    if len(layouts) > 1:
        raise CorruptError(f"its shards have the layouts {' and '.join(layouts)}", rule="SH-06")
    texts, differing = _common_texts([content.metadata for content in contents])
    notes = [f"the shards differ in the text {printable(key)!r}, so it is left out" for key in differing]
    tables = [content.table for content in contents]
    return Contents(
        Table(
            names=[name for table in tables for name in table.names],
            dtypes=[dtype for table in tables for dtype in table.dtypes],
            shapes=[shape for table in tables for shape in table.shapes],
            offsets=[
                base + offset for base, table in zip(joined.bases, tables, strict=True) for offset in table.offsets
            ],
            sizes=[size for table in tables for size in table.sizes],
            param_ids=[param_id for table in tables for param_id in table.param_ids],
        ),
        metadata=MappingProxyType(texts),
        variant=f"{len(tables)} shards",
        layout=layouts[0] if layouts else None,
        data_offset=contents[0].data_offset if contents else 0,
        source=joined,
        file_size=index_size + sum(part.size for part in joined.parts),
        notes=notes,
    )


def _common_texts(every: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[str]]:
    """The texts that no shard contradicts, and the keys of the others."""
    texts: dict[str, str] = {}
    differing: dict[str, None] = {}
    for each in every:
        for key, value in each.items():
            if texts.setdefault(key, value) != value and key != LAYOUT_KEY:
                differing[key] = None
    for key in differing:
        del texts[key]
    return texts, list(differing)
