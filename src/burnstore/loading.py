"""Loading: a file into a model, in one call; and models and stores the other way round."""

from __future__ import annotations

import os
from typing import Any

from .models.result import ApplyResult
from .stores.base import Store
from .stores.pytorch import PytorchStore


def load(model: Any, path: str | os.PathLike[str] | bytes | bytearray | memoryview, **options: Any) -> ApplyResult:
    """Load a file (or bytes) of any format into a model, and say what became of each tensor.

    Options are those of the stores: ``allow_partial=True`` tolerates parameters without a tensor, ``validate=False``
    tensors that do not fit; ``regex=``, ``full_path=``, ``predicate=`` or ``filter=`` choose, ``key_remapping={pattern:
    replacement}`` or ``remap=`` rename, ``from_adapter=`` changes form, ``zero_copy=True`` shares memory;
    ``top_level_key=`` names the part of a PyTorch file that is the model.
    ``in_place=False`` reads all of a torch model's tensors before any is changed.
    ``device="cuda"`` makes the tensors there that the model has on the meta device; nothing is moved.
    ``shard=``, ``rank=`` and ``world=`` read only the part of every tensor that a rank has (`Partition`).

    Raises LoadError or MissingTensorsError with the report in ``result``; the model is then as it was.

    >>> import numpy as np, burnstore as bs
    >>> packed = bs.serialize({"weight": np.ones(2, np.float32)}, format="burnpack")
    >>> model = {"weight": np.zeros(2, np.float32), "bias": np.zeros(2, np.float32)}
    >>> bs.load(model, packed, allow_partial=True).missing
    ['bias']
    """
    kind = PytorchStore if "top_level_key" in options else Store  # only PyTorch's files have such keys
    if isinstance(path, (bytes, bytearray, memoryview)):
        return kind.from_bytes(path, **options).load(model)
    return kind.from_file(path, **options).load(model)


def load_from(model: Any, store: Store) -> ApplyResult:
    """Load a model from a store; the same as ``store.load(model)``."""
    return _checked(store).load(model)


def save_into(model: Any, store: Store) -> None:
    """Save a model into a store; the same as ``store.save(model)``."""
    _checked(store).save(model)


def _checked(store: Store) -> Store:
    if not isinstance(store, Store):
        raise TypeError(f"a store is a BurnpackStore or another Store, not {type(store).__name__}")
    return store
