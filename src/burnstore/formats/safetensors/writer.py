"""Plan a SafeTensors file, byte for byte as the package writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

from ...errors import FormatError, LimitError, located
from ...io.json import quote
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.snapshot import TensorSnapshot
from ..base import WritePlan
from ..columns import check_count, check_names, check_shape, checked_metadata, utf8
from .header import LARGEST, LENGTH, METADATA, MOST_HEADER_BYTES, MOST_TENSORS, RANK_OF, spelling_of

BURN_VERSION = "0.22.1"
"""The release of Burn whose stamp is written; the bytes are the same in all."""

_ALIGNMENT = 8  # of the header, so that tensors of wide elements, which come first, are aligned


def plan(
    tensors: Sequence[TensorSnapshot],
    metadata: Mapping[str, str] | None,
    limits: Limits,
    *,
    ties: Mapping[str, str] | None = None,
) -> WritePlan:
    """Plan a SafeTensors file of these tensors: wide dtypes first, then by name, whatever the order given.

    Metadata is written in the order given; ``metadata=None`` writes none. ``ties`` maps further names to tensors and is
    added to the metadata. The format has no place for parameter ids.
    """
    if ties:
        metadata = {**(metadata or {}), **{name: kept for name, kept in ties.items() if name not in (metadata or {})}}
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    check_count(len(tensors), limits, "ST-04")
    check_names([tensor.path for tensor in tensors], limits, "ST-03", "ST-13")
    if any(tensor.path == METADATA for tensor in tensors):
        raise FormatError("no tensor can have this name: the metadata has it", tensor=METADATA, rule="ST-05")
    kinds: dict[tuple[DType, Shape], tuple[int, str]] = {}
    rows: list[tuple[int, str, str, TensorSnapshot]] = []
    for tensor in tensors:
        pair = tensor.dtype, tensor.shape
        kind = kinds.get(pair)
        if kind is None:
            with located(tensor=tensor.path):
                kind = kinds[pair] = _kind(*pair, limits)
        rows.append((kind[0], tensor.path, kind[1], tensor))
    rows.sort(key=itemgetter(0, 1))
    ordered = [row[3] for row in rows]
    ends = list(accumulate((tensor.nbytes for tensor in ordered), initial=0))
    entries = []
    if metadata is not None:
        pairs = (f"{quote(key)}:{quote(value)}" for key, value in checked_metadata(metadata).items())
        entries.append(f"{quote(METADATA)}:{{{','.join(pairs)}}}")
    entries += [
        f"{quote(path)}:{described}[{start},{end}]}}"
        for (_, path, described, _), start, end in zip(rows, ends[:-1], ends[1:], strict=True)
    ]
    encoded = utf8(f"{{{','.join(entries)}}}", "ST-02")
    encoded = encoded.ljust(-(-len(encoded) // _ALIGNMENT) * _ALIGNMENT)
    if len(encoded) > (limits.header_bytes or 0):
        raise LimitError(
            f"a header of {len(encoded)} bytes, more than the limit of {limits.header_bytes}", rule="ST-01"
        )
    header = LENGTH.pack(len(encoded)) + encoded
    return WritePlan(header, ordered, [len(header) + start for start in ends[:-1]], len(header) + ends[-1])


def model_stamp(layout: str, **_: Any) -> dict[str, str]:
    """Return the metadata that Burn's store or `safetensors.torch` writes beside a model of this layout."""
    if layout == "torch":
        return {"format": "pt"}
    return {"format": "safetensors", "producer": "burn", "version": BURN_VERSION}


def _kind(dtype: DType, shape: Shape, limits: Limits) -> tuple[int, str]:
    """Return the rank of a dtype and shape in the file, and the part of a descriptor that states them."""
    spelling = spelling_of(dtype)
    if math.prod(extent or 1 for extent in shape) * dtype.bits > LARGEST:
        raise FormatError(f"shape {list(shape)}: the byte length calculation overflows", rule="ST-08")
    check_shape(shape, dtype.nbytes(shape), limits, "ST-08")
    extents = ",".join(map(str, shape))
    return RANK_OF[spelling], f'{{"dtype":"{spelling}","shape":[{extents}],"data_offsets":'
