"""Assembly: many workers write one planned file; it is proved, and whole or not there, whatever goes wrong."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from assembled import Broken, arrays, assemble, die, nothing_left, refuse, same_tensors, with_broken
from burnstore.formats.registry import format_named
from burnstore.formats.safetensors import writer
from burnstore.io import atomic
from burnstore.io.workers import checked_workers
from burnstore.pipeline import write as assembly
from burnstore.tensor.snapshot import TensorSnapshot
from burnstore.transforms.axes import joined, sliced, transposed
from burnstore.transforms.precision import cast

pytestmark = pytest.mark.usefixtures("spawning")

SCRATCH = re.compile(r"\..+\.burnstore-tmp")
BURNPACK, SAFETENSORS = format_named("burnpack"), format_named("safetensors")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("assembly") / "source.safetensors"
    bs.save(arrays(), path)
    return path


@pytest.fixture
def tensors(source: Path) -> Iterator[list[TensorSnapshot]]:
    with bs.open(source) as f:
        yield list(f.values())


@pytest.fixture(params=["threads", "processes", "executor"])
def workers(request: pytest.FixtureRequest) -> Iterator[Any]:
    with ThreadPoolExecutor(3) as pool:
        yield {"threads": None, "processes": 2, "executor": pool}[request.param]


# --- what is written --------------------------------------------------------------------------------------------------


IDENTITY = rb'"burnstore.set": ?"[0-9a-f]{32}"'


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("format", [BURNPACK, SAFETENSORS], ids=["burnpack", "safetensors"])
def test_whoever_works_the_bytes_are_those_of_save(
    tensors: list[TensorSnapshot], tmp_path: Path, workers: Any, format: Any
) -> None:
    bs.save(
        tensors,
        tmp_path / "saved",
        format=format.name,
        metadata={"epochs": "3"},
        layout=(format.name == "burnpack" and "burn") or None,
    )
    done = assemble(tensors, tmp_path / "made", format, metadata={"epochs": "3"}, workers=workers)
    assert (tmp_path / "made").read_bytes() == (tmp_path / "saved").read_bytes()
    assert done.files == [str(tmp_path / "made")] and done.digests == {}
    nothing_left(tmp_path, "made", "saved")


def test_transformed_tensors_are_made_by_the_workers(
    tensors: list[TensorSnapshot], tmp_path: Path, workers: Any
) -> None:
    by_path = {tensor.path: tensor for tensor in tensors}
    made = [transposed(tensor) if len(tensor.shape) == 2 else tensor for tensor in tensors]
    made.append(cast(by_path["matrix.1"], bs.DType.BF16).with_path("half"))
    made.append(cast(transposed(by_path["matrix.2"]), bs.DType.F64).with_path("double"))
    made.append(joined([by_path["matrix.3"], sliced(by_path["matrix.3"], 0, 5, 300)]).with_path("joined"))
    assemble(made, tmp_path / "x.safetensors", SAFETENSORS, metadata=None, workers=workers)
    same_tensors(tmp_path / "x.safetensors", made)


def test_digests_are_those_of_the_tensors(tensors: list[TensorSnapshot], tmp_path: Path, workers: Any) -> None:
    from hashlib import sha256

    done = assemble(tensors, tmp_path / "x.bpk", BURNPACK, metadata={}, digests=True, workers=workers)
    assert done.digests == {tensor.path: sha256(tensor.to_bytes()).hexdigest() for tensor in tensors}


def test_expected_digests_must_come_out(tensors: list[TensorSnapshot], tmp_path: Path) -> None:
    done = assemble(tensors, tmp_path / "x.bpk", BURNPACK, metadata={}, digests=True)
    wrong = {**done.digests, "scalar": done.digests["empty"]}
    with pytest.raises(bs.errors.CorruptError, match="SHA-256 differs from the receipt") as caught:
        assemble(tensors, tmp_path / "y.bpk", BURNPACK, metadata={}, expected=wrong)
    assert caught.value.tensor == "scalar"
    with pytest.raises(bs.errors.CorruptError, match="tensor names differ from the expected set"):
        assemble(tensors[1:], tmp_path / "y.bpk", BURNPACK, metadata={}, expected=done.digests)
    nothing_left(tmp_path, "x.bpk")
    assemble(tensors, tmp_path / "y.bpk", BURNPACK, metadata={}, expected=done.digests)
    with pytest.raises(TypeError, match="verify"):
        assemble(tensors, tmp_path / "z.bpk", BURNPACK, metadata={}, digests=True, verify=False)


def test_a_file_without_tensors_can_be_made(tmp_path: Path, workers: Any) -> None:
    assemble([], tmp_path / "x.bpk", BURNPACK, metadata={"a": "b"}, workers=workers)
    with bs.open(tmp_path / "x.bpk") as f:
        assert len(f) == 0 and f.metadata["a"] == "b"


def test_progress_goes_up_to_the_whole(tensors: list[TensorSnapshot], tmp_path: Path) -> None:
    for options in ({}, {"verify": False}, {"max_shard_size": "8MB"}):
        told: list[int] = []
        path = tmp_path / f"{len(options)}{options.get('verify')}.safetensors"
        progress = partial(lambda told, *now: told.extend(now), told)
        assemble(tensors, path, SAFETENSORS, metadata=None, progress=progress, **options)
        done, totals = told[::2], told[1::2]
        assert list(done) == sorted(done) and len(set(totals)) == 1 and done[-1] == totals[-1]


def test_shards_are_those_of_save(tensors: list[TensorSnapshot], tmp_path: Path, workers: Any) -> None:
    for folder in ("saved", "made"):
        (tmp_path / folder).mkdir()
    bs.save(tensors, tmp_path / "saved" / "m.safetensors", max_shard_size="8MB")
    made = tmp_path / "made" / "m.safetensors"
    done = assemble(tensors, made, SAFETENSORS, metadata=None, max_shard_size="8MB", workers=workers)
    names = sorted(os.listdir(tmp_path / "saved"))
    assert sorted(os.listdir(tmp_path / "made")) == names and len(names) > 2
    for name in names:  # but for the identity of each set, of equal length
        one, other = ((tmp_path / folder / name).read_bytes() for folder in ("made", "saved"))
        assert re.sub(IDENTITY, b"", one) == re.sub(IDENTITY, b"", other) and one != other
    assert done.files[0] == f"{made}.index.json"
    assert sorted(map(os.path.basename, done.files)) == names
    with pytest.raises(TypeError, match="one file"):
        assemble(tensors, tmp_path / "x.bpk", BURNPACK, metadata={}, max_shard_size="8MB")


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "x.bpk").write_bytes(b"old")
    return folder / "x.bpk"


def untouched(old: Path) -> None:
    assert old.read_bytes() == b"old"
    nothing_left(old.parent, old.name)


@pytest.mark.parametrize("name", ["small.7", "matrix.3"])
def test_a_task_that_fails_leaves_the_old_file(
    tensors: list[TensorSnapshot], old: Path, workers: Any, name: str
) -> None:
    with pytest.raises(bs.errors.CorruptError, match="cannot be read") as caught:
        assemble(with_broken(tensors, name, refuse), old, BURNPACK, metadata={}, overwrite=True, workers=workers)
    assert (caught.value.tensor, caught.value.path) == (name, str(old))
    untouched(old)


def test_a_worker_that_is_killed_leaves_the_old_file(tensors: list[TensorSnapshot], old: Path) -> None:
    with pytest.raises(bs.BurnstoreError, match="a worker ended"):
        assemble(with_broken(tensors, "matrix.3", die), old, BURNPACK, metadata={}, overwrite=True, workers=2)
    untouched(old)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_leaves_the_old_file(
    tensors: list[TensorSnapshot], old: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real, calls = atomic.PortionWriter._write_some, []

    def full(self: Any, offset: int, window: memoryview) -> int:
        calls.append(offset)
        if len(calls) > 4:
            raise OSError(number, os.strerror(number))
        return real(self, offset, window)

    monkeypatch.setattr(atomic.PortionWriter, "_write_some", full)
    with pytest.raises(bs.errors.SaveError, match="not saved") as caught:
        assemble(tensors, old, BURNPACK, metadata={}, overwrite=True)
    assert caught.value.errno == number and caught.value.stage == "write"
    untouched(old)


def test_a_flush_that_fails_while_proving_leaves_the_old_file(
    tensors: list[TensorSnapshot], old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(atomic, "_fsync", broken)
    with pytest.raises(bs.errors.SaveError, match="brought to disk"):
        assemble(tensors, old, BURNPACK, metadata={}, overwrite=True)
    untouched(old)


@pytest.mark.parametrize("name", ["small.7", "matrix.3", "wide", "scalar"])
@pytest.mark.parametrize("position", [0, -1])
def test_a_bit_that_flips_before_the_proof_is_found(
    tensors: list[TensorSnapshot], old: Path, monkeypatch: pytest.MonkeyPatch, name: str, position: int
) -> None:
    real = assembly.open_checkpoint

    def flip_and_open(path: Any, **options: Any) -> Any:
        with real(path, **options) as written:
            tensor = written[name]
            offset = written.offset_of(name) + (position % tensor.nbytes)
        with open(path, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 0x10]))
        return real(path, **options)

    monkeypatch.setattr(assembly, "open_checkpoint", flip_and_open)
    with pytest.raises(bs.errors.CorruptError, match="read back differs from the source") as caught:
        assemble(tensors, old, BURNPACK, metadata={}, overwrite=True)
    assert (caught.value.tensor, caught.value.path) == (name, str(old))
    untouched(old)
    assemble(tensors, old, BURNPACK, metadata={}, overwrite=True, verify=False)


@pytest.mark.parametrize(
    ("meant", "written"), [("BF16", "F16"), ("F8_E4M3", "F8_E5M2"), ("I16", "U16"), ("I8", "BOOL")]
)
def test_a_dtype_that_is_written_down_as_another_of_its_width_is_found(
    old: Path, monkeypatch: pytest.MonkeyPatch, meant: str, written: str
) -> None:
    real = writer.spelling_of
    monkeypatch.setattr(writer, "spelling_of", lambda dtype: written if real(dtype) == meant else real(dtype))
    data = bs.TensorData(bytes(8), bs.DType.parse(meant), (8 // (bs.DType.parse(meant).bits // 8),))
    with pytest.raises(bs.errors.CorruptError, match="read back differs from the source") as caught:
        assemble([TensorSnapshot.from_data("w", data)], old, SAFETENSORS, metadata={}, overwrite=True)
    assert caught.value.tensor == "w"
    untouched(old)


@pytest.mark.parametrize("dtype", [bs.DType.Flex32, bs.DType.BoolU8, bs.DType.Bool, bs.DType.BF16])
def test_a_dtype_that_files_hold_under_another_name_is_proved(tmp_path: Path, dtype: bs.DType) -> None:
    tensor = TensorSnapshot.from_data("w", bs.TensorData(bytes(8), dtype, (64 // dtype.bits,)))
    for chosen in (SAFETENSORS, BURNPACK):
        assemble([tensor], tmp_path / chosen.name, chosen, metadata={})


def test_a_writer_that_loses_a_portion_is_found(
    tensors: list[TensorSnapshot], old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = atomic.PortionWriter.write_at

    def lossy(self: Any, offset: int, buffer: Any) -> None:
        if not 5_000_000 < offset < 6_000_000:
            real(self, offset, buffer)

    monkeypatch.setattr(atomic.PortionWriter, "write_at", lossy)
    with pytest.raises(bs.errors.CorruptError, match="read back differs from the source"):
        assemble(tensors, old, BURNPACK, metadata={}, overwrite=True)
    untouched(old)


def test_a_source_that_changes_under_way_is_noticed(tmp_path: Path, old: Path) -> None:
    path = tmp_path / "source.safetensors"
    bs.save(arrays(), path)
    with bs.open(path) as f:
        tensors = list(f.values())
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        os.utime(path, ns=(1, 1))
        with pytest.raises(bs.errors.ChangedError):
            assemble(tensors, old, BURNPACK, metadata={}, overwrite=True)
    untouched(old)


def test_data_that_give_less_than_they_say_are_refused(old: Path) -> None:
    short = bs.TensorSnapshot("w", bs.DType.F32, (500_000,), Short())
    with pytest.raises(bs.errors.CorruptError, match="expected 2000000 bytes, got 1999992"):
        assemble([short], old, BURNPACK, metadata={}, overwrite=True)
    untouched(old)


class Short(Broken):
    def __init__(self) -> None:
        super().__init__(None, refuse)

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield memoryview(bytes(nbytes - 8))


def test_what_cannot_be_pickled_is_refused_before_the_target_is_touched(old: Path) -> None:
    closure = TensorSnapshot.from_closure("w", bs.DType.F32, (3,), lambda: np.ones(3, np.float32))
    other = TensorSnapshot.from_numpy("v", np.ones(3, np.float32))
    with pytest.raises(bs.BurnstoreError, match="cannot be given to another process") as caught:
        assemble([closure, other], old, BURNPACK, metadata={}, overwrite=True, workers=2)
    assert caught.value.tensor == "w"
    untouched(old)
    assemble([closure, other], old, BURNPACK, metadata={}, overwrite=True)


def test_what_is_not_an_executor_is_refused(old: Path) -> None:
    with pytest.raises(TypeError, match="submit"):
        assemble([], old, BURNPACK, metadata={}, overwrite=True, workers=checked_workers)  # type: ignore[arg-type]
    untouched(old)


_INTERRUPTED = """
import os, signal, sys, threading
import burnstore as bs
from burnstore.io import workers as execution
from burnstore.pipeline import write as assembly
from burnstore.pipeline.write import assemble
from burnstore.formats.base import WriteOptions
from burnstore.formats.registry import format_named
from burnstore.formats.safetensors import writer

