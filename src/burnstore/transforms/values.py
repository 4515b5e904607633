"""Values: changes of a tensor that the rules file knows besides those of axes and dtype; done when it is read.

Each function takes snapshots and returns one, so it also serves in an ``adapter``. A result is computed as a whole,
from its own tensors only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import DTypeError, ModelError
from ..tensor.data import Array, Shape, TensorData, array_from_bytes, bytes_of_array
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import ComputedData, Data, element_dtype
from .constant import constant
from .precision import cast, rounded_results, underflows

RopeOrder = Literal["pairs", "halves"]
GroupOrder = Literal["parts", "groups"]


@dataclass(slots=True, eq=False)
class CalculatedData(ComputedData):
    """What a function makes of the arrays of other tensors; elements are only moved where ``width`` is given."""

    parts: Sequence[TensorSnapshot]
    function: Callable[..., Array]
    arguments: tuple[Any, ...]
    dtype: DType
    nbytes: int
    width: int | None = None
    underflowed: bool = False
    """Whether a result that is not 0 was rounded to 0."""

    @property
    def file(self) -> str | None:
        return self.parts[0]._data.file

    @property
    def inner(self) -> Sequence[Data]:
        return [part._data for part in self.parts]

    @property
    def in_source(self) -> bool:
        return all(part._data.in_source for part in self.parts)

    def bytes_held(self, nbytes: int) -> int:
        return nbytes + sum(part.nbytes for part in self.parts)

    def fill(self, buffer: Array) -> None:
        given = [self._array(part) for part in self.parts]
        with np.errstate(all="ignore"):
            raw = made = self.function(*given, *self.arguments)
        if self.width is None:
            raw = rounded_results(made, self.dtype, given)
            self.underflowed = self.underflowed or underflows(made, raw)
        buffer[:] = np.frombuffer(bytes_of_array(np.ascontiguousarray(raw)), np.uint8)

    def _array(self, part: TensorSnapshot) -> Array:
        data = part.to_data()
        if self.width is not None:
            return np.ndarray(data.shape, element_dtype(self.width), data.raw)
        return array_from_bytes(data.raw, data.dtype, data.shape).astype(np.float64)


def _moved(
    parts: Sequence[TensorSnapshot], shape: Shape, function: Callable[..., Array], *arguments: Any
) -> TensorSnapshot:
    parts = [part.decoded() if part.dtype.is_quantized else part for part in parts]
    first = parts[0]
    if first.dtype.bits % 8:
        raise DTypeError(f"elements of {first.dtype.name} cannot be moved", tensor=first.path)
    width = first.dtype.bits // 8
    nbytes = math.prod(shape) * width
    data = CalculatedData(parts, function, arguments, first.dtype, nbytes, width)
    return first.replace(shape=shape, data=data, nbytes=nbytes)


def _calculated(
    parts: Sequence[TensorSnapshot], shape: Shape, dtype: DType, function: Callable[..., Array], *arguments: Any
) -> TensorSnapshot:
    for part in parts:
        if not part.dtype.is_float or part.dtype.bits % 8:
            raise DTypeError(f"expected floats, found {part.dtype.name}", tensor=part.path)
    nbytes = dtype.nbytes(shape)
    data = CalculatedData(parts, function, arguments, dtype, nbytes)
    return parts[0].replace(shape=shape, dtype=dtype, data=data, nbytes=nbytes)


def permute_rope(snapshot: TensorSnapshot, heads: int, to: RopeOrder = "pairs") -> TensorSnapshot:
    """Return a query or key projection with the features of each head in another order for rotary encoding.

    Hugging Face's Llama rotates the two halves of a head, Burn's `RotaryEncoding` neighbouring pairs. The features are
    on the first axis; of grouped queries, ``heads`` of a key are its own.

    >>> halves = TensorSnapshot.from_numpy("q", np.arange(8, dtype=np.int16))
    >>> permute_rope(halves, 2).numpy().tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    rows = snapshot.shape[0] if snapshot.shape else 0
    if heads < 1 or rows % (2 * heads):
        raise ModelError(
            f"its first axis has {rows} entries, which {heads} heads of pairs do not divide", tensor=snapshot.path
        )
    return _moved([snapshot], snapshot.shape, _permuted, heads, to)


def _permuted(array: Array, heads: int, to: RopeOrder) -> Array:
    half = array.shape[0] // heads // 2
    inner = (2, half) if to == "pairs" else (half, 2)
    return array.reshape(heads, *inner, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def regroup(snapshot: TensorSnapshot, groups: int, shares: Sequence[int], to: GroupOrder = "parts") -> TensorSnapshot:
    """Return a fused projection with its parts one after the other, where each of several groups (heads) has all parts.

    ``shares`` are the relative sizes of the parts, ``to="groups"`` is the way back. The first axis is ordered.

    >>> heads = TensorSnapshot.from_numpy("qkv", np.array([11, 12, 13, 21, 22, 23], np.int16))
    >>> regroup(heads, 2, (1, 1, 1)).numpy().tolist()
    [11, 21, 12, 22, 13, 23]
    """
    rows = snapshot.shape[0] if snapshot.shape else 0
    whole = sum(shares)
    if groups < 1 or whole < 1 or any(rows * share % (whole * groups) for share in shares):
        raise ModelError(
            f"its first axis has {rows} entries, which {groups} groups of {len(shares)} parts do not divide",
            tensor=snapshot.path,
        )
    sizes = tuple(rows * share // (whole * groups) for share in shares)
    return _moved([snapshot], snapshot.shape, _regrouped, groups, sizes, to)


def _regrouped(array: Array, groups: int, sizes: tuple[int, ...], to: GroupOrder) -> Array:
    ends = np.cumsum(sizes)[:-1]
    if to == "parts":
        whole = array.reshape(groups, sum(sizes), *array.shape[1:])
        return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in np.split(whole, ends, 1)])
    parts = np.split(array, ends * groups)
    apart = [part.reshape(groups, -1, *array.shape[1:]) for part in parts]
    return np.concatenate(apart, 1).reshape(array.shape)


