"""Options: every option of moving tensors from a source to a target, each declared once.

`Pipeline` is immutable. `load`, `save`, `convert`, `merge`, `diff`, `explain`, every store and the command line build
the same object, so an option has one type, one check and one meaning. The order in which options are given is not
visible: the stages run in the order of the direction,

    file → model, file → file   rename → indices → adapters that change the set of tensors → layout → match → filter
                                → adapters of single tensors → cast → part of a rank
    model → file                filter → layout → adapters → cast → rename

A filter sees the model's paths and containers; without a model the names in the target. A rename sees the file's names
when reading, and gives the file's names when writing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from dataclasses import replace as _replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

import numpy as np

from ..errors import DTypeError, PatternError, located, quoted
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import ADAPTERS, FloatCastAdapter, FunctionAdapter, ModuleAdapter
from ..transforms.filter import PathFilter, Predicate
from ..transforms.layout import LAYOUTS, Layout
from ..transforms.partition import Part
from ..transforms.patterns import compile_pattern
from ..transforms.recipe import Recipe
from ..transforms.remap import KeyRemapper, OnCollision
from .rules import Rules, rules_of

if TYPE_CHECKING:  # type checkers know it; Python has it from 3.11 on
    from typing_extensions import Unpack

Pattern = str | re.Pattern[str]
FilterLike = Pattern | PathFilter | Predicate | Iterable[Pattern | PathFilter | Predicate]
"""A pattern that is found in paths, a `PathFilter`, a function of path and containers, or several.

