"""Valid files open and give torch's values; damaged ones never give a damaged tensor as whole (laws 5 and 9)."""

from __future__ import annotations

import io
import pickle
import random
import struct
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import TruncatedError
from burnstore.formats.codec.pickle import Dialect, read_pickle
from fuzz import torch_bytes as tb

torch = pytest.importorskip("torch")
from fuzz import torch_valid  # noqa: E402  # it imports torch

LEGACY = {"_use_new_zipfile_serialization": False}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop its quantized tensors, and says so
        yield


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


@pytest.mark.parametrize("part", range(4))
def test_no_random_file_that_torch_writes_is_refused_or_read_otherwise(part: int) -> None:
    assert torch_valid.run(50_000 + 75 * part, 75) == []


# --- numbers ----------------------------------------------------------------------------------------------------------

CODES = {torch.qint8: (torch.int8, -128, 127), torch.quint8: (torch.uint8, 0, 255)}
CODES[torch.qint32] = (torch.int32, -(2**31), 2**31 - 1)


def dense(tensor: Any) -> bytes:
    with bs.open(saved({"t": tensor}), dense=True) as f:
        assert f["t"].shape == tuple(tensor.shape)
        return f["t"].to_bytes()


def codes(kind: Any, shape: tuple[int, ...]) -> Any:
    dtype, low, high = CODES[kind]
    made = torch.randint(low, high + 1, shape, dtype=torch.int64)
    made.view(-1)[:2] = torch.tensor([low, high])
    return made.to(dtype)


@pytest.mark.parametrize("kind", CODES, ids=str)
@pytest.mark.parametrize("scale", [0.1, 1 / 3, 1e-30, 3e38, 1e-45])
@pytest.mark.parametrize("zero", [0, 3, 127])
def test_a_tensor_quantized_as_a_whole_is_dequantized_as_by_torch(kind: Any, scale: float, zero: int) -> None:
    torch.manual_seed(5)
    tensor = torch._make_per_tensor_quantized_tensor(codes(kind, (301,)), scale, zero)
    assert dense(tensor) == torch_valid.raw(tensor)


@pytest.mark.parametrize("kind", CODES, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((5, 7), 0), ((5, 7), 1), ((3, 4, 5, 6), 1), ((2, 3, 4), 2)])
def test_a_tensor_quantized_per_channel_is_dequantized_as_by_torch(
    kind: Any, shape: tuple[int, ...], axis: int
) -> None:
    torch.manual_seed(6)
    scales = torch.rand(shape[axis], dtype=torch.float64) * 10.0 ** torch.randint(-8, 8, (shape[axis],))
    zeros = torch.randint(0, 50, (shape[axis],))
    tensor = torch._make_per_channel_quantized_tensor(codes(kind, shape), scales, zeros, axis)
    assert dense(tensor) == torch_valid.raw(tensor)
    if kind is not torch.qint32:  # with zero points that are floats
        tensor = torch.quantize_per_channel(
            torch.randn(shape), scales.float() + 0.01, torch.rand(shape[axis]), axis, kind
        )
        assert dense(tensor) == torch_valid.raw(tensor)


@pytest.mark.parametrize("kind", [torch.quint4x2, torch.quint2x4], ids=str)
def test_codes_that_share_a_byte_are_noted_as_left_out(kind: Any) -> None:
    tensor = torch.quantize_per_channel(torch.randn(4, 8), torch.rand(4) + 0.1, torch.rand(4), 0, kind)
    with bs.open(saved({"w": torch.ones(1), "q": tensor}), dense=True) as f:
        assert list(f) == ["w"] and f.notes == ("left out: q: a quantized tensor with several codes in a byte",)


