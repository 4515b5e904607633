"""One contestant, run once in a process of its own: ``python -m benchmarks.child JOB.json``.

The job file names a function; the function gets a `Job`, prepares, measures inside ``with job.timed():`` and checks its
answer with `Job.check`. The result, or the traceback, is written as JSON to the path that the job names. This module
imports little on purpose: what it imports, a contestant no longer pays for.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class Job:
    """What a contestant is given: its input, its parameters, and the means to report one measurement."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.params: dict[str, Any] = spec["params"]
        self.checking: bool = spec["checking"]
        self.checked = False
        self.value: float | None = None
        self._input: str | None = spec["input"]
        self._scratch = Path(spec["scratch"])

    @property
    def input(self) -> Path:
        """The file that the contestant's ``needs`` made."""
        if self._input is None:
            raise LookupError("this contestant declares no input (Contestant.needs)")
        return Path(self._input)

    def fresh(self, name: str) -> Path:
        """A path that does not exist yet; whatever is written there is deleted after the run, outside the timing."""
        path = self._scratch / name
        if path.exists():
            raise FileExistsError(path)
        return path

    def record(self, value: float) -> None:
        """Report one measurement, in the unit of the case; for numbers that `timed` and `memory` cannot take."""
        if self.value is not None:
            raise RuntimeError("a contestant records one measurement per run")
        self.value = value

    @contextmanager
    def timed(self, *, per: int = 1) -> Iterator[None]:
        """Time the body, and nothing else; ``per`` divides, for a time per tensor."""
        start = time.perf_counter()
        yield
        self.record((time.perf_counter() - start) / per)

    @contextmanager
    def memory(self) -> Iterator[None]:
        """Measure by how many bytes the body raises this process's peak resident memory above where it stood."""
        before = _reset_peak()
        yield
        self.record(max(0, _peak() - before))

    def check(self, verify: Callable[[], object]) -> None:
        """Show that the answer is right; called only in the first round, which is not counted."""
        if self.checking:
            verify()
            self.checked = True


def _status(field: str) -> int | None:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _peak() -> int:
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reset_peak() -> int:
    """Forget the peak so far where the system can (Linux), so that what came before does not hide the body's own."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run one job and describe how it went; an exception is part of the description."""
    for entry in spec["sys_path"]:
        if entry not in sys.path:
            sys.path.append(entry)
    job = Job(spec)
    try:
        function = getattr(importlib.import_module(spec["module"]), spec["function"])
        function(job)
    except BaseException as error:  # reported, never hidden: the parent decides
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return {"value": job.value, "checked": job.checked, "pid": os.getpid()}


def main() -> None:
    """Read the job that the first argument names, run it, write the result where the job says."""
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    result = run(spec)
    Path(spec["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
