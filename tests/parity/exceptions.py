"""The one table of answers that may differ between verbs; docs/howto/layouts.md lists the same exceptions.

An exception never lets two verbs give different tensors: one of them refuses. Where both answer, the tensors are equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .questions import MODELS, Question

CONVERSIONS = ("convert to bpk", "convert to safetensors", "convert to pt", "command line")
WRITERS = (*CONVERSIONS, "merge")


@dataclass(frozen=True)
class Exempt:
    """A way that may refuse what `load` answers, or answer what `load` refuses (``by_load``), in these words."""

    ways: tuple[str, ...]
    words: str
    why: str
    by_load: bool = False
    models: tuple[str, ...] = (*MODELS, "drawn")


EXCEPTIONS = [
    Exempt(
        WRITERS,
        "given as like, has no such tensor",
        "convert and merge are strict about extra tensors: a load reports them as unused",
    ),
    Exempt(
        WRITERS,
        "matched no (tensor|parameter)",
        "convert and merge refuse a pattern that matches nothing, a load notes it (Pipeline.unmatched)",
    ),
    Exempt(
        WRITERS,
        "does not state its layout, and|no source states its layout|burnstore converts only",
        "a format with a layout of its own takes no tensors of unknown or another layout, a model of plain arrays does",
        models=("plain",),
    ),
    Exempt(
        WRITERS,
        "Missing tensors",
        "a load misses parameters that the file lacks also where the filter leaves them out, as Burn's stores do; a "
        "conversion only looks at what is written",
        by_load=True,
    ),
    Exempt(
        WRITERS,
        "gives burn's layout, and",
        "a load refuses an adapter that gives another layout than the model's, a conversion writes that layout",
        by_load=True,
    ),
]
"""What differs by decision."""


def exempt(question: Question, way: str, load: object, other: object) -> Exempt | None:
    """Return the exception that covers two answers; None if nothing does."""
    for each in EXCEPTIONS:
        refusal, answer = (load, other) if each.by_load else (other, load)
        is_one_sided = isinstance(refusal, str) and not isinstance(answer, str)
        is_asked = way in each.ways and question.model in each.models
        if is_asked and is_one_sided and re.search(each.words, str(refusal)):
            return each
    return None
