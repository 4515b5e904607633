"""docs/conformance.md is true: the tests that it names exist, its words are known, its counts are right."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import burnstore.testing

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "conformance.md"
STATUSES = ("tested", "differs", "n/a", "later")
LATER = {"PyTorch files"}
# How many rows each checklist has: one for each test that the original's sheets list. None may be dropped.
ROWS = {
    "12.1": 54, "12.2": 157, "12.3": 129, "12.4": 138, "12.5": 11,
    "T.1": 14, "T.2": 70, "T.3": 49, "T.4": 39, "T.5": 4, "T.6": 42, "battery": 13,
}  # fmt: skip
LEAST_TESTED = 0.95

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the pages are not part of the wheel")


@dataclass(frozen=True)
class Row:
    checklist: str
    place: str
    name: str
    checks: str
    status: str
    answer: str

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`(tests/[^`]+)`", self.answer)


@cache
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@cache
def rows() -> tuple[Row, ...]:
    found = []
    for line in text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[0] != "checklist" and not set("".join(cells)) <= set("-"):
            found.append(Row(cells[0].split()[0], cells[0], *cells[1:]))
    return tuple(found)


@cache
def functions_of(path: Path) -> dict[str, set[str]]:
    """The functions of a file by class; those of the module under the empty name."""
    found: dict[str, set[str]] = {"": set()}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found[""].add(node.name)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


@cache
def shipped() -> set[str]:
    """The tests that classes inherit from `burnstore.testing`."""
    folder = Path(burnstore.testing.__file__).parent
    return set().union(*(names for path in folder.glob("*.py") for names in functions_of(path).values()))


def exists(test: str) -> bool:
    file, *inside = test.split("::")
    path = ROOT / file
    if not path.is_file() or not 1 <= len(inside) <= 2 or not inside[-1].startswith("test_"):
        return False
    functions = functions_of(path)
    if len(inside) == 1:
        return inside[0] in functions[""]
    return inside[0] in functions and inside[1] in functions[inside[0]] | shipped()


def test_every_line_of_every_checklist_has_a_row() -> None:
    assert Counter(row.checklist for row in rows()) == ROWS
    twice = [key for key, count in Counter((row.place, row.name) for row in rows()).items() if count > 1]
    assert twice == []


def test_every_row_says_what_it_checks_and_its_status_is_a_known_word() -> None:
    for row in rows():
        assert row.name and row.checks and row.answer, row
        assert row.status in STATUSES, row


def test_every_named_test_exists() -> None:
    named = {test for row in rows() for test in row.tests}
    assert len(named) > 100
    assert sorted(test for test in named if not exists(test)) == []


def test_a_test_that_does_not_exist_would_be_noticed() -> None:
    here = "tests/docs/test_conformance.py"
    assert exists(f"{here}::test_every_named_test_exists")
    assert exists("tests/formats/test_burnpack_conformance.py::TestBurnpack::test_a_name_comes_back")
    assert not exists(f"{here}::test_that_is_not_there")
    assert not exists(f"{here}::exists")
    assert not exists("tests/docs/nothing.py::test_every_named_test_exists")
    assert not exists("tests/formats/test_burnpack_conformance.py::TestBurnpack::test_that_is_not_there")
    assert not exists("tests/formats/test_burnpack_conformance.py::TestNothing::test_a_name_comes_back")


def test_each_status_comes_with_what_it_needs() -> None:
    for row in rows():
        if row.status == "tested":
            assert row.tests and row.answer == f"`{row.tests[0]}`", row
        elif row.status == "differs":
            assert row.answer.partition("`: ")[2], f"{row.name} differs and does not say why"
        elif row.status == "n/a":
            assert not row.tests and len(row.answer) > 20, row
        else:
            assert row.answer in LATER, row


def test_the_counts_at_the_top_are_right() -> None:
    stated = dict(re.findall(r"^\| ([\w.]+) \| (\d+ \| \d+ \| \d+ \| \d+ \| \d+) \|$", text(), re.MULTILINE))
    counts = {**{name: [row for row in rows() if row.checklist == name] for name in ROWS}, "all": list(rows())}
    assert list(stated) == list(counts)
    for name, counted in counts.items():
        by_status = Counter(row.status for row in counted)
        assert stated[name] == " | ".join(map(str, (len(counted), *(by_status[status] for status in STATUSES)))), name


def test_almost_everything_that_applies_is_held_by_a_test() -> None:
    applicable = [row for row in rows() if row.status in ("tested", "differs")]
    held = [row for row in applicable if row.tests]
    assert len(held) >= LEAST_TESTED * len(applicable)
    assert f"Of {len(applicable)} rows that apply, {len(held)} are held by a test." in text()
