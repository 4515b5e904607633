"""Quantized tensors: Burn's schemes, the exact bytes of each, and their values.

    values, then scales, then the global scale of a two-level scheme; no gaps

A packed store groups the values of one line along its packed axis into little-endian words, lowest bits first, and pads
every line to whole words with zeros. Since Burn 0.22.0 a packed axis other than the last is *exchanged* with the last
before the array is laid out row-major, block scales included; earlier versions (``old_style``) left it in place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, DTypeError, UnsupportedError, printable
from .lowbit import CODE_TABLES, SCALE_WIDTHS, decode_scales, encode_scales, pack_fields, unpack_fields

StoreKind = Literal["Native", "PackedU32", "PackedNative"]

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

VALUE_BITS: Final = {"Q8F": 8, "E5M2": 8, "E4M3": 8, "Q4F": 4, "E2M1": 4, "Q2F": 2, "Q8S": 8, "Q4S": 4, "Q2S": 2}
STORE_KINDS: Final = get_args(StoreKind)
MODES: Final = ("Symmetric", "Lookup")
MOST_BLOCK_DIMS: Final = 5

_MOST_NUMPY_DIMS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0b1" else 32
_MOST_NUMPY_SIZE = 2**56  # far below NumPy's 2**63 bytes, so that no padded or upcast copy exceeds that limit


@dataclass(frozen=True, slots=True)
class QuantStore:
    """How values are stored: a byte each, or packed along the axis that ``dim`` counts from the last.

    >>> print(QuantStore("PackedU32", 1))
    PackedU32(1)
    """

    kind: StoreKind
    dim: int = 0

    def __post_init__(self) -> None:
        _check_word(self.kind, STORE_KINDS, "store")
        _check_int(self.dim, "packed dimension", 0, 2**64 - 1)
        if self.kind == "Native" and self.dim != 0:
            raise CorruptError(f"a Native store has no packed dimension, got {self.dim}")

    def __str__(self) -> str:
        return self.kind if self.kind == "Native" else f"{self.kind}({self.dim})"


@dataclass(frozen=True, slots=True)
class QuantBlock:
    """The extent of a block, aligned to the last axes of the tensor, and the dtype of its scale.

    >>> print(QuantBlock((2, 4), "F16"))
    BlockScale { size: BlockSize([2, 4]), dtype: F16 }
    """

    size: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", tuple(self.size))
        if not 1 <= len(self.size) <= MOST_BLOCK_DIMS:
            raise CorruptError(f"a block size has 1 to {MOST_BLOCK_DIMS} entries, got {len(self.size)}")
        for extent in self.size:
            _check_int(extent, "block extent", 1, 255)
        _check_word(self.dtype, SCALE_WIDTHS, "scale dtype")

    @property
    def spans_lines(self) -> bool:
        """Whether a block spans several lines of the last axis, so that it is not a flat run."""
        return any(extent != 1 for extent in self.size[:-1])

    def __str__(self) -> str:
        return f"BlockScale {{ size: BlockSize({list(self.size)}), dtype: {self.dtype} }}"


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """The meaning of a quantized tensor's codes and scales; ``str`` is the text that Burn prints for it.

    ``tensor`` is the dtype of the tensor's only scale or, beside a ``block``, of the global scale above the block
    scales; with neither there is one F32 scale. ``flat_blocks``: blocks are runs of the flattened tensor instead of
    rectangles, as the host backends of Burn 0.20 and 0.21 made them. ``old_style``: the bytes follow the rules before
    Burn 0.22.0, as all do whose scheme is spelled in style P.

    >>> scheme = QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((8,), "F32"))
    >>> print(scheme)  # doctest: +NORMALIZE_WHITESPACE
    QuantScheme { value: Q8S, store: Native, mode: Symmetric, tensor: None,
                  block: Some(BlockScale { size: BlockSize([8]), dtype: F32 }) }
    >>> scheme.byte_len([4, 16])
    96
    """

    value: str
    store: QuantStore
    mode: str = "Symmetric"
    tensor: str | None = None
    block: QuantBlock | None = None
    flat_blocks: bool = False
    old_style: bool = False

    def __post_init__(self) -> None:
        _check_word(self.value, VALUE_BITS, "value")
        _check_word(self.mode, MODES, "mode")
        if self.tensor is not None:
            _check_word(self.tensor, SCALE_WIDTHS, "scale dtype")
        if self.flat_blocks and (self.block is None or self.store.kind != "Native"):
            raise CorruptError("flat blocks exist only in a Native store with a block size")

    @property
    def value_bits(self) -> int:
        """The width of one code: 8, 4 or 2 bits."""
        return VALUE_BITS[self.value]

    @property
    def is_float_coded(self) -> bool:
        """Whether codes are small floating-point numbers (E4M3, E5M2, E2M1) instead of integers."""
        return self.value in CODE_TABLES

    @property
    def scale_dtype(self) -> str:
        """The dtype of the innermost scales: those of the blocks, or the one of the tensor."""
        return self.block.dtype if self.block is not None else self.tensor or "F32"

    @property
    def global_dtype(self) -> str | None:
        """The dtype of the scale above the block scales, ``None`` where the scheme has one level only."""
        return self.tensor if self.block is not None else None

    def byte_len(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor of ``shape``: packed words, then scales, then the global scale.

        Raises `CorruptError` where the scheme does not fit the shape.

        >>> QuantScheme("Q4S", QuantStore("PackedU32")).byte_len([3, 3])
        16
        """
        return code_layout(self, _checked_shape(shape)).total

    def check_length(self, shape: Sequence[int], length: int) -> None:
        """Raise `CorruptError` unless `decode` can read ``length`` bytes as a tensor of ``shape``.

        >>> QuantScheme("Q8S", QuantStore("Native"), tensor="F16", old_style=True).check_length([2], 6)
        """
        shape = _checked_shape(shape)
        _fit(self, shape, code_layout(self, shape), length)

    def __str__(self) -> str:
        tensor = "None" if self.tensor is None else f"Some({self.tensor})"
        block = "None" if self.block is None else f"Some({self.block})"
        return (
            f"QuantScheme {{ value: {self.value}, store: {self.store}, mode: {self.mode}, "
            f"tensor: {tensor}, block: {block} }}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTensor:
    """The codes and scales of one tensor in logical order; its arrays are read-only.

    ``codes`` has the tensor's shape: int8, or the raw bits as uint8 for the float kinds. ``scales`` is float32 in the
    shape of the block grid, ``(1,)`` without blocks.

    >>> scheme = QuantScheme("Q8S", QuantStore("Native"))
    >>> QuantizedTensor(np.int8([-2, 4]), np.float32([0.5]), None, scheme, (2,)).dequantize()
    array([-1.,  2.], dtype=float32)
    """

    codes: npt.NDArray[Any]
    scales: _Floats
    global_scale: float | None
    scheme: QuantScheme
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        shape = _checked_shape(self.shape)
        _check_array(self.codes, "codes", np.uint8 if self.scheme.is_float_coded else np.int8, shape)
        _check_array(self.scales, "scales", np.float32, code_layout(self.scheme, shape).grid)
        least, most = _code_range(self.scheme)
        if self.codes.size and not (least <= self.codes.min() and self.codes.max() <= most):
            raise CorruptError(f"a {self.scheme.value} code in a {self.scheme.store} store is outside {least}..{most}")
        if (self.global_scale is None) != (self.scheme.global_dtype is None):
            raise CorruptError(f"{self.scheme} does not go with a global scale of {self.global_scale}")
        object.__setattr__(self, "shape", shape)
        for name in ("codes", "scales"):
            frozen = getattr(self, name).view()
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)

    def dequantize(self) -> _Floats:
        """Return the numbers in float32 arithmetic: code times scale, which is first multiplied by the global scale.

        >>> scheme = QuantScheme("E4M3", QuantStore("Native"), tensor="F16")
        >>> decode(bytes([0x38, 0xC4, 0x00, 0x40]), scheme, [2], old_style=False).dequantize()
        array([ 2., -6.], dtype=float32)
        """
        table = CODE_TABLES.get(self.scheme.value)
        numbers: _Floats = self.codes.astype(np.float32) if table is None else table[self.codes]
        numbers = numbers.reshape(self.shape)
        if numbers.size == 0:
            return numbers
        # Infinities and NaN of an unusual scale are results like any other: no warning.
        with np.errstate(all="ignore"):
            scales = self.scales if self.global_scale is None else np.float32(self.global_scale) * self.scales
            block = self.scheme.block
            if block is None:
                numbers *= scales[0]
            elif self.scheme.flat_blocks:
                runs = numbers.reshape(scales.size, math.prod(block.size))  # a view
                runs *= scales.reshape(-1, 1)
            else:
                for axis, extent in enumerate(block_extents(block, len(self.shape))):
                    if extent > 1 and scales.shape[axis] > 1:
                        scales = np.take(scales, np.arange(self.shape[axis]) // extent, axis=axis)
                numbers *= scales
        return numbers


def decode(
    raw: bytes | bytearray | memoryview, scheme: QuantScheme, shape: Sequence[int], *, old_style: bool | None = None
) -> QuantizedTensor:
    """Return the codes and scales of a tensor of ``shape``.

    In the old style a packed axis stays in place, and two lengths of old host backends are read besides the exact one:
    F32 scales whatever the scheme states, and 8-bit codes of a packed store without padded lines; the result's scheme
    states what was found. ``old_style`` overrides the scheme's. Raises `CorruptError` where length, padding or a code
    does not fit, `UnsupportedError` for the ``Lookup`` mode.

    >>> scheme = QuantScheme("Q4S", QuantStore("PackedU32"))
    >>> decode(bytes.fromhex("10f20000 0000803f"), scheme, [4], old_style=False).codes
    array([ 0,  1,  2, -1], dtype=int8)
    """
    if scheme.mode == "Lookup":
        raise UnsupportedError("codes of the Lookup mode need a table that no file contains")
    if old_style is not None:
        scheme = replace(scheme, old_style=old_style)
    shape = _checked_shape(shape)
    layout = code_layout(scheme, shape)
    data = np.frombuffer(memoryview(raw).cast("B"), dtype=np.uint8)
    scheme, value_bytes = _fit(scheme, shape, layout, data.size)
    if len(shape) > _MOST_NUMPY_DIMS or math.prod(max(size, 1) for size in shape) > _MOST_NUMPY_SIZE:
        raise UnsupportedError(f"shape {list(shape)} is too large for a NumPy array")

    fields = data[:value_bytes]
    if value_bytes == layout.value_bytes:
        fields = _unpack(fields, scheme, layout)
    codes = _codes_of_fields(fields, scheme).reshape(shape)

    scales_end = value_bytes + layout.scale_count * SCALE_WIDTHS[scheme.scale_dtype]
    scales = decode_scales(data[value_bytes:scales_end], scheme.scale_dtype)
    if scheme.block is not None and not scheme.old_style:
        scales = scales.reshape(exchanged(layout.grid, layout.axis)).swapaxes(layout.axis, -1)
    scales = np.ascontiguousarray(scales.reshape(layout.grid))
    global_scale = None
    if scheme.global_dtype is not None:
        global_scale = float(decode_scales(data[scales_end:], scheme.global_dtype)[0])
    return QuantizedTensor(codes, scales, global_scale, scheme, shape)


def encode(quantized: QuantizedTensor) -> bytes:
    """Return the bytes of a quantized tensor in the layout of its scheme, lines padded; the inverse of `decode`.

    Raises `DTypeError` for a scale that the scheme's dtype would round, `UnsupportedError` for ``Lookup``.

    >>> scheme = QuantScheme("E2M1", QuantStore("PackedNative"))
    >>> encode(QuantizedTensor(np.uint8([1, 15, 6]), np.float32([1]), None, scheme, (3,))).hex(" ")
    'f1 06 00 00 80 3f'
    """
    scheme = quantized.scheme
    if scheme.mode == "Lookup":
        raise UnsupportedError("codes of the Lookup mode cannot be written: no file contains their table")
    if scheme.global_dtype not in (None, "F32"):
        raise DTypeError(
            f"Burn only supports a global scale of F32, got {scheme.global_dtype}",
            hint='use QuantScheme(tensor="F32"); the value of the scale stays the same',
        )
    layout = code_layout(scheme, quantized.shape)
    fields = np.ascontiguousarray(quantized.codes).view(np.uint8)
    if scheme.store.kind != "Native":
        fields = fields & (2**scheme.value_bits - 1)
    values = _pack(fields, scheme, layout)
    scales = quantized.scales
    if scheme.block is not None and not scheme.old_style:
        scales = scales.swapaxes(layout.axis, -1)
    tail = encode_scales(scales, scheme.scale_dtype)
    if quantized.global_scale is not None:
        tail += encode_scales(np.array([quantized.global_scale]), "F32")
    return values + tail


def _check_word(word: object, words: Sequence[str] | dict[str, Any], what: str) -> None:
    if not isinstance(word, str) or word not in words:
        raise CorruptError(f"unknown {what} {printable(repr(word))}; known: {', '.join(words)}")


def _check_int(number: object, what: str, least: int, most: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise CorruptError(f"a {what} must be an integer of {least} to {most}, got {number!r}")


def _check_array(array: npt.NDArray[Any], what: str, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype:
        raise DTypeError(f"expected {what} of {np.dtype(dtype)}, got {array.dtype}")
    if array.shape != shape:
        raise CorruptError(f"expected {what} of shape {list(shape)}, got {list(array.shape)}")


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(operator.index(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise CorruptError(f"shape {list(sizes)} has a negative size")
    return sizes


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """The places of codes and scales among the bytes of a tensor."""

    dims: tuple[int, ...]  # the shape; a scalar is one line of one value
    axis: int  # the packed one
    per_word: int
    word_bytes: int
    line_words: int
    value_bytes: int
    grid: tuple[int, ...]
    scale_count: int
    total: int


def code_layout(scheme: QuantScheme, shape: tuple[int, ...]) -> CodeLayout:
    """Return the layout of a tensor of this shape; `CorruptError` where the scheme does not fit it."""
    dims = shape or (1,)
    if scheme.store.dim >= len(dims):
        raise CorruptError(f"{scheme.store} packs along a dimension that is not in shape {list(shape)}")
    axis = len(dims) - 1 - scheme.store.dim
    per_word, word_bytes = 1, 1
    if scheme.store.kind == "PackedU32":
        per_word, word_bytes = 32 // scheme.value_bits, 4
    elif scheme.store.kind == "PackedNative" and scheme.value == "E2M1":
        per_word = 2  # the only value with a native packed type
    line_words = -(-dims[axis] // per_word)
    value_bytes = math.prod((*dims[:axis], line_words, *dims[axis + 1 :])) * word_bytes

    grid: tuple[int, ...] = (1,)
    if scheme.block is not None:
        # Burn before 0.22 used the *first* entries of a block longer than the rank, later versions refuse it.
        if len(scheme.block.size) > len(shape):
            raise CorruptError(f"block size {list(scheme.block.size)} is longer than shape {list(shape)}")
        extents = block_extents(scheme.block, len(shape))
        grid = tuple(-(-size // extent) for size, extent in zip(shape, extents, strict=True))
        if scheme.flat_blocks and any(size % extent for size, extent in zip(shape, extents, strict=True)):
            raise CorruptError(f"flat blocks of size {list(scheme.block.size)} do not divide shape {list(shape)}")
    scale_count = math.prod(grid)
    total = value_bytes + scale_count * SCALE_WIDTHS[scheme.scale_dtype]
    if scheme.global_dtype is not None:
        total += SCALE_WIDTHS[scheme.global_dtype]
    return CodeLayout(dims, axis, per_word, word_bytes, line_words, value_bytes, grid, scale_count, total)


def block_extents(block: QuantBlock, rank: int) -> tuple[int, ...]:
    """Return the extent of a block along each axis of a tensor of this rank."""
    return (1,) * (rank - len(block.size)) + block.size


def exchanged(dims: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the extents with the packed axis and the last axis exchanged."""
    turned = list(dims)
    turned[axis], turned[-1] = turned[-1], turned[axis]
    return tuple(turned)


def _fit(scheme: QuantScheme, shape: tuple[int, ...], layout: CodeLayout, length: int) -> tuple[QuantScheme, int]:
    """Return the scheme and the value bytes of this length; two candidates of one length mean the same bytes."""
    if length == layout.total:
        return scheme, layout.value_bytes
    candidates: list[tuple[QuantScheme, int]] = []
    if scheme.old_style and scheme.global_dtype is None:  # two-level schemes came after the writers of other lengths
        block = None if scheme.block is None else replace(scheme.block, dtype="F32")
        with_f32 = replace(scheme, tensor=None, block=block)
        candidates = [(with_f32, layout.value_bytes)]
        if scheme.store == QuantStore("PackedU32") and scheme.value_bits == 8:
            unpadded = math.prod(layout.dims)
            candidates += [(scheme, unpadded), (with_f32, unpadded)]
    for candidate, value_bytes in candidates:
        if length == value_bytes + layout.scale_count * SCALE_WIDTHS[candidate.scale_dtype]:
            return candidate, value_bytes
    raise CorruptError(f"expected {layout.total} bytes for {scheme} of shape {list(shape)}, got {length}")


def _unpack(data: _Bytes, scheme: QuantScheme, layout: CodeLayout) -> _Bytes:
    """Return the field of every value in logical order; bits above it remain only where a byte has one value."""
    words = data.view("<u4") if layout.word_bytes == 4 else data
    stored = (*layout.dims[: layout.axis], layout.line_words, *layout.dims[layout.axis + 1 :])
    if scheme.old_style:
        lines = np.ascontiguousarray(words.reshape(stored).swapaxes(layout.axis, -1))
    else:
        lines = words.reshape(exchanged(stored, layout.axis))
    lines = lines.view(np.uint8)
    length = layout.dims[layout.axis]
    fields: _Bytes = unpack_fields(lines, scheme.value_bits) if layout.per_word > 1 else lines
    if fields[..., length:].any():
        raise CorruptError(f"the padding after {length} values of a packed line is not zero")
    logical: _Bytes = fields[..., :length].swapaxes(layout.axis, -1)
    return logical


def _pack(fields: _Bytes, scheme: QuantScheme, layout: CodeLayout) -> bytes:
    lines: _Bytes = fields.reshape(layout.dims).swapaxes(layout.axis, -1)
    if layout.per_word > 1:
        padded = np.zeros((*lines.shape[:-1], layout.line_words * layout.per_word), dtype=np.uint8)
        padded[..., : lines.shape[-1]] = lines
        lines = pack_fields(padded, scheme.value_bits)
    if not scheme.old_style:
        return lines.tobytes()
    words: npt.NDArray[Any] = np.ascontiguousarray(lines).view("<u4" if layout.word_bytes == 4 else np.uint8)
    return bytes(words.swapaxes(layout.axis, -1).tobytes())


def _codes_of_fields(fields: _Bytes, scheme: QuantScheme) -> npt.NDArray[Any]:
    """Return codes in memory of their own: neither a mapped file nor the caller's buffer can change them later."""
    fields = np.array(fields, order="C")
    bits = scheme.value_bits
    if bits == 8:
        return fields if scheme.is_float_coded else fields.view(np.int8)
    low = fields & (2**bits - 1)
    codes: npt.NDArray[Any] = low
    if not scheme.is_float_coded:
        codes = (low << (8 - bits)).view(np.int8) >> (8 - bits)  # copies the sign downwards
    legal = codes.view(np.uint8) == fields
    if scheme.store.kind != "Native":
        legal |= low == fields  # Burn 0.23 clears the bits above a packed field, 0.22 extended the sign into them
    if not legal.all():
        raise CorruptError(f"the byte 0x{fields[~legal][0]:02X} is not a {scheme.value} code of a {scheme.store} store")
    return codes


def _code_range(scheme: QuantScheme) -> tuple[int, int]:
    bits = scheme.value_bits
    if scheme.is_float_coded:
        return 0, 2**bits - 1
    least = -(2 ** (bits - 1))
    if scheme.store.kind == "Native" and bits < 8 and scheme.value.endswith("S"):
        least += 1  # Burn reads -128 in Q8S and -8 in packed Q4S, and needs neither where each code has a byte
    return least, 2 ** (bits - 1) - 1