def add(snapshot: TensorSnapshot, value: float) -> TensorSnapshot:
    """Return the tensor with a number added; in F32 where it is narrower, as such models compute it.

    >>> add(TensorSnapshot.from_numpy("norm", np.zeros(2, np.float16)), 1.0).numpy()
    array([1., 1.], dtype=float32)
    """
    dtype = DType.F32 if snapshot.dtype.is_float and snapshot.dtype.bits < 32 else snapshot.dtype
    return _calculated([snapshot], snapshot.shape, dtype, np.add, value)


def fold_weight_norm(magnitude: TensorSnapshot, direction: TensorSnapshot, axis: int = 0) -> TensorSnapshot:
    """Return the weight of which weight norm stores the magnitude and the direction apart.

    >>> g, v = (TensorSnapshot.from_numpy(name, np.float32(held)) for name, held in (("g", [[10]]), ("v", [[3, 4]])))
    >>> fold_weight_norm(g, v).numpy().tolist()
    [[6.0, 8.0]]
    """
    wanted = _norm_shape(direction, axis)
    if magnitude.shape != wanted:
        raise ModelError(
            f"its shape is {list(magnitude.shape)}; the weight norm of {direction.path} has {list(wanted)}",
            tensor=magnitude.path,
        )
    return _calculated([magnitude, direction], direction.shape, direction.dtype, _folded, axis)


def weight_norm(snapshot: TensorSnapshot, axis: int = 0) -> TensorSnapshot:
    """Return the magnitude that weight norm stores of a weight."""
    return _calculated([snapshot], _norm_shape(snapshot, axis), snapshot.dtype, _norm, axis)


def _norm_shape(snapshot: TensorSnapshot, axis: int) -> Shape:
    if not -len(snapshot.shape) <= axis < len(snapshot.shape):
        raise ModelError(f"no axis {axis} in shape {list(snapshot.shape)}", tensor=snapshot.path)
    kept = axis % len(snapshot.shape)
    return tuple(size if at == kept else 1 for at, size in enumerate(snapshot.shape))


def _norm(array: Array, axis: int) -> Array:
    others = tuple(at for at in range(array.ndim) if at != axis % array.ndim)
    norm: Array = np.sqrt(np.sum(np.square(array), axis=others, keepdims=True))
    return norm


def _folded(magnitude: Array, direction: Array, axis: int) -> Array:
    norm = _norm(direction, axis)
    return direction * (magnitude / norm)


def concatenate(parts: Sequence[TensorSnapshot], axis: int) -> TensorSnapshot:
    """Return several tensors as one, along any axis.

    >>> parts = [TensorSnapshot.from_numpy(name, np.ones((2, 1), np.int16)) for name in "ab"]
    >>> concatenate(parts, 1).shape
    (2, 2)
    """
    first = parts[0]
    if not -len(first.shape) <= axis < len(first.shape):
        raise ModelError(f"no axis {axis} in shape {list(first.shape)}", tensor=first.path)
    axis %= len(first.shape)
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    for part in parts:
        if part.dtype is not first.dtype or (*part.shape[:axis], *part.shape[axis + 1 :]) != rest:
            raise ModelError(
                f"cannot join it ({part.dtype} {list(part.shape)}) to {first.path} ({first.dtype} {list(first.shape)}) "
                f"along axis {axis}",
                tensor=part.path,
            )
    shape = (*first.shape[:axis], sum(part.shape[axis] for part in parts), *first.shape[axis + 1 :])
    return _moved(list(parts), shape, _concatenated, axis).replace(param_id=None)


def _concatenated(*given: Any) -> Array:
    *arrays, axis = given
    return np.concatenate(arrays, axis)


def reshape(snapshot: TensorSnapshot, shape: Shape) -> TensorSnapshot:
    """Return the same elements in another shape; ModelError if their numbers differ."""
    if math.prod(shape) != math.prod(snapshot.shape):
        raise ModelError(f"cannot reshape {list(snapshot.shape)} to {list(shape)}", tensor=snapshot.path)
    return snapshot.replace(shape=tuple(shape))


PATTERNS = ("arange", "tril")
"""Constants that are not one number: positions along the last axis, and a causal mask: ones up to the diagonal."""


def filled(path: str, value: float | str, shape: Shape, dtype: DType) -> TensorSnapshot:
    """Return a constant tensor: of one number, or of one of `PATTERNS`.

    >>> filled("ids", "arange", (1, 3), DType.I64).numpy().tolist()
    [[0, 1, 2]]
    """
    if isinstance(value, (int, float)):
        if dtype.is_float:
            return constant(path, shape, value, dtype, ())
        return TensorSnapshot.from_numpy(path, np.full(shape, value, dtype.numpy))
    size = shape[-1] if shape else 1
    if value == "arange":
        made: Array = np.broadcast_to(np.arange(size), shape)
    else:
        made = np.broadcast_to(np.tril(np.ones((shape[-2] if len(shape) > 1 else size, size))), shape)
    if not dtype.is_float:
        return TensorSnapshot.from_data(path, TensorData.from_numpy(np.ascontiguousarray(made, dtype.numpy)))
    return cast(TensorSnapshot.from_numpy(path, np.ascontiguousarray(made, np.float64)), dtype)
