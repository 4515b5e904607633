"""Progress: how far a long job is, in bytes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, cast

Progress = Callable[[int, int], None]
"""Called with the bytes done so far and the total."""


class Bar(Protocol):
    """A progress bar with the interface of tqdm."""

    def update(self, n: int, /) -> Any:
        """Add this many bytes."""

    def close(self) -> Any:
        """End the bar."""


ProgressLike = Progress | Callable[..., Bar]
"""A function of two numbers, or one that returns a bar when called with ``total``, ``unit`` and ``unit_scale``."""


@contextmanager
def progress_from(given: ProgressLike | None) -> Iterator[Progress | None]:
    """Yield the function that reports the progress of one job, None if the caller wants no reports.

    ``given`` is a function of the bytes done and the total, or makes bars as tqdm does (``tqdm.tqdm``,
    ``partial(tqdm.tqdm, desc="saving")``): a bar is made at the first report, and closed when the job ends, also after
    a failure. TypeError for anything else.

    >>> with progress_from(lambda done, total: print(done, "of", total)) as report:
    ...     report(3, 10)
    3 of 10
    """
    if given is None:
        yield None
    elif not callable(given):
        raise TypeError(
            f"progress must be a function of two numbers or a class such as tqdm, got {type(given).__name__}"
        )
    elif _makes_bars(given):
        display = _BarDisplay(cast("Callable[..., Bar]", given))
        try:
            yield display
        finally:
            display.close()
    else:
        yield cast("Progress", given)


def _makes_bars(given: Callable[..., Any]) -> bool:
    made_by = given
    while isinstance(made_by, partial):
        made_by = made_by.func
    if hasattr(made_by, "update") and hasattr(made_by, "close"):
        return True
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # many built-in functions have none
        return False
    return not _accepts(signature, 0, 0) and _accepts(signature, total=0, unit="B", unit_scale=True)


def _accepts(signature: inspect.Signature, *positional: object, **named: object) -> bool:
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


class _BarDisplay:
    """Turn positions into the steps that a bar takes; another total, or a step back, begins another bar."""

    def __init__(self, make: Callable[..., Bar]) -> None:
        self._make = make
        self._bar: Bar | None = None
        self._done = self._total = 0

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None or total != self._total or done < self._done:
            self.close()
            self._bar = self._make(total=total, unit="B", unit_scale=True)
            self._done, self._total = 0, total
        self._bar.update(done - self._done)
        self._done = done

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Advance:
    """Add up the bytes of a job's steps, and report them as one number.

    >>> advance = Advance(lambda done, total: print(done, "of", total), 10)
    >>> advance(3), advance.finish()
    3 of 10
    10 of 10
    (None, None)
    """

    __slots__ = ("_done", "_progress", "_total")

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, nbytes: int) -> None:
        """Report that this many more bytes are done."""
        self._done += nbytes
        if self._progress is not None and nbytes:
            self._progress(self._done, self._total)

    def finish(self) -> None:
        """Report what no step counted, such as a header and padding."""
        self(self._total - self._done)


_phase: ContextVar[str] = ContextVar("burnstore_phase", default="")


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Name the work that a job does in this block, such as ``"write"``, for the display of its progress.

    >>> with phase("verify"):
    ...     current_phase()
    'verify'
    """
    token = _phase.set(name)
    try:
        yield
    finally:
        _phase.reset(token)


def current_phase() -> str:
    """Return the name of the phase in which a job reports progress; empty if it has none."""
    return _phase.get()
