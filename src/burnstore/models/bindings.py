"""Which binding a model has; each is imported when a model of its framework is met."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from . import plain
from .binding import Binding

Finder = Callable[[Any], Binding | None]

_finders: list[Finder] = []


def register_binding(finder: Finder) -> None:
    """Add a function that gives the binding of a model, None if the model is not its own; the newest is asked first."""
    if not callable(finder):
        raise TypeError(f"a finder is a function of a model, not {type(finder).__name__}")
    _finders.insert(0, finder)


def binding_for(model: Any) -> Binding:
    """The binding of this model."""
    for finder in _finders:
        found = finder(model)
        if found is not None:
            return found
    if isinstance(model, (str, bytes, int, float, complex, type(None), type(sys))):
        raise TypeError(f"a model is an object or container that holds tensors, not {type(model).__name__}")
    if hasattr(sys.modules.get("torch"), "nn"):  # somebody imported it, and it is there to the end
        from .torch import binding as torch

        if torch.holds_tensors(model):
            return cast(Binding, torch)
    return cast(Binding, plain)
