"""Saving under bad luck and in general: failing sources, the file one reads from, little memory, any tensor at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # or its first import falls into a measured stretch
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import burnstore as bs
from burnstore import DType, Scalar, TensorData, TensorSnapshot
from burnstore.errors import ChangedError, ClosedError, CorruptError, TruncatedError
from burnstore.tensor.sources import Data

FIXTURES = Path(__file__).parent / "fixtures" / "burn"


def content(path: Path) -> dict[str, bytes]:
    with bs.open(path) as f:
        return {name: t.to_bytes() for name, t in f.items()}


# --- a producer fails in the middle (S7) ------------------------------------------------------------------------------


class ThreadDeath(BaseException):
    """What a library might throw into a thread to end it."""


FAILURES = [OSError(5, "gone"), ValueError("no"), KeyboardInterrupt(), MemoryError(), SystemExit(1), ThreadDeath()]


@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_producer_that_fails_at_any_tensor_leaves_the_old_file_and_no_scratch(
    failure: BaseException, at: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.bpk"
    bs.save({"old": np.arange(10)}, path, durable=False)
    before = path.read_bytes()

    def fail() -> Any:
        raise failure

    tensors = [TensorSnapshot.from_numpy(f"t{n}", np.zeros(100_000 * (n % 3 + 1), np.float32)) for n in range(7)]
    tensors[at] = TensorSnapshot.from_closure(f"t{at}", DType.F32, [5], fail)
    with pytest.raises(type(failure)) as caught:
        bs.save(tensors, path, overwrite=True)
    assert caught.value is failure
    assert path.read_bytes() == before
    with pytest.raises(type(failure)):
        bs.save(tensors, tmp_path / "new.bpk")
    assert os.listdir(tmp_path) == ["model.bpk"]


def test_a_progress_function_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    bs.save({"old": np.arange(10)}, path, durable=False)
    before = path.read_bytes()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bs.save({"new": np.arange(10)}, path, overwrite=True, progress=stop)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.bpk"]


def test_a_source_that_is_cut_while_it_is_copied_leaves_the_old_file(tmp_path: Path) -> None:
    source, path = tmp_path / "source.bpk", tmp_path / "model.bpk"
    bs.save({f"t{n}": np.zeros(3 << 20, np.float32) for n in range(3)}, source, durable=False)
    bs.save({"old": np.arange(10)}, path, durable=False)
    before = path.read_bytes()
    with bs.open(source) as f:
        with pytest.raises((TruncatedError, ChangedError)) as caught:
            bs.save(f, path, overwrite=True, progress=lambda done, total: os.truncate(source, 1000))
        assert caught.value.path == str(source)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["model.bpk", "source.bpk"]


def test_a_source_that_was_closed_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    bs.save({"old": np.arange(10)}, path, durable=False)
    before = path.read_bytes()
    with bs.open(path) as f:
        tensors = dict(f)
    with pytest.raises(ClosedError):
        bs.save(tensors, path, overwrite=True)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.bpk"]


def test_a_snapshot_that_gives_fewer_or_more_bytes_than_announced_is_refused(tmp_path: Path) -> None:
    class Lying(Data):
        def __init__(self, length: int) -> None:
            self.length = length

        def chunks(self, nbytes: int) -> Any:
            yield memoryview(bytes(self.length))

    for length in (0, 39, 41, 100):
        lying: Any = Lying(length)
        tensors = [TensorSnapshot.from_numpy("a", np.zeros(4)), TensorSnapshot("t", DType.F32, (10,), lying)]
        with pytest.raises(CorruptError, match=f"expected 40 bytes, got {length}") as caught:
            bs.save(tensors, tmp_path / "model.bpk")
        assert caught.value.tensor == "t"
        assert os.listdir(tmp_path) == []


# --- onto the file being read (S8) ------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[bs.Checkpoint], Any]] = {
    "as-it-is": lambda f: f,
    "reversed": lambda f: {name: f[name] for name in reversed(list(f))},
    "half-of-it": lambda f: {name: f[name] for name in list(f)[::2]},
    "renamed": lambda f: [t.with_path(f"a.longer.prefix.{t.path}") for t in f.values()],
    "twice": lambda f: {**dict(f), **{f"{name}.again": t for name, t in f.items()}},
    "transformed": lambda f: {name: t.numpy() * 2 for name, t in f.items()},
    "from-views": lambda f: f.numpy(),
    "lazily": lambda f: [
        TensorSnapshot.from_closure(t.path, t.dtype, t.shape, lambda t=t: np.flip(t.numpy())) for t in f.values()
    ],
}


@pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_can_be_changed_and_saved_onto_itself(change: str, zero_copy: bool, tmp_path: Path) -> None:
    path, other = tmp_path / "model.bpk", tmp_path / "other.bpk"
    tensors = {f"t{n}": np.arange(n * 50_000, dtype=np.float32) + n for n in range(5)}
    bs.save(tensors, path, durable=False)
    before = content(path)
    with bs.open(path, zero_copy=zero_copy) as f:
        bs.save(CHANGES[change](f), other, durable=False)
        bs.save(CHANGES[change](f), path, overwrite=True, durable=False)
        assert {name: t.to_bytes() for name, t in f.items()} == before  # the old file is read on
    assert content(path) == content(other)
    assert path.read_bytes() == other.read_bytes()


def test_an_old_file_can_be_renewed_in_place_through_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "model.bpk", tmp_path / "link.bpk"
    shutil.copy(FIXTURES / "0.19.1" / "nested.bpk", path)
    link.symlink_to(path)
    before = content(path)
    with bs.open(link, zero_copy=True) as f:
        bs.save(f, link, overwrite=True, durable=False, metadata=f.metadata, burn_version="0.22")
    assert link.is_symlink()
    assert content(path) == before
    with bs.open(path) as f:
        assert f.variant.endswith(", aligned")
        assert f.metadata["version"] == "0.22.1"


# --- memory (S16) -----------------------------------------------------------------------------------------------------

_IN_LITTLE_MEMORY = """
import resource, sys
import numpy as np, ml_dtypes, burnstore as bs

