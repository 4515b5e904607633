"""Faults between burnstore and the servers of remote files: right bytes or an error of our own, soon, without a secret.

    python -m tests.fuzz.remote --faults 10000 --seed 1 --minutes 10 --jobs 2

Web server, S3 and hub are written in Python and run on the loopback; obstore is needed, huggingface_hub for the hub.
Each thread has its own servers. An operation reads a file, a slice, shards or through the cache, saves or converts,
while its servers drop, cut, delay, shorten, shift, refuse or replace. Then the objects in the bucket are compared.

The last line is a summary in JSON. Wrong bytes, an error that is not ours, an operation of more than a minute and a
secret in any text are printed with the seed of their operation, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

import burnstore as bs
import remote_servers as servers
from burnstore.errors import AlreadyExistsError, BurnstoreError
from remote_servers import Answer, BucketServer, Request

PASSWORD, SIGNATURE, TOKEN = "p4ssw0rd-fuzz", "s1gnature-fuzz", "hf_t0ken_fuzz"
SECRETS = (PASSWORD, SIGNATURE, TOKEN, servers.SECRET, "hub-signature")
THREADS = 6
LONGEST = 60.0
HUB_NAME = "org/model"


# --- faults -----------------------------------------------------------------------------------------------------------


def _whole_instead(request: Request, answer: Answer) -> Answer:
    """Ignore the range and send a body for another one."""
    answer.headers.pop("Content-Range", None)
    answer.status = 200
    return answer


def _longer(request: Request, answer: Answer) -> Answer:
    answer.body += b"x"
    return answer


def _nothing(request: Request, answer: Answer) -> Answer:
    answer.body = b""
    return answer


def _moved(request: Request, answer: Answer) -> Answer:
    place = f"http://127.0.0.1:9/elsewhere?X-Amz-Signature={SIGNATURE}"
    return Answer(307, {"Location": place}, b"")


def _page(request: Request, answer: Answer) -> Answer:
    """Send what a proxy sends that wants a login."""
    return Answer(
        200, {"Content-Type": "text/html", "ETag": answer.headers.get("ETag", '"page"')}, b"<html>log in</html>"
    )


def _other_size(request: Request, answer: Answer) -> Answer:
    value = answer.headers.get("Content-Range")
    if value:
        answer.headers["Content-Range"] = value.rpartition("/")[0] + "/123456789"
    return answer


def _leaky(request: Request, answer: Answer) -> Answer:
    text = f"<Error><Code>InternalError</Code><Message>{SIGNATURE} {request.path} {request.headers}</Message></Error>"
    return Answer(500, {}, text.encode())


READ_FAULTS: dict[str, servers.Fault] = {
    "500": servers.status(500),
    "503": servers.status(503),
    "429": servers.status(429),
    "403": servers.status(403),
    "404": servers.status(404),
    "416": servers.status(416),
    "cut": servers.cut,
    "drop": servers.drop,
    "stall": servers.stall(2.0),
    "one byte short": servers.one_byte_short,
    "one byte long": _longer,
    "no body": _nothing,
    "shifted": servers.shifted,
    "no content-range": servers.without_content_range,
    "another tag": servers.another_tag,
    "range ignored": _whole_instead,
    "another size": _other_size,
    "moved": _moved,
    "a page": _page,
    "an error with secrets": _leaky,
}
WRITE_FAULTS = {
    name: READ_FAULTS[name] for name in ("500", "503", "429", "403", "drop", "cut", "moved", "an error with secrets")
}


class Faults:
    """Draws a fault for some requests, and counts them."""

    def __init__(self, draw: random.Random, counts: Counter[str], rate: float, *, writing: bool) -> None:
        self._draw, self._counts, self._rate, self._writing = draw, counts, rate, writing
        self.replace: Callable[[], None] | None = None
        self.on = True
        self._lock = threading.Lock()

    def _drawn(self, kinds: dict[str, servers.Fault], when: str) -> servers.Fault | None:
        with self._lock:
            if not self.on or self._draw.random() > self._rate:
                return None
            name = self._draw.choice(list(kinds))
            if name == "stall" and self._draw.random() < 0.8:
                name = "cut"  # each of them takes its time
            self._counts[f"{when} {name}"] += 1
            return kinds[name]

    def before(self, request: Request) -> Answer | None:
        """Refuse a request that changes the bucket before it does."""
        if not self._writing or request.method in ("GET", "HEAD"):
            return None
        fault = self._drawn(WRITE_FAULTS, "before write:")
        return None if fault is None else fault(request, Answer(200, {}, b"refused"))

    def __call__(self, request: Request, answer: Answer) -> Answer:
        if request.method in ("GET", "HEAD"):
            if self.replace is not None and self._draw.random() < 0.1:
                replace, self.replace = self.replace, None
                if self.on:
                    self._counts["read: replaced"] += 1
                    replace()
            fault = self._drawn(READ_FAULTS, "read:")
        else:
            fault = self._drawn(WRITE_FAULTS, "after write:") if self._writing else None
        return answer if fault is None else fault(request, answer)


# --- operations -------------------------------------------------------------------------------------------------------


def _tensors(draw: random.Random, megabytes: float) -> dict[str, Any]:
    generator = np.random.default_rng(draw.getrandbits(32))
    count = draw.choice((1, 3, 12))
    size = int(megabytes * 1e6 / count / 4)
    return {
        f"layer.{number}.weight": generator.random((8, max(size // 8, 1)), dtype=np.float32) for number in range(count)
    }


class WrongError(Exception):
    """Wrong bytes."""


class Worker:
    """One thread's servers, and operations on them."""

    def __init__(self, seed: int, counts: Counter[str], folder: Path) -> None:
        self.seed, self.counts, self.folder = seed, counts, folder
        self.web, self.s3 = servers.RangeServer(), BucketServer()
        self.hub: servers.HubServer | None = None
        try:
            import huggingface_hub  # noqa: F401

            self.hub = servers.HubServer(HUB_NAME, {}, TOKEN)
        except ImportError:
            pass

    def close(self) -> None:
        for server in (self.web, self.s3, self.hub):
            if server is not None:
                server.close()

    def options(self, draw: random.Random) -> dict[str, Any]:
        options: dict[str, Any] = {"timeout": 0.5, "retries": draw.choice((0, 1, 3))}
        if draw.random() < 0.2:
            options["cache"] = str(self.folder / "cache")
        return options

    def run(self, number: int) -> str:
        """Do operation ``number`` and return its outcome; WrongError if bytes are wrong."""
        draw = random.Random(f"{self.seed}/{number}")
        kinds = [self.read_web, self.read_bucket, self.read_shards, self.write, self.write, self.convert]
        if self.hub is not None:
            kinds.append(self.read_hub)
        return draw.choice(kinds)(draw)

    def read_web(self, draw: random.Random) -> str:
        tensors = _tensors(draw, draw.choice((0.1, 2, 6)))
        format = draw.choice(("safetensors", "burnpack", "pytorch", "npz"))
        self.web.files = {"a": servers.packed(tensors, format)}
        faults = Faults(draw, self.counts, 0.4, writing=False)
        other = {name: value + 1 for name, value in tensors.items()}
        if draw.random() < 0.4:
            faults.replace = lambda: self.web.files.update(a=servers.packed(other, format))
        self.web.fault = faults
        url = f"http://user:{PASSWORD}@127.0.0.1:{self.web.port}/a?X-Amz-Signature={SIGNATURE}"
        return self._read(draw, url, self.options(draw), [tensors, other])

    def read_hub(self, draw: random.Random) -> str:
        hub = self.hub
        assert hub is not None
        tensors = _tensors(draw, 2)
        hub.files = {"model.safetensors": servers.packed(tensors)}
        faults = Faults(draw, self.counts, 0.3, writing=False)

        def expire() -> None:
            hub.storage.signature += 1

        faults.replace = expire
        hub.storage.fault = faults
        options = {**self.options(draw), "token": TOKEN, "endpoint": hub.url}
        return self._read(draw, f"hf://{HUB_NAME}/model.safetensors", options, [tensors])

    def read_bucket(self, draw: random.Random) -> str:
        tensors = _tensors(draw, draw.choice((0.1, 2, 6)))
        other = {name: value + 1 for name, value in tensors.items()}
        key = "a.safetensors"
        self.s3.objects = {key: servers.packed(tensors)}
        faults = Faults(draw, self.counts, 0.4, writing=False)
        if draw.random() < 0.4:
            faults.replace = lambda: self.s3.objects.update({key: servers.packed(other)})
        self.s3.fault = faults
        options = {**servers.s3_options(self.s3.port), **self.options(draw)}
        return self._read(draw, f"s3://bucket/{key}", options, [tensors, other])

    def read_shards(self, draw: random.Random) -> str:
        tensors = _tensors(draw, 2)
        options = servers.s3_options(self.s3.port)
        self.s3.objects, self.s3.fault, self.s3.before = {}, None, None
        bs.save(tensors, "s3://bucket/m/m.safetensors", max_shard_size="500kB", storage_options=options)
        self.s3.fault = Faults(draw, self.counts, 0.3, writing=False)
        url = draw.choice(("s3://bucket/m", "s3://bucket/m/m.safetensors"))
        return self._read(draw, url, {**options, **self.options(draw)}, [tensors])

    def _read(self, draw: random.Random, url: str, options: dict[str, Any], allowed: list[dict[str, Any]]) -> str:
        with bs.open(url, storage_options=options) as file:
            opened = next((each for each in allowed if each.keys() == file.keys()), None)
            if opened is None:
                raise WrongError(f"other names: {list(file)[:3]}")
            if draw.random() < 0.3:
                name = draw.choice(list(opened))
                rows = [file[name][2:4] for _ in range(2)]
                if not any(all(np.array_equal(row, each[name][2:4]) for row in rows) for each in allowed):
                    raise WrongError(f"wrong rows of {name}")
            arrays = file.numpy()
        if not any(servers.equal(arrays, each) for each in allowed):
            raise WrongError("wrong values")
        return "read"

    def write(self, draw: random.Random) -> str:
        megabytes = draw.choice((0.05, 0.5, 9, 18))
        old, new = _tensors(draw, 0.01), _tensors(draw, megabytes)
        overwrite = draw.random() < 0.5
        existed = draw.random() < 0.4
        key = f"w{draw.getrandbits(40)}.safetensors"
        self.s3.objects = {key: servers.packed(old)} if existed else {}
        self.s3.uploads = {}
        faults = self._writing(draw)
        options = {**servers.s3_options(self.s3.port), **self.options(draw)}
        try:
            bs.save(new, f"s3://bucket/{key}", storage_options=options, overwrite=overwrite)
            outcome = "written"
        except AlreadyExistsError:
            outcome = "exists"
        except (BurnstoreError, OSError) as error:
            outcome = self._checked(error)
        faults.on = False
        data = self.s3.objects.get(key)
        expected = servers.packed(new)
        if outcome == "written" and data != expected:
            raise WrongError("saved, but the object differs")
        if existed and not overwrite and data != servers.packed(old):
            raise WrongError("an existing object was replaced without overwrite")
        if data not in (None, expected, servers.packed(old) if existed else None):
            raise WrongError("half an object")
        return f"save {outcome}"

    def _writing(self, draw: random.Random) -> Faults:
        faults = Faults(draw, self.counts, draw.choice((0.1, 0.3)), writing=True)
        self.s3.fault, self.s3.before = faults, faults.before
        return faults

    def convert(self, draw: random.Random) -> str:
        tensors = _tensors(draw, draw.choice((0.5, 3)))
        self.s3.objects = {"a.safetensors": servers.packed(tensors)}
        faults = self._writing(draw)
        options = {**servers.s3_options(self.s3.port), **self.options(draw)}
        try:
            bs.convert(
                "s3://bucket/a.safetensors",
                "s3://bucket/b.npz",
                overwrite=True,
                keep_layout=True,
                storage_options=options,
            )
            outcome = "converted"
        except (BurnstoreError, OSError) as error:
            outcome = self._checked(error)
        faults.on = False
        data = self.s3.objects.get("b.npz")
        if data is not None:
            with bs.open(data) as file:
                if not servers.equal(file.numpy(), tensors):
                    raise WrongError("the converted object differs")
        elif outcome == "converted":
            raise WrongError("converted, but there is no object")
        return outcome if outcome == "converted" else f"convert {outcome}"

    @staticmethod
    def _checked(error: Exception) -> str:
        raise_secrets(error)
        return type(error).__name__


