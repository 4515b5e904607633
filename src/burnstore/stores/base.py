"""Store: where tensors are kept, and what happens to them on the way in and out.

The order of the stages is one, whatever the entry point:

    load   file → key remapping → contiguous indices → layout → matching with the model → filter → from-adapter → model
    save   model → filter → layout → to-adapter → key remapping → file
    keys, get_snapshot, get_all_snapshots: file → key remapping → contiguous indices

A filter sees the model's paths and containers, a remapping the file's names. Where the layouts of file and model are
known and differ, the model is seen in the file's layout; an adapter that changes names or axes takes the place of that.

Unless the caller says otherwise, a file of PyTorch has its indices made contiguous and the names of enum variants left
out, as a Burn model needs it; into a PyTorch model its names go as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import ReadError, located
from ..formats.registry import format_for_path, format_named
from ..limits import Limits
from ..modules.apply import apply_noting
from ..modules.collect import collect_in
from ..modules.layouts import Rules, checked_layout, layout_of, recorded_counts
from ..modules.result import ApplyResult
from ..saving import save, serialize, texts_beside
from ..snapshot import TensorSnapshot
from ..transforms.adapters import ModuleAdapter
from ..transforms.filter import PathFilter, Predicate
from ..transforms.indices import contiguous_names
from ..transforms.layout import LAYOUTS, Layout
from ..transforms.patterns import compile_pattern
from ..transforms.remap import KeyRemapper, OnCollision, keep_distinct
from .gaps import ModelIndices, closed_for

S = TypeVar("S", bound="Store")


class Store:
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
        self._path: str | None = None
        self._data: bytes | bytearray | memoryview | None = None
        self._in_memory = False
        self._filter: PathFilter | None = None
        self._remapper = KeyRemapper()
        self._on_collision: OnCollision = "error"
        self._contiguous: bool | None = None  # None: as the format of the file and the model's layout want it
        self._kept_prefixes: list[re.Pattern[str]] = []
        self._from_adapter: ModuleAdapter | None = None
        self._to_adapter: ModuleAdapter | None = None
        self._layout: Layout | None = None
        self._rules: Rules | None = None
        self._record_modules = True
        self._metadata: dict[str, str] | None = None
        self._allow_partial = False
        self._validate = True
        self._in_place = True
        self._skip_enum_variants: bool | None = None  # None: as the format of the file wants it
        self._overwrite = False
        self._auto_extension = True
        self._zero_copy = False
        self._durable = True
        self._limits = Limits()
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

    def configured(self: S, **options: Any) -> S:
        """The store with these options set, each by the name of its method (``regex`` for ``with_regex`` and so on)."""
        for name, value in options.items():
            method = _KEYWORDS.get(name)
            if method is None or not hasattr(self, method):
                raise TypeError(f"{type(self).__name__} has no option {name!r}; there are: {', '.join(_KEYWORDS)}")
            if isinstance(value, Mapping) and method in ("metadata", "with_key_remapping"):
                for key, text in value.items():
                    getattr(self, method)(key, text)
            else:
                getattr(self, method)(value)
        return self

    def copy(self: S) -> S:
        """An independent store with the same settings on the same file."""
        copied = type(self)()
        copied.__dict__.update(self.__dict__)
        copied._filter = None if self._filter is None else self._filter.copy()
        copied._remapper = self._remapper.copy()
        copied._kept_prefixes = list(self._kept_prefixes)
        copied._metadata = None if self._metadata is None else dict(self._metadata)
        return copied._changed()

    # Which tensors

    def with_filter(self: S, filter: PathFilter) -> S:
        """Only tensors that this filter matches; replaces earlier criteria."""
        if not isinstance(filter, PathFilter):
            raise TypeError(f"a filter is a PathFilter, not {type(filter).__name__}")
        self._filter = filter
        return self

    filter = with_filter

    def with_regex(self: S, pattern: str | re.Pattern[str]) -> S:
        """Also tensors in whose path this pattern is found."""
        self._criteria().with_regex(pattern)
        return self

    def with_regexes(self: S, patterns: Iterable[str | re.Pattern[str]]) -> S:
        """Also tensors in whose path any of these patterns is found."""
        self._criteria().with_regexes(patterns)
        return self

    def with_full_path(self: S, path: str) -> S:
        """Also the tensor of this path."""
        self._criteria().with_full_path(path)
        return self

    def with_full_paths(self: S, paths: Iterable[str]) -> S:
        """Also the tensors of these paths."""
        self._criteria().with_full_paths(paths)
        return self

    def with_predicate(self: S, predicate: Predicate) -> S:
        """Also tensors that this function of path and containers says True to."""
        self._criteria().with_predicate(predicate)
        return self

    def with_predicates(self: S, predicates: Iterable[Predicate]) -> S:
        """Also tensors that any of these functions says True to."""
        self._criteria().with_predicates(predicates)
        return self

    def match_all(self: S) -> S:
        """All tensors; replaces earlier criteria."""
        self._filter = PathFilter.all()
        return self

    def _criteria(self) -> PathFilter:
        # A filter that the caller handed in stays the caller's: criteria are added to a copy.
        self._filter = PathFilter() if self._filter is None else self._filter.copy()
        return self._filter

    # Under which names

    def with_key_remapping(self: S, pattern: str | re.Pattern[str], replacement: str) -> S:
        """Rename: in every name of the file, replace what the pattern matches."""
        self._remapper = self._remapper.copy().add_pattern(pattern, replacement)
        return self._changed()

    with_remap_pattern = with_key_remapping

    def remap(self: S, remapper: KeyRemapper | Mapping[str, str]) -> S:
        """Rename by these rules; replaces earlier ones. A mapping renames whole names."""
        if isinstance(remapper, Mapping):
            remapper = KeyRemapper.from_dict(remapper)
        if not isinstance(remapper, KeyRemapper):
            raise TypeError(f"remap takes a KeyRemapper or a mapping of names, not {type(remapper).__name__}")
        self._remapper = remapper.copy()
        return self._changed()

    def on_collision(self: S, policy: OnCollision) -> S:
        """What to do when two tensors get one name: ``"error"`` (default), or keep the ``"first"`` or ``"last"``."""
        keep_distinct((), (), policy)
        self._on_collision = policy
        return self._changed()

    def map_indices_contiguous(self: S, on: bool) -> S:
        """Number the indices in names 0, 1, 2 without gaps; by default done with PyTorch's files for Burn's models.

        A load is refused where the model has more entries at such a place than the file: see `burnstore.stores.gaps`.
        """
        self._contiguous = _bool(on, "map_indices_contiguous")
        return self._changed()

    def map_indices_contiguous_except(self: S, pattern: str | re.Pattern[str]) -> S:
        """Leave the indices below prefixes in which this pattern is found as they are; repeatable."""
        self._kept_prefixes = [*self._kept_prefixes, compile_pattern(pattern)]
        return self._changed()

    def skip_enum_variants(self: S, on: bool) -> S:
        """Leave the names of enum variants out of the model's paths."""
        self._skip_enum_variants = _bool(on, "skip_enum_variants")
        return self

    # In which form

    def with_from_adapter(self: S, adapter: ModuleAdapter) -> S:
        """Bring tensors into the model's form with this adapter when loading."""
        self._from_adapter = _adapter(adapter)
        return self

    def with_to_adapter(self: S, adapter: ModuleAdapter) -> S:
        """Bring tensors into the file's form with this adapter when saving."""
        self._to_adapter = _adapter(adapter)
        return self

    def layout(self: S, layout: str) -> S:
        """The layout that the file has, where it does not say so itself or says it wrongly, or that it is to get."""
        self._layout = checked_layout(layout)
        return self

    def rules(self: S, rules: Rules) -> S:
        """Name the kinds of modules that the model does not tell: a pattern that is found in their paths → kind."""
        if not isinstance(rules, Mapping):
            raise TypeError(f"rules map patterns to kinds of modules, they cannot be a {type(rules).__name__}")
        self._rules = dict(rules)
        return self

    def record_modules(self: S, on: bool) -> S:
        """Let a file that is not in the model's own layout say what the modules are (default)."""
        self._record_modules = _bool(on, "record_modules")
        return self

    # How

    def allow_partial(self: S, on: bool) -> S:
        """Tolerate parameters that find no tensor."""
        self._allow_partial = _bool(on, "allow_partial")
        return self

    def validate(self: S, on: bool) -> S:
        """Raise when a tensor does not fit (default); otherwise such tensors are only reported."""
        self._validate = _bool(on, "validate")
        return self

    def in_place(self: S, on: bool) -> S:
        """Read large tensors straight into the memory of a torch model (default), once all else was found to fit.

        A disk that fails just then leaves a model that is partly loaded, and the error says so. Without it everything
        is read into memory of its own before the model is changed.
        """
        self._in_place = _bool(on, "in_place")
        return self

    def zero_copy(self: S, on: bool) -> S:
        """Share the memory of the file (mapped) or of the bytes instead of copying; arrays are then read-only."""
        self._zero_copy = _bool(on, "zero_copy")
        return self._changed()

    def overwrite(self: S, on: bool) -> S:
        """Replace an existing file when saving; by default it is refused."""
        self._overwrite = _bool(on, "overwrite")
        return self

    def durable(self: S, on: bool) -> S:
        """Wait until the bytes are on the disk (default)."""
        self._durable = _bool(on, "durable")
        return self

    def auto_extension(self: S, on: bool) -> S:
        """Give a path without an extension the format's own (default), for saving and loading alike."""
        self._auto_extension = _bool(on, "auto_extension")
        return self._changed()

    def limits(self: S, limits: Limits) -> S:
        """What one file may ask for."""
        if not isinstance(limits, Limits):
            raise TypeError(f"limits is a Limits, not {type(limits).__name__}")
        self._limits = limits
        return self._changed()

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
        snapshots, notes = self._snapshots_for(model)
        return apply_noting(
            [*self._checkpoint().notes, *notes],
            model,
            snapshots,
            self._filter,
            self._from_adapter,
            layout=self._layout_of_file(),
            rules=self._rules,
            recorded=recorded_counts(self._checkpoint().metadata),
            skip_enum_variants=self._skips_enum_variants(),
            allow_partial=self._allow_partial,
            validate=self._validate,
            in_place=self._in_place,
        )

    apply_to = load

    def save(self, model: Any) -> None:
        """Save a model's tensors."""
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
            self._named = self._renamed(names, renaming.originals)
        return self._named

    def _snapshots_for(self, model: Any) -> tuple[list[TensorSnapshot], list[str]]:
        """The file's tensors under the names that this model's are matched with, and what is to be said about them."""
        by_default = self._contiguous is None and self._is_pytorch() and layout_of(model) == "burn"
        renaming = self._remapper.remap_names(list(self._checkpoint()))
        names, notes = renaming.names, _about(renaming.unmatched)
        if self._contiguous or by_default:
            indices = ModelIndices(model, skip_enum_variants=self._skips_enum_variants())
            with located(path=self._checkpoint().path):
                closed, more = closed_for(names, indices, self._keep(), asked_for=not by_default)
            names, notes = closed.names, [*notes, *more]
        return self._renamed(names, renaming.originals), notes

    def _renamed(self, names: list[str], originals: list[str]) -> list[TensorSnapshot]:
        given = list(self._checkpoint().values())
        rows = keep_distinct(names, originals, self._on_collision)
        return [given[row] if given[row].path == names[row] else given[row].with_path(names[row]) for row in rows]

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


