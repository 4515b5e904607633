"""Param and RunningState: one tensor of a model with its id, drawn when first used."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..models.structure import Holder, Struct
from ..tensor.data import Array, Shape, TensorData, checked_shape
from ..tensor.dtype import DType
from ..tensor.param_id import ParamId
from .initializer import Constant, Initializer, Zeros

__all__ = ["Param", "RunningState", "seed"]

_rng = np.random.default_rng()
_drawing = threading.Lock()  # A save may read from several threads, which must all see the same draw.


def seed(value: int | None) -> None:
    """Seed the values that are drawn from now on; None makes them random again.

    Values are drawn when they are first used, so they repeat only if the order of use does.
    """
    global _rng
    _rng = np.random.default_rng(value)


class Param(Holder):
    """A parameter: a shape, an initializer, an id, and the value once it is used or loaded.

    The first access to `value` draws it, as in Burn, so declaring a large model costs nothing and loading draws
    nothing. Shape and value are those of the file; ``transposed`` is true if the layer computes with the transpose of
    the stored form (a `Linear` of layout ``Col``).

    >>> param = Param([2, 3])
    >>> param.is_initialized, param.value.shape, param.is_initialized
    (False, (2, 3), True)
    """

    __slots__ = (
        "_data",
        "_dtype",
        "_fans",
        "_initializer",
        "_shape",
        "_value",
        "id",
        "reparameterization",
        "require_grad",
        "transposed",
    )

    def __init__(
        self, shape: Sequence[int], initializer: Initializer | None = None, *, dtype: DType = DType.F32,
        fan_in: int | None = None, fan_out: int | None = None, require_grad: bool | None = None,
        transposed: bool = False, id: ParamId | None = None,
    ) -> None:  # fmt: skip
        self._shape: Shape = checked_shape(shape)
        self._initializer = Zeros() if initializer is None else initializer
        if not isinstance(self._initializer, Initializer):
            raise TypeError(f"initializer must be an Initializer, got {type(initializer).__name__}")
        if dtype.is_quantized or DType.of(dtype.numpy) is not dtype:
            raise ValueError(f"NumPy cannot draw {dtype} values; pass them to Param.from_data")
        if not dtype.is_float and not isinstance(self._initializer, Constant):
            raise ValueError(f"{type(initializer).__name__} fills floats, got {dtype}")
        self._dtype = dtype
        self._fans = (fan_in, fan_out)
        self._value: Array | None = None
        self._data: TensorData | None = None
        self.id = ParamId.generate() if id is None else ParamId(id)
        self.require_grad = dtype.is_float if require_grad is None else require_grad
        self.transposed = transposed
        self.reparameterization: tuple[str, Struct] | None = None

    @staticmethod
    def from_data(value: Any, *, id: ParamId | None = None, require_grad: bool | None = None) -> Param:
        """Return a parameter with these values: an array, nested lists, or `TensorData`."""
        data = value if isinstance(value, TensorData) else np.asarray(value)
        if not isinstance(value, (np.ndarray, np.generic, TensorData)) and data.dtype == np.float64:
            data = np.asarray(value, np.float32)  # Python floats become Burn's default float.
        param = Param(data.shape, id=id)
        param.set(data)
        floats = param.dtype.is_float or param.dtype.is_quantized
        param.require_grad = floats if require_grad is None else require_grad
        return param

    @property
    def shape(self) -> Shape:
        """The stored extents."""
        return self._shape

    @property
    def memory_shape(self) -> Shape:
        """The extents that the layer computes with: reversed if the value is stored transposed."""
        return self._shape[::-1] if self.transposed else self._shape

    @property
    def dtype(self) -> DType:
        """The dtype of the value, or the declared dtype before a value exists."""
        if self._data is not None:
            return self._data.dtype
        return self._dtype if self._value is None else DType.of(self._value.dtype)

    @property
    def num_elements(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def is_initialized(self) -> bool:
        """Whether a value exists."""
        return self._value is not None or self._data is not None

    @property
    def value(self) -> Array:
        """The value, drawn at first access, dequantized if it is quantized."""
        value = self._value
        if value is None:
            with _drawing:
                if self._value is None:
                    self._value = self._draw() if self._data is None else self._data.numpy()
                value = self._value
        return value

    def _draw(self) -> Array:
        if self._dtype.is_float:
            fan_in, fan_out = self._fans
            drawn = self._initializer.fill(self._shape, _rng, fan_in=fan_in, fan_out=fan_out)
            return drawn.astype(self._dtype.numpy, copy=False)
        assert isinstance(self._initializer, Constant)
        return np.full(self._shape, self._initializer.value).astype(self._dtype.numpy)

    @property
    def data(self) -> TensorData | None:
        """The stored form of a value that NumPy has no dtype for (quantized, Flex32, other bool stores)."""
        return self._data

    def set(self, value: Array | TensorData) -> None:
        """Replace the value; the shape must be the parameter's."""
        if tuple(value.shape) != self._shape:
            raise ValueError(f"expected a value of shape {list(self._shape)}, got {list(value.shape)}")
        if isinstance(value, TensorData):
            self._data, self._value = value, None
        else:
            DType.of(value.dtype)
            self._data, self._value = None, value

    def __repr__(self) -> str:
        state = "" if self.is_initialized else ", not yet drawn"
        return f"{type(self).__name__}({list(self._shape)}, {self.dtype}, id={self.id}{state})"


class RunningState(Param):
    """A running statistic: stored like a parameter, but initialized at once, never trained, and it keeps its own id.

    >>> from burnstore import nn
    >>> nn.RunningState([2], nn.Ones()).value.tolist()
    [1.0, 1.0]
    """

    __slots__ = ()

    keeps_id = True  # Burn gives a loaded parameter the id of the file, but never a running state.

    def __init__(self, shape: Sequence[int], initializer: Initializer, *, id: ParamId | None = None) -> None:
        super().__init__(shape, initializer, require_grad=False, id=id)
        self._value = self._draw()
