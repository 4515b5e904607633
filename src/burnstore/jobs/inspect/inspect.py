"""Inspect a file: its tensors, metadata and totals as data; and the first bytes of any file, with their meaning."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import BurnstoreError, ReadError, UnknownFormatError, entry_point, located
from ...formats.base import DescribesHeader, Part
from ...formats.registry import HEAD_BYTES, format_for_bytes
from ...formats.sharded.locate import INDEX_SUFFIX, locate
from ...io.gc_pause import gc_paused
from ...io.opening import read_head
from ...io.paths import as_path, base_name, is_remote, join, names_in, size_of
from ...io.workers import Workers, checked_workers
from ...limits import Limits
from ...progress import Progress, ProgressLike, progress_from
from ...tensor.note import Note
from ...tensor.param_id import ParamId
from ...tensor.plain import Plain
from ...tensor.scalar import Scalar
from ...tensor.tabular import Tabular
from ...transforms.patterns import compile_pattern
from ..stats import all_stats
from .tree import ModuleTree, TensorRow, Totals, natural_order

Sort = Literal["name", "size", "dtype", "offset"]
SORTS: tuple[Sort, ...] = get_args(Sort)


@dataclass(frozen=True, slots=True)
class Inspection(Plain, Tabular):
    """The contents of a file.

    ``total`` and ``dtypes`` are of the whole file, ``selected`` of the tensors that match the pattern. ``tensors`` are
    those in the wanted order, up to the limit. ``notes`` concern how the tensors were found.
    """

    path: str
    format: str
    variant: str
    layout: str | None
    file_size: int
    data_offset: int
    metadata: Mapping[str, str]
    scalars: Mapping[str, Scalar]
    total: Totals
    dtypes: Mapping[str, Totals]
    selected: Totals
    tensors: tuple[TensorRow, ...] = field(repr=False)
    notes: Sequence[Note] = ()

    @property
    def tree(self) -> ModuleTree:
        """The ``tensors`` by module, with totals for each."""
        return ModuleTree.of(self.tensors)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        from ...tensor.notebook import tensors_panel  # not at import: only notebooks need it

        rows = self.tensors
        columns = [row.name for row in rows], [str(row.dtype) for row in rows], [row.shape for row in rows]
        return tensors_panel(self.path, self.format, self.layout, *columns, Totals.of(rows).nbytes)


@entry_point("inspect")
def inspect(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | Checkpoint,
    *,
    pattern: str | re.Pattern[str] | None = None,
    sort: Sort | None = None,
    limit: int | None = None,
    stats: bool = False,
    top_level_key: str | None = None,
    format: str | None = None,
    limits: Limits | None = None,
    executor: Workers = None,
    progress: ProgressLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Inspection:
    """Describe the contents of a file, of bytes or of an open checkpoint; without ``stats`` only the header is read.

    ``pattern`` keeps the tensors whose names it matches anywhere. ``sort`` orders them by ``"name"`` (numbers in names
    by value), ``"size"`` (largest first), ``"dtype"`` or ``"offset"``; the default, and the order of ties, is the order
    of the data. ``limit`` keeps the first tensors. ``stats`` reads them in parts; a tensor whose values are invalid or
    cannot be represented has a ``problem`` instead. ``executor`` is None for threads, a number of processes, or an
    executor like those of ``concurrent.futures``. ``progress`` is called with the bytes read and the total: a function
    of two numbers, or a class of bars such as ``tqdm.tqdm``. ``top_level_key``, ``format``, ``limits`` and errors are
    those of `burnstore.open`; an invalid pattern raises ValueError.

    >>> import numpy as np, burnstore as bs
    >>> packed = bs.serialize({"a.bias": np.zeros(3, np.int8), "a.weight": np.eye(2)}, format="burnpack")
    >>> found = bs.inspect(packed, pattern=r"weight$", stats=True)
    >>> found.format, found.total.tensors, found.selected.nbytes
    ('burnpack', 2, 32)
    >>> found.tensors[0].name, found.tensors[0].shape, found.tensors[0].stats.mean
    ('a.weight', (2, 2), 0.5)
    """
    # Before the file is opened, so that a wrong argument is reported whatever the file is.
    _check_options(pattern, sort, limit, stats)
    checked_workers(executor)
    wanted = None if pattern is None else compile_pattern(pattern)
    with ExitStack() as opened:
        report = opened.enter_context(progress_from(progress))
        if isinstance(source, Checkpoint):
            checkpoint = source
        else:
            checkpoint = opened.enter_context(
                open_checkpoint(
                    source, format=format, limits=limits, top_level_key=top_level_key, storage_options=storage_options
                )
            )
        with gc_paused():
            every = _rows(checkpoint)
        selected = every if wanted is None else [row for row in every if wanted.search(row.name)]
        kept = _sort(selected, sort)[:limit]
        if stats:
            kept = _add_stats(kept, checkpoint, executor, report)
        by_dtype: dict[str, list[TensorRow]] = {}
        for row in every:
            by_dtype.setdefault(row.dtype.name, []).append(row)
        total = Totals.of(every)
        return Inspection(
            checkpoint.path,
            checkpoint.format,
            checkpoint.variant,
            checkpoint.layout,
            checkpoint.file_size,
            checkpoint.data_offset,
            dict(checkpoint.metadata),
            dict(checkpoint.scalars),
            total,
            {name: total if len(by_dtype) == 1 else Totals.of(rows) for name, rows in by_dtype.items()},
            total if selected is every else Totals.of(selected),
            tuple(kept),
            tuple(checkpoint.notes),
        )


def files_of(path: str) -> list[str]:
    """Return the path itself, or every file of tensors in a folder that is not a set of shards.

    >>> files_of("model.bpk")
    ['model.bpk']
    """
    try:
        locate(as_path(path))
    except ReadError:
        path = as_path(path)
        names = names_in(path)
        if any(name.endswith(INDEX_SUFFIX) for name in names):  # Opening the folder reports several sets.
            return [path]
        found = [join(path, name) for name in names]
        return [file for file in found if (is_remote(file) or os.path.isfile(file)) and _has_known_bytes(file)] or [
            path
        ]
    return [path]


def _has_known_bytes(file: str) -> bool:
    try:
        return bool(format_for_bytes(read_head(file, HEAD_BYTES)))
    except UnknownFormatError:
        return False


def _rows(checkpoint: Checkpoint) -> list[TensorRow]:
    places, ties, schemes = list(checkpoint.places()), checkpoint.ties, checkpoint.schemes
    files = {place[0] for place in places if place is not None}
    shards = {file: base_name(file) if files != {checkpoint.path} else None for file in files}
    rows = []
    for (name, dtype, shape, nbytes, param_id), place in zip(checkpoint.descriptions(), places, strict=True):
        offset, shard = (None, None) if place is None else (place[1], shards[place[0]])
        identity = None if param_id is None else ParamId(param_id)
        tied = ties.get(name)
        row = TensorRow(name, dtype, shape, math.prod(shape), nbytes, offset, identity, shard, tied_to=tied)
        rows.append(replace(row, scheme=str(schemes[name])) if name in schemes else row)
    return rows


def _check_options(pattern: object, sort: object, limit: Any, stats: object) -> None:
    if not (pattern is None or isinstance(pattern, (str, re.Pattern))):
        raise TypeError(f"pattern must be a str, got {type(pattern).__name__}")
    if sort is not None and sort not in SORTS:
        raise ValueError(f"sort must be one of {', '.join(SORTS)}, got {sort!r}")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise TypeError(f"limit must be an int, got {type(limit).__name__}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must be 0 or more, got {limit}")
    if not isinstance(stats, bool):
        raise TypeError(f"stats must be a bool, got {type(stats).__name__}")


def _sort(rows: list[TensorRow], sort: Sort | None) -> list[TensorRow]:
    if sort == "name":
        return sorted(rows, key=lambda row: natural_order(row.name))
    if sort == "size":
        return sorted(rows, key=lambda row: -row.nbytes)
    if sort == "dtype":
        return sorted(rows, key=lambda row: str(row.dtype))
    if sort == "offset":
        return sorted(rows, key=lambda row: (row.shard or "", row.offset is None, row.offset or 0))
    return rows


def _add_stats(
    rows: list[TensorRow], checkpoint: Checkpoint, workers: Workers, progress: Progress | None
) -> list[TensorRow]:
    with located(path=checkpoint.path):
        found = all_stats([checkpoint[row.name] for row in rows], workers=workers, progress=progress)
    return [
        replace(row, problem=each.message) if isinstance(each, BurnstoreError) else replace(row, stats=each)
        for row, each in zip(rows, found, strict=True)
    ]


# --- the first bytes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FirstBytes:
    """The first bytes of a file in the parts that its format names; one part if the format is unknown."""

    path: str
    size: int
    format: str | None
    head: bytes
    parts: Sequence[Part]

    def bytes_of(self, part: Part) -> bytes:
        """Return the bytes of a part, as far as they were read."""
        return self.head[part.offset : part.offset + part.nbytes]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; bytes are hexadecimal."""
        parts = [
            {"offset": part.offset, "nbytes": part.nbytes, "meaning": part.meaning, "hex": self.bytes_of(part).hex()}
            for part in self.parts
        ]
        return {"size": self.size, "format": self.format, "parts": parts}


def read_first_bytes(path: str | os.PathLike[str]) -> FirstBytes:
    """Read the first bytes of a file, or of the index of a set of shards.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = bs.save({"bias": np.zeros(3)}, f"{folder}/x.bpk")
    ...     [(part.offset, part.meaning) for part in read_first_bytes(f"{folder}/x.bpk").parts[:2]]
    [(0, 'magic: NRUB'), (4, 'version: 1')]
    """
    file, _ = locate(as_path(path))
    head, size = read_head(file, HEAD_BYTES), size_of(file)
    known, parts = None, [Part(0, size, "unknown format" if size else "empty file")]
    with suppress(UnknownFormatError):
        found = format_for_bytes(head)
        known = found.name
        parts = [Part(0, size, found.name)]
        if isinstance(found, DescribesHeader):
            parts = found.describe_header(head, size)
    return FirstBytes(file, size, known, head, parts)
