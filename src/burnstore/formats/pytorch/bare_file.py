"""Bare pickles: what `pickle.dump` makes of a state dict; each storage is a stream of its own inside the pickle."""

from __future__ import annotations

from ...errors import CorruptError, LimitError
from ...io.source import Source
from ...limits import Limits
from ..codec.pickle import Dialect
from .archive import MOST_PICKLE_BYTES, PickledFile, parse
from .legacy_file import embedded_storage
from .storages import Storage, Storages
from .tensor_calls import TensorCalls


def read_bare(source: Source, limits: Limits) -> PickledFile:
    """The object graph of a file that is one pickle and nothing else (PT-14)."""
    most = MOST_PICKLE_BYTES if limits.header_bytes is None else limits.header_bytes
    if source.size > most:
        raise LimitError(f"a pickle of {source.size} bytes, more than the limit of {most}", rule="PT-17")
    storages = Storages()

    def embedded(raw: bytes) -> Storage:
        storage = embedded_storage(raw, limits)
        storage.key = f"embedded {len(storages.by_key)}"
        storages.by_key[storage.key] = storage
        return storage

    data = source.read_at(0, source.size)
    found = parse(data, 0, Dialect(builders=TensorCalls(storages, embedded).builders()), limits)
    if found.end != len(data):
        raise CorruptError(f"{len(data) - found.end} bytes follow the pickle", rule="PT-16", offset=found.end)
    return PickledFile("pickle", found.value, found.globals, found.protocol, storages)
