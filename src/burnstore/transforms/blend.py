"""Blends: one tensor out of several, computed when it is read, a block at a time.

A weighted sum is computed element by element, in the order of the sources and never otherwise, in float64 (F32, F64) or
float32 (what is narrower), and rounded once to the nearest value of the result's dtype, ties to even. So the result
has the same bits whatever the blocks, and whoever computes them; and where weights add up to one, a tensor that is
blended with itself is itself (of F64 up to the last bit). A source of weight 0 takes no part: not even its NaN does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DTypeError, MergeError, located, printable
from ..io.comparing import same_bytes
from ..tensor.data import Array
from ..tensor.dtype import DType, Kind
from ..tensor.snapshot import Data, TensorSnapshot
from ..tensor.upcast import widened

# What is read of each source at a time, and what of that is computed at a time: the second stays in the cache.
_READ_BYTES = 1 << 20
_BLOCK = 1 << 14
# The bits of a dtype that are all set in what is not finite.
_EXPONENTS = {DType.BF16: np.uint16(0x7F80), DType.F16: np.uint16(0x7C00)}

NEARLY_PARALLEL = 0.9995
"""From this cosine on two tensors are blended along the straight line: the arc between them is as good as straight."""

Window = Callable[[int, int], memoryview]


def can_blend(dtype: DType) -> bool:
    """Whether there are numbers of this dtype between two others: not with integers, codes, and powers of two.

    >>> can_blend(DType.BF16), can_blend(DType.I64), can_blend(DType.F4)
    (True, False, False)
    """
    whole_bytes = dtype.bits % 8 == 0 and dtype not in (DType.F8_E8M0, DType.C32)
    return whole_bytes and dtype.kind in (Kind.FLOAT, Kind.COMPLEX)


def blended(
    tensors: Sequence[TensorSnapshot], weights: Sequence[float], *, dtype: DType | None = None
) -> TensorSnapshot:
    """The weighted sum of tensors of one shape, under the name and id of the first, in its dtype or another.

    A finite sum that the dtype cannot hold raises DTypeError when it is read.

    >>> first, second = (TensorSnapshot.from_numpy("w", np.float32(values)) for values in ([1, 2], [3, 6]))
    >>> blended([first, second], [0.25, 0.75]).numpy().tolist()
    [2.5, 5.0]
    """
    lead = tensors[0]
    wanted = lead.dtype if dtype is None else dtype
    for tensor in tensors:
        if tensor.shape != lead.shape:
            raise MergeError(f"shapes {list(lead.shape)} and {list(tensor.shape)} do not blend", tensor=tensor.path)
        if not can_blend(tensor.dtype) or not can_blend(wanted) or tensor.dtype.kind is not wanted.kind:
            raise DTypeError(f"{tensor.dtype} does not blend into {wanted}", tensor=tensor.path)
    terms = [Term(tensor._data, tensor.dtype, weight) for tensor, weight in zip(tensors, weights, strict=True)]
    taking_part = [term for term in terms if term.weight]
    if len(taking_part) == 1 and taking_part[0].weight == 1.0 and taking_part[0].dtype is wanted:
        data: Data = taking_part[0].data  # bit for bit, whatever its NaN carry
    else:
        data = BlendedData(taking_part, wanted, math.prod(lead.shape))
    return _like(lead, data, wanted)


def agreed(tensors: Sequence[TensorSnapshot]) -> TensorSnapshot:
    """The tensor that all of these are; MergeError when it is read and one of them is another.

    >>> first, second = (TensorSnapshot.from_numpy("n", np.int64([value])) for value in (3, 3))
    >>> agreed([first, second]).numpy().tolist()
    [3]
    """
    lead = tensors[0]
    return _like(lead, AgreedData([tensor._data for tensor in tensors], lead.nbytes), lead.dtype)


def arc_weights(first: TensorSnapshot, second: TensorSnapshot, t: float) -> tuple[float, float] | None:
    """The weights that lead from one tensor to the other along the arc between them (slerp), at ``t`` from 0 to 1.

    Each tensor counts as one vector. None where there is no arc to follow: the two are nearly parallel (or opposite),
    or one is zero, or not finite; both tensors are read for that.

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
    """The scalar product of two tensors, and of each with itself; summed in blocks of a fixed size, hence always equal.

    Of blocks that overflow the sum is no number any more.
    """
    sums: list[tuple[float, float, float]] = []
    count = math.prod(first.shape)
    terms = [Term(each._data, each.dtype, 1.0) for each in (first, second)]
    with np.errstate(over="ignore", invalid="ignore"):
        for begin, end, given in _steps(terms, 0, count):
            for at in range(0, end - begin, _BLOCK):
                size = min(_BLOCK, end - begin - at)
                parts = zip(given, terms, strict=True)
                x, y = (
                    widened(_elements(raw, term.dtype, at, size), term.dtype).astype(np.float64) for raw, term in parts
                )
                sums.append((float((x * y).sum()), float((x * x).sum()), float((y * y).sum())))
    if not all(map(math.isfinite, (part for parts in sums for part in parts))):
        return math.nan, math.nan, math.nan
    dot, own, others = (math.fsum(parts) for parts in zip(*sums, strict=True)) if sums else (0.0, 0.0, 0.0)
    return dot, own, others


@dataclass(frozen=True, slots=True)
class Term:
    """What one source gives to a blend."""

    data: Data
    dtype: DType
    weight: float


