"""PickledFile, what a file of torch is once it was read; and the containers that are streams of pickles and bytes.

Legacy files are what `torch.save` wrote before 1.6, and still writes on request. Bare pickles are what `pickle.dump`
makes of a state dict: each storage is a legacy stream inside the pickle. Tars are of 2016 and 2017: their tensors and
storages are tables beside the pickle.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import (
    BurnstoreError,
    CorruptError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsafeContentError,
    UnsupportedError,
    located,
    printable,
)
from ...io.source import BytesSource, Source
from ...limits import Limits
from ...tensor.note import Note
from ...tensor.sources import SourceData
from ..codec.pickle import Dialect, Pickle, PickleLimits, read_pickle
from ..codec.pickle_values import Symbol, kind_of
from ..codec.tar import Member, read_members
from .runs import TensorRuns
from .tensor_calls import TensorCalls, rebuilt
from .tensors import MAX_AXES, PickledTensor, Storage, Storages, StorageView, shown_integer

MAX_PICKLE_BYTES = 256 << 20
MAX_TENSORS = 1_000_000
_FIRST_READ = 64 << 10
_PLAIN = Dialect()

_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_START = re.compile(
    rb"(?:\x80.)?(?:\x95.{8})?\x8a\x0a" + re.escape(_MAGIC.to_bytes(10, "little")) + rb"|(?:\x80.)?L%d" % _MAGIC,
    re.DOTALL,
)
_LEGACY_PROTOCOL = 1001
_COUNT, _AXES = struct.Struct("<q"), struct.Struct("<i4x")
_NEAR = 1 << 20
_TAR_MEMBERS = ("pickle", "storages")


@dataclass(frozen=True, slots=True)
class PickledFile:
    """A file of torch. ``value`` is its object graph, ``globals`` every name that loading it with torch would import.

    In the graph, tensors are `PickledTensor` or `CompositeTensor`, storages `Storage`, arrays `NumpyArray`; what is not
    known stays a `Symbol` or a `Call`. Nothing of it was run.
    """

    container: str
    value: Any
    globals: list[tuple[int, Symbol]]
    protocol: int
    storages: Storages
    big_endian: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    """Records of the container: ``root``, ``version``, ``format_version``, ``storage_alignment``, ``byteorder``."""
    notes: tuple[Note, ...] = ()
    """What could not be read, a sentence each."""
    pickle_bytes: int = 0
    """The size of the pickle, or of the tables that are in its place: it bounds the work of naming tensors."""


Broken = dict[str, int]
"""The keys of damaged storages, and how many of their first bytes are intact."""


def torch_dialect(storages: Storages) -> Dialect:
    """Return what is known of the pickles of `torch.save`, whose storages are outside of the pickle."""
    calls = TensorCalls(storages)
    runs = TensorRuns(storages)
    return Dialect(
        builders=calls.builders(),
        persistent=calls.persistent,
        recogniser=runs.recognise,
        restart=storages.restart,
    )


def max_pickle_bytes(limits: Limits) -> int:
    """Return how many bytes a pickle, or another record that is read whole, may have."""
    return MAX_PICKLE_BYTES if limits.header_bytes is None else limits.header_bytes


def parse(data: bytes, position: int, dialect: Dialect, limits: Limits, *, base: int = 0) -> Pickle:
    """Read the pickle at a position of bytes that begin at ``base`` in the file (PT-15 .. PT-17)."""
    usual = PickleLimits().times(max((limits.tensors or MAX_TENSORS) // MAX_TENSORS, 1))
    allowed = replace(usual, text_bytes=max(usual.text_bytes, limits.header_bytes or 0))
    with located(rule="PT-16"):
        try:
            return read_pickle(data, position, dialect=dialect, limits=allowed)
        except BurnstoreError as error:
            for kind, rule in ((LimitError, "PT-17"), (UnsupportedError, "PT-15"), (UnsafeContentError, "PT-15")):
                if isinstance(error, kind) and error.rule is None:
                    error.rule = rule
            if error.offset is not None:
                error.offset += base
            raise


def parse_whole(data: bytes, dialect: Dialect, limits: Limits, *, base: int = 0) -> Pickle:
    """Read the pickle that fills these bytes."""
    found = parse(data, 0, dialect, limits, base=base)
    if found.end != len(data):
        raise CorruptError(f"{len(data) - found.end} bytes follow the pickle", rule="PT-16", offset=base + found.end)
    return found


class PickleStream:
    """Pickles and raw bytes one after the other in a source; a pickle's length is known only once it was read."""

    def __init__(self, source: Source, limits: Limits, *, start: int = 0, end: int | None = None) -> None:
        self._source = source
        self._limits = limits
        self._end = source.size if end is None else end
        self.position = start
        self._block, self._block_at = b"", start

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return self._end - self.position

    def pickle(self, dialect: Dialect = _PLAIN) -> Pickle:
        """Read the next pickle."""
        length, most = _FIRST_READ, max_pickle_bytes(self._limits)
        while True:
            inside = self.position - self._block_at
            if not 0 <= inside < len(self._block):
                inside = self._read(length)
            whole = self._block_at + len(self._block) == self._end
            try:
                found = parse(self._block, inside, dialect, self._limits, base=self._block_at)
            except TruncatedError:
                if whole:
                    raise
            else:
                self.position = self._block_at + found.end
                return found
            if length > most:
                raise LimitError(f"a pickle of more than {most} bytes", rule="PT-17", offset=self.position)
            length = length if inside else 8 * length  # First a block from here on, then larger and larger ones.
            self._read(length)

    def _read(self, length: int) -> int:
        """Hold the bytes from here on; return where the position is among them."""
        self._block_at = self.position
        self._block = self._source.read_at(self.position, min(length, self.left))
        return 0

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        begin = self.skip(length)
        return self._source.read_at(begin, length)

    def finds(self, offset: int, expected: bytes) -> bool:
        """Return whether these bytes are at an offset of what follows."""
        inside = self.position <= offset <= self._end - len(expected)
        return inside and self._source.read_at(offset, len(expected)) == expected

    def bytes_near(self, offset: int, before: int, behind: int) -> bytes:
        """Return as many bytes before a count, and behind it, as there are."""
        begin = max(offset - before, self.position)
        return self._source.read_at(begin, min(offset + _COUNT.size + behind, self._end) - begin)

    def skip(self, length: int) -> int:
        """Pass over bytes that must be there; return where they begin."""
        if length > self.left:
            raise TruncatedError(
                f"{length} bytes announced, which extends beyond the end of the file: {self.left} follow",
                offset=self.position,
            )
        self.position += length
        return self.position - length


