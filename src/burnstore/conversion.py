"""Convert: from one file to another, of another format, in another layout; a tensor at a time, proved afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from .checkpoint import Checkpoint, open_checkpoint
from .errors import CorruptError, ModelError, located
from .formats.base import LAYOUT_KEY, Format
from .formats.registry import format_for_path, format_named
from .limits import Limits
from .modules.bindings import binding_for
from .modules.layouts import (
    MODULES_KEY,
    Rules,
    checked_layout,
    kinds_by_rules,
    layout_of,
    record_of,
    recorded_counts,
    recorded_modules,
    view_of,
    view_of_record,
    zero_count,
)
from .saving import Progress, save
from .snapshot import TensorSnapshot
from .tensor_data import Shape
from .transforms.guess import guess_kinds
from .transforms.layout import LAYOUTS, Layout
from .transforms.view import LayoutView, module_tree, view_of_burn, view_of_torch

Path = str | os.PathLike[str]

_WAYS_OUT = (
    "like= a model or declaration, rules={pattern: kind}, guess=True to go by names and shapes, "
    "or keep_layout=True to write the tensors as they are"
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion did: how many tensors and bytes were written, and in which layout they were and are."""

    tensors: int
    nbytes: int
    source_layout: str | None
    layout: str | None
    verified: bool
    notes: list[str] = field(default_factory=list)


