"""Write a record, piece by piece, as the last release of Burn with recorders does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CorruptError, DTypeError, LimitError, ModelError, counted, located, warn
from ...tensor.data import Array
from ...tensor.dtype import DType, Kind
from ...tensor.param_id import ParamId
from ...tensor.snapshot import TensorSnapshot
from ..codec import bincode, json_document, msgpack
from .declaration import Absent, Choice, Constant, Fields, Items, Maybe, Node, Parameter, below
from .heading import Heading, PrecisionSettings
from .record import Record, RecordTensor, replaced
from .spelling import dtype_to_tree, encode_dtype
from .training import STATES

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MOST_BYTES = 1 << 32
_SPELLED_AT_ONCE = 1 << 16


def pieces(record: Record, encoding: str, settings: PrecisionSettings, *, compressed: bool) -> Iterator[Buffer]:
    """Yield the file's bytes in order, before any compression; tensors are read and converted as they are written."""
    heading = Heading.of(encoding, settings, compressed=compressed)
    item = replaced(record.item, lambda leaf: RecordTensor(converted(leaf.snapshot, settings), leaf.id))
    if encoding == "mpk":
        return _msgpack(heading, item)
    if encoding == "json":
        return _spelled({"metadata": heading.to_dict(), "item": item, "_b": None}, None if compressed else 0)
    if record.shape is None:
        raise ModelError(
            "a binary record has no names, so it is written only along a declaration of its model",
            rule="BR-17",
            hint="pass like=Model(), a declaration of it",
        )
    return _binary(heading, item, record.shape)


def converted(snapshot: TensorSnapshot, settings: PrecisionSettings) -> TensorSnapshot:
    """Return the tensor in the settings' dtype of its family; bools and quantized tensors stay unchanged."""
    kind = snapshot.dtype.kind
    if kind in (Kind.BOOL, Kind.QUANTIZED):
        return snapshot
    if kind is Kind.COMPLEX or snapshot.dtype.bits % 8:
        raise DTypeError(f"records have no dtype for {snapshot.dtype.name}", tensor=snapshot.path, rule="BR-12")
    wanted = settings.float if kind is Kind.FLOAT else settings.int
    if snapshot.dtype is wanted:
        return snapshot
    return TensorSnapshot.from_closure(
        snapshot.path,
        wanted,
        snapshot.shape,
        lambda: _cast(snapshot.numpy(), wanted, snapshot.path),
        param_id=snapshot.param_id,
        container_stack=snapshot.container_stack,
    )


def _cast(values: Array, wanted: DType, path: str) -> Array:
    if wanted.is_float:
        with np.errstate(over="ignore"):
            cast = values.astype(wanted.numpy)
        lost = int(np.count_nonzero(np.isinf(cast)) - np.count_nonzero(np.isinf(values)))
        if lost:
            warn(f"tensor {path!r}: {counted(lost, 'value')} too large for {wanted.name} became infinite")
        return cast
    info = np.iinfo(wanted.numpy)
    if values.size and (int(values.min()) < info.min or int(values.max()) > info.max):
        wrong = int(values.min()) if int(values.min()) < info.min else int(values.max())
        raise DTypeError(
            f"{wrong} does not fit {wanted.name}", tensor=path, hint="DoublePrecisionSettings store integers as I64"
        )
    return values.astype(wanted.numpy)


def _chunks(snapshot: TensorSnapshot) -> Iterator[memoryview]:
    written = 0
    for chunk in snapshot.chunks():
        written += len(chunk)
        yield chunk
    if written != snapshot.nbytes:
        raise CorruptError(f"expected {snapshot.nbytes} bytes, got {written}", tensor=snapshot.path)


# --- MessagePack ---------------------------------------------------------------------------------------------------


def _msgpack(heading: Heading, item: Any) -> Iterator[Buffer]:
    start = bytearray(msgpack.encode_map_head(3) + msgpack.encode_text("metadata"))
    for piece in _packed(heading.to_dict()):
        start += piece
    yield start + msgpack.encode_text("item")
    yield from _packed(item)
    yield msgpack.encode_text("_b") + msgpack.encode_array_head(0)


