"""Tensors that a file has under several names: compared piece by piece, and never as a whole in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import burnstore as bs
from burnstore.io.source import BytesSource
from burnstore.models.load import ties
from burnstore.models.load.ties import same_values
from burnstore.tensor.data import Array
from burnstore.tensor.dtype import DType
from burnstore.tensor.snapshot import TensorSnapshot
from burnstore.tensor.sources import SourceData
from burnstore.transforms.axes import joined, transposed


class Counted(BytesSource):
    """A source that keeps account of how much is asked of it at a time."""

    reads: list[int]

    def read_into(self, reads: Sequence[tuple[int, memoryview]]) -> None:
        self.reads = [*getattr(self, "reads", []), *(len(buffer) for _, buffer in reads)]
        super().read_into(reads)


def in_source(array: Array, source: BytesSource | None = None) -> TensorSnapshot:
    source = Counted(array.tobytes()) if source is None else source
    return TensorSnapshot("w", DType.of(array.dtype), array.shape, SourceData(source, 0, array.nbytes))


@pytest.fixture(autouse=True)
def small_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ties, "_BAND_BYTES", 4096)


def matrix() -> Array:
    return np.random.default_rng(5).integers(0, 1 << 16, (300, 170)).astype(np.uint16).view(np.float16)


def test_a_matrix_and_the_same_one_turned_have_the_same_values() -> None:
    array = matrix()
    turned = transposed(in_source(np.ascontiguousarray(array.T)))
    assert same_values(in_source(array), turned) and same_values(turned, in_source(array))


@pytest.mark.parametrize("place", [(0, 0), (0, 169), (150, 80), (299, 169)])
def test_a_single_bit_that_differs_is_found(place: tuple[int, int]) -> None:
    other = matrix()
    other.view(np.uint16)[place] ^= 1
    assert not same_values(in_source(matrix()), in_source(other))
    assert not same_values(in_source(matrix()), transposed(in_source(np.ascontiguousarray(other.T))))
    assert not same_values(in_source(matrix()), joined([in_source(other[:100]), in_source(other[100:])]))


def test_parts_that_are_joined_are_compared_too() -> None:
    array = matrix()
    assert same_values(in_source(array), joined([in_source(array[:100]), in_source(array[100:])]))


def test_zeros_of_other_signs_and_nans_are_told_apart_by_their_bits() -> None:
    zeros = np.zeros(9, np.float32)
    nans = np.full(9, np.nan, np.float32)
    assert not same_values(in_source(zeros), in_source(-zeros))
    assert same_values(in_source(nans), in_source(nans.copy()))


def test_what_lies_in_the_same_place_is_not_read() -> None:
    array = matrix()
    source = Counted(array.tobytes())
    assert same_values(in_source(array, source), in_source(array, source))
    assert same_values(transposed(in_source(array, source)), transposed(in_source(array, source)))
    assert not hasattr(source, "reads")


def test_no_more_than_a_band_is_read_at_a_time() -> None:
    array = matrix()
    one, other = Counted(array.tobytes()), Counted(array.tobytes())
    assert same_values(in_source(array, one), in_source(array, other))
    for source in (one, other):
        assert max(source.reads) <= 4096 and sum(source.reads) == array.nbytes


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 1, 2)])
def test_tensors_of_any_shape_are_compared(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.int32)
    assert same_values(in_source(array), in_source(array.copy()))
    if array.size:
        assert not same_values(in_source(array), in_source(array * 2))


def test_values_that_share_bytes_are_compared_too() -> None:
    packed = np.arange(9000, dtype=np.uint8)
    one, other = (
        TensorSnapshot("w", DType.F4, (18_000,), SourceData(BytesSource(raw), 0, 9000))
        for raw in (packed.tobytes(), packed.tobytes()[:-1] + b"!")
    )
    assert same_values(one, TensorSnapshot("v", DType.F4, (18_000,), SourceData(BytesSource(packed), 0, 9000)))
    assert not same_values(one, other)


def test_other_dtypes_and_shapes_are_not_the_same() -> None:
    array = np.ones((2, 3), np.int32)
    assert not same_values(in_source(array), in_source(array.view(np.float32)))
    assert not same_values(in_source(array), in_source(array.reshape(3, 2)))


def test_what_cannot_be_read_is_not_the_same() -> None:
    array = matrix()
    short = TensorSnapshot("w", DType.F16, array.shape, SourceData(BytesSource(b"short"), 0, array.nbytes))
    assert not same_values(in_source(array), short)


def test_a_large_tie_on_the_cpu_is_read_directly_and_stays_a_tie(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(300, 200)
            self.head = nn.Linear(200, 300, bias=False)
            self.head.weight = self.table.weight

    source, model = Tied(), Tied()
    weight, place = model.table.weight, model.table.weight.data_ptr()
    for suffix in ("bpk", "safetensors"):
        bs.save(source, tmp_path / f"tied.{suffix}")
        with torch.no_grad():
            weight.zero_()
        version = weight._version
        assert bs.load(model, tmp_path / f"tied.{suffix}").is_complete
        assert torch.equal(weight, source.table.weight) and weight._version > version
        assert model.head.weight is weight is model.table.weight and weight.data_ptr() == place


# --- tensors that the model has under several names, and the file under one -------------------------------------------


class Twice:
    """A model whose array has two names."""

    def __init__(self, size: int) -> None:
        self.first = self.second = np.zeros(size, np.float32)
        self.other = np.ones(2, np.float32)


@pytest.mark.parametrize("size", [3, 1 << 15])
@pytest.mark.parametrize("name", ["first", "second"])
def test_an_array_with_two_names_takes_the_one_that_the_file_has(name: str, size: int, tmp_path: Path) -> None:
    values = np.arange(size, dtype=np.float32)
    bs.save({name: values}, tmp_path / "x.bpk", layout="burn")
    model = Twice(size)
    result = bs.load(model, tmp_path / "x.bpk", allow_partial=True)
    assert result.applied == ["first", "second"] and result.missing == ["other"]
    follower = "second" if name == "first" else "first"
    assert f"'{follower}' is shared with '{name}' and took its tensor" in result.notes
    assert model.first is model.second and np.array_equal(model.first, values)
    assert model.other.tolist() == [1, 1]


@pytest.mark.parametrize("size", [3, 1 << 15])
def test_a_replaced_array_is_replaced_under_both_names(size: int, tmp_path: Path) -> None:
    fixed = np.zeros(size, np.float32)
    fixed.flags.writeable = False  # so that the load has to put another array in its place
    model = {"a": {"w": fixed}, "b": {"w": fixed}}
    bs.save({"b.w": np.arange(size, dtype=np.float32)}, tmp_path / "x.bpk", layout="burn")
    result = bs.load(model, tmp_path / "x.bpk")
    assert result.applied == ["a.w", "b.w"] and not result.missing
    assert model["a"]["w"] is model["b"]["w"] and model["a"]["w"][-1] == size - 1


def test_a_name_whose_leader_cannot_be_read_is_missing() -> None:
    def refuse() -> Array:
        raise bs.errors.CorruptError("its bytes are damaged")

    broken = TensorSnapshot.from_closure("first", DType.F32, (3,), refuse)
    model = Twice(3)
    result = bs.apply(model, [broken, TensorSnapshot.from_numpy("other", np.zeros(2, np.float32))])
    assert "damaged" in str(result.errors[0]) and len(result.errors) == 1
    assert result.applied == ["other"] and result.missing == ["second"]
    assert not model.first.any() and not model.other.any()
