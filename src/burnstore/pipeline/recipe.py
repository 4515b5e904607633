"""Recipe: what a conversion does to tensors on their way, apart from where they come from and where they go.

    filter    only the tensors in whose names one of the patterns is found
    rename    by rules in their order, each of what the one before gave
    layout    seen in the target's layout, by whatever tells the kinds of the modules
    adapter   brought into another form; one that changes names or axes takes the place of the layout's conversion
    cast      floats in another dtype

This is the order, always. A recipe can be written down as JSON, unless it holds an adapter of the caller's own; in the
place of a model, which cannot, stands what it told: the kinds of the modules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DTypeError, PatternError, UnsupportedError, located
from ..models.layouts import Rules
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import (
    BurnToPyTorchAdapter,
    FloatCastAdapter,
    HalfPrecisionAdapter,
    IdentityAdapter,
    ModuleAdapter,
    PyTorchToBurnAdapter,
)
from ..transforms.filter import PathFilter
from ..transforms.patterns import compile_pattern
from ..transforms.precision import cast
from ..transforms.remap import KeyRemapper

Pattern = str | re.Pattern[str]
Renames = Mapping[str, str] | Iterable[str | tuple[Pattern, str]] | KeyRemapper

ADAPTERS: dict[str, type[ModuleAdapter]] = {
    adapter.__name__: adapter
    for adapter in (PyTorchToBurnAdapter, BurnToPyTorchAdapter, HalfPrecisionAdapter, IdentityAdapter)
}
"""The adapters that go by their names."""

_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "a": re.ASCII}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is to be done; see the module. ``modules`` is what a receipt says of them, in the place of ``like``."""

    filter: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    like: Any = None
    rules: Rules | None = None
    guess: bool = False
    modules: str | None = None
    keep_layout: bool = False
    source_layout: str | None = None
    layout: str | None = None
    adapter: ModuleAdapter | None = None
    cast: DType | None = None
    metadata: Mapping[str, str | None] = field(default_factory=dict)
    record_modules: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def filtered(self, tensors: Sequence[TensorSnapshot]) -> list[TensorSnapshot]:
        """The tensors that take part; PatternError for a pattern that is found in no name."""
        if not self.filter:
            return list(tensors)
        selection = PathFilter.from_regex_patterns(self.filter).select([(tensor.path, ()) for tensor in tensors])
        if selection.unmatched:
            raise PatternError(
                f"the filter {selection.unmatched[0]!r} is found in no tensor's name",
                hint="burnstore inspect lists them",
            )
        return [tensor for tensor, chosen in zip(tensors, selection, strict=True) if chosen]

    def renamed(self, tensors: Sequence[TensorSnapshot]) -> tuple[list[TensorSnapshot], dict[str, str]]:
        """The tensors under their new names, and the old name of each; PatternError for a rule that renames nothing."""
        remapper = KeyRemapper.from_patterns(self.rename)
        unmatched = remapper.remap_names([tensor.path for tensor in tensors]).unmatched
        if unmatched:
            raise PatternError(
                f"the rule {unmatched[0]!r} renames no tensor", hint="rules are applied one after the other"
            )
        renamed, pairs = remapper.remap(tensors)
        return renamed, dict(pairs)

    def casted(self, tensors: Iterable[TensorSnapshot]) -> list[TensorSnapshot]:
        """The tensors with floats in the dtype asked for; integers, bools and quantized ones as they are."""
        wanted = self.cast
        if wanted is None:
            return list(tensors)
        return [cast(tensor, wanted) if tensor.dtype.is_float else tensor for tensor in tensors]

    def to_dict(self) -> dict[str, Any]:
        """What can be written down; UnsupportedError where something cannot."""
        return {
            "filter": list(self.filter),
            "rename": [list(pair) for pair in self.rename],
            "like": _told(self.like),
            "rules": None if self.rules is None else dict(self.rules),
            "guess": self.guess,
            "modules": self.modules,
            "keep_layout": self.keep_layout,
            "source_layout": self.source_layout,
            "layout": self.layout,
            "adapter": _name_of(self.adapter),
            "cast": None if self.cast is None else self.cast.name,
            "metadata": dict(self.metadata),
            "record_modules": self.record_modules,
            "options": dict(self.options),
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Recipe:
        """The recipe that was written down. The modules are as they were told then, whoever told them."""
        known = dict(written)
        told = known.pop("modules") is not None
        for way in ("like", "rules", "guess"):
            if told or way == "like":
                known.pop(way)
        return recipe_of(**known, modules=written["modules"])


def recipe_of(
    *,
    filter: Pattern | Iterable[Pattern] | None = None,
    rename: Renames | None = None,
    adapter: ModuleAdapter | type[ModuleAdapter] | str | None = None,
    cast: DType | str | None = None,
    metadata: Mapping[str, str | None] | None = None,
    **others: Any,
) -> Recipe:
    """The recipe that a caller means: texts and single values become what they stand for."""
    return Recipe(
        filter=_patterns(filter),
        rename=_renames(rename),
        adapter=_adapter(adapter),
        cast=_dtype(cast),
        metadata=_texts(metadata),
        **others,
    )


def _patterns(given: Pattern | Iterable[Pattern] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    several = [given] if isinstance(given, (str, re.Pattern)) else list(given)
    return tuple(_text_of(compile_pattern(pattern)) for pattern in several)


def _text_of(pattern: re.Pattern[str]) -> str:
    """A compiled pattern as text, its flags in it."""
    plain = re.compile(pattern.pattern).flags
    letters = "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag and not plain & flag)
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern


def _renames(given: Renames | None) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    if isinstance(given, KeyRemapper):
        return tuple((_text_of(pattern), replacement) for pattern, replacement in given.to_regex_pairs())
    if isinstance(given, str):
        given = [given]
    rules = given.items() if isinstance(given, Mapping) else given
    found = [_renaming(rule) for rule in rules]
    KeyRemapper.from_patterns(found)  # a replacement that names an unknown group is refused here
    return tuple(found)


def _renaming(rule: str | tuple[Pattern, str]) -> tuple[str, str]:
    """One rule, as a pair or as ``old=>new``."""
    if isinstance(rule, str):
        old, arrow, new = rule.partition("=>")
        if not arrow:
            raise PatternError(
                f"{rule!r} is no rule for names", hint="write 'old=>new', the old one a regular expression"
            )
        return old, new
    if not isinstance(rule, (tuple, list)) or len(rule) != 2:
        raise TypeError(f"a rule for names is 'old=>new' or a pair, not {rule!r}")
    return _text_of(compile_pattern(rule[0])), rule[1]


def _adapter(given: ModuleAdapter | type[ModuleAdapter] | str | None) -> ModuleAdapter | None:
    if isinstance(given, str):
        name, _, dtype = given.partition("(")
        if name == FloatCastAdapter.__name__ and dtype.endswith(")"):
            return FloatCastAdapter(DType.parse(dtype[:-1]))
        if given not in ADAPTERS:
            raise ValueError(f"there is no adapter {given!r}; there are: {', '.join(ADAPTERS)}")
        return ADAPTERS[given]()
    if isinstance(given, type) and issubclass(given, ModuleAdapter):
        return given()
    if given is not None and not isinstance(given, ModuleAdapter):
        raise TypeError(f"an adapter is a ModuleAdapter or the name of one, not {type(given).__name__}")
    return given


def _name_of(adapter: ModuleAdapter | None) -> str | None:
    """The name that makes the same adapter again."""
    if adapter is None:
        return None
    if type(adapter) is FloatCastAdapter:
        return f"{FloatCastAdapter.__name__}({adapter.dtype.name})"
    kind = ADAPTERS.get(type(adapter).__name__)
    if kind is not type(adapter) or vars(adapter) != vars(kind()):
        raise UnsupportedError(
            f"the adapter {type(adapter).__name__} is the caller's own, and cannot be written down",
            hint="a receipt needs one of the adapters that go by their names, or none",
        )
    return type(adapter).__name__


def _dtype(given: DType | str | None) -> DType | None:
    if given is None:
        return None
    hint = "bf16, f16, f32 and f64 are some"
    with located(hint=hint):
        wanted = given if isinstance(given, DType) else DType.parse(given if given == "Flex32" else given.upper())
    # F8_E8M0 has no zero and no sign: it is for scales.
    if not wanted.is_float or wanted.bits % 8 or wanted is DType.F8_E8M0:
        raise DTypeError(f"values are not cast to {wanted.name}", hint=hint)
    return wanted


def _texts(given: Mapping[str, str | None] | None) -> dict[str, str | None]:
    texts = dict(given or {})
    for key, text in texts.items():
        if not isinstance(key, str) or not (text is None or isinstance(text, str)):
            raise TypeError(f"metadata maps str to str, got {type(key).__name__} to {type(text).__name__} for {key!r}")
        if key.startswith("burnstore."):
            raise ValueError(f"the text {key!r} is burnstore's own: it says what the file is")
    return texts


def _told(like: Any) -> str | None:
    """What told the kinds of the modules, for whoever reads it; what it told stands in ``modules``."""
    if like is None:
        return None
    if isinstance(like, (str, os.PathLike)):
        return os.fsdecode(like)
    kind = type(like)
    return f"{kind.__module__}:{kind.__qualname__}"
