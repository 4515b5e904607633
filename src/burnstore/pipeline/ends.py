"""Ends: where tensors come from and where they go.

An `Input` has tensors by name: a file, a model, a mapping. A `Target` has slots for tensors: a model, a declaration, an
outline, or a file whose tensors are replaced. A format that is written is not a target, because it accepts any tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from ..checkpoint import Checkpoint
from ..errors import DuplicateNameError, ModelError, Ways, printable
from ..formats.base import LAYOUT_KEY, ModuleClass
from ..models.binding import Slot
from ..models.bindings import binding_for
from ..models.outline import Outline, outline_of
from ..tensor.data import Array, Shape, TensorData
from ..tensor.dtype import DType
from ..tensor.note import Note, as_note
from ..tensor.scalar import Scalar
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import ModuleAdapter
from ..transforms.layout import Layout
from ..transforms.view import LayoutView, module_tree, view_of_burn, view_of_torch
from .kinds import (
    RecordedModule,
    layout_of,
    recorded_modules,
    renamed_classes,
    renamed_modules,
    states_layout,
    view_of_model,
    view_of_record,
)
from .options import Pipeline
from .unify import convertible, unify

_RENAMED = (
    "transformers has other names in memory than in the files of some models: read the file with from_pretrained, "
    "and write the model with burnstore.save"
)


@dataclass(frozen=True, slots=True)
class Input:
    """Named tensors and what is known about them."""

    name: str
    snapshots: Sequence[TensorSnapshot]
    layout: str | None
    """The layout that the source states, which may be another framework's; None if it states none."""

    format: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    checkpoint: Checkpoint | None = None
    model: Any = None
    names: Mapping[str, str] = field(default_factory=dict)
    """The new name of every tensor by its name in the source, if they were renamed."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What a model has besides these tensors, each with the reason."""

    def __post_init__(self) -> None:
        """Refuse parts of tensors: every verb gets its tensors through an input, and needs them whole."""
        for snapshot in self.snapshots:
            if snapshot._facts is not None and snapshot._facts.piece is not None:
                raise snapshot._facts.piece.refusal(self.name, snapshot.path)

    @property
    def recorded(self) -> list[RecordedModule] | None:
        """The modules that the source records in its metadata; CorruptError if that is damaged.

        None also if a rename changes names within them.
        """
        found = recorded_modules(self.metadata)
        layout = convertible(self.layout)
        return renamed_modules(found, self.names, layout) if found and self.names and layout else found

    @property
    def classes(self) -> Mapping[str, ModuleClass]:
        """The classes of the modules, where the source is a model that was saved as an object.

        Empty also if a rename changes names within them.
        """
        found = {} if self.checkpoint is None else self.checkpoint.classes
        return (renamed_classes(found, self.names) or {}) if found and self.names else found

    def layout_given(self, given: Layout | None, notes: list[Note], adapter: ModuleAdapter | None = None) -> str | None:
        """Return the layout of the source: the given one, or the one it states; a contradiction is refused or noted.

        An adapter that takes one layout gives it, too.
        """
        by = f'layout="{given}"'
        if given is None and adapter is not None and adapter.takes_layout is not None:
            given, by = adapter.takes_layout, f"{type(adapter).__name__}, which takes it"
        if given is None or self.layout in (None, given):
            return given or self.layout
        stated = f"{printable(self.name)} states {self.layout}'s layout"
        if LAYOUT_KEY in self.metadata or self.recorded:
            raise ModelError(
                f"{by} contradicts the source: {stated} in its metadata",
                hint=Ways(
                    "leave layout= out", f'pass target_layout="{given}" to choose the layout that is written', lead=""
                ),
            )
        notes.append(Note("layout", f"{stated} by its format; read as {given}'s, because of {by}", self.name))
        return given


def with_layouts_given(inputs: Sequence[Input], given: Layout | None, notes: list[Note]) -> list[Input]:
    """Return inputs with the given layout where they state none; if all state one, one of them must be the given.

    The layout of a live model is no statement of a file: nothing replaces it.
    """
    if given is None:
        return list(inputs)
    stated = {source.layout for source in inputs if source.model is None}
    found = []
    for source in inputs:
        if source.layout is None:
            found.append(replace(source, layout=given))
        elif source.model is not None or (stated & {None, given} and convertible(source.layout)):
            found.append(source)
        else:
            found.append(replace(source, layout=source.layout_given(given, notes)))
    return found


