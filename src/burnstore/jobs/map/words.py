"""Words: what names mean, whatever their authors call it. The table of synonyms is data, in ``synonyms.json``."""

from __future__ import annotations

import functools
import pkgutil
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...io.documents import read_json

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBERED = re.compile(r"(\D*[^\d.])(\d+)")
_LAST = 1.0
_ABOVE = 0.6
"""A word counts less the further it is from the end of a path."""


@functools.cache
def table() -> Mapping[str, Any]:
    """Return the table of synonyms and conventions."""
    source = pkgutil.get_data(__name__, "synonyms.json")
    assert source is not None
    synonyms: dict[str, Any] = read_json(source, into=dict[str, Any])
    return synonyms


def spoken(path: str) -> str:
    """Return a path as words in lower case, with slashes between its segments.

    >>> spoken("encoder.layer_norm1.LayerNorm")
    'encoder / layer norm 1 / layer norm'
    """
    return " / ".join(" ".join(_WORD.findall(segment)).lower() for segment in path.split("."))


@functools.cache
def _replacer(section: str, *, with_numbers: bool = True) -> tuple[re.Pattern[str], Mapping[str, str]]:
    meanings = {phrase: meaning for meaning, phrases in table()[section].items() for phrase in phrases}
    if not with_numbers:  # a place in a sequence of one, such as "to out / 0", is no choice
        meanings = {phrase: word for phrase, word in meanings.items() if not re.search(r"(?<!/ )\d", phrase)}
    if section != "spelling":  # phrases are found in text that is spelt alike
        meanings = {_replaced(phrase, *_replacer("spelling")): meaning for phrase, meaning in meanings.items()}
    longest = sorted(meanings, key=len, reverse=True)
    if not longest:
        return re.compile(r"(?!)"), {}
    return re.compile(r"(?<![^ ])(?:" + "|".join(map(re.escape, longest)) + r")(?![^ ])"), meanings


def _replaced(text: str, pattern: re.Pattern[str], meanings: Mapping[str, str]) -> str:
    return pattern.sub(lambda found: meanings[found[0]], text)


@functools.lru_cache(maxsize=65536)
def meaning(
    path: str, *, sections: tuple[str, ...] = (), is_flat: bool = False, with_numbers: bool = True
) -> Mapping[str, float]:
    """Return the words of a path in their common spelling, each with its weight; all the same if ``is_flat``.

    ``sections`` of the table hold besides: in a block with attention, a norm is called by the layer it belongs to.
    Without ``with_numbers`` a number stands for nothing else: ``norm1`` is no attention's norm, ``w3`` no ``up``.

    >>> sorted(meaning("h.attn.q_proj")), sorted(meaning("blocks.attention.query"))
    (['attention', 'layer', 'query'], ['attention', 'layer', 'query'])
    """
    text = spoken(path)
    for section in ("spelling", *sections, "words"):
        text = _replaced(text, *_replacer(section, with_numbers=with_numbers))
    weights: dict[str, float] = {}
    weight = _LAST
    for segment in reversed(text.split(" / ")):
        words = segment.split()
        before = ""
        for word in words[1:] if words and words[0].isdecimal() else words:  # a place in a list is no name
            word = word[:-1] if re.search(r"[^su]s$", word) and len(word) > 3 else word  # a plural
            word = f"{before} {word}".strip() if word.isdecimal() else word  # fc2 and norm2 have no 2 in common
            weights[word], before = max(weights.get(word, 0.0), weight), word
        weight *= 1.0 if is_flat else _ABOVE
    return weights


def one_based(paths: Sequence[str]) -> list[str]:
    """Return paths in which numbered names of one owner begin with 1: ``ln_0``, ``ln_1`` are ``ln_1``, ``ln_2``."""
    found: dict[tuple[str, str], set[int]] = {}
    for path in paths:
        segments = path.split(".")
        for at, segment in enumerate(segments):
            numbered = _NUMBERED.fullmatch(segment)
            if numbered is not None:
                found.setdefault((".".join(segments[:at]), numbered[1]), set()).add(int(numbered[2]))
    zero_based = {key for key, numbers in found.items() if 0 in numbers}
    return [_shifted(path.split("."), zero_based) for path in paths] if zero_based else list(paths)


def _shifted(segments: Sequence[str], zero_based: set[tuple[str, str]]) -> str:
    shifted = []
    for at, segment in enumerate(segments):
        numbered = _NUMBERED.fullmatch(segment)
        is_shifted = numbered is not None and (".".join(segments[:at]), numbered[1]) in zero_based
        shifted.append(f"{numbered[1]}{int(numbered[2]) + 1}" if numbered is not None and is_shifted else segment)
    return ".".join(shifted)


def roles_below(names: Iterable[str]) -> list[str]:
    """Return the roles, such as attention, that the names below a module have; none if they have several."""
    found = {tuple(word for word in table()["roles"] if word in meaning(name)) for name in names} - {()}
    return list(found.pop()) if len(found) == 1 else []


def likeness(one: Mapping[str, float], other: Mapping[str, float], rarity: Mapping[str, float]) -> float:
    """Return how much two meanings have in common, from 0 to 1; rare words count more."""
    shared = sum(min(weight, other[word]) * rarity[word] for word, weight in one.items() if word in other)
    total = sum(weight * rarity[word] for word, weight in one.items())
    total += sum(weight * rarity[word] for word, weight in other.items())
    return 2 * shared / total if total else 0.0
