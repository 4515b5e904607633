"""Merge the tensors of several files into one, overlaid or blended; it is streamed, and verified before it gets its
name.

    open      every source, lazily
    compile   for each source a plan into the common layout, with its own renames and filter
    combine   for each name one source's tensor or a blend; conflicts are errors unless a policy is given
    write     by independent tasks, see `burnstore.pipeline.write`

Metadata is kept where the sources that have it agree, and left out, with a note, where they do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...checkpoint import Checkpoint
from ...errors import MergeError, ModelError, Ways, entry_point, located, printable, refuse_unknown
from ...formats.base import Format, WriteOptions
from ...formats.registry import format_for_path
from ...io.atomic import refuse_existing
from ...io.paths import as_path, is_path, with_options
from ...io.workers import Workers, checked_workers
from ...limits import Limits, check_options
from ...models.bindings import binding_for
from ...pipeline.compile import underflow_notes
from ...pipeline.compile_file import compile_convert, resolve_layout
from ...pipeline.ends import Input, input_of_file, with_layouts_given
from ...pipeline.kinds import kinds_by_rules, kinds_of_classes, layout_of
from ...pipeline.metadata import checked_metadata, metadata_for_files, written_layout
from ...pipeline.options import (
    FilterLike,
    Pipeline,
    RenameLike,
    RulesLike,
    as_cast,
    as_remapper,
    layout_named,
    pipeline_of,
    refuse_unused,
)
from ...pipeline.plan import Move, Plan
from ...pipeline.ties import ties_of
from ...pipeline.unify import convertible, hides_transpose, unify
from ...pipeline.write import assemble, check_apart
from ...progress import ProgressLike, progress_from
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.tabular import Result
from ...transforms.layout import ModuleKind
from ...transforms.operations import Combine
from ..convert.convert import like_target
from ..convert.result import opened_files
from .combine import Combined, Conflicts, Contribution, MergedTensor, Method, checked_blend, combine, listed
from .lora import adapter_of, fold, is_adapter

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A file to merge, with a selection of its tensors and their new names.

    ``rename`` and ``filter`` are those of `burnstore.convert`: the filter sees the names in the target. ``layout``
    replaces the one that the file states, ``top_level_key`` selects a part of it (see `burnstore.open`).
    """

    path: Path
    filter: FilterLike | None = None
    rename: RenameLike | None = None
    layout: str | None = None
    top_level_key: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.path, str):  # of a URL nothing secret is shown
            object.__setattr__(self, "path", as_path(self.path))


@dataclass(frozen=True, slots=True)
class MergeResult(Result):
    """What a merge did: ``tensors`` has an entry for each tensor written, ``left_out`` a reason for each other name."""

    tensors: list[MergedTensor] = field(repr=False)
    left_out: dict[str, str]
    nbytes: int
    layout: str | None
    verified: bool
    notes: list[Note] = field(default_factory=list)