# --------------------------------------------------------------------------------------------------- legacy streams


def begins_like_legacy(head: bytes) -> bool:
    """Return whether the first pickle is torch's magic number, in any protocol."""
    return _LEGACY_START.match(head) is not None


def read_legacy(source: Source, limits: Limits, *, salvage: bool = False) -> tuple[PickledFile, Broken]:
    """Read a legacy stream; return its object graph and its damaged storages (none unless salvaging)."""
    storages = Storages()
    stream = PickleStream(source, limits)
    sys_info = _legacy_head(stream)
    begin = stream.position
    found = stream.pickle(torch_dialect(storages))
    pickle_bytes = stream.position - begin
    keys = _legacy_keys(stream.pickle().value, storages)
    listed, broken = [storages.by_key[key] for key in keys], {}
    if salvage:
        broken = _salvage_legacy(stream, listed)
    else:
        _attach_legacy(stream, listed)
    facts = {"byteorder": "little" if sys_info["little_endian"] else "big"}
    file = PickledFile("legacy", found.value, found.globals, found.protocol, storages, facts=facts)
    return replace(file, pickle_bytes=pickle_bytes), broken


def _legacy_head(stream: PickleStream) -> dict[Any, Any]:
    """Read the three pickles before the object (PT-10)."""
    with located(rule="PT-10"):
        if stream.pickle().value != _MAGIC:
            raise CorruptError("the stream does not begin with torch's magic number")
        protocol = stream.pickle().value
        if type(protocol) is not int or protocol != _LEGACY_PROTOCOL:
            raise CorruptError(f"expected protocol {_LEGACY_PROTOCOL}, found {shown_integer(protocol)}")
        sys_info = stream.pickle().value
        if not isinstance(sys_info, dict) or not isinstance(sys_info.get("little_endian"), bool):
            raise CorruptError("the facts about the machine that wrote the file have no little_endian flag")
        return sys_info


def _legacy_keys(listed: Any, storages: Storages) -> list[str]:
    if not isinstance(listed, list):
        raise CorruptError(f"the list of storages is a {kind_of(listed)}", rule="PT-11")
    keys = [str(key) if type(key) is int else key for key in listed]
    for key in keys:
        if not isinstance(key, str) or key not in storages.by_key:
            shown = printable(key) if isinstance(key, str) else kind_of(key)
            raise CorruptError(f"the storage {shown} is listed, but nothing refers to it", rule="PT-11")
    if len(set(keys)) != len(keys) or len(keys) != len(storages.by_key):
        raise CorruptError("the listed storages differ from those that the pickle refers to", rule="PT-11")
    return keys


