"""``burnstore inspect``: show what files hold."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..dtype import DType
from ..errors import BurnstoreError, printable
from ..inspection import Inspection, TensorRow, inspect_file
from . import ERROR, FINE, FOUND
from .table import Column, render
from .text import Screen, escape, escape_controls, shorten, size, width

_LINES_PER_WRITE = 1000
_MOST_ENTRIES_ON_SCREEN = 24
_WIDEST_KEY_ON_SCREEN = 32
_MOST_EXACT_DIGITS = 10  # of integers in the table; --json has every digit
_MARGIN = " " * 12
_SCHEMA = 1


def run(arguments: argparse.Namespace) -> int:
    """Inspect every file; the worst outcome decides the exit code."""
    outcome = FINE
    matched = False
    shown = 0
    screen = Screen.of_stdout()
    document = _Document() if arguments.json else None
    for path in arguments.files:
        progress = _Progress()
        try:
            found = inspect_file(
                path,
                pattern=arguments.filter,
                sort=arguments.sort,
                limit=arguments.limit,
                stats=arguments.stats,
                progress=progress if progress.wanted else None,
            )
        except (BurnstoreError, OSError, MemoryError) as error:
            progress.clear()
            outcome = ERROR
            told = _as_ours(path, error)
            _complain(told)
            if document is not None:
                document.add_error(path, type(error).__name__, told)
            continue
        progress.clear()
        matched = matched or found.selected.tensors > 0
        if any(row.stats is not None and not row.stats.is_finite for row in found.tensors):
            outcome = max(outcome, FOUND)
        if document is not None:
            document.add(found)
        else:
            if shown:
                print()
            shown += 1
            _write(_lines(found, arguments, screen))
        for row in found.tensors:
            if row.problem is not None:
                outcome = ERROR
                _complain(BurnstoreError(row.problem, path=path, tensor=row.name))
    if document is not None:
        document.end()
    if arguments.filter is not None and not matched:
        outcome = max(outcome, FOUND)
    return outcome


def _write(lines: Iterator[str]) -> None:
    """Print the lines, many at a time: printing each by itself takes longer than making it."""
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) >= _LINES_PER_WRITE:
            print("\n".join(batch))
            batch.clear()
    if batch:
        print("\n".join(batch))


def _lines(found: Inspection, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    yield screen.paint(escape(found.path), "1")
    yield from _summary(found, arguments, screen)
    if found.tensors:
        yield ""
        yield from render(_columns(found.tensors, arguments.stats), screen)
    if len(found.tensors) < found.selected.tensors:
        yield screen.paint(f"({found.selected.tensors - len(found.tensors):,} more; --limit {arguments.limit})", "2")
    alarming = [row for row in found.tensors if row.stats is not None and not row.stats.is_finite]
    if alarming:
        nans = sum(row.stats.nan_count for row in alarming if row.stats)
        infs = sum(row.stats.inf_count for row in alarming if row.stats)
        yield ""
        yield screen.paint(
            f"{len(alarming):,} of {_counted(len(found.tensors), 'tensor')} not finite: {nans:,} NaN, {infs:,} Inf",
            "1;31",
        )


def _summary(found: Inspection, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    total = found.total
    facts: list[tuple[str, list[str]]] = [
        ("format", [f"{found.format} ({escape(found.variant)})" if found.variant else found.format]),
        ("layout", [found.layout or "unknown"]),
        ("file", [f"{_exact_size(found.file_size)}, tensor data from byte {found.data_offset:,}"]),
        (
            "tensors",
            [
                f"{total.tensors:,} with {_counted(total.elements, 'parameter')}: {_exact_size(total.nbytes)}"
                if total.tensors
                else "none"
            ],
        ),
        (
            "dtypes",
            [f"{name}: {_counted(part.tensors, 'tensor')}, {size(part.nbytes)}" for name, part in found.dtypes.items()],
        ),
        ("schemes", _schemes(found.tensors)),
        ("metadata", [_entry(key, escape(value), screen) for key, value in found.metadata.items()]),
        ("scalars", [_entry(key, f"{one.value} ({one.kind})", screen) for key, one in found.scalars.items()]),
    ]
    if arguments.filter is not None:
        chosen = found.selected
        facts.append(
            (
                "filter",
                [
                    f"{escape(arguments.filter.pattern)} matches {_counted(chosen.tensors, 'tensor')} with "
                    f"{_counted(chosen.elements, 'parameter')}: {_exact_size(chosen.nbytes)}"
                    if chosen.tensors
                    else f"{escape(arguments.filter.pattern)} matches no tensor"
                ],
            )
        )
    for title, entries in facts:
        yield from _fact(title, entries, screen)


def _entry(key: str, value: str, screen: Screen) -> str:
    """A key and its value on one line of the screen; only text of any length is shortened, and on screen only."""
    shown = escape(key)
    if screen.columns is not None:
        shown = shorten(shown, _WIDEST_KEY_ON_SCREEN, screen.ellipsis)
        room = screen.columns - len(_MARGIN) - width(shown) - len(" = ")
        value = shorten(value, max(room, _WIDEST_KEY_ON_SCREEN), screen.ellipsis)
    return f"{shown} = {value}"


def _fact(title: str, entries: list[str], screen: Screen) -> Iterator[str]:
    most = len(entries) if screen.columns is None else _MOST_ENTRIES_ON_SCREEN
    for at, entry in enumerate(entries[:most]):
        yield (screen.paint(f"  {title:<10}", "2") if at == 0 else _MARGIN) + entry
    if len(entries) > most:
        yield screen.paint(f"{_MARGIN}({len(entries) - most:,} more; pipe, or --json, shows all)", "2")


def _schemes(rows: tuple[TensorRow, ...]) -> list[str]:
    return list(dict.fromkeys(str(row.dtype.scheme) for row in rows if row.dtype.scheme is not None))


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
        Column("OFFSET", [str(row.offset) for row in rows], right=True, spare=2),
    ]
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


def _exact_size(nbytes: int) -> str:
    return f"{size(nbytes)} ({nbytes:,} bytes)" if nbytes >= 1024 else _counted(nbytes, "byte")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class _Document:
    """The JSON document, written file by file, one tensor a line: quick to write, and easy to compare line by line."""

    def __init__(self) -> None:
        import json

        from burnstore import __version__

        # ASCII only: whatever the names are, no terminal acts on them and no encoding fails on them.
        self._encode = json.JSONEncoder(allow_nan=False).encode
        self._files = 0
        print(f'{{"burnstore": {self._encode(__version__)}, "schema": {_SCHEMA}, "files": [')

    def add(self, found: Inspection) -> None:
        fields = found.to_dict()
        tensors = fields.pop("tensors")
        self._next()
        head = self._encode({**fields, "error": None})
        print(f'{head[:-1]}, "tensors": [')
        _write(self._encode(row) + ("," if at < len(tensors) else "") for at, row in enumerate(tensors, 1))
        print("]}")

    def add_error(self, path: str, kind: str, error: BurnstoreError) -> None:
        facts = {fact: getattr(error, fact) for fact in ("message", "rule", "tensor", "offset", "hint")}
        shown = path.encode("utf-8", "backslashreplace").decode("utf-8")
        self._next()
        print(self._encode({"path": shown, "error": {"kind": kind, **facts}}))

    def end(self) -> None:
        print("]}")

    def _next(self) -> None:
        if self._files:
            print(",")
        self._files += 1


class _Progress:
    """A line on stderr about a long read: only in a terminal, only after a moment, and gone in the end."""

    def __init__(self) -> None:
        self.wanted = sys.stderr is not None and sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()
        self._visible = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown < (0.1 if self._visible else 0.5):
            return
        rate = done / 1e9 / (now - self._begun)
        print(f"\r\x1b[Kreading {size(done)} of {size(total)}, {rate:.1f} GB/s", end="", file=sys.stderr, flush=True)
        self._shown, self._visible = now, True

    def clear(self) -> None:
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _complain(error: BurnstoreError) -> None:
    sys.stdout.flush()  # so that the two streams, seen in one place, keep their order
    for line in f"burnstore: error: {error}".split("\n"):
        print(escape_controls(line), file=sys.stderr)


def _as_ours(path: str, error: BaseException) -> BurnstoreError:
    """The error in the words of our own, whoever raised it."""
    if isinstance(error, BurnstoreError):
        return error
    if isinstance(error, FileNotFoundError):
        return BurnstoreError("there is no such file", path=path, hint=_similar(path))
    if isinstance(error, MemoryError):
        return BurnstoreError("there is not enough memory", path=path, hint="without --stats only the header is read")
    return BurnstoreError(getattr(error, "strerror", None) or str(error), path=path)


def _similar(path: str) -> str | None:
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    try:
        close = get_close_matches(name, os.listdir(folder or os.curdir)[:10_000], n=1)
    except OSError:
        return f"nor is there a folder {printable(folder)}" if not os.path.lexists(folder) else None
    return f"did you mean {printable(os.path.join(folder, close[0]))}?" if close else None
