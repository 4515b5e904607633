"""The Hugging Face hub, as a server on the loopback that speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import burnstore as bs
from burnstore.errors import ReadError, UnsupportedError
from burnstore.io.remote.hub import parse
from burnstore.io.remote.location import Location
from remote_servers import HubServer, _no_configuration, _no_descriptor_leaks, equal, packed, some_tensors

pytest.importorskip("obstore", reason="obstore is not installed: requirements/test.txt has it")
pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: requirements/test.txt has it")
TOKEN = "hf_s3cret-token"
TENSORS = some_tensors(60, 400)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    # The hub's client reads the variable once, at its import, and the tests of transformers set it.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    bs.save(some_tensors(20), tmp_path / "model.safetensors", max_shard_size="5kB")
    files = {f"sharded/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    server = HubServer("org/model", {"model.safetensors": packed(TENSORS), "config.json": b"{}", **files}, TOKEN)
    yield server
    server.close()


def options(hub: HubServer, **more: object) -> dict[str, object]:
    return {"endpoint": hub.url, "token": TOKEN, **more}


@pytest.mark.parametrize(
    "url",
    [
        "hf://org/model",
        "hf://org/model@main",
        "hf://org/model/model.safetensors",
        "hf://org/model@refs/pr/1",
        "hf://models/org/model/",
    ],
)
def test_a_repository_and_its_file_are_read(hub: HubServer, url: str) -> None:
    with bs.open(url, storage_options=options(hub)) as file:
        assert equal(file.numpy(), TENSORS)
        assert hub.COMMIT in file.path
    assert all("authorization" not in request.headers for request in hub.storage.requests)
    assert TOKEN not in repr([request.path for request in hub.storage.requests])


def test_shards_of_a_repository_are_read(hub: HubServer) -> None:
    with bs.open("hf://org/model/sharded", storage_options=options(hub)) as file:
        assert equal(file.numpy(), some_tensors(20))


def test_an_address_is_resolved_once_and_again_when_it_expires(hub: HubServer) -> None:
    with bs.open("hf://org/model/model.safetensors", storage_options=options(hub)) as file:
        asked = len(hub.requests)
        file["layer.3.weight"].numpy()
        assert len(hub.requests) == asked
        hub.storage.signature += 1  # the address that was resolved expires
        assert equal(file.numpy(), TENSORS)
        assert len(hub.requests) == asked + 1


def test_what_is_missing_or_denied_is_said(hub: HubServer) -> None:
    with pytest.raises(FileNotFoundError):
        bs.open("hf://org/model/none.safetensors", storage_options=options(hub))
    with pytest.raises(FileNotFoundError, match="repository"):
        bs.open("hf://org/none/none.safetensors", storage_options=options(hub))
    with pytest.raises(ReadError, match="access was denied by the hub") as caught:
        bs.open("hf://org/model/model.safetensors", storage_options=options(hub, token="hf_wrong-token"))
    assert "hf_wrong-token" not in str(caught.value)
    with pytest.raises(UnsupportedError, match="buckets of the hub"):
        bs.open("hf://buckets/org/name/file")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hf://org/model", ("org/model", "model", None, "")),
        ("hf://org/model@v1/a/b.safetensors", ("org/model", "model", "v1", "a/b.safetensors")),
        ("hf://org/model@refs/pr/3/a.bin", ("org/model", "model", "refs/pr/3", "a.bin")),
        ("hf://org/model@feature%2Fx/a.bin", ("org/model", "model", "feature/x", "a.bin")),
        ("hf://datasets/org/data/a.npz", ("org/data", "dataset", None, "a.npz")),
        ("hf://spaces/org/demo/a.npz", ("org/demo", "space", None, "a.npz")),
    ],
)
def test_an_address_of_the_hub_is_parsed(url: str, expected: tuple[str, str, str | None, str]) -> None:
    found = parse(Location(url))
    assert (found.repository, found.kind, found.revision, found.file) == expected


@pytest.mark.slow("starts Python")
def test_the_environment_configures_the_hub(hub: HubServer, run_python: object, tmp_path: Path) -> None:
    code = (
        "import burnstore as bs, huggingface_hub\n"
        "huggingface_hub.hf_hub_download('org/model', 'config.json')\n"
        "with bs.open('hf://org/model') as file: print(len(file), file.path)\n"
    )
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    assert run_python(code, **environment).startswith("60 hf://org/model@")  # type: ignore[operator]


@pytest.mark.slow("starts Python")
def test_what_is_in_the_cache_is_read_there_also_offline(hub: HubServer, run_python: object, tmp_path: Path) -> None:
    download = "import huggingface_hub as h; h.hf_hub_download('org/model', 'model.safetensors')"
    read = (
        "import burnstore as bs\nwith bs.open('hf://org/model/model.safetensors') as f: print(len(f.numpy()), f.path)"
    )
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }
    run_python(download, **environment)  # type: ignore[operator]
    hub.storage.requests.clear()
    assert "snapshots" in run_python(read, **environment)  # type: ignore[operator]
    hub.requests.clear()
    assert "snapshots" in run_python(read, HF_HUB_OFFLINE="1", **environment)  # type: ignore[operator]
    assert hub.storage.requests == [] == hub.requests