_KEYWORDS = {
    "filter": "with_filter",
    "regex": "with_regex",
    "regexes": "with_regexes",
    "full_path": "with_full_path",
    "full_paths": "with_full_paths",
    "predicate": "with_predicate",
    "predicates": "with_predicates",
    "key_remapping": "with_key_remapping",
    "remap": "remap",
    "on_collision": "on_collision",
    "map_indices_contiguous": "map_indices_contiguous",
    "map_indices_contiguous_except": "map_indices_contiguous_except",
    "skip_enum_variants": "skip_enum_variants",
    "from_adapter": "with_from_adapter",
    "to_adapter": "with_to_adapter",
    "layout": "layout",
    "rules": "rules",
    "record_modules": "record_modules",
    "metadata": "metadata",
    "allow_partial": "allow_partial",
    "validate": "validate",
    "in_place": "in_place",
    "zero_copy": "zero_copy",
    "overwrite": "overwrite",
    "durable": "durable",
    "auto_extension": "auto_extension",
    "limits": "limits",
    "top_level_key": "with_top_level_key",
    "max_shard_size": "max_shard_size",
    "burn_version": "burn_version",
}


def _about(unmatched: list[str]) -> list[str]:
    return [f"the remapping {pattern!r} matched no tensor of the file" for pattern in unmatched]


def _bool(value: bool, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is a bool, not {type(value).__name__}")
    return value


def _adapter(adapter: ModuleAdapter) -> ModuleAdapter:
    if isinstance(adapter, type) and issubclass(adapter, ModuleAdapter):
        return adapter()  # PyTorchToBurnAdapter without parentheses, as the seeds write it
    if not isinstance(adapter, ModuleAdapter):
        raise TypeError(f"an adapter is a ModuleAdapter, not {type(adapter).__name__}")
    return adapter
