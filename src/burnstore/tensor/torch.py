"""Torch tensors: bytes as tensors. The only file that imports torch, and only when it is asked to.

A tensor cannot be read-only. So one shares the memory that it is made of where writing to it does no harm: memory that
is writable anyway, and a mapped file, because files are mapped privately (what is written stays in this process and
never reaches the file). What must not change, such as ``bytes`` or a read-only array, is copied.
"""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from ..errors import (
    BurnstoreError,
    DeviceError,
    DTypeError,
    MissingDependencyError,
    ModelError,
    UnsupportedError,
    located,
)
from ..io.gpu.chunks import Range
from ..io.gpu.engine import carry
from ..io.gpu.sinks import SMALL, Fresh
from ..io.gpu.transfer import CudaCarrier, TensorCarrier
from ..io.joined import part_of
from ..io.source import Source
from .data import Array, Shape, array_from_bytes, checked_array, little_endian
from .dtype import DType, Kind

Tensor = Any
"""A torch.Tensor. Torch's types are not used here: reading them would take longer than reading all of burnstore."""

Device = Any
"""What torch takes for a device: a str, an int, a torch.device; None leaves a tensor where it is."""

CARRIED = {"cuda"}
"""The types of devices that bytes go to and come from through pinned memory."""
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
# Dtypes that NumPy proper has not travel as integers of the same width; all that matters is the bits.
_CARRIERS: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 16: np.dtype("<i2"), 32: np.dtype("<i4")}


def torch_package() -> Any:
    """The torch package, imported if nobody has done so yet."""
    if sys.byteorder != "little":
        raise UnsupportedError("tensors are shared with PyTorch on little-endian machines only")
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("PyTorch is not installed", hint="pip install torch") from error
    return torch


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def described(tensor: Tensor) -> tuple[DType, Shape]:
    """The dtype and shape that a file gives this tensor; ModelError where it is more than its elements.

    ``float4_e2m1fn_x2`` has two values in an element, so the last extent is doubled.
    """
    torch = torch_package()
    kind = type(tensor)
    if issubclass(kind, torch.nn.parameter.UninitializedTensorMixin):
        raise ModelError("its module is lazy and has no shape yet", hint="run one forward pass first")
    if tensor.is_nested:
        raise ModelError("a nested tensor", hint="unbind it and store its parts, or pad it")
    if tensor.layout is not torch.strided:
        raise ModelError(f"a tensor of layout {tensor.layout}", hint="make it dense with to_dense()")
    if tensor.is_quantized:
        raise ModelError(f"a quantized tensor ({tensor.dtype})", hint="store dequantize() of it, or its int_repr()")
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ModelError(
            f"a {kind.__name__}, which keeps its elements in a way of its own",
            hint="store a plain tensor made of it (full_tensor() of a DTensor, dequantize() of a quantized one)",
        )
    dtype = _dtype_of(tensor.dtype)
    shape = tuple(tensor.shape)
    if dtype is DType.F4:
        if not shape:
            raise DTypeError("a float4_e2m1fn_x2 without axes holds two values, which no shape says")
        shape = (*shape[:-1], shape[-1] * 2)
    return dtype, shape


_dtype_of = functools.cache(DType.of)  # it is asked for every tensor, and there are few


def carries_to(device: Device) -> bool:
    """Whether bytes go to this device through pinned memory: to GPUs of CUDA and ROCm."""
    return carries_to_type(torch_package().device(device).type)


def carries_to_type(name: str) -> bool:
    """The same of all devices of a type, such as ``cpu``."""
    return name in CARRIED


def is_carried(dtype: DType, nbytes: int, device: Device) -> bool:
    """Whether a tensor is worth the ring's while: large, and of a dtype that is taken as it lies in the file."""
    large = device is not None and nbytes >= SMALL and dtype.kind not in (Kind.BOOL, Kind.QUANTIZED)
    return large and carries_to(device)


def carrier_to(device: Device) -> CudaCarrier | TensorCarrier:
    """What carries bytes to a device of which `carries_to` says so."""
    torch = torch_package()
    wanted = torch.device(device)
    if wanted.type != "cuda":
        return TensorCarrier(torch, wanted)
    return CudaCarrier(torch, wanted if wanted.index is not None else torch.device("cuda", torch.cuda.current_device()))


