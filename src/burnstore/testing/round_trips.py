"""What is saved comes back: every dtype, shape, memory layout, name, text and id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..errors import BurnstoreError, DTypeError, DuplicateNameError
from ..tensor.data import TensorData
from ..tensor.dtype import DType
from ..tensor.param_id import ParamId
from ..tensor.snapshot import TensorSnapshot
from .abilities import Abilities, f32, files_in, same_bits

EVERY_DTYPE = [
    *(DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16, DType.I8),
    *(DType.U64, DType.U32, DType.U16, DType.U8, DType.Bool, DType.BoolU8, DType.BoolU32),
    *(DType.F8_E4M3, DType.F8_E5M2, DType.F8_E8M0, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ),
    *(DType.F6_E2M3, DType.F6_E3M2, DType.F4, DType.C32, DType.C64, DType.C128),
]


class RoundTrips(Abilities):
    """Saving, then opening, gives the same tensors."""

    def test_a_tensor_of_any_bits_comes_back_bit_for_bit(self, dtype: DType, shape: tuple[int, ...]) -> None:
        try:
            data = self.any_bits(dtype, shape)
        except DTypeError:
            pytest.skip(f"{dtype} of this shape does not fill whole bytes")
        with self.open(self.pack({"before": f32(1), "t": data, "after": f32(2)})) as f:
            found = f["t"]
            assert (found.dtype, found.shape, found.nbytes) == (dtype, shape, data.nbytes)
            assert found.to_bytes() == data.to_bytes()
            assert found.to_data().to_bytes() == data.to_bytes()
            assert b"".join(found.chunks()) == data.to_bytes()
            assert [f["before"][0].item(), f["after"][0].item()] == [1, 2]

    def test_numpy_gives_the_values_of_every_dtype_that_it_has(self, dtype: DType) -> None:
        data = self.any_bits(dtype, (4, 6))
        with self.open(self.pack({"t": data})) as f:
            if dtype.bits % 8:
                with pytest.raises(DTypeError):
                    f["t"].numpy()
                with pytest.raises(DTypeError):
                    f.numpy()
                return
            array = f["t"].numpy()
            assert array.shape == (4, 6)
            if not dtype.is_quantized:
                assert array.dtype == dtype.numpy
                assert same_bits(array, data.numpy())
            assert same_bits(f.numpy()["t"], array)

    def test_an_array_is_saved_row_major_however_it_lies_in_memory(self, layout: Any) -> None:
        array = layout(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
        with self.open(self.pack({"t": array})) as f:
            assert f["t"].to_bytes() == np.ascontiguousarray(array, "<f4").tobytes()
            assert same_bits(f["t"].numpy(), array)
            assert same_bits(f.numpy()["t"], array)

    def test_a_slice_of_a_larger_array_is_saved_without_its_surroundings(self) -> None:
        array = np.arange(100, dtype=np.float32).reshape(10, 10)
        with self.open(self.pack({"t": array[2:5, 3:7]})) as f:
            assert f["t"].numpy().tolist() == array[2:5, 3:7].tolist()

    def test_a_numpy_scalar_is_a_tensor_without_axes(self) -> None:
        with self.open(self.pack({"t": np.float32(2.5)})) as f:
            assert f["t"].shape == ()
            assert f["t"].numpy()[()] == 2.5

    def test_a_tensor_larger_than_one_chunk_comes_back(self, tmp_path: Path) -> None:
        array = np.random.default_rng(1).random((3_000_001,), np.float32)
        path = tmp_path / f"large{self.suffix}"
        self.save({"small": f32(1), "large": array, "last": f32(2)}, path)
        with self.open(path) as f:
            assert same_bits(f["large"].numpy(), array)
            assert same_bits(f.numpy()["large"], array)
            assert f["last"][0] == 2

    def test_two_thousand_tensors_come_back(self) -> None:
        tensors = {f"layers.{n}.weight": np.full((n % 5, 3), n, np.float32) for n in range(2000)}
        with self.open(self.pack(tensors)) as f:
            assert set(f) == set(tensors)
            arrays = f.numpy()
            assert all(same_bits(arrays[name], array) for name, array in tensors.items())

    def test_a_file_without_tensors_opens_empty(self) -> None:
        with self.open(self.pack({})) as f:
            assert (len(f), list(f), f.numpy(), f.nbytes) == (0, [], {}, 0)

    def test_a_name_comes_back(self, name: str) -> None:
        with self.open(self.pack({"first": f32(0), name: f32(1)})) as f:
            assert set(f) == {"first", name}
            assert f[name].path == name
            assert f[name][0] == 1

    def test_names_that_differ_little_stay_apart(self) -> None:
        names = ["a", "A", "a ", "a.b", "a.b.", "a..b", "é", "e\u0301", "a.10", "a.9", "a.09"]
        tensors = {name: f32(number) for number, name in enumerate(names)}
        with self.open(self.pack(tensors)) as f:
            assert {name: f[name][0] for name in f} == {name: number for number, name in enumerate(names)}

    def test_tensors_come_in_the_order_of_their_data(self) -> None:
        tensors = self.floats()
        with self.open(self.pack(tensors)) as f:
            offsets = [f.offset_of(name) for name in f]
            assert offsets == sorted(offsets)
            assert set(f) == set(tensors)
            if self.keeps_order:
                assert list(f) == list(tensors)
                assert list(f.numpy()) == list(tensors)

    def test_metadata_comes_back(self, metadata: dict[str, str]) -> None:
        with self.open(self.pack({"t": f32(1)}, metadata=metadata)) as f:
            assert dict(f.metadata) == metadata
            assert f["t"][0] == 1

    def test_metadata_that_cannot_be_kept_is_refused(self) -> None:
        if self.holds_metadata:
            pytest.skip("this format holds metadata")
        with pytest.raises((BurnstoreError, TypeError, ValueError)):
            self.pack({"t": f32(1)}, metadata={"epochs": "100"})

    def test_metadata_cannot_be_changed_through_the_checkpoint(self) -> None:
        with self.open(self.pack({"t": f32(1)})) as f, pytest.raises(TypeError):
            f.metadata["a"] = "b"  # type: ignore[index]

    @pytest.mark.parametrize("number", [None, 0, 1, 23, 24, 2**31, 2**53 + 1, 2**63, 2**64 - 1])
    def test_a_parameter_id_comes_back_or_is_none(self, number: int | None) -> None:
        given = TensorSnapshot.from_numpy("t", f32(1), param_id=number)
        with self.open(self.pack([given])) as f:
            found = f["t"].param_id
            assert found == (number if self.holds_param_ids else None)
            assert found is None or isinstance(found, ParamId)

    def test_arrays_snapshots_and_data_can_be_mixed(self) -> None:
        array = f32(1, 2)
        mixed = {
            "array": array,
            "data": TensorData.from_numpy(array),
            "snapshot": TensorSnapshot.from_numpy("another name", array),
            "closure": TensorSnapshot.from_closure("closure", DType.F32, [2], lambda: array),
        }
        with self.open(self.pack(mixed)) as f:
            assert {name: value.tolist() for name, value in f.numpy().items()} == {key: [1, 2] for key in mixed}

    def test_snapshots_can_come_from_a_generator(self) -> None:
        given = (TensorSnapshot.from_numpy(name, f32(1)) for name in "abc")
        with self.open(self.pack(given)) as f:
            assert set(f) == {"a", "b", "c"}

    def test_an_open_checkpoint_can_be_saved_again(self, tmp_path: Path) -> None:
        first, second = tmp_path / f"first{self.suffix}", tmp_path / f"second{self.suffix}"
        self.save(self.floats(), first)
        with self.open(first) as f:
            self.save(f, second, metadata=f.metadata)
        with self.open(first) as f, self.open(second) as g:
            assert {name: t.to_bytes() for name, t in f.items()} == {name: t.to_bytes() for name, t in g.items()}
            assert f.metadata == g.metadata
        if self.deterministic:
            assert first.read_bytes() == second.read_bytes()

    def test_a_dtype_that_cannot_be_held_is_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        for dtype in EVERY_DTYPE:
            if dtype in self.dtypes or dtype in self.stored_as:
                continue
            data = TensorData.from_bytes(bytes(dtype.nbytes([8])), dtype, [8])
            with pytest.raises(DTypeError) as caught:
                self.save({"first": f32(1), "the one": data}, tmp_path / f"model{self.suffix}")
            assert caught.value.tensor == "the one"
            assert files_in(tmp_path) == []

    def test_a_dtype_of_equal_bytes_comes_back_under_the_name_that_the_format_has(self) -> None:
        for given, expected in self.stored_as.items():
            data = self.any_bits(given, (3, 4))
            with self.open(self.pack({"t": data})) as f:
                assert f["t"].dtype is expected
                assert f["t"].to_bytes() == data.to_bytes()

    def test_two_tensors_of_one_name_are_refused(self) -> None:
        twice = [TensorSnapshot.from_numpy("a", f32(n)) for n in range(2)]
        with pytest.raises(DuplicateNameError) as caught:
            self.pack(twice)
        assert caught.value.tensor == "a"
