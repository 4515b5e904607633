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
        """Whether values are cast to the dtype that is there; otherwise the slot takes the value's own."""

    @property
    def shape(self) -> Shape:
        """The extents that a value must have."""

    @property
    def dtype(self) -> DType:
        """The dtype of the present value."""

    def snapshot(self) -> TensorSnapshot:
        """The present value, read when it is asked for."""

    @property
    def fixed(self) -> bool:
        """Whether the tensor cannot be replaced, only filled."""

    def check_fill(self, value: Array | TensorData) -> None:
        """Raise ModelError if the tensor that is there cannot take this value; asked before any slot is changed."""

    def assign(self, value: Array | TensorData, param_id: int | None, *, fill: bool = False) -> None:
        """Put a value (of the slot's shape) in, and the id with it if there is one.

        With ``fill`` the tensor that is there takes the values: it, or one that it is shared with, is fixed.
        """

    def buffer(self) -> memoryview | None:
        """The bytes of the tensor that is there, for values of its dtype to be written straight into; None if not so.

        Whoever writes calls `filled` afterwards.
        """

    def filled(self, param_id: int | None) -> None:
        """Take note that `buffer` was written to, and of the id if there is one."""

    def identity(self) -> int:
        """Equal for slots that hold one and the same tensor."""


@runtime_checkable
class KeepsPartIds(Protocol):
    """A slot that can keep the ids of several Burn tensors that its one tensor was made of."""

    part_ids: Sequence[int | None] | None


class Binding(Protocol):
    """The models of one framework."""

    layout: str

    def walk(self, model: Any, *, skip_enum_variants: bool = False) -> Iterator[Slot]:
        """The slots of a model, in order."""

    def kinds(self, model: Any, *, skip_enum_variants: bool = False) -> Mapping[str, ModuleKind | None]:
        """The modules of a model by their paths, in order, and what they are; None for a class of one's own.

        Those of no known kind can be left out, unless there are modules that hold no tensors here and do elsewhere.
        """
