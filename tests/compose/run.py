"""Run compositions, and print those of which the result is not what the reference expects."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np

import burnstore as bs

from .cases import Case, convert_case, load_case, save_case
from .reference import ZEROED
from .terms import Array, Expected, Named, Refused, kind_of, same
from .verbs import bool_case, cli_case, diff_case, list_case, mapping_case, merge_case, parity_case, pickle_case

VERBS: list[tuple[Callable[[Random], Case], int]] = [
    (load_case, 36),
    (save_case, 16),
    (convert_case, 26),
    (cli_case, 4),
    (merge_case, 4),
    (list_case, 2),
    (parity_case, 4),
    (diff_case, 5),
    (pickle_case, 4),
    (mapping_case, 3),
    (bool_case, 2),
]
"""What is drawn, and how often."""

REFUSALS = (bs.BurnstoreError, TypeError, ValueError)


def draw(seed: int, number: int) -> Case:
    """Return the case of this number."""
    random = Random(f"{seed}:{number}")
    makers, weights = zip(*VERBS, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return random.choices(makers, weights)[0](random)


@dataclass
class Tally:
    """The cases that were run, by verdict, and the violations."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the cases of another range."""
        self.counts += other.counts
        self.violations += other.violations


def judge(case: Case, folder: str) -> tuple[str, str | None]:
    """Return the verdict of a case, and the violation if burnstore did something else than the reference expects."""
    expected: Expected | Refused
    try:
        expected = case.expect()
    except Refused as refused:
        expected = refused
    except Exception as error:
        return "refused", f"the reference itself failed: {error!r}\n{_where(error)}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = case.act(folder)
    except REFUSALS as error:
        if not isinstance(expected, Refused) and expected.loose is None:
            return "right", f"refused what is right: {type(error).__name__}: {error}\n{_where(error)}"
        if isinstance(error, KeyError) and not isinstance(error, bs.BurnstoreError):
            return "refused", f"a foreign error: {error!r}\n{_where(error)}"
        if "unchanged" in case.text:
            target, before = case.text["unchanged"]
            changed = difference(target.read(target.model), before)
            if changed is not None:
                return "refused", f"the refused load changed the model: {changed}"
        return "refused", None
    except Exception as error:
        return "refused", f"a foreign error: {error!r}\n{_where(error)}"
    if isinstance(expected, Refused):
        return "refused", f"should be refused: {expected}; said: {found.said!r}"
    loose = case.text.get("options", {}).get("cast") is not None or "cast from" in expected.noted
    wrong = difference(found.tensors, expected.tensors, any_nan=loose)
    if wrong is not None:
        return "right", f"wrong: {wrong}; said: {found.said!r}"
    if found.result_layout not in ("any", found.layout):
        return "right", f"the file states the layout {found.layout}, and the result {found.result_layout}"
    if found.left_out is not None and expected.left_out is not None and found.left_out != expected.left_out:
        return "right", f"left out {found.left_out}, expected {expected.left_out}"
    if found.states_layout and expected.layout not in ("any", found.layout):
        return "right", f"the file states the layout {found.layout}, expected {expected.layout}"
    for piece in expected.noted:
        if piece not in found.said and repr(piece)[1:-1] not in found.said:
            return "right", f"not noted: {piece!r}; said: {found.said!r}"
    if case.verb in ("load", "save", "convert") and ZEROED in found.said and ZEROED not in expected.noted:
        return "right", f"noted for nothing: {found.said!r}"
    if found.unused is not None and expected.unused is not None and found.unused != expected.unused:
        return "right", f"unused is {found.unused}, expected {expected.unused}"
    return "noted" if expected.noted else "right", None


def difference(found: Named, expected: Named, *, any_nan: bool = False) -> str | None:
    """Return how two sets of named arrays differ; None if they do not."""
    for name in sorted(set(found) | set(expected)):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} should not be there"
        ours, theirs = found[name], expected[name]
        if not same(ours, theirs) and not (any_nan and _same_numbers(ours, theirs)):
            shown = f"{theirs.dtype}{theirs.shape} {theirs.tolist()}"
            return f"{name}: {ours.dtype}{ours.shape} {ours.tolist()}, expected {shown}"
    return None


