"""The first bytes of a file: where, in hexadecimal, as text, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator

from ..jobs.inspect.anatomy import Anatomy
from .table import Column, render
from .text import Screen

_ROW = 16
_MOST_ROWS = 4


def hex_lines(found: Anatomy, screen: Screen) -> Iterator[str]:
    """The lines of the table: every part begins one, and long parts are cut."""
    rows: list[tuple[str, str, str, str]] = []
    for part in found.parts:
        shown = found.bytes_of(part)[: _ROW * _MOST_ROWS]
        for start in range(0, len(shown), _ROW):
            row = shown[start : start + _ROW]
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            rows.append((f"{part.offset + start:08x}", row.hex(" "), text, "" if start else part.meaning))
        if not shown:  # beyond the first bytes that were read
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
