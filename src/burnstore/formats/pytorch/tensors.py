"""Tensors as a pickle describes them: a storage, a dtype, and which of its elements in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import CorruptError, LimitError, UnsupportedError, printable
from ...tensor.data import Array, Shape
from ...tensor.dtype import DType
from ...tensor.facts import Piece
from ...tensor.note import Note
from ...tensor.sources import Data
from ..codec.pickle_values import Call, Symbol, kind_of

MAX_AXES = 64
MAX_EXPANDED = 1 << 30
_MAX_INTEGER = (1 << 63) - 1
_MAX_SHOWN = 30

# dtypes, and storage classes: those of Python, and for newer dtypes those that only TorchScript writes.
_TABLE = (
    (DType.F64, "float64 double", "Double"),
    (DType.F32, "float32 float", "Float"),
    (DType.F16, "float16 half", "Half"),
    (DType.BF16, "bfloat16", "BFloat16"),
    (DType.I64, "int64 long", "Long"),
    (DType.I32, "int32 int", "Int QInt32"),
    (DType.I16, "int16 short", "Short"),
    (DType.I8, "int8", "Char QInt8"),
    # Bits without a meaning as numbers, and codes of which several are in a byte: unsigned integers keep every bit.
    (DType.U8, "uint8 bits8 bits1x8 bits2x4 bits4x2", "Byte QUInt8 QUInt4x2 QUInt2x4 Bits8 Bits1x8 Bits2x4 Bits4x2"),
    (DType.U16, "uint16 bits16", "UInt16 Bits16"),
    (DType.U32, "uint32", "UInt32"),
    (DType.U64, "uint64", "UInt64"),
    (DType.Bool, "bool", "Bool"),
    (DType.C32, "complex32 chalf", "ComplexHalf"),
    (DType.C64, "complex64 cfloat", "ComplexFloat"),
    (DType.C128, "complex128 cdouble", "ComplexDouble"),
    (DType.F8_E4M3, "float8_e4m3fn", "Float8_e4m3fn"),
    (DType.F8_E5M2, "float8_e5m2", "Float8_e5m2"),
    (DType.F8_E8M0, "float8_e8m0fnu", "Float8_e8m0fnu"),
    (DType.F8_E4M3FNUZ, "float8_e4m3fnuz", "Float8_e4m3fnuz"),
    (DType.F8_E5M2FNUZ, "float8_e5m2fnuz", "Float8_e5m2fnuz"),
    (DType.F4, "float4_e2m1fn_x2", "Float4_e2m1fn_x2"),
)
DTYPES: dict[str, DType] = {name: dtype for dtype, names, _ in _TABLE for name in names.split()}
"""torch's names of dtypes."""
_STORAGE_CLASSES: dict[str, DType | None] = {
    **{f"{name}Storage": dtype for dtype, _, names in _TABLE for name in names.split()},
    **dict.fromkeys(("UntypedStorage", "_UntypedStorage")),
}
_STORAGE_MODULES = ("torch", "torch.cuda", "torch.storage")

