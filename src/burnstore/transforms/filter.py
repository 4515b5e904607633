"""PathFilter: which tensors take part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .containers import ContainerPath
from .patterns import compile_pattern

Predicate = Callable[[str, ContainerPath], bool]


class PathFilter:
    """Matches a tensor if any of its criteria does: a regular expression that is found in its path, the path itself,
    or a predicate of path and containers. A fresh filter matches nothing.

    Methods that add a criterion change the filter and return it; `copy` branches. Patterns are Python's `re` and the
    caller's own: one that backtracks without end, such as ``(a+)+$`` on a long run of ``a``, does so here too, for
    nothing limits its time.

    >>> keep = PathFilter().with_regex(r"^encoder\\.").with_full_path("decoder.scale")
    >>> keep.matches("encoder.layer0.weight"), keep.matches("decoder.weight")
    (True, False)
    """

    def __init__(self) -> None:
        self._patterns: list[re.Pattern[str]] = []
        self._paths: list[str] = []
        self._predicates: list[Predicate] = []
        self._match_all = False

    @classmethod
    def all(cls) -> PathFilter:
        """Return a filter that matches everything."""
        return cls().match_all()

    @classmethod
    def none(cls) -> PathFilter:
        """Return a filter that matches nothing."""
        return cls()

    @classmethod
    def from_regex_patterns(cls, patterns: Iterable[str | re.Pattern[str]]) -> PathFilter:
        """Return a filter of these patterns."""
        return cls().with_regexes(patterns)

    @classmethod
    def from_paths(cls, paths: Iterable[str]) -> PathFilter:
        """Return a filter of exactly these paths."""
        return cls().with_full_paths(paths)

    @classmethod
    def from_predicate(cls, predicate: Predicate) -> PathFilter:
        """Return a filter of one predicate."""
        return cls().with_predicate(predicate)

    def with_regex(self, pattern: str | re.Pattern[str]) -> PathFilter:
        """Also match paths in which this pattern is found; an invalid one raises PatternError here."""
        self._patterns.append(compile_pattern(pattern))
        return self

    def with_regexes(self, patterns: Iterable[str | re.Pattern[str]]) -> PathFilter:
        """Also match paths in which any of these patterns is found."""
        compiled = [compile_pattern(pattern) for pattern in _several(patterns, "patterns")]
        self._patterns.extend(compiled)
        return self

    def with_full_path(self, path: str) -> PathFilter:
        """Also match this path."""
        if not isinstance(path, str):
            raise TypeError(f"a path must be a str, got {type(path).__name__}")
        self._paths.append(path)
        return self

    def with_full_paths(self, paths: Iterable[str]) -> PathFilter:
        """Also match these paths."""
        for path in _several(paths, "paths"):
            self.with_full_path(path)
        return self

    def with_predicate(self, predicate: Predicate) -> PathFilter:
        """Also match tensors for which this function of path and `ContainerPath`, or of the path alone, is true."""
        if not callable(predicate):
            raise TypeError(f"a predicate must be a function of path and containers, got {type(predicate).__name__}")
        self._predicates.append(_of_two_arguments(predicate))
        return self

    def with_predicates(self, predicates: Iterable[Predicate]) -> PathFilter:
        """Also match tensors for which any of these functions returns True."""
        for predicate in _several(predicates, "predicates"):
            self.with_predicate(predicate)
        return self

    def match_all(self) -> PathFilter:
        """Match everything from now on."""
        self._match_all = True
        return self

    def or_(self, other: PathFilter) -> PathFilter:
        """Return a new filter that matches what either matches; the same as ``self | other``."""
        if not isinstance(other, PathFilter):
            raise TypeError(f"a PathFilter can only be combined with a PathFilter, got {type(other).__name__}")
        both = self.copy()
        both._match_all = self._match_all or other._match_all
        both._patterns += other._patterns
        both._paths += other._paths
        both._predicates += other._predicates
        return both

    __or__ = or_

    def copy(self) -> PathFilter:
        """Return an independent filter of the same criteria."""
        copied = PathFilter()
        copied._patterns = list(self._patterns)
        copied._paths = list(self._paths)
        copied._predicates = list(self._predicates)
        copied._match_all = self._match_all
        return copied

    def matches(self, path: str) -> bool:
        """Return whether a tensor of this path matches; nothing is known about its containers."""
        return self.matches_with_container_path(path, ())

    def matches_with_container(self, path: str, container: str) -> bool:
        """Return whether a tensor of this path in a container of this type matches."""
        return self.matches_with_container_path(path, (container,))

    def matches_with_container_path(self, path: str | Sequence[str], container_stack: Sequence[str]) -> bool:
        """Return whether a tensor of this path (or segments) in these containers matches."""
        joined = path if isinstance(path, str) else ".".join(path)
        if self._match_all or joined in self._paths or any(pattern.search(joined) for pattern in self._patterns):
            return True
        if not self._predicates:
            return False
        containers = ContainerPath.of(container_stack)
        return any(predicate(joined, containers) for predicate in self._predicates)

    def select(self, tensors: Sequence[tuple[str, Sequence[str]]]) -> Selection:
        """Return which of these (path, container stack) pairs match, and which criteria no pair matched."""
        paths = [path for path, _ in tensors]
        if self._match_all:
            return Selection([True] * len(paths), [])
        # One criterion after the other over all paths: the loop inside is then one call of a bound method.
        hits: list[list[bool]] = []
        for pattern in self._patterns:
            hits.append([found is not None for found in map(pattern.search, paths)])
        wanted = set(self._paths)
        if wanted:
            hits.append([path in wanted for path in paths])
        if self._predicates:
            containers = [ContainerPath.of(stack) for _, stack in tensors]
            for predicate in self._predicates:
                hits.append([bool(answer) for answer in map(predicate, paths, containers)])
        chosen = [any(row) for row in zip(*hits, strict=True)] if hits else [False] * len(paths)
        unmatched = [pattern.pattern for pattern, row in zip(self._patterns, hits, strict=False) if True not in row]
        return Selection(chosen, unmatched + sorted(wanted.difference(paths)))

    def is_empty(self) -> bool:
        """Return whether the filter has no criterion, and so matches nothing."""
        return not (self._match_all or self._patterns or self._paths or self._predicates)

    def criteria_count(self) -> int:
        """Return the number of criteria; 1 if everything matches."""
        return 1 if self._match_all else len(self._patterns) + len(self._paths) + len(self._predicates)

    def clear_regex(self) -> PathFilter:
        """Drop the patterns."""
        self._patterns.clear()
        return self

    def clear_paths(self) -> PathFilter:
        """Drop the paths."""
        self._paths.clear()
        return self

    def clear_predicates(self) -> PathFilter:
        """Drop the predicates."""
        self._predicates.clear()
        return self

    def clear(self) -> PathFilter:
        """Drop all criteria, `match_all` too."""
        self._match_all = False
        return self.clear_regex().clear_paths().clear_predicates()

    def __repr__(self) -> str:
        if self._match_all:
            return "PathFilter.all()"
        if self.is_empty():
            return "PathFilter.none()"
        groups = []
        if self._patterns:
            groups.append(f"patterns: {[pattern.pattern for pattern in self._patterns]}")
        if self._paths:
            groups.append(f"paths: {self._paths}")
        if self._predicates:
            groups.append(f"predicates: {len(self._predicates)}")
        return f"PathFilter[{', '.join(groups)}]"


class Selection(list[bool]):
    """An answer per tensor; ``unmatched`` are the patterns and paths that matched none, which is seldom meant."""

    def __init__(self, chosen: Iterable[bool], unmatched: Iterable[str]) -> None:
        super().__init__(chosen)
        self.unmatched = list(unmatched)


def _of_two_arguments(predicate: Callable[..., bool]) -> Predicate:
    """Return the predicate as a function of path and containers, also if it takes the path alone."""
    import inspect  # not at import: it takes longer than all of this module

    try:
        inspect.signature(predicate).bind("", "")
    except TypeError:
        return lambda path, _: predicate(path)
    except ValueError:  # a builtin without a signature
        pass
    return predicate


def _several(values: Iterable[Any], what: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list, got {type(values).__name__}; the singular method takes one")
    return list(values)
