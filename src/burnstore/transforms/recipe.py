"""Recipes: which tensors of a source become which of a target, and what is done to them, as data.

A recipe is a list of `TensorRule`: names with placeholders on both sides (``layers.{i}.fc1.weight`` →
``blocks.{i}.up.weight``, also ``{i+1}``) and operations. `Recipe.apply` follows it, lazily; `Recipe.inverse` is the way
back. The table below is the form in which rules files have them.

    source, target      a name or several; several targets are parts of one source, several sources become one
    axis, sizes         the axis and sizes of parts (default: equal parts along the first axis)
    heads               the parts are within each of this many heads, along the first axis
    fold_weight_norm    the two sources are magnitude and direction: {axis = 0}
    permute_rope        {heads = 8, to = "pairs"}: the order of rotary features, per head; of parts: a list (0: none)
    add_one             the target has 1 + the source
    transpose           of a matrix
    reshape             {from = [], to = [1]}
    cast                a float dtype
    tie                 the source is the value of another target, too
    drop                the source is left out: the reason
    constant            {value = 0.0, shape = [..], dtype = "F32"} instead of a source; with drop, what the source is
    equals              with drop: the source that this one must equal, and is made of on the way back
    optional            there may be no such source

Operations on one tensor are done in this order: permute_rope, add_one, transpose, reshape, cast.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from ..errors import DuplicateNameError, ModelError, PatternError, located
from ..tensor.dtype import DType
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from .layout import LAYOUTS, Layout
from .operations import (
    TRANSPOSE,
    Add,
    Cast,
    Concat,
    Fill,
    FoldWeightNorm,
    Operation,
    PermuteRope,
    Regroup,
    Reshape,
    Slice,
    WeightNorm,
)
from .values import PATTERNS
from .view import Origin

_PLACEHOLDER = re.compile(r"\{([a-z])([+-]\d+)?\}")

Indices = Mapping[str, int]


class Template:
    """A name in which ``{i}`` stands for a number and ``{i+1}`` for the next; ``*`` for any text, in drops."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.letters: list[tuple[str, int]] = []
        pattern, end = "", 0
        for found in _PLACEHOLDER.finditer(text):
            self.letters.append((found[1], int(found[2] or 0)))
            pattern += re.escape(text[end : found.start()]) + r"(0|[1-9]\d*)"
            end = found.end()
        pattern += re.escape(text[end:])
        self._pattern = re.compile(pattern.replace(r"\*", ".*"), re.DOTALL)

    def match(self, name: str) -> dict[str, int] | None:
        """Return the numbers that the placeholders have in a name; None if it is not of this form."""
        found = self._pattern.fullmatch(name)
        if found is None:
            return None
        indices: dict[str, int] = {}
        for (letter, offset), text in zip(self.letters, found.groups(), strict=True):
            number = int(text) - offset
            if number < 0 or indices.setdefault(letter, number) != number:
                return None
        return indices

    def name(self, indices: Indices) -> str:
        """Return the name that these numbers make."""
        return _PLACEHOLDER.sub(lambda found: str(indices[found[1]] + int(found[2] or 0)), self.text)


