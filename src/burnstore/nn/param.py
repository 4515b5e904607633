"""Param and RunningState: one tensor of a model, with its identity, drawn when first used."""

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

_rng = np.random.default_rng()
_drawing = threading.Lock()  # a save may read from several threads; each parameter is drawn once for all of them


def seed(value: int | None) -> None:
    """Make the values that are drawn from now on repeat from run to run; None makes them random again.

    Values are drawn when they are first used, so the order of use is part of what repeats.
    """
    global _rng
    _rng = np.random.default_rng(value)


class Param(Holder):
    """A parameter: a shape, a way to fill it, an id, and the value once it is used or loaded.

    Nothing is drawn before `value` is asked for, as in Burn, so declaring a large model costs nothing and loading never
    draws in vain. Shape and value are those of the file; ``transposed`` says that the layer computes with the transpose
    of what is stored (a `Linear` of layout ``Col``).

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
        self,
        shape: Sequence[int],
        initializer: Initializer | None = None,
        *,
        dtype: DType = DType.F32,
        fan_in: int | None = None,
        fan_out: int | None = None,
        require_grad: bool | None = None,
        transposed: bool = False,
        id: ParamId | None = None,
    ) -> None:
        self._shape: Shape = checked_shape(shape)
        self._initializer = Zeros() if initializer is None else initializer
        if not isinstance(self._initializer, Initializer):
            raise TypeError(f"initializer is an Initializer, not {type(initializer).__name__}")
        if dtype.is_quantized or DType.of(dtype.numpy) is not dtype:
            raise ValueError(f"NumPy draws no {dtype} values; give them with Param.from_data")
        if not dtype.is_float and not isinstance(self._initializer, Constant):
            raise ValueError(f"{type(initializer).__name__} fills floats, not {dtype}")
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
        """A parameter of these values: an array, nested lists, or `TensorData`."""
        data = value if isinstance(value, TensorData) else np.asarray(value)
        if (
            isinstance(data, np.ndarray)
            and data.dtype == np.float64
            and not isinstance(value, (np.ndarray, np.generic))
        ):
            data = data.astype(np.float32)  # lists of Python floats: Burn's default float
        param = Param(data.shape, id=id)
        param.set(data)
        floats = param.dtype.is_float or param.dtype.is_quantized
        param.require_grad = floats if require_grad is None else require_grad
        return param

    @property
    def shape(self) -> Shape:
        """The extents that a file holds, known before any value is."""
        return self._shape

    @property
    def memory_shape(self) -> Shape:
        """The extents that the layer computes with: those of the file, turned round if they are stored transposed."""
        return self._shape[::-1] if self.transposed else self._shape

    @property
    def dtype(self) -> DType:
        """The dtype of the value; the declared one before there is a value."""
        if self._data is not None:
            return self._data.dtype
        return self._dtype if self._value is None else DType.of(self._value.dtype)

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self._shape)

    @property
    def is_initialized(self) -> bool:
        """Whether there is a value already."""
        return self._value is not None or self._data is not None

    @property
    def value(self) -> Array:
        """The value; drawn now if there is none yet, dequantized if it is quantized."""
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
        """The stored form of a value that NumPy cannot hold as it is (quantized, Flex32, other bool stores)."""
        return self._data

    def set(self, value: Array | TensorData) -> None:
        """Take this value; its shape must be the parameter's."""
        if tuple(value.shape) != self._shape:
            raise ValueError(f"a value of shape {list(value.shape)} for a parameter of shape {list(self._shape)}")
        if isinstance(value, TensorData):
            self._data, self._value = value, None
        else:
            DType.of(value.dtype)
            self._data, self._value = None, value

    def __repr__(self) -> str:
        state = "" if self.is_initialized else ", not yet drawn"
        return f"{type(self).__name__}({list(self._shape)}, {self.dtype}, id={self.id}{state})"


class RunningState(Param):
    """A running statistic: stored like a parameter, but there from the start, never trained, and its id is its own.

    >>> from burnstore import nn
    >>> nn.RunningState([2], nn.Ones()).value.tolist()
    [1.0, 1.0]
    """

    __slots__ = ()

    keeps_id = True  # Burn gives a loaded parameter the id of the file, a running state never

    def __init__(self, shape: Sequence[int], initializer: Initializer, *, id: ParamId | None = None) -> None:
        super().__init__(shape, initializer, require_grad=False, id=id)
        self._value = self._draw()
