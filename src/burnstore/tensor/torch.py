"""Torch tensors from bytes. The only file that imports torch, and only when a function here is called.

A tensor cannot be read-only. So it shares memory only where writing to it changes nothing for others: memory that was
read for it, an array of the caller's, and for a mapped file a private mapping that no other tensor has (a write never
reaches the file). Memory that must not change, such as ``bytes``, a bytearray or a read-only array, is copied.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
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
from ..io.gpu.buffers import fetched, transfer_settings
from ..io.gpu.chunks import Range
from ..io.gpu.sinks import NewSink
from ..io.gpu.staging import CudaStaging, TensorStaging
from ..io.gpu.transfer import transfer
from ..io.sizes import GPU_SMALL_BYTES
from ..io.source import FileMap, Source, part_of
from ..io.workers import in_batches
from .data import Array, Shape, array_from_bytes, checked_array, little_endian
from .dtype import DType, Kind
from .sources import AxisSlice, Data

Tensor = Any
"""A torch.Tensor. Torch's types are not used: reading them would take mypy longer than all of burnstore."""

Device = Any
"""A str, an int or a torch.device; None leaves a tensor where it is."""

TRANSFER_DEVICES = {"cuda"}
"""The types of devices that bytes are transferred to and from through pinned memory."""
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
# Dtypes that NumPy itself does not have pass as integers of the same width: only the bits matter.
_INTEGERS: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 16: np.dtype("<i2"), 32: np.dtype("<i4")}


def torch_package() -> Any:
    """Import and return the torch package."""
    if sys.byteorder != "little":
        raise UnsupportedError("tensors are shared with PyTorch on little-endian machines only")
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("PyTorch is not installed", hint="pip install torch") from error
    return torch


def is_tensor(value: Any) -> bool:
    """Return whether this is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def described(tensor: Tensor) -> tuple[DType, Shape]:
    """Return the dtype and shape of this tensor in a file; ModelError where a tensor is more than its elements.

    ``float4_e2m1fn_x2`` has two values in an element, so the last extent is doubled.
    """
    kind: Any = type(tensor)
    is_lazy, is_foreign, strided = _traits_of(kind)
    if is_lazy:
        raise ModelError("its module is lazy and has no shape yet", hint="run one forward pass first")
    if tensor.is_nested:
        raise ModelError("nested tensors are not supported", hint="unbind it and store its parts, or pad it")
    if tensor.layout is not strided:
        raise ModelError(f"tensors of layout {tensor.layout} are not supported", hint="make it dense with to_dense()")
    if tensor.is_quantized:
        raise ModelError(
            f"quantized tensors ({tensor.dtype}) are not supported", hint="store its dequantize() or its int_repr()"
        )
    if is_foreign:
        raise ModelError(
            f"tensors of the class {kind.__name__}, which stores its elements itself, are not supported",
            hint="store a plain tensor made from it (full_tensor() of a DTensor, dequantize() of a quantized one)",
        )
    dtype = _dtype_of(tensor.dtype)
    shape = tuple(tensor.shape)
    if dtype is DType.F4:
        if not shape:
            raise DTypeError("a float4_e2m1fn_x2 without axes has two values, which no shape can state")
        shape = (*shape[:-1], shape[-1] * 2)
    return dtype, shape


@functools.cache
def _traits_of(kind: Any) -> tuple[bool, bool, Any]:
    """Return whether tensors of a class are lazy, whether they store their elements themselves, and torch.strided."""
    torch = torch_package()
    is_lazy = issubclass(kind, torch.nn.parameter.UninitializedTensorMixin)
    return is_lazy, kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__, torch.strided


_dtype_of = functools.cache(DType.of)  # called for every tensor, and there are few dtypes


def has_staging(device: Device) -> bool:
    """Return whether bytes go to this device through pinned memory: GPUs of CUDA and ROCm."""
    return torch_package().device(device).type in TRANSFER_DEVICES


def is_transferred(dtype: DType, nbytes: int, device: Device) -> bool:
    """Return whether a tensor goes through staging: a large one whose bytes in the file are its values."""
    large = device is not None and nbytes >= GPU_SMALL_BYTES and dtype.kind not in (Kind.BOOL, Kind.QUANTIZED)
    return large and has_staging(device)


def staging_for(device: Device) -> TensorStaging:
    """Return the staging for a device of `TRANSFER_DEVICES`."""
    torch = torch_package()
    wanted = torch.device(device)
    if wanted.type != "cuda":
        return TensorStaging(torch, wanted)
    return CudaStaging(torch, wanted if wanted.index is not None else torch.device("cuda", torch.cuda.current_device()))


@contextmanager
def device_errors(device: Device, nbytes: int) -> Iterator[None]:
    """Turn torch's errors about a device into DeviceError; in the block this many bytes go there."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, BurnstoreError):
            raise
        raise device_error(error, device, nbytes) from error