template = functools.lru_cache(maxsize=4096)(Template)


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One line of a recipe: sources → operations on each → joined → cut → operations on each → targets."""

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    before: tuple[tuple[Operation, ...], ...] = ()
    """What is done to each source; shorter than the sources where nothing is."""

    join: Operation | None = None
    cut: tuple[int, tuple[int, ...]] | None = None
    """The axis of the parts, and their sizes (none: equal)."""

    after: tuple[tuple[Operation, ...], ...] = ()
    tie: bool = False
    drop: str | None = None
    constant: Fill | None = None
    optional: bool = False
    sizes: tuple[int, ...] = ()
    """The sizes of joined parts, for the way back; none: equal."""

    equals: str | None = None
    """The tensor that a dropped one must equal."""

    line: int = 0
    """Where it is in a rules file, if it is from one."""

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{' + '.join(self.sources) or 'a constant'} → {', '.join(self.targets) or 'nothing'}{where}"

    def inverse(self) -> TensorRule:
        """Return the rule that undoes this one; ModelError if no rule does."""
        if self.constant is not None and not self.sources:
            return TensorRule(self.targets, drop="it is constant", constant=self.constant)
        if self.drop is not None:
            return TensorRule(targets=self.sources, constant=self.constant, optional=True, equals=self.equals)
        before = tuple(self._undone(steps) for steps in self.after)
        after = tuple(self._undone(steps) for steps in self.before)
        if self.tie:
            return TensorRule(self.targets, before=before, drop=_TIED, tie=True)
        join = None if self.cut is None else Concat(self.cut[0])
        cut = None
        if isinstance(self.join, FoldWeightNorm):
            after = ((WeightNorm(self.join.axis),), ())
        elif isinstance(self.join, Concat):
            cut = (self.join.axis, self.sizes)
        elif self.join is not None:
            raise ModelError(f"'{self.join}' cannot be inverted")
        sizes = self.cut[1] if self.cut is not None else ()
        return TensorRule(self.targets, self.sources, before, join, cut, after, optional=self.optional, sizes=sizes)

    def _undone(self, steps: tuple[Operation, ...]) -> tuple[Operation, ...]:
        back = []
        for step in reversed(steps):
            undone = step.inverse()
            if undone is None:
                raise ModelError(
                    f"the rule {self} cannot be inverted: '{step}' has no inverse",
                    hint="leave it out of the rules and use cast=",
                )
            back.append(undone)
        return tuple(back)


_TIED = "its values are those of a tensor that it is tied to"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rules for tensors, and the layouts on both sides where the rules convert them.

    With a ``target_layout`` a recipe is whole: its rules also convert the layout, and every tensor of the source must
    have one. Without, other tensors stay unchanged, and the layout is converted as usual.
    """

    rules: tuple[TensorRule, ...]
    source_layout: Layout | None = None
    target_layout: Layout | None = None

    def inverse(self) -> Recipe:
        """Return the recipe of the way back."""
        if self.target_layout is None:
            raise ModelError(
                "only rules that state source_layout and target_layout can be inverted",
                hint="write a rule for every tensor, or let burnstore map do it",
            )
        back = [replace(rule.inverse(), line=rule.line) for rule in self.rules]
        leaders = {rule.sources: at for at, rule in enumerate(self.rules) if not rule.tie and rule.targets}
        for at, rule in enumerate(self.rules):
            if rule.tie and rule.sources not in leaders:
                raise ModelError(f"no other rule has the source of the tied rule {rule}")
            if rule.tie:
                back[at] = replace(back[at], targets=rule.sources)
        back.sort(key=lambda rule: rule.tie)  # a tied tensor is compared with one that is there
        return Recipe(tuple(back), self.target_layout, self.source_layout)

    def apply(self, tensors: Mapping[str, TensorSnapshot]) -> Followed:
        """Follow the recipe with these tensors; nothing is read."""
        followed = Followed()
        waiting: list[TensorRule] = []
        for rule in self.rules:
            if not rule.sources and (rule.constant is not None or rule.equals is not None):
                waiting.append(rule)
            elif not rule.sources:  # what the way there dropped
                text = f"the way back has no {', '.join(rule.targets)}: the rules dropped it"
                followed.notes.append(Note("names", text))
            else:
                with located(rule=f"line {rule.line} of the rules" if rule.line else None):
                    self._follow(rule, tensors, followed)
        for rule in waiting:
            self._make(rule, followed)
        left = [name for name in tensors if name not in followed.used]
        if left and self.target_layout is not None:
            raise ModelError(
                f"no rule has this tensor{f', nor {len(left) - 1} others' if len(left) > 1 else ''}",
                tensor=left[0],
                hint='write a rule for it, or leave it out by one with drop = "the reason"',
            )
        for name in left:
            followed.add(tensors[name], (Origin(name),), ())
        return followed

    def _follow(self, rule: TensorRule, tensors: Mapping[str, TensorSnapshot], followed: Followed) -> None:
        first = template(rule.sources[0])
        found = [indices for name in tensors if (indices := first.match(name)) is not None]
        if rule.drop is not None and not rule.tie:
            for name in [name for name in tensors if first.match(name) is not None]:
                followed.use(name, rule)
                followed.dropped[name] = rule.drop
                if rule.constant is not None:
                    followed.equals.append((tensors[name], rule.constant.make(name)))
                if rule.equals is not None:
                    if rule.equals not in tensors:
                        raise ModelError(
                            f"the rule {rule} compares it with {rule.equals!r}, which is missing", tensor=name
                        )
                    followed.equals.append((tensors[name], tensors[rule.equals]))
        if not found and not rule.optional:
            raise PatternError(f"no tensor is named as in the rule {rule}", hint="optional = true allows that")
        for indices in found if rule.drop is None or rule.tie else ():
            names = [template(source).name(indices) for source in rule.sources]
            for name in names:
                if name not in tensors:
                    raise ModelError(f"the rule {rule} needs it, and the source has no such tensor", tensor=name)
                if rule.drop is not None or not rule.tie:
                    followed.use(name, rule)
            self._move(rule, names, indices, tensors, followed)

    def _move(
        self,
        rule: TensorRule,
        names: Sequence[str],
        indices: Indices,
        tensors: Mapping[str, TensorSnapshot],
        followed: Followed,
    ) -> None:
        origins = tuple(Origin(name, _at(rule.before, row)) for row, name in enumerate(names))
        parts = []
        for origin in origins:
            part = tensors[str(origin.source)]
            for step in origin.operations:
                part = step(part)
            parts.append(part)
        operations: tuple[Operation, ...] = () if rule.join is None else (_placed(rule.join, parts[0]),)
        with located(tensor=names[0]):
            whole = operations[0].combine(parts) if operations else parts[0]
        targets = [template(target).name(indices) for target in rule.targets]
        if rule.drop is not None:  # tied on the way there: it must equal what its leader gives
            followed.dropped[names[0]] = rule.drop
            leader = followed.made.get(targets[0])
            if leader is None:
                raise ModelError(f"the rule {rule} ties it to a tensor that is not there", tensor=names[0])
            followed.equals.append((whole, leader[0]))
            return
        for row, target in enumerate(targets):
            steps = (*_cuts(rule.cut, whole, row, len(targets)), *_at(rule.after, row))
            made = whole
            for step in steps:
                made = step(made)
            is_itself = rule.join is None and rule.cut is None and not rule.tie
            made = made.replace(path=target, param_id=made._param_id if is_itself else None)
            followed.add(made, origins, (*operations, *steps), rule)

    def _make(self, rule: TensorRule, followed: Followed) -> None:
        """Make copies and constants; the numbers in names of constants are those of the tensors beside them."""
        if rule.equals is not None:
            found = followed.made.get(rule.equals)
            if found is None:
                raise ModelError(f"the rule {rule} needs {rule.equals!r}, which nothing makes")
            followed.add(found[0].with_path(rule.targets[0]), *found[1:], rule)
            return
        assert rule.constant is not None
        for target in rule.targets:
            form = template(target)
            beside = followed.indices_of(target.rpartition(".")[0], form) if form.letters else [{}]
            if not beside and "*" not in target:
                raise ModelError(f"nothing states the shape of {target!r}, which is constant")
            if "*" in target:
                followed.notes.append(Note("names", f"the way back has no {target}: the rules dropped it", target))
                continue
            for indices in beside:
                name = form.name(indices)
                followed.add(rule.constant.make(name), (Origin(None, (rule.constant,)),), (), rule)


