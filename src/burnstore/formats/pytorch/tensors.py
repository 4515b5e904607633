"""Tensors as a pickle describes them: a storage, a dtype, and which of its elements in which order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...errors import CorruptError, LimitError, UnsupportedError, printable
from ...tensor.data import Array, Shape
from ...tensor.dtype import DType
from ..codec.pickle_values import Call, kind_of
from .storages import ITEM_SIZES, Storage

MOST_AXES = 64
MOST_EXPANDED = 1 << 30
_LARGEST = (1 << 63) - 1


class PickledTensor(Call):
    """A view on a storage. ``strides`` and ``offset`` count elements of ``dtype``; ``shape`` is torch's.

    ``conjugated`` and ``negated`` are torch's lazy bits: what lies in the storage is not yet the value. ``storage`` is
    None for a tensor whose values were not saved (a meta tensor).
    """

    __slots__ = ("conjugated", "dtype", "negated", "offset", "requires_grad", "shape", "storage", "strides")

    def __init__(
        self,
        storage: Storage | None,
        dtype: DType,
        offset: int,
        shape: Shape,
        strides: Shape,
        requires_grad: bool = False,
        *,
        conjugated: bool = False,
        negated: bool = False,
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.requires_grad = requires_grad
        self.conjugated = conjugated
        self.negated = negated

    @property
    def nbytes(self) -> int:
        """How many bytes its values have, each counted once."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]

    @property
    def lies_plainly(self) -> bool:
        """Whether its values lie one after the other; those of bools may be other bytes than 0 and 1."""
        return is_contiguous(self.shape, self.strides) and self.dtype is not DType.Bool

    def take_state(self, state: Any) -> None:
        raise CorruptError("a state is given to a tensor", rule="PT-16")

    def append(self, items: list[Any]) -> None:
        raise CorruptError("items are appended to a tensor", rule="PT-16")

    def set_items(self, items: list[Any]) -> None:
        raise CorruptError("an item is set in a tensor", rule="PT-16")

    @property
    def function_name(self) -> str:
        return "torch.Tensor"

    def __repr__(self) -> str:
        return f"<tensor {self.dtype} {list(self.shape)}>"


class CompositeTensor(Call):
    """A tensor that is kept as several: sparse, quantized, nested, or of a class that wraps others.

    ``parts`` are its tensors and arrays by name; ``kind`` says how they belong together, ``facts`` the rest that is
    needed for it.
    """

    __slots__ = ("facts", "kind", "parts")

    def __init__(
        self, kind: str, parts: dict[str, PickledTensor | CompositeTensor | Array], facts: Mapping[str, Any]
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.facts = facts
        self.state = self.appended = self.pairs = None

    take_state = PickledTensor.take_state
    append = PickledTensor.append
    set_items = PickledTensor.set_items

    @property
    def function_name(self) -> str:
        return f"{self.kind} torch.Tensor"

    def __repr__(self) -> str:
        return f"<{self.kind} tensor of {', '.join(map(printable, self.parts))}>"


def view(
    storage: Storage,
    dtype: DType,
    offset: Any,
    shape: Any,
    strides: Any,
    *,
    requires_grad: bool = False,
    conjugated: bool = False,
    negated: bool = False,
) -> PickledTensor:
    """A view whose every element lies in its storage, or an error that says which number is wrong (PT-21)."""
    shape, strides = whole_numbers(shape, "size"), whole_numbers(strides, "stride")
    check_view(storage.nbytes, ITEM_SIZES[dtype], offset, shape, strides)
    return PickledTensor(
        storage,
        dtype,
        offset,
        shape,
        strides,
        requires_grad=requires_grad,
        conjugated=conjugated,
        negated=negated,
    )


def whole_numbers(values: Any, what: str) -> Shape:
    """A tuple (or list) of integers that fit 63 bits and are not negative."""
    if not isinstance(values, (tuple, list)):
        raise CorruptError(f"a tensor's {what} is a {kind_of(values)}, not a tuple", rule="PT-21")
    for value in values:
        if type(value) is not int:
            raise CorruptError(f"a tensor's {what} holds a {kind_of(value)}, not an integer", rule="PT-21")
        if not 0 <= value <= _LARGEST:
            raise CorruptError(f"a tensor's {what} holds {value}", rule="PT-21")
    return tuple(values)


def check_view(available: int, item: int, offset: Any, shape: Shape, strides: Shape) -> None:
    """Refuse a view that leaves its storage of ``available`` bytes."""
    if type(offset) is not int or not 0 <= offset <= _LARGEST:
        raise CorruptError(f"a tensor's offset is {offset if type(offset) is int else kind_of(offset)}", rule="PT-21")
    if len(shape) != len(strides):
        raise CorruptError(f"a tensor of {len(shape)} axes has {len(strides)} strides", rule="PT-21")
    if len(shape) > MOST_AXES:
        raise LimitError(f"a tensor of {len(shape)} axes, more than the limit of {MOST_AXES}", rule="PT-21")
    count = math.prod(shape)
    if count == 0:
        return
    last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if (last + 1) * item > available:
        raise CorruptError(
            f"a tensor of shape {list(shape)} and strides {list(strides)} from element {offset} on needs "
            f"{(last + 1) * item} bytes, its storage declares {available}",
            rule="PT-21",
        )
    if count * item > max(available, MOST_EXPANDED):
        raise LimitError(
            f"a tensor that repeats the {available} bytes of its storage to {count * item}, above the byte limit of "
            f"{MOST_EXPANDED}",
            rule="PT-21",
        )


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether the elements lie one after the other in row-major order; axes of one element do not matter."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if stride != expected and 0 not in shape:
                return False
            expected *= extent
    return True


def shape_in_values(tensor: PickledTensor) -> Shape:
    """The shape by single values: two 4-bit floats are one element for torch."""
    if tensor.dtype is not DType.F4:
        return tensor.shape
    if not tensor.shape or not is_contiguous(tensor.shape, tensor.strides):
        raise UnsupportedError("a tensor of 4-bit floats that does not lie in its storage as it is", rule="PT-22")
    return (*tensor.shape[:-1], 2 * tensor.shape[-1])
