"""Ties: one tensor of a model that a file has under several names, and whether these have the same values."""

from __future__ import annotations

from ...errors import BurnstoreError
from ...io.parallel import for_each
from ...io.source import same_bytes
from ...tensor.snapshot import TensorSnapshot
from ...tensor.sources import AxisSlice, Data, SourceData, TransposedData

# The bytes that are compared at a time. A band of a transposed matrix is a part of each row of the file.
_BAND_BYTES = 16 << 20


def same_values(one: TensorSnapshot, other: TensorSnapshot) -> bool:
    """Return whether two tensors have the same bits; False also where they cannot be compared part by part.

    The same range of a file is not read, and of the rest never more than some megabytes are in memory.

    >>> import numpy as np
    >>> rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> same_values(TensorSnapshot.from_numpy("a", rows), TensorSnapshot.from_numpy("b", rows.copy()))
    True
    """
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    if _same_range(one._data, other._data) or not one.nbytes:
        return True
    shape, bits = one.shape, one.dtype.bits
    if all(isinstance(each._data, SourceData) for each in (one, other)):  # as bytes, whatever the width of an element
        shape, bits = (one.nbytes,), 8
    if bits % 8 or not shape:
        return False
    row_bytes = one.nbytes // shape[0]
    height = max(_BAND_BYTES // row_bytes, 1)
    differing: list[int] = []

    def band(data: Data, start: int, stop: int) -> memoryview:
        return data.sliced(AxisSlice(bits, shape, 0, start, stop)).window(0, row_bytes * (stop - start))

    def compare(start: int) -> None:
        stop = min(start + height, shape[0])
        if not differing and not same_bytes(band(one._data, start, stop), band(other._data, start, stop)):
            differing.append(start)

    try:
        for_each(compare, range(0, shape[0], height))
    except BurnstoreError:  # the read that follows reports it
        return False
    return not differing


def _same_range(one: Data, other: Data) -> bool:
    if isinstance(one, TransposedData) and isinstance(other, TransposedData):
        return one.columns == other.columns and _same_range(one.data, other.data)
    if isinstance(one, SourceData) and isinstance(other, SourceData):
        return one.source is other.source and one.offset == other.offset and one.nbytes == other.nbytes
    return False
