"""An open checkpoint while the world moves: writers, truncation, forks and spawns, loops; and how it reads at once."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, TensorData, TensorSnapshot
from burnstore.errors import BurnstoreError, ChangedError, CorruptError, FormatError, TruncatedError, UnsupportedError
from burnstore.tensor.quantization import QuantScheme, QuantStore

FIXTURES = Path(__file__).parent / "fixtures" / "burn"


def save(path: Path, tensors: Any, **options: Any) -> None:
    bs.save(tensors, path, overwrite=True, durable=False, **options)


# --- what it says of itself -------------------------------------------------------------------------------------------


def test_a_checkpoint_describes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    save(
        path,
        {"b": np.zeros(3, np.float32), "a": np.zeros((2, 2))},
        metadata={"k": "v"},
        scalars={"n": 5},
        layout="burn",
    )
    with bs.open(path) as f:
        assert (f.path, f.format, f.layout) == (str(path), "burnpack", "burn")
        assert (dict(f.metadata), dict(f.scalars)) == ({"k": "v"}, {"n": bs.Scalar.of(5)})
        assert (f.nbytes, f.file_size) == (44, path.stat().st_size)
        assert (f.offset_of("b"), f.offset_of("a")) == (f.data_offset, f.data_offset + 256)
        assert repr(f) == f"<Checkpoint '{path}': burnpack, 2 tensors, 44 bytes>"
        assert f.variant == "0.22-pre .. 0.23-pre, aligned"
    assert repr(f).endswith(", closed>")


def test_a_checkpoint_is_equal_to_itself_only() -> None:
    data = bs.serialize({"a": np.zeros(1)}, format="burnpack")
    with bs.open(data) as f, bs.open(data) as g:
        assert f == f
        assert f != g
        assert f != dict(f)
        assert len({f, g}) == 2


def test_an_odd_file_name_is_printed_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\nb.bpk"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError) as caught:
        bs.open(path)
    assert r"a\x1b[31m\nb.bpk" in str(caught.value)
    assert caught.value.path == str(path)


# --- reading many at once ---------------------------------------------------------------------------------------------


def test_small_and_large_tensors_come_right_wherever_they_lie(tmp_path: Path) -> None:
    """Neighbouring small ones are read together; large ones, and those after a gap, by themselves."""
    sizes = [1, 300, 0, 70_000, 5, 0, 66_000, 1, 64, 65_536, 3_000_000, 7, 0, 2_100_000, 1, 1, 1]
    tensors = {f"t{n}": np.arange(size, dtype=np.float32) + n for n, size in enumerate(sizes)}
    rng = np.random.default_rng(3)
    for version in ("0.19", "0.22"):
        path = tmp_path / f"{version}.bpk"
        save(path, tensors, burn_version=version)
        for zero_copy in (False, True):
            with bs.open(path, zero_copy=zero_copy) as f:
                for _ in range(4):
                    names = rng.permutation(list(tensors))[: rng.integers(1, 18)].tolist()
                    found = f.numpy(names)
                    assert list(found) == names
                    assert all(np.array_equal(found[name], tensors[name]) for name in names)
                found = f.numpy()
                assert list(found) == list(tensors)
                assert all(np.array_equal(found[name], array) for name, array in tensors.items())
                assert all(array.flags.writeable != zero_copy for array in found.values() if array.size)


def test_a_name_given_twice_is_read_once() -> None:
    with bs.open(bs.serialize({"a": np.arange(3), "b": np.arange(4)}, format="burnpack")) as f:
        assert {name: array.tolist() for name, array in f.numpy(["b", "a", "b"]).items()} == {
            "b": [0, 1, 2, 3],
            "a": [0, 1, 2],
        }


def test_owned_arrays_do_not_overlap() -> None:
    with bs.open(bs.serialize({f"t{n}": np.zeros(n, np.int16) for n in range(50)}, format="burnpack")) as f:
        arrays = f.numpy()
        for number, array in enumerate(arrays.values()):
            array[...] = number
        assert all((array == number).all() for number, array in enumerate(arrays.values()))


def test_bools_and_quantized_tensors_are_given_as_values_beside_others() -> None:
    scheme = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    data = bs.serialize(
        {
            "f": np.arange(3, dtype=np.float32),
            "b": TensorData.from_bytes(b"\1\0\0\0\0\0\0\0", DType.BoolU32, [2]),
            "q": TensorData.from_bytes(b"\2\4" + np.float32(0.5).tobytes(), scheme, [2]),
        },
        format="burnpack",
    )
    with bs.open(data) as f:
        arrays = f.numpy()
        assert {name: array.tolist() for name, array in arrays.items()} == {
            "f": [0, 1, 2],
            "b": [True, False],
            "q": [1, 2],
        }
        assert [array.dtype for array in arrays.values()] == [np.float32, np.bool_, np.float32]


def test_a_damaged_tensor_is_named_and_the_others_can_be_read() -> None:
    data = bytearray(bs.serialize({"ok": np.arange(3), "bad": np.array([True, False])}, format="burnpack"))
    data[-1] = 7
    with bs.open(bytes(data)) as f:
        with pytest.raises(CorruptError) as caught:
            f.numpy()
        assert caught.value.tensor == "bad"
        assert f.numpy(["ok"])["ok"].tolist() == [0, 1, 2]


def test_a_shape_that_numpy_cannot_have_is_unsupported_and_named() -> None:
    shape = (0, 2**40, 2**40)
    odd = TensorSnapshot.from_data("odd", TensorData.from_bytes(b"", DType.F32, shape))
    with bs.open(bs.serialize([odd], format="burnpack")) as f:
        assert f["odd"].shape == shape
        for read in (f.numpy, f["odd"].numpy):
            with pytest.raises(UnsupportedError) as caught:
                read()
            assert (caught.value.tensor, caught.value.path) == ("odd", "<bytes>")


# --- writers replace the file meanwhile (C1) --------------------------------------------------------------------------

_WRITER = """
import sys
import numpy as np, burnstore as bs
path, start = sys.argv[1], int(sys.argv[2])
generation = start
while True:
    generation += 2
    tensors = {f"t{n}": np.full(3000 + generation % 7 * 100, generation, np.int64) for n in range(4)}
    bs.save(tensors, path, overwrite=True, durable=False, metadata={"generation": str(generation)})
