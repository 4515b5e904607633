"""Cases, bars and rounds: who is measured against whom, and what came out.

The rules that make the numbers worth reading: every run is a fresh process; the contestants take turns within a round,
so that a busy minute hits all of them; files that are read are in the page cache before; what earlier runs wrote is
deleted and synced before the next one starts; the first round only checks the answers and is not counted; a contestant
that raises, gives no number or never checks its answer is reported as failed and takes the verdict with it. Bytecode is
cached for all alike, in the session's own directory: with PYTHONDONTWRITEBYTECODE set, a checkout would be compiled
anew in every process while its peers, compiled when they were installed, would not.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.child import Job

Runnable = Callable[[Job], None]
"""A contestant's function, or one that makes an input file: importable by name, since it runs in another process."""

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT = 1800.0


class Unit(Enum):
    """What a case measures."""

    SECONDS = "s"
    BYTES = "B"


class Rule(Enum):
    """How a bar turns the peer's number into what the subject is allowed."""

    TIMES = "at most so many times the peer"
    FASTER = "so many times faster than the peer"
    PLUS = "at most so much more than the peer"
    ABSOLUTE = "at most so much"


@dataclass(frozen=True, slots=True)
class Bar:
    """What the subject has to reach; made by `at_most`, `faster`, `at_most_more` and `below`."""

    rule: Rule
    subject: str
    limit: float
    peer: str | None = None

    def allowed(self, peer: float) -> float:
        """The largest number with which the subject still meets the bar."""
        match self.rule:
            case Rule.TIMES:
                return self.limit * peer
            case Rule.FASTER:
                return peer / self.limit
            case Rule.PLUS:
                return peer + self.limit
            case Rule.ABSOLUTE:
                return self.limit


def at_most(limit: float, subject: str, peer: str) -> Bar:
    """The subject takes at most ``limit`` times what the peer takes."""
    return Bar(Rule.TIMES, subject, limit, peer)


def faster(limit: float, subject: str, peer: str) -> Bar:
    """The subject is at least ``limit`` times faster than the peer."""
    return Bar(Rule.FASTER, subject, limit, peer)


def at_most_more(limit: float, subject: str, peer: str) -> Bar:
    """The subject takes at most ``limit`` (in the case's unit) more than the peer."""
    return Bar(Rule.PLUS, subject, limit, peer)


def below(limit: float, subject: str) -> Bar:
    """The subject takes at most ``limit``, in the case's unit."""
    return Bar(Rule.ABSOLUTE, subject, limit)


