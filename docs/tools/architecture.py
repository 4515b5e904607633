"""Draw docs/architecture.svg from the imports of the package.

    python docs/tools/architecture.py [--check]

A box is a package or a file of ``src/burnstore``, and stands above everything that it imports. An arrow stands for
imports, with their number. To keep the picture readable, an arrow is drawn only where no longer way leads to the same
box; the other imports are listed in the box. ``--check`` writes nothing and fails if the picture is not current.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "burnstore"
PICTURE = ROOT / "docs" / "architecture.svg"
BASE = ("errors", "limits", "progress")  # one box: nearly everything imports them, and they import nothing
BASE_NAME = "errors · limits · progress"

WIDTH, ROW, BOX_HEIGHT, BOX_WIDTH, MARGIN = 1000, 112, 66, 290, 20


# --- imports ----------------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, Path]:
    """Return the modules of the package by their dotted names below it; the package itself is ``""``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> dict[str, set[str]]:
    """Return which modules each module imports, also inside functions and for type checkers."""
    return {name: set(_imported(name)) - {name} for name in modules()}


def _imported(name: str) -> Iterator[str]:
    path = modules()[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    nodes: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while nodes:
        node = nodes.pop()
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (_known(alias.name) for alias in node.names if alias.name.startswith("burnstore"))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            whole = ".".join([*filter(None, base), *(node.module or "").split(".")]).strip(".")
            if node.level or whole.startswith("burnstore"):
                whole = whole if node.level else whole.removeprefix("burnstore").strip(".")
                yield from (_known(f"{whole}.{alias.name}".strip("."), whole) for alias in node.names)


def _known(*names: str) -> str:
    """Return the first name that is a module: ``from .a import b`` imports the module ``a.b``, or a name in ``a``."""
    return next(
        (name for name in (each.removeprefix("burnstore").strip(".") for each in names) if name in modules()), ""
    )


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reached = {name: _below(name, graph) for name in graph}
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted(list(group) for group in groups if group)


def _below(name: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        fresh = graph[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return found


# --- boxes ------------------------------------------------------------------------------------------------------------


def boxes() -> dict[str, Counter[str]]:
    """Return the boxes, and how many imports each has of each other one."""
    found: dict[str, Counter[str]] = {}
    for name, targets in imports().items():
        if name in ("", "__main__"):  # they hold the surface together, and import nearly everything
            continue
        own = found.setdefault(_box(name), Counter())
        own.update(_box(target) for target in targets if target and _box(target) != _box(name))
    return {name: found[name] for name in sorted(found)}


def _box(module: str) -> str:
    first = module.split(".")[0]
    return BASE_NAME if first in BASE else first


def layers(graph: dict[str, Counter[str]]) -> list[list[str]]:
    """Return the boxes by height: each stands one layer above the highest box that it imports."""
    heights: dict[str, int] = {}

    def height(name: str, above: tuple[str, ...] = ()) -> int:
        if name in above:
            raise SystemExit(f"imports run in a circle: {' -> '.join([*above, name])}")
        if name not in heights:
            heights[name] = max((height(other, (*above, name)) + 1 for other in graph[name]), default=0)
        return heights[name]

    for name in graph:
        height(name)
    return [[name for name in graph if heights[name] == at] for at in range(max(heights.values()) + 1)]


def drawn(graph: dict[str, Counter[str]]) -> set[tuple[str, str]]:
    """Return the imports that get an arrow: those to which no longer way leads."""
    plain = {name: set(targets) for name, targets in graph.items()}
    return {
        (name, target)
        for name, targets in plain.items()
        for target in targets
        if not any(target in _below(other, plain) for other in targets - {target})
    }


# --- the picture ------------------------------------------------------------------------------------------------------

STYLE = """
  rect.page { fill: #ffffff; }
  rect.box { fill: #fff4ef; stroke: #d84315; stroke-width: 1.2; }
  text { font-family: system-ui, sans-serif; fill: #222222; text-anchor: middle; }
  text.name { font-size: 17px; font-weight: 600; }
  text.more { font-size: 11px; fill: #666666; }
  text.count { font-size: 12px; fill: #a53a10; paint-order: stroke; stroke: #ffffff; stroke-width: 4px; }
  path { fill: none; stroke: #b0694e; stroke-width: 1.4; marker-end: url(#tip); }
  #tip path { fill: #b0694e; stroke: none; marker-end: none; }
"""


def picture() -> str:
    """Return the SVG."""
    graph = boxes()
    rows = layers(graph)
    arrows = drawn(graph)
    height = ROW * len(rows) - (ROW - BOX_HEIGHT) + 2 * MARGIN
    middle: dict[str, tuple[float, float]] = {}
    for at, row in enumerate(rows):
        y = height - MARGIN - BOX_HEIGHT / 2 - at * ROW
        ordered = sorted(row, key=lambda name: (_centre(name, arrows, middle), name))
        for place, name in enumerate(ordered):
            middle[name] = (WIDTH * (place + 0.5) / len(row), y)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="The parts of burnstore and their imports">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
    ]
    for name, target in sorted(arrows):
        (x, y), (to_x, to_y) = middle[name], middle[target]
        start, end = y + BOX_HEIGHT / 2, to_y - BOX_HEIGHT / 2
        bend = (end - start) / 2
        lines.append(f'<path d="M{x:g},{start:g} C{x:g},{start + bend:g} {to_x:g},{end - bend:g} {to_x:g},{end:g}"/>')
        part = 0.5 if end - start < ROW else 0.06  # the middle of a long arrow is behind a box
        at_x, at_y = x + (to_x - x) * part, start + (end - start) * (part if part == 0.5 else 0.15)
        lines.append(_text("count", at_x, at_y + 4, str(graph[name][target])))
    for name, (x, y) in sorted(middle.items()):
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        rest = [f"{target} {count}" for target, count in _most_first(graph[name]) if (name, target) not in arrows]
        lines.append(f'<rect class="box" x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>')
        below = _wrapped(rest)
        lines.append(_text("name", x, y + 6 - 8 * len(below), name))
        for at, line in enumerate(below):
            lines.append(_text("more", x, y + 22 - 8 * len(below) + 14 * at, line))
    return "\n".join([*lines, "</svg>", ""])


def _most_first(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def _centre(name: str, arrows: set[tuple[str, str]], middle: dict[str, tuple[float, float]]) -> float:
    """Return where the boxes below are to which a box has arrows: in that order, arrows cross least."""
    places = [middle[target][0] for source, target in sorted(arrows) if source == name]
    return sum(places) / len(places) if places else WIDTH / 2


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{text}</text>'


def _wrapped(words: list[str]) -> list[str]:
    """Return the other imports of a box as lines that fit into it."""
    whole = (word.replace(BASE_NAME, "errors").replace(" ", "\N{NO-BREAK SPACE}") for word in words)
    return textwrap.wrap(", ".join(whole), 46)


def main(arguments: list[str]) -> int:
    """Write the picture, or with ``--check`` compare it."""
    if "--check" in arguments:
        return 0 if PICTURE.is_file() and PICTURE.read_text("utf-8") == picture() else 1
    PICTURE.write_text(picture(), "utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
