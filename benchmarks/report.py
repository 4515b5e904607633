"""The readable table and the JSON of a run."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, CaseResult, Outcome, Rule, Scale, Unit, Verdict

_PACKAGES = ("burnstore", "numpy", "safetensors", "ml_dtypes")


def as_json(results: Sequence[CaseResult], scale: Scale, *, directory: Path) -> dict[str, Any]:
    """Everything about a run, as plain data."""
    return {
        "quick": scale.quick,
        "machine": machine(directory),
        "cases": [_case_json(result) for result in results],
    }


def machine(directory: Path) -> dict[str, Any]:
    """The facts about this machine that the numbers depend on."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory": _memory(),
        "filesystem": _filesystem(directory),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def table(results: Sequence[CaseResult]) -> str:
    """Every case with its bar, verdict and contestants, as plain text."""
    return "\n\n".join(_case_text(result) for result in results)


def summary(results: Sequence[CaseResult]) -> str:
    """One line per case."""
    width = max((len(r.case.name) for r in results), default=0)
    return "\n".join(f"{r.case.name:<{width}}  {verdict_text(r)}" for r in results)


def bar_text(bar: Bar | None, unit: Unit) -> str:
    """A bar in words."""
    if bar is None:
        return "none"
    match bar.rule:
        case Rule.TIMES:
            return f"{bar.subject} <= {bar.limit:g} x {bar.peer}"
        case Rule.FASTER:
            return f"{bar.subject} >= {bar.limit:g} x faster than {bar.peer}"
        case Rule.PLUS:
            return f"{bar.subject} <= {bar.peer} + {quantity(bar.limit, unit)}"
        case Rule.ABSOLUTE:
            return f"{bar.subject} <= {quantity(bar.limit, unit)}"


def verdict_text(result: CaseResult) -> str:
    """The verdict in words: met, missed and by how much, or why there is none."""
    verdict, unit, bar = result.verdict, result.case.unit, result.case.bar
    if verdict.used is None or verdict.allowed is None or bar is None:
        return verdict.status + (f": {verdict.why}" if verdict.why else "")
    said = f"met, {_measured(verdict, bar, unit)}"
    if verdict.status == "missed":
        said = f"MISSED by {verdict.used - 1:.0%}, {_measured(verdict, bar, unit)}"
    if verdict.contested:
        said += " (contested: the per-round ratios say otherwise)"
    others = [o.name for o in result.outcomes if o.error is not None]
    return said + (f" (failed: {', '.join(others)})" if others else "")


def quantity(value: float, unit: Unit) -> str:
    """A number with the unit that suits its size."""
    scales = (
        ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
        if unit is Unit.SECONDS
        else ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
    )
    for factor, name in scales:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {name}" if value / factor < 100 else f"{value / factor:.0f} {name}"
    return f"0 {unit.value}"


def _measured(verdict: Verdict, bar: Bar, unit: Unit) -> str:
    assert verdict.allowed is not None
    assert verdict.used is not None
    assert verdict.ratio is not None
    room = f"{quantity(verdict.used * verdict.allowed, unit)} of {quantity(verdict.allowed, unit)} allowed"
    if verdict.ratio_per_round is None:
        return room
    word = " x faster" if bar.rule is Rule.FASTER else " x"
    return f"{verdict.ratio:.3g}{word} (per round {verdict.ratio_per_round:.3g}), {room}"


def _case_text(result: CaseResult) -> str:
    case = result.case
    load = f", load {result.load:.1f}" if result.load is not None else ""
    lines = [
        f"{case.name}: {case.what}",
        f"  bar      {bar_text(case.bar, case.unit)}",
        f"  verdict  {verdict_text(result)}",
    ]
    subject = case.bar.subject if case.bar is not None else case.contestants[0].name
    base = next(o.median for o in result.outcomes if o.name == subject)
    rows = [("", "median", "min .. max", f"of {subject}")]
    rows += [_row(outcome, case.unit, base) for outcome in result.outcomes]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for name, median, spread, share in rows:
        lines.append(f"    {name:<{widths[0]}}  {median:>{widths[1]}}  {spread:<{widths[2]}}  {share}".rstrip())
    lines.append(f"    ({case.repeats} rounds{load})")
    return "\n".join(lines)


def _row(outcome: Outcome, unit: Unit, base: float | None) -> tuple[str, str, str, str]:
    if outcome.median is None:
        return outcome.name, "FAILED", (outcome.error or "no rounds").splitlines()[0], ""
    spread = f"{quantity(min(outcome.values), unit)} .. {quantity(max(outcome.values), unit)}"
    return outcome.name, quantity(outcome.median, unit), spread, f"{outcome.median / base:.3g} x" if base else ""


def _case_json(result: CaseResult) -> dict[str, Any]:
    case, verdict = result.case, result.verdict
    return {
        "name": case.name,
        "what": case.what,
        "unit": case.unit.value,
        "repeats": case.repeats,
        "load": result.load,
        "bar": bar_text(case.bar, case.unit),
        "verdict": {
            "status": verdict.status,
            "text": verdict_text(result),
            "used": verdict.used,
            "used_per_round": verdict.used_per_round,
            "allowed": verdict.allowed,
            "ratio": verdict.ratio,
            "ratio_per_round": verdict.ratio_per_round,
            "contested": verdict.contested,
            "why": verdict.why,
        },
        "contestants": [
            {
                "name": outcome.name,
                "median": outcome.median,
                "min": min(outcome.values, default=None),
                "max": max(outcome.values, default=None),
                "values": outcome.values,
                "checked": outcome.checked,
                "error": outcome.error,
                "traceback": outcome.traceback,
            }
            for outcome in result.outcomes
        ],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _filesystem(directory: Path) -> str | None:
    """The kind of filesystem that the data files lie on: a tmpfs makes every save look durable."""
    if not sys.platform.startswith("linux"):
        return None
    best, kind = "", None
    try:
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, name, *_ = line.split()
            inside = directory.resolve().is_relative_to(point)
            if inside and len(point) >= len(best):
                best, kind = point, name
    except (OSError, ValueError):
        return None
    return kind
