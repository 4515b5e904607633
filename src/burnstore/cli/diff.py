"""``burnstore diff``: compare two files, tensor by tensor."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import BurnstoreError
from ..jobs.diff.diff import diff
from ..jobs.diff.result import STATUSES, Diff, TensorDiff
from ..pipeline.translation import rules_from_file
from ..tensor.data import Shape
from ..tensor.dtype import DType
from ..transforms.filter import PathFilter
from . import ERROR, FINE, FOUND
from .arguments import add_filter, add_jobs, add_json, add_limit, add_quiet
from .complaint import complain
from .progress import shown_progress
from .table import Column, render
from .target import imported, names_object
from .text import Screen, escape, shorten

_SCHEMA = 1
_MOST_TEXTS_ON_SCREEN = 24
_MOST_EXACT_DIGITS = 10  # of integers in the table; --json has every digit

DESCRIPTION = """\
Compare two files of tensors of any formats: which tensors are equal, moved (the same bytes under another name),
changed and by how much, of another dtype or shape, added and removed. Where one file has PyTorch's layout and the
other Burn's, both are compared in Burn's.
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
  1  different, or --filter matched no tensor
  2  an error: a file that cannot be read, layouts that cannot be compared, or wrong arguments

Tensors are equal if their bytes are: NaN equals NaN of the same bits, 0.0 and -0.0 differ (0 ulp). DIFFERING counts the
values that are not equal. MAX ABS, MAX ULP (in steps from one float to the next), REL L2 (of the difference, over the
first) and COSINE are over the values of which both are finite. Texts that differ are shown and do not count.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after the verb."""
    parser.add_argument("first", metavar="A", help="a file of tensors, an index of shards or a folder with one")
    parser.add_argument("second", metavar="B", help="what it is compared with")
    parser.add_argument(
        "--tolerance", type=_distance, metavar="X", help="values that are at most this far apart count as the same"
    )
    parser.add_argument(
        "--relative-tolerance", type=_distance, metavar="X", help="the same, times the larger of the two values"
    )
    parser.add_argument(
        "--ignore-dtype", action="store_true", help="tensors of other dtypes are the same if their values are"
    )
    parser.add_argument(
        "--like",
        metavar="MODULE:NAME|FILE",
        help="a model that tells the kinds of the modules, or a file that records them",
    )
    parser.add_argument(
        "--rules", metavar="FILE", help="which modules are of which kind, a line `pattern = kind` for each"
    )
    parser.add_argument("--keep-layout", action="store_true", help="compare the tensors as they are in the files")
    add_filter(parser)
    add_limit(parser)
    add_json(parser)
    add_jobs(parser)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare, and print what differs."""
    try:
        with shown_progress(os.path.basename(arguments.second), quiet=arguments.quiet) as progress:
            like = arguments.like
            found = diff(
                arguments.first,
                arguments.second,
                tolerance=arguments.tolerance,
                relative_tolerance=arguments.relative_tolerance,
                filter=None if arguments.filter is None else PathFilter().with_regex(arguments.filter),
                ignore_dtype=arguments.ignore_dtype,
                like=imported(like) if like is not None and names_object(like) else like,
                rules=None if arguments.rules is None else rules_from_file(arguments.rules),
                keep_layout=arguments.keep_layout,
                executor=arguments.jobs,
                progress=progress,
            )
    except (BurnstoreError, OSError, MemoryError) as error:
        complain(error, arguments.first)
        return ERROR
    if arguments.json:
        from burnstore import __version__

        # ASCII only: whatever the names are, no terminal acts on them.
        print(json.dumps({"burnstore": __version__, "schema": _SCHEMA, **found.to_dict()}, allow_nan=False))
    else:
        for line in _lines(found, arguments, Screen.of_stdout()):
            print(line)
    if arguments.filter is not None and not found.tensors:
        sys.stdout.flush()
        print(f"burnstore: --filter {escape(arguments.filter.pattern)} matches no tensor", file=sys.stderr)
        return FOUND
    return FINE if found.is_equal else FOUND


