"""The result of a diff: the status of each tensor, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from ...errors import counted, printable
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.plain import Plain
from ...tensor.scalar import Scalar
from ...tensor.tabular import Result
from .difference import Difference, Tolerance

Status = Literal["equal", "close", "moved", "changed", "dtype changed", "shape changed", "added", "removed"]
STATUSES: tuple[Status, ...] = get_args(Status)
_EQUAL: tuple[Status, ...] = ("equal", "close")


@dataclass(frozen=True, slots=True)
class TensorDiff(Plain):
    """The comparison of one tensor.

    ``name`` is its name on the first side, ``new_name`` on the second; one of them is None if the tensor was added or
    removed, and they differ if it was moved. ``difference`` has the figures if values differ; ``problem`` is the reason
    why they could not be computed.

    >>> import numpy as np, burnstore as bs
    >>> (tensor,) = bs.diff({"a": np.ones(2)}, {"a": np.zeros(2)}).tensors
    >>> tensor.status, tensor.difference.max_abs
    ('changed', 1.0)
    """

    status: Status
    name: str | None
    new_name: str | None
    dtype: DType | None
    new_dtype: DType | None
    shape: Shape | None
    new_shape: Shape | None
    nbytes: int
    difference: Difference | None = None
    problem: str | None = None

    @property
    def shown_name(self) -> str:
        """The name on the first side, or on the second if it is only there."""
        return self.name if self.name is not None else self.new_name or ""

    @property
    def has_same_values(self) -> bool:
        """Whether no value differs; name and dtype may."""
        if self.difference is not None:
            return self.difference.differing == 0
        return self.status in ("equal", "moved")


class _Having(property):
    """A property of a `Diff`: its tensors with one status."""

    def __init__(self, status: Status, doc: str) -> None:
        super().__init__(lambda diff: diff.of(status), doc=doc)

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None) -> list[TensorDiff]: ...  # type: ignore[override]


@dataclass(frozen=True, slots=True)
class Diff(Result):
    """The differences between two files, models or mappings.

    ``tensors`` are in the order of the first side, added ones at the end. ``layout`` is the layout of the comparison,
    if it is not that of both sides. ``metadata`` and ``scalars`` have only differing entries: both values, None for a
    side without one. ``notes`` concern the comparison and how each file was read. ``uncompared`` are data that a file
    stores without a name, so that nothing can be compared with them.

    >>> import numpy as np, burnstore as bs
    >>> found = bs.diff({"a": np.ones(2), "b": np.ones(3)}, {"a": np.ones(2)})
    >>> found.is_equal, [tensor.name for tensor in found.removed]
    (False, ['b'])
    """

    _facts: ClassVar[tuple[str, ...]] = ("ok", "is_equal", "counts")

    first: str
    second: str
    layout: str | None
    tolerance: Tolerance | None
    tensors: tuple[TensorDiff, ...] = field(repr=False)
    metadata: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    scalars: Mapping[str, tuple[Scalar | None, Scalar | None]] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    uncompared: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether all data were compared, all tensors are equal (or close, with a tolerance) and all scalars.

        ``metadata`` does not count: it states which program wrote a file, and when.
        """
        return not self.scalars and not self.uncompared and all(tensor.status in _EQUAL for tensor in self.tensors)

    ok = is_equal

    def of(self, *statuses: Status) -> list[TensorDiff]:
        """Return the tensors with one of these statuses."""
        for status in statuses:
            if status not in STATUSES:
                raise ValueError(f"a status must be one of {', '.join(map(repr, STATUSES))}, got {status!r}")
        return [tensor for tensor in self.tensors if tensor.status in statuses]

    equal = _Having("equal", "The tensors whose name, dtype, shape and bytes are the same.")
    close = _Having("close", "The tensors whose values are all within the tolerance, though not all bytes are equal.")
    moved = _Having("moved", "The tensors that have another name and are otherwise equal.")
    changed = _Having("changed", "The tensors with other values.")
    dtype_changed = _Having("dtype changed", "The tensors of another dtype.")
    shape_changed = _Having("shape changed", "The tensors of another shape.")
    added = _Having("added", "The tensors that only the second side has.")
    removed = _Having("removed", "The tensors that only the first side has.")

    @property
    def counts(self) -> dict[Status, int]:
        """The number of tensors of each status."""
        counted: dict[Status, int] = dict.fromkeys(STATUSES, 0)
        for tensor in self.tensors:
            counted[tensor.status] += 1
        return counted

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        from ...tensor.notebook import changes_panel  # not at import: only notebooks need it

        lines = [_line(tensor) for tensor in self.tensors if tensor.status not in _EQUAL]
        return changes_panel(self.first, self.second, self.counts, lines)

    def __str__(self) -> str:
        """Return a summary in one line, and a line for each tensor that is not equal and each note."""
        statuses = [f"{count} {status}" for status, count in self.counts.items() if count]
        lines = [f"{counted(len(self.tensors), 'tensor')}: {', '.join(statuses) or 'none'}"]
        lines += [_line(tensor) for tensor in self.tensors if tensor.status not in _EQUAL]
        lines += [f"not compared: {printable(note)}" for note in self.uncompared]
        lines += [f"note: {printable(note)}" for note in self.notes]
        return "\n".join(lines)


def _line(tensor: TensorDiff) -> str:
    shown = printable(tensor.shown_name)
    if tensor.status == "moved":
        return f"moved: {shown} -> {printable(tensor.new_name or '')}"
    if tensor.status == "shape changed":
        return f"shape changed: {shown}: {_list(tensor.shape)} -> {_list(tensor.new_shape)}"
    if tensor.status in ("added", "removed"):
        dtype, shape = (tensor.new_dtype, tensor.new_shape) if tensor.name is None else (tensor.dtype, tensor.shape)
        return f"{tensor.status}: {shown} ({dtype} {_list(shape)})"
    dtypes = "" if tensor.dtype is tensor.new_dtype else f"{tensor.dtype} -> {tensor.new_dtype}, "
    return f"{tensor.status}: {shown}: {dtypes}{tensor.problem if tensor.difference is None else tensor.difference}"


def _list(shape: Shape | None) -> str:
    return str(list(shape or ()))
