"""Tasks for threads, processes and somebody else's executor: results in order, failures once, nobody left working."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.io import workers as execution
from burnstore.io.workers import checked_workers, in_batches, run_tasks

pytestmark = pytest.mark.usefixtures("spawning")


def double(number: int) -> int:
    return 2 * number


def fail_at(wrong: int, number: int) -> int:
    if number == wrong:
        raise bs.errors.CorruptError("this one", tensor=str(number))
    return number


def kill_at(wrong: int, number: int) -> int:
    if number == wrong:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def ours() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("burnstore")}


@pytest.fixture(params=["threads", "processes", "executor"])
def workers(request: pytest.FixtureRequest) -> Any:
    with ThreadPoolExecutor(3) as pool:
        yield {"threads": None, "processes": 2, "executor": pool}[request.param]


def test_results_come_in_the_order_of_the_tasks(workers: Any) -> None:
    assert list(run_tasks(double, range(100), workers)) == [2 * number for number in range(100)]
    assert list(run_tasks(double, [], workers)) == []
    assert list(run_tasks(double, [4], workers)) == [8]


def test_a_slow_task_does_not_change_the_order() -> None:
    def waits(number: int) -> int:
        time.sleep(0.05 if number == 0 else 0)
        return number

    assert list(run_tasks(waits, range(20))) == list(range(20))


def test_the_first_failure_is_raised_and_carries_what_it_is_about(workers: Any) -> None:
    found = run_tasks(partial(fail_at, 7), range(40), workers)
    with pytest.raises(bs.errors.CorruptError, match="this one") as caught:
        list(found)
    assert caught.value.tensor == "7"
    assert not ours()


def test_after_a_failure_tasks_that_did_not_begin_are_given_up() -> None:
    begun: list[int] = []

    def task(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise ValueError("no")
        time.sleep(0.01)

    with pytest.raises(ValueError, match="no"):
        list(run_tasks(task, range(10_000)))
    assert len(begun) < 100 and not ours()


def test_closing_the_iterator_waits_for_those_at_work_and_gives_up_the_rest() -> None:
    at_work: list[int] = []
    done: list[int] = []

    def task(number: int) -> int:
        at_work.append(number)
        time.sleep(0.01)
        done.append(number)
        return number

    results = run_tasks(task, range(1000))
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert sorted(at_work) == sorted(done) and len(done) < 100 and not ours()


class _Broken:
    """An executor whose workers are gone already."""

    def submit(self, function: Any, /, *arguments: Any) -> Any:
        from concurrent.futures.process import BrokenProcessPool

        raise BrokenProcessPool("terminated abruptly")


def test_a_worker_that_was_killed_before_the_next_task_is_said_to_be_too() -> None:
    with pytest.raises(bs.BurnstoreError, match="a worker ended in the middle of its task"):
        list(run_tasks(abs, range(8), _Broken()))


def test_a_worker_that_is_killed_is_said_to_be() -> None:
    with pytest.raises(bs.BurnstoreError, match="a worker ended in the middle of its task") as caught:
        list(run_tasks(partial(kill_at, 3), range(8), 2))
    assert caught.value.hint is not None and "memory" in caught.value.hint


def test_few_tasks_are_with_somebody_elses_executor_at_a_time() -> None:
    class Slow:
        """Holds all that it is given until somebody waits for it."""

        def __init__(self) -> None:
            self.open: list[Callable[[], None]] = []
            self.most = 0

        def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_running_or_notify_cancel()
            self.open.append(lambda: future.set_result(function(*arguments)))
            self.most = max(self.most, len(self.open))
            if len(self.open) == execution.MAX_SUBMITTED:
                for finish in self.open:
                    finish()
                self.open.clear()
            return future

    slow = Slow()
    count = 2 * execution.MAX_SUBMITTED
    assert list(run_tasks(double, range(count), slow)) == [2 * number for number in range(count)]
    assert slow.most == execution.MAX_SUBMITTED


def test_a_single_task_needs_no_thread() -> None:
    assert list(run_tasks(lambda _: threading.current_thread() is threading.main_thread(), [0])) == [True]


@pytest.mark.parametrize(
    ("wrong", "kind"), [(0, ValueError), (-2, ValueError), (True, ValueError), ("4", TypeError), (object(), TypeError)]
)
def test_what_cannot_do_tasks_is_refused(wrong: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        checked_workers(wrong)
    with pytest.raises(kind):
        list(run_tasks(double, [1, 2], wrong))


def test_batches_hold_neighbours_up_to_a_size_and_keep_the_order() -> None:
    assert list(in_batches([], double, 5)) == []
    assert list(in_batches([9, 9], lambda size: size, 6)) == [[9], [9]]
    assert list(in_batches([0, 0, 6, 0, 1], lambda size: size, 6)) == [[0, 0, 6, 0], [1]]


_INTERRUPTED = """
import os, signal, sys, threading, time
from burnstore.io.workers import run_tasks

def task(number):
    open(sys.argv[1] + f"/{number}", "w").close()
    time.sleep(0.05)
    return number

if __name__ == "__main__":
    workers = None if sys.argv[2] == "threads" else int(sys.argv[2])
    try:
        for found in run_tasks(task, range(2000), workers):
            if found == 3:
                os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        before = len(os.listdir(sys.argv[1]))
        time.sleep(0.3)
        assert len(os.listdir(sys.argv[1])) == before < 200, "somebody works on"
        assert not [t for t in threading.enumerate() if t.name.startswith("burnstore")], threading.enumerate()
        print("interrupted")
"""


@pytest.mark.slow("kills")
@pytest.mark.skipif(sys.platform == "win32", reason="sends itself SIGINT")
@pytest.mark.parametrize("workers", ["threads", "2"])
def test_after_ctrl_c_nobody_works_on(tmp_path: Path, workers: str) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    script = tmp_path / "script.py"  # processes that are spawned import it by its name
    script.write_text(_INTERRUPTED)
    done = subprocess.run(
        [sys.executable, str(script), str(marks), workers], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
