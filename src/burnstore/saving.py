"""Saving: from named arrays or snapshots, through a format's plan, into a file that is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import located
from .formats.base import LAYOUT_KEY, Format, WritePlan
from .formats.registry import format_for_path, format_named
from .formats.write import batches, write_file
from .io.gc_pause import gc_paused
from .limits import Limits
from .progress import ProgressLike, progress_from
from .tensor.data import Array, TensorData
from .tensor.snapshot import TensorSnapshot

if TYPE_CHECKING:
    from .models.collect import Collected

Tensor = Array | np.generic | TensorData | TensorSnapshot

_CONSTANTS = (bool, int, float, complex, str, bytes)


def save(
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
    durable: bool = True,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
    layout: str | None = None,
    rules: Mapping[str, str] | None = None,
    record_modules: bool = True,
    max_shard_size: int | str | None = None,
    **options: Any,
) -> None:
    """Save a model, or named tensors, into one file, all or nothing.

    ``tensors`` maps names to NumPy arrays, `TensorSnapshot` or `TensorData` (an open checkpoint is such a mapping), is
    a sequence of snapshots, or a model (see `collect`); data are written in that order, a chunk in memory at a time.
    The format follows the suffix unless ``format`` names one. ``metadata=None`` writes what the format's own writer
    would, a mapping exactly that. An existing file is refused unless ``overwrite=True``; then it is replaced at once
    when the new one is complete, also if it is the very file that the tensors are read from. When `save` returns, the
    file survives a power cut, unless ``durable=False``. Further options are the format's own (Burnpack:
    ``burn_version``, ``scalars``).

    A model is written in the layout of the format (Burnpack: Burn's), or as it is where the format has none; ``layout``
    (``"burn"``, ``"torch"``) asks for another. ``rules`` (pattern in a module's path → kind) name the kinds of modules
    that the model does not tell. Where the layout is not the model's own, the file's metadata also says what its
    modules are, so that it can be converted back without the model; ``record_modules=False`` leaves that out.

    ``max_shard_size`` (bytes, or a text such as ``"5GB"``) writes SafeTensors into files of at most that size and an
    index, ``<path>.index.json``, in Hugging Face's manner, where one file would be larger. They replace an older such
    set as a whole; see `formats.sharded`. ``progress`` is told the bytes written so far and in all: a function of
    two numbers, or a class of bars such as ``tqdm.tqdm``.

    >>> import tempfile, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"weight": np.eye(2, dtype=np.float32)}, f"{folder}/model.bpk", metadata={"epochs": "100"})
    ...     with bs.open(f"{folder}/model.bpk") as f:
    ...         dict(f.metadata), f["weight"][1].tolist()
    ({'epochs': '100'}, [0.0, 1.0])
    """
    for name, value in (("overwrite", overwrite), ("durable", durable)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} is a bool, not {type(value).__name__}")
    path = os.fsdecode(path)
    with located(path=path), progress_from(progress) as report:
        chosen = format_for_path(path) if format is None else format_named(format)
        wanted = _Wanted(layout, rules, record_modules)
        if max_shard_size is None:
            plan = _planned(chosen, tensors, metadata, limits, wanted, options)
            write_file(plan, path, overwrite=overwrite, durable=durable, progress=report)
            return
        if chosen.name != "safetensors":
            raise TypeError(f"max_shard_size is for SafeTensors; {chosen.name} has one file")
        from .formats.sharded.write import byte_count, save_shards  # not at import: most saves are of one file

        most = byte_count(max_shard_size)
        snapshots, texts = _contents(chosen, tensors, metadata, limits, wanted, options)
        save_shards(
            snapshots,
            path,
            most,
            overwrite=overwrite,
            durable=durable,
            progress=report,
            plan=lambda shard: chosen.plan(shard, texts, limits or Limits(), **options),
            write=partial(write_file, durable=durable),
        )


def serialize(
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any,
    *,
    format: str,
    metadata: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    layout: str | None = None,
    rules: Mapping[str, str] | None = None,
    record_modules: bool = True,
    **options: Any,
) -> bytes:
    """The bytes that `save` would write.

    >>> len(serialize({}, format="burnpack", metadata={}))
    256
    """
    wanted = _Wanted(layout, rules, record_modules)
    plan = _planned(format_named(format), tensors, metadata, limits, wanted, options)
    return b"".join(buffer for buffers in batches(plan) for buffer in map(bytes, buffers))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked for where a model is saved."""

    layout: str | None
    rules: Mapping[str, str] | None
    record_modules: bool


