"""Write a distributed checkpoint: one file of whole tensors, and the metadata that makes it a checkpoint.

``torch.distributed.checkpoint.load`` of any number of ranks reads it and takes of each tensor what the rank needs.

    write      the data, under a name that no file of the folder has: nothing that is there is touched
    publish    ``.metadata``, by the atomic replacement of one file: from here on the new checkpoint counts
    remove     the files that the replaced metadata named

A kill before *publish* leaves the old checkpoint, or a folder without metadata, which is none.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ...errors import BurnstoreError, FormatError, SaveError, located
from ...io.atomic import already_exists, atomic_file, remove_empty_folder, remove_files
from ...io.source import FileSource
from ...limits import Limits
from ...tensor.snapshot import TensorSnapshot
from ..base import WriteOne, WriteOptions, WritePlan
from ..columns import check_count, check_names
from ..pytorch.writer import dtype_name, plan_tensor
from .metadata import MOST_METADATA_BYTES, MOST_TENSORS, read_metadata

METADATA = ".metadata"
_ALIGNMENT = 64
_OURS = re.compile(r"__[0-9]+_[0-9]+(?:\.[0-9a-f]{8})?\.distcp")
_MODULE = "torch.distributed.checkpoint.metadata"


@dataclass(frozen=True, slots=True)
class _Entries:
    """The bytes around the tensors of a file: each tensor is in an archive of its own."""

    plans: Sequence[WritePlan]
    paddings: Sequence[int]

    def first_crc(self, number: int) -> int:
        around = self.plans[number].around
        return 0 if around is None else around.first_crc(0)

    def after(self, number: int, crcs: Sequence[int]) -> bytes:
        around = self.plans[number].around
        end = b"" if around is None else around.after(0, [crcs[number]])
        following = self.plans[number + 1].header if number + 1 < len(self.plans) else b""
        return end + bytes(self.paddings[number]) + following


@dataclass(frozen=True, slots=True)
class DataPlan(WritePlan):
    """The plan of a data file, and where the archive of each tensor is in it."""

    places: Sequence[tuple[int, int]] = ()


def plan(tensors: Sequence[TensorSnapshot], metadata: Mapping[str, str] | None, limits: Limits) -> DataPlan:
    """Plan the data file of these tensors."""
    if metadata:
        raise FormatError(f"a distributed checkpoint has no place for metadata: {next(iter(metadata))!r}")
    limits = limits.or_defaults(header_bytes=MOST_METADATA_BYTES, tensors=MOST_TENSORS)
    check_count(len(tensors), limits, "DC-01")
    check_names([tensor.path for tensor in tensors], limits, "DC-01", "DC-01")
    plans = [plan_tensor(tensor) for tensor in tensors]
    places, paddings, offsets, position = list[tuple[int, int]](), list[int](), list[int](), 0
    for each in plans:
        places.append((position, each.size))
        offsets.append(position + each.offsets[0])
        paddings.append(-(position + each.size) % _ALIGNMENT)
        position += each.size + paddings[-1]
    header = plans[0].header if plans else b""
    return DataPlan(header, list(tensors), offsets, position, _Entries(plans, paddings) if plans else None, places)


def save_folder(
    tensors: Sequence[TensorSnapshot],
    path: str,
    how: WriteOptions,
    write: WriteOne,
    prove: Callable[[str], None] | None = None,
) -> list[str]:
    """Save tensors as a distributed checkpoint in the folder ``path``, see `burnstore.formats.base.WritesFolder`."""
    planned = plan(tensors, None, how.bounds)
    metadata_path = os.path.join(path, METADATA)
    is_new = _prepare(path, overwrite=how.overwrite)
    names: list[str] = []
    try:
        if tensors:
            names.append(_free_name(path))
            write(planned, os.path.join(path, names[0]), overwrite=False, progress=how.progress)
        raw = encode_metadata(tensors, planned.places, names[0] if names else "")
        with atomic_file(metadata_path, overwrite=how.overwrite, durable=how.durable, size=len(raw)) as scratch:
            place = scratch.shared(len(raw))
            with place.opened(durable=False) as portion:
                portion.write_at(0, raw)
            if prove is not None:
                prove(place.path)
            old = _files_of(metadata_path, how.bounds)  # as late as possible: another save may replace it, too
    except BaseException:
        remove_files(path, names)
        if is_new:
            remove_empty_folder(path)
        raise
    left = remove_files(path, [name for name in old if name not in names])
    if left:
        raise SaveError(f"saved, but the old file {left[0]} could not be removed", stage="published", path=path)
    return [metadata_path, *(os.path.join(path, name) for name in names)]


def _prepare(path: str, *, overwrite: bool) -> bool:
    """Make the folder if it does not exist; return whether it is new. Refuse one that has another checkpoint."""
    if not os.path.lexists(path):
        try:
            os.mkdir(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SaveError(f"the folder cannot be made: {error.strerror}", stage="create", path=path) from error
        return True
    if not os.path.isdir(path):
        raise SaveError(
            "a distributed checkpoint is a folder, and a file is at this path",
            stage="check",
            path=path,
            hint="give the folder another name",
        )
    names = os.listdir(path)
    if not overwrite and any(name.endswith(METADATA) for name in names):
        raise already_exists(path, stage="check")
    others = [name for name in names if name.endswith((".safetensors", ".bpk", ".index.json"))]
    others += [name for name in names if name.endswith(METADATA) and name != METADATA]
    if others:
        raise SaveError(
            f"the folder has {sorted(others)[0]}, so which checkpoint it stands for would be unclear",
            stage="check",
            path=path,
            hint="give a folder of its own",
        )
    return False


def _free_name(path: str) -> str:
    name = "__0_0.distcp"
    while os.path.lexists(os.path.join(path, name)):
        name = f"__0_0.{os.urandom(4).hex()}.distcp"
    return name


def _files_of(metadata_path: str, limits: Limits) -> list[str]:
    """Return the files that the metadata in place names, if they have the names of a checkpoint's files."""
    with suppress(OSError, BurnstoreError):
        source = FileSource(metadata_path)
        try:
            found = read_metadata(source, limits.or_defaults(header_bytes=MOST_METADATA_BYTES, tensors=MOST_TENSORS))
        finally:
            source.close()
        places = [place for tensor in found.tensors.values() for *_, place in tensor.chunks if place is not None]
        names = {place.file for place in [*places, *found.objects.values()]}
        return sorted(name for name in names if _OURS.fullmatch(name))
    return []


