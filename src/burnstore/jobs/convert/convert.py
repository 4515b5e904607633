"""Convert files into one file of another format or layout, a tensor at a time; it is verified before it gets its name.

open       the sources; no two of them may have a tensor of the same name
compile    a plan: each tensor of the target with its sources and operations; nothing is read yet
assemble   read, transform, write, read back and compare the tensors, by many workers
receipt    on request: what was read, done and written, with digests, beside the target
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from types import ModuleType
from typing import Any, Literal

from ... import __version__
from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import (
    ChangedError,
    CorruptError,
    DuplicateNameError,
    LimitError,
    ModelError,
    UnsupportedError,
    Ways,
    add_hint,
    entry_point,
    located,
    printable,
    refuse_unknown,
)
from ...formats.base import Format, WriteOptions, WritesFolder, loss_notes
from ...formats.registry import format_for_path
from ...formats.sharded.locate import INDEX_SUFFIX
from ...formats.sharded.write import byte_count
from ...io.atomic import already_exists, refuse_existing
from ...io.gc_pause import gc_paused
from ...io.paths import as_path, exists, is_path, with_options
from ...io.workers import Workers
from ...limits import Limits, check_options
from ...pipeline.compile import underflow_notes
from ...pipeline.compile_file import compile_convert
from ...pipeline.ends import Input, Target, input_of_file, target_of_file, target_of_model, with_full_paths
from ...pipeline.metadata import checked_metadata, metadata_for_files, written_layout
from ...pipeline.options import (
    AdapterLike,
    FilterLike,
    Pipeline,
    RenameLike,
    RulesLike,
    pipeline_of,
    refuse_unused,
)
from ...pipeline.plan import Plan, moves_from_json
from ...pipeline.stored import keep_stored
from ...pipeline.ties import ties_of
from ...pipeline.unify import unify
from ...pipeline.write import Assembled, assemble, check_apart, files_read
from ...progress import Progress, ProgressLike, progress_from
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.snapshot import TensorSnapshot
from ..map.map import MapResult, Qkv, Rope, map_names
from .job import Job, is_cluster, is_ray, job_sources, units_of, without_secrets
from .receipt import RECEIPT_SUFFIX, Receipt, ReceiptSource, ReceiptTensor, file_digest, files_of, read_receipt
from .result import ConvertResult, opened_files, scalar_options
from .training import training_plan

Path = str | os.PathLike[str]


@entry_point("convert")
def convert(
    source: Path | Sequence[Path],
    target: Path,
    *,
    filter: FilterLike | None = None,
    rename: RenameLike | None = None,
    layout: str | None = None,
    target_layout: str | None = None,
    keep_layout: bool = False,
    like: Any = None,
    missing: Literal["outline"] | None = None,
    map: bool = False,
    rope: Rope | None = None,
    qkv: Qkv | None = None,
    rules: RulesLike | None = None,
    invert: bool = False,
    guess: bool = False,
    adapter: AdapterLike | None = None,
    cast: DType | str | None = None,
    top_level_key: str | None = None,
    metadata: Mapping[str, str | None] | None = None,
    format: str | None = None,
    max_shard_size: int | str | None = None,
    allow_empty: bool = False,
    overwrite: bool = False,
    durable: bool = True,
    verify: bool = True,
    receipt: bool | Path = False,
    resume: bool = False,
    plan: Path | None = None,
    executor: Workers | Literal["ray"] | ModuleType = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    pipeline: Pipeline | None = None,
    **format_options: Any,
) -> ConvertResult:
    """Write the tensors of files into another, whose format follows its suffix unless ``format`` names it.

    ``source`` is a file of any format, a folder or an index of shards, or several of them whose tensors together make
    the target; DuplicateNameError if two tensors have the same name. The stages, in this order:

    * ``rename``: a mapping of whole names, or rules such as ``"^h\\.=>layers."`` one after the other.
    * The layout. ``layout`` is that of a source that does not state its own, ``target_layout`` that of the target if
      not the format's own, and ``keep_layout=True`` copies names and axes unchanged. A layout conversion needs the
      kinds of the modules: from ``like`` (a model, a declaration, or a file that records its modules), from the
      source's own record, from ``rules`` (a pattern found in a module's path → kind; or the path of a rules file), or
      with ``guess=True`` from names and shapes (AmbiguousError with the evidence if they are ambiguous).
    * ``rules`` may also state how each tensor is converted (docs/howto/rules.md), instead of the layout stage or before
      it; ``invert=True`` applies such rules backwards.
    * ``map=True`` finds these rules if ``like`` is the outline of a Burn model; ModelError if something is open, which
      ``rope`` and ``qkv`` may answer as for `map_names`. Equal entries of lists follow their places, with a note.
    * ``like`` also checks: the target must get every tensor that ``like`` has, of the same shape, and no other. Floats
      get the dtypes of an outline, with a note, unless ``cast`` states another. ``missing="outline"`` takes what the
      source lacks (a mask, a new head) from the outline given as ``like``, and notes each by name.
    * The state of an optimizer, whose tensors are named by ids, follows its parameters to their new names.
    * ``filter``: only tensors whose names in the target match.
    * ``adapter``: an adapter, its name, or a function of one snapshot. One that converts layouts replaces that stage.
    * ``cast``: floats in this dtype (``"bf16"``); DTypeError if a finite value would become infinite.

    Metadata is kept, apart from keys that state the layout; ``metadata`` adds to it, None removes a key. A converted
    file records its modules, so that the way back needs nothing else.

    The target is written completely or not at all; one without any tensor is refused unless ``allow_empty=True``. With
    ``verify`` (default) every tensor is first read back and compared with its source. ``receipt=True`` (or a path)
    records what was read, done and written, see `check_receipt` and `replay`. ``max_shard_size`` (``"5GB"``) writes
    shards with an index; with ``resume=True`` such a conversion continues an interrupted one, and keeps its shards if
    it fails.

    ``plan`` is the path of a job to write instead of the target; `burnstore.jobs.convert.parts` does its shares on any
    machine, and finishes it.

    At most the largest tensor and some megabytes are in memory. ``executor`` runs the work: threads of this process
    (None), processes (their number), or an object with ``submit``; for the latter two, files must have the same paths
    everywhere. With a Dask client, ``"ray"`` or the module `ray` the workers do shares of a job, which is finished
    here: they read and write a bucket directly, or local files that they share. Raises ModelError if a module kind is
    unknown or a tensor does not fit; the target is then unchanged.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = bs.save({"fc.weight": np.ones((4, 3))}, f"{folder}/a.safetensors", metadata={"format": "pt"})
    ...     done = bs.convert(f"{folder}/a.safetensors", f"{folder}/a.bpk", rules={"^fc$": "Linear"})
    ...     with bs.open(f"{folder}/a.bpk") as f:
    ...         done.source_layout, done.layout, f["fc.weight"].shape
    ('torch', 'burn', (3, 4))
    """
    check_options(limits=limits, map=map, overwrite=overwrite, durable=durable, verify=verify, resume=resume)
    chosen = pipeline_of(
        pipeline,
        filter=filter,
        rename=rename,
        layout=layout,
        target_layout=target_layout,
        keep_layout=keep_layout,
        rules=rules,
        invert=invert,
        guess=guess,
        adapter=adapter,
        cast=cast,
        allow_empty=allow_empty,
    ).with_defaults(unmatched="error")
    paths, target, like = with_options(storage_options, _paths(source), target, like)
    refuse_unused(chosen, "convert", "part", "strict")
    cluster, workers = _cluster_of(executor, storage_options, receipt=receipt, resume=resume)
    how = _Destination(
        target=as_path(target),
        format=format,
        max_shard_size=None if max_shard_size is None else byte_count(max_shard_size),
        allow_empty=chosen.allow_empty,
        overwrite=overwrite,
        durable=durable,
        verify=verify,
        receipt=_receipt_path(receipt, as_path(target)),
        resume=resume,
        job=None if plan is None else as_path(plan, storage_options),
        cluster=cluster,
        workers=workers,
        limits=limits,
        format_options=format_options,
    )
    kept = checked_metadata(metadata)
    writer = how.checked_format()
    refuse_unknown("convert", format_options, convert, writer.plan)
    if max_shard_size is None:
        refuse_existing(how.target, overwrite=overwrite, sources=paths)
    if (rope or qkv) and not map:
        raise ValueError("rope and qkv answer questions of map=True; a rules file has the answers in it")
    if missing is not None:
        _check_missing(missing, like, how)
    mapping = _mapped(paths, like, top_level_key, rope, qkv) if map else None
    if mapping is not None:
        chosen = chosen.replace(recipe=mapping.recipe(allow_missing=missing is not None))
    with (
        progress_from(progress) as report,
        opened_files(paths, limits, [top_level_key] * len(paths), together=True) as sources,
        ExitStack() as opened,
    ):
        read = [*sources, like, rules]
        with gc_paused():
            is_copy = writer.name == "gguf" and all(file.format == "gguf" for file in sources)
            inputs: Sequence[Input] = [input_of_file(file, own_names=is_copy) for file in sources]
            wanted = opened.enter_context(like_target(like, inputs[0], chosen, is_whole=not chosen.allow_partial))
            if missing is not None:
                if wanted is None or not wanted.is_outline:
                    raise ModelError('missing="outline" takes values from an outline, and like is none')
                wanted = replace(wanted, is_whole=False, fills=True)
            check_apart(read, how.target, shards=max_shard_size is not None, beside=how.receipt)
            try:
                compiled, inputs = plan_of_files(inputs, chosen, writer, wanted)
            except ModelError as error:
                if wanted is not None and wanted.is_outline and chosen.recipe is None:
                    error.hint = add_hint(error.hint, Ways("map=True to find the names of the Burn model"))
                raise
            if mapping is not None and mapping.by_list:
                compiled.notes.append(Note("names", mapping.list_note))
            written = _Written(
                metadata_for_files(writer, inputs, compiled, kept, chosen),
                {**scalar_options(inputs, writer, compiled, format_options), **format_options},
            )
        done = _converted(compiled, written, sources, writer, how, report)
        is_mapped = chosen.recipe is not None and chosen.recipe.target_layout is not None and done.verified
        return replace(done, mapping="verified copy") if is_mapped else done


def _check_missing(missing: str, like: Any, how: _Destination) -> None:
    if missing != "outline":
        raise ValueError(f"missing must be 'outline', got {missing!r}")
    if not is_path(like):
        raise ValueError('missing="outline" needs like= the path of an outline')
    is_spread = how.cluster is not None or not isinstance(how.workers, int | None)
    if how.receipt is not None or how.job is not None or is_spread:
        raise ValueError('missing="outline" leaves no receipt and no job: values of the outline are not of the source')


RunJob = Callable[[bytes, Progress | None], "ConvertResult"]
"""Does all shares of a job with a cluster, and finishes it."""


def _cluster_of(
    executor: Any, storage_options: Mapping[str, Any] | None, *, receipt: bool | Path, resume: bool
) -> tuple[RunJob | None, Workers]:
    """Return how a cluster does a job, or another executor.

    Receipts and interrupted conversions are of one process and its helpers: a client of Dask is then such a helper, as
    every executor is.
    """
    if not is_cluster(executor):
        if isinstance(executor, str):
            raise ValueError(f'expected "ray" or an executor, got {executor!r}')
        return None, executor
    if receipt or resume:
        if is_ray(executor):
            raise ValueError("with Ray a conversion is a job: leave out receipt and resume")
        return None, executor

    def run(document: bytes, report: Progress | None) -> ConvertResult:
        from .parts import run_job  # not at import: few conversions have a cluster

        return run_job(executor, document, storage_options=storage_options, progress=report)

    return run, None


def _mapped(
    source: Path | Sequence[Path], like: Any, top_level_key: str | None, rope: Rope | None, qkv: Qkv | None
) -> MapResult:
    """Return the mapping of a source to an outline."""
    paths = _paths(source)
    if not is_path(like) or len(paths) != 1:
        raise ValueError("map=True needs exactly one source, and like= the path of an outline")
    return map_names(paths[0], like=like, rope=rope, qkv=qkv, top_level_key=top_level_key)


def plan_of_files(
    inputs: Sequence[Input], pipeline: Pipeline, chosen: Format, like: Target | None = None
) -> tuple[Plan, Sequence[Input]]:
    """Return the plan of writing the tensors of open files into one file of this format, and the files' metadata."""
    with located(path=inputs[0].name):
        training = training_plan(inputs[0], pipeline) if len(inputs) == 1 and like is None else None
        if training is not None:
            return training[0], [training[1]]
        source = gathered(inputs, pipeline)
        own = written_layout(chosen)
        if source.layout is None and pipeline.layout is None and all(each.format == chosen.name for each in inputs):
            own = pipeline.target_layout  # an unknown layout stays unknown where nothing else changes
        plan = compile_convert(source, pipeline, own, like)
        if len(inputs) > 1:  # the plan states which source each tensor comes from
            owners = {snapshot.path: at for at, each in enumerate(inputs) for snapshot in each.snapshots}
            for row, move in enumerate(plan.moves):
                origins = tuple(each._replace(input=owners.get(each.source or "", 0)) for each in move.origins)
                plan.moves[row] = move._replace(origins=origins)
        keep_stored(plan, source.snapshots, chosen, is_cast=pipeline.cast is not None)
        return plan, inputs


