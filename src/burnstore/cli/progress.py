"""Progress on stderr: a bar in a terminal, a line now and then elsewhere, nothing of work that is soon done."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from ..progress import Progress
from .text import escape, shorten, size

_WIDEST_LABEL = 32


@contextmanager
def shown_progress(label: str, *, quiet: bool = False) -> Iterator[Progress]:
    """What a job tells of its progress while the block runs; the bar is gone when the block ends, however it ends."""
    with ProgressDisplay(quiet=quiet) as display:
        yield partial(display.show, label)


class ProgressDisplay:
    """Shows how far the work is, once it takes a moment; stdout is never touched.

    For jobs one after another: `clear` ends one, so that something can be printed, and begins the next.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._face: _Face | None = None if quiet or sys.stderr is None else _Bar() if _draws_bars() else _Lines()
        self._begun = self._drawn = time.monotonic()
        self._visible = False

    def show(self, label: str, done: int, total: int) -> None:
        """So many bytes are done, and so many there are in all."""
        if self._face is None:
            return
        now = time.monotonic()
        if now - self._drawn < (self._face.between if self._visible else self._face.patience):
            return
        self._drawn, self._visible = now, True  # before it is: Ctrl-C may come in the middle of drawing
        label = shorten(escape(label), _WIDEST_LABEL)
        try:
            self._face.draw(label, done, total, _told(done, total, now - self._begun))
        except ImportError:  # without rich there are lines
            self._face = _Lines()
        except (OSError, ValueError):  # nobody sees it: no reason for the work to fail
            self._face = None

    def clear(self) -> None:
        """The job is over: what is on the screen of it goes."""
        if self._face is not None and self._visible:
            with suppress(OSError, ValueError):
                self._face.clear()
        self._begun = self._drawn = time.monotonic()
        self._visible = False

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class _Face(Protocol):
    """A way to show it, with the seconds before the first time and between two times."""

    patience: float
    between: float

    def draw(self, label: str, done: int, total: int, told: str) -> None: ...

    def clear(self) -> None: ...


class _Lines:
    patience = between = 5.0

    def draw(self, label: str, done: int, total: int, told: str) -> None:
        print(f"burnstore: {label}: {told}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Lines stay."""


class _Bar:
    patience = 0.5
    between = 0.1

    def __init__(self) -> None:
        self._bars: Any = None
        self._task: Any = None

    def draw(self, label: str, done: int, total: int, told: str) -> None:
        if self._bars is None:
            self._bars = _rich_bars()
            self._task = self._bars.add_task(label, told=told)
            self._bars.start()
        self._bars.update(self._task, description=label, completed=done, total=total, told=told)
        self._bars.refresh()

    def clear(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _rich_bars() -> Any:
    from rich.console import Console  # not at import: only work that takes a while, in a terminal, needs it
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[told]}", markup=False),
        console=Console(file=sys.stderr),
        auto_refresh=False,  # no thread: drawn when there is something new
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _draws_bars() -> bool:
    return sys.stderr.isatty() and (os.name == "nt" or os.environ.get("TERM", "") not in ("", "dumb"))


def _told(done: int, total: int, seconds: float) -> str:
    """How far it is, how fast it goes, and what is left at that speed.

    >>> _told(1 << 30, 3 << 30, 2.0)
    '1.0 of 3.0 GiB, 0.54 GB/s, 4 s left'
    """
    whole = size(total)
    part = size(done).removesuffix(f" {whole.rpartition(' ')[2]}")
    if done <= 0 or seconds <= 0:
        return f"{part} of {whole}"
    told = f"{part} of {whole}, {done / 1e9 / seconds:.2f} GB/s"
    return told if done >= total else f"{told}, {_duration((total - done) * seconds / done)} left"


def _duration(seconds: float) -> str:
    """A time to wait, for people.

    >>> _duration(0.4), _duration(75), _duration(7320)
    ('1 s', '1 min 15 s', '2 h 2 min')
    """
    whole = max(round(seconds), 1)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
