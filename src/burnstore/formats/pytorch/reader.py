"""Open a file of torch: which container it is, and the steps from its bytes to a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...errors import CorruptError, LimitError, TruncatedError, UnknownFormatError, UnsupportedError, located, printable
from ...io.paths import sibling
from ...io.source import InFolder, JoinedSource, Source
from ...limits import Limits
from ..base import Check, Contents, Part
from ..codec.zip import DEFLATED, LOCAL_MAGIC, STORED, Member
from ..sharded import read as sharded
from ..sharded.locate import ZERO_OPTIMIZER, begins_like_index
from .archive import ZipFile, read_zip
from .contents import Rows
from .data import DenseData, check_member
from .graph import find_tensors
from .salvage import LOCAL_HEADER, salvaged, without_lost
from .stream import MAX_PICKLE_BYTES, MAX_TENSORS, PickledFile, begins_like_legacy, read_bare, read_legacy, read_tar
from .zero import ZeroFile, mark_partitions, zero_contents

_HEAD = 512
_INDICES = (".indices", ".crow_indices", ".ccol_indices")


def read_pickled(source: Source, limits: Limits | None = None, *, checksums: bool = False) -> PickledFile:
    """Return the object graph of a file of torch, in any of its containers; nothing in it is run."""
    limits = limits or Limits()
    if source.size > limits.file_bytes:
        raise LimitError(f"{source.size} bytes, more than the limit of {limits.file_bytes}", rule="PT-01")
    head = source.read_at(0, min(_HEAD, source.size))
    if head.startswith(b"PK"):
        return read_zip(ZipFile(source, limits), limits, checksums=checksums)
    if head[257:262] == b"ustar":
        return read_tar(source, limits)[0]
    if begins_like_legacy(head):
        return read_legacy(source, limits)[0]
    if head[4:8] == b"PTMF":
        raise UnsupportedError("it is a model for mobile devices, a flatbuffer that contains code", rule="PT-27")
    if not head.startswith((b"\x80", b"(", b"}", b"]", b"c")):
        raise UnknownFormatError("it is not a PyTorch checkpoint", rule="PT-01", offset=0)
    return read_bare(source, limits)


def read(
    source: Source,
    limits: Limits,
    *,
    top_level_key: str | None = None,
    dense: bool = False,
    checksums: bool = False,
    salvage: bool = False,
    shards: Sequence[str] | None = None,
) -> Contents:
    """Return the contents of a file of torch.

    ``top_level_key`` names the part that is the model (dotted for a part of a part, ``""`` for everything); by default
    it is found where common programs save it. ``dense=True`` gives sparse and quantized tensors as plain values, not as
    their parts. ``checksums=True`` compares the checksum of every storage, which reads the whole file.
    ``salvage=True`` accepts a damaged file and gives the tensors whose bytes are all there, checked as far as possible.
    """
    for option, value in (("dense", dense), ("checksums", checksums), ("salvage", salvage)):
        if not isinstance(value, bool):
            raise TypeError(f"{option} must be a bool, got {type(value).__name__}")
    if top_level_key is not None and not isinstance(top_level_key, str):
        raise TypeError(f"top_level_key must be a str, got {type(top_level_key).__name__}")
    options: dict[str, Any] = {
        "top_level_key": top_level_key,
        "dense": dense,
        "checksums": checksums,
        "salvage": salvage,
    }
    several = limits.or_defaults(header_bytes=MAX_PICKLE_BYTES, tensors=MAX_TENSORS)
    if isinstance(source, JoinedSource):
        return sharded.read_files(source, several, lambda part, _: read(part, limits, **options))
    if shards is not None and any(isinstance(name, str) and ZERO_OPTIMIZER.fullmatch(name) for name in shards):
        return _read_zero(source, shards, limits)
    if shards is not None:
        return sharded.read_set(source, shards, several, lambda part, _: read(part, limits, **options))
    if begins_like_index(source.read_at(0, min(_HEAD, source.size))):
        return sharded.read_index(source, several, lambda part, _: read(part, limits, **options))
    broken = None
    if salvage:
        file, broken = salvaged(source, limits)
    else:
        try:
            file = read_pickled(source, limits, checksums=checksums)
        except TruncatedError as error:
            error.hint = error.hint or "burnstore.open(path, salvage=True) returns the tensors that are whole"
            raise
    found = find_tensors(file, top_level_key, limits)
    found.notes += file.notes
    if broken is not None:
        found = without_lost(found, broken)
    rows = Rows(file, source, limits)
    rows.add(found.tensors, dense=dense)
    return mark_partitions(file, rows.contents(found), source)


def _read_zero(source: Source, shards: Sequence[str], limits: Limits) -> Contents:
    """Read a checkpoint of DeepSpeed ZeRO, of which the source is the first file."""
    opened: list[Source] = []
    files: list[ZeroFile] = []
    try:
        for name in shards:
            with located(rule="PT-30"):
                opened.append(sibling(cast(InFolder, source), name))
            with located(path=opened[-1].name):
                files.append(ZeroFile(opened[-1], read_pickled(opened[-1], limits)))
        models = [each for name, each in zip(shards, files, strict=True) if not ZERO_OPTIMIZER.fullmatch(name)]
        optimizers = [each for name, each in zip(shards, files, strict=True) if ZERO_OPTIMIZER.fullmatch(name)]
        return zero_contents(JoinedSource(source.name, opened), models, optimizers, limits)
    except BaseException:
        for each in opened:
            each.close()
        raise


@dataclass(frozen=True, slots=True)
class MemberCheck:
    """The bytes of one member of a zip, compared with its checksum (PT-09)."""

    source: Source
    name: str
    member: Member
    nbytes: int
    """How many bytes of the file it reads."""

    def __call__(self) -> str | None:
        try:
            check_member(self.source, self.member)
        except CorruptError as error:
            error.message = f"the member {printable(self.name)!r}: {error.message}"
            raise
        return None


@dataclass(frozen=True, slots=True)
class SparseCheck:
    """The indices of one sparse tensor, compared with its size (PT-22)."""

    name: str
    data: DenseData

    @property
    def nbytes(self) -> int:
        return sum(int(getattr(part, "nbytes", 0)) for part in self.data.composite.parts.values())

    def __call__(self) -> str | None:
        with located(tensor=self.name):
            self.data.check()
        return None


def checks(source: Source, contents: Contents, limits: Limits) -> Sequence[Check]:
    """Return a check for each sparse tensor, and for each member of a zip that has a checksum."""
    if isinstance(contents.source, JoinedSource):
        return [check for part in contents.source.parts for check in _checks(part, contents, limits)]
    return _checks(source, contents, limits)


def _checks(source: Source, contents: Contents, limits: Limits) -> list[Check]:
    found: list[Check] = []
    if any(name.endswith(_INDICES) for name in contents.table.names):
        file = read_pickled(source, limits)
        rows = Rows(file, source, limits)
        rows.add(find_tensors(file, "", limits).tensors, dense=False)
        found += [SparseCheck(name, data) for name, data in rows.sparse()]
    if not source.read_at(0, min(2, source.size)).startswith(b"PK"):
        return found
    directory = ZipFile(source, limits).directory
    members = zip(directory.names, directory.members(), strict=True)
    found += [MemberCheck(source, name, member, member.packed) for name, member in members if member.crc]
    return found


def describe_header(head: bytes, size: int) -> list[Part]:
    """Describe the first bytes: the first member's header, name and padding, or the pickle's protocol."""
    if head.startswith(b"PK") and len(head) >= LOCAL_HEADER.size:
        return _first_member(head, size)
    if head[:1] == b"\x80" and len(head) > 1:
        opcodes = "opcodes of the pickle; nothing runs them"
        return [Part(0, 2, f"pickle, protocol {head[1]}"), Part(2, size - 2, opcodes)]
    return [Part(0, size, "an old pickle without a protocol, or a tar")]


def _first_member(head: bytes, size: int) -> list[Part]:
    signature, _, _, method, *_, named, extra = LOCAL_HEADER.unpack_from(head)
    fixed, start = LOCAL_HEADER.size, LOCAL_HEADER.size + named + extra
    methods = {STORED: "stored", DEFLATED: "deflated"}
    parts = [
        Part(
            0, 4, "zip: the header of a member" if signature == LOCAL_MAGIC else "zip, but not the header of a member"
        ),
        Part(4, fixed - 4, f"its version, flags, method ({methods.get(method, method)}), checksum and sizes"),
        Part(fixed, named, "its name"),
        Part(fixed + named, extra, "padding, so that its data are aligned"),
        Part(start, size - start, "its data, then the other members"),
    ]
    return [Part(p.offset, min(p.nbytes, size - p.offset), p.meaning) for p in parts if p.nbytes and p.offset < size]