def gathered(inputs: Sequence[Input], pipeline: Pipeline) -> Input:
    """Return several inputs as one; they must have the same layout, and no tensor name in common."""
    if len(inputs) == 1:
        return inputs[0]
    from ...pipeline.kinds import MODULES_KEY, record_text
    from ...pipeline.metadata import merged_record

    notes: list[Note] = []
    if pipeline.layout is not None:
        inputs = [replace(each, layout=each.layout_given(pipeline.layout, notes)) for each in inputs]
    stated = {each.name: each.layout for each in inputs}
    if len(set(stated.values())) > 1:
        listed = ", ".join(f"{name}: {layout or 'none'}" for name, layout in stated.items())
        raise ModelError(
            f"the sources have different layouts ({listed})",
            hint=Ways(
                "convert each separately first",
                'pass layout="torch" or layout="burn" if all have that layout',
                lead="",
            ),
        )
    owners: dict[str, str] = {}
    for each in inputs:
        for snapshot in each.snapshots:
            if snapshot.path in owners:
                raise DuplicateNameError(
                    f"both {owners[snapshot.path]} and {each.name} have this tensor",
                    tensor=snapshot.path,
                    hint="convert one of them, or use merge, which chooses or averages",
                )
            owners[snapshot.path] = each.name
    merged = merged_record(inputs)
    metadata = {} if merged is None else {MODULES_KEY: record_text(merged)}
    return Input(
        inputs[0].name,
        [snapshot for each in inputs for snapshot in each.snapshots],
        inputs[0].layout,
        inputs[0].format,
        metadata,
        notes=[
            *notes,
            *unify(stated.items(), "overlay").notes,
            *(note.about(printable(each.name)) for each in inputs for note in each.notes),
        ],
    )


