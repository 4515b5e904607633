"""Read a GGUF file, or the files of a split one: where each tensor is (GG-06, GG-09, GG-10)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import CorruptError, LimitError, TruncatedError, counted, located
from ...io.source import Source
from ...limits import Limits
from ...tensor.dtype import DType
from ...tensor.facts import Facts, Scheme
from ...tensor.note import Note, note_kind
from ...tensor.sources import Data, SourceData
from ..base import LAYOUT_KEY, UNSTATED_LAYOUT, Check, Contents, Part, Table
from ..sharded import read as sharded
from .blocks import TYPES
from .data import BlockData
from .header import (
    ARCHITECTURE_KEY,
    MOST_HEADER_BYTES,
    MOST_TENSORS,
    GgufMetadata,
    TensorInfos,
    read_header,
)

SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"


def read(source: Source, limits: Limits, *, shards: Sequence[str] | None = None) -> Contents:
    """Read the contents of a GGUF file, or of the ``shards`` of a split one in its folder."""
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    if shards is None:
        return read_file(source, limits)
    whole = sharded.read_set(source, shards, limits, read_file)
    notes = [note for note in whole.notes if note_kind(note) != "part" and not _is_about_splitting(note)]
    own = read_file(source, limits).metadata  # the first file has the model's metadata
    announced = own.value(SPLIT_TENSORS) if isinstance(own, GgufMetadata) else None
    if isinstance(announced, int) and announced != len(whole.table.names):
        raise CorruptError(
            f"{counted(len(whole.table.names), 'tensor')} in {counted(len(shards), 'file')}; "
            f"{SPLIT_TENSORS} announces {announced}",
            rule="GG-11",
        )
    metadata = {key: text for key, text in own.items() if not key.startswith("split.")}
    return replace(whole, metadata=metadata, notes=notes, layout=stated_layout(metadata))


def _is_about_splitting(note: str) -> bool:
    """Return whether a note is about metadata that numbers the files, which differs between them by design."""
    return isinstance(note, Note) and note.kind == "metadata" and (note.subject or "").startswith("split.")


def read_file(source: Source, limits: Limits) -> Contents:
    """Read the contents of one GGUF file."""
    if source.size > limits.file_bytes:
        raise LimitError(f"{source.size} bytes, more than the limit of {limits.file_bytes}", rule="GG-02")
    version, metadata, infos, alignment, end = read_header(source, limits)
    data_start = -(-end // alignment) * alignment
    order = _check_places(infos, alignment, data_start, source.size)
    apart: dict[int, Data] = {}
    facts: dict[int, Facts] = {}
    dtypes, sizes, offsets = [], [], []
    for place, row in enumerate(order):
        kind, name = TYPES[infos.types[row]], infos.names[row]
        offset, stored = data_start + infos.offsets[row], infos.sizes[row]
        offsets.append(offset)
        if kind.dtype is not None:
            dtypes.append(kind.dtype)
            sizes.append(stored)
            continue
        count = math.prod(infos.shapes[row])
        dtypes.append(DType.F32)
        sizes.append(4 * count)
        apart[place] = BlockData(SourceData(source, offset, stored), infos.types[row], count, name)
        facts[place] = Facts(scheme=Scheme(kind.name, (name,)))
    notes = _split_notes(metadata)
    return Contents(
        Table(
            names=[infos.names[row] for row in order],
            dtypes=dtypes,
            shapes=[infos.shapes[row] for row in order],
            offsets=offsets,
            sizes=sizes,
            param_ids=[None] * len(order),
            apart=apart,
            facts=facts,
        ),
        metadata=metadata,
        variant=f"version {version}",
        layout=stated_layout(metadata),
        data_offset=data_start,
        notes=notes,
    )


def stated_layout(metadata: Mapping[str, str]) -> str | None:
    """Return the layout that a file's metadata states: ``gguf``, llama.cpp's names, where it names an architecture."""
    if LAYOUT_KEY in metadata:
        return metadata[LAYOUT_KEY] or UNSTATED_LAYOUT
    return "gguf" if ARCHITECTURE_KEY in metadata else None


def _split_notes(metadata: GgufMetadata) -> list[Note]:
    count, number = metadata.value(SPLIT_COUNT), metadata.value(SPLIT_NUMBER)
    if not isinstance(count, int) or count < 2:
        return []
    shown = f"file {number + 1} of {count}" if isinstance(number, int) else f"one of {count} files"
    text = f"{shown} of a split model: the other tensors are in the other files; open their folder for all of them"
    return [Note("part", text)]


def _check_places(infos: TensorInfos, alignment: int, data_start: int, size: int) -> list[int]:
    """Check that tensors follow one another, padded to the alignment (GG-09, GG-10); return them by offset."""
    order = sorted(range(len(infos.names)), key=lambda row: (infos.offsets[row], infos.sizes[row]))
    end = 0
    for row in order:
        start = infos.offsets[row]
        expected = -(-end // alignment) * alignment
        if start != expected:
            with located(tensor=infos.names[row], rule="GG-09"):
                if start % alignment:
                    raise CorruptError(f"its offset {start} is not a multiple of the alignment, {alignment}")
                if start < expected:
                    raise CorruptError(f"its bytes from {start} on overlap another tensor's, which end at {end}")
                raise CorruptError(f"its data starts at {start}, but the data before it ends at {end}")
        end = start + infos.sizes[row]
        if data_start + end > size:
            raise TruncatedError(
                f"File truncated: its bytes end at {data_start + end}, the file at {size}",
                tensor=infos.names[row],
                rule="GG-10",
                offset=size,
            )
    last = data_start + end
    if size > -(-last // alignment) * alignment:
        raise CorruptError(f"{size - last} bytes follow the last tensor", rule="GG-10", offset=last)
    return order


@dataclass(frozen=True, slots=True)
class _PaddingCheck:
    """Whether the bytes between the tensors are zeros, as every known writer makes them (GG-10)."""

    source: Source
    gaps: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        return sum(length for _, length in self.gaps)

    def __call__(self) -> str | None:
        count = sum(np.count_nonzero(np.frombuffer(self.source.read_at(*gap), np.uint8)) for gap in self.gaps)
        many = counted(int(count), "byte between tensors is", "bytes between tensors are")
        return f"{many} not zero, as padding is (GG-10)" if count else None


def checks(source: Source, contents: Contents, limits: Limits) -> Sequence[Check]:
    """Return the check of the padding; a split model has none here, since its files are checked one by one."""
    if contents.source is not None:
        return []
    table = contents.table
    stored = [
        sum(part.nbytes for part in table.apart[row].stored) if row in table.apart else size  # type: ignore[attr-defined]
        for row, size in enumerate(table.sizes)
    ]
    ends = [offset + nbytes for offset, nbytes in zip(table.offsets, stored, strict=True)]
    gaps = [
        (end, start - end) for end, start in zip(ends, [*table.offsets[1:], source.size], strict=True) if start > end
    ]
    return [_PaddingCheck(source, tuple(gaps))] if gaps else []


def describe_header(head: bytes, size: int) -> list[Part]:
    """Name the magic, the version and the counts; what follows has no fixed place."""
    fields = ((0, 4, "magic: GGUF"), (4, 4, "version"), (8, 8, "number of tensors"), (16, 8, "metadata entries"))
    parts: list[Part] = []
    for offset, length, meaning in fields:
        if offset + length > min(len(head), size):
            return [*parts, Part(offset, size - offset, "header, cut off")] if size > offset else parts
        number = int.from_bytes(head[offset : offset + length], "little")
        parts.append(Part(offset, length, meaning if offset == 0 else f"{meaning}: {number:,}"))
    return [*parts, Part(24, size - 24, "metadata, tensors, data")] if size > 24 else parts
