"""Read ``.metadata``, the pickle that describes a distributed checkpoint; nothing in it is run (DC-01 .. DC-05)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import BurnstoreError, CorruptError, LimitError, UnsupportedError, located, printable
from ...io.paths import plain_name
from ...io.source import Source
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.note import Note
from ..codec.pickle import Dialect, PickleLimits, read_pickle
from ..codec.pickle_values import Call, PickledSet, Symbol, kind_of
from ..pytorch.calls import PLAIN_CALLS
from ..pytorch.tensors import torch_dtype

MOST_METADATA_BYTES = 256 << 20
MOST_TENSORS = 1_000_000
_MORE = 16  # a chunk takes some 25 opcodes, and a checkpoint of 1,000 ranks has a million chunks
_MODULE = "torch.distributed.checkpoint.metadata"
_STORAGE_MODULE = "torch.distributed.checkpoint.filesystem"
_OLD_PROPERTIES = "torch.distributed._shard.sharded_tensor.metadata"
_KNOWN = frozenset(("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version", "mcore_data"))


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an entry is: a file beside the metadata, and the bytes in it."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ChunkedTensor:
    """A tensor: its dtype, its shape, and each piece as its offset, its shape and its place."""

    dtype: DType
    shape: Shape
    chunks: Sequence[tuple[Shape, Shape, Stored | None]]


@dataclass(slots=True)
class DcpMetadata:
    """What a ``.metadata`` states."""

    tensors: dict[str, ChunkedTensor] = field(default_factory=dict)
    objects: dict[str, Stored] = field(default_factory=dict)
    paths: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The path of each entry in the nested state dict, by its flat name."""
    reshaped: Mapping[str, Shape] = field(default_factory=dict)
    """The tensors that Megatron stores in another shape than their own, with their own."""
    is_megatron: bool = False
    notes: list[Note] = field(default_factory=list)


def read_metadata(source: Source, limits: Limits) -> DcpMetadata:
    """Read the metadata of a checkpoint, or of one rank of it."""
    most = limits.header_bytes or MOST_METADATA_BYTES
    if source.size > most:
        raise LimitError(f"metadata of {source.size} bytes, more than the limit of {most}", rule="DC-01")
    raw = source.read_at(0, source.size)
    with located(rule="DC-01"):
        found = read_pickle(raw, dialect=Dialect(builders=PLAIN_CALLS), limits=PickleLimits().times(_MORE))
        if found.end != len(raw):
            raise CorruptError(f"{len(raw) - found.end} bytes follow the pickle", offset=found.end)
        fields = _fields(found.value, "Metadata", _MODULE)
        version = fields.get("version")
        if version is not None and not (isinstance(version, str) and version.startswith("1.")):
            raise UnsupportedError(f"metadata of the version {printable(str(version))!r}; expected 1.x")
    metadata = DcpMetadata()
    for name in sorted(str(key) for key in fields if key not in _KNOWN):
        text = f"the metadata has {printable(name)!r}, which is not known and was not used"
        metadata.notes.append(Note("left out", text, name))
    _read_megatron(fields.get("mcore_data"), metadata)
    metadata.paths = _paths(fields.get("planner_data"))
    stored = _storage(fields.get("storage_data"))
    entries = fields.get("state_dict_metadata")
    if not isinstance(entries, dict):
        raise CorruptError(f"state_dict_metadata is a {kind_of(entries)}, not a dict", rule="DC-01")
    if len(entries) > (limits.tensors or MOST_TENSORS):
        raise LimitError(f"{len(entries)} entries, more than the limit of {limits.tensors}", rule="DC-01")
    for name, entry in entries.items():
        if not isinstance(name, str) or any("\ud800" <= character <= "\udfff" for character in name):
            raise CorruptError("the name of an entry is not text", rule="DC-01")
        if len(name.encode()) > limits.name_bytes:
            raise LimitError(f"a name of more than {limits.name_bytes} bytes", rule="DC-01")
        with located(tensor=name):
            _read_entry(name, entry, stored.pop(name, {}), metadata, limits)
    if stored:
        raise CorruptError("the metadata has a place for it, and does not describe it", tensor=next(iter(stored)))
    return metadata