SPARSE = {
    "without axes": lambda: torch.tensor(3.0).to_sparse(),
    "without axes, nothing stored": lambda: torch.sparse_coo_tensor(torch.zeros(0, 0).long(), torch.zeros(0), ()),
    "without axes, three values": lambda: torch.sparse_coo_tensor(torch.zeros(0, 3).long(), torch.ones(3), ()),
    "empty": lambda: torch.zeros(0, 3, dtype=torch.complex64).to_sparse(),
    "an index twice": lambda: torch.sparse_coo_tensor([[1, 1, 0]], [0.1, 0.2, -0.0], (3,)),
    "hybrid": lambda: torch.sparse_coo_tensor([[1, 1, 0]], torch.rand(3, 2), (3, 2)),
    "a batch by rows": lambda: torch.randn(2, 3, 4).to_sparse_csr(),
    "a batch of blocks": lambda: torch.randn(2, 4, 4).to_sparse_bsr((2, 2)),
    "rows with a dense axis": lambda: torch.randn(3, 4, 2).to_sparse_csr(dense_dim=1),
    "blocks with negative zeros": lambda: (-torch.eye(4)).to_sparse_bsc((2, 2)),
    "no rows": lambda: torch.zeros(0, 4).to_sparse_csr(),
    "no columns": lambda: torch.zeros(4, 0).to_sparse_csc(),
}


@pytest.mark.parametrize("kind", SPARSE)
def test_a_sparse_tensor_has_torchs_dense_values(kind: str) -> None:
    tensor = SPARSE[kind]()
    assert dense(tensor) == torch_valid.raw(tensor)


@pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32, torch.float32], ids=str)
def test_empty_tensors_are_read(dtype: Any, options: dict[str, Any]) -> None:
    made = torch.zeros(0, 3, dtype=dtype)
    state = {"plain": made, "turned": made.t(), "conjugated": made.conj()}
    with bs.open(saved(state, **options)) as f:
        assert {name: (f[name].shape, f[name].to_bytes()) for name in f} == {
            name: (tuple(tensor.shape), b"") for name, tensor in state.items()
        }


# --- containers -------------------------------------------------------------------------------------------------------


def test_every_prefix_of_a_pickle_is_truncated_so_a_stream_reads_on() -> None:
    """An opcode that a read block cuts is no error: a legacy stream is read in blocks."""
    value = {"a": [1, 300, 70_000, 2.5, "text" * 100, 2**70, -5], "b": b"x" * 300, "c": (None, True, {3: 4})}
    for protocol in range(6):
        data = pickle.dumps(value, protocol)
        for length in range(len(data)):
            with pytest.raises(TruncatedError):
                read_pickle(data[:length], dialect=Dialect())


@pytest.mark.slow("files of every length")
def test_legacy_files_of_all_lengths_around_a_block_are_read() -> None:
    for extra in range(130):
        state = {f"layer{n}.weight": torch.zeros(300 if n % 3 else 70_000 if n == 3 else 1) for n in range(330)}
        state["x" * extra] = torch.zeros(1)
        with bs.open(saved(state, **LEGACY)) as f:
            assert len(f) == 331