class BlendedData:
    """The weighted sum of several data."""

    __slots__ = ("count", "dtype", "nbytes", "terms")

    def __init__(self, terms: Sequence[Term], dtype: DType, count: int) -> None:
        self.terms = tuple(terms)
        self.dtype = dtype
        self.count = count
        self.nbytes = dtype.nbytes((count,))

    @property
    def file(self) -> str | None:
        return self.terms[0].data.file if len(self.terms) == 1 else None

    @property
    def streams(self) -> bool:
        """Whether a few megabytes of each source are in memory at a time."""
        return all(_streams(term.data) for term in self.terms)

    @property
    def bytes_held(self) -> int:
        """What `chunks` has in memory: a piece of each source and of the sum, or all of what is made as a whole."""
        sizes = ((term.data, term.dtype.nbytes((self.count,))) for term in self.terms)
        return _held(sizes) + min(self.nbytes, _READ_BYTES)

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
        """Fill ``sums`` with the weighted sum of the values in these bytes."""
        precise = self._precision()
        total: Array = np.empty(min(len(sums), _BLOCK), precise)
        product = np.empty_like(total)
        weights = [precise.type(term.weight) for term in self.terms]
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for at in range(0, len(sums), _BLOCK):
                rounded = sums[at : at + _BLOCK]
                block, scaled = total[: len(rounded)], product[: len(rounded)]
                parts = [
                    widened(_elements(raw, term.dtype, at, len(rounded)), term.dtype)
                    for raw, term in zip(given, self.terms, strict=True)
                ]
                np.multiply(parts[0], weights[0], out=block, dtype=precise)
                for values, weight in zip(parts[1:], weights[1:], strict=True):
                    np.multiply(values, weight, out=scaled, dtype=precise)
                    np.add(block, scaled, out=block)
                rounded[...] = block
                if not _all_finite(rounded, self.dtype):
                    self._check_range(rounded, parts)

    def _precision(self) -> np.dtype[Any]:
        if self.dtype.kind is Kind.COMPLEX:
            return np.dtype(np.complex128)
        narrow = all(dtype.bits <= 16 for dtype in (self.dtype, *(term.dtype for term in self.terms)))
        return np.dtype(np.float32 if narrow else np.float64)

    def _check_range(self, sums: Array, given: Sequence[Array]) -> None:
        """Raise DTypeError where values that are finite have a sum that is not."""
        odd = ~np.isfinite(sums)
        lost = np.logical_and.reduce([np.isfinite(values[odd]) for values in given])
        if lost.any():
            raise DTypeError(
                f"{int(lost.sum())} sums of finite values are too large for {self.dtype.name}",
                hint="cast=... asks for a wider dtype",
            )


def _elements(raw: memoryview, dtype: DType, first: int, count: int) -> memoryview:
    width = dtype.bits // 8
    return raw[first * width : (first + count) * width]


def _all_finite(values: Array, dtype: DType) -> bool:
    exponent = _EXPONENTS.get(dtype)
    if exponent is None:
        return bool(np.isfinite(values).all())
    bits = values.view(np.uint16) & exponent  # by its bits, which is several times as quick
    return bool((bits != exponent).all())


class AgreedData:
    """Data that several sources have alike."""

    __slots__ = ("nbytes", "sources")

    def __init__(self, sources: Sequence[Data], nbytes: int) -> None:
        self.sources = tuple(sources)
        self.nbytes = nbytes

    @property
    def file(self) -> str | None:
        return self.sources[0].file

    @property
    def streams(self) -> bool:
        """Whether a few megabytes of each source are in memory at a time."""
        return all(map(_streams, self.sources))

    @property
    def bytes_held(self) -> int:
        """What `chunks` has in memory: a piece of each source, or all of what is made as a whole."""
        return _held((data, self.nbytes) for data in self.sources)

    def window(self, start: int, stop: int) -> memoryview:
        first = self.sources[0].window(start, stop)
        for other in self.sources[1:]:
            self._check(first, other.window(start, stop), other)
        return first

    def owned(self, start: int, stop: int) -> Array:
        return np.frombuffer(bytearray(self.window(start, stop)), np.uint8)

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
                f"it differs from that of {whose}, and values of its dtype have no mean",
                hint='conflicts="first" or "last" says whose counts',
            )


def _steps(terms: Sequence[Term], first: int, last: int) -> Iterator[tuple[int, int, list[memoryview]]]:
    """The bytes of all terms from one element to another, some of each at a time, and from where to where."""
    widths = [term.dtype.bits // 8 for term in terms]
    windows = [_window_of(term.data, last * width) for term, width in zip(terms, widths, strict=True)]
    # Whole blocks, counted from the first element: whatever part is asked for, blocks end where they always do.
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
    """How to get at parts of data: from where they lie, or else out of all of them, made once."""
    if _streams(data):
        return data.window
    whole = data.window(0, nbytes)
    return lambda start, stop: whole[start:stop]


def _streams(data: Data) -> bool:
    """Whether parts of the data can be had without all of them."""
    return getattr(data, "streams", False)


def _held(sizes: Iterable[tuple[Data, int]]) -> int:
    return sum(min(nbytes, _READ_BYTES) if _streams(data) else nbytes for data, nbytes in sizes)


def _like(lead: TensorSnapshot, data: Data, dtype: DType) -> TensorSnapshot:
    return lead.replace(data=data) if dtype is lead.dtype else lead.replace(dtype=dtype, data=data)
