"""The calls by which torch rebuilds tensors: what each of its releases has written, as descriptions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import CorruptError, UnsupportedError, located, printable
from ...tensor.dtype import DType
from ..codec.pickle_values import Builder, Call, Symbol, kind_of
from .calls import ARRAY_CALLS, PLAIN_CALLS, Args, NumpyArray, arguments
from .dtensor import (
    SHARDED_TENSOR,
    is_dtensor,
    is_sharded_tensor,
    placed_tensor,
    sharded_piece,
    sharded_tensor,
    unplaced_tensor,
)
from .tensors import (
    AttributedTensor,
    CompositeTensor,
    PickledTensor,
    PlacedTensor,
    Storage,
    Storages,
    StorageView,
    UnbuiltTensor,
    Unread,
    torch_dtype,
    view,
    whole_numbers,
)

_INDEX_NAMES = {
    "torch.sparse_coo": ("indices",),
    "torch.sparse_csr": ("crow_indices", "col_indices"),
    "torch.sparse_csc": ("ccol_indices", "row_indices"),
    "torch.sparse_bsr": ("crow_indices", "col_indices"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices"),
}
_PACKED = ("QUInt4x2Storage", "QUInt2x4Storage")
_QUANTIZED = ("QInt8Storage", "QUInt8Storage", "QInt32Storage")
_OLD_CLASSES = [
    f"{name}Tensor"
    for name in ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool", "")
]

Embedded = Callable[[bytes], Storage]
"""Reads the storage in bytes that hold a whole file of their own."""


class TensorCalls:
    """Builders for one file: they share its storages."""

    def __init__(self, storages: Storages, embedded: Embedded | None = None, *, inline_storages: bool = False) -> None:
        self._storages = storages
        self._embedded = embedded
        self._inline_storages = inline_storages

    def persistent(self, identity: Any) -> Any:
        """Return what a persistent id of torch stands for: a storage, or (in old files) the class that it names."""
        if not isinstance(identity, tuple) or not identity:
            raise CorruptError(f"a persistent id that is a {kind_of(identity)}", rule="PT-19")
        kind = identity[0].decode("latin-1") if isinstance(identity[0], bytes) else identity[0]
        if kind == "module" and len(identity) == 4 and isinstance(identity[1], Symbol):
            return identity[1]  # The source text behind it is only of use to a program that runs it.
        if kind != "storage" or len(identity) not in (5, 6):
            raise CorruptError("a persistent id that is not a storage's", rule="PT-19")
        storage = self._storages.get(identity[2], identity[1], identity[4])
        if len(identity) == 5 or identity[5] is None:
            return storage
        if not isinstance(identity[5], tuple) or len(identity[5]) != 3 or storage.dtype is None:
            raise CorruptError("a storage's view is not described by a key, an offset and a size", rule="PT-19")
        with located(rule="PT-19"):
            return StorageView(storage, *identity[5][1:])

    def builders(self) -> dict[tuple[str, str], Builder]:
        """Return every known call, by module and name."""
        utils = {
            "_rebuild_tensor": self._on_storage(_tensor),
            "_rebuild_tensor_v2": self._on_storage(_tensor_v2),
            "_rebuild_tensor_v3": _tensor_v3,
            "_rebuild_parameter": _parameter,
            "_rebuild_parameter_with_state": _parameter,
            "_rebuild_qtensor": _quantized,
            "_rebuild_sparse_tensor": _sparse,
            "_rebuild_nested_tensor": _nested,
            "_rebuild_meta_tensor_no_storage": _meta,
            "_rebuild_wrapper_subclass": _wrapper,
            "_rebuild_device_tensor_from_numpy": _from_numpy,
            "_rebuild_xla_tensor": _from_numpy,
            "_rebuild_device_tensor_from_cpu_tensor": _from_tensor,
        }
        old = [(module, name) for module in ("torch", "torch.cuda") for name in _OLD_CLASSES]
        old += [("torch._tensor", "Tensor"), ("torch.autograd.variable", "Variable")]
        return {
            **PLAIN_CALLS,
            **{key: self._registered(build) for key, build in ARRAY_CALLS.items()},
            **{("torch._utils", name): build for name, build in utils.items()},
            **{(module, "_rebuild_from_type_v2"): _from_type for module in ("torch._tensor", "torch.tensor")},
            **{(module, "_rebuild_from_type"): _from_type for module in ("torch._tensor", "torch.tensor")},
            ("torch.storage", "_load_from_bytes"): self._from_bytes,
            ("torch.nn.parameter", "Parameter"): _parameter_class,
            ("torch.nn.parameter", "Buffer"): _parameter_class,
            SHARDED_TENSOR: sharded_tensor,
            **{key: lambda args, key=key: UnbuiltTensor(Symbol(*key), args) for key in old},  # type: ignore[misc]
        }

    def _on_storage(self, build: Builder) -> Builder:
        """Accept the description of a storage in its place, as the first tars of Burn's tests have it."""

        def make(args: Args) -> Any:
            described = bool(args) and isinstance(args[0], tuple)
            return build((self.persistent(args[0]), *args[1:]) if described else args)

        return make if self._inline_storages else build

    def _registered(self, build: Builder) -> Builder:
        """Keep a list of the arrays that are made, so that none of them can vanish."""

        def make(args: Args) -> Any:
            made = build(args)
            self._storages.arrays.append(made)
            return made

        return make

    def _from_bytes(self, args: Args) -> Any:
        (raw,) = arguments(args, 1, 1, "_load_from_bytes")
        if not isinstance(raw, bytes):
            raise CorruptError(f"a storage in a {kind_of(raw)}", rule="PT-14")
        if self._embedded is None:
            raise CorruptError("a file inside a file inside a file", rule="PT-14")
        return self._embedded(raw)


