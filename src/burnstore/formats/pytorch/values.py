"""From the object graph to plain data: what a file contains besides its tensors, such as a configuration."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import CorruptError, LimitError
from ...io.documents import NotPlain, below
from ..codec.pickle_values import Call, Symbol, kind_of
from .calls import NumpyArray
from .graph import MAX_NODES, is_module, module_entries, value_below
from .tensors import CompositeTensor, PickledTensor, Storage

_MAX_DEPTH = 200
_PLAIN = (type(None), bool, int, float, complex, str, bytes, datetime.date, datetime.time, datetime.timedelta)
_KEYS = (str, int, float, bytes, type(None))
_OPEN_CLASSES = frozenset(["argparse.Namespace", "types.SimpleNamespace"])
"""Classes that are nothing but their attributes."""


@dataclass(frozen=True, slots=True)
class Opaque(NotPlain):
    """A value of a file that is not plain data: a tensor, a class, an object; only its type is known."""

    type_name: str
    about: str = ""

    def __repr__(self) -> str:
        return f"<{self.type_name}{self.about and ' '}{self.about}>"


def plain_value(root: Any, top_level_key: str | None = None) -> Any:
    """Return the graph, or the part below a key of it, as plain data.

    Dicts, lists (also for tuples and sets), strings, numbers, dates; everything else is an `Opaque`. An object that is
    chosen by a key gives its attributes.
    """
    chosen = value_below(root, top_level_key) if top_level_key is not None else root
    if isinstance(chosen, Call) and not is_module(chosen) and isinstance(chosen.state, dict) and not _is_tensor(chosen):
        chosen = chosen.state
    return _Walk().plain(chosen, 0)


class _Walk:
    """One walk over a graph, with a budget: what is small in a file can be huge when every path is followed."""

    def __init__(self) -> None:
        self._nodes = 0
        self._on_path: set[int] = set()

    def plain(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise LimitError(f"a graph of more than {MAX_NODES:,} values, every path to one counted", rule="PT-17")
        if isinstance(value, _PLAIN):
            return value
        inner = _entries(value)
        if inner is None:
            return _opaque(value)
        if depth > _MAX_DEPTH:
            raise LimitError(f"values nested more than {_MAX_DEPTH} deep", rule="PT-17")
        if id(value) in self._on_path:
            raise CorruptError(f"a {kind_of(value)} holds itself", rule="PT-23")
        self._on_path.add(id(value))
        made: dict[Any, Any] | list[Any]
        if isinstance(inner, dict):
            made = {key: self.plain(held, depth + 1) for key, held in inner.items()}
        else:
            made = [self.plain(held, depth + 1) for held in inner]
        self._on_path.discard(id(value))
        return made


def _entries(value: Any) -> dict[Any, Any] | list[Any] | tuple[Any, ...] | None:
    """Return what a value contains, if it is plain data that contains something."""
    if isinstance(value, Call) and not _is_tensor(value):
        if is_module(value):
            return module_entries(value)
        if value.function_name in _OPEN_CLASSES and isinstance(value.state, dict):
            value = value.state
    if isinstance(value, dict):
        return value if all(isinstance(key, _KEYS) for key in value) else None
    return value if isinstance(value, (list, tuple)) else None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (PickledTensor, CompositeTensor, NumpyArray, Storage))


def _opaque(value: Any) -> Opaque:
    if isinstance(value, PickledTensor):
        return Opaque("torch.Tensor", f"{value.dtype} {list(value.shape)}")
    if isinstance(value, NumpyArray):
        array = value.array
        return Opaque("numpy.ndarray", "" if array is None else f"{array.dtype} {list(array.shape)}")
    if isinstance(value, CompositeTensor):
        return Opaque("torch.Tensor")
    if isinstance(value, Storage):
        return Opaque("torch.Storage")
    if isinstance(value, dict):
        return Opaque("dict", "with keys that are not plain values")
    return Opaque(kind_of(value) if isinstance(value, (Symbol, Call)) else type(value).__name__)


def opaque_values(data: Any, place: str = "") -> Iterator[tuple[str, Opaque]]:
    """Yield each `Opaque` in plain data with its place: ``optimizer.state[0]``."""
    if isinstance(data, Opaque):
        yield place, data
    elif isinstance(data, dict):
        for key, held in data.items():
            yield from opaque_values(held, below(place, key))
    elif isinstance(data, list):
        for at, held in enumerate(data):
            yield from opaque_values(held, f"{place}[{at}]")
