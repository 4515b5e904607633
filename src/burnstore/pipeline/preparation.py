"""Preparation: what is to be written of some open files, and what is to be said beside it; nothing is read yet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checkpoint import Checkpoint
from ..errors import DuplicateNameError, ModelError, located
from ..formats.base import LAYOUT_KEY, Format
from ..models.layouts import MODULES_KEY, checked_layout, record_of, recorded_modules
from ..tensor.snapshot import TensorSnapshot
from ..transforms.layout import LAYOUTS, Layout
from .recipe import Recipe
from .translation import Translated, translate


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversion that was prepared: what is to be written, and how it came to be."""

    snapshots: list[TensorSnapshot]
    texts: dict[str, str]
    options: dict[str, Any]
    source_layout: Layout | None
    translated: Translated
    old_names: Mapping[str, str]
    notes: list[str]


def prepare(sources: Sequence[Checkpoint], recipe: Recipe, chosen: Format) -> Prepared:
    """What the recipe makes of the sources' tensors, for a file of this format.

    DuplicateNameError if two sources have a tensor of one name; ModelError where something is not known or does not
    fit.
    """
    notes = [note for source in sources for note in source.notes]
    with located(path=sources[0].path):
        told = _layout_of(sources, recipe)
        wanted = told if recipe.keep_layout else _wanted(chosen, recipe, told)
        texts = _common_texts(sources, notes)
        tensors, old_names = recipe.renamed(recipe.filtered(_gathered(sources)))
        translated = translate(tensors, told, wanted, texts, recipe)
        snapshots = recipe.casted(translated.snapshots)
        written = _kept_texts(chosen, sources, texts, translated, recipe)
        options = dict(recipe.options)
        _keep_scalars(sources, chosen, options, notes)
    return Prepared(snapshots, written, options, told, translated, old_names, [*notes, *translated.notes])


def _known(layout: str | None) -> Layout | None:
    return checked_layout(layout) if layout in LAYOUTS else None


def _wanted(chosen: Format, recipe: Recipe, told: Layout | None) -> Layout | None:
    if recipe.layout is not None:
        return checked_layout(recipe.layout)
    return _known(getattr(chosen, "layout", None) or told)


def _layout_of(sources: Sequence[Checkpoint], recipe: Recipe) -> Layout | None:
    if recipe.source_layout is not None:
        return checked_layout(recipe.source_layout)
    said = {source.path: _known(source.layout) for source in sources}
    if len(set(said.values())) > 1:
        told = ", ".join(f"{path} {layout or 'none'}" for path, layout in said.items())
        raise ModelError(
            f"the sources do not have one layout: {told}",
            hint='convert each by itself first, or pass source_layout="torch" or "burn" if all are of that',
        )
    return next(iter(said.values()))


def _common_texts(sources: Sequence[Checkpoint], notes: list[str]) -> dict[str, str]:
    """The texts that no source contradicts; a note for each of the others."""
    texts: dict[str, str] = {}
    differing: dict[str, None] = {}
    for source in sources:
        for key, text in source.metadata.items():
            if texts.setdefault(key, text) != text:
                differing[key] = None
    merged = _merged_records(sources) if MODULES_KEY in differing else None
    if merged is not None:
        texts[MODULES_KEY] = merged
        del differing[MODULES_KEY]
    for key in differing:
        del texts[key]
        notes.append(f"the sources differ in the text {key!r}, so it is left out")
    return texts


def _merged_records(sources: Sequence[Checkpoint]) -> str | None:
    """What all sources record of their modules, as one record; None where they contradict each other."""
    merged: dict[str, Any] = {}
    for source in sources:
        with located(path=source.path):
            recorded_modules(source.metadata)  # refuses one that makes no sense
        for path, said in json.loads(source.metadata.get(MODULES_KEY, "{}")).items():
            if merged.setdefault(path, said) != said:
                return None
    return json.dumps(merged, separators=(",", ":"), ensure_ascii=False)


def _kept_texts(
    chosen: Format, sources: Sequence[Checkpoint], given: Mapping[str, str], translated: Translated, recipe: Recipe
) -> dict[str, str]:
    """The sources' texts and those asked for, with those that say format, layout and modules as the target's are."""
    texts = dict(given)
    layout = translated.layout
    stamp = getattr(chosen, "stamp", None)
    said_layout = getattr(chosen, "said_layout", None)
    same = all(source.format == chosen.name and source.layout == layout for source in sources)
    if not same:
        for key in (LAYOUT_KEY, "format", "producer", "version"):
            texts.pop(key, None)
        if stamp is not None and layout is not None:
            texts.update(stamp(layout))
    for key, text in recipe.metadata.items():
        texts.pop(key, None)
        if text is not None:
            texts[key] = text
    said = texts.get(LAYOUT_KEY) if said_layout is None else said_layout(texts)
    if said != layout and not (same and not recipe.metadata):
        texts[LAYOUT_KEY] = layout or "unknown"
    turned = any(source.layout != layout for source in sources)
    if turned or recipe.rename:
        texts.pop(MODULES_KEY, None)
    if turned and translated.view is not None and recipe.record_modules and recipe.adapter is None:
        texts[MODULES_KEY] = record_of(translated.view)
    return texts


def _keep_scalars(sources: Sequence[Checkpoint], chosen: Format, options: dict[str, Any], notes: list[str]) -> None:
    """The numbers beside the tensors go along where the format has a place for them; a note where it has not."""
    scalars: dict[str, Any] = {}
    for source in sources:
        for name, value in source.scalars.items():
            if scalars.setdefault(name, value) != value:
                raise DuplicateNameError(f"two sources have another number of the name {name!r}", path=source.path)
    if scalars and chosen.name == "burnpack":
        options.setdefault("scalars", scalars)
    elif scalars:
        notes.append(f"{chosen.name} has no place for the numbers beside the tensors, left out: {', '.join(scalars)}")


def _gathered(sources: Sequence[Checkpoint]) -> list[TensorSnapshot]:
    owners: dict[str, str] = {}
    for source in sources:
        for name in source:
            if name in owners:
                raise DuplicateNameError(
                    f"it lies in {owners[name]} and in {source.path}",
                    tensor=name,
                    hint="convert one of them, leave tensors out with filter=, or use merge, which chooses or averages",
                )
            owners[name] = source.path
    return [tensor for source in sources for tensor in source.values()]
