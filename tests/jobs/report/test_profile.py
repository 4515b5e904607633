"""Profiles: statistics, histogram and outliers of a tensor are those of its values, for every dtype."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import burnstore as bs
from burnstore.jobs.report.profile import MOST_OUTLIERS, Profile, all_profiles
from burnstore.jobs.stats import BLOCK, tensor_stats


def snapshot(values: np.ndarray) -> bs.TensorSnapshot:
    return bs.TensorSnapshot.from_numpy("x", values)


def tensor_profile(tensor: bs.TensorSnapshot) -> Profile:
    (found,) = all_profiles([tensor])
    assert isinstance(found, Profile)
    return found


def expected_outliers(values: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    """The values furthest from the mean, by sorting all of them."""
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    z = np.where(finite, np.abs(wide - wide[finite].mean()), -1.0).reshape(-1)
    order = sorted(np.flatnonzero(finite.reshape(-1)).tolist(), key=lambda at: (-z[at], at))[:MOST_OUTLIERS]
    return [(tuple(map(int, np.unravel_index(at, values.shape))), float(wide.reshape(-1)[at])) for at in order]


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, np.int64, np.uint16],
)
def test_a_profile_is_that_of_the_values(dtype: type) -> None:
    rng = np.random.default_rng(3)
    values = (rng.standard_normal((300, 40)) * 20).clip(0 if dtype is np.uint16 else -100, 100).astype(dtype)
    found = tensor_profile(snapshot(values))
    assert found.stats == tensor_stats(snapshot(values))
    assert found.histogram is not None and sum(found.histogram.counts) == values.size
    assert {abs(o.z) for o in found.outliers} and list(found.outliers) == sorted(
        found.outliers, key=lambda o: -abs(o.z)
    )


def test_outliers_are_the_values_furthest_from_the_mean_with_their_places() -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal((7, 1000, 50))  # more than one block
    assert values.size > BLOCK
    for place, value in (((0, 0, 0), 30.0), ((6, 999, 49), -40.0), ((3, 2, 1), np.nan), ((3, 2, 2), np.inf)):
        values[place] = value
    found = tensor_profile(snapshot(values))
    assert [(o.index, o.value) for o in found.outliers] == expected_outliers(values)
    assert found.outliers[0].index == (6, 999, 49) and found.outliers[0].z < -35
    assert found.stats.nan_count == 1 and found.stats.inf_count == 1
    assert found.histogram is not None and sum(found.histogram.counts) == values.size - 2


def test_of_equal_values_the_first_are_named() -> None:
    values = np.zeros(3 * BLOCK, np.float32)
    values[[10, BLOCK + 1, 2 * BLOCK + 5]] = 1.0
    found = tensor_profile(snapshot(values))
    assert [o.index[0] for o in found.outliers[:3]] == [10, BLOCK + 1, 2 * BLOCK + 5]
    assert [o.index[0] for o in found.outliers[3:]] == [0, 1, 2]


@pytest.mark.parametrize(
    "values", [np.zeros((0, 3)), np.full(4, 7.0), np.array([np.nan, np.inf]), np.array([1j, 2]), np.array(3.0)]
)
def test_where_nothing_is_spread_there_is_neither_histogram_nor_outlier(values: np.ndarray) -> None:
    found = tensor_profile(snapshot(values))
    assert found.histogram is None and found.outliers == ()
    assert found.stats == tensor_stats(snapshot(values))


def test_bools_and_quantized_tensors_count_as_numbers() -> None:
    found = tensor_profile(snapshot(np.array([True, False, True, True])))
    assert found.histogram is not None and found.histogram.counts == (1, 3)
    assert found.stats.mean == 0.75


def test_a_tensor_whose_values_cannot_be_shown_has_a_problem() -> None:
    broken = bs.TensorSnapshot("flag", bs.DType.Bool, (2,), snapshot(np.uint8([0, 7]))._data, nbytes=2)
    sound = snapshot(np.arange(3.0))
    first, second = all_profiles([broken, sound])
    assert isinstance(first, bs.errors.CorruptError) and "7" in first.message
    assert isinstance(second, Profile) and second.stats.max == 2.0


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_large_tensors_are_profiled_in_pieces_with_the_same_outcome(
    dtype: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    values = (rng.standard_normal((97, 1000)) * 30).astype(dtype)
    values[96, 999] = 3000
    if dtype is np.float32:
        values[50, :10] = np.nan
    expected = tensor_profile(snapshot(values))
    monkeypatch.setattr("burnstore.jobs.stats.CHUNK_BYTES", 40_000)
    bs.save({"x": values, "equal": np.full((30, 1000), 2.5)}, tmp_path / "x.bpk")
    with bs.open(tmp_path / "x.bpk") as opened:
        found = tensor_profile(opened["x"])
        equal = tensor_profile(opened["equal"])
    assert found.histogram == expected.histogram
    assert [(o.index, o.value) for o in found.outliers] == [(o.index, o.value) for o in expected.outliers]
    assert found.outliers[0].index == (96, 999)
    assert (found.stats.min, found.stats.max, found.stats.nan_count) == (
        expected.stats.min,
        expected.stats.max,
        expected.stats.nan_count,
    )
    assert equal.histogram is None and equal.stats.mean == 2.5