def _packed(node: Any) -> Iterator[Buffer]:
    if isinstance(node, RecordTensor):
        yield from _packed_tensor(node)
    elif isinstance(node, dict):
        yield msgpack.encode_map_head(len(node))
        for key, each in node.items():
            yield msgpack.encode_text(key)
            yield from _packed(each)
    elif isinstance(node, list):
        yield msgpack.encode_array_head(len(node))
        for each in node:
            yield from _packed(each)
    else:
        yield msgpack.encode_scalar(node)


def _packed_tensor(leaf: RecordTensor) -> Iterator[Buffer]:
    snapshot = leaf.snapshot
    if snapshot.nbytes >= _MOST_BYTES:
        raise LimitError("a MessagePack record holds tensors of less than 4 GiB", tensor=snapshot.path, rule="BR-21")
    head = b"" if leaf.id is None else b"\x82\xa2id" + msgpack.encode_text(leaf.id) + b"\xa5param"
    yield head + b"\x83\xa5bytes" + msgpack.encode_bytes_head(snapshot.nbytes)
    yield from _chunks(snapshot)
    shape = [msgpack.encode_array_head(len(snapshot.shape)), *map(msgpack.encode_int, snapshot.shape)]
    with located(tensor=snapshot.path):
        dtype = dtype_to_tree(snapshot.dtype)
    yield b"\xa5shape" + b"".join(shape) + b"\xa5dtype"
    yield from _packed(dtype)


# --- JSON ----------------------------------------------------------------------------------------------------------


def _spelled(node: Any, level: int | None) -> Iterator[Buffer]:
    """Yield a value as JSON; ``level`` is the indentation of its line, None for text without any blanks."""
    below = None if level is None else level + 1
    line = b"" if level is None else b"\n" + b"  " * (level + 1)
    last = b"" if level is None else b"\n" + b"  " * level
    if isinstance(node, RecordTensor):
        found = node.snapshot
        tensor = {"bytes": found, "shape": list(found.shape), "dtype": dtype_to_tree(found.dtype)}
        yield from _spelled(tensor if node.id is None else {"id": node.id, "param": tensor}, level)
    elif isinstance(node, TensorSnapshot):
        yield from _spelled_bytes(node, line, last)
    elif isinstance(node, dict):
        colon = b":" if level is None else b": "
        for at, (key, each) in enumerate(node.items()):
            yield (b"," if at else b"{") + line + json_document.encode_scalar(key) + colon
            yield from _spelled(each, below)
        yield last + b"}" if node else b"{}"
    elif isinstance(node, list):
        for at, each in enumerate(node):
            yield (b"," if at else b"[") + line
            yield from _spelled(each, below)
        yield last + b"]" if node else b"[]"
    else:
        yield json_document.encode_scalar(node)


def _spelled_bytes(snapshot: TensorSnapshot, line: bytes, last: bytes) -> Iterator[Buffer]:
    lead = b"[" + line
    for chunk in _chunks(snapshot):
        for at in range(0, len(chunk), _SPELLED_AT_ONCE):
            yield lead + json_document.encode_bytes(chunk[at : at + _SPELLED_AT_ONCE], b"," + line)
            lead = b"," + line
    yield last + b"]" if snapshot.nbytes else b"[]"


# --- bincode -------------------------------------------------------------------------------------------------------


def _binary(heading: Heading, item: Any, shape: Node | str) -> Iterator[Buffer]:
    yield b"".join(map(bincode.encode_text, heading.to_dict().values()))
    if isinstance(shape, str):
        yield from _optimizer(item, shape)
    else:
        yield from _laid_out(item, shape, "")


