"""Precision settings: the float and the integer type that a record stores its tensors in."""

from __future__ import annotations

from dataclasses import dataclass

from ...tensor.dtype import DType


@dataclass(frozen=True, slots=True)
class PrecisionSettings:
    """One of Burn's three settings; plain numbers, bools and quantized tensors are stored as they are in all of them.

    >>> str(HalfPrecisionSettings.float), HalfPrecisionSettings.name
    ('F16', 'HalfPrecisionSettings')
    """

    name: str
    float: DType
    int: DType
    float_text: str
    int_text: str


FullPrecisionSettings = PrecisionSettings("FullPrecisionSettings", DType.F32, DType.I32, "f32", "i32")
HalfPrecisionSettings = PrecisionSettings("HalfPrecisionSettings", DType.F16, DType.I16, "half::binary16::f16", "i16")
DoublePrecisionSettings = PrecisionSettings("DoublePrecisionSettings", DType.F64, DType.I64, "f64", "i64")

SETTINGS = {each.name: each for each in (FullPrecisionSettings, HalfPrecisionSettings, DoublePrecisionSettings)}
