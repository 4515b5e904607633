"""Precision: a tensor's values in another float dtype, cast when they are read."""

from __future__ import annotations

import numpy as np

from ..dtype import DType, Kind
from ..errors import DTypeError
from ..snapshot import TensorSnapshot
from ..tensor_data import Array, TensorData, bytes_of_array

BURN_FLOATS = (DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16)


def cast(snapshot: TensorSnapshot, dtype: DType) -> TensorSnapshot:
    """The tensor in another float dtype, rounded to nearest even.

    A finite value that the dtype cannot hold would become infinite; reading then raises DTypeError instead.

    >>> half = cast(TensorSnapshot.from_numpy("w", np.float32([1.0, 2.5])), DType.F16)
    >>> str(half.dtype), half.nbytes, half.numpy().tolist()
    ('F16', 4, [1.0, 2.5])
    """
    if not (snapshot.dtype.is_float and dtype.is_float):
        raise DTypeError(
            f"{snapshot.dtype.name} is not cast to {dtype.name}: both must be floats", tensor=snapshot.path
        )
    if snapshot.dtype is dtype:
        return snapshot

    def provide() -> TensorData:
        return TensorData(bytes_of_array(cast_array(snapshot.numpy(), dtype)), dtype, snapshot.shape)

    return TensorSnapshot.from_closure(
        snapshot.path,
        dtype,
        snapshot.shape,
        provide,
        param_id=snapshot.param_id,
        container_stack=snapshot.container_stack,
    )


def cast_array(values: Array, dtype: DType) -> Array:
    """The values in that dtype; DTypeError where a finite one does not fit."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(dtype.numpy)
    if dtype.bits <= values.dtype.itemsize * 8:  # F16 has the width of BF16 and not its range
        lost = ~np.isfinite(converted)
        if lost.any() and (lost := lost & np.isfinite(values)).any():
            widest = np.complex128 if converted.dtype.kind == "c" else np.float64
            largest = float(np.abs(values[lost].astype(widest)).max())
            raise DTypeError(
                f"{int(lost.sum())} finite values, up to {largest:g}, are too large for {dtype.name}",
                hint="BF16 has the range of F32" if dtype is DType.F16 else None,
            )
    return converted


def held_as(values: Array, dtype: DType) -> Array:
    """The values in the dtype of a place that keeps it: floats are rounded, integers must fit; DTypeError if not.

    F8_E8M0 has the powers of two and nothing else, not even zero; values must be such.

    >>> held_as(np.array([1, 255]), DType.U8).tolist()
    [1, 255]
    """
    if dtype.kind in (Kind.INT, Kind.UINT):
        range_ = np.iinfo(dtype.numpy)
        if values.size and (int(values.min()) < range_.min or int(values.max()) > range_.max):
            raise DTypeError(f"integers up to {int(values.max())} down to {int(values.min())} do not fit {dtype.name}")
        return values.astype(dtype.numpy)
    if dtype.is_bool:
        return values.astype(dtype.numpy)
    converted = cast_array(values, dtype)
    if dtype is DType.F8_E8M0 and not np.array_equal(converted.astype(np.float64), values.astype(np.float64)):
        raise DTypeError("values that are no powers of two do not fit F8_E8M0")
    return converted
