"""Read a SafeTensors file: the rules that hold for the file as a whole (ST-01, ST-08, ST-10 .. ST-12)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import CorruptError, FormatError, located, printable
from ...io import json
from ...io.source import JoinedSource, Source
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.facts import Piece, describe_place
from ...tensor.note import Note
from ..base import LAYOUT_KEY, Contents, Part, Table, is_reserved, mark_pieces
from ..columns import Int64s, check_end, check_sizes, read_header_bytes, table_of
from ..sharded import read as sharded
from ..sharded.locate import begins_like_index
from . import fast_header
from .header import LARGEST, LENGTH, MOST_HEADER_BYTES, MOST_TENSORS, Columns, decode_header, read_header

_INDEX_HEAD = 512
_VERSION_KEY = "DCP_VERSION"
SHARDING_KEY = "DCP_SHARDING_INFO"
"""The metadata key under which torch's distributed checkpoints state the place of each tensor in the whole one."""


_FRAMEWORKS = "tf flax jax keras mlx np paddle mindspore oneflow mxnet tinygrad candle onnx coreml ggml haiku equinox"
_LAYOUTS_OF_FORMATS = {"pt": "torch", **{name: name for name in _FRAMEWORKS.split()}}
_LAYOUTS_OF_FORMATS |= {"torch": "torch", "pytorch": "torch", "tensorflow": "tf", "numpy": "np", "burn": "burn"}
"""The layout that each value of the metadata's ``format`` states; other values state none."""


def read(source: Source, limits: Limits, *, shards: Sequence[str] | None = None) -> Contents:
    """Read the contents of a SafeTensors file, of all files that an index names, or of the ``shards`` in its folder."""
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    if isinstance(source, JoinedSource):
        return _with_ties(sharded.read_files(source, limits, read_file))
    if shards is not None:
        return _with_ties(sharded.read_set(source, shards, limits, read_file))
    if begins_like_index(source.read_at(0, min(source.size, _INDEX_HEAD))):
        return _with_ties(sharded.read_index(source, limits, read_file))
    return _with_ties(read_file(source, limits))


def _with_ties(contents: Contents) -> Contents:
    """Return the contents with a row for each second name of a tensor, behind the row of the first."""
    metadata, table = contents.metadata, contents.table
    layout = stated_layout(metadata)
    if not metadata or layout == "burn":
        return contents  # Burn's store looks for every name.
    names = set(table.names).intersection(metadata.values())
    ties: dict[str, list[str]] = {}
    for name, kept in metadata.items():
        if kept in names and not is_reserved(name):
            ties.setdefault(kept, []).append(name)
    stored = set(table.names) if ties else set()
    ties = {kept: found for kept, every in ties.items() if (found := [name for name in every if name not in stored])}
    # `save_model` states nothing else unless it is asked to; other metadata may name a tensor by chance.
    is_chance = layout != "torch" and sum(map(len, ties.values())) < len(metadata)
    if not ties or is_chance:
        return contents
    rows = [row for row, name in enumerate(table.names) for _ in (name, *ties.get(name, ()))]
    table = table.picked(rows)
    table.names[:] = [each for name in contents.table.names for each in (name, *ties.get(name, ()))]
    pairs = [f"{printable(name)} of {printable(kept)}" for kept, every in ties.items() for name in every]
    shown = ", ".join(pairs[:3]) + (f" and {len(pairs) - 3} more" if len(pairs) > 3 else "")
    shared = tuple((kept, *every) for kept, every in ties.items())
    note = Note("tied", f"the metadata gives tensors a second name: {shown}")
    return replace(contents, table=table, notes=(*contents.notes, note), shared=shared)


def read_file(source: Source, limits: Limits) -> Contents:
    """Read the contents of one SafeTensors file."""
    raw = read_header_bytes(source, LENGTH.size, _header_length, limits, rules=("ST-01", "ST-01"), at=0)
    data_start = LENGTH.size + len(raw)
    try:
        text = decode_header(raw, limits)
        columns = fast_header.read_header(text, limits) or read_header(text, limits)
    except FormatError as error:
        if error.offset is not None:
            error.offset += LENGTH.size
        raise
    check_sizes(columns, columns.ends - columns.starts, _byte_length, limits, "ST-10")
    # Tensors without bytes share their start with a neighbour and come first.
    order = np.lexsort((columns.ends, columns.starts))
    starts, ends = columns.starts[order], columns.ends[order]
    _check_places(columns, order, starts, ends)
    check_end(source.size, data_start + (int(ends[-1]) if len(ends) else 0), "ST-12")
    table = table_of(columns, order, starts, ends, data_start)
    if SHARDING_KEY in columns.metadata:
        with located(rule="ST-15"):
            table = mark_pieces(table, source, _pieces(table, columns.metadata[SHARDING_KEY]))
        for key in (SHARDING_KEY, _VERSION_KEY):  # facts of the tensors now, which a copy must not have
            columns.metadata.pop(key, None)
    return Contents(
        table,
        metadata=MappingProxyType(columns.metadata),
        layout=stated_layout(columns.metadata),
        data_offset=data_start,
    )


