"""The terms of a composition: what a case tells the reference of layers, files, models and options, and its verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any
Named = dict[str, Array]

BURN_KINDS = {"PReLU": "PRelu", "RMSNorm": "RmsNorm", "InstanceNorm1d": "InstanceNorm", "BatchNorm1d": "BatchNorm"}
BURN_KINDS |= {"LSTM": "Lstm", "GRU": "Gru", "MultiheadAttention": "MultiHeadAttention"}
"""The names of torch's kinds in Burn, where they differ."""


class Refused(Exception):  # noqa: N818  # it is a verdict, not an error
    """The composition must be refused, for this reason."""


@dataclass
class Layer:
    """A module: its path in torch and in Burn, its kind in torch, its tensors by torch's names, its sizes."""

    path: str
    kind: str
    tensors: Named
    options: Mapping[str, Any] = field(default_factory=dict)
    burn: str = ""

    def __post_init__(self) -> None:
        self.burn = self.burn or self.path

    def at(self, layout: str) -> str:
        """Return the path in this layout."""
        return self.path if layout == "torch" else self.burn


@dataclass
class File:
    """A file as its writer left it."""

    tensors: Named
    format: str
    layout: str | None
    """The layout that the file states; None if it states none."""
    by_metadata: bool = False
    """Whether metadata of burnstore states it, so that nothing may contradict it."""
    record: list[Layer] | None = None
    """The modules that the file records."""

    @property
    def counts(self) -> Named:
        """The counters that the file records; one of torch has them among its tensors."""
        name, recorded = "num_batches_tracked", self.record if self.format != "pytorch" else ()
        return {f"{each.path}.{name}": each.tensors[name] for each in recorded or () if name in each.tensors}


@dataclass
class Known:
    """The layers that something states."""

    layers: Sequence[Layer]
    is_declared: bool | None
    """Whether that also declares which tensors are absent; None if the layers are those of a Burn model."""
    counts: Named = field(default_factory=dict)
    """The counters of torch's modules, where a file records them."""


@dataclass
class Place:
    """A model: its tensors by its own names, and the layers that it declares (none for plain containers)."""

    kind: str
    tensors: Named
    layers: list[Layer]
    ties: Sequence[tuple[str, str]] = ()

    @property
    def layout(self) -> str:
        return "torch" if self.kind == "torch" else "burn"

    @property
    def known(self) -> Known:
        return Known(self.layers, True if self.layout == "torch" else None)


@dataclass
class Options:
    """The options of a composition; each means the same for every verb."""

    rename: Mapping[str, str] | Sequence[str] | None = None
    filter: Sequence[str] | None = None
    """Regular expressions, of which one must be found in the name."""
    layout: str | None = None
    target_layout: str | None = None
    keep_layout: bool = False
    rules: dict[str, str] | None = None
    renamed_by_rules: str | None = None
    """A tensor that a rule for tensors gives another name."""
    guess: bool = False
    like: Place | None = None
    adapter: str | None = None
    """``negate`` changes values only, ``rename`` names, ``turn`` axes; ``own`` says that it converts layouts itself."""
    cast: str | None = None
    allow_partial: bool = False

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of the rules by their patterns, in torch's words."""
        words = {burn: torch for torch, burn in BURN_KINDS.items()} | {"AsIs": "Own"}
        return {pattern: words.get(kind, kind) for pattern, kind in (self.rules or {}).items()}

    def keeps(self, name: str) -> bool:
        return self.filter is None or any(re.search(pattern, name) for pattern in self.filter)

    def idle(self, names: Iterable[str]) -> list[str]:
        """Return the patterns of the filter that match nothing."""
        return [each for each in self.filter or () if not any(re.search(each, name) for name in names)]

    def keeps_any(self, path: str, names: Iterable[str]) -> bool:
        return any(self.keeps(f"{path}.{name}") for name in names)


@dataclass
class Expected:
    """The verdict: the tensors that must be there, what must be noted, and whether a refusal would be right too."""

    tensors: Named
    layout: str | None = None
    noted: list[str] = field(default_factory=list)
    unused: list[str] | None = None
    loose: str | None = None
    left_out: set[str] | None = None
    """The tensors of a model that its file does not have; None if the case does not look."""


def kind_of(dtype: np.dtype[Any]) -> str:
    """Return f, i (integers of both signs), b or c."""
    return {"V": "f", "u": "i"}.get(dtype.kind, dtype.kind)  # NumPy calls floats that it does not know V


def same(one: Array, other: Array) -> bool:
    """Return whether two arrays have one dtype, shape and bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def negated(array: Array) -> Array:
    """Return what the adapter ``negate`` returns: floats with the other sign, NaN included; other values unchanged."""
    if kind_of(array.dtype) != "f":
        return array
    bits = np.dtype(f"u{array.dtype.itemsize}")
    flipped = np.ascontiguousarray(array).view(bits) ^ bits.type(1 << (8 * bits.itemsize - 1))
    return flipped.view(array.dtype).reshape(array.shape)
