"""The tiers of the suite: quick and rest together are everything, and what is left out is counted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow("starts pytest")
SUITE = """
import pytest

def test_plain():
    pass

@pytest.mark.slow("why")
def test_slow():
    pass

@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("case", range(10))
def test_matrix(case):
    pass

@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("case", range(3))
def test_small_matrix(case):
    pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "test_suite.py").write_text(SUITE, "utf-8")
    return tmp_path


def ran(suite: Path, *options: str) -> tuple[set[str], str]:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"::(\S+) PASSED|PASSED \S+::(\S+)", done.stdout)), done.stdout


def test_quick_and_rest_are_everything_and_share_nothing(suite: Path) -> None:
    quick, said = ran(suite, "--tier", "quick")
    rest, _ = ran(suite, "--tier", "rest")
    everything, nothing_said = ran(suite)
    assert len(everything) == 15
    assert quick | rest == everything and not quick & rest
    assert len(quick) in (1 + 2 + 3, 1 + 3 + 3)
    assert f"left {len(rest)} to `make test-rest`: {len(rest) - 1} cases of a matrix, 1 why" in said
    assert "left" not in nothing_said


def test_workers_report_what_they_leave_out(suite: Path) -> None:
    _, said = ran(suite, "--tier", "quick", "-n", "2")
    assert re.search(r"tier quick: left \d+ to `make test-rest`", said)


def test_a_filter_does_not_change_which_cases_are_quick(suite: Path) -> None:
    quick, _ = ran(suite, "--tier", "quick")
    chosen, _ = ran(suite, "--tier", "quick", "-k", "test_matrix")
    assert chosen == {each for each in quick if "test_matrix" in "".join(each)}
