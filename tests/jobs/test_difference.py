from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import burnstore as bs
from burnstore.jobs.diff.difference import Difference, RunningDifference, Tolerance
from burnstore.tensor.upcast import upcast

FLOATS = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64", "C128"]
INTEGERS = ["I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"]


def found(
    one: np.ndarray,
    other: np.ndarray,
    dtype: bs.DType | None = None,
    other_dtype: bs.DType | None = None,
    tolerance: Tolerance | None = None,
    block: int = 1 << 16,
) -> Difference:
    """The difference of two arrays of elements, taken in blocks."""
    dtype = dtype or bs.DType.of(one.dtype)
    other_dtype = other_dtype or (dtype if one.dtype == other.dtype else bs.DType.of(other.dtype))
    running = RunningDifference(tolerance)
    for start in range(0, one.size, block):
        parts = (
            memoryview(np.ascontiguousarray(each[start : start + block])).cast("B") if each.size else memoryview(b"")
            for each in (one, other)
        )
        running.add(*parts, dtype, other_dtype, start)
    return running.result((one.size,))


def raw_elements(name: str, seed: int, count: int = 500) -> np.ndarray:
    dtype = bs.DType.parse(name)
    raw = np.random.default_rng(seed).bytes(dtype.nbytes([count]))
    return np.frombuffer(raw, f"<u{dtype.bits // 8}" if dtype.bits <= 64 else "V16")


def as_python(values: np.ndarray) -> list[Any]:
    return values.tolist()


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("seed", range(3))
def test_every_figure_equals_that_of_plain_python(name: str, seed: int) -> None:
    """Over all bit patterns, NaN and infinities among them; sums by fractions, which have no rounding."""
    dtype = bs.DType.parse(name)
    one, other = raw_elements(name, seed), raw_elements(name, seed + 100)
    other = np.where(np.arange(500) % 3 == 0, one, other) if dtype.bits <= 64 else other
    a, b = (as_python(upcast(each.view(np.uint8), dtype)) for each in (one, other))
    result = found(one, other, dtype, dtype, block=77)

    finite = [row for row in range(500) if np.isfinite(a[row]) and np.isfinite(b[row])]
    assert result.elements == 500
    assert result.differing == sum(one[row].tobytes() != other[row].tobytes() for row in range(500))
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    assert result.nan_mismatches == int((nan_a != nan_b).sum())
    distances = {row: abs(a[row] - b[row]) for row in finite}
    largest = max(distances.values(), default=None)
    assert result.max_abs == largest
    if largest:
        assert result.index == (next(row for row in finite if distances[row] == largest),)
        assert result.values == (a[result.index[0]], b[result.index[0]])

    def exact(value: Any) -> list[Fraction]:
        return [Fraction(value.real), Fraction(value.imag)] if isinstance(value, complex) else [Fraction(value)]

    first = sum(part * part for row in finite for part in exact(a[row]))
    second = sum(part * part for row in finite for part in exact(b[row]))
    both = sum(x * y for row in finite for x, y in zip(exact(a[row]), exact(b[row]), strict=True))
    apart = sum((x - y) ** 2 for row in finite for x, y in zip(exact(a[row]), exact(b[row]), strict=True))
    assert result.rel_l2 == pytest.approx(math.sqrt(apart / first), rel=1e-9)
    cosine = math.sqrt(both * both / (first * second)) * (-1 if both < 0 else 1)
    assert result.cosine == pytest.approx(cosine, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", INTEGERS)
def test_distances_of_integers_are_exact(name: str) -> None:
    bounds = np.iinfo(name.lower().replace("i", "int").replace("u", "uint") if name[0] == "I" else f"uint{name[1:]}")
    one = np.array([bounds.min, 5, bounds.max - 1], bounds.dtype)
    other = np.array([bounds.max, 5, bounds.max], bounds.dtype)
    result = found(one, other)
    assert result.max_abs == int(bounds.max) - int(bounds.min)
    assert (result.differing, result.index, result.max_ulp) == (2, (0,), None)
    assert found(one[1:], other[1:]).max_abs == 1  # where float64 sees no difference for 64 bits


@given(st.data())
def test_steps_between_floats_are_those_of_nextafter(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64]))
    finite = arrays.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False)
    start = dtype(data.draw(finite))
    towards = dtype(data.draw(st.sampled_from([-np.inf, np.inf])))
    value, count = start, data.draw(st.integers(0, 20))
    with np.errstate(over="ignore"):
        for _ in range(count):
            value = np.nextafter(value, towards)
    if np.isfinite(value):
        assert found(np.array([start]), np.array([value])).max_ulp == count


