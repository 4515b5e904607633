"""Ties: tensors that are written under several names and have the same bytes, such as tied weights of a model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from ..errors import printable
from ..formats.base import Format, HoldsTies, is_reserved
from ..models.load.ties import same_values
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..tensor.sources import Data, RangeData, WrappedData
from .compile import listed
from .plan import Plan


def ties_of(
    plan: Plan, snapshots: Sequence[TensorSnapshot], chosen: Format, metadata: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the names under which a tensor need not be written, each with the name under which it is.

    As `safetensors.torch.save_model` does, the first name in alphabetical order is kept. Empty, with a note in the
    plan, if the format has no ties, or if Burn reads the file: its store looks for every name.
    """
    if not isinstance(chosen, HoldsTies) or plan.layout != "torch":
        twice = [name for group in _groups(snapshots, _origin) for name in group[1:]]
        if twice:
            layout = "in Burn's layout" if plan.layout == "burn" else "without a layout"
            place = f"{chosen.name} {layout}" if isinstance(chosen, HoldsTies) else chosen.name
            text = f"tied tensors are stored more than once, because {place} has no ties: {listed(twice)}"
            plan.notes.append(Note("tied", text))
        return {}
    ties = {name: group[0] for group in _groups(snapshots, lambda data: data.identity) for name in group[1:]}
    by_name = {snapshot.path: snapshot for snapshot in snapshots} if plan.tied else {}
    for group in plan.tied:  # what a model ties, a file of another format may have several times
        first, *others = sorted(name for name in group if name in by_name and name not in ties) or [""]
        ties |= {name: first for name in others if same_values(by_name[first], by_name[name])}
    for name in [name for name in ties if is_reserved(name) or name in (metadata or ())]:
        del ties[name]  # The metadata has this key for something else.
    if ties:
        pairs = [f"{printable(name)} as {printable(kept)}" for name, kept in ties.items()]
        plan.notes.append(Note("tied", f"tied tensors are stored once: {listed(pairs)}"))
    return ties


def _groups(snapshots: Sequence[TensorSnapshot], key: Callable[[Data], Hashable | None]) -> list[list[str]]:
    """Return the names of tensors with one key, sorted, for each key of several tensors."""
    groups: dict[Hashable, list[str]] = {}
    addresses = [snapshot._data.address for snapshot in snapshots]
    if len(set(addresses)) == len(addresses):
        return []
    counts = Counter(addresses)  # few tensors have the address of another one, and only their keys are made
    for snapshot, address in zip(snapshots, addresses, strict=True):
        if address is None or counts[address] == 1 or not snapshot.nbytes:
            continue
        identity = key(snapshot._data)
        if identity is not None:
            groups.setdefault((identity, snapshot.dtype, math.prod(snapshot.shape)), []).append(snapshot.path)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def _origin(data: Data) -> Hashable | None:
    """Return the identity of the tensor that data are made from, transposed or cast."""
    while isinstance(data, WrappedData) and not isinstance(data, RangeData):
        data = data.data
    return data.identity
