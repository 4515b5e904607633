"""What is saved comes back: every dtype, shape, memory layout, name, text and id."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..checkpoint import open_checkpoint
from ..errors import (
    AlreadyExistsError,
    BurnstoreError,
    CorruptError,
    DTypeError,
    DuplicateNameError,
    UnknownFormatError,
)
from ..saving import save, serialize
from ..tensor.data import Array, TensorData
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
            own = {key: text for key, text in f.metadata.items() if not key.startswith("burnstore.")}
            assert own == metadata
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


_LARGE = 3 << 20  # elements: 12 MiB, more than one chunk


class Writing(Abilities):
    """Saving behaves as burnstore promises."""

    def provided(self, events: list[str], count: int = 6, elements: int = 10) -> list[TensorSnapshot]:
        """Return snapshots whose functions record when they are called."""

        def providing(name: str) -> Callable[[], Array]:
            def provide() -> Array:
                events.append(name)
                return np.full(elements, int(name[1:]), np.float32)

            return provide

        names = [f"t{n}" for n in range(count)]
        return [TensorSnapshot.from_closure(name, DType.F32, [elements], providing(name)) for name in names]

    def test_an_existing_file_is_refused_and_kept(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        path.write_bytes(b"precious")
        events: list[str] = []
        with pytest.raises(AlreadyExistsError) as caught:
            self.save(self.provided(events), path)
        assert isinstance(caught.value, FileExistsError)
        assert caught.value.path == str(path)
        assert path.read_bytes() == b"precious"
        assert (events, files_in(tmp_path)) == ([], [path.name])

    def test_overwrite_replaces_an_existing_file(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save({"old": f32(1)}, path)
        self.save({"new": f32(2)}, path, overwrite=True)
        with self.open(path) as f:
            assert list(f) == ["new"]
        assert files_in(tmp_path) == [path.name]

    @pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
    def test_a_file_can_be_saved_onto_itself(self, zero_copy: bool, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        array = np.arange(100_000, dtype=np.float32)
        self.save({"a": array, "b": array + 1}, path)
        with self.open(path, zero_copy=zero_copy) as f:
            taken = f["a"].numpy()
            renamed = {"longer.name.of.b": f["b"], "a": f["a"], "doubled": f["a"].numpy() * 2}
            self.save(renamed, path, overwrite=True)
            assert same_bits(f["a"].numpy(), array)  # the old file is read on
            assert same_bits(taken, array)
        with self.open(path) as f:
            assert same_bits(f["longer.name.of.b"].numpy(), array + 1)
            assert same_bits(f["doubled"].numpy(), array * 2)
            assert same_bits(f["a"].numpy(), array)

    def test_every_function_is_asked_once_in_order_and_not_while_planning(self, tmp_path: Path) -> None:
        events: list[str] = []
        given = self.provided(events)
        assert events == []
        self.save(given, tmp_path / f"model{self.suffix}", progress=lambda done, total: None)
        assert sorted(events) == [t.path for t in given]
        if self.keeps_order:
            assert events == [t.path for t in given]

    def test_one_large_tensor_is_in_memory_at_a_time(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save(self.provided([], count=1), path)  # whatever is imported on first use is imported now
        given = self.provided([], count=4, elements=_LARGE)
        tracemalloc.start()
        try:
            self.save(given, path, overwrite=True)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1.5 * 4 * _LARGE
        with self.open(path) as f:
            assert [f[t.path][-1] for t in given] == [0, 1, 2, 3]

    def test_progress_grows_up_to_the_size_of_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        seen: list[tuple[int, int]] = []
        self.save(self.provided([], 3, _LARGE), path, progress=lambda done, total: seen.append((done, total)))
        size = path.stat().st_size
        assert seen == sorted(seen)
        assert seen[-1] == (size, size)
        assert len(seen) > 1

    @pytest.mark.parametrize("at", [0, 2, 5])
    @pytest.mark.parametrize("failure", [OSError(5, "gone"), RuntimeError("no"), MemoryError(), KeyboardInterrupt()])
    def test_a_function_that_fails_leaves_the_old_file(self, failure: BaseException, at: int, tmp_path: Path) -> None:
        def fail() -> Array:
            raise failure

        path = tmp_path / f"model{self.suffix}"
        self.save(self.floats(), path)
        before = path.read_bytes()
        given = self.provided([])
        given[at] = TensorSnapshot.from_closure(given[at].path, DType.F32, [10], fail)
        with pytest.raises(type(failure)) as caught:
            self.save(given, path, overwrite=True)
        assert caught.value is failure
        assert path.read_bytes() == before
        assert files_in(tmp_path) == [path.name]

    @pytest.mark.parametrize(
        "wrong",
        [
            np.zeros(9, np.float32),
            np.zeros(11, np.float32),
            np.zeros((10, 1), np.float32),
            np.zeros(10, np.float64),
            np.zeros(10, np.int32),
            TensorData.from_numpy(np.zeros(9, np.float32)),
        ],
        ids=["shorter", "longer", "other-shape", "wider", "integers", "shorter-data"],
    )
    def test_a_function_that_gives_another_tensor_is_refused(self, wrong: Any, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save(self.floats(), path)
        before = path.read_bytes()
        given = self.provided([])
        given[3] = TensorSnapshot.from_closure("t3", DType.F32, [10], lambda: wrong)
        with pytest.raises(CorruptError) as caught:
            self.save(given, path, overwrite=True)
        assert caught.value.tensor == "t3"
        assert path.read_bytes() == before
        assert files_in(tmp_path) == [path.name]

    def test_a_function_that_gives_no_tensor_is_a_type_error(self, tmp_path: Path) -> None:
        given: Any = TensorSnapshot.from_closure("t", DType.F32, [1], lambda: b"1234")  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError):
            self.save([given], tmp_path / f"model{self.suffix}")
        assert files_in(tmp_path) == []

    def test_equal_tensors_give_equal_bytes(self, tmp_path: Path) -> None:
        if not self.deterministic:
            pytest.skip("this format is not deterministic")
        path = tmp_path / f"model{self.suffix}"
        given = self.floats()
        lazily = [
            TensorSnapshot.from_closure(name, DType.F32, value.shape, partial(np.copy, value))
            for name, value in given.items()
        ]
        self.save(given, path)
        packed = self.pack(given)
        assert packed == self.pack(given) == self.pack(lazily) == path.read_bytes()
        assert packed == self.pack({name: np.asfortranarray(value) for name, value in given.items()})

    def test_a_missing_folder_is_a_file_not_found_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            self.save(self.floats(), tmp_path / "nowhere" / f"model{self.suffix}")

    def test_the_suffix_decides_the_format_unless_it_is_named(self, tmp_path: Path) -> None:
        options = {**self.save_options, "durable": False}
        save(self.floats(), tmp_path / f"a{self.suffix}", **options)
        save(self.floats(), tmp_path / f"b{self.suffix.upper()}", **options)
        save(self.floats(), tmp_path / "c.of-no-format", format=self.format, **options)
        for name in files_in(tmp_path):
            with self.open(tmp_path / name) as f:
                assert f.format == self.format
        with pytest.raises(UnknownFormatError):
            save(self.floats(), tmp_path / "d.of-no-format", **options)

    def test_arguments_of_the_wrong_type_are_type_errors(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        good, array = self.pack(self.floats()), f32(1)
        wrong: list[Callable[[], Any]] = [
            lambda: self.save(5, path),
            lambda: self.save("text", path),
            lambda: self.save(array, path),
            lambda: self.save({5: array}, path),
            lambda: self.save({"t": 1.0}, path),
            lambda: self.save({"t": None}, path),
            lambda: self.save({"t": b"1234"}, path),
            lambda: self.save({"t": np.array(["text"])}, path),
            lambda: self.save({"t": np.array([None])}, path),
            lambda: self.save({"t": np.ma.masked_array([1.0], [True])}, path),
            lambda: self.save({}, 5),  # type: ignore[arg-type]
            lambda: self.save({}, path, overwrite=1),
            lambda: save({}, path, durable="yes"),  # type: ignore[arg-type]
            lambda: self.save({}, path, limits=5),
            lambda: self.save({}, path, progress=5),
            lambda: self.save({}, path, metadata="text"),
            lambda: self.save({}, path, metadata=[("a", "b")]),
            lambda: self.save({}, path, no_such_option=1),
            lambda: serialize({}, format=5),  # type: ignore[arg-type]
            lambda: self.open(5),
            lambda: self.open(good, limits=5),
            lambda: self.open(good, zero_copy=1),
            lambda: self.open(good, format=5),
            lambda: self.open(good, no_such_option=1),
            lambda: open_checkpoint(good)[5],  # type: ignore[index]
            lambda: open_checkpoint(good).numpy("z.first"),
            lambda: open_checkpoint(good).numpy([5]),  # type: ignore[list-item]
        ]
        if self.holds_metadata:
            wrong += [
                lambda: self.save({}, path, metadata={"a": 1}),
                lambda: self.save({}, path, metadata={1: "a"}),
            ]
        for number, call in enumerate(wrong):
            with pytest.raises(TypeError):
                pytest.fail(f"call {number} gave {call()!r}")
        assert files_in(tmp_path) == []
