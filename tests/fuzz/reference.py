"""A slow reader of Burnpack that shares no code with burnstore: cbor2, plain Python, and the rules of Burn 0.22.

It takes what Burn 0.22 takes. Three things more, which only older releases of Burn write, are taken too and reported in
``Reading.only_older`` (the rule under which burnstore reads them is given): the unaligned files of Burn 0.19 (BP-14),
the text dtype "Bool" of Burn up to 0.20 (BP-09), and the quantization store "U32" of Burn 0.19 (BP-09). Nothing else
may be accepted by burnstore and refused here.
"""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass, field
from typing import Any

import cbor2
import numpy as np

WIDTHS = {"F64": 8, "F32": 4, "Flex32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1}
WIDTHS |= {"U64": 8, "U32": 4, "U16": 2, "U8": 1, "Bool": 1, "Bool(U8)": 1, "Bool(U32)": 4}
BOOLS = {"Native": "Bool", "U8": "Bool(U8)", "U32": "Bool(U32)"}
VALUE_BITS = {"Q8F": 8, "E5M2": 8, "E4M3": 8, "Q4F": 4, "E2M1": 4, "Q2F": 2, "Q8S": 8, "Q4S": 4, "Q2S": 2}
SCALES = {"F32": 4, "F16": 2, "BF16": 2, "UE8M0": 1, "UE4M3": 1}

U64 = (1 << 64) - 1


class RefusedError(Exception):
    """Burn 0.22 does not open such a file."""


@dataclass(frozen=True)
class Scheme:
    """A quantization scheme, whichever style it was spelled in."""

    value: str
    store: str
    dim: int
    mode: str
    tensor: str | None
    block: tuple[int, ...] | None
    block_dtype: str | None
    old_style: bool


@dataclass(frozen=True)
class Tensor:
    dtype: str | Scheme
    shape: tuple[int, ...]
    start: int
    end: int
    param_id: int | None


@dataclass
class Reading:
    """What a file says, and where its data lie."""

    metadata_end: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, tuple[str, Any]] = field(default_factory=dict)
    only_older: set[str] = field(default_factory=set)

    @property
    def aligned_start(self) -> int:
        return (self.metadata_end + 255) // 256 * 256

    @property
    def extent(self) -> int:
        return max((tensor.end for tensor in self.tensors.values()), default=0)

    def in_data_order(self) -> list[Tensor]:
        return sorted(self.tensors.values(), key=lambda tensor: (tensor.start, tensor.end))


def read(data: bytes, *, strict: bool = False) -> Reading:
    """What Burn 0.22, or an older one where ``only_older`` says so, finds in the file; RefusedError if it opens it not.

    With ``strict`` the CBOR must be free of repeated keys, indefinite lengths and tags, too.
    """
    _need(len(data) >= 10, "short header")
    magic, version, length = struct.unpack_from("<IHI", data)
    _need(magic == 0x4255524E, "magic")
    _need(version <= 1, "version")
    _need(length <= 100 << 20, "metadata limit")
    _need(10 + length <= len(data), "metadata longer than the file")
    reading = Reading(10 + length)
    top = _decoded(data[10 : 10 + length], strict)
    _need(isinstance(top, dict) and "tensors" in top, "no tensors")
    _need(type(top["tensors"]) is dict and len(top["tensors"]) <= 100_000, "tensors")
    for name, tree in top["tensors"].items():
        _need(type(name) is str, "name")
        reading.tensors[name] = _tensor(tree, reading.only_older)
    for name, text in _dict(top.get("metadata", {})).items():
        _need(type(name) is str and type(text) is str, "metadata is not text")
        reading.metadata[name] = text
    for name, tree in _dict(top.get("scalars", {})).items():
        _need(type(name) is str, "scalar name")
        reading.scalars[name] = _scalar(tree)
    _check_places(reading, len(data))
    return reading


def _need(good: bool, what: str) -> None:
    if not good:
        raise RefusedError(what)


def _dict(tree: Any) -> dict[Any, Any]:
    _need(type(tree) is dict, "not a map")
    return tree  # type: ignore[no-any-return]


def _refuse_tag(*_: Any) -> Any:
    raise RefusedError("tag")


