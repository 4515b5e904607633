"""Burnpack passes the tests that every format passes."""

from __future__ import annotations

from typing import ClassVar

from burnstore import DType
from burnstore.testing import FormatConformance

BURN_DTYPES = (
    *(DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16),
    *(DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8),
    *(DType.Bool, DType.BoolU8, DType.BoolU32),
)


class TestBurnpack(FormatConformance):
    format = "burnpack"
    suffix = ".bpk"
    dtypes = BURN_DTYPES


class TestBurnpackOf019(FormatConformance):
    """The unaligned form; the stamp that the writer puts tells it from a newer file that was cut."""

    format = "burnpack"
    suffix = ".bpk"
    dtypes = tuple(dtype for dtype in BURN_DTYPES if dtype not in (DType.BoolU8, DType.BoolU32))
    save_options: ClassVar = {"burn_version": "0.19"}