@contextmanager
def like_target(like: Any, source: Input, pipeline: Pipeline, *, is_whole: bool = True) -> Iterator[Target | None]:
    """Yield the target that ``like`` stands for: a model, a declaration, or an open file.

    ``is_whole`` requires that the source has every tensor of the target.
    """
    if like is None:
        yield None
    elif is_path(like):
        with open_checkpoint(like) as file:
            yield replace(target_of_file(file, source, pipeline), is_whole=is_whole)
    else:
        skip = pipeline.skip_enum_variants
        skip = source.format == "pytorch" if skip is None else skip
        target = target_of_model(like, skip_enum_variants=skip, rules=pipeline.rules)
        yield replace(with_full_paths(target, like) if skip else target, is_whole=is_whole)


@dataclass(frozen=True, slots=True)
class _Written:
    """What is written beside the tensors: metadata, and options of the format."""

    metadata: Mapping[str, str]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Destination(WriteOptions):
    """Where the tensors go, and how."""

    target: str
    format: str | None
    max_shard_size: int | None = None
    allow_empty: bool = False
    receipt: str | None = None
    job: str | None = None
    cluster: RunJob | None = None

    def checked_format(self) -> Format:
        """Return the target's format; refuse what cannot be written before anything is opened."""
        if self.receipt is not None and not self.verify:
            raise ValueError("receipt needs verify=True: a receipt states only what was proved")
        if self.resume and self.max_shard_size is None:
            raise ValueError("resume needs max_shard_size: only a conversion into shards can be resumed")
        if self.job is not None and (
            self.receipt is not None or self.resume or self.workers is not None or self.cluster is not None
        ):
            raise ValueError("plan= only compiles the conversion: leave out receipt, resume and executor")
        chosen = format_for_path(self.target, self.format)
        with located(path=self.target):
            chosen.plan([], {}, self.bounds)
        if self.receipt is not None and not self.overwrite and exists(self.receipt):
            raise already_exists(self.receipt, stage="check")
        return chosen


