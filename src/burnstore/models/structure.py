"""The parts of a model that a walk knows: structs, enum variants, holders of one tensor.

These are contracts. `burnstore.nn` implements them; other classes may, too.
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
        """Return the fields that may hold parameters, in order, with their names in files."""

    @abstractmethod
    def set_field(self, name: str, value: Any) -> None:
        """Replace the field with this name in files."""


class Variant(ABC):
    """A value of an enum type: a variant and its payload; in container stacks it is ``Enum:<type name>``."""

    variant: str
    payload: Any


class Holder(ABC):
    """An object that holds one tensor and stays when the tensor is replaced.

    With ``keeps_id`` a load changes only the value. ``reparameterization`` is a name and a struct that is trained in
    place of the value; its tensors follow this one, below its path and that name.
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
        """The stored form, if it is not an array."""

    @property
    @abstractmethod
    def value(self) -> Array:
        """The value as an array."""

    @abstractmethod
    def set(self, value: Array | TensorData) -> None:
        """Replace the value."""
