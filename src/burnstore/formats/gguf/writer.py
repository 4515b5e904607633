"""Plan a GGUF file of version 3, as the ``gguf`` package writes it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from ...errors import CorruptError, DTypeError, FormatError, LimitError, counted, located, printable
from ...io.documents import Bounds, read_json
from ...limits import Limits
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.snapshot import TensorSnapshot
from ...tensor.sources import ComputedData, WrappedData
from ..base import WritePlan
from ..columns import check_count, check_names, check_shape, checked_metadata, utf8
from .blocks import NUMBERS, TYPES, quantize_q8_0
from .data import BlockData
from .header import (
    ALIGNMENT_KEY,
    ARRAY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MOST_DIMS,
    MOST_HEADER_BYTES,
    MOST_TENSORS,
    SCALARS,
    STRING,
    TYPE_NUMBERS,
)

VERSION = 3
TYPES_KEY = "burnstore.gguf.types"
"""The metadata key under which other formats keep the types of GGUF's values, so that the way back restores them."""

_PLAIN = {kind.dtype: number for number, kind in TYPES.items() if kind.dtype is not None} | {DType.Flex32: 0}
_BOUNDS = Bounds(nbytes=MOST_HEADER_BYTES, nodes=20_000_000, depth=8, text=None, constants=True)
_Q8_0 = NUMBERS["Q8_0"]
_ROW = TYPES[_Q8_0].elements
_U32, _U64 = struct.Struct("<I").pack, struct.Struct("<Q").pack
_OWN_TYPES = {ALIGNMENT_KEY: "u32", "general.quantization_version": "u32", "general.file_type": "u32"}


