"""Read sharded checkpoints: one set of tensors in several files, as Hugging Face keeps large models.

    model.safetensors.index.json          {"metadata": {"total_size": ..}, "weight_map": {tensor: file, ..}}
    model-00001-of-00003.safetensors      the shards, whole files of their own
    model-00002-of-00003.safetensors
    model-00003-of-00003.safetensors

An index is read with all files that it names, as one checkpoint. A folder stands for the one index in it; without an
index for the one file, or for the one complete set of files that are numbered as above. A folder with two indexes, an
index and a file of its name, or several files that are not a set is refused: which one is meant is not known.

The rules. Errors and tests cite them.

    SH-01  The index is no larger than the limit for headers, UTF-8 and strict JSON: one object with a ``weight_map``
           that maps text to text; no key twice. Other keys are ignored, ``total_size`` included: writers differ in what
           they count.
    SH-02  A shard's name is the plain name of a file on every system: no separator, no drive, no device, no control
           character (UnsafeContentError).
    SH-03  There are at most 10,000 shards; each is a regular file in the index's folder, or a link into the folder
           where the index itself really is; no two names lead to one file.
    SH-04  Each shard holds exactly the tensors that the index names for it.
    SH-05  No tensor is in two shards; shards without an index are numbered 1 to N of N, and none is missing.
    SH-06  Shards agree in the layout that they state: different layouts are refused. Other metadata that differs is
           left out, and `Checkpoint.notes` lists it.
    SH-07  All shards are of one save. burnstore writes a random identity into the metadata of each shard and of the
           index (``burnstore.set``): each shard must have the identity of the index. Where the index has none (Hugging
           Face writes none), the shards must agree, and the index must still be in place when all of them are open.
    SH-08  Shards may have pieces of tensors (torch's shards as SafeTensors, files of ranks): these are put together by
           the rules PC-01 to PC-03 of `burnstore.formats.pieces`. Files of ranks also have replicas, which must agree.

A save (see `write.py`) writes new shards, then replaces the index, which is the moment at which the new set counts,
then removes the old shards. A reader that finds a shard missing or of another save, and the index replaced, opens the
new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, cast

from ...errors import (
    BurnstoreError,
    ChangedError,
    CorruptError,
    FormatError,
    LimitError,
    ReadError,
    UnsafeContentError,
    UnsupportedError,
    counted,
    located,
    printable,
)
from ...io.documents import Bounds, read_json
from ...io.opening import open_source
from ...io.paths import plain_name, sibling
from ...io.source import InFolder, JoinedSource, OpensSiblings, Source
from ...limits import Limits
from ...tensor.facts import Facts
from ...tensor.note import Note
from ...tensor.sources import Data
from ..base import LAYOUT_KEY, Contents, Table
from ..pieces import assemble_table
from .locate import MOST_SHARDS

_TORCH_MAGIC = (b"PK\x03\x04", b"\x80\x02\x8a\x0a")  # a zip, and the stream of torch before 1.6
SET_KEY = "burnstore.set"
"""The metadata key of the identity that an index and its shards share."""

ReadShard = Callable[[Source, Limits], Contents]
"""The function with which the format of the shards reads one."""


def read_index(source: Source, limits: Limits, read_shard: ReadShard) -> Contents:
    """Read the contents of all shards that an index names."""
    weight_map, identity = _read_index(source, limits)
    names: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        names.setdefault(name, []).append(tensor)
    return _read_set(source, list(names), limits, read_shard, names, identity)


def read_set(source: Source, shards: Sequence[str], limits: Limits, read_shard: ReadShard) -> Contents:
    """Read the contents of these files, of which the source is one, without an index."""
    if isinstance(shards, str) or not all(isinstance(name, str) for name in shards):
        raise TypeError("shards are the names of all files of the set, a list of str")
    return _read_set(source, list(shards), limits, read_shard, None, None)


def read_files(joined: JoinedSource, limits: Limits, read_shard: ReadShard) -> Contents:
    """Read files that a caller opens together, in any folders, as one checkpoint."""
    contents: list[Contents] = []
    for part in joined.parts:
        with located(path=part.name):
            contents.append(_contents_of(part, limits, read_shard))
    _check_distinct([cast(InFolder, part) for part in joined.parts], contents)  # opened by their paths
    return _joined_contents(joined, contents, 0)


def weight_map_at(path: str) -> dict[str, str] | None:
    """Read which file each tensor is in, by an index; None if it cannot be read. The names of files are not checked."""
    with suppress(OSError, BurnstoreError):
        source = open_source(path)
        try:
            return _read_index(source, Limits().or_defaults(header_bytes=100_000_000, tensors=1_000_000))[0]
        finally:
            source.close()
    return None


def _read_index(source: Source, limits: Limits) -> tuple[dict[str, str], str | None]:
    most = limits.header_bytes or 0
    if source.size > most:
        raise LimitError(f"an index of {source.size} bytes, more than the limit of {most}", rule="SH-01")
    entries = (limits.tensors or 0) + limits.metadata_entries
    with located(rule="SH-01"):
        tree = read_json(source.read_at(0, source.size), Bounds(most, 2 * entries, 16, text=None))
        weight_map = tree.get("weight_map") if isinstance(tree, dict) else None
        if not isinstance(weight_map, dict):
            raise CorruptError("an index is a JSON object with a 'weight_map'")
        for tensor, name in weight_map.items():
            if not isinstance(name, str):
                raise CorruptError("the index does not name a file", tensor=tensor)
        if len(weight_map) > (limits.tensors or 0):
            raise LimitError(f"{len(weight_map)} tensors, more than the limit of {limits.tensors}")
    metadata = tree.get("metadata")
    identity = metadata.get(SET_KEY) if isinstance(metadata, dict) else None
    return weight_map, identity if isinstance(identity, str) else None


def _read_set(
    source: Source,
    names: list[str],
    limits: Limits,
    read_shard: ReadShard,
    expected: Mapping[str, list[str]] | None,
    identity: str | None,
) -> Contents:
    if not isinstance(source, InFolder):
        raise UnsafeContentError("an index in memory is in no folder, so its shards cannot be found", path=source.name)
    if len(names) > MOST_SHARDS:
        raise LimitError(f"{len(names)} shards, more than {MOST_SHARDS}", rule="SH-03")
    with located(rule="SH-02"):
        for name in names:  # all of them before the first is opened
            plain_name(name)
    parts: list[InFolder] = []
    try:
        contents: list[Contents] = []
        for number, name in enumerate(names):
            if isinstance(source, OpensSiblings):
                source.prefetch_siblings(names[number:])
            parts.append(_opened(source, name))
            with located(path=parts[-1].name):
                content = _contents_of(parts[-1], limits, read_shard)
                found = content.metadata.get(SET_KEY)
                wanted = identity if identity is not None or not contents else contents[0].metadata.get(SET_KEY)
                if found != wanted and (contents or identity is not None):
                    raise _if_current(source, CorruptError("this shard is of another save", rule="SH-07"))
                if expected is not None:
                    _check_tensors(source, content.table.names, expected[name])
                contents.append(content)
        if identity is None and expected is not None and not source.is_current():
            raise _replaced(source)
        if expected is not None:
            _check_whole(parts, contents)
        _check_distinct(parts, contents)
        index_size = 0 if expected is None else source.size
        return _joined_contents(JoinedSource(source.name, parts), contents, index_size)
    except BaseException:
        for part in parts:
            part.close()
        raise


def _opened(source: InFolder, name: str) -> InFolder:
    with located(rule="SH-03"):
        try:
            return sibling(source, name)
        except FileNotFoundError as error:
            missing = CorruptError(f"the shard {printable(name)} is missing", path=source.name)
            raise _if_current(source, missing) from error
        except (ReadError, UnsafeContentError):
            raise
        except OSError as error:
            failure = ReadError(f"the shard {printable(name)} cannot be opened: {error.strerror}", path=source.name)
            failure.errno = error.errno
            raise failure from error


def _if_current(source: InFolder, error: BurnstoreError) -> BurnstoreError:
    """Return the error, or ChangedError if the index was replaced: its shards were then replaced with it."""
    return error if source.is_current() else _replaced(source)


def _replaced(source: InFolder) -> ChangedError:
    return ChangedError("the index was replaced while it was opened", path=source.name)


def _check_tensors(source: InFolder, found: Sequence[str], expected: Sequence[str]) -> None:
    if len(found) == len(expected) and set(found) == set(expected):
        return
    missing, more = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    what = "the index names this shard for it, but the shard lacks it" if missing else "the index does not name it"
    raise _if_current(source, CorruptError(what, tensor=(missing or more)[0], rule="SH-04"))


def _contents_of(shard: Source, limits: Limits, read_shard: ReadShard) -> Contents:
    try:
        return read_shard(shard, limits)
    except FormatError:
        if shard.read_at(0, min(4, shard.size)) in _TORCH_MAGIC:
            raise UnsupportedError(
                "this shard is a PyTorch file; only sets of SafeTensors files can be opened as one",
                hint="pass the shards to convert, as a list: it writes them into one file",
            ) from None
        raise


def _check_distinct(parts: Sequence[InFolder], contents: Sequence[Contents]) -> None:
    files: dict[tuple[Any, ...], str] = {}
    owners: dict[str, str] = {}
    are_ranks = _are_ranks(contents)
    for part, content in zip(parts, contents, strict=True):
        with located(path=part.name):
            if files.setdefault(part.identity, part.name) != part.name:
                raise CorruptError(f"it is the same file as {printable(files[part.identity])}", rule="SH-03")
            for row, tensor in enumerate(content.table.names):
                if are_ranks or (row in content.table.facts and content.table.facts[row].piece is not None):
                    continue  # its pieces are put together, and its replicas compared
                if owners.setdefault(tensor, part.name) != part.name:
                    raise CorruptError(f"it is also in {printable(owners[tensor])}", tensor=tensor, rule="SH-05")


def _check_whole(parts: Sequence[InFolder], contents: Sequence[Contents]) -> None:
    """Refuse pieces behind an index, unless they state what they are a part of: an index has one file for a tensor."""
    for part, content in zip(parts, contents, strict=True):
        for row, fact in content.table.facts.items():
            if fact.piece is not None and fact.piece.global_shape is None:
                raise fact.piece.refusal(part.name, content.table.names[row])


def _are_ranks(contents: Sequence[Contents]) -> bool:
    """Return whether the files are of ranks, each with its part of some tensors, and with all of the others."""
    facts = (fact for content in contents for fact in content.table.facts.values())
    return any(fact.piece is not None and fact.piece.number is not None for fact in facts)


def _joined_contents(joined: JoinedSource, contents: Sequence[Contents], index_size: int) -> Contents:
    layouts = sorted({content.layout for content in contents if content.layout is not None})
    if len(layouts) > 1:
        raise CorruptError(f"its shards have the layouts {' and '.join(layouts)}", rule="SH-06")
    metadata, differing = _common_metadata([content.metadata for content in contents])
    notes = [
        Note("metadata", f"the shards differ in the metadata {printable(key)!r}, so it is left out", key)
        for key in differing
    ]
    tables = [content.table for content in contents]
    notes += dict.fromkeys(note for content in contents for note in content.notes)
    apart: dict[int, Data] = {}
    facts: dict[int, Facts] = {}
    before = 0
    for table in tables:
        apart |= {before + row: data for row, data in table.apart.items()}
        facts |= {before + row: fact for row, fact in table.facts.items()}
        before += len(table.names)
    table = Table(
        names=[name for table in tables for name in table.names],
        dtypes=[dtype for table in tables for dtype in table.dtypes],
        shapes=[shape for table in tables for shape in table.shapes],
        offsets=[base + offset for base, table in zip(joined.bases, tables, strict=True) for offset in table.offsets],
        sizes=[size for table in tables for size in table.sizes],
        param_ids=[param_id for table in tables for param_id in table.param_ids],
        apart=apart,
        facts=facts,
    )
    has_pieces = any(fact.piece is not None for fact in facts.values())
    if has_pieces:
        owners = [printable(part.name) for part, own in zip(joined.parts, tables, strict=True) for _ in own.names]
        whole, more = assemble_table(table, joined, owners, are_ranks=_are_ranks(contents))
        table, notes = whole, [*notes, *more]
    return Contents(
        table,
        metadata=MappingProxyType(metadata),
        variant=counted(len(tables), "shard"),
        layout=layouts[0] if layouts else None,
        data_offset=contents[0].data_offset if contents else 0,
        source=joined,
        file_size=index_size + sum(part.size for part in joined.parts),
        notes=notes,
        shared=[] if has_pieces else [group for content in contents for group in content.shared],
    )


def _common_metadata(every: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Return the metadata in which the shards agree, without the identity of the set, and the keys of the rest."""
    common: dict[str, str] = {}
    differing: dict[str, None] = {}
    for each in every:
        for key, value in each.items():
            if common.setdefault(key, value) != value and key != LAYOUT_KEY:
                differing[key] = None
    for key in (*differing, SET_KEY):
        common.pop(key, None)
    return common, list(differing)
