"""Select the binding of a model; a binding is imported with the first model of its framework."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from . import plain
from .binding import Binding

Finder = Callable[[Any], Binding | None]

_finders: list[Finder] = []


def register_binding(finder: Finder) -> None:
    """Add a function that returns the binding of a model, or None for models of others; the newest is called first."""
    if not callable(finder):
        raise TypeError(f"a finder must be a function of a model, got {type(finder).__name__}")
    _finders.insert(0, finder)


def binding_for(model: Any) -> Binding:
    """Return the binding of this model."""
    for finder in _finders:
        found = finder(model)
        if found is not None:
            return found
    if isinstance(model, (str, bytes, int, float, complex, type(None), type(sys))):
        raise TypeError(f"a model must be an object or container that holds tensors, got {type(model).__name__}")
    if hasattr(sys.modules.get("torch"), "nn"):  # the program has imported it completely
        from .torch import binding as torch

        if torch.holds_tensors(model):
            return cast(Binding, torch)
    return cast(Binding, plain)
