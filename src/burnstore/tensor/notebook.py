"""Notebook: the HTML that a notebook shows of a file. A table without script, in the colours of the notebook.

Everything is escaped, and there is neither a style sheet nor a script: so it looks the same wherever a notebook is
shown. Text has the colour of what surrounds it, and hues are translucent, which fits light and dark.
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

_MOST_ROWS = 20
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
    shown = "".join(f"<div>{_code(line)}</div>" for line in lines[:_MOST_ROWS])
    body = f'<div style="margin-top:.6em">{shown}{_more(len(lines))}</div>' if lines else ""
    return _panel(os.path.basename(first) or first, f"→ {os.path.basename(second) or second}", facts, body)


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
    heads = "".join(f'<th style="{_CELL};font-weight:normal;{_QUIET}">{title}</th>' for title in _TITLES)
    rows = []
    for name, dtype, shape in islice(zip(names, dtypes, shapes, strict=True), _MOST_ROWS):
        cells = (_code(name), _text(dtype), f" {_TIMES} ".join(map(str, shape)) or "scalar")
        rows.append("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>")
    return (
        '<table style="border-collapse:collapse;margin:.6em 0 0;font-size:.92em;background:none;color:inherit">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>{_more(len(names))}"
    )


def _more(total: int) -> str:
    return f'<div style="{_QUIET}">and {total - _MOST_ROWS:,} more</div>' if total > _MOST_ROWS else ""


def _code(text: str) -> str:
    return f'<code style="background:none;color:inherit">{_text(text)}</code>'


def _text(text: str) -> str:
    return html.escape(printable(text))
