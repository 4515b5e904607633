"""Wrappers: names that differ from the wanted ones only by the segments that a wrapper around a torch model adds."""

from __future__ import annotations

from collections.abc import Collection

from ..transforms.shapes import weight_norm_hint

SEGMENTS = ("module", "_orig_mod")
"""Segments of DataParallel, DistributedDataParallel and AveragedModel; of torch.compile."""


def strip_rule(missing: Collection[str], unused: Collection[str]) -> tuple[str, str] | None:
    """Return the rename that strips a wrapper's segments from a file's names, if only they keep names from matching.

    >>> strip_rule(["fc.weight"], ["module.fc.weight"])
    ('(^|\\\\.)(module\\\\.)+', '\\\\1')
    """
    in_model, in_file = _wrapped(missing, unused)
    if not in_file or in_model:
        return None
    either = "|".join(rf"{segment}\." for segment in SEGMENTS if segment in in_file)
    return rf"(^|\.)({either})+", r"\1"


def wrapper_hint(missing: Collection[str], unused: Collection[str]) -> str | None:
    """Return what to do if a model is wrapped and the file is not, or the file has a weight norm; None otherwise.

    >>> wrapper_hint(["_orig_mod.fc.weight"], ["fc.weight"])
    "the model is wrapped and the file is not: load into the model inside, its attribute '_orig_mod'"
    """
    in_model, in_file = _wrapped(missing, unused)
    if not in_model or in_file:
        return weight_norm_hint(dict.fromkeys(unused, ())) if missing else None
    named = " and ".join(repr(segment) for segment in SEGMENTS if segment in in_model)
    return f"the model is wrapped and the file is not: load into the model inside, its attribute {named}"


def _wrapped(missing: Collection[str], unused: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the wrappers' segments that only the model's names have, and those that only the file's have."""
    in_model: set[str] = set()
    in_file: set[str] = set()
    for wanted, found in _paired(missing, unused):
        mine, theirs = wanted.split("."), found.split(".")
        in_model |= {segment for segment in SEGMENTS if mine.count(segment) > theirs.count(segment)}
        in_file |= {segment for segment in SEGMENTS if theirs.count(segment) > mine.count(segment)}
    return in_model, in_file


def _paired(missing: Collection[str], unused: Collection[str]) -> list[tuple[str, str]]:
    """Return each missing name with an unused one that is the same but for wrappers; empty if one has none.

    A file of another layout may call the tensors of a module otherwise: then the modules are compared.
    """
    for depth in (0, 1):
        bare = {_bare(name, depth): name for name in unused}
        found = [(name, bare[_bare(name, depth)]) for name in missing if _bare(name, depth) in bare]
        if len(found) == len(missing):
            return found
    return []


def _bare(name: str, depth: int) -> str:
    segments = name.split(".")
    return ".".join(segment for segment in segments[: len(segments) - depth] if segment not in SEGMENTS)
