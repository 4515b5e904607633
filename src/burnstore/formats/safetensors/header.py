"""The header, read strictly from its JSON tree (ST-02 .. ST-09)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import CorruptError, LimitError, UnsupportedError, located, printable
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ..codec import json
from .columns import Columns
from .dtypes import BY_SPELLING

METADATA = "__metadata__"
MOST_TENSORS = 1_000_000
LARGEST = (1 << 63) - 1

_FIELDS = {"dtype", "shape", "data_offsets"}
_BRACKETS_A_TENSOR = 4  # three, and one that a name may have
_STRINGS_A_TENSOR = 5


def decode_header(raw: bytes, limits: Limits) -> str:
    """The header as text, if it is not a bomb."""
    tensors = limits.tensors or 0
    with located(rule="ST-04", hint="if you trust the file, open it with limits=Limits(tensors=...)"):
        try:
            return json.decode(
                raw,
                most_nodes=_BRACKETS_A_TENSOR * tensors + 1000,
                most_strings=_STRINGS_A_TENSOR * tensors + 2 * limits.metadata_entries + 1000,
            )
        except CorruptError as error:
            error.rule = "ST-02"
            raise


def read_header(text: str, limits: Limits) -> Columns:
    """The columns of a header in any form that the rules allow."""
    tree = _tree(text)
    texts = read_texts(tree.pop(METADATA, None), limits)
    check_count(len(tree), limits)
    kinds: dict[tuple[DType, Shape], int] = {}
    kind, starts, ends = [], [], []
    for name, descriptor in tree.items():
        with located(tensor=name):
            check_name(name, limits)
            if not isinstance(descriptor, dict) or descriptor.keys() != _FIELDS:
                raise _wrong_fields(descriptor)
            pair = _dtype(descriptor["dtype"]), _shape(descriptor["shape"], limits)
            start, end = _offsets(descriptor["data_offsets"])
        kind.append(kinds.setdefault(pair, len(kinds)))
        starts.append(start)
        ends.append(end)
    return Columns(
        names=list(tree),
        kinds=list(kinds),
        kind=np.array(kind, np.int64),
        starts=np.array(starts, np.int64),
        ends=np.array(ends, np.int64),
        metadata=texts,
    )


def read_texts(value: Any, limits: Limits) -> dict[str, str]:
    """What lies under ``__metadata__`` (ST-05)."""
    with located(rule="ST-05"):
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise CorruptError(f"{METADATA} is {_word(value)}, not an object")
        if len(value) > limits.metadata_entries:
            raise LimitError(f"{len(value)} metadata entries, more than the limit of {limits.metadata_entries}")
        for key, text in value.items():
            if not isinstance(text, str):
                raise CorruptError(f"the metadata {printable(key)!r} is {_word(text)}, not a text")
        return value


def check_count(count: int, limits: Limits) -> None:
    """ST-04."""
    if count > (limits.tensors or 0):
        raise LimitError(
            f"{count} tensors, more than the limit of {limits.tensors}",
            rule="ST-04",
            hint="if you trust the file, open it with limits=Limits(tensors=...)",
        )


def check_name(name: str, limits: Limits) -> None:
    """ST-13."""
    if len(name) * 4 > limits.name_bytes and len(name.encode("utf-8", "surrogatepass")) > limits.name_bytes:
        raise LimitError(f"a name of more than {limits.name_bytes} bytes", rule="ST-13")


def _tree(text: str) -> dict[str, Any]:
    try:
        tree = json.parse(text, rule="ST-02", rule_of_keys="ST-03")
    except LimitError as error:
        error.rule = "ST-04"
        raise
    if not isinstance(tree, dict):
        raise CorruptError(f"the header is {_word(tree)}, not an object", rule="ST-02")
    return tree


def _wrong_fields(descriptor: Any) -> CorruptError | UnsupportedError:
    if not isinstance(descriptor, dict):
        return CorruptError(f"its descriptor is {_word(descriptor)}, not an object", rule="ST-06")
    missing = _FIELDS - descriptor.keys()
    if missing:
        return CorruptError(f"its descriptor has no {sorted(missing)[0]!r}", rule="ST-06")
    odd = sorted(descriptor.keys() - _FIELDS)[0]
    return UnsupportedError(f"unknown field {printable(odd)!r} in its descriptor", rule="ST-06")


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
        raise CorruptError(f"end offset {end} lies before start offset {start}", rule="ST-09")
    return start, end


def _natural(value: Any, what: str, rule: str) -> int:
    if type(value) is not int or value < 0:
        shown = value if type(value) in (int, float) else _word(value)
        raise CorruptError(f"{what} is {shown}, not a natural number", rule=rule)
    if value > LARGEST:
        raise CorruptError(f"{what} is {value}, which overflows any file", rule=rule)
    return value


def _word(value: Any) -> str:
    words = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return words.get(type(value), "a number")
