from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from burnstore.io import atomic

SCRATCH = re.compile(r"\..+\.[0-9]+-[0-9]+\.burnstore-tmp", re.DOTALL)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()


@pytest.fixture
def no_leak() -> Iterator[None]:
    """No descriptor may be open after the test that was not open before."""
    before = open_descriptors()
    yield
    assert open_descriptors() <= before  # a thread of an earlier test may close one of its own meanwhile


@pytest.fixture
def use_os(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Give the code that saves another `os` module."""

    def use(shim: Any) -> None:
        monkeypatch.setattr(atomic, "os", shim)

    return use


@pytest.fixture
def scratch_files() -> Callable[[Path], list[str]]:
    def find(folder: Path) -> list[str]:
        return sorted(name for name in os.listdir(folder) if SCRATCH.fullmatch(name))

    return find


@pytest.fixture
def in_child() -> Callable[[Callable[[], Any]], Any]:
    """Run a function in a forked child, which may change its user, umask or limits; its result or its exception."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")

    def run(function: Callable[[], Any]) -> Any:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reader)
                try:
                    answer = (True, function())
                except BaseException as error:
                    answer = (False, error)
                with open(writer, "wb") as pipe:
                    pickle.dump(answer, pipe)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        with open(reader, "rb") as pipe:
            data = pipe.read()
        os.waitpid(pid, 0)
        assert data, "the child died"
        good, result = pickle.loads(data)
        if not good:
            raise result
        return result

    return run
