"""Load a file into a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .checkpoint import Checkpoint, open_checkpoint
from .errors import entry_point
from .limits import Limits, check_options
from .models.result import ApplyResult
from .pipeline.ends import input_of_file
from .pipeline.load import load_input
from .pipeline.options import AdapterLike, FilterLike, Pipeline, RenameLike, RulesLike, pipeline_of, refuse_unused
from .stores.base import Store
from .tensor.dtype import DType
from .transforms.partition import Part

FileLike = str | os.PathLike[str] | bytes | bytearray | memoryview


@entry_point("load")
def load(
    model: Any,
    source: FileLike | Checkpoint | Store,
    *,
    filter: FilterLike | None = None,
    rename: RenameLike | None = None,
    layout: str | None = None,
    rules: RulesLike | None = None,
    adapter: AdapterLike | None = None,
    cast: DType | str | None = None,
    part: Part | None = None,
    top_level_key: str | None = None,
    allow_partial: bool = False,
    validate: bool = True,
    strict: bool = False,
    allow_empty: bool = False,
    device: Any = None,
    in_place: bool = True,
    zero_copy: bool = False,
    format: str | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
    pipeline: Pipeline | None = None,
) -> ApplyResult:
    """Load a file (or bytes, an open checkpoint, a store) into a model, and report what became of each tensor.

    Stages run in this order: ``rename`` (a mapping of whole names, or patterns ``"old=>new"`` in order), indices,
    layout, matching, ``filter`` (a pattern, a `PathFilter`, a function of path and containers, or several of which one
    matches), ``adapter``, ``cast``, ``part`` (of a rank, see `Partition`); see `burnstore.Pipeline` for all options.

    A file that does not state its layout is read as PyTorch's for a torch model. For a Burn-layout model, names and
    shapes must prove the layout; otherwise the load is refused unless you pass ``layout="torch"`` or ``"burn"``.
    ``rules`` (pattern found in a module's path → kind) name kinds of modules that the model does not state.
    ``top_level_key`` names the part of the file that is the model. ``allow_partial=True`` tolerates parameters
    without a tensor, ``validate=False`` tensors that do not fit; ``strict=True`` also refuses tensors of the file that
    no parameter takes. A load that would apply nothing (a filter or prefix that matches no name) is refused unless
    ``allow_empty=True``. ``device="cuda"`` materializes tensors there that the
    model has on the meta device; nothing is moved. ``in_place=False`` reads all tensors of a torch model before any is
    changed. ``zero_copy=True`` shares memory with the file.

    Raises LoadError or MissingTensorsError with the report in ``result``; the model is then unchanged. A result is true
    if it is ok: no tensor that did not fit, and something was applied unless nothing was allowed.

    >>> import numpy as np, burnstore as bs
    >>> packed = bs.serialize({"weight": np.ones(2, np.float32)}, format="burnpack")
    >>> model = {"weight": np.zeros(2, np.float32), "bias": np.zeros(2, np.float32)}
    >>> bs.load(model, packed, allow_partial=True).missing
    ['bias']
    """
    if isinstance(model, (str, os.PathLike)):
        raise TypeError("load takes the model first, then the file: load(model, source)")
    check_options(limits=limits, in_place=in_place, zero_copy=zero_copy)
    chosen = pipeline_of(
        pipeline,
        filter=filter,
        rename=rename,
        layout=layout,
        rules=rules,
        adapter=adapter,
        cast=cast,
        part=part,
        allow_partial=allow_partial,
        validate=validate,
        strict=strict,
        allow_empty=allow_empty,
    )
    refuse_unused(chosen, "load", "keep_layout", "target_layout")
    if isinstance(source, Store):
        if chosen != Pipeline() or top_level_key is not None or device is not None or zero_copy or not in_place:
            raise TypeError("set these options on the store, which is a source with options of its own")
        return source.load(model)
    if isinstance(source, Checkpoint):
        return load_input(model, input_of_file(source), chosen, in_place=in_place, device=device)
    with open_checkpoint(
        source,
        format=format,
        zero_copy=zero_copy,
        limits=limits,
        top_level_key=top_level_key,
        storage_options=storage_options,
    ) as file:
        return load_input(model, input_of_file(file), chosen, in_place=in_place, device=device)
