"""``burnstore migrate``: write what old records hold into new files, and verify it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

from ..errors import BurnstoreError, printable
from ..migration import Migration, migrate, migrate_folder
from . import ERROR, FINE, FOUND
from .text import escape, escape_controls, shorten, size, terminal_columns

_LONGEST_NAME = 40
_BAR = 24


def run(arguments: argparse.Namespace) -> int:
    """Migrate a file, or every record below a folder; the worst outcome decides the exit code."""
    bar = _Bar()
    done: list[Migration] = []
    for outcome in _outcomes(arguments, bar):
        bar.clear()
        done.append(outcome)
        if outcome.error is None:
            what = f"{outcome.kind}, {outcome.tensors} {'tensor' if outcome.tensors == 1 else 'tensors'}"
            print(
                f"{escape(outcome.source)} -> {escape(outcome.destination)}: {what}, {size(outcome.nbytes)}, verified"
            )
        else:
            _complain(outcome)
    if not done:
        print(f"no records of Burn below {escape(arguments.source)}")
        return FOUND
    failed = [each for each in done if each.error is not None]
    if len(done) > 1:
        fine = [each for each in done if each.error is None]
        total = sum(each.nbytes for each in fine)
        summary = f"{len(fine)} of {len(done)} records migrated and verified, {size(total)}"
        print(summary + (f"; {len(failed)} not, see above" if failed else ""))
    return ERROR if failed else FINE


def _outcomes(arguments: argparse.Namespace, bar: _Bar) -> Iterator[Migration]:
    wanted = {"scheduler": arguments.scheduler, "undecided": arguments.undecided, "overwrite": arguments.overwrite}
    if os.path.isdir(arguments.source):
        yield from migrate_folder(arguments.source, arguments.destination, progress=bar, **wanted)
        return
    try:
        yield migrate(
            arguments.source,
            arguments.destination,
            model=arguments.model,
            progress=lambda now, total: bar(arguments.source, now, total),
            **wanted,
        )
    except (BurnstoreError, OSError, MemoryError) as error:
        told = BurnstoreError("there is not enough memory") if isinstance(error, MemoryError) else error
        yield Migration(arguments.source, arguments.destination, error=told)


def _complain(outcome: Migration) -> None:
    error = outcome.error
    told: BurnstoreError
    if isinstance(error, BurnstoreError):
        told = error
    elif isinstance(error, FileNotFoundError):
        told = BurnstoreError("there is no such file or folder", path=str(error.filename or outcome.source))
    else:
        told = BurnstoreError(getattr(error, "strerror", None) or str(error), path=outcome.source)
    if told.path is None:
        told.path = outcome.source
    sys.stdout.flush()  # so that the two streams, seen in one place, keep their order
    for line in f"burnstore: error: {told}".split("\n"):
        print(escape_controls(line), file=sys.stderr)


class _Bar:
    """A bar on stderr: only in a terminal, only after a moment, and gone in the end."""

    def __init__(self) -> None:
        self._wanted = sys.stderr is not None and sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()
        self._visible = False

    def __call__(self, path: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._wanted or now - self._shown < (0.1 if self._visible else 0.5):
            return
        filled = _BAR * done // max(total, 1)
        name = shorten(printable(os.path.basename(path)), _LONGEST_NAME)
        line = f"{name} [{'#' * filled}{'.' * (_BAR - filled)}] {size(done)} of {size(total)}"
        print(f"\r\x1b[K{line[: terminal_columns() - 1]}", end="", file=sys.stderr, flush=True)
        self._shown, self._visible = now, True

    def clear(self) -> None:
        """Take the bar away."""
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._visible = False
