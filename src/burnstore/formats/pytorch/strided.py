"""StridedData: tensors whose values do not simply lie in the file one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ...tensor.data import Array
from ...tensor.dtype import DType, Kind
from ...tensor.snapshot import CHUNK_BYTES, Data, SourceData
from .storages import ITEM_SIZES
from .tensors import PickledTensor, is_contiguous

_UNITS: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
    16: np.dtype("<c16"),
}


class StridedData:
    """The values of a view in row-major order, little-endian, with torch's lazy bits applied.

    Of the storage only the stretch is read that the rows asked for reach.
    """

    __slots__ = ("big_endian", "storage", "tensor")

    def __init__(self, tensor: PickledTensor, storage: Data, *, big_endian: bool = False) -> None:
        self.tensor = tensor
        self.storage = storage
        self.big_endian = big_endian

    @property
    def file(self) -> str | None:
        return self.storage.file

    def window(self, start: int, stop: int) -> memoryview:
        row_bytes = self._row_bytes()
        if stop <= start or not row_bytes:
            return memoryview(b"")
        first, last = start // row_bytes, -(-stop // row_bytes)
        values = memoryview(self._rows(first, last))
        return values[start - first * row_bytes : stop - first * row_bytes]

    def owned(self, start: int, stop: int) -> Array:
        return np.array(np.frombuffer(self.window(start, stop), np.uint8))

    def permuted(self) -> tuple[SourceData, tuple[int, ...]] | None:
        """Where the values lie one after the other, and in which order of the axes; None if they do not do so."""
        tensor, stored = self.tensor, self.storage
        is_other = self.big_endian or tensor.conjugated or tensor.negated or tensor.dtype in (DType.Bool, DType.F4)
        if is_other or not isinstance(stored, SourceData):
            return None
        axes = range(len(tensor.shape))
        order = tuple(sorted(axes, key=lambda axis: (-tensor.strides[axis], -tensor.shape[axis])))
        if not is_contiguous(
            tuple(tensor.shape[axis] for axis in order), tuple(tensor.strides[axis] for axis in order)
        ):
            return None
        begin = tensor.offset * ITEM_SIZES[tensor.dtype]
        return SourceData(stored.source, stored.offset + begin, tensor.nbytes), order

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        strides = self.tensor.strides
        if strides and strides[0] < max(strides):
            # Columns lie together: some rows reach through most of the storage, which is then read once, not per chunk.
            yield self.window(0, nbytes)
            return
        step = max(CHUNK_BYTES // max(self._row_bytes(), 1), 1) * self._row_bytes()
        for start in range(0, nbytes, step or 1):
            yield self.window(start, min(start + step, nbytes))

    def _row_bytes(self) -> int:
        return math.prod(self.tensor.shape[1:]) * ITEM_SIZES[self.tensor.dtype]

    def _rows(self, first: int, last: int) -> Array:
        """The bytes of these rows."""
        tensor, item = self.tensor, ITEM_SIZES[self.tensor.dtype]
        shape, strides = (tensor.shape, tensor.strides) if tensor.shape else ((1,), (1,))
        begin = tensor.offset + first * strides[0]
        shape = (last - first, *shape[1:])
        reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
        stored = np.frombuffer(self.storage.window(begin * item, (begin + reach) * item), np.uint8)
        try:
            laid_out: Array = np.lib.stride_tricks.as_strided(
                stored.view(_UNITS[item]), shape, [stride * item for stride in strides], writeable=False
            )
        except ValueError as error:  # more axes than NumPy has
            raise UnsupportedError(f"NumPy has no array of shape {list(shape)}: {error}", rule="PT-21") from error
        values: Array = np.array(laid_out, order="C").reshape(-1)  # the caller's own, also where it could be shared
        return self._settled(values).view(np.uint8)

    def _settled(self, values: Array) -> Array:
        """The values as they count: byte order, bools that are 0 or 1, and torch's lazy bits."""
        tensor = self.tensor
        halves = tensor.dtype.bits // 16 if tensor.dtype.kind is Kind.COMPLEX else ITEM_SIZES[tensor.dtype]
        if self.big_endian and halves > 1:
            values = values.view(np.uint8).reshape(-1, halves)[:, ::-1].reshape(-1)
        if tensor.dtype is DType.Bool:
            true: Array = values != 0
            return true.view(np.uint8)
        if tensor.conjugated or tensor.negated:
            # Only the sign bits change: NaNs keep theirs payload and all other bits.
            signs = np.array(values.view(np.uint8)).reshape(-1, halves)
            if tensor.negated and tensor.dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
                raise UnsupportedError(f"a negated view of {tensor.dtype.name}", rule="PT-22")
            if tensor.conjugated and tensor.dtype.kind is Kind.COMPLEX:
                signs[1::2, -1] ^= 0x80
            if tensor.negated:
                signs[:, -1] ^= 0x80
            return signs.reshape(-1)
        return values