def device_error(error: RuntimeError, device: Device, nbytes: int) -> DeviceError:
    """Return our error for one of torch's about the transfer of this many bytes."""
    reason = str(error).strip().partition("\n")[0]
    if isinstance(error, torch_package().OutOfMemoryError):
        return DeviceError(
            f"{device} has no memory left for {nbytes:,} bytes: {reason}",
            hint="free memory there, load only a part of the file, or use a smaller dtype",
        )
    return DeviceError(f"{device} failed during the transfer of {nbytes:,} bytes: {reason}")


def untracked_views() -> AbstractContextManager[None]:
    """Make views in the block without torch's record of their bases, which takes longer than making them."""
    guard = getattr(torch_package()._C, "_AutoDispatchBelowADInplaceOrView", nullcontext)
    entered: AbstractContextManager[None] = guard()
    return entered


def transferred(source: Source, offset: int, nbytes: int, dtype: DType, shape: Shape, device: Device) -> Tensor:
    """Return the values of a range of a source, on a device of `TRANSFER_DEVICES`."""
    with device_errors(device, nbytes):
        staging = staging_for(device)
        sink = NewSink(staging, nbytes)
        transfer([Range(*part_of(source, offset, nbytes), nbytes, sink)], staging, readers=staging.readers)
    return sink.memory.view(torch_dtype(dtype)).view(torch_shape(dtype, shape))


def as_bits(tensor: Tensor) -> Tensor:
    """View a tensor as integers of its width, if torch has them: copies then keep every bit, also of a NaN."""
    bits = _BITS.get(tensor.element_size())
    if bits is None or tensor.is_conj() or tensor.is_neg():
        return tensor
    return tensor.view(getattr(torch_package(), bits))


def tensor_from_bytes(raw: memoryview | Array, dtype: DType, shape: Shape) -> Tensor:
    """Return the values of these bytes, quantized ones dequantized; see above for shared memory."""
    torch = torch_package()
    memory = _writable(raw)
    if dtype.kind in (Kind.BOOL, Kind.QUANTIZED):
        return tensor_from_array(array_from_bytes(memory, dtype, shape))
    numpy_dtype, torch_dtype = _passed_as(dtype)
    try:
        array: Array = np.ndarray(torch_shape(dtype, shape), numpy_dtype, memory)
    except ValueError as error:  # too many axes, or extents beside a zero whose product overflows
        raise UnsupportedError(f"torch has no tensor of shape {list(shape)}: {error}") from error
    tensor = torch.from_numpy(array if array.flags.aligned else array.copy())
    return tensor if torch_dtype is None else tensor.view(torch_dtype)


def tensor_from_array(array: Array) -> Tensor:
    """Return an array as a tensor, which shares its memory if that is writable and torch has its strides."""
    array, dtype = checked_array(array)
    numpy_dtype, torch_dtype = _passed_as(dtype)
    values = np.asarray(array, little_endian(array.dtype)).view(numpy_dtype)
    width = values.itemsize
    flags = values.flags
    if not flags.writeable and flags.c_contiguous:
        memory = _alias(values.reshape(-1).view(np.uint8)) if values.size else None
        values = values if memory is None else memory.view(numpy_dtype).reshape(values.shape)
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
    """Return a tensor for each place of a buffer; many are made with few calls."""
    torch = torch_package()
    kinds = set(dtypes)
    if all(dtype.kind not in (Kind.BOOL, Kind.QUANTIZED) and dtype is not DType.F4 for dtype in kinds):
        memory = _aliases(buffers)
        if memory is not None and _aligned(dtypes, memory, places):
            with suppress(ValueError, DTypeError):  # the loop below names the tensor
                passed = {dtype: _passed_as(dtype) for dtype in kinds}
                rows = zip(shapes, map(passed.__getitem__, dtypes), memory, places, strict=True)
                made = torch.from_numpy
                if all(torch_dtype is None for _, torch_dtype in passed.values()):
                    return [made(np.ndarray(shape, dtype, at, place)) for shape, (dtype, _), at, place in rows]
                return [
                    made(np.ndarray(shape, dtype, at, place))
                    if torch_dtype is None
                    else made(np.ndarray(shape, dtype, at, place)).view(torch_dtype)
                    for shape, (dtype, torch_dtype), at, place in rows
                ]
    tensors = []
    for row, name in enumerate(names):
        with located(tensor=name):
            raw = memoryview(buffers[row])[places[row] : places[row] + sizes[row]]
            tensors.append(tensor_from_bytes(raw, dtypes[row], shapes[row]))
    return tensors


