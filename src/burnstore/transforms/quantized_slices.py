"""Slices of quantized tensors: a part with its scales; nothing else is read, and nothing is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import DTypeError
from ..tensor.data import Shape
from ..tensor.lowbit import SCALE_WIDTHS
from ..tensor.quantization import CodeLayout, QuantScheme, block_extents, code_layout, exchanged
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import AxisSlice, Data, JoinedData
from .axes import part_shape


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of an axis, in any unit."""

    axis: int
    start: int
    stop: int

    def in_units(self, size: int, extent: int, what: str) -> _Span:
        """Return the same part counted in units of ``size`` elements, the last of which may be short."""
        if self.start % size or (self.stop % size and self.stop != extent):
            raise DTypeError(f"{self.start} to {self.stop} of axis {self.axis} would split a {what} of {size} elements")
        return _Span(self.axis, self.start // size, -(-self.stop // size))


def sliced_codes(snapshot: TensorSnapshot, axis: int, start: int, stop: int) -> TensorSnapshot:
    """Return a part of a quantized tensor along one axis, with its scales; nothing else is read.

    Raises DTypeError where a word of packed codes or a block of one scale would be split.

    >>> import numpy as np
    >>> from burnstore import DType, TensorData
    >>> from burnstore.tensor.quantization import QuantStore
    >>> dtype = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    >>> data = TensorData.from_bytes(bytes([1, 2, 3, 4]) + np.float32(0.5).tobytes(), dtype, [2, 2])
    >>> sliced_codes(TensorSnapshot.from_data("w", data), 0, 1, 2).numpy().tolist()
    [[1.5, 2.0]]
    """
    scheme, shape, data = snapshot.dtype.scheme, snapshot.shape, snapshot._data
    assert scheme is not None
    part = part_shape(snapshot, axis, start, stop)
    if part == shape:
        return snapshot
    layout = code_layout(scheme, shape)
    if snapshot.nbytes != layout.total:
        raise DTypeError("stored as by an old release of Burn, which can only be read as a whole")
    span = _Span(axis, start, stop)
    words = span.in_units(layout.per_word if axis == layout.axis else 1, shape[axis], "word")
    stored = (*layout.dims[: layout.axis], layout.line_words, *layout.dims[layout.axis + 1 :])
    taken = code_layout(scheme, part)
    values = _stored_part(data, 0, layout.word_bytes, stored, words, scheme, layout)
    width = SCALE_WIDTHS[scheme.scale_dtype]
    scales, rest = data.range(layout.value_bytes, width), layout.value_bytes + layout.scale_count * width
    if scheme.block is not None:
        if scheme.flat_blocks:
            raise DTypeError("its blocks are runs of the flattened tensor: no part of it has scales of its own")
        blocks = span.in_units(block_extents(scheme.block, len(shape))[axis], shape[axis], "block")
        scales = _stored_part(data, layout.value_bytes, width, layout.grid, blocks, scheme, layout)
    parts = [(values, taken.value_bytes), (scales, taken.scale_count * width)]
    if layout.total > rest:
        parts.append((data.range(rest, layout.total - rest), layout.total - rest))
    return snapshot.replace(shape=part, data=JoinedData([(each, nbytes) for each, nbytes in parts if nbytes]))


def _stored_part(
    data: Data, begin: int, width: int, dims: Shape, span: _Span, scheme: QuantScheme, layout: CodeLayout
) -> Data:
    """Return a part of the words or scales, whose axes are stored exchanged since Burn 0.22."""
    axis, last = span.axis, len(dims) - 1
    if not scheme.old_style:
        dims = exchanged(dims, layout.axis)
        axis = {layout.axis: last, last: layout.axis}.get(axis, axis)
    held = data.range(begin, math.prod(dims) * width)
    return held.sliced(AxisSlice(8 * width, dims, axis, span.start, span.stop))
