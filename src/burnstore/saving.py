"""Save a model or named tensors into a file or bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import BurnstoreWarning, entry_point, located, refuse_unknown, warn
from .formats.base import WriteOptions
from .formats.registry import format_for_path, format_named
from .io.atomic import refuse_existing
from .io.gc_pause import gc_paused
from .io.paths import as_path, with_options
from .limits import Limits, check_options
from .pipeline.options import AdapterLike, FilterLike, Pipeline, RenameLike, RulesLike, pipeline_of, refuse_unused
from .pipeline.save import SaveResult, plan_of, save_plan
from .progress import ProgressLike, progress_from
from .tensor.data import Array, TensorData
from .tensor.dtype import DType
from .tensor.note import note_kind
from .tensor.snapshot import TensorSnapshot

Tensor = Array | TensorData | TensorSnapshot


@entry_point("save")
def save(
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any,
    path: str | os.PathLike[str],
    *,
    filter: FilterLike | None = None,
    rename: RenameLike | None = None,
    layout: str | None = None,
    rules: RulesLike | None = None,
    adapter: AdapterLike | None = None,
    cast: DType | str | None = None,
    metadata: Mapping[str, str] | None = None,
    format: str | None = None,
    max_shard_size: int | str | None = None,
    burn_version: str | None = None,
    allow_empty: bool = False,
    overwrite: bool = False,
    durable: bool = True,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    pipeline: Pipeline | None = None,
    **format_options: Any,
) -> SaveResult:
    """Save a model, or named tensors, into one file, all or nothing; return what was written.

    ``tensors`` is a model, a mapping of names to NumPy arrays, `TensorSnapshot` or `TensorData`, an open `Checkpoint`,
    or a sequence of snapshots; data are written in that order, a chunk in memory at a time. The format follows the
    suffix unless ``format`` names one. ``metadata=None`` writes what the format's own writer would, a mapping exactly
    that. An existing file is refused unless ``overwrite=True``; then it is replaced in one step when the new one is
    complete, also if the tensors are read from it. When `save` returns, the file survives a power cut, unless
    ``durable=False``. SaveError if the filter leaves no tensor, or if a file would be replaced by one without tensors;
    ``allow_empty=True`` writes even that.

    A model is written in the layout of the format (Burnpack: Burn's), or in its own where the format has none;
    ``layout`` (``"burn"``, ``"torch"``) asks for another. Of named tensors, ``layout`` states the layout that they
    have; without it the file records that it is unknown. ``rules`` (pattern found in a module's path → kind) name the
    kinds of modules that the model does not state. Stages run in this order: ``filter`` (on the model's paths), layout,
    ``adapter``, ``cast``, ``rename``; see `burnstore.Pipeline` for all options.

    ``max_shard_size`` (bytes, or text such as ``"5GB"``) writes SafeTensors into files of at most that size and an
    index where one file would be larger. ``burn_version`` writes the Burnpack of that release. ``progress`` gets the
    bytes written so far and in total: a function of two numbers, or a class of bars such as ``tqdm.tqdm``.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = bs.save({"weight": np.eye(2, dtype=np.float32)}, f"{folder}/model.bpk", metadata={"epochs": "100"})
    ...     with bs.open(f"{folder}/model.bpk") as f:
    ...         result.tensors, f.metadata["epochs"], f["weight"][1].tolist()
    (('weight',), '100', [0.0, 1.0])
    """
    if isinstance(tensors, (str, os.PathLike)):
        raise TypeError("save takes the model first, then the file: save(model, path)")
    path = as_path(with_options(storage_options, path)[0])
    check_options(limits=limits, overwrite=overwrite, durable=durable)
    chosen_pipeline = pipeline_of(
        pipeline,
        filter=filter,
        rename=rename,
        layout=layout,
        rules=rules,
        adapter=adapter,
        cast=cast,
        allow_empty=allow_empty,
    )
    refuse_unused(chosen_pipeline, "save", "part", "keep_layout", "target_layout", "guess")
    with located(path=path), progress_from(progress) as report:
        chosen = format_for_path(path, format)
        if max_shard_size is None:
            refuse_existing(path, overwrite=overwrite)
        if burn_version is not None:
            format_options["burn_version"] = burn_version
        how = WriteOptions(
            overwrite=overwrite,
            durable=durable,
            limits=limits,
            progress=report,
            max_shard_size=max_shard_size,
            format_options=format_options,
        )
        refuse_unknown("save", format_options, save, chosen.plan)
        with gc_paused():
            plan, texts = plan_of(tensors, chosen, _metadata(metadata), chosen_pipeline, format_options)
        return save_plan(plan, path, chosen, texts, how)[0]


@entry_point("serialize")
def serialize(
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any,
    *,
    format: str,
    metadata: Mapping[str, str] | None = None,
    filter: FilterLike | None = None,
    rename: RenameLike | None = None,
    layout: str | None = None,
    rules: RulesLike | None = None,
    adapter: AdapterLike | None = None,
    cast: DType | str | None = None,
    allow_empty: bool = False,
    limits: Limits | None = None,
    pipeline: Pipeline | None = None,
    **format_options: Any,
) -> bytes:
    """Return the bytes that `save` would write.

    Bytes have no place for the notes of a `SaveResult`. So each note, and each tensor that was left out although no
    filter asked for it, is a `BurnstoreWarning`; a warnings filter of ``error`` refuses them.

    >>> len(serialize({}, format="burnpack", metadata={}, layout="burn"))
    256
    """
    chosen = format_named(format)
    refuse_unknown("serialize", format_options, serialize, chosen.plan)
    how = WriteOptions(limits=limits, format_options=format_options)
    check_options(limits=limits)
    chosen_pipeline = pipeline_of(
        pipeline,
        filter=filter,
        rename=rename,
        layout=layout,
        rules=rules,
        adapter=adapter,
        cast=cast,
        allow_empty=allow_empty,
    )
    with gc_paused():
        plan, texts = plan_of(tensors, chosen, _metadata(metadata), chosen_pipeline, format_options)
    result, written = save_plan(plan, None, chosen, texts, how)
    assert written is not None
    left_out = [f"left out: {name} ({why})" for name, why in result.left_out.items() if note_kind(why) != "filtered"]
    for note in (*left_out, *(note for note in result.notes if note.kind != "empty")):
        warn(note, BurnstoreWarning)
    return written


def _metadata(given: Mapping[str, str] | None) -> Callable[[Any], Mapping[str, str] | None]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"metadata must map str to str, got {type(given).__name__}")
    return lambda layout: given