def input_of_file(file: Checkpoint, *, own_names: bool = False) -> Input:
    """Return an open file as an input; a GGUF file under the names of its model, or with ``own_names`` its own."""
    layout = file.layout
    metadata, notes = file.metadata, list(map(as_note, file.notes))
    snapshots: Sequence[TensorSnapshot] = list(file.values())
    if file.format == "gguf":
        from .gguf import transformers_names, typed_metadata, untranslated_note  # not at import: few files need it

        metadata = typed_metadata(file)
        translated = None if own_names else transformers_names(file)
        if translated is not None:
            snapshots, more = translated
            layout, notes = "torch", notes + more
        elif not own_names:
            notes += untranslated_note(file)
    return Input(file.path, snapshots, layout, file.format, metadata, file.scalars, notes, checkpoint=file)


def input_of_snapshots(name: str, snapshots: Sequence[TensorSnapshot], given: Layout | None = None) -> Input:
    """Return named tensors as an input, in the layout that all of them state or that the caller gives.

    ModelError if they state different layouts, or another one than the given.
    """
    layouts: dict[str | None, str] = {}
    for snapshot in snapshots:
        layouts.setdefault(snapshot._layout, snapshot._path)
    if given is not None:
        other = next((layout for layout in layouts if layout not in (None, given)), None)
        if other is not None:
            raise ModelError(
                f'layout="{given}" contradicts the tensor, which has {other}\'s layout',
                tensor=layouts[other],
                hint="save the model or convert the file that it is from, which converts the layout",
            )
        return Input(name, snapshots, given)
    met = unify(((path, layout) for layout, path in layouts.items()), "write")
    return Input(name, snapshots, met.layout, notes=met.notes)


UNKNOWN_LAYOUT = "layout unknown: the file does not state it"


def layout_evidence(file: Checkpoint, given: Layout | None) -> str | None:
    """Return what states the layout of a file; None if nothing does."""
    metadata = file.metadata
    if given is not None:
        return f"layout {given}: given by the caller"
    if LAYOUT_KEY in metadata:
        return f"layout {file.layout or 'unknown'}: the metadata has {LAYOUT_KEY}={metadata[LAYOUT_KEY]}"
    if file.format == "safetensors" and file.layout is not None:
        key = "producer" if file.layout == "burn" and "producer" in metadata else "format"
        return f"layout {file.layout}: the metadata has {key}={metadata.get(key, '')}"
    if file.format == "model":
        return None if file.layout is None else f"layout {file.layout}: the model has it"
    return None if file.layout is None else f"layout {file.layout}: {file.format} files have it"


@dataclass(frozen=True, slots=True)
class Target:
    """Slots for tensors, their layout (None: that of the source), and their view in the other layout.

    ``view`` is called with the names of the tensors that the source has; None if it has this layout, too.
    """

    slots: Sequence[Slot]
    layout: str | None
    view: Callable[[Iterable[str] | None], LayoutView]
    name: str = ""
    full_paths: Mapping[str, str] = field(default_factory=dict)
    """The paths with enum variants of slots whose paths are matched without them."""

    is_whole: bool = True
    """Whether the source must have every tensor of it."""

    notes: Sequence[Note] = ()
    states_layout: Callable[[], bool] = lambda: True
    """Return whether the slots have a layout; arrays in dicts and lists take tensors of any."""

    hint: str | None = None
    """What to do if a source has other names."""

    is_outline: bool = False
    """Whether it is the outline of a Burn model, which loads floats of its own dtypes only."""

    fills: bool = False
    """Whether its values stand for what the source lacks."""

    def meets(self, source: Input, layout: str | None) -> list[Note]:
        """Refuse tensors of another framework's layout, which cannot be converted; plain arrays take them, noted."""
        if self.layout is None or layout is None or convertible(layout) is not None:
            return []
        if self.states_layout():
            unify([(source.name, layout), (self.name, self.layout)], "load")
        text = f"{printable(source.name)} has {printable(layout)}'s layout: names and axes are unchanged"
        return [Note("layout", text, source.name)]

    def lacks(self, path: str) -> ModelError:
        """Return the error about a tensor of a source that has no place here."""
        hint = self.hint or Ways(
            "leave it out with filter=", "give it the name that it has there with rename=", lead=""
        )
        return ModelError(f"{self.name}, given as like, has no such tensor", tensor=path, hint=hint)


def target_of_model(model: Any, *, skip_enum_variants: bool = False, rules: Mapping[str, str] | None = None) -> Target:
    """Return a model as a target; DuplicateNameError if two of its tensors have one path."""
    binding = binding_for(model)
    slots = list(binding.walk(model, skip_enum_variants=skip_enum_variants))
    check_distinct(slots)
    notes = getattr(binding, "load_notes", lambda model: ())(model)

    def view(present: Iterable[str] | None) -> LayoutView:
        return view_of_model(model, slots, skip_enum_variants=skip_enum_variants, rules=rules, present=present)

    hint = _RENAMED if type(model).__module__.startswith("transformers.") else None
    is_stated = partial(states_layout, model)
    return Target(slots, layout_of(model), view, type(model).__name__, notes=notes, states_layout=is_stated, hint=hint)