@contextmanager
def device_errors(device: Device, nbytes: int) -> Iterator[None]:
    """In the block, in which so many bytes go to a device, what torch says of its failures becomes a DeviceError."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, BurnstoreError):
            raise
        raise device_error(error, device, nbytes) from error


def device_error(error: RuntimeError, device: Device, nbytes: int) -> DeviceError:
    """The error of ours for one of torch's, when so many bytes were to go to a device."""
    said = str(error).strip().partition("\n")[0]
    if isinstance(error, torch_package().OutOfMemoryError):
        return DeviceError(
            f"{device} has no memory left, {nbytes:,} bytes were to go there: {said}",
            hint="free what is not needed there, load only a part of the file, or take a smaller dtype",
        )
    return DeviceError(f"{device} failed when {nbytes:,} bytes were to go there: {said}")


def apart() -> AbstractContextManager[None]:
    """In the block, views are made as tensors that know nothing of each other, as those of one NumPy array are.

    Torch then keeps no account of what is a view of what, which takes longer than to make it.
    """
    guard = getattr(torch_package()._C, "_AutoDispatchBelowADInplaceOrView", nullcontext)
    entered: AbstractContextManager[None] = guard()
    return entered


def carried(source: Source, offset: int, nbytes: int, dtype: DType, shape: Shape, device: Device) -> Tensor:
    """The values that lie there in a source, on a device of which `carries_to` says so."""
    with device_errors(device, nbytes):
        carrier = carrier_to(device)
        landing = Fresh(carrier, nbytes)
        carry([Range(*part_of(source, offset, nbytes), nbytes, landing)], carrier, readers=carrier.readers)
    return landing.memory.view(torch_dtype(dtype)).view(held_shape(dtype, shape))


def as_bits(tensor: Tensor) -> Tensor:
    """The same memory as integers, where there are such wide ones: some dtypes cannot be copied as what they are.

    So a NaN keeps its payload, too.
    """
    bits = _BITS.get(tensor.element_size())
    if bits is None or tensor.is_conj() or tensor.is_neg():
        return tensor
    return tensor.view(getattr(torch_package(), bits))


def tensor_from_bytes(raw: memoryview | Array, dtype: DType, shape: Shape) -> Tensor:
    """The values that these bytes hold, in memory shared as this file's first lines say; quantized ones dequantized."""
    torch = torch_package()
    memory = _writable(raw)
    if dtype.kind in (Kind.BOOL, Kind.QUANTIZED):
        return tensor_from_array(array_from_bytes(memory, dtype, shape))
    carrier, torch_dtype = _spelling(dtype)
    try:
        array: Array = np.ndarray(held_shape(dtype, shape), carrier, memory)
    except ValueError as error:  # more axes than NumPy has, or extents beside a zero whose product overflows
        raise UnsupportedError(f"there is no tensor of shape {list(shape)}: {error}") from error
    tensor = torch.from_numpy(array if array.flags.aligned else array.copy())
    return tensor if torch_dtype is None else tensor.view(torch_dtype)


def tensor_from_array(array: Array) -> Tensor:
    """An array as a tensor, which shares its memory if it can be written and lies as torch can say."""
    array, dtype = checked_array(array)
    carrier, torch_dtype = _spelling(dtype)
    values = np.asarray(array, little_endian(array.dtype)).view(carrier)
    width = values.itemsize
    flags = values.flags
    if not flags.writeable and flags.c_contiguous:
        memory = _alias(values.reshape(-1).view(np.uint8)) if values.size else None
        values = values if memory is None else memory.view(carrier).reshape(values.shape)
    if not (values.flags.writeable and flags.aligned) or any(step < 0 or step % width for step in values.strides):
        values = values.copy()
    tensor = torch_package().from_numpy(values)
    return tensor if torch_dtype is None else tensor.view(torch_dtype)


def tensors_from_buffers(
    names: Sequence[str],
    dtypes: Sequence[DType],
    shapes: Sequence[Shape],
    sizes: Sequence[int],
    buffers: Sequence[Any],
    places: Sequence[int],
) -> list[Tensor]:
    """A tensor for each place of a buffer, all at once."""
    torch = torch_package()
    kinds = set(dtypes)
    if all(dtype.kind not in (Kind.BOOL, Kind.QUANTIZED) and dtype is not DType.F4 for dtype in kinds):
        memory = _aliases(buffers)
        if memory is not None and _aligned(dtypes, memory, places):
            with suppress(ValueError, DTypeError):  # a shape or dtype that there is not: below it is said of which
                spelled = {dtype: _spelling(dtype) for dtype in kinds}
                rows = zip(shapes, map(spelled.__getitem__, dtypes), memory, places, strict=True)
                carried = torch.from_numpy
                if all(torch_dtype is None for _, torch_dtype in spelled.values()):
                    return [carried(np.ndarray(shape, carrier, at, place)) for shape, (carrier, _), at, place in rows]
                return [
                    carried(np.ndarray(shape, carrier, at, place))
                    if torch_dtype is None
                    else carried(np.ndarray(shape, carrier, at, place)).view(torch_dtype)
                    for shape, (carrier, torch_dtype), at, place in rows
                ]
    tensors = []
    for row, name in enumerate(names):
        with located(tensor=name):
            raw = memoryview(buffers[row])[places[row] : places[row] + sizes[row]]
            tensors.append(tensor_from_bytes(raw, dtypes[row], shapes[row]))
    return tensors


