"""From named tensors to the rows of a table: which bytes of the file each one is, or what computes its values."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import CorruptError, DuplicateNameError, LimitError, located, printable
from ...io.source import Source
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.facts import Piece
from ...tensor.sources import Data, SourceData
from ..base import LAYOUT_KEY, Contents, Table, layout_record, mark_pieces
from .calls import NumpyArray
from .data import DenseData, PickledArray, StridedData, UnsavedData, dense_kind, is_sparse
from .graph import Found
from .stream import MAX_TENSORS, PickledFile
from .tensors import ITEM_SIZES, MAX_EXPANDED, CompositeTensor, PickledTensor, PlacedTensor, Storage, shape_in_values

# How many times the size of a file its tensors may have in all: views that repeat elements, and all names together.
_MAX_EXPANSION, _MAX_SHARING = 16, 1024
_VARIANTS = {
    "zip": "zip",
    "script": "TorchScript",
    "exported": "exported program",
    "legacy": "legacy stream",
    "tar": "tar",
    "pickle": "bare pickle",
}


class Rows:
    """A table in the making."""

    def __init__(self, file: PickledFile, source: Source, limits: Limits) -> None:
        self._file = file
        self._source = source
        self._limits = limits
        self._rows: list[tuple[str, DType, Shape, int, int, Storage | None]] = []
        self._computed: dict[int, Data] = {}
        self._pieces: dict[int, Piece] = {}
        self._dense_bytes = 0
        self._sparse: list[tuple[str, DenseData]] = []
        self._geometries: dict[tuple[DType, Shape, Shape], tuple[int, bool, Shape, int]] = {}

    def add(self, tensors: dict[str, Any], *, dense: bool) -> None:
        """Add rows for these tensors in their order; composites as their parts, or as their plain values."""
        most = self._limits.tensors if self._limits.tensors is not None else MAX_TENSORS
        if len(tensors) > most:
            raise LimitError(f"{len(tensors)} tensors, more than the limit of {most}", rule="PT-17")
        longest = self._limits.name_bytes
        long = [name for name in tensors if len(name) * 4 > longest]
        if any(len(name.encode("utf-8", "replace")) > longest for name in long):
            raise LimitError(f"a name of more than {longest} bytes", rule="PT-24")
        for name, leaf in tensors.items():
            if isinstance(leaf, PickledTensor):
                if isinstance(leaf, PlacedTensor):
                    self._pieces[len(self._rows)] = leaf.piece
                self._add_tensor(name, leaf)
            elif isinstance(leaf, CompositeTensor):
                self._add_composite(name, leaf, dense=dense)
            else:
                with located(tensor=name):
                    self._add_array(name, leaf.array if isinstance(leaf, NumpyArray) else leaf)

    def _add_tensor(self, name: str, tensor: PickledTensor) -> None:
        kind = tensor.dtype, tensor.shape, tensor.strides
        geometry = self._geometries.get(kind)
        if geometry is None:
            with located(tensor=name):
                geometry = self._geometries[kind] = self._geometry(tensor)
        size, plain, shape, item = geometry
        storage = tensor.storage
        offset = -1 if storage is None else storage.offset
        if not plain or offset < 0 or tensor.conjugated or tensor.negated:
            self._computed[len(self._rows)] = self._data(tensor)
        offset = offset + tensor.offset * item if offset >= 0 and size else max(offset, 0)
        self._rows.append((name, tensor.dtype, shape, offset, size, storage))

    def _geometry(self, tensor: PickledTensor) -> tuple[int, bool, Shape, int]:
        size, limits = tensor.nbytes, self._limits
        if size > limits.tensor_bytes:
            raise LimitError(f"{size} bytes, more than the limit of {limits.tensor_bytes}", rule="PT-21")
        if len(tensor.shape) > limits.rank:
            raise LimitError(f"{len(tensor.shape)} axes, more than the limit of {limits.rank}", rule="PT-21")
        return size, tensor.is_plain, shape_in_values(tensor), ITEM_SIZES[tensor.dtype]

    def _data(self, tensor: PickledTensor) -> Data:
        storage = tensor.storage
        if storage is None:
            return UnsavedData()
        stored = storage.data or SourceData(self._source, storage.offset, storage.nbytes)
        return StridedData(tensor, stored, big_endian=self._file.big_endian)

    def _add_composite(self, name: str, composite: CompositeTensor, *, dense: bool) -> None:
        with located(tensor=name):
            kind = dense_kind(composite) if dense else None
        if kind is not None:
            self._add_computed(name, *kind, self._dense(composite))
            self._dense_bytes += self._rows[-1][4]
            return
        if is_sparse(composite):
            self._sparse.append((name, self._dense(composite)))
        for part, value in composite.parts.items():
            if isinstance(value, PickledTensor):
                self._add_tensor(f"{name}.{part}", value)
            elif isinstance(value, CompositeTensor):
                self._add_composite(f"{name}.{part}", value, dense=dense)
            else:
                self._add_array(f"{name}.{part}", value)

    def _dense(self, composite: CompositeTensor) -> DenseData:
        parts = {part: self._data(t) for part, t in composite.parts.items() if isinstance(t, PickledTensor)}
        return DenseData(composite, parts)

    def _add_array(self, name: str, array: Any) -> None:
        self._add_computed(name, DType.of(array.dtype), array.shape, PickledArray(array))

    def _add_computed(self, name: str, dtype: DType, shape: Shape, data: Data) -> None:
        self._computed[len(self._rows)] = data
        self._rows.append((name, dtype, shape, 0, dtype.nbytes(shape), None))

    def contents(self, found: Found) -> Contents:
        """Return the table with all that is known about it."""
        self._check_total()
        columns: list[Any] = [list(column) for column in zip(*self._rows, strict=True)] or [[] for _ in range(6)]
        names, dtypes, shapes, offset_list, sizes, storages = columns
        _check_names(names)
        offsets = np.array(offset_list, np.int64)
        table = Table(names, dtypes, shapes, offset_list, sizes, [None] * len(names), self._computed)
        recorded = self._file.facts.get(LAYOUT_KEY)
        return Contents(
            mark_pieces(table, self._source, self._pieces) if self._pieces else table,
            variant=_VARIANTS[self._file.container],
            metadata=MappingProxyType({} if recorded is None else {LAYOUT_KEY: recorded}),
            layout="torch" if recorded is None else layout_record(recorded, "PT-31"),
            data_offset=int(offsets[offsets > 0].min(initial=self._source.size)) if names else 0,
            notes=tuple(found.notes),
            shared=_shared(names, storages),
            classes=found.classes,
        )

    def sparse(self) -> list[tuple[str, DenseData]]:
        """Return the sparse tensors whose parts are rows."""
        return self._sparse

    def _check_total(self) -> None:
        """Refuse views that repeat their storages, in all, far beyond the size of the file (PT-21)."""
        total, size = sum(row[4] for row in self._rows), self._source.size
        if total <= MAX_EXPANDED + _MAX_EXPANSION * size:
            return
        repeated = self._dense_bytes
        for *_, nbytes, storage in self._rows:
            repeated += max(nbytes - storage.nbytes, 0) if storage is not None else 0
        if repeated > MAX_EXPANDED + _MAX_EXPANSION * size or total > MAX_EXPANDED + _MAX_SHARING * size:
            raise LimitError(f"tensors of {total} bytes on the storages of a file of {size} bytes", rule="PT-21")


def _check_names(names: list[str]) -> None:
    if not "".join(names).isascii():
        for name in names:
            if any("\ud800" <= character <= "\udfff" for character in name):
                raise CorruptError("a name with a lone surrogate is not text", rule="PT-24", tensor=name)
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DuplicateNameError(f"two tensors are called {printable(twice)!r}", rule="PT-24", tensor=twice)


def _shared(names: list[str], storages: list[Storage | None]) -> tuple[tuple[str, ...], ...]:
    """Return the names on each storage that more than one tensor is a view on."""
    if len(set(map(id, storages))) == len(storages):
        return ()
    groups: dict[int, list[str]] = {}
    for name, storage in zip(names, storages, strict=True):
        if storage is not None:
            groups.setdefault(id(storage), []).append(name)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
