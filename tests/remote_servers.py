"""Servers on the loopback for tests of remote files, and a proxy that injects faults.

`RangeServer` is a small web server in this process; `s3_server`, `nginx_server` and `azurite_server` start the real
ones, which `.ci/install-tools` installs; `HubServer` speaks as much of the Hugging Face hub's protocol as is needed.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest

import burnstore as bs

Tensors = Mapping[str, "np.ndarray[Any, Any]"]

HOST = "127.0.0.1"
KEY, SECRET = "test-access-key", "test-secret-key-9f3a"


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def range(self) -> tuple[int, int] | None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return None if match is None else (int(match[1]), int(match[2]) + 1)


@dataclass
class Answer:
    """What a server is about to send; faults change it."""

    status: int
    headers: dict[str, str]
    body: bytes
    cut_after: int | None = None
    pause_before_end: float = 0
    drop: bool = False


Fault = Callable[[Request, Answer], Answer]


class _Server:
    """A server in threads of this process, with a list of the requests that it got."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.fault: Fault | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                    body = _read_chunks(self.rfile)
                request = Request(
                    self.command, self.path, {name.lower(): value for name, value in self.headers.items()}
                )
                outer.requests.append(request)
                answer = outer.answer(request, body)
                if outer.fault is not None:
                    answer = outer.fault(request, answer)
                self.send(answer)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

            def send(self, answer: Answer) -> None:
                if answer.drop:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if not any(name.lower() == "content-length" for name in answer.headers):
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                if answer.cut_after is None and not answer.pause_before_end:
                    self.wfile.write(answer.body)
                    return
                half = answer.cut_after if answer.cut_after is not None else len(answer.body) // 2
                self.wfile.write(answer.body[:half])
                self.wfile.flush()
                if answer.pause_before_end:
                    outer.stopped.wait(answer.pause_before_end)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def log_message(self, format: str, *arguments: Any) -> None:
                return

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                return  # a client that went away

        self.stopped = threading.Event()
        self._http = Quiet((HOST, 0), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def answer(self, request: Request, body: bytes) -> Answer:
        raise NotImplementedError

    def gets(self) -> list[Request]:
        return [request for request in self.requests if request.method == "GET"]

    def bytes_asked(self) -> int:
        return sum(request.range[1] - request.range[0] for request in self.gets() if request.range is not None)

    def close(self) -> None:
        self.stopped.set()
        self._http.shutdown()
        self._http.server_close()


def _read_chunks(stream: Any) -> bytes:
    pieces = []
    while size := int(stream.readline().split(b";")[0], 16):
        pieces.append(stream.read(size))
        stream.readline()
    stream.readline()
    return b"".join(pieces)


def ranged(request: Request, data: bytes, tag: str | None, *, ranges: bool = True) -> Answer:
    """Return what a web server answers for a file."""
    headers = {"Accept-Ranges": "bytes" if ranges else "none", "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}
    if tag is not None:
        headers["ETag"] = tag
        if request.headers.get("if-match", tag) != tag:
            return Answer(412, headers, b"precondition failed")
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", "")) if ranges else None
    if match is None:
        return Answer(200, headers, data)
    first = int(match[1]) if match[1] else max(len(data) - int(match[2]), 0)
    last = min(int(match[2]), len(data) - 1) if match[1] and match[2] else len(data) - 1
    if first >= len(data):
        return Answer(416, {**headers, "Content-Range": f"bytes */{len(data)}"}, b"")
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Answer(206, headers, data[first : last + 1])


class RangeServer(_Server):
    """A web server of files in memory."""

    def __init__(self, files: Mapping[str, bytes] | None = None, *, ranges: bool = True, tags: bool = True) -> None:
        self.files = dict(files or {})
        self._ranges, self._tags = ranges, tags
        super().__init__()

    def answer(self, request: Request, body: bytes) -> Answer:
        data = self.files.get(unquote(urlsplit(request.path).path).lstrip("/"))
        if data is None:
            return Answer(404, {}, b"not found")
        tag = f'"{hashlib.md5(data).hexdigest()}"' if self._tags else None
        return ranged(request, data, tag, ranges=self._ranges)


class FaultProxy(_Server):
    """Forwards to a real server; ``fault`` changes its answers."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        super().__init__()

    def answer(self, request: Request, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(HOST, self._upstream, timeout=60)
        try:
            headers = {
                name: value
                for name, value in request.headers.items()
                if name.lower() not in ("connection", "transfer-encoding", "expect")
            }
            headers["Content-Length"] = str(len(body))
            connection.request(request.method, request.path, body=body, headers=headers)
            found = connection.getresponse()
            data = found.read()
            kept = {name: value for name, value in found.getheaders() if name.lower() not in _HOP_BY_HOP}
            if request.method == "HEAD":
                kept["Content-Length"] = found.headers.get("Content-Length", "0")
            return Answer(found.status, kept, data)
        finally:
            connection.close()


_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


# --- buckets ----------------------------------------------------------------------------------------------------------


class BucketServer(_Server):
    """As much of S3 as obstore and boto3 use, with objects in memory; Google's storage speaks the same protocol.

    ``before`` may refuse a request that would be done.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.before: Callable[[Request], Answer | None] | None = None
        self._lock = threading.Lock()
        super().__init__()

    def answer(self, request: Request, body: bytes) -> Answer:
        refused = self.before(request) if self.before is not None else None
        if refused is not None:
            return refused
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        key = unquote(parts.path).removeprefix("/bucket").lstrip("/")
        if "aws-chunked" in request.headers.get("content-encoding", ""):
            body = _unchunked(body)
        with self._lock:
            return self._do(request, key, query, body)

    def _do(self, request: Request, key: str, query: dict[str, str], body: bytes) -> Answer:
        if request.method == "GET" and query.get("list-type") == "2":
            return _listing(self.objects, query)
        if request.method in ("GET", "HEAD"):
            data = self.objects.get(key)
            if data is None:
                return Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            return ranged(request, data, _tag(data))
        if request.method == "DELETE":
            if "uploadId" in query:
                self.uploads.pop(query["uploadId"], None)
            else:
                self.objects.pop(key, None)
            return Answer(204, {}, b"")
        only_new = (
            request.headers.get("if-none-match") == "*" or request.headers.get("x-goog-if-generation-match") == "0"
        )
        exists = key in self.objects and only_new
        if request.method == "POST" and "delete" in query:
            keys = [unescape(key.decode()) for key in re.findall(rb"<Key>([^<]*)</Key>", body)]
            for name in keys:
                self.objects.pop(name, None)
            rows = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in keys)
            return Answer(200, {}, f"<DeleteResult>{rows}</DeleteResult>".encode())
        if request.method == "POST" and "uploads" in query:
            name = f"upload-{random.getrandbits(64):x}"
            self.uploads[name] = {}
            text = f"<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>{key}</Key><UploadId>{name}</UploadId>"
            return Answer(200, {}, f"{text}</InitiateMultipartUploadResult>".encode())
        if "uploadId" in query:
            upload = self.uploads.get(query["uploadId"])
            if upload is None:
                return Answer(404, {}, b"<Error><Code>NoSuchUpload</Code></Error>")
            if request.method == "PUT":
                upload[int(query["partNumber"])] = body
                return Answer(200, {"ETag": _tag(body)}, b"")
            if exists:
                return Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
            numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
            tags = [tag.replace(b"&quot;", b'"').decode() for tag in re.findall(rb"<ETag>([^<]*)</ETag>", body)]
            if [_tag(upload.get(number, b"")).strip('"') for number in numbers] != [tag.strip('"') for tag in tags]:
                return Answer(400, {}, b"<Error><Code>InvalidPart</Code></Error>")
            self.objects[key] = b"".join(upload[number] for number in numbers)
            del self.uploads[query["uploadId"]]
            text = f"<CompleteMultipartUploadResult><Key>{key}</Key><ETag>{_tag(self.objects[key])}</ETag>"
            return Answer(200, {}, f"{text}</CompleteMultipartUploadResult>".encode())
        if exists:
            return Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        self.objects[key] = body
        return Answer(200, {"ETag": _tag(body)}, b"")


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _unchunked(body: bytes) -> bytes:
    pieces, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


def _listing(objects: dict[str, bytes], query: dict[str, str]) -> Answer:
    prefix, most = query.get("prefix", ""), int(query.get("max-keys", "1000"))
    after = query.get("continuation-token", "")
    names = sorted(name for name in objects if name.startswith(prefix) and name > after)
    page, folders, rows = names[:most], set(), []
    for name in page:
        rest = name[len(prefix) :]
        if query.get("delimiter") and "/" in rest:
            folders.add(prefix + rest.partition("/")[0] + "/")
            continue
        rows.append(
            f"<Contents><Key>{name}</Key><Size>{len(objects[name])}</Size><ETag>{_tag(objects[name])}</ETag>"
            "<LastModified>2026-11-02T10:00:00.000Z</LastModified></Contents>"
        )
    more = len(names) > most
    following = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
    text = "".join(rows) + "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
    head = f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{following}"
    return Answer(
        200, {"Content-Type": "application/xml"}, f"<ListBucketResult>{head}{text}</ListBucketResult>".encode()
    )


# --- faults -----------------------------------------------------------------------------------------------------------


def status(number: int) -> Fault:
    return lambda request, answer: Answer(number, {"Retry-After": "0"}, b"<Error><Code>SlowDown</Code></Error>")


def cut(request: Request, answer: Answer) -> Answer:
    """Close the connection in the middle of the body."""
    answer.headers["Content-Length"] = str(len(answer.body))
    answer.cut_after = len(answer.body) // 2
    return answer


def drop(request: Request, answer: Answer) -> Answer:
    """Close the connection before an answer."""
    answer.drop = True
    return answer


def stall(seconds: float) -> Fault:
    def fault(request: Request, answer: Answer) -> Answer:
        answer.headers["Content-Length"] = str(len(answer.body))
        answer.pause_before_end = seconds
        return answer

    return fault


def one_byte_short(request: Request, answer: Answer) -> Answer:
    """Send a body that is one byte short, and state that length."""
    answer.body = answer.body[:-1]
    return answer


def shifted(request: Request, answer: Answer) -> Answer:
    """Answer with another range than the one asked for, and state it."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
    if found is not None:
        first, last, size = map(int, found.groups())
        answer.headers["Content-Range"] = f"bytes {first + 1}-{last + 1}/{size + 1}"
    return answer


def without_content_range(request: Request, answer: Answer) -> Answer:
    answer.headers.pop("Content-Range", None)
    return answer


def another_tag(request: Request, answer: Answer) -> Answer:
    for name in [name for name in answer.headers if name.lower() == "etag"]:
        del answer.headers[name]
    answer.headers["ETag"] = '"another"'
    return answer


@dataclass
class Script:
    """Faults for the first requests of a kind, one after the other; then none."""

    faults: list[Fault]
    applies: Callable[[Request], bool] = lambda request: request.method == "GET"
    used: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Request, answer: Answer) -> Answer:
        with self.lock:
            if not self.faults or not self.applies(request):
                return answer
            fault = self.faults.pop(0)
            self.used += 1
        return fault(request, answer)


# --- the hub ----------------------------------------------------------------------------------------------------------


class HubServer(_Server):
    """The hub's protocol: revisions, listings, and a redirect to another host, with tokens and expiring signatures."""

    COMMIT = "a" * 40

    def __init__(self, repository: str, files: Mapping[str, bytes], token: str | None = None) -> None:
        self.repository, self.files, self.token = repository, dict(files), token
        self.storage = _HubStorage(self)
        super().__init__()

    def close(self) -> None:
        self.storage.close()
        super().close()

    def answer(self, request: Request, body: bytes) -> Answer:
        path = unquote(urlsplit(request.path).path)
        if self.token is not None and request.headers.get("authorization") != (f"Bearer {self.token}"):
            return Answer(401, {"X-Error-Code": "GatedRepo"}, b"{}")
        if path.startswith(f"/api/models/{self.repository}"):
            listing = {
                "id": self.repository,
                "sha": self.COMMIT,
                "siblings": [{"rfilename": name} for name in self.files],
            }
            return Answer(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())
        match = re.fullmatch(rf"/{re.escape(self.repository)}/resolve/([^/]+)/(.+)", path)
        if match is None:
            return Answer(404, {"X-Error-Code": "RepoNotFound"}, b"{}")
        data = self.files.get(match[2])
        if data is None:
            return Answer(404, {"X-Error-Code": "EntryNotFound"}, b"{}")
        own = {"X-Repo-Commit": self.COMMIT}
        if match[2].endswith(".json"):  # small files come from the hub itself
            answer = ranged(request, data, f'"{hashlib.sha1(data).hexdigest()}"')
            answer.headers.update(own)
            return answer
        address = f"{self.storage.url}/{match[2]}?X-Amz-Signature=hub-signature-{self.storage.signature}"
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"'}
        return Answer(302, {**own, **linked, "Location": address}, b"")


class _HubStorage(_Server):
    """The host that the hub redirects to; an old signature is refused."""

    def __init__(self, hub: HubServer) -> None:
        self._hub = hub
        self.signature = 1
        super().__init__()

    def answer(self, request: Request, body: bytes) -> Answer:
        parts = urlsplit(request.path)
        if f"hub-signature-{self.signature}" not in parts.query:
            return Answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
        data = self._hub.files[unquote(parts.path).lstrip("/")]
        return ranged(request, data, f'"{hashlib.md5(data).hexdigest()}"')


# --- real servers -----------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(
    command: list[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **(environment or {})}
        )
    try:
        for _ in range(300):
            try:
                with socket.create_connection((HOST, port), timeout=1):
                    break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError((folder / "server.log").read_text()[-2000:]) from None
                time.sleep(0.05)
        else:
            raise RuntimeError(f"{command[0]} did not start")
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def missing(tool: str) -> str | None:
    """Why the tests of a tool are skipped; None if it is installed."""
    return None if shutil.which(tool) else f"{tool} is not installed: .ci/install-tools installs it"


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """versitygw with one bucket, ``bucket``."""
    (folder / "objects" / "bucket").mkdir(parents=True)
    port = free_port()
    command = ["versitygw", "--port", f"{HOST}:{port}", "--quiet", "posix", str(folder / "objects")]
    with _process(command, port, folder, {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}) as started:
        yield started


