"""``burnstore diff``: compare two files, tensor by tensor."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import quoted
from ..io.paths import base_name, is_remote, join
from ..jobs.diff.diff import diff
from ..jobs.diff.result import STATUSES, Diff, TensorDiff
from ..jobs.inspect.inspect import files_of
from ..jobs.inspect.tree import natural_order
from ..tensor.plain import json_text
from .arguments import add_option, add_options, expand_patterns, like_from, pipeline_from, stands_for_files
from .errors import ERROR, FOUND, JOB_ERRORS, OK, error_facts, fail, misuse, print_error, shown_notes
from .progress import shown_progress
from .table import Column, name_column, render
from .text import Screen, counted, dtype_label, escape, figure, print_json, shape_label, shell_word, shorten

_MOST_ENTRIES_ON_SCREEN = 24


def _largest(name: str) -> Callable[[TensorDiff], tuple[bool, float]]:
    """Return a key that puts the largest figure first, and tensors without it last."""

    def key(row: TensorDiff) -> tuple[bool, float]:
        value = getattr(row.difference, name, None)
        return value is None, 0.0 if value is None else -float(value)

    return key


_SORTS: dict[str, Callable[[TensorDiff], Any]] = {
    "status": lambda row: STATUSES.index(row.status),
    "name": lambda row: natural_order(row.shown_name),
    "max-abs": _largest("max_abs"),
    "max-ulp": _largest("max_ulp"),
    "rel-l2": _largest("rel_l2"),
    "differing": _largest("differing"),
}
"""The orders of the table; a figure puts the largest first."""

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
  burnstore diff run1/*.bpk run2/                            each file with the one of its name in run2
  burnstore diff a.bpk b.bpk --filter '^encoder\\.' --sort max-abs --limit 10      the largest changes of the encoder
  burnstore diff a.bpk b.bpk --json | jq '.tensors[] | select(.status == "changed") | .difference.max_abs'

exit codes:
  0  equal, or within the tolerance
  1  different, or there is no tensor to compare, or a file stores data without a name, which cannot be compared
  2  an error: a file that cannot be read, layouts that cannot be compared, or wrong arguments

Tensors are equal if their bytes are: NaN equals NaN of the same bits, 0.0 and -0.0 differ (0 ulp). DIFFERING counts the
values that are not equal. MAX ABS, MAX ULP (in steps from one float to the next), REL L2 (of the difference, over the
first) and COSINE cover the pairs of finite values. Metadata that differs is shown and does not count.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "paths", nargs="+", metavar="A... B", help="two files, indexes or folders; or files, and a folder"
    )
    parser.add_argument("--tolerance", type=_distance, metavar="X", help="values within this distance count as equal")
    parser.add_argument(
        "--relative-tolerance", type=_distance, metavar="X", help="the same, relative to the larger of the two values"
    )
    parser.add_argument(
        "--ignore-dtype", action="store_true", help="tensors of different dtypes are equal if their values are"
    )
    add_options(parser, "like", "rename", "rules", "guess", "layout", "keep_layout", "top_level_key", "filter")
    add_option(parser, "sort", choices=tuple(_SORTS), default="status", help="order of the tensors (default: status)")
    add_options(parser, "allow_empty", "limit", "json", "jobs", "quiet")


def run(arguments: argparse.Namespace) -> int:
    """Compare, and print the differences; of several files each with the one of its name."""
    try:
        paths = expand_patterns(arguments.paths)
        if len(paths) < 2:
            return misuse("expected two files to compare", "diff")
        pairs, alone = _pairs(paths)
    except JOB_ERRORS as error:
        return fail(error, arguments.paths[0])
    if not pairs:
        return misuse("expected two files, or files and a folder with files of the same names", "diff")
    if len(pairs) == 1 and not alone:
        try:
            found = _compare(*pairs[0], arguments)
        except JOB_ERRORS as error:
            return fail(error, pairs[0][0])
        return _show(found, arguments)
    code = FOUND if alone else OK
    documents: list[dict[str, Any]] = []
    for first, second in pairs:
        try:
            found = _compare(first, second, arguments)
        except JOB_ERRORS as error:
            print_error(error, first)
            documents.append(
                {"first": json_text(first), "second": json_text(second), "error": error_facts(error, first)}
            )
            code = ERROR
            continue
        documents.append({**found.to_dict(), "error": None})
        code = max(code, OK if found.is_equal else FOUND)
        if not arguments.json:
            print("\n".join((*_lines(found, arguments, Screen.of_stdout()), "")))
    if arguments.json:
        print_json({"diffs": documents, "only_in_second": [json_text(path) for path in alone]})
    else:
        for path in alone:
            print(f"{escape(path)}: no file of this name to compare with")
        compared = sum(document["error"] is None for document in documents)
        print(f"{compared:,} of {counted(len(pairs), 'pair')} of files compared")
    return code


def _pairs(paths: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the files to compare, none if that is unclear, and the files of the last folder without another."""
    *firsts, last = paths
    if not stands_for_files(last):
        return ([(firsts[0], last)] if len(firsts) == 1 else []), []
    are_folders = len(firsts) == 1 and stands_for_files(firsts[0])
    firsts = files_of(firsts[0]) if are_folders else firsts
    names = {_name_of(first) for first in firsts}
    seconds = files_of(last) if are_folders else []
    alone = [second for second in seconds if second != last and base_name(second) not in names]
    return [(first, join(last, _name_of(first))) for first in firsts], alone


