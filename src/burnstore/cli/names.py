"""Shorten the names of tensors for a narrow column so that they stay different."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from .text import shorten, width

_SEPARATOR = re.compile(r"([./])")
_DIGITS = re.compile(r"[0-9]+")
_ARROW = " -> "
_NUMBER = "\0"  # stands for the digits of a name; `escape` leaves no such character in names
_LONGEST = 24  # letters of a segment that is cut
_READABLE = 3  # letters of a segment that other columns give way to


def shorten_names(names: Sequence[str], room: int, ellipsis: str = "…") -> list[str]:
    """Return the names in at most ``room`` cells each; numbers, and the letters that distinguish names, stay.

    Names that differ only in numbers are shortened in the same way. First the segments that all names with the same
    beginning share are left out. Then other segments are cut, and the first and last ones at last.

    >>> names = [f"model.layers.{at}.self_attention.{part}.weight" for at in (9, 10) for part in ("query", "key")]
    >>> print(*shorten_names(names, 25), sep=chr(10))
    model.….9.….query.weight
    model.….9.….key.weight
    model.….10.….query.weight
    model.….10.….key.weight
    """
    if all(width(name) <= room for name in names):
        return list(names)
    if any(_ARROW in name for name in names):  # of a tensor that moved: both names are shortened
        half = max((room - len(_ARROW)) // 2, 1)
        moved = [name.split(_ARROW, 1) for name in names if _ARROW in name]
        sides = [shorten_names([both[at] for both in moved], half, ellipsis) for at in (0, 1)]
        arrows = (_ARROW.join(both) for both in zip(*sides, strict=True))
        others = iter(shorten_names([name for name in names if _ARROW not in name], room, ellipsis))
        return [next(arrows if _ARROW in name else others) for name in names]
    shortener = _Shortener(names, ellipsis)
    forms: dict[str, str] = {}
    for _, block in groupby(sorted(shortener.patterns), _block_of):
        patterns = list(block)
        level = shortener.level_for(patterns, room)
        forms.update((pattern, shortener.form(pattern, level)) for pattern in patterns)
    return [shorten(_filled(forms[_DIGITS.sub(_NUMBER, name)], name), room, ellipsis) for name in names]


def readable_width(names: Sequence[str], ellipsis: str = "…") -> int:
    """Return the width to which all names can be shortened and still be read."""
    shortener = _Shortener(names, ellipsis)
    return max((shortener.width(pattern, 2 * _LONGEST - _READABLE) for pattern in shortener.patterns), default=0)


class _Shortener:
    """The patterns of names (numbers left out) and how each is written at a level: higher ones are shorter."""

    def __init__(self, names: Iterable[str], ellipsis: str) -> None:
        self._ellipsis = ellipsis
        self.patterns: dict[str, int] = {}
        """Each pattern with the most digits that a name of it has."""
        for name in names:
            pattern = _DIGITS.sub(_NUMBER, name)
            digits = len(name) - len(pattern) + pattern.count(_NUMBER)
            self.patterns[pattern] = max(digits, self.patterns.get(pattern, 0))
        siblings: dict[str, set[str]] = {}
        for pattern in self.patterns:
            before = ""
            for segment, separator in _segments(pattern):
                siblings.setdefault(before, set()).add(segment)
                before += segment + separator
        self._kept = {before: _letters_kept(segments) for before, segments in siblings.items()}

    def level_for(self, patterns: Sequence[str], room: int) -> int:
        """Return the lowest level at which all these patterns fit, or the highest."""
        low, high = 0, 3 * _LONGEST
        while low < high:
            middle = (low + high) // 2
            if all(self.width(pattern, middle) <= room for pattern in patterns):
                high = middle
            else:
                low = middle + 1
        return low

    def width(self, pattern: str, level: int) -> int:
        form = self.form(pattern, level)
        return width(form) - form.count(_NUMBER) + self.patterns[pattern]

    def form(self, pattern: str, level: int) -> str:
        """Return a pattern with up to 24 - level letters in segments without siblings, then others, then the ends."""
        segments = _segments(pattern)
        text, before, previous, pending = "", "", "", ""
        for at, (segment, separator) in enumerate(segments):
            start, ending = self._kept[before]
            before += segment + separator
            alone = segment not in start
            phase = 2 if at in (0, len(segments) - 1) else 0 if alone else 1
            letters = (phase + 1) * _LONGEST - level
            form = segment
            if letters < _LONGEST:
                form = self._cut(segment, max(letters, 0), start.get(segment, 0), ending.get(segment, 0), phase == 2)
            if not form == previous == self._ellipsis:
                text += pending + form
            previous, pending = form, separator
        return text

    def _cut(self, segment: str, letters: int, start: int, ending: int, keeps_both_ends: bool) -> str:
        """Return a segment with so many letters at its beginning or end, its numbers, and what its siblings lack."""
        if not (start or ending or _NUMBER in segment):
            return shorten(segment, letters + len(self._ellipsis), self._ellipsis)
        numbers = [at for at, character in enumerate(segment) if character == _NUMBER]
        start = max(start, numbers[-1] + 1 if numbers else 0)
        ending = max(ending, len(segment) - numbers[0] if numbers else 0)
        from_end = ending < start and ending < len(segment) and letters < start
        kept = max(letters, ending if from_end else start)
        if keeps_both_ends and not from_end and not numbers:
            head = max(start, (kept + 1) // 2)
            return min(segment, segment[:head] + self._ellipsis + segment[len(segment) - kept + head :], key=width)
        cut = self._ellipsis + segment[len(segment) - kept :] if from_end else segment[:kept] + self._ellipsis
        return min(segment, cut, key=width)


def _letters_kept(segments: set[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many first, and how many last, letters distinguish each segment; nothing if it is alone."""
    if len(segments) == 1:
        return {}, {}
    backwards = {segment[::-1]: segment for segment in segments}
    endings = {backwards[text]: length for text, length in _unique_lengths(sorted(backwards))}
    return dict(_unique_lengths(sorted(segments))), endings


def _unique_lengths(ordered: Sequence[str]) -> list[tuple[str, int]]:
    common = [0, *(_common(a, b) for a, b in pairwise(ordered)), 0]
    return [(text, max(common[at], common[at + 1]) + 1) for at, text in enumerate(ordered)]


def _common(a: str, b: str) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _segments(name: str) -> list[tuple[str, str]]:
    """Return the segments of a name, each with the separator after it."""
    pieces = _SEPARATOR.split(name)
    return list(zip(pieces[::2], [*pieces[1::2], ""], strict=True))


def _block_of(pattern: str) -> str:
    """Return what comes before the first number, or the parent: what begins so is shortened alike."""
    before, number, _ = pattern.partition(_NUMBER)
    return before if number else pattern.rpartition(".")[0]


def _filled(form: str, name: str) -> str:
    numbers = iter(_DIGITS.findall(name))
    return "".join(next(numbers) if part == _NUMBER else part for part in re.split(f"({_NUMBER})", form))