"""


@pytest.mark.slow("soak")
def test_a_reader_sees_one_generation_entirely_while_writers_replace_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    save(path, {f"t{n}": np.zeros(3000, np.int64) for n in range(4)}, metadata={"generation": "0"})
    environment = {**os.environ, "PYTHONPATH": str(Path(bs.__file__).parent.parent)}
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(start)], env=environment) for start in (0, 1)
    ]
    seen = set()
    try:
        reads, until = 0, time.monotonic() + 30
        while (reads < 1000 or len(seen) < 20) and time.monotonic() < until:
            with bs.open(path, zero_copy=bool(reads % 2)) as f:
                generation = int(f.metadata["generation"])
                arrays = f.numpy() if reads % 3 else {name: t.numpy() for name, t in f.items()}
                values = {value for array in arrays.values() for value in np.unique(array).tolist()}
                lengths = {len(array) for array in arrays.values()}
            assert (values, len(arrays), len(lengths)) == ({generation}, 4, 1)
            seen.add(generation)
            reads += 1
        assert all(writer.poll() is None for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert reads >= 1000
    assert len(seen) >= 20


# --- the file is changed in place (C2) --------------------------------------------------------------------------------


def test_a_file_cut_at_random_is_reported_and_the_process_lives(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    path = tmp_path / "model.bpk"
    tensors = {f"t{n}": np.full(5000, n, np.float32) for n in range(4)}
    for _ in range(60):
        save(path, tensors)
        with bs.open(path) as f:
            os.truncate(path, int(rng.integers(0, f.file_size)))
            for read in (f.numpy, f["t3"].numpy, f["t0"].to_bytes, lambda f=f: f["t2"][100:200]):
                with pytest.raises((TruncatedError, ChangedError)):
                    read()


def test_a_file_overwritten_in_place_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    save(path, {"t": np.zeros(5000, np.float32)})
    other = bs.serialize({"t": np.ones(5000, np.float32)}, format="burnpack")
    for zero_copy in (False, True):
        with bs.open(path, zero_copy=zero_copy) as f:
            before = os.stat(path)
            with open(path, "r+b") as file:
                file.write(other)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
            with pytest.raises(ChangedError) as caught:
                f["t"].numpy()
            assert caught.value.path == str(path)
            with pytest.raises(ChangedError):
                f.numpy()


_CUT_UNDER_A_VIEW = """
import os, sys
import burnstore as bs
with bs.open(sys.argv[1], zero_copy=True) as f:
    array = f["t"].numpy()
    os.truncate(sys.argv[1], 0)
    try:
        f["t"].numpy()
    except bs.errors.ChangedError:
        print("told", flush=True)
    array.sum()
print("not reached on Linux")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a cut mapping does differs")
def test_only_zero_copy_arrays_that_were_taken_before_the_cut_are_deadly(tmp_path: Path) -> None:
    """The documented price of ``zero_copy=True``: no program can catch it, so it is not the default."""
    path = tmp_path / "model.bpk"
    save(path, {"t": np.zeros(500_000, np.float32)})
    environment = {**os.environ, "PYTHONPATH": str(Path(bs.__file__).parent.parent)}
    child = subprocess.run(
        [sys.executable, "-c", _CUT_UNDER_A_VIEW, path], env=environment, capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stdout) == (-signal.SIGBUS, "told\n")