def _converted(
    plan: Plan,
    written: _Written,
    sources: Sequence[Checkpoint],
    chosen: Format,
    how: _Destination,
    report: Progress | None,
) -> ConvertResult:
    moves = []
    # What a receipt or a job cannot hold is refused before any work.
    if how.receipt is not None or how.job is not None or how.cluster is not None:
        moves = [move.to_json() for move in plan.moves]
        for key, value in how.format_options.items():
            if not isinstance(value, (str, int, float, bool)):
                raise UnsupportedError(
                    f"a receipt cannot hold the option {key}, nor can a job", hint="pass plain values, or no receipt"
                )
    plan.check_not_empty(allow_empty=how.allow_empty or bool(written.options.get("scalars")), path=how.target)
    plan.check_constants()
    snapshots = [move.snapshot for move in plan.moves]
    ties = ties_of(plan, snapshots, chosen, written.metadata)
    if how.job is not None or how.cluster is not None:
        job = _job_of(plan, written, sources, chosen, how, moves)
        if how.cluster is not None:
            done_by_workers = how.cluster(job.document(), report)
            notes = [*plan.notes, *(note for note in done_by_workers.notes if note not in plan.notes)]
            return replace(done_by_workers, notes=notes, guess=plan.guess, left_out=plan.fates)
        assert how.job is not None
        job.save(how.job, overwrite=how.overwrite)
        nbytes = sum(each.nbytes for each in snapshots)
        layouts = plan.source_layout, plan.layout
        return ConvertResult(len(snapshots), nbytes, *layouts, False, plan.notes, [how.job], left_out=plan.fates)
    written_as = replace(how, digests=how.receipt is not None, progress=report, format_options=written.options)
    done = assemble(snapshots, how.target, chosen, written_as, metadata=written.metadata, ties=ties)
    if how.receipt is not None:
        receipt = _receipt(sources, plan, written, moves, how, chosen, done)
        receipt.save(how.receipt, overwrite=how.overwrite, durable=how.durable)
    plan.notes += underflow_notes((), done.underflowed)
    plan.notes += loss_notes(chosen, snapshots, written.options)
    nbytes = sum(each.nbytes for each in snapshots if each.path not in ties)
    return ConvertResult(
        len(snapshots),
        nbytes,
        plan.source_layout,
        plan.layout,
        how.verify,
        plan.notes,
        done.files,
        how.receipt,
        plan.guess,
        plan.fates,
    )


