"""What every format gives and takes: contents when read, a plan when written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..io.gather import Column
from ..io.source import Source
from ..limits import Limits
from ..tensor.data import Shape
from ..tensor.dtype import DType
from ..tensor.snapshot import Data, SourceData, TensorSnapshot

LAYOUT_KEY = "burnstore.layout"
"""Where a file's metadata says whose layout its tensors have (``burn``, ``torch``), if not the format's own."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """The dtypes and shapes of a table, each pair once, and which of them each row is of.

    Most tensors of a model are of the dtype and shape of others: what follows from it is worked out once for all.
    """

    pairs: Sequence[tuple[DType, Shape]]
    which: Column

    def first_of(self, kind: int) -> int:
        """The first row of a kind."""
        return int((self.which == kind).argmax())


@dataclass(frozen=True, slots=True)
class Table:
    """The tensors of a file in the order of their data, as columns: so whole files are handled at once."""

    names: list[str]
    dtypes: list[DType]
    shapes: list[Shape]
    offsets: list[int]
    sizes: list[int]
    param_ids: list[int | None]
    apart: Mapping[int, Data] = field(default_factory=dict)
    """The rows whose bytes do not lie in the source as they are, and what gives them instead."""
    known_kinds: Kinds | None = field(default=None, repr=False, compare=False)
    """What `kinds` would find, where the reader has found it already."""

    def kinds(self) -> Kinds:
        """Which rows are of the same dtype and shape."""
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
        """These rows only, in this order."""
        apart = {place: self.apart[row] for place, row in enumerate(rows) if row in self.apart} if self.apart else {}
        columns = [[column[row] for row in rows] for column in self._columns()]
        return Table(*columns, apart=apart)  # type: ignore[misc, arg-type]  # as many columns as the table has

    def lying_plainly(self) -> Table:
        """The rows whose bytes lie in the source as they are."""
        return self.picked([row for row in range(len(self.names)) if row not in self.apart]) if self.apart else self

    def alignments(self) -> list[int]:
        """What the address of each tensor should be a multiple of."""
        widths = {dtype: min(dtype.bits // 8, 8) or 1 for dtype in set(self.dtypes)}
        return list(map(widths.__getitem__, self.dtypes))

    def _columns(self) -> tuple[list[Any], ...]:
        return self.names, self.dtypes, self.shapes, self.offsets, self.sizes, self.param_ids

    def snapshot(self, row: int, source: Source) -> TensorSnapshot:
        """One row as a snapshot."""
        size = self.sizes[row]
        return TensorSnapshot(
            self.names[row],
            self.dtypes[row],
            self.shapes[row],
            self.apart.get(row) or SourceData(source, self.offsets[row], size),
            nbytes=size,
            param_id=self.param_ids[row],
        )


@dataclass(frozen=True, slots=True)
class Contents:
    """What a format found in a file, before any tensor is read."""

    table: Table
    metadata: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    layout: str | None = None
    data_offset: int = 0
    constants: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    """Where the table's offsets lead, if not into the file itself: into what was unpacked from it."""
    file_size: int | None = None
    """The bytes of all files together, where there are several."""
    notes: Sequence[str] = ()
    """What a user should know about how the tensors were found, a sentence each."""
    shared: Sequence[tuple[str, ...]] = ()
    """The names of tensors that are views on one storage, for each storage with more than one."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A file to be: its first bytes, then each tensor at its offset; what lies between is zeros."""

    header: bytes
    tensors: Sequence[TensorSnapshot]
    offsets: Sequence[int]
    size: int


class Check(Protocol):
    """Something in a file that neither opening it nor reading its tensors looks at; can be pickled."""

    @property
    def nbytes(self) -> int:
        """How many bytes of the file it reads."""

    def __call__(self) -> str | None:
        """Look at it: a FormatError where it breaks a rule, a sentence where it is only odd, None where it is right."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a file's bytes, and what they are."""

    offset: int
    nbytes: int
    meaning: str


class Format(Protocol):
    """A format: reads contents out of a source and plans files. Stateless; one object serves all files.

    Optional: ``layout``, the one that a model is written in unless the caller wants another; ``stamp(layout,
    **options)``, the texts that its own writer puts beside a model's tensors; ``said_layout(texts)``, the layout that a
    file with these texts claims; ``checks(source, contents, limits)``, what else of a file can be checked;
    ``anatomy(head, size)``, what the first bytes of a file of this size are, also of one that breaks the rules.
    """

    name: str

    def read(self, source: Source, limits: Limits, **options: Any) -> Contents:
        """The contents of a source that this format's signature matched; raises FormatError for all else."""

    def plan(
        self, tensors: Sequence[TensorSnapshot], metadata: Mapping[str, str] | None, limits: Limits, **options: Any
    ) -> WritePlan:
        """The file that will hold these tensors in this order; nothing is read or written yet."""
