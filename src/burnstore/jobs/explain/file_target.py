"""File targets: a file as something that tensors are to go into, as if it were a model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import ModelError
from ...models.layouts import Rules, checked_layout, kinds_by_rules, recorded_modules, view_of_record
from ...pipeline.compile import Target
from ...tensor.data import Array, Shape, TensorData
from ...tensor.dtype import DType
from ...tensor.snapshot import TensorSnapshot
from ...transforms.layout import LAYOUTS, Layout
from ...transforms.view import LayoutView, module_tree, view_of_burn, view_of_torch


class FileSlot:
    """The place of one tensor in a file; it can be matched with, and not be assigned to."""

    __slots__ = ("_held", "container_stack", "path")

    keeps_dtype = True
    fixed = True

    def __init__(self, held: TensorSnapshot) -> None:
        self._held = held
        self.path = held.path
        self.container_stack = held.container_stack

    @property
    def shape(self) -> Shape:
        return self._held.shape

    @property
    def dtype(self) -> DType:
        return self._held.dtype

    def snapshot(self) -> TensorSnapshot:
        return self._held

    def identity(self) -> int:
        return id(self)

    def buffer(self) -> None:
        return None

    def check_fill(self, value: Array | TensorData) -> NoReturn:
        raise ModelError("a file is not loaded into", tensor=self.path, hint="burnstore.convert writes another")

    def assign(self, value: Array | TensorData, param_id: int | None, *, fill: bool = False) -> None:
        self.check_fill(value)

    def filled(self, param_id: int | None) -> None:
        return None


@contextmanager
def file_target(
    path: str | os.PathLike[str], source: Checkpoint, layout: Layout | None, rules: Rules | None
) -> Iterator[Target]:
    """The tensors of a file as a target for those of another, which has this layout.

    Where the two layouts differ, modules are known from rules, or from what either file records.
    """
    with open_checkpoint(path) as file:
        said = file.layout
        own = checked_layout(said) if said in LAYOUTS else None
        shapes = {name: file[name].shape for name in file}

        def view(present: Iterable[str]) -> LayoutView:
            assert own is not None  # or the target would not be seen in another layout
            if rules is not None:
                root = module_tree(shapes, kinds_by_rules(shapes, rules))
                return view_of_torch(root) if own == "torch" else view_of_burn(root, present)
            recorded = recorded_modules(file.metadata)
            if recorded is not None:
                return view_of_record(recorded, shapes, own)
            recorded = recorded_modules(source.metadata)
            if recorded is not None and layout is not None:
                return view_of_record(recorded, {name: source[name].shape for name in source}, layout)
            raise ModelError(
                f"it is in {own}'s layout, the source in {layout}'s, and neither file records its modules",
                path=file.path,
                hint="give rules={pattern: kind}, or a model instead of a file",
            )

        yield Target([FileSlot(file[name]) for name in file], own, view)
