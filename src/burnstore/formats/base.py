"""The contract between burnstore and a format: contents when a file is read, a plan when one is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ..errors import CorruptError, DTypeError, FormatError, Ways, printable
from ..io.gather import Column
from ..io.source import Source
from ..io.workers import Workers
from ..limits import Limits
from ..progress import Progress
from ..tensor.data import Shape
from ..tensor.dtype import DType, Kind
from ..tensor.facts import Facts, Piece, PieceData
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import Data, SourceData

UNSTATED_LAYOUT = "unknown"
"""The value of `LAYOUT_KEY` in a file whose tensors have no stated layout."""

LAYOUT_KEY = "burnstore.layout"
"""The metadata key that states the layout of a file's tensors (``burn``, ``torch``), if not the format's own.

A format without metadata may store it as a record of its own, see `StatesLayout`.
"""

_LAYOUT_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)


def is_layout_name(value: Any) -> bool:
    """Return whether a value can be the name of a layout."""
    return isinstance(value, str) and _LAYOUT_NAME.fullmatch(value) is not None


def layout_record(text: str, rule: str) -> str:
    """Return the layout that a record of a file names; CorruptError if it is no name."""
    if not is_layout_name(text):
        raise CorruptError(f"the record {LAYOUT_KEY} has {printable(text[:80])!r}, not the name of a layout", rule=rule)
    return text


def layout_to_record(metadata: Mapping[str, str] | None, files: str) -> str | None:
    """Return the layout that a format without metadata is to record; FormatError for any other metadata."""
    other = next((key for key in metadata or {} if key != LAYOUT_KEY), None)
    if other is not None:
        raise FormatError(f"{files} has no place for metadata: {other!r}")
    return (metadata or {}).get(LAYOUT_KEY)


def no_dtype(format_name: str, dtype: DType, rule: str | None = None) -> DTypeError:
    """Return the error for a dtype that a format lacks; its hint names a cast, if one works, and formats that have it.

    >>> print(no_dtype("NumPy", DType.C32))
    NumPy has no dtype for C32
      hint: leave it out with filter=, or save PyTorch (.pt), which has it
    """
    if dtype.is_quantized or dtype.is_bool:
        holders = "Burnpack (.bpk)"
    elif dtype.kind is Kind.COMPLEX:
        known = {32: "PyTorch (.pt)", 64: "SafeTensors (.safetensors)"}
        holders = known.get(dtype.bits, "PyTorch (.pt) or NumPy (.npz)")
    elif dtype.bits < 8:
        holders = "SafeTensors (.safetensors)"
    else:
        holders = "SafeTensors (.safetensors) or PyTorch (.pt)"
    save = f"save {holders}, which {'have' if ' or ' in holders else 'has'} it"
    is_castable = dtype.is_quantized or (dtype.is_float and dtype.bits >= 8)
    return DTypeError(
        f"{format_name} has no dtype for {dtype.name}",
        rule=rule,
        hint=Ways('pass cast="f32"' if is_castable else "leave it out with filter=", save, lead=""),
    )


QUANTIZATION_KEY = "burnstore.quantization"
"""The metadata key under which a copy keeps the ``quantization_config`` of its source."""

STAMPS = ("format", "producer", "version")
"""The metadata keys with which writers state what a file is."""


def is_reserved(key: str) -> bool:
    """Return whether a metadata key states something about the file, and so cannot be the name of a tensor."""
    return key in STAMPS or key.startswith("burnstore.")


@dataclass(frozen=True, slots=True)
class Kinds:
    """The distinct pairs of dtype and shape in a table, and the pair of each row.

    Most tensors of a model share dtype and shape with others, so whatever follows from the pair is computed once.
    """

    pairs: Sequence[tuple[DType, Shape]]
    which: Column

    def first_of(self, kind: int) -> int:
        """Return the first row of a kind."""
        return int((self.which == kind).argmax())


@dataclass(frozen=True, slots=True)
class Table:
    """The tensors of a file in the order of their data, as columns: a whole file is then handled by the column."""

    names: list[str]
    dtypes: list[DType]
    shapes: list[Shape]
    offsets: list[int]
    sizes: list[int]
    param_ids: list[int | None]
    apart: Mapping[int, Data] = field(default_factory=dict)
    """The rows whose bytes are not one range of the source, and the data that provides them instead."""
    known_kinds: Kinds | None = field(default=None, repr=False, compare=False)
    """The result of `kinds`, if the reader knows it already."""
    facts: Mapping[int, Facts] = field(default_factory=dict)
    """The facts of the rows that have some: parts of a tensor, numbers that depend on others."""

    def kinds(self) -> Kinds:
        """Group the rows by dtype and shape."""
        if self.known_kinds is not None:
            return self.known_kinds
        count = len(self.names)
        firsts: dict[tuple[DType, Shape], int] = {}
        pairs = zip(self.dtypes, self.shapes, strict=True)
        alike = np.fromiter(map(firsts.setdefault, pairs, range(count)), np.int64, count)
        numbers = np.zeros(count, np.int64)
        numbers[list(firsts.values())] = np.arange(len(firsts))
        return Kinds(list(firsts), numbers[alike])

    def picked(self, rows: Sequence[int]) -> Table:
        """Return a table of these rows, in this order."""
        apart = {place: self.apart[row] for place, row in enumerate(rows) if row in self.apart} if self.apart else {}
        own: tuple[list[Any], ...] = (self.names, self.dtypes, self.shapes, self.offsets, self.sizes, self.param_ids)
        names, dtypes, shapes, offsets, sizes, ids = ([column[row] for row in rows] for column in own)
        facts = {place: self.facts[row] for place, row in enumerate(rows) if row in self.facts} if self.facts else {}
        return Table(names, dtypes, shapes, offsets, sizes, ids, apart, facts=facts)

    def source_rows(self) -> Table:
        """Return the rows whose bytes are one range of the source."""
        return self.picked([row for row in range(len(self.names)) if row not in self.apart]) if self.apart else self

    def alignments(self) -> list[int]:
        """Return the number that the address of each tensor should be a multiple of."""
        widths = {dtype: min(dtype.bits // 8, 8) or 1 for dtype in set(self.dtypes)}
        return list(map(widths.__getitem__, self.dtypes))

    def snapshot(self, row: int, source: Source, layout: str | None = None) -> TensorSnapshot:
        """Return one row as a snapshot."""
        size = self.sizes[row]
        return TensorSnapshot(
            self.names[row],
            self.dtypes[row],
            self.shapes[row],
            self.apart.get(row) or SourceData(source, self.offsets[row], size),
            nbytes=size,
            param_id=self.param_ids[row],
            layout=layout,
            facts=self.facts.get(row) if self.facts else None,
        )


def mark_pieces(table: Table, source: Source, pieces: Mapping[int, Piece]) -> Table:
    """Return a table in which these rows are parts of tensors: they are listed, and not read as whole ones."""
    apart, facts = dict(table.apart), dict(table.facts)
    for row, piece in pieces.items():
        data = apart.get(row) or SourceData(source, table.offsets[row], table.sizes[row])
        apart[row] = PieceData(data, piece)
        facts[row] = Facts(piece, facts[row].scheme) if row in facts else Facts(piece)
    return replace(table, apart=apart, facts=facts)


class ModuleClass(NamedTuple):
    """The class of a saved module as the file names it, and those of its options that its tensors do not show."""

    module: str
    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a format found in a file, before any tensor is read."""

    table: Table
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    scalars: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    layout: str | None = None
    data_offset: int = 0
    constants: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    """The source of the table's offsets, if not the file itself: a decompressed copy, or several files joined."""
    file_size: int | None = None
    """The bytes of all files together, if there are several."""
    notes: Sequence[Note] = ()
    """What a user should know about how the tensors were found, one sentence each."""
    shared: Sequence[tuple[str, ...]] = ()
    """The names of the tensors that are views on one storage, for each storage with more than one."""
    classes: Mapping[str, ModuleClass] = field(default_factory=dict)
    """The class of each module of a model that was saved as an object, by path, outer before inner."""
    model_key: str | None = None
    """The key below which the model's tensors are, which are the ones that a caller gets without ``top_level_key``."""


