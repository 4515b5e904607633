"""Training state in records: what optimizers and schedulers store, and the same as Burn 0.22 keeps it in Burnpack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import CorruptError, LimitError, UnsupportedError, located
from ...limits import Limits
from ...tensor.dtype import DType
from ...tensor.scalar import Scalar, ScalarKind
from ..codec.bincode import BincodeReader
from ..codec.window import Extent, Sink
from .binary import read_shape
from .declaration import below
from .document import Document, Leaf, Rows, number_forms, param_id
from .heading import Heading
from .spelling import read_dtype

RecordKind = Literal["module", "optimizer", "scheduler"]

_MOST_RANK = 8
_LONGEST_ID = 64
_RANK = re.compile(r"Rank([0-8])")
_ADAM = {"momentum": {"time": "uint", "moment_1": "tensor", "moment_2": "tensor", "max_moment_2?21": "tensor"}}
STATES: dict[str, dict[str, Any]] = {
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "Sgd": {"momentum?": {"velocity": "tensor"}},
    "AdaGrad": {"lr_decay": {"time": "uint", "sum": "tensor"}},
    "RmsProp": {
        "square_avg": {"square_avg": "tensor"},
        "centered": {"grad_avg?": "tensor", "avg": "tensor"},
        "momentum?": {"buf": "tensor"},
    },
}
"""The fields of a state, in the order of the file; a name with ? is an Option, after it the release that added it."""
OPTIMIZERS = tuple(STATES)
SCHEDULERS: dict[str, tuple[str, ScalarKind]] = {
    "Linear": ("remaining_iters", "UInt"),
    "Cosine": ("current_iter", "UInt"),
    "Exponential": ("previous_lr", "Float"),
    "Noam": ("step", "Float"),
    "Step": ("iter_idx", "Int"),
}
"""The schedulers, with the name and the kind of their one number in Burn 0.22."""


def kind_of(document: Document) -> RecordKind:
    """Tell what a record is the state of, by its shape."""
    item = document.item
    if isinstance(item, dict) and item and all(map(_is_state, item.values())):
        return "optimizer"
    numbers = item if isinstance(item, list) else [item]
    if numbers and all(isinstance(each, (int, float)) for each in numbers):
        return "scheduler"
    return (
        "scheduler"
        if isinstance(item, dict) and item.keys() == {"schedulers"} and not document.rows.names
        else "module"
    )


def _is_state(node: Any) -> bool:
    return (
        isinstance(node, dict)
        and node.keys() == {"V1"}
        and isinstance(node["V1"], dict)
        and len(node["V1"]) == 1
        and _RANK.fullmatch(next(iter(node["V1"]))) is not None
    )


@dataclass(frozen=True, slots=True)
class TrainingState:
    """An optimizer's or scheduler's state as Burn 0.22 keeps it: rows of the record by their new names, and numbers."""

    tensors: Mapping[str, tuple[int, int]]
    """Name → row in the record's table, id of the parameter."""
    scalars: Mapping[str, Scalar]


def training_state(document: Document, *, scheduler: str | None = None) -> TrainingState:
    """Return the state in a record. ``scheduler`` names its kind where the file does not: one of `SCHEDULERS`."""
    if kind_of(document) == "scheduler":
        return TrainingState({}, _scheduler_scalars(document, scheduler))
    tensors: dict[str, tuple[int, int]] = {}
    scalars: dict[str, Scalar] = {}
    left = document.most_names
    for text, versioned in document.item.items():
        identity = param_id(text)
        if identity is None:
            raise UnsupportedError(
                f"the state of {text} is keyed by a UUID, as up to Burn 0.13; newer ids are numbers, and which number "
                "Burn makes of it is unknown",
                rule="BR-08",
            )
        [(rank, state)] = versioned["V1"].items()
        scalars[f"{identity}.__rank"] = Scalar("UInt", int(rank.removeprefix("Rank")))
        stack: list[tuple[str, Iterator[tuple[Any, Any]]]] = [("", iter([(identity, state)]))]
        while stack:
            above, children = stack[-1]
            segment, node = next(children, (None, None))
            if segment is None:
                stack.pop()
                continue
            path = below(above, str(segment))
            left -= len(path)
            if left < 0:
                raise LimitError("paths that are longer in total than a file of this size needs", rule="BR-14")
            if isinstance(node, Leaf):
                tensors[path] = (node.row, identity)
            elif isinstance(node, dict):
                stack.append((path, iter(node.items())))
            elif isinstance(node, list):
                scalars[f"{path}.len"] = Scalar("UInt", len(node))
                stack.append((path, iter(enumerate(node))))
            elif isinstance(node, int) and not isinstance(node, bool) and node >= 0:
                scalars[path] = Scalar("UInt", node)
            elif node is not None:
                scalars[path] = Scalar.of(node)
    return TrainingState(tensors, scalars)