# --- workers (C4) -----------------------------------------------------------------------------------------------------

_WORKERS = """
import multiprocessing, operator, pickle, sys
import numpy as np, burnstore as bs

def main():
    for zero_copy in (False, True):
        with bs.open(sys.argv[1], zero_copy=zero_copy) as f:
            expected = [t.to_bytes() for t in f.values()]
            for method in multiprocessing.get_all_start_methods():
                with multiprocessing.get_context(method).Pool(2) as pool:
                    assert pool.map(operator.methodcaller("to_bytes"), list(f.values())) == expected
                    (arrays,) = pool.map(operator.methodcaller("numpy"), [f])
                    assert [array.tobytes() for array in arrays.values()] == expected
                    pool.close()
                    pool.join()
    print("done")

main()
"""


def test_workers_of_every_start_method_read_snapshots_and_checkpoints(tmp_path: Path, run_python: Any) -> None:
    path = tmp_path / "model.bpk"
    save(path, {f"t{n}": np.full(1000, n, np.float32) for n in range(5)})
    assert run_python(_WORKERS, path) == "done\n"


# --- nothing grows (C6) -----------------------------------------------------------------------------------------------


@pytest.mark.slow("soak")
def test_memory_does_not_grow_over_many_opens_reads_saves_and_failures(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    scheme = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    tensors = {
        "a": np.arange(1000, dtype=np.float32),
        "b": np.array([True]),
        "q": TensorData.from_bytes(bytes(10), scheme, [6]),
    }
    save(path, tensors)
    damaged = path.read_bytes()[:-1]

    def work() -> None:
        for zero_copy in (False, True):
            with bs.open(path, zero_copy=zero_copy) as f:
                f.numpy()
                f["a"][5:10]
                dict(f)
        save(path, tensors)
        for bad in (damaged, b"NRUB", b""):
            with pytest.raises(BurnstoreError):
                bs.open(bad)

    for _ in range(20):
        work()
    gc.collect()
    tracemalloc.start()
    try:
        work()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            work()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 30_000


def test_opening_costs_memory_for_its_header_only(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    save(path, {"large": np.zeros(8 << 20, np.float32), "small": np.zeros(1)})
    bs.open(path).close()
    tracemalloc.start()
    try:
        with bs.open(path) as f:
            f["large"][-1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_reading_one_tensor_allocates_its_size_once(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    save(path, {"large": np.zeros(8 << 20, np.float32)})
    with bs.open(path) as f:
        for read in (f["large"].numpy, f.numpy):
            read()
            tracemalloc.start()
            try:
                read()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 1.05 * (32 << 20)


@pytest.mark.parametrize("version", sorted(folder.name for folder in FIXTURES.iterdir() if folder.is_dir()))
def test_files_of_every_release_can_be_read_by_threads_of_one_checkpoint(version: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with bs.open(FIXTURES / version / "nested.bpk") as f, ThreadPoolExecutor(8) as pool:
        names = list(f) * 20
        found = list(pool.map(lambda name: f[name].to_bytes(), names))
        assert found == [f[name].to_bytes() for name in names]


def test_places_tell_where_bytes_lie_and_where_they_do_not(tmp_path: Path) -> None:
    tensors = {f"t{at}": np.full(100, at, np.float32) for at in range(4)}
    bs.save(tensors, tmp_path / "one.bpk", durable=False)
    bs.save(tensors, tmp_path / "set.safetensors", max_shard_size=900, durable=False)
    for path in (tmp_path / "one.bpk", tmp_path / "set.safetensors"):
        with bs.open(path) as f:
            for (name, place), snapshot in zip(zip(f, f.places(), strict=True), f.values(), strict=True):
                assert place == (f.file_of(name), f.offset_of(name))
                raw = Path(place[0]).read_bytes()
                assert raw[place[1] :][:400] == tensors[name].tobytes() == snapshot.to_bytes()
                assert snapshot.is_source_range
    records = Path(__file__).parent / "fixtures" / "records" / "0.21.0"
    with bs.open(records / "basic.namedmpkgz.full.mpk.gz") as f:
        assert list(f.places()) == [None] * len(f) != []


def test_descriptions_are_those_of_the_snapshots() -> None:
    weight = TensorSnapshot.from_numpy("w", np.zeros((2, 3)), param_id=7)
    bias = TensorSnapshot.from_numpy("b", np.ones(2))
    with bs.open(bs.serialize([weight, bias], format="burnpack")) as f:
        assert list(f.descriptions()) == [("w", DType.F64, (2, 3), 48, 7), ("b", DType.F64, (2,), 16, None)]
