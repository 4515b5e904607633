"""Make the HTML that a notebook shows of files and results, in the colours of the notebook.

Everything is escaped. Tables fold and scroll without a script; where a notebook runs none, only the search field above
a long table does nothing. Text has the colour of its surroundings, and hues are translucent, which fits light and dark.
"""

from __future__ import annotations

import html
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from ..errors import printable

_MOST_ROWS = 500
_SEARCHED_FROM = 12  # rows
_MOST_COLUMNS = 7
_MOST_FACTS = 8
_SEARCH = (
    "const t=this.value.toLowerCase();for(const r of this.parentNode.querySelectorAll('tbody tr'))"
    "r.style.display=r.textContent.toLowerCase().includes(t)?'':'none'"
)
_TIMES = "\u00d7"
_TITLES = ("name", "dtype", "shape")
_MOST_SHARES = 6
_LINE = "1px solid rgba(128,128,128,.35)"
_QUIET = "opacity:.75"
_CELL = "padding:.15em 1.2em .15em 0;text-align:left;background:none"
_HUES = ("226,106,60", "70,130,190", "140,160,60", "210,160,50", "140,110,190", "60,160,140", "140,130,120")


def tensors_panel(
    path: str,
    kind: str,
    layout: str | None,
    names: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
    nbytes: int,
) -> str:
    """Return the panel of a file: its size, where its parameters are, and the first of its tensors.

    >>> shown = tensors_panel("dir/<b>.bpk", "burnpack", "burn", ["a.w"], ["F32"], [(2, 3)], 24)
    >>> "&lt;b&gt;.bpk" in shown, "<script" in shown, "2 × 3" in shown
    (True, False, True)
    """
    elements = [math.prod(shape) for shape in shapes]
    facts = {
        "tensors": f"{len(names):,}",
        "parameters": f"{sum(elements):,}",
        "data": f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes:,} bytes",
        "dtypes": ", ".join(name for name, _ in Counter(dtypes).most_common()) or "none",
        "layout": layout or "unknown",
    }
    body = _bar(_shares(names, elements)) + _table(names, dtypes, shapes)
    return _panel(os.path.basename(path) or path, kind, facts, body)


def changes_panel(first: str, second: str, counts: Mapping[Any, int], lines: Sequence[str]) -> str:
    """Return the panel of the difference of two files: how many tensors became what, and the first of the lines.

    >>> shown = changes_panel("a.bpk", "b.bpk", {"equal": 2, "moved": 0, "changed": 1}, ["changed: w: by 0.5"])
    >>> "changed: w: by 0.5" in shown, "moved" in shown
    (True, False)
    """
    facts = {status: f"{count:,}" for status, count in counts.items() if count} or {"tensors": "none"}
    body = _folded((), [(_code(line),) for line in lines[:_MOST_ROWS]], len(lines), "difference") if lines else ""
    return _panel(os.path.basename(first) or first, f"→ {os.path.basename(second) or second}", facts, body)