def _fields(value: Any, name: str, *modules: str) -> dict[Any, Any]:
    """Return the attributes of an object of a known class; UnsupportedError for any other (DC-02)."""
    symbol = value.function if isinstance(value, Call) else None
    if not isinstance(symbol, Symbol) or symbol.name != name or symbol.module not in modules:
        raise UnsupportedError(f"expected {modules[0]}.{name}, got {kind_of(value)}", rule="DC-02")
    if value.args or value.appended or value.pairs or value.kwargs:
        raise CorruptError(f"a {name} of an impossible form", rule="DC-02")
    state = {} if value.state is None else value.state
    if not isinstance(state, dict):
        raise CorruptError(f"the attributes of a {name} are a {kind_of(state)}", rule="DC-02")
    return state


def _read_entry(
    name: str, entry: Any, stored: dict[Shape | None, Stored], metadata: DcpMetadata, limits: Limits
) -> None:
    symbol = entry.function if isinstance(entry, Call) else None
    if isinstance(symbol, Symbol) and symbol.name == "BytesStorageMetadata":
        _fields(entry, "BytesStorageMetadata", _MODULE)
        if len(stored) != 1:
            raise CorruptError(f"an object with {len(stored)} places, expected one", rule="DC-04")
        metadata.objects[name] = next(iter(stored.values()))
        return
    fields = _fields(entry, "TensorStorageMetadata", _MODULE)
    shape, chunks = _naturals(fields.get("size"), "size"), fields.get("chunks")
    if len(shape) > limits.rank:
        raise LimitError(f"{len(shape)} axes, more than the limit of {limits.rank}", rule="DC-03")
    if not isinstance(chunks, list):
        raise CorruptError(f"its chunks are a {kind_of(chunks)}, not a list", rule="DC-03")
    places: list[tuple[Shape, Shape, Stored | None]] = []
    for chunk in chunks:
        described = _fields(chunk, "ChunkStorageMetadata", _MODULE)
        offset, sizes = (_naturals(described.get(key), key) for key in ("offsets", "sizes"))
        # Ranks without rows have a chunk of no elements, which may have the offset of another chunk.
        places.append((offset, sizes, None if 0 in sizes else stored.pop(offset, None)))
    if any(offset is None for offset in stored):
        raise CorruptError("a tensor with the place of an object", rule="DC-04")
    kept = {offset for offset, sizes, _ in places if 0 in sizes}
    extra = next((offset for offset in stored if offset not in kept), None)
    if extra is not None:
        raise CorruptError(f"a piece is stored for {list(extra)}, where the metadata has none", rule="DC-04")
    dtype = _dtype(fields.get("properties"))
    if dtype is DType.F4 and shape:  # two values are one element for torch
        shape, places = _doubled(shape), [(_doubled(offset), _doubled(size), place) for offset, size, place in places]
    metadata.tensors[name] = ChunkedTensor(dtype, shape, places)


def _doubled(shape: Shape) -> Shape:
    return (*shape[:-1], 2 * shape[-1]) if shape else shape


def _dtype(properties: Any) -> DType:
    """Return the dtype of a tensor; the other properties are deprecated (DC-03)."""
    symbol = properties.function if isinstance(properties, Call) else None
    right = isinstance(symbol, Symbol) and symbol.name == "TensorProperties"
    if not right or symbol is None or symbol.module not in (_MODULE, _OLD_PROPERTIES) or properties.args:
        raise UnsupportedError(f"expected TensorProperties, got {kind_of(properties)}", rule="DC-02")
    state = properties.state
    if isinstance(state, dict):
        dtype, layout = state.get("dtype"), state.get("layout", "torch.strided")
    elif isinstance(state, tuple) and len(state) in (5, 6):  # torch 2.15 adds the strides
        dtype, layout = state[:2]
    else:
        raise CorruptError("TensorProperties of an impossible form", rule="DC-03")
    if layout != "torch.strided":
        raise UnsupportedError(f"a tensor of the layout {printable(str(layout))}", rule="DC-03")
    with located(rule="DC-03"):
        return torch_dtype(dtype)


