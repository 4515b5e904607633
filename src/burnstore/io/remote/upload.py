"""Write an object of a store: all or nothing, without a local copy, in a bounded amount of memory.

An object appears when its upload is completed, never before: a save that fails aborts the upload and leaves nothing.
Each part carries its SHA-256, which S3 compares before it accepts the part; afterwards the object is read back and
compared, unless the caller compares it tensor by tensor. A process that is killed leaves an unfinished upload, which no
reader sees; stores remove such uploads by a lifecycle rule.

``overwrite=False`` is a condition of the request that makes the object appear, so of two writers one wins. obstore has
that condition for one request only, which an object of up to 8 MiB needs. For larger ones S3 has it where the upload is
completed, and boto3 sends it. Other stores cannot: the save is refused with that reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

from ...errors import AlreadyExistsError, BurnstoreError, ChangedError, ClosedError, SaveError
from ..parallel import check_stopped
from .cache import mark_written
from .folder import open_remote, size_of_object
from .location import Location
from .requests import RetryError, loop_of_requests, persist, result_of, run, submit
from .store import client_for, failure_of, patience_of, require_obstore, s3_settings

PART_BYTES = 8 << 20
_MAX_PARTS = 9_000  # S3 allows 10,000
_CONCURRENT_PARTS = 4
_PROVED_BYTES = 32 << 20
_POLL_SECONDS = 0.2
_ABORT_SECONDS = 30

Exists = Callable[..., AlreadyExistsError]
"""How the refusal to replace a file is made."""


def part_bytes(size: int | None) -> int:
    """Return the size of the parts of an object: 8 MiB, or more if there would be too many.

    >>> part_bytes(None) >> 20, part_bytes(48 << 30) >> 20, part_bytes(1 << 40) >> 20
    (8, 8, 117)
    """
    mebibytes = -(-(size or 0) // (_MAX_PARTS << 20))
    return max(PART_BYTES, mebibytes << 20)


@contextmanager
def remote_file(location: Location, *, overwrite: bool, size: int | None, exists: Exists) -> Iterator[RemoteFile]:
    """Open an object that appears, whole, when the block ends without an exception."""
    if not location.is_bucket:
        raise SaveError(
            "not saved: only object stores (s3://, gs://, az://) can be written, not web servers or the hub",
            stage="check",
            path=location,
            hint="save into a local file and upload it with the tool of that place",
        )
    if not location.key.strip("/") or location.url.endswith("/"):
        raise SaveError("not saved: the URL names no object", stage="check", path=location)
    require_obstore()
    if not overwrite and size_of_object(location) is not None:
        raise exists(location, stage="check")
    mark_written(location)
    file = RemoteFile(location, size, overwrite=overwrite, exists=exists)
    try:
        file.check_possible()
        yield file
        file.finish()
    except BaseException:
        file.abort()
        raise
    if file.prove:
        file.compare()


class RemoteFile:
    """The object being written; ``position`` is the number of bytes so far, ``prove`` whether to read it back."""

    def __init__(self, location: Location, size: int | None, *, overwrite: bool, exists: Exists) -> None:
        self.position = 0
        self.prove = True
        self._location = location
        self._size = size
        self._overwrite = overwrite
        self._exists = exists
        self._part_bytes = part_bytes(size)
        self._part = bytearray()
        self._parts: _Parts | None = None
        self._digest = sha256()
        self._ended = False

    def check_possible(self) -> None:
        """Refuse before any work what this store cannot do."""
        if self._size is not None and self._size > self._part_bytes and not self._overwrite:
            self._conditional_parts_possible()

    def write(self, *buffers: Any) -> None:
        """Append all bytes of every buffer, in order; they are copied."""
        if self._ended:
            raise ClosedError("the save that this file belongs to has ended", path=self._location)
        for buffer in buffers:
            left = memoryview(buffer).cast("B")
            self._digest.update(left)
            self.position += len(left)
            while left:
                taken = left[: self._part_bytes - len(self._part)]
                self._part += taken
                left = left[len(taken) :]
                if len(self._part) == self._part_bytes and (left or self.position != self._size):
                    self._send()

    def finish(self) -> None:
        """Complete the upload: the object appears."""
        self._ended = True
        if self._size is not None and self.position != self._size:
            message = f"not saved: expected {self._size} bytes, {self.position} were written"
            raise SaveError(message, stage="write", path=self._location)
        if self._parts is None:
            self._put_whole()
            return
        if self._part:
            self._send()
        self._parts.finish()

    def abort(self) -> None:
        """Remove what was uploaded."""
        self._ended = True
        self._part = bytearray()
        if self._parts is not None:
            self._parts.abort()

    def compare(self) -> None:
        """Read the object back; remove it and raise SaveError if it is not what was written."""
        digest = sha256()
        source = open_remote(self._location)
        try:
            if source.size == self.position:
                buffer = memoryview(bytearray(min(_PROVED_BYTES, source.size)))
                for start in range(0, source.size, _PROVED_BYTES):
                    window = buffer[: min(_PROVED_BYTES, source.size - start)]
                    source.read_into([(start, window)])
                    digest.update(window)
        except ChangedError:
            return  # another writer has replaced the object: it is no longer this one
        finally:
            source.close()
        if source.size != self.position or digest.digest() != self._digest.digest():
            remove_object(self._location)
            raise SaveError(
                "what was uploaded is not what was written; the object was removed",
                stage="published",
                path=self._location,
            )

    def _send(self) -> None:
        part, self._part = bytes(self._part), bytearray()
        if self._parts is None:
            make = _Upload if self._overwrite else self._conditional_parts_possible()
            self._parts = make(self._location, self._part_bytes, self._exists)
        self._parts.add(part)

    def _conditional_parts_possible(self) -> type[_Parts]:
        reason, hint = "this store has no condition for uploads in parts", "pass overwrite=True"
        if self._location.scheme in ("s3", "s3a"):
            try:
                import boto3  # type: ignore[import-untyped]  # noqa: F401
            except ImportError:
                reason, hint = "for uploads in parts it needs the package boto3", "pip install boto3"
            else:
                return _ConditionalUpload
        raise SaveError(
            f"not saved: overwrite=False cannot be kept for an object of more than {PART_BYTES >> 20} MiB: {reason}",
            stage="check",
            path=self._location,
            hint=hint,
        )

    def _put_whole(self) -> None:
        obstore = require_obstore()
        client, key = client_for(self._location, writing=True)
        data, mode = bytes(self._part), "overwrite" if self._overwrite else "create"

        async def attempt() -> None:
            try:
                await obstore.put_async(client, key, data, mode=mode, use_multipart=False)
                return
            except Exception as error:
                failure = _failure(error, self._location, self._exists)
            raise failure

        slow = SaveError("not saved: the store did not answer in time", stage="write", path=self._location)
        run(lambda: persist(attempt, patience_of(self._location), len(data), slow))


class _Parts:
    """An upload in parts."""

    def __init__(self, location: Location, nbytes: int, exists: Exists) -> None:
        raise NotImplementedError

    def add(self, part: bytes) -> None:
        """Upload the next part, or wait until there is room for it."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the upload."""
        raise NotImplementedError

    def abort(self) -> None:
        """Remove what was uploaded."""
        raise NotImplementedError


