"""``burnstore inspect``: show what files contain."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..errors import BurnstoreError, quoted
from ..io.paths import base_name
from ..jobs.inspect.inspect import SORTS, FirstBytes, Inspection, files_of, inspect, read_first_bytes
from ..jobs.inspect.tree import DEEPEST, ModuleTree, TensorRow, Totals
from ..tensor.dtype import DType
from ..tensor.plain import json_text
from .arguments import add_option, add_options, expand_patterns, module_depth
from .errors import ERROR, FOUND, JOB_ERRORS, OK, as_burnstore_error, misuse, print_error, shown_notes
from .progress import shown_progress
from .table import Column, name_column, render
from .text import (
    SCHEMA,
    Screen,
    can_show,
    counted,
    dtype_label,
    escape,
    figure,
    shape_label,
    shell_word,
    shorten,
    size,
    width,
)

_STATS = {"min": "min", "max": "max", "mean": "mean", "std": "std", "nan": "nan_count", "inf": "inf_count"}
_STATS |= {"zeros": "zero_count"}
_COLUMNS = ("name", "dtype", "shape", "elements", "size", "bytes", "id", "offset", "shard", *_STATS)
_LINES_PER_WRITE = 1000
_MOST_ENTRIES_ON_SCREEN = 24
_WIDEST_KEY_ON_SCREEN = 32
_MARGIN = " " * 12
_HEX_ROW = 16
_MOST_HEX_ROWS = 4

DESCRIPTION = """\
Show what a file of tensors contains: names, dtypes, shapes, sizes, parameter ids and offsets. The format is recognized
by the bytes; an index, or a folder with shards, is shown as one set. Without --stats only the header is read, whatever
the size of the file.
"""

EXAMPLES = """\
examples:
  burnstore inspect model.bpk
  burnstore inspect model.bpk --tree --depth 2            the parameters of each module
  burnstore inspect model.bpk --sort size --limit 10      the ten largest tensors
  burnstore inspect model.bpk --filter '^encoder\\.'       only the encoder
  burnstore inspect model.bpk --stats                     ranges; exit code 1 if there is a NaN or Inf
  burnstore inspect model.bpk --columns name,shape,max    only these columns, in this order
  burnstore inspect model.bpk --hex                       the first bytes and their meaning
  burnstore inspect model.bpk --json | jq '.files[0].total'

exit codes:
  0  ok
  1  --filter matched no tensor, or --stats found a NaN or Inf
  2  an error: a file that cannot be read, or wrong arguments

In a terminal long names are shortened so that they stay different, and columns are omitted if there is no room; a pipe
or a file gets every name and column in full. Columns without any value are not shown. Figures of --stats cover the
finite values and have four digits; --json has all digits and is the output for programs. NO_COLOR is honoured.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of tensors, or a folder of them")
    add_option(parser, "sort", choices=SORTS, help="order of the tensors; size: largest first (default: as stored)")
    add_options(parser, "json", "limit")
    add_option(parser, "filter", action="store", help="only tensors in whose names REGEX is found")
    views = parser.add_mutually_exclusive_group()
    views.add_argument("--tree", action="store_true", help="show modules and their totals")
    views.add_argument("--hex", action="store_true", help="show the first bytes and their meaning, of any file")
    parser.add_argument(
        "--columns", type=_column_names, metavar="A,B...", help=f"only these columns: {', '.join(_COLUMNS)}"
    )
    parser.add_argument(
        "--depth", type=module_depth, metavar="N", help="with --tree: only N levels (0: only the total)"
    )
    parser.add_argument(
        "--stats", action="store_true", help="read the tensors shown: min, max, mean, std; NaN, Inf and zero counts"
    )
    add_options(parser, "top_level_key", "jobs", "quiet")


