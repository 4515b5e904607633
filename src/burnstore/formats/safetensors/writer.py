"""From tensors to a plan of a SafeTensors file, byte for byte as the package writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ...errors import DuplicateNameError, FormatError, LimitError, located
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.snapshot import TensorSnapshot
from ..base import WritePlan
from ..codec.json import quote
from .dtypes import rank_of, spelling_of
from .header import LARGEST, METADATA, MOST_TENSORS, check_count, check_name
from .reader import LENGTH, MOST_HEADER_BYTES

BURN_VERSION = "0.22.1"
"""The release of Burn whose stamp is written; the bytes are the same in all."""

_ALIGNMENT = 8  # the header is padded to it, so that tensors of wide elements, which come first, lie aligned


def plan(tensors: Sequence[TensorSnapshot], metadata: Mapping[str, str] | None, limits: Limits) -> WritePlan:
    """A SafeTensors file of these tensors: wide dtypes first, then by name, whatever the order given.

    Texts are written in the order given; ``metadata=None`` writes none. Parameter ids have no place in the format.
    """
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    check_count(len(tensors), limits)
    _check_names([tensor.path for tensor in tensors], limits)
    kinds = _kinds(tensors, limits)
    ordered = sorted(tensors, key=lambda tensor: (kinds[tensor.dtype, tensor.shape][0], tensor.path))
    ends = list(accumulate((tensor.nbytes for tensor in ordered), initial=0))
    entries = [] if metadata is None else [f"{quote(METADATA)}:{_texts(metadata)}"]
    entries += [
        f"{quote(tensor.path)}:{kinds[tensor.dtype, tensor.shape][1]}[{start},{end}]}}"
        for tensor, start, end in zip(ordered, ends[:-1], ends[1:], strict=True)
    ]
    encoded = _utf8(f"{{{','.join(entries)}}}")
    encoded = encoded.ljust(-(-len(encoded) // _ALIGNMENT) * _ALIGNMENT)
    if len(encoded) > (limits.header_bytes or 0):
        raise LimitError(
            f"a header of {len(encoded)} bytes, more than the limit of {limits.header_bytes}", rule="ST-01"
        )
    header = LENGTH.pack(len(encoded)) + encoded
    return WritePlan(header, ordered, [len(header) + start for start in ends[:-1]], len(header) + ends[-1])


def model_stamp(layout: str, **_: Any) -> dict[str, str]:
    """The texts that a model's own framework writes beside its tensors: Burn's store, or `safetensors.torch`."""
    if layout == "torch":
        return {"format": "pt"}
    return {"format": "safetensors", "producer": "burn", "version": BURN_VERSION}


def _check_names(names: list[str], limits: Limits) -> None:
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DuplicateNameError("two tensors have this name", tensor=twice, rule="ST-03")
    for name in names:
        with located(tensor=name):
            check_name(name, limits)
    if METADATA in names:
        raise FormatError("no tensor can have this name: texts lie under it", tensor=METADATA, rule="ST-05")


def _kinds(tensors: Sequence[TensorSnapshot], limits: Limits) -> dict[tuple[DType, Shape], tuple[int, str]]:
    """Of each dtype and shape, the rank in the file and the part of a descriptor that says them."""
    kinds: dict[tuple[DType, Shape], tuple[int, str]] = {}
    for tensor in tensors:
        pair = tensor.dtype, tensor.shape
        if pair not in kinds:
            with located(tensor=tensor.path):
                kinds[pair] = _kind(*pair, limits)
    return kinds


def _kind(dtype: DType, shape: Shape, limits: Limits) -> tuple[int, str]:
    spelling = spelling_of(dtype)
    if len(shape) > limits.rank:
        raise LimitError(f"{len(shape)} axes, more than the limit of {limits.rank}", rule="ST-08")
    elements = 1
    for extent in shape:
        elements *= extent or 1
    if elements * dtype.bits > LARGEST:
        raise FormatError(f"shape {list(shape)}: the byte length calculation overflows", rule="ST-08")
    if dtype.nbytes(shape) > limits.tensor_bytes:
        raise LimitError(f"{dtype.nbytes(shape)} bytes, more than the limit of {limits.tensor_bytes}")
    extents = ",".join(map(str, shape))
    return rank_of(spelling), f'{{"dtype":"{spelling}","shape":[{extents}],"data_offsets":'


def _texts(metadata: Mapping[str, str]) -> str:
    parts = []
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata maps str to str, got {type(key).__name__} to {type(value).__name__} for {key!r}")
        parts.append(f"{quote(key)}:{quote(value)}")
    return f"{{{','.join(parts)}}}"


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError(
            f"{text[error.start : error.start + 1]!r} in a name or text cannot be written as UTF-8", rule="ST-02"
        ) from None
