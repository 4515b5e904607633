"""An open file reads only what is asked for, shares or owns what it gives, and survives threads, forks and pickling."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..errors import (
    BurnstoreError,
    ChangedError,
    ClosedError,
    CorruptError,
    FormatError,
    TensorNotFoundError,
    TruncatedError,
    UnknownFormatError,
)
from ..tensor.data import TensorData
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from .abilities import Abilities, f32, files_in, same_bits


class Reading(Abilities):
    """Opening and reading behave as burnstore promises."""

    def test_opening_reads_no_tensor(self) -> None:
        data = self.pack({f"t{n}": np.zeros(250_000, np.float32) for n in range(8)})
        f, source = self.open_counting(data)
        assert source.bytes_read < len(data) // 16
        source.forget()
        snapshots = list(f.values())
        described = [(repr(f), f.nbytes, f.metadata, t.path, t.dtype, t.shape, t.nbytes, repr(t)) for t in snapshots]
        assert len(described) == 8
        assert source.ranges == []
        f.close()

    def test_reading_one_tensor_reads_no_other(self) -> None:
        data = self.pack({f"t{n}": np.full(250_000, n, np.float32) for n in range(8)})
        f, source = self.open_counting(data)
        source.forget()
        assert f["t5"].numpy()[-1] == 5
        assert source.bytes_read <= f["t5"].nbytes
        f.close()

    def test_a_slice_reads_its_rows_only(self) -> None:
        if not self.reads_rows:
            pytest.skip("this format reads whole tensors")
        array = np.arange(1000 * 100, dtype=np.float32).reshape(1000, 100)
        f, source = self.open_counting(self.pack({"before": f32(1), "t": array}))
        at = f.offset_of("t")
        source.forget()
        assert same_bits(f["t"][500:510], array[500:510])
        assert source.ranges == [(at + 500 * 400, 10 * 400)]
        source.forget()
        assert f["t"][7, 3] == 703
        assert source.ranges == [(at + 7 * 400 + 12, 4)]
        source.forget()
        assert f["t"][5:5].shape == (0, 100)
        assert source.bytes_read == 0
        f.close()

    @pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
    def test_a_slice_is_what_numpy_would_give(self, index: Any, zero_copy: bool) -> None:
        array = np.arange(10 * 4 * 2, dtype=np.float32).reshape(10, 4, 2)
        with self.open(self.pack({"t": array}), zero_copy=zero_copy) as f:
            assert np.array_equal(f["t"][index], array[index])
            assert np.asarray(f["t"][index]).shape == np.asarray(array[index]).shape

    @pytest.mark.parametrize("wrong", [10, -11, (0, 4), (0, 0, 0, 0), (..., ...)])
    def test_an_index_outside_is_an_index_error(self, wrong: Any) -> None:
        with self.open(self.pack(self.floats())) as f, pytest.raises(IndexError):
            f["z.first"][wrong]

    @pytest.mark.parametrize("wrong", [None, True, 1.0, "a", [0, 1], np.array([0]), (0, None)])
    def test_an_index_of_another_kind_is_a_type_error(self, wrong: Any) -> None:
        with self.open(self.pack(self.floats())) as f, pytest.raises(TypeError):
            f["z.first"][wrong]

    @pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
    def test_all_at_once_equals_one_by_one(self, zero_copy: bool, tmp_path: Path) -> None:
        tensors = {**{str(d): self.any_bits(d, (3, 4)) for d in self.dtypes if d.bits % 8 == 0}, **self.floats()}
        path = tmp_path / f"model{self.suffix}"
        self.save(tensors, path)
        with self.open(path, zero_copy=zero_copy) as f:
            arrays = f.numpy()
            assert list(arrays) == list(f)
            assert all(same_bits(arrays[name], f[name].numpy()) for name in f)
            some = f.numpy(["m.third", "z.first"])
            assert list(some) == ["m.third", "z.first"]
            assert all(same_bits(some[name], arrays[name]) for name in some)
            assert f.numpy([]) == {}

    def test_paths_and_every_kind_of_bytes_give_the_same(self, tmp_path: Path) -> None:
        data = self.pack(self.floats())
        path = tmp_path / "a name without the suffix"
        path.write_bytes(data)
        expected = None
        for source in (path, str(path), data, bytearray(data), memoryview(data)):
            for more in ({}, {"zero_copy": True}, {"format": self.format}):
                with self.open(source, **more) as f:
                    found = [(name, t.dtype, t.shape, t.to_bytes()) for name, t in f.items()]
                    assert f.format == self.format
                    assert f.file_size == len(data)
                    expected = expected or found
                    assert found == expected

    def test_zero_copy_arrays_are_views_that_cannot_be_written(self) -> None:
        if not self.shares_memory:
            pytest.skip("this format does not share memory")
        data = self.pack(self.floats())
        whole = np.frombuffer(data, np.uint8)
        with self.open(data, zero_copy=True) as f:
            for array in [*f.numpy().values(), *(t.numpy() for t in f.values()), f["z.first"][2:]]:
                assert np.shares_memory(array, whole)
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0

    def test_zero_copy_arrays_on_memory_that_can_be_written_cannot(self) -> None:
        with self.open(bytearray(self.pack(self.floats())), zero_copy=True) as f:
            assert not any(array.flags.writeable for array in [*f.numpy().values(), f["m.third"].numpy()])

    @pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
    def test_arrays_outlive_their_checkpoint_and_their_file(self, zero_copy: bool, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        expected = self.floats()
        self.save(expected, path)
        with self.open(path, zero_copy=zero_copy) as f:
            arrays, one = f.numpy(), f["z.first"].numpy()
        del f
        path.unlink()
        gc.collect()
        assert all(same_bits(arrays[name], array) for name, array in expected.items())
        assert same_bits(one, expected["z.first"])

    def test_owned_arrays_can_be_written_and_change_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save(self.floats(), path)
        before = path.read_bytes()
        with self.open(path) as f:
            first, second, single = f.numpy(), f.numpy(), f["z.first"].numpy()
            for array in [*first.values(), single]:
                array[...] = -1
            assert all(same_bits(second[name], array) for name, array in self.floats().items())
            assert f["z.first"][0, 0, 1] == 1
        assert path.read_bytes() == before

    def test_a_copy_is_owned_also_under_zero_copy(self) -> None:
        data = self.pack(self.floats())
        with self.open(data, zero_copy=True) as f:
            array = f["m.third"].numpy(copy=True)
            array[...] = 7
            assert f["m.third"].numpy().tolist() == [[1, 2], [3, 4]]

    @pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
    @pytest.mark.parametrize("in_memory", [False, True], ids=["file", "bytes"])
    def test_snapshots_and_checkpoints_can_be_pickled(self, zero_copy: bool, in_memory: bool, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save(self.floats(), path)
        with self.open(path.read_bytes() if in_memory else path, zero_copy=zero_copy) as f:
            snapshot: TensorSnapshot = pickle.loads(pickle.dumps(f["z.first"]))
            with pickle.loads(pickle.dumps(f)) as again:
                assert list(again) == list(f)
                assert dict(again.metadata) == dict(f.metadata)
                assert all(same_bits(again[name].numpy(), f[name].numpy()) for name in f)
        assert (snapshot.path, snapshot.shape) == ("z.first", (10, 4, 2))
        assert same_bits(snapshot.numpy(), self.floats()["z.first"])

    def test_a_pickle_of_a_file_that_was_replaced_refuses_to_open(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save(self.floats(), path)
        with self.open(path) as f:
            pickled = pickle.dumps(f), pickle.dumps(f["z.first"])
        self.save({"other": f32(1)}, path, overwrite=True)
        for each in pickled:
            with pytest.raises(ChangedError):
                pickle.loads(each)

    def test_many_threads_read_the_same_snapshots(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        tensors = {f"t{n}": np.full((50, 20), n, np.float32) for n in range(20)}
        self.save(tensors, path)
        wrong: list[Any] = []
        with self.open(path) as f:
            snapshots = list(f.values())

            def work(seed: int) -> None:
                try:
                    for pick in np.random.default_rng(seed).integers(0, 20, 60).tolist():
                        t = snapshots[pick]
                        if not (same_bits(t.numpy(), tensors[t.path]) and (t[3:5] == tensors[t.path][3:5]).all()):
                            wrong.append(t)
                except BaseException as error:
                    wrong.append(error)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert wrong == []

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
    def test_a_forked_worker_reads_what_its_parent_opened(self, zero_copy: bool, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save(self.floats(), path)
        with self.open(path, zero_copy=zero_copy) as f:
            children = []
            for _ in range(3):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 on: a fork while threads live
                    pid = os.fork()
                if pid == 0:
                    status = 1
                    try:
                        good = all(same_bits(f[n].numpy(), a) for n, a in self.floats().items())
                        f.close()  # its own descriptor only
                        status = 0 if good else 2
                    finally:
                        os._exit(status)
                children.append(pid)
            assert same_bits(f["z.first"].numpy(), self.floats()["z.first"])
            assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
            assert same_bits(f["a.second"].numpy(), self.floats()["a.second"])

    @pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
    @pytest.mark.parametrize("in_memory", [False, True], ids=["file", "bytes"])
    def test_a_closed_checkpoint_says_so(self, zero_copy: bool, in_memory: bool, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save(self.floats(), path)
        f = self.open(path.read_bytes() if in_memory else path, zero_copy=zero_copy)
        snapshot = f["z.first"]
        f.close()
        f.close()
        for read in (f.numpy, snapshot.numpy, snapshot.to_bytes, lambda: snapshot[1], lambda: f["a.second"].to_data()):
            with pytest.raises(ClosedError):
                read()
        with pytest.raises(ClosedError):
            pickle.dumps(f)
        with pytest.raises(ClosedError), f:
            pass
        assert list(f)  # what is known stays known
        assert "closed" in repr(f)

    def test_a_checkpoint_is_a_mapping(self) -> None:
        with self.open(self.pack(self.floats())) as f:
            assert len(f) == 3
            assert list(f.keys()) == list(f) == [t.path for t in f.values()] == [name for name, _ in f.items()]
            assert "z.first" in f
            assert "z" not in f
            assert 5 not in f  # type: ignore[comparison-overlap]
            assert f.get("nothing") is None

    def test_a_name_that_is_not_there_is_a_key_error_with_a_suggestion(self) -> None:
        with self.open(self.pack(self.floats())) as f:
            for look_up in (lambda: f["z.frist"], lambda: f.offset_of("z.frist"), lambda: f.numpy(["z.frist"])):
                with pytest.raises(TensorNotFoundError, match=r"did you mean 'z\.first'") as caught:
                    look_up()
                assert isinstance(caught.value, KeyError)

    def test_a_file_that_is_replaced_is_read_on_as_it_was(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save({"t": np.full(1000, 1, np.float32)}, path)
        with self.open(path) as old:
            self.save({"t": np.full(1000, 2, np.float32)}, path, overwrite=True)
            with self.open(path) as new:
                assert [old["t"][500].item(), new["t"][500].item()] == [1, 2]

    def test_a_file_that_is_cut_while_open_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save({"t": np.full(100_000, 1, np.float32)}, path)
        with self.open(path) as f:
            os.truncate(path, 200_000)
            with pytest.raises((TruncatedError, ChangedError)):
                f["t"].numpy()
            with pytest.raises((TruncatedError, ChangedError)):
                f.numpy()

    @pytest.mark.skipif(sys.platform == "win32", reason="needs a file system that keeps what is open")
    def test_a_file_that_is_deleted_is_read_on(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        self.save(self.floats(), path)
        with self.open(path) as f:
            path.unlink()
            assert f["m.third"][1, 1] == 4


class Damage(Abilities):
    """Damaged files raise; none gives wrong tensors."""

    def test_a_file_cut_at_any_byte_is_refused(self) -> None:
        second = np.array([255], np.uint8) if self._holds_u8() else f32(4)
        data = self.without_padding(self.pack({"w": f32(1, 2, 3), "b": second}))
        for length in range(len(data)):
            with pytest.raises(FormatError):
                self._read_all(data[:length], f"the first {length} of {len(data)} bytes")

    def test_a_file_without_tensors_cut_at_any_byte_is_refused(self) -> None:
        data = self.without_padding(self.pack({}))
        for length in range(len(data)):
            with pytest.raises(FormatError):
                self._read_all(data[:length], f"the first {length} of {len(data)} bytes")

    @pytest.mark.parametrize("tail", [b"\0", b"x", bytes(256), b"PK\3\4"])
    def test_bytes_after_the_end_are_refused(self, tail: bytes) -> None:
        if not self.refuses_trailing_bytes:
            pytest.skip("this format lets bytes follow")
        with pytest.raises(FormatError):
            self._read_all(self.pack(self.floats()) + tail, "with a tail")

    def test_another_beginning_is_refused(self) -> None:
        data = self.pack(self.floats())
        for bit in range(8):
            damaged = bytes((data[0] ^ 1 << bit,)) + data[1:]
            with pytest.raises(FormatError):
                self._read_all(damaged, f"bit {bit} flipped")
            with pytest.raises(FormatError):
                self._read_all(damaged, f"bit {bit} flipped, format named", format=self.format)

    @pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 10, 11, 255, 512, 5000])
    def test_noise_is_refused(self, length: int) -> None:
        noise = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
        for data in (noise, bytes(length), b"\xff" * length):
            with pytest.raises(FormatError):
                self._read_all(data, "noise")
            with pytest.raises(FormatError):
                self._read_all(data, "noise, format named", format=self.format)

    def test_noise_after_a_good_beginning_raises_only_errors_of_burnstore(self) -> None:
        data = self.pack(self.floats(), metadata={"a": "b"} if self.holds_metadata else None)
        random = np.random.default_rng(7)
        for _ in range(500):
            damaged = bytearray(data)
            for place in random.integers(0, len(data), 3).tolist():
                damaged[place] = int(random.integers(0, 256))
            try:
                with self.open(bytes(damaged), format=self.format) as f:
                    f.numpy()
            except BurnstoreError:
                continue

    def test_an_empty_file_is_of_no_format(self, tmp_path: Path) -> None:
        path = tmp_path / f"empty{self.suffix}"
        path.touch()
        for zero_copy in (False, True):
            with pytest.raises(UnknownFormatError) as caught:
                self.open(path, zero_copy=zero_copy)
            assert caught.value.path == str(path)

    def test_what_is_not_a_file_is_an_os_error(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="directory"):
            self.open(tmp_path)
        with pytest.raises(FileNotFoundError):
            self.open(tmp_path / f"nothing{self.suffix}")

    def test_an_error_names_the_file_and_the_tensor(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        path.write_bytes(self.without_padding(self.pack(self.floats()))[:-1])
        with pytest.raises(FormatError) as caught:
            self._read_all(path, "cut")
        assert caught.value.path == str(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
    def test_a_bool_that_is_neither_0_nor_1_is_neither_read_nor_copied(self, zero_copy: bool, tmp_path: Path) -> None:
        given = {"b": np.ones((10, 100), np.bool_), "w": f32(1)}
        data = bytearray(self.pack(given) if self._holds(DType.Bool) else b"")
        at = data.find(b"\1" * 1000)
        if at < 0:
            pytest.skip("this format does not hold bools as bytes")
        data[at + 999] = 2
        with self.open(bytes(data), zero_copy=zero_copy) as f:
            bools = f["b"]
            reads: list[Callable[[], Any]] = [bools.numpy, bools.to_bytes, bools.to_data, lambda: bools[9], f.numpy]
            reads += [lambda: list(bools.chunks()), lambda: self.save(f, tmp_path / f"copy{self.suffix}")]
            reads += [lambda: self.pack({"b": bools}), lambda: self.save([bools], tmp_path / f"x{self.suffix}")]
            for number, read in enumerate(reads):
                with pytest.raises(CorruptError, match=r"expected 0 or 1|Invalid checksum") as caught:
                    pytest.fail(f"read {number} gave {read()!r}"[:200])
                assert caught.value.tensor == "b"
            assert bools[:9].all()
            assert f["w"][0] == 1
        assert files_in(tmp_path) == []

    def test_bools_in_memory_that_are_neither_0_nor_1_are_not_written(self, tmp_path: Path) -> None:
        if not self._holds(DType.Bool):
            pytest.skip("this format has no bools")
        array = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
        for give in (lambda: {"b": array}, lambda: {"b": TensorData.from_bytes(b"\0\2", DType.Bool, [2])}):
            with pytest.raises(CorruptError, match="expected 0 or 1"):
                self.save(give(), tmp_path / f"model{self.suffix}")
        assert files_in(tmp_path) == []

    def _holds(self, dtype: DType) -> bool:
        return dtype in self.dtypes

    def _holds_u8(self) -> bool:
        return any(dtype.name == "U8" for dtype in self.dtypes)

    def _read_all(self, source: bytes | Path, what: str, **more: str) -> None:
        with self.open(source, **more) as f:
            found = {name: t.to_bytes() for name, t in f.items()}
        pytest.fail(f"{what}: {found}")