def _aliases(buffers: Sequence[Any]) -> list[Array] | None:
    """The buffers as memory that tensors may write to; None if one of them must not change."""
    memory = {id(buffer): _alias(buffer) for buffer in {id(buffer): buffer for buffer in buffers}.values()}
    found = [alias for alias in map(memory.__getitem__, map(id, buffers)) if alias is not None]
    return found if len(found) == len(buffers) else None


def _aligned(dtypes: Sequence[DType], memory: Sequence[Array], places: Sequence[int]) -> bool:
    """Whether every tensor lies at an address that is a multiple of its element's width, as torch's code assumes."""
    widths = {dtype: min(dtype.bits // 8, 8) or 1 for dtype in set(dtypes)}
    starts = {id(at): at.__array_interface__["data"][0] for at in {id(at): at for at in memory}.values()}
    addresses = np.array([starts[id(at)] for at in memory], np.uint64) + np.array(places, np.uint64)
    return not (addresses % np.array(list(map(widths.__getitem__, dtypes)), np.uint64)).any()


def placed(tensor: Tensor, device: Device, *, copy: bool = False) -> Tensor:
    """The tensor on that device; with ``copy`` in memory of its own."""
    if device is None and not copy:
        return tensor
    bits = as_bits(tensor)
    try:
        moved = bits.clone() if device is None else bits.to(device, copy=copy)
    except RuntimeError as error:
        raise device_error(error, tensor.device if device is None else device, bits.nbytes) from error
    return moved.view(tensor.dtype)


def _spelling(dtype: DType) -> tuple[np.dtype[Any], Any]:
    """In which NumPy dtype the bits travel, and as which torch dtype they are then seen, if not as the same."""
    name = dtype.torch_name
    if dtype.bits > 32 or dtype.kind in (Kind.INT, Kind.UINT, Kind.BOOL) or name in ("float32", "float16"):
        return dtype.numpy, None
    return _CARRIERS[max(dtype.bits, 8)], torch_dtype(dtype)


def torch_dtype(dtype: DType) -> Any:
    """Torch's dtype for this one; DTypeError where there is none."""
    return getattr(torch_package(), dtype.torch_name)


def held_shape(dtype: DType, shape: Shape) -> Shape:
    """The shape that a tensor of torch has: of F4 it holds two values in an element."""
    if dtype is not DType.F4:
        return shape
    if not shape or shape[-1] % 2:
        raise DTypeError(f"PyTorch holds F4 in pairs along the last axis, {list(shape)} has no such pairs")
    return (*shape[:-1], shape[-1] // 2)


def _writable(raw: memoryview | Array) -> Array:
    """This memory as bytes that a tensor may write to, or a copy of it."""
    found = _alias(raw)
    return np.array(memoryview(raw), np.uint8) if found is None else found


def _alias(raw: memoryview | Array) -> Array | None:
    """This memory as bytes that a tensor may write to; None if it must not change.

    A source hands out read-only views. Behind those may lie a private mapping or the caller's bytearray. A read-only
    array is the caller's word that it must not change, unless what it shows is such a mapping.
    """
    view = memoryview(raw)
    if not view.nbytes:
        return np.empty(0, np.uint8)
    seen: Array = np.frombuffer(view, np.uint8)
    if seen.flags.writeable:
        return seen
    held: Any = view.obj
    owner = _shown(held) if isinstance(held, np.ndarray) else held
    if not isinstance(owner, (mmap.mmap, bytearray)):
        return None
    whole: Array = np.frombuffer(owner, np.uint8)
    if not whole.flags.writeable:
        return None
    start = seen.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return whole[start : start + view.nbytes]


def _shown(array: Array) -> mmap.mmap | None:
    """The mapping that an array shows, at however many removes."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else base
    return owner if isinstance(owner, mmap.mmap) else None
