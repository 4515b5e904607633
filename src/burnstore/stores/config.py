"""Configurations: the plain values in a PyTorch file besides its tensors, as data or as a declared type."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from ..errors import ConfigError, LimitError, UnsupportedError, located, printable
from ..formats import pytorch
from ..formats.codec import json as strict_json
from ..formats.pytorch.values import Opaque, below, plain_value
from ..formats.registry import HEAD_BYTES, format_for_bytes
from ..io.atomic import atomic_file
from ..io.source import BytesSource, FileSource, Source
from ..limits import Limits

T = TypeVar("T")

_MOST_JSON_BYTES = 64 << 20
_MOST_JSON_VALUES = 1_000_000
_DEEPEST = 200
_MOST_SHOWN = 20
_LONGEST_SHOWN = 40
_UNFIT = object()  # stands for a value that did not fit; its problem is noted


@overload
def config_from_file(
    path: str | os.PathLike[str] | bytes, top_level_key: str | None = None, *, limits: Limits | None = None
) -> Any: ...
@overload
def config_from_file(
    path: str | os.PathLike[str] | bytes,
    top_level_key: str | None = None,
    into: type[T] = ...,
    *,
    ignore_extra: bool = False,
    limits: Limits | None = None,
) -> T: ...
def config_from_file(
    path: str | os.PathLike[str] | bytes,
    top_level_key: str | None = None,
    into: Any = None,
    *,
    ignore_extra: bool = False,
    limits: Limits | None = None,
) -> Any:
    """Read the configuration in a PyTorch file, or in a JSON file such as `save_config` writes; nothing in it is run.

    ``top_level_key`` names the part to read (dotted for a part of a part). Without ``into`` it comes as plain data:
    dicts, lists (also for tuples and sets), strings, numbers, dates; any other is an `Opaque`, which has its type.
    ``into`` is a dataclass, a TypedDict, a NamedTuple, a class with ``model_validate``, or a type such as ``dict[str,
    int]``: then everything is checked, an integer is accepted for a float that holds it exactly, and nothing else
    is converted.
    ``ignore_extra=True`` leaves out what the type does not have.

    Raises ConfigError with every problem and its place, TensorNotFoundError for a key that is not there, FormatError
    for a file that is broken.

    >>> import pickle
    >>> file = pickle.dumps({"my_config": {"n_head": 2, "rates": (0.5, 1)}, "epoch": 7})
    >>> config_from_file(file, "my_config")
    {'n_head': 2, 'rates': [0.5, 1]}
    >>> config_from_file(file, "my_config.n_head", into=int)
    2
    """
    if top_level_key is not None and not isinstance(top_level_key, str):
        raise TypeError(f"top_level_key must be a str, got {type(top_level_key).__name__}")
    source: Source = BytesSource(path) if isinstance(path, (bytes, bytearray, memoryview)) else FileSource(path)
    try:
        with located(path=source.name):
            data = _read(source, top_level_key, limits or Limits())
            return data if into is None else fitted(data, into, ignore_extra=ignore_extra)
    finally:
        source.close()


def _read(source: Source, top_level_key: str | None, limits: Limits) -> Any:
    head = source.read_at(0, min(HEAD_BYTES, source.size))
    if head.lstrip()[:1] in (b"{", b"["):
        if source.size > _MOST_JSON_BYTES:
            raise LimitError(f"JSON of {source.size} bytes, more than {_MOST_JSON_BYTES}")
        raw = source.read_at(0, source.size)
        text = strict_json.decode(
            raw, most_nodes=_MOST_JSON_VALUES, most_strings=_MOST_JSON_VALUES, most_commas=_MOST_JSON_VALUES
        )
        tree = strict_json.parse(text, depth=_DEEPEST, integer=strict_json.exact_integer)
        return plain_value(tree, top_level_key)
    format_name = format_for_bytes(head).name
    if format_name != "pytorch":
        raise UnsupportedError(f"expected a PyTorch file or JSON, got a {format_name} file")
    return plain_value(pytorch.read_pickled(source, limits).value, top_level_key)


def save_config(config: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a configuration as JSON: plain data, a dataclass, a NamedTuple, or an object with ``model_dump``.

    All or nothing, as every save. Raises ConfigError with the place of a value that JSON cannot hold (a tensor, NaN),
    and AlreadyExistsError unless ``overwrite``.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "my_config.json")
    ...     save_config({"n_head": 2}, path)
    ...     config_from_file(path)
    {'n_head': 2}
    """
    text = to_json(config).encode()
    with atomic_file(path, overwrite=overwrite, size=len(text)) as scratch:
        scratch.write(text)


def to_json(config: Any) -> str:
    """Return a configuration as the text of a JSON file."""
    try:
        text = json.dumps(_json_value(config, "", 0), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("it contains a lone surrogate; cannot encode as UTF-8") from None
    except ConfigError:
        raise
    except ValueError:  # Python converts no integer of more than some thousand digits
        raise ConfigError("it contains an integer of too many digits") from None
    return text


def _json_value(value: Any, place: str, depth: int) -> Any:  # noqa: C901 (one branch per JSON type)
    if depth > _DEEPEST:
        raise _too_deep(place)
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return _json_value(value.value, place, depth + 1)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise _not_json(place, str(value))
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if callable(getattr(value, "model_dump", None)):
        return _json_value(value.model_dump(), place, depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, Opaque):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if depth == _DEEPEST and isinstance(value, (Mapping, list, tuple, set, frozenset)):
        raise _too_deep(place)
    if isinstance(value, Mapping):
        return _json_object(value, place, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json_value(held, f"{place}[{at}]", depth + 1) for at, held in enumerate(value)]
    raise _not_json(place, repr(value) if isinstance(value, Opaque) else f"a {type(value).__name__}")


def _json_object(value: Mapping[Any, Any], place: str, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, held in value.items():
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            raise _not_json(place, f"a dict with the key {printable(repr(key)[:80])}")
        if str(key) in made:
            raise _not_json(place, f"a dict with the key {printable(str(key))!r} as a str and as a number")
        made[str(key)] = _json_value(held, below(place, key), depth + 1)
    return made


def _too_deep(place: str) -> ConfigError:
    shown = printable(place[:80])
    return ConfigError(f"values nested more than {_DEEPEST} deep, or one that contains itself: {shown}")


def _not_json(place: str, what: str) -> ConfigError:
    problem = f"{printable(place) or 'it'} is {what}, which JSON cannot hold"
    return ConfigError(problem, problems=[problem])


def fitted(data: Any, into: Any, *, ignore_extra: bool = False) -> Any:
    """Return the data as an object of this type; ConfigError lists every value that does not match it.

    A type is a dataclass, a TypedDict, a NamedTuple, a class with ``model_validate`` (pydantic's), or what such classes
    are made of: ``int``, ``list[float]``, ``dict[str, int]``, ``X | None``, ``Literal``, an Enum. An integer is
    accepted for a float; nothing else is converted.

    >>> import dataclasses
    >>> Net = dataclasses.make_dataclass("Net", [("n_head", int), ("rates", list[float])])
    >>> fitted({"n_head": 2, "rates": [0.5, 1]}, Net)
    Net(n_head=2, rates=[0.5, 1.0])
    >>> fitted({"n_head": "2", "rates": [0.5, None]}, Net)
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
            f"config does not match {_name(into)}:\n  " + "\n  ".join(shown),
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
        if isinstance(value, Opaque):
            return self._unfit(place, f"a {value.type_name}, which is not plain data")
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