class Around(Protocol):
    """The bytes around the tensors of a format that stores checksums of them (CRC-32)."""

    def first_crc(self, number: int) -> int:
        """Return the checksum of what belongs to a tensor and precedes its bytes."""

    def after(self, number: int, crcs: Sequence[int]) -> bytes:
        """Return the bytes that follow a tensor, given the checksums of all tensors up to this one."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A file to be written: its first bytes, then each tensor at its offset; ``around`` or zeros in between."""

    header: bytes
    tensors: Sequence[TensorSnapshot]
    offsets: Sequence[int]
    size: int
    around: Around | None = None


class Check(Protocol):
    """A check of bytes that neither opening the file nor reading its tensors looks at; can be pickled."""

    @property
    def nbytes(self) -> int:
        """The number of bytes that the check reads."""

    def __call__(self) -> str | None:
        """Run the check: raise FormatError for a broken rule, return a sentence for a warning, None if all is well."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a file's bytes, and their meaning."""

    offset: int
    nbytes: int
    meaning: str


class Format(Protocol):
    """Read contents out of a source and plan files. Stateless: one object serves all files.

    A format may have further abilities: `ModelLayout`, `StampsMetadata`, `StatesLayout`, `HasChecks`,
    `DescribesHeader`, `Shardable`, `WritesFolder`, `HoldsTies`, `HoldsScalars`. Callers ask for them with isinstance.
    """

    name: str

    def read(self, source: Source, limits: Limits, **options: Any) -> Contents:
        """Read the contents of a source that this format's signature matched; raise FormatError for any other."""

    def plan(
        self, tensors: Sequence[TensorSnapshot], metadata: Mapping[str, str] | None, limits: Limits, **options: Any
    ) -> WritePlan:
        """Plan the file that will hold these tensors in this order, without reading or writing anything."""


@runtime_checkable
class ModelLayout(Protocol):
    """A format with a layout of its own, in which models are written unless the caller asks for another."""

    layout: str | None