MIB = 1 << 20
folder, mode = sys.argv[1:]
largest, count = 128 * MIB, 8
bs.save({"warm": np.zeros(1)}, folder + "/warm.bpk", durable=False)  # what is imported late is imported now
bs.open(folder + "/warm.bpk").close()

def provided(number):
    return bs.TensorSnapshot.from_closure(
        f"t{number}", bs.DType.F32, [largest // 4], lambda: np.full(largest // 4, number, np.float32)
    )

def limit(room):
    with open("/proc/self/statm") as statm:
        baseline = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (baseline + room, resource.RLIM_INFINITY))

limit(largest + 64 * MIB)
bs.save([provided(number) for number in range(count)], folder + "/large.bpk", durable=False)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with bs.open(folder + "/large.bpk") as f:
    assert f.nbytes == 1 << 30
    assert [f[name][-1] for name in f] == list(range(count)) == [f[name][0] for name in f]
    limit(64 * MIB)
    bs.save({name: f[name] for name in list(f)[:2]}, folder + "/copied.bpk", durable=False)
    try:
        np.ones(65 * MIB, np.uint8)
    except MemoryError:
        print("the limit holds")
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc and RLIMIT_AS")
def test_a_gibibyte_is_saved_in_the_memory_of_its_largest_tensor(tmp_path: Path, run_python: Any) -> None:
    assert run_python(_IN_LITTLE_MEMORY, tmp_path, "save") == "the limit holds\n"
    shutil.rmtree(tmp_path)  # a gibibyte is not left for pytest to keep


# --- any tensor at all comes back (K1) --------------------------------------------------------------------------------

BURN_DTYPES = [
    *(DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16),
    *(DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8, DType.Bool),
]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[DType, np.ndarray[Any, Any]]:
    """An array of any dtype, bits (payloads of NaN included), shape, strides and byte order."""
    dtype = draw(st.sampled_from(BURN_DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
    size = dtype.nbytes(shape)
    seed = draw(st.integers(0, 2**32))
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.is_bool else 256, size, np.uint8)
    if draw(st.booleans()) and dtype.is_float:
        raw[:] = 0xFF  # all NaN
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype.numpy, raw.tobytes())
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()):
        array = np.flip(array)
    if array.ndim and draw(st.booleans()):
        array = array[:: draw(st.sampled_from([1, 2, 3, -2]))]
    if draw(st.booleans()) and array.dtype.kind in "fiu":
        array = array.byteswap().view(array.dtype.newbyteorder(">"))
    return dtype, array


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.dictionaries(NAMES, st.tuples(arrays(), st.none() | st.integers(0, 2**64 - 1)), max_size=3),
    st.dictionaries(NAMES, NAMES, max_size=2),
    st.dictionaries(NAMES, st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans(), max_size=2),
    st.sampled_from(["0.19", "0.20", "0.21", "0.22", "0.23"]),
    st.booleans(),
)
def test_any_tensors_texts_and_numbers_come_back_bit_for_bit(
    given: dict[str, Any], texts: dict[str, str], numbers: dict[str, Any], version: str, zero_copy: bool
) -> None:
    scalars = numbers if version in ("0.22", "0.23") else None
    snapshots = [
        TensorSnapshot.from_closure(name, dtype, array.shape, lambda array=array: array, param_id=param_id)
        for name, ((dtype, array), param_id) in given.items()
    ]
    options = {"format": "burnpack", "metadata": texts, "burn_version": version, "scalars": scalars, "layout": "burn"}
    data = bs.serialize(snapshots, **options)
    with bs.open(data, zero_copy=zero_copy, burn_version=version) as f:
        assert set(f) == set(given)
        assert dict(f.metadata) == texts
        assert repr(dict(f.scalars)) == repr(
            {name: Scalar.of(v) for name, v in sorted((scalars or {}).items(), key=utf8)}
        )
        whole = f.numpy()
        for name, ((dtype, array), param_id) in given.items():
            found = f[name]
            expected = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
            assert (found.dtype, found.shape, found.param_id) == (dtype, array.shape, param_id)
            assert found.to_bytes() == found.numpy().tobytes() == whole[name].tobytes() == expected.tobytes()
            assert found.numpy().dtype == dtype.numpy
        assert bs.serialize(f, **options) == data