Any of them matches.
"""

RenameLike = Mapping[str, str] | KeyRemapper | Callable[[str], str] | Iterable[str | tuple[Pattern, str]] | str
"""A mapping of whole names, applied simultaneously; or patterns, as ``old=>new`` or pairs, applied in order."""

AdapterLike = ModuleAdapter | type[ModuleAdapter] | Callable[[TensorSnapshot], TensorSnapshot] | str
"""An adapter, its class or its name, or a function of one snapshot."""

RulesLike = Mapping[str, Any] | str | os.PathLike[str]
"""Patterns that are found in the paths of modules, each with the kind of such modules; or a rules file or its data."""

Unmatched = Literal["note", "error"]

CAST_NAMES = {"HALF": "F16", "FLOAT16": "F16", "FP16": "F16", "BFLOAT16": "BF16", "FP32": "F32", "FLOAT32": "F32"}
CAST_NAMES |= {"FLOAT": "F32", "FP64": "F64", "FLOAT64": "F64", "DOUBLE": "F64", "FLEX32": "Flex32"}


def layout_named(name: str) -> Layout:
    """Return the layout of this name; ValueError if there is none."""
    for known in LAYOUTS:
        if name == known:
            return known
    raise ValueError(f"layout must be one of {', '.join(map(repr, LAYOUTS))}, got {name!r}")


def as_filter(given: FilterLike) -> PathFilter:
    """Return the filter that a caller means; several criteria match if any of them does."""
    if isinstance(given, PathFilter):
        return given
    if isinstance(given, (str, re.Pattern)):
        return PathFilter().with_regex(given)
    if callable(given):
        return PathFilter().with_predicate(given)
    if not isinstance(given, Iterable):
        raise TypeError(f"filter must be a pattern, a PathFilter, a function or a list of them, got {_type(given)}")
    either = PathFilter()
    for each in given:
        either = either | as_filter(each)
    return either


def as_remapper(given: RenameLike) -> KeyRemapper:
    """Return the remapper that a caller means."""
    if isinstance(given, KeyRemapper):
        return given
    if isinstance(given, Mapping):
        return KeyRemapper.from_dict(given)
    if isinstance(given, str):
        given = [given]
    if callable(given):
        return KeyRemapper().add_function(given)
    if not isinstance(given, Iterable):
        raise TypeError(f"rename must be a mapping, a list of rules, a KeyRemapper or a function, got {_type(given)}")
    remapper = KeyRemapper()
    for rule in given:
        remapper.add_pattern(*_rename_rule(rule))
    return remapper


def _rename_rule(rule: Any) -> tuple[Pattern, str]:
    """Return one rule, given as a pair or as ``old=>new``."""
    if isinstance(rule, str):
        old, arrow, new = rule.partition("=>")
        if not arrow:
            raise PatternError(
                f"{quoted(rule)} is not a rename rule",
                hint="write 'old=>new'; old is a regular expression, new may use $1",
            )
        return old, new
    if not isinstance(rule, (tuple, list)) or len(rule) != 2:
        raise TypeError(f"a rename rule must be 'old=>new' or a pair, got {rule!r}")
    return rule[0], rule[1]


def as_adapter(given: AdapterLike) -> ModuleAdapter:
    """Return the adapter that a caller means."""
    if isinstance(given, ModuleAdapter):
        return given
    if isinstance(given, type) and issubclass(given, ModuleAdapter):
        return given()
    if isinstance(given, str):
        name, _, dtype = given.partition("(")
        if name == FloatCastAdapter.__name__ and dtype.endswith(")"):
            return FloatCastAdapter(DType.parse(dtype[:-1]))
        if given not in ADAPTERS:
            raise ValueError(f"unknown adapter {given!r}; known: {', '.join(ADAPTERS)}")
        return ADAPTERS[given]()
    if callable(given):
        return FunctionAdapter(cast("Callable[[TensorSnapshot], TensorSnapshot]", given))
    raise TypeError(f"adapter must be a ModuleAdapter, its name or a function of a snapshot, got {_type(given)}")


def as_cast(given: Any) -> DType:
    """Return the float dtype that a caller means: ``bf16``, ``float16``, ``half`` and so on.

    >>> as_cast("float16"), as_cast("torch.bfloat16")
    (DType.F16, DType.BF16)
    """
    hint = "use one of bf16, f16, f32, f64"
    with located(hint=hint):
        if isinstance(given, str):
            name = given.upper().removeprefix("TORCH.")
            wanted = DType.parse(CAST_NAMES.get(name, name))
        else:
            try:
                given = np.dtype(given) if isinstance(given, type) else given
                wanted = given if isinstance(given, DType) else DType.of(given)
            except (TypeError, ValueError, DTypeError):
                raise TypeError(
                    f"cast must be a DType, its name, or a dtype of NumPy or torch, got {_type(given)}"
                ) from None
    # F8_E8M0 has no zero and no sign: it is for scales.
    if not wanted.is_float or wanted.bits % 8 or wanted is DType.F8_E8M0:
        raise DTypeError(f"cannot cast values to {wanted.name}", hint=hint)
    return wanted


def _as_recipe(given: Recipe) -> Recipe:
    if not isinstance(given, Recipe):
        raise TypeError(f"recipe must be a Recipe, got {_type(given)}; rules= takes rules files and their data")
    return given


def _as_part(given: Part) -> Part:
    if not isinstance(given, Part):
        raise TypeError(f"part must be a Part such as Partition(rules).part(rank=0, world=2), got {_type(given)}")
    return given


def _as_patterns(given: Pattern | Iterable[Pattern]) -> tuple[re.Pattern[str], ...]:
    several = [given] if isinstance(given, (str, re.Pattern)) else given
    return tuple(map(compile_pattern, several))


def _flag(given: bool) -> bool:
    if not isinstance(given, bool):
        raise TypeError(f"expected a bool, got {_type(given)}")
    return given


def _one_of(choices: Any) -> Callable[[str], str]:
    allowed = get_args(choices)

    def check(given: str) -> str:
        if given not in allowed:
            raise ValueError(f"expected one of {', '.join(map(repr, allowed))}, got {given!r}")
        return given

    return check


def _type(value: Any) -> str:
    return type(value).__name__


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "rename": as_remapper,
    "on_collision": _one_of(OnCollision),
    "indices": _flag,
    "indices_except": _as_patterns,
    "skip_enum_variants": _flag,
    "layout": layout_named,
    "target_layout": layout_named,
    "keep_layout": _flag,
    "rules": rules_of,
    "recipe": _as_recipe,
    "invert": _flag,
    "guess": _flag,
    "record_modules": _flag,
    "adapter": as_adapter,
    "filter": as_filter,
    "cast": as_cast,
    "part": _as_part,
    "allow_partial": _flag,
    "validate": _flag,
    "strict": _flag,
    "allow_empty": _flag,
    "unmatched": _one_of(Unmatched),
}
"""The check of every option, which also turns what a caller writes into what the stages use."""


class PipelineOptions(TypedDict, total=False):
    """Every option as a caller may write it; `Pipeline` has each as the stages use it."""

    rename: RenameLike | None
    on_collision: OnCollision
    indices: bool | None
    indices_except: Pattern | Iterable[Pattern]
    skip_enum_variants: bool | None
    layout: str | None
    target_layout: str | None
    keep_layout: bool
    rules: RulesLike | None
    recipe: Recipe | None
    invert: bool
    guess: bool
    record_modules: bool
    adapter: AdapterLike | None
    filter: FilterLike | None
    cast: DType | str | None
    part: Part | None
    allow_partial: bool
    validate: bool
    strict: bool
    allow_empty: bool
    unmatched: Unmatched


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """All options of moving tensors, checked where they are given. Immutable; `replace` returns a changed copy.

    ``layout`` is the layout of the file that is loaded or saved; of a conversion, which has two files, the source's,
    and ``target_layout`` is the target's. ``keep_layout`` copies names and axes unchanged.

    >>> Pipeline(filter=r"^encoder\\.", rename=[r"^h\\.=>layers."], cast="bf16").cast
    DType.BF16
    """

    rename: KeyRemapper | None = None
    """New names, see `RenameLike`."""

    on_collision: OnCollision = "error"
    """What to do when two tensors get one name: refuse, or keep the ``"first"`` or ``"last"``."""

    indices: bool | None = None
    """Whether to number the indices in names 0, 1, 2 without gaps; None does so from PyTorch files to Burn models."""

    indices_except: tuple[re.Pattern[str], ...] = ()
    """Prefixes below which indices stay unchanged."""

    skip_enum_variants: bool | None = None
    """Whether to leave the names of enum variants out of the model's paths; None does so for PyTorch files."""

    layout: Layout | None = None
    target_layout: Layout | None = None
    keep_layout: bool = False

    rules: Mapping[str, str] | None = None
    """Module kinds by pattern; for the modules they match, they win over what a model or a record states."""

    recipe: Recipe | None = None
    """What becomes of tensors, where ``rules`` states it; such names are those after ``rename``."""

    invert: bool = False
    """Whether the rules for tensors are followed backwards: from their targets to their sources."""

    guess: bool = False
    """Whether names and shapes may decide the kinds of modules that nothing else states."""

    record_modules: bool = True
    """Whether a converted file records its modules, so that it can be converted back without the model."""

    adapter: ModuleAdapter | None = None
    filter: PathFilter | None = None
    cast: DType | None = None
    part: Part | None = None

    allow_partial: bool = False
    """Whether parameters may be left without a tensor."""

    validate: bool = True
    """Whether tensors that do not fit are an error; otherwise they are reported."""

    strict: bool = False
    """Whether a tensor of the file that no parameter takes is an error, as missing tensors and misfits are."""

    allow_empty: bool = False
    """Whether a job may do nothing: write or load no tensor at all, or compare none."""

    unmatched: Unmatched = "note"
    """Whether a filter or a rename that matches nothing is noted or refused."""

    if TYPE_CHECKING:  # what a caller may write; `__post_init__` turns it into what the stages use

        def __init__(self, **options: Unpack[PipelineOptions]) -> None: ...

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            if given is not each.default:
                try:
                    checked = _CHECKS[each.name](given)
                except (TypeError, ValueError) as error:
                    if type(error) in (TypeError, ValueError) and each.name not in str(error):
                        raise type(error)(f"{each.name}: {error}") from None
                    raise
                object.__setattr__(self, each.name, checked)
        self._take_rules()
        self._check_conflicts()

    def _take_rules(self) -> None:
        """Separate the rules for tensors from the module kinds, and invert them on request."""
        recipe, rules = self.recipe, cast("Any", self.rules)
        if isinstance(rules, Rules):
            recipe = rules.recipe or recipe
            object.__setattr__(self, "rules", rules.kinds)
        if self.invert:
            if recipe is None:
                raise ValueError("invert needs rules that state what becomes of tensors")
            recipe = recipe.inverse()
            object.__setattr__(self, "invert", False)
        object.__setattr__(self, "recipe", recipe)

    def _check_conflicts(self) -> None:
        if self.keep_layout and self.target_layout is not None:
            raise ValueError(f"keep_layout and target_layout={self.target_layout!r} exclude each other")
        if self.strict and (self.allow_partial or not self.validate):
            other = "allow_partial=True" if self.allow_partial else "validate=False"
            raise ValueError(f"strict=True and {other} exclude each other")
        given = None if self.adapter is None else self.adapter.takes_layout
        if given is not None and self.layout not in (None, given):
            raise ValueError(
                f"layout={self.layout!r} contradicts {type(self.adapter).__name__}, which takes {given}'s layout"
            )

    def replace(self, **options: Unpack[PipelineOptions]) -> Pipeline:
        """Return a pipeline with some options changed."""
        return _replace(self, **cast("dict[str, Any]", options))

    def with_defaults(self, **options: Any) -> Pipeline:
        """Return a pipeline in which options that were not given have these values."""
        unset = {
            each.name: options[each.name]
            for each in fields(self)
            if each.name in options and getattr(self, each.name) is each.default
        }
        return _replace(self, **unset) if unset else self


