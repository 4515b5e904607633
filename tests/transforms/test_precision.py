"""Casts: the values of NumPy's own, piece by piece, and never an infinity that was not there."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import burnstore as bs
from burnstore.io.sizes import CHUNK_BYTES
from burnstore.tensor.snapshot import TensorSnapshot
from burnstore.tensor.sources import Data
from burnstore.transforms.axes import transposed
from burnstore.transforms.precision import CastData, cast, cast_array, held_as

FLOATS = [bs.DType.F64, bs.DType.F32, bs.DType.F16, bs.DType.BF16, bs.DType.F8_E4M3, bs.DType.F8_E5M2]


@given(
    values=arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=True)),
    dtype=st.sampled_from(FLOATS),
    start=st.integers(0, 200),
    length=st.integers(0, 200),
)
def test_every_window_is_what_casting_the_whole_gives(values: Any, dtype: bs.DType, start: int, length: int) -> None:
    snapshot = TensorSnapshot.from_numpy("w", values)
    casted = cast(snapshot, dtype)
    expected, refusal = whole(values, dtype)
    if refusal is not None:
        with pytest.raises(bs.errors.DTypeError) as caught:
            casted.to_bytes()
        assert (caught.value.message, caught.value.hint) == (refusal.message, refusal.hint)
        return
    assert casted.to_bytes() == b"".join(map(bytes, casted.chunks())) == expected
    stop = min(start + length, len(expected))
    start = min(start, stop)
    assert bytes(casted._data.window(start, stop)) == expected[start:stop]
    assert casted._data.owned(start, stop).tobytes() == expected[start:stop]


def whole(values: Any, dtype: bs.DType) -> tuple[bytes, bs.errors.DTypeError | None]:
    """What casting everything at once gives, or why it does not."""
    try:
        return cast_array(values, dtype).tobytes(), None
    except bs.errors.DTypeError as error:
        return b"", error


class Uneven(Data):
    """Data whose chunks end in the middle of elements."""

    streams = True

    def __init__(self, raw: bytes, step: int) -> None:
        self.raw, self.step = raw, step

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.raw)[start:stop]

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        for start in range(0, nbytes, self.step):
            yield self.window(start, min(start + self.step, nbytes))


@pytest.mark.parametrize("step", [1, 3, 7, 4096])
def test_chunks_may_end_within_an_element(step: int) -> None:
    values = np.arange(1000, dtype=np.float32)
    snapshot = TensorSnapshot("w", bs.DType.F32, (1000,), Uneven(values.tobytes(), step))
    assert b"".join(map(bytes, cast(snapshot, bs.DType.F64).chunks())) == values.astype(np.float64).tobytes()


def test_a_large_tensor_comes_in_pieces_and_an_overflow_is_told_of_the_whole(tmp_path: Path) -> None:
    values = np.ones(3 * CHUNK_BYTES // 4 + 5, np.float32)
    values[[10, CHUNK_BYTES // 4 + 1, len(values) - 1]] = [1e30, -2e30, 1e29]
    bs.save({"w": values}, tmp_path / "a.bpk")
    with bs.open(tmp_path / "a.bpk") as f:
        casted = cast(f["w"], bs.DType.BF16)
        sizes = [len(chunk) for chunk in casted.chunks()]
        assert len(sizes) >= 3 and max(sizes) <= CHUNK_BYTES and sum(sizes) == casted.nbytes
        assert casted.bytes_held <= 2 * CHUNK_BYTES
        half = cast(f["w"], bs.DType.F16)
        for read in (half.to_bytes, lambda: list(half.chunks()), lambda: half[CHUNK_BYTES // 4 + 1]):
            with pytest.raises(
                bs.errors.DTypeError, match="3 finite values, up to 2e\\+30, are too large for F16"
            ) as caught:
                read()
            assert caught.value.tensor == "w" and "BF16" in str(caught.value.hint)


def test_what_is_made_whole_counts_as_held() -> None:
    matrix = TensorSnapshot.from_numpy("w", np.zeros((3000, 2000), np.float32))
    held = cast(transposed(matrix), bs.DType.F16).bytes_held
    assert matrix.nbytes <= held <= matrix.nbytes + CHUNK_BYTES
    assert cast(matrix, bs.DType.F32) is matrix


def test_names_ids_and_containers_stay_and_it_can_be_pickled(tmp_path: Path) -> None:
    bs.save({"w": np.arange(6, dtype=np.float64)}, tmp_path / "a.bpk")
    with bs.open(tmp_path / "a.bpk") as f:
        snapshot = TensorSnapshot("w", bs.DType.F64, (6,), f["w"]._data, param_id=7, container_stack=("Struct:Linear",))
        casted = pickle.loads(pickle.dumps(cast(snapshot, bs.DType.BF16)))
        assert isinstance(casted._data, CastData)
        assert (casted.path, casted.shape, casted.container_stack) == ("w", (6,), ("Struct:Linear",))
        assert int(casted.param_id) == 7 and casted.numpy().astype(np.float64).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("dtype", "wanted"), [(np.int32, bs.DType.F32), (np.float32, bs.DType.I32), (np.float32, bs.DType.F4)]
)
def test_only_floats_of_whole_bytes_are_cast(dtype: Any, wanted: bs.DType) -> None:
    with pytest.raises(bs.errors.DTypeError):
        cast(TensorSnapshot.from_numpy("w", np.ones(4, dtype)), wanted)


@pytest.mark.parametrize("value", [-1, 256])
def test_an_integer_that_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(bs.errors.DTypeError, match="do not fit U8"):
        held_as(np.array([0, value]), bs.DType.U8)


def test_integers_at_the_ends_of_a_dtype_and_none_at_all_fit() -> None:
    assert held_as(np.array([0, 255]), bs.DType.U8).tolist() == [0, 255]
    assert held_as(np.array([-128, 127]), bs.DType.I8).tolist() == [-128, 127]
    assert held_as(np.zeros(0, np.int64), bs.DType.U8).dtype == np.uint8


def test_numbers_held_as_bools_are_true_unless_they_are_0() -> None:
    assert held_as(np.array([0, 2, 1]), bs.DType.Bool).tolist() == [False, True, True]
