"""Start-up: what ``import burnstore``, the first open and the first line of the command cost, in bare interpreters.

A contestant's own process has imported parts of the standard library already, so these start a further, bare one.
``import`` alone can be made small by importing later; ``first-open`` counts the import and the first use together, so
that nothing falls between the two. It has no bar of its own: none was set for it.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.burnpack import make_bpk, make_safetensors
from benchmarks.child import Job
from benchmarks.harness import Case, Contestant, Input, Scale, at_most_more, below

_REPEATS = 15
_OPEN_BURNSTORE = "import burnstore; opened = burnstore.open(sys.argv[1]); count = len(opened)"
_OPEN_SAFETENSORS = "import safetensors.numpy as s; opened = s.safe_open(sys.argv[1], 'np'); count = len(opened.keys())"


def cases(scale: Scale) -> list[Case]:
    """The start-up cases."""
    repeats = scale.short if scale.quick or scale.repeats else _REPEATS
    model = Input("inspect.bpk", make_bpk, {"model": "big_model", "args": [1 << 20]})
    model_st = Input("inspect.safetensors", make_safetensors, model.params)
    return [
        Case(
            "import",
            "import in a bare interpreter",
            (
                Contestant("burnstore", import_module, params={"module": "burnstore"}),
                Contestant("numpy", import_module, params={"module": "numpy"}),
                Contestant("burnstore after numpy", import_module, params={"module": "burnstore", "first": "numpy"}),
            ),
            at_most_more(0.020, "burnstore", "numpy"),
            repeats,
        ),
        Case(
            "first-open",
            "import and open a small file (112 tensors), in a bare interpreter",
            (
                Contestant("burnstore", first_open, model, {"code": _OPEN_BURNSTORE}),
                Contestant("safetensors", first_open, model_st, {"code": _OPEN_SAFETENSORS}),
                Contestant("numpy, import only", import_module, params={"module": "numpy"}),
                Contestant("burnstore, import only", import_module, params={"module": "burnstore"}),
            ),
            None,
            repeats,
        ),
        Case(
            "cli-inspect",
            "`burnstore inspect FILE` (112 tensors) from start to the first output",
            (
                Contestant("burnstore inspect", first_output, model, {"arguments": ["-m", "burnstore", "inspect"]}),
                Contestant("python", first_output, params={"arguments": ["-c", "print(1)"]}),
                Contestant("python, numpy", first_output, params={"arguments": ["-c", "import numpy; print(1)"]}),
            ),
            below(0.200, "burnstore inspect"),
            repeats,
        ),
    ]


def import_module(job: Job) -> None:
    """Time one import inside a bare interpreter."""
    module, first = job.params["module"], job.params.get("first", "sys")
    seconds, _ = _bare(f"import {first}", f"import {module}; count = 0")
    job.record(seconds)
    job.check(lambda: None)  # an import that ended without error is the answer


def first_open(job: Job) -> None:
    """Time an import and the first open together inside a bare interpreter."""
    seconds, count = _bare("", job.params["code"], str(job.input))
    job.record(seconds)

    def verify() -> None:
        if count != 112:
            raise AssertionError(f"{count} tensors instead of 112")

    job.check(verify)


def first_output(job: Job) -> None:
    """Time a command from its start to the first byte that it prints."""
    command = [sys.executable, *job.params["arguments"]]
    if "burnstore" in command:
        command.append(str(job.input))
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        begin = process.stdout.read(1)
        elapsed = time.perf_counter() - start
        rest, errors = process.communicate()
    if process.returncode or not begin:
        said = _last_line(errors.decode(errors="replace"))
        raise RuntimeError(f"status {process.returncode}, {len(begin + rest)} bytes out: {said}")
    job.record(elapsed)
    job.check(lambda: None)  # it ended well and said something


def _bare(before: str, timed: str, *arguments: str) -> tuple[float, int]:
    """The seconds that ``timed`` takes in a bare interpreter, and the ``count`` that it leaves."""
    code = "\n".join(
        ["import sys, time", before, "start = time.perf_counter()", timed, "print(time.perf_counter() - start, count)"]
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(_last_line(done.stderr))
    seconds, count = done.stdout.split()
    return float(seconds), int(count)


def _last_line(text: str) -> str:
    """The line of a traceback that says what went wrong."""
    return (text.strip().splitlines() or ["nothing on stderr"])[-1]
