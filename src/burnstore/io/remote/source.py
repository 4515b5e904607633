"""A remote file as a source: few requests, only the bytes that are needed, always of the content that was opened.

* Opening asks for the first 512 KiB, which answers size, identity and, for nearly every file, the whole header.
* Small reads of a format near the end (the directory of a zip) fetch the last 512 KiB once.
* Ranges are joined across gaps under 512 KiB, split above 16 MiB, and 16 requests run at a time.
* Each request states the ETag of the opened content (If-Match), and each answer is compared with it: another content
  is a `ChangedError`. A body of another length than asked for is asked for again.
* With a cache (`burnstore.io.remote.cache`) whole blocks are asked for, and those of earlier reads are not.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, cast

import numpy as np

from ...errors import ChangedError, ClosedError, ReadError, TruncatedError
from ..parallel import Stop, ThreadGroup, check_stopped
from ..sizes import IO_THREADS
from ..source import InFolder, Read, Source
from ..spool import Spool
from .cache import BLOCK_BYTES, BlockCache, cache_for, content_name
from .location import Location
from .requests import MAX_CONCURRENT, Patience, RetryError, persist, result_of, run, submit
from .store import Stamp, client_for, failure_of, patience_of, require_obstore, stamp_of

HEAD_BYTES = 512 << 10
"""The first request: 97 % of SafeTensors headers on the hub fit into 100 kB."""

TAIL_BYTES = 512 << 10
MAX_GAP = 512 << 10
"""Ranges with a smaller gap between them are one request: another one would take longer than the gap."""

MAX_REQUEST = 16 << 20
MAX_PREFETCH = 32 << 20
_POLL_SECONDS = 0.2


class Target:
    """Where the requests for one file go."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.conditional = True  # whether the server compares ETags; the answers are compared in any case

    def client(self) -> tuple[Any, str]:
        """Return obstore's client and the key."""
        return client_for(self.location)

    def is_same(self, stamp: Stamp, found: Stamp) -> bool:
        """Return whether an answer is about the content with this stamp."""
        return found.is_of(stamp)

    def local_copy(self) -> Source | None:
        """Return the file as another program keeps it on this machine, if there is one."""
        return None

    def sibling(self, name: str) -> Target:
        """Return the file of that plain name in the same folder."""
        return type(self)(cast(Location, self.location.folder.join(name)))

    async def refresh(self) -> bool:
        """Find the file's address again after access was denied; return whether that may help."""
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location,)


def open_target(target: Target) -> Source:
    """Open the file of a target; FileNotFoundError if it does not exist."""
    local = target.local_copy()
    if local is not None:
        return local
    if target.location.options.get("whole"):
        cache_for(target.location)  # the two options exclude each other
        return _read_whole(target)
    return result_of(start_opening(target))


def start_opening(target: Target) -> Future[RemoteSource]:
    """Start to open the file of a target."""
    require_obstore()
    patience = patience_of(target.location)
    target.client()  # what is wrong with the options is raised here
    cache_for(target.location)

    async def open_it() -> RemoteSource:
        stamp, head = await _fetch(target, 0, HEAD_BYTES, None, patience)
        return RemoteSource(target, stamp, head.take())

    return submit(open_it)


def _read_whole(target: Target) -> Source:
    """Read all bytes of a file in one answer, into memory or a temporary file."""
    location, patience = target.location, patience_of(target.location)
    obstore = require_obstore()
    client, key = target.client()

    async def attempt() -> Spool:
        spool = Spool()
        try:
            answer = await obstore.get_async(client, key)
            size = int(answer.meta["size"])
            async for chunk in answer.stream(min_chunk_size=1 << 20):
                spool.write(memoryview(chunk))
        except Exception as error:
            spool.close()
            failure = failure_of(error, location, opened=False)
        else:
            if spool.size == size:
                return spool
            spool.close()
            failure = RetryError(ReadError(f"expected {size} bytes, got {spool.size}", path=location))
        raise failure

    slow = ReadError("the server did not answer in time", path=location)
    spool = run(lambda: persist(attempt, patience, 1 << 40, slow))
    return spool.source(location, (open_target, (target,)))


class _Body:
    """The bytes of an answer, to be taken once: futures and tasks refer to each other and would keep them alive."""

    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        self._data: memoryview | None = data

    def take(self) -> memoryview:
        data, self._data = self._data, None
        assert data is not None
        return data


