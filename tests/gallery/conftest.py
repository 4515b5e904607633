"""The program of the gallery; nothing is collected here unless asked for by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from interop.program import UnavailableError, built

HERE = Path(__file__).resolve().parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    start = config.invocation_params.dir
    asked = [(start / argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


class Gallery:
    """The program, which is built now if it is not yet."""

    def __init__(self, binary: Path) -> None:
        self.binary = binary

    def run(self, *words: object) -> str:
        """Run the program; its complaint, empty where it has none."""
        done = subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode == 0) == (not done.stderr), done.stderr
        return done.stderr


@pytest.fixture(scope="session")
def gallery() -> Gallery:
    try:
        return Gallery(built("gallery", "gallery"))
    except UnavailableError as reason:
        pytest.skip(str(reason))