_TAGS = (*range(6), 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799)  # that cbor2 knows
_NO_TAGS = dict.fromkeys(_TAGS, _refuse_tag)


def _decoded(raw: bytes, strict: bool) -> Any:
    try:
        if strict:
            return cbor2.loads(
                raw,
                max_depth=128,
                allow_indefinite=False,
                allow_duplicate_keys=False,
                tag_hook=_refuse_tag,
                semantic_decoders=_NO_TAGS,
            )
        return cbor2.loads(raw, max_depth=128, tag_hook=lambda _, tag: tag.value)
    except RefusedError:
        raise
    except Exception as error:  # cbor2 lets several kinds of exceptions out; none is of interest
        raise RefusedError(f"CBOR: {error}") from None


def _uint(tree: Any) -> int:
    _need(type(tree) is int and 0 <= tree <= U64, "not an unsigned integer")
    return tree  # type: ignore[no-any-return]


def _tensor(tree: Any, only_older: set[str]) -> Tensor:
    tree = _dict(tree)
    _need({"dtype", "shape", "data_offsets"} <= tree.keys(), "descriptor lacks a key")
    dtype = _dtype(tree["dtype"], only_older)
    _need(type(tree["shape"]) is list, "shape")
    shape = tuple(_uint(extent) for extent in tree["shape"])
    _need(type(tree["data_offsets"]) is list and len(tree["data_offsets"]) == 2, "offsets")
    start, end = (_uint(offset) for offset in tree["data_offsets"])
    param_id = tree.get("param_id")
    _need(param_id is None or (type(param_id) is int and 0 <= param_id <= U64), "param_id")
    _need(start <= end, "end before start")
    _need(end - start <= 10 << 30, "tensor limit")
    if isinstance(dtype, str):
        need = math.prod(shape) * WIDTHS[dtype]
        _need(need <= U64, "overflows")
        _need(need == end - start, "declares another length")
    return Tensor(dtype, shape, start, end, param_id)


def _dtype(tree: Any, only_older: set[str]) -> str | Scheme:
    if type(tree) is str:
        if tree == "Bool":
            only_older.add("text Bool")
        _need(tree in WIDTHS and "(" not in tree, "dtype")
        return tree
    _need(type(tree) is dict and len(tree) == 1, "dtype")
    [(variant, content)] = tree.items()
    if variant == "Bool":
        _need(type(content) is str and content in BOOLS, "bool store")
        return BOOLS[content]
    _need(variant == "QFloat" and type(content) is dict, "dtype")
    return _scheme(content, only_older)


def _scheme(tree: dict[str, Any], only_older: set[str]) -> Scheme:
    _need({"value", "store", "mode"} <= tree.keys(), "scheme lacks a key")
    value = _word(tree["value"], VALUE_BITS)
    mode = _word(tree["mode"], ("Symmetric", "Lookup"))
    store, dim = tree["store"], 0
    if store == "U32":
        only_older.add("store U32")
        store = "PackedU32"
    elif store != "Native":
        _need(type(store) is dict and len(store) == 1, "store")
        [(store, dim)] = store.items()
        _word(store, ("PackedU32", "PackedNative"))
        dim = _uint(dim)
    tensor = _optional_word(tree.get("tensor"))
    block, block_dtype = None, None
    if tree.get("block") is not None:
        content = _dict(tree["block"])
        _need({"size", "dtype"} <= content.keys(), "block")
        block, block_dtype = _block_size(content["size"]), _word(content["dtype"], SCALES)
    old_style = {"param", "level"} <= tree.keys() and not {"tensor", "block"} & tree.keys()
    if old_style:
        # Burn 0.22 ignores both keys; their meaning is that of 0.20 and 0.21.
        tensor, block, block_dtype = _old_levels(tree["param"], tree["level"])
    return Scheme(value, store, dim, mode, tensor, block, block_dtype, old_style)


def _old_levels(param: Any, level: Any) -> tuple[str | None, tuple[int, ...] | None, str | None]:
    param = _word(param, SCALES)
    if level == "Tensor":
        return None if param == "F32" else param, None, None
    _need(type(level) is dict and len(level) == 1, "level")
    if "Block" in level:
        return None, _block_size(level["Block"]), param
    _need("BlockTensor" in level, "level")
    content = _dict(level["BlockTensor"])
    _need({"block", "global"} <= content.keys(), "two levels")
    return _word(content["global"], SCALES), _block_size(content["block"]), param


