"""Placement: make the tensors of a file on a device; they are transferred in large chunks and are views of them.

A tensor of a megabyte or more has its own memory there. Smaller ones share an allocation of up to 8 MiB with their
neighbours in the file, as arrays on the host do. Bools, which must be checked, and quantized tensors, which are
dequantized, are made on the host and copied.

There may be very many small ones, so everything is computed once per kind of tensor, or by the column. Models repeat
their layers: tensors of one kind at equal distances are cut with one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import DTypeError, UnsupportedError
from ..io.gather import Column, Groups, gather, grouped
from ..io.gpu.chunks import Range
from ..io.gpu.sinks import NewSink
from ..io.gpu.staging import TensorStaging
from ..io.gpu.transfer import transferring
from ..io.sizes import GPU_SMALL_BYTES
from ..io.source import Source, part_of
from ..tensor import torch as torch_tensor
from ..tensor.data import Shape
from ..tensor.dtype import Kind
from ..tensor.torch import Device, Tensor
from .base import Kinds, Table

_WIDEST = 16  # complex128: a view of it must begin at a multiple of its width
_SHORTEST_SERIES = 8  # fewer views are made as fast one by one
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def place(table: Table, source: Source, device: Device) -> list[Tensor]:
    """Return a tensor on the device for each row of a table whose bytes are ranges of the source.

    Raise DTypeError where torch has no such dtype.
    """
    if not torch_tensor.has_staging(device):
        return _copied(table, source, device)
    kinds = table.kinds()
    are_taken = np.array([dtype.kind not in (Kind.BOOL, Kind.QUANTIZED) for dtype, _ in kinds.pairs], bool)
    if are_taken.all():
        return _transferred(table, kinds, source, torch_tensor.staging_for(device))
    taken = are_taken[kinds.which]
    transferred, others = np.flatnonzero(taken).tolist(), np.flatnonzero(~taken).tolist()
    tensors = dict(zip(others, _copied(table.picked(others), source, device), strict=True))
    if transferred:
        part = table.picked(transferred)
        found = _transferred(part, part.kinds(), source, torch_tensor.staging_for(device))
        tensors.update(zip(transferred, found, strict=True))
    return [tensors[row] for row in range(len(table.names))]


def _copied(table: Table, source: Source, device: Device) -> list[Tensor]:
    """Make tensors on the host and copy them one by one."""
    buffers, places = gather(source, table.offsets, table.sizes, table.alignments())
    made = torch_tensor.tensors_from_buffers(table.names, table.dtypes, table.shapes, table.sizes, buffers, places)
    return [torch_tensor.placed(tensor, device) for tensor in made]


def _transferred(table: Table, kinds: Kinds, source: Source, staging: TensorStaging) -> list[Tensor]:
    """Cut tensors from the memory that was transferred to the device."""
    if not table.names:
        return []
    forms = _forms(table, kinds)
    widths = np.array([form.width for form in forms], np.int64)[kinds.which]
    groups = grouped(table.offsets, table.sizes, widths, small=GPU_SMALL_BYTES, widest=_WIDEST)
    places = _Places(groups.which, kinds.which, (groups.places + groups.skipped[groups.which]) // widths)
    with torch_tensor.device_errors(staging.device, int(groups.lengths.sum())):
        sinks, ranges = _sinks(table, source, groups, staging)
        with transferring(ranges, staging, readers=staging.readers), torch_tensor.untracked_views():
            return _cut(table.names, [sink.memory for sink in sinks], forms, places)


def _sinks(table: Table, source: Source, groups: Groups, staging: TensorStaging) -> tuple[list[NewSink], list[Range]]:
    """Return memory on the device for each group, rounded up to whole elements of any width where several share it."""
    counts = np.diff(groups.firsts, append=len(table.names)).tolist()
    rows = zip(groups.bases.tolist(), groups.lengths.tolist(), groups.skipped.tolist(), strict=True)
    sinks: list[NewSink] = []
    ranges: list[Range] = []
    for (base, length, skipped), first, count in zip(rows, groups.firsts.tolist(), counts, strict=True):
        alone = count == 1
        room = length if alone and not skipped else -(-(length + skipped) // _WIDEST) * _WIDEST
        sink = NewSink(staging, room, skipped, sinks[-1] if sinks else None)
        sinks.append(sink)
        ranges.append(Range(*part_of(source, base, length), length, sink, table.names[first] if alone else None))
    return sinks, ranges


class _Form(NamedTuple):
    """The form of the tensors of a kind in memory, in torch's terms."""

    dtype: Any
    width: int
    shape: Shape
    strides: Shape


