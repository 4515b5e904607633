"""Compute statistics of tensors block by block, in memory that does not depend on their size.

`inspect`, `verify` and `report` share this module. Accumulators take blocks of values and can be merged, so that
workers can share a large tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import numpy as np

from ..errors import BurnstoreError, CorruptError, DTypeError, UnsupportedError, located
from ..io.sizes import CHUNK_BYTES
from ..io.workers import Workers, run_batches
from ..progress import Advance, Progress
from ..tensor.data import Array, Shape, array_from_bytes
from ..tensor.dtype import DType, Kind
from ..tensor.plain import Plain
from ..tensor.snapshot import TensorSnapshot
from ..tensor.upcast import upcast
from .budget import plan_reads, too_much

# A float64 copy of this many elements (2 MiB) fits into a core's own cache.
BLOCK = 1 << 18
# Squares of float64 beyond 2**±450, or sums of many, leave the range of float64; such blocks are scaled first.
_EXTREME = 450
# The floats whose exponent is all ones for NaN and infinities and nothing else: their width and that exponent.
_EXPONENTS = {
    DType.F64: ("<u8", 0x7FF0_0000_0000_0000),
    DType.F32: ("<u4", 0x7F80_0000),
    DType.Flex32: ("<u4", 0x7F80_0000),
    DType.F16: ("<u2", 0x7C00),
    DType.BF16: ("<u2", 0x7F80),
}


@dataclass(frozen=True, slots=True)
class TensorStats(Plain):
    """Statistics of the values of one tensor.

    ``min``, ``max``, ``mean`` and ``std`` (of the population) cover the finite values, in float64. They are None if no
    value is finite or the numbers are complex; NaN and infinities are counted separately. Quantized tensors count as
    their dequantized values, bools as 0 and 1.
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
        """Whether no value is NaN or infinite."""
        return self.nan_count == 0 and self.inf_count == 0


def tensor_stats(snapshot: TensorSnapshot, *, progress: Callable[[int], None] | None = None) -> TensorStats:
    """Return range, mean and spread of a tensor's values, and how many are NaN, infinite or zero.

    The tensor is read in parts; of a quantized tensor the codes are kept in memory. ``progress`` is called with the
    bytes read so far. Raises DTypeError or UnsupportedError for values that cannot be represented, CorruptError for
    bytes that are invalid for the dtype.

    >>> tensor_stats(TensorSnapshot.from_numpy("x", np.array([1.0, 3.0, np.nan, np.inf])))
    TensorStats(min=1.0, max=3.0, mean=2.0, std=1.0, nan_count=1, inf_count=1, zero_count=0)
    """
    if not isinstance(snapshot, TensorSnapshot):
        raise TypeError(f"expected a TensorSnapshot, got {type(snapshot).__name__}")
    running = RunningStats()
    with located(tensor=snapshot.path), np.errstate(all="ignore"):
        for values, position in value_runs(snapshot):
            running.add_all(values)
            if progress is not None:
                progress(position)
        return running.result()


def all_stats(
    snapshots: Sequence[TensorSnapshot], *, workers: Workers = None, progress: Progress | None = None
) -> list[TensorStats | BurnstoreError]:
    """Return the statistics of many tensors, or the error for each tensor whose values cannot be read.

    Workers share large tensors in pieces; the result does not depend on the number of workers.
    ``progress`` is called with the bytes read so far and in total. A file that cannot be read raises its error.

    >>> [stats.max for stats in all_stats([TensorSnapshot.from_numpy("x", np.arange(3))])]
    [2]
    """
    found = accumulate(snapshots, RunningStats, workers=workers, progress=progress)
    return [each if isinstance(each, BurnstoreError) else each.result() for each in found]


class Accumulator(Protocol):
    """An object that takes values block by block, and merges with another of its kind."""

    def add_all(self, values: Array) -> None:
        """Take the next values."""

    def merge(self, other: Any) -> None:
        """Take the values of another accumulator, which follow the values here."""


