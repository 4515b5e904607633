"""Plan a file of torch without torch: a zip of a pickle of protocol 2 and one member for each storage.

The pickle is the one that torch 2 writes for a dict of plain tensors on the CPU: ``torch.load(weights_only=True)``
loads it, and so does every release since 1.6. Tied tensors are views on one storage. Equal tensors give equal bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate

from ...errors import located
from ...limits import Limits
from ...tensor.dtype import DType
from ...tensor.snapshot import TensorSnapshot
from ..base import LAYOUT_KEY, WritePlan, layout_to_record, no_dtype
from ..codec.zip_writer import NewMember, plan_zip
from ..columns import check_count, check_names
from .stream import MAX_PICKLE_BYTES, MAX_TENSORS
from .tensors import DTYPES

_ROOT = "archive"
_STORAGES = {
    DType.F64: "Double",
    DType.F32: "Float",
    DType.F16: "Half",
    DType.BF16: "BFloat16",
    DType.Bool: "Bool",
    DType.I64: "Long",
    DType.I32: "Int",
    DType.I16: "Short",
    DType.I8: "Char",
    DType.U8: "Byte",
    DType.C64: "ComplexFloat",
    DType.C128: "ComplexDouble",
    DType.Flex32: "Float",
    DType.BoolU8: "Bool",
}
_UNTYPED = {
    DType.U16: "uint16",
    DType.U32: "uint32",
    DType.U64: "uint64",
    DType.F8_E8M0: "float8_e8m0fnu",
    DType.F8_E4M3: "float8_e4m3fn",
    DType.F8_E5M2: "float8_e5m2",
    DType.F8_E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8_E5M2FNUZ: "float8_e5m2fnuz",
    DType.C32: "complex32",
}
"""Dtypes that came after typed storages: their tensors state the dtype themselves."""
_NAMES = {dtype: name for name, dtype in reversed(DTYPES.items())} | {DType.Flex32: "float32", DType.BoolU8: "bool"}


def plan(
    tensors: Sequence[TensorSnapshot],
    metadata: Mapping[str, str] | None,
    limits: Limits,
    *,
    ties: Mapping[str, str] | None = None,
) -> WritePlan:
    """Plan a file of torch with a dict of these tensors, in this order; ``ties`` maps further names to them.

    Of metadata only the layout has a place (PT-31).
    """
    layout = layout_to_record(metadata, "a file of torch")
    limits = limits.or_defaults(header_bytes=MAX_PICKLE_BYTES, tensors=MAX_TENSORS)
    names = [*(tensor.path for tensor in tensors), *(ties or ())]
    check_count(len(names), limits, "PT-17")
    check_names(names, limits, "PT-24", "PT-24")
    pickle = _Pickle()
    numbers = {tensor.path: number for number, tensor in enumerate(tensors)}
    for tensor in tensors:
        with located(tensor=tensor.path):
            pickle.add(tensor.path, tensor, numbers[tensor.path])
    for name, kept in (ties or {}).items():
        pickle.add(name, tensors[numbers[kept]], numbers[kept])
    members = [
        NewMember(f"{_ROOT}/data.pkl", pickle.finished()),
        NewMember(f"{_ROOT}/byteorder", b"little"),
        *([] if layout is None else [NewMember(f"{_ROOT}/{LAYOUT_KEY}", layout.encode())]),
        *(NewMember(f"{_ROOT}/data/{number}", b"", tensor) for number, tensor in enumerate(tensors)),
        NewMember(f"{_ROOT}/version", b"3\n"),
    ]
    return plan_zip(members)


def plan_tensor(tensor: TensorSnapshot) -> WritePlan:
    """Plan what ``torch.save`` of one tensor writes, as the entries of distributed checkpoints are."""
    pickle = _Pickle(b"")
    with located(tensor=tensor.path):
        pickle.add_tensor(tensor, 0)
    return plan_zip(
        [
            NewMember(f"{_ROOT}/data.pkl", pickle.finished(b".")),
            NewMember(f"{_ROOT}/byteorder", b"little"),
            NewMember(f"{_ROOT}/data/0", b"", tensor),
            NewMember(f"{_ROOT}/version", b"3\n"),
        ]
    )


def dtype_name(dtype: DType) -> str:
    """Return torch's name of a dtype; DTypeError if it has none."""
    if dtype not in _STORAGES and dtype not in _UNTYPED:
        raise no_dtype("PyTorch", dtype)
    return _UNTYPED.get(dtype) or _NAMES[dtype]


class _Pickle:
    """The pickle of a dict of tensors, in the making. Texts and globals that recur are written once."""

    def __init__(self, begin: bytes = b"}(") -> None:
        self._out = bytearray(b"\x80\x02" + begin)
        self._memo: dict[bytes, int] = {}

    def add(self, name: str, tensor: TensorSnapshot, storage: int) -> None:
        """Add a tensor that has a whole storage, with its name."""
        self._out += _text(name)
        self.add_tensor(tensor, storage)

    def add_tensor(self, tensor: TensorSnapshot, storage: int) -> None:
        """Add a tensor that has a whole storage."""
        dtype, shape, count = tensor.dtype, tensor.shape, math.prod(tensor.shape)
        old, new = _STORAGES.get(dtype), _UNTYPED.get(dtype)
        if old is None and new is None:
            raise no_dtype("PyTorch", dtype)
        self._once(_global("torch._utils", "_rebuild_tensor_v2" if old else "_rebuild_tensor_v3"))
        self._out += b"(("
        self._once(_text("storage"))
        self._once(_global("torch", f"{old}Storage") if old else _global("torch.storage", "UntypedStorage"))
        self._out += _text(str(storage))
        self._once(_text("cpu"))
        self._out += _integer(count if old else tensor.nbytes) + b"tQ" + _integer(0)
        strides = list(accumulate(reversed(shape[1:]), lambda a, b: a * max(b, 1), initial=1))[::-1] if shape else []
        self._out += _tuple(shape) + _tuple(strides) + b"\x89"
        self._once(_global("collections", "OrderedDict"))
        self._out += b")R"
        if new is not None:
            self._once(_global("torch", new))
        self._out += b"tR"

    def _once(self, code: bytes) -> None:
        known = self._memo.get(code)
        if known is not None:
            self._out += b"h" + bytes([known])
            return
        number = self._memo[code] = len(self._memo)
        self._out += code + b"q" + bytes([number])

    def finished(self, end: bytes = b"u.") -> bytes:
        """Return the whole pickle."""
        return bytes(self._out + end)


def _text(text: str) -> bytes:
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _integer(value: int) -> bytes:
    if value < 1 << 8:
        return b"K" + bytes([value])
    if value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    length = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([length]) + value.to_bytes(length, "little")


def _tuple(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_integer, values)) + b"t" if values else b")"
