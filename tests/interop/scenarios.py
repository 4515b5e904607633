"""Scenarios: a file that does or does not fit a model, loaded by both sides with the same options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.tensor.data import TensorData
from burnstore.tensor.snapshot import TensorSnapshot

from .adapting import FROM

Snapshots = list[TensorSnapshot]
Edit = Callable[[Snapshots], Snapshots]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A model, what is done to its file, and how it is loaded."""

    name: str
    model: str
    edit: Edit = list
    regexes: tuple[str, ...] = ()
    full_paths: tuple[str, ...] = ()
    remaps: tuple[tuple[str, str], ...] = ()
    adapter: str | None = None
    partial: bool = False
    validate: bool = True
    since: str = "0.19"
    differs: Mapping[str, str] = field(default_factory=dict)
    """Versions whose lists are others, and why; the newest stable one must never be among them."""

    @property
    def lenient(self) -> Scenario:
        """The same, with everything tolerated: so both sides give their lists."""
        return replace(self, partial=True, validate=False)

    def arguments(self) -> list[str]:
        """The options as the program takes them."""
        words = ["--partial"] * self.partial + ["--no-validate"] * (not self.validate)
        for name, values in (("--filter", self.regexes), ("--full-path", self.full_paths)):
            words += [word for value in values for word in (name, value)]
        words += [word for old, new in self.remaps for word in ("--remap", old, new)]
        return words + (["--from-adapter", self.adapter] if self.adapter else [])

    def store(self, file: Path) -> bs.BurnpackStore:
        """The options as our store takes them."""
        store = bs.BurnpackStore.from_file(file).allow_partial(self.partial).validate(self.validate)
        store.allow_empty(True)  # Burn loads nothing without a word where nothing is chosen.
        for pattern in self.regexes:
            store.with_regex(pattern)
        for path in self.full_paths:
            store.with_full_path(path)
        for old, new in self.remaps:
            store.with_key_remapping(old, new)
        return store.with_from_adapter(FROM[self.adapter]()) if self.adapter else store


def without(*paths: str) -> Edit:
    return lambda given: [each for each in given if each.path not in paths]


def only(*paths: str) -> Edit:
    return lambda given: [each for each in given if each.path in paths]


def renamed(names: Mapping[str, str]) -> Edit:
    return lambda given: [each.with_path(names.get(each.path, each.path)) for each in given]


def prefixed(prefix: str) -> Edit:
    return lambda given: [each.with_path(prefix + each.path) for each in given]


def nothing(given: Snapshots) -> Snapshots:
    return []


def with_extra(*paths: str) -> Edit:
    return lambda given: [*given, *(TensorSnapshot.from_numpy(path, np.ones(3, np.float32)) for path in paths)]


def changed(path: str, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Edit:
    """One tensor with other values, shape or dtype, under its own id."""

    def edit(given: Snapshots) -> Snapshots:
        return [
            TensorSnapshot.from_numpy(path, change(each.numpy()), param_id=each.param_id) if each.path == path else each
            for each in given
        ]

    return edit


def as_data(path: str, dtype: bs.DType, width: int) -> Edit:
    """One tensor of bools (all true) as this dtype."""

    def edit(given: Snapshots) -> Snapshots:
        found = []
        for each in given:
            if each.path == path:
                raw = (1).to_bytes(width, "little") * int(np.prod(each.shape))
                data = TensorData.from_bytes(raw, dtype, each.shape)
                each = TensorSnapshot.from_data(path, data, param_id=each.param_id)
            found.append(each)
        return found

    return edit


def cast(dtype: Any) -> Edit:
    """All floats in another width."""
    return lambda given: [
        TensorSnapshot.from_numpy(each.path, each.numpy().astype(dtype), param_id=each.param_id)
        if each.dtype.is_float
        else each
        for each in given
    ]


def anonymous(given: Snapshots) -> Snapshots:
    """The tensors without their ids."""
    return [TensorSnapshot.from_data(each.path, each.to_data()) for each in given]


def torch_layout(model: Callable[[], Any]) -> Edit:
    """The file as PyTorch would name and lay it out."""

    def edit(given: Snapshots) -> Snapshots:
        filled = model()
        bs.apply(filled, given)
        return bs.collect(filled, adapter=bs.BurnToPyTorchAdapter())

    return edit


def both(*edits: Edit) -> Edit:
    def edit(given: Snapshots) -> Snapshots:
        for each in edits:
            given = each(given)
        return given

    return edit
