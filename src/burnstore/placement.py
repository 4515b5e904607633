"""Placement: the tensors of a file, made on a device; carried there in large pieces and cut into views where they lie.

A tensor of a megabyte or more has memory of its own there. Smaller ones share an allocation of up to 8 MiB with their
neighbours in the file, as arrays on the host do. What a device cannot take as it lies in the file (bools, which must be
looked at, and quantized tensors, which come dequantized) is made on the host and copied.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from . import torch_tensor
from .device.carriers import CudaCarrier, TensorCarrier
from .device.engine import Range, carry
from .device.landings import SMALL, Fresh
from .dtype import DType, Kind
from .errors import UnsupportedError, located
from .formats.base import Table
from .io.gather import Groups, gather, grouped
from .io.joined import part_of
from .io.source import Source
from .tensor_data import Shape
from .torch_tensor import Device, Tensor

_WIDEST = 16  # complex128: a view of it must begin at a multiple of its width


def place(table: Table, source: Source, device: Device) -> list[Tensor]:
    """A tensor on the device for each row of a table whose bytes lie in the source as they are.

    DTypeError where torch has no such dtype.
    """
    kinds = {dtype: dtype.kind not in (Kind.BOOL, Kind.QUANTIZED) for dtype in set(table.dtypes)}
    if not torch_tensor.carries_to(device):
        return _copied(table, source, device)
    if all(kinds.values()):
        return _carried(table, source, torch_tensor.carrier_to(device))
    carried = [row for row, dtype in enumerate(table.dtypes) if kinds[dtype]]
    others = [row for row, dtype in enumerate(table.dtypes) if not kinds[dtype]]
    tensors = dict(zip(others, _copied(table.picked(others), source, device), strict=True))
    if carried:
        found = _carried(table.picked(carried), source, torch_tensor.carrier_to(device))
        tensors.update(zip(carried, found, strict=True))
    return [tensors[row] for row in range(len(table.names))]


def _copied(table: Table, source: Source, device: Device) -> list[Tensor]:
    """Tensors that are made on the host and copied one by one."""
    buffers, places = gather(source, table.offsets, table.sizes, table.alignments())
    made = torch_tensor.tensors_from_buffers(table.names, table.dtypes, table.shapes, table.sizes, buffers, places)
    return [torch_tensor.placed(tensor, device) for tensor in made]


def _carried(table: Table, source: Source, carrier: CudaCarrier | TensorCarrier) -> list[Tensor]:
    """Tensors that are cut out of what was carried to the device; by the column, as there may be very many."""
    if not table.names:
        return []
    spelled = _spellings(table)
    widths = np.array([max(dtype.bits // 8, 1) for dtype in spelled], np.int64)
    numbers = {dtype: number for number, dtype in enumerate(spelled)}
    kinds = np.fromiter(map(numbers.__getitem__, table.dtypes), np.int64, len(table.dtypes))
    groups = grouped(table.offsets, table.sizes, widths[kinds], small=SMALL, widest=_WIDEST)
    memories = _memories(table, source, groups, carrier)
    begins = ((groups.places + groups.skipped[groups.which]) // widths[kinds]).tolist()
    shapes = _held_shapes(table) if DType.F4 in spelled else table.shapes
    steps = {shape: _row_major(shape) for shape in set(shapes)}
    strides = list(map(steps.__getitem__, shapes))
    changes = (np.diff(groups.which) != 0) | (np.diff(kinds) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(kinds)]
    tensors: list[Tensor] = []
    with torch_tensor.apart():
        for row, stop in itertools.pairwise(bounds):
            try:
                view = memories[groups.which[row]].view(spelled[table.dtypes[row]]).as_strided
                tensors += map(view, shapes[row:stop], strides[row:stop], begins[row:stop])
            except (RuntimeError, TypeError, OverflowError) as error:  # too many axes, or extents beside a zero
                shape, name = shapes[len(tensors)], table.names[len(tensors)]
                raise UnsupportedError(f"there is no tensor of shape {list(shape)}: {error}", tensor=name) from error
    return tensors


def _memories(table: Table, source: Source, groups: Groups, carrier: CudaCarrier | TensorCarrier) -> list[Tensor]:
    """The bytes of each group on the device, rounded up to whole elements of any width where several share them."""
    counts = np.diff(groups.firsts, append=len(table.names)).tolist()
    rows = zip(groups.bases.tolist(), groups.lengths.tolist(), groups.skipped.tolist(), strict=True)
    landings: list[Fresh] = []
    ranges: list[Range] = []
    for (base, length, skipped), first, count in zip(rows, groups.firsts.tolist(), counts, strict=True):
        alone = count == 1
        room = length if alone and not skipped else -(-(length + skipped) // _WIDEST) * _WIDEST
        landing = Fresh(carrier, room, skipped, landings[-1] if landings else None)
        landings.append(landing)
        ranges.append(Range(*part_of(source, base, length), length, landing, table.names[first] if alone else None))
    carry(ranges, carrier, readers=carrier.readers)
    return [landing.memory for landing in landings]


def _held_shapes(table: Table) -> list[Shape]:
    held = []
    for name, dtype, shape in zip(table.names, table.dtypes, table.shapes, strict=True):
        with located(tensor=name):
            held.append(torch_tensor.held_shape(dtype, shape))
    return held


def _spellings(table: Table) -> dict[DType, Any]:
    """Torch's dtype for each of the table's."""
    spelled = {}
    for dtype, name in dict(zip(reversed(table.dtypes), reversed(table.names), strict=True)).items():
        with located(tensor=name):
            spelled[dtype] = torch_tensor.torch_dtype(dtype)
    return spelled


def _row_major(shape: Shape) -> Shape:
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