def _pieces(table: Table, text: str) -> dict[int, Piece]:
    """Return the places that ``DCP_SHARDING_INFO`` states for the tensors of a file (ST-15)."""
    most = len(table.names)
    raw = text.encode("utf-8", "surrogatepass")
    tree = json.parse(json.decode(raw, most_nodes=3 * most + 1, most_strings=3 * most))
    if not isinstance(tree, dict):
        raise CorruptError(f"the metadata {SHARDING_KEY} is not a JSON object")
    pieces: dict[int, Piece] = {}
    for row, name in enumerate(table.names):
        with located(tensor=name):
            stated, shape = tree.get(name), table.shapes[row]
            offset = _naturals(stated, "saved_offsets", len(shape))
            if offset is None:
                raise CorruptError(f"the metadata {SHARDING_KEY} states no saved_offsets for this tensor")
            whole = _naturals(stated, "global_shape", len(shape))
            if whole is not None and any(o + n > w for o, n, w in zip(offset, shape, whole, strict=True)):
                raise CorruptError(f"a piece of {list(shape)} from {list(offset)} on exceeds {list(whole)}")
            if whole != shape:
                stated_whole = "" if whole is not None else ", whose global shape the file does not state"
                text = f"{describe_place(offset, shape, whole)} of a shard of torch{stated_whole}"
                pieces[row] = Piece(whole, offset, text)
    return pieces


def _naturals(stated: Any, key: str, rank: int) -> Shape | None:
    """Return a list of natural numbers, one for each axis; None if the key is absent."""
    values = stated.get(key) if isinstance(stated, dict) else None
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != rank or any(type(n) is not int or n < 0 for n in values):
        raise CorruptError(f"the metadata {SHARDING_KEY} has {key} that are not {rank} natural numbers")
    if any(value >> 63 for value in values):
        raise CorruptError(f"the metadata {SHARDING_KEY} has {key} beyond 63 bits")
    return tuple(values)


def stated_layout(metadata: Mapping[str, str]) -> str | None:
    """Return the layout that a file's metadata states, None if it states none.

    ``format: pt`` is what `safetensors.torch` writes, ``producer: burn`` what Burn's store does. Burn writes that also
    where an adapter gave the tensors PyTorch's form, and no file states that; burnstore's own key decides before both.
    ``format`` may also name another framework (``mlx``, ``flax``), whose layout is neither PyTorch's nor unknown.
    """
    if LAYOUT_KEY in metadata:
        return metadata[LAYOUT_KEY] or None
    if metadata.get("producer") == "burn" and metadata.get("format") != "pt":
        return "burn"
    return _LAYOUTS_OF_FORMATS.get(metadata.get("format", "").lower())


def describe_header(head: bytes, size: int) -> list[Part]:
    """Name the length, the header and the data; or the index of a sharded set."""
    if begins_like_index(head):
        return [Part(0, size, "index of a sharded set: JSON")]
    if len(head) < LENGTH.size:
        return [Part(0, len(head), "less than the 8 bytes of a length")]
    length = _header_length(head)
    stop = LENGTH.size + length
    parts = [
        Part(0, 8, f"length of the header: {length:,}"),
        Part(8, min(stop, size) - 8, "header: JSON" if stop <= size else "header, cut off"),
    ]
    return [*parts, Part(stop, size - stop, "data")] if stop < size else parts


def _header_length(first: bytes) -> int:
    return int(LENGTH.unpack_from(first)[0])


def _byte_length(number: int, dtype: DType, shape: Shape) -> int:
    # Zeros are left out: an axis may be empty and another absurd, and no array of NumPy or torch has such a shape.
    if math.prod(extent or 1 for extent in shape) * dtype.bits > LARGEST:
        raise CorruptError(f"shape {list(shape)}: the byte length calculation overflows", rule="ST-08")
    bits = math.prod(shape) * dtype.bits
    if bits % 8:
        raise CorruptError(f"{math.prod(shape)} elements of {dtype.name} do not fill whole bytes", rule="ST-10")
    return bits // 8


def _check_places(columns: Columns, order: Int64s, starts: Int64s, ends: Int64s) -> None:
    """Check that tensors follow one another without a gap (ST-11)."""
    before = np.concatenate((np.zeros(1, np.int64), ends))[: len(ends)]
    misplaced = np.flatnonzero(starts != before)
    if not misplaced.size:
        return
    row = int(misplaced[0])
    with located(tensor=columns.names[int(order[row])], rule="ST-11"):
        start, end = int(starts[row]), int(before[row])
        if start < end:
            other = columns.names[int(order[row - 1])]
            raise CorruptError(f"its bytes from {start} overlap those of {printable(other)!r}, which end at {end}")
        raise CorruptError(f"its data starts at {start}, but the data before it ends at {end}")
