"""``burnstore inspect``: show what files hold."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import BurnstoreError
from ..jobs.inspect.inspect import SORTS, Inspection, TensorRow, files_of, inspect
from ..jobs.json_output import json_text
from ..tensor.dtype import DType
from . import ERROR, FINE, FOUND
from .arguments import add_filter, add_jobs, add_json, add_limit, add_quiet, module_depth
from .complaint import complain, in_our_words, misuse
from .progress import shown_progress
from .summary import summary_lines
from .table import Column, render
from .text import Screen, counted, escape, size

if TYPE_CHECKING:
    from ..jobs.inspect.anatomy import Anatomy
    from ..jobs.inspect.tree import Outline

_LINES_PER_WRITE = 1000
_MOST_EXACT_DIGITS = 10  # of integers in the table; --json has every digit
_SCHEMA = 1

DESCRIPTION = """\
Show what a file of tensors holds: names, dtypes, shapes, sizes, parameter ids and where the bytes lie.
Any format is read, and its bytes tell which; an index, or a folder with shards, is shown as the one set that it is.
Without --stats only the header is read, whatever the size of the file.
"""

EXAMPLES = """\
examples:
  burnstore inspect model.bpk
  burnstore inspect model.bpk --tree --depth 2            the parameters of each module
  burnstore inspect model.bpk --sort size --limit 10      the ten largest tensors
  burnstore inspect model.bpk --filter '^encoder\\.'       only the encoder
  burnstore inspect model.bpk --stats                     ranges; exit code 1 if there is a NaN or Inf
  burnstore inspect model.bpk --hex                       the first bytes, and what they mean
  burnstore inspect model.bpk --json | jq '.files[0].total'

exit codes:
  0  fine
  1  inspected, and found something: --filter matched no tensor, or --stats met a NaN or Inf
  2  an error: a file that cannot be read, or wrong arguments