def run(arguments: argparse.Namespace) -> int:
    """Inspect every file; the worst result decides the exit code."""
    arguments.stats = arguments.stats or not _STATS.keys().isdisjoint(arguments.columns or ())
    conflict = _conflict(arguments)
    if conflict is not None:
        return misuse(conflict, "inspect")
    output = _Document(arguments) if arguments.json else _Pages(arguments)
    code, matched = OK, False
    for path in _expand(arguments.files):
        try:
            if arguments.hex:
                output.add_first_bytes(read_first_bytes(path))
                continue
            found = _inspect(path, arguments)
        except JOB_ERRORS as error:
            code = ERROR
            shown = as_burnstore_error(error, path)
            print_error(shown, path)
            output.add_error(path, type(error).__name__, shown)
            continue
        output.add(found)
        matched = matched or found.selected.tensors > 0
        for row in found.tensors:
            if row.problem is not None:
                code = ERROR
                print_error(BurnstoreError(row.problem, tensor=row.name), path)
            elif row.stats is not None and not row.stats.is_finite:
                code = max(code, FOUND)
    output.end()
    if arguments.filter is not None and not matched:
        code = max(code, FOUND)
    return code


def _conflict(arguments: argparse.Namespace) -> str | None:
    if arguments.depth is not None and not arguments.tree:
        return "--depth needs --tree"
    if arguments.tree and (arguments.limit is not None or arguments.stats):
        return "--limit and --stats apply to the table, not to --tree; --depth shortens a tree"
    if arguments.columns is not None and (arguments.tree or arguments.hex or arguments.json):
        return "--columns applies to the table, not to --tree, --hex or --json"
    about_tensors = (arguments.filter, arguments.sort, arguments.limit, arguments.stats or None)
    if arguments.hex and any(given is not None for given in about_tensors):
        return "--hex shows bytes; --filter, --sort, --limit and --stats apply to tensors"
    return None


def _column_names(text: str) -> list[str]:
    names = text.lower().replace(" ", "").split(",")
    wrong = [name for name in names if name not in _COLUMNS]
    if wrong:
        raise argparse.ArgumentTypeError(f"{quoted(wrong[0])} is not a column; the columns are {', '.join(_COLUMNS)}")
    return list(dict.fromkeys(names))


