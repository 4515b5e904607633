"""Rules: pairs of tensors as the data of a rules file, one rule for all that differ in numbers only."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...transforms.recipe import template

_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?!\d)")


class Row(NamedTuple):
    """A tensor on its way: names, and what is done."""

    sources: tuple[str, ...]
    target: str
    cut: tuple[int, int, int] | None
    steps: tuple[tuple[str, Any], ...]
    evidence: str
    mark: str = ""
    """What the pair rests on besides shapes and names: ``order`` of numbers or fields, or places in a ``list``."""

    heads: int = 0
    """Of a part: the number of heads within which the parts lie; 0 if they are one after the other."""


def rules_of(
    rows: Sequence[Row], sources: Sequence[str], targets: Sequence[str], *, tie: bool = False
) -> list[dict[str, Any]]:
    """Return rows as rules, one for all that differ in numbers only."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        skeletons = [_NUMBER.sub("#", name) for name in (*row.sources, row.target)]
        grouped.setdefault((*skeletons, row.cut, row.heads, json.dumps(row.steps)), []).append(row)
    found = [family for alike in grouped.values() for family in _families(alike, sources, targets)]
    order = {row.target: at for at, row in enumerate(rows)}
    found.sort(key=lambda family: order[family[2].target])
    parts: dict[tuple[Any, ...], list[tuple[str, Row]]] = {}
    for sources, target, row in found:
        alike = [step for step in row.steps if step[0] != "permute_rope"]
        own: tuple[Any, ...] = (sources, json.dumps(alike)) if row.cut is not None else (sources, target)
        parts.setdefault(own, []).append((target, row))
    return [_rule(key[0], members, tie=tie) for key, members in parts.items()]


def _families(
    rows: Sequence[Row], sources: Sequence[str], targets: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], str, Row]]:
    """Yield rows of one form as rules: sources, target, and one of its rows.

    A number that varies gets a placeholder if it is in step with one of the target, and one of the two is a place in a
    list. Rows are divided by other numbers, and where another tensor has the same form and goes elsewhere.
    """
    names = [(*row.sources, row.target) for row in rows]
    last = len(names[0]) - 1
    values: dict[tuple[int, int], tuple[int, ...]] = {}
    for at in range(len(names[0])):
        columns = zip(*(map(int, _NUMBER.findall(each[at])) for each in names), strict=True)
        values |= {(at, place): column for place, column in enumerate(columns) if len(set(column)) > 1}
    forms: dict[tuple[int, int], str] = {}
    for letter, wanted in zip("ijklmnopqrstuvwxyz", [key for key in values if key[0] == last], strict=False):
        found: dict[int, tuple[tuple[int, int], int]] = {}
        for key in values:
            steps = {a - b for a, b in zip(values[key], values[wanted], strict=True)}
            is_listed = any(_is_place(names[0][at], place) for at, place in (key, wanted))
            if key[0] < last and len(steps) == 1 and key not in forms and is_listed:
                found.setdefault(key[0], (key, steps.pop()))
        if len(found) == last:
            forms |= {key: f"{{{letter}{step:+d}}}" if step else f"{{{letter}}}" for key, step in found.values()}
            forms[wanted] = f"{{{letter}}}"
    formed = tuple(
        _formed(name, {key[1]: form for key, form in forms.items() if key[0] == at}) for at, name in enumerate(names[0])
    )
    given, made = template(formed[0]), template(formed[-1])
    is_exact = {name for name in sources if given.match(name) is not None} == {row.sources[0] for row in rows}
    is_exact = is_exact and {name for name in targets if made.match(name) is not None} == {row.target for row in rows}
    divides = next((key for key in values if key not in forms), next(iter(values), None) if not is_exact else None)
    if divides is None:
        yield formed[:-1], formed[-1], rows[0]
    else:
        for value in dict.fromkeys(values[divides]):
            members = [row for row, own in zip(rows, values[divides], strict=True) if own == value]
            yield from _families(members, sources, targets)


def _is_place(name: str, place: int) -> bool:
    """Return whether a number of a name is a segment of its own."""
    found = list(_NUMBER.finditer(name))[place]
    return (name[: found.start()] or ".")[-1] == "." == (name[found.end() :] or ".")[0]


def _formed(name: str, forms: Mapping[int, str]) -> str:
    """Return a name with placeholders in place of some of its numbers."""
    counted = itertools.count()
    return _NUMBER.sub(lambda found: forms.get(next(counted), found[0]), name)


def _rule(sources: tuple[str, ...], members: list[tuple[str, Row]], *, tie: bool) -> dict[str, Any]:
    row = members[0][1]
    rule: dict[str, Any] = {"source": sources[0] if len(sources) == 1 else list(sources)}
    if row.cut is None:
        rule["target"] = members[0][0]
    else:
        members.sort(key=lambda member: member[1].cut[1])  # type: ignore[index]  # all of them are parts
        rule["target"] = [target for target, _ in members]
        sizes = [each.cut[2] - each.cut[1] for _, each in members if each.cut is not None]
        rule |= {"axis": row.cut[0]} if row.cut[0] else {}
        rule |= {"heads": row.heads} if row.heads else {}
        rule |= {"sizes": sizes} if len(set(sizes)) > 1 else {}
        heads = [dict(each.steps).get("permute_rope", {"heads": 0})["heads"] for _, each in members]
        rule |= {"permute_rope": {"heads": heads}} if any(heads) else {}
    rule |= {key: value for key, value in row.steps if key not in rule}
    return {**rule, "tie": True} if tie else rule


def families_of(dropped: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is dropped, by the last name where it is a buffer."""
    seen: set[tuple[str, str]] = set()
    for name, why in dropped.items():
        leaf = name.rpartition(".")[2]
        form = name if why.startswith("equal") or leaf == name else f"*.{leaf}"
        if (form, why) not in seen:
            seen.add((form, why))
            yield form, why


def toml(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {toml(held)}' for key, held in value.items())} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
