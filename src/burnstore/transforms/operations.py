"""Operations: what a plan does to tensors, as data that can be printed, stored, sent to workers and inverted.

An operation is small and pure. It lowers to a lazy snapshot, so that shape and dtype are known before anything is read,
and executors go on to choose the fastest way for that snapshot's data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_args

from ..errors import CorruptError, ModelError
from ..tensor.data import Shape
from ..tensor.dtype import DType
from ..tensor.facts import DecodedData
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import TransposedData
from .axes import joined, sliced, transposed
from .precision import CastData, cast
from .values import (
    PATTERNS,
    GroupOrder,
    RopeOrder,
    add,
    concatenate,
    filled,
    fold_weight_norm,
    permute_rope,
    regroup,
    reshape,
    weight_norm,
)


class Operation:
    """One operation on a tensor: call it with a snapshot, get a snapshot."""

    __slots__ = ()

    name: ClassVar[str]
    joins: ClassVar[bool] = False
    """Whether it makes one tensor of several, by `combine`."""

    def combine(self, tensors: Sequence[TensorSnapshot]) -> TensorSnapshot:
        """Return the tensors as one."""
        raise ModelError(f"{self} does not apply to several tensors")

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        """Return the tensor after this operation; nothing is read."""
        raise ModelError(f"{self} does not apply to one tensor", tensor=tensor.path)

    def inverse(self) -> Operation | None:
        """Return the operation that undoes this one; None if no operation does."""
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
class StoredPart(Operation):
    """Take one of the tensors that a quantized one is stored as: its codes, its scales."""

    part: int

    name = "stored"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        parts = tensor.stored()
        if self.part >= len(parts):
            raise ModelError(f"it is stored as {len(parts)} tensors, and has no part {self.part}", tensor=tensor.path)
        return parts[self.part]

    def __str__(self) -> str:
        return "codes as stored" if self.part == 0 else f"part {self.part} as stored"


@dataclass(frozen=True, slots=True)
class AsQFloat(Operation):
    """Store the values of codes and scales as Burn's quantized floats, which have the same values."""

    name = "qfloat"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        found = qfloat_of(tensor)
        if found is None:
            raise ModelError("Burn has no quantized floats of this scheme", tensor=tensor.path)
        return found

    def __str__(self) -> str:
        return "as QFloat"


def qfloat_of(tensor: TensorSnapshot) -> TensorSnapshot | None:
    """Return a decoded tensor, or such a matrix transposed, as Burn's quantized floats; None where Burn has none."""
    data = tensor._data
    inner = data.data if isinstance(data, TransposedData) else data
    if not isinstance(inner, DecodedData) or tensor.dtype is not DType.F32:
        return None
    found = inner.qfloat(is_transposed=isinstance(data, TransposedData))
    return None if found is None else tensor.replace(dtype=found[0], data=found[1], facts=None)


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
        return sliced(
            tensor.decoded() if tensor.dtype.is_quantized else tensor,
            self.axis,
            self.part * size,
            (self.part + 1) * size,
        )

    def __str__(self) -> str:
        return f"part {self.part + 1} of {self.parts}"


@dataclass(frozen=True, slots=True)
class Slice(Operation):
    """Take the part from ``start`` to ``stop`` of an axis that has ``size`` entries."""

    axis: int
    start: int
    stop: int
    size: int

    name = "slice"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        found = tensor.shape[self.axis] if self.axis < len(tensor.shape) else 0
        if found != self.size:
            raise ModelError(f"axis {self.axis} has {found} entries, expected {self.size}", tensor=tensor.path)
        return sliced(tensor.decoded() if tensor.dtype.is_quantized else tensor, self.axis, self.start, self.stop)

    def __str__(self) -> str:
        return f"{self.start} to {self.stop} of {self.size} along axis {self.axis}"


@dataclass(frozen=True, slots=True)
class Concat(Operation):
    """Join several tensors along an axis."""

    axis: int = 0

    name = "concat"
    joins = True

    def combine(self, tensors: Sequence[TensorSnapshot]) -> TensorSnapshot:
        return joined(tensors) if self.axis == 0 else concatenate(tensors, self.axis)

    def to_json(self) -> list[Any]:
        return [self.name, self.axis] if self.axis else [self.name]

    def __str__(self) -> str:
        return "joined" if self.axis == 0 else f"joined along axis {self.axis}"


@dataclass(frozen=True, slots=True)
class FoldWeightNorm(Operation):
    """Make a weight of the magnitude and the direction that weight norm stores apart."""

    axis: int = 0

    name = "fold_weight_norm"
    joins = True

    def combine(self, tensors: Sequence[TensorSnapshot]) -> TensorSnapshot:
        if len(tensors) != 2:
            raise ModelError(f"expected the magnitude and the direction of a weight norm, found {len(tensors)} tensors")
        return fold_weight_norm(tensors[0], tensors[1], self.axis)

    def __str__(self) -> str:
        return "weight norm folded"


@dataclass(frozen=True, slots=True)
class WeightNorm(Operation):
    """Take the magnitude of a weight, as weight norm stores it."""

    axis: int = 0

    name = "weight_norm"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        return weight_norm(tensor, self.axis)

    def __str__(self) -> str:
        return "its magnitude"


