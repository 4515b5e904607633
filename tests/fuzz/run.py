"""Mutants of files against the oracle, on several processes; of Burnpack unless ``--format`` says otherwise.

    python -m tests.fuzz.run --mutants 5000000 --seed 1 --minutes 20 --jobs 2
    python -m tests.fuzz.run --format safetensors --mutants 1000000
    python -m tests.fuzz.run --bits                            every bit of every seed's header, flipped
    python -m tests.fuzz.run --seed 1 --only 1234              one mutant, judged without sampling
    python -m tests.fuzz.run --file tests/fuzz/crashers/x.bpk  one file, likewise

The last lines give the rate, what was opened, what was refused by which class and rule, which of the reader's `raise`
statements were never reached, and the violations. Each violation is a file in ``tests/fuzz/crashers`` (three of a kind
at most); the exit status is then 1. A mutant that takes 5 seconds, or ends its process, is a violation, too.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import hashlib
import json
import multiprocessing
import os
import queue
import re
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import burnstore

from .corpus import Corpus
from .oracle import Oracle, ViolationError
from .records_corpus import RecordsCorpus
from .records_oracle import READER_FILES as RECORD_FILES
from .records_oracle import RecordsOracle
from .safetensors_corpus import SafetensorsCorpus
from .safetensors_oracle import READER_FILES, SafetensorsOracle

CRASHERS = Path(__file__).parent / "crashers"
HARD_SECONDS = 5.0
_REPORT_SECONDS = 1.0
_PAUSE_SECONDS = 3.0
_MOST_OF_A_KIND = 3
_MOST_MEMORY = 6 << 30

_BURNPACK_FILES = ["codec/cbor.py", "quant.py"] + [
    f"formats/burnpack/{name}.py" for name in ("reader", "metadata", "descriptors", "scan", "quant_spelling", "eras")
]


@dataclass(frozen=True)
class Subject:
    """A format under test: its files, its judge, and the code whose `raise` statements shall be reached."""

    corpus: Callable[[], Corpus | SafetensorsCorpus | RecordsCorpus]
    oracle: Callable[[], Oracle]
    reader_files: list[str]
    suffix: str


SUBJECTS = {
    "burnpack": Subject(Corpus, Oracle, _BURNPACK_FILES, ".bpk"),
    "safetensors": Subject(SafetensorsCorpus, SafetensorsOracle, READER_FILES, ".safetensors"),
    "record": Subject(RecordsCorpus, RecordsOracle, RECORD_FILES, ".record"),
}


@dataclass
class Tally:
    """What was seen; tallies of several processes are added."""

    done: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: Counter[tuple[str, int]] = field(default_factory=Counter)
    violations: list[tuple[int, str, bytes]] = field(default_factory=list)
    slowest: float = 0.0
    cpu: float = 0.0

    def add(self, other: Tally) -> None:
        self.done += other.done
        self.outcomes += other.outcomes
        self.places += other.places
        self.violations += other.violations
        self.slowest = max(self.slowest, other.slowest)
        self.cpu += other.cpu


def mutant(corpus: Corpus | SafetensorsCorpus | RecordsCorpus, arguments: argparse.Namespace, index: int) -> bytes:
    return corpus.flipped(index) if arguments.bits else corpus.mutant(arguments.seed, index)


def work(
    arguments: argparse.Namespace, number: int, first: int, stop: int, deadline: float, beat: Any, reports: Any
) -> None:
    """Judge every ``jobs``-th mutant from the first on; ``beat`` always has the number of the one being judged."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    warnings.simplefilter("error")  # a file has no business making NumPy warn
    subject = SUBJECTS[arguments.format]
    corpus, oracle = subject.corpus(), subject.oracle()
    oracle.warm_up(corpus.files)
    parent, tally, reported = os.getppid(), Tally(), time.monotonic()
    for index in range(first, stop, arguments.jobs):
        beat.value = index
        data = mutant(corpus, arguments, index)
        try:
            verdict = oracle.judge(data)
        except ViolationError as violation:
            tally.violations.append((index, str(violation), data))
            tally.outcomes["violation", str(violation)[:3]] += 1
        else:
            if verdict.opened is not None:
                tally.outcomes["opened", verdict.opened] += 1
            else:
                tally.outcomes[verdict.error, verdict.rule or "-"] += 1
        tally.done += 1
        if tally.done % 64 == 0 and time.monotonic() - reported > _REPORT_SECONDS:
            tally.slowest, tally.places, oracle.places = oracle.slowest, oracle.places, Counter()
            reports.put((number, tally))
            tally, reported = Tally(), time.monotonic()
            if reported > deadline or os.getppid() != parent:  # nobody is left to report to
                break
    tally.slowest, tally.places, tally.cpu = oracle.slowest, oracle.places, time.process_time()
    reports.put((number, tally))
    reports.put((number, None))


