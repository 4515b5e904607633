"""Numbers: long arrays of numbers inside a document, decoded by the piece into the bytes that they spell out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...errors import CorruptError
from .window import Extent, Sink

NumberKind = Literal["float", "int", "bool"]
NumberArray = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class NumberForm:
    """What numbers may stand in an array and how they are kept: integers by ``integers``, in this range; floats."""

    integers: np.dtype[Any]
    low: int
    high: int
    floats: np.dtype[Any] | None = None
    bools: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers of one kind, kept in a sink; of integers also the least and the greatest."""

    kind: NumberKind
    count: int
    extent: Extent
    low: int = 0
    high: int = 0


class Collector:
    """Gathers the pieces of one array of numbers, checks them against a form, and writes them to the sink."""

    def __init__(self, form: NumberForm, sink: Sink, offset: int) -> None:
        self._form = form
        self._sink = sink
        self._offset = offset
        self._start = sink.size
        self._kind: NumberKind | None = None
        self._count = 0
        self._low = 0
        self._high = 0

    def add(self, kind: NumberKind, values: NumberArray) -> None:
        """Take the next piece; integers come as int64, floats of the form's own width."""
        if self._kind is None:
            self._kind = kind
        elif self._kind != kind:
            raise CorruptError(f"an array of {self._kind}s with a {kind} in it", offset=self._offset)
        form = self._form
        if kind == "float":
            if form.floats is None:
                raise CorruptError("a float where only integers may stand", offset=self._offset)
            kept = np.ascontiguousarray(values, form.floats)
        elif kind == "bool":
            if not form.bools:
                raise CorruptError("a bool where only numbers may stand", offset=self._offset)
            kept = np.ascontiguousarray(values, np.uint8)
        else:
            low, high = int(values.min()), int(values.max())
            if low < form.low or high > form.high:
                wrong = low if low < form.low else high
                raise CorruptError(f"{wrong} is not in {form.low} .. {form.high}", offset=self._offset)
            self._low = low if self._count == 0 else min(self._low, low)
            self._high = high if self._count == 0 else max(self._high, high)
            kept = values.astype(form.integers)
        self._count += len(values)
        self._sink.write(memoryview(kept).cast("B"))

    def numbers(self) -> Numbers:
        """What was gathered."""
        extent = Extent(self._start, self._sink.size - self._start, spelled_out=True)
        return Numbers(self._kind or "int", self._count, extent, self._low, self._high)