def convert(
    source: Path,
    target: Path,
    *,
    like: Any = None,
    rules: Rules | None = None,
    guess: bool = False,
    keep_layout: bool = False,
    source_layout: str | None = None,
    layout: str | None = None,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    record_modules: bool = True,
    overwrite: bool = False,
    durable: bool = True,
    verify: bool = True,
    limits: Limits | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Conversion:
    """Write the tensors of one file into another, whose format follows its suffix unless ``format`` names it.

    A file in the layout that the target has (or, where the format has none, any) is copied. Otherwise the kinds of the
    modules must be known: from ``like`` (a model of either layout, or the path of a file that records its modules),
    from what the source itself records, from ``rules`` (a pattern that is found in a module's path → kind), or with
    ``guess=True`` from names and shapes, where those decide. ``keep_layout=True`` writes the tensors as they are, and
    the file says so. ``source_layout`` and ``layout`` (``"burn"``, ``"torch"``) replace what the source says of itself
    and what the target would have.

    Texts are kept, but for those that say whose layout it is; ``metadata`` replaces them. What the modules are is
    recorded beside them, unless ``record_modules=False``, so that the way back needs nobody's help. With ``verify``
    (default) every tensor is read back and compared with its source. At most the largest tensor and some megabytes are
    in memory.

    Raises ModelError where something is not known or does not fit; the target is then as it was.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"fc.weight": np.ones((4, 3), np.float32)}, f"{folder}/a.safetensors", metadata={"format": "pt"})
    ...     done = bs.convert(f"{folder}/a.safetensors", f"{folder}/a.bpk", rules={"^fc$": "Linear"})
    ...     with bs.open(f"{folder}/a.bpk") as f:
    ...         done.source_layout, done.layout, f["fc.weight"].shape
    ('torch', 'burn', (3, 4))
    """
    chosen = format_for_path(os.fsdecode(target)) if format is None else format_named(format)
    with ExitStack() as opened:
        checkpoint = opened.enter_context(open_checkpoint(source, limits=limits))
        with located(path=checkpoint.path):
            told = _known(checkpoint.layout if source_layout is None else checked_layout(source_layout))
            wanted = told if keep_layout else _known(layout or getattr(chosen, "layout", None) or told)
            snapshots: list[TensorSnapshot] = list(checkpoint.values())
            notes: list[str] = []
            texts = _kept_texts(chosen, checkpoint, wanted, keep_layout=keep_layout)
            if not keep_layout and told != wanted:
                if told is None:
                    raise ModelError(
                        f"the file does not say whose layout its tensors have, and {chosen.name} has {wanted}'s",
                        hint='pass source_layout="torch" or "burn", or keep_layout=True to write them as they are',
                    )
                view = _view(checkpoint, told, like, rules, guess=guess)
                snapshots = _seen(view, snapshots, wanted, checkpoint.metadata)
                if like is not None and not isinstance(like, (str, os.PathLike)) and layout_of(like) == wanted:
                    _check_like(_shapes_of(like), {each.path: each.shape for each in snapshots})
                if record_modules:
                    texts[MODULES_KEY] = record_of(view)
                notes += [f"of no known kind, taken as they are: {name}" for name in view.as_they_are]
        written = texts if metadata is None else {**metadata, **_ours(texts)}
        save(
            snapshots,
            target,
            format=chosen.name,
            metadata=written,
            overwrite=overwrite,
            durable=durable,
            limits=limits,
            progress=progress,
            **options,
        )
        if verify:
            _verify(target, chosen, snapshots, limits)
    return Conversion(len(snapshots), sum(each.nbytes for each in snapshots), told, wanted, verify, notes)


def _known(layout: str | None) -> Layout | None:
    return checked_layout(layout) if layout in LAYOUTS else None


def _ours(texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if key.startswith("burnstore.")}


def _kept_texts(chosen: Format, checkpoint: Checkpoint, wanted: str | None, *, keep_layout: bool) -> dict[str, str]:
    """The source's texts, with those that say format and layout as the target's are."""
    texts = dict(checkpoint.metadata)
    stamp = getattr(chosen, "stamp", None)
    said_layout = getattr(chosen, "said_layout", None)
    if checkpoint.format == chosen.name and checkpoint.layout == wanted:
        return texts
    texts.pop(LAYOUT_KEY, None)
    for key in ("format", "producer", "version"):
        texts.pop(key, None)
    if wanted != checkpoint.layout:
        texts.pop(MODULES_KEY, None)
    if stamp is not None and wanted is not None:
        texts.update(stamp(wanted))
    said = texts.get(LAYOUT_KEY) if said_layout is None else said_layout(texts)
    if said != wanted:
        texts[LAYOUT_KEY] = wanted or "unknown"
    return texts


def _view(checkpoint: Checkpoint, told: Layout, like: Any, rules: Rules | None, *, guess: bool) -> LayoutView:
    """The tensors of a file in both layouts, by whatever tells the kinds of its modules."""
    shapes = {name: checkpoint[name].shape for name in checkpoint}
    if like is not None:
        if isinstance(like, (str, os.PathLike)):
            with open_checkpoint(like) as pattern:
                recorded = recorded_modules(pattern.metadata)
            if recorded is None:
                raise ModelError(f"{os.fsdecode(like)!r} does not record its modules", hint=_WAYS_OUT)
            return view_of_record(recorded, shapes, told)
        if layout_of(like) == told:
            _check_like(_shapes_of(like), shapes)
        return view_of(like, list(binding_for(like).walk(like)), rules=rules, present=shapes)
    recorded = recorded_modules(checkpoint.metadata)
    if recorded is not None and rules is None:
        return view_of_record(recorded, shapes, told)
    if rules is not None:
        kinds = kinds_by_rules(shapes, rules)
    elif guess:
        if told != "torch":
            raise ModelError("only files in PyTorch's layout can be guessed at", hint=_WAYS_OUT)
        guessed = guess_kinds(shapes)
        if guessed.ambiguous:
            path, why = next(iter(guessed.ambiguous.items()))
            raise ModelError(
                f"{len(guessed.ambiguous)} modules are ambiguous, the first: {why}\n{guessed}",
                tensor=path or None,
                hint=_WAYS_OUT,
            )
        kinds = guessed.kinds
    else:
        raise ModelError(f"nothing tells the kinds of the modules in this file of {told}'s layout", hint=_WAYS_OUT)
    root = module_tree(shapes, kinds)
    view = view_of_torch(root) if told == "torch" else view_of_burn(root)
    left = [name for name in view.as_they_are if name.rpartition(".")[0] not in kinds]
    if left:
        raise ModelError(
            f"no rule names the kind of its module, nor of {len(left) - 1} others", tensor=left[0], hint=_WAYS_OUT
        )
    return view


def _shapes_of(model: Any) -> dict[str, Shape]:
    return {slot.path: slot.shape for slot in binding_for(model).walk(model)}


def _check_like(wanted: Mapping[str, Shape], given: Mapping[str, Shape]) -> None:
    for name, shape in given.items():
        if name not in wanted:
            raise ModelError("the model given as like has no such tensor", tensor=name)
        if wanted[name] != shape:
            raise ModelError(f"it is {list(shape)}, in the model given as like {list(wanted[name])}", tensor=name)
    missing = next((name for name in wanted if name not in given), None)
    if missing is not None:
        raise ModelError("the model given as like has it, the file has not", tensor=missing)


def _seen(
    view: LayoutView, snapshots: Iterable[TensorSnapshot], wanted: Layout | None, metadata: Mapping[str, str]
) -> list[TensorSnapshot]:
    """The tensors in the wanted layout; every one is used, and every one that there should be is made."""
    by_path = {snapshot.path: snapshot for snapshot in snapshots}
    seen = view.to_burn(by_path) if wanted == "burn" else view.to_torch(by_path)
    for path, parts in seen.incomplete.items():
        raise ModelError(f"it cannot be made: there is no {', '.join(parts)}", tensor=path)
    unused = next((path for path in by_path if path not in seen.used), None)
    if unused is not None:
        raise ModelError(f"it has no counterpart in {wanted}'s layout", tensor=unused, hint=_WAYS_OUT)
    if wanted == "torch":
        counts = recorded_counts(metadata)
        seen.snapshots.extend(counts.get(path) or zero_count(path) for path in seen.lost)
    return seen.snapshots


def _verify(target: Path, chosen: Format, snapshots: Iterable[TensorSnapshot], limits: Limits | None) -> None:
    with open_checkpoint(target, format=chosen.name, limits=limits) as written:
        for snapshot in snapshots:
            found = written[snapshot.path]
            with located(path=written.path, tensor=snapshot.path):
                same = found.shape == snapshot.shape and found.nbytes == snapshot.nbytes
                if not same or found.to_data().raw != snapshot.to_data().raw:
                    raise CorruptError("what was written is not what was read", hint="is the disk or memory failing?")
