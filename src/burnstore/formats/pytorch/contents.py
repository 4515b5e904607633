"""From named tensors to the rows of a table: which bytes of the file each one is, and what else gives its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import CorruptError, DuplicateNameError, LimitError, UnsupportedError, located, printable
from ...io.source import Source
from ...limits import Limits
from ...tensor.data import Array, Shape, bytes_of_array
from ...tensor.dtype import DType
from ...tensor.snapshot import Data, SourceData
from ..base import Contents, Table
from .archive import MOST_TENSORS, PickledFile
from .dense import DenseData, dense_kind
from .graph import Found
from .numpy_calls import NumpyArray
from .storages import ITEM_SIZES, Storage
from .strided import StridedData
from .tensors import CompositeTensor, PickledTensor, shape_in_values

_NAMES = {
    "zip": "zip",
    "script": "TorchScript",
    "exported": "exported program",
    "legacy": "legacy stream",
    "tar": "tar",
    "pickle": "bare pickle",
}


class UnsavedData:
    """The values of a meta tensor: there are none."""

    __slots__ = ()

    file = None

    def window(self, start: int, stop: int) -> memoryview:
        raise UnsupportedError("a tensor on the meta device: its values were never saved", rule="PT-22")

    def owned(self, start: int, stop: int) -> Array:
        raise UnsupportedError("a tensor on the meta device: its values were never saved", rule="PT-22")

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.window(0, nbytes)


class HeldArray:
    """An array that was in the pickle itself; whoever reads it gets a copy."""

    __slots__ = ("array",)

    file = None

    def __init__(self, array: Array) -> None:
        self.array = array

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.owned(start, stop))

    def owned(self, start: int, stop: int) -> Array:
        return np.array(np.frombuffer(bytes_of_array(self.array)[start:stop], np.uint8))

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.window(0, nbytes)


class Rows:
    """A table in the making."""

    def __init__(self, file: PickledFile, source: Source, limits: Limits) -> None:
        self._file = file
        self._source = source
        self._limits = limits
        self._names: list[str] = []
        self._dtypes: list[DType] = []
        self._shapes: list[Shape] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._apart: dict[int, Data] = {}
        self._geometries: dict[tuple[DType, Shape, Shape], tuple[int, bool, Shape, int]] = {}
        self._storages: list[Storage | None] = []

    def add(self, tensors: dict[str, Any], *, dense: bool) -> None:
        """Rows for these tensors in their order; composites as their parts, or as their values."""
        most = self._limits.tensors if self._limits.tensors is not None else MOST_TENSORS
        if len(tensors) > most:
            raise LimitError(f"{len(tensors)} tensors, more than the limit of {most}", rule="PT-17")
        longest = self._limits.name_bytes
        if any(len(name) * 4 > longest and len(name.encode("utf-8", "replace")) > longest for name in tensors):
            raise LimitError(f"a name of more than {longest} bytes", rule="PT-24")
        for name, leaf in tensors.items():
            if type(leaf) is PickledTensor:
                self._add_tensor(name, leaf)
            elif isinstance(leaf, CompositeTensor):
                self._add_composite(name, leaf, dense=dense)
            else:
                with located(tensor=name):
                    self._add_array(name, leaf.array if isinstance(leaf, NumpyArray) else leaf)
        if not "".join(self._names).isascii():
            self._check_text()
        if len(set(self._names)) != len(self._names):
            twice = next(name for name in self._names if self._names.count(name) > 1)
            raise DuplicateNameError(f"two tensors are called {printable(twice)!r}", rule="PT-24", tensor=twice)

    def _check_text(self) -> None:
        for name in self._names:
            try:
                name.encode("utf-8")
            except UnicodeEncodeError:
                raise CorruptError(
                    "a name that is no text: it has half of a character", rule="PT-24", tensor=name
                ) from None

    def _add_tensor(self, name: str, tensor: PickledTensor) -> None:
        kind = tensor.dtype, tensor.shape, tensor.strides
        geometry = self._geometries.get(kind)
        if geometry is None:
            with located(tensor=name):
                geometry = self._geometries[kind] = self._geometry(tensor)
        size, plain, shape, item = geometry
        storage = tensor.storage
        self._storages.append(storage)
        row = len(self._names)
        self._names.append(name)
        self._dtypes.append(tensor.dtype)
        self._shapes.append(shape)
        self._sizes.append(size)
        if storage is None:
            self._offsets.append(0)
            self._apart[row] = UnsavedData()
            return
        offset = storage.offset
        if plain and offset >= 0 and not tensor.conjugated and not tensor.negated:
            self._offsets.append(offset + tensor.offset * item if size else offset)
            return
        self._offsets.append(max(offset, 0))
        self._apart[row] = self._data(tensor)

    def _geometry(self, tensor: PickledTensor) -> tuple[int, bool, Shape, int]:
        size = tensor.nbytes
        if size > self._limits.tensor_bytes:
            raise LimitError(f"{size} bytes, more than the limit of {self._limits.tensor_bytes}", rule="PT-21")
        if len(tensor.shape) > self._limits.rank:
            raise LimitError(f"{len(tensor.shape)} axes, more than the limit of {self._limits.rank}", rule="PT-21")
        return size, tensor.lies_plainly, shape_in_values(tensor), ITEM_SIZES[tensor.dtype]

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
            parts = {part: self._data(t) for part, t in composite.parts.items() if isinstance(t, PickledTensor)}
            self._add_apart(name, *kind, DenseData(composite, parts))
            return
        for part, value in composite.parts.items():
            if isinstance(value, PickledTensor):
                self._add_tensor(f"{name}.{part}", value)
            elif isinstance(value, CompositeTensor):
                self._add_composite(f"{name}.{part}", value, dense=dense)
            else:
                self._add_array(f"{name}.{part}", value)

    def _add_array(self, name: str, array: Any) -> None:
        self._add_apart(name, DType.of(array.dtype), array.shape, HeldArray(array))

    def _add_apart(self, name: str, dtype: DType, shape: Shape, data: Data) -> None:
        self._apart[len(self._names)] = data
        self._storages.append(None)
        self._names.append(name)
        self._dtypes.append(dtype)
        self._shapes.append(shape)
        self._offsets.append(0)
        self._sizes.append(dtype.nbytes(shape))

    def contents(self, found: Found) -> Contents:
        """The table with all that is known about it."""
        count = len(self._names)
        near = np.array(self._offsets, np.int64) if count else np.zeros(1, np.int64)
        table = Table(self._names, self._dtypes, self._shapes, self._offsets, self._sizes, [None] * count, self._apart)
        return Contents(
            table,
            variant=_NAMES[self._file.container],
            layout="torch",
            data_offset=int(near[near > 0].min(initial=self._source.size)) if count else 0,
            notes=tuple(found.notes),
            shared=self._shared(),
        )

    def _shared(self) -> tuple[tuple[str, ...], ...]:
        """The names on each storage that more than one tensor is a view on."""
        if len(set(map(id, self._storages))) == len(self._storages):
            return ()
        groups: dict[int, list[str]] = {}
        for name, storage in zip(self._names, self._storages, strict=True):
            if storage is not None:
                groups.setdefault(id(storage), []).append(name)
        return tuple(tuple(names) for names in groups.values() if len(names) > 1)
