"""Show progress on stderr: a bar in a terminal, occasional lines elsewhere, nothing for short work."""

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
    """Yield a progress callback; the bar disappears when the block ends, however it ends."""
    with ProgressDisplay(quiet=quiet) as display:
        yield partial(display.show, label)


class ProgressDisplay:
    """Show the progress of work that takes a moment; stdout is never touched.

    For several jobs in sequence, `clear` ends one, so that the caller can print, and begins the next.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._face: _Face | None = None if quiet or sys.stderr is None else _Bar() if _draws_bars() else _Lines()
        self._begun = self._drawn = time.monotonic()
        self._visible = False

    def show(self, label: str, done: int, total: int) -> None:
        """Show the bytes done and the total."""
        if self._face is None:
            return
        now = time.monotonic()
        if now - self._drawn < (self._face.between if self._visible else self._face.patience):
            return
        self._drawn, self._visible = now, True  # before drawing, which Ctrl-C may interrupt
        label = shorten(escape(label), _WIDEST_LABEL)
        try:
            self._face.draw(label, done, total, _describe(done, total, now - self._begun))
        except ImportError:  # without rich, print lines
            self._face = _Lines()
        except (OSError, ValueError):  # A closed stderr must not stop the work.
            self._face = None

    def clear(self) -> None:
        """End the job and remove its bar from the screen."""
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
    """A way to show progress, with the seconds before the first update and between updates."""

    patience: float
    between: float

    def draw(self, label: str, done: int, total: int, text: str) -> None: ...

    def clear(self) -> None: ...


class _Lines:
    patience = between = 5.0

    def draw(self, label: str, done: int, total: int, text: str) -> None:
        print(f"burnstore: {label}: {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Do nothing: lines stay."""


class _Bar:
    patience = 0.5
    between = 0.1

    def __init__(self) -> None:
        self._bars: Any = None
        self._task: Any = None

    def draw(self, label: str, done: int, total: int, text: str) -> None:
        if self._bars is None:
            self._bars = _rich_bars()
            self._task = self._bars.add_task(label, text=text)
            self._bars.start()
        self._bars.update(self._task, description=label, completed=done, total=total, text=text)
        self._bars.refresh()

    def clear(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _rich_bars() -> Any:
    from rich.console import Console  # not at import: only long work in a terminal needs it
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}", markup=False),
        console=Console(file=sys.stderr),
        auto_refresh=False,  # no thread: drawn on updates
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _draws_bars() -> bool:
    return sys.stderr.isatty() and (os.name == "nt" or os.environ.get("TERM", "") not in ("", "dumb"))


def _describe(done: int, total: int, seconds: float) -> str:
    """Return how much is done, the speed, and the remaining time at that speed.

    >>> _describe(1 << 30, 3 << 30, 2.0)
    '1.0 of 3.0 GiB, 0.54 GB/s, 4 s left'
    """
    whole = size(total)
    part = size(done).removesuffix(f" {whole.rpartition(' ')[2]}")
    if done <= 0 or seconds <= 0:
        return f"{part} of {whole}"
    text = f"{part} of {whole}, {done / 1e9 / seconds:.2f} GB/s"
    return text if done >= total else f"{text}, {_duration((total - done) * seconds / done)} left"


def _duration(seconds: float) -> str:
    """Return a duration in readable units.

    >>> _duration(0.4), _duration(75), _duration(7320)
    ('1 s', '1 min 15 s', '2 h 2 min')
    """
    whole = max(round(seconds), 1)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
