"""The command that draws mutants: what it changes, and that a change is one that Python accepts."""

from __future__ import annotations

import ast
import random
from pathlib import Path

from tests.mutants import ROOMS, mutants_of, mutated

SOURCE = '''"""A docstring with 3 numbers."""

LIMIT: int = 7


class Kind:
    def check(self, value, most=2):
        if value < most and not self.done:
            raise ValueError(f"{value + 1} of {most}")
        return [each for each in value if each is None] if most else value[most - 1]
'''


def drawn(folder: Path) -> list[tuple[str, str]]:
    room = folder / "src" / "burnstore" / "room"
    room.mkdir(parents=True)
    (room / "one.py").write_text(SOURCE)
    mutants = mutants_of(["room"], folder)
    assert {mutant.function for mutant in mutants} == {None, 7}
    for mutant in mutants:
        ast.parse(mutated(SOURCE.encode(), mutant))
    return [(mutant.old, mutant.new) for mutant in mutants]


def test_comparisons_conditions_numbers_and_operators_are_changed(tmp_path: Path) -> None:
    assert drawn(tmp_path) == [
        ("7", "(8)"),
        ("2", "(3)"),
        ("value < most and not self.done", "(not (value < most and (not self.done)))"),
        ("value < most and not self.done", "(value < most or not self.done)"),
        ("value < most and not self.done", "(value < most)"),
        ("value < most", "(value <= most)"),
        ("not self.done", "(self.done)"),
        ("most", "(not most)"),
        ("each is None", "(each is not None)"),
        ("most - 1", "(most + 1)"),
        ("1", "(2)"),
    ]


def test_every_change_of_the_library_is_one_that_python_accepts() -> None:
    mutants = mutants_of(ROOMS)
    assert len(mutants) > 3000
    root = Path(__file__).resolve().parents[2]
    for mutant in random.Random(1).sample(mutants, 25):
        ast.parse(mutated((root / mutant.file).read_bytes(), mutant))
