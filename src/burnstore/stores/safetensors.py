"""SafetensorsStore: models in the format of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..formats.safetensors import stamp
from .base import Store

S = TypeVar("S", bound="SafetensorsStore")


class SafetensorsStore(Store):
    """A SafeTensors file or bytes, with the builder methods of Burn's store of that name.

    By default indices stay unchanged and names contain enum variants; a path gets no extension. The metadata of a file
    that PyTorch wrote state its layout; ``with_from_adapter(PyTorchToBurnAdapter)`` and
    ``with_to_adapter(BurnToPyTorchAdapter)`` state it explicitly, as Burn's own store requires.

    >>> import numpy as np
    >>> from burnstore import nn
    >>> store = SafetensorsStore.from_bytes(None).metadata("epochs", "100")
    >>> saved = store.save(nn.Linear(2, 3))
    >>> with store.open() as f:
    ...     dict(f.metadata)
    {'format': 'safetensors', 'producer': 'burn', 'version': '0.22.1', 'epochs': '100'}
    >>> sorted(SafetensorsStore.from_bytes(store.get_bytes()).load(nn.Linear(2, 3)).applied)
    ['bias', 'weight']
    """

    format = "safetensors"

    def __init__(self) -> None:
        super().__init__()
        self._metadata = {}
        self._stamped = True
        self._max_shard_size: int | str | None = None

    def metadata(self: S, key: str, value: str) -> S:
        """Add an entry to the metadata, besides those of the framework.

        These are format, producer and version for Burn, ``format: pt`` for PyTorch.
        """
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must map str to str, got {type(key).__name__} to {type(value).__name__}")
        assert self._metadata is not None
        self._metadata[key] = value
        return self

    def clear_metadata(self: S) -> S:
        """Write no metadata, neither set so far nor default, apart from the layout of the tensors."""
        self._metadata = {}
        self._stamped = False
        return self

    def max_shard_size(self: S, size: int | str) -> S:
        """Save into files of at most this many bytes (``"5GB"``) and an index, where one would be larger."""
        self._max_shard_size = size
        return self

    def _metadata_for(self, layout: str | None) -> Mapping[str, str]:
        return {**(stamp(layout) if self._stamped and layout is not None else {}), **(self._metadata or {})}

    def _save_options(self) -> dict[str, Any]:
        sharded = self._max_shard_size is not None and not self._in_memory
        return {"max_shard_size": self._max_shard_size} if sharded else {}
