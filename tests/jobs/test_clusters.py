"""Conversions on real clusters of several processes, each in a folder of its own: the bytes of a local one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
import remote_servers as servers
from burnstore.errors import MissingDependencyError
from burnstore.jobs.convert import job as jobs
from remote_servers import _no_configuration, _no_descriptor_leaks, s3_options  # noqa: F401  # fixtures

ROOT = Path(bs.__file__).parent.parent
S3_MISSING = servers.missing("versitygw")
TENSORS = {f"layer.{number}.weight": np.full((300, 400), number, np.float32) for number in range(12)}

WORKER = """
import os, signal, tempfile
from burnstore.jobs.convert import parts

def once_lost(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

class Share:
    "A share that kills its worker once, in a worker that is in a folder of its own."
    def __init__(self, *arguments): self.arguments = arguments
    def __call__(self, part):
        os.chdir(tempfile.mkdtemp(dir=self.arguments[0]))
        if self.arguments[1]:
            once_lost(self.arguments[1])
        document, of, storage_options = self.arguments[2:]
        parts.run_part(document, part, of, storage_options=storage_options)
"""

START = """
import os, sys, json
from pathlib import Path
import burnstore as bs
from cluster_worker import Share
from burnstore.jobs.convert import job, parts
job._UNIT_BYTES = 600_000
options, folder, lose = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "lose"
lost = str(folder / "lost") if lose else ""
# What a worker does is replaced by the same in another folder, and once by its death.
parts.partial = lambda function, document, of, storage_options: Share(
    str(folder), lost, document, of, storage_options)

def convert(executor):
    seen = []
    result = bs.convert("s3://bucket/c/a.safetensors", sys.argv[4], cast="bf16", executor=executor,
        storage_options=options, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] and len(seen) > 3, seen
    print("tensors", result.tensors, result.verified)
"""

DASK = """
if __name__ == "__main__":
    from distributed import Client, LocalCluster
    how = {"n_workers": 3, "threads_per_worker": 1, "dashboard_address": None, "local_directory": str(folder)}
    with LocalCluster(**how) as cluster:
        with Client(cluster) as client:
            convert(client)
"""

RAY = """
if __name__ == "__main__":
    import ray, shutil, tempfile
    place = tempfile.mkdtemp(prefix="r")  # the names of sockets in it must be short
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=80 << 20, _temp_dir=place)
    convert("ray")
    ray.shutdown()
    shutil.rmtree(place, ignore_errors=True)
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with servers.s3_server(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.mark.slow("starts a cluster")
@pytest.mark.skipif(S3_MISSING is not None, reason=str(S3_MISSING))
@pytest.mark.parametrize(
    ("package", "code", "lose"),
    [("distributed", DASK, "lose"), ("distributed", DASK, "keep"), ("ray", RAY, "lose")],
    ids=["dask, a worker is lost", "dask", "ray, a worker is lost"],
)
def test_a_cluster_writes_the_bytes_of_one_process(s3: int, tmp_path: Path, package: str, code: str, lose: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: requirements/test.txt has it")
    options = s3_options(s3)
    bs.save(TENSORS, "s3://bucket/c/a.safetensors", storage_options=options, overwrite=True)
    bs.convert(
        "s3://bucket/c/a.safetensors",
        "s3://bucket/c/local.safetensors",
        cast="bf16",
        overwrite=True,
        storage_options=options,
    )
    target = f"s3://bucket/c/{package}-{lose}.safetensors"
    import json

    script = tmp_path / "script.py"
    script.write_text(START + code)
    (tmp_path / "cluster_worker.py").write_text(WORKER)  # workers import it
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = [sys.executable, str(script), json.dumps(options), str(tmp_path), lose, target]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tensors 12 True" in done.stdout
    assert servers.SECRET not in done.stdout + done.stderr
    assert (tmp_path / "lost").exists() == (lose == "lose")
    objects = [_bytes_of(f"s3://bucket/c/{name}", options) for name in ("local.safetensors", target.rpartition("/")[2])]
    assert objects[0] == objects[1]
    from burnstore.io.paths import as_path, names_in

    assert not [name for name in names_in(as_path("s3://bucket/c", options)) if "burnstore-job" in name]


def _bytes_of(url: str, options: dict[str, Any]) -> bytes:
    from burnstore.io.opening import read_whole
    from burnstore.io.paths import as_path

    return read_whole(as_path(url, options), 1 << 30)


class Client:
    """What convert sees of a client of Dask."""

    def __init__(self) -> None:
        self.calls = 0

    def get_executor(self, *, pure: bool) -> Client:
        assert not pure
        return self

    def submit(self, function: Any, *arguments: Any) -> Any:
        from concurrent.futures import Future

        self.calls += 1
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def test_a_client_does_shares_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_UNIT_BYTES", 600_000)
    bs.save(TENSORS, tmp_path / "a.safetensors")
    client = Client()
    result = bs.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", cast="bf16", executor=client)
    plain = bs.convert(tmp_path / "a.safetensors", tmp_path / "c.safetensors", cast="bf16")
    assert client.calls == 6 and (result.tensors, result.nbytes, result.verified) == (12, plain.nbytes, True)
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors", "c.safetensors"]


def test_what_a_cluster_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bs.save(TENSORS, tmp_path / "a.safetensors")
    paths = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    with pytest.raises(ValueError, match="leave out receipt and resume"):
        bs.convert(*paths, executor="ray", receipt=True)
    with pytest.raises(ValueError, match="expected \"ray\" or an executor, got 'rays'"):
        bs.convert(*paths, executor="rays")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="plan= only compiles"):
        bs.convert(*paths, executor="ray", plan=tmp_path / "job.json")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'burnstore\[ray\]'"):
        bs.convert(*paths, executor="ray")
    assert not (tmp_path / "b.safetensors").exists()