class _AbortError(Exception):
    """Raised inside of obstore's upload, which then aborts it."""


class _Upload(_Parts):
    """obstore's upload, which replaces an object that exists."""

    def __init__(self, location: Location, nbytes: int, exists: Exists) -> None:
        self._location = location
        client, key = client_for(location, writing=True)
        obstore = require_obstore()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(2)
        self._aborted = False

        async def upload() -> None:
            try:
                await obstore.put_async(
                    client,
                    key,
                    self._taken(),
                    use_multipart=True,
                    chunk_size=nbytes,
                    max_concurrency=_CONCURRENT_PARTS,
                )
                return
            except _AbortError:
                return
            except Exception as error:
                failure = _failure(error, location, exists)
            raise failure.error if isinstance(failure, RetryError) else failure

        self._upload = submit(upload)

    async def _taken(self) -> AsyncIterator[bytes]:
        while True:
            part = await self._queue.get()
            if self._aborted:
                raise _AbortError
            if part is None:
                return
            yield part

    def add(self, part: bytes | None) -> None:
        put = submit(lambda: self._queue.put(part))
        try:
            while not put.done():
                wait([put, self._upload], _POLL_SECONDS, FIRST_COMPLETED)
                check_stopped()
                if self._upload.done():
                    break
        finally:
            put.cancel()
        if self._upload.done():
            self._upload.result()

    def finish(self) -> None:
        self.add(None)
        while not self._upload.done():  # not cancelled on Ctrl-C: then `abort` ends it in order
            wait([self._upload], _POLL_SECONDS)
            check_stopped()
        self._upload.result()

    def abort(self) -> None:
        self._aborted = True

        def wake() -> None:
            with suppress(asyncio.QueueFull):
                self._queue.put_nowait(None)

        loop_of_requests().call_soon_threadsafe(wake)
        with suppress(Exception):
            self._upload.result(_ABORT_SECONDS)