def _same_numbers(one: Array, other: Array) -> bool:
    """Return whether two arrays of floats are the same, one NaN as good as another."""
    if one.dtype != other.dtype or one.shape != other.shape or kind_of(one.dtype) != "f":
        return False
    wide, broad = one.astype(np.float64), other.astype(np.float64)
    both = np.isnan(wide) & np.isnan(broad)
    return bool(np.where(both, True, (wide == broad) & (np.signbit(wide) == np.signbit(broad))).all())


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return "\n".join(f"    {frame.filename.rpartition('/src/')[2]}:{frame.lineno} {frame.line}" for frame in frames)


def run(seed: int, first: int, cases: int, *, most: int = 1 << 30, only: str | None = None) -> Tally:
    """Run cases of a seed, up to so many violations."""
    tally = Tally()
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        for number in range(first, first + cases):
            case = draw(seed, number)
            if only is not None and case.verb != only:
                continue
            verdict, violation = judge(case, folder)
            tally.counts[f"{case.verb} {verdict}"] += 1
            if violation is not None:
                tally.violations.append((number, report(case, number, violation)))
                if len(tally.violations) >= most:
                    break
    return tally


def run_on(jobs: int, seed: int, first: int, cases: int, *, most: int = 1 << 30, only: str | None = None) -> Tally:
    """Run cases of a seed in several processes; their number has no influence on the cases and verdicts."""
    last = first + cases
    ranges = [(seed, start, min(RANGE, last - start)) for start in range(first, last, RANGE)]
    tally = Tally()
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(ranges) or 1), _one_thread) as pool:
        for part in pool.imap(partial(_run_range, most=most, only=only), ranges):
            tally.add(part)
            if len(tally.violations) >= most:
                pool.terminate()
                break
    return tally


RANGE = 250
"""How many cases a process takes at a time."""


def _run_range(cases: tuple[int, int, int], *, most: int, only: str | None) -> Tally:
    return run(*cases, most=most, only=only)


def _one_thread() -> None:
    """Keep torch to one thread in each process."""
    import torch

    torch.set_num_threads(1)


def _memory() -> str | None:
    """Return a folder in memory, where the system has one."""
    import os

    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def report(case: Case, number: int, violation: str, width: int = 1000) -> str:
    """Return a violation with everything that is needed to understand it."""
    lines = [f"case {number}: {case.verb}: {violation}"]
    lines += [f"    {name}: {str(value)[:width]}" for name, value in case.text.items() if name != "unchanged"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run random compositions against the reference.")
    parser.add_argument("--cases", type=int, default=2000, help="the number of cases")
    parser.add_argument(
        "--seed", type=int, default=1, help="the seed of all cases; a case depends on it and its number"
    )
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--most", type=int, default=20, help="stop after this number of violations")
    parser.add_argument("--only", help="run cases of this verb only")
    parser.add_argument("--jobs", type=int, default=1, help="the number of processes")
    arguments = parser.parse_args()
    started = time.monotonic()
    numbers = (arguments.seed, arguments.first, arguments.cases)
    if arguments.jobs > 1:
        tally = run_on(arguments.jobs, *numbers, most=arguments.most, only=arguments.only)
    else:
        tally = run(*numbers, most=arguments.most, only=arguments.only)
    for _, text in tally.violations:
        print(text)
    total = sum(tally.counts.values())
    seconds = time.monotonic() - started
    verdicts = ", ".join(f"{name} {count:,}" for name, count in sorted(tally.counts.items()))
    print(f"seed {arguments.seed}: {total:,} cases in {seconds:.0f} s ({total / seconds:.0f} a second): {verdicts}")
    print(f"{total:,} cases, {len(tally.violations)} violations")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
