"""Files of torch pass the tests of reading that every format passes; a writer of the tests makes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import DType, TensorData
from burnstore.testing.reading import Damage, Reading
from fuzz import torch_bytes as tb

CLASSES = {
    DType.F64: "Double",
    DType.F32: "Float",
    DType.F16: "Half",
    DType.BF16: "BFloat16",
    DType.I64: "Long",
    DType.I32: "Int",
    DType.I16: "Short",
    DType.I8: "Char",
    DType.U8: "Byte",
    DType.Bool: "Bool",
}


def written(tensors: Mapping[str, Any], container: str) -> bytes:
    entries, storages = {}, {}
    for number, (name, given) in enumerate(tensors.items()):
        data = given if isinstance(given, TensorData) else TensorData.from_numpy(np.asarray(given))
        entries[name] = CLASSES[data.dtype], data.shape
        storages[str(number)] = data.to_bytes()
    if container == "legacy":
        return tb.legacy(tb.state_dict(entries, b"N"), storages, item=4)
    return tb.torch_zip(tb.state_dict(entries), storages)


class FromTests:
    """Makes files without burnstore, which does not write this format."""

    format: ClassVar[str] = "pytorch"
    suffix: ClassVar[str] = ".pt"
    holds_metadata: ClassVar[bool] = False
    container: ClassVar[str] = "zip"
    dtypes: ClassVar[tuple[DType, ...]] = tuple(CLASSES)

    def pack(self, tensors: Any, *, metadata: Mapping[str, str] | None = None) -> bytes:
        return written(tensors, self.container)

    def save(self, tensors: Any, path: str | os.PathLike[str], **more: Any) -> None:
        scratch = f"{os.fspath(path)}.new"
        with open(scratch, "wb") as out:
            out.write(written(tensors, self.container))
        os.replace(scratch, path)


class TestPytorchZip(FromTests, Reading, Damage):
    @pytest.mark.parametrize("zero_copy", [False, True])
    def test_a_bool_that_is_neither_0_nor_1_is_neither_read_nor_copied(self, zero_copy: bool, tmp_path: Path) -> None:
        """Of this format it is read as torch reads it: every byte but 0 is true, and is 1 in what burnstore gives."""
        data = bytearray(self.pack({"b": np.ones(100, np.bool_)}))
        data[data.find(b"\1" * 100) + 99] = 2
        with self.open(bytes(data), zero_copy=zero_copy) as f:
            assert f["b"].numpy().all() and f["b"].to_bytes() == b"\1" * 100

    def test_bools_in_memory_that_are_neither_0_nor_1_are_not_written(self, tmp_path: Path) -> None:
        """The writer of these tests writes anything; burnstore's own refuses."""
        array = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
        with pytest.raises(bs.errors.CorruptError, match="expected 0 or 1"):
            bs.save({"b": array}, tmp_path / "model.pt")
        assert list(tmp_path.iterdir()) == []


class TestPytorchLegacy(FromTests, Reading, Damage):
    """Its elements are four bytes wide: the stream does not say how wide they are."""

    container: ClassVar[str] = "legacy"
    dtypes: ClassVar[tuple[DType, ...]] = (DType.F32,)

    def _holds_u8(self) -> bool:
        return False


@pytest.mark.parametrize("container", ["zip", "legacy"])
def test_the_writer_of_these_tests_writes_what_torch_reads(container: str) -> None:
    import io

    data = written({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((), np.float32)}, container)
    found = torch.load(io.BytesIO(data), weights_only=container == "zip")
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with bs.open(data) as f:
        assert f["a"].numpy().tolist() == found["a"].tolist()
