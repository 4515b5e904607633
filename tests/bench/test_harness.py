"""The benchmark harness tells the truth: right ratios, missed bars said to be missed, failures shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import toy_contestants as toy
from benchmarks import report
from benchmarks.harness import (
    ROOT,
    Bar,
    Case,
    CaseResult,
    Contestant,
    Input,
    Outcome,
    Runnable,
    Scale,
    Session,
    Unit,
    at_most,
    at_most_more,
    below,
    faster,
    judge,
)

pytestmark = pytest.mark.slow("benchmarks")


def contestant(name: str, run: Runnable = toy.value, **params: object) -> Contestant:
    return Contestant(name, run, params=params)


def run(directory: Path, *contestants: Contestant, bar: Bar | None = None, repeats: int = 2) -> CaseResult:
    return Session(directory).run(Case("toy", "a toy", contestants, bar, repeats))


def outcome(name: str, *values: float) -> Outcome:
    return Outcome(name, list(values), checked=True)


def test_sleepers_get_the_ratio_of_their_sleeps(tmp_path: Path) -> None:
    slow, quick = contestant("slow", toy.sleep, seconds=0.3), contestant("quick", toy.sleep, seconds=0.1)
    result = run(tmp_path, quick, slow, bar=faster(2, "quick", "slow"), repeats=3)
    assert [len(o.values) for o in result.outcomes] == [3, 3]  # the checking round is not counted
    assert all(o.checked and o.error is None for o in result.outcomes)
    assert result.verdict.status == "met"
    assert result.verdict.ratio == pytest.approx(3, rel=0.3)
    assert result.verdict.ratio_per_round == pytest.approx(3, rel=0.3)


def test_every_run_has_a_process_of_its_own(tmp_path: Path) -> None:
    result = run(tmp_path, contestant("a", toy.process_id), contestant("b", toy.process_id), repeats=3)
    ids = [value for o in result.outcomes for value in o.values]
    assert len(set(ids)) == 6
    assert os.getpid() not in ids


def test_contestants_take_turns(tmp_path: Path) -> None:
    said: list[str] = []
    case = Case("toy", "a toy", (contestant("a", value=1.0), contestant("b", value=1.0)), None, 2)
    Session(tmp_path, say=said.append).run(case)
    assert [line.split()[-1] for line in said] == ["a", "b"] * 3


def test_a_missed_bar_is_reported_as_missed_and_by_how_much(tmp_path: Path) -> None:
    result = run(tmp_path, contestant("us", value=1.3), contestant("peer", value=1.0), bar=at_most(1.15, "us", "peer"))
    assert result.verdict.status == "missed"
    assert result.verdict.used == pytest.approx(1.3 / 1.15)
    assert "MISSED by 13%" in report.table([result])
    assert "MISSED by 13%" in report.summary([result])


@pytest.mark.parametrize(
    ("run_", "message"),
    [
        (toy.fails, "RuntimeError: the disk is on fire"),
        (toy.dies, "the process ended with status 3"),
        (toy.fails_after_the_check, "RuntimeError: only when counted"),
        (toy.wrong, "AssertionError: 2 + 2 is not 5"),
        (toy.unchecked, "it never checked its answer"),
        (toy.unmeasured, "it measured nothing"),
    ],
)
def test_a_contestant_that_fails_is_reported_and_leaves_no_verdict(
    tmp_path: Path, run_: Runnable, message: str
) -> None:
    result = run(
        tmp_path, contestant("us", run_, value=1.0), contestant("peer", value=1.0), bar=at_most(1, "us", "peer")
    )
    broken, peer = result.outcomes
    assert result.failed
    assert result.verdict.status == "unknown"
    assert result.verdict.why == "no result from us"
    assert broken.median is None
    assert message in (broken.error or "")
    assert peer.values == [1.0, 1.0]  # the others still run
    text = report.table([result])
    assert "FAILED" in text
    assert message in text


def test_a_failed_onlooker_is_named_beside_the_verdict(tmp_path: Path) -> None:
    bar = at_most(1, "us", "peer")
    result = run(
        tmp_path, contestant("us", value=1.0), contestant("peer", value=1.0), contestant("x", toy.fails), bar=bar
    )
    assert result.verdict.status == "met"
    assert "failed: x" in report.verdict_text(result)


def test_the_json_holds_every_value_and_every_error(tmp_path: Path) -> None:
    bar = at_most(2, "us", "peer")
    result = run(
        tmp_path, contestant("us", value=3.0), contestant("peer", value=2.0), contestant("x", toy.fails), bar=bar
    )
    document = json.loads(json.dumps(report.as_json([result], Scale(quick=True), directory=tmp_path)))
    assert document["quick"] is True
    assert {"python", "cores", "filesystem", "packages"} <= set(document["machine"])
    (case,) = document["cases"]
    assert case["name"] == "toy"
    assert case["bar"] == "us <= 2 x peer"
    assert case["verdict"]["status"] == "met"
    assert case["verdict"]["ratio"] == pytest.approx(1.5)
    us, peer, broken = case["contestants"]
    assert us["values"] == [3.0, 3.0]
    assert (peer["median"], peer["min"], peer["max"]) == (2.0, 2.0, 2.0)
    assert broken["median"] is None
    assert "on fire" in broken["error"]
    assert "Traceback" in broken["traceback"]


def test_an_input_is_made_once_and_shared(tmp_path: Path) -> None:
    made = Input("number", toy.make_number)
    session = Session(tmp_path)
    cases = [Case(n, n, (Contestant("a", toy.reads, made), Contestant("b", toy.reads, made)), None, 2) for n in "xy"]
    values = {v for case in cases for o in session.run(case).outcomes for v in o.values}
    assert len(values) == 1


def test_an_input_that_cannot_be_made_fails_only_those_that_need_it(tmp_path: Path) -> None:
    needy = Contestant("needy", toy.reads, Input("nothing", toy.make_nothing))
    result = run(tmp_path, needy, contestant("other", value=1.0))
    assert "nothing could not be made: OSError: no space left" in (result.outcomes[0].error or "")
    assert result.outcomes[1].error is None


def test_two_inputs_of_one_name_are_refused(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.run(Case("x", "x", (Contestant("a", toy.reads, Input("n", toy.make_number)),), None, 1))
    with pytest.raises(ValueError, match="two different inputs"):
        session.run(Case("y", "y", (Contestant("a", toy.reads, Input("n", toy.make_nothing)),), None, 1))


def test_what_a_run_writes_is_deleted(tmp_path: Path) -> None:
    result = run(tmp_path, contestant("writer", toy.writes), repeats=3)
    assert not result.failed
    assert [path.name for path in tmp_path.iterdir()] == ["bytecode"]


def test_bytecode_is_cached_for_every_contestant_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    result = run(tmp_path, contestant("a", toy.bytecode_is_cached))
    assert result.outcomes[0].error is None
    assert list((tmp_path / "bytecode").rglob("toy_contestants.*.pyc"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak can be reset only on Linux")
def test_memory_counts_the_body_and_not_an_earlier_peak(tmp_path: Path) -> None:
    case = Case(
        "memory",
        "memory",
        (contestant("a", toy.allocates, before=200_000_000, bytes=50_000_000),),
        below(60_000_000, "a"),
        1,
        Unit.BYTES,
    )
    result = Session(tmp_path).run(case)
    assert result.outcomes[0].median == pytest.approx(50_000_000, rel=0.1)
    assert result.verdict.status == "met"


@pytest.mark.parametrize(
    ("bar", "mine", "theirs", "status", "allowed"),
    [
        (at_most(1.5, "us", "peer"), 1.5, 1.0, "met", 1.5),
        (at_most(1.5, "us", "peer"), 1.6, 1.0, "missed", 1.5),
        (faster(4, "us", "peer"), 1.0, 4.0, "met", 1.0),
        (faster(4, "us", "peer"), 1.0, 3.0, "missed", 0.75),
        (at_most_more(0.02, "us", "peer"), 0.11, 0.1, "met", 0.12),
        (at_most_more(0.02, "us", "peer"), 0.13, 0.1, "missed", 0.12),
        (below(0.2, "us"), 0.2, 9.0, "met", 0.2),
        (below(0.2, "us"), 0.3, 9.0, "missed", 0.2),
    ],
)
def test_bars(bar: Bar, mine: float, theirs: float, status: str, allowed: float) -> None:
    verdict = judge(bar, (outcome("us", mine), outcome("peer", theirs)))
    assert verdict.status == status
    assert verdict.allowed == pytest.approx(allowed)


def test_medians_and_per_round_ratios_that_disagree_are_called_contested() -> None:
    verdict = judge(at_most(1, "us", "peer"), (outcome("us", 1, 2, 3), outcome("peer", 1.9, 2.9, 0.1)))
    assert verdict.status == "missed"  # medians: 2 against 1.9
    assert verdict.used_per_round is not None
    assert verdict.used_per_round < 1
    assert verdict.contested


def test_a_bar_about_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="none of"):
        Case("x", "x", (contestant("us", value=1.0),), at_most(1, "us", "them"), 1)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.5, Unit.SECONDS, "1.5 s"),
        (0.0042, Unit.SECONDS, "4.2 ms"),
        (3.2e-6, Unit.SECONDS, "3.2 us"),
        (0.0, Unit.SECONDS, "0 s"),
        (2_500_000_000, Unit.BYTES, "2.5 GB"),
        (134_217_728, Unit.BYTES, "134 MB"),
    ],
)
def test_quantities(value: float, unit: Unit, text: str) -> None:
    assert report.quantity(value, unit) == text


def test_the_command_lists_every_case_with_its_bar() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "--list"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "open-views: burnstore >= 100 x faster than safetensors" in done.stdout
    assert "save-memory-file: burnstore <= 198 MB" in done.stdout
    assert "import: burnstore <= numpy + 20 ms" in done.stdout
