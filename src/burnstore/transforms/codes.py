"""Codes: a part of a quantized tensor, its scales cut with it; nothing is computed or read that is not taken."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import DTypeError, ModelError
from ..tensor.data import Shape
from ..tensor.lowbit import SCALE_WIDTHS
from ..tensor.quantization import CodeLayout, QuantScheme, block_extents, code_layout, exchanged
from ..tensor.snapshot import Data, TensorSnapshot
from .axes import JoinedData, range_of, sliced_data


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of an axis, in whatever unit."""

    axis: int
    start: int
    stop: int

    def in_units(self, size: int, extent: int, what: str) -> _Span:
        """The same stretch counted in units of ``size`` elements, the last of which may be short."""
        if self.start % size or (self.stop % size and self.stop != extent):
            raise DTypeError(
                f"{self.start} to {self.stop} of axis {self.axis} would cut through a {what} of {size} elements"
            )
        return _Span(self.axis, self.start // size, -(-self.stop // size))


def sliced_codes(snapshot: TensorSnapshot, axis: int, start: int, stop: int) -> TensorSnapshot:
    """A part of a quantized tensor along one axis, quantized as the whole is.

    Raises DTypeError where a word of packed codes or a block of one scale would be cut.

    >>> import numpy as np
    >>> from burnstore import DType, TensorData
    >>> from burnstore.tensor.quantization import QuantStore
    >>> dtype = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    >>> data = TensorData.from_bytes(bytes([1, 2, 3, 4]) + np.float32(0.5).tobytes(), dtype, [2, 2])
    >>> sliced_codes(TensorSnapshot.from_data("w", data), 0, 1, 2).numpy().tolist()
    [[1.5, 2.0]]
    """
    scheme, shape = snapshot.dtype.scheme, snapshot.shape
    assert scheme is not None
    if not 0 <= axis < len(shape) or not 0 <= start <= stop <= shape[axis]:
        raise ModelError(f"there is no {start} to {stop} of axis {axis} in {list(shape)}", tensor=snapshot.path)
    if stop - start == shape[axis]:
        return snapshot
    layout = code_layout(scheme, shape)
    if snapshot.nbytes != layout.total:
        raise DTypeError("its bytes lie as an old release of Burn had them, which is read as a whole only")
    span = _Span(axis, start, stop)
    words = span.in_units(layout.per_word if axis == layout.axis else 1, shape[axis], "word")
    stored = (*layout.dims[: layout.axis], layout.line_words, *layout.dims[layout.axis + 1 :])
    part = (*shape[:axis], stop - start, *shape[axis + 1 :])
    taken = code_layout(scheme, part)
    values = _lying(snapshot._data, 0, layout.word_bytes, stored, words, scheme, layout)
    width = SCALE_WIDTHS[scheme.scale_dtype]
    scales, rest = range_of(snapshot._data, layout.value_bytes, width), layout.value_bytes + layout.scale_count * width
    if scheme.block is not None:
        if scheme.flat_blocks:
            raise DTypeError("its blocks are runs of the flattened tensor, so that no part of it has its own")
        blocks = span.in_units(block_extents(scheme.block, len(shape))[axis], shape[axis], "block")
        scales = _lying(snapshot._data, layout.value_bytes, width, layout.grid, blocks, scheme, layout)
    parts = [(values, taken.value_bytes), (scales, taken.scale_count * width)]
    if layout.total > rest:
        parts.append((range_of(snapshot._data, rest, layout.total - rest), layout.total - rest))
    return snapshot.replace(shape=part, data=JoinedData([(data, nbytes) for data, nbytes in parts if nbytes]))


def _lying(
    data: Data, begin: int, width: int, dims: Shape, span: _Span, scheme: QuantScheme, layout: CodeLayout
) -> Data:
    """A part of the words or scales, whose axes are exchanged as they lie since Burn 0.22."""
    axis, last = span.axis, len(dims) - 1
    if not scheme.old_style:
        dims = exchanged(dims, layout.axis)
        axis = {layout.axis: last, last: layout.axis}.get(axis, axis)
    held = range_of(data, begin, math.prod(dims) * width)
    return sliced_data(held, 8 * width, dims, axis, span.start, span.stop)
