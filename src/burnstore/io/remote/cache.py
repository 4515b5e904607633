"""An optional local cache of blocks of remote files, shared by processes.

An entry is a block of 1 MiB of one content: its name is the SHA-256 of the address without credentials, the endpoint,
the ETag, the size and the number of the block. So an object that was replaced has other entries, and neither names nor
contents have a secret. An entry begins with the SHA-256 of its name and block: one that is damaged, cut or renamed is
removed and the block is asked for again.

Opening a file always asks the server, so that an ETag is current and access is granted; content without a strong ETag
is not cached. What this process has written is read from the store: a proof must not read a copy.

Entries appear by a rename, so several processes need no lock to read and write; two that store the same block store the
same bytes. The modification time of an entry is that of its last use. When the entries exceed the bound, the oldest
ones are removed until a tenth of the bound is free.
"""

from __future__ import annotations

import os
import re
from _thread import allocate_lock, get_ident
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from time import time
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ...errors import ReadError
from ..sizes import parse_size
from .location import Location

BLOCK_BYTES = 1 << 20
DEFAULT_BYTES = 10 << 30
FOLDER_VARIABLE, SIZE_VARIABLE = "BURNSTORE_CACHE", "BURNSTORE_CACHE_SIZE"
OPTIONS = ("cache", "cache_size")

_MAGIC = b"bscache1"
_HEADER = len(_MAGIC) + 32
_FREED = 0.9  # of the bound is left after entries were removed
_UNCOUNTED = 64 << 20  # bytes that a process stores before it looks at what others have stored
_FRESH_SECONDS = 60  # an entry that was used since then needs no new time
_ABANDONED_SECONDS = 3600  # an entry that is being written for so long is of a process that was killed
_SCRATCH_SUFFIX = ".tmp"
_ENTRY_NAME = re.compile(r"[0-9a-f]{64}")
_SIGNATURES = re.compile(
    r"x-(?:amz|goog)-.*|signature|expires|key-pair-id|policy|awsaccesskeyid|googleaccessid|.*token"
    r"|sig|sv|st|se|sr|sp|spr|sip|srt|ss|skoid|sktid|skt|ske|sks|skv",
    re.IGNORECASE,
)
"""Parameters of a query that grant access and say nothing about the content."""

_PLACES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT_NAME", "HF_ENDPOINT")
"""Variables that decide where an address leads."""

_written: set[str] = set()


def mark_written(location: Location) -> None:
    """Note that this process writes an object: from now on it is read from the store alone."""
    _written.add(location.url)


def cache_for(location: Location) -> BlockCache | None:
    """Return the cache that the options or the environment ask for; None without one."""
    options = location.options
    folder = options["cache"] if "cache" in options else os.environ.get(FOLDER_VARIABLE)
    if folder is None or folder is False or folder == "":
        if options.get("cache_size") is not None:
            raise ValueError("storage_options['cache_size'] needs the folder of the cache: storage_options['cache']")
        return None
    if options.get("whole"):
        raise ValueError("storage_options['whole'] reads the file completely and 'cache' keeps blocks of it: pass one")
    if not isinstance(folder, (str, os.PathLike)) or "://" in os.fspath(folder):
        raise ValueError("storage_options['cache'] must be a local folder")
    stated = options.get("cache_size")
    size = os.environ.get(SIZE_VARIABLE) if stated is None else stated
    bound = DEFAULT_BYTES if size in (None, "") else _bytes_of(size)
    return None if location.url in _written else _opened(os.path.abspath(os.path.expanduser(folder)), bound)


