"""For all tests: two tiers, no leaked descriptors, two sizes of Hypothesis, a browser, children of the same burnstore.

Tiers: ``--tier quick`` runs what everybody runs before a commit, ``--tier rest`` exactly what quick leaves out, and
without the option everything runs. Two markers decide:

``@pytest.mark.slow("why")``
    The test belongs to the rest.
``@pytest.mark.matrix(every=8)``
    Of the parametrised cases of each function, every eighth is quick and the others belong to the rest; a function with
    fewer cases stays whole. Which cases are quick depends only on the function's name and the order of its cases.

What a tier leaves out is counted and printed at the end of the run.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A worker of pytest-xdist has one core; threads of torch and of NumPy's BLAS in each of them would compete for it.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import burnstore  # noqa: E402  (NumPy counts its threads when it is imported)

settings.register_profile("quick", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", parent=settings.get_profile("quick"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# --- tiers ------------------------------------------------------------------------------------------------------------

_LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    explained = "quick: what make test runs; rest: what quick leaves out; all: both (default)"
    parser.addoption("--tier", choices=("quick", "rest", "all"), default="all", help=explained)


# Tests name their own servers: a bucket's key or an offline hub of this machine must not decide what they see, nor what
# another test set (those of transformers switch the hub off).
_STORE_SETTINGS = ("HF_", "TRANSFORMERS_OFFLINE", "AWS_", "AZURE_", "GOOGLE_")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow(reason): not part of `make test`; `make test-rest` runs it")
    config.addinivalue_line("markers", "matrix(every): one case in so many is part of `make test`, the others are slow")
    config.stash[_LEFT_OUT] = {}
    for name in [name for name in os.environ if name.startswith(_STORE_SETTINGS)]:
        del os.environ[name]
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Workers(), "counts-of-workers")


@pytest.hookimpl(tryfirst=True)  # before -k and -m: which cases of a matrix are quick does not depend on them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("tier")
    if tier == "all":
        return
    reasons = _reasons_to_be_slow(items)
    if tier == "quick":
        left_out = [item for item in items if item in reasons]
        counts = Counter(reasons.values())
    else:
        left_out = [item for item in items if item not in reasons]
        counts = Counter({"part of make test": len(left_out)})
    config.stash[_LEFT_OUT] = dict(counts)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=left_out)


def _reasons_to_be_slow(items: list[pytest.Item]) -> dict[pytest.Item, str]:
    """The items that are not quick, each with the reason."""
    reasons: dict[pytest.Item, str] = {}
    matrices: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if slow := item.get_closest_marker("slow"):
            (reasons[item],) = slow.args
        elif item.get_closest_marker("matrix"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    for function, cases in matrices.items():
        every: int = cases[0].get_closest_marker("matrix").kwargs["every"]
        if len(cases) < every:
            continue
        quick = set(cases[zlib.crc32(function.encode()) % every :: every])
        reasons.update({case: "cases of a matrix" for case in cases if case not in quick})
    return reasons


def pytest_collection_finish() -> None:
    """Let collections pass over what is there before the first test: modules of torch, and thousands of items."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[_LEFT_OUT]


class _Workers:
    """With pytest-xdist, workers collect; each collects everything, so one of their counts is enough."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    counts, tier = config.stash[_LEFT_OUT], config.getoption("tier")
    if counts:
        shown = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items(), key=lambda each: -each[1]))
        other = "make test-rest" if tier == "quick" else "make test"
        terminalreporter.write_line(f"tier {tier}: left {sum(counts.values()):,} to `{other}`: {shown}")


# --- leaks ------------------------------------------------------------------------------------------------------------

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
        dropped = ("COV_", "PYTEST_", *_STORE_SETTINGS)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
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


# --- a browser --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium of the system, headless, driven by Selenium. Without it tests are skipped; in CI that is a failure."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        reason = "no Chromium with chromedriver; .ci/install-tools installs them on Debian"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1200"):
        options.add_argument(f"--{argument}")
    options.add_argument("--force-prefers-reduced-motion")  # a click does not wait for a page that scrolls smoothly
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield started
    finally:
        started.quit()


@pytest.fixture(autouse=True)
def _modules_of_a_test_go_with_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget modules that a test wrote and imported: the next one has another ``net.py`` in another folder."""
    before = set(sys.modules)
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(written):
            del sys.modules[name]