def _naturals(values: Any, what: str) -> Shape:
    right = isinstance(values, (tuple, list)) and all(type(n) is int and 0 <= n < 1 << 63 for n in values)
    if not right:
        raise CorruptError(f"its {what} are not natural numbers", rule="DC-03")
    return tuple(values)


def _storage(entries: Any) -> dict[str, dict[Shape | None, Stored]]:
    """Return the place of each entry by name and offset (DC-04, DC-05)."""
    if not isinstance(entries, dict):
        raise CorruptError(f"storage_data is a {kind_of(entries)}, not a dict", rule="DC-04")
    places: dict[str, dict[Shape | None, Stored]] = {}
    for index, info in entries.items():
        fields = _fields(index, "MetadataIndex", _MODULE)
        name, offset = fields.get("fqn"), fields.get("offset")
        if not isinstance(name, str):
            raise CorruptError(f"an index whose name is a {kind_of(name)}", rule="DC-04")
        with located(tensor=name, rule="DC-04"):
            place = None if offset is None else _naturals(offset, "offset")
            if place in places.setdefault(name, {}):
                raise CorruptError(f"the piece at {list(place or ())} has two places", rule="DC-04")
            places[name][place] = _stored(info)
    return places


def _stored(info: Any) -> Stored:
    fields = _fields(info, "_StorageInfo", _STORAGE_MODULE)
    name, offset, length = (fields.get(key) for key in ("relative_path", "offset", "length"))
    codecs = fields.get("transform_descriptors")
    if codecs:
        shown = ", ".join(printable(str(codec)) for codec in codecs) if isinstance(codecs, list) else kind_of(codecs)
        raise UnsupportedError(
            f"its bytes were transformed by {shown}, which is not read here",
            rule="DC-05",
            hint="save the checkpoint without extensions of the FileSystemWriter",
        )
    if not isinstance(name, str) or type(offset) is not int or type(length) is not int:
        raise CorruptError("a place that is not a file, an offset and a length")
    if not (0 <= offset < 1 << 62 and 0 <= length < 1 << 62):
        raise CorruptError(f"a place at {offset} of {length} bytes")
    with located(rule="DC-05"):
        return Stored(plain_name(name), offset, length)


def _paths(planner_data: Any) -> dict[str, tuple[Any, ...]]:
    """Return the paths of the nested state dict; empty if the planner stored something else."""
    if not isinstance(planner_data, dict):
        return {}
    return {
        name: path
        for name, path in planner_data.items()
        if isinstance(name, str) and isinstance(path, tuple) and all(type(key) in (str, int) for key in path)
    }


def _read_megatron(mcore_data: Any, metadata: DcpMetadata) -> None:
    """Note what Megatron adds: tensors that it stores in another shape than their own (DC-06)."""
    if mcore_data is None:
        return
    metadata.is_megatron = True
    reshaped: dict[str, Shape] = {}
    if isinstance(mcore_data, dict):
        for name, entry in mcore_data.items():
            fields = entry.state if isinstance(entry, Call) else entry
            shape = fields.get("nd_reformulated_orig_global_shape") if isinstance(fields, dict) else None
            if isinstance(name, str) and shape is not None:
                try:
                    reshaped[name] = _naturals(shape, "shape")
                except BurnstoreError:
                    reshaped[name] = ()
    metadata.reshaped = reshaped


def plain_value(value: Any) -> str | None:
    """Return a short text for a plain value of an object entry; None for any other."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return printable(repr(value), 60)
    if isinstance(value, (list, tuple)) and not isinstance(value, PickledSet) and len(value) <= 8:
        parts = [plain_value(item) for item in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    return None
