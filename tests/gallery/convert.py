"""Follow an expected mapping (see expected/README.md) in plain NumPy; the converter of the tests, and no other's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.models.outline import Outline, outline_of

tomllib = __import__("tomllib")  # Python 3.11; the tests are skipped where it is not there

EXPECTED = Path(__file__).resolve().parent / "expected"


def rules_of(model: str) -> dict[str, Any]:
    """Read the expected mapping of a model."""
    found: dict[str, Any] = tomllib.loads((EXPECTED / f"{model}.toml").read_text(encoding="utf-8"))
    return found


def converted(checkpoint: Path, outline: Path, rules: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a checkpoint as the Burn model of an outline has them, in its order."""
    with bs.open(checkpoint) as source, bs.open(outline) as target:
        arrays = {name: source[name].numpy() for name in source}
        shapes = {name: tuple(target[name].shape) for name in target}
        declared = outline_of(target.metadata)
    assert declared is not None
    places = {_without_variants(path, declared): path for path in shapes}
    found = dict(_mapped(arrays, rules, numbers, declared, places))
    assert found.keys() == shapes.keys(), sorted(found.keys() ^ shapes.keys())
    for path, shape in shapes.items():
        assert found[path].shape == shape, f"{path}: {found[path].shape} instead of {shape}"
    return {path: np.ascontiguousarray(found[path]) for path in shapes}


def _mapped(
    arrays: Mapping[str, Any],
    rules: Mapping[str, Any],
    numbers: Mapping[str, Any],
    outline: Outline,
    places: Mapping[str, str],
) -> Iterator[tuple[str, Any]]:
    covered: dict[str, int] = dict.fromkeys(arrays, 0)
    for rule in (*rules["tensor"], *rules.get("drop", ())):
        matches = [(name, match) for name in arrays if (match := re.fullmatch(rule["source"], name))]
        assert matches or rule.get("optional"), f"{rule['source']} matches nothing"
        for name, match in matches:
            covered[name] += not rule.get("tie", False)
            for target, array in _pairs(rule, match, arrays[name]) if "target" in rule else ():
                path = places[target]
                yield path, _transformed(array, path, rule, numbers, outline)
    assert set(covered.values()) == {1}, [name for name, count in covered.items() if count != 1]


def _pairs(rule: Mapping[str, Any], match: re.Match[str], array: Any) -> Iterator[tuple[str, Any]]:
    targets = rule["target"] if isinstance(rule["target"], list) else [rule["target"]]
    parts = np.split(array, len(targets), rule["split"]["axis"]) if "split" in rule else [array]
    for target, part in zip(targets, parts, strict=True):
        yield target.format(match[0], *(_group(rule, number, text) for number, text in _groups(match))), part


def _groups(match: re.Match[str]) -> Iterator[tuple[int, str]]:
    return enumerate((text or "" for text in match.groups()), 1)


def _group(rule: Mapping[str, Any], number: int, text: str) -> str:
    offset = rule.get("offset", {}).get(str(number), 0)
    return str(int(text) + offset) if offset else rule.get("names", {}).get(text, text)


def _transformed(array: Any, path: str, rule: Mapping[str, Any], numbers: Mapping[str, Any], outline: Outline) -> Any:
    if "permute_rope" in rule:
        array = interleaved(array, numbers[rule["permute_rope"]["heads"]])
    owner, _, name = path.rpartition(".")
    is_matrix = outline.modules.get(owner) == "Struct:Linear" and name == "weight"
    if is_matrix and rule.get("axes") != "burn" and outline.layouts.get(owner) != "Col":
        array = array.T
    return array.reshape(rule["reshape"]) if "reshape" in rule else array


def interleaved(array: Any, heads: int) -> Any:
    """Bring the features of each head from halves, as Hugging Face rotates them, to neighbouring pairs."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _without_variants(path: str, outline: Outline) -> str:
    kept, above = [], ""
    for segment in path.split("."):
        if above not in outline.variants:
            kept.append(segment)
        above = f"{above}.{segment}" if above else segment
    return ".".join(kept)