def _attach_legacy(stream: PickleStream, storages: list[Storage]) -> None:
    """Find the bytes of each storage behind its count (PT-11)."""
    with located(rule="PT-11"):
        for storage in storages:
            (count,) = _COUNT.unpack(stream.take(_COUNT.size))
            if count != storage.count:
                raise CorruptError(
                    f"the storage {printable(storage.key)!r} holds {count} elements but the pickle declares "
                    f"{storage.count}",
                    offset=stream.position - _COUNT.size,
                )
            storage.offset = stream.skip(storage.nbytes)
    if stream.left:
        raise CorruptError(f"{stream.left} bytes follow the last storage", rule="PT-11", offset=stream.position)


def _salvage_legacy(stream: PickleStream, storages: list[Storage]) -> Broken:
    """Set where the bytes of each storage are; return the storages that may be damaged.

    A legacy stream has no checksums, only a count before each storage, and a size that follows from the pickle. A count
    that is where it should be proves that no bytes were lost or added before it, unless the same bytes are also found
    near it, or are the count of another storage that would have moved to this place.
    """
    counts: list[int] = []  # Where the count of each storage should be.
    position, end = stream.position, stream.position + stream.left
    for storage in storages:
        counts.append(position)
        storage.offset = position + _COUNT.size
        position = storage.offset + storage.nbytes
    lost = position - end
    found = [stream.finds(at, _COUNT.pack(storage.count)) for at, storage in zip(counts, storages, strict=True)]
    if not lost:  # If bytes were overwritten, those around a count that is wrong may be damaged.
        return {each.key: 0 for n, each in enumerate(storages) if not all(found[n : n + 2])}
    places = {(at, storage.count) for at, storage in zip(counts, storages, strict=True)}
    first_wrong = next((n for n, right in enumerate(found) if not right), len(storages))
    whole = 0
    for n in range(first_wrong - 1, 0, -1):
        near = stream.bytes_near(counts[n], min(_NEAR, storages[n - 1].nbytes), min(_NEAR, storages[n].nbytes))
        is_only = near.count(_COUNT.pack(storages[n].count)) == 1
        if is_only and (counts[n] + lost, storages[n].count) not in places:
            whole = n
            break
    return {storage.key: 0 for storage in storages[whole:]}


# --------------------------------------------------------------------------------------------------- bare pickles


def read_bare(source: Source, limits: Limits) -> PickledFile:
    """Read a file that is one pickle and nothing else (PT-14)."""
    most = max_pickle_bytes(limits)
    if source.size > most:
        raise LimitError(f"a pickle of {source.size} bytes, more than the limit of {most}", rule="PT-17")
    storages = Storages()

    def embedded(raw: bytes) -> Storage:
        storage = _embedded_storage(raw, limits)
        base = storage.base if isinstance(storage, StorageView) else storage
        base.key = f"embedded {len(storages.by_key)}"
        storages.by_key[base.key] = base
        return storage

    dialect = Dialect(builders=TensorCalls(storages, embedded).builders())
    found = parse_whole(source.read_at(0, source.size), dialect, limits)
    return PickledFile("pickle", found.value, found.globals, found.protocol, storages, pickle_bytes=source.size)


def _embedded_storage(raw: bytes, limits: Limits) -> Storage:
    """Read the one storage of a stream inside a pickle, as pickling a tensor without torch.save makes it."""
    source = BytesSource(raw, share=True, name="<embedded>")
    try:
        storage = read_legacy(source, limits)[0].value
    except LimitError:
        raise
    except FormatError as error:
        raise CorruptError(f"the storage inside the pickle cannot be read: {error.message}", rule="PT-14") from None
    if not isinstance(storage, Storage):
        raise CorruptError(f"expected a storage inside the pickle, found a {kind_of(storage)}", rule="PT-14")
    base = storage.base if isinstance(storage, StorageView) else storage
    base.data = SourceData(source, base.offset, base.nbytes)
    base.offset = -1
    return storage


# --------------------------------------------------------------------------------------------------- tars


def read_tar(source: Source, limits: Limits, *, salvage: bool = False) -> tuple[PickledFile, Broken]:
    """Read a tar of torch; return its object graph and its damaged storages (none unless salvaging)."""
    with located(rule="PT-12"):
        members = _tar_members(source, salvage=salvage)
    storages = Storages()
    streams = {
        name: PickleStream(source, limits, start=member.start, end=min(member.start + member.size, source.size))
        for name, member in members.items()
    }
    is_burns = "tensors" not in members
    with located(rule="PT-13"):
        by_key, broken = _tar_storages(streams["storages"], storages, salvage=salvage, has_views=not is_burns)
        tensors = {} if is_burns else _tar_tensors(streams["tensors"], by_key, salvage=salvage)
    calls = TensorCalls(storages, inline_storages=is_burns)

    def persistent(identity: Any) -> Any:
        if isinstance(identity, tuple) and len(identity) == 3 and isinstance(identity[0], Symbol):
            return identity[0]  # A class with its source text, which is only of use to a program that runs it.
        key = _tar_key(identity)
        found = tensors.get(key, by_key.get(key))
        if found is None and not salvage:
            raise CorruptError(f"the pickle refers to {printable(key)}, which is in no table", rule="PT-13")
        return found

    found = streams["pickle"].pickle(Dialect(builders=calls.builders(), persistent=persistent))
    for name in ("pickle", *(() if is_burns else ("tensors",))):
        if streams[name].left:
            raise CorruptError(f"bytes follow the end of {name}", rule="PT-13", offset=streams[name].position)
    unstored = next((storage for storage in storages if storage.offset < 0), None)
    if unstored is not None:
        raise CorruptError(f"the storage {printable(unstored.key)} is in no table", rule="PT-13")
    size = members["pickle"].size
    return PickledFile("tar", found.value, found.globals, found.protocol, storages, pickle_bytes=size), broken


