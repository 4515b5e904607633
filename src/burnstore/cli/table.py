"""Render a table of aligned columns: complete for a pipe, fitted to a terminal; fast for 100,000 rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .names import readable_width, shorten_names
from .text import Screen, shorten, width

_GAP = "  "
# Nothing is shortened for a pipe, but one name of 64 KiB must not widen every line.
_WIDEST_ALIGNED = 100
_NARROWEST = 4
_MOST_MEASURED = 5000  # names whose least width is worth computing


@dataclass(frozen=True, slots=True)
class Column:
    """A title and its cells. ``least`` is the width to which cells may be shortened, None for never.

    On a narrow terminal, columns are omitted in ascending order of ``spare``; columns without one stay.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    least: int | None = None
    spare: int | None = None
    style: str = ""
    names: bool = False  # Cells are names of tensors, which are shortened so that they stay different.
    alarm: bool = False  # Cells other than 0 and - are red.


def name_column(title: str, names: Sequence[str], screen: Screen, least: int = 20) -> Column:
    """Return a column of names of tensors; other columns give way before the names are too short to differ."""
    if screen.columns is not None and len(names) <= _MOST_MEASURED and max(map(len, names), default=0) > least:
        most, widest = screen.columns * 3 // 5, max(map(width, names))
        least = max(least, widest if widest <= most else min(readable_width(names, screen.ellipsis), most))
    return Column(title, names, least=least, names=True)


def render(columns: Sequence[Column], screen: Screen, instead: str = "or --json") -> Iterator[str]:
    """Yield the lines of the table, header first, and a last line with the omitted columns and ways to see them.

    >>> rows = [Column("NAME", ["a.weight", "b"]), Column("BYTES", ["24", "1024"], right=True)]
    >>> print("\\n".join(render(rows, Screen())))
    NAME      BYTES
    a.weight     24
    b          1024
    """
    most = _WIDEST_ALIGNED if screen.columns is None else sys.maxsize
    chosen = [(column, _natural_width(column, most)) for column in columns if not _is_empty(column)]
    left_out: list[str] = []
    if screen.columns is not None:
        chosen, left_out = _fit(chosen, screen.columns)
        chosen = _shrink(chosen, screen.columns)
    titles = [_fit_cells(column, [column.title], size, screen)[0] for column, size in chosen]
    yield screen.paint(_line(titles), "1")
    fitted = [_painted(column, _fit_cells(column, column.cells, size, screen), screen) for column, size in chosen]
    yield from map(_line, zip(*fitted, strict=True))
    if left_out:
        yield screen.paint(f"(no room for {', '.join(left_out)}: widen the terminal, or pipe, {instead})", "2")


def _is_empty(column: Column) -> bool:
    """Return whether a column that may be omitted has nothing to show."""
    return column.spare is not None and len(column.cells) > 0 and all(cell in ("-", "") for cell in column.cells)


def _natural_width(column: Column, most: int) -> int:
    """Return the width of the widest cell up to ``most``."""
    sizes = map(len, column.cells) if _is_plain(column.cells) else map(width, column.cells)
    return max(size for size in (width(column.title), *sizes) if size <= most)


def _is_plain(cells: Sequence[str]) -> bool:
    """Return whether every character takes one place, so that Python's own functions can measure and pad."""
    return "".join(cells).isascii()


def _fit(chosen: list[tuple[Column, int]], room: int) -> tuple[list[tuple[Column, int]], list[str]]:
    """Return the columns that fit when all are as narrow as allowed, and the titles of the omitted ones."""
    kept, left_out = list(chosen), []
    for column, _ in sorted(chosen, key=lambda item: item[0].spare or 0):
        needed = sum(min(size, c.least or size) for c, size in kept) + len(_GAP) * (len(kept) - 1)
        if needed <= room:
            break
        if column.spare is not None:
            kept = [item for item in kept if item[0] is not column]
            left_out.append(column.title)
    return kept, [column.title for column, _ in chosen if column.title in left_out]


def _shrink(chosen: list[tuple[Column, int]], room: int) -> list[tuple[Column, int]]:
    """Return widths that fit: the widest column that may be shortened shrinks first."""
    sizes = [size for _, size in chosen]
    excess = sum(sizes) + len(_GAP) * (len(sizes) - 1) - room
    least = {at: column.least for at, (column, _) in enumerate(chosen) if column.least is not None}
    for floors in (least, dict.fromkeys(least, _NARROWEST)):
        while excess > 0 and (able := [at for at, floor in floors.items() if sizes[at] > floor]):
            widest = max(able, key=sizes.__getitem__)
            next_widest = max((sizes[at] for at in able if at != widest), default=0)
            step = max(1, min(excess, sizes[widest] - max(floors[widest], next_widest)))
            sizes[widest] -= step
            excess -= step
    return [(column, size) for (column, _), size in zip(chosen, sizes, strict=True)]


def _fit_cells(column: Column, cells: Sequence[str], size: int, screen: Screen) -> list[str]:
    """Return the cells padded to the width; wider cells are shortened on a screen and stay wider elsewhere."""
    if screen.columns is not None and column.names:
        cells = shorten_names(cells, size, screen.ellipsis)
    elif screen.columns is not None:
        cells = [shorten(cell, size, screen.ellipsis) for cell in cells]
    if _is_plain(cells):
        return [cell.rjust(size) for cell in cells] if column.right else [cell.ljust(size) for cell in cells]
    if column.right:
        return [" " * (size - width(cell)) + cell for cell in cells]
    return [cell + " " * (size - width(cell)) for cell in cells]


def _painted(column: Column, fitted: list[str], screen: Screen) -> list[str]:
    if not screen.colour or not (column.style or column.alarm):
        return fitted
    if column.alarm:
        return [
            shown if cell in ("0", "-") else screen.paint(shown, "1;31")
            for cell, shown in zip(column.cells, fitted, strict=True)
        ]
    return [screen.paint(shown, column.style) for shown in fitted]


def _line(cells: Sequence[str]) -> str:
    return _GAP.join(cells).rstrip()
