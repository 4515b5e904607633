"""Parallel: every item is done once, a failure of any is raised, and no thread outlives the call."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from burnstore.io import parallel
from burnstore.io.parallel import ThreadGroup, for_each


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", [IndexError, ValueError, KeyError])
def test_whatever_a_function_raises_is_raised_here(
    monkeypatch: pytest.MonkeyPatch, threads: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(parallel, "IO_THREADS", threads)

    def job(item: int) -> None:
        if item == 3:
            raise kind("this item")

    with pytest.raises(kind, match="this item"):
        for_each(job, range(6))


@pytest.mark.parametrize("threads", [1, 4])
def test_every_item_is_done_once(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(parallel, "IO_THREADS", threads)
    done: list[int] = []
    for_each(done.append, range(1000))
    assert sorted(done) == list(range(1000))


def limit(monkeypatch: pytest.MonkeyPatch, allowed: int, error: BaseException) -> None:
    """Let some threads start and fail the next one, with the error that the system or a signal gives."""
    start, started = parallel.start_new_thread, []

    def limited(*arguments: Any) -> int:
        if len(started) == allowed:
            raise error
        started.append(True)
        return start(*arguments)

    monkeypatch.setattr(parallel, "IO_THREADS", 4)
    monkeypatch.setattr(parallel, "start_new_thread", limited)


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_where_the_system_starts_no_more_threads_the_others_do_all(
    monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    limit(monkeypatch, allowed, RuntimeError("can't start new thread"))
    done: list[int] = []
    for_each(done.append, range(100))
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_a_thread_that_cannot_be_started_leaves_no_other_writing(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    limit(monkeypatch, 2, error)
    written: list[int] = []

    def slow(item: int) -> None:
        time.sleep(0.1)
        written.append(item)

    with pytest.raises(type(error)):
        for_each(slow, range(100))
    count = len(written)
    time.sleep(0.25)
    assert len(written) == count <= 2


@pytest.fixture
def alarm() -> Any:
    """Raise an error in the main thread after some seconds, again and again, wherever ``for_each`` is then."""
    before = signal.getsignal(signal.SIGALRM)

    def set_alarm(error: type[BaseException], after: float, every: float = 0.0) -> None:
        def handler(_: int, frame: FrameType | None) -> None:
            while frame is not None:  # An alarm that a busy machine delivers late must not end pytest itself.
                if frame.f_code is for_each.__code__:
                    raise error
                frame = frame.f_back

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, after, every)

    yield set_alarm
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("every", [0.0, 0.04])
def test_interrupts_while_helpers_are_awaited_are_raised_when_these_are_done(
    monkeypatch: pytest.MonkeyPatch, alarm: Callable[..., None], every: float
) -> None:
    monkeypatch.setattr(parallel, "IO_THREADS", 4)
    running, done = [], []

    def job(item: int) -> None:
        if threading.current_thread() is threading.main_thread():
            while len(running) < 3:
                time.sleep(0.001)
            alarm(TimeoutError, 0.05, every)
            return
        running.append(item)
        time.sleep(0.3)
        running.remove(item)
        done.append(item)

    with pytest.raises(TimeoutError):
        for_each(job, range(4))
    assert (running, len(done)) == ([], 3)


@pytest.mark.slow("interrupts at 150 instants")
def test_interrupts_at_any_instant_leave_no_thread_running(
    monkeypatch: pytest.MonkeyPatch, alarm: Callable[..., None]
) -> None:
    monkeypatch.setattr(parallel, "IO_THREADS", 4)
    running: list[int] = []

    def job(item: int) -> None:
        running.append(item)
        time.sleep(0.0002)
        running.remove(item)

    interrupted = 0
    gc.collect()
    gc.disable()  # an exception in a callback of the collector would be lost; the fixture enables it again
    for number in range(150):
        try:
            try:
                alarm(TimeoutError, 0.0002 + number * 0.00002)
                for_each(job, range(12))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeoutError:  # also one that comes while the timer is stopped
            interrupted += 1
        # The main thread's own job may be cut short; those of helpers may not run any more.
        left = list(running)
        time.sleep(0.001)
        assert running == left
        running.clear()
    assert interrupted > 10


def test_a_group_can_be_used_again_after_a_wait() -> None:
    group, done = ThreadGroup(), []
    for number in range(3):
        assert group.start(lambda number=number: done.append(number))  # type: ignore[misc]
        group.wait()
        assert (len(group), done) == (0, list(range(number + 1)))
    group.wait()