def _tar_members(source: Source, *, salvage: bool) -> dict[str, Member]:
    members: dict[str, Member] = {}
    for member in read_members(source.read_at, source.size, cut=salvage):
        if member.name in members:
            raise CorruptError(f"two members are called {printable(member.name)!r}", offset=member.start)
        members[member.name] = member
    needed = _TAR_MEMBERS if "sys_info" in members else (*_TAR_MEMBERS, "tensors")  # Burn's have no table of tensors.
    missing = [name for name in needed if name not in members]
    if missing:
        raise UnsupportedError(f"a tar that torch did not save: missing {missing[0]!r} entry")
    return members


def _tar_key(identity: Any) -> str:
    if type(identity) is int:
        return str(identity)
    if not isinstance(identity, str) or not identity:
        raise CorruptError(f"a key that is a {kind_of(identity)}", rule="PT-13")
    return identity


def _row_count(stream: PickleStream) -> int:
    count = stream.pickle().value
    if type(count) is not int or not 0 <= count <= MAX_TENSORS:
        raise CorruptError(f"a table of {shown_integer(count)} rows", offset=stream.position)
    return count


def _row(stream: PickleStream) -> tuple[Any, Any, Any]:
    row = stream.pickle().value
    if not isinstance(row, tuple) or len(row) != 3:
        raise CorruptError("a row of a table does not have three values", offset=stream.position)
    return row


def _tar_storages(
    stream: PickleStream, storages: Storages, *, salvage: bool, has_views: bool
) -> tuple[dict[str, Storage], Broken]:
    """Read the storages by key, views of others included; return them and the damaged ones."""
    by_key: dict[str, Storage] = {}
    try:
        for _ in range(_row_count(stream)):
            key, _, kind = _row(stream)
            (count,) = _COUNT.unpack(stream.take(_COUNT.size))
            if _tar_key(key) in by_key:
                raise CorruptError(f"the storage {printable(_tar_key(key))} occurs twice", offset=stream.position)
            storage = storages.get(key, kind, count)
            by_key[storage.key] = storage
            storage.offset = stream.position
            stream.skip(storage.nbytes)
        views = stream.pickle().value if has_views else []
        if not isinstance(views, list):
            raise CorruptError(f"the list of views is a {kind_of(views)}", offset=stream.position)
        for described in views:
            if not isinstance(described, tuple) or len(described) != 4:
                raise CorruptError("a view of a storage is not described by four values", offset=stream.position)
            target, root, offset, size = described
            base = by_key.get(_tar_key(root))
            if base is None or isinstance(base, StorageView) or _tar_key(target) in by_key:
                raise CorruptError("a view of a storage that does not exist", offset=stream.position)
            by_key[_tar_key(target)] = StorageView(base, offset, size)
        if stream.left:
            raise CorruptError("bytes follow the end of storages", offset=stream.position)
    except FormatError:
        if not salvage:
            raise
        return by_key, {each.key: 0 for each in list(by_key.values())[-1:]}  # Only what follows proves a storage.
    return by_key, {}


def _tar_tensors(stream: PickleStream, storages: dict[str, Storage], *, salvage: bool) -> dict[str, PickledTensor]:
    tensors: dict[str, PickledTensor] = {}
    for _ in range(_row_count(stream)):
        key, storage, _ = _row(stream)
        (axes,) = _AXES.unpack(stream.take(_AXES.size))
        if not 0 <= axes <= MAX_AXES:
            raise CorruptError(f"a tensor of {axes} axes", offset=stream.position)
        numbers = struct.unpack(f"<{2 * axes + 1}q", stream.take(8 * (2 * axes + 1)))
        if salvage and _tar_key(storage) not in storages:
            continue
        if _tar_key(key) in tensors or _tar_key(storage) not in storages:
            raise CorruptError(f"the tensor {printable(_tar_key(key))} occurs twice, or its storage is missing")
        tensors[_tar_key(key)] = rebuilt(storages[_tar_key(storage)], numbers[-1], numbers[:axes], numbers[axes:-1])
    return tensors
