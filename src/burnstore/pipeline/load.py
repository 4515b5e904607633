"""Load an input into a model: compile and execute."""

from __future__ import annotations

from typing import Any

from ..errors import located
from ..io.gc_pause import gc_paused
from ..models.result import ApplyResult
from ..tensor.note import Note
from .compile import compile_load
from .ends import Input, Target, target_of_model
from .execute import execute
from .options import Pipeline


def load_input(
    model: Any, source: Input, pipeline: Pipeline, *, in_place: bool = True, device: Any = None, of_store: bool = False
) -> ApplyResult:
    """Load named tensors into a model, and report the outcome for each.

    Burn's stores load into a model without parameters; ``of_store`` does so, with a note.
    """
    with gc_paused(), located(path=source.name):
        plan = compile_load(source, model_target(model, source, pipeline, device), pipeline)
        if of_store and not plan.slots and pipeline.filter is None and not pipeline.allow_empty:
            pipeline = pipeline.replace(allow_empty=True)
            plan.result.notes.append(Note("empty", "nothing was loaded: the model has no parameters"))
        return execute(plan, pipeline, in_place=in_place)


def model_target(model: Any, source: Input, pipeline: Pipeline, device: Any = None) -> Target:
    """Return a model as the target of a load from this source."""
    skip = pipeline.skip_enum_variants
    target = target_of_model(
        model, skip_enum_variants=source.format == "pytorch" if skip is None else skip, rules=pipeline.rules
    )
    if device is not None:
        from ..models.torch.binding import materialize_on  # not at import: a caller that names a device has torch

        materialize_on(target.slots, device)
    return target
