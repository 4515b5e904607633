"""The descriptors of the tensors, read strictly, one expected item after the other (BP-06, BP-08 .. BP-10)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import CorruptError, LimitError, UnsupportedError, located, printable
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from .. import columns as base
from ..codec.cbor import CborReader
from .eras import Era

Uint64s = np.ndarray[Any, np.dtype[np.uint64]]

PLAIN = ("F64", "F32", "Flex32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
"""The dtypes that every release of Burn spells as text."""
BOOL_STORES = {"Native": DType.Bool, "U8": DType.BoolU8, "U32": DType.BoolU32}
"""The dtypes of bools by the word for their store."""

_TEXT_DTYPES = {**{name: (DType.parse(name), Era.ALL) for name in PLAIN}, "Bool": (DType.Bool, Era.BOOL_TEXT)}
_SCHEME_DEPTH = 5
_SCHEME_NODES = 64


@dataclass(slots=True)
class Columns(base.Columns):
    """The descriptors of a Burnpack file, and the eras that spell their dtypes so."""

    param_ids: list[int | None]
    eras: Era


def read_descriptors(reader: CborReader, count: int, limits: Limits) -> Columns:
    """Read the next ``count`` descriptors, each a name and what it names."""
    rows: dict[str, _Descriptor] = {}
    for _ in range(count):
        with located(rule="BP-08"):
            at = reader.position
            name = reader.text(limits.name_bytes, too_long=LimitError)
            if name in rows:
                raise CorruptError("two tensors have this name", tensor=name, offset=at)
        with located(tensor=name):
            rows[name] = _read_descriptor(reader, limits)
    kinds = {(row.dtype, row.shape): None for row in rows.values()}
    number = dict(zip(kinds, range(len(kinds)), strict=True))
    return Columns(
        names=list(rows),
        kinds=list(kinds),
        kind=np.array([number[row.dtype, row.shape] for row in rows.values()], np.int64),
        starts=np.array([row.start for row in rows.values()], np.uint64),
        ends=np.array([row.end for row in rows.values()], np.uint64),
        param_ids=[row.param_id for row in rows.values()],
        eras=functools.reduce(Era.__and__, (row.eras for row in rows.values()), Era.ALL),
    )


class _Descriptor(NamedTuple):
    dtype: DType
    eras: Era
    shape: Shape
    start: int
    end: int
    param_id: int | None


def _read_descriptor(reader: CborReader, limits: Limits) -> _Descriptor:
    dtype: tuple[DType, Era] | None = None
    shape: Shape | None = None
    offsets: tuple[int, int] | None = None
    param_id: int | None = None
    seen: set[str] = set()
    with located(rule="BP-06"):
        for _ in range(reader.map()):
            key = read_key(reader, seen)
            if key == "dtype":
                dtype = read_dtype(reader)
            elif key == "shape":
                shape = read_shape(reader, limits.rank)
            elif key == "data_offsets":
                with located(rule="BP-11"):
                    at = reader.position
                    if reader.array() != 2:
                        raise CorruptError("data_offsets are not a pair", offset=at)
                    offsets = reader.uint(), reader.uint()
            elif key == "param_id":
                param_id = None if reader.null() else reader.uint()
            else:
                raise unknown_key(key, "a descriptor")
        if dtype is None or shape is None or offsets is None:
            missing = [k for k, v in (("dtype", dtype), ("shape", shape), ("data_offsets", offsets)) if v is None]
            raise CorruptError(f"the descriptor has no {' and no '.join(missing)}")
    return _Descriptor(*dtype, shape, *offsets, param_id)


def read_dtype(reader: CborReader) -> tuple[DType, Era]:
    """Read a dtype in any release's spelling; return it with the eras that spell it so (BP-09)."""
    with located(rule="BP-09", offset=reader.position):
        if not reader.is_map():
            text = reader.text(_SCHEME_NODES)
            if text not in _TEXT_DTYPES:
                raise UnsupportedError(f"unknown dtype {text!r}")
            return _TEXT_DTYPES[text]
        if reader.map() != 1:
            raise CorruptError("a dtype map has one entry")
        text = reader.text(_SCHEME_NODES)
        if text == "Bool":
            store = reader.text(_SCHEME_NODES)
            if store not in BOOL_STORES:
                raise UnsupportedError(f"unknown store {store!r} of Bool")
            return BOOL_STORES[store], Era.BOOL_MAP
        if text == "QFloat":
            from .quant_spelling import scheme_from_tree  # few files have quantized tensors

            scheme = scheme_from_tree(reader.tree(depth=_SCHEME_DEPTH, nodes=_SCHEME_NODES))
            return DType.qfloat(scheme), Era.SCHEME_P if scheme.old_style else Era.SCHEME_T
        raise UnsupportedError(f"unknown dtype {text!r}")


def read_shape(reader: CborReader, longest: int) -> Shape:
    """Read a shape (BP-10)."""
    with located(rule="BP-10", offset=reader.position):
        rank = reader.array()
        if rank > longest:
            raise LimitError(f"{rank} axes, more than the limit of {longest}")
        return tuple(reader.uint() for _ in range(rank))


def read_key(reader: CborReader, seen: set[str] | dict[str, Any]) -> str:
    """Read a key of a map, which must not be in the map already."""
    at = reader.position
    key = reader.text()
    if key in seen:
        raise CorruptError(f"key {printable(key)!r} twice in one map", offset=at, rule="BP-04")
    if isinstance(seen, set):
        seen.add(key)
    return key


def unknown_key(key: str, where: str) -> UnsupportedError:
    """Return the error for a key that no Burn writes."""
    return UnsupportedError(f"unknown key {printable(key)!r} in {where}", hint="update burnstore if Burn is newer")
