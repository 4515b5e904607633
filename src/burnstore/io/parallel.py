"""Run functions in threads that never outlive the call that started them, whatever fails and whatever signals come.

A thread that still runs would write into buffers that belong to others by then. Nothing is imported or kept for
programs that never need threads, and forked children have none.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Iterable
from time import sleep
from typing import TypeVar

from .sizes import IO_THREADS

Item = TypeVar("Item")


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

    def work() -> None:
        while not failures:
            try:
                item = todo.pop()
            except IndexError:
                return  # another thread took the last one
            try:
                function(item)
            except Exception as error:
                failures.append(error)

    helpers = ThreadGroup()
    try:
        try:
            for _ in range(min(IO_THREADS, len(todo)) - 1):
                if not helpers.start(work):
                    break
            work()
        finally:
            todo.clear()  # on a failure or Ctrl-C no thread starts another item
            helpers.wait()
    finally:
        helpers.wait()  # for an interrupt that came just before the first wait
    if failures:
        raise failures[0]
