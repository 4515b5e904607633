"""NumPy's scalars, dtypes and arrays, as pickles spell them: decoded by a table of simple dtypes, nothing else."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from ...errors import CorruptError
from ...tensor.data import Array
from ..codec.pickle_values import Builder, Call, Symbol, kind_of
from .plain_calls import Args, arguments
from .tensors import MOST_AXES

_SIMPLE = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{1,4}")
_CORES = ("numpy.core", "numpy._core")


class NumpyDType(Call):
    """A dtype of the table; its byte order comes with its state."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        super().__init__(Symbol("numpy", "dtype"), (code,))
        self.code = code
        self.order = "="

    def take_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise CorruptError("the state of a NumPy dtype is not one", rule="PT-22")
        if any(part is not None for part in state[2:5]):
            raise CorruptError("a simple NumPy dtype with fields", rule="PT-22")
        self.order = state[1]

    def decode(self) -> np.dtype[Any]:
        """The dtype itself."""
        return np.dtype(("<" if self.order in "=|" else self.order) + self.code)


class NumpyArray(Call):
    """An array; None until its state came, and for good where its dtype is not one of the table."""

    __slots__ = ("array",)

    def __init__(self, array: Array | None = None) -> None:
        super().__init__(Symbol("numpy", "ndarray"), ())
        self.array = array

    def take_state(self, state: Any) -> None:
        super().take_state(state)
        if not isinstance(state, tuple) or len(state) != 5:
            raise CorruptError("the state of a NumPy array is not one", rule="PT-22")
        _, shape, dtype, fortran, raw = state
        if isinstance(dtype, NumpyDType):
            self.array = _array(raw, dtype, shape, "F" if fortran else "C")


def _array(raw: Any, dtype: NumpyDType, shape: Any, order: Any) -> Array:
    if isinstance(raw, str):  # bytes of Python 2
        try:
            raw = raw.encode("latin-1")
        except UnicodeEncodeError:
            raise CorruptError("the bytes of a NumPy array are text", rule="PT-22") from None
    good = isinstance(shape, tuple) and all(type(extent) is int and 0 <= extent < 1 << 62 for extent in shape)
    if not good or len(shape) > MOST_AXES or not isinstance(raw, bytes) or order not in ("C", "F"):
        raise CorruptError("a NumPy array of an impossible form", rule="PT-22")
    decoded = dtype.decode()
    if len(raw) != math.prod(shape) * decoded.itemsize:
        raise CorruptError(f"a NumPy array of shape {list(shape)} of {decoded} has {len(raw)} bytes", rule="PT-22")
    try:
        array: Array = np.frombuffer(raw, decoded).reshape(shape, order=order)
    except ValueError as error:
        raise CorruptError(f"NumPy has no array of shape {list(shape)}: {error}", rule="PT-22") from None
    return array


def _dtype(args: Args) -> Any:
    code = arguments(args, 1, 3, "a NumPy dtype")[0]
    if isinstance(code, str) and _SIMPLE.fullmatch(code) and not code.endswith(("S0", "U0")):
        return NumpyDType(code)
    return Call(Symbol("numpy", "dtype"), args)


def _scalar(args: Args) -> Any:
    dtype, *raw = arguments(args, 1, 2, "a NumPy scalar")
    if not isinstance(dtype, NumpyDType):
        return Call(Symbol("numpy", "scalar"), args)
    if not raw:
        raise CorruptError("a NumPy scalar without its bytes", rule="PT-22")
    return _array(raw[0], dtype, (), "C")[()].item()


def _from_buffer(args: Args) -> Any:
    raw, dtype, shape, order = arguments(args, 4, 4, "a NumPy array")
    if isinstance(dtype, NumpyDType):
        return NumpyArray(_array(raw, dtype, shape, order))
    return Call(Symbol("numpy", "ndarray"), args)


def _reconstruct(args: Args) -> Any:
    kind = arguments(args, 3, 3, "a NumPy array")[0]
    if not isinstance(kind, Symbol):
        raise CorruptError(f"a NumPy array of the class {kind_of(kind)}", rule="PT-22")
    return NumpyArray() if kind.full_name == "numpy.ndarray" else Call(Symbol("numpy", "ndarray"), args)


NUMPY_CALLS: dict[tuple[str, str], Builder] = {
    ("numpy", "dtype"): _dtype,
    **{(f"{core}.multiarray", "scalar"): _scalar for core in _CORES},
    **{(f"{core}.multiarray", "_reconstruct"): _reconstruct for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): _from_buffer for core in _CORES},
}
"""What is known of NumPy's calls."""