def _scheduler_scalars(document: Document, scheduler: str | None) -> dict[str, Scalar]:
    """Return the numbers under the names that Burn 0.22 looks them up by.

    There the scheduler of a training is a list of schedulers, one for each group of parameters; an old record is the
    state of the first, which is that of all parameters.
    """
    return {f"0.{name}": scalar for name, scalar in _own_scalars(document, scheduler).items()}


def _own_scalars(document: Document, scheduler: str | None) -> dict[str, Scalar]:
    item = document.item
    if isinstance(item, dict):
        found: dict[str, Scalar] = {}
        for index, each in enumerate(item["schedulers"]):
            [(variant, number)] = each.items() if isinstance(each, dict) and len(each) == 1 else [(None, None)]
            if variant not in SCHEDULERS or not isinstance(number, (int, float)):
                raise UnsupportedError(f"scheduler number {index} of a composed one is of an unknown kind")
            found.update({f"{index}.{key}": value for key, value in _scheduler_scalar(variant, number).items()})
        return found
    if isinstance(item, list):
        raise UnsupportedError(f"the scheduler of Burn {document.heading.version} counts differently from newer ones")
    if scheduler is None:
        raise UnsupportedError(
            "one number, and the file does not state of which scheduler", hint=f"name it: {', '.join(SCHEDULERS)}"
        )
    if scheduler not in SCHEDULERS:
        raise ValueError(f"scheduler is one of {', '.join(SCHEDULERS)}, not {scheduler!r}")
    return _scheduler_scalar(scheduler, item)


def _scheduler_scalar(scheduler: str, number: int | float) -> dict[str, Scalar]:
    name, kind = SCHEDULERS[scheduler]
    if isinstance(number, float) != (scheduler == "Exponential"):
        raise UnsupportedError(f"{number!r} is not the state of a {scheduler} scheduler")
    return {name: Scalar(kind, float(number) if kind == "Float" else number)}


def read_scheduler(reader: BincodeReader, heading: Heading, name: str) -> Document:
    """Read a binary scheduler record of that kind."""
    item = reader.float() if name == "Exponential" else reader.integer() if name == "Step" else reader.uint()
    _check_end(reader)
    return Document(heading, item, Rows())


def read_optimizer(reader: BincodeReader, heading: Heading, name: str, limits: Limits, sink: Sink) -> Document:
    """Read a binary optimizer record of that kind."""
    reading = _States(reader, heading, limits, sink)
    item: dict[str, Any] = {}
    for _ in range(reader.count()):
        start = reader.position
        text = reader.text(_LONGEST_ID)
        param_id(text)
        version, rank = reader.uint(), reader.uint()
        if text in item or version != 0 or rank > _MOST_RANK:
            raise CorruptError(f"not the state of {name}", rule="BR-17", offset=start)
        item[text] = {"V1": {f"Rank{rank}": reading.state(STATES[name], f"{text}.V1.Rank{rank}")}}
    _check_end(reader)
    return Document(heading, item, reading.rows)


class _States:
    def __init__(self, reader: BincodeReader, heading: Heading, limits: Limits, sink: Sink) -> None:
        self.rows = Rows()
        self._reader = reader
        self._heading = heading
        self._limits = limits
        self._sink = sink

    def state(self, spec: dict[str, Any], path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for word, content in spec.items():
            name, optional, since = word.partition("?")
            if since and self._heading.minor < int(since):
                continue
            if optional and not self._is_some():
                found[name] = None
            elif content == "uint":
                found[name] = self._reader.uint()
            elif content == "tensor":
                found[name] = self._tensor(below(path, name))
            else:
                found[name] = self.state(content, below(path, name))
        return found

    def _is_some(self) -> bool:
        start = self._reader.position
        mark = self._reader.take(1)[0]
        if mark > 1:
            raise CorruptError(f"the byte {mark:02X} where an Option begins with 00 or 01", rule="BR-17", offset=start)
        return mark == 1

    def _tensor(self, path: str) -> Leaf:
        reader, precision = self._reader, self._heading.precision
        dtype: DType
        extent: Extent
        with located(tensor=path, offset=reader.position):
            if self._heading.minor > 13:
                extent = reader.bytes()
                shape = read_shape(reader, self._limits)
                dtype = read_dtype(reader, self._heading.minor)
            else:
                dtype = precision.float
                count = reader.count()
                if dtype is DType.F16:
                    form = number_forms(precision)["value"]
                    extent = reader.integers(count, form, self._sink, signed=False).extent
                else:
                    extent = reader.raw(count, dtype.bits // 8)
                shape = read_shape(reader, self._limits)
            return self.rows.add(path, dtype, shape, extent, None, self._limits)


def _check_end(reader: BincodeReader) -> None:
    if reader.left:
        raise CorruptError(f"{reader.left} bytes follow the state", rule="BR-17", offset=reader.position)
