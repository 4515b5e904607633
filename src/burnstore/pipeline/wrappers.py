"""Wrappers: names that differ only by the segments that a wrapper around a torch model adds."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ..models.binding import Slot
from ..tensor.data import Shape
from ..transforms.shapes import weight_norm_hint

SEGMENTS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Segments of DataParallel, DistributedDataParallel and AveragedModel; of torch.compile, FSDP, and checkpointing."""


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


def strip_rules(missing: Collection[str], unused: Collection[str], names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the renames that may strip a wrapper from a file with these names, the one around the whole model first.

    A model may have a ``module`` of its own, so that stripping every segment would be too much.

    >>> next(strip_rules(["module.weight"], ["module.module.weight"], ["module.module.weight"]))
    ('^module\\\\.', '')
    """
    first = next(iter(names), "").split(".")
    for count in range(1, len(first)):
        prefix = ".".join(first[:count]) + "."
        if first[count - 1] not in SEGMENTS or not all(name.startswith(prefix) for name in names):
            break
        bare = {name[len(prefix) :] for name in names}
        modules = {name.rpartition(".")[0] for name in bare}
        if bare.issuperset(missing) or modules.issuperset(name.rpartition(".")[0] for name in missing):
            yield f"^{re.escape(prefix)}", ""
    rule = strip_rule(missing, unused)
    if rule is not None:
        yield rule


def wrapper_rule(names: Collection[str], slots: Sequence[Slot]) -> tuple[str, str] | None:
    """Return the rename that strips a wrapper's segments from a source's names, if only they keep it from fitting."""
    found = set(names)
    if not any(segment in name.split(".") for name in found for segment in SEGMENTS):
        return None
    first: dict[int, str] = {}
    for slot in slots:  # of tied tensors a file may have any
        if slot.path not in found and any(name.endswith(slot.path) for name in found):
            first.setdefault(slot.identity(), slot.path)
    missing = list(first.values())
    rules = strip_rules(missing, found - {slot.path for slot in slots}, found) if missing else iter(())
    return next(rules, None)


def wrapper_hint(missing: Collection[str], unused: Mapping[str, Shape]) -> str | None:
    """Return what to do if one of model and file is wrapped or has a prefix, or the file has a weight norm; or None.

    >>> wrapper_hint(["_orig_mod.fc.weight"], {"fc.weight": (2, 2)})
    "the model is wrapped and the file is not: load into the model inside, its attribute '_orig_mod'"
    """
    in_model, in_file = _wrapped(missing, unused)
    if not in_model or in_file:
        hint = prefix_hint(missing, unused) or weight_norm_hint(unused)
        return (hint or _adapter_hint(missing, unused)) if missing else None
    named = " and ".join(repr(segment) for segment in SEGMENTS if segment in in_model)
    return f"the model is wrapped and the file is not: load into the model inside, its attribute {named}"


def prefix_hint(missing: Collection[str], unused: Collection[str]) -> str | None:
    """Return the rename that adds or takes away one prefix, if all missing names need the same.

    >>> prefix_hint(["fc.weight"], ["net.fc.weight", "head.fc.weight"])
    >>> print(prefix_hint(["fc.weight", "fc.bias"], ["net.fc.weight", "net.fc.bias"]))
    the names in the file have the prefix 'net.': take it away with rename=[r'^net\\.=>']
    """
    first, names = next(iter(missing), ""), set(unused)
    longer = {name.removesuffix(first) for name in names if name.endswith(f".{first}")}
    found = [prefix for prefix in longer if all(prefix + name in names for name in missing)]
    if len(found) == 1:
        pattern = re.escape(found[0])
        return f"the names in the file have the prefix {found[0]!r}: take it away with rename={_rules(f'^{pattern}=>')}"
    shorter = {first.removesuffix(name) for name in names if first.endswith(f".{name}")}
    found = [prefix for prefix in shorter if all(name.removeprefix(prefix) in names for name in missing)]
    if len(found) == 1:
        return f"the names in the model have the prefix {found[0]!r}: add it with rename={_rules(f'^=>{found[0]}')}"
    return None


def _rules(rule: str) -> str:
    """Return a rename rule as a list of Python, as it is typed."""
    return f"[{rule!r}]" if "'" in rule or not rule.isprintable() else f"[r'{rule}']"


def _adapter_hint(missing: Collection[str], unused: Collection[str]) -> str | None:
    """Return what to do with the file of a LoRA adapter, whose names lack the adapter's own, ``default``."""
    if not any(".lora_A." in name for name in unused):
        return None
    if any(".lora_A.default." in name for name in missing):
        rename = r"rename=[r'\.(lora_[AB])\.=>.$1.default.']"
        return f"the names of a saved adapter lack the name 'default': add it with {rename} and allow_partial=True"
    return 'the file is a LoRA adapter: fold it with burnstore.merge([base, adapter], target, method="lora")'


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
