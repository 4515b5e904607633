"""Inspection: what a file holds, as data, and what its numbers are like."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from .checkpoint import Checkpoint, open_checkpoint
from .dtype import DType
from .errors import CorruptError, DTypeError, UnsupportedError, located
from .limits import Limits
from .param_id import ParamId
from .scalar import Scalar
from .snapshot import TensorSnapshot
from .tensor_data import Array, Shape, array_from_bytes

Sort = Literal["name", "size", "dtype", "offset"]
SORTS: tuple[Sort, ...] = get_args(Sort)
Progress = Callable[[int, int], None]
"""Called with the bytes of tensors read so far and in all."""

# Statistics work on this many elements at a time: a float64 copy of them (2 MiB) stays in a core's own cache.
_BLOCK = 1 << 18
# Squares of float64 beyond 2**±450, or a sum of many, leave the range of float64; such blocks are scaled first.
_EXTREME = 450
_SAFE_INTEGER = 1 << 53


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
            "min": _json_number(self.min),
            "max": _json_number(self.max),
            "mean": _json_number(self.mean),
            "std": _json_number(self.std),
            "nan_count": self.nan_count,
            "inf_count": self.inf_count,
            "zero_count": self.zero_count,
        }


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor of a file: its description, where its bytes lie, and its statistics if they were asked for.

    ``problem`` says why the statistics could not be had although they were asked for.
    """

    name: str
    dtype: DType
    shape: Shape
    elements: int
    nbytes: int
    offset: int
    param_id: ParamId | None
    stats: TensorStats | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON; the id as decimal text, since JavaScript rounds numbers of 64 bits."""
        identity = None if self.param_id is None else {"number": f"{int(self.param_id)}", "text": str(self.param_id)}
        return {
            "name": self.name,
            "dtype": self.dtype.name,
            "quantization": None if self.dtype.scheme is None else str(self.dtype.scheme),
            "shape": list(self.shape),
            "elements": self.elements,
            "nbytes": self.nbytes,
            "offset": self.offset,
            "param_id": identity,
            "stats": None if self.stats is None else self.stats.to_dict(),
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """How many tensors there are, with how many elements and bytes."""

    tensors: int = 0
    elements: int = 0
    nbytes: int = 0

    @classmethod
    def of(cls, rows: Iterable[TensorRow]) -> Totals:
        """The totals of these tensors."""
        rows = list(rows)
        return cls(len(rows), sum(row.elements for row in rows), sum(row.nbytes for row in rows))

    def to_dict(self) -> dict[str, int]:
        """The same as plain data for JSON."""
        return {"tensors": self.tensors, "elements": self.elements, "nbytes": self.nbytes}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a file holds.

    ``total`` and ``dtypes`` speak of the whole file, ``selected`` of the tensors that the pattern left, ``tensors`` are
    those of them that were wanted (all, unless limited), in the order asked for.
    """

    path: str
    format: str
    variant: str
    layout: str | None
    file_size: int
    data_offset: int
    metadata: Mapping[str, str]
    scalars: Mapping[str, Scalar]
    total: Totals
    dtypes: Mapping[str, Totals]
    selected: Totals
    tensors: tuple[TensorRow, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for strict JSON: no NaN, no number that a reader might round (text instead)."""
        return {
            # A file name that is not UTF-8 has lone surrogates in Python, which strict readers of JSON refuse.
            "path": self.path.encode("utf-8", "backslashreplace").decode("utf-8"),
            "format": self.format,
            "variant": self.variant,
            "layout": self.layout,
            "file_size": self.file_size,
            "data_offset": self.data_offset,
            "metadata": dict(self.metadata),
            "scalars": {
                name: {"kind": scalar.kind, "value": _json_number(scalar.value)}
                for name, scalar in self.scalars.items()
            },
            "total": self.total.to_dict(),
            "dtypes": {name: totals.to_dict() for name, totals in self.dtypes.items()},
            "selected": self.selected.to_dict(),
            "tensors": [row.to_dict() for row in self.tensors],
        }


def inspect_file(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    pattern: str | re.Pattern[str] | None = None,
    sort: Sort | None = None,
    limit: int | None = None,
    stats: bool = False,
    format: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """What a file (or bytes) holds; without ``stats`` only its header is read.

    ``pattern`` leaves the tensors in whose names it is found. ``sort`` orders them by ``"name"`` (numbers inside names
    by their value), ``"size"`` (largest first), ``"dtype"`` or ``"offset"``; ties, and all by default, in the order of
    the data. ``limit`` keeps the first so many. ``stats`` reads those tensors, a part at a time, and tells of
    ``progress``; a tensor whose values are broken or cannot be shown has a ``problem`` instead. ``format`` and
    ``limits`` are those of `burnstore.open`, and so are the errors; an invalid pattern is a ValueError.

    >>> import burnstore as bs
    >>> packed = bs.serialize({"a.bias": np.zeros(3, np.int8), "a.weight": np.eye(2)}, format="burnpack")
    >>> found = inspect_file(packed, pattern=r"weight$", stats=True)
    >>> found.format, found.total.tensors, found.selected.nbytes
    ('burnpack', 2, 32)
    >>> found.tensors[0].name, found.tensors[0].shape, found.tensors[0].stats.mean
    ('a.weight', (2, 2), 0.5)
    """
    # Before the file is opened: a wrong argument is told of at the call, whatever the file is like.
    _check_options(sort, limit, stats)
    wanted = _compiled(pattern)
    with open_checkpoint(source, format=format, limits=limits) as checkpoint:
        return inspect_checkpoint(checkpoint, pattern=wanted, sort=sort, limit=limit, stats=stats, progress=progress)


def inspect_checkpoint(
    checkpoint: Checkpoint,
    *,
    pattern: str | re.Pattern[str] | None = None,
    sort: Sort | None = None,
    limit: int | None = None,
    stats: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """What an open file holds; the options are those of `inspect_file`.

    >>> import burnstore as bs
    >>> with bs.open(bs.serialize({"b": np.zeros(3, np.int8)}, format="burnpack")) as checkpoint:
    ...     [(row.name, row.nbytes) for row in inspect_checkpoint(checkpoint).tensors]
    [('b', 3)]
    """
    _check_options(sort, limit, stats)
    wanted = _compiled(pattern)
    every = [
        TensorRow(
            name,
            snapshot.dtype,
            snapshot.shape,
            math.prod(snapshot.shape),
            snapshot.nbytes,
            checkpoint.offset_of(name),
            snapshot.param_id,
        )
        for name, snapshot in checkpoint.items()
    ]
    selected = every if wanted is None else [row for row in every if wanted.search(row.name)]
    kept = _sorted(selected, sort)[:limit]
    by_dtype: dict[str, list[TensorRow]] = {}
    for row in every:
        by_dtype.setdefault(row.dtype.name, []).append(row)
    return Inspection(
        checkpoint.path,
        checkpoint.format,
        checkpoint.variant,
        checkpoint.layout,
        checkpoint.file_size,
        checkpoint.data_offset,
        dict(checkpoint.metadata),
        dict(checkpoint.scalars),
        Totals.of(every),
        {name: Totals.of(rows) for name, rows in by_dtype.items()},
        Totals.of(selected),
        tuple(_with_stats(kept, checkpoint, progress) if stats else kept),
    )


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
    running = _Running()
    with located(tensor=snapshot.path), np.errstate(all="ignore"):
        for values, position in _value_runs(snapshot):
            for start in range(0, values.size, _BLOCK):
                running.add(values[start : start + _BLOCK])
            if progress is not None:
                progress(position)
        return running.result()


def _check_options(sort: object, limit: object, stats: object) -> None:
    if sort is not None and sort not in SORTS:
        raise ValueError(f"sort is one of {', '.join(SORTS)}, not {sort!r}")
    if limit is not None:
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise TypeError(f"limit is an int, not {type(limit).__name__}")
        if limit < 0:
            raise ValueError(f"limit must not be negative, got {limit}")
    if not isinstance(stats, bool):
        raise TypeError(f"stats is a bool, not {type(stats).__name__}")


def _compiled(pattern: str | re.Pattern[str] | None) -> re.Pattern[str] | None:
    if pattern is None or isinstance(pattern, re.Pattern):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern is a str, not {type(pattern).__name__}")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error


def _sorted(rows: list[TensorRow], sort: Sort | None) -> list[TensorRow]:
    if sort == "name":
        return sorted(rows, key=lambda row: _natural(row.name))
    if sort == "size":
        return sorted(rows, key=lambda row: -row.nbytes)
    if sort == "dtype":
        return sorted(rows, key=lambda row: str(row.dtype))
    if sort == "offset":
        return sorted(rows, key=lambda row: row.offset)
    return rows


_DIGITS = re.compile("([0-9]+)")


def _natural(name: str) -> list[Any]:
    """A key that puts ``layers.2`` before ``layers.10``; text and numbers alternate in it, so that it compares."""
    parts: list[Any] = _DIGITS.split(name)
    for at in range(1, len(parts), 2):
        digits = parts[at].lstrip("0")
        parts[at] = (len(digits), digits, parts[at])  # not int(): it refuses, or is slow on, thousands of digits
    return parts


def _with_stats(rows: list[TensorRow], checkpoint: Checkpoint, progress: Progress | None) -> Iterator[TensorRow]:
    total, done = sum(row.nbytes for row in rows), 0
    for row in rows:
        stats, problem = None, None
        report = None if progress is None else (lambda read, before=done: progress(before + read, total))
        try:
            with located(path=checkpoint.path):
                stats = tensor_stats(checkpoint[row.name], progress=report)
        except (CorruptError, DTypeError, UnsupportedError) as error:
            problem = error.message
        done += row.nbytes
        yield TensorRow(
            row.name, row.dtype, row.shape, row.elements, row.nbytes, row.offset, row.param_id, stats, problem
        )


def _value_runs(snapshot: TensorSnapshot) -> Iterator[tuple[Array, int]]:
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
        for start in range(0, len(chunk), _BLOCK * size):
            yield _flat(chunk[start : start + _BLOCK * size], snapshot.dtype), position


def _flat(raw: memoryview, dtype: DType) -> Array:
    if dtype is DType.F4:
        from .narrow import CODE_TABLES, unpack_fields

        return CODE_TABLES["E2M1"][unpack_fields(np.frombuffer(raw, np.uint8), 4)]
    if dtype is DType.C32:  # pairs of float16, for which NumPy has no dtype
        return np.frombuffer(raw, "<f2").astype(np.float32).view(np.complex64)
    return array_from_bytes(raw, dtype, (len(raw) * 8 // dtype.bits,))


def _dequantized_runs(snapshot: TensorSnapshot) -> Iterator[Array]:
    """The numbers that a quantized tensor stands for, some rows at a time: as float32 they are four times its codes."""
    from .quant import QuantizedTensor

    whole = snapshot.quantized()
    shape, block = whole.shape, whole.scheme.block
    if not shape or not whole.codes.size:
        yield whole.dequantize().reshape(-1)
        return
    extent = block.size[0] if block is not None and len(block.size) == len(shape) else 1
    rows = max(_BLOCK // math.prod(shape[1:]) // extent, 1) * extent  # whole blocks of scales
    for start in range(0, shape[0], rows):
        codes = whole.codes[start : start + rows]
        scales = whole.scales if block is None else whole.scales[start // extent : (start + rows) // extent]
        part = QuantizedTensor(codes, scales, whole.global_scale, whole.scheme, codes.shape)
        yield part.dequantize().reshape(-1)


class _Running:
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
        self._merge(block, float(least), float(most))

    def _count_special(self, block: Array) -> None:
        nans = np.isnan(block)
        self.nan_count += int(np.count_nonzero(nans))
        self.inf_count += int(np.count_nonzero(np.isinf(block) & ~nans))

    def _merge(self, block: Array, least: float, most: float) -> None:
        self._make_room_for(max(abs(least), abs(most)))
        scale = -(self.exponent or 0)
        if least == most:  # no rounding: the mean of equal numbers is that number
            mean, squares = math.ldexp(least, scale), 0.0
        else:
            wide = block.astype(np.float64)
            if scale:
                np.ldexp(wide, scale, out=wide)
            mean = float(wide.mean())
            wide -= mean
            squares = float(np.dot(wide, wide))
        count = self.count + block.size
        delta = mean - self.mean
        self.squares += squares + delta * delta * (self.count / count) * block.size
        self.mean += delta * (block.size / count)
        self.count = count

    def _make_room_for(self, peak: float) -> None:
        if peak == 0.0:
            return
        exponent = math.frexp(peak)[1]
        if abs(exponent) <= _EXTREME:
            exponent = 0
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


def _json_number(value: int | float | bool | None) -> int | float | bool | str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return str(value)
    return value
