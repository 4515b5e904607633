"""Saving: from named arrays or snapshots, through a format's plan, into a file that is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import CorruptError, located
from .formats.base import WritePlan
from .formats.registry import format_for_path, format_named
from .io.atomic import atomic_file
from .limits import Limits
from .snapshot import CHUNK_BYTES, TensorSnapshot
from .tensor_data import Array, TensorData

Tensor = Array | np.generic | TensorData | TensorSnapshot
Progress = Callable[[int, int], None]
"""Called with the bytes written so far and in all."""

_BATCH_BUFFERS = 4096


def save(
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot],
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
    """Save named tensors into one file, all or nothing.

    ``tensors`` maps names to NumPy arrays, `TensorSnapshot` or `TensorData` (an open checkpoint is such a mapping), or
    is a sequence of snapshots; data are written in that order, a chunk in memory at a time. The format follows the
    suffix unless ``format`` names one. ``metadata=None`` writes what the format's own writer would, a mapping exactly
    that. An existing file is refused unless ``overwrite=True``; then it is replaced at once when the new one is
    complete, also if it is the very file that the tensors are read from. When `save` returns, the file survives a power
    cut, unless ``durable=False``. Further options are the format's own (Burnpack: ``burn_version``, ``scalars``).

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
    path = os.fspath(path)
    with located(path=path):
        chosen = format_for_path(path) if format is None else format_named(format)
        plan = chosen.plan(_snapshots(tensors), metadata, limits or Limits(), **options)
        with atomic_file(path, overwrite=overwrite, durable=durable, size=plan.size) as scratch:
            for buffers in _batches(plan):
                scratch.write(*buffers)
                if progress is not None:
                    progress(scratch.position, plan.size)


def serialize(
    tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot],
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
    plan = format_named(format).plan(_snapshots(tensors), metadata, limits or Limits(), **options)
    return b"".join(buffer for buffers in _batches(plan) for buffer in map(bytes, buffers))


def _snapshots(tensors: Mapping[str, Tensor] | Iterable[TensorSnapshot]) -> Sequence[TensorSnapshot]:
    if isinstance(tensors, Mapping):
        return [_snapshot(name, tensor) for name, tensor in tensors.items()]
    if isinstance(tensors, (str, bytes, np.ndarray)) or not isinstance(tensors, Iterable):
        raise TypeError(f"save takes a mapping of names to arrays, or snapshots, not {type(tensors).__name__}")
    given = list(tensors)
    for item in given:
        if not isinstance(item, TensorSnapshot):
            raise TypeError(
                f"save takes a mapping of names to arrays, or snapshots; got a {type(item).__name__} in a list"
            )
    return given


def _snapshot(name: str, tensor: Tensor) -> TensorSnapshot:
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
