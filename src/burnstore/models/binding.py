"""Bindings: how to walk a model of some framework, and how to assign into it.

A binding turns a model into slots, one per tensor, in the order in which files hold them. Collecting and applying work
on slots alone, so a framework is supported as soon as it has a binding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ..tensor.data import Array, Shape, TensorData
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from ..transforms.layout import ModuleKind


class Slot(Protocol):
    """One place of a model that holds a tensor."""

    path: str
    container_stack: tuple[str, ...]

    @property
    def keeps_dtype(self) -> bool:
        """Whether values are cast to the current dtype; otherwise the slot takes the value's dtype."""

    @property
    def shape(self) -> Shape:
        """The extents that a value must have."""

    @property
    def dtype(self) -> DType:
        """The dtype of the current value."""

    def snapshot(self) -> TensorSnapshot:
        """Return the current value, which is read on demand."""

    @property
    def fixed(self) -> bool:
        """Whether the tensor cannot be replaced, only filled."""

    def check_fill(self, value: Array | TensorData) -> None:
        """Raise ModelError if the current tensor cannot take this value; called before any slot is changed."""

    def assign(self, value: Array | TensorData, param_id: int | None, *, fill: bool = False) -> None:
        """Assign a value (of the slot's shape), and its id if it has one.

        With ``fill`` the values are copied into the current tensor: it, or one that shares its memory, is fixed.
        """

    def buffer(self) -> memoryview | None:
        """Return the memory of the current tensor, to write values of its dtype into; None if that is not possible.

        The writer calls `filled` afterwards.
        """

    def filled(self, param_id: int | None) -> None:
        """Record that `buffer` was written to, and the id if there is one."""

    def identity(self) -> int:
        """Return a number that is equal for slots that hold the same tensor."""


@runtime_checkable
class KeepsPartIds(Protocol):
    """A slot that can keep the ids of several Burn tensors that its one tensor was made of."""

    part_ids: Sequence[int | None] | None


class Binding(Protocol):
    """The models of one framework."""

    layout: str

    def walk(self, model: Any, *, skip_enum_variants: bool = False) -> Iterator[Slot]:
        """Yield the slots of a model, in order."""

    def kinds(self, model: Any, *, skip_enum_variants: bool = False) -> Mapping[str, ModuleKind | None]:
        """Return the kind of each module by its path, in order; None for a user's class.

        Modules of unknown kind can be left out, unless a module has tensors in the other layout only.
        """
