"""A job is data: its shares are done in any order, by any process, and the result is that of one process."""

from __future__ import annotations

import filecmp
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main
from burnstore.errors import CorruptError, ReadError, UnsupportedError
from burnstore.jobs.convert import job as jobs
from burnstore.jobs.convert.parts import finish_job, run_job, run_part


@pytest.fixture
def source(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    tensors = {f"layer.{number}.weight": random.random((50, 40), dtype=np.float32) for number in range(24)}
    bs.save(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    return tmp_path / "a.safetensors"


@pytest.fixture(autouse=True)
def _small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_UNIT_BYTES", 20_000)


OPTIONS: dict[str, Any] = {"rules": {r"layer\.\d+": "Linear"}, "cast": "bf16", "rename": ["^layer=>block"]}


@pytest.mark.parametrize("name", ["b.bpk", "b.safetensors", "b.pt", "b.npz"])
def test_a_job_gives_the_bytes_of_a_conversion(source: Path, name: str) -> None:
    options = {**OPTIONS, "rules": {r"block\.\d+": "Linear"}, "cast": "f16" if name.endswith("npz") else "bf16"}
    planned = bs.convert(source, source.parent / name, plan=source.parent / "job.json", **options)
    assert planned.files == [str(source.parent / "job.json")] and not (source.parent / name).exists()
    made = [run_part(source.parent / "job.json", part, 5) for part in (4, 1, 5, 3, 2, 4)]
    assert not made[-1].done and made[-1].already == made[0].done
    assert sorted(unit for each in made for unit in each.done) == list(range(made[0].units))
    result = finish_job(source.parent / "job.json")
    direct = bs.convert(source, source.parent / f"direct-{name}", **options)
    assert filecmp.cmp(source.parent / name, source.parent / f"direct-{name}", shallow=False)
    assert (result.tensors, result.nbytes, result.layout) == (direct.tensors, direct.nbytes, direct.layout)
    assert not [path for path in source.parent.iterdir() if "burnstore-job" in path.name]


def test_values_that_a_cast_makes_zero_are_noted_by_who_finishes(source: Path) -> None:
    tiny = {f"layer.{number}.weight": np.full((50, 40), 1e-30, np.float32) for number in range(12)}
    bs.save(tiny, source, metadata={"format": "pt"}, overwrite=True)
    direct = bs.convert(source, source.parent / "direct.safetensors", cast="f16")
    assert any("became 0 in 'layer.0.weight'" in note for note in direct.notes)
    job = source.parent / "job.json"
    bs.convert(source, source.parent / "b.safetensors", cast="f16", plan=job)
    made = run_part(job, 1, 1)
    assert len(made.done) > 1
    stage = next(path for path in source.parent.iterdir() if "burnstore-job" in path.name)
    record = sorted(stage.glob("*.zeroed.json"))[0]
    record.unlink()  # a worker was killed before it had written what it saw
    with pytest.raises(ReadError, match="unit of the job is missing"):
        finish_job(job)
    assert run_part(job, 1, 1).done == made.done[:1]
    record.write_bytes(b"[1]")
    with pytest.raises(bs.BurnstoreError):
        finish_job(job)
    record.unlink()
    run_part(job, 1, 1)
    assert finish_job(job).notes == direct.notes
    assert not stage.exists()


def test_a_job_into_shards(source: Path) -> None:
    bs.convert(source, source.parent / "s.safetensors", plan=source.parent / "job.json", max_shard_size="40kB")
    run_part(source.parent / "job.json", 1, 1)
    finish_job(source.parent / "job.json")
    assert bs.diff(source, source.parent / "s.safetensors").equal


def test_what_is_missing_or_changed_is_said(source: Path) -> None:
    job = source.parent / "job.json"
    bs.convert(source, source.parent / "b.safetensors", plan=job)
    with pytest.raises(ReadError, match="a unit of the job is missing"):
        finish_job(job)
    run_part(job, 1, 2)
    with pytest.raises(ReadError, match="a unit of the job is missing"):
        finish_job(job)
    with pytest.raises(ValueError, match="expected a part from 1 to 2"):
        run_part(job, 3, 2)
    bs.save({"w": np.zeros(3)}, source, overwrite=True)
    with pytest.raises(CorruptError, match="changed after the job was planned"):
        run_part(job, 2, 2)
    job.write_text("{}")
    with pytest.raises(CorruptError, match="not a job"):
        run_part(job, 1, 1)
    with pytest.raises(ValueError, match="only compiles"):
        bs.convert(source, source.parent / "c.bpk", plan=job, receipt=True)


@pytest.mark.parametrize("change", ["units", "shape", "operations", "flag"])
def test_a_job_that_was_edited_is_refused(source: Path, change: str) -> None:
    job = source.parent / "job.json"
    bs.convert(source, source.parent / "b.safetensors", plan=job)
    document = json.loads(job.read_text())
    if change == "units":
        document["units"][1][1] -= 1
    elif change == "shape":
        document["tensors"][0]["shape"] = [1]
    elif change == "operations":
        document["tensors"][0]["operations"] = [["explode"]]
    else:
        document["target"]["verify"] = "no"
    job.write_text(json.dumps(document))
    with pytest.raises((CorruptError, bs.BurnstoreError)):
        run_part(job, 1, 1)


def test_a_job_holds_no_credentials(source: Path) -> None:
    url = "s3://bucket/a.bpk?X-Amz-Signature=s3cret"
    with pytest.raises(UnsupportedError, match="stored without credentials"):
        bs.convert(source, url, format="safetensors", plan=source.parent / "job.json")
    assert not (source.parent / "job.json").exists()


def test_the_command_line_does_the_same(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, target = str(source.parent / "job.json"), str(source.parent / "b.safetensors")
    assert main(["convert", str(source), target, "--plan", job]) == 0
    assert main(["convert", "--plan", job, "--finish"]) == 2
    assert "unit" in capsys.readouterr().err
    for part in ("2/2", "1/2", "2/2"):
        assert main(["convert", "--plan", job, "--part", part]) == 0
    assert "were done before" in capsys.readouterr().out
    assert main(["convert", "--plan", job, "--part", "3/2"]) == 2
    assert main(["convert", "--part", "1/2"]) == 2
    assert main(["convert", "--plan", job, "--finish"]) == 0
    assert bs.diff(source, target).equal


@pytest.mark.slow("kills processes")
def test_64_parts_over_4_processes_with_kills_are_byte_equal(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    bs.save({f"w{number:02}": random.random(200_000, dtype=np.float32) for number in range(64)}, tmp_path / "a.bpk")
    job = tmp_path / "job.json"
    bs.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", plan=job, keep_layout=True)
    assert len(json.loads(job.read_text())["units"]) == 64
    code = (
        "import sys\nfrom burnstore.jobs.convert.parts import run_part\n"
        "for part in range(int(sys.argv[2]), 65, 4): run_part(sys.argv[1], part, 64)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(bs.__file__).parent.parent)}

    def start(first: int) -> subprocess.Popen[bytes]:
        folder = tmp_path / f"worker-{first}-{time.monotonic_ns()}"
        folder.mkdir()
        return subprocess.Popen([sys.executable, "-c", code, str(job), str(first)], cwd=folder, env=environment)

    for delay in (0.4, 0.6, 0.8):
        workers = [start(first) for first in (1, 2, 3, 4)]
        time.sleep(delay)
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
    workers = [start(first) for first in (1, 2, 3, 4)]
    assert [worker.wait(120) for worker in workers] == [0] * 4
    finish_job(job)
    bs.convert(tmp_path / "a.bpk", tmp_path / "direct.safetensors", keep_layout=True)
    assert filecmp.cmp(tmp_path / "b.safetensors", tmp_path / "direct.safetensors", shallow=False)
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == sorted(
        [".bpk", ".json", ".safetensors", ".safetensors"]
    )
    assert not list(tmp_path.glob("*burnstore-job*"))


class Losing:
    """An executor whose first calls are lost."""

    def __init__(self, lost: int) -> None:
        self.lost = lost

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.lost > 0:
            self.lost -= 1
            future.set_exception(ConnectionError("the worker is gone"))
            return future
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def test_a_lost_share_is_done_again(source: Path) -> None:
    job = source.parent / "job.json"
    bs.convert(source, source.parent / "b.safetensors", plan=job)
    with pytest.raises(bs.BurnstoreError, match="lost 3 times"):
        run_job(Losing(100), job, parts=4)
    assert run_job(Losing(5), job, parts=4).tensors == 24
    assert bs.diff(source, source.parent / "b.safetensors").equal
    with pytest.raises(TypeError, match="an executor"):
        run_job(object(), job)


@pytest.mark.slow("starts a cluster")
@pytest.mark.filterwarnings("ignore")
def test_dask_does_a_job(source: Path, spawning: None) -> None:
    from distributed import Client, LocalCluster

    job = source.parent / "job.json"
    bs.convert(source, source.parent / "b.safetensors", plan=job)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        run_job(client, job, parts=6)
    bs.convert(source, source.parent / "direct.safetensors")
    assert filecmp.cmp(source.parent / "b.safetensors", source.parent / "direct.safetensors", shallow=False)
