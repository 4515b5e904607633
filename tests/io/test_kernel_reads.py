"""Reads by kernel threads: the right bytes under the right key, whatever happens meanwhile."""

from __future__ import annotations

import collections
import ctypes
import errno
import gc
import mmap
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from burnstore.io import kernel_reads as module
from burnstore.io.kernel_reads import KernelReads, kernel_reads, set_workers

DATA = np.random.default_rng(3).integers(0, 256, 3_000_017, np.uint8)
BLOCK = 100_003


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    DATA.tofile(tmp_path / "data")
    opened = os.open(tmp_path / "data", os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture
def reads() -> Iterator[KernelReads]:
    made = kernel_reads(8, 3)
    if made is None:
        pytest.skip("this system permits no kernel reads")
    yield made
    made.settle()
    made.close()


def address(memory: np.ndarray[tuple[int], np.dtype[np.uint8]], at: int = 0) -> int:
    found: int = memory.__array_interface__["data"][0]
    return found + at


def test_every_byte_comes_under_its_key(fd: int, reads: KernelReads) -> None:
    memory = np.zeros(len(DATA), np.uint8)
    starts = iter(range(0, len(DATA), BLOCK))
    under_way, done = 0, {}
    while True:
        while under_way < 8 and (start := next(starts, None)) is not None:
            reads.request((fd, start, min(BLOCK, len(DATA) - start)), address(memory, start), start)
            under_way += 1
        if not under_way:
            break
        found = reads.finished(3, wait=True)
        assert len(found) <= 3
        done.update(found)
        under_way -= len(found)
    assert done == {start: min(BLOCK, len(DATA) - start) for start in range(0, len(DATA), BLOCK)}
    assert (memory == DATA).all()


def test_the_counters_may_run_over(fd: int, reads: KernelReads) -> None:
    memory = np.zeros(8, np.uint8)
    for number in range(100):  # the queues have 8 and 16 places
        reads.request((fd, number, 8), address(memory), number)
        while not (found := reads.finished(1, wait=True)):
            pass
        assert found == [(number, 8)] and memory.tolist() == DATA[number : number + 8].tolist()


def test_a_read_beyond_the_end_is_short_and_one_that_fails_returns_the_error(fd: int, reads: KernelReads) -> None:
    memory = np.zeros(64, np.uint8)
    reads.request((fd, len(DATA) - 10, 64), address(memory), 1)
    reads.request((fd, len(DATA) + 10, 64), address(memory), 2)
    reads.request((9_999, 0, 64), address(memory), 3)
    reads.request((fd, 0, 64), 1, 4)  # memory that is not there
    found: dict[int, int] = {}
    while len(found) < 4:
        found.update(reads.finished(4, wait=True))
    assert found == {1: 10, 2: 0, 3: -errno.EBADF, 4: -errno.EFAULT}


def test_without_waiting_nothing_is_found_before_it_is_there(reads: KernelReads) -> None:
    inlet, outlet = os.pipe()
    memory = np.zeros(4, np.uint8)
    try:
        reads.request((inlet, 2**64 - 1, 4), address(memory), 7)  # a pipe has no positions
        assert reads.finished(4) == []
        threading.Timer(0.05, os.write, (outlet, b"late")).start()
        assert reads.finished(4, wait=True) == [(7, 4)]
        assert memory.tobytes() == b"late"
        assert reads.finished(4, wait=True) == []  # nothing is under way, so nothing is waited for
    finally:
        os.close(inlet)
        os.close(outlet)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError, SystemExit])
def test_a_signal_ends_the_wait_and_settling_does_not_end_before_the_reads_do(
    reads: KernelReads, kind: type[BaseException]
) -> None:
    class Stop(kind):  # type: ignore[valid-type, misc]  # whatever a handler raises
        pass

    def stop(*_: object) -> None:
        raise Stop

    inlet, outlet = os.pipe()
    memory = np.zeros(4, np.uint8)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        reads.request((inlet, 2**64 - 1, 4), address(memory), 7)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stop):
            collections.deque(iter(lambda: reads.finished(1, wait=True), [7]))
        writer = threading.Timer(0.3, os.write, (outlet, b"late"))
        writer.start()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        begun = time.monotonic()
        with pytest.raises(Stop):
            reads.settle()
        assert time.monotonic() - begun > 0.1 and memory.tobytes() == b"late"
        writer.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(inlet)
        os.close(outlet)


def test_a_read_that_was_only_queued_is_not_begun(fd: int, reads: KernelReads) -> None:
    memory = np.zeros(4, np.uint8)
    reads.request((fd, 0, 4), address(memory), 1)
    reads.settle()
    assert not memory.any()


def test_descriptors_are_given_back_and_the_number_of_workers_is_as_before(reads: KernelReads) -> None:
    before = set(os.listdir("/proc/self/fd"))
    workers = set_workers(reads._fd, 0, 0)
    for _ in range(3):
        other = kernel_reads(4, 1)
        assert other is not None and set_workers(reads._fd, 0, 0)[0] == 1
        other.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert set_workers(reads._fd, 0, 0) == workers


def test_a_queue_that_is_not_closed_is_closed_with_its_last_reference(fd: int, reads: KernelReads) -> None:
    before = set(os.listdir("/proc/self/fd"))
    memory = np.zeros(1 << 20, np.uint8)
    forgotten = kernel_reads(4, 2)
    assert forgotten is not None
    for row in range(4):
        forgotten.request((fd, row << 18, 1 << 18), address(memory, row << 18), row)
    forgotten.finished(1)
    del forgotten
    assert set(os.listdir("/proc/self/fd")) == before
    found = memory.copy()
    time.sleep(0.02)
    assert found.any() and (found == memory).all()  # what was begun is done: nobody writes there any more


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("step", ["mmap", "memoryview", "set_workers"])
def test_a_queue_that_a_signal_kept_from_being_made_leaves_nothing(
    reads: KernelReads, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise TimeoutError("the alarm went off")

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        if step == "mmap":
            patched.setattr(module.mmap, "mmap", interrupted)
        else:
            patched.setattr(module, step, interrupted, raising=False)
        patched.setattr(KernelReads, "close", lambda self: None)  # as if a second signal came there
        with pytest.raises(TimeoutError) as caught:
            KernelReads(4, 1)
    del caught
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_exception_of_a_signal_is_raised_though_a_view_of_the_queues_is_left(
    reads: KernelReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[memoryview] = []

    def interrupted(queues: mmap.mmap) -> NoReturn:
        kept.append(memoryview(queues))
        raise TimeoutError("the alarm went off")

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(module, "memoryview", interrupted, raising=False)
        with pytest.raises(TimeoutError):
            KernelReads(4, 1)
    kept.pop().release()
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


def test_closing_that_a_signal_interrupts_can_be_continued(reads: KernelReads) -> None:
    before = set(os.listdir("/proc/self/fd"))
    other = kernel_reads(4, 1)
    assert other is not None

    def interrupted() -> NoReturn:
        raise TimeoutError("the alarm went off")

    other._held.callback(interrupted)
    with pytest.raises(TimeoutError):
        other.close()
    other.settle()
    other.close()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.ENOMEM])
@pytest.mark.parametrize("call", ["setup", "register"])
def test_there_is_no_queue_where_the_system_refuses(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def refused(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    calls = module._calls()._replace(**{call: refused})
    monkeypatch.setattr(module, "_calls", lambda: calls)
    assert kernel_reads(4, 1) is None


def test_there_is_no_queue_on_other_systems_and_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(platform, "machine", lambda: "aarch64")
        assert kernel_reads(4, 1) is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert kernel_reads(4, 1) is None
