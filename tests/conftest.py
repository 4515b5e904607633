"""For all tests: no descriptor may leak, Hypothesis has two sizes, and children import the burnstore under test."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import burnstore

settings.register_profile("quick", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", parent=settings.get_profile("quick"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

_DESCRIPTORS = "/proc/self/fd"


def _open_descriptors() -> dict[str, str]:
    """What is open, by number and target; the listing's own descriptor is gone by the time it is asked about."""
    found = {}
    for number in os.listdir(_DESCRIPTORS):
        try:
            found[number] = os.readlink(f"{_DESCRIPTORS}/{number}")
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def _no_descriptor_leaks() -> Iterator[None]:
    """Reliability row C6: what a test opened is closed when it ends, and not only when the collector comes by."""
    if not os.path.isdir(_DESCRIPTORS):
        yield
        return
    before = _open_descriptors()
    yield
    leaked = _open_descriptors().items() - before.items()
    if leaked:  # a failing test's traceback may hold an open file in a cycle
        gc.collect()
        leaked = _open_descriptors().items() - before.items()
    assert not leaked, f"left open: {sorted(leaked)}"


@pytest.fixture(scope="session")
def spawning() -> None:
    """For tests with processes: Python's own helper, which the first one starts, holds a pipe until the end."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()


RunPython = Callable[..., str]


@pytest.fixture
def run_python() -> RunPython:
    """Run code in another process, with arguments in ``sys.argv``; what it printed, or a failure with its stderr."""

    def run(code: str, *arguments: object, python: str = sys.executable, **environment: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
        home = str(Path(burnstore.__file__).parent.parent)
        done = subprocess.run(
            [python, "-W", "error", "-c", code, *map(str, arguments)],
            env={**inherited, "PYTHONPATH": home, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(autouse=True)
def _modules_of_a_test_go_with_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget modules that a test wrote and imported: the next one has another ``net.py`` in another folder."""
    before = set(sys.modules)
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(written):
            del sys.modules[name]
