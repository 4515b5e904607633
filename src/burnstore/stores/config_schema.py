"""Fitting: plain data into a type that the caller declares, every problem told with its place."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..errors import ConfigError, printable
from ..formats.pytorch.values import Opaque, below

_MOST_TOLD = 20
_LONGEST_SHOWN = 40
_UNFIT = object()
"""What did not fit; the problem is noted."""


def fitted(data: Any, into: Any, *, ignore_extra: bool = False) -> Any:
    """The data as an object of this type; ConfigError with all problems where they are not what it declares.

    A type is a dataclass, a TypedDict, a NamedTuple, a class with ``model_validate`` (pydantic's), or what such classes
    are made of: ``int``, ``list[float]``, ``dict[str, int]``, ``X | None``, ``Literal``, an Enum. An integer is taken
    for a float; nothing else is converted.

    >>> import dataclasses
    >>> Net = dataclasses.make_dataclass("Net", [("n_head", int), ("rates", list[float])])
    >>> fitted({"n_head": 2, "rates": [0.5, 1]}, Net)
    Net(n_head=2, rates=[0.5, 1.0])
    >>> fitted({"n_head": "2", "rates": [0.5, None]}, Net)
    Traceback (most recent call last):
    burnstore.errors.ConfigError: it is no Net:
      n_head: expected int, found '2'
      rates[1]: expected float, found None
    """
    fitting = _Fitting(ignore_extra)
    made = fitting.fit(data, into, "")
    if fitting.problems:
        more = len(fitting.problems) - _MOST_TOLD
        told = [*fitting.problems[:_MOST_TOLD], *([f"and {more} more"] if more > 0 else [])]
        raise ConfigError(
            f"it is no {_name(into)}:\n  " + "\n  ".join(told),
            problems=fitting.problems,
            hint="ignore_extra=True leaves out what the type does not have" if fitting.extras else None,
        )
    return made


class _Named(NamedTuple):
    """A type with named fields: the type of each, those that must be there, and what makes an object of them."""

    hints: dict[str, Any]
    required: set[str]
    make: Callable[..., Any]


class _Fitting:
    """Data being fitted; problems are gathered, so that one run tells of all."""

    def __init__(self, ignore_extra: bool) -> None:
        self.problems: list[str] = []
        self.extras = False
        self._ignore_extra = ignore_extra

    def fit(self, value: Any, hint: Any, place: str) -> Any:
        if isinstance(value, Opaque):
            return self._unfit(place, f"a {value.type_name}, which is no plain data")
        if hint is Any or hint is object:
            return value
        if hint is None or hint is type(None):
            return None if value is None else self._expected(place, "None", value)
        origin = get_origin(hint)
        if origin is Union or origin is types.UnionType:
            return self._one_of(value, get_args(hint), place, _name(hint))
        if origin is Literal:
            exact = [choice for choice in get_args(hint) if choice == value and type(choice) is type(value)]
            return exact[0] if exact else self._expected(place, _name(hint), value)
        if hasattr(hint, "__supertype__"):  # typing.NewType
            return self.fit(value, hint.__supertype__, place)
        if hint in (bool, int, str, bytes):
            return value if type(value) is hint else self._expected(place, _name(hint), value)
        if hint is float:
            return float(value) if type(value) in (int, float) else self._expected(place, "float", value)
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
                    f"{_name(hint)} is no type that data can be put into: a dataclass, a TypedDict, a NamedTuple or a "
                    "class with model_validate is"
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
        shown = repr(value)
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[: _LONGEST_SHOWN - 1]}…"
        return self._unfit(place, f"expected {wanted}, found {printable(shown)}")

    def _unfit(self, place: str, problem: str) -> Any:
        self.problems.append(f"{printable(place)}: {problem}" if place else problem)
        return _UNFIT


def _named(kind: Any) -> _Named | None:
    """What is known of a type with named fields; None for any other."""
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