@runtime_checkable
class StampsMetadata(Protocol):
    """A format whose own writer stores metadata beside a model's tensors."""

    def stamp(self, layout: str, **options: Any) -> dict[str, str]:
        """Return the metadata that the format's own writer stores beside a model of this layout."""


def stamped_metadata(format: Format, layout: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that the format's own writer would store, empty if it stores none."""
    return format.stamp(layout, **options) if isinstance(format, StampsMetadata) else {}


@runtime_checkable
class StatesLayout(Protocol):
    """A format whose files state the layout of their tensors: in the metadata, or in a record of their own.

    A format without metadata (``holds_metadata = False``) with this ability writes a record for the metadata that has
    `LAYOUT_KEY` and nothing else.
    """

    def stated_layout(self, metadata: Mapping[str, str]) -> str | None:
        """Return the layout that this metadata states, None if it states none."""


def stated_layout(format: Format, metadata: Mapping[str, str]) -> str | None:
    """Return the layout that a file with this metadata states, None if it states none."""
    stated = format.stated_layout(metadata) if isinstance(format, StatesLayout) else None
    if stated is None:
        stated = metadata.get(LAYOUT_KEY) or (format.layout if isinstance(format, ModelLayout) else None)
    return None if stated == UNSTATED_LAYOUT else stated


def can_state_layouts(format: Format) -> bool:
    """Return whether files of a format can state any layout; the others have the layout of the format, or none."""
    return isinstance(format, StatesLayout) or supports_metadata(format)


@runtime_checkable
class HasChecks(Protocol):
    """A format with bytes to check beyond the header and the tensors: padding, checksums."""

    def checks(self, source: Source, contents: Contents, limits: Limits) -> Sequence[Check]:
        """Return the checks of one file."""


@runtime_checkable
class DescribesHeader(Protocol):
    """A format that can explain a file's first bytes, also those of a file that breaks the rules."""

    def describe_header(self, head: bytes, size: int) -> list[Part]:
        """Name the parts of a file of this size that begins with these bytes."""


@runtime_checkable
class Shardable(Protocol):
    """A format whose tensors can be split over several files with an index beside them."""

    index_suffix: str


def supports_metadata(format: Format) -> bool:
    """Return whether a format has a place for metadata; a format without one sets ``holds_metadata = False``."""
    return bool(getattr(format, "holds_metadata", True))


@runtime_checkable
class RoundsValues(Protocol):
    """A format with options that round values as they are written."""

    def losses(self, tensors: Sequence[TensorSnapshot], **options: Any) -> list[Note]:
        """Return what writing these tensors with these options rounds, a sentence each."""


def loss_notes(format: Format, tensors: Sequence[TensorSnapshot], options: Mapping[str, Any]) -> list[Note]:
    """Return what a format rounds when it writes these tensors with these options, a sentence each."""
    return format.losses(tensors, **options) if options and isinstance(format, RoundsValues) else []


@runtime_checkable
class HoldsTies(Protocol):
    """A format that stores a tensor once under several names: its ``plan`` takes ``ties={name: stored name}``."""

    holds_ties: bool


@runtime_checkable
class HoldsScalars(Protocol):
    """A format that stores named numbers beside the tensors: its ``plan`` takes ``scalars=``."""

    holds_scalars: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How files are written: nothing here changes the values in them."""

    overwrite: bool = False
    durable: bool = True
    verify: bool = True
    """Whether every tensor is read back and compared before the file gets its name."""

    digests: bool = False
    """Whether the SHA-256 of each tensor is wanted, which needs ``verify``."""

    expected: Mapping[str, str] | None = None
    """The SHA-256 that each tensor must have, by its name."""

    max_shard_size: int | str | None = None
    resume: bool | None = None
    """Whether a save into shards continues an interrupted one; None keeps no journal of it."""

    workers: Workers = None
    in_order: bool = False
    """Whether this thread writes the file from front to back, as for the tensors of a model: a GPU's are fetched in
    that order, and functions that make tensors need not be safe in threads. Needs ``verify=False``."""

    limits: Limits | None = None
    progress: Progress | None = None
    format_options: Mapping[str, Any] = field(default_factory=dict)
    """The options that the format's own plan takes."""

    @property
    def bounds(self) -> Limits:
        """The limits, those of the library if none were given."""
        return self.limits or Limits()


class WriteOne(Protocol):
    """How a planned file is written."""

    def __call__(self, plan: WritePlan, path: str, *, overwrite: bool, progress: Progress | None) -> None: ...


@runtime_checkable
class WritesFolder(Protocol):
    """A format whose checkpoints are folders: files of data, and one that makes them a checkpoint, which comes last."""

    def save_folder(
        self,
        tensors: Sequence[TensorSnapshot],
        path: str,
        how: WriteOptions,
        write: WriteOne,
        prove: Callable[[str], None] | None = None,
    ) -> list[str]:
        """Save tensors into a folder, all or nothing; return the files, the one that was published last first.

        ``prove`` gets the path of that file before it has its name, and raises if what was written is wrong.
        """
