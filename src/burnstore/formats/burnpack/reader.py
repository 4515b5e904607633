"""From bytes to contents: the rules that hold for the file as a whole (BP-01 .. BP-03, BP-10 .. BP-16)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import CorruptError, FormatError, LimitError, TruncatedError, UnsupportedError, located
from ...io.source import Source
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ..base import LAYOUT_KEY, Contents, Table
from .descriptors import Columns, Int64s
from .eras import Era, describe, named_release, stamped_release
from .metadata import Metadata, read_metadata

MAGIC = b"NRUB"
VERSION = 1
HEADER = struct.Struct("<4sHI")
ALIGNMENT = 256
MOST_HEADER_BYTES = 100 << 20
MOST_TENSORS = 100_000

_FIRST_READ = 64 << 10
_LARGEST = (1 << 63) - 1


def aligned(position: int) -> int:
    """The next multiple of 256 at or after a position."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def read(source: Source, limits: Limits, *, burn_version: str | None = None) -> Contents:
    """The contents of a Burnpack file. ``burn_version`` settles the era where a file's evidence leaves it open."""
    asked = None if burn_version is None else named_release(burn_version).era
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    raw = _read_header(source, limits)
    with located(rule="BP-04"):
        try:
            metadata = read_metadata(raw, limits)
        except FormatError as error:
            if error.offset is not None:
                error.offset += HEADER.size
            raise
    columns = metadata.tensors
    if metadata.scalars:
        columns.eras &= Era.SCALARS
    starts, ends = _checked_offsets(columns)
    _check_sizes(columns, ends - starts, limits)
    # Tensors without bytes share their start with a neighbour and come first, as the writer placed them.
    order = np.lexsort((ends, starts))
    starts, ends = starts[order], ends[order]
    extent = int(ends.max()) if len(ends) else 0
    eras = _eras_by_offsets(columns, order, starts, ends)
    data_start, eras = _data_start(source, metadata, eras, HEADER.size + len(raw), extent, asked)
    _check_length(source.size, data_start + extent)
    table = Table(
        names=_gathered(columns.names, order),
        dtypes=_gathered([dtype for dtype, _ in columns.kinds], columns.kind[order]),
        shapes=_gathered([shape for _, shape in columns.kinds], columns.kind[order]),
        offsets=(starts + data_start).tolist(),
        sizes=(ends - starts).tolist(),
        param_ids=_gathered(columns.param_ids, order),
    )
    return Contents(
        table,
        metadata=MappingProxyType(metadata.metadata),
        scalars=MappingProxyType(metadata.scalars),
        variant=describe(eras),
        layout=said_layout(metadata.metadata),
        data_offset=data_start,
    )


def said_layout(metadata: Mapping[str, str]) -> str:
    """The layout that a file's texts claim: Burn's, if they say nothing else."""
    return metadata.get(LAYOUT_KEY, "burn")


def _gathered(values: list[Any], rows: Int64s) -> list[Any]:
    """The values at these places, in one step."""
    column = np.empty(len(values), object)
    column[:] = values
    return column[rows].tolist()  # type: ignore[no-any-return]  # NumPy does not know what an object array holds


def _read_header(source: Source, limits: Limits) -> bytes:
    if source.size > limits.file_bytes:
        raise LimitError(f"{source.size} bytes, more than the limit of {limits.file_bytes}", rule="BP-03")
    if source.size < HEADER.size:
        raise TruncatedError(
            f"a Burnpack header has {HEADER.size} bytes, the file {source.size}", rule="BP-01", offset=0
        )
    first = source.read_at(0, min(source.size, _FIRST_READ))  # most files need no second read
    magic, version, length = HEADER.unpack_from(first)
    if magic != MAGIC:
        raise CorruptError(f"the file starts with {magic!r}, not with {MAGIC!r}", rule="BP-01", offset=0)
    if version != VERSION:
        raise UnsupportedError(f"Burnpack version {version}; every Burn writes {VERSION}", rule="BP-02", offset=4)
    if length > (limits.header_bytes or 0):
        raise LimitError(
            f"metadata of {length} bytes, more than the limit of {limits.header_bytes}", rule="BP-03", offset=6
        )
    end = HEADER.size + length
    if end > source.size:
        raise TruncatedError(
            f"File truncated: {length} bytes of metadata announced, {source.size - HEADER.size} follow",
            rule="BP-03",
            offset=6,
        )
    if end <= len(first):
        return first[HEADER.size : end]
    return source.read_at(HEADER.size, length)  # not joined to what was read: it would be in memory twice