async def _fetch(target: Target, start: int, stop: int, stamp: Stamp | None, patience: Patience) -> tuple[Stamp, _Body]:
    """Return the bytes of a range; without a stamp those that exist of it, and the stamp of the file."""
    obstore, location = require_obstore(), target.location
    denied: list[Exception] = []

    async def attempt() -> tuple[Stamp, _Body]:
        client, key = target.client()
        options: dict[str, Any] = {"range": (start, stop)}
        if stamp is not None and target.conditional and stamp.condition is not None:
            options["if_match"] = stamp.condition
        try:
            answer = await obstore.get_async(client, key, options=options)
            found = stamp_of(answer.meta)
            body = memoryview(await answer.bytes_async())
        except Exception as error:
            failure: Exception = failure_of(error, location, opened=stamp is not None)
        else:
            if stamp is not None and not target.is_same(stamp, found):
                raise _changed(location, stamp, found)
            expected = (stop if stamp is not None else min(stop, found.size)) - start
            if len(body) == expected and tuple(answer.range) == (start, start + expected):
                return found, _Body(body)
            failure = RetryError(
                TruncatedError(f"expected {expected} bytes, the server sent {len(body)}", path=location, offset=start)
            )
        if stamp is None and isinstance(failure, ChangedError):  # the range of an empty file
            return await _empty(target, failure)
        if isinstance(failure, ReadError) and not isinstance(failure, ChangedError) and not denied:
            denied.append(failure)
            if await target.refresh():
                failure = RetryError(failure)
        raise failure

    slow = ReadError("the server did not send the bytes in time", path=location, offset=start)
    return await persist(attempt, patience, stop - start, slow)


async def _empty(target: Target, failure: Exception) -> tuple[Stamp, _Body]:
    client, key = target.client()
    try:
        stamp = stamp_of(await require_obstore().head_async(client, key))
    except Exception as error:
        raised = failure_of(error, target.location, opened=False)
    else:
        if stamp.size == 0:
            return stamp, _Body(memoryview(b""))
        raised = failure
    raise raised


def _changed(location: Location, stamp: Stamp, found: Stamp) -> ChangedError:
    what = "size" if found.size != stamp.size else "ETag" if found.tag != stamp.tag else "modification time"
    return ChangedError(f"the file was replaced after it was opened: its {what} differs", path=location)


async def _fetch_cached(
    target: Target, start: int, stop: int, stamp: Stamp, patience: Patience, cache: BlockCache, content: bytes
) -> tuple[Stamp, _Body]:
    """Return the bytes of a range from the blocks in the cache; those that are missing are fetched and kept."""
    first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
    blocks: dict[int, bytes | memoryview] = {}

    def load() -> None:
        for number in range(first, last):
            block = cache.load(content, number)
            if block is not None and len(block) == _block_stop(number, stamp) - number * BLOCK_BYTES:
                blocks[number] = block

    def store(fetched: list[int]) -> None:
        for number in fetched:
            cache.store(content, number, memoryview(blocks[number]))

    await asyncio.to_thread(load)
    missing = [number for number in range(first, last) if number not in blocks]
    runs = [(a, b) for a, b in _runs(missing)]
    bodies = await asyncio.gather(
        *(_fetch(target, a * BLOCK_BYTES, _block_stop(b - 1, stamp), stamp, patience) for a, b in runs)
    )
    for (a, b), (_, answer) in zip(runs, bodies, strict=True):
        body = answer.take()
        for number in range(a, b):
            blocks[number] = body[(number - a) * BLOCK_BYTES : (number - a + 1) * BLOCK_BYTES]
    if missing:
        await asyncio.to_thread(store, missing)
    joined = b"".join(blocks[number] for number in range(first, last))
    return stamp, _Body(memoryview(joined)[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES])


