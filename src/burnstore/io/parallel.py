"""Parallel: one job for many pieces, done by whichever thread is free; large reads and copies run side by side.

Plain threads, made and joined within the call: nothing is imported or kept for programs that never need them, nothing
is left behind by a failure or Ctrl-C, and forked children have none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

Piece = TypeVar("Piece")

THREADS = min(4, os.cpu_count() or 1)


def for_each(job: Callable[[Piece], None], pieces: Iterable[Piece]) -> None:
    """Do a job for every piece; the first failure, of whichever thread, is raised here and ends the rest."""
    todo = list(pieces)[::-1]  # `list.pop` from the end is atomic, hence the reversal
    failures: list[Exception] = []

    def work() -> None:
        while not failures:
            try:
                piece = todo.pop()
            except IndexError:
                return  # another thread took the last one
            try:
                job(piece)
            except Exception as error:
                failures.append(error)

    helpers = []
    if THREADS > 1 and len(todo) > 1:
        from threading import Thread

        helpers = [Thread(target=work, daemon=True) for _ in range(min(THREADS, len(todo)) - 1)]
    for helper in helpers:
        helper.start()
    try:
        work()
    finally:
        todo.clear()  # on Ctrl-C nobody starts another piece
        for helper in helpers:
            helper.join()
    if failures:
        raise failures[0]