def _at(steps: Sequence[tuple[Operation, ...]], row: int) -> tuple[Operation, ...]:
    return steps[row] if row < len(steps) else ()


def _placed(join: Operation, first: TensorSnapshot) -> Operation:
    """Return a join whose axis is counted from the front."""
    axis = getattr(join, "axis", 0)
    return replace(join, axis=axis % max(len(first.shape), 1)) if axis < 0 else join  # type: ignore[type-var]


def _cuts(
    cut: tuple[int, tuple[int, ...]] | None, whole: TensorSnapshot, row: int, parts: int
) -> tuple[Operation, ...]:
    if cut is None:
        return ()
    if not -len(whole.shape) <= cut[0] < len(whole.shape):
        raise ModelError(f"it has no axis {cut[0]}: its shape is {list(whole.shape)}", tensor=whole.path)
    axis, sizes = cut[0] % len(whole.shape), cut[1]
    extent = whole.shape[axis]
    if not sizes and extent % parts:
        raise ModelError(f"axis {axis} has {extent} entries, which is not divisible into {parts}", tensor=whole.path)
    sizes = sizes or (extent // parts,) * parts
    if sum(sizes) != extent:
        raise ModelError(f"axis {axis} has {extent} entries, the rule's sizes are {list(sizes)}", tensor=whole.path)
    start = sum(sizes[:row])
    return (Slice(axis, start, start + sizes[row], extent),)


@dataclass(slots=True)
class Followed:
    """The outcome of a recipe: the tensors by their new names with origins and operations, and what was left out."""

    made: dict[str, tuple[TensorSnapshot, tuple[Origin, ...], tuple[Operation, ...]]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    equals: list[tuple[TensorSnapshot, TensorSnapshot]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    used: dict[str, TensorRule] = field(default_factory=dict)
    makers: dict[str, TensorRule | None] = field(default_factory=dict)

    def use(self, name: str, rule: TensorRule) -> None:
        """Count a source as used by a rule; two rules may not use one, unless they tie it."""
        other = self.used.setdefault(name, rule)
        if other is not rule:
            raise DuplicateNameError(
                f"two rules use it: {other} and {rule}", tensor=name, hint="tie = true uses a tensor a second time"
            )

    def add(
        self,
        made: TensorSnapshot,
        origins: tuple[Origin, ...],
        operations: tuple[Operation, ...],
        rule: TensorRule | None = None,
    ) -> None:
        """Add a tensor of the target."""
        if made.path in self.made:
            makers = [maker for maker in (self.makers[made.path], rule) if maker is not None]
            raise DuplicateNameError(f"two rules make this tensor: {' and '.join(map(str, makers))}", tensor=made.path)
        self.made[made.path] = (made, origins, operations)
        self.makers[made.path] = rule

    def indices_of(self, module: str, form: Template) -> list[Indices]:
        """Return the numbers of the tensors that were made in a module of this form."""
        letters = {letter for letter, _ in form.letters}
        owner = template(module)
        found = {
            tuple(sorted(indices.items())): indices
            for name in self.made
            if (indices := owner.match(name.rpartition(".")[0])) is not None
        }
        return [indices for indices in found.values() if letters <= indices.keys()]


# --- from data --------------------------------------------------------------------------------------------------------

_KEYS: tuple[str, ...] = (
    "source",
    "target",
    "axis",
    "sizes",
    "heads",
    "fold_weight_norm",
    "permute_rope",
    "add_one",
    "transpose",
    "reshape",
)
_KEYS += ("cast", "tie", "drop", "constant", "equals", "optional")


def recipe_from(document: Mapping[str, Any], lines: Sequence[int] = ()) -> Recipe:
    """Return the recipe of a rules file's data; PatternError names the rule that is wrong, and its line where known.

    >>> recipe_from({"tensors": [{"source": "h.{i}.w", "target": "blocks.{i}.w", "transpose": True}]}).rules[0]
    ... # doctest: +ELLIPSIS
    TensorRule(sources=('h.{i}.w',), targets=('blocks.{i}.w',), before=(), ...
    """
    layouts: dict[str, Layout | None] = {}
    for key in ("source_layout", "target_layout"):
        layouts[key] = next((known for known in LAYOUTS if known == document.get(key)), None)
        if layouts[key] is None and key in document:
            raise PatternError(f"{key} must be one of {', '.join(LAYOUTS)}, got {document[key]!r}")
    if (layouts["source_layout"] is None) != (layouts["target_layout"] is None):
        raise PatternError("give source_layout and target_layout, or neither")
    given = document.get("tensors", ())
    if not isinstance(given, (list, tuple)):
        raise PatternError("tensors must be a list of rules")
    rules = []
    for number, row in enumerate(given, 1):
        try:
            rules.append(replace(_rule_from(row), line=lines[number - 1] if lines else 0))
        except (TypeError, ValueError, KeyError) as error:
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            line = f"line {lines[number - 1]}, " if lines and lines[number - 1] else ""
            raise PatternError(f"{line}rule {number} of tensors, {str(row)[:80]}: {why}") from None
    return Recipe(tuple(rules), **layouts)


def _rule_from(row: Mapping[str, Any]) -> TensorRule:  # noqa: C901 (one branch per key of a rule)
    _check_keys(row, "a rule", _KEYS)
    for key, inner in _INNER_KEYS.items():
        if key in row and not (key == "fold_weight_norm" and row[key] is True):
            _check_keys(row[key], key, inner)
    for key in ("add_one", "transpose", "tie", "optional"):
        if not isinstance(row.get(key, False), bool):
            raise TypeError(f"{key} is true or false, got {row[key]!r}")
    sources, targets = _names(row.get("source", ())), _names(row.get("target", ()))
    steps = [tuple(_steps(row, at)) for at in range(max(len(targets), 1))]
    fill = None if "constant" not in row else _fill(row["constant"])
    reason = row.get("drop")
    if reason is not None and (not isinstance(reason, str) or not reason or targets or len(sources) != 1 or any(steps)):
        raise ValueError("drop is the reason why one source is left out, and has no target")
    if fill is not None and reason is None and (sources or not targets or any(steps)):
        raise ValueError("a constant has a target, and no source")
    if fill is None and reason is None and not (sources and targets):
        raise ValueError("give source and target, drop or constant")
    if len(sources) > 1 and len(targets) > 1:
        raise ValueError("one side has one name")
    if any("*" in name for name in targets) or (reason is None and any("*" in name for name in sources)):
        raise ValueError("* is for sources that are dropped")
    _check_letters(sources, targets)
    axis, sizes = row.get("axis", 0), tuple(_counts(row.get("sizes", ()), "sizes"))
    is_in_parts = max(len(sources), len(targets)) > 1 and "fold_weight_norm" not in row
    if type(axis) is not int or ("axis" in row and not is_in_parts):
        raise ValueError("axis is a number, for several sources or targets")
    if sizes and len(sizes) != max(len(sources), len(targets)):
        raise ValueError(f"expected {max(len(sources), len(targets))} sizes, one per part")
    join: Operation | None = None
    if "fold_weight_norm" in row:
        if len(sources) != 2:
            raise ValueError("fold_weight_norm has two sources: magnitude and direction")
        options = row["fold_weight_norm"]
        join = FoldWeightNorm(0 if options is True else options.get("axis", 0))
    elif len(sources) > 1:
        join = Concat(axis)
    cut = (axis, sizes) if len(targets) > 1 else None
    before: tuple[tuple[Operation, ...], ...] = ()
    if "heads" in row:
        parts = max(len(sources), len(targets))
        if type(row["heads"]) is not int or row["heads"] < 1 or parts < 2 or axis or "fold_weight_norm" in row:
            raise ValueError("heads is a count, for a source in parts along the first axis")
        regroup = Regroup(row["heads"], sizes or (1,) * parts)
        before = ((regroup,),) if cut is not None else ()
        steps = steps if cut is not None else [(regroup.inverse(), *steps[0])]
    after = tuple(steps) if any(steps) else ()
    rule = TensorRule(sources, targets, before, join, cut, after, bool(row.get("tie")), reason, fill)
    equals = row.get("equals")
    if equals is not None and (reason is None or not isinstance(equals, str) or template(sources[0]).letters):
        raise ValueError("equals names the tensor that a single dropped one equals")
    return replace(rule, optional=bool(row.get("optional")), sizes=sizes if cut is None else (), equals=equals)


_INNER_KEYS = {
    "fold_weight_norm": ("axis",),
    "permute_rope": ("heads", "to"),
    "reshape": ("from", "to"),
    "constant": ("value", "shape", "dtype"),
}


def _check_keys(given: Any, what: str, known: Sequence[str]) -> None:
    """Raise if this is not a table with known keys."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a table of {', '.join(known)}, got {given!r}")
    for key in given:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            raise ValueError(
                f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
            )


def _counts(given: Any, what: str) -> Sequence[int]:
    if not isinstance(given, (list, tuple)) or not all(type(each) is int and each >= 0 for each in given):
        raise TypeError(f"{what} must be a list of counts, got {given!r}")
    return given


def _check_letters(sources: Sequence[str], targets: Sequence[str]) -> None:
    used = [{letter for letter, _ in template(name).letters} for name in (*sources, *targets)]
    if sources and targets and any(each != used[0] for each in used):
        raise ValueError("every name must have the same placeholders")


def _names(given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) and name for name in names):
        raise TypeError("names must be strings")
    return names


def _steps(row: Mapping[str, Any], at: int) -> Iterator[Operation]:
    """Yield what is done to a target."""
    for key, make in _STEPS.items():
        given = row.get(key, False)
        if key == "permute_rope" and given and isinstance(given["heads"], (list, tuple)):
            if len(given["heads"]) != len(_names(row.get("target", ()))):
                raise ValueError("a list of heads has one number per target")
            heads = given["heads"][at]
            given = {**given, "heads": heads} if heads != 0 else False
        if given is not False:
            yield make(given)


def _rope(given: Mapping[str, Any]) -> Operation:
    to = given.get("to", "pairs")
    if to not in ("pairs", "halves") or type(given["heads"]) is not int or given["heads"] < 1:
        raise ValueError('permute_rope is such as {heads = 8, to = "pairs"}')
    return PermuteRope(given["heads"], to)


_STEPS: dict[str, Callable[[Any], Operation]] = {
    "permute_rope": _rope,
    "add_one": lambda given: Add(1.0),
    "transpose": lambda given: TRANSPOSE,
    "reshape": lambda given: Reshape(tuple(_counts(given["from"], "from")), tuple(_counts(given["to"], "to"))),
    "cast": lambda given: Cast(DType.parse(str(given).upper())),
}


def _fill(given: Mapping[str, Any]) -> Fill:
    value, shape = given["value"], tuple(_counts(given["shape"], "shape"))
    if isinstance(value, bool) or not (isinstance(value, (int, float)) or value in PATTERNS):
        raise ValueError(f"the value of a constant is a number or one of {', '.join(PATTERNS)}")
    return Fill(value, shape, DType.parse(str(given.get("dtype", "F32")).upper()))
