"""Merge: the tensors of several files in one, laid over each other or blended; streamed, and proved before it is there.

    open      every source, lazily; its tensors in the layout of the target, then its filter, then its renames
    combine   by name: which source's tensor, or what blend of them; conflicts are errors unless a policy is given
    write     by independent tasks, see `burnstore.pipeline.write`

Texts beside the tensors are kept where the sources that have them agree, and left out, with a note, where they do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import MergeError, ModelError, located, printable
from ...formats.base import LAYOUT_KEY, Format
from ...formats.registry import format_for_path, format_named
from ...io.workers import Workers, checked_workers
from ...limits import Limits
from ...models.layouts import MODULES_KEY, Rules, checked_layout, record_of
from ...pipeline.recipe import Pattern, Recipe, Renames, recipe_of
from ...pipeline.translation import translate
from ...pipeline.write import assemble
from ...progress import ProgressLike, progress_from
from ...tensor.dtype import DType
from ...tensor.snapshot import TensorSnapshot
from ...transforms.layout import LAYOUTS, Layout
from .combine import Conflicts, Contribution, MergedTensor, Method, checked_blend, combine, listed

Path = str | os.PathLike[str]

_STAMPS = (LAYOUT_KEY, "format", "producer", "version")


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A file to merge, and what of it: tensors that a filter matches, under names that rules change.

    ``filter`` is a pattern that is found in the names, or several of which one is; ``rename`` has rules such as
    ``"^h\\.=>layers."``, or maps patterns to replacements. Filters see the names before they are changed. ``layout``
    replaces what the file says of itself.
    """

    path: Path
    filter: Pattern | Iterable[Pattern] | None = None
    rename: Renames | None = None
    layout: str | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge did.

    ``tensors`` has a line for every tensor that was written, ``left_out`` for every name that was not, and why.
    """

    tensors: list[MergedTensor]
    left_out: dict[str, str]
    nbytes: int
    layout: str | None
    verified: bool
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        return {
            "tensors": [
                {"name": row.name, "sources": row.sources, "weights": row.weights, "conflict": row.conflict}
                for row in self.tensors
            ],
            "left_out": self.left_out,
            "bytes": self.nbytes,
            "layout": self.layout,
            "verified": self.verified,
            "notes": self.notes,
        }


def merge(
    sources: Sequence[Path | MergeSource],
    target: Path,
    *,
    method: Method = "overlay",
    weights: Sequence[float] | None = None,
    t: float | None = None,
    tensor_weights: Mapping[str, Sequence[float]] | None = None,
    normalize: bool = False,
    conflicts: Conflicts = "error",
    cast: DType | str | None = None,
    like: Any = None,
    rules: Rules | None = None,
    source_layout: str | None = None,
    keep_layout: bool = False,
    format: str | None = None,
    metadata: Mapping[str, str | None] | None = None,
    max_shard_size: int | str | None = None,
    overwrite: bool = False,
    durable: bool = True,
    verify: bool = True,
    executor: Workers = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
    **options: Any,
) -> Merge:
    r"""Write the tensors of several files into one, whose format follows its suffix unless ``format`` names it.

    ``method="overlay"`` takes each tensor from the source that has it. ``"linear"`` blends those of one name with
    ``weights``, one for each source (by default equal ones), or for two sources with ``t``, which stands for weights of
    1 - t and t. ``"slerp"`` goes along the arc between two sources instead of the straight line; where there is no arc
    (tensors nearly parallel, zero or not finite) it is linear. ``tensor_weights`` maps patterns to weights for the
    tensors in whose names they are found; the last that matches counts. Weights may be negative, and must add up to 1
    unless ``normalize=True`` scales them. A source of weight 0 plays no part in a tensor, and need not have it.

    Sums are computed in float64 (float32 for dtypes of 16 bits and fewer) and rounded once to the dtype of the tensor,
    or to ``cast``. What has no mean (integers, bools, quantized tensors) must be equal in all sources.

    Where that does not work out there is a conflict: a name that several sources overlay, a tensor that one of them
    lacks, shapes or dtypes that differ, integers that do. ``conflicts`` says what happens then: ``"error"``, the tensor
    of the ``"first"`` or ``"last"`` source that has it, or ``"skip"`` to leave it out.

    A source in another layout than the target's is brought into it, if ``like``, ``rules`` or the file itself tell the
    kinds of its modules (see `convert`); ``keep_layout=True`` writes the tensors as they are. ``source_layout`` is that
    of sources that do not tell. Texts on which the sources agree are kept; ``metadata`` adds to them, None takes one
    away. Tasks are given to ``executor``: threads (None), so many processes (a number), or whatever has ``submit``. At
    most the largest tensor and some megabytes are in memory; of tensors that are transposed, one of each source. With
    ``verify`` (default) every tensor is computed once more and compared with what was written, before the target is
    there.

    Raises MergeError for a conflict, and PatternError for a filter or pattern that matches nothing; the target is then
    as it was.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, value in (("a", 1), ("b", 3)):
    ...         bs.save({"w": np.full(2, value, np.float32)}, f"{folder}/{name}.bpk")
    ...     done = bs.merge([f"{folder}/a.bpk", f"{folder}/b.bpk"], f"{folder}/c.bpk", method="linear", t=0.25)
    ...     with bs.open(f"{folder}/c.bpk") as f:
    ...         done.tensors[0].weights, f["w"].numpy().tolist()
    ((0.75, 0.25), [1.5, 1.5])
    """
    given = [each if isinstance(each, MergeSource) else MergeSource(each) for each in _several(sources)]
    checked_workers(executor)
    blend = checked_blend(method, len(given), weights, t, tensor_weights, normalize=normalize)
    target = os.fsdecode(target)
    chosen = format_for_path(target) if format is None else format_named(format)
    _check_apart(given, target)
    wanted_dtype = recipe_of(cast=cast).cast
    with ExitStack() as opened, progress_from(progress) as report:
        files = [_opened(opened, each, limits, source_layout, like=like, rules=rules) for each in given]
        layout = _common_layout(files, chosen, keep_layout=keep_layout)
        for file in files:
            with located(path=file.path):
                file.bring_into(layout)
        contributions = [Contribution(file.path, file.tensors) for file in files]
        combined = combine(contributions, blend, conflicts, dtype=wanted_dtype, workers=executor, progress=report)
        if not combined.snapshots:
            raise MergeError("no tensor would be written", path=target)
        texts, notes = _texts(files, chosen, layout, metadata or {})
        assemble(
            combined.snapshots,
            target,
            chosen,
            metadata=texts,
            overwrite=overwrite,
            durable=durable,
            verify=verify,
            max_shard_size=max_shard_size,
            workers=executor,
            limits=limits,
            progress=report,
            **options,
        )
    notes = [*combined.notes, *notes]
    nbytes = sum(each.nbytes for each in combined.snapshots)
    return Merge(combined.rows, combined.left_out, nbytes, layout, verify, notes)


# --- what was asked for -----------------------------------------------------------------------------------------------


def _several(sources: Sequence[Path | MergeSource]) -> list[Path | MergeSource]:
    if isinstance(sources, (str, bytes, os.PathLike)) or not isinstance(sources, Iterable):
        raise TypeError(f"sources are a list of files, not a {type(sources).__name__}")
    several = list(sources)
    if not several:
        raise MergeError("there must be a source")
    return several


def _check_apart(sources: Sequence[MergeSource], target: str) -> None:
    for source in sources:
        path = os.fsdecode(source.path)
        if os.path.exists(path) and os.path.exists(target) and os.path.samefile(path, target):
            raise MergeError("it is a source of this merge and cannot be its target too", path=target)


# --- the sources ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _File:
    """A source, opened: its tensors as far as they take part, by the names that they are merged under."""

    checkpoint: Checkpoint
    recipe: Recipe
    layout: Layout | None
    texts: dict[str, str]
    tensors: dict[str, TensorSnapshot] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.checkpoint.path

    def bring_into(self, layout: Layout | None) -> None:
        """Take those tensors that are wanted, in this layout."""
        snapshots: list[TensorSnapshot] = list(self.checkpoint.values())
        if layout != self.layout:
            as_named = replace(self.recipe, rename=())  # what tells of modules knows the file's own names
            translated = translate(snapshots, self.layout, layout, self.checkpoint.metadata, as_named)
            snapshots = translated.snapshots
            if translated.view is not None:
                self.texts[MODULES_KEY] = record_of(translated.view)
        chosen = self.recipe.filtered(snapshots)
        if self.recipe.rename:
            chosen, _ = self.recipe.renamed(chosen)
            self.texts.pop(MODULES_KEY, None)  # it speaks of the names of before
        self.tensors = {snapshot.path: snapshot for snapshot in chosen}


def _opened(opened: ExitStack, source: MergeSource, limits: Limits | None, layout: str | None, **telling: Any) -> _File:
    checkpoint = opened.enter_context(open_checkpoint(source.path, limits=limits))
    said = source.layout or checkpoint.layout
    told = checked_layout(said) if said in LAYOUTS else None if layout is None else checked_layout(layout)
    with located(path=checkpoint.path):
        recipe = recipe_of(filter=source.filter, rename=source.rename, **telling)
    return _File(checkpoint, recipe, told, dict(checkpoint.metadata))


def _common_layout(files: Sequence[_File], chosen: Format, *, keep_layout: bool) -> Layout | None:
    """The layout that the merged tensors are to have."""
    found = {file.layout for file in files}
    for file in files:
        if file.layout is None and len(found) > 1:
            other = next(each for each in files if each.layout is not None)
            raise ModelError(
                f"it does not say whose layout its tensors have; {printable(other.path)} has {other.layout}'s",
                path=file.path,
                hint=f'source_layout="{other.layout}" says that it has the same',
            )
    own = getattr(chosen, "layout", None)
    wanted = checked_layout(own) if own is not None else None
    if len(found) > 1:
        return wanted or files[0].layout
    told = found.pop()
    if keep_layout or wanted is None:
        return told
    if told is None:
        raise ModelError(
            f"no source says whose layout its tensors have, and {chosen.name} has {wanted}'s",
            hint=f'source_layout="torch" or "{wanted}" tells, keep_layout=True writes the tensors as they are',
        )
    return wanted


def _texts(
    files: Sequence[_File], chosen: Format, layout: Layout | None, given: Mapping[str, str | None]
) -> tuple[dict[str, str], list[str]]:
    """The texts that the sources agree on, and those given, with those that tell format and layout as they are."""
    texts: dict[str, str] = {}
    disputed: dict[str, None] = {}
    for file in files:
        for key, text in file.texts.items():
            if texts.setdefault(key, text) != text:
                disputed[key] = None
    for key in disputed:
        del texts[key]
    alike = all(file.checkpoint.format == chosen.name and file.checkpoint.layout == layout for file in files)
    if not alike or any(key in disputed for key in _STAMPS):
        for key in _STAMPS:
            texts.pop(key, None)
        stamp = getattr(chosen, "stamp", None)
        if stamp is not None and layout is not None:
            texts.update(stamp(layout))
        alike = False
    for key, given_text in given.items():
        texts.pop(key, None)
        if given_text is not None:
            texts[key] = given_text
    said_layout = getattr(chosen, "said_layout", None)
    said = texts.get(LAYOUT_KEY) if said_layout is None else said_layout(texts)
    if said != layout and not (alike and not given):
        texts[LAYOUT_KEY] = layout or "unknown"
    told = [printable(key) for key in disputed if key not in _STAMPS]
    notes = [f"texts on which the sources differ were left out: {listed(told)}"] if told else []
    numbers = {printable(name) for file in files for name in file.checkpoint.scalars}
    notes += [f"numbers beside the tensors were not merged: {listed(sorted(numbers))}"] if numbers else []
    return texts, notes
