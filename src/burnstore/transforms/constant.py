"""Constants: tensors that one framework stores and another has not, because they are the same number throughout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ModelError
from ..tensor.data import Array, Shape, TensorData
from ..tensor.dtype import DType
from ..tensor.lowbit import decode_scales, encode_scales
from ..tensor.snapshot import TensorSnapshot


def constant(path: str, shape: Shape, value: float, dtype: DType, stack: Sequence[str]) -> TensorSnapshot:
    """Return a tensor filled with ``value``, in this dtype if it is a float dtype.

    >>> constant("norm.gamma", (2,), 1.0, DType.BF16, ()).to_bytes().hex(" ")
    '80 3f 80 3f'
    """
    if dtype is DType.BF16:  # by its bits, which needs no package besides NumPy
        raw = encode_scales(np.full(shape, value, np.float32), "BF16")
        return TensorSnapshot.from_data(path, TensorData.from_bytes(raw, dtype, shape), container_stack=stack)
    held = dtype if dtype.is_float else DType.F32
    return TensorSnapshot.from_numpy(path, np.full(shape, value, held.numpy), container_stack=stack)


def check_constant(given: TensorSnapshot, value: float) -> None:
    """Raise ModelError unless the tensor is ``value`` throughout: the other framework would have lost another one."""
    if not np.all(_numbers(given) == value):
        raise ModelError(
            f"it is not all {value:g}, and the module in the other layout has no such tensor",
            tensor=given.path,
            hint="give the module its affine or bias option",
        )


def _numbers(given: TensorSnapshot) -> Array:
    if given.dtype is DType.BF16:
        return decode_scales(np.frombuffer(given.to_data().raw, np.uint8), "BF16")
    return given.numpy()
