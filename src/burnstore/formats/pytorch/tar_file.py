"""The tar that torch wrote in 2016 and 2017: its tensors and storages are tables beside the pickle."""

from __future__ import annotations

import struct
from typing import Any

from ...errors import CorruptError, FormatError, UnsupportedError, located, printable
from ...io.source import Source
from ...limits import Limits
from ..codec.pickle import Dialect
from ..codec.pickle_values import Symbol, kind_of
from ..codec.tar import Member, read_members
from .archive import MOST_TENSORS, Broken, PickledFile, PickleStream
from .storages import Storage, Storages
from .tensor_calls import StorageView, TensorCalls, rebuilt
from .tensors import MOST_AXES, PickledTensor

_MEMBERS = ("sys_info", "pickle", "storages", "tensors")
_PLAIN = Dialect()
_COUNT = struct.Struct("<q")
_AXES = struct.Struct("<i4x")


def read_tar(source: Source, limits: Limits, *, salvage: bool = False) -> tuple[PickledFile, Broken]:
    """The object graph of a tar of torch, and what is left of storages that are not whole (none unless salvaging)."""
    with located(rule="PT-12"):
        members = _members(source, salvage=salvage)
    storages = Storages()
    streams = {
        name: PickleStream(source, limits, start=member.start, end=min(member.start + member.size, source.size))
        for name, member in members.items()
    }
    with located(rule="PT-13"):
        by_key, broken = _storages(streams["storages"], storages, salvage=salvage)
        tensors = _tensors(streams["tensors"], by_key, salvage=salvage)
    calls = TensorCalls(storages)

    def persistent(identity: Any) -> Any:
        if isinstance(identity, tuple) and len(identity) == 3 and isinstance(identity[0], Symbol):
            return identity[0]  # a class with its source text, which is of no use to anybody who does not run it
        key = _key(identity)
        found = tensors.get(key, by_key.get(key))
        if found is None and salvage:
            return None  # it was in a storage that is not there
        if found is None:
            raise CorruptError(f"the pickle refers to {printable(key)}, which is in no table", rule="PT-13")
        return found

    found = streams["pickle"].pickle(Dialect(builders=calls.builders(), persistent=persistent))
    for name in ("pickle", "tensors"):
        if streams[name].left:
            raise CorruptError(f"bytes follow the end of {name}", rule="PT-13", offset=streams[name].position)
    return PickledFile("tar", found.value, found.globals, found.protocol, storages), broken


def _members(source: Source, *, salvage: bool) -> dict[str, Member]:
    members: dict[str, Member] = {}
    for member in read_members(source.read_at, source.size, cut=salvage):
        if member.name in members:
            raise CorruptError(f"two members are called {printable(member.name)!r}", offset=member.start)
        members[member.name] = member
    missing = [name for name in _MEMBERS[1:] if name not in members]
    if missing:
        raise UnsupportedError(f"it is a tar, but none that torch saved: missing {missing[0]!r} entry")
    return {name: members[name] for name in _MEMBERS if name in members}


def _key(identity: Any) -> str:
    if type(identity) is int:
        return str(identity)
    if not isinstance(identity, str) or not identity:
        raise CorruptError(f"a key that is a {kind_of(identity)}", rule="PT-13")
    return identity


def _how_many(stream: PickleStream) -> int:
    count = stream.pickle(_PLAIN).value
    if type(count) is not int or not 0 <= count <= MOST_TENSORS:
        shown = count if type(count) is int else kind_of(count)
        raise CorruptError(f"a table of {shown} rows", offset=stream.position)
    return count


def _row(stream: PickleStream) -> tuple[Any, Any, Any]:
    row = stream.pickle(_PLAIN).value
    if not isinstance(row, tuple) or len(row) != 3:
        raise CorruptError("a row of a table is not of three values", offset=stream.position)
    return row


def _storages(stream: PickleStream, storages: Storages, *, salvage: bool) -> tuple[dict[str, Storage], Broken]:
    """The storages by key, those that are parts of another included, and what is left of those that are broken."""
    by_key: dict[str, Storage] = {}
    try:
        for _ in range(_how_many(stream)):
            key, _, kind = _row(stream)
            (count,) = _COUNT.unpack(stream.take(_COUNT.size))
            if _key(key) in by_key:
                raise CorruptError(f"the storage {printable(_key(key))} comes twice", offset=stream.position)
            storage = storages.get(key, kind, count)
            by_key[storage.key] = storage
            storage.offset = stream.position
            stream.skip(storage.nbytes)
        views = stream.pickle(_PLAIN).value
        if not isinstance(views, list):
            raise CorruptError(f"the list of views is a {kind_of(views)}", offset=stream.position)
        for view in views:
            if not isinstance(view, tuple) or len(view) != 4:
                raise CorruptError("a view of a storage is not described by four values", offset=stream.position)
            target, root, offset, size = view
            base = by_key.get(_key(root))
            if base is None or isinstance(base, StorageView) or _key(target) in by_key:
                raise CorruptError("a view of a storage that is not there", offset=stream.position)
            if type(offset) is not int or type(size) is not int or not 0 <= offset <= offset + size <= base.count:
                raise CorruptError("a view that leaves its storage", offset=stream.position)
            by_key[_key(target)] = StorageView(base, offset, size)
        if stream.left:
            raise CorruptError("bytes follow the end of storages", offset=stream.position)
    except FormatError:
        if not salvage:
            raise
        last = list(by_key.values())[-1:]
        return by_key, {each.key: stream.left for each in last if each.offset == stream.position}
    return by_key, {}


def _tensors(stream: PickleStream, storages: dict[str, Storage], *, salvage: bool) -> dict[str, PickledTensor]:
    tensors: dict[str, PickledTensor] = {}
    for _ in range(_how_many(stream)):
        key, storage, _ = _row(stream)
        (axes,) = _AXES.unpack(stream.take(_AXES.size))
        if not 0 <= axes <= MOST_AXES:
            raise CorruptError(f"a tensor of {axes} axes", offset=stream.position)
        numbers = struct.unpack(f"<{2 * axes + 1}q", stream.take(8 * (2 * axes + 1)))
        if salvage and _key(storage) not in storages:
            continue
        if _key(key) in tensors or _key(storage) not in storages:
            raise CorruptError(f"the tensor {printable(_key(key))} comes twice, or its storage not at all")
        tensors[_key(key)] = rebuilt(storages[_key(storage)], numbers[-1], numbers[:axes], numbers[axes:-1])
    return tensors