@entry_point("merge")
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
    layout: str | None = None,
    target_layout: str | None = None,
    keep_layout: bool = False,
    like: Any = None,
    rules: RulesLike | None = None,
    guess: bool = False,
    top_level_key: str | None = None,
    format: str | None = None,
    metadata: Mapping[str, str | None] | None = None,
    max_shard_size: int | str | None = None,
    allow_empty: bool = False,
    overwrite: bool = False,
    durable: bool = True,
    verify: bool = True,
    executor: Workers = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    pipeline: Pipeline | None = None,
    **format_options: Any,
) -> MergeResult:
    r"""Write the tensors of several files into one, whose format follows its suffix unless ``format`` names it.

    ``method="overlay"`` takes each tensor from the source that has it. ``"linear"`` blends those of one name with
    ``weights``, one for each source (equal ones by default), or for two sources with ``t``, which stands for weights of
    1 - t and t. ``"slerp"`` follows the arc between two sources instead of the straight line; it is linear if there is
    no arc (tensors nearly parallel, zero or not finite). ``tensor_weights`` maps patterns to weights for the tensors in
    whose names they are found; the last match wins. Weights may be negative, and must add up to 1 unless
    ``normalize=True`` scales them. A source of weight 0 is ignored for a tensor, and need not have it.

    Sums are computed in float64 (float32 for dtypes of 16 bits and fewer) and rounded once to the dtype of the tensor,
    or to ``cast``. Integers, bools and quantized tensors cannot be averaged: they must be equal in all sources.

    ``"lora"`` takes a base model in PyTorch's layout, then folders of PEFT adapters (LoRA), and adds their products to
    the base as ``merge_and_unload`` does; ``weights``, one for each adapter, scale them (1 by default). An adapter that
    cannot be folded exactly (DoRA, other kinds of PEFT) is refused.

    ``top_level_key`` is the part of every source that has none of its own in `MergeSource`, see `burnstore.open`.

    A conflict is a name that several sources of an overlay have, a tensor that a source of a blend lacks, or shapes,
    dtypes or integers that differ. ``conflicts`` decides: ``"error"``, the tensor of the ``"first"`` or ``"last"``
    source that has it, or ``"skip"`` to leave it out.

    A source in another layout than the target's is converted, if ``like``, ``rules``, its own record or a ``guess``
    give the kinds of its modules (see `convert`); ``keep_layout=True`` copies names and axes unchanged. ``layout`` is
    that of sources that do not state theirs, ``target_layout`` that of the target. Metadata on which the sources agree
    is kept; ``metadata`` adds to it, None removes a key. ``executor`` runs the tasks: threads (None), processes (their
    number), or an object with ``submit``. With ``verify`` (default) every tensor is computed again and compared with
    what was written, before the target gets its name.

    Raises MergeError for a conflict, and for a source or a target of which nothing is left unless ``allow_empty=True``;
    PatternError for a filter or pattern that matches nothing. The target is then unchanged.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, value in (("a", 1), ("b", 3)):
    ...         _ = bs.save({"w": np.full(2, value, np.float32)}, f"{folder}/{name}.bpk", layout="burn")
    ...     done = bs.merge([f"{folder}/a.bpk", f"{folder}/b.bpk"], f"{folder}/c.bpk", method="linear", t=0.25)
    ...     with bs.open(f"{folder}/c.bpk") as f:
    ...         done.tensors[0].weights, f["w"].numpy().tolist()
    ((0.75, 0.25), [1.5, 1.5])
    """
    given = [each if isinstance(each, MergeSource) else MergeSource(each) for each in _several(sources)]
    checked_workers(executor)
    blend = checked_blend(method, len(given), weights, t, tensor_weights, normalize=normalize)
    paths, target, like = with_options(storage_options, [each.path for each in given], target, like)
    target = as_path(target)
    given = [replace(each, path=path) for each, path in zip(given, paths, strict=True)]
    chosen = format_for_path(target, format)
    refuse_unknown("merge", format_options, merge, chosen.plan)
    check_options(limits=limits, normalize=normalize, overwrite=overwrite, durable=durable, verify=verify)
    common = pipeline_of(
        pipeline,
        layout=layout,
        target_layout=target_layout,
        keep_layout=keep_layout,
        rules=rules,
        guess=guess,
        allow_empty=allow_empty,
    ).with_defaults(unmatched="error")
    refuse_unused(common, "merge", "part", "strict")
    if common.filter is not None or common.rename is not None:
        raise TypeError("pass filter and rename for each source, with MergeSource(path, filter=..., rename=...)")
    dtype = None if cast is None else as_cast(cast)
    kept = checked_metadata(metadata)
    if max_shard_size is None:
        refuse_existing(target, overwrite=overwrite, sources=paths)
    keys = [top_level_key if each.top_level_key is None else each.top_level_key for each in given]
    with (
        progress_from(progress) as report,
        opened_files(paths, limits, keys) as files,
    ):
        check_apart([*files, *paths, like, rules], target, shards=max_shard_size is not None)
        notes: list[Note] = []
        inputs = [_stated(input_of_file(file), each, notes) for file, each in zip(files, given, strict=True)]
        changed: dict[str, list[int]] = {}
        if method == "lora":
            folded, changed = _folded(inputs[0], files, given, blend.weights, common, like)
            inputs, given = [folded], given[:1]
        else:
            adapters = [path for path in paths if is_adapter(path)]
            if adapters and len(adapters) < len(paths):  # Adapters may be blended with each other.
                hint = 'fold it with method="lora", after its base'
                raise MergeError("a PEFT adapter among sources that are not adapters", path=adapters[0], hint=hint)
        inputs = with_layouts_given(inputs, common.layout, notes)
        inputs = [_resolved(source, each, common, like) for source, each in zip(inputs, given, strict=True)]
        layouts = _common_layout(inputs, chosen, common, notes, is_blend=method in ("linear", "slerp"))
        plans = [_compiled(source, each, common, layouts, like) for source, each in zip(inputs, given, strict=True)]
        for plan in plans:
            plan.check_constants()
        contributions = [
            Contribution(source.name, {move.target: move.snapshot for move in plan.moves})
            for source, plan in zip(inputs, plans, strict=True)
        ]
        if method == "lora":
            blend = checked_blend("overlay", 1, None, None, None, normalize=False)
        combined = combine(contributions, blend, conflicts, dtype=dtype, workers=executor, progress=report)
        if not common.allow_empty:
            _check_contributions(inputs, plans)
            if not combined.snapshots:
                hint = "pass allow_empty=True to write a file without tensors"
                raise MergeError("no tensor would be written", path=target, hint=hint)
        merged = _merged_plan(plans, combined, method)
        merged.notes[:0] = notes
        if changed:
            named = {origin.source: move.target for move in plans[0].moves for origin in move.origins}
            by = {named[name]: numbers for name, numbers in changed.items() if name in named}
            combined.rows = [replace(row, sources=(0, *by.get(row.name, ()))) for row in combined.rows]
        texts = metadata_for_files(chosen, inputs, merged, kept, common)
        numbers = sorted({printable(name) for each in inputs for name in each.scalars})
        merged.notes += [Note("metadata", f"scalars were not merged: {listed(numbers)}")] if numbers else []
        ties = ties_of(merged, combined.snapshots, chosen, texts)
        done = assemble(
            combined.snapshots,
            target,
            chosen,
            WriteOptions(
                overwrite=overwrite,
                durable=durable,
                verify=verify,
                max_shard_size=max_shard_size,
                workers=executor,
                limits=limits,
                progress=report,
                format_options=format_options,
            ),
            metadata=texts,
            ties=ties,
        )
    merged.notes += underflow_notes((), done.underflowed)
    nbytes = sum(each.nbytes for each in combined.snapshots if each.path not in ties)
    return MergeResult(combined.rows, combined.left_out, nbytes, merged.layout, verify, merged.notes)