def s3_options(port: int, **more: Any) -> dict[str, Any]:
    return {
        "endpoint": f"http://{HOST}:{port}",
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "region": "us-east-1",
        **more,
    }


@contextmanager
def nginx_server(folder: Path) -> Iterator[int]:
    """nginx that serves ``folder/www``; below ``/whole/`` without ranges, below ``/private/`` with a password."""
    (folder / "www").mkdir()
    port = free_port()
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;\n"
        + ("user root;\n" if os.geteuid() == 0 else "")
        + f"events {{}}\nhttp {{ access_log off; {temporary}\n"
        f"server {{ listen {HOST}:{port}; root {folder}/www; location /whole/ {{ max_ranges 0; }}\n"
        f"location /private/ {{ auth_basic private; auth_basic_user_file {folder}/users; }} }} }}\n"
    )
    (folder / "users").write_text("me:{PLAIN}nginx-password\n")
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    with _process([binary, "-c", str(folder / "nginx.conf"), "-p", str(folder)], port, folder) as started:
        yield started


@contextmanager
def azurite_server(folder: Path) -> Iterator[int]:
    """Azurite's blob service, in memory."""
    port = free_port()
    command = ["azurite-blob", "--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
    command += ["--skipApiVersionCheck", "--disableTelemetry"]
    with _process(command, port, folder) as started:
        yield started


AZURE_ACCOUNT = "devstoreaccount1"  # Azurite's documented account and key, which are no secret
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azurite_options(port: int) -> dict[str, Any]:
    return {
        "account_name": AZURE_ACCOUNT,
        "account_key": AZURE_KEY,
        "endpoint": f"http://{HOST}:{port}/{AZURE_ACCOUNT}",
    }


def google_options(port: int, **more: Any) -> dict[str, Any]:
    """Options for Google's storage at a `BucketServer`."""
    account = {
        "gcs_base_url": f"http://{HOST}:{port}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": SECRET,
        "private_key_id": "",
    }
    return {"service_account_key": json.dumps(account), "client_options": {"allow_http": True}, **more}


def make_azure_container(port: int, name: str) -> None:
    """Create a container, which obstore cannot: one request, signed with the shared key."""
    import base64
    import hmac
    from email.utils import formatdate

    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", "Content-Length": "0"}
    canonical = "".join(f"{key}:{headers[key]}\n" for key in ("x-ms-date", "x-ms-version"))
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical + resource
    digest = hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("PUT", f"/{AZURE_ACCOUNT}/{name}?restype=container", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
    finally:
        connection.close()


# --- files ------------------------------------------------------------------------------------------------------------


def some_tensors(count: int = 6, rows: int = 40) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(7)
    return {f"layer.{number}.weight": random.random((rows, 8), dtype=np.float32) for number in range(count)}


def packed(tensors: Tensors, format: str = "safetensors") -> bytes:
    return bs.serialize(tensors, format=format)


def equal(found: Mapping[str, Any], expected: Tensors) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


# --- fixtures, which test files import --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_descriptor_leaks() -> None:
    """Replace the check of all tests: connections stay open for the next request."""


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may depend on the credentials of this machine, or send them anywhere."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HF_TOKEN", "BURNSTORE_CACHE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def serve() -> Iterator[Callable[..., RangeServer]]:
    """Start web servers of files in memory."""
    started: list[RangeServer] = []

    def start(files: Mapping[str, bytes], **options: Any) -> RangeServer:
        started.append(RangeServer(files, **options))
        return started[-1]

    yield start
    for server in started:
        server.close()