def _word(tree: Any, words: Any) -> str:
    _need(type(tree) is str and tree in words, "unknown word")
    return tree  # type: ignore[no-any-return]


def _optional_word(tree: Any) -> str | None:
    return None if tree is None else _word(tree, SCALES)


def _block_size(tree: Any) -> tuple[int, ...]:
    tree = _dict(tree)
    storage, used = tree.get("storage"), tree.get("len")
    _need(type(storage) is list and len(storage) == 5, "storage")
    _need(all(type(extent) is int and 0 <= extent <= 255 for extent in storage), "storage")
    _need(type(used) is int and 0 <= used <= 5, "len")
    return tuple(storage[:used])


def _scalar(tree: Any) -> tuple[str, Any]:
    _need(type(tree) is dict and len(tree) == 1, "scalar")
    [(kind, value)] = tree.items()
    wanted = {"Int": int, "UInt": int, "Float": float, "Bool": bool}.get(kind)
    _need(wanted is not None and type(value) is wanted, "scalar")
    if kind == "Int":
        _need(-(1 << 63) <= value < 1 << 63, "scalar range")
    if kind == "UInt":
        _need(0 <= value <= U64, "scalar range")
    return kind, value


def _check_places(reading: Reading, size: int) -> None:
    if not reading.tensors:
        return
    _need(reading.aligned_start + reading.extent <= U64, "overflow")
    if reading.aligned_start + reading.extent > size:
        _need(reading.metadata_end + reading.extent <= size, "truncated")
        reading.only_older.add("unaligned")


# ------------------------------------------------------------------------------- where the data start