class Job:
    """A process at work, watched: one that hangs or dies is replaced, and goes on behind the mutant that did it."""

    def __init__(self, arguments: argparse.Namespace, number: int, stop: int, deadline: float, reports: Any) -> None:
        self._settings = arguments, stop, deadline, reports
        self.number = number
        self.done = False
        self.start(arguments.first + number)

    def start(self, first: int) -> None:
        arguments, stop, deadline, reports = self._settings
        self._beat = multiprocessing.Value("q", -1, lock=False)
        self._last, self._since, self._looked = -1, time.monotonic(), time.monotonic()
        self._process = multiprocessing.Process(
            target=work, args=(arguments, self.number, first, stop, deadline, self._beat, reports), daemon=True
        )
        self._process.start()

    def stuck(self) -> tuple[int, str] | None:
        """The number of a mutant that hangs or ended the process; the process is then gone."""
        now, index = time.monotonic(), self._beat.value
        paused = now - self._looked > _PAUSE_SECONDS  # the machine slept, or somebody stopped us all
        if index != self._last or index == -1 or paused:
            self._last, self._since = index, now
        self._looked = now
        alive = self._process.is_alive()
        if alive and now - self._since < HARD_SECONDS:
            return None
        if alive:
            self._process.kill()
        self._process.join()
        if not alive and self._process.exitcode == 0:
            return None
        how = f"(b) still at work after {HARD_SECONDS:g} s" if alive else f"(a) exit status {self._process.exitcode}"
        return index, how

    def go_on_after(self, index: int) -> None:
        self.start(index + self._settings[0].jobs)


def fuzz(arguments: argparse.Namespace) -> Tally:
    corpus = SUBJECTS[arguments.format].corpus()
    stop = corpus.count_bits() if arguments.bits else sys.maxsize
    reports: Any = multiprocessing.Queue()
    started = time.monotonic()
    deadline = started + 60 * arguments.minutes
    stop = min(stop, arguments.first + arguments.mutants)
    jobs = [Job(arguments, number, stop, deadline, reports) for number in range(arguments.jobs)]
    total, shown = Tally(), started
    while not all(job.done for job in jobs):
        try:
            number, tally = reports.get(timeout=0.5)
        except queue.Empty:
            number, tally = -1, None
        if tally is not None:
            for index, message, _ in tally.violations:
                print(f"mutant {index}: {message}", flush=True)
            total.add(tally)
        elif number >= 0:
            jobs[number].done = True
        for job in jobs:
            stuck = None if job.done else job.stuck()
            if stuck is not None:
                index, how = stuck
                if index < 0:
                    raise SystemExit("a process ended before its first mutant: see above")
                print(f"mutant {index}: {how}", flush=True)
                total.add(Tally(1, Counter({("violation", how[:3]): 1})))
                total.violations.append((index, how, mutant(corpus, arguments, index)))
                job.go_on_after(index)
        if time.monotonic() - shown > arguments.every:
            shown = time.monotonic()
            rate = total.done / (shown - started)
            print(f"{total.done:>10,} mutants  {rate:,.0f}/s  {len(total.violations)} violations", flush=True)
    return total


