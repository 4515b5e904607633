"""Saving: from named arrays or snapshots, through a format's plan, into a file that is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import CorruptError, located
from .formats.base import Format, WritePlan
from .formats.registry import format_for_path, format_named
from .io.atomic import atomic_file
from .limits import Limits
from .snapshot import CHUNK_BYTES, TensorSnapshot
from .tensor_data import Array, TensorData

Tensor = Array | np.generic | TensorData | TensorSnapshot
Progress = Callable[[int, int], None]
"""Called with the bytes written so far and in all."""

_BATCH_BUFFERS = 4096
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
    progress: Progress | None = None,
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
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is a function of two numbers, not {type(progress).__name__}")
    path = os.fsdecode(path)
    with located(path=path):
        chosen = format_for_path(path) if format is None else format_named(format)
        plan = _planned(chosen, tensors, metadata, limits, options)
        with atomic_file(path, overwrite=overwrite, durable=durable, size=plan.size) as scratch:
            for buffers in _batches(plan):
                scratch.write(*buffers)
                buffers.clear()  # or a tensor would live on while the next one is made
                if progress is not None:
                    progress(scratch.position, plan.size)


def serialize(
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any,
    *,
    format: str,
    metadata: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> bytes:
    """The bytes that `save` would write.

    >>> len(serialize({}, format="burnpack", metadata={}))
    256
    """
    plan = _planned(format_named(format), tensors, metadata, limits, options)
    return b"".join(buffer for buffers in _batches(plan) for buffer in map(bytes, buffers))


def _planned(
    chosen: Format,
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any,
    metadata: Mapping[str, str] | None,
    limits: Limits | None,
    options: dict[str, Any],
) -> WritePlan:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata maps str to str, it cannot be a {type(metadata).__name__}")
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits is a Limits, not {type(limits).__name__}")
    return chosen.plan(_snapshots(tensors), metadata, limits or Limits(), **options)


def _snapshots(tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot] | Any) -> Sequence[TensorSnapshot]:
    if isinstance(tensors, Mapping):
        nested = [name for name, value in tensors.items() if _is_nested(value)]
        if not nested:
            return [_snapshot(name, tensor) for name, tensor in tensors.items()]
        for name, value in tensors.items():
            if isinstance(value, (*_CONSTANTS, np.generic)):  # in an object a setting; here it would be lost unnoticed
                raise TypeError(f"{name!r} is a {type(value).__name__}, which is no part of a model and no array")
    if isinstance(tensors, (list, tuple, Iterator)):
        given = list(tensors)
        if all(isinstance(item, TensorSnapshot) for item in given):
            return given
        tensors = given
    return _collected(tensors)


def _is_nested(value: Any) -> bool:
    """Whether a value in a mapping is a part of a model and not a tensor; a mere number is neither and is refused."""
    return not isinstance(value, (np.ndarray, np.generic, TensorData, TensorSnapshot, *_CONSTANTS, type(None)))


def _collected(model: Any) -> Sequence[TensorSnapshot]:
    from .modules.collect import collect  # not at import: files alone need no models

    snapshots = collect(model)
    if not snapshots:
        raise TypeError(f"a {type(model).__name__} that holds no tensors: nothing would be saved")
    return snapshots


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


def _batches(plan: WritePlan) -> Iterator[list[Any]]:
    """The file's bytes in order, as lists of buffers that go out in one write each."""
    batch: list[Any] = [plan.header]
    pending = position = len(plan.header)
    for snapshot, offset in zip(plan.tensors, plan.offsets, strict=True):
        if offset > position:
            batch.append(bytes(offset - position))
            position = offset
        written = 0
        for chunk in snapshot.chunks():
            batch.append(chunk)
            written += len(chunk)
            pending += len(chunk)
            del chunk  # the batch holds it as long as it is needed
            if pending >= CHUNK_BYTES or len(batch) >= _BATCH_BUFFERS:
                yield batch
                batch, pending = [], 0
        if written != snapshot.nbytes:
            raise CorruptError(f"expected {snapshot.nbytes} bytes, got {written}", tensor=snapshot.path)
        position += written
    if position < plan.size:
        batch.append(bytes(plan.size - position))
    if batch:
        yield batch
