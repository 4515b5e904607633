"""Training state: the state that an optimizer keeps for a parameter follows it to its new name.

Burn's optimizer file has tensors named by the id of a parameter (``1234.momentum.moment_1``), and in its metadata the
path of each id. A conversion renames the paths and transforms the state like the parameter: the moments of a transposed
matrix are transposed. The ids stay, because `convert` keeps them in the model, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import ModelError, counted
from ...pipeline.ends import Input
from ...pipeline.names import Named, rename_tensors
from ...pipeline.options import Pipeline, refuse_unused
from ...pipeline.plan import Move, Plan, lower
from ...tensor.note import Note
from ...tensor.scalar import Scalar
from ...tensor.snapshot import TensorSnapshot
from ...transforms.operations import Add, Operation, PermuteRope, Reshape, Transpose
from ...transforms.view import Origin

_MOVES = (Transpose, PermuteRope, Reshape)
"""Operations that only move elements, and so apply to the state of a parameter as well."""


_RANK = "__rank"
"""The scalar with the rank of a parameter's state; Burn ignores a state of another rank."""


def training_plan(source: Input, pipeline: Pipeline) -> tuple[Plan, Input] | None:
    """Return the plan for the state of an optimizer whose parameters are renamed, and its metadata; None for others.

    ModelError if a parameter is split, joined or tied: its parts have no id for their state.
    """
    paths = {key: path for key, path in source.metadata.items() if key.isdecimal()}
    states: dict[str, dict[str, TensorSnapshot]] = {}
    owners = {path: key for key, path in paths.items()}
    for snapshot in source.snapshots:
        key, _, rest = snapshot.path.partition(".")
        if key not in paths:
            return None
        states.setdefault(rest, {})[paths[key]] = snapshot
    if not states or (pipeline.rename is None and pipeline.recipe is None) or len(owners) < len(paths):
        return None
    refuse_unused(pipeline, "the renaming of training state", "filter", "adapter", "cast", "target_layout")
    plan = Plan(layout=source.layout, source_layout=source.layout)
    pipeline = pipeline.replace(unmatched="note")  # not every parameter has every kind of state
    if pipeline.recipe is not None:
        rules = tuple(replace(rule, optional=True) for rule in pipeline.recipe.rules)
        pipeline = pipeline.replace(recipe=replace(pipeline.recipe, rules=rules))
    renamed: dict[str, str] = {}
    scalars = dict(source.scalars)
    given = [{each.path: each for each in source.snapshots}]
    for rest, tensors in states.items():
        named = rename_tensors(
            replace(source, snapshots=[each.with_path(path) for path, each in tensors.items()]), pipeline
        )
        for snapshot in named.snapshots:
            path, steps = _only_source(named, snapshot.path)
            key = owners[path]
            if renamed.setdefault(key, snapshot.path) != snapshot.path:
                raise ModelError("two parameters would share its training state", tensor=path)
            rank = f"{key}.{_RANK}"
            if rank in scalars and any(isinstance(step, Reshape) for step in steps):
                scalars[rank] = Scalar(scalars[rank].kind, len(snapshot.shape))
            origin = Origin(f"{key}.{rest}", tuple(steps))
            plan.moves.append(Move(f"{key}.{rest}", (origin,), (), lower(f"{key}.{rest}", [origin], (), given)))
        plan.fates |= {f"{owners[path]}.{rest}": why for path, why in named.dropped.items()}
    if len(renamed) > len(set(renamed.values())):
        raise ModelError("two parameters get the same name, so their training states cannot be distinguished")
    lost = paths.keys() - renamed.keys()
    metadata = {key: text for key, text in source.metadata.items() if key not in lost} | renamed
    scalars = {name: scalar for name, scalar in scalars.items() if name.partition(".")[0] not in lost}
    moved = sum(paths[key] != path for key, path in renamed.items())
    plan.notes.append(
        Note("names", f"training state of {counted(len(renamed), 'parameter')}, {moved} of them under new names")
    )
    return plan, replace(source, metadata=metadata, scalars=scalars)


def _only_source(named: Named, name: str) -> tuple[str, Sequence[Operation]]:
    """Return the old name of a renamed parameter, and how its elements moved."""
    origins, whole = named.traced((Origin(name),), ())
    steps = [step for step in (*(origins[0].operations if origins else ()), *whole) if not isinstance(step, Add)]
    if len(origins) != 1 or origins[0].source is None or not all(isinstance(step, _MOVES) for step in steps):
        raise ModelError(
            "this parameter is made from parts of others, and its training state would have no id",
            tensor=name,
            hint="convert the model alone, and restart the training of this parameter",
        )
    return origins[0].source, steps