def rebuilt(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    *,
    bits: Any = None,
    dtype: DType | None = None,
) -> PickledTensor:
    """Return a tensor as torch's functions describe it: on a storage, with its lazy bits, if any."""
    if not isinstance(storage, Storage):
        raise CorruptError(f"a tensor whose storage is a {kind_of(storage)}", rule="PT-22")
    if dtype is not None and storage.dtype is not None and storage.dtype is not dtype:
        raise CorruptError(f"a tensor of {dtype.name} on a storage of {storage.dtype.name}", rule="PT-19")
    tensor = view(storage, dtype or storage.dtype or DType.U8, offset, size, stride)
    tensor.requires_grad = requires_grad is True
    if bits is not None:
        if not isinstance(bits, dict):
            raise CorruptError(f"the lazy bits of a tensor are a {kind_of(bits)}", rule="PT-22")
        given = {name for name, value in bits.items() if value is True}
        if given - {"conj", "neg"}:
            raise UnsupportedError("a tensor with unknown lazy bits", rule="PT-22")
        tensor.conjugated, tensor.negated = "conj" in given, "neg" in given
    return tensor


def _tensor(args: Args) -> Any:
    return rebuilt(*arguments(args, 4, 4, "_rebuild_tensor"))


def _tensor_v2(args: Args) -> Any:
    given = arguments(args, 5, 7, "_rebuild_tensor_v2")
    return rebuilt(*given[:5], bits=given[6] if len(given) > 6 else None)


def _tensor_v3(args: Args) -> Any:
    given = arguments(args, 7, 8, "_rebuild_tensor_v3")
    try:
        dtype = torch_dtype(given[6])
    except UnsupportedError as error:
        return Unread("torch._utils._rebuild_tensor_v3", args, error.message)
    return rebuilt(*given[:5], bits=given[7] if len(given) > 7 else None, dtype=dtype)