def burns_tar(arrays: dict[str, tuple[str, Any]]) -> bytes:
    """The tar of Burn's own tests: no table of tensors, and storages described in their place."""
    table, entries = pickle.dumps(len(arrays), 2), b""
    for number, (name, (kind, array)) in enumerate(arrays.items()):
        key, symbol = tb.text(str(number)), tb.name("torch", kind)
        table += tb.pickled(tb.tuple_of(key, tb.text("cpu"), symbol))
        table += struct.pack("<Q", array.size) + array.tobytes()
        storage = tb.tuple_of(tb.text("storage"), symbol, key, tb.text("cpu"), tb.integer(array.size))
        entries += tb.tuple_of(tb.text(name), tb.tensor(storage, array.shape)) + b"a"
    value = tb.name("collections", "OrderedDict") + b"(]" + entries + b"tR"
    info = pickle.dumps({"protocol_version": 1000, "little_endian": True, "type_sizes": {}}, 2)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member, data in (("sys_info", info), ("pickle", tb.pickled(value)), ("storages", table)):
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def test_the_tar_of_burns_tests_is_read() -> None:
    arrays = {
        "weight": ("FloatStorage", np.arange(6, dtype="<f4").reshape(2, 3)),
        "count": ("LongStorage", np.array([100, -200])),
    }
    with bs.open(burns_tar(arrays)) as f:
        assert {name: f[name].numpy().tolist() for name in f} == {
            name: array.tolist() for name, (_, array) in arrays.items()
        }


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damages", [1, 2])
@pytest.mark.parametrize("dtype", ["<f4", "<i8"])
def test_no_damaged_tensor_of_a_legacy_stream_is_salvaged(dtype: str, damages: int) -> None:
    """Bytes are cut out or inserted anywhere in the data; what comes back is what was there."""
    maker = random.Random(3)
    kind, item = ("Float", 4) if dtype == "<f4" else ("Long", 8)
    kept = 0
    for case in range(400):
        # Every second case has storages of one size, whose elements look like the counts between them.
        sizes = [40] * 6 if case % 2 else [maker.randint(1, 60) for _ in range(6)]
        arrays = {
            str(n): np.full(size, size, dtype) if case % 2 else np.arange(n * 100, n * 100 + size).astype(dtype)
            for n, size in enumerate(sizes)
        }
        if case % 2:
            for n, array in enumerate(arrays.values()):
                array[maker.randrange(40)] = n
        value = tb.state_dict({f"t{n}": (kind, (size,)) for n, size in enumerate(sizes)}, more=b"N")
        data = tb.legacy(value, {key: array.tobytes() for key, array in arrays.items()}, item)
        begin = len(data) - sum(8 + size * item for size in sizes)
        for _ in range(damages):
            at = maker.randrange(begin, len(data))
            # Two damages that move one storage to the place of another of the same size cannot be told.
            length = maker.choice((1, 4, 8, 16, sizes[0] * item, 8 + sizes[0] * item)[: 6 if damages == 1 else 4])
            adds = damages == 1 and maker.random() < 0.3  # what is cut and added in one storage cannot be told either
            data = data[:at] + (bytes(length) + data[at:] if adds else data[at + length :])
        with bs.open(data, format="pytorch", salvage=True) as f:
            for name in f:
                kept += 1
                assert f[name].numpy().tolist() == arrays[name[1:]].tolist(), (case, name)
    assert kept > 100


def test_offsets_are_places_in_the_file_or_refused() -> None:
    state = {"w": torch.arange(6.0).reshape(2, 3), "t": torch.arange(6.0).reshape(2, 3).t()[1:], "b": torch.ones(3) > 0}
    data = saved(state)
    with bs.open(data) as f:
        for name in f:
            assert 0 < f.offset_of(name) <= len(data) - f[name].nbytes
        assert data[f.offset_of("t") :][:4] == np.float32(1).tobytes()
    raw = np.arange(4000, dtype="<f4").tobytes()
    packed = tb.torch_zip(tb.state_dict({"w": ("Float", (4000,))}), {"0": raw}, method=8)
    with bs.open(packed) as f:
        assert f["w"].to_bytes() == raw
        with pytest.raises(bs.errors.UnsupportedError):
            f.offset_of("w")


@pytest.mark.parametrize("is_zip", [False, True])
def test_an_empty_storage_may_have_several_dtypes(tmp_path: Path, is_zip: bool) -> None:
    storage = torch.UntypedStorage(0)
    shared = {
        str(dtype): torch.tensor([], dtype=dtype).set_(storage, 0, (0, 3)) for dtype in (torch.float32, torch.int64)
    }
    torch.save({**shared, "w": torch.ones(2)}, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
    assert list(torch.load(tmp_path / "a.pt")) == [*shared, "w"]
    with bs.open(tmp_path / "a.pt") as file:
        assert {name: (file[name].numpy().dtype.name, file[name].shape) for name in shared} == {
            "torch.float32": ("float32", (0, 3)),
            "torch.int64": ("int64", (0, 3)),
        }
        assert bs.verify(tmp_path / "a.pt").ok
        assert not file.notes
