"""The tensors of a model as an open file has them, for the verbs that describe and check files.

`save`, `collect` and `diff` walk a model with its binding. `verify` and `report` get the same walk from here: the same
names and values, and the same numbers that are left out, each with the reason.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ..checkpoint import Checkpoint
from ..formats.base import Check, Contents, Table
from ..io.source import BytesSource
from ..limits import Limits
from ..models.plain import NOT_PERSISTENT
from ..tensor.facts import Facts
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from .align import input_of_model


class ModelTensors(Checkpoint):
    """The tensors of a model, with the interface of a file; ``left_out`` has what no walk visits, with the reason."""

    def __init__(self, model: Any, *, allow_empty: bool = False) -> None:
        source = input_of_model(model, f"<{type(model).__name__}>")
        if not source.snapshots and not source.left_out and not allow_empty:
            name = type(model).__name__
            raise TypeError(f"expected a file or a model; this {name} has no tensors, which needs allow_empty=True")
        self.left_out = dict(source.left_out)
        self._snapshots = {each.path: each for each in source.snapshots}
        self._source = BytesSource(b"", name=source.name)
        self._data = BytesSource(b"", name=source.name)  # not the source: no tensor has a place in a file
        self._limits, self._options, self._closed, self._format = Limits(), {}, False, "model"
        tensors = list(source.snapshots)
        self._table = Table(
            [each.path for each in tensors],
            [each.dtype for each in tensors],
            [each.shape for each in tensors],
            [0] * len(tensors),
            [each.nbytes for each in tensors],
            [each._param_id for each in tensors],
            {row: each._data for row, each in enumerate(tensors)},
            facts={row: each._facts for row, each in enumerate(tensors) if isinstance(each._facts, Facts)},
        )
        notes = [*source.notes, *(self._note(name, why) for name, why in self.left_out.items())]
        self._contents = Contents(
            self._table,
            variant=type(model).__name__,
            layout=source.layout,
            file_size=sum(self._table.sizes),
            notes=notes,
            shared=_shared(tensors),
        )

    @staticmethod
    def _note(name: str, why: str) -> Note:
        text = f"left out: {name} ({why})"
        return Note("unknown" if why.endswith(NOT_PERSISTENT) else "left out", text, name)

    def __getitem__(self, name: str) -> TensorSnapshot:
        self._row(name)  # for its error
        return self._snapshots[name]

    def checks(self) -> list[Check]:
        """Return nothing: a model has no checksums."""
        return []


def _shared(tensors: list[TensorSnapshot]) -> list[tuple[str, ...]]:
    """Return the names of the tensors that are one memory."""
    groups: dict[Hashable, list[str]] = {}
    for tensor in tensors:
        if tensor._data.identity is not None:
            groups.setdefault(tensor._data.identity, []).append(tensor.path)
    return [tuple(group) for group in groups.values() if len(group) > 1]
