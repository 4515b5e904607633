"""``gs://`` against a server on the loopback that speaks Google's XML protocol, as far as obstore uses it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import burnstore as bs
import remote_servers as servers
from burnstore.errors import AlreadyExistsError, ChangedError, SaveError
from remote_servers import BucketServer, _no_configuration, _no_descriptor_leaks, equal, google_options, some_tensors

pytest.importorskip("obstore", reason="obstore is not installed: requirements/test.txt has it")


@pytest.fixture
def bucket() -> Iterator[BucketServer]:
    server = BucketServer()
    yield server
    server.close()


def test_a_bucket_is_written_read_and_listed(bucket: BucketServer) -> None:
    tensors, options = some_tensors(20, 4000), google_options(bucket.port)
    bs.save(tensors, "gs://bucket/a.safetensors", storage_options=options)
    with bs.open("gs://bucket/a.safetensors", storage_options=options) as file:
        assert equal(file.numpy(), tensors)
        bs.save(tensors | {"more": np.ones(3)}, "gs://bucket/a.safetensors", storage_options=options, overwrite=True)
        with pytest.raises(ChangedError):
            file["layer.19.weight"].numpy()
    bs.save(tensors, "gs://bucket/m/m.safetensors", max_shard_size="500kB", storage_options=options)
    with bs.open("gcs://bucket/m", storage_options=options) as file:
        assert equal(file.numpy(), tensors)
    assert bs.verify("gs://bucket/m", storage_options=options).ok
    bs.convert("gs://bucket/m", "gs://bucket/c.npz", keep_layout=True, storage_options=options)
    assert bs.diff("gs://bucket/m", "gs://bucket/c.npz", storage_options=options).equal


def test_without_overwrite_nothing_is_replaced(bucket: BucketServer) -> None:
    options = google_options(bucket.port)
    large = {"w": np.arange(5_000_000, dtype=np.float32)}
    bs.save(some_tensors(), "gs://bucket/a.bpk", storage_options=options)
    with pytest.raises(AlreadyExistsError):
        bs.save(large, "gs://bucket/a.bpk", storage_options=options)
    with pytest.raises(SaveError, match="this store has no condition for uploads in parts"):
        bs.save(large, "gs://bucket/b.bpk", storage_options=options)
    assert set(bucket.objects) == {"a.bpk"}
    bs.save(large, "gs://bucket/b.bpk", storage_options=options, overwrite=True)
    with bs.open("gs://bucket/b.bpk", storage_options=options) as file:
        assert equal(file.numpy(), large)
    assert not bucket.uploads


def test_the_key_of_the_account_is_in_no_text(bucket: BucketServer) -> None:
    bucket.fault = servers.status(403)
    with pytest.raises(bs.BurnstoreError) as caught:
        bs.open("gs://bucket/a.bpk", storage_options=google_options(bucket.port))
    assert servers.SECRET not in f"{caught.value!r} {caught.value}"


def test_a_folder_of_2000_shards_is_listed(bucket: BucketServer) -> None:
    options = google_options(bucket.port)
    bucket.objects = {f"m/model-{number:05}-of-02000.safetensors": b"x" for number in range(1, 2001)}
    from burnstore.io.paths import as_path, names_in

    assert len(names_in(as_path("gs://bucket/m", options))) == 2000
    assert len(bucket.requests) == 2
