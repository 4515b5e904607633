"""Set several options of a store by the names of its methods, for tests that are written as tables."""

from __future__ import annotations

from typing import Any, TypeVar

from burnstore.stores.base import Store

S = TypeVar("S", bound=Store)

_METHODS = {
    "regex": "with_regex",
    "regexes": "with_regexes",
    "full_path": "with_full_path",
    "full_paths": "with_full_paths",
    "from_adapter": "with_from_adapter",
    "to_adapter": "with_to_adapter",
    "top_level_key": "with_top_level_key",
}


def configured(store: S, **options: Any) -> S:
    """Return the store after calling the method of each option."""
    for name, value in options.items():
        if name in ("metadata", "key_remapping"):
            for key, text in value.items():
                getattr(store, {"key_remapping": "with_key_remapping"}.get(name, name))(key, text)
        else:
            getattr(store, _METHODS.get(name, name))(value)
    return store