def _quantized(args: Args) -> Any:
    storage, offset, size, stride, how, *_ = arguments(args, 6, 7, "_rebuild_qtensor")
    if not isinstance(storage, Storage) or not isinstance(how, tuple) or not how or not isinstance(how[0], Symbol):
        raise CorruptError("a quantized tensor of an impossible form", rule="PT-22")
    if storage.class_name in _PACKED:
        return Unread("torch._utils._rebuild_qtensor", args, "a quantized tensor with several codes in a byte")
    if storage.class_name not in _QUANTIZED:
        raise CorruptError(f"a quantized tensor on a {storage.class_name}", rule="PT-22")
    codes, scheme = rebuilt(storage, offset, size, stride), how[0].name
    parts: dict[str, Any] = {"int_repr": codes}
    facts: dict[str, Any] = {"scheme": scheme, "shape": codes.shape}
    if scheme in ("per_tensor_affine", "per_tensor_symmetric") and len(how) == 3:
        if not isinstance(how[1], float) or type(how[2]) is not int or not -(1 << 31) <= how[2] < 1 << 31:
            raise CorruptError("a quantized tensor without its scale and zero point", rule="PT-22")
        parts |= {"scale": np.array(how[1], "<f8"), "zero_point": np.array(how[2], "<i8")}
    elif scheme.startswith("per_channel_") and len(how) == 4:
        _, scales, zeros, axis = how
        right = all(isinstance(part, PickledTensor) and len(part.shape) == 1 for part in (scales, zeros))
        if not right or type(axis) is not int or not 0 <= axis < len(codes.shape):
            raise CorruptError("a quantized tensor without its scales, zero points and axis", rule="PT-22")
        if not codes.shape[axis] == scales.shape[0] == zeros.shape[0]:
            raise CorruptError("a quantized tensor with another number of scales than channels", rule="PT-22")
        floats = (DType.F32, DType.F64)
        if scales.dtype not in floats or zeros.dtype not in (*floats, DType.I64, DType.I32):
            raise CorruptError("a quantized tensor whose scales or zero points are of another dtype", rule="PT-22")
        parts |= {"scale": scales, "zero_point": zeros, "axis": np.array(axis, "<i8")}
        facts["axis"] = axis
    else:
        raise CorruptError(f"quantized by the unknown scheme {printable(scheme)}", rule="PT-22")
    return CompositeTensor("quantized", parts, facts)


def _parameter(args: Args) -> Any:
    data, requires_grad, *more = arguments(args, 2, 4, "_rebuild_parameter")
    if isinstance(data, PickledTensor) and requires_grad is True:
        data.requires_grad = True
    return _with_attributes(data, more[1] if len(more) > 1 else None)


def _with_attributes(tensor: Any, state: Any) -> Any:
    """Keep the attributes of a tensor, which a state is, or the first two parts of it."""
    parts = [part for part in (state if isinstance(state, tuple) else (state,)) if part]
    if not parts:
        return tensor
    if isinstance(tensor, CompositeTensor):
        tensor.state = state
    if isinstance(tensor, PlacedTensor):
        tensor.state = state
        return tensor
    return AttributedTensor(tensor, state) if isinstance(tensor, PickledTensor) else tensor


def _parameter_class(args: Args) -> Any:
    if args and isinstance(args[0], (PickledTensor, CompositeTensor)):
        return _parameter((args[0], args[1] if len(args) > 1 else True))
    return UnbuiltTensor(Symbol("torch.nn.parameter", "Parameter"), args)


