"""Blend several tensors into one, when it is read, a block at a time.

A weighted sum is computed element by element, in the order of the sources, in float64 (F32, F64) or float32 (narrower
dtypes), and rounded once to the nearest value of the result's dtype, ties to even. So the result has the same bits
whatever the blocks are; and with weights that add up to one, a tensor blended with itself is unchanged (F64 up to the
last bit). A source of weight 0 has no effect, not even by its NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DTypeError, MergeError, counted, located, printable
from ..io.source import same_bytes
from ..tensor.data import Array
from ..tensor.dtype import DType, Kind
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import Data, TransposedData
from ..tensor.upcast import upcast
from .precision import converted_array, underflows

# The bytes read of each source at a time, and the elements computed at a time, which stay in the cache.
_READ_BYTES = 1 << 20
_BLOCK = 1 << 14
# The bits of a dtype that are all set in values that are not finite.
_EXPONENTS = {DType.BF16: np.uint16(0x7F80), DType.F16: np.uint16(0x7C00)}

NEARLY_PARALLEL = 0.9995
"""From this cosine on two tensors are blended along the straight line, which the arc between them nearly is."""

Window = Callable[[int, int], memoryview]


def can_blend(dtype: DType) -> bool:
    """Return whether values of this dtype have a weighted sum in it: not integers, codes and powers of two.

    >>> can_blend(DType.BF16), can_blend(DType.I64), can_blend(DType.F4)
    (True, False, False)
    """
    whole_bytes = dtype.bits % 8 == 0 and dtype not in (DType.F8_E8M0, DType.C32)
    return whole_bytes and dtype.kind in (Kind.FLOAT, Kind.COMPLEX)


def blended(
    tensors: Sequence[TensorSnapshot], weights: Sequence[float], *, dtype: DType | None = None
) -> TensorSnapshot:
    """Return the weighted sum of tensors of one shape, with the name and id of the first, in its dtype or another.

    A finite sum that the dtype cannot represent raises DTypeError when it is read.

    >>> first, second = (TensorSnapshot.from_numpy("w", np.float32(values)) for values in ([1, 2], [3, 6]))
    >>> blended([first, second], [0.25, 0.75]).numpy().tolist()
    [2.5, 5.0]
    """
    lead = tensors[0]
    wanted = lead.dtype if dtype is None else dtype
    for tensor in tensors:
        if tensor.shape != lead.shape:
            raise MergeError(f"cannot blend shapes {list(lead.shape)} and {list(tensor.shape)}", tensor=tensor.path)
        if not can_blend(tensor.dtype) or not can_blend(wanted) or tensor.dtype.kind is not wanted.kind:
            raise DTypeError(f"cannot blend {tensor.dtype} into {wanted}", tensor=tensor.path)
    stored = _before_transposition(tensors)
    terms = [Term(data, tensor.dtype, weight) for data, tensor, weight in zip(stored, tensors, weights, strict=True)]
    taking_part = [term for term in terms if term.weight]
    if len(taking_part) == 1 and taking_part[0].weight == 1.0 and taking_part[0].dtype is wanted:
        data: Data = taking_part[0].data  # bit for bit, also its NaN
    else:
        data = BlendedData(taking_part, wanted, math.prod(lead.shape))
    if stored[0] is not lead._data:
        data = data.transposed(lead.shape[1], lead.shape[0], wanted.bits // 8)
    return _like(lead, data, wanted)


def _before_transposition(tensors: Sequence[TensorSnapshot]) -> list[Data]:
    """Return the data of tensors as they were before a transposition that all of them have; else the data of each.

    A sum does not depend on the order of elements, and one transposed matrix in memory takes the place of one for each
    source.
    """
    given = [tensor._data for tensor in tensors]
    turned = [data.data for data in given if isinstance(data, TransposedData)]
    return turned if len(turned) == len(given) else given


def agreed(tensors: Sequence[TensorSnapshot]) -> TensorSnapshot:
    """Return the tensor that all of these are; MergeError when it is read and one of them differs.

    >>> first, second = (TensorSnapshot.from_numpy("n", np.int64([value])) for value in (3, 3))
    >>> agreed([first, second]).numpy().tolist()
    [3]
    """
    lead = tensors[0]
    return _like(lead, AgreedData([tensor._data for tensor in tensors]), lead.dtype)


def arc_weights(first: TensorSnapshot, second: TensorSnapshot, t: float) -> tuple[float, float] | None:
    """Return the weights of two tensors at ``t`` from 0 to 1 along the arc between them (slerp).

    Each tensor is one vector of real numbers; a complex number has two, its parts. None where there is no arc: the two
    are nearly parallel (or opposite), or one is zero or not finite; both tensors are read to find out.

    >>> x, y = (TensorSnapshot.from_numpy("w", np.float32(values)) for values in ([1, 0], [0, 1]))
    >>> arc_weights(x, y, 0.5)
    (0.7071067811865475, 0.7071067811865475)
    >>> arc_weights(x, x, 0.5) is None
    True
    """
    dot, own, others = _products(first, second)
    length = math.sqrt(own) * math.sqrt(others)
    if not math.isfinite(dot) or not math.isfinite(length) or length == 0.0:
        return None
    cosine = dot / length
    if abs(cosine) > NEARLY_PARALLEL:
        return None
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def _products(first: TensorSnapshot, second: TensorSnapshot) -> tuple[float, float, float]:
    """Return the scalar product of two tensors, and of each with itself; NaN if one overflows.

    Blocks of a fixed size make the sums reproducible.
    """
    sums: list[tuple[float, float, float]] = []
    count = math.prod(first.shape)
    stored = _before_transposition([first, second])
    terms = [Term(data, each.dtype, 1.0) for data, each in zip(stored, (first, second), strict=True)]
    with np.errstate(over="ignore", invalid="ignore"):
        for begin, end, given in _steps(terms, 0, count):
            for at in range(0, end - begin, _BLOCK):
                size = min(_BLOCK, end - begin - at)
                parts = zip(given, terms, strict=True)
                x, y = (_components(upcast(_elements(raw, term.dtype, at, size), term.dtype)) for raw, term in parts)
                sums.append((float((x * y).sum()), float((x * x).sum()), float((y * y).sum())))
    if not all(map(math.isfinite, (part for parts in sums for part in parts))):
        return math.nan, math.nan, math.nan
    dot, own, others = (math.fsum(parts) for parts in zip(*sums, strict=True)) if sums else (0.0, 0.0, 0.0)
    return dot, own, others


def _components(values: Array) -> Array:
    """Return the real numbers of a block in float64; a complex number has two."""
    return values.astype(np.complex128).view(np.float64) if values.dtype.kind == "c" else values.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Term:
    """The part of one source in a blend."""

    data: Data
    dtype: DType
    weight: float


@dataclass(slots=True, eq=False)
class BlendedData(Data):
    """The weighted sum of several data."""

    terms: Sequence[Term]
    dtype: DType
    count: int
    underflowed: bool = False
    """Whether a sum that was computed so far became 0 by a cast."""

    @property
    def inner(self) -> Sequence[Data]:
        return [term.data for term in self.terms]

    @property
    def file(self) -> str | None:
        return self.terms[0].data.file if len(self.terms) == 1 else None

    @property
    def streams(self) -> bool:
        return all(term.data.streams for term in self.terms)

    def bytes_held(self, nbytes: int) -> int:
        sizes = ((term.data, term.dtype.nbytes((self.count,))) for term in self.terms)
        return sum(_held(*each) for each in sizes) + min(nbytes, _READ_BYTES)

    def window(self, start: int, stop: int) -> memoryview:
        return memoryview(self.owned(start, stop))

    def owned(self, start: int, stop: int) -> Array:
        width = self.dtype.bits // 8
        first, last = start // width, -(-stop // width)
        sums: Array = np.empty(last - first, self.dtype.numpy)
        for at, end, given in _steps(self.terms, first, last):
            self._sum(given, sums[at - first : end - first])
        return sums.view(np.uint8)[start - first * width : stop - first * width]

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        for at, end, given in _steps(self.terms, 0, self.count):
            sums: Array = np.empty(end - at, self.dtype.numpy)
            self._sum(given, sums)
            yield memoryview(sums.view(np.uint8))

    def _sum(self, given: Sequence[memoryview], sums: Array) -> None:
        """Fill ``sums`` with the weighted sum of the values of these bytes."""
        precise = self._precision()
        total: Array = np.empty(min(len(sums), _BLOCK), precise)
        product = np.empty_like(total)
        weights = [precise.type(term.weight) for term in self.terms]
        is_cast = any(term.dtype is not self.dtype for term in self.terms)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for at in range(0, len(sums), _BLOCK):
                rounded = sums[at : at + _BLOCK]
                block, scaled = total[: len(rounded)], product[: len(rounded)]
                parts = [
                    upcast(_elements(raw, term.dtype, at, len(rounded)), term.dtype)
                    for raw, term in zip(given, self.terms, strict=True)
                ]
                np.multiply(parts[0], weights[0], out=block, dtype=precise)
                for values, weight in zip(parts[1:], weights[1:], strict=True):
                    np.multiply(values, weight, out=scaled, dtype=precise)
                    np.add(block, scaled, out=block)
                rounded[...] = block if block.dtype == np.float32 else converted_array(block, self.dtype)
                if is_cast and not self.underflowed:
                    self.underflowed = underflows(block, rounded)
                if not _all_finite(rounded, self.dtype):
                    self._check_range(rounded, block, parts)

    def _precision(self) -> np.dtype[Any]:
        if self.dtype.kind is Kind.COMPLEX:
            return np.dtype(np.complex128)
        narrow = all(dtype.bits <= 16 for dtype in (self.dtype, *(term.dtype for term in self.terms)))
        return np.dtype(np.float32 if narrow else np.float64)

    def _check_range(self, rounded: Array, sums: Array, given: Sequence[Array]) -> None:
        """Raise DTypeError where finite values have a sum that is not, or an infinite sum became NaN."""
        odd = ~np.isfinite(rounded)
        lost = np.logical_and.reduce([np.isfinite(values[odd]) for values in given])
        lost |= np.isnan(rounded[odd]) & ~np.isnan(sums[odd])
        if lost.any():
            raise DTypeError(
                f"{counted(int(lost.sum()), 'sum is', 'sums are')} too large for {self.dtype.name}",
                hint="use cast= with a wider dtype",
            )


def _elements(raw: memoryview, dtype: DType, first: int, count: int) -> memoryview:
    width = dtype.bits // 8
    return raw[first * width : (first + count) * width]


def _all_finite(values: Array, dtype: DType) -> bool:
    exponent = _EXPONENTS.get(dtype)
    if exponent is None:
        return bool(np.isfinite(values).all())
    bits = values.view(np.uint16) & exponent  # by its bits: several times as fast
    return bool((bits != exponent).all())


@dataclass(slots=True, eq=False)
class AgreedData(Data):
    """Data that must be equal in several sources."""

    sources: Sequence[Data]

    @property
    def inner(self) -> Sequence[Data]:
        return self.sources

    @property
    def file(self) -> str | None:
        return self.sources[0].file

    @property
    def streams(self) -> bool:
        return all(data.streams for data in self.sources)

    def bytes_held(self, nbytes: int) -> int:
        return sum(_held(data, nbytes) for data in self.sources)

    def window(self, start: int, stop: int) -> memoryview:
        first = self.sources[0].window(start, stop)
        for other in self.sources[1:]:
            self._check(first, other.window(start, stop), other)
        return first

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        windows = [_window_of(data, nbytes) for data in self.sources]
        for start in range(0, nbytes, _READ_BYTES):
            stop = min(start + _READ_BYTES, nbytes)
            first = windows[0](start, stop)
            for other, window in zip(self.sources[1:], windows[1:], strict=True):
                self._check(first, window(start, stop), other)
            yield first

    def _check(self, first: memoryview, second: memoryview, other: Data) -> None:
        if not same_bytes(first, second):
            whose = printable(other.file) if other.file else "another source"
            raise MergeError(
                f"differs from that of {whose}, and values of its dtype cannot be averaged",
                hint='choose one with conflicts="first" or "last"',
            )


def _steps(terms: Sequence[Term], first: int, last: int) -> Iterator[tuple[int, int, list[memoryview]]]:
    """Yield the bytes of all terms from one element to another, some of each at a time, with their bounds."""
    widths = [term.dtype.bits // 8 for term in terms]
    windows = [_window_of(term.data, last * width) for term, width in zip(terms, widths, strict=True)]
    # Whole blocks, counted from the first element: blocks end at the same elements whatever part is asked for.
    step = max(_READ_BYTES // max(widths) // _BLOCK, 1) * _BLOCK
    at = first
    while at < last:
        stop = min((at // step + 1) * step, last)
        given = []
        for term, width, window in zip(terms, widths, windows, strict=True):
            with located(path=term.data.file):
                given.append(window(at * width, stop * width))
        yield at, stop, given
        del given
        at = stop


def _window_of(data: Data, nbytes: int) -> Window:
    """Return a function that returns parts of data; those that do not stream are read as a whole, once."""
    if data.streams:
        return data.window
    whole = data.window(0, nbytes)
    return lambda start, stop: whole[start:stop]


def _held(data: Data, nbytes: int) -> int:
    return min(nbytes, _READ_BYTES) if data.streams else nbytes


def _like(lead: TensorSnapshot, data: Data, dtype: DType) -> TensorSnapshot:
    return lead.replace(data=data) if dtype is lead.dtype else lead.replace(dtype=dtype, data=data)
