"""The values of a quantized tensor, decoded when they are read; rows at a time where the scheme allows it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ...io.parallel import for_each
from ...tensor.data import Array, Shape, array_from_bytes
from ...tensor.dtype import DType
from ...tensor.facts import DecodedData, Stored
from ...tensor.sources import Data, JoinedData
from .decode import DECODERS, Decoder

_QFLOAT_VALUES = {DType.F8_E4M3: "E4M3", DType.F8_E5M2: "E5M2"}
_LARGEST_BLOCK = 255
_BAND = 1 << 20  # elements that a thread decodes at a time


@dataclass(slots=True, eq=False)
class _PartsData(DecodedData):
    """What is decoded from several tensors of a file."""

    parts: tuple[Stored, ...]

    @property
    def in_source(self) -> bool:
        return all(part.data.in_source for part in self.parts)

    @property
    def inner(self) -> Sequence[Data]:
        return [part.data for part in self.parts]

    @property
    def file(self) -> str | None:
        return self.parts[0].data.file

    @property
    def stored(self) -> Sequence[Stored]:
        return self.parts


@dataclass(slots=True, eq=False)
class QuantizedData(_PartsData):
    """The values of codes and scales. ``options`` are those of the decoder; they can be compared and pickled."""

    scheme: str
    options: tuple[Any, ...]
    dtype: DType
    shape: Shape

    @property
    def decoder(self) -> Decoder:
        """The scheme's decoder."""
        return DECODERS[self.scheme]

    @property
    def streams(self) -> bool:
        return self.decoder.by_rows

    @property
    def identity(self) -> Hashable | None:
        own = tuple(part.data.identity for part in self.parts)
        return None if None in own else (QuantizedData, own, self.scheme, self.options)

    @property
    def row_bytes(self) -> int:
        """The bytes of the values of one row."""
        return math.prod(self.shape[1:]) * self.dtype.bits // 8

    def part(self, number: int) -> Array:
        """Return a part as an array."""
        part = self.parts[number]
        return array_from_bytes(part.data.window(0, part.nbytes), part.dtype, part.shape)

    def part_rows(self, number: int, start: int, stop: int) -> Array:
        """Return some rows of a part."""
        part = self.parts[number]
        row = part.nbytes // part.shape[0] if part.shape[0] else 0
        shape = (stop - start, *part.shape[1:])
        return array_from_bytes(part.data.window(start * row, stop * row), part.dtype, shape)

    def qfloat(self, *, is_transposed: bool) -> tuple[DType, Data] | None:
        from ...tensor.quantization import QuantBlock, QuantScheme, QuantStore  # not at import: few files need it

        value = _QFLOAT_VALUES.get(self.parts[0].dtype)
        if self.scheme != "scaled" or value is None or len(self.parts) != 2 or self.parts[1].dtype is not DType.F32:
            return None
        blocks, is_packed, grid = self.options
        if is_packed or len(self.shape) != 2:
            return None
        codes, scales = self.parts[0].data, self.parts[1].data
        if is_transposed:
            codes = codes.transposed(self.shape[0], self.shape[1], 1)
        block = None
        if math.prod(grid) > 1:
            fits = all(
                extent % size == 0 and size <= _LARGEST_BLOCK for extent, size in zip(self.shape, blocks, strict=True)
            )
            if len(grid) != 2 or not fits:
                return None
            scales = scales.transposed(grid[0], grid[1], 4) if is_transposed else scales
            block = QuantBlock(blocks[::-1] if is_transposed else blocks, "F32")
        scheme = QuantScheme(value, QuantStore("Native"), tensor=None if block is not None else "F32", block=block)
        joined = JoinedData([(codes, self.parts[0].nbytes), (scales, self.parts[1].nbytes)])
        return DType.qfloat(scheme), joined

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.owned(start, stop))

    def owned(self, start: int, stop: int) -> Array:
        if start >= stop:
            return np.empty(0, np.uint8)
        first, last = (start // self.row_bytes, -(-stop // self.row_bytes)) if self.shape else (0, 1)
        values: Array = np.empty((last - first) * self.row_bytes, np.uint8)
        self._fill(first, last, values)
        return values[start - first * self.row_bytes : stop - first * self.row_bytes]

    def fill(self, buffer: Array) -> None:
        self._fill(0, self.shape[0] if self.shape else 1, buffer)

    def _fill(self, first: int, last: int, buffer: Array) -> None:
        decode, by_rows = self.decoder
        rows = last - first
        step = max(_BAND // max(math.prod(self.shape[1:]), 1), 1) if by_rows else rows

        def work(start: int) -> None:
            stop = min(start + step, rows)
            values = decode(self, first + start, first + stop)
            place = buffer[start * self.row_bytes : stop * self.row_bytes]
            place[:] = np.ascontiguousarray(_rounded(values, self.dtype)).reshape(-1).view(np.uint8)

        with np.errstate(all="ignore"):  # infinities and NaN of an unusual scale are results like any other
            for_each(work, range(0, rows, step)) if rows else None


def _rounded(values: Array, dtype: DType) -> Array:
    """Return float32 values in the dtype of the tensor, rounded to nearest even."""
    if dtype is DType.F32:
        return values
    if dtype is not DType.BF16:
        return values.astype(dtype.numpy)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    short = (rounded >> np.uint32(16)).astype(np.uint16)
    nans = np.isnan(values)
    if nans.any():
        short[nans] = (bits[nans] >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    return short


@dataclass(slots=True, eq=False)
class RefusedData(_PartsData):
    """Codes whose meaning is not known: every read is refused, and a copy writes them unchanged."""

    why: str
    rule: str
    hint: str

    def window(self, start: int, stop: int) -> memoryview:
        raise UnsupportedError(self.why, rule=self.rule, hint=self.hint)
