"""Configurations: the plain values in a PyTorch file besides its tensors, as data or as a declared type."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar, overload

from ..errors import ConfigError, LimitError, UnsupportedError, located, printable
from ..formats import pytorch
from ..formats.pytorch.values import Opaque, plain_value
from ..formats.registry import HEAD_BYTES, format_for_bytes
from ..io.atomic import atomic_file
from ..io.documents import Bounds, below, fit, read_json
from ..io.opening import open_source
from ..io.source import BytesSource, Source
from ..limits import Limits

T = TypeVar("T")

_DEEPEST = 200
_BOUNDS = Bounds(64 << 20, depth=_DEEPEST, text=None)


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
    source: Source = BytesSource(path) if isinstance(path, (bytes, bytearray, memoryview)) else open_source(path)
    try:
        with located(path=source.name):
            data = _read(source, top_level_key, limits or Limits())
            return data if into is None else fit(data, into, ignore_extra=ignore_extra)
    finally:
        source.close()


def _read(source: Source, top_level_key: str | None, limits: Limits) -> Any:
    head = source.read_at(0, min(HEAD_BYTES, source.size))
    if head.lstrip()[:1] in (b"{", b"["):
        if source.size > _BOUNDS.nbytes:
            raise LimitError(f"JSON of {source.size} bytes, more than {_BOUNDS.nbytes}")
        return plain_value(read_json(source.read_at(0, source.size), _BOUNDS), top_level_key)
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
        text = json.dumps(json_value(config), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("it contains a lone surrogate; cannot encode as UTF-8") from None
    except ConfigError:
        raise
    except ValueError:  # Python converts no integer of more than some thousand digits
        raise ConfigError("it contains an integer of too many digits") from None
    return text


def json_value(value: Any, place: str = "", depth: int = 0) -> Any:  # noqa: C901 (one branch per JSON type)
    """Return a configuration as the values of JSON; ConfigError for one that JSON cannot hold."""
    if depth > _DEEPEST:
        raise _too_deep(place)
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return json_value(value.value, place, depth + 1)
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
        return json_value(value.model_dump(), place, depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, Opaque):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if depth == _DEEPEST and isinstance(value, (Mapping, list, tuple, set, frozenset)):
        raise _too_deep(place)
    if isinstance(value, Mapping):
        return _json_object(value, place, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_value(held, f"{place}[{at}]", depth + 1) for at, held in enumerate(value)]
    raise _not_json(place, repr(value) if isinstance(value, Opaque) else f"a {type(value).__name__}")


def _json_object(value: Mapping[Any, Any], place: str, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, held in value.items():
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            raise _not_json(place, f"a dict with the key {printable(repr(key)[:80])}")
        if str(key) in made:
            raise _not_json(place, f"a dict with the key {printable(str(key))!r} as a str and as a number")
        made[str(key)] = json_value(held, below(place, key), depth + 1)
    return made


def _too_deep(place: str) -> ConfigError:
    shown = printable(place[:80])
    return ConfigError(f"values nested more than {_DEEPEST} deep, or one that contains itself: {shown}")


def _not_json(place: str, what: str) -> ConfigError:
    problem = f"{printable(place) or 'it'} is {what}, which JSON cannot hold"
    return ConfigError(problem, problems=[problem])
