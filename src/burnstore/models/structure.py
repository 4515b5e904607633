"""What a model is made of, as far as walking it goes: structs, enum variants, holders of one tensor.

These are contracts. `burnstore.nn` implements them; a class of one's own may, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from ..tensor.data import Array, Shape, TensorData
from ..tensor.dtype import DType
from ..tensor.param_id import ParamId


class Struct(ABC):
    """A type with named fields; in container stacks it is ``Struct:<type name>``."""

    @abstractmethod
    def fields(self) -> Iterable[tuple[str, Any]]:
        """The fields that may hold parameters, with the names they have in files, in their order."""

    @abstractmethod
    def set_field(self, name: str, value: Any) -> None:
        """Replace the field that has this name in files."""


class Variant(ABC):
    """A value of an enum type: the live variant and what it holds; in container stacks ``Enum:<type name>``."""

    variant: str
    payload: Any


class Holder(ABC):
    """An object that holds one tensor and stays when the tensor is replaced.

    ``keeps_id``: a load changes the value alone. ``reparameterization``: what is trained in place of the value, if
    anything; its tensors follow this one, under its path and the name given here.
    """

    id: ParamId
    keeps_id: bool = False
    reparameterization: tuple[str, Struct] | None = None

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The extents that a value must have."""

    @property
    @abstractmethod
    def dtype(self) -> DType:
        """The dtype of the value."""

    @property
    @abstractmethod
    def data(self) -> TensorData | None:
        """The stored form, where it is not simply an array."""

    @property
    @abstractmethod
    def value(self) -> Array:
        """The value as an array."""

    @abstractmethod
    def set(self, value: Array | TensorData) -> None:
        """Take this value."""
