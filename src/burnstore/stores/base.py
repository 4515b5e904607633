"""Store: where tensors are kept, and what happens to them on the way in and out.

The order of the stages is one, whatever the entry point:

    load   file → key remapping → contiguous indices → layout → matching with the model → filter → from-adapter
           → the part of a rank → model
    save   model → filter → layout → to-adapter → key remapping → file
    keys, get_snapshot, get_all_snapshots: file → key remapping → contiguous indices

A filter sees the model's paths and containers, a remapping the file's names. Where the layouts of file and model are
known and differ, the model is seen in the file's layout; an adapter that changes names or axes takes the place of that.
The part that a rank has is cut out last, along the axes that the model knows.

Unless the caller says otherwise, a file of PyTorch has its indices made contiguous and the names of enum variants left
out, as a Burn model needs it; into a PyTorch model its names go as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import ModelError, ReadError, located
from ..formats.registry import format_for_path, format_named
from ..io.gc_pause import gc_paused
from ..models.collect import collect_in
from ..models.layouts import checked_layout, recorded_counts
from ..models.result import ApplyResult
from ..pipeline.compile import LoadPlan, Stages, Target, match, target_of
from ..pipeline.execute import carry_out
from ..pipeline.gaps import ModelIndices, closed_for
from ..pipeline.options import Options
from ..saving import save, serialize, texts_beside
from ..tensor.snapshot import TensorSnapshot
from ..transforms.indices import contiguous_names
from ..transforms.layout import LAYOUTS, Layout
from ..transforms.remap import keep_distinct

S = TypeVar("S", bound="Store")


class Store(Options):
    """A file or bytes in memory, with filters, renames and adapters around it.

    Methods that configure change the store and return it; `copy` branches. What is configured after a read takes effect
    at the next one. Every option is also a keyword of `from_file` and its siblings (``from_file("model.bpk",
    allow_partial=True, regex=r"^encoder")``).
    """

    format: str | None = None
    """The format that files must have; None takes any."""

    default_suffix: str | None = None
    """What a path without an extension gets while `auto_extension` is on."""

    def __init__(self) -> None:
        super().__init__()
        self._path: str | None = None
        self._data: bytes | bytearray | memoryview | None = None
        self._in_memory = False
        self._opened: Checkpoint | None = None
        self._named: list[TensorSnapshot] | None = None

    # Where the bytes are

    @classmethod
    def from_file(cls: type[S], path: str | os.PathLike[str], **options: Any) -> S:
        """A store in this file."""
        store = cls()
        store._path = os.fspath(path)
        return store.configured(**options)

    @classmethod
    def from_bytes(cls: type[S], data: bytes | bytearray | memoryview | None, **options: Any) -> S:
        """A store in memory: these bytes, or with None an empty one to save into (`get_bytes` then has the bytes)."""
        if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"from_bytes takes bytes or None, not {type(data).__name__}")
        store = cls()
        store._in_memory = True
        store._data = data
        return store.configured(**options)

    @classmethod
    def from_static(cls: type[S], data: bytes | bytearray | memoryview, **options: Any) -> S:
        """A store in bytes that never change; tensors share their memory (zero-copy is on)."""
        return cls.from_bytes(data, **{"zero_copy": True, **options})

    def copy(self: S) -> S:
        """An independent store with the same settings on the same file."""
        copied = type(self)()
        copied.__dict__.update(self.__dict__)
        copied._filter = None if self._filter is None else self._filter.copy()
        copied._remapper = self._remapper.copy()
        copied._kept_prefixes = list(self._kept_prefixes)
        copied._metadata = None if self._metadata is None else dict(self._metadata)
        return copied._changed()

    # Doing it

    @property
    def path(self) -> str | None:
        """The file, its extension added if need be; None for a store in memory."""
        if self._path is None or not self._auto_extension or self.default_suffix is None:
            return self._path
        return self._path if os.path.splitext(self._path)[1] else self._path + self.default_suffix

    def load(self, model: Any) -> ApplyResult:
        """Load the tensors into a model, and say what became of each.

        Raises LoadError when a tensor does not fit (unless ``validate(False)``), MissingTensorsError when a parameter
        finds none (unless ``allow_partial(True)``); the model is then as it was.
        """
        with gc_paused():
            plan, _ = self.plan_for(self.target_of(model))
            return carry_out(plan, allow_partial=self._allow_partial, validate=self._validate, in_place=self._in_place)

    apply_to = load

    def target_of(self, model: Any) -> Target:
        """A model as the load of this store sees it."""
        target = target_of(model, skip_enum_variants=self._skips_enum_variants(), rules=self._rules)
        if self._device is not None:
            from ..models.torch.binding import materialize_on  # not at import: a caller that names a device has torch

            materialize_on(target.slots, self._device)
        return target

    def plan_for(self, target: Target) -> tuple[LoadPlan, dict[str, str]]:
        """What a load into this target will do, and under which names the file has its tensors; nothing is read."""
        named = self._named_for(target)
        plan = match(
            target,
            named.snapshots,
            Stages(self._filter, self._from_adapter, self._part),
            layout=self._layout_of_file(),
            recorded=recorded_counts(self._checkpoint().metadata),
            notes=[*self._checkpoint().notes, *named.notes],
        )
        return plan, named.originals

    def save(self, model: Any) -> None:
        """Save a model's tensors."""
        if self._part is not None:
            raise ModelError(
                f"the store reads for {self._part}, and would now hold a part of a model as if it were all of it",
                path=self.path,
                hint="save the parts with a store of their own, under names of their own",
            )
        chosen = format_for_path(self.path or "") if self.format is None else format_named(self.format)
        collected = collect_in(
            self._layout or getattr(chosen, "layout", None),
            model,
            self._filter,
            self._to_adapter,
            rules=self._rules,
            record_modules=self._record_modules,
            skip_enum_variants=bool(self._skip_enum_variants),
        )
        renamed, _ = self._remapper.remap(collected.snapshots, on_collision=self._on_collision)
        self._changed()
        texts = texts_beside(chosen, collected, self._texts(collected.layout), self._save_options())
        options: dict[str, Any] = {"metadata": texts, "limits": self._limits, **self._save_options()}
        if self._in_memory:
            self._data = serialize(renamed, format=self._write_format(), **options)
        else:
            assert self.path is not None
            save(renamed, self.path, format=self.format, overwrite=self._overwrite, durable=self._durable, **options)

    collect_from = save

    def keys(self) -> list[str]:
        """The names of all tensors, sorted; renamed as a load would see them, not filtered."""
        return sorted(snapshot.path for snapshot in self._snapshots())

    def get_all_snapshots(self) -> dict[str, TensorSnapshot]:
        """All tensors by name, sorted; renamed as a load would see them, not filtered, not adapted."""
        return {snapshot.path: snapshot for snapshot in sorted(self._snapshots(), key=lambda found: found.path)}

    def get_snapshot(self, name: str) -> TensorSnapshot | None:
        """The tensor of this name, None if there is none."""
        return self.get_all_snapshots().get(name)

    get_tensor = get_snapshot
    get_all_tensors = get_all_snapshots

    def get_bytes(self) -> bytes:
        """The bytes of a store in memory, as they were given or saved."""
        if not self._in_memory or self._data is None:
            raise ReadError("No bytes available", path=self._path, hint="use from_bytes(None) and save into it first")
        return bytes(self._data)

    def open(self) -> Checkpoint:
        """The file itself, before any transform; the caller closes it."""
        source = self._data if self._in_memory else self.path
        if source is None:
            raise ReadError("No bytes to read from", hint="save into the store first, or give from_bytes(...) some")
        options = self._open_options()
        return open_checkpoint(source, format=self.format, zero_copy=self._zero_copy, limits=self._limits, **options)

    def _open_options(self) -> dict[str, Any]:
        return {}

    def _save_options(self) -> dict[str, Any]:
        return {}

    def _texts(self, layout: Layout) -> Mapping[str, str] | None:
        """The texts to write beside tensors of this layout; None for the format's own."""
        return self._metadata

    def _write_format(self) -> str:
        if self.format is None:
            raise TypeError("a store in memory needs a format to save; take BurnpackStore, for example")
        return self.format

    def _checkpoint(self) -> Checkpoint:
        """The file, opened once for all reads."""
        if self._opened is None:
            self._opened = self.open()
        return self._opened

    def _snapshots(self) -> list[TensorSnapshot]:
        """The file's tensors under the names that a Burn model's would be matched with."""
        if self._named is None:
            renaming = self._remapper.remap_names(list(self._checkpoint()))
            names = renaming.names
            if self._contiguous or (self._contiguous is None and self._is_pytorch()):
                names = contiguous_names(names, self._keep()).names
            self._named = self._renamed(names, renaming.originals, []).snapshots
        return self._named

    def _named_for(self, target: Target) -> _Named:
        """The file's tensors under the names that the target's are matched with."""
        by_default = self._contiguous is None and self._is_pytorch() and target.layout == "burn"
        renaming = self._remapper.remap_names(list(self._checkpoint()))
        names, notes = renaming.names, _about(renaming.unmatched)
        if self._contiguous or by_default:
            indices = ModelIndices(slot.path for slot in target.slots)
            with located(path=self._checkpoint().path):
                closed, more = closed_for(names, indices, self._keep(), asked_for=not by_default)
            names, notes = closed.names, [*notes, *more]
        return self._renamed(names, renaming.originals, notes)

    def _renamed(self, names: list[str], originals: list[str], notes: list[str]) -> _Named:
        given = list(self._checkpoint().values())
        rows = keep_distinct(names, originals, self._on_collision)
        renamed = [given[row] if given[row].path == names[row] else given[row].with_path(names[row]) for row in rows]
        return _Named(renamed, {names[row]: originals[row] for row in rows}, notes)

    def _is_pytorch(self) -> bool:
        return self._checkpoint().format == "pytorch"

    def _skips_enum_variants(self) -> bool:
        return self._is_pytorch() if self._skip_enum_variants is None else self._skip_enum_variants

    def _layout_of_file(self) -> Layout | None:
        """The layout that the file's tensors have; None if nobody says, or it is one that is not known here."""
        if self._layout is not None:
            return self._layout
        said = self._checkpoint().layout
        return checked_layout(said) if said in LAYOUTS else None

    def _keep(self) -> Callable[[str], bool]:
        patterns = self._kept_prefixes
        return lambda prefix: any(pattern.search(prefix) for pattern in patterns)

    def _changed(self: S) -> S:
        self._opened = self._named = None
        return self

    def __repr__(self) -> str:
        where = "in memory" if self._in_memory else repr(self.path)
        return f"<{type(self).__name__} {where}>"


@dataclass(frozen=True, slots=True)
class _Named:
    """The tensors of a file under other names, the names that they have in the file, and what is to be said of it."""

    snapshots: list[TensorSnapshot]
    originals: dict[str, str]
    notes: list[str]


def _about(unmatched: list[str]) -> list[str]:
    return [f"the remapping {pattern!r} matched no tensor of the file" for pattern in unmatched]