def _distance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a distance")
    return value


def _lines(found: Diff, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    yield screen.paint(f"{escape(found.first)} -> {escape(found.second)}", "1")
    yield f"  {_summary(found)}"
    if found.layout is not None:
        yield f"  compared in {found.layout.capitalize()}'s layout"
    yield from (f"  note: {escape(note)}" for note in found.notes)
    yield from _texts(found, screen)
    shown = [tensor for tensor in found.tensors if tensor.status not in ("equal", "close")]
    shown.sort(key=lambda tensor: STATUSES.index(tensor.status))
    rows = shown[: arguments.limit]
    if rows:
        yield ""
        yield from render(_columns(rows), screen)
    if len(rows) < len(shown):
        yield screen.paint(f"({len(shown) - len(rows):,} more; --limit {arguments.limit})", "2")


def _summary(found: Diff) -> str:
    count = len(found.tensors)
    tensors = f"{count:,} {'tensor' if count == 1 else 'tensors'}"
    counted = {status: number for status, number in found.counts.items() if number}
    if not counted or (list(counted) == ["equal"] and found.is_equal):
        return f"{tensors}, all equal" if counted else tensors
    return f"{tensors}: {', '.join(f'{number:,} {status}' for status, number in counted.items())}"


def _texts(found: Diff, screen: Screen) -> Iterator[str]:
    """The texts and scalars that differ."""
    lines = [f"scalar {escape(name)}: {_arrow(*map(_scalar, both))}" for name, both in found.scalars.items()]
    lines += [f"text {escape(key)}: {_arrow(*map(_quoted, both))}" for key, both in found.metadata.items()]
    most = len(lines) if screen.columns is None else _MOST_TEXTS_ON_SCREEN
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
        return [_figure(getattr(row.difference, name, None), digits) for row in rows]

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
        Column("DTYPE", [_both(row.dtype, row.new_dtype, _dtype) for row in rows], spare=8, style="36"),
        Column("SHAPE", [_both(row.shape, row.new_shape, _shape) for row in rows], least=16),
        Column("DIFFERING", [_share(row) for row in rows], right=True, spare=5),
        Column("MAX ABS", figures("max_abs"), right=True, spare=10),
        Column("MAX ULP", figures("max_ulp"), right=True, spare=7),
        Column("REL L2", figures("rel_l2"), right=True, spare=9),
        Column("COSINE", figures("cosine", 6), right=True, spare=6),
        Column("REMARK", [_remark(row) for row in rows], least=8, spare=4),
    ]


def _both(before: Any, after: Any, shown: Any) -> str:
    """What it was and what it is; once, where that is the same or there is only one."""
    return _arrow(*(shown(each) for each in (after if before is None else before, before if after is None else after)))


def _dtype(dtype: DType) -> str:
    return dtype.name if dtype.scheme is None else f"{dtype.name}({dtype.scheme.value})"


def _shape(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"  # without spaces, so that a row of the table can be split at them


def _share(row: TensorDiff) -> str:
    return "-" if row.difference is None else f"{row.difference.differing}/{row.difference.elements}"


def _remark(row: TensorDiff) -> str:
    """What the figures do not say."""
    found = row.difference
    if found is None:
        return "-" if row.problem is None else escape(row.problem)
    if not found.differing:
        return "same values"
    counted = (
        (found.nan_mismatches, "NaN on one side"),
        (found.inf_mismatches, "Inf on one side"),
        (found.nan_payloads, "NaN of other bits"),
        (found.zero_signs, "zeros of other sign"),
    )
    parts = [f"{count} {what}" for count, what in counted if count]
    if found.index is not None:
        parts.insert(0, f"largest at {_shape(found.index)}")
    return ", ".join(parts)


def _figure(value: Any, digits: int) -> str:
    if value is None:
        return "-"
    exact = isinstance(value, int) and abs(value) < 10**_MOST_EXACT_DIGITS
    return str(value) if exact else f"{float(value):.{digits}g}"
