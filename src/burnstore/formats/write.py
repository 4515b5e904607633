"""Yield the bytes of a planned file in order.

A copy from a GPU takes as long for a few bytes as for a hundred thousand. So small tensors on a GPU are fetched from
there together, a few megabytes at a time, and handed out in the order of the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..errors import CorruptError, located
from ..io.sizes import CHUNK_BYTES
from ..tensor.data import check_bools
from ..tensor.snapshot import TensorSnapshot
from .base import WritePlan

_BATCH_BUFFERS = 4096


def batches(plan: WritePlan) -> Iterator[list[Any]]:
    """Yield the file's bytes in order, as lists of buffers that go out in one write each."""
    batch: list[Any] = [plan.header]
    pending = position = len(plan.header)
    around, crcs = plan.around, list[int]()
    for snapshot, offset, chunks in zip(plan.tensors, plan.offsets, chunks_of_each(plan.tensors), strict=True):
        crc = 0 if around is None else around.first_crc(len(crcs))
        if offset > position:
            batch.append(bytes(offset - position))
            position = offset
        written = 0
        for chunk in chunks:
            if around is not None:
                crc = zlib.crc32(chunk, crc)
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
        if around is not None:
            crcs.append(crc)
            batch.append(around.after(len(crcs) - 1, crcs))
            position += len(batch[-1])
    if position < plan.size:
        batch.append(bytes(plan.size - position))
    if batch:
        yield batch


def chunks_of_each(snapshots: Sequence[TensorSnapshot]) -> Iterator[Iterator[memoryview]]:
    """Yield the chunks of each tensor in order; take those of one tensor before those of the next.

    Data with the same ``batch_key`` are fetched together, by ``fetch_batch`` of the first of them.

    >>> import numpy as np
    >>> snapshots = [TensorSnapshot.from_numpy(name, np.array([number], np.int8)) for number, name in enumerate("ab")]
    >>> [b"".join(chunks) for chunks in chunks_of_each(snapshots)]
    [b'\\x00', b'\\x01']
    """
    keys: list[Hashable] = [snapshot._data.batch_key for snapshot in snapshots]
    members: dict[Hashable, list[Any]] = {}
    for snapshot, key in zip(snapshots, keys, strict=True):
        if key is not None:
            members.setdefault(key, []).append(snapshot._data)
    arriving = {key: data[0].fetch_batch(data) for key, data in members.items()}
    for snapshot, key in zip(snapshots, keys, strict=True):
        yield snapshot.chunks() if key is None else _next_of(arriving[key], snapshot)


def _next_of(arriving: Iterator[memoryview], snapshot: TensorSnapshot) -> Iterator[memoryview]:
    with located(tensor=snapshot.path):
        chunk = next(arriving)
        check_bools(chunk, snapshot.dtype)
        yield chunk
