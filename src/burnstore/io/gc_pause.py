"""The garbage collector, kept out of where many small objects are made at once.

It runs after every few hundred new objects and looks at more and more of them, finding nothing: for 20,000 tensors that
takes as long as making them.
"""

from __future__ import annotations

import gc
from types import TracebackType


class collector_paused:  # noqa: N801  # used as a verb: with collector_paused()
    """No collection in the block, unless it was off anyway; what is not in a cycle is freed as always."""

    __slots__ = ("_was_enabled",)

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._was_enabled:
            gc.enable()
