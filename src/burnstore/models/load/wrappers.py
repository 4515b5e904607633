"""Wrappers: names that differ only by the segment that a wrapper around a torch model adds."""

from __future__ import annotations

from collections.abc import Collection

_SEGMENTS = ("module", "_orig_mod")
"""Added by DataParallel, DistributedDataParallel and AveragedModel; by torch.compile."""


def wrapper_hint(missing: Collection[str], unused: Collection[str]) -> str | None:
    """Return a hint if every missing name is in the file apart from a wrapper's segment, otherwise None.

    >>> wrapper_hint(["fc.weight"], ["module.fc.weight"])
    "the file was saved from a wrapped model: key_remapping={r'(^|\\\\.)(module\\\\.)+': r'\\\\1'} strips 'module.'"
    >>> wrapper_hint(["_orig_mod.fc.weight"], ["fc.weight"])
    "the model is wrapped and the file is not: load into the model inside, its attribute '_orig_mod'"
    """
    pairs = _paired(missing, unused)
    wrapped_model: set[str] = set()
    wrapped_file: set[str] = set()
    for wanted, found in pairs:
        mine, theirs = wanted.split("."), found.split(".")
        wrapped_model |= {segment for segment in _SEGMENTS if mine.count(segment) > theirs.count(segment)}
        wrapped_file |= {segment for segment in _SEGMENTS if theirs.count(segment) > mine.count(segment)}
    if wrapped_file and not wrapped_model:
        either = "|".join(rf"{segment}\." for segment in _SEGMENTS if segment in wrapped_file)
        named = " and ".join(repr(f"{segment}.") for segment in _SEGMENTS if segment in wrapped_file)
        remapping = rf"{{r'(^|\.)({either})+': r'\1'}}"
        return f"the file was saved from a wrapped model: key_remapping={remapping} strips {named}"
    if wrapped_model and not wrapped_file:
        named = " and ".join(repr(segment) for segment in _SEGMENTS if segment in wrapped_model)
        return f"the model is wrapped and the file is not: load into the model inside, its attribute {named}"
    return None


def _paired(missing: Collection[str], unused: Collection[str]) -> list[tuple[str, str]]:
    """Return each missing name with the unused one that differs only by wrappers; empty if one has none.

    A file of another layout may have other tensor names in a module: then the names of modules are compared.
    """
    for depth in (0, 1):
        bare = {_bare(name, depth): name for name in unused}
        found = [(name, bare[_bare(name, depth)]) for name in missing if _bare(name, depth) in bare]
        if len(found) == len(missing):
            return found
    return []


def _bare(name: str, depth: int) -> str:
    segments = name.split(".")
    return ".".join(segment for segment in segments[: len(segments) - depth] if segment not in _SEGMENTS)
