"""Values: the bytes of a tensor in the form in which a slot of a model takes them."""

from __future__ import annotations

from typing import Any

from ...tensor.data import Array, TensorData, array_from_bytes
from ...tensor.dtype import DType
from ...tensor.snapshot import TensorSnapshot
from ...transforms.precision import held_as
from ..binding import Slot

# Dtypes that an array alone brings to a file again as they were; of the others the stored form is kept.
_PLAIN_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "Bool")
_BOOLS_OF_INTEGERS = {DType.U8: DType.BoolU8, DType.U32: DType.BoolU32}  # what some backends hold bools in
_ARRAYS_SAY_ALL = frozenset(map(DType.parse, _PLAIN_DTYPES))


def value_for(slot: Slot, snapshot: TensorSnapshot, raw: Any) -> Array | TensorData:
    """What the slot is to be given for these bytes of the snapshot; DTypeError where it cannot hold them."""
    dtype = snapshot.dtype
    if dtype in _BOOLS_OF_INTEGERS and slot.dtype.is_bool:
        dtype = _BOOLS_OF_INTEGERS[dtype]
    if slot.keeps_dtype and dtype is slot.dtype and not dtype.is_bool:
        return TensorData(memoryview(raw), dtype, snapshot.shape)  # NumPy need not have it
    array = array_from_bytes(raw, dtype, snapshot.shape)
    if slot.keeps_dtype:
        return array if dtype is slot.dtype else held_as(array, slot.dtype)
    return array if dtype in _ARRAYS_SAY_ALL else TensorData(memoryview(raw), dtype, snapshot.shape)
