"""Read a Burnpack file: the rules that hold for the file as a whole (BP-01 .. BP-03, BP-10 .. BP-16)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ...errors import CorruptError, FormatError, UnsupportedError, counted, located
from ...io.source import Source
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ..base import LAYOUT_KEY, Check, Contents, Part
from ..columns import Int64s, check_end, check_sizes, read_header_bytes, table_of
from .descriptors import Columns
from .eras import Era, describe, named_release, stamped_release
from .header import ALIGNMENT, HEADER, MAGIC, MOST_HEADER_BYTES, MOST_TENSORS, VERSION, Metadata, aligned, read_metadata

_LARGEST = (1 << 63) - 1


def read(source: Source, limits: Limits, *, burn_version: str | None = None) -> Contents:
    """Read the contents of a Burnpack file. ``burn_version`` decides the era where a file's evidence does not."""
    asked = None if burn_version is None else named_release(burn_version).era
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    raw = read_header_bytes(source, HEADER.size, _metadata_length, limits, rules=("BP-01", "BP-03"), at=6)
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
    check_end(source.size, data_start + extent, "BP-15")
    return Contents(
        table_of(columns, order, starts, ends, data_start, columns.param_ids),
        metadata=MappingProxyType(metadata.metadata),
        scalars=MappingProxyType(metadata.scalars),
        variant=describe(eras),
        layout=stated_layout(metadata.metadata),
        data_offset=data_start,
    )


def stated_layout(metadata: Mapping[str, str]) -> str:
    """Return the layout that a file's metadata states: Burn's, if it states no other."""
    return metadata.get(LAYOUT_KEY, "burn")


def describe_header(head: bytes, size: int) -> list[Part]:
    """Name the fields of the header, the metadata, and the start of the data of a file of Burn 0.20 and later."""
    if len(head) < HEADER.size:
        return [Part(0, len(head), f"less than the {HEADER.size} bytes of a header")]
    magic, version, length = HEADER.unpack_from(head)
    stop = HEADER.size + length
    parts = [
        Part(0, 4, "magic: NRUB" if magic == MAGIC else "not the magic, which is NRUB"),
        Part(4, 2, f"version: {version}" if version == VERSION else f"version: {version}, not {VERSION}"),
        Part(6, 4, f"length of the metadata: {length:,}"),
        Part(HEADER.size, min(stop, size) - HEADER.size, "metadata: CBOR" if stop <= size else "metadata, cut off"),
    ]
    if stop < size:
        parts.append(Part(stop, min(aligned(stop), size) - stop, "zeros up to a multiple of 256, or data of Burn 0.19"))
    return parts


@dataclass(frozen=True, slots=True)
class PaddingCheck:
    """Check that the bytes between tensors, which opening a file does not read, are zeros (BP-16)."""

    source: Source
    gaps: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """The number of bytes that the check reads."""
        return sum(length for _, length in self.gaps)

    def __call__(self) -> str | None:
        buffer = np.empty(self.nbytes, np.uint8)
        reads, place = [], 0
        for start, length in self.gaps:
            reads.append((start, memoryview(buffer)[place : place + length]))
            place += length
        self.source.read_into(reads)
        count = int(np.count_nonzero(buffer))
        return (
            f"{counted(count, 'byte between tensors is', 'bytes between tensors are')} not zero, as padding is (BP-16)"
            if count
            else None
        )


def checks(source: Source, contents: Contents, limits: Limits) -> Sequence[Check]:
    """Return the check of the padding, if there is any."""
    offsets = np.array(contents.table.offsets, np.int64)
    ends = offsets + np.array(contents.table.sizes, np.int64)
    lengths = offsets[1:] - ends[:-1]
    gaps = [(end, length) for end, length in zip(ends.tolist(), lengths.tolist(), strict=False) if length > 0]
    return [PaddingCheck(source, tuple(gaps))] if gaps else []


def _metadata_length(first: bytes) -> int:
    magic, version, length = HEADER.unpack_from(first)
    if magic != MAGIC:
        raise CorruptError(f"the file starts with {magic!r}, not with {MAGIC!r}", rule="BP-01", offset=0)
    if version != VERSION:
        raise UnsupportedError(f"Burnpack version {version}; every Burn writes {VERSION}", rule="BP-02", offset=4)
    return int(length)