def _laid_out(item: Any, shape: Node, path: str) -> Iterator[Buffer]:
    """Yield a value in the declared shape; refuse a record of another shape."""
    if isinstance(shape, Maybe):
        if item is None and not isinstance(shape.content, Constant):
            raise ModelError("the record has no value where the declaration has one", tensor=path, rule="BR-17")
        if shape.declared:
            yield b"\1"
        yield from _laid_out(item, shape.content, path)
    elif (
        isinstance(shape, Constant)
        or (isinstance(shape, Absent) and item is None)
        or (isinstance(shape, Fields) and shape.bare)
    ):
        yield b"\0"
    elif isinstance(shape, Parameter) and isinstance(item, RecordTensor) and item.id is not None:
        yield bincode.encode_text(item.id)
        yield from _tensor(item.snapshot)
    elif isinstance(shape, Fields) and isinstance(item, dict):
        for name, each in shape.entries:
            yield from _laid_out(item.get(name), each, below(path, name))
    elif isinstance(shape, Items) and isinstance(item, list) and len(item) == len(shape.entries):
        if shape.counted:
            yield bincode.encode_uint(len(item))
        for index, (each, entry) in enumerate(zip(item, shape.entries, strict=True)):
            yield from _laid_out(each, entry, below(path, str(index)))
    elif isinstance(shape, Choice) and isinstance(item, dict) and item.keys() == {shape.name}:
        yield bincode.encode_uint(shape.index)
        yield from _laid_out(item[shape.name], shape.content, below(path, shape.name))
    else:
        raise ModelError("the record does not have the declared shape", tensor=path, rule="BR-17")


def _optimizer(item: Any, name: str) -> Iterator[Buffer]:
    """Yield the state of an optimizer of that name."""
    if name not in STATES or not isinstance(item, dict):
        raise ModelError(
            f"the binary record of {name!r} is unknown; known optimizers are {', '.join(STATES)}", rule="BR-17"
        )
    yield bincode.encode_uint(len(item))
    for text, versioned in item.items():
        [(rank, state)] = versioned["V1"].items()
        yield bincode.encode_text(text) + b"\0" + bincode.encode_uint(int(rank.removeprefix("Rank")))
        yield from _state(state, STATES[name], f"{text}.V1.{rank}")


def _state(state: Any, spec: dict[str, Any], path: str) -> Iterator[Buffer]:
    for word, content in spec.items():
        name, optional, _ = word.partition("?")
        value = state.get(name) if isinstance(state, dict) else None
        if optional:
            yield b"\0" if value is None else b"\1"
            if value is None:
                continue
        if isinstance(content, dict):
            yield from _state(value, content, below(path, name))
        elif content == "uint" and isinstance(value, int):
            yield bincode.encode_uint(value)
        elif content == "tensor" and isinstance(value, RecordTensor):
            yield from _tensor(value.snapshot)
        else:
            raise ModelError("the record is not the state of this optimizer", tensor=below(path, name), rule="BR-17")


def _tensor(snapshot: TensorSnapshot) -> Iterator[Buffer]:
    yield bincode.encode_uint(snapshot.nbytes)
    yield from _chunks(snapshot)
    extents = b"".join(map(bincode.encode_uint, snapshot.shape))
    yield bincode.encode_uint(len(snapshot.shape)) + extents + encode_dtype(snapshot.dtype)


def tree_of(shape: Node, tensors: dict[str, TensorSnapshot], path: str = "") -> Any:
    """Return the tree of a declared model with these tensors at its parameters."""
    if isinstance(shape, Maybe):
        return tree_of(shape.content, tensors, path)
    if isinstance(shape, Parameter):
        snapshot = tensors.get(path)
        if snapshot is None:
            raise ModelError("there is no tensor for this parameter", tensor=path)
        identity = snapshot.param_id
        return RecordTensor(snapshot, str(ParamId.generate() if identity is None else identity))
    if isinstance(shape, Fields) and not shape.bare:
        return {name: tree_of(each, tensors, below(path, name)) for name, each in shape.entries}
    if isinstance(shape, Items):
        return [tree_of(each, tensors, below(path, str(index))) for index, each in enumerate(shape.entries)]
    if isinstance(shape, Choice):
        return {shape.name: tree_of(shape.content, tensors, below(path, shape.name))}
    return None