def pipeline_of(pipeline: Pipeline | None, **options: Unpack[PipelineOptions]) -> Pipeline:
    """Return the pipeline of an entry point: ``pipeline=`` with the options that were passed as keywords.

    None stands for an option that was not passed; one in both is an error.

    >>> pipeline_of(None, cast="f16", layout=None).cast
    DType.F16
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if pipeline is None:
        return Pipeline(**given)
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"pipeline must be a Pipeline, got {_type(pipeline)}")
    defaults = {each.name: each.default for each in fields(pipeline)}
    for name in given:
        if getattr(pipeline, name) is not defaults[name] and given[name] is not defaults[name]:
            raise TypeError(f"{name} is given as a keyword and in pipeline=; give it once")
    return _replace(pipeline, **{name: value for name, value in given.items() if value is not defaults[name]})


def refuse_unused(pipeline: Pipeline, verb: str, *unused: str) -> Pipeline:
    """Return the pipeline; TypeError if it has an option that this verb would ignore.

    >>> refuse_unused(Pipeline(cast="f16"), "diff", "cast")
    Traceback (most recent call last):
    TypeError: diff has no use for the option cast
    """
    defaults = {each.name: each.default for each in fields(pipeline)}
    for name in unused:
        if getattr(pipeline, name) is not defaults[name]:
            raise TypeError(f"{verb} has no use for the option {name}")
    return pipeline
