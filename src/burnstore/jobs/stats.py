"""Statistics: what the numbers of a tensor are like, found part by part whatever its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import numpy as np

from ..errors import BurnstoreError, CorruptError, DTypeError, UnsupportedError, located
from ..io.workers import Workers, in_batches, run_tasks
from ..progress import Progress
from ..tensor.data import Array, array_from_bytes
from ..tensor.dtype import DType
from ..tensor.snapshot import CHUNK_BYTES, TensorSnapshot
from .json_output import json_number

# Statistics work on this many elements at a time: a float64 copy of them (2 MiB) stays in a core's own cache.
BLOCK = 1 << 18
# Squares of float64 beyond 2**±450, or a sum of many, leave the range of float64; such blocks are scaled first.
_EXTREME = 450


@dataclass(frozen=True, slots=True)
class TensorStats:
    """What the values of one tensor are like.

    ``min``, ``max``, ``mean`` and ``std`` (of the population) are taken over the finite values, in float64, and are
    None where there are none, or where the numbers are complex; NaN and infinities are counted apart. Quantized tensors
    count as the numbers that they stand for, bools as 0 and 1.
    """

    min: int | float | None
    max: int | float | None
    mean: float | None
    std: float | None
    nan_count: int
    inf_count: int
    zero_count: int

    @property
    def is_finite(self) -> bool:
        """Whether there is neither a NaN nor an infinity."""
        return self.nan_count == 0 and self.inf_count == 0

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON; integers beyond 2**53 as decimal text, so that no reader rounds them."""
        return {
            "min": json_number(self.min),
            "max": json_number(self.max),
            "mean": json_number(self.mean),
            "std": json_number(self.std),
            "nan_count": self.nan_count,
            "inf_count": self.inf_count,
            "zero_count": self.zero_count,
        }


def tensor_stats(snapshot: TensorSnapshot, *, progress: Callable[[int], None] | None = None) -> TensorStats:
    """The range, mean and spread of a tensor's values, and how many are NaN, infinite or zero.

    The tensor is read in parts, so that its size does not matter; of a quantized one, its codes are held. ``progress``
    is called with the bytes read so far. Raises DTypeError or UnsupportedError for values that cannot be shown,
    CorruptError for bytes that are none of the dtype.

    >>> tensor_stats(TensorSnapshot.from_numpy("x", np.array([1.0, 3.0, np.nan, np.inf])))
    TensorStats(min=1.0, max=3.0, mean=2.0, std=1.0, nan_count=1, inf_count=1, zero_count=0)
    """
    if not isinstance(snapshot, TensorSnapshot):
        raise TypeError(f"tensor_stats takes a TensorSnapshot, not {type(snapshot).__name__}")
    running = Running()
    with located(tensor=snapshot.path), np.errstate(all="ignore"):
        for values, position in value_runs(snapshot):
            running.add_all(values)
            if progress is not None:
                progress(position)
        return running.result()


def all_stats(
    snapshots: Sequence[TensorSnapshot], *, workers: Workers = None, progress: Progress | None = None
) -> list[TensorStats | BurnstoreError]:
    """The statistics of many tensors, or for each that has none the error that says why; done by these workers.

    Large tensors are shared out piece by piece, in the same pieces whoever does them: the figures do not depend on
    that. ``progress`` is told the bytes read so far and in all. A file that cannot be read raises its error.

    >>> [stats.max for stats in all_stats([TensorSnapshot.from_numpy("x", np.arange(3))])]
    [2]
    """
    found = accumulated(snapshots, Running, workers=workers, progress=progress)
    return [each if isinstance(each, BurnstoreError) else each.result() for each in found]


class Accumulator(Protocol):
    """What takes values part by part, and the parts that others have taken."""

    def add_all(self, values: Array) -> None:
        """Take these values, which follow those before."""

    def merge(self, other: Any) -> None:
        """Take what another of the same kind has seen, as following what was seen here."""


Gathered = TypeVar("Gathered", bound=Accumulator)


