"""The summary of a file: what it is and how much it holds, a fact a line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..jobs.inspect.inspect import Inspection, TensorRow, Totals
from .text import Screen, counted, escape, shorten, size, width

_MOST_ENTRIES_ON_SCREEN = 24
_WIDEST_KEY_ON_SCREEN = 32
_MARGIN = " " * 12


def summary_lines(found: Inspection, pattern: re.Pattern[str] | None, screen: Screen) -> Iterator[str]:
    """The lines of the summary; the pattern is the one that selected tensors, if there was one."""
    begins = any(row.offset is not None for row in found.tensors)
    facts: list[tuple[str, Sequence[str]]] = [
        ("format", [f"{found.format} ({escape(found.variant)})" if found.variant else found.format]),
        ("layout", [found.layout or "unknown"]),
        ("file", [_exact_size(found.file_size) + (f", tensor data from byte {found.data_offset:,}" if begins else "")]),
        ("tensors", [_amount(found.total, "") if found.total.tensors else "none"]),
        (
            "dtypes",
            [
                f"{name}: {counted(part.tensors, 'tensor')}, {counted(part.elements, 'parameter')}, {size(part.nbytes)}"
                for name, part in found.dtypes.items()
            ],
        ),
        ("schemes", _schemes(found.tensors)),
        ("metadata", [_entry(key, escape(value), screen) for key, value in found.metadata.items()]),
        ("scalars", [_entry(key, f"{one.value} ({one.kind})", screen) for key, one in found.scalars.items()]),
        ("notes", [escape(note) for note in found.notes]),
    ]
    if pattern is not None:
        matches = _amount(found.selected, " tensor") if found.selected.tensors else "no tensor"
        facts.append(("filter", [f"{escape(pattern.pattern)} matches {matches}"]))
    for title, entries in facts:
        yield from _fact(title, entries, screen)


def _amount(total: Totals, noun: str) -> str:
    tensors = f"{total.tensors:,}{noun}{'s' if noun and total.tensors != 1 else ''}"
    return f"{tensors} with {counted(total.elements, 'parameter')}: {_exact_size(total.nbytes)}"


def _exact_size(nbytes: int) -> str:
    return f"{size(nbytes)} ({nbytes:,} bytes)" if nbytes >= 1024 else counted(nbytes, "byte")


def _schemes(rows: tuple[TensorRow, ...]) -> list[str]:
    return list(dict.fromkeys(str(row.dtype.scheme) for row in rows if row.dtype.scheme is not None))


def _entry(key: str, value: str, screen: Screen) -> str:
    """A key and its value on one line of the screen; only text of any length is shortened, and on screen only."""
    shown = escape(key)
    if screen.columns is not None:
        shown = shorten(shown, _WIDEST_KEY_ON_SCREEN, screen.ellipsis)
        room = screen.columns - len(_MARGIN) - width(shown) - len(" = ")
        value = shorten(value, max(room, _WIDEST_KEY_ON_SCREEN), screen.ellipsis)
    return f"{shown} = {value}"


def _fact(title: str, entries: Sequence[str], screen: Screen) -> Iterator[str]:
    most = len(entries) if screen.columns is None else _MOST_ENTRIES_ON_SCREEN
    for at, entry in enumerate(entries[:most]):
        yield (screen.paint(f"  {title:<10}", "2") if at == 0 else _MARGIN) + entry
    if len(entries) > most:
        yield screen.paint(f"{_MARGIN}({len(entries) - most:,} more; pipe, or --json, shows all)", "2")
