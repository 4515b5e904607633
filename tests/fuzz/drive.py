"""Run numbered cases on several processes until their number or the time is reached."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Judge = Callable[[int, int], str]
"""Runs the case of a seed and a number, and returns what came of it. Exceptions are foreign."""

_SHARE = 500  # cases that a process takes at a time
_MOST_SHOWN = 20
_SLOW = 1.0


@dataclass
class Outcomes:
    """What came of some cases: how many of each kind, and each foreign exception with its number."""

    counts: Counter[str] = field(default_factory=Counter)
    foreign: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """The number of cases."""
        return sum(self.counts.values()) + len(self.foreign)

    def add(self, other: Outcomes) -> None:
        """Take over the outcomes of other cases."""
        self.counts += other.counts
        self.foreign += other.foreign


def outcomes(judge: Judge, seed: int, numbers: range, until: float = float("inf")) -> Outcomes:
    """Run the cases in this process. A case that takes more than a second counts as a foreign exception."""
    found = Outcomes()
    for number in numbers:
        if time.monotonic() > until:
            break
        start = time.process_time()
        try:
            outcome = judge(seed, number)
        except Exception as error:  # what the command is for
            found.foreign.append(f"case {number} of seed {seed}: {type(error).__name__}: {error}")
            continue
        if time.process_time() - start > _SLOW and number >= numbers.start + 8:  # the first ones make their files
            found.foreign.append(f"case {number} of seed {seed}: more than a second")
        else:
            found.counts[outcome] += 1
    return found


def drive(judge: Judge, *, cases: int, seed: int, minutes: float, jobs: int) -> Outcomes:
    """Run the cases on some processes."""
    until = time.monotonic() + 60 * minutes
    shares = [(judge, seed, range(at, min(at + _SHARE, cases)), until) for at in range(0, cases, _SHARE)]
    total = Outcomes()
    for found in _results(shares, jobs):
        for line in found.foreign[: max(_MOST_SHOWN - len(total.foreign), 0)]:
            print(line, flush=True)
        total.add(found)
    return total


def _results(shares: list[tuple[Judge, int, range, float]], jobs: int) -> Iterator[Outcomes]:
    if jobs == 1:
        yield from (outcomes(*share) for share in shares)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_one_share, shares)


def _one_share(share: tuple[Judge, int, range, float]) -> Outcomes:
    return outcomes(*share)


def main(description: str | None, judges: dict[str, Judge]) -> int:
    """Run the command: print the rate and what came of the cases of each subject; 1 if an exception was foreign."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=(*judges, "all"), default="all")
    parser.add_argument("--cases", type=int, default=1_000_000, help="of each subject")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20, help="for each subject, at most")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, help="run one case and let its exception through")
    options = parser.parse_args()
    failed = 0
    for subject in judges if options.subject == "all" else [options.subject]:
        if options.only is not None:
            print(subject, judges[subject](options.seed, options.only))
            continue
        start = time.monotonic()
        found = drive(
            judges[subject], cases=options.cases, seed=options.seed, minutes=options.minutes, jobs=options.jobs
        )
        seconds = time.monotonic() - start
        shown = ", ".join(f"{outcome}: {count}" for outcome, count in found.counts.most_common())
        print(
            f"{subject}: {found.cases} cases of seed {options.seed} in {seconds:.0f} s, "
            f"{found.cases / max(seconds, 1e-9):.0f} per second; {len(found.foreign)} foreign exceptions; {shown}",
            flush=True,
        )
        failed += len(found.foreign)
    return 1 if failed else 0


def run(description: str | None, judges: dict[str, Judge]) -> None:
    """Run the command and exit."""
    sys.exit(main(description, judges))
