"""Store: where tensors are kept, and what happens to them on the way in and out.

The order of the stages is one, whatever the entry point:

    load   file → key remapping → contiguous indices → matching with the model → filter → from-adapter → model
    save   model → filter → to-adapter → key remapping → file
    keys, get_snapshot, get_all_snapshots: file → key remapping → contiguous indices

A filter sees the model's paths and containers, a remapping the file's names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import ReadError
from ..limits import Limits
from ..modules.apply import apply_noting
from ..modules.collect import collect
from ..modules.result import ApplyResult
from ..saving import save, serialize
from ..snapshot import TensorSnapshot
from ..transforms.adapters import ModuleAdapter
from ..transforms.filter import PathFilter, Predicate
from ..transforms.indices import contiguous_names
from ..transforms.patterns import compile_pattern
from ..transforms.remap import KeyRemapper, OnCollision, keep_distinct

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
        self._contiguous = False
        self._kept_prefixes: list[re.Pattern[str]] = []
        self._from_adapter: ModuleAdapter | None = None
        self._to_adapter: ModuleAdapter | None = None
        self._metadata: dict[str, str] | None = None
        self._allow_partial = False
        self._validate = True
        self._skip_enum_variants = False
        self._overwrite = False
        self._auto_extension = True
        self._zero_copy = False
        self._durable = True
        self._limits = Limits()
        self._cached: tuple[Checkpoint, list[TensorSnapshot], list[str]] | None = None

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
        copied._cached = None
        return copied

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
        """Number the indices in names 0, 1, 2 without gaps."""
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

    # How

    def allow_partial(self: S, on: bool) -> S:
        """Tolerate parameters that find no tensor."""
        self._allow_partial = _bool(on, "allow_partial")
        return self

    def validate(self: S, on: bool) -> S:
        """Raise when a tensor does not fit (default); otherwise such tensors are only reported."""
        self._validate = _bool(on, "validate")
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
        snapshots, unmatched = self._snapshots()
        return apply_noting(
            [f"the remapping {pattern!r} matched no tensor of the file" for pattern in unmatched],
            model,
            snapshots,
            self._filter,
            self._from_adapter,
            skip_enum_variants=self._skip_enum_variants,
            allow_partial=self._allow_partial,
            validate=self._validate,
        )

    apply_to = load

    def save(self, model: Any) -> None:
        """Save a model's tensors."""
        snapshots = collect(model, self._filter, self._to_adapter, skip_enum_variants=self._skip_enum_variants)
        renamed, _ = self._remapper.remap(snapshots, on_collision=self._on_collision)
        self._changed()
        options: dict[str, Any] = {"metadata": self._metadata, "limits": self._limits, **self._save_options()}
        if self._in_memory:
            self._data = serialize(renamed, format=self._write_format(), **options)
        else:
            assert self.path is not None
            save(renamed, self.path, format=self.format, overwrite=self._overwrite, durable=self._durable, **options)

    collect_from = save

    def keys(self) -> list[str]:
        """The names of all tensors, sorted; renamed as a load would see them, not filtered."""
        return sorted(snapshot.path for snapshot in self._snapshots()[0])

    def get_all_snapshots(self) -> dict[str, TensorSnapshot]:
        """All tensors by name, sorted; renamed as a load would see them, not filtered, not adapted."""
        return {snapshot.path: snapshot for snapshot in sorted(self._snapshots()[0], key=lambda found: found.path)}

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
        return open_checkpoint(source, format=self.format, zero_copy=self._zero_copy, limits=self._limits)

    def _save_options(self) -> dict[str, Any]:
        return {}

    def _write_format(self) -> str:
        if self.format is None:
            raise TypeError("a store in memory needs a format to save; take BurnpackStore, for example")
        return self.format

    def _snapshots(self) -> tuple[list[TensorSnapshot], list[str]]:
        """The file's tensors under the names that matching sees, and the renaming rules that matched none."""
        if self._cached is None:
            checkpoint = self.open()
            given = list(checkpoint.values())
            renaming = self._remapper.remap_names([snapshot.path for snapshot in given])
            names = renaming.names
            if self._contiguous:
                names = contiguous_names(names, self._keep() if self._kept_prefixes else None).names
            rows = keep_distinct(names, renaming.originals, self._on_collision)
            snapshots = [
                given[row] if given[row].path == names[row] else given[row].with_path(names[row]) for row in rows
            ]
            self._cached = checkpoint, snapshots, renaming.unmatched
        return self._cached[1], self._cached[2]

    def _keep(self) -> Callable[[str], bool]:
        patterns = self._kept_prefixes
        return lambda prefix: any(pattern.search(prefix) for pattern in patterns)

    def _changed(self: S) -> S:
        self._cached = None
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
    "metadata": "metadata",
    "allow_partial": "allow_partial",
    "validate": "validate",
    "zero_copy": "zero_copy",
    "overwrite": "overwrite",
    "durable": "durable",
    "auto_extension": "auto_extension",
    "limits": "limits",
    "burn_version": "burn_version",
}


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