ITEM_SIZES: dict[DType | None, int] = {dtype: max(dtype.bits // 8, 1) for dtype in DTYPES.values()} | {None: 1}
"""The bytes of one element as torch counts them: two 4-bit floats are one element, untyped storages have bytes."""


class Storage:
    """The bytes that one or more tensors are views on.

    ``dtype`` is None for untyped storages, whose ``count`` is in bytes. ``offset`` is where the bytes are in the file
    if they are little-endian and not compressed; otherwise the container sets ``data``. ``is_proved``: a checksum was
    compared with the bytes.
    """

    __slots__ = ("class_name", "count", "data", "dtype", "is_proved", "is_understood", "key", "nbytes", "offset")

    def __init__(self, key: str, class_name: str, dtype: DType | None, count: int) -> None:
        self.key = key
        self.class_name = class_name
        self.dtype = dtype
        self.count = count
        self.nbytes = count * ITEM_SIZES[dtype]
        self.data: Data | None = None
        self.offset = -1
        self.is_understood = False  # whether the reader used it for something else than a tensor: the ranks of a mesh
        self.is_proved = False

    def __repr__(self) -> str:
        return f"<{self.class_name} {printable(self.key)}: {self.count}>"


class StorageView(Storage):
    """A range of a storage, in elements, as the first releases had them."""

    __slots__ = ("base", "first")

    def __init__(self, base: Storage, first: Any, count: Any) -> None:
        if type(first) is not int or type(count) is not int or not 0 <= first <= first + count <= base.count:
            shown = f"{shown_integer(count)} elements from {shown_integer(first)} on"
            raise CorruptError(f"a view of {shown} in a storage of {base.count}")
        super().__init__(base.key, base.class_name, base.dtype, count)
        self.base = base
        self.first = first


def storage_dtype(symbol: Any) -> tuple[str, DType | None]:
    """Return the name and dtype of a storage class."""
    if not isinstance(symbol, Symbol):
        raise CorruptError(f"a storage's class is a {kind_of(symbol)}", rule="PT-19")
    if symbol.module not in _STORAGE_MODULES or symbol.name not in _STORAGE_CLASSES:
        raise UnsupportedError(f"a storage of the unknown class {printable(symbol.full_name)}", rule="PT-19")
    return symbol.name, _STORAGE_CLASSES[symbol.name]


def torch_dtype(symbol: Any) -> DType:
    """Return the dtype that a pickled ``torch.float32`` stands for."""
    if not isinstance(symbol, Symbol) or symbol.module != "torch":
        raise CorruptError(f"a dtype is a {kind_of(symbol)}", rule="PT-22")
    found = DTYPES.get(symbol.name)
    if found is None:
        raise UnsupportedError(f"a tensor of the dtype torch.{printable(symbol.name)}", rule="PT-22")
    return found


class Storages:
    """All stored data that a pickle refers to: storages by key (one key is one storage), and arrays inside of it."""

    def __init__(self) -> None:
        self.by_key: dict[str, Storage] = {}
        self.arrays: list[Call] = []
        self._classes: dict[Any, tuple[str, DType | None]] = {}

    def restart(self) -> None:
        """Forget everything: the pickle is read from its beginning."""
        self.by_key.clear()
        self.arrays.clear()

    def __iter__(self) -> Iterator[Storage]:
        return iter(self.by_key.values())

    def get(self, key: Any, symbol: Any, count: Any) -> Storage:
        """Return the storage of a key, which must have this class and length each time it is named (PT-19)."""
        kind = self._classes.get(symbol) if type(symbol) is Symbol else None
        if kind is None:
            kind = self._classes[symbol] = storage_dtype(symbol)
        class_name, dtype = kind
        if isinstance(key, int) and not isinstance(key, bool):
            key = str(key)
        if not isinstance(key, str) or not key or len(key) > 255:
            raise CorruptError(f"the key of a storage is a {kind_of(key)}", rule="PT-19")
        if type(count) is not int or not 0 <= count < 1 << 60:
            raise CorruptError(f"a storage of {shown_integer(count)} elements", rule="PT-19")
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = Storage(key, class_name, dtype, count)
        elif not found.count and not count:  # torch saves empty storages of several dtypes under one key
            if found.class_name != class_name:
                found = Storage(key, class_name, dtype, 0)
                found.offset = 0
        elif found.class_name != class_name or found.count != count:
            raise CorruptError(
                f"the storage {printable(key)!r} is {found.count} of {found.class_name}, and {count} of {class_name}",
                rule="PT-19",
            )
        return found


def shown_integer(value: Any) -> str:
    """Return an integer as text, or the kind of a value that is not one."""
    return str(value) if type(value) is int else kind_of(value)


def left_out_note(names: Sequence[str], reason: str) -> Note:
    """Return the note about stored data that no tensor of the file shows."""
    return Note("left out", f"left out: {shown_names(names)}: {reason}", names[0])


def shown_names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are, for a note."""
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(map(printable, names[:_MAX_SHOWN])) + more


class _TensorNode(Call):
    """A call whose result is known: nothing can be set on it or put into it."""

    __slots__ = ()

    def take_state(self, state: Any) -> None:
        raise CorruptError("a state is given to a tensor", rule="PT-16")

    def append(self, items: list[Any]) -> None:
        raise CorruptError("items are put into a tensor", rule="PT-16")

    set_items = append


class PickledTensor(_TensorNode):
    """A view on a storage. ``strides`` and ``offset`` count elements of ``dtype``; ``shape`` is torch's.

    ``conjugated`` and ``negated`` are torch's lazy bits: the storage does not hold the values yet. ``storage`` is None
    for a tensor whose values were not saved (a meta tensor).
    """

    __slots__ = ("conjugated", "dtype", "negated", "offset", "requires_grad", "shape", "storage", "strides")

    def __init__(
        self,
        storage: Storage | None,
        dtype: DType,
        offset: int,
        shape: Shape,
        strides: Shape,
        requires_grad: bool = False,
        *,
        conjugated: bool = False,
        negated: bool = False,
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.requires_grad = requires_grad
        self.conjugated = conjugated
        self.negated = negated

    @property
    def nbytes(self) -> int:
        """The bytes of its values, each counted once."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]

    @property
    def is_plain(self) -> bool:
        """Whether its values are one after the other; those of bools may be other bytes than 0 and 1."""
        return is_contiguous(self.shape, self.strides) and self.dtype is not DType.Bool

    @property
    def function_name(self) -> str:
        return "torch.Tensor"

    def __repr__(self) -> str:
        return f"<tensor {self.dtype} {list(self.shape)}>"


class CompositeTensor(_TensorNode):
    """A tensor that is stored as several: sparse, quantized, nested, or of a class that wraps others.

    ``parts`` are its tensors and arrays by name; ``kind`` and ``facts`` state how they belong together.
    """

    __slots__ = ("facts", "kind", "parts")

    def __init__(
        self, kind: str, parts: dict[str, PickledTensor | CompositeTensor | Array], facts: Mapping[str, Any]
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.facts = facts
        self.state = self.appended = self.pairs = None

    @property
    def function_name(self) -> str:
        return f"{self.kind} torch.Tensor"

    def __repr__(self) -> str:
        return f"<{self.kind} tensor of {', '.join(map(printable, self.parts))}>"


class AttributedTensor(PickledTensor):
    """A tensor that had attributes: ``state`` holds them."""

    __slots__ = ()

    def __init__(self, tensor: PickledTensor, state: Any) -> None:
        for name in PickledTensor.__slots__:
            setattr(self, name, getattr(tensor, name))
        self.state = state


class PlacedTensor(AttributedTensor):
    """The part of a tensor that one rank has: ``piece`` states its place."""

    __slots__ = ("piece",)

    def __init__(self, tensor: PickledTensor, shape: Shape, piece: Piece) -> None:
        super().__init__(tensor, None)
        if shape != tensor.shape:  # both empty: a rank without rows may save an empty vector
            self.shape, self.strides, self.offset = shape, (1,) * len(shape), 0
        self.piece = piece


class UnbuiltTensor(Call):
    """A tensor of the first releases, whose description comes as a state; ``tensor`` is None until then."""

    __slots__ = ("tensor",)

    def __init__(self, function: Any, args: tuple[Any, ...]) -> None:
        super().__init__(function, args)
        self.tensor = args[0] if args and isinstance(args[0], (PickledTensor, UnbuiltTensor)) else None

    def take_state(self, state: Any) -> None:
        super().take_state(state)
        parts = state if isinstance(state, (tuple, list)) else ()
        if len(parts) == 4 and isinstance(parts[0], Storage):
            storage, offset, size, stride = parts
            self.tensor = view(storage, storage.dtype or DType.U8, offset, size, stride)
        elif len(parts) == 5 and isinstance(parts[0], (PickledTensor, UnbuiltTensor)):
            self.tensor = parts[0]
        elif not (len(parts) == 3 and self.tensor is not None) and not isinstance(state, dict):
            raise CorruptError(f"invalid state of a {printable(self.function_name)}", rule="PT-22")


class Unread(Call):
    """A stored tensor or array that cannot be read, and the reason."""

    __slots__ = ("reason",)

    def __init__(self, name: str, args: tuple[Any, ...], reason: str) -> None:
        module, _, attribute = name.rpartition(".")
        super().__init__(Symbol(module, attribute), args)
        self.reason = reason


def view(storage: Storage, dtype: DType, offset: Any, shape: Any, strides: Any, **flags: bool) -> PickledTensor:
    """Return a view whose every element is in its storage, or raise an error that shows the wrong number (PT-21)."""
    shape, strides = whole_numbers(shape, "size"), whole_numbers(strides, "stride")
    check_view(storage.nbytes, ITEM_SIZES[dtype], offset, shape, strides)
    if isinstance(storage, StorageView):  # Only its base has bytes in the file.
        offset += storage.first
        storage = storage.base
    return PickledTensor(storage, dtype, offset, shape, strides, **flags)


def whole_numbers(values: Any, what: str) -> Shape:
    """Check a tuple (or list) of integers that fit 63 bits and are not negative."""
    if not isinstance(values, (tuple, list)):
        raise CorruptError(f"a tensor's {what} is a {kind_of(values)}, not a tuple", rule="PT-21")
    for value in values:
        if type(value) is not int or not 0 <= value <= _MAX_INTEGER:
            raise CorruptError(f"a tensor's {what} holds {shown_integer(value)}", rule="PT-21")
    return tuple(values)


def check_view(available: int, item: int, offset: Any, shape: Shape, strides: Shape) -> None:
    """Refuse a view that leaves its storage of ``available`` bytes."""
    if type(offset) is not int or not 0 <= offset <= _MAX_INTEGER:
        raise CorruptError(f"a tensor's offset is {shown_integer(offset)}", rule="PT-21")
    if len(shape) != len(strides):
        raise CorruptError(f"a tensor of {len(shape)} axes has {len(strides)} strides", rule="PT-21")
    if len(shape) > MAX_AXES:
        raise LimitError(f"a tensor of {len(shape)} axes, more than the limit of {MAX_AXES}", rule="PT-21")
    count = math.prod(shape)
    if count == 0:
        return
    end = (last_element(offset, shape, strides) + 1) * item
    if end > available:
        raise CorruptError(
            f"a tensor of shape {list(shape)} and strides {list(strides)} from element {offset} on needs {end} bytes, "
            f"its storage declares {available}",
            rule="PT-21",
        )
    if count * item > max(available, MAX_EXPANDED):
        raise LimitError(
            f"a tensor that repeats the {available} bytes of its storage to {count * item}, above the byte limit of "
            f"{MAX_EXPANDED}",
            rule="PT-21",
        )


def last_element(offset: int, shape: Shape, strides: Shape) -> int:
    """Return the last element of the storage that a view without empty axes reaches."""
    return offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Return whether the elements are in row-major order without gaps; axes of one element do not matter."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if stride != expected and 0 not in shape:
                return False
            expected *= extent
    return True


def shape_in_values(tensor: PickledTensor) -> Shape:
    """Return the shape by single values: two 4-bit floats are one element for torch."""
    if tensor.dtype is not DType.F4:
        return tensor.shape
    if not tensor.shape or not is_contiguous(tensor.shape, tensor.strides):
        raise UnsupportedError("a tensor of 4-bit floats that is not contiguous", rule="PT-22")
    return (*tensor.shape[:-1], 2 * tensor.shape[-1])
