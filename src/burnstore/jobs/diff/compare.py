"""Compare many pairs of tensors in pieces, as tasks for any executor."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import UNREPRESENTABLE, located
from ...io.sizes import TASK_BYTES
from ...io.source import same_bytes
from ...io.workers import MemoryBudget, Workers, in_runs, run_batches
from ...tensor.data import Array
from ...tensor.snapshot import ByteStream, TensorSnapshot, read_together
from ...tensor.sources import SourceData
from ..stats import value_runs
from .difference import Difference, RunningDifference, Tolerance

# Both sides of a block fit into a core's own cache.
_BLOCK_BYTES = 512 << 10
_BLOCK_ELEMENTS = 1 << 16

Pair = tuple[TensorSnapshot, TensorSnapshot]
Advance = Callable[[int], None]
"""Called with the number of bytes of the first side that are done."""


class Piece(NamedTuple):
    """Elements from ``start`` to ``stop`` of both tensors of a pair, and whether they are known to be equal."""

    one: TensorSnapshot
    other: TensorSnapshot
    start: int
    stop: int
    nbytes: int
    """The bytes of these elements in the first tensor."""
    is_equal: bool = False

    @property
    def bytes_held(self) -> int:
        """How many bytes of both are in memory during the comparison."""
        return self.one.bytes_held + self.other.bytes_held


class Comparison:
    """Compare pairs of tensors with workers, and report progress in bytes."""

    def __init__(self, pairs: Iterable[Pair], workers: Workers, advance: Advance) -> None:
        made_whole = (pair for pair in pairs if not (_is_in_file(pair[0]) and _is_in_file(pair[1])))
        self._room = MemoryBudget.for_each_of(one.bytes_held + other.bytes_held for one, other in made_whole)
        self.workers = workers
        self._advance = advance

    def unequal(self, pairs: Sequence[Pair]) -> dict[int, list[Piece]]:
        """Return the pieces of the pairs (each of one dtype and shape) that differ in any byte, by index."""
        pieces: list[tuple[int, Piece]] = []
        for row, (one, other) in enumerate(pairs):
            if _is_same_place(one, other):
                self._advance(one.nbytes)
            else:
                pieces += [(row, piece) for piece in pieces_of(one, other)]
        found: dict[int, list[Piece]] = {}
        for (row, piece), is_equal in zip(pieces, self._run(_Comparer(self._room), pieces), strict=True):
            if is_equal:
                self._advance(piece.nbytes)
                piece = piece._replace(is_equal=True)
            found.setdefault(row, []).append(piece)
        return {row: parts for row, parts in found.items() if not all(part.is_equal for part in parts)}

    def differences(self, pieces: Sequence[Sequence[Piece]], tolerance: Tolerance | None) -> list[Difference | str]:
        """Return the difference of each pair, given as its pieces, or the reason why it cannot be measured."""
        rows = [(row, piece) for row, parts in enumerate(pieces) for piece in parts]
        running: list[RunningDifference | str] = [RunningDifference(tolerance) for _ in pieces]
        for (row, piece), found in zip(rows, self._run(_Measurer(self._room, tolerance), rows), strict=True):
            if not piece.is_equal:
                self._advance(piece.nbytes)
            so_far = running[row]
            if isinstance(so_far, str):
                continue
            if isinstance(found, str):
                running[row] = found
            else:
                so_far.merge(found)
        shapes = [parts[0].one.shape for parts in pieces]
        return [
            found if isinstance(found, str) else found.result(shape)
            for found, shape in zip(running, shapes, strict=True)
        ]

    def checksums(self, tensors: Sequence[TensorSnapshot]) -> list[int]:
        """Return a checksum of the bytes of each tensor."""
        task = _Checksummer(self._room)
        batches = run_batches(task, tensors, lambda tensor: tensor.nbytes, self.workers, advance=self._advance)
        return [checksum for _, checksums in batches for checksum in checksums]

    def _run(self, task: Callable[[list[Piece]], list[Any]], rows: Sequence[tuple[int, Piece]]) -> Iterator[Any]:
        for _, results in run_batches(task, [piece for _, piece in rows], lambda piece: piece.nbytes, self.workers):
            yield from results


def pieces_of(one: TensorSnapshot, other: TensorSnapshot) -> list[Piece]:
    """Split a pair of tensors of one shape into the pieces to compare."""
    elements = math.prod(one.shape)
    can_be_cut = _is_in_file(one) and _is_in_file(other) and not one.dtype.is_quantized and not other.dtype.is_quantized
    if max(one.nbytes, other.nbytes) <= TASK_BYTES or not can_be_cut:
        return [Piece(one, other, 0, elements, one.nbytes)]
    step = max(TASK_BYTES * 8 // max(one.dtype.bits, other.dtype.bits) // _BLOCK_ELEMENTS, 1) * _BLOCK_ELEMENTS
    ends = [(start, min(start + step, elements)) for start in range(0, elements, step)]
    return [Piece(one, other, start, stop, _bytes_before(stop - start, one)) for start, stop in ends]


def _is_in_file(tensor: TensorSnapshot) -> bool:
    return isinstance(tensor._data, SourceData)


def _bytes_before(elements: int, tensor: TensorSnapshot) -> int:
    return elements * tensor.dtype.bits // 8


# --- tasks, which may run in another process or on another machine ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Comparer:
    """The task of comparing bytes: return for each piece whether both sides are equal."""

    room: MemoryBudget

    def __call__(self, batch: list[Piece]) -> list[bool]:
        buffers = bytearray(_BLOCK_BYTES), bytearray(_BLOCK_BYTES)
        equal: list[bool] = []
        for run in in_runs(batch, lambda piece: piece.one.nbytes):
            equal += self._together(run) if len(run) > 1 else [self._one(run[0], *buffers)]
        return equal

    def _together(self, pieces: list[Piece]) -> list[bool]:
        with self.room.reserve(2 * sum(piece.nbytes for piece in pieces)):
            sides = read_together(piece.one for piece in pieces), read_together(piece.other for piece in pieces)
            return [bytes(one) == bytes(other) for one, other in zip(*sides, strict=True)]

    def _one(self, piece: Piece, buffer: bytearray, other_buffer: bytearray) -> bool:
        size, start = piece.nbytes, _bytes_before(piece.start, piece.one)
        with self.room.reserve(piece.bytes_held):
            one, other = ByteStream(piece.one, start, buffer), ByteStream(piece.other, start, other_buffer)
            while size > 0:
                length = min(size, _BLOCK_BYTES)
                if not _same(one.take(length), other.take(length)):
                    return False
                size -= length
        return True


@dataclass(frozen=True, slots=True)
class _Measurer:
    """The task of measuring: return the difference of each piece, or the reason why it cannot be measured."""

    room: MemoryBudget
    tolerance: Tolerance | None

    def __call__(self, batch: list[Piece]) -> list[RunningDifference | str]:
        found: list[RunningDifference | str] = []
        for piece in batch:
            try:
                with self.room.reserve(piece.bytes_held), located(tensor=piece.one.path):
                    found.append(self._measure(piece))
            except UNREPRESENTABLE as error:
                found.append(error.message)
        return found

    def _measure(self, piece: Piece) -> RunningDifference:
        running = RunningDifference(self.tolerance)
        one, other = piece.one, piece.other
        if one.dtype.is_quantized or other.dtype.is_quantized:
            for start, values, others in _side_by_side(one, other):
                running.add_values(values, others, start)
            return running
        streams = [ByteStream(tensor, _bytes_before(piece.start, tensor)) for tensor in (one, other)]
        is_alike = one.dtype is other.dtype
        for start in range(piece.start, piece.stop, _BLOCK_ELEMENTS):
            length = min(piece.stop - start, _BLOCK_ELEMENTS)
            a = streams[0].take(_bytes_before(length, one))
            if piece.is_equal:
                running.add_equal(memoryview(a), one.dtype)
                continue
            b = streams[1].take(_bytes_before(length, other))
            if is_alike and _same(a, b):
                running.add_equal(memoryview(a), one.dtype)
            else:
                running.add(memoryview(a), memoryview(b), one.dtype, other.dtype, start)
        return running


@dataclass(frozen=True, slots=True)
class _Checksummer:
    """The task of computing a checksum of each tensor."""

    room: MemoryBudget

    def __call__(self, batch: list[TensorSnapshot]) -> list[int]:
        return [self._sum(tensor) for tensor in batch]

    def _sum(self, tensor: TensorSnapshot) -> int:
        found = 0
        with self.room.reserve(tensor.bytes_held):
            for chunk in tensor.chunks():
                found = zlib.crc32(chunk, found)
        return found


def _same(one: bytearray | memoryview, other: bytearray | memoryview) -> bool:
    # A bytearray compares with any buffer in one step, twice as fast as NumPy.
    if isinstance(one, bytearray) or isinstance(other, bytearray):
        return one == other
    return same_bytes(one, other)


def _is_same_place(one: TensorSnapshot, other: TensorSnapshot) -> bool:
    a, b = one._data, other._data
    return a is b or (
        isinstance(a, SourceData) and isinstance(b, SourceData) and a.source is b.source and a.offset == b.offset
    )


def _side_by_side(one: TensorSnapshot, other: TensorSnapshot) -> Iterator[tuple[int, Array, Array]]:
    """Yield the values of both in blocks of equal length, with the index at which each block begins."""
    start = 0
    runs = (value_runs(one), value_runs(other))
    held: list[Array] = [np.empty(0), np.empty(0)]
    while start < math.prod(one.shape):
        for side, values in enumerate(runs):
            if not held[side].size:
                run = np.asarray(next(values)[0])
                held[side] = run if run.dtype.kind in "iuc" else run.astype(np.float64)
        length = min(held[0].size, held[1].size, _BLOCK_ELEMENTS)
        yield start, held[0][:length], held[1][:length]
        held = [values[length:] for values in held]
        start += length
