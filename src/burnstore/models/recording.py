"""Recordings: what a Burn model computed, stored with it by ``record_forward`` of the crate ``burnstore-outline``.

A recording is JSON in the metadata of the model's file, so that readers which do not know it ignore it: inputs, outputs
and intermediate outputs of one forward pass, each a tensor in base64. `docs/formats/outline.md` describes it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from ..errors import BurnstoreError, CorruptError, UnsupportedError
from ..io.documents import Bounds, read_json

FORWARD_KEY = "burnstore.forward"
"""The key of a file's metadata under which a recorded forward pass is stored."""

_FORMAT = 1
_BOUNDS = Bounds(nbytes=100 << 20, text=None)
_DTYPES = {"F32": "<f4", "I64": "<i8", "Bool": "?"}


@dataclass(frozen=True, slots=True)
class Recording:
    """The tensors of one forward pass by name, in the order in which they were recorded.

    ``inner`` are outputs of modules, by the path of the module in the Burn model.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    inner: Mapping[str, Any] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the recording as metadata has it.

        >>> text = Recording({"x": np.ones(2, np.float32)}, {"y": np.zeros(1, np.float32)}).to_text()
        >>> recording_of({FORWARD_KEY: text}).outputs
        {'y': array([0.], dtype=float32)}
        """
        parts = {key: [_member(*item) for item in getattr(self, key).items()] for key in ("inputs", "outputs", "inner")}
        return json.dumps({"format": _FORMAT, **parts})


class _Format(TypedDict):
    format: int


class _Tensor(TypedDict):
    name: str
    dtype: str
    shape: list[int]
    data: str


class _Record(TypedDict):
    inputs: list[_Tensor]
    outputs: list[_Tensor]
    inner: list[_Tensor]


def recording_of(metadata: Mapping[str, str]) -> Recording | None:
    """Return the forward pass that a file's metadata holds, None if it holds none.

    Raise CorruptError if it is damaged, UnsupportedError if it is of a format of later date.
    """
    text = metadata.get(FORWARD_KEY)
    if text is None:
        return None
    try:
        number = read_json(text, _BOUNDS, into=_Format, ignore_extra=True)["format"]
        if number != _FORMAT:
            raise UnsupportedError(
                f"a forward pass of format {number}; this version of burnstore reads format {_FORMAT}",
                hint="update burnstore, or record it with an older burnstore-outline",
            )
        record = read_json(text, _BOUNDS, into=_Record, ignore_extra=True)
        found = Recording(*(_tensors(record[key]) for key in ("inputs", "outputs", "inner")))
    except UnsupportedError:
        raise
    except (BurnstoreError, ValueError) as error:
        why = error.message if isinstance(error, BurnstoreError) else str(error)
        raise CorruptError(f"the metadata's {FORWARD_KEY} is damaged: {why}") from error
    if not found.inputs or not found.outputs:
        raise CorruptError(f"the metadata's {FORWARD_KEY} is damaged: it has no input, or no output")
    return found


def _tensors(members: Iterable[_Tensor]) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for member in members:
        name, shape = member["name"], member["shape"]
        if member["dtype"] not in _DTYPES:
            raise ValueError(f"{name!r} has the dtype {member['dtype']!r}; expected one of {', '.join(_DTYPES)}")
        dtype = np.dtype(_DTYPES[member["dtype"]])
        raw = base64.b64decode(member["data"], validate=True)
        if name in arrays or min(shape, default=0) < 0 or len(raw) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name!r} comes twice, or has {len(raw)} bytes for the shape {shape}")
        if member["dtype"] == "Bool" and raw.translate(None, b"\0\1"):
            raise ValueError(f"{name!r} has bools other than 0 and 1")
        arrays[name] = np.frombuffer(raw, dtype).reshape(shape)
    return arrays


def _member(name: str, values: Any) -> _Tensor:
    array = np.asarray(values)
    kind = "F32" if array.dtype.kind == "f" else "Bool" if array.dtype.kind == "b" else "I64"
    raw = np.ascontiguousarray(array, _DTYPES[kind]).tobytes()
    return {"name": name, "dtype": kind, "shape": list(array.shape), "data": base64.b64encode(raw).decode("ascii")}