def _name_of(path: str) -> str:
    return base_name(path if is_remote(path) else os.path.normpath(path))


def _compare(first: str, second: str, arguments: argparse.Namespace) -> Diff:
    with shown_progress(base_name(second), quiet=arguments.quiet) as progress:
        return diff(
            first,
            second,
            tolerance=arguments.tolerance,
            relative_tolerance=arguments.relative_tolerance,
            ignore_dtype=arguments.ignore_dtype,
            like=like_from(arguments),
            top_level_key=arguments.top_level_key,
            pipeline=pipeline_from(arguments),
            executor=arguments.jobs,
            progress=progress,
        )


def _show(found: Diff, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(found.to_dict())
    else:
        for line in _lines(found, arguments, Screen.of_stdout()):
            print(line)
    if arguments.filter is not None and not found.tensors:
        sys.stdout.flush()
        patterns = " ".join(f"--filter {shell_word(each.pattern)}" for each in arguments.filter)
        print(f"burnstore: {patterns} matches no tensor", file=sys.stderr)
        return FOUND
    return OK if found.is_equal else FOUND


def _distance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a number of 0 or more")
    return value


def _lines(found: Diff, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    yield screen.paint(f"{escape(found.first)} -> {escape(found.second)}", "1")
    yield f"  {_summary(found)}"
    if found.layout is not None:
        yield f"  compared in {found.layout.capitalize()}'s layout"
    yield from (f"  {screen.paint('not compared', '1;33')}: {escape(note)}" for note in found.uncompared)
    yield from (f"  note: {note}" for note in shown_notes(found.notes))
    yield from _other_differences(found, screen)
    shown = [tensor for tensor in found.tensors if tensor.status not in ("equal", "close")]
    shown.sort(key=_SORTS[arguments.sort])
    rows = shown[: arguments.limit]
    if rows:
        yield ""
        yield from render(_columns(rows, screen), screen)
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


def _name(row: TensorDiff) -> str:
    moved = row.status == "moved"
    return _arrow(escape(row.name or ""), escape(row.new_name or "")) if moved else escape(row.shown_name)


def _columns(rows: Sequence[TensorDiff], screen: Screen) -> list[Column]:
    def figures(name: str, digits: int = 4) -> list[str]:
        return [figure(getattr(row.difference, name, None), digits) for row in rows]

    return [
        Column("STATUS", [row.status for row in rows], style="1"),
        name_column("NAME", [_name(row) for row in rows], screen),
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
