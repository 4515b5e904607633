"""Axes: transpose a matrix, take a part of a tensor, join several; done when they are read, without changing a bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..errors import DTypeError, ModelError
from ..tensor.data import Array, Shape, TensorData, bytes_of_array
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import AxisSlice, JoinedData, element_dtype


def rearranged(snapshot: TensorSnapshot, shape: Sequence[int], move: Callable[[Array], Array]) -> TensorSnapshot:
    """Return the tensor's elements in the order that ``move`` gives them.

    ``move`` gets an array of the tensor's shape and must return one of ``shape`` (a permutation of axes, ...).

    >>> snapshot = TensorSnapshot.from_numpy("w", np.arange(6, dtype=np.int16).reshape(2, 3))
    >>> rearranged(snapshot, (2, 3), lambda elements: elements[::-1]).numpy().tolist()
    [[3, 4, 5], [0, 1, 2]]
    """
    width = _element_width(snapshot)

    def provide() -> TensorData:
        data = snapshot.to_data()
        elements: Array = np.ndarray(data.shape, element_dtype(width), data.raw)
        moved = np.array(move(elements), order="C")  # a copy: the caller must not get memory of the source
        return TensorData(bytes_of_array(moved), data.dtype, tuple(shape))

    return TensorSnapshot.from_closure(
        snapshot.path,
        snapshot.dtype,
        shape,
        provide,
        param_id=snapshot.param_id,
        container_stack=snapshot.container_stack,
    )


def transposed(snapshot: TensorSnapshot) -> TensorSnapshot:
    """Return a matrix with its axes exchanged.

    >>> snapshot = TensorSnapshot.from_numpy("w", np.arange(6, dtype=np.int16).reshape(2, 3))
    >>> transposed(snapshot).numpy().tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    if snapshot.dtype.is_quantized:
        snapshot = snapshot.decoded()  # scales of blocks belong to axes
    width = _element_width(snapshot)
    if len(snapshot.shape) != 2:
        raise ModelError(
            f"only a matrix can be transposed, not a tensor of shape {list(snapshot.shape)}", tensor=snapshot.path
        )
    rows, columns = snapshot.shape
    data = snapshot._data.transposed(rows, columns, width)
    return snapshot.replace(shape=(columns, rows), data=data, nbytes=rows * columns * width)


def sliced(snapshot: TensorSnapshot, axis: int, start: int, stop: int) -> TensorSnapshot:
    """Return a part of a tensor along one axis; of a file only that part is read.

    DTypeError where elements are narrower than a byte and the part does not begin and end at whole bytes.

    >>> snapshot = TensorSnapshot.from_numpy("w", np.arange(6, dtype=np.int16).reshape(3, 2))
    >>> sliced(snapshot, 0, 1, 3).numpy().tolist(), sliced(snapshot, 1, 0, 1).numpy().tolist()
    ([[2, 3], [4, 5]], [[0], [2], [4]])
    """
    shape, bits = snapshot.shape, snapshot.dtype.bits
    part = part_shape(snapshot, axis, start, stop)
    if part == shape:
        return snapshot
    if snapshot.dtype.is_quantized:
        raise DTypeError(f"elements of {snapshot.dtype.name} cannot be moved", tensor=snapshot.path)
    inner = math.prod(shape[axis + 1 :]) * bits
    if any(before % 8 for before in (start * inner, stop * inner, shape[axis] * inner)):
        raise DTypeError(
            f"{start} to {stop} of axis {axis} of {list(shape)} are not whole bytes of packed {snapshot.dtype.name}",
            tensor=snapshot.path,
        )
    return snapshot.replace(shape=part, data=snapshot._data.sliced(AxisSlice(bits, shape, axis, start, stop)))


def part_shape(snapshot: TensorSnapshot, axis: int, start: int, stop: int) -> Shape:
    """Return the shape of a part; ModelError if the tensor has no such part."""
    shape = snapshot.shape
    if not 0 <= axis < len(shape):
        raise ModelError(f"no axis {axis} in shape {list(shape)}", tensor=snapshot.path)
    if not 0 <= start <= stop <= shape[axis]:
        raise ModelError(f"no {start} to {stop} along axis {axis} of shape {list(shape)}", tensor=snapshot.path)
    return (*shape[:axis], stop - start, *shape[axis + 1 :])


def joined(parts: Sequence[TensorSnapshot]) -> TensorSnapshot:
    """Return several tensors as one, along the first axis.

    >>> parts = [TensorSnapshot.from_numpy(name, np.array([value], np.int16)) for name, value in (("a", 1), ("b", 2))]
    >>> joined(parts).numpy().tolist()
    [1, 2]
    """
    parts = [part.decoded() if part.dtype.is_quantized else part for part in parts]
    first = parts[0]
    for part in parts:
        _element_width(part)
        if part.dtype is not first.dtype or part.shape[1:] != first.shape[1:] or not part.shape:
            raise ModelError(
                f"cannot join {first.path} ({first.dtype} {list(first.shape)}) and {part.path} ({part.dtype} "
                f"{list(part.shape)}) into one tensor: expected the same dtype and the same shape after the first axis"
            )
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    data = JoinedData([(part._data, part.nbytes) for part in parts])
    return first.replace(shape=shape, data=data, param_id=None)


def _element_width(snapshot: TensorSnapshot) -> int:
    if snapshot.dtype.bits % 8 or snapshot.dtype.is_quantized:
        raise DTypeError(f"elements of {snapshot.dtype.name} cannot be moved", tensor=snapshot.path)
    return snapshot.dtype.bits // 8
