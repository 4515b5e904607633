"""Rules files: module kinds by pattern, as lines or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from ..errors import FormatError, located
from ..io.source import read_whole

_MAX_BYTES = 1 << 20


def rules_from_file(path: str | os.PathLike[str]) -> dict[str, str]:
    r"""Read module kinds from a file: one JSON object, or lines ``pattern = kind``; lines that begin with # are
    comments.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".rules") as file:
    ...     _ = file.write("# the head\n^fc$ = Linear\n^norm = LayerNorm\n")
    ...     file.flush()
    ...     rules_from_file(file.name)
    {'^fc$': 'Linear', '^norm': 'LayerNorm'}
    """
    with located(path=os.fsdecode(path), hint="write lines such as: ^encoder\\.fc\\d$ = Linear"):
        try:
            text = read_whole(path, _MAX_BYTES).decode("utf-8")
            rules = json.loads(text) if text.lstrip().startswith("{") else dict(_lines(text))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"this is not a rules file: {error}") from error
        if not rules or not all(isinstance(kind, str) for kind in rules.values()):
            raise FormatError("a module kind must be a string" if rules else "the rules file is empty")
        return rules


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pattern, equals, kind = line.strip().partition(" = ")
        if not equals:
            raise ValueError(f"line {number} has no ' = ' between pattern and kind")
        yield pattern.strip(), kind.strip()
