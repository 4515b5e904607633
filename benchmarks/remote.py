# ruff: noqa: RUF001  # the table has multiplication signs
"""Files in a bucket: reading, opening and converting, against obstore and s3fs, on an S3 server of the loopback.

``python -m benchmarks.remote [--gib 1] [--rounds 5] [--s3fs PYTHON] [--folder FOLDER] [--no-convert]`` starts
versitygw, uploads a
SafeTensors file and prints a Markdown table. All contestants of a round run one after the other, in an order that
changes; each is a process of its own that reads once to warm up, then once against the clock. Server and client share
the machine, so the processor time of the client is printed beside the seconds. ``--s3fs`` is a Python that has s3fs and
safetensors (its botocore may be another than the one here); without it that row is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

HOST, PORT_KEY, KEY, SECRET = "127.0.0.1", "BENCH_PORT", "bench-key", "bench-secret"
FILE, SMALL_FILE = "bucket/model.safetensors", "bucket/many.safetensors"
TENSOR_BYTES, RANGE, CONCURRENT = 64 << 20, 16 << 20, 16


def _options() -> dict[str, Any]:
    return {
        "endpoint": f"http://{HOST}:{os.environ[PORT_KEY]}",
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }


def _obstore_get(size: int) -> Any:
    """Get all bytes with obstore: ranges of 16 MiB, 16 at a time, all kept, as a program that wants the file has to."""
    import asyncio

    import obstore
    from obstore.store import S3Store

    client = S3Store("bucket", **_options(), client_options={"allow_http": True})
    kept: list[Any] = [None] * -(-size // RANGE)

    async def get() -> None:
        places = asyncio.Semaphore(CONCURRENT)

        async def one(number: int) -> None:
            async with places:
                stop = min((number + 1) * RANGE, size)
                answer = await obstore.get_async(
                    client, FILE.partition("/")[2], options={"range": (number * RANGE, stop)}
                )
                kept[number] = await answer.bytes_async()

        await asyncio.gather(*(one(number) for number in range(len(kept))))

    asyncio.run(get())
    return kept


def _obstore_put(size: int) -> None:
    """Write as many bytes with obstore, in parts of 8 MiB."""
    import obstore
    from obstore.store import S3Store

    client = S3Store("bucket", **_options(), client_options={"allow_http": True})
    part = os.urandom(8 << 20)
    obstore.put(client, "put", (part for _ in range(size // len(part))), chunk_size=8 << 20, max_concurrency=4)


def _burnstore_read(size: int) -> Any:
    import burnstore as bs

    with bs.open(f"s3://{FILE}", storage_options=_options()) as file:
        return file.numpy()


def _s3fs_read(size: int) -> Any:
    """Read the same tensors with s3fs as people do: the header, then each tensor through the file object."""
    import numpy as np
    import s3fs

    client = s3fs.S3FileSystem(
        key=KEY, secret=SECRET, endpoint_url=_options()["endpoint"], client_kwargs={"region_name": "us-east-1"}
    )
    arrays = {}
    with client.open(FILE, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                file.seek(8 + length + first)
                arrays[name] = np.frombuffer(file.read(last - first), np.uint8)
    return arrays


def _burnstore_convert(size: int) -> None:
    import burnstore as bs

    bs.convert(
        f"s3://{FILE}",
        "s3://bucket/converted.safetensors",
        overwrite=True,
        storage_options=_options(),
        metadata={"converted": "yes"},
    )


CONTESTANTS: dict[str, Callable[[int], Any]] = {
    "obstore get": _obstore_get,
    "burnstore read": _burnstore_read,
    "s3fs read": _s3fs_read,
    "obstore put": _obstore_put,
    "burnstore convert": _burnstore_convert,
}


def _child(name: str, size: int) -> None:
    """Run a contestant once to warm up and once against the clock; print seconds, processor seconds and peak memory."""
    task = CONTESTANTS[name]
    if name in ("obstore get", "burnstore read", "s3fs read"):
        task(size)
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    kept = task(size)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    del kept
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps([seconds, processor, after.ru_maxrss >> 10]), flush=True)
    os._exit(0)  # obstore's threads may abort the interpreter while it ends


def _run(name: str, size: int, python: str) -> list[float]:
    command = [python, os.path.abspath(__file__), "--child", name, "--bytes", str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: list[float] = json.loads(done.stdout.splitlines()[-1])
    return result


class _Counted:
    """Requests and bytes of a block, counted where they are made."""

    def __enter__(self) -> _Counted:
        from burnstore.io.remote import source

        self.ranges: list[tuple[int, int]] = []
        self._module, self._fetch = source, source._fetch

        async def fetch(target: Any, start: int, stop: int, *rest: Any) -> Any:
            self.ranges.append((start, stop))
            return await self._fetch(target, start, stop, *rest)

        source._fetch = fetch
        return self

    def __exit__(self, *_: object) -> None:
        self._module._fetch = self._fetch


def _opening(folder: Path) -> list[str]:
    """Open 20,000 tensors here and in the bucket; read one layer of 1 %."""
    import numpy as np

    import burnstore as bs

    names = [f"model.layers.{number // 100}.block.{number % 100}.weight" for number in range(20_000)]
    bs.save({name: np.zeros(256, np.float32) for name in names}, folder / "many.safetensors")
    bs.save(
        {name: np.zeros(256, np.float32) for name in names},
        f"s3://{SMALL_FILE}",
        storage_options=_options(),
        overwrite=True,
    )
    local, remote = [], []
    for _ in range(9):
        start = time.perf_counter()
        bs.open(folder / "many.safetensors").close()
        local.append(time.perf_counter() - start)
        with _Counted() as counted:
            start = time.perf_counter()
            bs.open(f"s3://{SMALL_FILE}", storage_options=_options()).close()
            remote.append(time.perf_counter() - start)
    trip = []
    for _ in range(9):
        start = time.perf_counter()
        _request(SMALL_FILE)
        trip.append(time.perf_counter() - start)
    allowed = 1.5 * median(local) + len(counted.ranges) * median(trip)
    with _Counted() as layer, bs.open(f"s3://{FILE}", storage_options=_options()) as file:
        opened = sum(stop - start for start, stop in layer.ranges)
        wanted = file.nbytes // 100
        name = next(iter(file))
        rows = file[name]
        layer.ranges.clear()
        _ = rows[: wanted // (rows.nbytes // rows.shape[0])]
        taken = sum(stop - start for start, stop in layer.ranges)
    return [
        f"| open 20,000 tensors: requests | ≤ 2 | {len(counted.ranges)} |",
        f"| the same, seconds: local {median(local) * 1e3:.0f} ms, round trip of 1 MB {median(trip) * 1e3:.0f} ms "
        f"| ≤ 1.5 × local + trips = {allowed * 1e3:.0f} ms | {median(remote) * 1e3:.0f} ms |",
        f"| a layer of 1 % of a file: bytes of it (the header's request: {opened >> 10} KiB) "
        f"| ≤ 1.2 % | {taken / file.nbytes:.2%} |",
    ]


def _request(path: str) -> None:
    """Make one request of 1 MB for an object with obstore."""
    import obstore
    from obstore.store import S3Store

    client = S3Store("bucket", **_options(), client_options={"allow_http": True})
    obstore.get_range(client, path.partition("/")[2], start=0, length=1_000_000)


def _upload(size: int) -> int:
    import numpy as np

    import burnstore as bs

    random = np.random.default_rng(5)
    count = max(size // TENSOR_BYTES, 1)
    shape = (TENSOR_BYTES >> 14, 1 << 12)
    tensors = (
        bs.TensorSnapshot.from_closure(
            f"layer.{number:03}.weight",
            bs.DType.F32,
            shape,
            lambda: bs.TensorData.from_numpy(random.random(shape, dtype=np.float32)),
        )
        for number in range(count)
    )
    bs.save(list(tensors), f"s3://{FILE}", storage_options=_options(), overwrite=True)
    with bs.open(f"s3://{FILE}", storage_options=_options()) as file:
        return file._source.size


def _table(results: Mapping[str, list[list[float]]], size: int) -> list[str]:
    rows = []
    for name, rounds in results.items():
        seconds, processor, peak = (median(column) for column in zip(*rounds, strict=True))
        rows.append(
            f"| {name} | {seconds:.2f} s (best {min(each[0] for each in rounds):.2f}) "
            f"| {size / seconds / 1e9:.2f} GB/s | {processor:.2f} s | {peak:.0f} MiB |"
        )
    return rows


def _ratio(results: Mapping[str, list[list[float]]], one: str, other: str, column: int = 0) -> str:
    by_round = [a[column] / b[column] for a, b in zip(results[one], results[other], strict=True)]
    best = min(each[column] for each in results[one]) / min(each[column] for each in results[other])
    return f"{median(by_round):.2f} × (best against best {best:.2f} ×)"


def main(arguments: argparse.Namespace) -> None:
    """Run all contestants and print the tables."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    import remote_servers as servers

    servers.KEY, servers.SECRET = KEY, SECRET
    folder = Path(tempfile.mkdtemp(prefix="burnstore-remote-", dir=arguments.folder))
    try:
        with servers.s3_server(folder) as port:
            os.environ[PORT_KEY] = str(port)
            size = _upload(int(arguments.gib * (1 << 30)))
            names = [name for name in CONTESTANTS if arguments.s3fs or name != "s3fs read"]
            names = [name for name in names if arguments.convert or name not in ("obstore put", "burnstore convert")]
            results: dict[str, list[list[float]]] = {name: [] for name in names}
            for number in range(arguments.rounds):
                for name in names[number % 2 :: 2] + names[1 - number % 2 :: 2]:
                    results[name].append(_run(name, size, arguments.s3fs if name == "s3fs read" else sys.executable))
                    print(number, name, results[name][-1], file=sys.stderr, flush=True)
            rows = _opening(folder)
    finally:
        shutil.rmtree(folder)
    load = os.getloadavg()[0]
    print(f"{size / (1 << 30):.2f} GiB, {arguments.rounds} rounds, {os.cpu_count()} cores, load {load:.0f}\n")
    print("| contestant | median | rate | client's processor time | peak memory |\n|---|---|---|---|---|")
    print("\n".join(_table(results, size)), "\n")
    print("| case | bar | measured |\n|---|---|---|")
    print(f"| read, against obstore's get | ≥ 0.9 × | {_ratio(results, 'obstore get', 'burnstore read')} |")
    if "s3fs read" in results:
        print(f"| read, against s3fs | ≥ 3 × | {_ratio(results, 's3fs read', 'burnstore read')} |")
        print(f"| the same, processor time | | {_ratio(results, 's3fs read', 'burnstore read', 1)} |")
    if arguments.convert:
        slower = max(("obstore get", "obstore put"), key=lambda name: median(each[0] for each in results[name]))
        print(f"| convert, against {slower} | ≤ 1.5 × | {_ratio(results, 'burnstore convert', slower)} |")
        peak = median(each[2] for each in results["burnstore convert"])
        print(f"| convert: memory of the process | ≤ 256 MB | {peak:.0f} MiB |")
    print("\n".join(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--s3fs", help="a Python with s3fs")
    parser.add_argument("--convert", action=argparse.BooleanOptionalAction, default=True, help="convert, too")
    parser.add_argument("--folder", help="where the server keeps its objects; /dev/shm leaves the disk out")
    parser.add_argument("--child", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    _child(chosen.child, chosen.bytes) if chosen.child else main(chosen)
