"""The Rust code that is pasted; tests/interop runs it in real Burn."""

from __future__ import annotations

import pytest

from burnstore.cli import main
from burnstore.errors import UnsupportedError
from burnstore.jobs.outline import BURN_VERSIONS, outline_snippet


@pytest.mark.parametrize("version", [*BURN_VERSIONS, "0.22.1", "0.23.0-pre.1"])
def test_the_code_is_short_and_of_the_version(version: str) -> None:
    code = outline_snippet(version)
    assert code.count("\n") < 50
    assert ("B: Backend" in code) == version.startswith(("0.20", "0.21"))
    assert "pub fn save" in code


def test_a_version_without_code_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Burn 0\.19"):
        outline_snippet("0.19")


@pytest.mark.parametrize("version", ["0.21", "0.22"])
def test_outline_prints_the_code_of_a_version(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["outline", "--rust", "--burn", version]) == 0
    assert capsys.readouterr().out == outline_snippet(version)


def test_outline_without_a_language_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["outline"]) == 2
    assert "--rust" in capsys.readouterr().err
