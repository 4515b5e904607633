"""Read a distributed checkpoint: the pieces of all files as one table of whole tensors."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import (
    BurnstoreError,
    CorruptError,
    ReadError,
    UnsafeContentError,
    UnsupportedError,
    counted,
    located,
    printable,
)
from ...io.paths import base_name, folder_of, names_in, sibling
from ...io.source import InFolder, JoinedSource, RangeSource, Source
from ...limits import Limits
from ...tensor.data import Array, Shape
from ...tensor.dtype import DType
from ...tensor.facts import Facts, Piece, PieceData
from ...tensor.note import Note
from ...tensor.sources import AxisSlice, Data, SourceData
from ..base import Check, Contents, Table
from ..pieces import Box, assemble
from ..pytorch.archive import ZipFile, read_zip
from ..pytorch.data import StridedData, check_member
from ..pytorch.graph import MODEL_KEYS
from ..pytorch.tensors import PickledTensor, shape_in_values
from .metadata import ChunkedTensor, DcpMetadata, Stored, plain_value, read_metadata

SUFFIX = ".distcp"
OF_RANK = re.compile(r"__([0-9]{1,9})\.metadata")
_DATA_OF_RANK = re.compile(r"__([0-9]{1,9})_[0-9]+\.distcp")
_MOST_FILES = 100_000
_MOST_SHOWN = 12
_MOST_OBJECT_BYTES = 64 << 10
_MEGATRON = "Megatron stores it in another shape, and which of its elements are padding is not known here"


def read(source: Source, limits: Limits) -> Contents:
    """Read the contents of a checkpoint by its ``.metadata``."""
    limits = limits.or_defaults(header_bytes=256 << 20, tensors=1_000_000)
    if not isinstance(source, InFolder):
        raise UnsafeContentError(
            "metadata in memory is in no folder, so the files of the checkpoint cannot be found", path=source.name
        )
    every = list(_metadata_of_ranks(source, limits))
    files = {place.file: None for metadata in every for place in _places(metadata)}
    if len(files) > _MOST_FILES:
        raise UnsupportedError(f"{len(files)} files, more than {_MOST_FILES}", rule="DC-05")
    parts: list[InFolder] = []
    try:
        for name in files:
            parts.append(_opened(source, name))
        joined = JoinedSource(source.name, parts)
        bases = dict(zip(files, joined.bases, strict=True))
        _check_places(every, {name: part.size for name, part in zip(files, parts, strict=True)})
        return _contents(source, every, joined, bases, limits)
    except BaseException:
        for part in parts:
            part.close()
        raise


def _metadata_of_ranks(source: InFolder, limits: Limits) -> Iterator[DcpMetadata]:
    """Yield the metadata; without collectives each rank wrote its own, and all of them are read together."""
    yield read_metadata(source, limits)
    folder, name = folder_of(source.name), base_name(source.name)
    if OF_RANK.fullmatch(name) is None:
        return
    names = names_in(folder or os.curdir)
    ranks = {int(match[1]): match[0] for match in map(OF_RANK.fullmatch, names) if match}
    with_data = {int(match[1]) for match in map(_DATA_OF_RANK.fullmatch, names) if match}
    expected = with_data | set(range(max(ranks) + 1)) if len(ranks) <= max(ranks) else with_data
    missing = sorted(expected - set(ranks))
    if missing:
        raise CorruptError(f"the metadata of rank {missing[0]} is missing", rule="DC-05")
    for other in ranks.values():
        if other != name:
            opened = sibling(source, other)
            try:
                with located(path=opened.name):
                    yield read_metadata(opened, limits)
            finally:
                opened.close()


def _places(metadata: DcpMetadata) -> Iterator[Stored]:
    yield from metadata.objects.values()
    for tensor in metadata.tensors.values():
        yield from (place for _, _, place in tensor.chunks if place is not None)


def _opened(source: InFolder, name: str) -> InFolder:
    with located(rule="DC-05"):
        try:
            return sibling(source, name)
        except FileNotFoundError:
            raise CorruptError(f"the file {printable(name)} is missing", path=source.name) from None
        except (ReadError, UnsafeContentError):
            raise
        except OSError as error:
            raise ReadError(f"{printable(name)} cannot be opened: {error.strerror}", path=source.name) from error


def _check_places(every: Sequence[DcpMetadata], sizes: Mapping[str, int]) -> None:
    """Check that each entry is inside of its file, and that no two share bytes (DC-05)."""
    places = [place for metadata in every for place in _places(metadata)]
    for place in places:
        if place.offset + place.length > sizes[place.file]:
            raise CorruptError(
                f"an entry of {place.length} bytes at {place.offset} of {printable(place.file)}, which has "
                f"{sizes[place.file]} bytes",
                rule="DC-05",
            )
    ordered = sorted((place.file, place.offset, place.length) for place in places)
    for (file, offset, length), (other, begin, _) in itertools.pairwise(ordered):
        if file == other and offset + length > begin:
            raise CorruptError(f"two entries share the byte {begin} of {printable(file)}", rule="DC-05")


def _contents(
    source: InFolder,
    every: Sequence[DcpMetadata],
    joined: JoinedSource,
    bases: Mapping[str, int],
    limits: Limits,
) -> Contents:
    names = list(dict.fromkeys(name for metadata in every for name in metadata.tensors))
    kinds: list[tuple[DType, Shape]] = []
    apart: dict[int, Data] = {}
    facts: dict[int, Facts] = {}
    for row, name in enumerate(names):
        with located(tensor=name):
            described = [metadata.tensors[name] for metadata in every if name in metadata.tensors]
            dtype, shape, data = _tensor(described, joined, bases, limits)
            own = next((m.reshaped[name] for m in every if name in m.reshaped), None)
            if own is not None and own != shape:
                piece = Piece(own or None, None, _MEGATRON, "convert the checkpoint with Megatron's own tools")
                data, facts[row] = PieceData(data, piece), Facts(piece)
            kinds.append((dtype, shape))
            apart[row] = data
    dtypes, shapes = [dtype for dtype, _ in kinds], [shape for _, shape in kinds]
    sizes = [dtype.nbytes(shape) for dtype, shape in kinds]
    table = Table(names, dtypes, shapes, [0] * len(names), sizes, [None] * len(names), apart, facts=facts)
    size = source.size + sum(part.size for part in joined.parts)
    notes = [*(note for metadata in every for note in metadata.notes), *_object_notes(every, joined, bases, limits)]
    if any(metadata.is_megatron for metadata in every):
        notes.append(Note("names", "written by Megatron: vocabulary tensors may have padding rows at their end"))
    return Contents(
        table,
        variant=counted(len(joined.parts), "file"),
        layout="torch",
        source=joined,
        file_size=size,
        notes=notes,
        model_key=_model_key(every, names),
    )


def _tensor(
    described: Sequence[ChunkedTensor], joined: JoinedSource, bases: Mapping[str, int], limits: Limits
) -> tuple[DType, Shape, Data]:
    first = described[0]
    for other in described[1:]:
        if (other.dtype, other.shape) != (first.dtype, first.shape):
            raise CorruptError(
                f"one rank has {first.dtype.name} {list(first.shape)}, another {other.dtype.name} {list(other.shape)}",
                rule="DC-03",
            )
    if first.dtype.nbytes(first.shape) > limits.tensor_bytes:
        raise UnsupportedError(f"{first.dtype.nbytes(first.shape)} bytes, more than the limit of {limits.tensor_bytes}")
    boxes = []
    for offset, shape, place in (chunk for tensor in described for chunk in tensor.chunks):
        if place is None:
            if 0 in shape:
                continue
            raise CorruptError(f"no file has the piece of {list(shape)} at {list(offset)}", rule="DC-04")
        nbytes = first.dtype.nbytes(shape)
        if nbytes > place.length:
            raise CorruptError(
                f"the piece at {list(offset)} needs {nbytes} bytes, {printable(place.file)} has {place.length} for it",
                rule="DC-05",
            )
        data = SavedTensorData(joined, bases[place.file] + place.offset, place.length, first.dtype, shape)
        boxes.append(Box(offset, shape, data, place.file, is_replica=len(described) > 1))
    return first.dtype, first.shape, assemble(first.dtype, first.shape, boxes)


@dataclass(slots=True, eq=False)
class SavedTensorData(Data):
    """The values of a tensor that ``torch.save`` wrote into a range of a file; the zip there is read when needed.

    Opening a checkpoint would otherwise read two places of each piece, and a checkpoint has many pieces.
    """

    source: Source
    offset: int
    length: int
    dtype: DType
    shape: Shape
    _resolved: Data | None = field(default=None, repr=False)

    in_source = True

    @property
    def file(self) -> str | None:
        return self.source.place_of(self.offset)[0] if isinstance(self.source, JoinedSource) else self.source.name

    @property
    def streams(self) -> bool:
        return self.resolved.streams

    @property
    def resolved(self) -> Data:
        """The values, once the zip around them was read and compared with the metadata (DC-07)."""
        if self._resolved is None:
            with located(path=self.file, rule="DC-07"):
                self._resolved = self._resolve()
        return self._resolved

    def _resolve(self) -> Data:
        archive = ZipFile(RangeSource(self.source, self.offset, self.length), Limits())
        file = read_zip(archive, Limits(), checksums=False)
        tensor = file.value
        if not isinstance(tensor, PickledTensor) or tensor.storage is None:
            raise CorruptError("the entry is not a tensor, as the metadata states")
        if tensor.dtype is not self.dtype or shape_in_values(tensor) != self.shape:
            raise CorruptError(
                f"the entry is {tensor.dtype.name} {list(tensor.shape)}, the metadata states {self.dtype.name} "
                f"{list(self.shape)}"
            )
        if tensor.storage.nbytes != tensor.nbytes:
            raise CorruptError(f"the entry stores {tensor.storage.nbytes} bytes for {tensor.nbytes}")
        storage = tensor.storage.data
        if storage is None:
            storage = SourceData(self.source, self.offset + tensor.storage.offset, tensor.storage.nbytes)
            if tensor.is_plain and not tensor.conjugated and not tensor.negated:
                return storage
        return StridedData(tensor, storage, big_endian=file.big_endian)

    def window(self, start: int, stop: int) -> memoryview:
        return self.resolved.window(start, stop)

    def owned(self, start: int, stop: int) -> Array:
        return self.resolved.owned(start, stop)

    def fill(self, buffer: Array) -> None:
        self.resolved.fill(buffer)

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        return self.resolved.chunks(nbytes)

    def range(self, start: int, nbytes: int) -> Data:
        return self.resolved.range(start, nbytes)

    def _sliced(self, part: AxisSlice) -> Data:
        return self.resolved.sliced(part)

    def permuted(self) -> tuple[SourceData, tuple[int, ...]] | None:
        return self.resolved.permuted()


def _object_notes(
    every: Sequence[DcpMetadata], joined: JoinedSource, bases: Mapping[str, int], limits: Limits
) -> list[Note]:
    """Return a note with the entries that are not tensors; small plain values are shown, nothing is run (DC-08)."""
    objects = {name: place for metadata in every for name, place in metadata.objects.items()}
    if not objects:
        return []
    shown = []
    for name, place in list(objects.items())[:_MOST_SHOWN]:
        value = None
        if place.length <= _MOST_OBJECT_BYTES:
            inner = RangeSource(joined, bases[place.file] + place.offset, place.length)
            try:
                value = plain_value(read_zip(ZipFile(inner, limits), limits, checksums=False).value)
            except BurnstoreError:
                value = "not readable"
        shown.append(printable(name) + (f" = {value}" if value is not None else ""))
    more = f" and {len(objects) - _MOST_SHOWN} more" if len(objects) > _MOST_SHOWN else ""
    return [Note("metadata", f"left out, as they are not tensors: {', '.join(shown)}{more}")]


def _model_key(every: Sequence[DcpMetadata], names: Sequence[str]) -> str | None:
    """Return the key below which the model is: one of the usual ones, at the top or below a single other key."""
    paths = [next((m.paths[name] for m in every if name in m.paths), tuple(name.split("."))) for name in names]
    firsts = list(dict.fromkeys(path[0] for path in paths if len(path) > 1))
    found = [key for key in firsts if key in MODEL_KEYS]
    if len(found) == 1 and isinstance(found[0], str) and len(firsts) > 1:
        return found[0]
    if len(firsts) == 1 and isinstance(firsts[0], str) and all(len(path) > 2 for path in paths):
        inner = list(dict.fromkeys(path[1] for path in paths))
        found = [key for key in inner if key in MODEL_KEYS]
        if len(found) == 1 and isinstance(found[0], str) and len(inner) > 1:
            return f"{firsts[0]}.{found[0]}"
    return None


@dataclass(frozen=True, slots=True)
class EntryCheck:
    """The checksums of the members of one entry, which is a zip of its own."""

    source: Source
    name: str
    offset: int
    nbytes: int

    def __call__(self) -> str | None:
        inner = RangeSource(self.source, self.offset, self.nbytes)
        try:
            with located(path=self.name):
                archive = ZipFile(inner, Limits())
                for member in archive.directory.members():
                    if member.crc:
                        check_member(inner, member)
        except BurnstoreError as error:
            error.offset = self.offset + (error.offset or 0)
            raise
        return None


def checks(source: Source, contents: Contents, limits: Limits) -> Sequence[Check]:
    """Return a check for each piece: the checksums that its zip states."""
    found: list[Check] = []
    for data in contents.table.apart.values():
        for piece in _pieces(data):
            if isinstance(piece.source, JoinedSource):
                part, at = piece.source.part_at(piece.offset, piece.length)
                found.append(EntryCheck(part, part.name, at, piece.length))
    return found


def _pieces(data: Data) -> Iterator[SavedTensorData]:
    if isinstance(data, SavedTensorData):
        yield data
    for inner in data.inner:
        yield from _pieces(inner)