def _checked_offsets(columns: Columns) -> tuple[Int64s, Int64s]:
    """Starts and ends as numbers that can be added without overflow (BP-11)."""
    for offsets in (columns.starts, columns.ends):
        absurd = np.flatnonzero(offsets >= 1 << 62)
        if absurd.size:
            row = int(absurd[0])
            raise CorruptError(f"offset {offsets[row]} overflows any file", tensor=columns.names[row], rule="BP-11")
    reversed_rows = np.flatnonzero(columns.ends < columns.starts)
    if reversed_rows.size:
        row = int(reversed_rows[0])
        raise CorruptError(
            f"end offset {columns.ends[row]} lies before start offset {columns.starts[row]}",
            tensor=columns.names[row],
            rule="BP-11",
        )
    return columns.starts.astype(np.int64), columns.ends.astype(np.int64)


def _check_sizes(columns: Columns, sizes: Int64s, limits: Limits) -> None:
    """Each tensor has exactly the bytes that its dtype and shape need (BP-10, BP-12, BP-20)."""
    if not columns.names:
        return
    needed = np.empty(len(columns.kinds), np.int64)
    by_kind = np.argsort(columns.kind, kind="stable")
    first_rows = np.searchsorted(columns.kind, np.arange(len(columns.kinds) + 1), sorter=by_kind)
    for number, (dtype, shape) in enumerate(columns.kinds):
        with _naming_first_of(columns, number):
            # One axis may be zero and another absurd: the product is then harmless, the shape is not.
            if any(extent > _LARGEST for extent in shape):
                raise _overflow(shape)
            if dtype.scheme is not None:
                # Old files may hold scales of another width than their scheme says: each length is judged by itself.
                rows = by_kind[first_rows[number] : first_rows[number + 1]][::-1]
                for size, row in dict(zip(sizes[rows].tolist(), rows.tolist(), strict=True)).items():
                    with located(tensor=columns.names[row]):
                        dtype.scheme.check_length(shape, size)
                needed[number] = -1
            else:
                needed[number] = _byte_length(dtype, shape)
    expected = needed[columns.kind]
    wrong = np.flatnonzero((expected != sizes) & (expected >= 0))
    if wrong.size:
        row = int(wrong[0])
        dtype, shape = columns.kinds[int(columns.kind[row])]
        raise CorruptError(
            f"declares {sizes[row]} bytes, but {dtype.name} of shape {list(shape)} need {expected[row]}",
            tensor=columns.names[row],
            rule="BP-12",
        )
    row = int(sizes.argmax())
    if sizes[row] > limits.tensor_bytes:
        raise LimitError(f"{sizes[row]} bytes, more than the limit of {limits.tensor_bytes}", tensor=columns.names[row])


@contextmanager
def _naming_first_of(columns: Columns, number: int) -> Iterator[None]:
    """Attach the first tensor of a kind to an error about that kind."""
    try:
        yield
    except FormatError as error:
        if error.tensor is None:
            error.tensor = columns.names[int(np.flatnonzero(columns.kind == number)[0])]
        error.rule = error.rule or "BP-20"
        raise


def _byte_length(dtype: DType, shape: Shape) -> int:
    nbytes = math.prod(shape) * dtype.bits // 8
    if nbytes > _LARGEST:
        raise _overflow(shape)
    return nbytes


def _overflow(shape: Shape) -> CorruptError:
    return CorruptError(f"shape {list(shape)}: the byte length calculation overflows u64", rule="BP-10")