def _expand(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        try:
            for file in expand_patterns([path]):
                yield from files_of(file)
        except (BurnstoreError, OSError):
            yield path  # Opening it reports what is wrong.


def _inspect(path: str, arguments: argparse.Namespace) -> Inspection:
    with shown_progress(base_name(path), quiet=arguments.quiet) as progress:
        return inspect(
            path,
            pattern=arguments.filter,
            sort=arguments.sort,
            limit=arguments.limit,
            stats=arguments.stats,
            top_level_key=arguments.top_level_key,
            executor=arguments.jobs,
            progress=progress,
        )


def _tree_of(found: Inspection, arguments: argparse.Namespace) -> ModuleTree:
    return ModuleTree.of(found.tensors, depth=DEEPEST if arguments.depth is None else arguments.depth)


class _Pages:
    """The output for people: one file after the other, separated by a blank line."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._screen = Screen.of_stdout()
        self._shown = 0

    def add(self, found: Inspection) -> None:
        self._begin(found.path)
        _write(_summary_lines(found, self._arguments, self._screen))
        if found.selected.tensors and (found.tensors or self._arguments.tree):
            print()
            if self._arguments.tree:
                tree = _tree_of(found, self._arguments)
                _write(_tree_lines(tree, self._screen, largest_first=self._arguments.sort == "size"))
            else:
                columns = _columns(found.tensors, self._arguments, self._screen)
                _write(render(columns, self._screen, "or --columns, or --json"))
        omitted = found.selected.tensors - len(found.tensors)
        if omitted:
            print(self._screen.paint(f"({omitted:,} more; --limit {self._arguments.limit})", "2"))
        _write(_alarm_lines(found, self._screen))

    def add_first_bytes(self, found: FirstBytes) -> None:
        self._begin(found.path)
        _write([f"  format    {found.format or 'unknown'}", f"  file      {counted(found.size, 'byte')}", ""])
        _write(_hex_lines(found, self._screen))

    def add_error(self, path: str, kind: str, error: BurnstoreError) -> None:
        """Do nothing: the error is on stderr."""

    def end(self) -> None:
        """Do nothing: the last page is complete."""

    def _begin(self, path: str) -> None:
        if self._shown:
            print()
        self._shown += 1
        print(self._screen.paint(escape(path), "1"))


class _Document:
    """The JSON document, written file by file, one tensor per line, so that it streams and can be compared by line."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import json

        from burnstore import __version__

        self._arguments = arguments
        self._encode = json.JSONEncoder(allow_nan=False).encode  # ASCII, so that no terminal acts on names
        self._files = 0
        print(f'{{"burnstore": {self._encode(__version__)}, "schema": {SCHEMA}, "files": [')

    def add(self, found: Inspection) -> None:
        fields = found.to_dict()
        tensors = fields.pop("tensors")
        if self._arguments.tree:
            fields["modules"] = _tree_of(found, self._arguments).to_dicts()
        self._next()
        head = self._encode({**fields, "error": None})
        print(f'{head[:-1]}, "tensors": [')
        _write(self._encode(row) + ("," if at < len(tensors) else "") for at, row in enumerate(tensors, 1))
        print("]}")

    def add_first_bytes(self, found: FirstBytes) -> None:
        self._next()
        print(self._encode({"path": json_text(found.path), "first_bytes": found.to_dict(), "error": None}))

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


def _write(lines: Iterable[str]) -> None:
    """Print the lines in batches, because a print per line takes longer than making the line."""
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) >= _LINES_PER_WRITE:
            print("\n".join(batch))
            batch.clear()
    if batch:
        print("\n".join(batch))


# --- the summary ------------------------------------------------------------------------------------------------------


