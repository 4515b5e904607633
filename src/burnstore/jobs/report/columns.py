"""Columns: a report in the form that the page's own script takes, short and quick to parse.

Tensors are columns, as the script builds its rows itself. Histograms and outliers, most of the data, are apart, a line
for each tensor: the script parses a line when its tensor comes into view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...version import __version__
from ..json_output import json_number

if TYPE_CHECKING:
    from ..diff.result import Diff
    from .profile import Profile
    from .report import Report, ReportedFile


def overview(report: Report) -> dict[str, Any]:
    """What the page shows at once."""
    return {
        "burnstore": __version__,
        "stats": report.with_stats,
        "files": [_overview_of(file) for file in report.files],
        "diff": None if report.diff is None else _diff_of(report.diff, report.files),
    }


def details(report: Report) -> Iterator[list[Any]]:
    """For every tensor of every file ``[histogram, outliers]``, in the order of the columns."""
    return (_details_of(profile) for file in report.files for profile, _ in file.outcomes)


def _overview_of(file: ReportedFile) -> dict[str, Any]:
    facts = file.inspection.to_dict()
    tensors = facts.pop("tensors")
    facts["evidence"], facts["notes"] = list(file.evidence), list(file.notes)
    facts["tensors"] = {
        **{key: [tensor[key] for tensor in tensors] for key in ("name", "shape", "elements", "nbytes", "offset")},
        "dtype": [tensor["quantization"] or tensor["dtype"] for tensor in tensors],
        "param_id": [tensor["param_id"] and tensor["param_id"]["text"] for tensor in tensors],
        "file": list(file.places) if len(set(file.places)) > 1 else [None] * len(tensors),
        "problem": [problem for _, problem in file.outcomes],
        **_figures([profile for profile, _ in file.outcomes]),
    }
    return facts


def _figures(profiles: Sequence[Profile | None]) -> dict[str, list[Any]]:
    stats = [{} if profile is None else profile.stats.to_dict() for profile in profiles]
    keys = {"min": "min", "max": "max", "mean": "mean", "std": "std"}
    keys |= {"nan": "nan_count", "inf": "inf_count", "zeros": "zero_count"}
    columns = {short: [each.get(key) for each in stats] for short, key in keys.items()}
    columns["z"] = [round(abs(p.outliers[0].z), 3) if p is not None and p.outliers else None for p in profiles]
    return columns


def _diff_of(diff: Diff, files: Sequence[ReportedFile]) -> dict[str, Any]:
    """What became of each tensor; ``before`` and ``after`` are its rows among the tensors of each file.

    There is none where the files have different layouts and the tensor was taken apart or renamed to be compared.
    """
    before, after = ({row.name: at for at, row in enumerate(file.inspection.tensors)} for file in files)
    facts = diff.to_dict()
    rows = []
    for tensor in facts.pop("tensors"):
        difference = tensor.pop("difference") or {}
        rows.append(
            {
                **tensor,
                "before": before.get(tensor["name"]),
                "after": after.get(tensor["new_name"]),
                **{key: difference.get(key) for key in ("differing", "max_abs", "max_ulp", "rel_l2", "cosine")},
            }
        )
    facts["tensors"] = {key: [row[key] for row in rows] for key in rows[0]} if rows else {"status": []}
    return facts


def _details_of(profile: Profile | None) -> list[Any]:
    if profile is None:
        return [None, []]
    histogram, outliers = profile.histogram, profile.outliers
    return [
        None if histogram is None else [histogram.first, histogram.exponent, histogram.counts],
        [[outlier.index, json_number(outlier.value), round(outlier.z, 3)] for outlier in outliers],
    ]
