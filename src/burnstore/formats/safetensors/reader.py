"""From bytes to contents: the rules that hold for the file as a whole (ST-01, ST-08, ST-10 .. ST-12)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import CorruptError, FormatError, LimitError, TruncatedError, located, printable
from ...io.source import Source
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ..base import LAYOUT_KEY, Contents, Kinds, Table
from ..sharded import read as sharded
from ..sharded.locate import begins_like_index
from . import scan
from .columns import Columns, Int64s
from .header import LARGEST, MOST_TENSORS, decode_header, read_header

LENGTH = struct.Struct("<Q")
MOST_HEADER_BYTES = 100_000_000

_FIRST_READ = 64 << 10
_INDEX_HEAD = 512


def read(source: Source, limits: Limits, *, shards: Sequence[str] | None = None) -> Contents:
    """The contents of a SafeTensors file, of all files that an index names, or of the ``shards`` in its folder."""
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    if shards is not None:
        return sharded.read_set(source, shards, limits, read_file)
    if begins_like_index(source.read_at(0, min(source.size, _INDEX_HEAD))):
        return sharded.read_index(source, limits, read_file)
    return read_file(source, limits)


def read_file(source: Source, limits: Limits) -> Contents:
    """The contents of one SafeTensors file."""
    raw = _read_header_bytes(source, limits)
    data_start = LENGTH.size + len(raw)
    try:
        text = decode_header(raw, limits)
        columns = scan.scan_header(text, limits) or read_header(text, limits)
    except FormatError as error:
        if error.offset is not None:
            error.offset += LENGTH.size
        raise
    _check_sizes(columns, limits)
    # Tensors without bytes share their start with a neighbour and come first.
    order = np.lexsort((columns.ends, columns.starts))
    starts, ends = columns.starts[order], columns.ends[order]
    _check_places(columns, order, starts, ends)
    _check_length(source.size, data_start + (int(ends[-1]) if len(ends) else 0))
    return Contents(
        _table(columns, order, starts, ends, data_start),
        metadata=MappingProxyType(columns.metadata),
        layout=said_layout(columns.metadata),
        data_offset=data_start,
    )


def said_layout(metadata: Mapping[str, str]) -> str | None:
    """The layout that a file's texts claim, None where they say nothing.

    ``format: pt`` is what `safetensors.torch` writes, ``producer: burn`` what Burn's store does. Burn writes that also
    where an adapter gave the tensors PyTorch's form, and no file tells; burnstore's own key decides before both.
    """
    if LAYOUT_KEY in metadata:
        return metadata[LAYOUT_KEY] if metadata[LAYOUT_KEY] in ("burn", "torch") else None
    if metadata.get("format") == "pt":
        return "torch"
    return "burn" if metadata.get("producer") == "burn" else None


def _read_header_bytes(source: Source, limits: Limits) -> bytes:
    most = limits.header_bytes or 0
    if source.size > limits.file_bytes:
        raise LimitError(f"{source.size} bytes, more than the limit of {limits.file_bytes}", rule="ST-01")
    if source.size < LENGTH.size:
        raise TruncatedError(f"a file has at least {LENGTH.size} bytes, this one {source.size}", rule="ST-01", offset=0)
    first = source.read_at(0, min(source.size, _FIRST_READ))  # most files need no second read
    (length,) = LENGTH.unpack_from(first)
    if length > most:
        raise LimitError(f"a header of {length} bytes, more than the limit of {most}", rule="ST-01", offset=0)
    end = LENGTH.size + length
    if end > source.size:
        raise TruncatedError(
            f"File truncated: {length} bytes of header announced, {source.size - LENGTH.size} follow",
            rule="ST-01",
            offset=0,
        )
    if end <= len(first):
        return first[LENGTH.size : end]
    return source.read_at(LENGTH.size, length)  # not joined to what was read: it would be in memory twice


def _check_sizes(columns: Columns, limits: Limits) -> None:
    """Each tensor has exactly the bytes that its dtype and shape need (ST-08, ST-10)."""
    if not columns.names:
        return
    needed = np.empty(len(columns.kinds), np.int64)
    for number, (dtype, shape) in enumerate(columns.kinds):
        try:
            needed[number] = _byte_length(dtype, shape)
        except FormatError as error:
            error.tensor = columns.names[int(np.flatnonzero(columns.kind == number)[0])]
            raise
    sizes = columns.ends - columns.starts
    expected = needed[columns.kind]
    wrong = np.flatnonzero(expected != sizes)
    if wrong.size:
        row = int(wrong[0])
        dtype, shape = columns.kinds[int(columns.kind[row])]
        raise CorruptError(
            f"declares {sizes[row]} bytes, but {dtype.name} of shape {list(shape)} need {expected[row]}",
            tensor=columns.names[row],
            rule="ST-10",
        )
    row = int(sizes.argmax())
    if sizes[row] > limits.tensor_bytes:
        raise LimitError(f"{sizes[row]} bytes, more than the limit of {limits.tensor_bytes}", tensor=columns.names[row])


def _byte_length(dtype: DType, shape: Shape) -> int:
    # Zeros are left out: an axis may be empty and another absurd, and no array of NumPy or torch has such a shape.
    if math.prod(extent or 1 for extent in shape) * dtype.bits > LARGEST:
        raise CorruptError(f"shape {list(shape)}: the byte length calculation overflows", rule="ST-08")
    bits = math.prod(shape) * dtype.bits
    if bits % 8:
        raise CorruptError(f"{math.prod(shape)} elements of {dtype.name} do not fill whole bytes", rule="ST-10")
    return bits // 8


def _check_places(columns: Columns, order: Int64s, starts: Int64s, ends: Int64s) -> None:
    """Tensors lie end to end (ST-11)."""
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
        raise CorruptError(f"its data starts at {start}, but what lies before ends at {end}")


def _check_length(size: int, expected: int) -> None:
    if size < expected:
        raise TruncatedError(f"File truncated: expected {expected} bytes, got {size}", rule="ST-12", offset=size)
    if size > expected:
        raise CorruptError(f"{size - expected} bytes follow the last tensor", rule="ST-12", offset=expected)


def _table(columns: Columns, order: Int64s, starts: Int64s, ends: Int64s, data_start: int) -> Table:
    kinds = Kinds(columns.kinds, columns.kind[order])
    return Table(
        names=_gathered(columns.names, order),
        dtypes=_gathered([dtype for dtype, _ in columns.kinds], kinds.which),
        shapes=_gathered([shape for _, shape in columns.kinds], kinds.which),
        offsets=(starts + data_start).tolist(),
        sizes=(ends - starts).tolist(),
        param_ids=[None] * len(columns.names),
        known_kinds=kinds,
    )


def _gathered(values: list[Any], rows: Int64s) -> list[Any]:
    """The values at these places, in one step."""
    if np.array_equal(rows, np.arange(len(values))):
        return values  # as most files have it: in the order of the header
    column = np.empty(len(values), object)
    column[:] = values
    return column[rows].tolist()  # type: ignore[no-any-return]  # NumPy does not know what an object array holds
