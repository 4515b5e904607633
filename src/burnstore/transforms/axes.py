"""Axes: a tensor with its elements in another order, moved when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import DTypeError
from ..snapshot import TensorSnapshot
from ..tensor_data import Array, TensorData, bytes_of_array


def rearranged(snapshot: TensorSnapshot, shape: Sequence[int], move: Callable[[Array], Array]) -> TensorSnapshot:
    """The tensor's elements as ``move`` orders them; bits are kept whatever the dtype.

    ``move`` is given an array of the tensor's shape and must return one of ``shape`` (a transpose, a permutation, ...).

    >>> snapshot = TensorSnapshot.from_numpy("w", np.arange(6, dtype=np.int16).reshape(2, 3))
    >>> transposed(snapshot).numpy().tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    if snapshot.dtype.bits % 8 or snapshot.dtype.is_quantized:
        raise DTypeError(f"elements of {snapshot.dtype.name} cannot be moved", tensor=snapshot.path)

    def provide() -> TensorData:
        data = snapshot.to_data()
        # As unsigned integers (or raw bytes) of the element's width: no dtype can change a bit on the way.
        size = data.dtype.bits // 8
        elements: Array = np.ndarray(data.shape, f"<u{size}" if size <= 8 else f"V{size}", data.raw)
        moved = np.array(
            move(elements), order="C"
        )  # always a copy: what is given out must not be somebody else's memory
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
    """A matrix with its axes exchanged."""
    rows, columns = snapshot.shape
    return rearranged(snapshot, (columns, rows), lambda elements: elements.T)
