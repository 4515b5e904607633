"""Run the independent tasks of one job with threads, processes or a cluster: the engine of every job.

A job (convert, diff, verify, merge) is one function and many tasks, each complete in itself: where to read, what to do,
where to write. An executor only needs `submit`, as those of `concurrent.futures` have. For processes and clusters the
function and the tasks are pickled: snapshots travel as the name and place of their bytes, and every worker opens the
file. For a cluster a task stays packed until a worker runs it, since its scheduler may not have the files.

    in_batches, in_runs   small items together: those of one task, and within it those of one read
    run_batches           each batch with its result, in order, and the bytes that are done
    run_tasks             the same for tasks that are batches already
    MemoryBudget          what the tasks may hold together
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from ..errors import BurnstoreError
from .parallel import Stop
from .sizes import GATHERED_BYTES, MAX_SUBMITTED, SHARED_BITS, SPARE_BYTES, TASK_BYTES, TASK_THREADS
from .source import Array

Task = TypeVar("Task")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """An executor of `concurrent.futures`, of Dask, or one with the same interface."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Start a call and return a future with ``result()`` and ``cancel()``."""


Workers = Executor | int | None
"""None for threads of this process, a number of processes, or an `Executor`."""


def run_tasks(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: Workers = None, *, attempts: int = 1
) -> Iterator[Result]:
    """Yield the result of the function for every task, in order, as they become ready.

    The first failure is raised in its turn. A task whose worker was lost is run again, up to ``attempts`` times in all;
    an error of burnstore is final. Then, on Ctrl-C, or when the iterator is closed, tasks that have not begun
    are cancelled and running ones are waited for: afterwards no task is running.

    >>> list(run_tasks(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    todo: Sequence[Task] = list(tasks)
    checked_workers(workers)
    if workers is None and (len(todo) < 2 or TASK_THREADS < 2):
        yield from map(function, todo)
        return
    if not todo:
        return
    with _executor(workers, len(todo)) as (executor, most):
        yield from _in_order(function, todo, executor, most, attempts)


def run_batches(
    function: Callable[[list[Item]], Result],
    items: Iterable[Item],
    nbytes: Callable[[Item], int],
    workers: Workers = None,
    *,
    advance: Callable[[int], None] | None = None,
    most: int | None = None,
) -> Iterator[tuple[list[Item], Result]]:
    """Yield batches of neighbours, each with the function's result for it, in order, as `run_tasks` does.

    A batch has at most ``most`` bytes (by default `burnstore.io.sizes.TASK_BYTES`), or one item. ``advance`` gets the
    bytes of a batch after the caller used its result.

    >>> list(run_batches(sum, [3, 3, 3, 9], lambda size: size, most=6))
    [([3, 3], 6), ([3], 3), ([9], 9)]
    """
    batches = list(in_batches(items, nbytes, TASK_BYTES if most is None else most))
    for batch, result in zip(batches, run_tasks(function, batches, workers), strict=True):
        yield batch, result
        if advance is not None:
            advance(sum(map(nbytes, batch)))


def checked_workers(workers: Workers) -> Workers:
    """Return ``workers``; TypeError or ValueError if they cannot run tasks.

    >>> checked_workers(4)
    4
    """
    if workers is None or (isinstance(workers, int) and not isinstance(workers, bool) and workers > 0):
        return workers
    if isinstance(workers, int):
        raise ValueError(f"expected a positive number of processes, got {workers!r}")
    if not hasattr(workers, "submit"):
        raise TypeError(f"expected an executor with submit(), got a {type(workers).__name__}")
    return workers


def are_local(workers: Workers) -> bool:
    """Return whether these are threads or processes of this machine."""
    if workers is None or isinstance(workers, int):
        return True
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    return isinstance(workers, (ThreadPoolExecutor, ProcessPoolExecutor))


def are_threads(workers: Workers) -> bool:
    """Return whether these are threads of this process, which need nothing pickled."""
    if workers is None or isinstance(workers, int):
        return workers is None
    from concurrent.futures import ThreadPoolExecutor

    return isinstance(workers, ThreadPoolExecutor)


def in_batches(items: Iterable[Item], nbytes: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Group neighbours into batches of at most ``most`` bytes; a larger item is a batch of its own.

    >>> list(in_batches([3, 3, 3, 9, 1], lambda size: size, 6))
    [[3, 3], [3], [9], [1]]
    """
    batch: list[Item] = []
    size = 0
    for item in items:
        own = nbytes(item)
        if batch and size + own > most:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += own
    if batch:
        yield batch


