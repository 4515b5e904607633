"""The stream that `torch.save` wrote before 1.6, and still writes on request: five pickles, then the storages."""

from __future__ import annotations

import re
import struct
from typing import Any

from ...errors import CorruptError, FormatError, LimitError, located, printable
from ...io.source import BytesSource, Source
from ...limits import Limits
from ...tensor.snapshot import SourceData
from ..codec.pickle import Dialect
from ..codec.pickle_values import kind_of
from .archive import Broken, PickledFile, PickleStream
from .runs import TensorRuns
from .storages import Storage, Storages
from .tensor_calls import TensorCalls
from .tensors import PickledTensor

MAGIC = 0x1950A86A20F9469CFC6C
_BEGINNING = re.compile(
    rb"(?:\x80.)?(?:\x95.{8})?\x8a\x0a" + re.escape(MAGIC.to_bytes(10, "little")) + rb"|(?:\x80.)?L%d" % MAGIC,
    re.DOTALL,
)
PROTOCOL = 1001
_COUNT = struct.Struct("<q")
_PLAIN = Dialect()


def begins_like_legacy(head: bytes) -> bool:
    """Whether the first pickle is torch's magic number, in whichever protocol."""
    return _BEGINNING.match(head) is not None


def read_legacy(source: Source, limits: Limits, *, salvage: bool = False) -> tuple[PickledFile, Broken]:
    """The object graph of a stream, and what is left of storages that are not whole (none unless salvaging)."""
    storages = Storages()
    calls = TensorCalls(storages)
    stream = PickleStream(source, limits)
    sys_info = _head(stream)
    dialect = Dialect(builders=calls.builders(), persistent=calls.persistent, recogniser=TensorRuns(storages).recognise)
    found = stream.pickle(dialect)
    keys = _keys(stream.pickle(_PLAIN).value, storages)
    broken = _attach(stream, [storages.by_key[key] for key in keys], salvage=salvage)
    if stream.left and not broken and not salvage:
        raise CorruptError(f"{stream.left} bytes follow the last storage", rule="PT-11", offset=stream.position)
    facts = {"byteorder": "little" if sys_info.get("little_endian") is not False else "big"}
    return PickledFile("legacy", found.value, found.globals, found.protocol, storages, facts=facts), broken


def _head(stream: PickleStream) -> dict[Any, Any]:
    """The three pickles that say what follows (PT-10)."""
    with located(rule="PT-10"):
        if stream.pickle(_PLAIN).value != MAGIC:
            raise CorruptError("the stream does not begin with torch's magic number")
        protocol = stream.pickle(_PLAIN).value
        if type(protocol) is not int or protocol != PROTOCOL:
            shown = protocol if type(protocol) is int else kind_of(protocol)
            raise CorruptError(f"the protocol is {shown}, not {PROTOCOL}")
        sys_info = stream.pickle(_PLAIN).value
        if not isinstance(sys_info, dict) or not isinstance(sys_info.get("little_endian"), bool):
            raise CorruptError("the facts about the machine that wrote the file have no little_endian flag")
        return sys_info


def _keys(listed: Any, storages: Storages) -> list[str]:
    if not isinstance(listed, list):
        raise CorruptError(f"the list of storages is a {kind_of(listed)}", rule="PT-11")
    keys = [str(key) if type(key) is int else key for key in listed]
    for key in keys:
        if not isinstance(key, str) or key not in storages.by_key:
            shown = printable(key) if isinstance(key, str) else kind_of(key)
            raise CorruptError(f"the storage {shown} is listed, but nothing refers to it", rule="PT-11")
    if len(set(keys)) != len(keys) or len(keys) != len(storages.by_key):
        raise CorruptError("the list of storages is not that of the storages referred to", rule="PT-11")
    return keys


def _attach(stream: PickleStream, storages: list[Storage], *, salvage: bool) -> Broken:
    """Find the bytes of each storage behind its count (PT-11); when salvaging, those from a break on are broken."""
    for number, storage in enumerate(storages):
        try:
            with located(rule="PT-11"):
                (count,) = _COUNT.unpack(stream.take(_COUNT.size))
                if count != storage.count:
                    raise CorruptError(
                        f"the storage {printable(storage.key)!r} holds {count} elements but the pickle declares "
                        f"{storage.count}",
                        offset=stream.position - _COUNT.size,
                    )
                storage.offset = stream.position
                stream.skip(storage.nbytes)
        except FormatError:
            if not salvage:
                raise
            broken = dict.fromkeys((each.key for each in storages[number:]), 0)
            if storage.offset >= 0:
                broken[storage.key] = stream.left  # the file ends in it: what is before is as it was
            return broken
    return {}


def embedded_storage(raw: bytes, limits: Limits) -> Storage:
    """The one storage of a stream inside a pickle, as pickling a tensor without torch.save makes it (PT-14)."""
    source = BytesSource(raw, share=True, name="<embedded>")
    try:
        file, _ = read_legacy(source, limits)
    except LimitError:
        raise
    except FormatError as error:
        raise CorruptError(f"the storage inside the pickle cannot be read: {error.message}", rule="PT-14") from None
    storage = file.value
    if isinstance(storage, PickledTensor) or not isinstance(storage, Storage):
        raise CorruptError(f"a storage is expected inside the pickle, a {kind_of(storage)} is there", rule="PT-14")
    storage.data = SourceData(source, storage.offset, storage.nbytes)
    storage.offset = -1
    return storage
