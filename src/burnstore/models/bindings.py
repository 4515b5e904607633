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


def left_out_of(model: Any) -> dict[str, str]:
    """Return what a walk of this model does not visit although it holds numbers, each with the reason.

    `save`, `collect` and `diff` see the same tensors and leave the same out.
    """
    found: dict[str, str] = getattr(binding_for(model), "left_out", lambda model: {})(model)
    return found


def digests_of_left_out(model: Any) -> dict[str, str | None]:
    """Return a digest of the numbers in everything that is left out; None where they cannot be compared."""
    found: dict[str, str | None] = {}
    if hasattr(binding_for(model), "left_out"):
        plain.left_out(model, found)
    return found