def in_runs(items: Iterable[Item], nbytes: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield large items alone, small ones together with their neighbours: what is read or written in one piece.

    >>> [len(run) for run in in_runs([10, 20, 1 << 20, 30], lambda size: size)]
    [2, 1, 1]
    """
    small: list[Item] = []
    for item in items:
        if nbytes(item) < GATHERED_BYTES:
            small.append(item)
            continue
        yield from in_batches(small, nbytes, 1 << SHARED_BITS)
        small = []
        yield [item]
    yield from in_batches(small, nbytes, 1 << SHARED_BITS)


def _in_order(
    function: Callable[[Task], Result], todo: Sequence[Task], executor: Executor, most: int, attempts: int
) -> Iterator[Result]:
    is_local = are_local(executor)
    stop = Stop() if are_threads(executor) else None
    waiting = iter(todo)
    running: deque[Any] = deque()

    def submit(task: Task) -> Any:
        call: tuple[Any, ...] = (function, task) if is_local else (_PackedTask(function, task),)
        if stop is not None:
            call = (stop.guard, *call)
        with _interrupts_blocked(), _translate_worker_crash():
            return executor.submit(*call)

    try:
        for number, task in enumerate(todo):
            running.extend(map(submit, islice(waiting, most - len(running))))
            for _ in range(attempts - 1):
                try:
                    running[0].result()
                    break
                except BurnstoreError:
                    raise
                except Exception:  # a worker that was killed, or a connection to it that was lost
                    running[0] = submit(task)
            with _translate_worker_crash(f"task {number + 1} of {len(todo)}", attempts):
                result = running[0].result()
            yield result
            running.popleft()
    finally:
        if stop is not None:
            stop.set()  # a task that waits for the network need not wait any longer
        for future in running:
            future.cancel()
        for future in running:
            with suppress(Exception):  # the first failure is being raised already
                if not future.cancelled():
                    future.result()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in the block: a process that starts in it inherits that, and prints no traceback."""
    import signal

    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _PackedTask:
    """A task that stays pickled until a worker runs it."""

    __slots__ = ("_packed",)

    def __init__(self, function: Callable[[Any], Any], task: Any) -> None:
        self._packed = pickle.dumps((function, task))

    def __call__(self) -> Any:
        function, task = pickle.loads(self._packed)  # what `__init__` packed, as every executor of processes does
        return function(task)


@contextmanager
def _translate_worker_crash(task: str = "", attempts: int = 1) -> Iterator[None]:
    try:
        yield
    except BurnstoreError:
        raise
    except Exception as error:
        if attempts > 1:
            raise BurnstoreError(
                f"{task} was lost {attempts} times: {type(error).__name__}",
                hint="give the workers more memory, or run the job again: what is done is kept",
            ) from error
        if type(error).__name__ in ("BrokenProcessPool", "KilledWorker"):
            raise BurnstoreError(
                "a worker ended in the middle of its task", hint="use fewer workers if it was killed for its memory"
            ) from error
        raise


@contextmanager
def _executor(workers: Workers, tasks: int) -> Iterator[tuple[Executor, int]]:
    """Open an executor; yield it with the number of tasks to submit at a time."""
    if workers is None:
        from concurrent.futures import ThreadPoolExecutor  # not at import: most programs never need it

        count = min(TASK_THREADS, tasks)
        with ThreadPoolExecutor(count, thread_name_prefix="burnstore") as threads:
            yield threads, 2 * count
    elif isinstance(workers, int):
        count = min(workers, tasks)
        with _processes(count) as processes:
            yield processes, 2 * count
    elif hasattr(workers, "get_executor"):  # a Dask client: its own submit takes equal tasks for the same one
        yield workers.get_executor(pure=False), MAX_SUBMITTED
    else:
        yield workers, MAX_SUBMITTED


@contextmanager
def persistent(workers: Workers) -> Iterator[Workers]:
    """Keep the same workers for several runs in a block: processes start once, and end with it.

    >>> with persistent(None) as workers:
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
    return ProcessPoolExecutor(count, mp_context=context, initializer=_ignore_interrupts)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which reaches the whole process group: the parent handles it and stops the workers."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


class MemoryBudget:
    """A number of bytes from which threads reserve what they need; they wait while too little is left.

    A reservation larger than the budget is granted while no other exists. Each process that unpickles a budget has its
    own.
    """

    @classmethod
    def for_each_of(cls, held: Iterable[int]) -> MemoryBudget:
        """Return a budget for tensors that hold this many bytes each: the largest of them fits, with some megabytes."""
        return cls(max(held, default=0) + SPARE_BYTES)

    def __init__(self, nbytes: int) -> None:
        self._total = self._free = nbytes
        self._spare: list[Array] = []  # buffers for the next caller, as far as the budget has room for them
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, nbytes: int) -> Iterator[None]:
        """Reserve this many bytes while the block runs."""
        with self._changed:
            self._take(nbytes)
        try:
            yield
        finally:
            self._release(nbytes)

    @contextmanager
    def buffer(self, nbytes: int) -> Iterator[Array]:
        """Lend a buffer of this size while the block runs; buffers are reused, as fresh memory costs time."""
        with self._changed:
            found = next((place for place, spare in enumerate(self._spare) if len(spare) == nbytes), None)
            buffer = None if found is None else self._spare.pop(found)
            self._take(nbytes)
        if buffer is None:
            buffer = np.empty(nbytes, np.uint8)
        try:
            yield buffer
        finally:
            self._release(nbytes, buffer)

    def _take(self, nbytes: int) -> None:
        self._changed.wait_for(lambda: nbytes <= self._free or self._free == self._total)
        self._free -= nbytes
        self._trim()

    def _release(self, nbytes: int, *buffers: Array) -> None:
        with self._changed:
            self._free += nbytes
            self._spare += buffers
            self._trim()
            self._changed.notify_all()

    def _trim(self) -> None:
        while self._spare and sum(map(len, self._spare)) > self._free:
            self._spare.pop(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryBudget, (self._total,)