In a terminal long names are shortened in the middle, and columns are left out where there is no room; into a pipe or
a file every name and column is written in full. Figures of --stats are over the finite values and shown with four
digits; --json has all of them, and is what programs should read. NO_COLOR is honoured.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after the verb."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of tensors, or a folder of them")
    add_json(parser)
    parser.add_argument(
        "--sort", choices=SORTS, help="order of the tensors; size: largest first (default: the order of the data)"
    )
    add_filter(parser)
    add_limit(parser)
    views = parser.add_mutually_exclusive_group()
    views.add_argument("--tree", action="store_true", help="show modules and what each holds")
    views.add_argument("--hex", action="store_true", help="show the first bytes and what they mean, of any file")
    parser.add_argument("--depth", type=module_depth, metavar="N", help="of --tree: only N levels (0: only the whole)")
    parser.add_argument(
        "--stats", action="store_true", help="read the tensors shown: min, max, mean, std; NaN, Inf and zero counts"
    )
    add_jobs(parser)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Inspect every file; the worst outcome decides the exit code."""
    wrong = _misused(arguments)
    if wrong is not None:
        return misuse(wrong, "inspect")
    output = _Document(arguments) if arguments.json else _Pages(arguments)
    outcome, matched = FINE, False
    for path in _expanded(arguments.files):
        try:
            if arguments.hex:
                output.add_anatomy(_anatomy(path))
                continue
            found = _inspected(path, arguments)
        except (BurnstoreError, OSError, MemoryError) as error:
            outcome = ERROR
            told = in_our_words(error, path)
            complain(told, path)
            output.add_error(path, type(error).__name__, told)
            continue
        output.add(found)
        matched = matched or found.selected.tensors > 0
        for row in found.tensors:
            if row.problem is not None:
                outcome = ERROR
                complain(BurnstoreError(row.problem, tensor=row.name), path)
            elif row.stats is not None and not row.stats.is_finite:
                outcome = max(outcome, FOUND)
    output.end()
    if arguments.filter is not None and not matched:
        outcome = max(outcome, FOUND)
    return outcome


def _misused(arguments: argparse.Namespace) -> str | None:
    """What does not go together, if something does not."""
    if arguments.depth is not None and not arguments.tree:
        return "--depth is for --tree"
    if arguments.tree and (arguments.limit is not None or arguments.stats):
        return "--limit and --stats are for the table, not for --tree; --depth makes a tree shorter"
    about_tensors = (arguments.filter, arguments.sort, arguments.limit, arguments.stats or None)
    if arguments.hex and any(given is not None for given in about_tensors):
        return "--hex shows bytes; --filter, --sort, --limit and --stats are about tensors"
    return None


def _expanded(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        try:
            yield from files_of(path)
        except (BurnstoreError, OSError):
            yield path  # whoever opens it says what is wrong


def _inspected(path: str, arguments: argparse.Namespace) -> Inspection:
    with shown_progress(os.path.basename(path), quiet=arguments.quiet) as progress:
        return inspect(
            path,
            pattern=arguments.filter,
            sort=arguments.sort,
            limit=arguments.limit,
            stats=arguments.stats,
            executor=arguments.jobs,
            progress=progress,
        )


def _anatomy(path: str) -> Anatomy:
    from ..jobs.inspect.anatomy import anatomy  # not at import: --hex alone needs it

    return anatomy(path)


def _outlined(found: Inspection, arguments: argparse.Namespace) -> Outline:
    from ..jobs.inspect.tree import DEEPEST, outline  # not at import: --tree alone needs it

    return outline(found.tensors, depth=DEEPEST if arguments.depth is None else arguments.depth)


class _Pages:
    """For people: one file after the other, a blank line between them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._screen = Screen.of_stdout()
        self._shown = 0

    def add(self, found: Inspection) -> None:
        self._begin(found.path)
        _write(summary_lines(found, self._arguments.filter, self._screen))
        if found.selected.tensors and (found.tensors or self._arguments.tree):
            print()
            _write(self._tree(found) if self._arguments.tree else self._table(found))
        left_out = found.selected.tensors - len(found.tensors)
        if left_out:
            print(self._screen.paint(f"({left_out:,} more; --limit {self._arguments.limit})", "2"))
        _write(_alarm(found, self._screen))

    def add_anatomy(self, found: Anatomy) -> None:
        from .hexdump import hex_lines

        self._begin(found.path)
        what = found.format or "unknown"
        _write([f"  format    {what}", f"  file      {counted(found.size, 'byte')}", ""])
        _write(hex_lines(found, self._screen))

    def add_error(self, path: str, kind: str, error: BurnstoreError) -> None:
        """Nothing: stderr has it."""

    def end(self) -> None:
        """Nothing: the last page is complete."""

    def _begin(self, path: str) -> None:
        if self._shown:
            print()
        self._shown += 1
        print(self._screen.paint(escape(path), "1"))

    def _table(self, found: Inspection) -> Iterator[str]:
        return render(_columns(found.tensors, self._arguments.stats), self._screen)

    def _tree(self, found: Inspection) -> Iterator[str]:
        from .tree import tree_lines

        whole = _outlined(found, self._arguments)
        return tree_lines(whole, self._screen, largest_first=self._arguments.sort == "size")


def _write(lines: Iterable[str]) -> None:
    """Print the lines, many at a time: printing each by itself takes longer than making it."""
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) >= _LINES_PER_WRITE:
            print("\n".join(batch))
            batch.clear()
    if batch:
        print("\n".join(batch))


def _alarm(found: Inspection, screen: Screen) -> Iterator[str]:
    alarming = [row.stats for row in found.tensors if row.stats is not None and not row.stats.is_finite]
    if alarming:
        nans, infs = sum(stats.nan_count for stats in alarming), sum(stats.inf_count for stats in alarming)
        yield ""
        yield screen.paint(
            f"{len(alarming):,} of {counted(len(found.tensors), 'tensor')} not finite: {nans:,} NaN, {infs:,} Inf",
            "1;31",
        )


