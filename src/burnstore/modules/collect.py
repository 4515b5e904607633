"""Collect: the tensors of a model as snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

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

    ``filter`` sees paths and containers as the model has them, ``adapter`` then changes what is left.

    >>> import numpy as np
    >>> [snapshot.path for snapshot in collect({"encoder": {"weight": np.zeros(2)}, "steps": [np.zeros(1)]})]
    ['encoder.weight', 'steps.0']
    """
    snapshots = [slot.snapshot() for slot in binding_for(model).walk(model, skip_enum_variants=skip_enum_variants)]
    chosen, _ = filtered(snapshots, filter)
    return adapted(chosen, adapter)


def filtered(snapshots: Sequence[TensorSnapshot], filter: PathFilter | None) -> tuple[list[TensorSnapshot], list[str]]:
    """The snapshots that a filter lets through, and its criteria that matched none."""
    if filter is None:
        return list(snapshots), []
    selection = filter.select([(snapshot.path, snapshot.container_stack) for snapshot in snapshots])
    return [snapshot for snapshot, chosen in zip(snapshots, selection, strict=True) if chosen], selection.unmatched


def adapted(snapshots: Sequence[TensorSnapshot], adapter: ModuleAdapter | None) -> list[TensorSnapshot]:
    """The snapshots as an adapter gives them, module by module where it asks for that."""
    if adapter is None:
        return list(snapshots)
    if adapter.is_structural:
        snapshots = _module_by_module(snapshots, adapter)
    return [adapter.adapt(snapshot) for snapshot in snapshots]


def _module_by_module(snapshots: Sequence[TensorSnapshot], adapter: ModuleAdapter) -> list[TensorSnapshot]:
    def module_of(snapshot: TensorSnapshot) -> tuple[str, str | None]:
        return snapshot.path.rpartition(".")[0], snapshot.module_type

    given: list[TensorSnapshot] = []
    for (parent, module_type), members in groupby(snapshots, module_of):
        tensors = {snapshot.path.rpartition(".")[2]: snapshot for snapshot in members}
        if module_type is not None:
            prefix = f"{parent}." if parent else ""
            given += [
                named(prefix + name, tensor) for name, tensor in adapter.adapt_module(module_type, tensors).items()
            ]
        else:
            given += tensors.values()
    return given


def named(path: str, snapshot: TensorSnapshot) -> TensorSnapshot:
    """The snapshot under this path."""
    return snapshot if snapshot.path == path else snapshot.with_path(path)