def whole_files(data: bytes, reading: Reading) -> dict[int, str]:
    """The starts of the data under which the file is, byte for byte, one that a Burn could have written whole."""
    found: dict[int, str] = {}
    for release, data_start, step in (("0.19", reading.metadata_end, 1), ("later", reading.aligned_start, 256)):
        cursor, placed = 0, True
        for tensor in reading.in_data_order():
            cursor = -(-cursor // step) * step
            placed &= tensor.start == cursor
            cursor = tensor.end
        padding = data[reading.metadata_end : data_start]
        if placed and len(data) == data_start + cursor and not any(padding):
            found.setdefault(data_start, release)
    return found


def may_be_cut(data: bytes, reading: Reading) -> bool:
    """Whether a file that looks like one of Burn 0.19 may as well be a later one of which the end is missing."""
    starts_fit = all(tensor.start % 256 == 0 for tensor in reading.tensors.values())
    gap = reading.aligned_start - reading.metadata_end
    window = data[reading.metadata_end : reading.metadata_end + min(gap, reading.extent)]
    return starts_fit and gap > 0 and reading.extent > 0 and not any(window)


# ------------------------------------------------------------------------------- quantized values


def quantized_length(scheme: Scheme, shape: tuple[int, ...]) -> int:
    """The bytes that a tensor has by the formula of Burn 0.22."""
    words, word_bytes, _ = _words(scheme, shape)
    scales = math.prod(_grid(scheme, shape)) * SCALES[scheme.block_dtype or scheme.tensor or "F32"]
    return math.prod(words) * word_bytes + scales + (SCALES[scheme.tensor] if scheme.block and scheme.tensor else 0)


def numbers(scheme: Scheme, shape: tuple[int, ...], raw: bytes) -> Any:
    """The values of a quantized tensor of exactly that length, one after the other; None where Burn gives none."""
    if scheme.mode != "Symmetric" or len(raw) != quantized_length(scheme, shape):
        return None
    dims = shape or (1,)
    axis = len(dims) - 1 - scheme.dim
    words, word_bytes, per_word = _words(scheme, shape)
    bits = VALUE_BITS[scheme.value]
    exchanged = not scheme.old_style
    grid = _grid(scheme, shape)
    scale_dtype = scheme.block_dtype or scheme.tensor or "F32"
    scales_at = math.prod(words) * word_bytes
    global_scale = None
    if scheme.block and scheme.tensor:
        global_scale = _scale(raw[-SCALES[scheme.tensor] :], scheme.tensor)
    flat_runs = scheme.old_style and scheme.store == "Native" and not scheme.tensor and _spans_lines(scheme)
    found = np.zeros(math.prod(shape), np.float32)
    for number, at in enumerate(itertools.product(*map(range, dims))):
        word_at = [*at[:axis], at[axis] // per_word, *at[axis + 1 :]]
        place = _flat(word_at, words, axis if exchanged else None) * word_bytes
        word = int.from_bytes(raw[place : place + word_bytes], "little")
        field_bits = 8 if scheme.store == "Native" else bits
        code = word >> (at[axis] % per_word * bits) & ((1 << field_bits) - 1)
        run = 0
        if scheme.block is not None:
            extents = (1,) * (len(shape) - len(scheme.block)) + scheme.block
            if flat_runs:
                run = number // math.prod(extents)
            else:
                block_at = [c // e for c, e in zip(at, extents, strict=True)]
                run = _flat(block_at, grid, axis if exchanged else None)
        width = SCALES[scale_dtype]
        scale = _scale(raw[scales_at + run * width : scales_at + (run + 1) * width], scale_dtype)
        if global_scale is not None:
            scale = global_scale * scale
        found[number] = _code(code, scheme.value, field_bits) * scale
    return found


def _words(scheme: Scheme, shape: tuple[int, ...]) -> tuple[list[int], int, int]:
    dims = list(shape or (1,))
    _need(scheme.dim < len(dims), "packed dimension")
    axis = len(dims) - 1 - scheme.dim
    per_word, word_bytes = 1, 1
    if scheme.store == "PackedU32":
        per_word, word_bytes = 32 // VALUE_BITS[scheme.value], 4
    elif scheme.store == "PackedNative" and scheme.value == "E2M1":
        per_word = 2
    dims[axis] = math.ceil(dims[axis] / per_word) if dims[axis] < 1 << 50 else -(-dims[axis] // per_word)
    return dims, word_bytes, per_word


def _grid(scheme: Scheme, shape: tuple[int, ...]) -> tuple[int, ...]:
    if scheme.block is None:
        return (1,)
    _need(len(scheme.block) <= len(shape) and all(scheme.block), "block")
    extents = (1,) * (len(shape) - len(scheme.block)) + scheme.block
    return tuple(-(-size // extent) for size, extent in zip(shape, extents, strict=True))


def _spans_lines(scheme: Scheme) -> bool:
    return any(extent != 1 for extent in (scheme.block or ())[:-1])


def _flat(place: Any, dims: Any, exchange: int | None) -> int:
    place, dims = list(place), list(dims)
    if exchange is not None:
        place[exchange], place[-1] = place[-1], place[exchange]
        dims[exchange], dims[-1] = dims[-1], dims[exchange]
    flat = 0
    for coordinate, extent in zip(place, dims, strict=True):
        flat = flat * extent + coordinate
    return flat


def _scale(raw: bytes, dtype: str) -> Any:
    if dtype == "F32":
        return np.frombuffer(raw, "<f4")[0]
    if dtype == "F16":
        return np.frombuffer(raw, "<f2")[0].astype(np.float32)
    if dtype == "BF16":
        return np.frombuffer(b"\0\0" + raw, "<f4")[0]
    if dtype == "UE8M0":
        return np.float32(math.nan if raw[0] == 255 else math.ldexp(1.0, raw[0] - 127))
    return _code(raw[0], "E4M3", 8)


def _code(code: int, value: str, field_bits: int) -> Any:
    if value[0] == "Q":
        return np.float32(code - (1 << field_bits) if code >> (field_bits - 1) else code)
    exponent_bits, mantissa_bits = int(value[1]), int(value[3])
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) & 1 else 1.0
    exponent, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    if value == "E4M3" and exponent == 15 and mantissa == 7:
        return np.float32(math.nan)
    if value == "E5M2" and exponent == 31:
        return np.float32(math.nan if mantissa else sign * math.inf)
    bias = (1 << (exponent_bits - 1)) - 1
    significand = mantissa + (1 << mantissa_bits if exponent else 0)
    return np.float32(sign * math.ldexp(significand, max(exponent, 1) - bias - mantissa_bits))
