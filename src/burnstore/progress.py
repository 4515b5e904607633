"""Progress: how far a long job is, told in bytes to whoever wants to know."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, cast

Progress = Callable[[int, int], None]
"""Called with the bytes done so far and in all."""


class Bar(Protocol):
    """A bar as tqdm's are: it is told how much was done since the last time, and when it is over."""

    def update(self, n: int, /) -> Any:
        """So many bytes more were done."""

    def close(self) -> Any:
        """No more is to come."""


ProgressLike = Progress | Callable[..., Bar]
"""A function of two numbers, or what makes a bar when it is called with ``total``, ``unit`` and ``unit_scale``."""


@contextmanager
def progress_from(given: ProgressLike | None) -> Iterator[Progress | None]:
    """What tells of the progress of one job, whatever its caller gave; None where nobody wants to know.

    ``given`` is a function of the bytes done and in all, or makes bars in the manner of tqdm (``tqdm.tqdm``,
    ``partial(tqdm.tqdm, desc="saving")``): a bar is made at the first report, and closed when the job ends, however it
    ends. TypeError for anything else.

    >>> with progress_from(lambda done, total: print(done, "of", total)) as report:
    ...     report(3, 10)
    3 of 10
    """
    if given is None:
        yield None
    elif not callable(given):
        raise TypeError(f"progress is a function of two numbers, or a class such as tqdm, not {type(given).__name__}")
    elif _makes_bars(given):
        shown = _Shown(cast("Callable[..., Bar]", given))
        try:
            yield shown
        finally:
            shown.close()
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
    except (TypeError, ValueError):  # of built-in functions Python often does not know it
        return False
    return not _takes(signature, 0, 0) and _takes(signature, total=0, unit="B", unit_scale=True)


def _takes(signature: inspect.Signature, *positional: object, **named: object) -> bool:
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


class _Shown:
    """Turns positions into the steps that a bar wants; another total, or a step back, begins another bar."""

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
        """Close the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
