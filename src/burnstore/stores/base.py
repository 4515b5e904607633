"""Store: a fluent builder of a `Pipeline` with a place; it has no logic of its own.

The stages run in the order that `burnstore.pipeline.options` documents, whatever the order of the calls. ``keys`` and
``get_snapshot`` stop after names and indices: they see no filter, layout or adapter.

By default, loading a PyTorch file into a Burn model makes indices contiguous and leaves enum variants out of names, as
Burn models need it; a PyTorch model gets the names unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import BurnstoreError, ModelError, ReadError, located, spell_options
from ..formats.base import WriteOptions
from ..formats.registry import format_for_path
from ..io.gc_pause import gc_paused
from ..io.paths import as_path, with_options
from ..limits import Limits
from ..models.result import ApplyResult
from ..pipeline.ends import Input, input_of_file
from ..pipeline.load import load_input
from ..pipeline.names import name_tensors
from ..pipeline.options import (
    AdapterLike,
    FilterLike,
    Pipeline,
    RenameLike,
    RulesLike,
    as_adapter,
    as_filter,
    as_remapper,
)
from ..pipeline.save import SaveResult, plan_of, save_plan
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import ModuleAdapter
from ..transforms.filter import PathFilter, Predicate
from ..transforms.partition import Part, Partition
from ..transforms.patterns import compile_pattern
from ..transforms.remap import KeyRemapper, OnCollision

S = TypeVar("S", bound="Store")

_KEEP = '"torch"'  # such hints are about models of PyTorch
_METHODS = {
    "filter": "with_filter",
    "indices": "map_indices_contiguous",
    "indices_except": "map_indices_contiguous_except",
    "keep_layout": "layout",
    "rename": "remap",
    "top_level_key": "with_top_level_key",
}
"""The methods for options of other names."""


class Store:
    """A file or bytes in memory, with filters, renames and adapters around it.

    Methods that configure change the store and return it; `copy` branches. A setting made after a read takes effect at
    the next one.
    """

    format: str | None = None
    """The format that files must have; None takes any."""

    default_suffix: str | None = None
    """The suffix that a path without an extension gets while `auto_extension` is on."""

    def __init__(self) -> None:
        self.pipeline = Pipeline()
        """All options, see `Pipeline`; the methods below replace it."""
        self._to_adapter: ModuleAdapter | None = None
        self._metadata: dict[str, str] | None = None
        self._path: str | None = None
        self._data: bytes | bytearray | memoryview | None = None
        self._in_memory = False
        self._opened: Checkpoint | None = None
        self._snapshots: tuple[Checkpoint, Pipeline, dict[str, TensorSnapshot]] | None = None
        self._in_place = True
        self._device: Any = None  # None: torch's default device
        self._overwrite = False
        self._auto_extension = True
        self._zero_copy = False
        self._durable = True
        self._limits = Limits()

    # --- place

    @classmethod
    def from_file(cls: type[S], path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> S:
        """Return a store in this file, or in the one that a URL names, see `burnstore.open`."""
        store = cls()
        store._path = as_path(with_options(storage_options, path)[0])
        return store

    @classmethod
    def from_bytes(cls: type[S], data: bytes | bytearray | memoryview | None) -> S:
        """Return a store in memory: these bytes, or with None an empty one to save into (then see `get_bytes`)."""
        if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"expected bytes or None, got {type(data).__name__}")
        store = cls()
        store._in_memory = True
        store._data = data
        return store

    @classmethod
    def from_static(cls: type[S], data: bytes | bytearray | memoryview) -> S:
        """Return a store in bytes that never change; tensors share their memory (zero-copy is on)."""
        return cls.from_bytes(data).zero_copy(True)

    def copy(self: S) -> S:
        """Return an independent store with the same settings on the same file."""
        copied = type(self)()
        copied.__dict__.update(self.__dict__)
        copied._metadata = None if self._metadata is None else dict(self._metadata)
        return copied._reset()

    @property
    def path(self) -> str | None:
        """The file, with its extension added if need be; None for a store in memory."""
        if self._path is None or not self._auto_extension or self.default_suffix is None:
            return self._path
        return self._path if os.path.splitext(self._path)[1] else self._path + self.default_suffix

    # --- load, save, look

    def load(self, model: Any) -> ApplyResult:
        """Load the tensors into a model, and report the outcome for each.

        Raises LoadError if a tensor does not fit (unless ``validate(False)``), MissingTensorsError if a parameter has
        no tensor (unless ``allow_partial(True)``), LoadError if nothing would be loaded (unless ``allow_empty(True)``);
        the model is then unchanged. A model without parameters is loaded with a note, as Burn does.
        """
        how: dict[str, Any] = {"in_place": self._in_place, "device": self._device, "of_store": True}
        with self._spelled():
            return load_input(model, self._input(), self.pipeline, **how)

    apply_to = load

    def save(self, model: Any) -> SaveResult:
        """Save a model's tensors, and report what was written.

        SaveError if the filter leaves no tensor, or a file would be replaced by one without tensors, unless
        ``allow_empty(True)``. Otherwise a model without tensors is saved with a note, as Burn does.
        """
        with self._spelled():
            return self._save(model)

    def _save(self, model: Any) -> SaveResult:
        if self.pipeline.part is not None:
            raise ModelError(
                f"the store reads for {self.pipeline.part}: a part of a model would be saved as if it were all of it",
                path=self.path,
                hint="save each part with its own store, under its own name",
            )
        chosen = format_for_path(self.path or "", self.format)
        pipeline = self.pipeline.replace(adapter=None).replace(adapter=self._to_adapter)
        options = self._save_options()
        max_shard_size = options.pop("max_shard_size", None)
        with located(path=self.path), gc_paused():
            plan, metadata = plan_of(model, chosen, self._metadata_for, pipeline, options, with_settings=True)
        self._reset()
        how = WriteOptions(
            overwrite=self._overwrite,
            durable=self._durable,
            limits=self._limits,
            max_shard_size=max_shard_size,
            format_options=options,
        )
        if self._in_memory:
            result, self._data = save_plan(plan, None, chosen, metadata, how)
            return result
        assert self.path is not None
        return save_plan(plan, self.path, chosen, metadata, how)[0]

    collect_from = save

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted; renamed as a load would see them, not filtered."""
        return list(self._named())

    def get_all_snapshots(self) -> dict[str, TensorSnapshot]:
        """Return all tensors by name, sorted; renamed as a load would see them, not filtered, not adapted."""
        return dict(self._named())

    def get_snapshot(self, name: str) -> TensorSnapshot | None:
        """Return the tensor of this name; None if the file has no such tensor."""
        return self._named().get(name)

    get_tensor = get_snapshot
    get_all_tensors = get_all_snapshots

    def get_bytes(self) -> bytes:
        """Return the bytes of a store in memory, as given or saved."""
        if not self._in_memory or self._data is None:
            raise ReadError("No bytes available", path=self._path, hint="use from_bytes(None) and save into it first")
        return bytes(self._data)

    def open(self) -> Checkpoint:
        """Open the file itself, before any transform; the caller closes it."""
        source = self._data if self._in_memory else self.path
        if source is None:
            raise ReadError("No bytes to read from", hint="save into the store first, or pass bytes to from_bytes(...)")
        options = self._open_options()
        return open_checkpoint(source, format=self.format, zero_copy=self._zero_copy, limits=self._limits, **options)

    # --- which tensors

    def with_filter(self: S, filter: FilterLike) -> S:
        """Also load or save tensors that this filter matches, see `burnstore.load`."""
        return self._also(lambda criteria: criteria | as_filter(filter))

    filter = with_filter

    def with_regex(self: S, pattern: str | re.Pattern[str]) -> S:
        """Also load or save tensors in whose path this pattern is found."""
        return self._also(lambda criteria: criteria.with_regex(pattern))

    def with_regexes(self: S, patterns: Iterable[str | re.Pattern[str]]) -> S:
        """Also load or save tensors in whose path any of these patterns is found."""
        return self._also(lambda criteria: criteria.with_regexes(patterns))

    def with_full_path(self: S, path: str) -> S:
        """Also load or save the tensor of this path."""
        return self._also(lambda criteria: criteria.with_full_path(path))

    def with_full_paths(self: S, paths: Iterable[str]) -> S:
        """Also load or save the tensors of these paths."""
        return self._also(lambda criteria: criteria.with_full_paths(paths))

    def with_predicate(self: S, predicate: Predicate) -> S:
        """Also load or save tensors for which this function of path and containers is true."""
        return self._also(lambda criteria: criteria.with_predicate(predicate))

    def with_predicates(self: S, predicates: Iterable[Predicate]) -> S:
        """Also load or save tensors for which any of these functions is true."""
        return self._also(lambda criteria: criteria.with_predicates(predicates))

    def match_all(self: S) -> S:
        """Load or save all tensors; replaces earlier criteria."""
        return self._set(filter=PathFilter.all())

    def _also(self: S, add: Callable[[PathFilter], PathFilter]) -> S:
        criteria = self.pipeline.filter
        return self._set(filter=add(PathFilter() if criteria is None else criteria.copy()))

    # --- under which names

    def with_key_remapping(self: S, pattern: str | re.Pattern[str], replacement: str) -> S:
        """Rename: in every name of the file, replace what the pattern matches; rules apply in the order given."""
        remapper = self.pipeline.rename
        return self._set(
            rename=(KeyRemapper() if remapper is None else remapper.copy()).add_pattern(pattern, replacement)
        )

    with_remap_pattern = with_key_remapping

    def remap(self: S, rename: RenameLike) -> S:
        """Rename by these rules, after earlier ones; a mapping renames whole names simultaneously."""
        return self._set(rename=(self.pipeline.rename or KeyRemapper()) + as_remapper(rename))

    def on_collision(self: S, policy: OnCollision) -> S:
        """Set what happens when two tensors get one name.

        ``"error"`` (default), or keep the ``"first"`` or ``"last"``.
        """
        return self._set(on_collision=policy)

    def map_indices_contiguous(self: S, on: bool) -> S:
        """Number the indices in names 0, 1, 2 without gaps; done by default with PyTorch files for Burn models.

        A load is refused where the model has more entries at such a place than the file.
        """
        return self._set(indices=_flag("map_indices_contiguous", on))

    def map_indices_contiguous_except(self: S, pattern: str | re.Pattern[str]) -> S:
        """Leave the indices below prefixes in which this pattern is found unchanged; repeatable."""
        return self._set(indices_except=(*self.pipeline.indices_except, compile_pattern(pattern)))

    def skip_enum_variants(self: S, on: bool) -> S:
        """Leave the names of enum variants out of the model's paths."""
        return self._set(skip_enum_variants=_flag("skip_enum_variants", on))

    # --- in which form

    def with_from_adapter(self: S, adapter: AdapterLike) -> S:
        """Convert tensors with this adapter when loading."""
        return self._set(adapter=adapter)

    def with_to_adapter(self: S, adapter: AdapterLike) -> S:
        """Convert tensors with this adapter when saving."""
        self._to_adapter = as_adapter(adapter)
        return self

    def layout(self: S, layout: str) -> S:
        """Set the layout of the file: the one to read it in, if it does not state its own, or the one to write."""
        return self._set(layout=layout)

    def rules(self: S, rules: RulesLike) -> S:
        """Name the kinds of modules that the model does not state: a pattern found in their paths → kind."""
        return self._set(rules=rules)

    def cast(self: S, dtype: Any) -> S:
        """Convert floats to this dtype."""
        return self._set(cast=dtype)

    def for_rank(self: S, partition: Partition | Mapping[str | re.Pattern[str], Any], *, rank: int, world: int) -> S:
        """Load only the part of every tensor that belongs to this rank; the model has the shapes of the parts."""
        whole = Partition(partition) if isinstance(partition, Mapping) else partition
        return self._set(part=Part(whole, rank, world))

    def record_modules(self: S, on: bool) -> S:
        """Record the module kinds in a file whose layout differs from the model's (default)."""
        return self._set(record_modules=_flag("record_modules", on))

    # --- how

    def allow_partial(self: S, on: bool) -> S:
        """Allow parameters without a tensor."""
        return self._set(allow_partial=_flag("allow_partial", on))

    def validate(self: S, on: bool) -> S:
        """Raise if a tensor does not fit (default); otherwise such tensors are only reported."""
        return self._set(validate=_flag("validate", on))

    def strict(self: S, on: bool) -> S:
        """Raise also if the file has a tensor that the model does not take."""
        return self._set(strict=_flag("strict", on))

    def allow_empty(self: S, on: bool) -> S:
        """Allow a load or a save of no tensor at all, for example where a filter may match nothing."""
        return self._set(allow_empty=_flag("allow_empty", on))

    def in_place(self: S, on: bool) -> S:
        """Read large tensors directly into the memory of a torch model (default), after all checks have passed.

        If the disk fails at that moment, the error states that the model is partly loaded. ``in_place(False)`` reads
        everything before the model is changed.
        """
        self._in_place = _flag("in_place", on)
        return self

    def device(self: S, device: Any) -> S:
        """Materialize the tensors of a torch model that are on the meta device on this one (``"cuda"``, a
        torch.device).

        Tensors that have memory are filled where they are; a load is refused if that is on another device.
        """
        self._device = device
        return self

    def zero_copy(self: S, on: bool) -> S:
        """Share the memory of the file (mapped) or of the bytes instead of copying; arrays are then read-only."""
        self._zero_copy = _flag("zero_copy", on)
        return self._reset()

    def overwrite(self: S, on: bool) -> S:
        """Replace an existing file when saving; refused by default."""
        self._overwrite = _flag("overwrite", on)
        return self

    def durable(self: S, on: bool) -> S:
        """Wait until the bytes are on the disk (default)."""
        self._durable = _flag("durable", on)
        return self

    def auto_extension(self: S, on: bool) -> S:
        """Give a path without an extension the format's own (default), for saving and loading alike."""
        self._auto_extension = _flag("auto_extension", on)
        return self._reset()

    def limits(self: S, limits: Limits) -> S:
        """Set the bounds for one file."""
        if not isinstance(limits, Limits):
            raise TypeError(f"limits must be a Limits, got {type(limits).__name__}")
        self._limits = limits
        return self._reset()

    # --- for formats

    @contextmanager
    def _spelled(self) -> Iterator[None]:
        """Spell the hints of errors with the methods of this store."""
        try:
            yield
        except BurnstoreError as error:
            if error.hint is not None:
                error.hint = spell_options(error.hint, self._spell)
            raise

    def _spell(self, option: str, value: str) -> str | None:
        method = _METHODS.get(option, option)
        if method is None or not hasattr(type(self), method):
            return None
        return f".{method}({_KEEP if option == 'keep_layout' else value or '...'})"

    def _open_options(self) -> dict[str, Any]:
        return {}

    def _save_options(self) -> dict[str, Any]:
        return {}

    def _metadata_for(self, layout: str | None) -> Mapping[str, str] | None:
        """Return the metadata to write beside tensors of this layout (None: unstated); None for the format's own."""
        return self._metadata

    def _checkpoint(self) -> Checkpoint:
        """Return the file, opened once for all reads of the same bytes; a file that was replaced is opened again."""
        if self._opened is None or not self._opened.is_current():
            self._opened = self.open()
        return self._opened

    def _input(self) -> Input:
        return input_of_file(self._checkpoint())

    def _named(self) -> dict[str, TensorSnapshot]:
        """Return the file's tensors, sorted, under the names that a Burn model's would be matched with."""
        with self._spelled():
            return self._renamed(self._checkpoint())

    def _renamed(self, file: Checkpoint) -> dict[str, TensorSnapshot]:
        if self._snapshots is None or self._snapshots[0] is not file or self._snapshots[1] != self.pipeline:
            named = name_tensors(input_of_file(file), self.pipeline, None).snapshots
            ordered = {each.path: each for each in sorted(named, key=lambda found: found.path)}
            self._snapshots = (file, self.pipeline, ordered)
        return self._snapshots[2]

    def _set(self: S, **options: Any) -> S:
        self.pipeline = self.pipeline.replace(**options)
        return self

    def _reset(self: S) -> S:
        """Forget the open file, because a setting for reading it has changed."""
        self._opened = self._snapshots = None
        return self

    def __repr__(self) -> str:
        where = "in memory" if self._in_memory else repr(self.path)
        return f"<{type(self).__name__} {where}>"


def _flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value