def _bytes_of(size: Any) -> int:
    if isinstance(size, str):
        return parse_size(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(
            f"storage_options['cache_size'] must be a number of bytes or a str such as '20GB', got {size!r}"
        )
    return size


_opened_caches: dict[tuple[str, int, int], BlockCache] = {}


def _opened(folder: str, bound: int) -> BlockCache:
    key = folder, bound, os.getpid()
    cache = _opened_caches.get(key)
    if cache is None:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.scandir(folder).close()
        except OSError as error:
            raise ReadError(
                f"the folder of the cache cannot be used: {error.strerror}",
                path=folder,
                hint=f"pass another folder as storage_options['cache'] or {FOLDER_VARIABLE}",
            ) from None
        cache = _opened_caches[key] = BlockCache(folder, bound)
    return cache


class BlockCache:
    """Blocks of remote files in a local folder of at most ``bound`` bytes."""

    def __init__(self, folder: str, bound: int) -> None:
        self._folder = folder
        self._bound = bound
        self._total: int | None = None  # of all entries when they were counted, and what was stored since
        self._uncounted = 0
        self._lock = allocate_lock()

    def load(self, content: bytes, number: int) -> bytes | None:
        """Return a block of a content; None if there is no valid entry."""
        name = _name(content, number)
        path = self._path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            if os.path.islink(path):  # storing would follow it
                with suppress(OSError):
                    os.unlink(path)
            return None
        try:
            status = os.fstat(descriptor)
            entry = os.read(descriptor, _HEADER + BLOCK_BYTES + 1)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        block = entry[_HEADER:]
        if len(entry) < _HEADER or entry[:_HEADER] != _header(name, block):
            with suppress(OSError):
                os.unlink(path)
            return None
        if time() - status.st_mtime > _FRESH_SECONDS:
            with suppress(OSError):  # a folder that can only be read
                os.utime(path)
        return block

    def store(self, content: bytes, number: int, block: memoryview) -> None:
        """Keep a block, unless the folder can only be read or its disk is full."""
        nbytes = _HEADER + len(block)
        if nbytes > self._bound * _FREED:
            return
        name = _name(content, number)
        path = self._path(name)
        scratch = f"{path}.{os.getpid()}-{get_ident()}{_SCRATCH_SUFFIX}"
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            _write(scratch, _header(name, block), block)
            os.replace(scratch, path)
        except OSError:
            with suppress(OSError):
                os.unlink(scratch)
            return
        with self._lock:
            self._uncounted += nbytes
            total = self._total
            if total is None or self._uncounted > min(_UNCOUNTED, self._bound // 16, self._bound - total):
                self._total, self._uncounted = self._count(), 0
            if self._total is not None and self._total > self._bound:
                self._total = self._evict(self._total)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name[:2], name)

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Yield time, size and path of each entry, and of what killed processes left."""
        with suppress(OSError), os.scandir(self._folder) as folders:
            for folder in folders:
                if len(folder.name) != 2:
                    continue  # the folder may have files of others
                with suppress(OSError), os.scandir(folder.path) as entries:
                    for entry in entries:
                        with suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            yield status.st_mtime, status.st_size, entry.path

    def _count(self) -> int:
        return sum(size for _, size, _ in self._entries())

    def _evict(self, total: int) -> int:
        abandoned = time() - _ABANDONED_SECONDS
        for used, size, path in sorted(self._entries()):
            if total <= self._bound * _FREED:
                break
            is_scratch = path.endswith(_SCRATCH_SUFFIX) and used < abandoned
            if is_scratch or _ENTRY_NAME.fullmatch(os.path.basename(path)):
                with suppress(OSError):  # another process was first
                    os.unlink(path)
                total -= size
        return total


def _write(path: str, *buffers: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        for buffer in buffers:
            left = memoryview(buffer)
            while left:
                left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def content_name(location: Location, tag: str | None, size: int) -> bytes | None:
    """Return what identifies a content, as a digest; None if nothing does, then it is not cached."""
    if tag is None or tag.startswith("W/"):
        return None
    options = {name.removeprefix("aws_").removeprefix("azure_"): value for name, value in location.options.items()}
    places = [options.get(name) for name in ("endpoint", "endpoint_url", "account_name", "storage_account_name")]
    environment = [os.environ.get(name) for name in _PLACES if location.is_bucket or location.is_hub]
    text = repr((_address(location), places, environment, tag, size))
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _address(location: Location) -> str:
    """Return a URL without its user, its password and the parameters that grant access."""
    if location.is_bucket or location.is_hub:
        return location.url
    parts = urlsplit(location.url)
    query = [(name, value) for name, value in parse_qsl(parts.query, True) if not _SIGNATURES.fullmatch(name)]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, urlencode(query), ""))


def _name(content: bytes, number: int) -> str:
    return sha256(content + number.to_bytes(8, "little")).hexdigest()


def _header(name: str, block: bytes | memoryview) -> bytes:
    digest = sha256(name.encode())
    digest.update(block)
    return _MAGIC + digest.digest()
