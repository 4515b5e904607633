"""What is not whole, or not of this format, is refused with an error of burnstore that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..errors import BurnstoreError, CorruptError, FormatError, UnknownFormatError
from ..tensor.data import TensorData
from ..tensor.dtype import DType
from .abilities import Abilities, f32, files_in


class Damage(Abilities):
    """Damaged files raise; none gives wrong tensors."""

    def test_a_file_cut_at_any_byte_is_refused(self) -> None:
        data = self.pack({"w": f32(1, 2, 3), "b": np.array([255], np.uint8) if self._holds_u8() else f32(4)})
        for length in range(len(data)):
            with pytest.raises(FormatError):
                self._read_all(data[:length], f"the first {length} of {len(data)} bytes")

    def test_a_file_without_tensors_cut_at_any_byte_is_refused(self) -> None:
        data = self.pack({})
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
        path.write_bytes(self.pack(self.floats())[:-1])
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
                with pytest.raises(CorruptError, match="expected 0 or 1") as caught:
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