def _planned(
    chosen: Format,
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any,
    metadata: Mapping[str, str] | None,
    limits: Limits | None,
    wanted: _Wanted,
    options: dict[str, Any],
) -> WritePlan:
    with gc_paused():
        snapshots, texts = _contents(chosen, tensors, metadata, limits, wanted, options)
        return chosen.plan(snapshots, texts, limits or Limits(), **options)


def _contents(
    chosen: Format,
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any,
    metadata: Mapping[str, str] | None,
    limits: Limits | None,
    wanted: _Wanted,
    options: dict[str, Any],
) -> tuple[Sequence[TensorSnapshot], Mapping[str, str] | None]:
    """The tensors and texts to write."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata maps str to str, it cannot be a {type(metadata).__name__}")
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits is a Limits, not {type(limits).__name__}")
    if isinstance(tensors, Iterator):
        tensors = list(tensors)
    snapshots = _named_snapshots(tensors)
    if snapshots is None:
        snapshots, metadata = _seen_by_format(chosen, tensors, metadata, wanted, options)
    elif wanted.layout is not None or wanted.rules is not None:
        raise TypeError("layout and rules are for models; named tensors are written as they are")
    return snapshots, metadata


def _named_snapshots(tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any) -> Sequence[TensorSnapshot] | None:
    """The snapshots that are given, or made of arrays by their names; None if it is a model that was given."""
    if isinstance(tensors, Mapping):
        nested = [name for name, value in tensors.items() if _is_nested(value)]
        if not nested:
            return [_snapshot(name, tensor) for name, tensor in tensors.items()]
        for name, value in tensors.items():
            if isinstance(value, (*_CONSTANTS, np.generic)):  # in an object a setting; here it would be lost unnoticed
                raise TypeError(f"{name!r} is a {type(value).__name__}, which is no part of a model and no array")
    if isinstance(tensors, (list, tuple)) and all(isinstance(item, TensorSnapshot) for item in tensors):
        return tensors
    return None


def _is_nested(value: Any) -> bool:
    """Whether a value in a mapping is a part of a model and not a tensor; a mere number is neither and is refused."""
    return not isinstance(value, (np.ndarray, np.generic, TensorData, TensorSnapshot, *_CONSTANTS, type(None)))


def _seen_by_format(
    chosen: Format, model: Any, metadata: Mapping[str, str] | None, wanted: _Wanted, options: dict[str, Any]
) -> tuple[Sequence[TensorSnapshot], dict[str, str]]:
    """A model's tensors in the layout that a file of this format has, and the texts that go with them."""
    from .models.collect import collect_in  # not at import: files alone need no models
    from .models.layouts import checked_layout

    layout = wanted.layout or getattr(chosen, "layout", None)
    collected = collect_in(
        None if layout is None else checked_layout(layout),
        model,
        rules=wanted.rules,
        record_modules=wanted.record_modules,
    )
    if not collected.snapshots:
        raise TypeError(f"a {type(model).__name__} that holds no tensors: nothing would be saved")
    return collected.snapshots, texts_beside(chosen, collected, metadata, options)


def texts_beside(
    chosen: Format,
    collected: Collected,
    given: Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> dict[str, str]:
    """The texts to write beside a model's tensors: those given, or the format's own, and those that tell the layout."""
    stamp = getattr(chosen, "stamp", None)
    texts = dict(given if given is not None else stamp(collected.layout, **options) if stamp is not None else {})
    texts.update(collected.metadata)
    said_layout = getattr(chosen, "said_layout", None)
    said = texts.get(LAYOUT_KEY) if said_layout is None else said_layout(texts)
    if said != collected.layout and (said is not None or collected.layout != "burn"):
        texts[LAYOUT_KEY] = collected.layout
    return texts


def _snapshot(name: str, tensor: Any) -> TensorSnapshot:
    if not isinstance(name, str):
        raise TypeError(f"a tensor's name is a str, not {type(name).__name__} ({name!r})")
    if isinstance(tensor, TensorSnapshot):
        return tensor if tensor.path == name else tensor.with_path(name)
    if isinstance(tensor, TensorData):
        return TensorSnapshot.from_data(name, tensor)
    if isinstance(tensor, np.ma.MaskedArray):
        raise TypeError(f"tensor {name!r} is a masked array; its mask would be lost, fill it first")
    if isinstance(tensor, (np.ndarray, np.generic)):
        return TensorSnapshot.from_numpy(name, np.asarray(tensor))
    raise TypeError(
        f"tensor {name!r} is a {type(tensor).__name__}; a NumPy array, TensorSnapshot or TensorData is needed"
    )
