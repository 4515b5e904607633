"""Calls that only make plain data: containers, bytes, numbers, dates, paths, NumPy's values, small values of torch.

Each builder takes the arguments of one call and returns data. Arguments that the real function would not take are a
CorruptError; arguments that are legal but not known here leave the call as it was asked for.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import CorruptError, DTypeError, printable
from ...tensor.data import Array
from ...tensor.dtype import DType
from ..codec.pickle_values import Builder, Call, PickledDict, PickledSet, Symbol, kind_of
from .tensors import MAX_AXES, Unread

Args = tuple[Any, ...]


def arguments(args: Args, least: int, most: int, what: str) -> Args:
    """Return the arguments of a call if there are as many as it takes."""
    if not least <= len(args) <= most:
        raise CorruptError(f"{what} with {len(args)} arguments", rule="PT-22")
    return args


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise CorruptError(problem, rule="PT-22")


def _ordered_dict(args: Args) -> Any:
    if not args:
        return PickledDict()
    (pairs,) = arguments(args, 1, 1, "an OrderedDict")
    if isinstance(pairs, dict):
        return PickledDict(pairs)
    _require(isinstance(pairs, (list, tuple)), f"an OrderedDict of a {kind_of(pairs)}")
    made = PickledDict()
    for pair in pairs:
        is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], (str, int))
        _require(is_pair, "an OrderedDict of something else than keys with values")
        if pair[0] in made:
            raise CorruptError("a key occurs twice in one dict", rule="PT-16")
        made[pair[0]] = pair[1]
    return made


def _default_dict(args: Args) -> Any:
    return _ordered_dict(arguments(args, 0, 2, "a defaultdict")[1:])  # The first would make missing values.


def _items(args: Args) -> list[Any]:
    (items,) = arguments(args or ((),), 1, 1, "a collection")
    _require(isinstance(items, (list, tuple)), f"a collection of a {kind_of(items)}")
    return list(items)


def _encode(args: Args) -> Any:
    text, *encoding = arguments(args, 1, 2, "_codecs.encode")
    latin = isinstance(text, str) and encoding in (["latin1"], ["latin-1"])
    _require(latin, "_codecs.encode of something else than text as latin1")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise CorruptError("bytes that are spelled by characters beyond latin1", rule="PT-22") from None


def _bytes(args: Args) -> Any:
    if len(args) == 2 and isinstance(args[0], str):
        return _encode(args)
    if args and (len(args) != 1 or not isinstance(args[0], bytes)):
        return Call(Symbol("builtins", "bytes"), args)
    return args[0] if args else b""


def _complex(args: Args) -> Any:
    real, imag = arguments(args, 2, 2, "a complex number")
    _require(
        all(isinstance(part, (int, float)) for part in (real, imag)), "a complex number of something else than numbers"
    )
    try:
        return complex(real, imag)
    except OverflowError:
        raise CorruptError("a complex number of integers beyond all floats", rule="PT-22") from None


def _integers(kind: type[range | slice]) -> Builder:
    def build(args: Args) -> Any:
        optional = (type(None),) if kind is slice else ()
        right = 1 <= len(args) <= 3 and all(type(part) in (int, *optional) for part in args)
        _require(right and (kind is slice or args[2:] != (0,)), f"a {kind.__name__} of something else than integers")
        return kind(*args)

    return build


def _size(args: Args) -> Any:
    (extents,) = arguments(args, 1, 1, "torch.Size")
    whole = isinstance(extents, (tuple, list)) and all(type(extent) is int for extent in extents)
    _require(whole, "a torch.Size of something else than integers")
    return tuple(extents)


def _device(args: Args) -> Any:
    kind, *index = arguments(args, 1, 2, "torch.device")
    right = isinstance(kind, str) and all(type(number) is int for number in index)
    _require(right, "a torch.device of something else than a name and a number")
    return f"{kind}:{index[0]}" if index else kind


def _layout(args: Args) -> Any:
    (layout,) = arguments(args, 1, 1, "a layout")
    _require(isinstance(layout, str), f"a layout named by a {kind_of(layout)}")
    return layout


def _path(args: Args) -> Any:
    _require(all(isinstance(part, str) for part in args), "a path of something else than strings")
    root, rest = ("/", args[1:]) if args[:1] == ("/",) else ("", args)
    return root + "/".join(rest)


def _moment(name: str) -> Builder:
    """Dates and times pickle as a few bytes; with a time zone, or spelled otherwise, the call is kept."""
    kind: Callable[[bytes], Any] = getattr(datetime, name)

    def build(args: Args) -> Any:
        if len(args) != 1 or not isinstance(args[0], (bytes, str)):
            return Call(Symbol("datetime", name), args)
        raw = args[0] if isinstance(args[0], bytes) else args[0].encode("latin-1", "replace")
        try:
            return kind(raw)
        except (TypeError, ValueError):
            raise CorruptError(f"a datetime.{name} of invalid bytes", rule="PT-22") from None

    return build


def _timedelta(args: Args) -> Any:
    if len(args) != 3 or not all(type(part) is int for part in args):
        return Call(Symbol("datetime", "timedelta"), args)
    try:
        return datetime.timedelta(*args)
    except OverflowError:
        raise CorruptError("a datetime.timedelta beyond all times", rule="PT-22") from None


# --------------------------------------------------------------------------------------------------- NumPy

_SIMPLE_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{1,4}")


class NumpyDType(Call):
    """A simple dtype; its byte order comes with its state."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        super().__init__(Symbol("numpy", "dtype"), (code,))
        self.code = code
        self.order = "="

    def take_state(self, state: Any) -> None:
        right = isinstance(state, tuple) and len(state) >= 2 and state[1] in ("<", ">", "|", "=")
        _require(right, "invalid state of a NumPy dtype")
        _require(all(part is None for part in state[2:5]), "a simple NumPy dtype with fields")
        self.order = state[1]

    def decode(self) -> np.dtype[Any]:
        """Return the dtype itself."""
        return np.dtype(("<" if self.order in "=|" else self.order) + self.code)