@dataclass(frozen=True, slots=True)
class PermuteRope(Operation):
    """Order the features of each head for another kind of rotary encoding."""

    heads: int
    to: RopeOrder = "pairs"

    name = "permute_rope"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        return permute_rope(tensor, self.heads, self.to)

    def inverse(self) -> Operation:
        return PermuteRope(self.heads, "halves" if self.to == "pairs" else "pairs")

    def __str__(self) -> str:
        return f"rotary {self.to} of {self.heads} heads"


@dataclass(frozen=True, slots=True)
class Regroup(Operation):
    """Order the parts of a fused projection one after the other, where every group (head) has all of them."""

    groups: int
    shares: Shape
    to: GroupOrder = "parts"

    name = "regroup"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        return regroup(tensor, self.groups, self.shares, self.to)

    def inverse(self) -> Operation:
        return Regroup(self.groups, self.shares, "groups" if self.to == "parts" else "parts")

    def __str__(self) -> str:
        return f"{self.to} of {self.groups} heads together"


@dataclass(frozen=True, slots=True)
class Add(Operation):
    """Add a number, as for the norms of models that store their scale less one."""

    value: float

    name = "add"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        return add(tensor, self.value)

    def inverse(self) -> Operation:
        return Add(-self.value)

    def __str__(self) -> str:
        return f"{'plus' if self.value >= 0 else 'minus'} {abs(self.value):g}"


@dataclass(frozen=True, slots=True)
class Reshape(Operation):
    """Give the elements another shape."""

    before: Shape
    after: Shape

    name = "reshape"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        if tensor.shape != self.before:
            raise ModelError(f"its shape is {list(tensor.shape)}, expected {list(self.before)}", tensor=tensor.path)
        return reshape(tensor, self.after)

    def inverse(self) -> Operation:
        return Reshape(self.after, self.before)

    def __str__(self) -> str:
        return f"reshaped to {list(self.after)}"


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
class SlotCast(Operation):
    """Take the dtype of the slot, which converts the values when they are assigned; integers are converted, too."""

    given: DType
    dtype: DType

    name = "slot_cast"

    def __call__(self, tensor: TensorSnapshot) -> TensorSnapshot:
        return cast(tensor, self.dtype)

    def __str__(self) -> str:
        return f"cast {self.given} to {self.dtype}"


@dataclass(frozen=True, slots=True)
class Fill(Operation):
    """Make a tensor of one value, or of a pattern such as ``"arange"``, where the source has none."""

    value: float | str
    shape: Shape
    dtype: DType

    name = "fill"

    def make(self, path: str) -> TensorSnapshot:
        """Return the tensor, under this name."""
        return filled(path, self.value, self.shape, self.dtype)

    def __str__(self) -> str:
        return f"filled with {self.value if isinstance(self.value, str) else format(self.value, 'g')}"


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
_MOST_AXES = 64

_STORED: dict[str, type[Operation]] = {
    kind.name: kind
    for kind in (
        *(
            Transpose,
            StoredPart,
            AsQFloat,
            Split,
            Slice,
            Concat,
            Cast,
            Fill,
            FoldWeightNorm,
            WeightNorm,
            PermuteRope,
            Regroup,
            Add,
            Reshape,
        ),
    )
}


def operation_from_json(given: Any) -> Operation:
    """Return the operation that `Operation.to_json` wrote; CorruptError for anything else."""
    try:
        name, *arguments = given
        wanted = fields(_STORED[name])  # type: ignore[arg-type]  # all are dataclasses
        if len(arguments) > len(wanted):
            raise ValueError(f"{name} takes {len(wanted)} arguments")
        made = _STORED[name](*map(_argument, wanted, arguments))
        if isinstance(made, Split) and not made.part < made.parts <= 1 << 20:
            raise ValueError("the part is out of range")
        return made
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CorruptError(f"expected an operation such as ['transpose'], found {str(given)[:80]!r}: {error}") from None


def _argument(field: Any, given: Any) -> Any:
    """Return an argument as its field holds it; ValueError if it is none."""
    if field.name == "dtype":
        return DType.parse(given)
    if field.name in ("shape", "before", "after", "shares"):
        if not isinstance(given, list) or len(given) > _MOST_AXES:
            raise ValueError(f"a shape must be a list of at most {_MOST_AXES} counts")
        if not all(type(size) is int and 0 <= size < 1 << 62 for size in given):
            raise ValueError("a shape must consist of counts")
        return tuple(given)
    if field.name == "value":
        if type(given) not in (int, float) and given not in PATTERNS:
            raise ValueError("a value must be a number")
        return given
    if field.name == "to":
        orders = get_args(RopeOrder if field.type == "RopeOrder" else GroupOrder)
        if given not in orders:
            raise ValueError(f"an order is {' or '.join(orders)}")
        return given
    if type(given) is not int or not 0 <= given < 1 << 62:
        raise ValueError(f"{field.name} must be a count")
    return given


slot_cast = functools.lru_cache(maxsize=1024)(SlotCast)
"""Return the cast of one dtype to another; shared objects, as plans hold many."""


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
