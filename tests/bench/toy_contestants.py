"""Contestants for the tests of the harness, in a module of their own because each runs in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.child import Job


def sleep(job: Job) -> None:
    time.sleep(0.2)  # outside the timing: it must not be seen
    with job.timed():
        time.sleep(job.params["seconds"])
    job.check(lambda: None)


def value(job: Job) -> None:
    job.record(job.params["value"])
    job.check(lambda: None)


def process_id(job: Job) -> None:
    job.record(os.getpid())
    job.check(lambda: None)


def bytecode_is_cached(job: Job) -> None:
    job.record(1.0)
    assert not sys.dont_write_bytecode
    job.check(lambda: None)


def fails(job: Job) -> None:
    raise RuntimeError("the disk is on fire")


def dies(job: Job) -> None:
    os._exit(3)


def fails_after_the_check(job: Job) -> None:
    if not job.checking:
        raise RuntimeError("only when counted")
    value(job)


def wrong(job: Job) -> None:
    def verify() -> None:
        raise AssertionError("2 + 2 is not 5")

    job.record(1.0)
    job.check(verify)


def unchecked(job: Job) -> None:
    job.record(1.0)


def unmeasured(job: Job) -> None:
    job.check(lambda: None)


def allocates(job: Job) -> None:
    block = bytearray(job.params["before"])
    block = None  # a peak before the measurement, and gone again
    with job.memory():
        block = bytearray(job.params["bytes"])
        block[::4096] = b"x" * len(range(0, len(block), 4096))
    job.check(lambda: None)


def writes(job: Job) -> None:
    path = job.fresh("out")
    with job.timed():
        path.write_bytes(b"x" * 10)
    job.check(lambda: None)


def reads(job: Job) -> None:
    job.record(float(job.input.read_text()))
    job.check(lambda: None)


def make_number(job: Job) -> None:
    job.fresh(job.params["name"]).write_text(str(time.time_ns()))


def make_nothing(job: Job) -> None:
    raise OSError("no space left")
