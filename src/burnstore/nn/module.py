"""Declare models with Burn's layout: Module, Enum and FixedArray."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from ..models.plain import HolderSlot, walk
from ..models.structure import Struct, Variant
from ..tensor.param_id import ParamId

__all__ = ["Enum", "FixedArray", "Module", "num_params", "variant"]

T = TypeVar("T")
E = TypeVar("E", bound="Enum")

_RESERVED = frozenset({"field_names", "fields", "set_field", "skipped"})


class Module(Struct):
    """A struct of Burn: its fields that hold parameters, in the order in which they were assigned.

    Fields may be `Param`, NumPy arrays, modules, `Enum` values, lists (``Vec``), tuples, `FixedArray` (``[T; N]``),
    dicts and None (``Option``), nested to any depth; numbers and strings are constants and are not stored. Name a field
    that Python cannot spell in ``field_names`` (``{"type_": "r#type"}``), and a field that is not stored in
    ``skipped``.

    >>> from burnstore import nn
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         self.conv1 = nn.Conv2d([2, 2], [2, 2])
    ...         self.conv2 = nn.Conv2d([2, 2], [2, 2], bias=False)
    >>> import burnstore as bs
    >>> [tensor.path for tensor in bs.collect(Net())]
    ['conv1.weight', 'conv1.bias', 'conv2.weight']
    """

    field_names: ClassVar[dict[str, str]] = {}
    skipped: ClassVar[frozenset[str]] = frozenset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _RESERVED:  # Such a field would hide the method that reads the fields.
            raise AttributeError(
                f"{type(self).__name__}.{name}: the name is reserved by Module; call the field {name}_ and set "
                f'field_names = {{"{name}_": "{name}"}} in the class'
            )
        super().__setattr__(name, value)

    def fields(self) -> Iterable[tuple[str, Any]]:
        """Return the stored fields with their names in files."""
        for name, value in vars(self).items():
            if name not in self.skipped:
                yield self.field_names.get(name, name), value

    def set_field(self, name: str, value: Any) -> None:
        """Replace the field with this name in files."""
        attribute = next((python for python, stored in self.field_names.items() if stored == name), name)
        setattr(self, attribute, value)

    def num_params(self) -> int:
        """Return how many numbers the float parameters and running states hold, as Burn counts them."""
        return num_params(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self.num_params()} parameters>"


class variant:  # noqa: N801  # read as a keyword in the body of an Enum
    """Declare a variant of an `Enum`, optionally of one payload type; calling it makes a value of that variant."""

    def __init__(self, payload_type: type | None = None) -> None:
        self.payload_type = payload_type
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type[E]) -> Callable[[Any], E]:
        return lambda payload: owner(self.name, payload)


class Enum(Variant):
    """An enum module of Burn: it holds one of several variants, whose name is part of the path.

    >>> from burnstore import nn
    >>> class Feature(nn.Enum):
    ...     BaseConv = nn.variant(nn.Conv2d)
    ...     Plain = nn.variant()
    >>> feature = Feature.BaseConv(nn.Conv2d([2, 2], [2, 2]))
    >>> feature.variant, type(feature.payload).__name__
    ('BaseConv', 'Conv2d')
    """

    def __init__(self, variant_name: str, payload: Any) -> None:
        declared = self.variants().get(variant_name)
        if declared is None:
            known = ", ".join(self.variants())
            raise ValueError(f"{type(self).__name__} has no variant {variant_name!r}; its variants are {known}")
        if declared.payload_type is not None and not isinstance(payload, declared.payload_type):
            wanted = declared.payload_type.__name__
            raise TypeError(f"{type(self).__name__}.{variant_name} holds {wanted}, got {type(payload).__name__}")
        self.variant = variant_name
        self.payload = payload

    @classmethod
    def variants(cls) -> dict[str, variant]:
        """Return the declared variants by name."""
        found: dict[str, variant] = {}
        for owner in reversed(cls.__mro__):
            found.update((name, value) for name, value in vars(owner).items() if isinstance(value, variant))
        return found

    @classmethod
    def of(cls: type[E], payload: Any) -> E:
        """Return a value of the one variant that is declared for payloads of this type."""
        names = [name for name, each in cls.variants().items() if each.payload_type is type(payload)]
        if len(names) != 1:
            what = "several variants hold" if names else "no variant holds"
            raise TypeError(f"{cls.__name__}: {what} {type(payload).__name__}")
        return cls(names[0], payload)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.variant}({self.payload!r})"


class FixedArray(list[Any]):
    """A fixed-size array of Burn (``[T; N]``): a list whose container is ``Array``."""

    burn_container = "Array"


def num_params(model: Any) -> int:
    """Return how many numbers the float parameters and running states of a model hold, as Burn counts them.

    No values are drawn. Integer and bool parameters count 0, quantized ones are floats.

    >>> from burnstore import nn
    >>> nn.num_params(nn.BatchNorm(3))
    12
    """
    slots = (slot for slot in walk(model) if slot.dtype.is_float or slot.dtype.is_quantized)
    return sum(math.prod(slot.shape) for slot in slots)


def fresh(pattern: T) -> T:
    """Return a copy of a module with parameters and ids of its own, as if it had been constructed again."""
    made = copy.deepcopy(pattern)
    for slot in walk(made):
        if isinstance(slot, HolderSlot):
            slot.holder.id = ParamId.generate()
    return made
