"""``burnstore diff``: compare two files, tensor by tensor."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ..jobs.diff.diff import diff
from ..jobs.diff.result import STATUSES, Diff, TensorDiff
from .arguments import add_options
from .errors import FOUND, JOB_ERRORS, OK, fail
from .options import add_like, add_pipeline_options, like_from, pipeline_from
from .progress import shown_progress
from .table import Column, render
from .text import Screen, counted, dtype_label, escape, figure, print_json, shape_label, shorten

_MOST_ENTRIES_ON_SCREEN = 24

DESCRIPTION = """\
Compare two files of tensors of any formats: which tensors are equal, moved (the same bytes under another name),
changed and by how much, of another dtype or shape, added and removed. If one file has PyTorch's layout and the other
Burn's, both are compared in Burn's.
"""

EXAMPLES = """\
examples:
  burnstore diff before.bpk after.bpk
  burnstore diff model.pt model.bpk --like net:Net           across layouts, by the class Net in ./net.py
  burnstore diff model.safetensors half.safetensors --ignore-dtype --relative-tolerance 0.005
  burnstore diff a.bpk b.bpk --filter '^encoder\\.' --limit 10
  burnstore diff a.bpk b.bpk --json | jq '.tensors[] | select(.status == "changed") | .difference.max_abs'

exit codes:
  0  equal, or within the tolerance
  1  different, or --filter matched no tensor, or a file stores data without a name, which cannot be compared
  2  an error: a file that cannot be read, layouts that cannot be compared, or wrong arguments

Tensors are equal if their bytes are: NaN equals NaN of the same bits, 0.0 and -0.0 differ (0 ulp). DIFFERING counts the
values that are not equal. MAX ABS, MAX ULP (in steps from one float to the next), REL L2 (of the difference, over the
first) and COSINE cover the pairs of finite values. Metadata that differs is shown and does not count.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("first", metavar="A", help="a file of tensors, an index of shards or a folder with one")
    parser.add_argument("second", metavar="B", help="the file to compare with")
    parser.add_argument("--tolerance", type=_distance, metavar="X", help="values within this distance count as equal")
    parser.add_argument(
        "--relative-tolerance", type=_distance, metavar="X", help="the same, relative to the larger of the two values"
    )
    parser.add_argument(
        "--ignore-dtype", action="store_true", help="tensors of different dtypes are equal if their values are"
    )
    add_like(parser)
    add_pipeline_options(parser, "rename", "rules", "layout", "keep_layout")
    add_options(parser, "filter", "limit", "json", "jobs", "quiet")


def run(arguments: argparse.Namespace) -> int:
    """Compare, and print the differences."""
    try:
        with shown_progress(os.path.basename(arguments.second), quiet=arguments.quiet) as progress:
            found = diff(
                arguments.first,
                arguments.second,
                tolerance=arguments.tolerance,
                relative_tolerance=arguments.relative_tolerance,
                ignore_dtype=arguments.ignore_dtype,
                like=like_from(arguments),
                pipeline=pipeline_from(arguments),
                executor=arguments.jobs,
                progress=progress,
            )
    except JOB_ERRORS as error:
        return fail(error, arguments.first)
    if arguments.json:
        print_json(found.to_dict())
    else:
        for line in _lines(found, arguments, Screen.of_stdout()):
            print(line)
    if arguments.filter is not None and not found.tensors:
        sys.stdout.flush()
        print(f"burnstore: --filter {escape(arguments.filter.pattern)} matches no tensor", file=sys.stderr)
        return FOUND
    return OK if found.is_equal else FOUND