def plan(
    tensors: Sequence[TensorSnapshot],
    metadata: Mapping[str, str] | None,
    limits: Limits,
    *,
    quantize: str | None = None,
) -> WritePlan:
    """Plan a GGUF file of these tensors, data in the order given.

    ``quantize="q8_0"`` writes floats of two and more axes as blocks of Q8_0 where rows are whole blocks. Metadata is
    written as strings, but for keys whose types are known: those that were read from a GGUF file.
    """
    _check_quantize(quantize)
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    check_count(len(tensors), limits, "GG-02")
    check_names([tensor.path for tensor in tensors], limits, "GG-05", "GG-03")
    pairs, alignment = _pairs(metadata or {})
    stored: list[TensorSnapshot] = []
    infos: list[bytes] = []
    numbers: list[int] = []
    for tensor in tensors:
        with located(tensor=tensor.path):
            number, snapshot = _stored(tensor, quantize, limits)
            stored.append(snapshot)
            numbers.append(number)
    padded = [-(-snapshot.nbytes // alignment) * alignment for snapshot in stored]
    starts = list(accumulate(padded, initial=0))
    for tensor, number, start in zip(tensors, numbers, starts, strict=False):
        extents = tensor.shape[::-1]
        info = struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, number, start)
        infos.append(_string(tensor.path) + info)
    header = struct.pack("<4sIQQ", MAGIC, VERSION, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    if len(header) > (limits.header_bytes or 0):
        raise LimitError(f"a header of {len(header)} bytes, more than the limit of {limits.header_bytes}", rule="GG-02")
    header = header.ljust(-(-len(header) // alignment) * alignment, b"\0")
    return WritePlan(header, stored, [len(header) + start for start in starts[:-1]], len(header) + starts[-1])


def losses(tensors: Sequence[TensorSnapshot], *, quantize: str | None = None, **_: Any) -> list[Note]:
    """Return what writing these tensors rounds, a sentence each."""
    count = sum(_is_quantized(tensor, quantize) for tensor in tensors)
    verb = "is" if count == 1 else "are"
    text = f"{count} of {counted(len(tensors), 'tensor')} {verb} written as Q8_0, which rounds the values"
    return [Note("cast", text)] if count else []


def _check_quantize(quantize: str | None) -> None:
    if quantize is not None and (not isinstance(quantize, str) or quantize.lower() != "q8_0"):
        raise ValueError(f"quantize must be 'q8_0', got {quantize!r}")


def _is_quantized(tensor: TensorSnapshot, quantize: str | None) -> bool:
    shape = tensor.shape
    return quantize is not None and tensor.dtype.is_float and len(shape) > 1 and shape[-1] % _ROW == 0


def _stored(tensor: TensorSnapshot, quantize: str | None, limits: Limits) -> tuple[int, TensorSnapshot]:
    """Return the type of a tensor in the file, and its bytes there as a tensor."""
    shape, data = tensor.shape, tensor._data
    if len(shape) > MOST_DIMS:
        raise FormatError(f"{len(shape)} axes; GGUF has at most {MOST_DIMS}", rule="GG-07")
    check_shape(shape, tensor.nbytes, limits, "GG-07")
    if _is_quantized(tensor, quantize):
        nbytes = tensor.dtype.nbytes(shape) * 8 // tensor.dtype.bits // _ROW * TYPES[_Q8_0].nbytes
        blocks = _Q8Data(data, tensor.dtype, nbytes, tensor.nbytes)
        return _Q8_0, TensorSnapshot(tensor.path, DType.U8, (nbytes,), blocks, nbytes=nbytes)
    if isinstance(data, BlockData):
        only = tensor.stored()[0]
        return data.type_number, only.with_path(tensor.path)
    number = _PLAIN.get(tensor.dtype)
    if number is None:
        hint = "cast it to f32, f16 or bf16" if tensor.dtype.is_float or tensor.dtype.is_quantized else "leave it out"
        raise DTypeError(f"GGUF has no type for {tensor.dtype}", hint=f"{hint}, or write SafeTensors")
    return number, tensor


@dataclass(slots=True, eq=False)
class _Q8Data(WrappedData, ComputedData):
    """Floats as blocks of Q8_0."""

    dtype: DType
    block_bytes: int
    source_bytes: int

    @property
    def nbytes(self) -> int:
        return self.block_bytes

    @property
    def in_source(self) -> bool:
        return self.data.in_source

    def fill(self, buffer: Any) -> None:
        raw = self.data.window(0, self.source_bytes)
        values = np.frombuffer(raw, self.dtype.numpy).astype(np.float32)
        if not np.isfinite(values).all():
            raise DTypeError("Q8_0 has no infinities and no NaN", hint="write the tensor as f32")
        blocks = quantize_q8_0(values)
        if not np.isfinite(blocks.reshape(-1, 34)[:, :2].copy().view("<f2")).all():
            raise DTypeError("a value is too large for a scale of Q8_0, which is a float16", hint="write it as f32")
        buffer[:] = blocks


# --- metadata ---------------------------------------------------------------------------------------------------------


def _pairs(metadata: Mapping[str, str]) -> tuple[list[bytes], int]:
    """Return the entries of the metadata, and the alignment that they state."""
    texts = checked_metadata(metadata)
    types = _OWN_TYPES | _recorded_types(texts.pop(TYPES_KEY, None))
    pairs = []
    for key, text in texts.items():
        with located(rule="GG-04"):
            pairs.append(_string(key) + _value(text, types.get(key, "str"), key))
    if ALIGNMENT_KEY not in texts:
        return pairs, DEFAULT_ALIGNMENT
    alignment = int(texts[ALIGNMENT_KEY])
    if alignment < 1 or alignment & (alignment - 1):
        raise FormatError(f"{ALIGNMENT_KEY} is {alignment}, not a power of two", rule="GG-06")
    return pairs, alignment


def _recorded_types(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    with located(rule="GG-04"):
        types: dict[str, str] = read_json(text, _BOUNDS, into=dict[str, str])
    return types


def _string(text: str) -> bytes:
    raw = utf8(text, "GG-03")
    return _U64(len(raw)) + raw


def _value(text: str, kind: str, key: str) -> bytes:
    """Return the type and the bytes of a value that is given as text."""
    try:
        if kind == "str":
            return _U32(STRING) + _string(text)
        if kind.startswith("["):
            return _U32(ARRAY) + _array(read_json(text, _BOUNDS), kind[1:-1])
        return _U32(TYPE_NUMBERS[kind]) + _scalar(read_json(text, _BOUNDS) if kind[0] != "f" else float(text), kind)
    except (ValueError, TypeError, KeyError, OverflowError, struct.error, RecursionError):
        raise CorruptError(
            f"the metadata {printable(key)!r} is no value of the type {printable(kind)}: {printable(text, 80)}",
            hint="give it as text, number or JSON array, as it was",
        ) from None


def _array(values: Any, kind: str) -> bytes:
    if not isinstance(values, list):
        raise TypeError("no list")
    if kind.startswith("["):
        return _U32(ARRAY) + _U64(len(values)) + b"".join(_array(value, kind[1:-1]) for value in values)
    head = _U32(TYPE_NUMBERS[kind]) + _U64(len(values))
    if kind == "str":
        if not all(isinstance(value, str) for value in values):
            raise TypeError("no strings")
        return head + b"".join(map(_string, values))
    return head + b"".join(_scalar(value, kind) for value in values)


def _scalar(value: Any, kind: str) -> bytes:
    if kind == "bool":
        if not isinstance(value, bool):
            raise TypeError("no bool")
        return b"\1" if value else b"\0"
    is_number = isinstance(value, (int, float) if kind[0] == "f" else int) and not isinstance(value, bool)
    if not is_number:
        raise TypeError("no number")
    return SCALARS[TYPE_NUMBERS[kind]][1].pack(value)
