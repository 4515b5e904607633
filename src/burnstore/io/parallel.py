"""Run one function on many items in plain threads, which are started and joined within the call.

Nothing is imported or kept for programs that never need threads, and forked children have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from .sizes import IO_THREADS

Item = TypeVar("Item")


def for_each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call the function for every item; the first failure, of whichever thread, is raised here and ends the rest.

    No thread is running when this returns or raises, also on Ctrl-C.
    """
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

    helpers = []
    if IO_THREADS > 1 and len(todo) > 1:
        from threading import Thread

        helpers = [Thread(target=work, daemon=True) for _ in range(min(IO_THREADS, len(todo)) - 1)]
    for helper in helpers:
        helper.start()
    try:
        work()
    finally:
        todo.clear()  # on Ctrl-C no thread starts another item
        for helper in helpers:
            helper.join()
    if failures:
        raise failures[0]
