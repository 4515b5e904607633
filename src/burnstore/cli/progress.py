"""Show progress on stderr: a bar in a terminal, occasional lines elsewhere, nothing for short work."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

from ..progress import Progress, current_phase
from .text import can_show, escape, shorten, size, terminal_columns, width

_WIDEST_LABEL = 32
_BAR_CELLS = 24
_LEAST_BAR_CELLS = 4
_LONGEST_SHOWN = 100 * 3600  # A longer remaining time is a useless guess.
_SETTLED = 1.0  # seconds of work before its speed means something
_HIDE_CURSOR, _SHOW_CURSOR, _CLEAR_LINE = "\x1b[?25l", "\x1b[?25h", "\r\x1b[2K"


@contextmanager
def shown_progress(label: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Yield a progress callback; the bar disappears when the block ends, however it ends."""
    with ProgressDisplay(quiet=quiet) as display:
        yield partial(display.show, label)


class ProgressDisplay:
    """Show the progress of work that takes a moment; stdout is never touched.

    The clock starts with the first report, and each phase has its own, so that neither opening files nor another phase
    enters the speed. For several jobs in sequence, `clear` ends one, so that the caller can print, and begins the next.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._face: _Face | None = None if quiet or sys.stderr is None else _Bar() if _draws_bars() else _Lines()
        self._phase: str | None = None
        self._spent: dict[str, tuple[int, float]] = {}  # the bytes and seconds of each phase
        self._last: tuple[int, float] = (0, 0.0)
        self._drawn = time.monotonic()
        self._visible = False

    def show(self, label: str, done: int, total: int) -> None:
        """Show the bytes done and the total."""
        if self._face is None:
            return
        now, phase = time.monotonic(), current_phase()
        if phase == self._phase and done >= self._last[0]:
            nbytes, seconds = self._spent.get(phase, (0, 0.0))
            self._spent[phase] = (nbytes + done - self._last[0], seconds + now - self._last[1])
        self._phase, self._last = phase, (done, now)
        if now - self._drawn < (self._face.between if self._visible else self._face.patience):
            return
        self._drawn, self._visible = now, True  # before drawing, which Ctrl-C may interrupt
        label = shorten(escape(label), _WIDEST_LABEL) + (f": {phase}" if phase else "")
        text = _describe(done, total, *self._spent.get(phase, (0, 0.0)))
        try:
            self._face.draw(label, done / total if total else 0.0, text)
        except (OSError, ValueError):  # A closed stderr must not stop the work.
            self._face = None

    def clear(self) -> None:
        """End the job and remove its bar from the screen."""
        if self._face is not None and self._visible:
            with suppress(OSError, ValueError):
                self._face.clear()
        self._phase, self._visible, self._drawn = None, False, time.monotonic()
        self._spent.clear()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class _Face(Protocol):
    """A way to show progress, with the seconds before the first update and between updates."""

    patience: float
    between: float

    def draw(self, label: str, part: float, text: str) -> None: ...

    def clear(self) -> None: ...


class _Lines:
    patience = between = 5.0

    def draw(self, label: str, part: float, text: str) -> None:
        print(f"burnstore: {label}: {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Do nothing: lines stay."""


class _Bar:
    patience = 0.5
    between = 0.1

    def __init__(self) -> None:
        self._drawn = False
        self._cells = ("━", "─") if can_show("━─", sys.stderr) else ("#", "-")

    def draw(self, label: str, part: float, text: str) -> None:
        columns = terminal_columns(sys.stderr) - 1
        cells = min(_BAR_CELLS, columns - width(label) - width(text) - 2)
        if cells >= _LEAST_BAR_CELLS:
            full = round(min(max(part, 0.0), 1.0) * cells)
            line = f"{label} {self._cells[0] * full}{self._cells[1] * (cells - full)} {text}"
        else:  # no room for a bar
            line = shorten(f"{label} {text}", columns)
        sys.stderr.write(f"{'' if self._drawn else _HIDE_CURSOR}{_CLEAR_LINE}{line}")
        self._drawn = True
        sys.stderr.flush()

    def clear(self) -> None:
        sys.stderr.write(f"{_SHOW_CURSOR}{_CLEAR_LINE}")
        sys.stderr.flush()
        self._drawn = False


def _draws_bars() -> bool:
    if not sys.stderr.isatty():
        return False
    return "WT_SESSION" in os.environ if os.name == "nt" else os.environ.get("TERM", "") not in ("", "dumb")


def _describe(done: int, total: int, measured: int, seconds: float) -> str:
    """Return how much is done, the speed of the bytes measured, and the remaining time at that speed.

    >>> _describe(1 << 30, 3 << 30, 1 << 30, 2.0)
    '1.0 of 3.0 GiB, 0.54 GB/s, 4 s left'
    >>> _describe(1 << 30, 3 << 30, 0, 2.0)
    '1.0 of 3.0 GiB'
    """
    whole = size(total)
    unit = whole.rpartition(" ")[2]
    text = f"{size(done).removesuffix(f' {unit}')} of {whole}"
    if measured <= 0 or seconds < _SETTLED:
        return text
    text += f", {measured / 1e9 / seconds:.2f} GB/s"
    left = (total - done) * seconds / measured
    return text if done >= total or left > _LONGEST_SHOWN else f"{text}, {_duration(left)} left"


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