def with_full_paths(target: Target, model: Any) -> Target:
    """Return a target that was matched without enum variants with the paths that a file of the model has."""
    full = [slot.path for slot in binding_for(model).walk(model)]
    paths = {slot.path: path for slot, path in zip(target.slots, full, strict=True) if slot.path != path}
    return replace(target, full_paths=paths)


def check_distinct(slots: Sequence[Slot]) -> None:
    """Raise DuplicateNameError if two different tensors of a model have the same path."""
    if len({slot.path for slot in slots}) < len(slots):
        by_path = {slot.path: slot for slot in slots}
        for slot in slots:
            if slot.identity() != by_path[slot.path].identity():
                raise DuplicateNameError("two tensors of the model have this path", tensor=slot.path)


class FileSlot:
    """The place of one tensor in a file; tensors are matched with it, and never assigned."""

    __slots__ = ("_held", "container_stack", "path")

    keeps_dtype = True
    fixed = True

    def __init__(self, held: TensorSnapshot) -> None:
        self._held = held
        self.path = held.path
        self.container_stack = held.container_stack

    @property
    def shape(self) -> Shape:
        return self._held.shape

    @property
    def dtype(self) -> DType:
        return self._held.dtype

    def snapshot(self) -> TensorSnapshot:
        return self._held

    def identity(self) -> int:
        return id(self)

    def buffer(self) -> None:
        return None

    def check_fill(self, value: Array | TensorData) -> NoReturn:
        raise ModelError("cannot load into a file", tensor=self.path, hint="use burnstore.convert to write another one")

    def assign(self, value: Array | TensorData, param_id: int | None, *, fill: bool = False) -> None:
        self.check_fill(value)

    def filled(self, param_id: int | None) -> None:
        return None


def target_of_file(file: Checkpoint, source: Input, pipeline: Pipeline) -> Target:
    """Return the tensors of an open file as slots for those of a source.

    Where the two layouts differ, the kinds of modules come from rules, or from the record of either file.
    """
    layout = file.layout
    outline = outline_of(file.metadata)
    if outline is not None:
        return _target_of_outline(file, outline, source, pipeline)
    shapes = {name: file[name].shape for name in file}
    return Target(
        [FileSlot(each) for each in file.values()],
        layout,
        partial(_view_of_file, file, layout, shapes, source, pipeline),
        file.path,
    )


def _target_of_outline(file: Checkpoint, outline: Outline, source: Input, pipeline: Pipeline) -> Target:
    """Return the tensors of a Burn model's outline as slots; as in Burn, their names have no enum variants."""
    skip = pipeline.skip_enum_variants
    if skip is None:  # a source or rules may name the variants all the same
        named = {each.path for each in source.snapshots}
        is_whole = pipeline.recipe is not None and pipeline.recipe.target_layout is not None
        skip = not is_whole and not any(name in named for name in file if outline.without_variants(name) != name)
    short = {name: outline.without_variants(name) if skip else name for name in file}
    kinds = {outline.without_variants(path) if skip else path: kind for path, kind in outline.kinds.items()}
    slots = [FileSlot(each.with_path(short[each.path])) for each in file.values()]
    check_distinct(slots)

    def view(present: Iterable[str] | None) -> LayoutView:
        return view_of_burn(module_tree({slot.path: slot.shape for slot in slots}, kinds), present)

    full_paths = {path: name for name, path in short.items() if path != name}
    return Target(slots, "burn", view, file.path, full_paths, is_outline=True)


def _view_of_file(
    file: Checkpoint,
    stated: str | None,
    shapes: Mapping[str, Shape],
    source: Input,
    pipeline: Pipeline,
    present: Iterable[str] | None,
) -> LayoutView:
    from .kinds import kinds_by_rules

    layout = convertible(stated)
    assert layout is not None  # a file of another layout, or an unknown one, is never viewed in another
    if pipeline.rules is not None:
        root = module_tree(shapes, kinds_by_rules(shapes, pipeline.rules, layout))
        return view_of_torch(root, is_declared=False) if layout == "torch" else view_of_burn(root, present)
    recorded = recorded_modules(file.metadata)
    if recorded is not None:
        return view_of_record(recorded, shapes, layout)
    recorded, own = source.recorded, convertible(pipeline.layout or source.layout)
    if recorded is not None and own is not None:
        return view_of_record(recorded, {each.path: each.shape for each in source.snapshots}, own)
    raise ModelError(
        f"the file has {layout}'s layout, the source {own}'s, and neither records its modules",
        path=file.path,
        hint=Ways("rules={pattern: kind}", "a model instead of a file"),
    )
