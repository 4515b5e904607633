"""The parts that Burnpack and SafeTensors share: a header, read into columns, checked by the column, written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CorruptError, DuplicateNameError, FormatError, LimitError, TruncatedError, counted
from ..io.source import Source
from ..limits import Limits
from ..tensor.data import Shape
from ..tensor.dtype import DType
from .base import Kinds, Table

Int64s = np.ndarray[Any, np.dtype[np.int64]]

_FIRST_READ = 64 << 10


@dataclass(slots=True)
class Columns:
    """The descriptors in the order of the header; offsets count from the start of the data.

    Most tensors of a model share dtype and shape with others: ``kinds`` holds each pair once, ``kind`` the number of
    each tensor's pair, and whatever follows from the pair is computed once.
    """

    names: list[str]
    kinds: list[tuple[DType, Shape]]
    kind: Int64s
    starts: np.ndarray[Any, np.dtype[Any]]
    ends: np.ndarray[Any, np.dtype[Any]]

    def first_of(self, number: int) -> str:
        """Return the name of the first tensor of a kind."""
        return self.names[int((self.kind == number).argmax())]


def read_header_bytes(
    source: Source, prefix: int, length_of: Callable[[bytes], int], limits: Limits, *, rules: tuple[str, str], at: int
) -> bytes:
    """Read the bytes of a header that follows a prefix, in which its length is at byte ``at``.

    ``rules`` are those about the prefix and about the length.
    """
    most, rule = limits.header_bytes or 0, rules[1]
    if source.size > limits.file_bytes:
        raise LimitError(f"{source.size} bytes, more than the limit of {limits.file_bytes}", rule=rule)
    if source.size < prefix:
        raise TruncatedError(
            f"expected a header of at least {prefix} bytes, got {source.size}", rule=rules[0], offset=0
        )
    first = source.read_at(0, min(source.size, _FIRST_READ))  # most files need no second read
    length = length_of(first)
    if length > most:
        raise LimitError(f"a header of {length} bytes, more than the limit of {most}", rule=rule, offset=at)
    end = prefix + length
    if end > source.size:
        raise TruncatedError(
            f"File truncated: a header of {length} bytes announced, {source.size - prefix} bytes follow",
            rule=rule,
            offset=at,
        )
    if end <= len(first):
        return first[prefix:end]
    return source.read_at(prefix, length)  # not joined to the first read: the header would be in memory twice


def check_sizes(
    columns: Columns, sizes: Int64s, needed: Callable[[int, DType, Shape], int], limits: Limits, rule: str
) -> None:
    """Check that each tensor has the bytes that its kind needs; -1 from ``needed`` leaves a kind unchecked."""
    if not columns.names:
        return
    of_kind = np.empty(len(columns.kinds), np.int64)
    for number, (dtype, shape) in enumerate(columns.kinds):
        try:
            of_kind[number] = needed(number, dtype, shape)
        except FormatError as error:
            error.tensor = error.tensor or columns.first_of(number)
            raise
    expected = of_kind[columns.kind]
    wrong = np.flatnonzero((expected != sizes) & (expected >= 0))
    if wrong.size:
        row = int(wrong[0])
        dtype, shape = columns.kinds[int(columns.kind[row])]
        raise wrong_size(columns.names[row], int(sizes[row]), dtype, shape, int(expected[row]), rule)
    row = int(sizes.argmax())
    if sizes[row] > limits.tensor_bytes:
        raise LimitError(f"{sizes[row]} bytes, more than the limit of {limits.tensor_bytes}", tensor=columns.names[row])


def wrong_size(name: str, size: int, dtype: DType, shape: Shape, needed: int, rule: str) -> CorruptError:
    """Return the error for a tensor that declares another number of bytes than its dtype and shape need."""
    return CorruptError(
        f"declares {size} bytes, but {dtype.name} of shape {list(shape)} need {needed}", tensor=name, rule=rule
    )


def check_end(size: int, expected: int, rule: str) -> None:
    """Check that the file ends with its last tensor."""
    if size < expected:
        raise TruncatedError(f"File truncated: expected at least {expected} bytes, got {size}", rule=rule, offset=size)
    if size > expected:
        raise CorruptError(f"{size - expected} bytes follow the last tensor", rule=rule, offset=expected)


def table_of(
    columns: Columns,
    order: Int64s,
    starts: Int64s,
    ends: Int64s,
    data_start: int,
    param_ids: list[int | None] | None = None,
) -> Table:
    """Make the table of a file, its rows in this order."""
    kinds = Kinds(columns.kinds, columns.kind[order])
    return Table(
        names=_gathered(columns.names, order),
        dtypes=_gathered([dtype for dtype, _ in columns.kinds], kinds.which),
        shapes=_gathered([shape for _, shape in columns.kinds], kinds.which),
        offsets=(starts + data_start).tolist(),
        sizes=(ends - starts).tolist(),
        param_ids=[None] * len(order) if param_ids is None else _gathered(param_ids, order),
        known_kinds=kinds,
    )


def _gathered(values: list[Any], rows: Int64s) -> list[Any]:
    """Return the values of these rows, in one step."""
    if np.array_equal(rows, np.arange(len(values))):
        return values  # most files have their data in the order of the header
    column = np.empty(len(values), object)
    column[:] = values
    return column[rows].tolist()  # type: ignore[no-any-return]  # NumPy does not know what an object array holds


def check_count(count: int, limits: Limits, rule: str) -> None:
    """Check the number of tensors."""
    if count > (limits.tensors or 0):
        raise LimitError(
            f"{counted(count, 'tensor')}, more than the limit of {limits.tensors}",
            rule=rule,
            hint=f"if you trust the file, pass limits=Limits(tensors={count})",
        )


def check_name(name: str, limits: Limits, rule: str) -> None:
    """Check the length of a name."""
    if len(name) * 4 > limits.name_bytes and len(name.encode("utf-8", "surrogatepass")) > limits.name_bytes:
        raise LimitError(f"a name of more than {limits.name_bytes} bytes", tensor=name, rule=rule)


def check_names(names: Sequence[str], limits: Limits, rule_twice: str, rule_long: str) -> None:
    """Check the names that a writer is given."""
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DuplicateNameError("two tensors have this name", tensor=twice, rule=rule_twice)
    for name in names:
        check_name(name, limits, rule_long)


def check_shape(shape: Shape, nbytes: int, limits: Limits, rule: str) -> None:
    """Check a shape that a writer is given, and the bytes that it needs."""
    if len(shape) > limits.rank:
        raise LimitError(f"{len(shape)} axes, more than the limit of {limits.rank}", rule=rule)
    if nbytes > limits.tensor_bytes:
        raise LimitError(f"{nbytes} bytes, more than the limit of {limits.tensor_bytes}")


def checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata that a writer is given, if it maps text to text."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata maps str to str, got {type(key).__name__} to {type(value).__name__} for {key!r}")
    return dict(metadata)


def utf8(text: str, rule: str) -> bytes:
    """Encode text that goes into a file."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = text[error.start : error.start + 1] if len(text) > 100 else text
        raise FormatError(f"{shown!r} contains a lone surrogate; cannot encode as UTF-8", rule=rule) from None
