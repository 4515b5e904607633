"""BurnpackStore: models in Burn's own format."""

from __future__ import annotations

from typing import Any, TypeVar

from ..formats.burnpack.eras import DEFAULT_VERSION, named_release, stamp
from .base import Store

S = TypeVar("S", bound="BurnpackStore")


class BurnpackStore(Store):
    """A Burnpack file or bytes, with the builder methods of Burn's store of that name.

    >>> import numpy as np
    >>> store = BurnpackStore.from_bytes(None).metadata("epochs", "100")
    >>> saved = store.save({"encoder": {"weight": np.ones(3, np.float32)}})
    >>> model = {"encoder": {"weight": np.zeros(3, np.float32)}}
    >>> result = BurnpackStore.from_bytes(store.get_bytes()).load(model)
    >>> result.applied, model["encoder"]["weight"].tolist()
    (['encoder.weight'], [1.0, 1.0, 1.0])
    """

    format = "burnpack"
    default_suffix = ".bpk"

    def __init__(self) -> None:
        super().__init__()
        self._burn_version = DEFAULT_VERSION
        self._metadata = stamp(named_release(DEFAULT_VERSION))

    def metadata(self: S, key: str, value: str) -> S:
        """Add an entry to the metadata, besides those that Burn's store always writes (format, producer, version)."""
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must map str to str, got {type(key).__name__} to {type(value).__name__}")
        assert self._metadata is not None
        self._metadata[key] = value
        return self

    def clear_metadata(self: S) -> S:
        """Write no metadata, neither set so far nor default; a layout other than Burn's is still stated."""
        self._metadata = {}
        return self

    def burn_version(self: S, version: str) -> S:
        """Write the bytes of this release of Burn (``"0.19"`` .. ``"0.23-pre"``)."""
        release = named_release(version)
        self._burn_version = version
        if self._metadata is not None and self._metadata.get("version") in _STAMPED:
            self._metadata.update(stamp(release))
        return self

    def _save_options(self) -> dict[str, Any]:
        return {"burn_version": self._burn_version}


_STAMPED = frozenset(
    named_release(version).version for version in ("0.19", "0.20", "0.21", "0.22-pre", "0.22", "0.23-pre")
)