def _columns(rows: tuple[TensorRow, ...], with_stats: bool) -> list[Column]:
    labels: dict[DType, str] = {dtype: _dtype_label(dtype) for dtype in {row.dtype for row in rows}}
    columns = [
        Column("NAME", [escape(row.name) for row in rows], least=20),
        Column("DTYPE", [labels[row.dtype] for row in rows], spare=11, style="36"),
        # Without spaces, so that a row of the table can be split at them.
        Column("SHAPE", [f"[{','.join(map(str, row.shape))}]" for row in rows], least=16),
        Column("SIZE", [size(row.nbytes, gap="") for row in rows], right=True, spare=6 if with_stats else 10),
        Column("BYTES", [str(row.nbytes) for row in rows], right=True, spare=1),
        Column("PARAM ID", ["-" if row.param_id is None else str(row.param_id) for row in rows], spare=3, style="2"),
        Column("OFFSET", ["-" if row.offset is None else str(row.offset) for row in rows], right=True, spare=2),
    ]
    if any(row.shard is not None for row in rows):
        columns.append(Column("SHARD", ["-" if row.shard is None else escape(row.shard) for row in rows], spare=0))
    if with_stats:
        columns += [
            Column("MIN", _stat_cells(rows, "min"), right=True, spare=9),
            Column("MAX", _stat_cells(rows, "max"), right=True, spare=10),
            Column("MEAN", _stat_cells(rows, "mean"), right=True, spare=8),
            Column("STD", _stat_cells(rows, "std"), right=True, spare=5),
            Column("NAN", _stat_cells(rows, "nan_count"), right=True, spare=12, alarm=True),
            Column("INF", _stat_cells(rows, "inf_count"), right=True, spare=12, alarm=True),
            Column("ZEROS", _stat_cells(rows, "zero_count"), right=True, spare=4),
        ]
    return columns


def _stat_cells(rows: tuple[TensorRow, ...], name: str) -> list[str]:
    return [
        ("broken" if row.problem else "-") if row.stats is None else _figure(getattr(row.stats, name)) for row in rows
    ]


def _figure(value: Any) -> str:
    if value is None:
        return "-"
    exact = isinstance(value, int) and abs(value) < 10**_MOST_EXACT_DIGITS
    return str(value) if exact else f"{float(value):.4g}"


def _dtype_label(dtype: DType) -> str:
    return dtype.name if dtype.scheme is None else f"{dtype.name}({dtype.scheme.value})"


class _Document:
    """The JSON document, written file by file, one tensor a line: quick to write, and easy to compare line by line."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import json

        from burnstore import __version__

        self._arguments = arguments
        # ASCII only: whatever the names are, no terminal acts on them and no encoding fails on them.
        self._encode = json.JSONEncoder(allow_nan=False).encode
        self._files = 0
        print(f'{{"burnstore": {self._encode(__version__)}, "schema": {_SCHEMA}, "files": [')

    def add(self, found: Inspection) -> None:
        fields = found.to_dict()
        tensors = fields.pop("tensors")
        if self._arguments.tree:
            fields["modules"] = _outlined(found, self._arguments).to_dicts()
        self._next()
        head = self._encode({**fields, "error": None})
        print(f'{head[:-1]}, "tensors": [')
        _write(self._encode(row) + ("," if at < len(tensors) else "") for at, row in enumerate(tensors, 1))
        print("]}")

    def add_anatomy(self, found: Anatomy) -> None:
        self._next()
        print(self._encode({"path": json_text(found.path), "anatomy": found.to_dict(), "error": None}))

    def add_error(self, path: str, kind: str, error: BurnstoreError) -> None:
        facts = {fact: getattr(error, fact) for fact in ("message", "rule", "tensor", "offset", "hint")}
        self._next()
        print(self._encode({"path": json_text(path), "error": {"kind": kind, **facts}}))

    def end(self) -> None:
        print("]}")

    def _next(self) -> None:
        if self._files:
            print(",")
        self._files += 1
