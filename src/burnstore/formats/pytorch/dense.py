"""Sparse and quantized tensors as the plain values that they stand for, worked out when they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import CorruptError, LimitError, UnsupportedError
from ...tensor.data import Array, Shape, array_from_bytes, bytes_of_array
from ...tensor.dtype import DType
from ...tensor.snapshot import Data
from .tensors import MOST_EXPANDED, CompositeTensor, PickledTensor

Parts = Mapping[str, Array]


class DenseData:
    """The values of a composite tensor; its parts are read each time they are asked for."""

    __slots__ = ("composite", "parts")

    def __init__(self, composite: CompositeTensor, parts: Mapping[str, Data]) -> None:
        self.composite = composite
        self.parts = parts

    @property
    def file(self) -> str | None:
        return next((part.file for part in self.parts.values() if part.file is not None), None)

    def window(self, start: int, stop: int) -> memoryview:
        arrays = {name: self._array(name) for name in self.composite.parts}
        return bytes_of_array(_METHODS[self.composite.kind](arrays, self.composite))[start:stop]

    def owned(self, start: int, stop: int) -> Array:
        return np.array(np.frombuffer(self.window(start, stop), np.uint8))

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.window(0, nbytes)

    def _array(self, name: str) -> Array:
        part = self.composite.parts[name]
        if not isinstance(part, PickledTensor):
            return np.asarray(part)
        return array_from_bytes(self.parts[name].window(0, part.nbytes), part.dtype, part.shape)


def dense_kind(composite: CompositeTensor) -> tuple[DType, Shape] | None:
    """The dtype and shape that the values have, None where they cannot be worked out."""
    if composite.kind not in _METHODS:
        return None
    shape: Shape = composite.facts["shape"]
    values = composite.parts["values" if composite.kind != "quantized" else "int_repr"]
    dtype = DType.F32 if composite.kind == "quantized" else _dtype_of(values)
    if math.prod(shape) * dtype.bits // 8 > MOST_EXPANDED:
        raise LimitError(
            f"{math.prod(shape) * dtype.bits // 8} bytes of values of a {composite.kind} tensor", rule="PT-21"
        )
    return dtype, shape


def _dtype_of(part: Any) -> DType:
    return part.dtype if isinstance(part, PickledTensor) else DType.of(part.dtype)


def _quantized(parts: Parts, composite: CompositeTensor) -> Array:
    codes, scale, zero = parts["int_repr"], parts["scale"], parts["zero_point"]
    if "axis" in composite.facts:
        along = [1] * codes.ndim
        along[composite.facts["axis"]] = -1
        scale, zero = scale.reshape(along), zero.reshape(along)
        if zero.dtype.kind == "f":  # torch's float_qparams: the zero point is a value, not a code
            return (codes.astype(np.float32) * scale.astype(np.float32) + zero.astype(np.float32)).astype(np.float32)
    # In singles, as torch reckons.
    return (codes.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)


def _zeros(parts: Parts, composite: CompositeTensor) -> Array:
    return np.zeros(composite.facts["shape"], parts["values"].dtype)


def _coo(parts: Parts, composite: CompositeTensor) -> Array:
    indices, values, made = parts["indices"], parts["values"], _zeros(parts, composite)
    if indices.ndim != 2 or values.ndim < 1 or indices.shape[1] != values.shape[0]:
        raise CorruptError("a sparse tensor with another number of indices than values", rule="PT-22")
    axes = indices.shape[0]
    if made.ndim != axes + values.ndim - 1 or made.shape[axes:] != values.shape[1:]:
        raise CorruptError("a sparse tensor whose values do not fit its size", rule="PT-22")
    if axes and ((indices < 0).any() or (indices >= np.array(made.shape[:axes]).reshape(-1, 1)).any()):
        raise CorruptError("a sparse tensor with an index outside of its size", rule="PT-22")
    if made.dtype.kind == "b":
        np.logical_or.at(made, tuple(indices), values)
    else:
        np.add.at(made, tuple(indices), values)  # an index may come more than once: its values add up
    return made


def _compressed(parts: Parts, composite: CompositeTensor) -> Array:
    """By rows or by columns (csr, csc), or by blocks of them (bsr, bsc)."""
    values, made = parts["values"], _zeros(parts, composite)
    by_rows = composite.kind in ("sparse_csr", "sparse_bsr")
    along, across = (parts[name] for name in list(composite.parts)[:2])
    block = values.shape[1:] if composite.kind in ("sparse_bsr", "sparse_bsc") else ()
    if (
        made.ndim != 2
        or along.ndim != 1
        or across.ndim != 1
        or len(block) not in (0, 2)
        or values.ndim != 1 + len(block)
    ):
        raise UnsupportedError(f"a {composite.kind} tensor that is not one matrix", rule="PT-22")
    height, width = block or (1, 1)
    counts = np.diff(along)
    rows, columns = made.shape[0] // height if height else 0, made.shape[1] // width if width else 0
    lines = rows if by_rows else columns
    good = len(along) == lines + 1 and along[0] == 0 and along[-1] == len(across) == len(values) and (counts >= 0).all()
    if not good or (across < 0).any() or (across >= (columns if by_rows else rows)).any():
        raise CorruptError("a sparse tensor whose indices do not fit its size", rule="PT-22")
    line = np.repeat(np.arange(lines), counts)
    row, column = (line, across) if by_rows else (across, line)
    tiles = made.reshape(rows, height, columns, width)
    tiles[row, :, column, :] = values.reshape(-1, height, width)
    return made


_METHODS: dict[str, Callable[[Parts, CompositeTensor], Array]] = {
    "quantized": _quantized,
    "sparse_coo": _coo,
    **dict.fromkeys(("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"), _compressed),
}
