"""Real servers on the loopback: an S3 server, nginx and Azurite, with and without faults in between."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
import remote_servers as servers
from burnstore.errors import AlreadyExistsError, BurnstoreError, ChangedError, ReadError, SaveError, UnsupportedError
from burnstore.io.remote.location import Location
from burnstore.io.remote.upload import remove_object
from remote_servers import FaultProxy, _no_configuration, _no_descriptor_leaks, equal, packed, s3_options, some_tensors

pytest.importorskip("obstore", reason="obstore is not installed: requirements/test.txt has it")
S3_MISSING = servers.missing("versitygw")
needs_s3 = pytest.mark.skipif(S3_MISSING is not None, reason=str(S3_MISSING))
LARGE = {"b": np.arange(6_000_000, dtype=np.float32), "a": np.arange(100, dtype=np.int64)}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with servers.s3_server(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def proxy(s3: int) -> Iterator[FaultProxy]:
    server = FaultProxy(s3)
    yield server
    server.close()


def unfinished_uploads(port: int) -> list[str]:
    import boto3

    names = {"endpoint": "endpoint_url", "region": "region_name", "access_key_id": "aws_access_key_id"}
    options = {names.get(name, f"aws_{name}"): value for name, value in s3_options(port).items()}
    return [
        each["Key"] for each in boto3.client("s3", **options).list_multipart_uploads(Bucket="bucket").get("Uploads", [])
    ]


@needs_s3
def test_a_bucket_is_written_and_read(s3: int) -> None:
    tensors = some_tensors()
    for name in ("a.safetensors", "a.bpk", "a.npz", "a.pt"):
        bs.save(tensors, f"s3://bucket/core/{name}", storage_options=s3_options(s3))
        with bs.open(f"s3://bucket/core/{name}", storage_options=s3_options(s3)) as file:
            assert equal(file.numpy(), tensors)
    with pytest.raises(AlreadyExistsError):
        bs.save(tensors, "s3://bucket/core/a.bpk", storage_options=s3_options(s3))


@needs_s3
@pytest.mark.slow("a real server")
class TestS3:
    def test_the_environment_configures_it(self, s3: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{servers.HOST}:{s3}")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        bs.save(some_tensors(), "s3://bucket/environment/a.bpk", overwrite=True)
        assert bs.verify("s3://bucket/environment/a.bpk").ok
        result = bs.convert("s3://bucket/environment/a.bpk", "s3://bucket/environment/b.safetensors", overwrite=True)
        assert result.tensors == 6 and bs.diff("s3://bucket/environment/a.bpk", result.files[0]).equal

    @pytest.mark.parametrize("overwrite", [True, False])
    def test_a_large_object_is_uploaded_in_parts(self, s3: int, overwrite: bool) -> None:
        target = f"s3://bucket/large/{overwrite}.safetensors"
        bs.save(LARGE, target, storage_options=s3_options(s3), overwrite=overwrite)
        with bs.open(target, storage_options=s3_options(s3)) as file:
            assert equal(file.numpy(), LARGE)
        assert unfinished_uploads(s3) == []
        with pytest.raises(AlreadyExistsError):
            bs.save(LARGE, target, storage_options=s3_options(s3))
        bs.save(some_tensors(), target, storage_options=s3_options(s3), overwrite=True)

    @pytest.mark.parametrize("tensors", [LARGE, some_tensors()], ids=["large", "small"])
    def test_of_two_writers_one_wins(self, s3: int, tensors: Any) -> None:
        barrier = threading.Barrier(4)

        def write(number: int) -> bool:
            mine = {name: value + number for name, value in tensors.items()}
            barrier.wait()
            try:
                bs.save(mine, f"s3://bucket/race/{len(tensors)}.safetensors", storage_options=s3_options(s3))
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(write, range(4)))
        assert sum(won) == 1
        with bs.open(f"s3://bucket/race/{len(tensors)}.safetensors", storage_options=s3_options(s3)) as file:
            assert np.array_equal(
                file["b" if "b" in tensors else "layer.0.weight"].numpy()[:1],
                (tensors["b" if "b" in tensors else "layer.0.weight"] + won.index(True))[:1],
            )
        assert unfinished_uploads(s3) == []

    @pytest.mark.parametrize("overwrite", [True, False])
    def test_a_save_that_fails_leaves_nothing(self, s3: int, overwrite: bool) -> None:
        def fail() -> Any:
            raise RuntimeError("no values")

        tensors = [
            bs.TensorSnapshot.from_numpy("a", LARGE["b"]),
            bs.TensorSnapshot.from_closure("b", bs.DType.F32, (3,), fail),
        ]
        target = f"s3://bucket/failed/{overwrite}.safetensors"
        with pytest.raises(RuntimeError, match="no values"):
            bs.save(tensors, target, storage_options=s3_options(s3), overwrite=overwrite)
        with pytest.raises(FileNotFoundError):
            bs.open(target, storage_options=s3_options(s3))
        assert unfinished_uploads(s3) == []

    def test_folders_shards_and_replaced_shards(self, s3: int) -> None:
        tensors, options = some_tensors(30), s3_options(s3)
        bs.save(tensors, "s3://bucket/shards/m.safetensors", max_shard_size="9kB", storage_options=options)
        for place in ("s3://bucket/shards", "s3://bucket/shards/", "s3://bucket/shards/m.safetensors"):
            with bs.open(place, storage_options=options) as file:
                assert equal(file.numpy(), tensors)
        with pytest.raises(AlreadyExistsError):
            bs.save(tensors, "s3://bucket/shards/m.safetensors", max_shard_size="9kB", storage_options=options)
        other = some_tensors(12)
        bs.convert(
            "s3://bucket/shards/",
            "s3://bucket/shards2/m.safetensors",
            max_shard_size="20kB",
            receipt=True,
            storage_options=options,
        )
        assert bs.verify("s3://bucket/shards2/", storage_options=options).ok
        bs.save(
            other, "s3://bucket/shards/m.safetensors", max_shard_size="9kB", overwrite=True, storage_options=options
        )
        with bs.open("s3://bucket/shards/", storage_options=options) as file:
            assert equal(file.numpy(), other)
        names = bs.open("s3://bucket/shards/", storage_options=options)._data.parts  # type: ignore[attr-defined]
        from burnstore.io.paths import as_path, names_in

        assert len(names_in(as_path("s3://bucket/shards", options))) == len(names) + 1

    def test_an_object_that_was_replaced_is_refused(self, s3: int) -> None:
        options = s3_options(s3)
        bs.save(LARGE, "s3://bucket/changed.safetensors", storage_options=options, overwrite=True)
        with bs.open("s3://bucket/changed.safetensors", storage_options=options) as file:
            bs.save(
                {**LARGE, "a": LARGE["a"] + 1},
                "s3://bucket/changed.safetensors",
                storage_options=options,
                overwrite=True,
            )
            with pytest.raises(ChangedError):
                file.numpy()

    def test_what_is_missing_or_denied_is_said(self, s3: int) -> None:
        with pytest.raises(FileNotFoundError):
            bs.open("s3://bucket/none.bpk", storage_options=s3_options(s3))
        with pytest.raises(FileNotFoundError, match="No such bucket"):
            bs.open("s3://no-such-bucket/none.bpk", storage_options=s3_options(s3))
        with pytest.raises(ReadError, match="access was denied") as caught:
            bs.open("s3://bucket/none.bpk", storage_options=s3_options(s3, secret_access_key="wrong-secret"))
        assert "wrong-secret" not in str(caught.value) and servers.KEY not in str(caught.value)

    def test_verbs_take_buckets(self, s3: int, tmp_path: Path) -> None:
        options = s3_options(s3)
        tensors = some_tensors()
        bs.save(tensors, "s3://bucket/verbs/a.bpk", layout="burn", storage_options=options)
        bs.save(tensors, "s3://bucket/verbs/b.bpk", layout="burn", storage_options=options)
        assert bs.inspect("s3://bucket/verbs/a.bpk", stats=True, storage_options=options).total.tensors == 6
        assert bs.scan("s3://bucket/verbs", storage_options=options).is_clean
        assert len(bs.verify("s3://bucket/verbs", storage_options=options).files) == 2
        bs.merge(
            ["s3://bucket/verbs/a.bpk", "s3://bucket/verbs/b.bpk"],
            "s3://bucket/verbs/c.bpk",
            method="linear",
            t=0.5,
            storage_options=options,
        )
        assert bs.diff("s3://bucket/verbs/a.bpk", "s3://bucket/verbs/c.bpk", storage_options=options).equal
        model = {name: np.zeros_like(value) for name, value in tensors.items()}
        bs.load(model, "s3://bucket/verbs/c.bpk", storage_options=options)
        assert equal(model, tensors)
        with pytest.raises(SaveError, match="same file"):
            bs.convert("s3://bucket/verbs/a.bpk", "s3://bucket/verbs/a.bpk", overwrite=True, storage_options=options)

    def test_a_job_from_bucket_to_bucket(self, s3: int, tmp_path: Path) -> None:
        from burnstore.jobs.convert.parts import finish_job, run_part

        options = s3_options(s3)
        bs.save(LARGE, "s3://bucket/job/a.safetensors", storage_options=options)
        bs.convert(
            "s3://bucket/job/a.safetensors",
            "s3://bucket/job/b.safetensors",
            cast="f64",
            plan=tmp_path / "job.json",
            storage_options=options,
        )
        assert servers.SECRET not in (tmp_path / "job.json").read_text()
        for part in (2, 1, 1):
            run_part(tmp_path / "job.json", part, 2, storage_options=options)
        finish_job(tmp_path / "job.json", storage_options=options)
        with bs.open("s3://bucket/job/b.safetensors", storage_options=options) as file:
            assert np.array_equal(file["b"].numpy(), LARGE["b"].astype(np.float64))

    def test_no_fault_gives_wrong_bytes(self, s3: int, proxy: FaultProxy) -> None:
        data = packed(LARGE)
        bs.save(LARGE, "s3://bucket/faults.safetensors", storage_options=s3_options(s3), overwrite=True)
        draw = random.Random(5)
        kinds = [
            servers.status(500),
            servers.status(503),
            servers.status(429),
            servers.cut,
            servers.drop,
            servers.one_byte_short,
            servers.shifted,
            servers.without_content_range,
            servers.another_tag,
            None,
            None,
        ]

        def fault(request: servers.Request, answer: servers.Answer) -> servers.Answer:
            kind = draw.choice(kinds) if request.method == "GET" else None
            return answer if kind is None else kind(request, answer)

        proxy.fault = fault
        outcomes, texts = {"right": 0, "error": 0}, list[str]()
        options = s3_options(proxy.port, timeout=1, retries=2)
        for _ in range(25):
            try:
                with bs.open("s3://bucket/faults.safetensors", storage_options=options) as file:
                    assert equal(file.numpy(), LARGE)
                    outcomes["right"] += 1
            except (BurnstoreError, OSError) as error:
                texts.append(str(error))
                outcomes["error"] += 1
        assert outcomes["right"] and outcomes["error"] and len(proxy.requests) > 60
        assert len(data) > 20_000_000
        assert not [text for text in texts if servers.SECRET in text or "Signature" in text]

    def test_a_faulty_upload_leaves_nothing_or_the_right_object(self, s3: int, proxy: FaultProxy) -> None:
        draw = random.Random(6)
        kinds = [servers.status(500), servers.status(503), servers.drop, None, None, None]

        def fault(request: servers.Request, answer: servers.Answer) -> servers.Answer:
            kind = draw.choice(kinds) if request.method in ("PUT", "POST") else None
            return answer if kind is None else kind(request, answer)

        proxy.fault = fault
        options = s3_options(proxy.port, timeout=2, retries=1)
        texts: list[str] = []
        for number in range(8):
            target = f"s3://bucket/faulty/{number}.safetensors"
            try:
                bs.save(LARGE, target, storage_options=options, overwrite=number % 2 == 0)
            except (BurnstoreError, OSError) as error:
                texts.append(str(error))
            proxy.fault = None
            try:
                with bs.open(target, storage_options=s3_options(s3)) as file:
                    assert equal(file.numpy(), LARGE)
                remove_object(Location(target, s3_options(s3)))
            except FileNotFoundError:
                pass
            proxy.fault = fault
        assert not [text for text in texts if servers.SECRET in text]


@pytest.mark.slow("a real server")
@pytest.mark.skipif(
    servers.missing("/usr/sbin/nginx") is not None, reason="nginx is not installed: .ci/install-tools installs it"
)
def test_nginx(tmp_path: Path) -> None:
    tensors = some_tensors(100, 400)
    with servers.nginx_server(tmp_path) as port:
        for folder in ("", "whole", "private"):
            place = tmp_path / "www" / folder
            place.mkdir(exist_ok=True)
            bs.save(tensors, place / "a.safetensors")
        url = f"http://{servers.HOST}:{port}"
        with bs.open(f"{url}/a.safetensors") as file:
            assert equal(file.numpy(), tensors)
            bs.save(some_tensors(100, 401), tmp_path / "www" / "a.safetensors", overwrite=True)
            with pytest.raises(ChangedError):
                file.numpy()
        with pytest.raises(UnsupportedError, match="range requests"):
            bs.open(f"{url}/whole/a.safetensors")
        with bs.open(f"{url}/whole/a.safetensors", storage_options={"whole": True}) as file:
            assert equal(file.numpy(), tensors)
        with pytest.raises(ReadError, match="access was denied"):
            bs.open(f"{url}/private/a.safetensors")
        with bs.open(f"http://me:nginx-password@{servers.HOST}:{port}/private/a.safetensors") as file:
            assert equal(file.numpy(), tensors)
            assert "nginx-password" not in json.dumps(file.to_dict()) + repr(file)
        with pytest.raises(SaveError, match="only object stores"):
            bs.save(tensors, f"{url}/b.safetensors")
        with pytest.raises(UnsupportedError, match="does not list folders"):
            bs.open(f"{url}/")


@pytest.mark.slow("a real server")
@pytest.mark.skipif(servers.missing("azurite-blob") is not None, reason=str(servers.missing("azurite-blob")))
def test_azurite(tmp_path: Path) -> None:
    with servers.azurite_server(tmp_path) as port:
        options = servers.azurite_options(port)
        servers.make_azure_container(port, "files")
        bs.save(LARGE, "az://files/folder/a.safetensors", storage_options=options, overwrite=True)
        with bs.open("az://files/folder", storage_options=options) as file:
            assert equal(file.numpy(), LARGE)
            bs.save(some_tensors(), "az://files/folder/a.safetensors", storage_options=options, overwrite=True)
            with pytest.raises(ChangedError):
                file.numpy()
        with pytest.raises(AlreadyExistsError):
            bs.save(some_tensors(), "az://files/folder/a.safetensors", storage_options=options)
        with pytest.raises(SaveError, match="no condition for uploads in parts"):
            bs.save(LARGE, "az://files/folder/b.safetensors", storage_options=options)