Gathered = TypeVar("Gathered", bound=Accumulator)


def accumulate(
    snapshots: Sequence[TensorSnapshot],
    new: Callable[[], Gathered],
    *,
    workers: Workers = None,
    progress: Progress | None = None,
) -> list[Gathered | BurnstoreError]:
    """Return for each tensor an accumulator that has taken its values, or the error that prevented it.

    ``new`` makes an empty accumulator and must be picklable for worker processes. The rest is as for `all_stats`.
    """
    plan = plan_reads(snapshots)
    pieces = [(at, piece) for at in plan.alone for piece in _pieces(snapshots[at])]
    advance = Advance(progress, sum(snapshots[at].nbytes for at in plan.alone))
    gather, size = functools.partial(_accumulate_pieces, new), lambda numbered: numbered[1].nbytes
    found: list[tuple[int, Gathered | BurnstoreError]] = []
    for _, results in run_batches(gather, pieces, size, workers, advance=advance, most=CHUNK_BYTES):
        found += results
    by_place: dict[int, Gathered | BurnstoreError] = {
        at: _merge_parts(part for _, part in parts) for at, parts in groupby(found, itemgetter(0))
    }
    by_place.update({at: too_much(snapshots[at]) for shared in plan.shared for at in shared.places})
    return [by_place[plan.copies.get(at, at)] for at in range(len(snapshots))]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a tensor, or all of it if no part can be read without the rest."""

    snapshot: TensorSnapshot
    rows: slice | None
    nbytes: int

    def runs(self) -> Iterator[Array]:
        if self.rows is None:
            return (values for values, _ in value_runs(self.snapshot))
        return iter([self.snapshot[self.rows].reshape(-1)])


def _pieces(snapshot: TensorSnapshot) -> Iterator[_Piece]:
    nbytes, dtype = snapshot.nbytes, snapshot.dtype
    has_rows = snapshot.is_source_range and not (dtype.bits % 8 or dtype.is_quantized)
    if nbytes <= CHUNK_BYTES or not has_rows or dtype is DType.C32:  # NumPy has no dtype for C32.
        yield _Piece(snapshot, None, nbytes)
        return
    count = snapshot.shape[0]
    step = max(CHUNK_BYTES * count // nbytes, 1)
    for start in range(0, count, step):
        stop = min(start + step, count)
        yield _Piece(snapshot, slice(start, stop), nbytes // count * (stop - start))


def _accumulate_pieces(
    new: Callable[[], Gathered], pieces: Iterable[tuple[int, _Piece]]
) -> list[tuple[int, Gathered | BurnstoreError]]:
    """Return an accumulator for each piece of one task, with the number of its tensor."""
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


def _merge_parts(parts: Iterable[Gathered | BurnstoreError]) -> Gathered | BurnstoreError:
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
    """Yield the values as flat arrays, each with the number of bytes read so far."""
    if snapshot.dtype.is_quantized:
        for values in _dequantized_runs(snapshot):
            yield values, snapshot.nbytes
        return
    size = max(snapshot.dtype.bits // 8, 1)
    rest, position = b"", 0
    for chunk in snapshot.chunks():
        position += len(chunk)
        if rest or len(chunk) % size:  # A chunk may end inside an element.
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
    """Yield the dequantized values some rows at a time: as float32 they take four times the bytes of the codes."""
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


class RunningStats:
    """Statistics that grow block by block; mean and spread are merged by the method of Chan, Golub and LeVeque.

    Mean and squares are in units of ``2**exponent``, which is 0 unless the squares of extreme values would leave the
    range of float64.
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
        block = as_numbers(block)
        self.zero_count += int(np.count_nonzero(block == 0))  # faster for floats than counting the others
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
        nans, infinities = count_special_values(block)
        self.nan_count += nans
        self.inf_count += infinities

    def merge(self, other: RunningStats) -> None:
        """Add the statistics of another."""
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
        if least == most:  # The mean of equal numbers is that number, without rounding.
            mean, squares = math.ldexp(least, scale), 0.0
        else:
            wide = block.astype(np.float64)
            if scale:
                np.ldexp(wide, scale, out=wide)
            mean = float(wide.mean())
            wide -= mean
            # Not np.dot: its threads compete with the workers and take ten times as long.
            squares = float(np.einsum("i,i->", wide, wide))
        self._merge(block.size, mean, squares)

    def _merge(self, size: int, mean: float, squares: float) -> None:
        count = self.count + size
        delta = mean - self.mean
        self.squares += squares + delta * delta * (self.count / count) * size
        self.mean += delta * (size / count)
        self.count = count

    def _scale_to(self, exponent: int) -> None:
        """Rescale for numbers of this exponent, unless the present scale is large enough."""
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
        mean = min(max(mean, float(self.least)), float(self.most))  # Rounding must not move it out of the range.
        std = float(np.ldexp(math.sqrt(self.squares / self.count), exponent)) if self.least != self.most else 0.0
        return TensorStats(self.least, self.most, mean, std, *counts)


