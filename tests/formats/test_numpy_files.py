"""NumPy's files: what NumPy writes is read, what is written NumPy reads, and no pickle is ever read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType
from burnstore.testing import FormatConformance
from burnstore.testing.abilities import NAMES

DTYPES = (
    *(DType.F64, DType.F32, DType.F16, DType.C64, DType.C128),
    *(DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8, DType.Bool),
)


class TestNpz(FormatConformance):
    format = "npz"
    suffix = ".npz"
    dtypes = DTYPES
    stored_as: ClassVar = {DType.Flex32: DType.F32, DType.BoolU8: DType.Bool}
    names: ClassVar = {
        label: name
        for label, name in NAMES.items()
        if name and name.isprintable() and "\\" not in name and ".." not in name
    }
    holds_metadata = False
    holds_param_ids = False

    def test_names_that_differ_little_stay_apart(self) -> None:
        # Members of a zip must differ when case is ignored, or one hides the other on some systems (NP-07).
        with pytest.raises(bs.errors.DuplicateNameError, match="in case only"):
            self.pack({"W": np.zeros(1), "w": np.zeros(1)})


@pytest.mark.parametrize("name", ["", "a\\b", "../x", "/x", "c:x", "a\nb", "a\0b"])
def test_a_name_that_no_member_can_have_is_refused(name: str) -> None:
    with pytest.raises(bs.errors.FormatError, match="no member of a zip") as caught:
        bs.serialize({name: np.zeros(1)}, format="npz")
    assert caught.value.rule == "NP-07"


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "plain.weight": rng.standard_normal((3, 4)).astype(np.float32),
        "fortran": np.asfortranarray(rng.standard_normal((3, 4, 5))),
        "big": np.arange(7, dtype=">i4"),
        "both": np.asfortranarray(np.arange(12, dtype=">f8").reshape(3, 4)),
        "half": np.arange(5, dtype=np.float16),
        "bool": np.array([[True, False]]),
        "complex": np.array([1 + 2j, 3], np.complex64),
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 3), np.int8),
    }


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", **arrays())
    with bs.open(tmp_path / "a.npz") as f:
        assert f.format == "npz" and f.layout is None
        assert list(f) == list(arrays())
        for name, array in arrays().items():
            assert f[name].numpy().dtype == array.dtype.newbyteorder("=")
            assert np.array_equal(f[name].numpy(), array), name
        assert np.array_equal(f["plain.weight"][1:], arrays()["plain.weight"][1:])
    assert bs.verify(tmp_path / "a.npz").ok
    bs.convert(tmp_path / "a.npz", tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as found:
        assert all(np.array_equal(found[name], array) for name, array in arrays().items())


def test_what_is_written_numpy_reads(tmp_path: Path) -> None:
    bs.save(arrays(), tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        assert found.files == list(arrays())
        for name, array in arrays().items():
            assert np.array_equal(found[name], array) and found[name].dtype == array.dtype.newbyteorder("<")
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("name", list(arrays()))
def test_an_array_is_written_as_numpy_writes_it(tmp_path: Path, name: str) -> None:
    array = np.ascontiguousarray(arrays()[name]).reshape(arrays()[name].shape)
    bs.save({name: array}, tmp_path / "a.npy")
    expected = io.BytesIO()
    np.save(expected, array.astype(array.dtype.newbyteorder("<")))
    assert (tmp_path / "a.npy").read_bytes() == expected.getvalue()
    with bs.open(tmp_path / "a.npy") as f:
        assert list(f) == ["array"] and f.format == "npy"
        assert np.array_equal(f["array"].numpy(), array)


def test_an_array_of_fortran_order_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", arrays()["fortran"])
    with bs.open(tmp_path / "a.npy") as f:
        assert np.array_equal(f["array"].numpy(), arrays()["fortran"])
        assert np.array_equal(f["array"][1], arrays()["fortran"][1])


def test_an_npy_file_has_one_array() -> None:
    with pytest.raises(bs.errors.FormatError, match="one array, not 2"):
        bs.serialize({"a": np.zeros(1), "b": np.zeros(1)}, format="npy")


def test_objects_are_pickles_and_never_read(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    objects = np.array([Evil()], object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    with pytest.raises(bs.errors.UnsupportedError, match="objects, which is a pickle and never read") as caught:
        bs.open(tmp_path / "a.npy")
    assert caught.value.rule == "NP-03"
    np.savez(tmp_path / "a.npz", w=np.ones(2), objects=objects, text=np.array(["x"]), record=np.zeros(1, "f4,i4"))
    with bs.open(tmp_path / "a.npz") as f:
        assert list(f) == ["w"]
        assert [note.split(": ")[:2] for note in f.notes] == [
            ["left out", name] for name in ("'objects'", "'text'", "'record'")
        ]
    assert not (tmp_path / "ran").exists()


HEADERS = {
    "no dict": b"[1, 2]",
    "an expression": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2 ** 9,), }",
    "a call": b"{'descr': open('x'), 'fortran_order': False, 'shape': (2,), }",
    "a key twice": b"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
    "a key missing": b"{'descr': '<f4', 'shape': (2,), }",
    "another key": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1, }",
    "swapped": b"{'descr': False, 'fortran_order': '<f4', 'shape': (2,), }",
    "no tuple": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2), }",
    "negative": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }",
    "huge": b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999999, 9999999999), }",
    "other digits": "{'descr': '<f4', 'fortran_order': False, 'shape': (\u0662,), }".encode(),
    "nested": b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"(" * 4000 + b")" * 4000 + b", }",
    "too short": b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
    "too long": b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
    "trailing": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } + 1",
    "many axes": b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 70 + b"), }",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_hostile_header_is_refused(header: bytes) -> None:
    raw = b"\x93NUMPY\2\0" + len(header).to_bytes(4, "little") + header + bytes(8)
    with pytest.raises(bs.errors.FormatError) as caught:
        bs.open(raw)
    assert str(caught.value.rule).startswith("NP-")


def test_headers_of_other_writers_are_read() -> None:
    header = b'{"shape": (2L, 1L), "descr": ">f4", "fortran_order": True}\n'
    raw = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + np.array([1, 2], ">f4").tobytes()
    with bs.open(raw) as f:
        assert f["array"].numpy().tolist() == [[1.0], [2.0]]


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnstore.formats.codec.zip.MAX_INFLATED", 1 << 20)
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(10_000_000))
    with pytest.raises(bs.errors.LimitError) as caught:
        bs.open(raw.getvalue())
    assert caught.value.rule == "NP-05"


def test_a_damaged_checksum_is_found_by_verify(tmp_path: Path) -> None:
    raw = bytearray(bs.serialize({"w": np.arange(500.0)}, format="npz"))
    raw[1000] ^= 1
    (tmp_path / "a.npz").write_bytes(raw)
    assert not bs.verify(tmp_path / "a.npz").ok
    bs.save({"w": np.arange(500.0)}, tmp_path / "b.npz")
    assert bs.verify(tmp_path / "b.npz").ok


def test_another_file_in_the_zip_is_refused() -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("a.npy", bs.serialize({"a": np.zeros(2)}, format="npy"))
        archive.writestr("readme.txt", b"hello")
    with pytest.raises(bs.errors.CorruptError, match=r"'readme.txt' is not a .npy file"):
        bs.open(raw.getvalue())


def test_a_dtype_that_numpy_does_not_have_is_refused_with_a_hint() -> None:
    half = bs.TensorData.from_bytes(bytes(4), DType.BF16, [2])
    with pytest.raises(bs.errors.DTypeError, match="NumPy has no dtype for BF16") as caught:
        bs.serialize({"w": half}, format="npz")
    assert "cast" in str(caught.value)


def test_a_torch_model_goes_through_npz(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    bs.save(model, tmp_path / "a.npz")
    bs.load(other, tmp_path / "a.npz")
    assert torch.equal(model.weight, other.weight)
    done = bs.convert(tmp_path / "a.npz", tmp_path / "a.bpk", like=model)
    assert done.layout == "burn"


def damaged(path: Path, name: str) -> Path:
    """Change one bit of the values of a stored array."""
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        raw[archive.getinfo(f"{name}.npy").header_offset + 300] ^= 4
    other = path.with_stem("damaged")
    other.write_bytes(raw)
    return other


@pytest.mark.parametrize("read", ["numpy", "torch", "to_bytes", "to_data", "chunks"])
@pytest.mark.parametrize("name", ["plain", "fortran", "big"])
def test_a_stored_array_with_a_wrong_checksum_is_refused_as_numpy_refuses_it(
    tmp_path: Path, name: str, read: str
) -> None:
    arrays = {"plain": np.arange(900.0), "fortran": np.asfortranarray(np.ones((30, 20))), "big": np.ones(200, ">f8")}
    np.savez(tmp_path / "a.npz", **arrays)
    path = damaged(tmp_path / "a.npz", name)
    with pytest.raises(zipfile.BadZipFile), np.load(path) as loaded:
        loaded[name]
    with bs.open(path) as file:
        for other in arrays.keys() - {name}:
            assert np.array_equal(file[other].numpy(), arrays[other])
        with pytest.raises(bs.errors.CorruptError, match="Invalid checksum"):
            list(getattr(file[name], read)() if read != "chunks" else file[name].chunks())


def test_a_damaged_array_reaches_no_model_and_no_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.arange(900.0))
    path = damaged(tmp_path / "a.npz", "w")
    model = {"w": np.zeros(900)}
    with pytest.raises(bs.BurnstoreError, match="Invalid checksum"):
        bs.load(model, path)
    assert not model["w"].any()
    for target in ("b.safetensors", "b.npz"):
        with pytest.raises(bs.errors.CorruptError, match="Invalid checksum"):
            bs.convert(path, tmp_path / target)
        assert not (tmp_path / target).exists()
    with pytest.raises(bs.errors.CorruptError, match="Invalid checksum"):
        bs.diff(path, tmp_path / "a.npz")


def test_compressed_zeros_and_any_names_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", zeros=np.zeros((1000, 1000)))
    with bs.open(tmp_path / "a.npz") as file:
        assert file["zeros"].shape == (1000, 1000)
        assert not file["zeros"].numpy().any()
    arrays = {name: np.full(2, at) for at, name in enumerate(["W", "w", "w:0", "../x", "b\\c", "é\n", "x" * 5000])}
    np.savez(tmp_path / "b.npz", **arrays)
    with bs.open(tmp_path / "b.npz") as file:
        assert {name: file[name].numpy().tolist() for name in file} == {n: a.tolist() for n, a in arrays.items()}


def test_more_than_the_limit_of_inflated_bytes_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnstore.formats.codec.zip.MAX_INFLATED", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1 << 18))
    with pytest.raises(bs.errors.LimitError, match="trusted"):
        bs.open(tmp_path / "a.npz")
    with bs.open(tmp_path / "a.npz", limits=bs.Limits.trusted()) as file:
        assert not file["a"].numpy().any()


def test_random_files_of_numpy_are_read() -> None:
    from fuzz import valid_numpy

    counts, wrong = valid_numpy.run(150, seed=20_261_117)
    assert sum(counts.values()) == 150
    assert wrong == []
