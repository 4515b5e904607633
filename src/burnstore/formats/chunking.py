"""Chunking: the bytes of many tensors in order, to be written.

A copy from a GPU takes as long for a few bytes as for a hundred thousand. So small tensors that are on one are fetched
from there together, a few megabytes at a time, and handed out when it is their turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..errors import located
from ..tensor.snapshot import TensorSnapshot


def chunks_of_each(snapshots: Sequence[TensorSnapshot]) -> Iterator[Iterator[memoryview]]:
    """For each tensor its bytes in order, some megabytes at a time; to be taken before those of the next.

    Data may say in whose ``company`` they are best fetched, anything that is equal for such data, None for nobody's;
    ``fetch_together``, given all of the same company, then gives the bytes of each of them.

    >>> import numpy as np
    >>> snapshots = [TensorSnapshot.from_numpy(name, np.array([number], np.int8)) for number, name in enumerate("ab")]
    >>> [b"".join(chunks) for chunks in chunks_of_each(snapshots)]
    [b'\\x00', b'\\x01']
    """
    companies: list[Hashable] = [getattr(snapshot._data, "company", None) for snapshot in snapshots]
    members: dict[Hashable, list[Any]] = {}
    for snapshot, company in zip(snapshots, companies, strict=True):
        if company is not None:
            members.setdefault(company, []).append(snapshot._data)
    arriving = {company: data[0].fetch_together(data) for company, data in members.items()}
    for snapshot, company in zip(snapshots, companies, strict=True):
        yield snapshot.chunks() if company is None else _next_of(arriving[company], snapshot)


def _next_of(arriving: Iterator[memoryview], snapshot: TensorSnapshot) -> Iterator[memoryview]:
    with located(tensor=snapshot.path):
        yield next(arriving)