def _checked_offsets(columns: Columns) -> tuple[Int64s, Int64s]:
    """Return starts and ends as numbers that can be added without overflow (BP-11)."""
    for offsets in (columns.starts, columns.ends):
        too_large = np.flatnonzero(offsets >= 1 << 62)
        if too_large.size:
            row = int(too_large[0])
            raise CorruptError(f"offset {offsets[row]} overflows any file", tensor=columns.names[row], rule="BP-11")
    reversed_rows = np.flatnonzero(columns.ends < columns.starts)
    if reversed_rows.size:
        row = int(reversed_rows[0])
        raise CorruptError(
            f"end offset {columns.ends[row]} is before start offset {columns.starts[row]}",
            tensor=columns.names[row],
            rule="BP-11",
        )
    return columns.starts.astype(np.int64), columns.ends.astype(np.int64)


def _check_sizes(columns: Columns, sizes: Int64s, limits: Limits) -> None:
    """Check that each tensor has exactly the bytes that its dtype and shape need (BP-10, BP-12, BP-20)."""
    by_kind = np.argsort(columns.kind, kind="stable")
    first_rows = np.searchsorted(columns.kind, np.arange(len(columns.kinds) + 1), sorter=by_kind)

    def needed(number: int, dtype: DType, shape: Shape) -> int:
        # One axis may be zero and another absurd: the product is then harmless, the shape is not.
        if any(extent > _LARGEST for extent in shape):
            raise _overflow(shape)
        if dtype.scheme is None:
            nbytes = math.prod(shape) * dtype.bits // 8
            if nbytes > _LARGEST:
                raise _overflow(shape)
            return nbytes
        # Old files may hold scales of another width than their scheme states, so each length is checked separately.
        rows = by_kind[first_rows[number] : first_rows[number + 1]][::-1]
        for size, row in dict(zip(sizes[rows].tolist(), rows.tolist(), strict=True)).items():
            with located(tensor=columns.names[row], rule="BP-20"):
                dtype.scheme.check_length(shape, size)
        return -1

    check_sizes(columns, sizes, needed, limits, "BP-12")


def _overflow(shape: Shape) -> CorruptError:
    return CorruptError(f"shape {list(shape)}: the byte length calculation overflows u64", rule="BP-10")


def _eras_by_offsets(columns: Columns, order: Int64s, starts: Int64s, ends: Int64s) -> Era:
    """Return the eras whose writer would have placed the tensors so: end to end, or each at a multiple of 256."""
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
    start, end = int(starts[misplaced]), int(before[misplaced])
    with located(tensor=columns.names[int(order[misplaced])], rule="BP-13"):
        if start < end:
            other = columns.names[int(order[misplaced - 1])]
            raise CorruptError(f"its bytes from {start} overlap those of {other!r}, which end at {end}")
        raise CorruptError(f"its data starts at {start}, the tensor before ends at {end}: no Burn leaves such a gap")


def _data_start(
    source: Source, metadata: Metadata, eras: Era, metadata_end: int, extent: int, asked: Era | None
) -> tuple[int, Era]:
    """Find where the data section starts, by all evidence; refuse where it disagrees or is not enough (BP-14, BP-16).

    0.19 starts right after the metadata, later releases at the next multiple of 256, and neither states it. Reading one
    as the other shifts every tensor. The strongest evidence is what only one side writes: the places of the tensors,
    the spelling of a dtype. Where both sides fit (a single tensor, say), the length of the file and the padding decide,
    and only then the version that the metadata claims.
    """
    unaligned, start = metadata_end, aligned(metadata_end)
    possible = eras & metadata.tensors.eras
    if not possible:
        raise CorruptError(
            f"the tensors are placed as by Burn {describe(eras)}, but the metadata is that of "
            f"{describe(metadata.tensors.eras)}",
            rule="BP-14",
        )
    if asked is not None:
        possible &= Era.V0_19 if asked is Era.V0_19 else Era.ALIGNED
        if not possible:
            raise CorruptError(f"this is not a file of Burn {describe(asked)}", rule="BP-14")
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
        "this may be a file of Burn 0.19 whose data begins with zeros, or a newer one that was cut short",
        rule="BP-14",
        offset=unaligned,
        hint='if you know that it is whole and of Burn 0.19: burnstore.open(path, burn_version="0.19")',
    )