class _ConditionalUpload(_Parts):
    """boto3's upload to S3, completed on the condition that the object does not exist."""

    def __init__(self, location: Location, nbytes: int, exists: Exists) -> None:
        import boto3
        from botocore.config import Config  # type: ignore[import-untyped]

        patience = patience_of(location)
        self._location, self._exists = location, exists
        config = Config(
            connect_timeout=patience.stall,
            read_timeout=patience.stall,
            retries={"max_attempts": patience.attempts, "mode": "standard"},
        )
        self._client = boto3.client("s3", config=config, **s3_settings(location))
        self._target = {"Bucket": location.authority, "Key": location.key}
        self._workers = ThreadPoolExecutor(_CONCURRENT_PARTS, thread_name_prefix="remote-upload")
        self._running: list[Future[dict[str, Any]]] = []
        self._done: list[dict[str, Any]] = []
        self._number = 0
        created = self._ask(lambda: self._client.create_multipart_upload(**self._target, ChecksumAlgorithm="SHA256"))
        self._id = created["UploadId"]

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call of boto3, or raise our error: botocore's text has what the server sent."""
        try:
            return call()
        except BurnstoreError:
            raise
        except Exception as error:
            failure = _failure(error, self._location, self._exists)
        raise failure.error if isinstance(failure, RetryError) else failure

    def add(self, part: bytes) -> None:
        self._number += 1
        number = self._number

        def upload() -> dict[str, Any]:
            answer = self._client.upload_part(
                **self._target, UploadId=self._id, PartNumber=number, Body=part, ChecksumAlgorithm="SHA256"
            )
            kept = {name: answer[name] for name in ("ETag", "ChecksumSHA256") if name in answer}
            return {"PartNumber": number, **kept}

        self._running.append(self._workers.submit(upload))
        self._collect(_CONCURRENT_PARTS)

    def _collect(self, most: int) -> None:
        while len(self._running) > most:
            self._done.append(self._ask(lambda: result_of(self._running[0])))
            self._running.pop(0)

    def finish(self) -> None:
        self._collect(0)
        parts = {"Parts": self._done}
        self._ask(
            lambda: self._client.complete_multipart_upload(
                **self._target, UploadId=self._id, MultipartUpload=parts, IfNoneMatch="*"
            )
        )
        self._workers.shutdown()

    def abort(self) -> None:
        for future in self._running:
            future.cancel()
        self._workers.shutdown()
        with suppress(Exception):  # the first failure is being raised already
            self._client.abort_multipart_upload(**self._target, UploadId=self._id)


def _failure(error: Exception, location: Location, exists: Exists) -> Exception:
    """Return our error for a failed upload, or a `RetryError` with it."""
    response = getattr(error, "response", None)  # botocore's
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))[:60]
        if code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409"):
            return exists(location, stage="publish")
        return SaveError(f"not saved: the store refused the upload ({code})", stage="write", path=location)
    if type(error).__name__ == "AlreadyExistsError":
        return exists(location, stage="publish")
    found = failure_of(error, location, opened=False)
    inner = found.error if isinstance(found, RetryError) else found
    what = inner.strerror if isinstance(inner, FileNotFoundError) else getattr(inner, "message", "the request failed")
    failure = SaveError(f"not saved: {what}", stage="write", path=location, hint=getattr(inner, "hint", None))
    return RetryError(failure) if isinstance(found, RetryError) else failure


def remove_object(location: Location) -> bool:
    """Remove an object, if it exists; return whether it is gone."""
    obstore = require_obstore()
    client, key = client_for(location)

    async def attempt() -> bool:
        try:
            await obstore.delete_async(client, key)
            return True
        except FileNotFoundError:
            return True
        except Exception as error:
            failure = failure_of(error, location, opened=False)
        raise failure

    slow = SaveError("the store did not answer in time", stage="published", path=location)
    try:
        return run(lambda: persist(attempt, patience_of(location), 0, slow))
    except (BurnstoreError, OSError):
        return False