def _eras_by_offsets(columns: Columns, order: Int64s, starts: Int64s, ends: Int64s) -> Era:
    """The eras whose writer would have placed the tensors so: end to end, or each at the next multiple of 256."""
    before = np.concatenate((np.zeros(1, np.int64), ends))[: len(ends)]
    end_to_end = starts == before
    at_multiples = starts == -(-before // ALIGNMENT) * ALIGNMENT
    eras = Era(0)
    if end_to_end.all():
        eras |= Era.V0_19
    if at_multiples.all():
        eras |= Era.ALIGNED
    if eras:
        return eras
    misplaced = int(np.flatnonzero(~at_multiples if end_to_end.sum() < at_multiples.sum() else ~end_to_end)[0])
    name = columns.names[int(order[misplaced])]
    start, end = int(starts[misplaced]), int(before[misplaced])
    if start < end:
        other = columns.names[int(order[misplaced - 1])]
        raise CorruptError(
            f"its bytes from {start} overlap those of {other!r}, which end at {end}", tensor=name, rule="BP-13"
        )
    raise CorruptError(
        f"its data starts at {start}, the tensor before ends at {end}: no Burn leaves such a gap",
        tensor=name,
        rule="BP-13",
    )


def _data_start(
    source: Source, metadata: Metadata, eras: Era, metadata_end: int, extent: int, asked: Era | None
) -> tuple[int, Era]:
    """Where the data section starts, by all evidence; refused where it disagrees or does not suffice (BP-14, BP-16).

    0.19 starts right after the metadata, later releases at the next multiple of 256, and neither says so. Reading one
    as the other shifts every tensor. The strongest evidence is what only one side writes: the places of the tensors,
    the spelling of a dtype. Where both sides fit (a single tensor, say), the length of the file and the padding decide,
    and only then the version that the metadata claims.
    """
    unaligned, start = metadata_end, aligned(metadata_end)
    possible = eras & metadata.tensors.eras
    if not possible:
        raise CorruptError(
            f"its tensors lie as in Burn {describe(eras)}, its metadata is that of {describe(metadata.tensors.eras)}",
            rule="BP-14",
        )
    if asked is not None:
        possible &= Era.V0_19 if asked is Era.V0_19 else Era.ALIGNED
        if not possible:
            raise CorruptError(f"it is not a file of Burn {describe(asked)}", rule="BP-14")
    both_fit = bool(possible & Era.V0_19) and bool(possible & Era.ALIGNED) and unaligned != start
    if both_fit:
        possible &= Era.V0_19 if _ends_like_0_19(source, metadata, unaligned, start, extent) else Era.ALIGNED
    if possible & Era.V0_19:
        return unaligned, possible
    if source.size >= start and any(source.read_at(unaligned, start - unaligned)):
        raise CorruptError("the padding after the metadata is not zero", rule="BP-16", offset=unaligned)
    return start, possible


def _ends_like_0_19(source: Source, metadata: Metadata, unaligned: int, start: int, extent: int) -> bool:
    if source.size != unaligned + extent:
        return False
    claimed = stamped_release(metadata.metadata)
    if claimed is not None:
        return claimed.era is Era.V0_19
    if extent == 0:
        return True
    # A later file cut at this very length would have its padding here. Anything but zeros is data, hence 0.19.
    if any(source.read_at(unaligned, min(start - unaligned, extent))):
        return True
    raise CorruptError(
        "it may be a file of Burn 0.19 whose data begin with zeros, or a newer one that was cut short",
        rule="BP-14",
        offset=unaligned,
        hint='if you know that it is whole and of Burn 0.19, open it with burn_version="0.19"',
    )


def _check_length(size: int, expected: int) -> None:
    if size < expected:
        raise TruncatedError(
            f"File truncated: expected at least {expected} bytes, got {size}", rule="BP-15", offset=size
        )
    if size > expected:
        raise CorruptError(f"{size - expected} bytes follow the last tensor", rule="BP-15", offset=expected)