class NumpyArray(Call):
    """An array. ``array`` is None until its state is set, and if its dtype is not a simple one; ``items`` are the
    objects of an array of objects. ``reason`` states why an array cannot be read.
    """

    __slots__ = ("array", "items")

    def __init__(self, kind: Symbol, array: Array | None = None) -> None:
        super().__init__(kind, ())
        self.array = array
        self.items: list[Any] | None = None

    def take_state(self, state: Any) -> None:
        super().take_state(state)
        if not isinstance(state, tuple) or len(state) != 5:
            _require(self.function_name != "numpy.ndarray", "invalid state of a NumPy array")
            return
        _, shape, dtype, fortran, raw = state
        if isinstance(dtype, NumpyDType):
            self.array = _array(raw, dtype, shape, "F" if fortran else "C")
        elif isinstance(raw, list):
            self.items = raw

    @property
    def reason(self) -> str | None:
        """Why the array cannot be read; None if it can."""
        if self.array is None:
            return f"a {printable(self.function_name)} whose dtype or form is not supported"
        try:
            DType.of(self.array.dtype)
        except DTypeError:
            return f"an array of {self.array.dtype}"
        return None


def _array(raw: Any, dtype: NumpyDType, shape: Any, order: Any) -> Array:
    if isinstance(raw, str):  # The bytes of Python 2.
        raw = _encode((raw, "latin1"))
    right = isinstance(shape, tuple) and all(type(extent) is int and 0 <= extent < 1 << 62 for extent in shape)
    right = right and len(shape) <= MAX_AXES and isinstance(raw, bytes) and order in ("C", "F")
    _require(right, "a NumPy array of an impossible form")
    decoded = dtype.decode()
    expected = math.prod(shape) * decoded.itemsize
    _require(len(raw) == expected, f"a NumPy array of shape {list(shape)} of {decoded} has {len(raw)} bytes")
    try:
        array: Array = np.frombuffer(raw, decoded).reshape(shape, order=order)
    except ValueError as error:
        raise CorruptError(f"NumPy has no array of shape {list(shape)}: {error}", rule="PT-22") from None
    return array


def _dtype(args: Args) -> Any:
    code = arguments(args, 1, 3, "a NumPy dtype")[0]
    if isinstance(code, str) and _SIMPLE_DTYPE.fullmatch(code) and not code.endswith(("S0", "U0")):
        return NumpyDType(code)
    return Call(Symbol("numpy", "dtype"), args)


def _scalar(args: Args) -> Any:
    dtype, *raw = arguments(args, 1, 2, "a NumPy scalar")
    if not isinstance(dtype, NumpyDType):
        return Call(Symbol("numpy", "scalar"), args)
    _require(bool(raw), "a NumPy scalar without its bytes")
    return _array(raw[0], dtype, (), "C")[()].item()


def _from_buffer(args: Args) -> Any:
    raw, dtype, shape, order = arguments(args, 4, 4, "a NumPy array")
    made = NumpyArray(Symbol("numpy", "ndarray"))
    if isinstance(dtype, NumpyDType):
        made.array = _array(raw, dtype, shape, order)
    return made


def _reconstruct(args: Args) -> Any:
    kind = arguments(args, 3, 3, "a NumPy array")[0]
    _require(isinstance(kind, Symbol), f"a NumPy array of the class {kind_of(kind)}")
    return NumpyArray(kind)


def _masked(args: Args) -> Any:
    return Unread("numpy.ma.MaskedArray", args, "a masked NumPy array")


_PATHS = [f"{pure}{system}Path" for pure in ("Pure", "") for system in ("Posix", "Windows", "")]

PLAIN_CALLS: dict[tuple[str, str], Builder] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("collections", "Counter"): _ordered_dict,
    ("collections", "defaultdict"): _default_dict,
    ("builtins", "dict"): _ordered_dict,
    ("collections", "deque"): lambda args: _items(args[:1]),  # The second is its largest length.
    ("builtins", "list"): _items,
    ("builtins", "tuple"): lambda args: tuple(_items(args)),
    ("builtins", "set"): lambda args: PickledSet(_items(args)),
    ("builtins", "frozenset"): lambda args: PickledSet(_items(args)),
    ("_codecs", "encode"): _encode,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("builtins", "complex"): _complex,
    ("builtins", "range"): _integers(range),
    ("builtins", "xrange"): _integers(range),
    ("builtins", "slice"): _integers(slice),
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    ("torch.serialization", "_get_layout"): _layout,
    **{(module, name): _path for module in ("pathlib", "pathlib._local") for name in _PATHS},
    **{("datetime", name): _moment(name) for name in ("datetime", "date", "time")},
    ("datetime", "timedelta"): _timedelta,
    ("numpy", "dtype"): _dtype,
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
}
"""The calls that need nothing but their arguments, by module and name."""
ARRAY_CALLS: dict[tuple[str, str], Builder] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
    **{(module, "_mareconstruct"): _masked for module in ("numpy.ma", "numpy.ma.core")},
}
"""The calls that make arrays."""