def utf8(item: tuple[str, Any]) -> bytes:
    return item[0].encode()


# --- the same input gives the same bytes, everywhere (K4) -------------------------------------------------------------

_DIGEST = """
import hashlib, sys
import numpy as np
import burnstore as bs
from burnstore.tensor.quantization import QuantBlock, QuantScheme, QuantStore

scheme = QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((8,), "F32"))
tensors = {f"layer.{n}.{part}": np.arange(n * 7, dtype=dtype).reshape(n, 7)[:, ::-1]
           for n, part in enumerate(["weight", "bias", "größe", "重み"] * 5)
           for dtype in ["<f4", ">f8", "i2", "u1"][n % 4 : n % 4 + 1]}
tensors["flags"] = np.array([True, False])
codes = bytes(range(64)) + np.ones(8, "<f4").tobytes()
tensors["codes"] = bs.TensorData.from_bytes(codes, bs.DType.qfloat(scheme), [8, 8])
digest = hashlib.sha256()
for version in ("0.20", "0.21", "0.22", "0.23"):
    numbers = {"lr": 0.001, "step": 5, "half": 0.5, "on": True} if version > "0.21" else None
    digest.update(bs.serialize(tensors, format="burnpack", burn_version=version, scalars=numbers,
                               metadata={str(n): "x" * n for n in range(40)}, layout="burn"))
print(digest.hexdigest())
"""
EXPECTED_DIGEST = "e1cd686a93c4af3d892d82ffe44a687263514b8067cdc2dc4a08cac0a59a6aa3"


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_equal_input_gives_equal_bytes_whatever_the_hash_seed(seed: str, run_python: Any) -> None:
    assert run_python(_DIGEST, PYTHONHASHSEED=seed).strip() == EXPECTED_DIGEST


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_equal_input_gives_equal_bytes_under_every_python(version: str, run_python: Any) -> None:
    """Interpreters are looked for on the path and in BURNSTORE_PYTHONS (separated by the path separator)."""
    given_ones = [entry for entry in os.environ.get("BURNSTORE_PYTHONS", "").split(os.pathsep) if entry]
    for python in [sys.executable, *given_ones, shutil.which(f"python{version}")]:
        if python is None:
            continue
        probe = "import sys, numpy, ml_dtypes; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip() == version:
            assert run_python(_DIGEST, python=python).strip() == EXPECTED_DIGEST
            return
    pytest.skip(f"no Python {version} with NumPy and ml_dtypes here")


def test_saving_gives_the_bytes_of_serializing(tmp_path: Path) -> None:
    tensors = {
        "a": np.arange(5_000_000, dtype=np.float32),
        "b": TensorData.from_numpy(np.zeros((0, 2))),
        "c": np.float16(1),
    }
    bs.save(tensors, tmp_path / "model.bpk", durable=False, scalars={"n": 1})
    packed = bs.serialize(tensors, format="burnpack", scalars={"n": 1})
    assert hashlib.sha256((tmp_path / "model.bpk").read_bytes()).digest() == hashlib.sha256(packed).digest()


def test_serialize_takes_the_options_of_save(tmp_path: Path) -> None:
    given = {"a.weight": np.float32([1, 2]), "b.weight": np.float32([3])}
    options: dict[str, Any] = {"filter": r"^a\.", "rename": {"a.weight": "c"}, "cast": "f16", "layout": "burn"}
    bs.save(given, tmp_path / "m.bpk", **options)
    data = bs.serialize(given, format="burnpack", **options)
    assert data == (tmp_path / "m.bpk").read_bytes()
    with bs.open(data) as file:
        assert list(file) == ["c"] and file["c"].dtype is bs.DType.F16
