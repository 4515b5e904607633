"""The metadata of a Burnpack file, read strictly, one expected item after the other (BP-04 .. BP-10, BP-17, BP-18).

`read_metadata` is the whole of it. Where the tensors are written as every Burn writes them, `scan` takes that part at
many times the speed and gives the same columns; this module then only reads what follows them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...codec.cbor import CborReader
from ...dtype import DType
from ...errors import CorruptError, LimitError, UnsupportedError, located, printable
from ...limits import Limits
from ...scalar import Scalar, ScalarKind
from ...tensor_data import Shape
from .eras import Era

Uint64s = np.ndarray[Any, np.dtype[np.uint64]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]

_PLAIN = {
    name: (DType.parse(name), Era.ALL)
    for name in ("F64", "F32", "Flex32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
}
_TEXT_DTYPES = {**_PLAIN, "Bool": (DType.Bool, Era.BOOL_TEXT)}
_BOOL_STORES = {"Native": DType.Bool, "U8": DType.BoolU8, "U32": DType.BoolU32}

_SCHEME_DEPTH = 5
_SCHEME_NODES = 64


@dataclass(slots=True)
class Columns:
    """The descriptors as columns, in the order of the metadata; offsets relative to the data section.

    Most tensors of a model are of the dtype and shape of others: ``kinds`` holds each pair once, ``kind`` says which
    one a tensor is of, and what follows from it is worked out once for all.
    """

    names: list[str]
    kinds: list[tuple[DType, Shape]]
    kind: Int64s
    starts: Uint64s
    ends: Uint64s
    param_ids: list[int | None]
    eras: Era


@dataclass(slots=True)
class Metadata:
    """The whole metadata map."""

    tensors: Columns
    metadata: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)


def read_metadata(raw: bytes, limits: Limits) -> Metadata:
    """The metadata item that fills ``raw``."""
    from .scan import scan_descriptors

    reader = CborReader(raw)
    found: Metadata | None = None
    metadata: dict[str, str] = {}
    scalars: dict[str, Scalar] = {}
    seen: set[str] = set()
    with located(rule="BP-05"):
        for _ in range(reader.map()):  # ends with the first key that is unknown or comes twice
            key = _key(reader, seen)
            if key == "tensors":
                count = reader.map()
                if count > (limits.tensors or 0):
                    raise LimitError(
                        f"{count} tensors, more than the limit of {limits.tensors}",
                        rule="BP-07",
                        hint="if you trust the file, open it with limits=Limits(tensors=...)",
                    )
                found = Metadata(scan_descriptors(reader, count, limits) or _read_descriptors(reader, count, limits))
            elif key == "metadata":
                metadata = _read_texts(reader, limits)
            elif key == "scalars":
                scalars = _read_scalars(reader, limits)
            else:
                raise _unknown_key(key, "the metadata")
        if found is None:
            raise CorruptError("the metadata has no 'tensors'")
    if not reader.at_end():
        raise CorruptError("bytes follow the metadata item", offset=reader.position, rule="BP-04")
    found.metadata = metadata
    found.scalars = scalars
    return found


def _read_descriptors(reader: CborReader, count: int, limits: Limits) -> Columns:
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
            key = _key(reader, seen)
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
                raise _unknown_key(key, "a descriptor")
        if dtype is None or shape is None or offsets is None:
            missing = [k for k, v in (("dtype", dtype), ("shape", shape), ("data_offsets", offsets)) if v is None]
            raise CorruptError(f"the descriptor has no {' and no '.join(missing)}")
    return _Descriptor(*dtype, shape, *offsets, param_id)


def read_dtype(reader: CborReader) -> tuple[DType, Era]:
    """A dtype in any release's spelling, and the eras that spell it so (BP-09)."""
    with located(rule="BP-09", offset=reader.position):
        if not reader.is_map():
            text = reader.text(_SCHEME_NODES)
            found = _TEXT_DTYPES.get(text)
            if found is None:
                raise UnsupportedError(f"unknown dtype {text!r}")
            return found
        if reader.map() != 1:
            raise CorruptError("a dtype map has one entry")
        text = reader.text(_SCHEME_NODES)
        if text == "Bool":
            store = reader.text(_SCHEME_NODES)
            if store not in _BOOL_STORES:
                raise UnsupportedError(f"unknown store {store!r} of Bool")
            return _BOOL_STORES[store], Era.BOOL_MAP
        if text == "QFloat":
            from .quant_spelling import scheme_from_tree  # few files have quantized tensors

            scheme = scheme_from_tree(reader.tree(depth=_SCHEME_DEPTH, nodes=_SCHEME_NODES))
            return DType.qfloat(scheme), Era.SCHEME_P if scheme.old_style else Era.SCHEME_T
        raise UnsupportedError(f"unknown dtype {text!r}")


def read_shape(reader: CborReader, longest: int) -> Shape:
    """A shape (BP-10)."""
    with located(rule="BP-10", offset=reader.position):
        rank = reader.array()
        if rank > longest:
            raise LimitError(f"{rank} axes, more than the limit of {longest}")
        return tuple(reader.uint() for _ in range(rank))


def _read_texts(reader: CborReader, limits: Limits) -> dict[str, str]:
    texts: dict[str, str] = {}
    with located(rule="BP-17"):
        for _ in range(_bounded(reader.map(), limits.metadata_entries, "metadata entries")):
            key = _key(reader, texts)
            texts[key] = reader.text()
    return texts


def _read_scalars(reader: CborReader, limits: Limits) -> dict[str, Scalar]:
    scalars: dict[str, Scalar] = {}
    with located(rule="BP-18"):
        for _ in range(_bounded(reader.map(), limits.metadata_entries, "scalars")):
            key = _key(reader, scalars)
            at = reader.position
            if reader.map() != 1:
                raise CorruptError("a scalar is a map of one entry", offset=at)
            scalars[key] = _read_scalar(reader)
    return scalars


def _read_scalar(reader: CborReader) -> Scalar:
    at = reader.position
    kind = reader.text(_SCHEME_NODES)
    if kind == "Float":
        return Scalar("Float", reader.float())
    if kind == "Bool":
        return Scalar("Bool", reader.boolean())
    if kind in ("Int", "UInt"):
        value = reader.integer()
        named: ScalarKind = "Int" if kind == "Int" else "UInt"
        try:
            return Scalar(named, value)
        except ValueError as error:
            raise CorruptError(str(error), offset=at) from None
    raise UnsupportedError(f"unknown scalar kind {kind!r}", offset=at)


def _key(reader: CborReader, seen: set[str] | dict[str, Any]) -> str:
    at = reader.position
    key = reader.text()
    if key in seen:
        raise CorruptError(f"key {printable(key)!r} twice in one map", offset=at, rule="BP-04")
    if isinstance(seen, set):
        seen.add(key)
    return key


def _unknown_key(key: str, where: str) -> UnsupportedError:
    return UnsupportedError(f"unknown key {printable(key)!r} in {where}", hint="is the file of a newer Burn?")


def _bounded(count: int, most: int, what: str) -> int:
    if count > most:
        raise LimitError(f"{count} {what}, more than {most}")
    return count
