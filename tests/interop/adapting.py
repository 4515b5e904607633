"""Adapting: our adapters by the names that the program has for Burn's, as each version adapts."""

from __future__ import annotations

from collections.abc import Callable

import burnstore as bs

from .program import VERSIONS


class _WithoutRmsNorm(bs.BurnToPyTorchAdapter):
    """As Burn before 0.22 adapts: RmsNorm keeps its own names."""

    def adapt(self, snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
        return snapshot if snapshot.module_type == "Struct:RmsNorm" else super().adapt(snapshot)


TO: dict[str, Callable[[], bs.ModuleAdapter]] = {"pytorch": bs.BurnToPyTorchAdapter, "half": bs.HalfPrecisionAdapter}
FROM: dict[str, Callable[[], bs.ModuleAdapter]] = {"pytorch": bs.PyTorchToBurnAdapter, "half": bs.HalfPrecisionAdapter}


def to_adapter(name: str, version: str) -> bs.ModuleAdapter:
    """The adapter for saving."""
    old = name == "pytorch" and VERSIONS.index(version) < VERSIONS.index("0.22")
    return _WithoutRmsNorm() if old else TO[name]()
