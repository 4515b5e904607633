"""The header: its limits, the spelling of dtypes, and the JSON tree, read strictly (ST-02 .. ST-09, ST-13)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CorruptError, LimitError, UnsupportedError, located, printable
from ...io import json
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from .. import columns as base
from ..base import no_dtype
from ..columns import check_count, check_name

LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"
MOST_HEADER_BYTES = 100_000_000
MOST_TENSORS = 1_000_000
LARGEST = (1 << 63) - 1

_FIELDS = {"dtype", "shape", "data_offsets"}
_BRACKETS_PER_TENSOR = 4  # three, and one that a name may have
_STRINGS_PER_TENSOR = 5

# The package sorts tensors by dtype, the last of this list first, so that wide elements are aligned.
_ASCENDING = (
    *("BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    *("I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"),
)

BY_SPELLING = {spelling: DType.Bool if spelling == "BOOL" else DType.parse(spelling) for spelling in _ASCENDING}
"""The dtype of each spelling (ST-07)."""

RANK_OF = {spelling: rank for rank, spelling in enumerate(reversed(_ASCENDING))}
"""The place of a dtype's tensors in a file: those of the smallest rank come first."""

_SPELLINGS = {
    **{dtype: spelling for spelling, dtype in BY_SPELLING.items()},
    DType.Flex32: "F32",  # as Burn's own store writes it: Flex32 is F32 wherever it is stored
    DType.BoolU8: "BOOL",  # the same byte
}


def spelling_of(dtype: DType) -> str:
    """Return the format's word for a dtype."""
    spelling = _SPELLINGS.get(dtype)
    if spelling is not None:
        return spelling
    raise no_dtype("SafeTensors", dtype, rule="ST-07")


@dataclass(slots=True)
class Columns(base.Columns):
    """The descriptors of a SafeTensors file, and the metadata of its header."""

    metadata: dict[str, str]


def decode_header(raw: bytes, limits: Limits) -> str:
    """Decode the header, if it is not a bomb."""
    tensors = limits.tensors or 0
    with located(rule="ST-04", hint="if you trust the file, pass limits=Limits.trusted()"):
        try:
            return json.decode(
                raw,
                most_nodes=_BRACKETS_PER_TENSOR * tensors + 1000,
                most_strings=_STRINGS_PER_TENSOR * tensors + 2 * limits.metadata_entries + 1000,
            )
        except CorruptError as error:
            error.rule = "ST-02"
            raise


def read_header(text: str, limits: Limits) -> Columns:
    """Read a header in any form that the rules allow."""
    tree = _tree(text)
    metadata = _metadata(tree.pop(METADATA, None), limits)
    check_count(len(tree), limits, "ST-04")
    kinds: dict[tuple[DType, Shape], int] = {}
    kind, starts, ends = [], [], []
    for name, descriptor in tree.items():
        with located(tensor=name):
            check_name(name, limits, "ST-13")
            if not isinstance(descriptor, dict) or descriptor.keys() != _FIELDS:
                raise _wrong_fields(descriptor)
            pair = _dtype(descriptor["dtype"]), _shape(descriptor["shape"], limits)
            start, end = _offsets(descriptor["data_offsets"])
        kind.append(kinds.setdefault(pair, len(kinds)))
        starts.append(start)
        ends.append(end)
    offsets = np.array(starts, np.int64), np.array(ends, np.int64)
    return Columns(list(tree), list(kinds), np.array(kind, np.int64), *offsets, metadata)


def _tree(text: str) -> dict[str, Any]:
    try:
        tree = json.parse(text, rule="ST-02", rule_of_keys="ST-03")
    except LimitError as error:
        error.rule = "ST-04"
        raise
    if not isinstance(tree, dict):
        raise CorruptError(f"the header is {_word(tree)}, not an object", rule="ST-02")
    return tree


def _metadata(value: Any, limits: Limits) -> dict[str, str]:
    with located(rule="ST-05"):
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise CorruptError(f"{METADATA} is {_word(value)}, not an object")
        if len(value) > limits.metadata_entries:
            raise LimitError(f"{len(value)} metadata entries, more than the limit of {limits.metadata_entries}")
        for key, text in value.items():
            if not isinstance(text, str):
                raise CorruptError(f"the metadata {printable(key)!r} is {_word(text)}, not text")
        return value


def _wrong_fields(descriptor: Any) -> CorruptError | UnsupportedError:
    if not isinstance(descriptor, dict):
        return CorruptError(f"its descriptor is {_word(descriptor)}, not an object", rule="ST-06")
    missing = _FIELDS - descriptor.keys()
    if missing:
        return CorruptError(f"its descriptor has no {sorted(missing)[0]!r}", rule="ST-06")
    unknown = sorted(descriptor.keys() - _FIELDS)[0]
    return UnsupportedError(f"unknown field {printable(unknown)!r} in its descriptor", rule="ST-06")


def _dtype(spelling: Any) -> DType:
    found = BY_SPELLING.get(spelling) if isinstance(spelling, str) else None
    if found is None:
        shown = repr(printable(spelling)) if isinstance(spelling, str) else _word(spelling)
        raise UnsupportedError(f"unknown dtype {shown}; there are {', '.join(BY_SPELLING)}", rule="ST-07")
    return found


def _shape(extents: Any, limits: Limits) -> Shape:
    if not isinstance(extents, list):
        raise CorruptError(f"its shape is {_word(extents)}, not an array", rule="ST-08")
    if len(extents) > limits.rank:
        raise LimitError(f"{len(extents)} axes, more than the limit of {limits.rank}", rule="ST-08")
    return tuple(_natural(extent, "an extent of its shape", "ST-08") for extent in extents)


def _offsets(offsets: Any) -> tuple[int, int]:
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise CorruptError("its data_offsets are not an array of two", rule="ST-09")
    start, end = (_natural(offset, "an offset", "ST-09") for offset in offsets)
    if start > end:
        raise CorruptError(f"end offset {end} is before start offset {start}", rule="ST-09")
    return start, end


def _natural(value: Any, what: str, rule: str) -> int:
    if type(value) is not int or value < 0:
        shown = value if type(value) in (int, float) else _word(value)
        raise CorruptError(f"{what} is {shown}, not a natural number", rule=rule)
    if value > LARGEST:
        raise CorruptError(f"{what} is {value}, which overflows any file", rule=rule)
    return value


def _word(value: Any) -> str:
    words = {dict: "an object", list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return words.get(type(value), "a number")