def _forms(table: Table, kinds: Kinds) -> list[_Form]:
    forms = []
    for kind, (dtype, shape) in enumerate(kinds.pairs):
        try:
            held = torch_tensor.torch_shape(dtype, shape)
            forms.append(_Form(torch_tensor.torch_dtype(dtype), max(dtype.bits // 8, 1), held, _row_major(held)))
        except DTypeError as error:
            error.tensor = table.names[kinds.first_of(kind)]
            raise
    return forms


def _row_major(shape: Shape) -> Shape:
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


class _Places(NamedTuple):
    """The place of each tensor: its memory, its form, and the element of the memory at which it begins."""

    memory: Column
    form: Column
    begin: Column


def _cut(names: Sequence[str], memories: Sequence[Tensor], forms: Sequence[_Form], places: _Places) -> list[Tensor]:
    """Return the tensor of each row, a view of its memory."""
    tensors: list[Tensor] = [None] * len(names)
    is_left = np.ones(len(names), bool)
    for rows in series(places.memory * len(forms) + places.form, places.begin, shortest=_SHORTEST_SERIES):
        form = forms[places.form[rows.start]]
        if 0 in form.shape:
            continue  # beside a zero there may be extents of which there cannot be several
        first, second = places.begin[rows][:2].tolist()
        memory = memories[places.memory[rows.start]].view(form.dtype)
        shape, strides = (len(tensors[rows]), *form.shape), (second - first, *form.strides)
        tensors[rows] = memory.as_strided(shape, strides, first).unbind()
        is_left[rows] = False
    left = np.flatnonzero(is_left)
    for row, tensor in zip(left.tolist(), _cut_singly(names, memories, forms, places, left), strict=True):
        tensors[row] = tensor
    return tensors


def _cut_singly(
    names: Sequence[str], memories: Sequence[Tensor], forms: Sequence[_Form], places: _Places, rows: Column
) -> list[Tensor]:
    """Return the tensors of some rows, one by one; a memory is viewed as a dtype once for neighbours in it."""
    numbers = {form.dtype: number for number, form in enumerate(forms)}
    dtypes = np.array([numbers[form.dtype] for form in forms], np.int64)[places.form[rows]]
    changes = (np.diff(places.memory[rows]) != 0) | (np.diff(dtypes) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)] if len(rows) else []
    memory, form, begins = (column[rows].tolist() for column in places)
    shapes = list(map([each.shape for each in forms].__getitem__, form))
    strides = list(map([each.strides for each in forms].__getitem__, form))
    tensors: list[Tensor] = []
    for start, stop in itertools.pairwise(bounds):
        try:
            view = memories[memory[start]].view(forms[form[start]].dtype).as_strided
            tensors += map(view, shapes[start:stop], strides[start:stop], begins[start:stop])
        except (RuntimeError, TypeError, OverflowError) as error:  # too many axes, or extents beside a zero
            shape, name = list(shapes[len(tensors)]), names[rows[len(tensors)]]
            raise UnsupportedError(f"there is no tensor of shape {shape}: {error}", tensor=name) from error
    return tensors


def series(kinds: Column, begins: Column, *, shortest: int) -> Iterator[slice]:
    """Yield rows of the same kind at equal distances, both in the table and in the file; no row comes twice.

    Models repeat their layers, so the same tensor of each layer comes after the same number of rows and bytes. It is
    recognized by the kinds of the rows that follow it.

    >>> kinds, begins = np.array([5, 7, 7, 9] * 100), np.arange(400) * 10
    >>> sorted((rows.start, rows.stop, rows.step) for rows in series(kinds, begins, shortest=50))
    [(0, 393, 4), (1, 390, 4), (2, 391, 4), (3, 392, 4)]
    """
    what_follows = kinds.astype(np.uint64)
    for reach in (1, 2, 4):
        what_follows[:-reach] = what_follows[:-reach] * _MULTIPLIER + what_follows[reach:]
    # 16 bits at a time are sorted in a few passes; two that are equal by chance only split a series.
    rows = np.lexsort([(what_follows >> np.uint64(bits)).astype(np.uint16) for bits in (32, 48)])
    steps = np.stack((np.diff(rows), np.diff(begins[rows])))
    alike = [column[rows[1:]] == column[rows[:-1]] for column in (kinds, what_follows)]
    is_linked = np.logical_and.reduce([*alike, *(steps > 0)])
    is_first = np.ones(len(rows), bool)
    is_first[1:] = ~is_linked
    is_first[2:] |= is_linked[:-1] & (steps[:, 1:] != steps[:, :-1]).any(axis=0)
    firsts = np.flatnonzero(is_first)
    counts = np.diff(firsts, append=len(rows))
    for place, count in zip(firsts[counts >= shortest].tolist(), counts[counts >= shortest].tolist(), strict=True):
        first, step = int(rows[place]), int(steps[0, place])
        yield slice(first, first + (count - 1) * step + 1, step)
