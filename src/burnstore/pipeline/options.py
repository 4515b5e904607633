"""Options: what a store was told to do with tensors on the way in and out, by methods that change it and return it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ..limits import Limits
from ..models.layouts import Rules, checked_layout
from ..transforms.adapters import ModuleAdapter
from ..transforms.filter import PathFilter, Predicate
from ..transforms.layout import Layout
from ..transforms.partition import Part, Partition
from ..transforms.patterns import compile_pattern
from ..transforms.remap import KeyRemapper, OnCollision, keep_distinct

S = TypeVar("S", bound="Options")


class Options:
    """The settings of a store, each by a method of its own and by a keyword (`configured`)."""

    def __init__(self) -> None:
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
        self._part: Part | None = None
        self._metadata: dict[str, str] | None = None
        self._allow_partial = False
        self._validate = True
        self._in_place = True
        self._device: Any = None  # None: where torch's default device is
        self._skip_enum_variants: bool | None = None  # None: as the format of the file wants it
        self._overwrite = False
        self._auto_extension = True
        self._zero_copy = False
        self._durable = True
        self._limits = Limits()

    def configured(self: S, **options: Any) -> S:
        """The store with these options set, each by the name of its method (``regex`` for ``with_regex`` and so on)."""
        of_rank = {name: options.pop(name) for name in _OF_RANK if name in options}
        if of_rank:
            self.for_rank(**of_rank)
        for name, value in options.items():
            method = _KEYWORDS.get(name)
            if method is None or not hasattr(self, method):
                raise TypeError(
                    f"{type(self).__name__} has no option {name!r}; there are: {', '.join((*_KEYWORDS, *_OF_RANK))}"
                )
            if isinstance(value, Mapping) and method in ("metadata", "with_key_remapping"):
                for key, text in value.items():
                    getattr(self, method)(key, text)
            else:
                getattr(self, method)(value)
        return self

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

        A load is refused where the model has more entries at such a place than the file: see `burnstore.pipeline.gaps`.
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

    def for_rank(self: S, shard: Partition | Mapping[str | re.Pattern[str], Any], *, rank: int, world: int) -> S:
        """Load only the part of every tensor that this rank of so many has; the model has the shapes of the parts.

        As keywords: ``shard=`` (a `Partition`, or its rules alone), ``rank=`` and ``world=``.
        """
        self._part = Part(Partition(shard) if isinstance(shard, Mapping) else shard, rank, world)
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

    def device(self: S, device: Any) -> S:
        """Make the tensors of a torch model on this device (``"cuda"``, a torch.device) that are on the meta device.

        Those that have memory are filled where they are; a load is refused if that is on another device.
        """
        self._device = device
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

    def _changed(self: S) -> S:
        """The store, after a setting by which tensors are read was changed."""
        return self


_OF_RANK = ("shard", "rank", "world")  # one setting in three words

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
    "device": "device",
    "zero_copy": "zero_copy",
    "overwrite": "overwrite",
    "durable": "durable",
    "auto_extension": "auto_extension",
    "limits": "limits",
    "top_level_key": "with_top_level_key",
    "max_shard_size": "max_shard_size",
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