def _aliases(buffers: Sequence[Any]) -> list[Array] | None:
    """Return the buffers as memory that tensors may write to; None if one of them must not change."""
    memory = {id(buffer): _alias(buffer) for buffer in {id(buffer): buffer for buffer in buffers}.values()}
    found = [alias for alias in map(memory.__getitem__, map(id, buffers)) if alias is not None]
    return found if len(found) == len(buffers) else None


def _aligned(dtypes: Sequence[DType], memory: Sequence[Array], places: Sequence[int]) -> bool:
    """Return whether the address of every tensor is a multiple of its element's width, as torch assumes."""
    widths = {dtype: min(dtype.bits // 8, 8) or 1 for dtype in set(dtypes)}
    starts = {id(at): at.__array_interface__["data"][0] for at in {id(at): at for at in memory}.values()}
    addresses = np.array([starts[id(at)] for at in memory], np.uint64) + np.array(places, np.uint64)
    return not (addresses % np.array(list(map(widths.__getitem__, dtypes)), np.uint64)).any()


def placed(tensor: Tensor, device: Device, *, copy: bool = False) -> Tensor:
    """Return the tensor on that device; with ``copy`` in memory of its own."""
    if device is None and not copy:
        return tensor
    bits = as_bits(tensor)
    try:
        moved = bits.clone() if device is None else bits.to(device, copy=copy)
    except RuntimeError as error:
        raise device_error(error, tensor.device if device is None else device, bits.nbytes) from error
    return moved.view(tensor.dtype)


def _passed_as(dtype: DType) -> tuple[np.dtype[Any], Any]:
    """Return the NumPy dtype by which bits pass to torch, and the torch dtype to view them by, if it is another."""
    name = dtype.torch_name
    if dtype.bits > 32 or dtype.kind in (Kind.INT, Kind.UINT, Kind.BOOL) or name in ("float32", "float16"):
        return dtype.numpy, None
    return _INTEGERS[max(dtype.bits, 8)], torch_dtype(dtype)


def torch_dtype(dtype: DType) -> Any:
    """Return torch's dtype for this one; DTypeError if it has none."""
    return getattr(torch_package(), dtype.torch_name)


def torch_shape(dtype: DType, shape: Shape) -> Shape:
    """Return the shape of the torch tensor: an element of F4 has two values."""
    if dtype is not DType.F4:
        return shape
    if not shape or shape[-1] % 2:
        raise DTypeError(f"PyTorch stores F4 in pairs along the last axis; shape {list(shape)} has no pairs")
    return (*shape[:-1], shape[-1] // 2)


def _writable(raw: memoryview | Array) -> Array:
    """Return this memory as bytes that a tensor may write to, or a copy."""
    found = _alias(raw)
    return np.array(memoryview(raw), np.uint8) if found is None else found


def _alias(raw: memoryview | Array) -> Array | None:
    """Return this memory, or a private mapping of the same bytes, for a tensor to write to; or None."""
    view = memoryview(raw)
    if not view.nbytes:
        return np.empty(0, np.uint8)
    seen: Array = np.frombuffer(view, np.uint8)
    if seen.flags.writeable:
        return seen
    owner: Any = view.obj
    while isinstance(owner, (np.ndarray, memoryview)):  # through any number of views
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, FileMap):
        return None
    mapped = np.frombuffer(owner, np.uint8)
    start = seen.__array_interface__["data"][0] - mapped.__array_interface__["data"][0]
    private = owner.writable(start, view.nbytes)
    return None if private is None else np.frombuffer(private, np.uint8)


# Small tensors are joined on their device before they are fetched, this many bytes at a time.
_BATCH_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class TorchData(Data):
    """A tensor of any strides on any device, as row-major bytes; copied, if at all, when it is read.

    Bytes of a tensor on the CPU are its memory. From other devices they are fetched in pieces of a staging buffer,
    through pinned memory where torch has it; small tensors are fetched together.
    """

    tensor: Tensor

    def window(self, start: int, stop: int) -> memoryview:
        if stop <= start:
            return memoryview(b"")
        if self.tensor.is_cpu:
            return _host_bytes(self.tensor)[start:stop]
        return memoryview(flat_bytes(self.tensor)[start:stop].cpu().numpy())

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        if self.tensor.is_cpu or self.tensor.is_meta:
            return iter((_host_bytes(self.tensor),) if nbytes else ())
        return _fetched(_pieces(self.tensor), self.tensor.device)

    @property
    def streams(self) -> bool:
        return not self.tensor.is_cpu

    @property
    def identity(self) -> Hashable | None:
        tensor = self.tensor
        if tensor.is_meta or not tensor.numel() or tensor.is_conj() or tensor.is_neg():
            return None
        return str(tensor.device), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()

    @property
    def address(self) -> int | None:
        return None if self.tensor.is_meta else self.tensor.data_ptr()

    @property
    def batch_key(self) -> Device:
        tensor = self.tensor
        if tensor.is_meta or (tensor.is_cpu and "cpu" not in TRANSFER_DEVICES):
            return None
        return tensor.device if 0 < tensor.nbytes < GPU_SMALL_BYTES else None

    @staticmethod
    def fetch_batch(batch: Sequence[TorchData]) -> Iterator[memoryview]:
        """Yield the bytes of each of these small tensors, which are on one device."""
        torch = torch_package()
        most = min(_BATCH_BYTES, transfer_settings().buffer_bytes)
        groups = in_batches([data.tensor for data in batch], lambda tensor: int(tensor.nbytes), most)
        arriving = _fetched((torch.cat(list(map(flat_bytes, group))) for group in groups), batch[0].tensor.device)
        left = memoryview(b"")
        for data in batch:
            left = left or next(arriving)
            yield left[: data.tensor.nbytes]
            left = left[data.tensor.nbytes :]

    def transposed(self, rows: int, columns: int, width: int) -> Data:
        # A GPU transposes faster than the bus transfers.
        return Data.transposed(self, rows, columns, width) if self.tensor.is_cpu else TorchData(self.tensor.t())

    def _sliced(self, part: AxisSlice) -> Data:
        pairs = DType.of(self.tensor.dtype) is DType.F4 and part.axis == self.tensor.dim() - 1
        each = 2 if pairs else 1
        return TorchData(self.tensor.narrow(part.axis, part.start // each, (part.stop - part.start) // each))


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the row-major bytes of a tensor, on its device; shares its memory where that has them."""
    if tensor.is_meta:
        raise ModelError("on the meta device, which has no values", hint="load or initialise the model first")
    plain = tensor.detach()
    if not _is_plain(plain):
        plain = as_bits(_resolved(plain)).contiguous()
    return plain_bytes(plain)


def plain_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor without a gradient."""
    # Not by reshape: a single element may have any stride, and torch then refuses to view it as bytes.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch_package().uint8)


def _resolved(tensor: Tensor) -> Tensor:
    """Apply a negation or conjugation that torch only noted.

    Both change the sign bit and no other, as torch does on a CPU; a GPU also changes the payload of a NaN.
    """
    torch = torch_package()
    if tensor.is_neg():
        return _flip_signs(_resolved(torch._neg_view(tensor)))
    if tensor.is_conj():
        held = torch.view_as_real(tensor.conj())  # conjugated twice: the stored numbers
        return torch.view_as_complex(torch.stack((held[..., 0], _flip_signs(held[..., 1])), -1))
    return tensor


def _flip_signs(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return torch_package().view_as_complex(_flip_signs(torch_package().view_as_real(tensor)))
    bits = as_bits(tensor)
    return (bits ^ torch_package().iinfo(bits.dtype).min).view(tensor.dtype)


def _host_bytes(tensor: Tensor) -> memoryview:
    """Return the row-major bytes of a tensor on the CPU that has some."""
    if tensor.is_meta or not _is_plain(tensor):
        return memoryview(flat_bytes(tensor).numpy())
    plain = tensor.detach()  # few calls: there may be very many tensors
    return memoryview((plain if _is_castable(plain.dtype) else as_bits(plain)).numpy()).cast("B")


@functools.cache
def _is_castable(dtype: Any) -> bool:
    """Return whether Python casts a buffer of this dtype to bytes; others are viewed as integers first."""
    return str(dtype) in {f"torch.{name}" for name in ("float32", "float64", *_BITS.values())}


def _is_plain(tensor: Tensor) -> bool:
    """Return whether the memory of a tensor has its row-major bytes."""
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the row-major bytes of a tensor on its device, each piece at most as long as a staging buffer.

    A tensor of other strides is reordered piece by piece: there is never a second copy of it on the device.
    """
    most = transfer_settings().buffer_bytes
    todo = [tensor.detach()]
    while todo:
        part = todo.pop()
        if _is_plain(part):
            yield from flat_bytes(part).split(most)
        elif part.nbytes <= most:
            yield flat_bytes(part)
        else:
            row_bytes = part[0].nbytes
            todo += reversed(part.unbind() if row_bytes > most else part.split(most // row_bytes))


def _fetched(pieces: Iterator[Tensor], device: Device) -> Iterator[memoryview]:
    """Yield the bytes of pieces on the host; DeviceError if their device fails."""
    try:
        if device.type == "cuda":
            yield from fetched(pieces, _pinned, _copied)
        else:
            yield from (memoryview(piece.cpu().numpy()) for piece in pieces)
    except RuntimeError as error:
        if isinstance(error, BurnstoreError):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise DeviceError(f"{device} failed while its tensors were read: {reason}") from error


def _pinned(nbytes: int) -> Tensor:
    torch = torch_package()
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


def _copied(tensor: Tensor) -> Any:
    """Return an event after the copies that were started from this tensor's device."""
    return torch_package().cuda.current_stream(tensor.device).record_event()
