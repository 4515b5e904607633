"""Saving is whole or not at all, streams, repeats itself, and takes no argument for another."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..checkpoint import open_checkpoint
from ..errors import AlreadyExistsError, CorruptError, UnknownFormatError
from ..saving import save, serialize
from ..tensor.data import Array, TensorData
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from .abilities import Abilities, f32, files_in, same_bits

_LARGE = 3 << 20  # elements: 12 MiB, more than one chunk


class Writing(Abilities):
    """Saving behaves as burnstore promises."""

    def provided(self, events: list[str], count: int = 6, elements: int = 10) -> list[TensorSnapshot]:
        """Snapshots whose functions write down when they are asked."""

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