def accumulated(
    snapshots: Sequence[TensorSnapshot],
    new: Callable[[], Gathered],
    *,
    workers: Workers = None,
    progress: Progress | None = None,
) -> list[Gathered | BurnstoreError]:
    """An accumulator for each tensor that has taken all its values, or the error that says why it could not.

    ``new`` makes an empty one, wherever the workers are. The rest is as for `all_stats`.
    """
    pieces = [(at, piece) for at, snapshot in enumerate(snapshots) for piece in _pieces(snapshot)]
    tasks = list(in_batches(pieces, lambda numbered: numbered[1].nbytes, CHUNK_BYTES))
    total, done = sum(snapshot.nbytes for snapshot in snapshots), 0
    found: list[tuple[int, Gathered | BurnstoreError]] = []
    for task, results in zip(tasks, run_tasks(partial(_taken, new), tasks, workers), strict=True):
        found += results
        done += sum(piece.nbytes for _, piece in task)
        if progress is not None:
            progress(done, total)
    return [_merged(part for _, part in parts) for _, parts in groupby(found, itemgetter(0))]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a tensor, or all of it where no part can be read without the rest."""

    snapshot: TensorSnapshot
    rows: slice | None
    nbytes: int

    def runs(self) -> Iterator[Array]:
        if self.rows is None:
            return (values for values, _ in value_runs(self.snapshot))
        return iter([self.snapshot[self.rows].reshape(-1)])


def _pieces(snapshot: TensorSnapshot) -> Iterator[_Piece]:
    nbytes = snapshot.nbytes
    if nbytes <= CHUNK_BYTES or not snapshot.lies_in_source or snapshot.dtype.bits % 8 or snapshot.dtype.is_quantized:
        yield _Piece(snapshot, None, nbytes)
        return
    if snapshot.dtype is DType.C32:  # NumPy has no dtype for it
        yield _Piece(snapshot, None, nbytes)
        return
    count = snapshot.shape[0]
    step = max(CHUNK_BYTES * count // nbytes, 1)
    for start in range(0, count, step):
        stop = min(start + step, count)
        yield _Piece(snapshot, slice(start, stop), nbytes // count * (stop - start))


def _taken(
    new: Callable[[], Gathered], pieces: Iterable[tuple[int, _Piece]]
) -> list[tuple[int, Gathered | BurnstoreError]]:
    """An accumulator for each of the pieces of one task, with the number of its tensor."""
    found: list[tuple[int, Gathered | BurnstoreError]] = []
    for at, piece in pieces:
        taken = new()
        try:
            with located(tensor=piece.snapshot.path), np.errstate(all="ignore"):
                for values in piece.runs():
                    taken.add_all(values)
            found.append((at, taken))
        except (CorruptError, DTypeError, UnsupportedError) as error:
            found.append((at, error))
    return found


def _merged(parts: Iterable[Gathered | BurnstoreError]) -> Gathered | BurnstoreError:
    whole: Gathered | None = None
    for part in parts:
        if isinstance(part, BurnstoreError):
            return part
        if whole is None:
            whole = part
        else:
            whole.merge(part)
    assert whole is not None  # every tensor has a piece
    return whole


def value_runs(snapshot: TensorSnapshot) -> Iterator[tuple[Array, int]]:
    """The values, flat and in runs, each with the bytes that have been read by then."""
    if snapshot.dtype.is_quantized:
        for values in _dequantized_runs(snapshot):
            yield values, snapshot.nbytes
        return
    size = max(snapshot.dtype.bits // 8, 1)
    rest, position = b"", 0
    for chunk in snapshot.chunks():
        position += len(chunk)
        if rest or len(chunk) % size:  # a chunk may end inside an element
            chunk = memoryview(rest + chunk)
            whole = len(chunk) // size * size
            chunk, rest = chunk[:whole], bytes(chunk[whole:])
        for start in range(0, len(chunk), BLOCK * size):
            yield _flat(chunk[start : start + BLOCK * size], snapshot.dtype), position


def _flat(raw: memoryview, dtype: DType) -> Array:
    if dtype is DType.F4:
        from ..tensor.lowbit import CODE_TABLES, unpack_fields

        return CODE_TABLES["E2M1"][unpack_fields(np.frombuffer(raw, np.uint8), 4)]
    if dtype is DType.C32:  # pairs of float16, for which NumPy has no dtype
        return np.frombuffer(raw, "<f2").astype(np.float32).view(np.complex64)
    return array_from_bytes(raw, dtype, (len(raw) * 8 // dtype.bits,))


def _dequantized_runs(snapshot: TensorSnapshot) -> Iterator[Array]:
    """The numbers that a quantized tensor stands for, some rows at a time: as float32 they are four times its codes."""
    from ..tensor.quantization import QuantizedTensor

    whole = snapshot.quantized()
    shape, block = whole.shape, whole.scheme.block
    if not shape or not whole.codes.size:
        yield whole.dequantize().reshape(-1)
        return
    extent = block.size[0] if block is not None and len(block.size) == len(shape) else 1
    rows = max(BLOCK // math.prod(shape[1:]) // extent, 1) * extent  # whole blocks of scales
    for start in range(0, shape[0], rows):
        codes = whole.codes[start : start + rows]
        scales = whole.scales if block is None else whole.scales[start // extent : (start + rows) // extent]
        part = QuantizedTensor(codes, scales, whole.global_scale, whole.scheme, codes.shape)
        yield part.dequantize().reshape(-1)


class Running:
    """Statistics that grow block by block; mean and spread are merged as Chan, Golub and LeVeque do.

    Mean and squares are kept in units of ``2**exponent``, which is 0 unless values are so extreme that their squares
    would leave the range of float64.
    """

    def __init__(self) -> None:
        self.least: Any = None
        self.most: Any = None
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        self.exponent: int | None = None
        self.nan_count = self.inf_count = self.zero_count = 0

    def add_all(self, values: Array) -> None:
        for start in range(0, values.size, BLOCK):
            self.add(values[start : start + BLOCK])

    def add(self, block: Array) -> None:
        if block.dtype == np.bool_:
            block = block.view(np.uint8)
        elif block.dtype.kind not in "iufc" or (block.dtype.kind == "f" and block.dtype.itemsize < 4):
            block = block.astype(np.float32)  # exact for every narrower float, and NumPy is far quicker with it
        self.zero_count += int(np.count_nonzero(block == 0))  # for floats quicker than counting what is not zero
        if block.dtype.kind == "c":
            self._count_special(block)
            return
        if not block.size:
            return
        least, most = block.min(), block.max()
        if block.dtype.kind == "f" and not (np.isfinite(least) and np.isfinite(most)):
            self._count_special(block)
            block = block[np.isfinite(block)]
            if not block.size:
                return
            least, most = block.min(), block.max()
        least, most = least.item(), most.item()
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        self._add_finite(block, float(least), float(most))

    def _count_special(self, block: Array) -> None:
        nans = np.isnan(block)
        self.nan_count += int(np.count_nonzero(nans))
        self.inf_count += int(np.count_nonzero(np.isinf(block) & ~nans))

    def merge(self, other: Running) -> None:
        """Add what another has seen."""
        self.nan_count += other.nan_count
        self.inf_count += other.inf_count
        self.zero_count += other.zero_count
        if not other.count:
            return
        self.least = other.least if self.least is None else min(self.least, other.least)
        self.most = other.most if self.most is None else max(self.most, other.most)
        if other.exponent is not None:
            self._scale_to(other.exponent)
        shift = (other.exponent or 0) - (self.exponent or 0)
        self._merge(other.count, math.ldexp(other.mean, shift), math.ldexp(other.squares, 2 * shift))

    def _add_finite(self, block: Array, least: float, most: float) -> None:
        peak = max(abs(least), abs(most))
        if peak:
            exponent = math.frexp(peak)[1]
            self._scale_to(exponent if abs(exponent) > _EXTREME else 0)
        scale = -(self.exponent or 0)
        if least == most:  # no rounding: the mean of equal numbers is that number
            mean, squares = math.ldexp(least, scale), 0.0
        else:
            wide = block.astype(np.float64)
            if scale:
                np.ldexp(wide, scale, out=wide)
            mean = float(wide.mean())
            wide -= mean
            # Not np.dot: its threads fight with those that do other tensors, and take ten times as long.
            squares = float(np.einsum("i,i->", wide, wide))
        self._merge(block.size, mean, squares)

    def _merge(self, size: int, mean: float, squares: float) -> None:
        count = self.count + size
        delta = mean - self.mean
        self.squares += squares + delta * delta * (self.count / count) * size
        self.mean += delta * (size / count)
        self.count = count

    def _scale_to(self, exponent: int) -> None:
        """Make room for numbers of this exponent; room that is there stays."""
        if self.exponent is None:
            self.exponent = exponent
        elif exponent > self.exponent:
            self.mean = math.ldexp(self.mean, self.exponent - exponent)
            self.squares = math.ldexp(self.squares, 2 * (self.exponent - exponent))
            self.exponent = exponent

    def result(self) -> TensorStats:
        counts = (self.nan_count, self.inf_count, self.zero_count)
        if not self.count:
            return TensorStats(None, None, None, None, *counts)
        exponent = self.exponent or 0
        mean = float(np.ldexp(self.mean, exponent))
        mean = min(max(mean, float(self.least)), float(self.most))  # rounding must not carry it out of the range
        std = float(np.ldexp(math.sqrt(self.squares / self.count), exponent)) if self.least != self.most else 0.0
        return TensorStats(self.least, self.most, mean, std, *counts)
