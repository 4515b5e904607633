"""Training state in records: what optimizers and schedulers store, and the same as Burn 0.22 keeps it in Burnpack."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import CorruptError, UnsupportedError, located
from ...io.spool import Spool
from ...limits import Limits
from ...tensor.dtype import Kind
from ...tensor.scalar import Scalar, ScalarKind
from ..codec.bincode import BincodeReader
from .binary import read_tensor
from .declaration import below
from .document import Document, Leaf, Rows, param_id, walk
from .heading import Heading

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
    """Return the kind of a record, by its shape."""
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
    states: dict[str, Any] = {}
    for text, versioned in document.item.items():
        identity = param_id(text)
        if identity is None:
            raise UnsupportedError(
                f"the state of {text} is keyed by a UUID, as up to Burn 0.13; newer ids are numbers, and which number "
                "Burn makes of it is unknown",
                rule="BR-08",
            )
        [(rank, states[str(identity)])] = versioned["V1"].items()
        scalars[f"{identity}.__rank"] = Scalar("UInt", int(rank.removeprefix("Rank")))
    for path, node in walk(states, document.most_names, lists=True):
        if isinstance(node, Leaf):
            tensors[path] = (node.row, int(path.partition(".")[0]))
        elif isinstance(node, list):
            scalars[f"{path}.len"] = Scalar("UInt", len(node))
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
    item = document.item
    if isinstance(item, list):
        raise UnsupportedError(f"the scheduler of Burn {document.heading.version} counts differently from newer ones")
    if not isinstance(item, dict):
        if scheduler is None:
            raise UnsupportedError(
                "one number, and the file does not state of which scheduler", hint=f"name it: {', '.join(SCHEDULERS)}"
            )
        if scheduler not in SCHEDULERS:
            raise ValueError(f"scheduler must be one of {', '.join(SCHEDULERS)}, got {scheduler!r}")
        return _scheduler_scalar("0", scheduler, item)
    found: dict[str, Scalar] = {}
    for index, each in enumerate(item["schedulers"]):
        [(variant, number)] = each.items() if isinstance(each, dict) and len(each) == 1 else [(None, None)]
        if variant not in SCHEDULERS or not isinstance(number, (int, float)):
            raise UnsupportedError(f"scheduler number {index} of a composed one is of an unknown kind")
        found |= _scheduler_scalar(f"0.{index}", variant, number)
    return found


def _scheduler_scalar(prefix: str, scheduler: str, number: int | float) -> dict[str, Scalar]:
    name, kind = SCHEDULERS[scheduler]
    if isinstance(number, float) != (scheduler == "Exponential"):
        raise UnsupportedError(f"{number!r} is not the state of a {scheduler} scheduler")
    return {f"{prefix}.{name}": Scalar(kind, float(number) if kind == "Float" else number)}


def read_scheduler(reader: BincodeReader, heading: Heading, name: str) -> Document:
    """Read a binary scheduler record of that kind."""
    item = reader.float() if name == "Exponential" else reader.integer() if name == "Step" else reader.uint()
    _check_end(reader)
    return Document(heading, item, Rows())


def read_optimizer(reader: BincodeReader, heading: Heading, name: str, limits: Limits, sink: Spool) -> Document:
    """Read a binary optimizer record of that kind."""
    rows = Rows()
    kind = Kind.FLOAT if heading.minor <= 13 else None

    def state(spec: dict[str, Any], path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for word, content in spec.items():
            field, optional, since = word.partition("?")
            place = below(path, field)
            if since and heading.minor < int(since):
                continue
            if optional and not _is_some(reader):
                found[field] = None
            elif content == "uint":
                found[field] = reader.uint()
            elif content == "tensor":
                with located(tensor=place, offset=reader.position):
                    dtype, extent, shape = read_tensor(reader, heading, limits, sink, kind)
                    found[field] = rows.add(place, dtype, shape, extent, None, limits)
            else:
                found[field] = state(content, place)
        return found

    item: dict[str, Any] = {}
    for _ in range(reader.count()):
        start = reader.position
        text = reader.text(_LONGEST_ID)
        param_id(text)
        version, rank = reader.uint(), reader.uint()
        if text in item or version != 0 or rank > _MOST_RANK:
            raise CorruptError(f"not the state of {name}", rule="BR-17", offset=start)
        item[text] = {"V1": {f"Rank{rank}": state(STATES[name], f"{text}.V1.Rank{rank}")}}
    _check_end(reader)
    return Document(heading, item, rows)


def _is_some(reader: BincodeReader) -> bool:
    start = reader.position
    mark = reader.take(1)[0]
    if mark > 1:
        raise CorruptError(f"the byte {mark:02X} where an Option begins with 00 or 01", rule="BR-17", offset=start)
    return mark == 1


def _check_end(reader: BincodeReader) -> None:
    if reader.left:
        raise CorruptError(f"{reader.left} bytes follow the state", rule="BR-17", offset=reader.position)