def raise_secrets(error: BaseException) -> None:
    """Raise WrongError if a text of an error has a secret."""
    text = (
        "".join(traceback.format_exception(error))
        + repr(error)
        + json.dumps(getattr(error, "to_dict", dict)(), default=str)
    )
    shown = [line for line in text.splitlines() if any(secret in line for secret in SECRETS)]
    if shown:
        raise WrongError(f"a secret in a text: {shown[0][:200]}")


class _Log(logging.Handler):
    """Collects what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.leaks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.name.startswith("burnstore") and any(secret in text for secret in SECRETS):
            self.leaks.append(f"logged: {record.name}")


def run(faults: int, seed: int, seconds: float, threads: int = THREADS) -> tuple[Counter[str], Counter[str], list[str]]:
    """Inject at least so many faults, unless the time ends; return them, the outcomes, and what went wrong."""
    counts, outcomes, wrong = Counter[str](), Counter[str](), list[str]()
    end = time.monotonic() + seconds
    log = _Log()
    logging.getLogger().addHandler(log)
    folder = Path(tempfile.mkdtemp(prefix="burnstore-faults-"))
    started: dict[int, tuple[float, str]] = {}
    for name in (
        "boto3",
        "huggingface_hub.hf_api",
        "huggingface_hub.file_download",
    ):  # or the first operations would wait for the imports
        with suppress(ImportError):
            import_module(name)

    def work(index: int) -> None:
        worker = Worker(seed * 1000 + index, counts, folder)
        number = 0
        while counts.total() < faults and time.monotonic() < end:
            started[index] = time.monotonic(), f"operation {number} of seed {worker.seed}"
            try:
                outcome = worker.run(number)
            except WrongError as error:
                outcome = "WRONG"
                wrong.append(f"{started[index][1]}: {error}")
            except (BurnstoreError, OSError) as error:
                outcome = type(error).__name__
                try:
                    raise_secrets(error)
                except WrongError as leak:
                    wrong.append(f"{started[index][1]}: {leak}")
            except Exception as error:
                outcome = "NOT OURS"
                wrong.append(f"{started[index][1]}: {type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}")
            outcomes[outcome] += 1
            if time.monotonic() - started[index][0] > LONGEST:
                wrong.append(f"{started[index][1]}: {time.monotonic() - started[index][0]:.0f} s")
            number += 1
        started.pop(index, None)
        worker.close()

    workers = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(threads)]
    for thread in workers:
        thread.start()
    for thread in workers:
        while thread.is_alive():
            thread.join(1)
            late = [what for since, what in list(started.values()) if time.monotonic() - since > 3 * LONGEST]
            if late:
                wrong.extend(f"hangs: {what}" for what in late)
                import faulthandler

                faulthandler.dump_traceback()
                return counts, outcomes, wrong
    logging.getLogger().removeHandler(log)
    shutil.rmtree(folder, ignore_errors=True)
    return counts, outcomes, wrong + log.leaks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HF_", "BURNSTORE_CACHE")):
            del os.environ[name]
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    start = time.monotonic()
    if arguments.jobs > 1:
        each = -(-arguments.faults // arguments.jobs)
        options = ["--faults", str(each), "--minutes", str(arguments.minutes), "--child"]
        command = [sys.executable, "-m", "tests.fuzz.remote", *options]
        children = [
            subprocess.Popen([*command, "--seed", str(arguments.seed + job)], stdout=subprocess.PIPE, text=True)
            for job in range(arguments.jobs)
        ]
        counts, outcomes, wrong = Counter[str](), Counter[str](), list[str]()
        for child in children:
            try:
                lines = child.communicate(timeout=arguments.minutes * 60 + 600)[0].splitlines()
                found = json.loads(lines[-1])
            except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
                child.kill()
                wrong.append(f"a process ended without a summary: {type(error).__name__}")
                continue
            counts.update(found["by_kind"])
            outcomes.update(found["outcomes"])
            wrong += found["wrong"]
    else:
        counts, outcomes, wrong = run(arguments.faults, arguments.seed, arguments.minutes * 60)
    if not arguments.child:
        for each_wrong in wrong[:20]:
            print(each_wrong)
    summary = {
        "faults": counts.total(),
        "operations": outcomes.total(),
        "seconds": round(time.monotonic() - start),
        "outcomes": dict(outcomes.most_common()),
        "by_kind": dict(sorted(counts.items())),
        "wrong": wrong if arguments.child else len(wrong),
    }
    print(json.dumps(summary))
    return bool(wrong) or counts.total() < arguments.faults


if __name__ == "__main__":
    sys.exit(main())
