"""Metadata: the strings that every entry point writes beside tensors.

The metadata of a file states the layout of its tensors, if the format does not, and the modules that they belong to, if
they were converted. Metadata of sources is kept if all sources agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import DuplicateNameError, FormatError, located, printable
from ..formats.base import (
    LAYOUT_KEY,
    STAMPS,
    UNSTATED_LAYOUT,
    Format,
    HoldsScalars,
    ModelLayout,
    can_state_layouts,
    stamped_metadata,
    stated_layout,
    supports_metadata,
)
from ..models.recording import FORWARD_KEY
from ..tensor.note import Note
from ..transforms.layout import LAYOUTS, Layout
from .ends import Input
from .kinds import MODULES_KEY, RecordedModule, record_text, recorded_by, recorded_modules, renamed_modules
from .options import Pipeline
from .plan import Plan
from .stored import drop_config
from .unify import convertible

_STAMPS = (LAYOUT_KEY, *STAMPS)
"""Metadata keys by which a writer states format and layout; they do not survive a change of either."""


def written_layout(chosen: Format) -> Layout | None:
    """Return the layout in which a format writes models; None for the model's own."""
    own = chosen.layout if isinstance(chosen, ModelLayout) else None
    return next((known for known in LAYOUTS if known == own), None)


def checked_metadata(given: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """Return metadata of the caller; None removes an entry, and keys of burnstore's own are refused."""
    metadata = dict(given or {})
    for key, text in metadata.items():
        if not isinstance(key, str) or not (text is None or isinstance(text, str)):
            raise TypeError(
                f"metadata must map str to str, got {type(key).__name__} to {type(text).__name__} for {key!r}"
            )
        if key.startswith("burnstore."):
            raise ValueError(f"the metadata key {key!r} is reserved: it states what the file is")
    return metadata


def metadata_for_save(
    chosen: Format,
    plan: Plan,
    given: Mapping[str, str] | None,
    pipeline: Pipeline,
    options: Mapping[str, Any],
) -> dict[str, str]:
    """Return the metadata to write beside a model's tensors: the caller's or the format's own, and the layout."""
    if not supports_metadata(chosen):
        return _with_layout_of(plan, chosen, dict(given or {}))
    metadata = stamped_metadata(chosen, plan.layout or "burn", options) if given is None else dict(given)
    layout = convertible(plan.layout)
    if plan.is_converted and plan.view is not None and layout is not None and pipeline.record_modules:
        modules: Sequence[RecordedModule] | None = recorded_by(plan.view)
        if pipeline.rename is not None:
            modules = renamed_modules(modules or (), plan.renames, layout)
        if modules is not None:
            metadata[MODULES_KEY] = record_text(modules)
    return _with_layout_of(plan, chosen, metadata)


def with_layout(
    chosen: Format, metadata: Mapping[str, str] | None, layout: str | None, *, is_empty: bool = False
) -> tuple[Mapping[str, str] | None, str | None]:
    """Return metadata that states a layout, and the layout that a file with this metadata states.

    If the layout is unknown, metadata of the caller may state it; otherwise the file records that it is unknown. A file
    without tensors needs no statement. FormatError if files of the format cannot state the layout.
    """
    given = metadata or {}
    stated = stated_layout(chosen, given)
    is_given = LAYOUT_KEY in given or stated != stated_layout(chosen, {})
    if stated == layout or (layout is None and (is_empty or is_given)):
        return metadata, stated
    if not can_state_layouts(chosen):
        what = "that the layout is unknown" if layout is None else f"{layout}'s layout"
        own = written_layout(chosen)
        hint = "save .npz or .safetensors, which state layouts" + ("" if layout is None else ", or plain arrays")
        if layout is None and own is not None:
            hint = f'pass layout="{own}" if the tensors have it, or save .npz or .safetensors'
        raise FormatError(f"a file of the format {chosen.name} cannot state {what}", hint=hint)
    return {**given, LAYOUT_KEY: layout or UNSTATED_LAYOUT}, layout


def _with_layout_of(plan: Plan, chosen: Format, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata that states the layout of a plan; the plan then has the layout that the file states."""
    found, plan.layout = with_layout(chosen, metadata, plan.layout, is_empty=not plan.moves)
    return dict(found or {})


def metadata_of_named(
    chosen: Format, plan: Plan, given: Mapping[str, str] | None, options: Mapping[str, Any]
) -> Mapping[str, str] | None:
    """Return the metadata beside named tensors; a layout that is not stated is recorded as unknown."""
    found, plan.layout = with_layout(chosen, given, plan.layout, is_empty=not plan.moves)
    own = written_layout(chosen)
    if given is None and found is not None and own is not None and plan.layout is None:
        return {**stamped_metadata(chosen, own, options), **found}
    return found


def metadata_for_files(
    chosen: Format,
    sources: Sequence[Input],
    plan: Plan,
    given: Mapping[str, str | None],
    pipeline: Pipeline,
) -> dict[str, str]:
    """Return the metadata of a file that is made of others: what they agree on, and what is given (None removes).

    Keys that the sources disagree on are left out, with a note in the plan.
    """
    metadata, disputed = _agreed(sources)
    disputed.pop(FORWARD_KEY, None)
    if metadata.pop(FORWARD_KEY, None) is not None:
        left = "the recorded forward pass was left out: it belongs to the source's values"
        plan.notes.append(Note("metadata", left, FORWARD_KEY))
    layout = plan.layout
    if not supports_metadata(chosen):
        lost = [printable(key) for key in metadata if key not in _STAMPS and not key.startswith("burnstore.")]
        if lost:
            lack = f"{chosen.name} has no place for metadata"
            plan.notes.append(Note("metadata", f"{lack}, left out: {', '.join(lost)}"))
        return _with_layout_of(plan, chosen, {key: text for key, text in given.items() if text is not None})
    is_same = all(source.format == chosen.name and source.layout == layout for source in sources)
    if not is_same or any(key in disputed for key in _STAMPS):
        is_same = False
        for key in _STAMPS:
            metadata.pop(key, None)
        if convertible(layout) is not None and layout is not None:
            metadata.update(stamped_metadata(chosen, layout, {}))
    for key, text in given.items():
        metadata.pop(key, None)
        if text is not None:
            metadata[key] = text
    metadata = _with_layout_of(plan, chosen, metadata)
    _record_modules(metadata, sources, plan, pipeline)
    drop_config(metadata, plan)
    names = [printable(key) for key in disputed if key not in _STAMPS]
    if names:
        plan.notes.append(Note("metadata", f"metadata on which the sources differ was left out: {', '.join(names)}"))
    return metadata


def _agreed(sources: Sequence[Input]) -> tuple[dict[str, str], dict[str, None]]:
    """Return the metadata that no source contradicts, and the keys that one does."""
    metadata: dict[str, str] = {}
    disputed: dict[str, None] = {}
    for source in sources:
        names = {snapshot.path for snapshot in source.snapshots} if source.metadata else set()
        for key, text in source.metadata.items():
            if key in names and text in names:  # a second name of a tensor, which is written as a tie again
                continue
            if metadata.setdefault(key, text) != text:
                disputed[key] = None
    for key in disputed:
        del metadata[key]
    return metadata, disputed


def _record_modules(metadata: dict[str, str], sources: Sequence[Input], plan: Plan, pipeline: Pipeline) -> None:
    """Record the modules of a converted file, and keep the record of a copied one if its names allow it."""
    metadata.pop(MODULES_KEY, None)
    if plan.is_converted:
        if plan.view is not None and pipeline.record_modules and pipeline.adapter is None:
            metadata[MODULES_KEY] = record_text(recorded_by(plan.view, plan.counts))
        return
    merged = merged_record(sources)
    layout = convertible(plan.layout)
    if pipeline.recipe is not None or merged is None or layout is None or layout != plan.source_layout:
        return
    names = {origin.source: move.target for move in plan.moves for origin in move.origins if origin.source is not None}
    renamed = renamed_modules(merged, names, layout)
    if renamed is not None:
        metadata[MODULES_KEY] = record_text(renamed)


def merged_record(sources: Sequence[Input]) -> list[RecordedModule] | None:
    """Return the recorded modules of all sources; None if one records nothing or they contradict each other."""
    merged: dict[str, RecordedModule] = {}
    for source in sources:
        with located(path=source.name):
            recorded = recorded_modules(source.metadata)
        if recorded is None:
            return None
        for module in recorded:
            if merged.setdefault(module.torch, module) != module:
                return None
    return list(merged.values()) if merged else None


def scalars_of(sources: Sequence[Input], chosen: Format, notes: list[Note]) -> dict[str, Any]:
    """Return the scalars of the sources where the format has a place for them; otherwise note that they are lost."""
    scalars: dict[str, Any] = {}
    for source in sources:
        for name, value in source.scalars.items():
            if scalars.setdefault(name, value) != value:
                raise DuplicateNameError(f"two sources have different scalars named {name!r}", path=source.name)
    if scalars and not isinstance(chosen, HoldsScalars):
        notes.append(Note("metadata", f"{chosen.name} has no place for scalars, left out: {', '.join(scalars)}"))
        return {}
    return scalars
