"""Every example in README.md and docs/ is run, and its output compared with what the page shows.

Examples are those of Python (``>>>``), and the commands (``$ burnstore ...``) in blocks that are marked as ``console``;
they run in the order of the page, in an empty folder. What a command writes to stderr is shown too, and after it
the exit code, if it is not 0, as ``(exit code 1)``.
"""

from __future__ import annotations

import contextlib
import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from burnstore.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]) if (ROOT / "docs").is_dir() else []
FENCE = re.compile(r"^```.*$", re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not PAGES, reason="the pages are not part of the wheel")


def as_python(block: re.Match[str]) -> str:
    """The commands of a block as calls, each with the output that the page shows."""
    lines = []
    for line in block[1].splitlines():
        if line.startswith("$ "):
            lines += ["", f">>> in_shell({line[2:]!r})"]
        else:
            lines.append(line or "<BLANKLINE>")
    return "\n".join([*lines, "", ""])


def in_shell(command: str) -> None:
    """Run the command line in this process; what it writes comes in its order."""
    program, *arguments = shlex.split(command)
    assert program == "burnstore", "pages show this command and no other"
    with contextlib.redirect_stderr(sys.stdout):
        code = main(arguments)
    if code:
        print(f"(exit code {code})")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_give_the_output_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = FENCE.sub("", CONSOLE.sub(as_python, page.read_text(encoding="utf-8")))
    test = doctest.DocTestParser().get_doctest(text, {"in_shell": in_shell}, page.name, str(page), 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.slow("make demo runs it, too")
def test_the_demo_runs_and_finds_everything_equal():
    command = [sys.executable, ROOT / "docs" / "demo" / "demo.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "29 tensors, all equal" in done.stdout
    assert "dangerous: imports and calls posix.system" in done.stdout
