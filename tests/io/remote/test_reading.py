"""Remote files: few requests, only the bytes that are needed, always of the content that was opened."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burnstore as bs
import remote_servers as servers
from burnstore.errors import ChangedError, ClosedError, FormatError, MissingDependencyError, ReadError, UnsupportedError
from burnstore.io.remote.source import MAX_GAP, MAX_REQUEST
from remote_servers import RangeServer, _no_configuration, _no_descriptor_leaks, equal, packed, serve, some_tensors

pytest.importorskip("obstore", reason="obstore is not installed: requirements/test.txt has it")

Serve = Callable[..., RangeServer]
QUICKLY = {"retries": 3}
STALL = servers.stall(30)


@pytest.mark.parametrize("format", ["safetensors", "burnpack", "pytorch", "npz", "record"])
def test_every_format_is_read_over_http(serve: Serve, format: str) -> None:
    tensors = some_tensors()
    if format == "record":
        pytest.importorskip("burnstore.stores.records")
        data = _record(tensors)
    else:
        data = packed(tensors, format)
    server = serve({"model": data})
    with bs.open(f"{server.url}/model") as file:
        assert file.path == f"{server.url}/model"
        assert [value.shape for value in file.numpy().values()] == [value.shape for value in tensors.values()]
        assert all(np.array_equal(*pair) for pair in zip(file.numpy().values(), tensors.values(), strict=True))


def _record(tensors: Any) -> bytes:
    from burnstore import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            self.layer = [nn.Linear(40, 8) for _ in tensors]
            for linear, value in zip(self.layer, tensors.values(), strict=True):
                linear.weight = value
                linear.bias = None

    import tempfile

    from burnstore.stores.records import NamedMpkFileRecorder, save_file

    with tempfile.TemporaryDirectory() as folder:
        save_file(Net(), f"{folder}/a.mpk", NamedMpkFileRecorder())
        with open(f"{folder}/a.mpk", "rb") as file:
            return file.read()


def test_a_file_is_opened_with_one_request_if_its_header_is_small(serve: Serve) -> None:
    server = serve({"a.safetensors": packed(some_tensors())})
    bs.open(f"{server.url}/a.safetensors").close()
    assert len(server.requests) == 1


@pytest.mark.slow("a large header")
def test_a_file_of_20000_tensors_is_opened_with_two_requests(serve: Serve) -> None:
    tensors = {f"model.layers.{number}.self_attn.q_proj.weight": np.zeros(2, np.float32) for number in range(20_000)}
    server = serve({"a.safetensors": packed(tensors)})
    with bs.open(f"{server.url}/a.safetensors") as file:
        assert len(file) == 20_000
    assert len(server.requests) == 2


def test_neighbours_are_one_request_and_far_tensors_are_not(serve: Serve) -> None:
    sizes = {"0": 600_000, "1": 1000, "2 gap": MAX_GAP - 8, "3": 1000, "4 far": MAX_GAP + 4096, "5": 1000}
    tensors = {name: np.arange(size, dtype=np.int64).astype(np.uint8) for name, size in sizes.items()}
    server = serve({"a.safetensors": packed(tensors)})
    with bs.open(f"{server.url}/a.safetensors") as file:
        server.requests.clear()
        found = file.numpy(["1", "3", "5"])
        assert equal(found, {name: tensors[name] for name in ("1", "3", "5")})
    assert len(server.requests) == 2
    assert server.bytes_asked() < 3000 + MAX_GAP


def test_a_large_tensor_is_split_and_read_concurrently(serve: Serve) -> None:
    tensors = {"w": np.arange(10 * 1024 * 1024, dtype=np.uint32)}
    server = serve({"a.safetensors": packed(tensors)})
    with bs.open(f"{server.url}/a.safetensors") as file:
        server.requests.clear()
        assert np.array_equal(file["w"].numpy(), tensors["w"])
    assert len(server.requests) == 3
    assert all(request.range[1] - request.range[0] <= MAX_REQUEST for request in server.requests if request.range)
    assert server.bytes_asked() == tensors["w"].nbytes


def test_a_slice_reads_only_its_bytes(serve: Serve) -> None:
    value = np.arange(400 * 1024, dtype=np.float32).reshape(400, 1024)
    server = serve({"a.safetensors": packed({"pad": np.zeros(200_000, np.float32), "w": value})})
    with bs.open(f"{server.url}/a.safetensors") as file:
        server.requests.clear()
        assert np.array_equal(file["w"][200:203], value[200:203])
    assert server.bytes_asked() == 3 * 4096


@pytest.mark.parametrize("format", ["pytorch", "npz"])
def test_a_zip_is_opened_by_its_directory(serve: Serve, format: str) -> None:
    tensors = {f"t{number}": np.full(300_000, number, np.float32) for number in range(8)}
    server = serve({"a": packed(tensors, format)})
    with bs.open(f"{server.url}/a") as file:
        opened = server.bytes_asked()
        assert len(server.requests) <= 18
        assert np.array_equal(file["t5"].numpy(), tensors["t5"])
    assert opened < 1_100_000


def test_each_request_states_the_content_that_was_opened(serve: Serve) -> None:
    server = serve({"a.safetensors": packed(some_tensors(200, 400))})
    with bs.open(f"{server.url}/a.safetensors") as file:
        file.numpy()
    assert len(server.requests) > 1
    assert all("if-match" in request.headers for request in server.requests[1:])


@pytest.mark.parametrize("tags", [True, False])
def test_a_file_that_was_replaced_is_refused(serve: Serve, tags: bool) -> None:
    server = serve({"a.safetensors": packed(some_tensors(200, 400))}, tags=tags)
    with bs.open(f"{server.url}/a.safetensors") as file:
        server.files["a.safetensors"] = packed(some_tensors(201, 400))
        with pytest.raises(ChangedError, match="replaced after it was opened"):
            file.numpy()
        assert not file.is_current()


def test_a_file_that_was_removed_is_refused(serve: Serve) -> None:
    server = serve({"a.safetensors": packed(some_tensors(200, 400))})
    with bs.open(f"{server.url}/a.safetensors") as file:
        server.files.clear()
        with pytest.raises(ChangedError, match="removed"):
            file.numpy()


def test_a_server_that_ignores_conditions_is_compared_with(serve: Serve) -> None:
    server = serve({"a.safetensors": packed(some_tensors(200, 400))})
    with bs.open(f"{server.url}/a.safetensors") as file:
        server.fault = servers.another_tag
        with pytest.raises(ChangedError, match="ETag"):
            file.numpy()


def test_a_server_without_ranges_is_read_whole_only_on_request(serve: Serve) -> None:
    tensors = some_tensors()
    server = serve({"a.safetensors": packed(tensors)}, ranges=False)
    with pytest.raises(UnsupportedError, match="does not support range requests"):
        bs.open(f"{server.url}/a.safetensors")
    with bs.open(f"{server.url}/a.safetensors", storage_options={"whole": True}) as file:
        assert equal(file.numpy(), tensors)


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize(
    "fault",
    [
        servers.status(500),
        servers.status(503),
        servers.status(429),
        servers.cut,
        servers.drop,
        servers.one_byte_short,
        servers.shifted,
        servers.without_content_range,
        STALL,
    ],
    ids=["500", "503", "429", "cut", "drop", "one byte short", "shifted", "no content-range", "stall"],
)
def test_a_passing_fault_is_asked_again(serve: Serve, fault: servers.Fault) -> None:
    tensors = some_tensors(200, 400)
    server = serve({"a.safetensors": packed(tensors)})
    script = server.fault = servers.Script([fault])
    # A busy machine answers late: only the fault that sends nothing needs a short time.
    options = {**QUICKLY, "timeout": 1.0 if fault is STALL else 10}
    with bs.open(f"{server.url}/a.safetensors", storage_options=options) as file:
        assert script.used == 1
        script.faults += [fault, fault]
        assert equal(file.numpy(), tensors)
    assert script.used == 3


@pytest.mark.matrix(every=5)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (servers.status(500), "the server failed: status 500"),
        (servers.cut, "closed before the end|request failed"),
        (servers.one_byte_short, "expected 524288 bytes, the server sent 524287"),
        (STALL, "in time"),
    ],
    ids=["500", "cut", "one byte short", "stall"],
)
def test_a_lasting_fault_is_an_error_soon(serve: Serve, fault: servers.Fault, message: str) -> None:
    server = serve({"a.safetensors": packed(some_tensors(200, 4000))})
    server.fault = fault
    before = time.monotonic()
    timeout = 0.5 if fault is STALL else 10
    with pytest.raises(bs.BurnstoreError, match=message):
        bs.open(f"{server.url}/a.safetensors", storage_options={"timeout": timeout, "retries": 2})
    assert len(server.requests) == 3
    assert time.monotonic() - before < 20


def test_ctrl_c_ends_a_read_at_once(serve: Serve) -> None:
    server = serve({"a.safetensors": packed(some_tensors(200, 400))})
    with bs.open(f"{server.url}/a.safetensors") as file:
        server.fault = servers.stall(60)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        before = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            file.numpy()
    assert time.monotonic() - before < 5  # the server sends nothing for a minute


def test_ctrl_c_ends_a_job_at_once(serve: Serve) -> None:
    tensors = {f"t{number}": np.zeros(12_000_000, np.float32) for number in range(2)}
    server = serve({"a.safetensors": packed(tensors)})
    with bs.open(f"{server.url}/a.safetensors") as file:
        server.fault = servers.stall(60)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        before = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            bs.inspect(file, stats=True)
    assert time.monotonic() - before < 5


def test_a_pickled_checkpoint_reads_the_same_content(serve: Serve) -> None:
    tensors = some_tensors()
    server = serve({"a.safetensors": packed(tensors)})
    with bs.open(f"{server.url}/a.safetensors") as file, pickle.loads(pickle.dumps(file)) as again:
        assert equal(again.numpy(), tensors)
        snapshot = pickle.loads(pickle.dumps(file["layer.1.weight"]))
        assert np.array_equal(snapshot.numpy(), tensors["layer.1.weight"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_says_that_it_cannot_read(serve: Serve) -> None:
    server = serve({"a.safetensors": packed(some_tensors())})
    with bs.open(f"{server.url}/a.safetensors") as file:
        child = os.fork()
        if child == 0:
            try:
                file._source._get(0, 10)  # type: ignore[attr-defined]
            except ReadError as error:
                os._exit(0 if "forked" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


def test_a_closed_file_is_not_read(serve: Serve) -> None:
    server = serve({"a.safetensors": packed(some_tensors())})
    with bs.open(f"{server.url}/a.safetensors") as file:
        snapshot = file["layer.0.weight"]
    with pytest.raises(ClosedError):
        snapshot.numpy()


def test_shards_on_a_web_server_are_found_by_their_index(serve: Serve, tmp_path: Any) -> None:
    tensors = some_tensors(20)
    bs.save(tensors, tmp_path / "model.safetensors", max_shard_size="5kB")
    server = serve({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    for name in ("model.safetensors.index.json", "model.safetensors"):
        with bs.open(f"{server.url}/{name}") as file:
            assert equal(file.numpy(), tensors)


def test_an_empty_file_is_reported_as_such(serve: Serve) -> None:
    server = serve({"a.bpk": b""})
    with pytest.raises(FormatError, match="the file is empty"):
        bs.open(f"{server.url}/a.bpk")


@pytest.mark.parametrize("name", ["a b.bpk", "a%2Fb.bpk", "ü+ö.bpk", "a?b.bpk"])
def test_any_name_can_be_escaped(serve: Serve, name: str) -> None:
    from urllib.parse import quote

    tensors = some_tensors(2)
    server = serve({name: packed(tensors, "burnpack")})
    with bs.open(f"{server.url}/{quote(name, safe='')}") as file:
        assert equal(file.numpy(), tensors)


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("ftp://host/a.bpk", UnsupportedError, "the scheme ftp:// is not supported"),
        ("s3:///a.bpk", ReadError, "must name a bucket"),
        ("https:///a.bpk", ReadError, "must name a host"),
        ("s3:/bucket/a.bpk", ReadError, "pathlib removes one of the slashes"),
        ("s3://key:secret@bucket/a.bpk", ReadError, "credentials are not read from the URL"),
        ("https://***@host/a.bpk?***", ReadError, "credentials were removed"),
        ("file://host/a.bpk", ReadError, "absolute path and no host"),
        ("hf://only-one", ReadError, "expected hf://org/model"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bs.open(url)


def test_a_file_url_is_a_local_path(tmp_path: Any) -> None:
    bs.save(some_tensors(), tmp_path / "a b.bpk")
    with bs.open(f"file://{str(tmp_path).replace(' ', '%20')}/a%20b.bpk") as file:
        assert len(file) == 6


def test_options_of_a_url_are_checked(serve: Serve, tmp_path: Any) -> None:
    bs.save(some_tensors(), tmp_path / "a.bpk")
    with pytest.raises(ValueError, match="storage_options are for URLs"):
        bs.open(tmp_path / "a.bpk", storage_options={"timeout": 3})
    with pytest.raises(ValueError, match="unknown storage option 'tmeout'"):
        bs.open(f"{serve({}).url}/a.bpk", storage_options={"tmeout": 3})
    for name, value in (("cached", True), ("cache_bytes", 1 << 20)):  # what would do nothing is not accepted
        for url, known in ((f"{serve({}).url}/a.bpk", ""), ("s3://bucket/a.bpk", "those of obstore, ")):
            with pytest.raises(ValueError, match="unknown storage option") as refused:
                bs.open(url, storage_options={name: value})
            expected = (
                f": unknown storage option {name!r}; known: {known}timeout, retries, whole, headers, cache, cache_size"
            )
            assert str(refused.value) == f"{url}{expected}"
    with pytest.raises(TypeError, match="storage_options must be a mapping"):
        bs.open("s3://bucket/a", storage_options=["timeout"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'timeout'] must be a number"):
        bs.open("http://host/a", storage_options={"timeout": "long"})
    with pytest.raises(UnsupportedError, match="cannot be mapped"):
        bs.open("http://host/a", zero_copy=True)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'burnstore\[remote\]'"):
        bs.open("s3://bucket/never-seen/a.bpk")
    with pytest.raises(MissingDependencyError, match=r"pip install 'burnstore\[hub\]'"):
        bs.open("hf://org/model/a.bpk")