def records_panel(title: str, document: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """Return what a notebook shows of a result: its facts, its rows, and its notes.

    >>> shown = records_panel("Saved", {"path": "m.bpk", "ok": True, "notes": ["<b>"]}, [{"name": "a", "why": None}])
    >>> "m.bpk" in shown, "&lt;b&gt;" in shown, "<th" in shown, "why" in shown
    (True, True, True, False)
    """
    path = document.get("path") or document.get("source") or ""
    facts = {
        key.replace("_", " "): f"{value:,}" if type(value) is int else str(value)
        for key, value in document.items()
        if isinstance(value, (str, int, float)) and key not in ("path", "source")
    }
    names = dict.fromkeys(key for row in records[:_MOST_ROWS] for key in row)
    shown = [key for key in names if any(row.get(key) not in (None, [], "") for row in records)][:_MOST_COLUMNS]
    rows = [[_cell(row.get(key)) for key in shown] for row in records[:_MOST_ROWS]]
    notes = document.get("notes") or ()
    body = _folded(shown, rows, len(records), "row") if records else ""
    if notes:
        body += _folded((), [(_text(str(note)),) for note in notes[:_MOST_ROWS]], len(notes), "note")
    return _panel(title, os.path.basename(str(path)), dict(islice(facts.items(), _MOST_FACTS)), body)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return _text(f" {_TIMES} ".join(map(str, value)))
    return "" if value is None else _text(f"{value:.4g}" if isinstance(value, float) else str(value))


def _panel(title: str, subtitle: str, facts: Mapping[str, str], body: str) -> str:
    shown = "".join(
        f'<span style="margin-right:1.6em"><span style="{_QUIET}">{_text(name)}</span> <b>{_text(value)}</b></span>'
        for name, value in facts.items()
    )
    return (
        f'<div style="border:{_LINE};border-radius:8px;padding:.8em 1.1em;max-width:60em;line-height:1.5">'
        f'<div><b style="font-size:1.15em">{_text(title)}</b> <span style="{_QUIET}">{_text(subtitle)}</span></div>'
        f"<div>{shown}</div>{body}</div>"
    )


def _shares(names: Sequence[str], elements: Sequence[int]) -> Mapping[str, int]:
    """Count the parameters below each module: the outermost ones, or those inside where there is only one."""
    depth = 0
    while True:
        sums: Counter[str] = Counter()
        for name, count in zip(names, elements, strict=True):
            sums[".".join(name.split(".", depth + 1)[: depth + 1])] += count
        if len(sums) != 1 or depth >= _MOST_SHARES or next(iter(sums), "") in names:
            break
        depth += 1
    shown = {name: count for name, count in sums.most_common(_MOST_SHARES) if count}
    rest = sums.total() - sum(shown.values())
    return {**shown, "others": rest} if rest else shown


def _bar(shares: Mapping[str, int]) -> str:
    total = sum(shares.values())
    if not total:
        return ""
    parts, words = [], []
    for (name, count), hue in zip(shares.items(), _HUES, strict=False):
        parts.append(f'<div style="flex:{count / total:.4f} 0 2px;background:rgba({hue},.8)"></div>')
        words.append(
            f'<span style="margin-right:1.2em"><span style="color:rgb({hue})">■</span> {_text(name)} '
            f'<span style="{_QUIET}">{100 * count / total:.0f} %</span></span>'
        )
    return (
        f'<div style="display:flex;gap:2px;height:.6em;margin:.5em 0 .2em;border-radius:4px;overflow:hidden">'
        f'{"".join(parts)}</div><div style="font-size:.92em">{"".join(words)}</div>'
    )


def _table(names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> str:
    rows = [
        (_code(name), _text(dtype), f" {_TIMES} ".join(map(str, shape)) or "scalar")
        for name, dtype, shape in islice(zip(names, dtypes, shapes, strict=True), _MOST_ROWS)
    ]
    return _folded(_TITLES, rows, len(names), "tensor")


def _folded(titles: Sequence[str], rows: Sequence[Sequence[str]], total: int, noun: str) -> str:
    """Return a table that folds and scrolls, with a field to search it if it is long; cells are HTML."""
    heads = "".join(f'<th style="{_CELL};font-weight:normal;{_QUIET}">{_text(title)}</th>' for title in titles)
    body = "".join("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    search = f'<input type="search" placeholder="search" oninput="{_SEARCH}">' if len(rows) >= _SEARCHED_FROM else ""
    more = f'<div style="{_QUIET}">and {total - len(rows):,} more</div>' if total > len(rows) else ""
    return (
        f'<details open style="margin-top:.6em"><summary style="{_QUIET}">{total:,} {noun}{"" if total == 1 else "s"}'
        f'</summary>{search}<div style="max-height:24em;overflow:auto"><table style="border-collapse:collapse;'
        f'font-size:.92em;background:none;color:inherit"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
        f"</div>{more}</details>"
    )


def _code(text: str) -> str:
    return f'<code style="background:none;color:inherit">{_text(text)}</code>'


def _text(text: str) -> str:
    return html.escape(printable(text))
