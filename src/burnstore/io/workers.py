"""Execution: the independent tasks of one job, done by threads here, by processes, or by somebody's cluster.

A job (convert, diff, verify, merge) is one function and many tasks for it, each complete in itself: where to read, what
to do, where to write. Whoever runs them only has to have `submit`, as the executors of `concurrent.futures` do. For
processes and clusters function and tasks are pickled: snapshots travel as the name and place of their bytes, and every
worker opens the file for itself. On the way to a cluster they stay packed, since whoever hands them on (a scheduler)
may not have the files.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar, cast

from ..errors import BurnstoreError

Task = TypeVar("Task")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Somebody who does work: the executors of `concurrent.futures`, Dask's, and others made in their manner."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Begin a call; what comes back has ``result()`` and ``cancel()``."""


Workers = Executor | int | None
"""Who does the tasks: None for threads of this process, a number for so many processes, or an `Executor`."""

THREADS = min(8, os.cpu_count() or 1)
# How many tasks are with an executor of somebody else at a time: enough for a large cluster, and soon cancelled.
_MOST_ABROAD = 256


def run_tasks(function: Callable[[Task], Result], tasks: Iterable[Task], workers: Workers = None) -> Iterator[Result]:
    """The results of the function for every task, in their order, as they become ready.

    The first failure is raised in its turn. When that happens, on Ctrl-C, or when the iterator is closed, tasks that
    have not begun are given up and those that have are waited for: afterwards nobody works on them any more.

    >>> list(run_tasks(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    todo: Sequence[Task] = list(tasks)
    checked_workers(workers)
    if workers is None and (len(todo) < 2 or THREADS < 2):
        yield from map(function, todo)
        return
    if not todo:
        return
    with _executor(workers, len(todo)) as (executor, most):
        yield from _in_order(function, todo, executor, most)


def checked_workers(workers: Workers) -> Workers:
    """The same, if tasks can be given to it; TypeError or ValueError if not.

    >>> checked_workers(4)
    4
    """
    if workers is None or (isinstance(workers, int) and not isinstance(workers, bool) and workers > 0):
        return workers
    if isinstance(workers, int):
        raise ValueError(f"a number of processes is positive, not {workers!r}")
    if not hasattr(workers, "submit"):
        raise TypeError(f"an executor has submit(), a {type(workers).__name__} has not")
    return workers


def is_of_this_machine(workers: Workers) -> bool:
    """Whether they are threads or processes of this machine, and not of some cluster."""
    if workers is None or isinstance(workers, int):
        return True
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    return isinstance(workers, (ThreadPoolExecutor, ProcessPoolExecutor))


def is_of_this_process(workers: Workers) -> bool:
    """Whether they are threads of this process, which need nothing pickled."""
    if workers is None or isinstance(workers, int):
        return workers is None
    from concurrent.futures import ThreadPoolExecutor

    return isinstance(workers, ThreadPoolExecutor)


def in_batches(items: Iterable[Item], nbytes: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Neighbours together, up to so many bytes; what is larger is alone.

    >>> list(in_batches([3, 3, 3, 9, 1], lambda size: size, 6))
    [[3, 3], [3], [9], [1]]
    """
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and size + nbytes(item) > most:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += nbytes(item)
    if batch:
        yield batch


def _in_order(
    function: Callable[[Task], Result], todo: Sequence[Task], executor: Executor, most: int
) -> Iterator[Result]:
    unpacked = is_of_this_machine(executor)
    waiting = iter(todo)
    running: deque[Any] = deque()
    try:
        while True:
            while len(running) < most:
                try:
                    task = next(waiting)
                except StopIteration:
                    break
                with _interrupts_held(), _lost_workers_told():
                    running.append(
                        executor.submit(function, task) if unpacked else executor.submit(_Packed(function, task))
                    )
            if not running:
                return
            with _lost_workers_told():
                result = running[0].result()
            yield result
            running.popleft()
    finally:
        for future in running:
            future.cancel()
        for future in running:
            # Of one that was cancelled or failed as well there is nothing to say: the first failure is on its way.
            with suppress(Exception):
                if not future.cancelled():
                    future.result()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait while the block lasts: a process that is started in it inherits that, and prints no traceback."""
    import signal

    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Packed:
    """A task as bytes until somebody does it."""

    __slots__ = ("_packed",)

    def __init__(self, function: Callable[[Any], Any], task: Any) -> None:
        self._packed = pickle.dumps((function, task))

    def __call__(self) -> Any:
        function, task = pickle.loads(self._packed)  # what `__init__` packed, as every executor of processes does
        return function(task)


@contextmanager
def _lost_workers_told() -> Iterator[None]:
    """Say in our words that a worker is gone: its pool refuses what is running and what would be begun."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ in ("BrokenProcessPool", "KilledWorker"):
            raise BurnstoreError(
                "a worker ended in the middle of its task", hint="was it killed for its memory? use fewer"
            ) from error
        raise


@contextmanager
def _executor(workers: Workers, tasks: int) -> Iterator[tuple[Executor, int]]:
    """Who does the tasks, and how many of them may be with it at a time."""
    if workers is None:
        from concurrent.futures import ThreadPoolExecutor  # not at import: most programs never need it

        count = min(THREADS, tasks)
        with ThreadPoolExecutor(count, thread_name_prefix="burnstore") as threads:
            yield threads, 2 * count
    elif isinstance(workers, int):
        count = min(workers, tasks)
        with _processes(count) as processes:
            yield processes, 2 * count
    elif hasattr(workers, "get_executor"):  # a client of Dask: its own submit takes equal tasks for the same one
        yield workers.get_executor(pure=False), _MOST_ABROAD
    else:
        yield workers, _MOST_ABROAD


@contextmanager
def lasting(workers: Workers) -> Iterator[Workers]:
    """The same workers for several runs in a block: processes are started once, and end with it.

    >>> with lasting(None) as workers:
    ...     list(run_tasks(abs, [-1, 2], workers)), list(run_tasks(abs, [-3, 4], workers))
    ([1, 2], [3, 4])
    """
    if isinstance(checked_workers(workers), int):
        with _processes(cast(int, workers)) as processes:
            yield processes
    else:
        yield workers


def _processes(count: int) -> Any:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Spawned: a fork of a process with threads (torch has some) can hang.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_leave_interrupts_to_parent)


def _leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches the whole process group; the parent answers it, and tells the workers to stop."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
