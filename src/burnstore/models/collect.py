"""Collect: the tensors of a model as snapshots, in its own layout or in another."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DuplicateNameError
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import ModuleAdapter
from ..transforms.filter import PathFilter
from ..transforms.layout import Layout
from .binding import Slot
from .bindings import binding_for
from .layouts import MODULES_KEY, Rules, layout_of, record_of, seen_in


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
    slots = list(binding_for(model).walk(model, skip_enum_variants=skip_enum_variants))
    return adapted(_filtered(slots, filter), adapter)


@dataclass(frozen=True, slots=True)
class Collected:
    """A model's tensors as a file is to hold them: in which layout they are, and what the file should say of it."""

    snapshots: list[TensorSnapshot]
    layout: Layout
    metadata: dict[str, str]


def collect_in(
    layout: Layout | None,
    model: Any,
    filter: PathFilter | None = None,
    adapter: ModuleAdapter | None = None,
    *,
    rules: Rules | None = None,
    record_modules: bool = True,
    skip_enum_variants: bool = False,
) -> Collected:
    """As `collect`, but with the model seen in this layout, unless an adapter says how layouts differ.

    What the model's modules are is recorded where the layout is not the model's own: a file can then be converted back
    without the model.
    """
    own = layout_of(model)
    slots = list(binding_for(model).walk(model, skip_enum_variants=skip_enum_variants))
    snapshots = _filtered(slots, filter)
    if adapter is not None and not adapter.keeps_layout:
        return Collected(adapted(snapshots, adapter), adapter.gives_layout or own, {})
    wanted = own if layout is None else layout
    seen, view = seen_in(wanted, model, slots, snapshots, skip_enum_variants=skip_enum_variants, rules=rules)
    record = {MODULES_KEY: record_of(view)} if record_modules and view is not None else {}
    return Collected(adapted(seen, adapter), wanted, record)


def _filtered(slots: Sequence[Slot], filter: PathFilter | None) -> list[TensorSnapshot]:
    snapshots = [slot.snapshot() for slot in slots]
    if filter is None:
        return snapshots
    selection = filter.select([(snapshot.path, snapshot.container_stack) for snapshot in snapshots])
    for text in selection.unmatched:
        warnings.warn(f"the filter's {text!r} matched no tensor of the model", stacklevel=3)
    return [snapshot for snapshot, chosen in zip(snapshots, selection, strict=True) if chosen]


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
