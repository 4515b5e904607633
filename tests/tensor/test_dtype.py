"""Dtypes: Burn's names, widths and families, and their NumPy spellings."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from burnstore import DType
from burnstore.errors import DTypeError
from burnstore.tensor.dtype import Kind
from burnstore.tensor.quantization import QuantScheme, QuantStore

TABLE: list[tuple[str, str, int, Kind, Any]] = [
    ("F64", "F64", 64, Kind.FLOAT, np.float64),
    ("F32", "F32", 32, Kind.FLOAT, np.float32),
    ("Flex32", "Flex32", 32, Kind.FLOAT, np.float32),
    ("F16", "F16", 16, Kind.FLOAT, np.float16),
    ("BF16", "BF16", 16, Kind.FLOAT, ml_dtypes.bfloat16),
    ("I64", "I64", 64, Kind.INT, np.int64),
    ("I32", "I32", 32, Kind.INT, np.int32),
    ("I16", "I16", 16, Kind.INT, np.int16),
    ("I8", "I8", 8, Kind.INT, np.int8),
    ("U64", "U64", 64, Kind.UINT, np.uint64),
    ("U32", "U32", 32, Kind.UINT, np.uint32),
    ("U16", "U16", 16, Kind.UINT, np.uint16),
    ("U8", "U8", 8, Kind.UINT, np.uint8),
    ("Bool", "Bool", 8, Kind.BOOL, np.bool_),
    ("BoolU8", "Bool(U8)", 8, Kind.BOOL, np.bool_),
    ("BoolU32", "Bool(U32)", 32, Kind.BOOL, np.bool_),
    ("F8_E4M3", "F8_E4M3", 8, Kind.FLOAT, ml_dtypes.float8_e4m3fn),
    ("F8_E5M2", "F8_E5M2", 8, Kind.FLOAT, ml_dtypes.float8_e5m2),
    ("F8_E8M0", "F8_E8M0", 8, Kind.FLOAT, ml_dtypes.float8_e8m0fnu),
    ("F8_E4M3FNUZ", "F8_E4M3FNUZ", 8, Kind.FLOAT, ml_dtypes.float8_e4m3fnuz),
    ("F8_E5M2FNUZ", "F8_E5M2FNUZ", 8, Kind.FLOAT, ml_dtypes.float8_e5m2fnuz),
    ("F6_E2M3", "F6_E2M3", 6, Kind.FLOAT, ml_dtypes.float6_e2m3fn),
    ("F6_E3M2", "F6_E3M2", 6, Kind.FLOAT, ml_dtypes.float6_e3m2fn),
    ("F4", "F4", 4, Kind.FLOAT, ml_dtypes.float4_e2m1fn),
    ("C32", "C32", 32, Kind.COMPLEX, None),
    ("C64", "C64", 64, Kind.COMPLEX, np.complex64),
    ("C128", "C128", 128, Kind.COMPLEX, np.complex128),
]
ALL = [getattr(DType, row[0]) for row in TABLE]
Q8 = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
# What an array is taken for, where several dtypes have one NumPy form.
CANONICAL = {"Flex32": DType.F32, "BoolU8": DType.Bool, "BoolU32": DType.Bool}


@pytest.mark.parametrize(("attribute", "name", "bits", "kind", "numpy"), TABLE)
def test_a_dtype_is_what_the_table_says(attribute: str, name: str, bits: int, kind: Kind, numpy: Any) -> None:
    dtype = getattr(DType, attribute)
    assert (dtype.name, str(dtype), dtype.bits, dtype.kind) == (name, name, bits, kind)
    assert repr(dtype) == f"DType.{attribute}"
    assert DType.parse(name) is dtype
    assert dtype.scheme is None
    assert dtype.is_float == (kind is Kind.FLOAT)
    assert dtype.is_bool == (kind is Kind.BOOL)
    assert not dtype.is_quantized
    if numpy is None:
        with pytest.raises(DTypeError, match="NumPy has no dtype for C32"):
            dtype.numpy  # noqa: B018
    else:
        assert dtype.numpy == np.dtype(numpy)
        assert DType.of(np.dtype(numpy)) is CANONICAL.get(attribute, dtype)


def test_the_table_has_them_all() -> None:
    assert {name for name, value in vars(DType).items() if isinstance(value, DType)} == {row[0] for row in TABLE}


@pytest.mark.parametrize("dtype", [*ALL, Q8], ids=str)
def test_equal_dtypes_are_one_object_through_pickling_and_copying(dtype: DType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.copy(dtype) is copy.deepcopy(dtype) is dtype
    assert {dtype: 1}[dtype] == 1


def test_all_dtypes_differ() -> None:
    assert len({*ALL, Q8}) == len(ALL) + 1


@pytest.mark.parametrize("dtype", [*ALL, Q8], ids=str)
def test_a_dtype_cannot_be_changed(dtype: DType) -> None:
    for name in ("name", "bits", "kind", "anything"):
        with pytest.raises(AttributeError):
            setattr(dtype, name, 1)


@pytest.mark.parametrize("order", "<>=")
@pytest.mark.parametrize("code", ["f8", "f4", "f2", "i8", "i4", "i2", "u8", "u4", "u2", "c8", "c16"])
def test_byte_order_plays_no_part(code: str, order: str) -> None:
    assert DType.of(np.dtype(order + code)) is DType.of(np.dtype(code))


def test_the_numpy_dtype_is_little_endian() -> None:
    assert all(dtype.numpy == dtype.numpy.newbyteorder("<") for dtype in ALL if dtype.name != "C32")


@pytest.mark.parametrize("code", ["O", "U3", "S3", "M8[s]", "m8[s]", "V4", "g", "G", [("a", "f4")]])
def test_numpy_dtypes_without_a_counterpart_are_refused(code: Any) -> None:
    with pytest.raises(DTypeError, match="is not supported") as caught:
        DType.of(np.dtype(code))
    assert caught.value.hint


@pytest.mark.parametrize("extra", ["int4", "uint4", "int2", "uint2", "float8_e3m4", "float8_e4m3b11fnuz"])
def test_ml_dtypes_without_a_counterpart_are_refused(extra: str) -> None:
    with pytest.raises(DTypeError):
        DType.of(np.dtype(getattr(ml_dtypes, extra)))


@pytest.mark.parametrize("wrong", [None, "float32", np.float32, 5, np.zeros(1)])
def test_of_takes_numpy_dtypes_only(wrong: Any) -> None:
    with pytest.raises(TypeError):
        DType.of(wrong)


@pytest.mark.parametrize("wrong", ["f32", "", "F128", "QFloat", "bool", " F32", "Float32", None, 5])
def test_parse_takes_names_as_burn_spells_them_only(wrong: Any) -> None:
    with pytest.raises(DTypeError):
        DType.parse(wrong)


def test_parse_takes_the_native_bool_in_both_spellings() -> None:
    assert DType.parse("Bool(Native)") is DType.parse("Bool") is DType.Bool


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        (DType.F32, (), 4),
        (DType.F32, (0,), 0),
        (DType.F32, (3, 0, 2), 0),
        (DType.F64, (2, 3), 48),
        (DType.BoolU32, (5,), 20),
        (DType.F4, (4,), 2),
        (DType.F4, (3, 2), 3),
        (DType.F6_E2M3, (4,), 3),
        (DType.F6_E2M3, (0,), 0),
        (DType.C128, (2,), 32),
        (Q8, (6,), 10),
        (DType.F32, (2**40, 2**40), 2**82),
    ],
)
def test_nbytes_is_exact(dtype: DType, shape: tuple[int, ...], nbytes: int) -> None:
    assert dtype.nbytes(shape) == nbytes
    assert dtype.nbytes(list(shape)) == nbytes


@pytest.mark.parametrize(("dtype", "shape"), [(DType.F4, (3,)), (DType.F4, ()), (DType.F6_E3M2, (2,))])
def test_elements_that_do_not_fill_whole_bytes_are_refused(dtype: DType, shape: tuple[int, ...]) -> None:
    with pytest.raises(DTypeError, match="do not fill whole bytes"):
        dtype.nbytes(shape)


def test_a_quantized_dtype_carries_its_scheme() -> None:
    scheme = QuantScheme("Q4S", QuantStore("PackedU32"))
    dtype = DType.qfloat(scheme)
    assert dtype is DType.qfloat(QuantScheme("Q4S", QuantStore("PackedU32")))
    assert dtype is not Q8
    assert (dtype.name, dtype.bits, dtype.kind, dtype.scheme) == ("QFloat", 4, Kind.QUANTIZED, scheme)
    assert (dtype.is_quantized, dtype.is_float, dtype.is_bool) == (True, False, False)
    assert str(dtype) == f"QFloat({scheme})"
    assert repr(dtype) == f"DType.qfloat({scheme!r})"
    with pytest.raises(DTypeError):
        dtype.numpy  # noqa: B018


def test_a_dtype_equals_its_name_and_hashes_like_it() -> None:
    for dtype in (DType.F32, DType.BF16, DType.BoolU8, DType.F8_E4M3):
        assert dtype == str(dtype) and hash(dtype) == hash(str(dtype)) and {dtype: 1}[str(dtype)] == 1  # type: ignore[index]
        assert dtype != "F99" and dtype != str(dtype).lower() and dtype != None  # noqa: E711  # what `==` says
    assert DType.F32 != DType.F16 and len({DType.F32, DType.F16, DType.F32}) == 2
