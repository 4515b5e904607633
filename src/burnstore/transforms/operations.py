"""Operations: what a plan does to tensors, as data that can be printed, stored, sent to workers and inverted.

An operation is small and pure. It lowers to a lazy snapshot, so that shape and dtype are known before anything is read,
and executors go on to choose the fastest way for that snapshot's data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from ..errors import CorruptError, ModelError
from ..tensor.data import Shape
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import TransposedData
from .axes import joined, sliced, transposed
from .constant import constant
from .precision import CastData, cast


class Operation:
    """One step on the way of a tensor: call it with a snapshot, get a snapshot."""

    __slots__ = ()

    name: ClassVar[str]

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        """Return the tensor after this operation; nothing is read."""
        raise ModelError(f"{self} does not apply to one tensor", tensor=tensor.path)

    def inverse(self) -> Operation | None:
        """Return the operation that undoes this one; None if there is none."""
        return None

    def to_json(self) -> list[Any]:
        """Return the name and the arguments as plain data."""
        given = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # all are dataclasses
        return [self.name, *(value.name if isinstance(value, DType) else value for value in given)]


@dataclass(frozen=True, slots=True)
class Transpose(Operation):
    """Exchange the two axes of a matrix."""

    name = "transpose"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        return transposed(tensor)

    def inverse(self) -> Operation:
        return self

    def __str__(self) -> str:
        return "transposed"


@dataclass(frozen=True, slots=True)
class Split(Operation):
    """Take one of several equal parts along an axis."""

    part: int
    parts: int
    axis: int = 0

    name = "split"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        extent = tensor.shape[self.axis] if self.axis < len(tensor.shape) else 0
        if extent % self.parts:
            raise ModelError(
                f"axis {self.axis} has {extent} entries, which is not divisible into {self.parts} equal parts",
                tensor=tensor.path,
            )
        size = extent // self.parts
        return sliced(tensor, self.axis, self.part * size, (self.part + 1) * size)

    def __str__(self) -> str:
        return f"part {self.part + 1} of {self.parts}"


@dataclass(frozen=True, slots=True)
class Concat(Operation):
    """Join several tensors along the first axis."""

    name = "concat"

    def combine(self, tensors: Sequence[TensorSnapshot]) -> TensorSnapshot:
        """Return the tensors as one."""
        return joined(tensors)

    def __str__(self) -> str:
        return "joined"


@dataclass(frozen=True, slots=True)
class Cast(Operation):
    """Convert floats to another float dtype, rounded to nearest even."""

    dtype: DType

    name = "cast"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        return cast(tensor, self.dtype)

    def __str__(self) -> str:
        return f"cast to {self.dtype.name}"


@dataclass(frozen=True, slots=True)
class Fill(Operation):
    """Make a tensor of one value, where the source declares that it has none."""

    value: float
    shape: Shape
    dtype: DType

    name = "fill"

    def make(self, path: str) -> TensorSnapshot:
        """Return the tensor, under this name."""
        if self.dtype.is_float:
            return constant(path, self.shape, self.value, self.dtype, ())
        return TensorSnapshot.from_numpy(path, np.full(self.shape, self.value, self.dtype.numpy))

    def __str__(self) -> str:
        return f"filled with {self.value:g}"


@dataclass(frozen=True, slots=True)
class Apply(Operation):
    """Call a function of the user; it is known by name only, so it cannot be stored or inverted."""

    function_name: str
    function: Callable[..., Any] | None = None

    name = "apply"

    def __str__(self) -> str:
        return f"adapted by {self.function_name}"


@dataclass(frozen=True, slots=True)
class Combine(Operation):
    """Blend tensors of several sources, or take the one that counts."""

    method: str
    weights: tuple[float, ...] | None = None

    name = "combine"

    def __str__(self) -> str:
        return (
            self.method if self.weights is None else f"{self.method} {', '.join(f'{each:g}' for each in self.weights)}"
        )


TRANSPOSE = Transpose()
CONCAT = Concat()

_STORED: dict[str, type[Operation]] = {kind.name: kind for kind in (Transpose, Split, Concat, Cast, Fill)}


def operation_from_json(given: Any) -> Operation:
    """Return the operation that `Operation.to_json` wrote; CorruptError for anything else."""
    try:
        name, *arguments = given
        kind = _STORED[name]
        if kind is Split and not all(type(value) is int and value >= 0 for value in arguments):
            raise ValueError("the arguments of a split are counts")
        if kind is Split and not (arguments[0] < arguments[1] <= 1 << 20 and len(arguments) == 3):
            raise ValueError("there is no such part")
        if kind is Cast:
            arguments = [DType.parse(*arguments)]
        if kind is Fill:
            value, shape, dtype = arguments
            if type(value) not in (int, float) or not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError("a fill has a number and a shape")
            arguments = [value, tuple(shape), DType.parse(dtype)]
        return kind(*arguments)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CorruptError(f"expected an operation such as ['transpose'], found {str(given)[:80]!r}: {error}") from None


@functools.lru_cache(maxsize=1024)
def part_operations(part: int, parts: int, is_transposed: bool) -> tuple[Operation, ...]:
    """Return the operations that cut one of several equal parts and turn it; shared objects, as plans hold many."""
    split = (Split(part, parts),) if parts > 1 else ()
    return (*split, TRANSPOSE) if is_transposed else split


def operations_between(before: TensorSnapshot, after: TensorSnapshot, function_name: str) -> tuple[Operation, ...]:
    """Return what was done to a tensor by a function of the user, as operations where it used ours.

    >>> import numpy as np
    >>> given = TensorSnapshot.from_numpy("w", np.ones((2, 3), np.float32))
    >>> [str(step) for step in operations_between(given, cast(transposed(given), DType.F16), "Mine")]
    ['transposed', 'cast to F16']
    """
    steps: list[Operation] = []
    data, given = after._data, before._data
    while data is not given:
        if isinstance(data, CastData):
            steps.append(Cast(data.dtype))
        elif isinstance(data, TransposedData):
            steps.append(TRANSPOSE)
        else:
            return (Apply(function_name),)
        data = data.data
    return tuple(reversed(steps))