def _from_type(args: Args) -> Any:
    """Rebuild a subclass of Tensor, or a tensor with attributes."""
    function, kind, inner, state = arguments(args, 4, 4, "_rebuild_from_type")
    if not isinstance(function, Symbol) or not isinstance(inner, tuple):
        raise CorruptError("a tensor of a subclass, of an impossible form", rule="PT-22")
    if function.build is None:
        return Call(function, args)
    made = function.build(inner)
    if is_dtensor(kind):
        try:
            return placed_tensor(state)
        except UnsupportedError as error:
            return unplaced_tensor(state, error.message, error.hint) or Unread(kind_of(kind), args, error.message)
    if is_sharded_tensor(kind):
        return sharded_piece(state, made.facts["dtype"] if isinstance(made, CompositeTensor) else None)
    if isinstance(made, CompositeTensor) and made.kind == "wrapper":
        attributes = state[0] if isinstance(state, tuple) and state else state
        held = attributes.items() if isinstance(attributes, dict) else ()
        made.parts = {
            name: value
            for name, value in held
            if isinstance(value, (PickledTensor, CompositeTensor)) and type(name) is str
        }
        if not made.parts:
            return Unread(kind_of(kind), args, "a tensor subclass without tensors in it")
        state = {name: value for name, value in held if name not in made.parts}
    return _with_attributes(made, state)


def _tensor_parts(names: tuple[str, ...], values: Args, what: str) -> dict[str, Any]:
    parts = dict(zip(names, values, strict=False))
    if not all(isinstance(part, PickledTensor) for part in parts.values()):
        raise CorruptError(f"a {what} tensor whose parts are not tensors", rule="PT-22")
    return parts


def _sparse(args: Args) -> Any:
    layout, data = arguments(args, 2, 2, "_rebuild_sparse_tensor")
    if not isinstance(layout, str) or not isinstance(data, tuple):
        raise CorruptError("a sparse tensor of an impossible form", rule="PT-22")
    if layout not in _INDEX_NAMES:
        raise UnsupportedError(f"a tensor of the layout {printable(layout)}", rule="PT-22")
    names = (*_INDEX_NAMES[layout], "values")
    if len(data) not in (len(names) + 1, len(names) + 2):
        raise CorruptError(f"a sparse tensor of {len(data)} parts", rule="PT-22")
    parts = _tensor_parts(names, data, "sparse")
    size = whole_numbers(data[len(names)], "size")
    parts["size"] = np.array(size, "<i8")
    return CompositeTensor(layout.removeprefix("torch."), parts, {"shape": size})


def _nested(args: Args) -> Any:
    names = ("buffer", "sizes", "strides", "offsets")
    return CompositeTensor("nested", _tensor_parts(names, arguments(args, 4, 4, "a nested tensor"), "nested"), {})


def _wrapper(args: Args) -> Any:
    kind, dtype, size, *_ = arguments(args, 8, 8, "_rebuild_wrapper_subclass")
    facts = {"class": kind_of(kind), "shape": whole_numbers(size, "size"), "dtype": _dtype_or_none(dtype)}
    return CompositeTensor("wrapper", {}, facts)


def _dtype_or_none(dtype: Any) -> DType | None:
    try:
        return torch_dtype(dtype)
    except (UnsupportedError, CorruptError):
        return None


def _meta(args: Args) -> Any:
    dtype, size, stride, requires_grad = arguments(args, 4, 4, "a meta tensor")
    shape, strides = whole_numbers(size, "size"), whole_numbers(stride, "stride")
    return PickledTensor(None, torch_dtype(dtype), 0, shape, strides, requires_grad=requires_grad is True)


def _from_numpy(args: Args) -> Any:
    array, dtype, _, _ = arguments(args, 4, 4, "a tensor from NumPy")
    held = array.array if isinstance(array, NumpyArray) else None
    if held is None or array.reason is not None or DType.of(held.dtype) is not torch_dtype(dtype):
        return Unread("torch._utils._rebuild_device_tensor_from_numpy", args, "a tensor stored in another dtype")
    return array


def _from_tensor(args: Args) -> Any:
    tensor, dtype, _, _ = arguments(args, 4, 4, "a tensor from the CPU")
    if not isinstance(tensor, PickledTensor) or tensor.dtype is not torch_dtype(dtype):
        return Unread("torch._utils._rebuild_device_tensor_from_cpu_tensor", args, "a tensor stored in another dtype")
    return tensor
