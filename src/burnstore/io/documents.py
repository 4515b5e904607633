"""Documents: JSON and TOML that anybody may have written, read strictly, within bounds, and as a declared type.

Every JSON or TOML text that burnstore reads as a whole comes through here: ``config.json``, ``adapter_config.json``,
rules, receipts, indexes, journals, records in metadata, its own tables. (The headers of SafeTensors and Burn's records
have readers of their own, on the same parser, `io.json`.) A text is refused with an error of burnstore if it is too
long, nested too deep, has too many values, too long strings or integers, keys that come twice, lone surrogates, or NaN
where `Bounds` does not allow it. `fit` states the type: what is missing, of another type or unknown is listed, each
with its place. A field that the type does not have is an error, unless the caller ignores it: that is declared where
the document is read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..errors import ConfigError, CorruptError, LimitError, UnsupportedError, printable
from . import json

_MOST_SHOWN = 20
_LONGEST_SHOWN = 40
_MOST_DOTS = 1_000
_LONGEST_KEY, _LONGEST_PLACE = 200, 1_000
_SCALARS = (bool, int, str, bytes)
_UNFIT = object()  # stands for a value that did not fit; its problem is noted


class Bounds(NamedTuple):
    """What a document may cost; ``nodes`` bounds its objects, arrays, strings and commas, each."""

    nbytes: int = 16 << 20
    nodes: int = 1_000_000
    depth: int = 32
    text: int | None = 1 << 20
    constants: bool = False
    """Whether NaN and Infinity are numbers, as Python and Hugging Face write them."""


USUAL = Bounds()


class NotPlain:
    """The base of values in data that are not plain; ``type_name`` is the name of their type."""

    __slots__ = ()
    type_name: str


def read_json(raw: bytes | str, bounds: Bounds = USUAL, into: Any = Any, *, ignore_extra: bool = False) -> Any:
    """Return the value of a JSON document, as ``into`` if that is a type.

    Raises CorruptError, LimitError, and ConfigError for a value of another type.

    >>> read_json(b'{"a": [1, 2]}', into=dict[str, list[int]])
    {'a': [1, 2]}
    """
    if isinstance(raw, str):
        raw = _encoded(raw)
    _check_length(raw, bounds)
    nodes = bounds.nodes
    text = json.decode(raw, most_nodes=nodes, most_strings=nodes, most_commas=nodes)
    constant = float if bounds.constants else None
    tree = json.parse(text, depth=bounds.depth, longest=bounds.text, integer=json.exact_integer, constant=constant)
    return tree if into is Any else fit(tree, into, ignore_extra=ignore_extra, what="it")


def read_toml(raw: bytes | str, bounds: Bounds = USUAL, into: Any = Any, *, ignore_extra: bool = False) -> Any:
    """Return the table of a TOML document, as ``into`` if that is a type; errors as those of `read_json`."""
    if sys.version_info < (3, 11):
        raise UnsupportedError("TOML needs Python 3.11", hint="write JSON of the same form")
    import tomllib

    if isinstance(raw, str):
        raw = _encoded(raw)
    _check_length(raw, bounds)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(f"the TOML is not UTF-8: {error.reason}", offset=error.start) from None
    # The parser takes quadratic time for the parts of a key.
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise LimitError(f"a line of TOML with more than {_MOST_DOTS} dots")
    try:
        tree = tomllib.loads(text)
    except ValueError as error:
        raise CorruptError(f"it is not TOML: {error}") from None
    except RecursionError:
        raise LimitError(f"TOML nested more than {bounds.depth} deep") from None
    _check_tree(tree, bounds)
    return tree if into is Any else fit(tree, into, ignore_extra=ignore_extra, what="it")


def below(place: str, key: Any) -> str:
    """Return the place of a key below another place, for messages; a long one is shortened.

    >>> below("model", "n_head"), len(below("", "x" * 10_000))
    ('model.n_head', 201)
    """
    text = str(key)
    if len(text) > _LONGEST_KEY:
        text = f"{text[:_LONGEST_KEY]}…"
    if len(place) > _LONGEST_PLACE:  # A few bytes can spell a long key, and refer to it at every level.
        return place if place.endswith("…") else f"{place}.…"
    return f"{place}.{text}" if place else text


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CorruptError("it contains a lone surrogate") from None


def _check_length(raw: bytes, bounds: Bounds) -> None:
    if len(raw) > bounds.nbytes:
        raise LimitError(f"a document of {len(raw)} bytes, more than the limit of {bounds.nbytes}")


def _check_tree(tree: Any, bounds: Bounds) -> None:
    """Check what a parser without limits has built."""
    todo, nodes = [(tree, 1)], 0
    while todo:
        value, depth = todo.pop()
        nodes += 1
        if nodes > bounds.nodes:
            raise LimitError(f"a document of more than {bounds.nodes} values")
        if isinstance(value, float) and not bounds.constants and not math.isfinite(value):
            raise CorruptError(f"{value} is not a number")
        if isinstance(value, str) and bounds.text is not None and len(value) > bounds.text:
            raise LimitError(f"text of {len(value)} characters, more than the limit of {bounds.text}")
        if isinstance(value, (dict, list)):
            if depth > bounds.depth:
                raise LimitError(f"a document nested more than {bounds.depth} deep")
            todo += [(held, depth + 1) for held in (value.values() if isinstance(value, dict) else value)]


def fit(data: Any, into: Any, *, ignore_extra: bool = False, what: str = "config") -> Any:
    """Return the data as an object of this type; ConfigError lists every value that does not match it.

    A type is a dataclass, a TypedDict, a NamedTuple, a class with ``model_validate`` (pydantic's), or what such classes
    are made of: ``int``, ``list[float]``, ``dict[str, int]``, ``X | None``, ``Literal``, an Enum. An integer is
    accepted for a float; nothing else is converted.

    >>> import dataclasses
    >>> Net = dataclasses.make_dataclass("Net", [("n_head", int), ("rates", list[float])])
    >>> fit({"n_head": 2, "rates": [0.5, 1]}, Net)
    Net(n_head=2, rates=[0.5, 1.0])
    >>> fit({"n_head": "2", "rates": [0.5, None]}, Net)
    Traceback (most recent call last):
    burnstore.errors.ConfigError: config does not match Net:
      n_head: expected int, found '2'
      rates[1]: expected float, found None
    """
    fitting = _Fitting(ignore_extra)
    made = fitting.fit(data, into, "")
    if fitting.problems:
        more = len(fitting.problems) - _MOST_SHOWN
        shown = [*fitting.problems[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        raise ConfigError(
            f"{what} does not match {_name(into)}:\n  " + "\n  ".join(shown),
            problems=fitting.problems,
            hint="pass ignore_extra=True to leave out what the type does not have" if fitting.extras else None,
        )
    return made


class _Named(NamedTuple):
    """A type with named fields: the type of each, the required ones, and the constructor."""

    hints: dict[str, Any]
    required: set[str]
    make: Callable[..., Any]


class _Fitting:
    """Data being fitted; problems are collected, so that one run reports all."""

    def __init__(self, ignore_extra: bool) -> None:
        self.problems: list[str] = []
        self.extras = False
        self._ignore_extra = ignore_extra

    def fit(self, value: Any, hint: Any, place: str) -> Any:
        if type(value) is hint and hint in _SCALARS:  # most values of a long document
            return value
        if isinstance(value, NotPlain):
            return self._unfit(place, f"a {value.type_name}, which is not plain data")
        if hint is Any or hint is object:
            return value
        if hint is None or hint is type(None):
            return None if value is None else self._expected(place, "None", value)
        origin = get_origin(hint)
        if origin is Union or origin is types.UnionType:
            choices = get_args(hint)
            if type(value) in choices and type(value) in (*_SCALARS, type(None)):
                return value
            return self._one_of(value, choices, place, _name(hint))
        if origin is Literal:
            exact = [choice for choice in get_args(hint) if choice == value and type(choice) is type(value)]
            return exact[0] if exact else self._expected(place, _name(hint), value)
        if hasattr(hint, "__supertype__"):  # typing.NewType
            return self.fit(value, hint.__supertype__, place)
        if hint in _SCALARS:
            return self._expected(place, _name(hint), value)
        if hint is float:
            fits = type(value) is float or (type(value) is int and _is_float(value))
            return float(value) if fits else self._expected(place, "float", value)
        if origin is not None or hint in (list, tuple, dict, set, frozenset):
            return self._container(value, origin or hint, get_args(hint), place)
        return self._class(value, hint, place)

    def _class(self, value: Any, hint: Any, place: str) -> Any:
        if isinstance(hint, type) and issubclass(hint, Enum):
            matching = [member for member in hint if member.value == value and type(member.value) is type(value)]
            return matching[0] if matching else self._expected(place, hint.__name__, value)
        if callable(getattr(hint, "model_validate", None)):
            try:
                return hint.model_validate(value)
            except ValueError as error:
                return self._unfit(place, str(error))
        named = _named(hint)
        if named is None:
            if isinstance(hint, type) and isinstance(value, hint):
                return value
            if isinstance(hint, type) and hint.__module__ != "builtins" and type(value) is dict:
                raise TypeError(
                    f"expected a dataclass, a TypedDict, a NamedTuple or a class with model_validate, got {_name(hint)}"
                )
            return self._expected(place, _name(hint), value)
        if not isinstance(value, dict):
            return self._expected(place, f"a {_name(hint)}", value)
        return self._fields(value, named, place, _name(hint))

    def _fields(self, value: dict[Any, Any], named: _Named, place: str, name: str) -> Any:
        given: dict[str, Any] = {}
        for field, hint in named.hints.items():
            if field in value:
                given[field] = self.fit(value[field], hint, below(place, field))
            elif field in named.required:
                self._unfit(below(place, field), "missing")
        for key in value:
            if key not in named.hints and not self._ignore_extra:
                self.extras = True
                self._unfit(below(place, key), f"{name} has no such field")
        if self.problems:
            return _UNFIT
        try:
            return named.make(**given)
        except ValueError as error:  # of the type's own checks
            return self._unfit(place, str(error))

    def _one_of(self, value: Any, choices: Sequence[Any], place: str, name: str) -> Any:
        # The type that the value has comes first, or a float would be made of the int in float | int.
        ordered = sorted(choices, key=lambda choice: choice is not type(value))
        attempts = []
        for choice in ordered:
            attempt = _Fitting(self._ignore_extra)
            made = attempt.fit(value, choice, place)
            if not attempt.problems:
                return made
            attempts.append(attempt)
        wanted = [choice for choice in choices if choice is not type(None)]
        if len(wanted) == 1 and isinstance(value, (dict, list)):  # X | None, and it is about an X
            self.problems += attempts[ordered.index(wanted[0])].problems
            return _UNFIT
        return self._expected(place, name, value)

    def _container(self, value: Any, kind: Any, of: tuple[Any, ...], place: str) -> Any:
        if kind in (dict, Mapping) or (isinstance(kind, type) and issubclass(kind, Mapping)):
            if not isinstance(value, dict):
                return self._expected(place, "dict", value)
            keys, values = of or (Any, Any)
            return {
                self.fit(key, keys, f"{place} (a key)"): self.fit(held, values, below(place, key))
                for key, held in value.items()
            }
        if not isinstance(value, list):
            return self._expected(place, _name(kind), value)
        if kind is tuple and of and not (len(of) == 2 and of[1] is Ellipsis):
            if len(value) != len(of):
                return self._unfit(place, f"expected {len(of)} values, found {len(value)}")
            return tuple(self.fit(held, of[at], f"{place}[{at}]") for at, held in enumerate(value))
        one = of[0] if of else Any
        made = [self.fit(held, one, f"{place}[{at}]") for at, held in enumerate(value)]
        if self.problems:
            return _UNFIT
        return kind(made) if kind in (tuple, set, frozenset) else made

    def _expected(self, place: str, wanted: str, value: Any) -> Any:
        try:
            shown = repr(value)
        except ValueError:  # an integer of more digits than Python converts
            shown = f"a {type(value).__name__}"
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[: _LONGEST_SHOWN - 1]}…"
        return self._unfit(place, f"expected {wanted}, found {printable(shown)}")

    def _unfit(self, place: str, problem: str) -> Any:
        self.problems.append(f"{printable(place)}: {problem}" if place else problem)
        return _UNFIT


def _is_float(value: int) -> bool:
    """Return whether a float represents this integer exactly."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


@functools.lru_cache(maxsize=256)  # a document has many values of few types
def _named(kind: Any) -> _Named | None:
    """Describe a type with named fields; None for any other."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = [field for field in dataclasses.fields(kind) if field.init]
        required = {
            field.name
            for field in fields
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        }
        hints = _hints(kind)
        return _Named({field.name: hints[field.name] for field in fields}, required, kind)
    if is_typeddict(kind):
        return _Named(_hints(kind), set(kind.__required_keys__), dict)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Named(_hints(kind), set(kind._fields) - set(getattr(kind, "_field_defaults", ())), kind)
    return None


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError as error:
        raise TypeError(f"the annotations of {_name(kind)} cannot be resolved: {error}") from None


def _name(kind: Any) -> str:
    if isinstance(kind, type) and not get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "").replace("NoneType", "None")