def test_zeros_of_other_signs_differ_in_bytes_and_in_nothing_else() -> None:
    result = found(np.float32([0.0, -0.0, 1.0]), np.float32([-0.0, -0.0, 1.0]))
    assert (result.differing, result.zero_signs, result.max_abs, result.max_ulp) == (1, 1, 0, 0)
    assert (result.rel_l2, result.cosine, result.index) == (0.0, 1.0, None)
    assert found(np.float32([0.0]), np.float32([-0.0]), tolerance=Tolerance()).beyond == 0


def test_nan_equals_nan_of_the_same_bits_only() -> None:
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    same = found(np.float32([quiet, 1]), np.float32([quiet, 1]))
    assert (same.differing, same.nan_mismatches, same.nan_payloads) == (0, 0, 0)
    bits = found(np.array([quiet, 1]), np.array([other, 1]))
    assert (bits.differing, bits.nan_mismatches, bits.nan_payloads) == (1, 0, 1)
    assert found(np.array([quiet]), np.array([other]), tolerance=Tolerance()).beyond == 0
    number = found(np.float32([quiet, 1]), np.float32([3, 1]), tolerance=Tolerance(1e9))
    assert (number.differing, number.nan_mismatches, number.beyond, number.max_abs) == (1, 1, 1, 0)


def test_infinities_are_counted_and_take_no_part_in_the_figures() -> None:
    result = found(np.array([np.inf, np.inf, -np.inf, 1.0]), np.array([np.inf, -np.inf, 5.0, 2.0]))
    assert (result.differing, result.inf_mismatches, result.max_abs, result.max_ulp) == (3, 2, 1.0, 2**52)
    assert found(np.array([np.inf]), np.array([7.0]), tolerance=Tolerance(math.inf)).beyond == 1


def test_all_nan_leaves_no_figures() -> None:
    result = found(np.full(3, np.nan), np.ones(3))
    assert (result.max_abs, result.max_ulp, result.index, result.cosine) == (None, None, None, None)


def test_vectors_without_length_have_no_angle() -> None:
    result = found(np.zeros(3), np.ones(3))
    assert result.rel_l2 == math.inf and result.cosine is None


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1.0, 5e-324 / 2**-50])
def test_the_size_of_the_numbers_does_not_matter_to_the_sums(scale: float) -> None:
    one, other = np.array([3.0, 4.0]) * scale, np.array([3.0, 3.0]) * scale
    result = found(one, other)
    assert result.rel_l2 == pytest.approx(0.2, rel=1e-9)
    assert result.cosine == pytest.approx(21 / (5 * math.sqrt(18)), rel=1e-9)


def test_a_distance_that_no_float_holds_is_infinite_and_the_sums_are_right_all_the_same() -> None:
    result = found(np.array([1.7e308]), np.array([-1.7e308]))
    assert result.max_abs == math.inf and result.rel_l2 == pytest.approx(2.0) and result.cosine == -1.0


def test_a_large_value_of_one_block_does_not_drown_those_of_another() -> None:
    one = np.concatenate([np.full(64, 1e200), np.full(64, 1e-200)])
    other = one.copy()
    other[100] = 2e-200
    result = found(one, other, block=64)
    assert result.rel_l2 == 0.0 or result.rel_l2 < 1e-300
    assert result.max_abs == pytest.approx(1e-200)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_make_no_difference(block: int) -> None:
    one = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    other = one + np.random.default_rng(1).standard_normal(200).astype(np.float32) / 100
    assert found(one, other, block=block).index == found(one, other).index
    assert found(one, other, block=block).rel_l2 == pytest.approx(found(one, other).rel_l2, rel=1e-12)


def test_parts_can_be_merged_in_any_order() -> None:
    one, other = np.float32([1, 2, 3, np.nan, 5]), np.float32([1, 2.5, 3, 4, 4.5])
    parts = []
    for start in (0, 2, 4):
        running = RunningDifference(Tolerance(0.1))
        raw = (memoryview(each[start : start + 2]).cast("B") for each in (one, other))
        running.add(*raw, bs.DType.F32, bs.DType.F32, start)
        parts.append(running)
    whole = found(one, other, tolerance=Tolerance(0.1))
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        merged = RunningDifference(Tolerance(0.1))
        for at in order:
            merged.merge(parts[at])
        assert merged.result((5,)) == whole
    assert whole.index == (1,)  # the first of the two that are furthest apart


def test_equal_parts_count_in_the_lengths() -> None:
    one, other = np.array([3.0, np.nan, 4.0]), np.array([3.0, np.nan, 3.0])
    running = RunningDifference()
    running.add_equal(memoryview(one[:2]).cast("B"), bs.DType.F64)
    running.add(memoryview(one[2:]).cast("B"), memoryview(other[2:]).cast("B"), bs.DType.F64, bs.DType.F64, 2)
    assert running.result((3,)) == found(one, other)