def _check_contributions(inputs: Sequence[Input], plans: Sequence[Plan]) -> None:
    """Refuse a source of which a filter leaves nothing: the merge would be one of the others alone."""
    for source, plan in zip(inputs, plans, strict=True):
        if source.snapshots and not plan.moves:
            raise MergeError(
                "no tensor of this source is merged: its filter leaves none",
                path=source.name,
                hint="correct the filter, or pass allow_empty=True",
            )


def _folded(
    base: Input,
    files: Sequence[Checkpoint],
    given: Sequence[MergeSource],
    weights: Sequence[float],
    common: Pipeline,
    like: Any,
) -> tuple[Input, dict[str, list[int]]]:
    """Return the base with its adapters added, and which of them changed each tensor."""
    for each in given[1:]:
        if each.filter is not None or each.rename is not None:
            path = as_path(each.path)
            raise MergeError("an adapter takes no filter or rename; give them to the base", path=path)
    if base.layout == "burn":
        hint = "convert the base first"
        raise MergeError("expected a base in PyTorch's layout, found Burn's", path=base.name, hint=hint)
    paths = [as_path(each.path) for each in given[1:]]
    adapters = [adapter_of(*each) for each in zip(files[1:], paths, weights, strict=True)]
    names = [snapshot.path for snapshot in base.snapshots]
    renamed = names if given[0].rename is None else as_remapper(given[0].rename).remap_names(names).names
    kinds = kinds_of_base(base, dict(zip(names, renamed, strict=True)), common, like)
    return fold(replace(base, layout="torch"), adapters, dict(zip(names, renamed, strict=True)), kinds)


def kinds_of_base(base: Input, names: Mapping[str, str], common: Pipeline, like: Any) -> dict[str, str]:
    """Return the kinds of the modules of a base in PyTorch's layout, where something states them.

    ``names`` are the names under which the tensors are merged, which rules and a model have, too.
    """
    shapes = {names[each.path]: each.shape for each in base.snapshots}
    found: dict[str, ModuleKind | None] = {}
    if not any(path != name for path, name in names.items()):
        found.update(kinds_of_classes(base.classes, shapes) if base.classes else {})
        found.update({module.torch: module.kind for module in base.recorded or ()})
    if like is not None and not isinstance(like, (str, os.PathLike)) and layout_of(like) == "torch":
        found.update(binding_for(like).kinds(like))
    if common.rules is not None:
        found.update(kinds_by_rules(shapes, common.rules, "torch"))
    return {path: kind.name for path, kind in found.items() if kind is not None}


