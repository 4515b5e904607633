"""Storages: the runs of elements that tensors are views on, and the names that torch has for their dtypes."""

from __future__ import annotations

from typing import Any

from ...errors import CorruptError, UnsupportedError, printable
from ...tensor.dtype import DType
from ...tensor.snapshot import Data
from ..codec.pickle_values import Symbol, kind_of

DTYPES: dict[str, DType] = {
    "float64": DType.F64,
    "float32": DType.F32,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "int64": DType.I64,
    "int32": DType.I32,
    "int16": DType.I16,
    "int8": DType.I8,
    "uint8": DType.U8,
    "uint16": DType.U16,
    "uint32": DType.U32,
    "uint64": DType.U64,
    "bool": DType.Bool,
    "complex32": DType.C32,
    "complex64": DType.C64,
    "complex128": DType.C128,
    "float8_e4m3fn": DType.F8_E4M3,
    "float8_e5m2": DType.F8_E5M2,
    "float8_e8m0fnu": DType.F8_E8M0,
    "float8_e4m3fnuz": DType.F8_E4M3FNUZ,
    "float8_e5m2fnuz": DType.F8_E5M2FNUZ,
    "float4_e2m1fn_x2": DType.F4,
    "double": DType.F64,
    "float": DType.F32,
    "half": DType.F16,
    "long": DType.I64,
    "int": DType.I32,
    "short": DType.I16,
    "cfloat": DType.C64,
    "cdouble": DType.C128,
    "chalf": DType.C32,
    # Bits without a meaning as numbers; unsigned integers keep every one of them.
    "bits8": DType.U8,
    "bits1x8": DType.U8,
    "bits2x4": DType.U8,
    "bits4x2": DType.U8,
    "bits16": DType.U16,
}
"""What torch calls a dtype."""

_CLASSES: dict[str, DType | None] = {
    "DoubleStorage": DType.F64,
    "FloatStorage": DType.F32,
    "HalfStorage": DType.F16,
    "BFloat16Storage": DType.BF16,
    "LongStorage": DType.I64,
    "IntStorage": DType.I32,
    "ShortStorage": DType.I16,
    "CharStorage": DType.I8,
    "ByteStorage": DType.U8,
    "BoolStorage": DType.Bool,
    "ComplexFloatStorage": DType.C64,
    "ComplexDoubleStorage": DType.C128,
    "QInt8Storage": DType.I8,
    "QUInt8Storage": DType.U8,
    "QInt32Storage": DType.I32,
    # Two or four codes in a byte; only their bytes are known here.
    "QUInt4x2Storage": DType.U8,
    "QUInt2x4Storage": DType.U8,
    "UntypedStorage": None,
    "_UntypedStorage": None,
}
_MODULES = ("torch", "torch.cuda", "torch.storage")

ITEM_SIZES: dict[DType | None, int] = {dtype: max(dtype.bits // 8, 1) for dtype in DTYPES.values()} | {None: 1}
"""The bytes of one element as torch counts them: two 4-bit floats are one element, untyped storages have bytes."""


class Storage:
    """The bytes that one or more tensors are views on; ``data`` is where they are, once the container knows.

    ``dtype`` is None for untyped storages, whose ``count`` is one of bytes.
    """

    __slots__ = ("class_name", "count", "data", "dtype", "key", "nbytes", "offset")

    def __init__(self, key: str, class_name: str, dtype: DType | None, count: int) -> None:
        self.key = key
        self.class_name = class_name
        self.dtype = dtype
        self.count = count
        self.nbytes = count * ITEM_SIZES[dtype]
        self.data: Data | None = None
        self.offset = -1
        """Where its bytes lie in the file, if they do so plainly: little-endian, not compressed."""

    def __repr__(self) -> str:
        return f"<{self.class_name} {printable(self.key)}: {self.count}>"


def storage_dtype(symbol: Any) -> tuple[str, DType | None]:
    """The name and dtype of a storage class."""
    if not isinstance(symbol, Symbol):
        raise CorruptError(f"a storage's class is a {kind_of(symbol)}", rule="PT-19")
    if symbol.module not in _MODULES or symbol.name not in _CLASSES:
        raise UnsupportedError(f"a storage of the unknown class {printable(symbol.full_name)}", rule="PT-19")
    return symbol.name, _CLASSES[symbol.name]


def torch_dtype(symbol: Any) -> DType:
    """The dtype that a pickled ``torch.float32`` stands for."""
    if not isinstance(symbol, Symbol) or symbol.module != "torch":
        raise CorruptError(f"a dtype is a {kind_of(symbol)}", rule="PT-22")
    found = DTYPES.get(symbol.name)
    if found is None:
        raise UnsupportedError(f"a tensor of the dtype torch.{printable(symbol.name)}", rule="PT-22")
    return found


def untyped(storages: Storages, key: str, nbytes: int) -> Storage:
    """A storage of plain bytes; the tensors on it say what they are."""
    return storages.by_key.setdefault(key, Storage(key, "UntypedStorage", None, nbytes))


class Storages:
    """All storages that a pickle refers to, by key; one key is one storage."""

    def __init__(self) -> None:
        self.by_key: dict[str, Storage] = {}
        self._kinds: dict[Any, tuple[str, DType | None]] = {}  # by class: there are few, and each is asked for often

    def __iter__(self) -> Any:
        return iter(self.by_key.values())

    def get(self, key: Any, symbol: Any, count: Any) -> Storage:
        """The storage of that key, which must be of that class and length each time it is named (PT-19)."""
        kind = self._kinds.get(symbol) if type(symbol) is Symbol else None
        if kind is None:
            kind = self._kinds[symbol] = storage_dtype(symbol)
        class_name, dtype = kind
        if isinstance(key, int) and not isinstance(key, bool):
            key = str(key)
        if not isinstance(key, str) or not key or len(key) > 255:
            raise CorruptError(f"the key of a storage is a {kind_of(key)}", rule="PT-19")
        if type(count) is not int or not 0 <= count < 1 << 60:
            raise CorruptError(
                f"a storage of {kind_of(count) if type(count) is not int else count} elements", rule="PT-19"
            )
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = Storage(key, class_name, dtype, count)
        elif found.class_name != class_name or found.count != count:
            raise CorruptError(
                f"the storage {printable(key)!r} is {found.count} of {found.class_name}, and {count} of {class_name}",
                rule="PT-19",
            )
        return found
