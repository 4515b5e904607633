"""The local cache of remote files: by content, bounded, safe with several processes, and never trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import ChangedError, ReadError
from burnstore.io.remote.cache import BLOCK_BYTES, _address
from burnstore.io.remote.location import Location
from remote_servers import RangeServer, _no_configuration, _no_descriptor_leaks, equal, packed, serve, some_tensors

pytest.importorskip("obstore", reason="obstore is not installed: requirements/test.txt has it")

Serve = Callable[..., RangeServer]
TENSORS = some_tensors(40, 4000)  # 5 MB, so most of it is not in the first request


def read(server: RangeServer, folder: Path, **more: Any) -> Any:
    with bs.open(f"{server.url}/a.safetensors", storage_options={"cache": str(folder), **more}) as file:
        return file.numpy()


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_second_read_asks_only_whether_the_file_is_the_same(serve: Serve, tmp_path: Path) -> None:
    server = serve({"a.safetensors": packed(TENSORS)})
    assert equal(read(server, tmp_path), TENSORS)
    assert len(server.requests) > 1
    server.requests.clear()
    assert equal(read(server, tmp_path), TENSORS)
    assert len(server.requests) == 1


def test_without_the_option_nothing_is_kept(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = serve({"a.safetensors": packed(TENSORS)})
    for _ in range(2):
        with bs.open(f"{server.url}/a.safetensors") as file:
            assert equal(file.numpy(), TENSORS)
    assert len(server.requests) > 2 and not entries(tmp_path)


def test_the_environment_asks_for_it_too(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BURNSTORE_CACHE_SIZE", "3MiB")
    server = serve({"a.safetensors": packed(TENSORS)})
    with bs.open(f"{server.url}/a.safetensors") as file:
        assert equal(file.numpy(), TENSORS)
    assert 0 < sum(path.stat().st_size for path in entries(tmp_path)) <= 3 << 20
    kept = len(entries(tmp_path))
    with bs.open(f"{server.url}/a.safetensors", storage_options={"cache": None}) as file:
        assert equal(file.numpy(), TENSORS)
    assert len(entries(tmp_path)) == kept


def test_a_slice_is_read_in_blocks_and_then_from_them(serve: Serve, tmp_path: Path) -> None:
    value = np.arange(1_500_000, dtype=np.float32).reshape(1500, 1000)
    server = serve({"a.safetensors": packed({"w": value})})
    for expected in (1, 0):
        with bs.open(f"{server.url}/a.safetensors", storage_options={"cache": tmp_path}) as file:
            server.requests.clear()
            assert np.array_equal(file["w"][700:701], value[700:701])
            assert len(server.requests) == expected
            assert server.bytes_asked() <= expected * BLOCK_BYTES


@pytest.mark.parametrize("tags", [True, False])
def test_a_replaced_file_is_never_read_from_old_entries(serve: Serve, tmp_path: Path, tags: bool) -> None:
    server = serve({"a.safetensors": packed(TENSORS)}, tags=tags)
    with bs.open(f"{server.url}/a.safetensors", storage_options={"cache": tmp_path}) as file:
        file.numpy(list(TENSORS)[:20])
        other = {name: value + 1 for name, value in TENSORS.items()}
        server.files["a.safetensors"] = packed(other)
        if tags:
            with pytest.raises(ChangedError):
                file.numpy(list(TENSORS)[20:])
    assert equal(read(server, tmp_path), other)
    if not tags:
        assert not entries(tmp_path)  # nothing identifies the content


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer", "swap", "folder", "link"])
def test_a_damaged_entry_is_asked_for_again(serve: Serve, tmp_path: Path, damage: str) -> None:
    server = serve({"a.safetensors": packed(TENSORS)})
    read(server, tmp_path)
    one, other, *_ = sorted(entries(tmp_path), key=lambda path: -path.stat().st_size)
    data = one.read_bytes()
    if damage == "flip":
        one.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    elif damage == "swap":
        one.write_bytes(other.read_bytes())
    elif damage == "folder":
        one.unlink()
        one.mkdir()
    elif damage == "link":
        one.unlink()
        one.symlink_to("/dev/zero")
    else:
        one.write_bytes({"cut": data[:-1], "empty": b"", "longer": data + b"x"}[damage])
    server.requests.clear()
    assert equal(read(server, tmp_path), TENSORS)
    assert len(server.requests) == 2
    server.requests.clear()
    assert equal(read(server, tmp_path), TENSORS)
    assert len(server.requests) == (2 if damage == "folder" else 1)


def test_the_bound_holds_and_the_oldest_entries_go_first(serve: Serve, tmp_path: Path) -> None:
    files = {f"{number}.safetensors": packed({"w": np.full(900_000, number, np.float32)}) for number in range(6)}
    server = serve(files)
    for number in range(6):
        options = {"cache": tmp_path, "cache_size": "8MiB"}
        with bs.open(f"{server.url}/{number}.safetensors", storage_options=options) as file:
            assert file["w"].numpy()[-1] == number
        assert sum(path.stat().st_size for path in entries(tmp_path)) <= 8 << 20
        for path in entries(tmp_path):  # or all would have been used in the same moment
            os.utime(path, (path.stat().st_mtime - 100,) * 2)
    for number, cached in ((5, True), (0, False)):
        with bs.open(f"{server.url}/{number}.safetensors", storage_options=options) as file:
            server.requests.clear()
            file.numpy()
            assert (not server.requests) == cached


def test_a_bound_below_a_block_keeps_nothing(serve: Serve, tmp_path: Path) -> None:
    server = serve({"a.safetensors": packed(TENSORS)})
    assert equal(read(server, tmp_path, cache_size=1000), TENSORS)
    assert not entries(tmp_path)


def test_a_read_only_folder_serves_what_it_has(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve({"a.safetensors": packed(TENSORS), "b.safetensors": packed(TENSORS)})
    read(server, tmp_path)
    before = sorted(entries(tmp_path))

    def refuse(*arguments: Any, **options: Any) -> Any:  # root, who may run this test, writes into any folder
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    monkeypatch.setattr("os.utime", refuse)
    server.requests.clear()
    assert equal(read(server, tmp_path), TENSORS)
    assert len(server.requests) == 1
    with bs.open(f"{server.url}/b.safetensors", storage_options={"cache": tmp_path}) as file:
        assert equal(file.numpy(), TENSORS)
    assert sorted(entries(tmp_path)) == before


def test_a_folder_that_cannot_be_one_is_refused(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = serve({"a.safetensors": packed(TENSORS)})
    with pytest.raises(ReadError, match="the folder of the cache cannot be used"):
        read(server, tmp_path / "file")
    for options, message in (
        ({"cache": "s3://bucket/cache"}, "must be a local folder"),
        ({"cache": 5}, "must be a local folder"),
        ({"cache_size": "1GB"}, "needs the folder"),
        ({"cache": tmp_path, "cache_size": "much"}, "'much' is not a size"),
        ({"cache": tmp_path, "cache_size": -1}, "must be"),
        ({"cache": tmp_path, "whole": True}, "pass one"),
    ):
        with pytest.raises(ValueError, match=message):
            bs.open(f"{server.url}/a.safetensors", storage_options=options)


def test_no_secret_is_in_the_cache(serve: Serve, tmp_path: Path) -> None:
    server = serve({"a.safetensors": packed(TENSORS)})
    for signature in ("s1gnature", "an0ther"):
        url = f"http://user:passw0rd@127.0.0.1:{server.port}/a.safetensors?X-Amz-Signature={signature}"
        with bs.open(url, storage_options={"cache": tmp_path, "headers": {"X-Token": "t0ken"}}) as file:
            server.requests.clear()
            assert equal(file.numpy(), TENSORS)
    assert not server.requests  # the signature is no part of the content's name
    for path in entries(tmp_path):
        text = str(path).encode() + path.read_bytes()
        assert not [word for word in (b"s1gnature", b"an0ther", b"passw0rd", b"t0ken") if word in text]


def test_a_parameter_that_selects_the_content_is_part_of_its_name() -> None:
    assert _address(Location("https://u:p@host/a?version=2&X-Amz-Signature=5")) == "https://host/a?version=2"
    assert _address(Location("https://host/a?version=1")) != _address(Location("https://host/a?version=2"))


@pytest.mark.slow("several processes")
def test_several_processes_share_a_small_cache(serve: Serve, tmp_path: Path) -> None:
    tensors = {f"w{number}": np.random.default_rng(number).random(1_000_000, np.float32) for number in range(4)}
    server = serve({"a.safetensors": packed(tensors)})
    code = (
        "import sys, hashlib, burnstore as bs\n"
        "for _ in range(3):\n"
        "    with bs.open(sys.argv[1], storage_options={'cache': sys.argv[2], 'cache_size': '6MiB'}) as file:\n"
        "        print(hashlib.sha256(b''.join(value.tobytes() for value in file.numpy().values())).hexdigest())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(bs.__file__).parent.parent)}
    command = [sys.executable, "-c", code, f"{server.url}/a.safetensors", str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    texts = [process.communicate(timeout=300)[0].split() for process in processes]
    import hashlib

    expected = hashlib.sha256(b"".join(value.tobytes() for value in tensors.values())).hexdigest()
    assert texts == [[expected] * 3] * 4
    names = [path.name for path in entries(tmp_path / "cache")]
    assert names and all(len(name) == 64 for name in names)
    assert sum(path.stat().st_size for path in entries(tmp_path / "cache")) <= (6 << 20) + 4 * BLOCK_BYTES


def test_a_proof_reads_the_store_and_not_the_cache(tmp_path: Path) -> None:
    from burnstore.io.remote.cache import cache_for, mark_written

    location = Location("s3://bucket/written.safetensors", {"cache": str(tmp_path)})
    assert cache_for(location) is not None
    mark_written(location)
    assert cache_for(location) is None
