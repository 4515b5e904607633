"""A record as a recorder loads and writes it: a tree whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ClosedError
from ...io.source import Source
from ...tensor.param_id import ParamId
from ...tensor.scalar import Scalar
from ...tensor.snapshot import TensorSnapshot
from .declaration import Node, below
from .document import Document, Leaf, param_id
from .heading import Heading
from .reader import Opened
from .training import RecordKind, kind_of, training_state

Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class RecordTensor:
    """A tensor in a record's tree; ``id`` is the text of a parameter's id, None in the state of an optimizer."""

    snapshot: TensorSnapshot
    id: str | None

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter of a model."""
        return self.id is not None


class Record:
    """A model's, an optimizer's or a scheduler's state.

    ``item`` is the tree: dicts for structs, lists for sequences, `RecordTensor` for tensors, numbers, and None for
    fields that store nothing. Tensors are read on request, from a file that stays open until `close` or the end of a
    ``with`` block. ``nameless`` is True for a binary record that was read without a declaration.
    """

    def __init__(self, item: Any, *, heading: Heading | None = None, shape: Node | str | None = None) -> None:
        self.item = item
        self.shape = shape
        self._heading = heading
        self.nameless = False
        self._document: Document | None = None
        self._sources: tuple[Source, ...] = ()
        self._closed = False

    @classmethod
    def opened(cls, found: Opened, source: Source, *, shape: Node | str | None = None) -> Record:
        """Return the record that was read from a file."""
        table = found.table()
        leaves = found.document.rows

        def tensor(leaf: Leaf) -> RecordTensor:
            return RecordTensor(table.snapshot(leaf.row, found.data), leaves.ids[leaf.row])

        record = cls(replaced(found.document.item, tensor), heading=found.document.heading, shape=shape)
        record.nameless = found.nameless
        record._document = found.document
        record._sources = (source, found.data)
        return record

    @property
    def metadata(self) -> Mapping[str, str]:
        """The heading of the file; empty for a record that was not read from one."""
        return {} if self._heading is None else self._heading.to_dict()

    @property
    def kind(self) -> RecordKind:
        """What the record is the state of, by its shape; an empty record counts as a module's."""
        return "module" if self._document is None else kind_of(self._document)

    def tensors(self) -> dict[str, TensorSnapshot]:
        """Return every tensor by its path, in the order of the record."""
        self._check_open()
        return {path: leaf.snapshot for path, leaf in leaves_of(self.item)}

    def snapshots(self) -> list[TensorSnapshot]:
        """Return every tensor, in the order of the record."""
        return list(self.tensors().values())

    def states(self) -> dict[ParamId | str, Any]:
        """Return the state of each parameter by its id (a UUID as str), if this is an optimizer's record."""
        if self.kind != "optimizer":
            raise ValueError(f"states are those of an optimizer; this is the record of a {self.kind}")
        found: dict[ParamId | str, Any] = {}
        for text, versioned in self.item.items():
            number = param_id(text)
            [state] = versioned["V1"].values()
            found[text if number is None else ParamId(number)] = state
        return found

    def training_state(self, *, scheduler: str | None = None) -> tuple[dict[str, TensorSnapshot], dict[str, Scalar]]:
        """Return an optimizer's or scheduler's state as Burn 0.22 keeps it in Burnpack: tensors and scalars by name.

        ``scheduler`` names the kind of a scheduler whose record is a single number: ``"Cosine"``, ``"Noam"``,
        ``"Linear"``, ``"Exponential"`` or ``"Step"``.
        """
        if self._document is None or self.kind == "module":
            raise ValueError("training state is that of an optimizer or a scheduler; this is the record of a module")
        self._check_open()
        found = training_state(self._document, scheduler=scheduler)
        by_row = self.snapshots()
        tensors = {}
        for name, (row, identity) in found.tensors.items():
            tensors[name] = by_row[row].replace(path=name, param_id=identity)
        return tensors, dict(found.scalars)

    def close(self) -> None:
        """Close the file; tensors that were not read can no longer be read."""
        self._closed = True
        for source in self._sources:
            source.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the record was closed", path=self._sources[0].name if self._sources else None)

    def __enter__(self) -> Record:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        version = f", Burn {self._heading.version}" if self._heading is not None else ""
        return f"<Record of a {self.kind}: {sum(1 for _ in leaves_of(self.item))} tensors{version}>"


def replaced(item: Any, change: Change) -> Any:
    """Return a copy of the tree with each leaf replaced by ``change`` of it; without recursion."""
    root = [item]
    stack: list[tuple[Any, Any]] = [(root, 0)]
    while stack:
        container, key = stack.pop()
        node = container[key]
        if isinstance(node, dict):
            container[key] = dict(node)
            stack += [(container[key], each) for each in node]
        elif isinstance(node, list):
            container[key] = list(node)
            stack += [(container[key], index) for index, each in enumerate(node) if each is not None]
        elif isinstance(node, (Leaf, RecordTensor)):
            container[key] = change(node)
    return root[0]


def leaves_of(item: Any) -> Iterator[tuple[str, RecordTensor]]:
    """Yield the tensors of a tree with their paths, depth first."""
    stack: list[tuple[str, Any]] = [("", item)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, RecordTensor):
            yield path, node
            continue
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        inner = [(key, each) for key, each in children if isinstance(each, (dict, list, RecordTensor))]
        stack += [(below(path, str(key)), each) for key, each in reversed(inner)]