def keep(violations: list[tuple[int, str, bytes]], suffix: str) -> list[str]:
    """Write the files that violate, a few of each kind; what was written, in words."""
    CRASHERS.mkdir(exist_ok=True)
    kinds: Counter[str] = Counter()
    lines = []
    for index, message, data in violations:
        kind = re.sub(r"\d+", "N", message)[:40]
        kinds[kind] += 1
        if kinds[kind] > _MOST_OF_A_KIND:
            continue
        path = CRASHERS / f"{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
        path.write_bytes(data)
        lines.append(f"  {path.name}  mutant {index}  {message}")
    lines += [f"  {count} of the kind {kind!r}" for kind, count in kinds.items()]
    return lines


def unreached(places: Counter[tuple[str, int]], reader_files: list[str]) -> tuple[int, list[str]]:
    """How many `raise` statements the reader has, and where those are that no mutant reached."""
    root = Path(burnstore.__file__).parent
    count, missing = 0, []
    for name in reader_files:
        path = root / name
        source = path.read_text()
        reached = {line for file, line in places if Path(file) == path}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Raise) and node.exc is not None:
                count += 1
                if not reached & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
                    missing.append(f"  {name}:{node.lineno}  {source.splitlines()[node.lineno - 1].strip()}")
    return count, missing


def report(total: Tally, seconds: float, arguments: argparse.Namespace) -> None:
    opened = sum(count for (kind, _), count in total.outcomes.items() if kind == "opened")
    violations = len(total.violations)
    what = "header bits" if arguments.bits else f"mutants of seed {arguments.seed}"
    print(
        f"{total.done:,} {what} in {seconds / 60:.1f} min on {arguments.jobs} processes, {total.done / seconds:,.0f}/s"
    )
    print(f"{total.cpu / 60:.1f} min of CPU time, {total.done / max(total.cpu, 1e-9):,.0f} mutants per CPU second")
    print(f"opened {opened:,}, refused {total.done - opened - violations:,}, violations {violations}")
    for (kind, rule), count in sorted(total.outcomes.items()):
        print(f"  {kind:20} {rule:28} {count:>10,}")
    classes: Counter[str] = Counter()
    for (kind, _), count in total.outcomes.items():
        classes[kind] += count
    print("by class: " + ", ".join(f"{kind} {count:,}" for kind, count in classes.most_common()))
    print(f"slowest: {total.slowest * 1000:.1f} ms")
    count, missing = unreached(total.places, SUBJECTS[arguments.format].reader_files)
    print(f"raise statements of the reader reached: {count - len(missing)} of {count}; not reached:")
    print("\n".join(missing))


def judge_one(data: bytes, subject: Subject) -> int:
    oracle = subject.oracle()
    oracle.warm_up(subject.corpus().files)
    try:
        print(oracle.judge(data, thorough=True))
    except ViolationError as violation:
        print(f"violation {violation}")
        if violation.__cause__ is not None:
            raise violation.__cause__ from None
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Fuzz a reader.")
    parser.add_argument("--format", choices=SUBJECTS, default="burnpack")
    parser.add_argument("--mutants", type=int, default=5_000_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant, to go on with a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--bits", action="store_true", help="flip every bit of every seed's header instead")
    parser.add_argument("--only", type=int, help="judge the mutant of this number and no other")
    parser.add_argument("--file", type=Path, help="judge this file and no other")
    parser.add_argument("--json", type=Path, help="write the counts into this file, too")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two lines of progress")
    arguments = parser.parse_args()
    subject = SUBJECTS[arguments.format]
    if arguments.file is not None:
        return judge_one(arguments.file.read_bytes(), subject)
    if arguments.only is not None:
        return judge_one(mutant(subject.corpus(), arguments, arguments.only), subject)
    started = time.monotonic()
    total = fuzz(arguments)
    seconds = time.monotonic() - started
    report(total, seconds, arguments)
    if arguments.json is not None:
        outcomes = {f"{kind} {rule}": count for (kind, rule), count in sorted(total.outcomes.items())}
        counts = {"mutants": total.done, "seconds": seconds, "cpu_seconds": total.cpu, "outcomes": outcomes}
        arguments.json.write_text(json.dumps(counts, indent=1))
    if total.violations:
        print("violations:")
        print("\n".join(keep(total.violations, subject.suffix)))
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