def _block_stop(number: int, stamp: Stamp) -> int:
    return min((number + 1) * BLOCK_BYTES, stamp.size)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number of each run of neighbours, and the number after its last."""
    for index, number in enumerate(numbers):
        if not index or numbers[index - 1] != number - 1:
            first = number
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield first, number + 1


class RemoteSource:
    """A remote file, read by ranges of the content that was opened."""

    def __init__(self, target: Target, stamp: Stamp, head: memoryview | bytes = b"") -> None:
        self.name: str = target.location
        self.size = stamp.size
        self._target = target
        self._stamp = stamp
        self._patience = patience_of(target.location)
        self._blocks: list[tuple[int, memoryview]] = [(0, memoryview(head))]
        self._prefetched: tuple[list[int], list[memoryview]] = ([], [])
        self._ahead: dict[str, Future[RemoteSource]] = {}
        self._closed = False
        self._cache = cache_for(target.location)
        self._content = content_name(target.location, stamp.tag, stamp.size) if self._cache is not None else None

    piece_bytes = 8 << 20
    """The bytes to ask for at a time when reading front to back: each read is a request."""

    @property
    def location(self) -> Location:
        """The location, with its options."""
        return self._target.location

    @property
    def identity(self) -> tuple[str, str | None]:
        """The address and ETag of the opened content."""
        return self.location.url, self._stamp.tag

    @property
    def stamp(self) -> Stamp:
        """What identifies the opened content."""
        return self._stamp

    def is_current(self) -> bool:
        """Return whether the name still refers to the opened content."""
        try:
            if self.size:  # asked of the server, whatever the cache has
                run(lambda: _fetch(self._target, 0, 1, self._stamp, self._patience))
            else:
                open_target(self._target).close()
        except (ReadError, FileNotFoundError):
            return False
        return True

    def open_sibling(self, name: str) -> InFolder:
        """Open the file of that plain name in the same folder."""
        ahead = self._ahead.pop(name, None)
        opened = open_target(self._target.sibling(name)) if ahead is None else result_of(ahead)
        return cast(InFolder, opened)

    def prefetch_siblings(self, names: Sequence[str]) -> None:
        """Start to open these files of the same folder."""
        for name in names[:MAX_CONCURRENT]:
            if name not in self._ahead and not self.location.is_hub:  # resolving an address waits for the hub
                self._ahead[name] = start_opening(self._target.sibling(name))

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read these ranges with few requests and hold them until the next such call."""
        wanted = sorted(each for each in set(ranges) if each[0] + each[1] <= self.size and self._held(*each) is None)
        total = sum(length for _, length in wanted)
        if len(wanted) < 2 or total > MAX_PREFETCH:
            return
        buffers = [memoryview(bytearray(length)) for _, length in wanted]
        self.read_into([(offset, buffer) for (offset, _), buffer in zip(wanted, buffers, strict=True)])
        self._prefetched = [offset for offset, _ in wanted], buffers

    def read_at(self, offset: int, length: int) -> bytes:
        self._check_inside(offset, length)
        held = self._held(offset, length)
        if held is None and length <= TAIL_BYTES and offset + TAIL_BYTES >= self.size:
            start = max(self.size - TAIL_BYTES, 0)
            self._blocks.append((start, self._get(start, self.size)))
            held = self._held(offset, length)
        if held is not None:
            return bytes(held)
        buffer = bytearray(length)
        self.read_into([(offset, memoryview(buffer))])
        return bytes(buffer)

    def read_into(self, reads: Sequence[Read]) -> None:
        wanted: list[Read] = []
        for offset, buffer in reads:
            self._check_inside(offset, len(buffer))
            held = self._held(offset, len(buffer))
            if held is None:
                wanted.append((offset, buffer))
            else:
                _copy(held, buffer)
        if not wanted:
            return
        _Transfer(self._start, _requests(wanted)).run()

    def view(self, offset: int, length: int) -> memoryview | None:
        return None

    def close(self) -> None:
        self._closed = True
        self._blocks = []
        self._prefetched = ([], [])
        for future in self._ahead.values():
            future.cancel()
        self._ahead = {}

    def _start(self, start: int, stop: int) -> Future[tuple[Stamp, _Body]]:
        of_file = self._target, start, stop, self._stamp, self._patience
        cache, content = self._cache, self._content
        if cache is None or content is None or start >= stop:
            return submit(lambda: _fetch(*of_file))
        return submit(lambda: _fetch_cached(*of_file, cache, content))

    def _get(self, start: int, stop: int) -> memoryview:
        return result_of(self._start(start, stop))[1].take()

    def _held(self, offset: int, length: int) -> memoryview | None:
        for start, block in self._blocks:
            if start <= offset and offset + length <= start + len(block):
                return block[offset - start : offset - start + length]
        starts, buffers = self._prefetched
        at = bisect_right(starts, offset) - 1
        if at >= 0 and offset + length <= starts[at] + len(buffers[at]):
            return buffers[at][offset - starts[at] : offset - starts[at] + length]
        return None

    def _check_inside(self, offset: int, length: int) -> None:
        if self._closed:
            raise ClosedError("the file was closed", path=self.name, hint="read inside the `with bs.open(...)` block")
        if offset + length > self.size:
            message = f"File truncated: {length} bytes needed, the file ends at {self.size}"
            raise TruncatedError(message, path=self.name, offset=offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteSource, (self._target, self._stamp)


class _Transfer:
    """Requests that are under way, 16 at a time, and the threads that copy what arrives.

    Threads of this call alone write into the caller's buffers, and none is left when it ends. They are several because
    the first touch of fresh memory takes as long as the copy: one thread would be slower than the network.
    """

    def __init__(self, start: Callable[[int, int], Future[tuple[Stamp, _Body]]], requests: Iterable[_Request]) -> None:
        self._start = start
        self._todo = deque(requests)
        self._left = len(self._todo)
        self._threads = min(IO_THREADS, self._left)
        self._running: set[Future[tuple[Stamp, _Body]]] = set()
        self._arrived: SimpleQueue[tuple[_Request, Future[tuple[Stamp, _Body]]] | None] = SimpleQueue()
        self._failures: list[Exception] = []
        self._lock = allocate_lock()
        self._stop = Stop()

    def run(self) -> None:
        """Fill all buffers; the first failure is raised, and an interrupt at once."""
        helpers = ThreadGroup()
        try:
            try:
                for _ in range(min(MAX_CONCURRENT, self._left)):
                    self._start_next()
                for _ in range(self._threads - 1):
                    if not helpers.start(lambda: self._stop.guard(lambda _: self._work(), None)):
                        break
                self._work()
            finally:
                self._end()
                helpers.wait()
        finally:
            helpers.wait()  # for an interrupt that came just before the first wait
            for future in self._running:  # a thread may have started one after the others were cancelled
                future.cancel()
        if self._failures:
            raise self._failures[0]

    def _start_next(self) -> None:
        try:
            request = self._todo.popleft()
        except IndexError:
            return  # all have been started
        future = self._start(request.start, request.stop)
        self._running.add(future)
        future.add_done_callback(lambda done: self._arrived.put((request, done)))

    def _work(self) -> None:
        try:
            while not self._failures:
                try:
                    arrived = self._arrived.get(timeout=_POLL_SECONDS)
                except Empty:
                    check_stopped()
                    continue
                if arrived is None:
                    return
                check_stopped()
                request, future = arrived
                self._start_next()
                request.deliver(future.result()[1].take())
                self._running.discard(future)
                with self._lock:
                    self._left -= 1
                    last = self._left == 0
                if last:
                    self._end()
                    return
        except Exception as error:
            self._failures.append(error)
            self._end()

    def _end(self) -> None:
        """Cancel what is under way, and wake the threads that wait for it."""
        self._todo.clear()
        if self._left:
            self._stop.set()
        for future in list(self._running):
            future.cancel()
        for _ in range(self._threads):
            self._arrived.put(None)


class _Request:
    """A range to ask for, and the buffers that it fills."""

    __slots__ = ("reads", "start", "stop")

    def __init__(self, start: int, stop: int, reads: list[Read]) -> None:
        self.start, self.stop, self.reads = start, stop, reads

    def deliver(self, body: memoryview) -> None:
        for offset, buffer in self.reads:
            first, last = max(offset, self.start), min(offset + len(buffer), self.stop)
            if first < last:
                _copy(body[first - self.start : last - self.start], buffer[first - offset : last - offset])


def _requests(reads: Sequence[Read]) -> Iterator[_Request]:
    """Join ranges across small gaps and split them into requests."""
    run_reads: list[Read] = []
    start = stop = 0
    for offset, buffer in sorted(reads, key=lambda read: read[0]):
        if run_reads and offset - stop >= MAX_GAP:
            yield from _split(start, stop, run_reads)
            run_reads = []
        if not run_reads:
            start = stop = offset
        run_reads.append((offset, buffer))
        stop = max(stop, offset + len(buffer))
    yield from _split(start, stop, run_reads)


def _split(start: int, stop: int, reads: list[Read]) -> Iterator[_Request]:
    """Split a range into requests of equal size; each gets the reads that it touches."""
    first = 0
    for at in range(start, stop, MAX_REQUEST):
        end = min(at + MAX_REQUEST, stop)
        while first < len(reads) and reads[first][0] + len(reads[first][1]) <= at:
            first += 1
        last = first
        while last < len(reads) and reads[last][0] < end:
            last += 1
        touched = reads[first:last]
        if any(offset + len(buffer) > at for offset, buffer in touched):  # otherwise the request is a gap
            yield _Request(at, end, touched)


def _copy(source: memoryview, buffer: memoryview) -> None:
    if len(buffer):
        np.copyto(np.frombuffer(buffer, np.uint8), np.frombuffer(source, np.uint8))  # without Python's lock
