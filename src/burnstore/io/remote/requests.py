"""Requests with our own time limits and retries, made in one background thread.

obstore's synchronous calls ignore Ctrl-C until they end, and a stalled body is waited for. So all requests run in an
event loop of a thread of its own; the calling thread waits for the result and can be interrupted at any time: it then
cancels the requests and no memory of the caller is written afterwards, since the caller copies what arrived.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import ReadError
from ..parallel import check_stopped

T = TypeVar("T")

MAX_CONCURRENT = 16
"""Requests of this process at a time: one connection to an object store gives 0.1 to 0.3 GB/s."""

_POLL_SECONDS = 0.2
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
_SLOWEST = 64 << 10  # bytes per second: a body that arrives more slowly is asked for again


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait: seconds without a byte, and how often to try."""

    stall: float = 15.0
    attempts: int = 6

    def whole(self, nbytes: int) -> float:
        """Return the seconds that a request for this many bytes may take."""
        return 2 * self.stall + nbytes / _SLOWEST


class RetryError(Exception):
    """A failure after which the same request may succeed; ``error`` is raised when the attempts are used up."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class _Engine:
    """The event loop of this process, in its thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self.places = asyncio.Semaphore(MAX_CONCURRENT)
        threading.Thread(target=self._run, name="remote-requests", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_engine: _Engine | None = None
_engine_lock = threading.Lock()


def submit(work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Start a coroutine in the background thread; the function makes it there."""
    global _engine
    engine = _engine
    if engine is None:
        with _engine_lock:
            engine = _engine = _engine or _Engine()
    if engine.pid != os.getpid():
        raise ReadError(
            "a forked process cannot read remote files that its parent opened: the client's threads do not exist in it",
            hint='start workers with multiprocessing.get_context("spawn")',
        )
    return asyncio.run_coroutine_threadsafe(work(), engine.loop)


def loop_of_requests() -> asyncio.AbstractEventLoop:
    """Return the event loop of the background thread, which a request has started."""
    assert _engine is not None
    return _engine.loop


def result_of(future: Future[T]) -> T:
    """Wait for a result; on Ctrl-C, or when the threads of this job are stopped, cancel the request."""
    try:
        while True:
            try:
                return future.result(_POLL_SECONDS)
            except NotYet:
                if future.done():
                    raise
                check_stopped()
    except BaseException:
        future.cancel()
        raise


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in the background thread and wait for its result."""
    return result_of(submit(work))


async def persist(attempt: Callable[[], Awaitable[T]], patience: Patience, nbytes: int, slow: Exception) -> T:
    """Return the result of an attempt; try again after a `RetryError` or too long a time; then raise the last error.

    ``slow`` is the error of an attempt that takes too long.
    """
    assert _engine is not None
    last: Exception = slow
    for number in range(patience.attempts):
        if number:
            longest = min(_FIRST_BACKOFF * 2**number, _LONGEST_BACKOFF)
            await asyncio.sleep(longest * (0.5 + random.random() / 2))  # or all clients would ask again together
        async with _engine.places:
            try:
                return await asyncio.wait_for(attempt(), patience.whole(nbytes))
            except RetryError as again:
                last = again.error
            except asyncio.TimeoutError:
                last = slow
    raise last
