"""Every case of one subject at the smallest size, each contestant once: ``python smallest.py SUBJECT FOLDER``.

One process runs all of them, since importing torch for each of a hundred contestants would take minutes; only what a
contestant costs beside that is lost. Contestants whose package is not installed are left out. What fails is printed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import child
from benchmarks.__main__ import all_cases
from benchmarks.harness import Case, CaseResult, Contestant, Scale, Session

_LAYERS = {"layers": 2}  # of a model whose size is Burn's own


@dataclass(frozen=True, slots=True)
class Smallest(Scale):
    quick: bool = True

    @property
    def big_bytes(self) -> int:
        return 1 << 20

    def tensors(self, count: int) -> int:
        return count // 100


class OneProcess(Session):
    def _answer(self, spec: dict[str, Any], job: Path, result: Path) -> dict[str, Any]:
        return child.run(spec)


def smallest(case: Case, subject: str) -> Case:
    """The checking round of a case alone; of the cases beside real Burn only what burnstore does."""
    contestants = case.contestants
    if subject == "burn":
        contestants = tuple(_shrunk(each) for each in contestants if each.name.startswith("burnstore"))
    return replace(case, contestants=contestants, bar=None, repeats=0)


def _shrunk(contestant: Contestant) -> Contestant:
    needs = contestant.needs and replace(contestant.needs, params=_LAYERS)
    return replace(contestant, needs=needs, params={**contestant.params, **_LAYERS})


def failures(result: CaseResult) -> list[str]:
    return [
        f"{result.case.name}: {outcome.name}: {outcome.traceback or outcome.error}"
        for outcome in result.outcomes
        if outcome.error is not None and not _not_installed(outcome.error)
    ]


def _not_installed(error: str) -> bool:
    return error.startswith("ModuleNotFoundError") and "burnstore" not in error and "benchmarks" not in error


if __name__ == "__main__":
    _, subject, folder = sys.argv
    session = OneProcess(Path(folder))
    found = [session.run(smallest(case, subject)) for case in all_cases(Smallest(), [subject])]
    checked = sum(outcome.checked for result in found for outcome in result.outcomes)
    failed = [line for result in found for line in failures(result)]
    print(*failed, f"{len(found)} cases, {checked} contestants checked, {len(failed)} failed", sep="\n")
    sys.exit(bool(failed) or not checked)
