"""Files of torch, written without torch: torch loads them safely, and they come back bit for bit."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import DType
from burnstore.testing import FormatConformance


class TestPytorchFiles(FormatConformance):
    format = "pytorch"
    suffix = ".pt"
    dtypes = (
        *(DType.F64, DType.F32, DType.F16, DType.BF16),
        *(DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8, DType.Bool),
        *(DType.F8_E4M3, DType.F8_E5M2, DType.F8_E8M0, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ),
        *(DType.C64, DType.C128),
    )
    # NumPy has no C32, so the tests of dtypes, which read arrays, cannot have it: its bits are compared here.
    stored_as: ClassVar = {DType.Flex32: DType.F32, DType.BoolU8: DType.Bool, DType.C32: DType.C32}
    holds_metadata = False
    holds_param_ids = False

    def test_a_bool_that_is_neither_0_nor_1_is_neither_read_nor_copied(self, zero_copy: bool, tmp_path: Path) -> None:
        pytest.skip("torch takes every byte but 0 for true, and so does the reader (PT-22)")

    test_a_bool_that_is_neither_0_nor_1_is_neither_read_nor_copied = pytest.mark.parametrize("zero_copy", [False])(
        test_a_bool_that_is_neither_0_nor_1_is_neither_read_nor_copied
    )


def everything() -> dict[str, torch.Tensor]:
    names = (
        "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex64 complex128"
    )
    names += " float8_e4m3fn float8_e5m2 float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz"
    found = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in names.split()}
    found |= {"nested.name.0.größe": torch.ones(3), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    return found | {"large": torch.zeros(70_000), "rank": torch.ones(1, 1, 2, 1, 3)}


def test_torch_loads_every_dtype_and_shape_safely(tmp_path: Path) -> None:
    given = everything()
    result = bs.save(given, tmp_path / "a.pt")
    assert result.layout == "torch"
    for mmap in (False, True):
        found = torch.load(tmp_path / "a.pt", weights_only=True, mmap=mmap)
        assert list(found) == list(given)
        for name, tensor in given.items():
            assert found[name].dtype is tensor.dtype and found[name].shape == tensor.shape
            assert found[name].is_contiguous()
            assert found[name].contiguous().view(torch.uint8).equal(tensor.view(torch.uint8)) if tensor.dim() else True
    assert float(found["scalar"]) == 2.5


def test_every_checksum_of_the_zip_is_right(tmp_path: Path) -> None:
    bs.save(everything(), tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.testzip() is None
        assert archive.read("archive/version") == b"3\n"
    assert bs.verify(tmp_path / "a.pt").ok


def test_parallel_and_sequential_writers_write_the_same_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given = {f"t{at}": rng.standard_normal((at % 7 + 1, 40_000 if at % 9 == 0 else 5)) for at in range(40)}
    bs.save(given, tmp_path / "a.bpk", layout="torch")
    bs.convert(tmp_path / "a.bpk", tmp_path / "a.pt")
    bs.save(given, tmp_path / "b.pt", layout="torch")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    assert (tmp_path / "a.pt").read_bytes() == bs.serialize(given, format="pytorch", layout="torch")


def test_tied_tensors_share_a_storage(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    result = bs.save(model, tmp_path / "a.pt")
    assert result.nbytes == (9 + 3 + 3) * 4
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert found["a.weight"].data_ptr() == found["b.weight"].data_ptr()
    model.load_state_dict(found)
    with bs.open(tmp_path / "a.pt") as f:
        assert f.ties == {"b.weight": "a.weight"}


def test_a_burn_file_becomes_a_state_dict(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    bs.save(model, tmp_path / "a.bpk")
    bs.convert(tmp_path / "a.bpk", tmp_path / "a.pt")
    state = torch.load(tmp_path / "a.pt", weights_only=True)
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_metadata_of_a_source_is_left_out_with_a_note(tmp_path: Path) -> None:
    bs.save({"w": np.ones(2, np.float32)}, tmp_path / "a.safetensors", metadata={"format": "pt", "epochs": "3"})
    done = bs.convert(tmp_path / "a.safetensors", tmp_path / "a.pt")
    assert "pytorch has no place for metadata, left out: epochs" in done.notes
    with pytest.raises(bs.errors.FormatError, match="no place for metadata"):
        bs.save({"w": np.ones(2)}, tmp_path / "b.pt", metadata={"a": "b"})
    assert not (tmp_path / "b.pt").exists()


def test_the_pickle_names_only_what_torch_deems_safe(tmp_path: Path) -> None:
    bs.save(everything(), tmp_path / "a.pt")
    assert bs.scan(tmp_path / "a.pt").is_clean
    assert b"GLOBAL" not in (tmp_path / "a.pt").read_bytes()


def test_a_dtype_that_torch_does_not_have_is_refused() -> None:
    packed = bs.TensorData.from_bytes(b"\1\2\3", DType.F6_E2M3, [4])
    with pytest.raises(bs.errors.DTypeError, match="PyTorch has no dtype for F6_E2M3"):
        bs.serialize({"w": packed}, format="pytorch")


def test_a_file_in_memory_is_loaded_by_torch() -> None:
    raw = bs.serialize({"w": np.arange(3)}, format="pytorch", layout="torch")
    assert torch.load(io.BytesIO(raw), weights_only=True)["w"].tolist() == [0, 1, 2]
