"""The values of GGUF's blocks, decoded when they are read: only the blocks that a part needs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ...io.parallel import for_each
from ...tensor.dtype import DType
from ...tensor.facts import DecodedData, Stored
from ...tensor.sources import Data
from .blocks import FILLS, TYPES, BlockType, dequantize

Array = np.ndarray[Any, np.dtype[Any]]

_WIDTH = 4  # of float32
_BAND = 1 << 20  # elements that a thread decodes at a time: its blocks and values stay in the processor's cache


@dataclass(slots=True, eq=False)
class BlockData(DecodedData):
    """The float32 values of a range of blocks."""

    data: Data
    type_number: int
    count: int
    path: str

    @property
    def type(self) -> BlockType:
        """The type of the blocks."""
        return TYPES[self.type_number]

    @property
    def streams(self) -> bool:
        return True  # blocks are smaller than their values

    @property
    def in_source(self) -> bool:
        return self.data.in_source

    @property
    def inner(self) -> Sequence[Data]:
        return (self.data,)

    @property
    def file(self) -> str | None:
        return self.data.file

    @property
    def identity(self) -> Hashable | None:
        own = self.data.identity
        return None if own is None else (BlockData, own, self.type_number)

    @property
    def stored(self) -> Sequence[Stored]:
        nbytes = self.count // self.type.elements * self.type.nbytes
        return (Stored(self.path, DType.U8, (nbytes,), self.data, nbytes),)

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.owned(start, stop))

    def owned(self, start: int, stop: int) -> Array:
        elements = self.type.elements
        first, last = start // _WIDTH // elements, -(-stop // (_WIDTH * elements))
        values: Array = np.empty((last - first) * elements, np.float32)
        self._decode(first, values)
        return values.view(np.uint8)[start - first * elements * _WIDTH : stop - first * elements * _WIDTH]

    def fill(self, buffer: Array) -> None:
        if buffer.ctypes.data % _WIDTH:
            buffer[:] = self.owned(0, len(buffer))
        else:
            self._decode(0, buffer.view(np.float32))

    def _decode(self, first: int, values: Array) -> None:
        """Fill an array with the values of the blocks from this one on."""
        kind = self.type
        if kind.name not in FILLS:
            raise UnsupportedError(
                f"blocks of {kind.name} have no values that the gguf package defines",
                rule="GG-08",
                hint="copy the file in GGUF, or quantize the model again with another type",
            )

        def decode(start: int) -> None:
            part = values[start : start + _BAND]
            at, count = first + start // kind.elements, len(part) // kind.elements
            raw = np.frombuffer(self.data.window(at * kind.nbytes, (at + count) * kind.nbytes), np.uint8)
            dequantize(raw, kind, part)

        for_each(decode, range(0, len(values), _BAND))
