from __future__ import annotations

import numpy as np
import pytest

import burnstore as bs
from burnstore.tensor.upcast import steps, upcast

FLOATS = ["F64", "F32", "Flex32", "F16", "BF16"]
NARROW = ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]
INTEGERS = ["I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"]


def every_code(dtype: bs.DType) -> np.ndarray:
    """All bit patterns of a narrow float, many of a wide one."""
    if dtype.bits <= 16:
        return np.arange(2**dtype.bits, dtype=f"<u{dtype.bits // 8}")
    generator = np.random.default_rng(dtype.bits)
    return generator.integers(0, 2**dtype.bits, 10_000, f"<u{dtype.bits // 8}", endpoint=False)


@pytest.mark.parametrize("name", [*FLOATS, *NARROW, *INTEGERS])
def test_no_value_is_changed(name: str) -> None:
    dtype = bs.DType.parse(name)
    codes = every_code(dtype)
    found = upcast(codes.view(np.uint8), dtype)
    with np.errstate(all="ignore"):
        expected = codes.view(dtype.numpy)
        expected = expected if name in INTEGERS else expected.astype(np.float64)
        np.testing.assert_array_equal(found.astype(expected.dtype), expected)
    if name not in INTEGERS:
        numbers = ~np.isnan(expected)
        assert (np.signbit(found) == np.signbit(expected))[numbers].all()


def test_four_bits_are_two_values_a_byte_lowest_first() -> None:
    import ml_dtypes

    codes = np.arange(16, dtype=np.uint8)
    packed = codes[::2] | codes[1::2] << 4
    expected = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(upcast(packed, bs.DType.F4), expected)


@pytest.mark.parametrize(("name", "parts"), [("C32", "<f2"), ("C64", "<f4"), ("C128", "<f8")])
def test_complex_numbers_are_pairs(name: str, parts: str) -> None:
    pairs = np.array([1.5, -2, 0, 3], parts)
    assert upcast(pairs.view(np.uint8), bs.DType.parse(name)).tolist() == [1.5 - 2j, 3j]


@pytest.mark.parametrize(("name", "width"), [("Bool", 1), ("Bool(U8)", 1), ("Bool(U32)", 4)])
def test_bools_are_0_and_1_and_nothing_else(name: str, width: int) -> None:
    stored = np.array([0, 1, 1], f"<u{width}")
    assert upcast(stored.view(np.uint8), bs.DType.parse(name)).tolist() == [0, 1, 1]
    stored[1] = 2
    with pytest.raises(bs.errors.CorruptError, match="expected 0 or 1"):
        upcast(stored.view(np.uint8), bs.DType.parse(name))


def test_what_lies_across_bytes_or_means_nothing_alone_is_refused() -> None:
    from burnstore.tensor.quantization import QuantScheme, QuantStore

    with pytest.raises(bs.errors.DTypeError, match="packed"):
        upcast(memoryview(b"abc"), bs.DType.F6_E2M3)
    with pytest.raises(bs.errors.DTypeError, match="codes and scales"):
        upcast(memoryview(b"abcde"), bs.DType.qfloat(QuantScheme("Q8S", QuantStore("Native"))))


@pytest.mark.parametrize("name", [*FLOATS, *NARROW])
def test_neighbours_are_one_step_apart(name: str) -> None:
    """The numbers of a dtype in their order stand at places in the same order; of one value is one place."""
    dtype = bs.DType.parse(name)
    codes = np.unique(every_code(dtype))
    values, places = upcast(codes.view(np.uint8), dtype), steps(codes.view(np.uint8), dtype).astype(object)
    numbers = ~np.isnan(values)
    order = np.argsort(values[numbers], kind="stable")
    values, places = values[numbers][order], places[numbers][order]
    apart = np.diff(places)
    assert ((apart > 0) == (values[1:] > values[:-1])).all()
    assert (apart >= 0).all()
    if dtype.bits <= 16:  # with every code there, no place is left out
        assert set(apart.tolist()) <= {0, 1}
    assert set(places[values == 0].tolist()) <= {0}


def test_places_of_complex_numbers_are_those_of_their_parts() -> None:
    parts = np.array([1.0, -1.0, 0.0, 2.0], np.float32)
    assert steps(parts, bs.DType.C64).tolist() == steps(parts, bs.DType.F32).tolist()


def test_places_of_four_bits_are_in_order() -> None:
    codes = np.arange(16, dtype=np.uint8)
    packed = codes[::2] | codes[1::2] << 4
    assert steps(packed, bs.DType.F4).tolist() == [*range(8), *range(0, -8, -1)]


@pytest.mark.parametrize("name", ["I32", "Bool", "F6_E3M2"])
def test_what_is_no_float_has_no_neighbours(name: str) -> None:
    with pytest.raises(bs.errors.DTypeError, match="no ranks among floats"):
        steps(memoryview(b"abc" * 4), bs.DType.parse(name))