if __name__ == "__main__":
    source, target, workers, moment = sys.argv[1:]
    moment = int(moment)
    def progress(done, total):
        if done >= total * moment // 100:
            os.kill(os.getpid(), signal.SIGINT)
    with bs.open(source) as f:
        try:
            how = WriteOptions(overwrite=True, workers=int(workers) or None, progress=progress)
            assemble(list(f.values()), target, format_named("burnpack"), how, metadata={})
        except KeyboardInterrupt:
            left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
            print("interrupted", [name for name in left if name.startswith("burnstore")])
"""


@pytest.mark.matrix(every=4)
@pytest.mark.skipif(sys.platform == "win32", reason="sends itself SIGINT")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("moment", [1, 40, 60, 90])
def test_ctrl_c_leaves_the_old_file_and_nobody_at_work(
    source: Path, old: Path, tmp_path: Path, workers: int, moment: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_INTERRUPTED)
    command = [sys.executable, script, source, old, workers, moment]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted []\n"), done.stderr
    untouched(old)


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow("kills")
@pytest.mark.skipif(sys.platform == "win32", reason="kills")
def test_kills_of_conversions_at_random_instants_leave_old_or_new() -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "crash" / "kill.py"), "--saver", "convert"]
    command += ["--kills", "40", "--seed", "7", "--largest", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills=40 " in done.stdout.splitlines()[-1] and "damaged=0" in done.stdout.splitlines()[-1]


# --- memory -----------------------------------------------------------------------------------------------------------

_MEASURED = """
import resource, sys
import burnstore as bs
import burnstore.jobs.convert.convert
from burnstore.io.workers import run_tasks
source, target, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
bs.convert(sys.argv[4], target + ".warm.bpk", **options)  # what is imported and set up is not of this job
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bs.convert(source, target, **options)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow("a large file")
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss in kilobytes")
@pytest.mark.parametrize(
    "options",
    [
        {"layout": "burn"},
        {"layout": "torch", "rules": {"^l": "Linear"}},
        {"layout": "burn", "cast": "bf16"},
        {"layout": "torch", "rules": {"^l": "Linear"}, "cast": "f16"},
    ],
    ids=["copied", "transposed", "cast", "transposed and cast"],
)
def test_memory_is_the_largest_tensor_and_64_megabytes(
    tmp_path: Path, run_python: Any, options: dict[str, Any]
) -> None:
    largest = 96 << 20
    values = {f"l{n}.weight": np.full((4096, largest // 4 // 4096), n, np.float32) for n in range(5)}
    bs.save(values, tmp_path / "big.safetensors", durable=False)
    bs.save({"l.weight": np.ones((300, 300), np.float32)}, tmp_path / "small.safetensors")
    paths = tmp_path / "big.safetensors", tmp_path / "out.bpk"
    used = int(run_python(_MEASURED, *paths, repr({**options, "durable": False}), tmp_path / "small.safetensors"))
    assert used <= (0 if "copied" in str(options) else largest) + (64 << 20), f"{used / 2**20:.0f} MiB"


def test_a_quantized_tensor_is_proved_in_whichever_style_it_is_written(tmp_path: Path) -> None:
    for path in sorted((Path(__file__).parents[1] / "fixtures" / "burn").glob("0.2[01]*/quant_*.bpk")):
        with bs.open(path) as old:
            target = tmp_path / f"{path.parent.name}-{path.name}"
            bs.convert(path, target, keep_layout=True, burn_version="0.22", durable=False)
            with bs.open(target) as new:
                assert {name: t.to_bytes() for name, t in new.items()} == {
                    name: t.to_bytes() for name, t in old.items()
                }
    assert len(os.listdir(tmp_path)) >= 4