def _job_of(
    plan: Plan,
    written: _Written,
    sources: Sequence[Checkpoint],
    chosen: Format,
    how: _Destination,
    moves: Sequence[Mapping[str, Any]],
) -> Job:
    """Return a conversion as a job."""
    if isinstance(chosen, WritesFolder):
        raise UnsupportedError(f"a job writes one file or shards; a checkpoint of {chosen.name} is a folder")
    snapshots = [move.snapshot for move in plan.moves]
    job = Job(
        id=os.urandom(16).hex(),
        sources=job_sources(sources),
        target=without_secrets(how.target),
        format=chosen.name,
        layout=plan.layout,
        source_layout=plan.source_layout,
        max_shard_size=how.max_shard_size,
        metadata=dict(written.metadata),
        options={key: value for key, value in written.options.items() if key != "scalars"},
        overwrite=how.overwrite,
        durable=how.durable,
        verify=how.verify,
        allow_empty=how.allow_empty,
        left_out={name: str(reason) for name, reason in plan.fates.items()},
        tensors=tuple(
            {**move, "dtype": str(each.dtype), "shape": list(each.shape)}
            for move, each in zip(moves, snapshots, strict=True)
        ),
        units=units_of(snapshots),
    )
    for source in job.sources:
        for file in source.files:
            without_secrets(file.path)
    return job


