"""What every format gives and takes: contents when read, a plan when written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..dtype import DType
from ..io.source import Source
from ..limits import Limits
from ..snapshot import SourceData, TensorSnapshot
from ..tensor_data import Shape


@dataclass(frozen=True, slots=True)
class Table:
    """The tensors of a file in the order of their data, as columns: so whole files are handled at once."""

    names: list[str]
    dtypes: list[DType]
    shapes: list[Shape]
    offsets: list[int]
    sizes: list[int]
    param_ids: list[int | None]

    def picked(self, rows: Sequence[int]) -> Table:
        """These rows only, in this order."""
        return Table(*([column[row] for row in rows] for column in self._columns()))

    def _columns(self) -> tuple[list[Any], ...]:
        return self.names, self.dtypes, self.shapes, self.offsets, self.sizes, self.param_ids

    def snapshot(self, row: int, source: Source) -> TensorSnapshot:
        """One row as a snapshot."""
        size = self.sizes[row]
        return TensorSnapshot(
            self.names[row],
            self.dtypes[row],
            self.shapes[row],
            SourceData(source, self.offsets[row], size),
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


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A file to be: its first bytes, then each tensor at its offset; what lies between is zeros."""

    header: bytes
    tensors: Sequence[TensorSnapshot]
    offsets: Sequence[int]
    size: int


class Format(Protocol):
    """A format: reads contents out of a source and plans files. Stateless; one object serves all files."""

    name: str

    def read(self, source: Source, limits: Limits, **options: Any) -> Contents:
        """The contents of a source that this format's signature matched; raises FormatError for all else."""

    def plan(
        self, tensors: Sequence[TensorSnapshot], metadata: Mapping[str, str] | None, limits: Limits, **options: Any
    ) -> WritePlan:
        """The file that will hold these tensors in this order; nothing is read or written yet."""
