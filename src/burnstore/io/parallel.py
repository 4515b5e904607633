"""Run functions in threads that never outlive the call that started them, whatever fails and whatever signals come.

A thread that still runs would write into buffers that belong to others by then. Nothing is imported or kept for
programs that never need threads, and forked children have none.
"""

from __future__ import annotations

from _thread import LockType, _local, allocate_lock, start_new_thread
from collections.abc import Callable, Iterable
from time import sleep
from typing import TypeVar

from .sizes import IO_THREADS

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stop:
    """A sign for the threads of one job that nothing is waiting for their results any more.

    A thread that waits for the network asks for it with `check_stopped`; one that reads a disk is soon done.
    """

    __slots__ = ("_outer", "_set")

    def __init__(self) -> None:
        self._set = False
        self._outer: Stop | None = getattr(_current, "stop", None)

    def set(self) -> None:
        """Stop the threads."""
        self._set = True

    def is_set(self) -> bool:
        """Return whether this job, or the one that started it, has ended."""
        return self._set or (self._outer is not None and self._outer.is_set())

    def guard(self, function: Callable[[Item], Result], item: Item) -> Result:
        """Call a function in a thread that this sign stops."""
        before = getattr(_current, "stop", None)
        _current.stop = self
        try:
            return function(item)
        finally:
            _current.stop = before


class StoppedError(Exception):
    """The wait of a thread ended because its job did; never seen outside of burnstore."""


_current = _local()


def check_stopped() -> None:
    """Raise StoppedError if the job of this thread has ended."""
    stop = getattr(_current, "stop", None)
    if stop is not None and stop.is_set():
        raise StoppedError


class ThreadGroup:
    """Threads that `wait` waits for.

    Not `threading.Thread`: an interrupt during its `start` or `join` leaves a running thread that cannot be joined any
    more (Python 3.11 marks it as stopped).
    """

    def __init__(self) -> None:
        self._locks: list[LockType] = []
        self._started: list[int] = []
        self._finished: list[None] = []

    def start(self, function: Callable[[], None]) -> bool:
        """Start a thread; False if the system starts no more. The function must not raise."""
        lock = allocate_lock()
        lock.acquire()

        def run() -> None:
            try:
                function()
            finally:
                self._finished.append(None)
                lock.release()

        del self._locks[len(self._started) :]
        self._locks.append(lock)
        try:
            # One call into C: Ctrl-C cannot come between the start of a thread and the note that it was started.
            self._started.extend(map(start_new_thread, (run,), ((),)))
        except RuntimeError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._started)

    def wait(self) -> None:
        """Return when no thread runs; an interrupt is raised then, too."""
        try:
            for lock in self._locks[: len(self._started)]:
                lock.acquire()
        except BaseException:
            self._poll()  # not by the locks: one may have been acquired before the interrupt
            raise
        finally:
            self._locks, self._started, self._finished = [], [], []

    def _poll(self) -> None:
        try:
            while len(self._finished) < len(self._started):
                sleep(0.001)
        except BaseException:
            self._poll()
            raise


def for_each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call the function for every item; the first failure, of whichever thread, is raised here and ends the rest."""
    todo = list(items)[::-1]  # `list.pop` from the end is atomic, hence the reversal
    failures: list[Exception] = []
    stop = Stop()

    def work() -> None:
        while not failures:
            try:
                item = todo.pop()
            except IndexError:
                return  # another thread took the last one
            try:
                stop.guard(function, item)
            except Exception as error:
                failures.append(error)
                stop.set()

    helpers = ThreadGroup()
    try:
        try:
            for _ in range(min(IO_THREADS, len(todo)) - 1):
                if not helpers.start(work):
                    break
            work()
        except BaseException:
            stop.set()
            raise
        finally:
            todo.clear()  # on a failure or Ctrl-C no thread starts another item
            helpers.wait()
    finally:
        helpers.wait()  # for an interrupt that came just before the first wait
    if failures:
        raise failures[0]
