"""Work done elsewhere: what travels to other processes, and a real local cluster of Dask."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from assembled import arrays
from burnstore import nn
from burnstore.stores.records import NamedMpkFileRecorder, NamedMpkGzFileRecorder, PrettyJsonFileRecorder, save_file
from burnstore.transforms.axes import joined, sliced, transposed
from burnstore.transforms.constant import constant
from burnstore.transforms.precision import cast


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("assembly") / "source.safetensors"
    bs.save(arrays(), path)
    return path


class Small(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(5, 3)
        self.norm = nn.LayerNorm(3)


def zip_deflated(path: Path, made: Path) -> None:
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))


@pytest.fixture
def every_file(tmp_path: Path) -> list[Path]:
    """A file of every kind that snapshots can come from."""
    import torch  # not above: what is spawned imports this module

    values = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "v": np.arange(2_000_000, dtype=np.int64)}
    for suffix in ("bpk", "safetensors"):
        bs.save(values, tmp_path / f"plain.{suffix}")
    bs.save(values, tmp_path / "set.safetensors", max_shard_size=1000)
    state = {"w": torch.arange(12.0).reshape(3, 4), "turned": torch.arange(30).reshape(5, 6).t()[1:, ::2]}
    state |= {"negative": torch.arange(6.0).to(torch.complex64).conj(), "long": torch.arange(2_000_000)}
    state |= {"sparse": torch.eye(4).to_sparse(), "half": torch.arange(5.0).bfloat16()}
    torch.save(state, tmp_path / "zip.pt")
    zip_deflated(tmp_path / "zip.pt", tmp_path / "deflated.pt")
    torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"a": np.arange(6.0)}, tmp_path / "array.pt")
    for recorder in (NamedMpkFileRecorder, NamedMpkGzFileRecorder, PrettyJsonFileRecorder):
        save_file(Small(), tmp_path / f"record-{recorder.__name__}", recorder())
    return [path for path in sorted(tmp_path.iterdir()) if "-of-" not in path.name]


def test_snapshots_of_every_kind_of_file_can_be_pickled(every_file: list[Path]) -> None:
    assert len(every_file) == 10
    for path in every_file:
        with bs.open(path) as f:
            for tensor in f.values():
                again = pickle.loads(pickle.dumps(tensor))
                assert (again.path, again.dtype, again.shape) == (tensor.path, tensor.dtype, tensor.shape)
                assert again.to_bytes() == tensor.to_bytes(), (path, tensor)


def test_transformed_snapshots_can_be_pickled(source: Path) -> None:
    with bs.open(source) as f:
        matrix, other = f["matrix.1"], f["matrix.2"]
        made = [
            transposed(matrix),
            sliced(matrix, 0, 3, 90),
            sliced(transposed(matrix), 0, 3, 90),
            sliced(matrix, 1, 3, 90),
            joined([matrix, sliced(matrix, 0, 0, 4)]),
            joined([transposed(other), transposed(other)]),
            cast(matrix, bs.DType.F16),
            cast(transposed(matrix), bs.DType.BF16),
            constant("c", (4, 5), 1.0, bs.DType.F32, ("Struct:Linear",)),
        ]
        for tensor in made:
            again = pickle.loads(pickle.dumps(tensor))
            assert (again.dtype, again.shape, again.container_stack) == (
                tensor.dtype,
                tensor.shape,
                tensor.container_stack,
            )
            assert again.to_bytes() == tensor.to_bytes()


# --- a real cluster ---------------------------------------------------------------------------------------------------

_CLUSTER = """
import os, signal, sys
import distributed
import burnstore as bs
from burnstore.jobs.convert.receipt import check_receipt
from burnstore.formats.registry import format_named
from burnstore.tensor.snapshot import TensorSnapshot
sys.path.insert(0, sys.argv[3])
from assembled import assemble, die, refuse, with_broken

def refused(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError("nothing was raised")

def whole_files(client):
    here = bs.convert(source, folder + "/here.bpk", layout="burn")
    for name, executor in (("client", client), ("executor", client.get_executor(pure=False))):
        there = bs.convert(source, f"{folder}/{name}.bpk", layout="burn", executor=executor)
        assert there.verified and there.tensors == here.tensors
        assert open(f"{folder}/{name}.bpk", "rb").read() == open(folder + "/here.bpk", "rb").read()

def sets_of_shards(client):
    with bs.open(source) as f:
        broken = with_broken(list(f.values()), "matrix.4", refuse)
        os.mkdir(folder + "/set")
        target = folder + "/set/m.safetensors"
        options = {"metadata": None, "max_shard_size": "4MB", "workers": client}
        safetensors = format_named("safetensors")
        refused(bs.errors.CorruptError, "cannot be read", assemble, broken, target, safetensors, **options)
    assert os.listdir(folder + "/set") == []
    done = bs.convert(source, target, max_shard_size="4MB", executor=client, receipt=True)
    assert len(done.files) > 4 and check_receipt(done.receipt, executor=client).ok

def nothing_of_the_files_is_open_here(client):
    for fd in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{fd}"):
            opened = os.readlink(f"/proc/self/fd/{fd}")
            assert not opened.startswith((folder, source)), opened

def a_worker_that_is_killed(client):
    with bs.open(source) as f:
        broken = with_broken(list(f.values()), "matrix.3", die)
        refused(bs.BurnstoreError, "a worker ended", assemble, broken, folder + "/x.bpk", format_named("burnpack"),
                metadata={}, workers=client)
    assert not [name for name in os.listdir(folder) if "x.bpk" in name]

if __name__ == "__main__":
    source, folder = sys.argv[1:3]
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        for check in (whole_files, sets_of_shards, nothing_of_the_files_is_open_here, a_worker_that_is_killed):
            check(client)
            print(check.__name__, flush=True)
"""


@pytest.mark.slow("a cluster")
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_dask_cluster_makes_files_and_shards_that_are_complete_or_absent(source: Path, tmp_path: Path) -> None:
    """In a process of its own: a local cluster keeps sockets and threads, and warns of much."""
    pytest.importorskip("distributed", reason="needs Dask's distributed")
    script = tmp_path / "script.py"
    script.write_text(_CLUSTER)
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, script, source, folder, Path(__file__).parent]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.split() == [
        "whole_files",
        "sets_of_shards",
        "nothing_of_the_files_is_open_here",
        "a_worker_that_is_killed",
    ]