def _path_of(source: ReceiptSource) -> str | list[str]:
    """Return what to open for a source of a receipt: its index or metadata, or all files of a set without one."""
    if len(source.files) == 1 or source.path.endswith((INDEX_SUFFIX, ".metadata")):
        return source.path
    return [file.path for file in source.files]


def _paths(source: Path | Sequence[Path]) -> list[str]:
    is_several = isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray, memoryview))
    if not is_path(source) and (hasattr(source, "read") or not is_several):  # or it is a stream without positions
        raise TypeError(f"expected a path or several, got {type(source).__name__}")
    several = [source] if is_path(source) else list(source)  # type: ignore[arg-type]  # is_path is no type guard
    if not several:
        raise ValueError("expected at least one source, got none")
    return [as_path(path) for path in several]


def _receipt_path(receipt: bool | Path, target: str) -> str | None:
    if isinstance(receipt, bool):
        return target + RECEIPT_SUFFIX if receipt else None
    return as_path(receipt)


# --- receipts ---------------------------------------------------------------------------------------------------------


def _receipt(
    sources: Sequence[Checkpoint],
    plan: Plan,
    written: _Written,
    moves: Sequence[Mapping[str, Any]],
    how: _Destination,
    chosen: Format,
    done: Assembled,
) -> Receipt:
    names = [[file.name for file in files_read(source)] for source in sources]
    files = files_of([*done.files, *(name for each in names for name in each)], how.workers)
    for source in sources:
        for file in files_read(source):
            file.read_at(0, 0)  # raises if it was changed in place
            if not file.is_current():
                message = "converted, but without a receipt: the source was replaced during the conversion"
                raise ChangedError(message, path=file.name, hint="convert again, or keep the file without a receipt")
    by_path = {file.path: file for file in files}
    return Receipt(
        __version__,
        tuple(
            ReceiptSource(source.path, source.format, tuple(by_path[name] for name in each), source.top_level_key)
            for source, each in zip(sources, names, strict=True)
        ),
        how.target,
        chosen.name,
        plan.layout,
        how.max_shard_size,
        dict(written.metadata),
        # The scalars of the sources are read again, not stored.
        {key: value for key, value in written.options.items() if key != "scalars"},
        tuple(by_path[file] for file in done.files),
        tuple(
            ReceiptTensor(move.target, given, str(move.snapshot.dtype), move.snapshot.shape, done.digests[move.target])
            for move, given in zip(plan.moves, moves, strict=True)
        ),
    )


