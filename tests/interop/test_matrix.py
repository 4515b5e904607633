"""docs/compatibility.md says what the programs do."""

from __future__ import annotations

import pytest

from . import matrix, page
from .program import VERSIONS, UnavailableError, asked_versions, program


def test_the_page_is_made_of_what_is_noted():
    assert matrix.PAGE.read_text(encoding="utf-8") == page.rendered(matrix.seen())


def test_every_version_is_noted():
    assert list(matrix.seen()["releases"]) == list(VERSIONS)


def test_burnstore_reads_every_file_right():
    wrong = [
        (writer, model)
        for writer, models in matrix.seen()["cells"].items()
        for model, readers in models.items()
        if readers[matrix.BURNSTORE] != "="
    ]
    assert wrong == []


def test_what_the_programs_do_is_what_is_noted(tmp_path):
    try:
        for version in asked_versions():
            program(version)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert matrix.differences(matrix.seen(), matrix.observe(asked_versions(), tmp_path)) == []