# --- other dtypes -----------------------------------------------------------------------------------------------------


def test_a_wider_dtype_with_the_same_values_differs_nowhere() -> None:
    one = np.float16([1, -0.0, np.inf, np.nan, 3.5])
    result = found(one, one.astype(np.float64))
    assert result.differing == 0 and result.max_abs == 0 and result.max_ulp is None


def test_a_zero_that_lost_its_sign_in_another_dtype_differs() -> None:
    assert found(np.float32([-0.0]), np.float64([0.0])).zero_signs == 1


@pytest.mark.parametrize(
    ("one", "other", "differing", "largest"),
    [
        (np.int32([-1, 2**31 - 1]), np.int64([-1, 2**31 - 1]), 0, 0),
        (np.uint64([2**64 - 1, 3]), np.int64([2**63 - 1, 3]), 1, 2**63),
        (np.uint64([2**63]), np.int64([-1]), 1, float(2**63 + 1)),
        (np.int64([2**53 + 1]), np.float64([2**53]), 1, 1.0),
        (np.int64([2**53]), np.float64([2**53]), 0, 0),
        (np.int64([2**63 - 1]), np.float64([2**63]), 1, 1.0),
        (np.uint64([2**64 - 1]), np.float64([2**64]), 1, 1.0),
        (np.uint8([3]), np.float32([3.5]), 1, 0.5),
        (np.array([True, False]), np.int8([1, 0]), 0, 0),
        (np.array([True, False]), np.float32([1, 2]), 1, 2.0),
        (np.complex64([1 + 2j]), np.float32([1]), 1, 2.0),
    ],
)
def test_other_dtypes_are_compared_without_rounding(
    one: np.ndarray, other: np.ndarray, differing: int, largest: float
) -> None:
    result = found(one, other)
    assert (result.differing, result.max_abs) == (differing, largest)
    turned = found(other, one)
    assert (turned.differing, turned.max_abs) == (differing, largest)


def test_real_and_complex_numbers_are_vectors_of_one_space() -> None:
    result = found(np.complex64([3j, 4]), np.float32([0, 4]))
    assert result.rel_l2 == pytest.approx(3 / 5) and result.cosine == pytest.approx(16 / 20)


# --- tolerance --------------------------------------------------------------------------------------------------------


def test_a_value_is_within_the_absolute_or_the_relative_tolerance() -> None:
    one, other = np.array([1.0, 100.0, 0.0]), np.array([1.05, 101.0, 0.2])
    assert found(one, other).beyond == 3
    assert found(one, other, tolerance=Tolerance(0.1)).beyond == 2
    assert found(one, other, tolerance=Tolerance(relative=0.05)).beyond == 1
    assert found(one, other, tolerance=Tolerance(0.25, 0.05)).beyond == 0
    assert found(other, one, tolerance=Tolerance(0.1, 0.009)).beyond == 2


def test_integers_have_tolerances_too() -> None:
    assert found(np.int64([0, 10]), np.int64([1, 12]), tolerance=Tolerance(1)).beyond == 1


@pytest.mark.parametrize("value", [-1, math.nan])
def test_a_tolerance_is_not_negative(value: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Tolerance(value)


def test_a_tolerance_is_a_number() -> None:
    with pytest.raises(TypeError, match="number"):
        Tolerance("1e-6")  # type: ignore[arg-type]


# --- as text and data -------------------------------------------------------------------------------------------------


def test_figures_are_strict_json() -> None:
    import json

    result = found(np.array([0.0, np.nan, 2**60]), np.array([1.0, 1.0, 1.0]))
    text = json.dumps(result.to_dict(), allow_nan=False)
    assert json.loads(text)["nan_mismatches"] == 1
    assert found(np.zeros(1), np.ones(1)).to_dict()["rel_l2"] == "Infinity"
    assert found(np.complex128([1j]), np.complex128([2])).to_dict()["values"] == [[0.0, 1.0], [2.0, 0.0]]
    assert found(np.uint64([0]), np.uint64([2**63])).to_dict()["max_abs"] == str(2**63)


def test_the_text_tells_what_the_figures_do_not() -> None:
    told = str(found(np.float32([np.nan, np.inf, 0.0, 1.0]), np.float32([1, 1, -0.0, 1.5])))
    assert told == (
        "4 of 4 values, by at most 0.5 (4194304 ulp) at [3]: 1 -> 1.5; relative L2 0.5, cosine 1; "
        "1 NaN on one side; 1 infinite on one side; 1 zeros of opposite sign"
    )
    assert str(found(np.float32([1]), np.float64([1]))) == "the values are equal"