@entry_point("replay")
def replay(
    receipt: Path,
    target: Path | None = None,
    *,
    allow_empty: bool = False,
    overwrite: bool = False,
    durable: bool = True,
    executor: Workers = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
) -> ConvertResult:
    """Repeat the conversion of a receipt, and require that every tensor has the same digest as before.

    The sources must be unchanged: their digests are checked first. Then the stored plan is executed. The target is the
    receipt's own, or another. CorruptError where a source or a tensor differs, LimitError where the plan would write or
    read far more than the sources contain; the target is then unchanged.

    >>> import filecmp, tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = bs.save({"w": np.ones(3, np.float32)}, f"{folder}/a.bpk")
    ...     done = bs.convert(f"{folder}/a.bpk", f"{folder}/a.safetensors", cast="bf16", receipt=True)
    ...     again = bs.replay(done.receipt, f"{folder}/b.safetensors")
    ...     filecmp.cmp(f"{folder}/a.safetensors", f"{folder}/b.safetensors", shallow=False)
    True
    """
    check_options(limits=limits, allow_empty=allow_empty, overwrite=overwrite, durable=durable)
    stated = read_receipt(receipt)
    with located(path=as_path(receipt)):
        for each in stated.sources:
            for file in each.files:
                if file_digest(file.path) != file:
                    raise CorruptError(
                        "SHA-256 mismatch with receipt: this source has changed",
                        path=file.path,
                        hint="restore the original file, or convert again",
                    )
    how = _Destination(
        target=stated.target if target is None else as_path(target),
        format=stated.format,
        max_shard_size=stated.max_shard_size,
        allow_empty=allow_empty,
        overwrite=overwrite,
        durable=durable,
        workers=executor,
        limits=limits,
        resume=False,
        expected={tensor.name: tensor.sha256 for tensor in stated.tensors},
    )
    chosen = how.checked_format()
    with (
        progress_from(progress) as report,
        opened_files(
            [_path_of(each) for each in stated.sources], limits, [each.top_level_key for each in stated.sources]
        ) as sources,
    ):
        check_apart([*sources, receipt], how.target, shards=stated.max_shard_size is not None)
        inputs = [input_of_file(file) for file in sources]
        tensors = [
            {**file, **{each.path: each for each in own.snapshots}} for file, own in zip(sources, inputs, strict=True)
        ]
        plan = Plan(layout=stated.layout, source_layout=inputs[0].layout)
        with located(path=as_path(receipt)):
            most = max(_MOST_GROWTH * sum(source.nbytes for source in sources), _SMALL_REPLAY)
            plan.moves = list(moves_from_json([each.move for each in stated.tensors], tensors, most_filled=most))
            _check_replayed(plan, stated, sources, tensors, chosen)
        options = {**scalar_options(inputs, chosen, plan, stated.options), **stated.options}
        done = _converted(plan, _Written(stated.metadata, options), sources, chosen, how, report)
    if len(done.files) == 1 and file_digest(done.files[0]).sha256 != stated.files[0].sha256:
        text = f"all tensors are the same; header or padding differ from the file of burnstore {stated.burnstore}"
        done.notes.append(Note("check", text))
    return done


_MOST_GROWTH, _MOST_READS = 64, 1024
_SMALL_REPLAY = 64 << 20


def _check_replayed(
    plan: Plan,
    stated: Receipt,
    sources: Sequence[Checkpoint],
    tensors: Sequence[Mapping[str, TensorSnapshot]],
    chosen: Format,
) -> None:
    """Refuse a plan of a receipt whose work has no relation to its sources, before anything is read or written.

    A cast makes a tensor at most 64 times larger, and a tensor that is cut into parts is read once for each at worst.
    """
    for tensor, move in zip(stated.tensors, plan.moves, strict=True):
        if (str(move.snapshot.dtype), move.snapshot.shape) != (tensor.dtype, tensor.shape):
            raise CorruptError(
                f"its operations make {move.snapshot.dtype} {list(move.snapshot.shape)}, and the receipt states "
                f"{tensor.dtype} {list(tensor.shape)}",
                tensor=tensor.name,
            )
    given = sum(source.nbytes for source in sources)
    made = sum(move.snapshot.nbytes for move in plan.moves)
    read = sum(
        0 if origin.source is None else tensors[origin.input][origin.source].nbytes
        for move in plan.moves
        for origin in move.origins
    )
    for nbytes, most, what in ((made, _MOST_GROWTH, "writes"), (read, _MOST_READS, "reads")):
        if nbytes > max(given * most, _SMALL_REPLAY):
            raise LimitError(
                f"its plan {what} {nbytes:,} bytes, more than {most} times the {given:,} bytes of its sources",
                hint="convert the sources again instead of replaying this receipt",
            )
    own = signature(chosen.plan).parameters
    for option, value in stated.options.items():
        if option not in own or option in _NOT_STORED or not isinstance(value, (str, int, float, bool)):
            raise CorruptError(f"{option!r} is not an option that a receipt may state for {chosen.name}")


_NOT_STORED = ("tensors", "metadata", "limits", "scalars", "ties")
