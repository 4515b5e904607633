"""Outlines: the declaration of a Burn model, as the crate ``burnstore-outline`` writes it into a Burnpack file.

An outline is the file of an untrained model with one more entry in its metadata: the kind of every module, the variants
of enums, Linears that are stored transposed, and the model as Burn prints it. `docs/formats/outline.md` describes it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from ..errors import ConfigError, CorruptError, FormatError, UnsupportedError
from ..io.documents import read_json
from ..transforms.layout import ModuleKind, is_known
from .plain import RECURRENT, TORCH_OPTIONS

OUTLINE_KEY = "burnstore.outline"
"""The key of a file's metadata under which its outline is stored."""

_FORMAT = 1
_TENSORS = frozenset({"ParamTensor", "Tensor", "RunningState"})
"""What Burn prints for tensors: they are in the file itself, or not stored."""
_MOST_LEVELS = 256


@dataclass(frozen=True)  # without slots, for what is worked out once and kept
class Outline:
    """The modules of a Burn model, in the order of their declaration; the path of the model itself is empty."""

    burn: str
    """The version of Burn that wrote the outline."""

    modules: Mapping[str, str]
    """The kind of each module as Burn names it: ``Struct:Linear``, ``Enum:Block``, ``Vec``, ``Array``, ``Tuple``."""

    variants: Mapping[str, str] = field(default_factory=dict)
    """The variant of each enum; it is a segment of the paths below."""

    layouts: Mapping[str, str] = field(default_factory=dict)
    """``Col`` for each Linear that stores its matrix transposed."""

    display: str = ""
    """The model as Burn prints it, with all attributes."""

    @functools.cached_property
    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        """The constants of each module by name, as Burn prints them: numbers of heads, epsilon, strides.

        What a module prints is left out where it contradicts the kinds of the outline, as a text of the program's own
        may do.
        """
        found: dict[str, dict[str, str]] = {}
        printed = _Printed.parse(self.display)
        if printed is not None:
            self._collect(printed, "", found, 0)
        return found

    def _collect(self, printed: _Printed, path: str, found: dict[str, dict[str, str]], level: int) -> None:
        container, _, name = self.modules.get(path, "").partition(":")
        expected = self.variants.get(path) if container == "Enum" else name if container == "Struct" else None
        if level > _MOST_LEVELS or (expected is not None and printed.name != expected):
            return
        for segment, value in printed.fields.items():
            if container == "Enum":
                segment = printed.name
            below = f"{path}.{segment}" if path else segment
            if value.name in _TENSORS:
                continue
            if value.fields:
                self._collect(value, below, found, level + 1)
            elif container != "Enum":
                found.setdefault(path, {})[segment] = value.name

    def without_variants(self, path: str) -> str:
        """Return a path without the variants of enums, as PyTorch's names are.

        >>> Outline("0.22.1", {"": "Enum:Block"}, {"": "Basic"}).without_variants("Basic.conv.weight")
        'conv.weight'
        """
        kept: list[str] = []
        above = ""
        for segment in path.split("."):
            if above not in self.variants:
                kept.append(segment)
            above = f"{above}.{segment}" if above else segment
        return ".".join(kept)

    @functools.cached_property
    def kinds(self) -> Mapping[str, ModuleKind]:
        """The modules of Burn's own types, with the options that their tensors do not show."""
        return dict(self._kinds())

    def _kinds(self) -> Iterator[tuple[str, ModuleKind]]:
        for path, container in self.modules.items():
            name = container.removeprefix("Struct:")
            if name != container and is_known(name):
                yield path, ModuleKind(name, tuple(self._options(path, name)))

    def _options(self, path: str, name: str) -> Iterator[tuple[str, int]]:
        attributes = self.attributes.get(path, {})
        if "norm_first" in attributes:
            yield "norm_first", attributes["norm_first"] == "true"
        if self.layouts.get(path) == "Col":
            yield "col", True
        if name in RECURRENT and not self._equals_torch(path, name):
            yield "unlike_torch", True

    def _equals_torch(self, path: str, name: str) -> bool:
        """Return whether a recurrent layer computes what PyTorch's does; what is not shown counts as unusual."""
        if name.startswith("Bi"):
            path, name = f"{path}.forward" if path else "forward", name.removeprefix("Bi")
        attributes = self.attributes.get(path)
        if attributes is None:
            return False
        for option, usual in TORCH_OPTIONS.items():
            shown = attributes.get(option, self.variants.get(f"{path}.{option}" if path else option))
            also = "Relu" if (name, option) == ("Rnn", "hidden_activation") else None
            if shown is not None and shown not in (str(usual).lower() if isinstance(usual, bool) else str(usual), also):
                return False
        return True


class _Format(TypedDict):
    format: int


class _Record(TypedDict, total=False):
    """An outline in the metadata; later releases may add members."""

    burn: str
    modules: dict[str, str]
    variants: dict[str, str]
    layouts: dict[str, str]
    display: str


def outline_of(metadata: Mapping[str, str]) -> Outline | None:
    """Return the outline that a file's metadata holds, None if it holds none.

    Raise CorruptError if it is damaged, UnsupportedError if it is of a format of later date.

    >>> outline_of({OUTLINE_KEY: '{"format":1,"burn":"0.22.1","modules":{"":"Struct:Linear"}}'}).kinds
    {'': ModuleKind(name='Linear', options=())}
    """
    text = metadata.get(OUTLINE_KEY)
    if text is None:
        return None
    try:
        number = read_json(text, into=_Format, ignore_extra=True)["format"]
        record = read_json(text, into=_Record, ignore_extra=True) if number == _FORMAT else {}
    except (FormatError, ConfigError) as error:
        raise CorruptError(f"the metadata's {OUTLINE_KEY} is damaged: {error.message}") from error
    if number != _FORMAT:
        raise UnsupportedError(
            f"an outline of format {number}; this version of burnstore reads format {_FORMAT}",
            hint="update burnstore, or write the outline with an older burnstore-outline",
        )
    modules, variants, layouts = (record.get(member, {}) for member in ("modules", "variants", "layouts"))
    return Outline(record.get("burn", ""), modules, variants, layouts, record.get("display", ""))


class _Printed(NamedTuple):
    """A value as Burn prints it: ``Name {field: value, …}``, or a text without fields."""

    name: str
    fields: dict[str, _Printed]

    @classmethod
    def parse(cls, text: str) -> _Printed | None:
        """Return the value that a text shows; None if its braces do not fit."""
        root = cls("", {})
        open_values = [root]
        name, start, depth = "value", 0, 0
        for place, character in enumerate(text):
            ends = character in ",}" and depth == 0
            if character == "{" and depth == 0:
                held = cls(text[start:place].strip(), {})
                open_values[-1].fields[name] = held
                open_values.append(held)
                name, start = "", place + 1
            elif ends:
                if len(open_values) == 1:
                    return None
                if name:
                    open_values[-1].fields.setdefault(name, cls(text[start:place].strip(), {}))
                name, start = "", place + 1
                if character == "}":
                    open_values.pop()
            elif character == ":" and not name and depth == 0:
                name, start = text[start:place].strip(), place + 1
            elif character in "([":
                depth += 1
            elif character in ")]":
                depth -= 1
            if depth < 0:
                return None
        return root.fields.get("value") if len(open_values) == 1 else None
