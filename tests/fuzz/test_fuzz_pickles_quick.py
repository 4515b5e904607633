"""The tracer of scan misses nothing that Python's unpicklers do: a few thousand random pickles of ``make fuzz``.

In a process of its own: the number of a memo entry decides how much memory Python's unpickler takes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of memory are those of POSIX")


def fuzz(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.fuzz.pickles", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-500:]
    return done.stdout


def test_the_tracer_misses_no_import_and_no_call() -> None:
    assert "3,000 pickles of seed 7: the tracer missed nothing" in fuzz("--cases", "3000", "--seed", "7")


def test_a_hole_in_the_tracer_is_found() -> None:
    assert fuzz("--holes", "--cases", "20000").count("found after") >= 7
