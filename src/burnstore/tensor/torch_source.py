"""Torch bytes: tensors of torch as bytes to be written, wherever they are and however they lie.

On the CPU a tensor is its memory. From other devices it comes in pieces as long as a buffer, through pinned memory
where there is such; small ones come together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import BurnstoreError, DeviceError, ModelError
from ..io.gpu.buffers import settings
from ..io.gpu.fetch import fetched, together
from ..io.gpu.sinks import SMALL
from .data import Array
from .dtype import DType
from .torch import CARRIED, Device, Tensor, as_bits, torch_package

# Small tensors are put together on their device before they are fetched: so many bytes of them, and twice that at most.
_TOGETHER = 4 << 20


class TorchData:
    """A tensor of any strides on any device, as row-major bytes. It is copied, if at all, when it is read."""

    __slots__ = ("tensor",)

    file = None

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(flat_bytes(self.tensor)[start:stop].cpu().numpy()) if stop > start else memoryview(b"")

    def owned(self, start: int, stop: int) -> Array:
        return np.array(self.window(start, stop), np.uint8)

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
    def batch_key(self) -> Device:
        """The device from which it is fetched together with others, see `formats.write`; None for large ones."""
        tensor = self.tensor
        if tensor.is_meta or (tensor.is_cpu and "cpu" not in CARRIED):
            return None
        return tensor.device if 0 < tensor.nbytes < SMALL else None

    @staticmethod
    def fetch_together(batch: Sequence[TorchData]) -> Iterator[memoryview]:
        """The bytes of each of these, which are small and on one device."""
        torch = torch_package()
        most = min(_TOGETHER, settings().buffer_bytes)
        batches = together([data.tensor for data in batch], lambda tensor: tensor.nbytes, most)
        joined = (torch.cat(list(map(flat_bytes, part))) for part in batches)
        arriving = _fetched(joined, batch[0].tensor.device)
        left = memoryview(b"")
        for data in batch:
            left = left or next(arriving)
            yield left[: data.tensor.nbytes]
            left = left[data.tensor.nbytes :]

    def transposed(self) -> TorchData | None:
        """The matrix turned on its device, which a GPU does faster than the bus carries it; None on the CPU."""
        return None if self.tensor.is_cpu else TorchData(self.tensor.t())

    def sliced(self, axis: int, start: int, stop: int) -> TorchData:
        """A part of it along an axis of the shape that `described` gives it."""
        pairs = DType.of(self.tensor.dtype) is DType.F4 and axis == self.tensor.dim() - 1
        each = 2 if pairs else 1
        return TorchData(self.tensor.narrow(axis, start // each, (stop - start) // each))


def flat_bytes(tensor: Tensor) -> Tensor:
    """The row-major bytes of a tensor, on its device; shares its memory where they lie like that already."""
    if tensor.is_meta:
        raise ModelError("it is on the meta device and has no values", hint="load or initialise the model first")
    plain = tensor.detach()
    if not _lies_plainly(plain):
        plain = as_bits(_resolved(plain)).contiguous()
    return plain_bytes(plain)


def plain_bytes(tensor: Tensor) -> Tensor:
    """The same of a tensor that knows no gradient, and whose memory has its row-major bytes."""
    # Not reshaped: a single element may have any stride, and is then no bytes to torch.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch_package().uint8)


def _resolved(tensor: Tensor) -> Tensor:
    """The tensor with its numbers negated or conjugated, if torch only noted that they are to be.

    Both change the sign's bit and no other. Torch does the same on a CPU; a GPU also changes what a NaN holds.
    """
    torch = torch_package()
    if tensor.is_neg():
        return _with_other_signs(_resolved(torch._neg_view(tensor)))
    if tensor.is_conj():
        held = torch.view_as_real(tensor.conj())  # conjugated twice: the numbers that are there
        return torch.view_as_complex(torch.stack((held[..., 0], _with_other_signs(held[..., 1])), -1))
    return tensor


def _with_other_signs(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return torch_package().view_as_complex(_with_other_signs(torch_package().view_as_real(tensor)))
    bits = as_bits(tensor)
    return (bits ^ torch_package().iinfo(bits.dtype).min).view(tensor.dtype)


def _host_bytes(tensor: Tensor) -> memoryview:
    """The row-major bytes of a tensor on the CPU that has some."""
    if tensor.is_meta or not _lies_plainly(tensor):
        return memoryview(flat_bytes(tensor).numpy())
    return memoryview(as_bits(tensor.detach()).numpy()).cast("B")  # there may be very many: in as few calls as can be


def _lies_plainly(tensor: Tensor) -> bool:
    """Whether the memory of a tensor has its row-major bytes."""
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The row-major bytes of a tensor in pieces on its device, each at most as long as a buffer.

    One that lies otherwise is brought into order piece by piece: there is never a second copy of it on the device.
    """
    most = settings().buffer_bytes
    todo = [tensor.detach()]
    while todo:
        part = todo.pop()
        if _lies_plainly(part):
            yield from flat_bytes(part).split(most)
        elif part.nbytes <= most:
            yield flat_bytes(part)
        else:
            row_bytes = part[0].nbytes
            todo += reversed(part.unbind() if row_bytes > most else part.split(most // row_bytes))


def _fetched(pieces: Iterator[Tensor], device: Device) -> Iterator[memoryview]:
    """The bytes of pieces on the host; DeviceError where the device they are on fails."""
    try:
        if device.type == "cuda":
            yield from fetched(pieces, _pinned, _copied)
        else:
            yield from (memoryview(piece.cpu().numpy()) for piece in pieces)
    except RuntimeError as error:
        if isinstance(error, BurnstoreError):
            raise
        said = str(error).strip().partition("\n")[0]
        raise DeviceError(f"{device} failed when its tensors were to be read: {said}") from error


def _pinned(nbytes: int) -> Tensor:
    torch = torch_package()
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


def _copied(tensor: Tensor) -> Any:
    """An event behind the copies that were started from this tensor's device."""
    return torch_package().cuda.current_stream(tensor.device).record_event()
