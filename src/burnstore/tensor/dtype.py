"""DType: the type of a tensor's elements, by Burn's names, with its NumPy and PyTorch names."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from ..errors import DTypeError, MissingDependencyError

if TYPE_CHECKING:
    from .quantization import QuantScheme


class Kind(Enum):
    """The kinds of dtypes; a parameter accepts values of its own kind only."""

    FLOAT = "float"
    INT = "int"
    UINT = "uint"
    BOOL = "bool"
    COMPLEX = "complex"
    QUANTIZED = "quantized"


class DType:
    """One dtype: an immutable value with a name, a width in bits and a kind. Equal dtypes are one object.

    The names are Burn's (``F32``, ``BF16``, ``I64``, ``Bool``, ``QFloat``), then those of other formats (``F8_E4M3``,
    ``F4``, ``C64``). ``Bool`` has three stores in Burn, which are three dtypes here.

    >>> str(DType.BF16), DType.BF16.bits, DType.F32.nbytes([2, 3])
    ('BF16', 16, 24)
    >>> DType.of(np.dtype("int16")) is DType.I16
    True
    """

    __slots__ = ("__weakref__", "_hash", "_numpy", "_torch", "bits", "kind", "name", "scheme")

    name: str
    bits: int
    kind: Kind
    scheme: QuantScheme | None
    _numpy: str | None
    _torch: str | None
    _hash: int

    F64: ClassVar[DType]
    F32: ClassVar[DType]
    Flex32: ClassVar[DType]
    F16: ClassVar[DType]
    BF16: ClassVar[DType]
    I64: ClassVar[DType]
    I32: ClassVar[DType]
    I16: ClassVar[DType]
    I8: ClassVar[DType]
    U64: ClassVar[DType]
    U32: ClassVar[DType]
    U16: ClassVar[DType]
    U8: ClassVar[DType]
    Bool: ClassVar[DType]
    BoolU8: ClassVar[DType]
    BoolU32: ClassVar[DType]
    F8_E4M3: ClassVar[DType]
    F8_E5M2: ClassVar[DType]
    F8_E8M0: ClassVar[DType]
    F8_E4M3FNUZ: ClassVar[DType]
    F8_E5M2FNUZ: ClassVar[DType]
    F6_E2M3: ClassVar[DType]
    F6_E3M2: ClassVar[DType]
    F4: ClassVar[DType]
    C32: ClassVar[DType]
    C64: ClassVar[DType]
    C128: ClassVar[DType]

    def __init__(
        self,
        name: str,
        bits: int,
        kind: Kind,
        numpy: str | None,
        torch: str | None,
        scheme: QuantScheme | None = None,
    ) -> None:
        fields = {"name": name, "bits": bits, "kind": kind, "scheme": scheme, "_numpy": numpy, "_torch": torch}
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        object.__setattr__(self, "_hash", hash(str(self)))  # that of its name, which is equal to it

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same dtype, or its name: ``snapshot.dtype == "F32"``."""
        return self is other or (isinstance(other, str) and str(self) == other)

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"DType is immutable, {name} cannot be set")

    @staticmethod
    def qfloat(scheme: QuantScheme) -> DType:
        """Return the dtype of tensors quantized by ``scheme``."""
        found = _BY_SCHEME.get(scheme)
        if found is None:
            found = _BY_SCHEME.setdefault(
                scheme, DType("QFloat", scheme.value_bits, Kind.QUANTIZED, None, None, scheme)
            )
        return found

    @staticmethod
    def of(dtype: Any) -> DType:
        """Return the dtype of a NumPy or torch dtype, whatever its byte order; DTypeError if there is none.

        ``float4_e2m1fn_x2`` is F4: an element of such a tensor has two values.
        """
        if isinstance(dtype, np.dtype):
            return _of_numpy(dtype)
        if type(dtype).__module__ == "torch":
            return _of_torch(dtype)
        raise TypeError(f"DType.of expects the .dtype of a NumPy array or a torch tensor, got {dtype!r}")

    @staticmethod
    def parse(name: str) -> DType:
        """Return the dtype of that name (Burn's spelling; case matters)."""
        found = _BY_NAME.get(name)
        if found is None:
            raise DTypeError(f"unknown dtype {name!r}; expected one of {', '.join(sorted(_BY_NAME))}")
        return found

    @property
    def is_float(self) -> bool:
        """Whether elements are plain floating-point numbers (quantized ones are not)."""
        return self.kind is Kind.FLOAT

    @property
    def is_bool(self) -> bool:
        """Whether this is one of the three bool stores."""
        return self.kind is Kind.BOOL

    @property
    def is_quantized(self) -> bool:
        """Whether elements are codes of a quantization scheme."""
        return self.kind is Kind.QUANTIZED

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (little-endian); DTypeError where NumPy and ml_dtypes have none.

        MissingDependencyError where it needs ml_dtypes (BF16, F8 ...) and that is not installed.
        """
        if self._numpy is None:
            raise DTypeError(f"NumPy has no dtype for {self.name}")
        return _numpy_dtype(self._numpy)

    @property
    def torch_name(self) -> str:
        """PyTorch's name (``"bfloat16"``); DTypeError where PyTorch has no such dtype.

        >>> DType.F8_E4M3.torch_name
        'float8_e4m3fn'
        """
        if self._torch is None:
            raise DTypeError(f"PyTorch has no dtype for {self.name}", hint="read the bytes with to_bytes()")
        return self._torch

    def nbytes(self, shape: Sequence[int]) -> int:
        """Return the exact number of bytes of a tensor of this dtype and shape."""
        if self.scheme is not None:
            return self.scheme.byte_len(shape)
        bits = math.prod(shape) * self.bits
        if bits % 8:
            raise DTypeError(f"{math.prod(shape)} elements of {self.name} do not fill whole bytes")
        return bits // 8

    def __str__(self) -> str:
        return self.name if self.scheme is None else f"QFloat({self.scheme})"

    def __repr__(self) -> str:
        return f"DType.{_attribute(self.name)}" if self.scheme is None else f"DType.qfloat({self.scheme!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (DType.parse, (self.name,)) if self.scheme is None else (DType.qfloat, (self.scheme,))


def _attribute(name: str) -> str:
    return name.replace("(", "").replace(")", "")  # BoolU8 for Bool(U8)


@functools.lru_cache(maxsize=256)  # NumPy computes a dtype's name on every access
def _of_numpy(dtype: np.dtype[Any]) -> DType:
    found = _BY_NUMPY.get(dtype.name)
    if found is None:
        raise DTypeError(
            f"the NumPy dtype {dtype} is not supported", hint="use floats, integers, bools or complex numbers"
        )
    return found


@functools.lru_cache(maxsize=256)
def _of_torch(dtype: Any) -> DType:
    found = _BY_TORCH.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise DTypeError(
            f"the torch dtype {dtype} is not supported", hint="use floats, integers, bools or complex numbers"
        )
    return found


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    dtype: np.dtype[Any]
    if name.startswith("<") or name in ("bool", "|i1", "|u1"):
        dtype = np.dtype(name)
    else:
        try:
            import ml_dtypes  # only when needed: it would double burnstore's import time
        except ImportError as error:
            raise MissingDependencyError(
                f"{name} needs the package ml_dtypes, which is not installed",
                hint="pip install ml_dtypes, or use torch() or to_bytes()",
            ) from error
        dtype = np.dtype(getattr(ml_dtypes, name))
    return dtype


_BY_NAME: dict[str, DType] = {}
_BY_SCHEME: WeakValueDictionary[QuantScheme, DType] = WeakValueDictionary()
_BY_NUMPY: dict[str, DType] = {}
_BY_TORCH: dict[str, DType] = {}

for _name, _bits, _kind, _numpy, _torch in (
    ("F64", 64, Kind.FLOAT, "<f8", "float64"),
    ("F32", 32, Kind.FLOAT, "<f4", "float32"),
    ("Flex32", 32, Kind.FLOAT, "<f4", "float32"),
    ("F16", 16, Kind.FLOAT, "<f2", "float16"),
    ("BF16", 16, Kind.FLOAT, "bfloat16", "bfloat16"),
    ("I64", 64, Kind.INT, "<i8", "int64"),
    ("I32", 32, Kind.INT, "<i4", "int32"),
    ("I16", 16, Kind.INT, "<i2", "int16"),
    ("I8", 8, Kind.INT, "|i1", "int8"),
    ("U64", 64, Kind.UINT, "<u8", "uint64"),
    ("U32", 32, Kind.UINT, "<u4", "uint32"),
    ("U16", 16, Kind.UINT, "<u2", "uint16"),
    ("U8", 8, Kind.UINT, "|u1", "uint8"),
    ("Bool", 8, Kind.BOOL, "bool", "bool"),
    ("Bool(U8)", 8, Kind.BOOL, "bool", "bool"),
    ("Bool(U32)", 32, Kind.BOOL, "bool", "bool"),
    ("F8_E4M3", 8, Kind.FLOAT, "float8_e4m3fn", "float8_e4m3fn"),
    ("F8_E5M2", 8, Kind.FLOAT, "float8_e5m2", "float8_e5m2"),
    ("F8_E8M0", 8, Kind.FLOAT, "float8_e8m0fnu", "float8_e8m0fnu"),
    ("F8_E4M3FNUZ", 8, Kind.FLOAT, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    ("F8_E5M2FNUZ", 8, Kind.FLOAT, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    ("F6_E2M3", 6, Kind.FLOAT, "float6_e2m3fn", None),
    ("F6_E3M2", 6, Kind.FLOAT, "float6_e3m2fn", None),
    ("F4", 4, Kind.FLOAT, "float4_e2m1fn", "float4_e2m1fn_x2"),
    ("C32", 32, Kind.COMPLEX, None, "complex32"),
    ("C64", 64, Kind.COMPLEX, "<c8", "complex64"),
    ("C128", 128, Kind.COMPLEX, "<c16", "complex128"),
):
    _dtype = DType(_name, _bits, _kind, _numpy, _torch)
    setattr(DType, _attribute(_name), _dtype)
    _BY_NAME[_name] = _dtype
    if _numpy is not None:
        _BY_NUMPY.setdefault(np.dtype(_numpy).name if _numpy[0] in "<|" else _numpy, _dtype)
    if _torch is not None:
        _BY_TORCH.setdefault(_torch, _dtype)
_BY_NAME["Bool(Native)"] = DType.Bool  # Burn's debug text since 0.21