# --- values -----------------------------------------------------------------------------------------------------------


def as_numbers(block: Array) -> Array:
    """Return the values in a dtype that NumPy is fast with: 0 and 1 for bools, float32 for all narrower floats."""
    if block.dtype == np.bool_:
        return block.view(np.uint8)
    if block.dtype.kind in "iuc" or (block.dtype.kind == "f" and block.dtype.itemsize >= 4):
        return block
    return block.astype(np.float32)  # exact for every narrower float


def count_special_values(values: Array) -> tuple[int, int]:
    """Return how many numbers are NaN, and how many are infinite; a complex number with a NaN counts as NaN.

    >>> count_special_values(np.array([complex(np.nan, np.inf), 1]))
    (1, 0)
    """
    nan = np.isnan(values)
    return int(np.count_nonzero(nan)), int(np.count_nonzero(np.isinf(values) & ~nan))


def count_specials(raw: bytearray | memoryview | Array, dtype: DType) -> tuple[int, int]:
    """Count NaN and infinities among the elements in these bytes, by their bits and at memory speed.

    Raises CorruptError for bytes that are not bools.

    >>> count_specials(np.array([1, np.nan, -np.inf, 2], np.float32), DType.F32)
    (1, 1)
    """
    data = np.frombuffer(raw, np.uint8)
    if not data.size:
        return 0, 0
    if dtype in _EXPONENTS:
        width, exponent = _EXPONENTS[dtype]
        bits = data.view(width)
        magnitudes = bits & (2 ** (8 * bits.itemsize - 1) - 1)
        if magnitudes.max() < exponent:  # almost always
            return 0, 0
        return int(np.count_nonzero(magnitudes > exponent)), int(np.count_nonzero(magnitudes == exponent))
    if dtype.is_bool:
        upcast(data, dtype)  # refuses bytes other than 0 and 1
    if dtype.kind not in (Kind.FLOAT, Kind.COMPLEX) or dtype.bits < 8:  # No float of less than a byte has a NaN.
        return 0, 0
    if dtype.bits == 8:
        nans, infinities = _special_codes(dtype)
        return int(nans[data].sum()), int(infinities[data].sum())
    return count_special_values(upcast(data, dtype))


@functools.cache
def _special_codes(dtype: DType) -> tuple[Array, Array]:
    """Return which codes of an 8-bit float are NaN, and which are infinite."""
    values = upcast(np.arange(256, dtype=np.uint8), dtype)
    return np.isnan(values), np.isinf(values)


def unravel(index: int, shape: Shape) -> Shape:
    """Return the index of an element along each axis; exact for any size, unlike NumPy's.

    >>> unravel(5, (2, 3))
    (1, 2)
    """
    places = []
    for extent in reversed(shape):
        index, place = divmod(index, extent)
        places.append(place)
    return tuple(reversed(places))
