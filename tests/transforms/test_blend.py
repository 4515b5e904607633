"""Blends: weighted sums against float64 arithmetic, arcs, and tensors that several sources must have alike."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import burnstore as bs
from burnstore import DType, TensorSnapshot
from burnstore.errors import DTypeError, MergeError
from burnstore.transforms import blend
from burnstore.transforms.axes import transposed
from burnstore.transforms.blend import agreed, arc_weights, blended, can_blend

BLENDABLE = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
}
Array = Any


def snapshot(values: Array, name: str = "w") -> TensorSnapshot:
    return TensorSnapshot.from_numpy(name, values)


def values_of(dtype: str, seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(BLENDABLE[dtype])


def bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def exact_sum(arrays: list[Array], weights: list[float], dtype: Any) -> Array:
    """The sum in 80 bits, rounded once."""
    total = sum(
        array.astype(np.longdouble) * np.longdouble(weight) for array, weight in zip(arrays, weights, strict=True)
    )
    return np.asarray(total).astype(np.float64).astype(dtype)


@pytest.mark.parametrize("dtype", BLENDABLE)
@pytest.mark.parametrize("weights", [[0.3, 0.7], [0.5, 0.25, 0.25], [1.0, 0.4, -0.4], [1 / 7] * 7])
def test_a_weighted_sum_is_that_of_more_precise_arithmetic(dtype: str, weights: list[float]) -> None:
    arrays = [values_of(dtype, seed, 257, 3) for seed in range(len(weights))]
    found = blended([snapshot(array) for array in arrays], weights).numpy()
    wanted = exact_sum(arrays, weights, BLENDABLE[dtype])
    apart = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    step = float(ml_dtypes.finfo(BLENDABLE[dtype]).eps) * np.maximum(np.abs(wanted.astype(np.float64)), 1)
    assert found.dtype == wanted.dtype and (apart <= step).all()
    if dtype != "F64":  # computed in twice the digits: all but near ties are the nearest value itself
        assert np.mean(apart == 0) > (0.9 if dtype == "F8_E4M3" else 0.97)


def test_the_sum_is_that_of_torch() -> None:
    arrays = [values_of("F32", seed, 1000) for seed in range(2)]
    wanted = torch.lerp(*(torch.from_numpy(array).double() for array in arrays), 0.7).float().numpy()
    found = blended([snapshot(array) for array in arrays], [1 - 0.7, 0.7]).numpy()
    np.testing.assert_allclose(found, wanted, rtol=2e-7, atol=1e-9)
    assert np.mean(found == wanted) > 0.99


@given(
    data=st.data(),
    dtype=st.sampled_from(["F32", "F16", "BF16"]),
    shape=npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
def test_a_tensor_blended_with_itself_is_itself(data: st.DataObject, dtype: str, shape: tuple[int, ...]) -> None:
    array = data.draw(npst.arrays(np.float32, shape, elements=st.floats(-60000, 60000, width=32)))
    array = array.astype(BLENDABLE[dtype])
    part = data.draw(st.floats(0, 1))
    found = blended([snapshot(array), snapshot(array.copy())], [1 - part, part])
    assert found.shape == shape and np.array_equal(found.numpy(), array)


@pytest.mark.parametrize("dtype", BLENDABLE)
def test_one_source_alone_is_bit_equal_whatever_its_nan_carry(dtype: str) -> None:
    raw = np.random.default_rng(1).integers(0, 256, 4096, np.uint8)
    array = raw.view(BLENDABLE[dtype])
    other = np.full_like(array, np.nan)
    assert blended([snapshot(array)], [1.0]).to_bytes() == raw.tobytes()
    assert blended([snapshot(array), snapshot(other)], [1.0, 0.0]).to_bytes() == raw.tobytes()
    assert blended([snapshot(other), snapshot(array)], [0.0, 1.0]).to_bytes() == raw.tobytes()


def test_a_source_of_weight_0_gives_no_nan_to_a_sum() -> None:
    first, second = values_of("F32", 1, 8), values_of("F32", 2, 8)
    broken = np.full(8, np.nan, np.float32)
    found = blended([snapshot(first), snapshot(broken), snapshot(second)], [0.5, 0.0, 0.5])
    assert found.to_bytes() == blended([snapshot(first), snapshot(second)], [0.5, 0.5]).to_bytes()


def test_nan_and_infinities_of_sources_stay_what_arithmetic_makes_of_them() -> None:
    first = np.float32([np.nan, np.inf, np.inf, 1])
    second = np.float32([1, 1, -np.inf, 1])
    found = blended([snapshot(first), snapshot(second)], [0.5, 0.5]).numpy()
    assert np.isnan(found[[0, 2]]).all() and found[1] == np.inf and found[3] == 1


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_a_finite_sum_that_does_not_fit_is_an_error_and_not_an_infinity(dtype: str) -> None:
    largest = ml_dtypes.finfo(BLENDABLE[dtype]).max
    tall, deep = (snapshot(np.array([1, sign * largest], BLENDABLE[dtype])) for sign in (1, -1))
    with pytest.raises(DTypeError, match=r"tensor 'w': 1 sum is too large for"):
        blended([tall, deep], [2.0, -1.0]).numpy()


def test_a_sum_can_be_asked_for_in_another_dtype() -> None:
    first, second = values_of("BF16", 1, 100), values_of("F32", 2, 100)
    found = blended([snapshot(first), snapshot(second)], [0.5, 0.5], dtype=DType.F16)
    assert found.dtype is DType.F16 and found.nbytes == 200
    assert np.array_equal(found.numpy(), exact_sum([first, second], [0.5, 0.5], np.float16))


def test_complex_numbers_blend() -> None:
    first, second = np.complex64([1 + 2j]), np.complex64([3 - 2j])
    assert blended([snapshot(first), snapshot(second)], [0.5, 0.5]).numpy().tolist() == [2 + 0j]


@pytest.mark.parametrize("read_bytes", [1 << 16, 1 << 17, 1 << 20])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_size_of_blocks_changes_no_bit(dtype: str, read_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [values_of(dtype, seed, 50_001) for seed in range(3)]
    weights = [0.2, 0.3, 0.5]
    whole = blended([snapshot(array) for array in arrays], weights).to_bytes()
    angle = arc_weights(snapshot(arrays[0]), snapshot(arrays[1]), 0.3)
    monkeypatch.setattr(blend, "_READ_BYTES", read_bytes)
    tensor = blended([snapshot(array) for array in arrays], weights)
    assert b"".join(map(bytes, tensor.chunks())) == whole
    assert arc_weights(snapshot(arrays[0]), snapshot(arrays[1]), 0.3) == angle


@given(st.integers(0, 40_000), st.integers(0, 40_000))
def test_any_window_is_a_part_of_the_whole(one: int, other: int) -> None:
    start, stop = sorted((one, other))
    data = blended([snapshot(values_of("BF16", seed, 20_000)) for seed in range(2)], [0.5, 0.5])._data
    assert bytes(data.window(start, stop)) == bytes(data.window(0, 40_000))[start:stop]


def test_part_of_a_blend_reads_part_of_the_sources(tmp_path: Path) -> None:
    for name in ("a", "b"):
        bs.save({"w": np.ones((1000, 8), np.float32)}, tmp_path / f"{name}.bpk")
    with bs.open(tmp_path / "a.bpk") as a, bs.open(tmp_path / "b.bpk") as b:
        assert blended([a["w"], b["w"]], [0.5, 0.5])[10:12].tolist() == [[1.0] * 8] * 2


def test_blends_of_files_travel_between_processes_and_those_of_transposed_tensors_too(tmp_path: Path) -> None:
    arrays = [values_of("F32", seed, 30, 20) for seed in range(2)]
    for name, array in zip("ab", arrays, strict=True):
        bs.save({"w": array}, tmp_path / f"{name}.bpk")
    with bs.open(tmp_path / "a.bpk") as a, bs.open(tmp_path / "b.bpk") as b:
        plain = blended([a["w"], b["w"]], [0.25, 0.75])
        turned = blended([transposed(a["w"]), transposed(b["w"])], [0.25, 0.75])
        data, turned_data = pickle.loads(pickle.dumps((plain._data, turned._data)))
        assert plain._data.streams and not turned._data.streams  # type: ignore[attr-defined]
        assert bytes(data.window(0, plain.nbytes)) == plain.to_bytes()
        assert b"".join(turned_data.chunks(plain.nbytes)) == bits(plain.numpy().T)


# --- arcs -------------------------------------------------------------------------------------------------------------


def slerp(first: Array, second: Array, t: float) -> Array:
    """As the literature has it, over whole vectors in float64."""
    x, y = first.astype(np.float64), second.astype(np.float64)
    angle = np.arccos(np.vdot(x, y) / np.linalg.norm(x) / np.linalg.norm(y))
    return (np.sin((1 - t) * angle) * x + np.sin(t * angle) * y) / np.sin(angle)


@pytest.mark.parametrize("t", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_an_arc_is_that_of_float64_arithmetic(t: float) -> None:
    first, second = values_of("F32", 1, 40, 30), values_of("F32", 2, 40, 30)
    weights = arc_weights(snapshot(first), snapshot(second), t)
    assert weights is not None
    found = blended([snapshot(first), snapshot(second)], weights).numpy()
    np.testing.assert_allclose(found, slerp(first, second, t), rtol=1e-6, atol=1e-7)


def test_an_arc_between_complex_numbers_counts_both_of_their_parts() -> None:
    draw = np.random.default_rng(5)
    real = draw.standard_normal((2, 12))
    first, second = real.view(np.complex128)
    expected = arc_weights(snapshot(real[0]), snapshot(real[1]), 0.3)
    assert arc_weights(snapshot(first), snapshot(second), 0.3) == pytest.approx(expected, rel=1e-12)


def test_an_arc_of_many_reads_and_blocks_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(6)
    first, second = (snapshot(draw.standard_normal(1003).astype(np.float32)) for _ in range(2))
    expected = arc_weights(first, second, 0.3)
    monkeypatch.setattr(blend, "_BLOCK", 64)
    monkeypatch.setattr(blend, "_READ_BYTES", 1024)
    assert arc_weights(first, second, 0.3) == pytest.approx(expected, rel=1e-9)


def test_halfway_along_an_arc_a_vector_keeps_its_length() -> None:
    first, second = snapshot(np.float64([2, 0, 0])), snapshot(np.float64([0, 2, 0]))
    weights = arc_weights(first, second, 0.5)
    assert weights is not None
    assert math.isclose(float(np.linalg.norm(blended([first, second], weights).numpy())), 2.0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3], [-1, -2, -3]),
        ([1, 2, 3], [1.0001, 2, 3]),
        ([0, 0, 0], [1, 2, 3]),
        ([1, 2, np.nan], [3, 2, 1]),
        ([1, 2, np.inf], [3, 2, 1]),
        ([], []),
    ],
    ids=["equal", "opposite", "nearly-parallel", "zero", "nan", "inf", "empty"],
)
def test_there_is_no_arc_between_these(first: list[float], second: list[float]) -> None:
    assert arc_weights(snapshot(np.float32(first)), snapshot(np.float32(second)), 0.5) is None


# --- what has no mean -------------------------------------------------------------------------------------------------


def test_what_has_numbers_between_two_others_blends_and_nothing_else_does() -> None:
    no_mean = ("I64", "U8", "Bool", "F4", "F6_E2M3", "F8_E8M0", "C32")
    assert not any(can_blend(DType.parse(name)) for name in no_mean)
    assert all(can_blend(DType.parse(name)) for name in ("F64", "F16", "BF16", "F8_E5M2", "C64", "Flex32"))
    counts = snapshot(np.int64([1]))
    with pytest.raises(DTypeError, match="cannot blend I64 into I64"):
        blended([counts, counts], [0.5, 0.5])


def test_shapes_must_be_equal() -> None:
    with pytest.raises(MergeError, match=r"cannot blend shapes \[2\] and \[3\]"):
        blended([snapshot(np.zeros(2)), snapshot(np.zeros(3))], [0.5, 0.5])


@given(st.lists(st.integers(-5, 5), max_size=6), st.lists(st.integers(-5, 5), max_size=6))
def test_what_sources_must_have_alike_is_theirs_or_an_error(one: list[int], other: list[int]) -> None:
    if len(one) != len(other):
        other = one
    both = agreed([snapshot(np.int64(one)), snapshot(np.int64(other))])
    if one == other:
        assert both.numpy().tolist() == one and b"".join(both.chunks()) == np.int64(one).tobytes()
    else:
        for read in (both.numpy, both.to_bytes, lambda: list(both.chunks()), lambda: both.numpy(copy=True)):
            with pytest.raises(MergeError, match="tensor 'w': differs from that of another source"):
                read()
