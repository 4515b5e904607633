"""The command: ``python -m benchmarks [--quick] [--only NAME] [--json FILE] [--dir DIR] [--repeats N] [--list]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import ALL_SUBJECTS, SUBJECTS, report
from benchmarks.harness import ROOT, Case, Scale, Session

RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen cases and report; 0 whatever the bars say, 1 when a contestant failed, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="burnstore against its peers")
    parser.add_argument("--quick", action="store_true", help="small data and two rounds: a smoke test, not a result")
    parser.add_argument("--subject", action="append", metavar="NAME", help=f"one of {', '.join(ALL_SUBJECTS)}")
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose name contains this; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as well")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the data files go (default: a temporary one)")
    parser.add_argument("--repeats", type=_positive, metavar="N", help="rounds of every case")
    parser.add_argument("--list", action="store_true", help="name the cases and their bars, run nothing")
    options = parser.parse_args(arguments)

    scale = Scale(quick=options.quick, repeats=options.repeats)
    unknown = set(options.subject or ()) - set(ALL_SUBJECTS)
    if unknown:
        parser.error(f"no subject {', '.join(sorted(unknown))}")
    cases = all_cases(scale, options.subject or SUBJECTS)
    chosen = [case for case in cases if not options.only or any(part in case.name for part in options.only)]
    if not chosen:
        parser.error(f"no case is called like {options.only}")
    if options.list:
        _out("\n".join(f"{case.name}: {report.bar_text(case.bar, case.unit)}" for case in chosen))
        return 0

    with tempfile.TemporaryDirectory(prefix="burnstore-bench-", dir=options.dir) as name:
        directory = Path(name)
        session = Session(directory, say=_progress)
        results = []
        for case in chosen:
            results.append(session.run(case))
            _progress("")
            _out(report.table(results[-1:]) + "\n")
        document = report.as_json(results, scale, directory=directory)
    text = json.dumps(document, indent=1) + "\n"
    RESULTS.mkdir(exist_ok=True)
    stem = time.strftime("%Y%m%d-%H%M%S") + ("-quick" if scale.quick else "")
    (RESULTS / f"{stem}.json").write_text(text, encoding="utf-8")
    (RESULTS / f"{stem}.txt").write_text(report.table(results) + "\n", encoding="utf-8")
    if options.json is not None:
        options.json.write_text(text, encoding="utf-8")
    _out(report.summary(results))
    return 1 if any(result.failed for result in results) else 0


def all_cases(scale: Scale, subjects: Sequence[str] = SUBJECTS) -> list[Case]:
    """The cases of these subjects, in order."""
    return [case for subject in subjects for case in import_module(f"benchmarks.{subject}").cases(scale)]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