@dataclass(frozen=True, slots=True)
class Input:
    """A file made once per session, by ``make`` writing to ``job.fresh(name)``, and shared by all that name it."""

    name: str
    make: Runnable
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One function under one name; ``needs`` is the file that it finds as ``job.input``."""

    name: str
    run: Runnable
    needs: Input | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """A question with a bar, and the contestants that answer it; a ``bar`` of None only reports."""

    name: str
    what: str
    contestants: tuple[Contestant, ...]
    bar: Bar | None
    repeats: int
    unit: Unit = Unit.SECONDS

    def __post_init__(self) -> None:
        names = [c.name for c in self.contestants]
        if len(set(names)) != len(names):
            raise ValueError(f"case {self.name!r} has two contestants of one name: {names}")
        if self.bar is not None:
            for name in (self.bar.subject, self.bar.peer):
                if name is not None and name not in names:
                    raise ValueError(f"the bar of case {self.name!r} speaks of {name!r}, which is none of {names}")


@dataclass(frozen=True, slots=True)
class Scale:
    """How large and how often: the real thing by default, a smoke test with ``--quick``."""

    quick: bool = False
    repeats: int | None = None

    @property
    def big_bytes(self) -> int:
        """Bytes of the big model."""
        return (64 << 20) if self.quick else (1 << 30)

    @property
    def short(self) -> int:
        """Repeats of a case that takes milliseconds."""
        return self.repeats or (2 if self.quick else 7)

    @property
    def long(self) -> int:
        """Repeats of a case that moves the big model."""
        return self.repeats or (2 if self.quick else 5)

    def tensors(self, count: int) -> int:
        """A number of tensors, a tenth of it in a smoke test."""
        return count // 10 if self.quick else count


@dataclass(slots=True)
class Outcome:
    """What one contestant did: a value per counted round, or the error that ended it."""

    name: str
    values: list[float] = field(default_factory=list)
    checked: bool = False
    error: str | None = None
    traceback: str | None = None

    @property
    def median(self) -> float | None:
        """The median of the counted rounds; None for a contestant that failed in any round."""
        return statistics.median(self.values) if self.values and self.error is None else None

    def fail(self, error: str, traceback: str | None = None) -> None:
        """Take this contestant out, and say why."""
        self.error, self.traceback = error, traceback


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the subject stands to its bar; numbers are None where a contestant failed.

    ``used`` is the subject's median over what the bar allows: 1.13 means missed by 13 %. ``ratio`` is the number that
    the bar speaks of (times slower, times faster, or subject over peer), from the medians; the ``_per_round`` ones are
    medians over the rounds of that round's own ratio, which a machine that slows down half-way disturbs less.
    """

    status: str
    used: float | None = None
    used_per_round: float | None = None
    allowed: float | None = None
    ratio: float | None = None
    ratio_per_round: float | None = None
    why: str | None = None

    @property
    def contested(self) -> bool:
        """Whether medians and per-round ratios fall on different sides of the bar: run again on a quieter machine."""
        if self.used is None or self.used_per_round is None:
            return False
        return (self.used <= 1) != (self.used_per_round <= 1)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case, what its contestants did, and the verdict."""

    case: Case
    outcomes: tuple[Outcome, ...]
    verdict: Verdict
    load: float | None

    @property
    def failed(self) -> bool:
        """Whether any contestant failed."""
        return any(o.error is not None for o in self.outcomes)


def judge(bar: Bar | None, outcomes: tuple[Outcome, ...]) -> Verdict:
    """Hold the outcomes against the bar."""
    if bar is None:
        return Verdict("no bar")
    by_name = {o.name: o for o in outcomes}
    subject = by_name[bar.subject]
    peer = by_name[bar.peer] if bar.peer is not None else None
    broken = [o.name for o in (subject, peer) if o is not None and o.median is None]
    if broken:
        return Verdict("unknown", why=f"no result from {' and '.join(broken)}")
    peer_values = peer.values if peer is not None else [0.0] * len(subject.values)
    mine, theirs = statistics.median(subject.values), statistics.median(peer_values)
    allowed = bar.allowed(theirs)
    rounds = list(zip(subject.values, peer_values, strict=True))
    used = _over(mine, allowed)
    return Verdict(
        status="met" if used <= 1 else "missed",
        used=used,
        used_per_round=statistics.median(_over(m, bar.allowed(t)) for m, t in rounds),
        allowed=allowed,
        ratio=_ratio(bar, mine, theirs),
        ratio_per_round=statistics.median(_ratio(bar, m, t) for m, t in rounds) if peer is not None else None,
    )


def _ratio(bar: Bar, mine: float, theirs: float) -> float:
    match bar.rule:
        case Rule.FASTER:
            return _over(theirs, mine)
        case Rule.ABSOLUTE:
            return _over(mine, bar.limit)
        case _:
            return _over(mine, theirs)


def _over(a: float, b: float) -> float:
    if b:
        return a / b
    return 0.0 if not a else float("inf")


class Session:
    """A working directory with the inputs made so far, and the means to run cases in it."""

    def __init__(self, directory: Path, *, say: Callable[[str], None] | None = None) -> None:
        self.directory = directory
        self._say = say or (lambda _: None)
        self._inputs: dict[str, tuple[Input, tuple[Path | None, str | None]]] = {}
        self._runs = 0

    def run(self, case: Case) -> CaseResult:
        """Run a case: the checking round, then the counted ones, the contestants taking turns."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        outcomes = tuple(Outcome(c.name) for c in case.contestants)
        for turn in range(case.repeats + 1):
            checking = turn == 0
            for contestant, outcome in zip(case.contestants, outcomes, strict=True):
                if outcome.error is None:
                    self._say(f"{case.name}: {'check' if checking else f'{turn}/{case.repeats}'} {contestant.name}")
                    self._once(contestant, outcome, checking=checking)
        return CaseResult(case, outcomes, judge(case.bar, outcomes), load)

    def _once(self, contestant: Contestant, outcome: Outcome, *, checking: bool) -> None:
        path: Path | None = None
        if contestant.needs is not None:
            path, error = self._input(contestant.needs)
            if path is None:
                outcome.fail(f"its input {contestant.needs.name} could not be made: {error}")
                return
        scratch = self._scratch()
        try:
            if hasattr(os, "sync"):
                os.sync()
            if path is not None:
                _warm(path)
            result = self._child(contestant.run, contestant.params, path, scratch, checking=checking)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if "error" in result:
            outcome.fail(result["error"], result.get("traceback"))
        elif result["value"] is None:
            outcome.fail("it measured nothing (Job.timed, Job.memory or Job.record)")
        elif not checking:
            outcome.values.append(result["value"])
        elif result["checked"]:
            outcome.checked = True
        else:
            outcome.fail("it never checked its answer (Job.check)")

    def _input(self, wanted: Input) -> tuple[Path | None, str | None]:
        """The input's path, or None and why it could not be made; made at most once, in a process of its own."""
        if wanted.name in self._inputs:
            known, answer = self._inputs[wanted.name]
            if known != wanted:
                raise ValueError(f"two different inputs are called {wanted.name!r}")
            return answer
        self._say(f"making {wanted.name}")
        scratch = self._scratch()
        params = {**wanted.params, "name": wanted.name}
        result = self._child(wanted.make, params, None, scratch, checking=False)
        path = scratch / wanted.name
        if "error" in result:
            answer = None, result["error"]
        elif not path.exists():
            answer = None, f"{wanted.make.__name__} did not write it"
        else:
            answer = path, None
        self._inputs[wanted.name] = wanted, answer
        return answer

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        return environment | {"PYTHONPYCACHEPREFIX": str(self.directory / "bytecode")}

    def _scratch(self) -> Path:
        self._runs += 1
        path = self.directory / f"run-{self._runs:05d}"
        path.mkdir()
        return path

    def _child(
        self, function: Runnable, params: Mapping[str, Any], path: Path | None, scratch: Path, *, checking: bool
    ) -> dict[str, Any]:
        control = self.directory / f"{scratch.name}.control"
        control.mkdir()
        job, result = control / "job.json", control / "result.json"
        spec = {
            "module": function.__module__,
            "function": function.__name__,
            "params": dict(params),
            "input": str(path) if path is not None else None,
            "scratch": str(scratch),
            "result": str(result),
            "checking": checking,
            "sys_path": [entry for entry in sys.path if entry],
        }
        try:
            return self._answer(spec, job, result)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {_TIMEOUT:.0f} s"}
        finally:
            shutil.rmtree(control, ignore_errors=True)

    def _answer(self, spec: dict[str, Any], job: Path, result: Path) -> dict[str, Any]:
        """What the job came to, run in a process of its own."""
        job.write_text(json.dumps(spec), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.child", str(job)],
            cwd=ROOT,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
        )
        if not result.exists():
            return {"error": f"the process ended with status {done.returncode}: {done.stderr.strip()[-500:]}"}
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return answer


def _warm(path: Path) -> None:
    """Read a file once, so that it is in the page cache."""
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
