"""Translation: the tensors of a file in another layout, by whatever tells the kinds of its modules."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint import open_checkpoint
from ..errors import AmbiguousError, FormatError, ModelError, located
from ..io.source import read_whole
from ..models.bindings import binding_for
from ..models.collect import adapted
from ..models.layouts import (
    MODULES_KEY,
    kinds_by_rules,
    layout_of,
    recorded_counts,
    recorded_modules,
    view_of,
    view_of_record,
    zero_count,
)
from ..tensor.data import Shape
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import IdentityAdapter, ModuleAdapter
from ..transforms.guess import Guess, guess_kinds
from ..transforms.layout import Layout
from ..transforms.view import LayoutView, join, module_tree, view_of_burn, view_of_torch
from .recipe import Recipe

WAYS_OUT = (
    "like= a model or declaration, rules={pattern: kind}, guess=True to go by names and shapes, "
    "or keep_layout=True to write the tensors as they are"
)

_MOST_RULES = 1 << 20


@dataclass(frozen=True, slots=True)
class Translated:
    """Tensors in the layout that was wanted, and how they came to it."""

    snapshots: list[TensorSnapshot]
    layout: Layout | None
    made_of: Mapping[str, Sequence[str]]
    """Of each tensor, the names of those that it was made of."""

    view: LayoutView | None = None
    """What was known of the modules, if anybody asked."""

    guess: Guess | None = None
    notes: list[str] = field(default_factory=list)


def translate(
    tensors: Sequence[TensorSnapshot],
    told: Layout | None,
    wanted: Layout | None,
    metadata: Mapping[str, str],
    recipe: Recipe,
) -> Translated:
    """Tensors of the layout ``told`` in the one that is wanted, and as the recipe's adapter gives them.

    ``metadata`` are the texts of the file, which may record its modules. ModelError where something is not known, is
    left over, or does not fit.
    """
    adapter = recipe.adapter
    replaces = adapter is not None and not adapter.keeps_layout and type(adapter) is not IdentityAdapter
    turns = not recipe.keep_layout and told != wanted and not replaces
    if told is None and turns:
        raise ModelError(
            f"the file does not say whose layout its tensors have, and the target has {wanted}'s",
            hint='pass source_layout="torch" or "burn", or keep_layout=True to write them as they are',
        )
    view, guess = _View(tensors, told, metadata, recipe).found(needed=turns, wanted=turns or adapter is not None)
    done = Translated(list(tensors), told, {tensor.path: [tensor.path] for tensor in tensors}, view, guess)
    if view is not None and turns:
        done = _seen(done, view, wanted, metadata)
        like = recipe.like
        if like is not None and not isinstance(like, (str, os.PathLike)) and layout_of(like) == wanted:
            _check_like(like, {each.path: each.shape for each in done.snapshots}, whole=not recipe.filter)
    return done if adapter is None else _adapted(done, adapter)


def rules_from_file(path: str | os.PathLike[str]) -> dict[str, str]:
    r"""The rules in a file: JSON of one object, or a line ``pattern = kind`` for each; empty lines and # say nothing.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".rules") as file:
    ...     _ = file.write("# the head\n^fc$ = Linear\n^norm = LayerNorm\n")
    ...     file.flush()
    ...     rules_from_file(file.name)
    {'^fc$': 'Linear', '^norm': 'LayerNorm'}
    """
    with located(path=os.fsdecode(path), hint="write a line such as: ^encoder\\.fc\\d$ = Linear"):
        try:
            text = read_whole(path, _MOST_RULES).decode("utf-8")
            rules = json.loads(text) if text.lstrip().startswith("{") else dict(_rule_lines(text))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"it holds no rules: {error}") from error
        if not rules or not all(isinstance(kind, str) for kind in rules.values()):
            raise FormatError("it holds no rules: a kind is a text" if rules else "it holds no rules")
        return rules


def _rule_lines(text: str) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pattern, equals, kind = line.strip().partition(" = ")
        if not equals:
            raise ValueError(f"line {number} has no ' = ' between pattern and kind")
        yield pattern.strip(), kind.strip()


def made_of(view: LayoutView, wanted: Layout | None) -> dict[str, list[str]]:
    """Of each tensor in the wanted layout, the names of those that it is made of; constants of none."""
    found: dict[str, list[str]] = {}
    for module in view.modules:
        for link in sorted(module.map.links, key=lambda link: link.part):
            torch, burn = join(module.torch, link.torch), join(module.burn, link.burn)
            name, part = (burn, torch) if wanted == "burn" else (torch, burn)
            found.setdefault(name, []).append(part)
    return found


@dataclass(frozen=True, slots=True)
class _View:
    """How the tensors of a file are seen in both layouts."""

    tensors: Sequence[TensorSnapshot]
    told: Layout | None
    metadata: Mapping[str, str]
    recipe: Recipe

    def found(self, *, needed: bool, wanted: bool) -> tuple[LayoutView | None, Guess | None]:
        """The view, by whatever tells the kinds of the modules; ModelError if one is needed and nothing does."""
        recipe, told = self.recipe, self.told
        if not wanted or told is None:
            return None, None
        shapes = {tensor.path: tensor.shape for tensor in self.tensors}
        if recipe.modules is not None:
            return self._recorded(recipe.modules, shapes, told), None
        if recipe.like is not None:
            return self._alike(recipe.like, shapes, told), None
        if recipe.rules is not None:
            return view_of_kinds(kinds_by_rules(shapes, recipe.rules), shapes, told), None
        if MODULES_KEY in self.metadata and not recipe.rename:  # it speaks of the names of before
            return self._recorded(self.metadata[MODULES_KEY], shapes, told), None
        if recipe.guess:
            guess = _guessed(shapes, told)
            return view_of_kinds(guess.kinds, shapes, told), guess
        if needed:
            raise ModelError(f"nothing tells the kinds of the modules in this file of {told}'s layout", hint=WAYS_OUT)
        return None, None

    def _alike(self, like: Any, shapes: Mapping[str, Shape], told: Layout) -> LayoutView:
        if isinstance(like, (str, os.PathLike)):
            with open_checkpoint(like) as pattern:
                text = pattern.metadata.get(MODULES_KEY)
            if text is None:
                raise ModelError(f"{os.fsdecode(like)!r} does not record its modules", hint=WAYS_OUT)
            return self._recorded(text, shapes, told)
        if layout_of(like) == told:
            _check_like(like, shapes, whole=not self.recipe.filter)
        return view_of(like, list(binding_for(like).walk(like)), rules=self.recipe.rules, present=shapes)

    def _recorded(self, text: str, shapes: Mapping[str, Shape], told: Layout) -> LayoutView:
        return view_of_record(recorded_modules({MODULES_KEY: text}) or [], shapes, told)


def _guessed(shapes: Mapping[str, Shape], told: Layout) -> Guess:
    if told != "torch":
        raise ModelError("only files in PyTorch's layout can be guessed at", hint=WAYS_OUT)
    guess = guess_kinds(shapes)
    if guess.ambiguous:
        path, why = next(iter(guess.ambiguous.items()))
        raise AmbiguousError(
            f"{len(guess.ambiguous)} modules are ambiguous, the first: {why}",
            guess=guess,
            tensor=path or None,
            hint=WAYS_OUT,
        )
    return guess


def view_of_kinds(kinds: Mapping[str, Any], shapes: Mapping[str, Shape], told: Layout) -> LayoutView:
    """The tensors of a file in both layouts, by the kinds of all its modules; ModelError where one is left out."""
    root = module_tree(shapes, kinds)
    view = view_of_torch(root) if told == "torch" else view_of_burn(root)
    left = [name for name in view.as_they_are if name.rpartition(".")[0] not in kinds]
    if left:
        raise ModelError(
            f"no rule names the kind of its module, nor of {len(left) - 1} others", tensor=left[0], hint=WAYS_OUT
        )
    return view


def _check_like(model: Any, given: Mapping[str, Shape], *, whole: bool) -> None:
    wanted = {slot.path: slot.shape for slot in binding_for(model).walk(model)}
    for name, shape in given.items():
        if name not in wanted:
            raise ModelError("the model given as like has no such tensor", tensor=name)
        if wanted[name] != shape:
            raise ModelError(f"it is {list(shape)}, in the model given as like {list(wanted[name])}", tensor=name)
    missing = next((name for name in wanted if name not in given), None)
    if missing is not None and whole:
        raise ModelError("the model given as like has it, the file has not", tensor=missing)


def _seen(given: Translated, view: LayoutView, wanted: Layout | None, metadata: Mapping[str, str]) -> Translated:
    """The tensors in the wanted layout; every one is used, and every one that there should be is made."""
    by_path = {snapshot.path: snapshot for snapshot in given.snapshots}
    seen = view.to_burn(by_path) if wanted == "burn" else view.to_torch(by_path)
    for path, parts in seen.incomplete.items():
        raise ModelError(f"it cannot be made: there is no {', '.join(parts)}", tensor=path)
    unused = next((path for path in by_path if path not in seen.used), None)
    if unused is not None:
        raise ModelError(f"it has no counterpart in {wanted}'s layout", tensor=unused, hint=WAYS_OUT)
    if wanted == "torch":
        counts = recorded_counts(metadata)
        seen.snapshots.extend(counts.get(path) or zero_count(path) for path in seen.lost)
    parts_of = made_of(view, wanted)
    present = {each.path: [part for part in parts_of.get(each.path, ()) if part in by_path] for each in seen.snapshots}
    notes = [f"of no known kind, taken as they are: {name}" for name in view.as_they_are]
    return Translated(seen.snapshots, wanted, present, view, given.guess, notes)


def _adapted(given: Translated, adapter: ModuleAdapter) -> Translated:
    """The tensors as an adapter gives them, which is told the module that each lies in."""
    owners: dict[str, str] = {}
    for module in given.view.modules if given.view is not None else ():
        for link in module.map.links:
            name = join(module.burn, link.burn) if given.layout == "burn" else join(module.torch, link.torch)
            if module.map.owner:
                owners[name] = f"Struct:{module.map.owner}"
    shown = [_in_module(snapshot, owners.get(snapshot.path)) for snapshot in given.snapshots]
    parts: dict[str, Sequence[str]] = {}
    if adapter.is_structural:
        snapshots = adapted(shown, adapter)
        by_owner: dict[str, list[str]] = {}
        for each in shown:
            by_owner.setdefault(each.path.rpartition(".")[0], []).extend(given.made_of[each.path])
        parts = {each.path: by_owner.get(each.path.rpartition(".")[0], []) for each in snapshots}
    else:
        snapshots = [adapter.adapt(each) for each in shown]
        parts = {each.path: given.made_of[old.path] for old, each in zip(shown, snapshots, strict=True)}
    untouched = len(snapshots) == len(shown) and all(a is b for a, b in zip(snapshots, shown, strict=True))
    if untouched and given.view is None and type(adapter) is not IdentityAdapter:
        raise ModelError(
            f"{type(adapter).__name__} goes by the modules, and nothing tells what they are",
            hint="like= a model or declaration, rules={pattern: kind}, or guess=True",
        )
    layout = given.layout if adapter.keeps_layout else adapter.gives_layout or given.layout
    return Translated(snapshots, layout, parts, given.view, given.guess, given.notes)


def _in_module(snapshot: TensorSnapshot, module_type: str | None) -> TensorSnapshot:
    return snapshot if module_type is None else snapshot.replace(container_stack=(module_type,))