def _several(sources: Sequence[Path | MergeSource]) -> list[Path | MergeSource]:
    if is_path(sources) or not isinstance(sources, Iterable):
        raise TypeError(f"sources must be a list of files, got a {type(sources).__name__}")
    several = list(sources)
    if not several:
        raise MergeError("expected at least one source, got none")
    return several


def _stated(source: Input, given: MergeSource, notes: list[Note]) -> Input:
    """Return a source with the layout that the caller gives, and its name in its notes."""
    stated = source.layout_given(None if given.layout is None else layout_named(given.layout), notes)
    return replace(source, layout=stated, notes=[note.about(printable(source.name)) for note in source.notes])


def _own_pipeline(given: MergeSource, common: Pipeline) -> Pipeline:
    """Return the options of one source: the common ones, with its own filter and renames."""
    options = {name: value for name in ("filter", "rename") if (value := getattr(given, name)) is not None}
    return common.replace(layout=None, **options)


def _resolved(source: Input, given: MergeSource, common: Pipeline, like: Any) -> Input:
    """Return a source that does not state its layout with the one that ``like`` proves, as a load would decide it."""
    is_stated = source.layout is not None or _ruled_layout(common) is not None
    if is_stated or like is None or common.keep_layout or not source.snapshots:
        return source
    own = _own_pipeline(given, common)
    with located(path=source.name), like_target(like, source, own, is_whole=False) as target:
        layout, notes = resolve_layout(source, own, target)
        return replace(source, layout=layout, notes=[*source.notes, *notes])


def _ruled_layout(common: Pipeline) -> str | None:
    """Return the layout that rules for tensors give to what they make; None if they do not state it."""
    return None if common.recipe is None else common.recipe.target_layout


def _common_layout(
    inputs: Sequence[Input], chosen: Format, common: Pipeline, notes: list[Note], *, is_blend: bool
) -> str | None:
    """Return the layout that the merged tensors are to have."""
    inputs = [source for source in inputs if source.snapshots] or inputs  # a file without tensors does not count
    sides = [(source.name, _ruled_layout(common) or source.layout) for source in inputs]
    tensors = [{each.path: each for each in source.snapshots} for source in inputs if source.layout is None]
    is_clear = not any(hides_transpose(one, other) for at, one in enumerate(tensors) for other in tensors[:at])
    met = unify(sides, "blend" if is_blend else "overlay", keep=common.keep_layout, is_clear=is_blend and is_clear)
    notes += met.notes
    wanted = common.target_layout or written_layout(chosen)
    is_same = met.layout is None and common.target_layout is None
    is_same = is_same and all(each.format == chosen.name for each in inputs)
    if common.keep_layout or wanted is None or is_same:  # an unknown layout stays unknown
        return met.layout
    if met.layout is None:
        raise ModelError(
            f"no source states its layout, and {chosen.name} has {wanted}'s",
            hint=Ways('layout="torch"', 'layout="burn"', "keep_layout=True to copy names and axes unchanged"),
        )
    return wanted


def _compiled(source: Input, given: MergeSource, common: Pipeline, layout: str | None, like: Any) -> Plan:
    """Return the plan that converts one source into the common layout, with its own filter and renames."""
    with located(path=source.name):
        is_kept = not source.snapshots or layout == (_ruled_layout(common) or source.layout)
        own = _own_pipeline(given, common)
        own = own.replace(keep_layout=is_kept, target_layout=None if is_kept else convertible(layout))
        with like_target(like, source, own, is_whole=False) as target:
            return compile_convert(source, own, None, target)


def _merged_plan(plans: Sequence[Plan], combined: Combined, method: str) -> Plan:
    """Return one plan of the whole merged file."""
    first = plans[0]
    merged = Plan(layout=first.layout, source_layout=first.source_layout)
    moves = [{move.target: move for move in plan.moves} for plan in plans]
    for row, snapshot in zip(combined.rows, combined.snapshots, strict=True):
        origins = tuple(origin._replace(input=at) for at in row.sources for origin in moves[at][row.name].origins)
        merged.moves.append(Move(row.name, origins, (Combine(method, row.weights),), snapshot))
    merged.is_converted = any(plan.is_converted for plan in plans)
    views = [plan.view for plan in plans if plan.view is not None and plan.is_converted]
    merged.view = views[0] if views and not any(plan.renames for plan in plans) else None
    merged.notes = [*combined.notes, *(note for plan in plans for note in plan.notes)]
    merged.fates = {name: why for plan in plans for name, why in plan.fates.items()} | combined.left_out
    return merged
