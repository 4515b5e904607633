"""A stand-in for the `os` module that records calls, fails chosen ones, and shortens writes."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

KINDS = [
    *("open", "stat", "fstat", "readlink", "fchown", "fchmod", "listxattr", "getxattr", "setxattr", "removexattr"),
    *("posix_fallocate", "writev", "fsync", "close", "replace", "rename", "link", "unlink"),
]


@dataclass
class FaultyFS:
    """Fail the `at`-th call of `kind` (from 0) with `error`, and all later ones too when `sticky`."""

    kind: str = ""
    at: int = 0
    error: int = 0
    sticky: bool = False
    longest_write: int = 0
    late: bool = False  # do the work, then report the error, as a network file system can
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    hits: int = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in KINDS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            index = self.counts[name]
            self.counts[name] += 1
            fails = name == self.kind and (index == self.at or (self.sticky and index > self.at))
            if fails:
                self.hits += 1
                self.calls.append((name, args, kwargs, None))
                if self.late or name == "close":  # a failed close releases the descriptor all the same
                    real(*args, **kwargs)
                raise OSError(self.error, os.strerror(self.error))
            if name == "writev":
                args = (args[0], [bytes(view) for view in args[1]])
                if self.longest_write:
                    args = (args[0], [b"".join(args[1])[: self.longest_write]])
            if name == "fsync":
                result = None  # the model needs no disk, and the real one is slow
            else:
                try:
                    result = real(*args, **kwargs)
                except OSError:
                    self.calls.append((name, args, kwargs, None))
                    raise
            self.calls.append((name, args, kwargs, result))
            return result

        return call