def _distance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def _lines(found: Diff, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    yield screen.paint(f"{escape(found.first)} -> {escape(found.second)}", "1")
    yield f"  {_summary(found)}"
    if found.layout is not None:
        yield f"  compared in {found.layout.capitalize()}'s layout"
    yield from (f"  {screen.paint('not compared', '1;33')}: {escape(note)}" for note in found.uncompared)
    yield from (f"  note: {escape(note)}" for note in found.notes)
    yield from _other_differences(found, screen)
    shown = [tensor for tensor in found.tensors if tensor.status not in ("equal", "close")]
    shown.sort(key=lambda tensor: STATUSES.index(tensor.status))
    rows = shown[: arguments.limit]
    if rows:
        yield ""
        yield from render(_columns(rows), screen)
    if len(rows) < len(shown):
        yield screen.paint(f"({len(shown) - len(rows):,} more; --limit {arguments.limit})", "2")


def _summary(found: Diff) -> str:
    tensors = counted(len(found.tensors), "tensor")
    counts = {status: number for status, number in found.counts.items() if number}
    if not counts or (list(counts) == ["equal"] and found.is_equal):
        return f"{tensors}, all equal" if counts else tensors
    return f"{tensors}: {', '.join(f'{number:,} {status}' for status, number in counts.items())}"


def _other_differences(found: Diff, screen: Screen) -> Iterator[str]:
    """Yield the scalars and metadata that differ."""
    lines = [f"scalar {escape(name)}: {_arrow(*map(_scalar, both))}" for name, both in found.scalars.items()]
    lines += [f"metadata {escape(key)}: {_arrow(*map(_quoted, both))}" for key, both in found.metadata.items()]
    most = len(lines) if screen.columns is None else _MOST_ENTRIES_ON_SCREEN
    for line in lines[:most]:
        yield f"  {line if screen.columns is None else shorten(line, screen.columns - 2, screen.ellipsis)}"
    if len(lines) > most:
        yield screen.paint(f"  ({len(lines) - most:,} more; pipe, or --json, shows all)", "2")


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _scalar(scalar: Any) -> str:
    return "none" if scalar is None else f"{scalar.value} ({scalar.kind})"


def _quoted(text: str | None) -> str:
    return "none" if text is None else escape(text)


def _columns(rows: Sequence[TensorDiff]) -> list[Column]:
    def figures(name: str, digits: int = 4) -> list[str]:
        return [figure(getattr(row.difference, name, None), digits) for row in rows]

    return [
        Column("STATUS", [row.status for row in rows], style="1"),
        Column(
            "NAME",
            [
                _arrow(escape(row.name or ""), escape(row.new_name or ""))
                if row.status == "moved"
                else escape(row.shown_name)
                for row in rows
            ],
            least=20,
        ),
        Column("DTYPE", [_both(row.dtype, row.new_dtype, dtype_label) for row in rows], spare=8, style="36"),
        Column("SHAPE", [_both(row.shape, row.new_shape, shape_label) for row in rows], least=16),
        Column("DIFFERING", [_share(row) for row in rows], right=True, spare=5),
        Column("MAX ABS", figures("max_abs"), right=True, spare=10),
        Column("MAX ULP", figures("max_ulp"), right=True, spare=7),
        Column("REL L2", figures("rel_l2"), right=True, spare=9),
        Column("COSINE", figures("cosine", 6), right=True, spare=6),
        Column("REMARK", [_remark(row) for row in rows], least=8, spare=4),
    ]


def _both(before: Any, after: Any, shown: Any) -> str:
    """Return both values with an arrow, or one if they are equal or one is None."""
    return _arrow(*(shown(each) for each in (after if before is None else before, before if after is None else after)))


def _share(row: TensorDiff) -> str:
    return "-" if row.difference is None else f"{row.difference.differing}/{row.difference.elements}"


def _remark(row: TensorDiff) -> str:
    """Return what the figures do not show."""
    found = row.difference
    if found is None:
        return "-" if row.problem is None else escape(row.problem)
    if not found.differing:
        return "equal values"
    counts = (
        (found.nan_mismatches, "NaN on one side"),
        (found.inf_mismatches, "Inf on one side"),
        (found.nan_payloads, "NaN of other bits"),
        (found.zero_signs, "zeros of opposite sign"),
    )
    parts = [f"{count} {what}" for count, what in counts if count]
    if found.index is not None:
        parts.insert(0, f"largest at {shape_label(found.index)}")
    return ", ".join(parts)