def _summary_lines(found: Inspection, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    has_offsets = any(row.offset is not None for row in found.tensors)
    data = f", tensor data from byte {found.data_offset:,}" if has_offsets else ""
    schemes = dict.fromkeys(str(row.dtype.scheme) for row in found.tensors if row.dtype.scheme is not None)
    schemes |= dict.fromkeys(row.scheme.partition(", scales in ")[0] for row in found.tensors if row.scheme is not None)
    facts: list[tuple[str, Sequence[str]]] = [
        ("format", [f"{found.format} ({escape(found.variant)})" if found.variant else found.format]),
        ("layout", [found.layout or "unknown"]),
        ("file", [_exact_size(found.file_size) + data]),
        ("tensors", [_amount(found.total, "") if found.total.tensors else "none"]),
        (
            "dtypes",
            [
                f"{name}: {counted(part.tensors, 'tensor')}, {counted(part.elements, 'parameter')}, {size(part.nbytes)}"
                for name, part in found.dtypes.items()
            ],
        ),
        ("schemes", list(schemes)),
        ("metadata", [_entry(key, escape(value), screen) for key, value in found.metadata.items()]),
        ("scalars", [_entry(key, f"{one.value} ({one.kind})", screen) for key, one in found.scalars.items()]),
        ("notes", shown_notes(found.notes)),
    ]
    if arguments.filter is not None:
        matches = _amount(found.selected, " tensor") if found.selected.tensors else "no tensor"
        facts.append(("filter", [f"{shell_word(arguments.filter.pattern)} matches {matches}"]))
    for title, entries in facts:
        most = len(entries) if screen.columns is None else _MOST_ENTRIES_ON_SCREEN
        for at, entry in enumerate(entries[:most]):
            yield (_MARGIN if at else screen.paint(f"  {title:<10}", "2")) + entry
        if len(entries) > most:
            yield screen.paint(f"{_MARGIN}({len(entries) - most:,} more; pipe, or --json, shows all)", "2")


def _amount(total: Totals, noun: str) -> str:
    tensors = f"{total.tensors:,}{noun}{'s' if noun and total.tensors != 1 else ''}"
    return f"{tensors} with {counted(total.elements, 'parameter')}: {_exact_size(total.nbytes)}"


def _exact_size(nbytes: int) -> str:
    return f"{size(nbytes)} ({nbytes:,} bytes)" if nbytes >= 1024 else counted(nbytes, "byte")


def _entry(key: str, value: str, screen: Screen) -> str:
    """Return a key and its value on one line, shortened only on a screen."""
    shown = escape(key)
    if screen.columns is not None:
        shown = shorten(shown, _WIDEST_KEY_ON_SCREEN, screen.ellipsis)
        room = screen.columns - len(_MARGIN) - width(shown) - len(" = ")
        value = shorten(value, max(room, _WIDEST_KEY_ON_SCREEN), screen.ellipsis)
    return f"{shown} = {value}"


def _alarm_lines(found: Inspection, screen: Screen) -> Iterator[str]:
    alarming = [row.stats for row in found.tensors if row.stats is not None and not row.stats.is_finite]
    if alarming:
        nans, infs = sum(stats.nan_count for stats in alarming), sum(stats.inf_count for stats in alarming)
        counts = f"{len(alarming):,} of {counted(len(found.tensors), 'tensor')}"
        yield ""
        yield screen.paint(f"{counts} not finite: {nans:,} NaN, {infs:,} Inf", "1;31")


# --- the table --------------------------------------------------------------------------------------------------------


def _with_scheme(row: TensorRow, labels: Mapping[DType, str]) -> str:
    """Return the dtype of a row, with the name of the scheme in which the file stores it."""
    return labels[row.dtype] if row.scheme is None else f"{labels[row.dtype]}({escape(row.scheme.partition(',')[0])})"


def _columns(rows: tuple[TensorRow, ...], arguments: argparse.Namespace, screen: Screen) -> list[Column]:
    labels = {dtype: dtype_label(dtype) for dtype in {row.dtype for row in rows}}
    size_spare = 6 if arguments.stats else 10
    made: dict[str, Callable[[], Column]] = {
        "name": lambda: name_column("NAME", [escape(row.name) for row in rows], screen),
        "dtype": lambda: Column("DTYPE", [_with_scheme(row, labels) for row in rows], spare=11, style="36"),
        "shape": lambda: Column("SHAPE", [shape_label(row.shape) for row in rows], least=16),
        "elements": lambda: Column("ELEMENTS", [f"{row.elements:,}" for row in rows], right=True, spare=0),
        "size": lambda: Column("SIZE", [size(row.nbytes, gap="") for row in rows], right=True, spare=size_spare),
        "bytes": lambda: Column("BYTES", [str(row.nbytes) for row in rows], right=True, spare=1),
        "id": lambda: Column("PARAM ID", [_or_dash(row.param_id) for row in rows], spare=3, style="2"),
        "offset": lambda: Column("OFFSET", [_or_dash(row.offset) for row in rows], right=True, spare=2),
        "shard": lambda: Column("SHARD", [_or_dash(row.shard) for row in rows], spare=0),
    }
    spares = {"min": 9, "max": 10, "mean": 8, "std": 5, "nan": 12, "inf": 12, "zeros": 4}
    for name, field in _STATS.items():
        made[name] = partial(_stat_column, rows, name.upper(), field, spares[name])
    if arguments.columns is not None:
        return [replace(made[name](), spare=None) for name in arguments.columns]
    return [make() for name, make in made.items() if name != "elements" and (arguments.stats or name not in _STATS)]


def _stat_column(rows: tuple[TensorRow, ...], title: str, field: str, spare: int) -> Column:
    return Column(title, _stat_cells(rows, field), right=True, spare=spare, alarm=title in ("NAN", "INF"))


def _or_dash(value: object) -> str:
    return "-" if value is None else escape(str(value))


def _stat_cells(rows: tuple[TensorRow, ...], name: str) -> list[str]:
    return [
        ("broken" if row.problem else "-") if row.stats is None else figure(getattr(row.stats, name)) for row in rows
    ]


# --- the tree ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    """A module or a tensor in the tree."""

    name: str
    tensors: int
    elements: int
    nbytes: int
    dtype: str
    shape: str


def _tree_lines(whole: ModuleTree, screen: Screen, *, largest_first: bool) -> Iterator[str]:
    """Yield the tree as a table: the total, then below each module its own tensors and its modules."""
    branches = ("├─ ", "│  ", "└─ ", "   ")
    if not can_show("".join(branches)):
        branches = ("|- ", "|  ", "`- ", "   ")
    lines = [_module_line("(all)", whole), *_below(whole, "", branches, largest_first)]
    return render(
        [
            Column("MODULE", [line.name for line in lines], least=24),
            Column("TENSORS", [f"{line.tensors:,}" for line in lines], right=True, spare=3),
            Column("PARAMETERS", [f"{line.elements:,}" for line in lines], right=True, spare=6),
            Column("SIZE", [size(line.nbytes, gap="") for line in lines], right=True, spare=5),
            Column("BYTES", [str(line.nbytes) for line in lines], right=True, spare=1),
            Column("DTYPE", [line.dtype for line in lines], least=8, spare=4, style="36"),
            Column("SHAPE", [line.shape for line in lines], least=8, spare=2),
        ],
        screen,
    )


def _below(module: ModuleTree, margin: str, branches: tuple[str, ...], largest_first: bool) -> Iterator[_Line]:
    parts: list[tuple[str, Any]] = [
        part
        for group in (module.tensors, module.modules)
        for part in (sorted(group.items(), key=lambda part: -part[1].nbytes) if largest_first else group.items())
    ]
    for at, (name, part) in enumerate(parts, 1):
        branch, deeper = branches[:2] if at < len(parts) else branches[2:]
        shown = margin + branch + escape(name)
        if isinstance(part, ModuleTree):
            yield _module_line(shown, part)
            yield from _below(part, margin + deeper, branches, largest_first)
        else:
            yield _Line(shown, 1, part.elements, part.nbytes, part.dtype.name, shape_label(part.shape))


def _module_line(name: str, module: ModuleTree) -> _Line:
    return _Line(name, module.count, module.elements, module.nbytes, ",".join(module.dtypes), "")


# --- the first bytes --------------------------------------------------------------------------------------------------


def _hex_lines(found: FirstBytes, screen: Screen) -> Iterator[str]:
    """Yield the bytes as a table: every part begins a row, and long parts are cut."""
    rows: list[tuple[str, str, str, str]] = []
    for part in found.parts:
        shown = found.bytes_of(part)[: _HEX_ROW * _MOST_HEX_ROWS]
        for start in range(0, len(shown), _HEX_ROW):
            row = shown[start : start + _HEX_ROW]
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            rows.append((f"{part.offset + start:08x}", row.hex(" "), text, "" if start else part.meaning))
        if not shown:  # beyond the bytes that were read
            rows.append((f"{part.offset:08x}", "", "", f"{part.meaning} ({part.nbytes:,} bytes)"))
        elif len(shown) < part.nbytes:
            rows.append((f"{part.offset + len(shown):08x}", "", "", f"({part.nbytes - len(shown):,} bytes more)"))
    offsets, cells, texts, meanings = zip(*rows, strict=True) if rows else ((), (), (), ())
    return render(
        [
            Column("OFFSET", offsets),
            Column("BYTES", cells, least=8, style="36"),
            Column("TEXT", texts, spare=1),
            Column("MEANING", meanings, least=12),
        ],
        screen,
    )
