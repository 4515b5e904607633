"""Histograms: every value is in the bar that says so, however the values were cut into blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.jobs.report.histogram import MOST_BINS, Histogram, RunningHistogram

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def histogram_of(*blocks: np.ndarray) -> Histogram | None:
    running = RunningHistogram()
    for block in blocks:
        running.add(block, block.min().item(), block.max().item())
    return running.result()


def check(found: Histogram, values: np.ndarray) -> None:
    """Each bar has as many values as are at least its left edge and below its right one."""
    assert len(found.counts) <= MOST_BINS
    assert sum(found.counts) == values.size
    assert found.counts[0] > 0 and found.counts[-1] > 0
    edges = [(found.first + at) * 2**found.exponent if found.exponent >= 0 else None for at in range(MOST_BINS + 1)]
    exact = [int(value) for value in values] if values.dtype.kind in "iu" else None
    for at, count in enumerate(found.counts):
        if exact is not None:
            assert count == sum(edges[at] <= value < edges[at + 1] for value in exact)
        else:
            low, high = found.edges[at], found.edges[at + 1]
            assert count == np.count_nonzero((values >= low) & (values < high))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("shift", [0.0, 1.0, -1e6])
def test_every_value_is_counted_in_its_bar(dtype: type, scale: float, shift: float) -> None:
    rng = np.random.default_rng(7)
    values = (rng.standard_normal(20_001) * scale + shift * scale).astype(dtype)
    found = histogram_of(values)
    assert found is not None and len(found.counts) > MOST_BINS // 4
    check(found, values)


def test_a_value_just_below_an_edge_does_not_slip_over_it() -> None:
    values = np.array([-40.0, 0.0, np.nextafter(np.float32(5), np.float32(0)), 5.0, 23.0], np.float32)
    found = histogram_of(values)
    assert found is not None and (found.first, found.exponent) == (-40, 0)
    assert found.counts[40 + 4] == 1 and found.counts[40 + 5] == 1


@given(st.lists(FLOATS, min_size=2, max_size=40), st.integers(1, 39))
def test_the_cut_into_blocks_makes_no_difference(values: list[float], cut: int) -> None:
    whole = np.array(values)
    parts = [part for part in (whole[:cut], whole[cut:]) if part.size]
    found = histogram_of(whole)
    assert histogram_of(*parts) == found
    assert histogram_of(*parts[::-1]) == found
    assert histogram_of(*(whole[at : at + 1] for at in range(whole.size))) == found
    apart = [RunningHistogram() for _ in parts]
    for running, part in zip(apart, parts, strict=True):
        running.add(part, part.min().item(), part.max().item())
    merged = RunningHistogram()
    for running in [RunningHistogram(), *apart[::-1]]:
        merged.merge(running)
    assert merged.result() == found
    if found is None:
        assert whole.min() == whole.max()
    else:
        assert sum(found.counts) == whole.size


@given(
    st.sampled_from([np.int8, np.uint8, np.int16, np.int64, np.uint64]).flatmap(
        lambda dtype: st.lists(
            st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)), min_size=2, max_size=30
        ).map(lambda values: np.array(values, dtype))
    )
)
def test_integers_are_counted_exactly(values: np.ndarray) -> None:
    found = histogram_of(values)
    if found is None:
        assert values.min() == values.max()
    else:
        check(found, values)


@pytest.mark.parametrize("exponent", [-1074, -1022, -300, 0, 300, 1023])
def test_the_ends_of_the_range_of_floats_are_counted(exponent: int) -> None:
    size = float(np.ldexp(1.0, exponent))
    values = np.array([-size, 0.0, size])
    found = histogram_of(values)
    assert found is not None and sum(found.counts) == 3


def test_equal_values_need_no_bars() -> None:
    assert histogram_of(np.full(1000, 2.5)) is None
    found = histogram_of(np.full(1000, 2.5), np.array([3.5]))
    assert found is not None and found.counts[0] == 1000 and found.counts[-1] == 1
    assert RunningHistogram().result() is None
