"""TorchData: torch tensors as bytes, on any device and of any strides.

Bytes of a tensor on the CPU are its memory. From other devices they are fetched in pieces of a staging buffer, through
pinned memory where torch has it; small tensors are fetched together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BurnstoreError, DeviceError, ModelError
from ..io.gpu.buffers import transfer_settings
from ..io.gpu.fetch import fetched
from ..io.sizes import GPU_SMALL_BYTES
from ..io.workers import in_batches
from .dtype import DType
from .sources import AxisSlice, Data
from .torch import TRANSFER_DEVICES, Device, Tensor, as_bits, torch_package

# Small tensors are joined on their device before they are fetched, this many bytes at a time.
_BATCH_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class TorchData(Data):
    """A tensor of any strides on any device, as row-major bytes; copied, if at all, when it is read."""

    tensor: Tensor

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(flat_bytes(self.tensor)[start:stop].cpu().numpy()) if stop > start else memoryview(b"")

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        if self.tensor.is_cpu or self.tensor.is_meta:
            if nbytes:
                yield _host_bytes(self.tensor)
        else:
            yield from _fetched(_pieces(self.tensor), self.tensor.device)

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
    return memoryview(as_bits(tensor.detach()).numpy()).cast("B")  # few calls: there may be very many tensors


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
