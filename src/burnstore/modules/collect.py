"""Collect: the tensors of a model as snapshots."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..errors import DuplicateNameError
from ..snapshot import TensorSnapshot
from ..transforms.adapters import ModuleAdapter
from ..transforms.filter import PathFilter
from .bindings import binding_for


def collect(
    model: Any,
    filter: PathFilter | None = None,
    adapter: ModuleAdapter | None = None,
    *,
    skip_enum_variants: bool = False,
) -> list[TensorSnapshot]:
    """The tensors of a model, in its order, under their paths; nothing is read yet.

    ``filter`` sees paths and containers as the model has them, ``adapter`` then changes what is left. A pattern or path
    of the filter that matches nothing is warned of, because it is seldom meant.

    >>> import numpy as np
    >>> [snapshot.path for snapshot in collect({"encoder": {"weight": np.zeros(2)}, "steps": [np.zeros(1)]})]
    ['encoder.weight', 'steps.0']
    """
    snapshots = [slot.snapshot() for slot in binding_for(model).walk(model, skip_enum_variants=skip_enum_variants)]
    if filter is not None:
        selection = filter.select([(snapshot.path, snapshot.container_stack) for snapshot in snapshots])
        snapshots = [snapshot for snapshot, chosen in zip(snapshots, selection, strict=True) if chosen]
        for text in selection.unmatched:
            warnings.warn(f"the filter's {text!r} matched no tensor of the model", stacklevel=2)
    return adapted(snapshots, adapter)


def adapted(snapshots: Sequence[TensorSnapshot], adapter: ModuleAdapter | None) -> list[TensorSnapshot]:
    """The snapshots as an adapter gives them, module by module where it asks for that."""
    if adapter is None:
        return list(snapshots)
    if adapter.is_structural:
        snapshots = _module_by_module(snapshots, adapter)
    return [adapter.adapt(snapshot) for snapshot in snapshots]


def _module_by_module(snapshots: Sequence[TensorSnapshot], adapter: ModuleAdapter) -> list[TensorSnapshot]:
    """The snapshots with each module shown to the adapter once and whole; what it gives stands in its first place."""
    modules: dict[tuple[str, str], dict[str, TensorSnapshot]] = {}
    owners: list[tuple[str, str] | None] = []
    for snapshot in snapshots:
        parent, _, name = snapshot.path.rpartition(".")
        module_type = snapshot.module_type
        owners.append(None if module_type is None else (parent, module_type))
        if module_type is not None:
            members = modules.setdefault((parent, module_type), {})
            if name in members:
                raise DuplicateNameError("two tensors of the model have this path", tensor=snapshot.path)
            members[name] = snapshot
    replaced: dict[tuple[str, str], list[TensorSnapshot]] = {}
    for (parent, module_type), members in modules.items():
        found = adapter.adapt_module(module_type, dict(members))
        if list(found.items()) != list(members.items()):
            prefix = f"{parent}." if parent else ""
            replaced[parent, module_type] = [named(prefix + name, tensor) for name, tensor in found.items()]
    given: list[TensorSnapshot] = []
    shown: set[tuple[str, str]] = set()
    for snapshot, owner in zip(snapshots, owners, strict=True):
        if owner is None or owner not in replaced:
            given.append(snapshot)
        elif owner not in shown:
            shown.add(owner)
            given += replaced[owner]
    return given


def named(path: str, snapshot: TensorSnapshot) -> TensorSnapshot:
    """The snapshot under this path."""
    return snapshot if snapshot.path == path else snapshot.with_path(path)