# --- the pickle -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Global:
    module: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class _Object:
    """An object of a class, made without arguments, whose attributes are set."""

    kind: _Global
    state: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Called:
    """The result of a call."""

    function: _Global
    args: tuple[Any, ...]


def encode_metadata(tensors: Sequence[TensorSnapshot], places: Sequence[tuple[int, int]], file: str) -> bytes:
    """Return the metadata of whole tensors, as torch 2.4 to 2.15 read it: properties have five fields."""
    described: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    for tensor, (offset, length) in zip(tensors, places, strict=True):
        origin, size = _size((0,) * len(tensor.shape)), _size(tensor.shape)
        with located(tensor=tensor.path):
            dtype = _Global("torch", dtype_name(tensor.dtype))
        strided = _Called(_Global("torch.serialization", "_get_layout"), ("torch.strided",))
        contiguous = _Called(_Global(_MODULE, "_MEM_FORMAT_ENCODING"), (0,))
        properties = _Object(_Global(_MODULE, "TensorProperties"), (dtype, strided, False, contiguous, False))
        chunk = _Object(_Global(_MODULE, "ChunkStorageMetadata"), {"offsets": origin, "sizes": size})
        state = {"properties": properties, "size": size, "chunks": [chunk]}
        described[tensor.path] = _Object(_Global(_MODULE, "TensorStorageMetadata"), state)
        index = _Object(_Global(_MODULE, "MetadataIndex"), {"fqn": tensor.path, "index": 0, "offset": origin})
        info = _Global("torch.distributed.checkpoint.filesystem", "_StorageInfo")
        stored[index] = _Object(info, {"relative_path": file, "offset": offset, "length": length})
    identity = sha256(repr([(t.path, str(t.dtype), t.shape) for t in tensors]).encode()).hexdigest()[:32]
    meta: dict[str, Any] = {"checkpoint_id": None, "save_id": identity, "load_id": None, "modules": []}
    root = {
        "state_dict_metadata": described,
        "planner_data": {tensor.path: (tensor.path,) for tensor in tensors},
        "storage_data": stored,
        "storage_meta": _Object(_Global(_MODULE, "StorageMeta"), meta),
        "version": "1.0.0",
    }
    encoder = _Encoder()
    encoder.add(_Object(_Global(_MODULE, "Metadata"), root))
    return bytes(encoder.out + b".")


def _size(shape: Sequence[int]) -> _Called:
    return _Called(_Global("torch", "Size"), (tuple(shape),))


class _Encoder:
    """A pickle of protocol 2 in the making. Globals that recur are written once."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self._memo: dict[_Global, int] = {}

    def add(self, value: Any) -> None:
        """Add the opcodes that make a value."""
        if value is None or isinstance(value, bool):
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, int):
            self._add_integer(value)
        elif isinstance(value, str):
            raw = value.encode()
            self.out += b"X" + struct.pack("<I", len(raw)) + raw
        elif isinstance(value, _Global):
            self._add_global(value)
        elif isinstance(value, tuple):
            self.out += b"("
            for item in value:
                self.add(item)
            self.out += b"t"
        elif isinstance(value, _Called):
            self._add_global(value.function)
            self.add(value.args)
            self.out += b"R"
        elif isinstance(value, _Object):
            self._add_global(value.kind)
            self.out += b")\x81"
            self.add(value.state)
            self.out += b"b"
        elif isinstance(value, dict):
            self.out += b"}("
            for key, item in value.items():
                self.add(key)
                self.add(item)
            self.out += b"u"
        else:
            self.out += b"]("
            for item in value:
                self.add(item)
            self.out += b"e"

    def _add_integer(self, value: int) -> None:
        if 0 <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
            return
        length = value.bit_length() // 8 + 1
        self.out += b"\x8a" + bytes([length]) + value.to_bytes(length, "little", signed=True)

    def _add_global(self, symbol: _Global) -> None:
        known = self._memo.get(symbol)
        if known is not None:
            self.out += b"j" + struct.pack("<I", known)
            return
        number = self._memo[symbol] = len(self._memo)
        self.out += f"c{symbol.module}\n{symbol.name}\n".encode() + b"r" + struct.pack("<I", number)
