"""File objects wherever a path is taken."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import ClosedError, ReadError, TruncatedError
from remote_servers import equal, packed, some_tensors


@pytest.mark.parametrize("format", ["safetensors", "burnpack", "pytorch", "npz"])
def test_a_file_object_is_read_and_stays_open(tmp_path: Path, format: str) -> None:
    tensors = some_tensors()
    (tmp_path / "a").write_bytes(packed(tensors, format))
    with open(tmp_path / "a", "rb") as opened:
        opened.seek(3)
        for file in (opened, io.BytesIO(packed(tensors, format))):
            with bs.open(file) as checkpoint:
                assert equal(checkpoint.numpy(), tensors)
            assert not file.closed
        assert opened.tell() == 3


def test_a_file_of_fsspec_is_read() -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.filesystem("memory").open("/a.bpk", "wb") as file:
        file.write(packed(some_tensors(), "burnpack"))
    with fsspec.filesystem("memory").open("/a.bpk", "rb") as file, bs.open(file) as checkpoint:
        assert equal(checkpoint.numpy(), some_tensors())


def test_every_function_takes_file_objects(tmp_path: Path) -> None:
    tensors = some_tensors()

    def file() -> io.BytesIO:
        return io.BytesIO(bs.serialize(tensors, format="burnpack", layout="burn"))

    model = {name: np.zeros_like(value) for name, value in tensors.items()}
    bs.load(model, file())
    assert equal(model, tensors)
    assert bs.convert(file(), tmp_path / "a.safetensors").tensors == 6
    bs.merge([file(), file()], tmp_path / "b.bpk", method="linear", t=0.5)
    assert bs.diff(file(), tmp_path / "b.bpk").equal
    assert bs.inspect(file(), stats=True).total.tensors == 6
    assert bs.verify(file()).ok
    assert bs.scan(file()).is_clean
    assert bs.explain(file()).tensors == 6
    assert bs.report(file()).html


def test_a_file_object_is_written(tmp_path: Path) -> None:
    target = io.BytesIO()
    bs.save(some_tensors(), target, format="safetensors")
    with bs.open(target) as file:
        assert equal(file.numpy(), some_tensors())


def test_a_save_that_fails_leaves_a_file_object_unchanged() -> None:
    def fail() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        raise RuntimeError("no values")

    target = io.BytesIO(b"before")
    target.seek(0, io.SEEK_END)
    tensors = [
        bs.TensorSnapshot.from_numpy("a", np.zeros(4_000_000)),
        bs.TensorSnapshot.from_closure("b", bs.DType.F32, (3,), fail),
    ]
    with pytest.raises(RuntimeError, match="no values"):
        bs.save(tensors, target, format="safetensors")
    assert target.getvalue() == b"before"


def test_an_object_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(TypeError, match="binary mode"):
        bs.open(io.StringIO("text"))  # type: ignore[arg-type]
    closed = io.BytesIO(b"x")
    closed.close()
    with pytest.raises(ReadError, match="cannot be read at a position"):
        bs.open(closed)
    with pytest.raises(ValueError, match="cannot be mapped"):
        bs.open(io.BytesIO(packed(some_tensors())), zero_copy=True)
    with bs.open(io.BytesIO(packed(some_tensors()))) as file:
        snapshot = file["layer.0.weight"]
    with pytest.raises(ClosedError):
        snapshot.numpy()


def test_an_object_that_became_shorter_is_refused() -> None:
    file = io.BytesIO(packed(some_tensors()))
    with bs.open(file) as checkpoint:
        file.truncate(1000)
        with pytest.raises(TruncatedError):
            checkpoint.numpy()
