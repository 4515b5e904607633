"""Prove: a mapping between a torch model and a Burn model, by what both compute from the same input.

A Burn program records a forward pass beside its weights (``record_forward`` of the crate burnstore-outline). The values
of that file go backwards through the mapping into the torch model, which must then compute the same. This proves the
mapping, whatever the weights: a file that is a verified copy under a proved mapping computes in Burn what torch does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import ModelError, entry_point, located
from ...io.atomic import atomic_file
from ...io.paths import as_path
from ...models.outline import outline_of
from ...models.recording import recording_of
from ...pipeline.options import Pipeline, RulesLike
from ...pipeline.write import check_apart, files_read
from ...saving import serialize
from ...tensor.note import Note
from ...tensor.tabular import Result
from ...transforms.operations import Cast
from ...transforms.recipe import Recipe, recipe_from
from ..map.map import MapResult, Qkv, Rope, map_file
from .proof import TOLERANCE, Compared, Outcome, Proof, Suspect, prove_recipe

Path = str | os.PathLike[str]
_RECORD_HINT = "record one in Rust: burnstore_outline::record_forward(&model, &forward, path), see docs/howto/prove.md"


@dataclass(frozen=True, slots=True)
class ProveResult(Result):
    """Whether torch computes what Burn recorded, and if not, where it differs first.

    ``outcome`` is ``proved``, ``differs``, or ``agrees`` where the outputs agree but would not show every mistake:
    ``uncovered`` says which. ``module`` is the first Burn module that differs, ``suspects`` what explains it.
    ``is_copy`` states whether the file has the values of the checkpoint under this mapping; None if no checkpoint was
    given, or none was expected to equal it.
    """

    path: str
    outcome: Outcome
    compared: list[Compared]
    module: str | None = None
    suspects: list[Suspect] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    is_copy: bool | None = None
    notes: list[Note] = field(default_factory=list)
    mapping: MapResult | None = field(default=None, repr=False)
    """The mapping that was found, if no rules were given; its questions are answered by the outputs."""

    _read: tuple[str, ...] = field(default=(), repr=False)
    _facts: ClassVar[tuple[str, ...]] = ("ok",)

    @property
    def ok(self) -> bool:
        """Whether the mapping is proved, and the file is not another than the checkpoint."""
        return self.outcome == "proved" and self.is_copy is not False

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON, without the rules of the mapping."""
        plain = super(ProveResult, self).to_dict()
        plain.pop("mapping")
        for each in plain["compared"]:
            if isinstance(each, dict) and not math.isfinite(each["error"]):
                each["error"] = None
        return plain

    def save_rules(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the mapping that was found and proved as a rules file, all or nothing."""
        if self.mapping is None or self.outcome == "differs":
            raise ModelError("there are no proved rules to write: the mapping is given, or it differs")
        check_apart(self._read, as_path(path))
        raw = self.mapping.text.encode("utf-8")
        with atomic_file(path, overwrite=overwrite, size=len(raw)) as scratch:
            scratch.write(raw)


@entry_point("prove")
def prove(
    file: Path,
    *,
    model: Any,
    like: Path | None = None,
    weights: Path | None = None,
    rules: RulesLike | None = None,
    rope: Rope | None = None,
    qkv: Qkv | None = None,
    names: Mapping[str, str] | None = None,
    top_level_key: str | None = None,
    tolerance: float = TOLERANCE,
    seconds: float = 60.0,
) -> ProveResult:
    """Prove a mapping between a torch model and a Burn model by their outputs for the same input.

    ``file`` is a file of the Burn model, ``like`` its outline. One of them has a forward pass, recorded in Rust by
    ``record_forward`` of the crate burnstore-outline. The tensors of that file become those of ``model``, a
    ``torch.nn.Module``, by the rules backwards; then the model must compute the recorded outputs from the recorded
    inputs. ``weights`` is the PyTorch checkpoint that ``file`` was converted from: the file must then have its values.

    The mapping is ``rules`` (with source_layout and target_layout), or what `map_names` finds; where the latter asks,
    the answer that makes the outputs agree is taken. ``names`` has torch's names for inputs, outputs and modules that
    were recorded under others. ``tolerance`` is the largest difference of an output, relative to the root mean square
    of its values; ``seconds`` bounds the search for a mistake.

    >>> import json, tempfile, numpy as np, torch, burnstore as bs
    >>> from burnstore.models.recording import Recording
    >>> model, x = torch.nn.Sequential(torch.nn.Linear(3, 2)), np.ones((1, 3), np.float32)
    >>> weight, bias = (tensor.detach().numpy() for tensor in model.parameters())
    >>> outline = {"format": 1, "modules": {"fc": "Struct:Linear"}}
    >>> metadata = {"burnstore.outline": json.dumps(outline)}  # record_forward of burnstore-outline writes both
    >>> metadata["burnstore.forward"] = Recording({"input": x}, {"output": x @ weight.T + bias}).to_text()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tensors = {"fc.weight": weight.T.copy(), "fc.bias": bias}
    ...     _ = bs.save(tensors, f"{folder}/a.outline.bpk", metadata=metadata, layout="burn")
    ...     bs.prove(f"{folder}/a.outline.bpk", model=model).outcome
    'proved'
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance is between 0 and 1, got {tolerance!r}")
    with ExitStack() as opened:
        given = opened.enter_context(open_checkpoint(file))
        other = None if like is None else opened.enter_context(open_checkpoint(like))
        recorded = next((each for each in (given, other) if each and recording_of(each.metadata) is not None), None)
        recording = None if recorded is None else recording_of(recorded.metadata)
        if recorded is None or recording is None:
            where = "this file has" if other is None else f"neither this file nor {other.path} has"
            raise ModelError(f"{where} no recorded forward pass", path=given.path, hint=_RECORD_HINT)
        outline = next((each for each in (other, recorded) if each and outline_of(each.metadata) is not None), None)
        tensors = {name: recorded[name] for name in recorded}
        proofs: list[tuple[Proof, Recipe, MapResult | None]] = []
        with located(path=recorded.path):
            for recipe, mapping in _recipes(rules, model, weights, outline, rope, qkv, top_level_key):
                found = prove_recipe(
                    recipe, tensors, recording, model, names=names, tolerance=tolerance, seconds=seconds
                )
                proofs.append((found, recipe, mapping))
                if found.outcome != "differs":
                    break
        proof, recipe, mapping = proofs[-1] if proofs[-1][0].outcome != "differs" else proofs[0]
        notes = list(proof.notes)
        is_copy = None
        if weights is not None:
            options: dict[str, Any] = {} if top_level_key is None else {"top_level_key": top_level_key}
            checkpoint = opened.enter_context(open_checkpoint(weights, **options))
            differing = _differing(recipe, checkpoint, given)
            if recorded is other:
                is_copy = not differing
            if differing:
                more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
                text = f"the file has other values than the checkpoint under this mapping: {differing[0]}{more}"
                notes.append(Note("check", text, differing[0]))
        read = [each.name for opened_file in (given, other) if opened_file for each in files_read(opened_file)]
        return ProveResult(
            given.path,
            proof.outcome,
            proof.compared,
            proof.module,
            proof.suspects,
            proof.uncovered,
            is_copy,
            notes,
            mapping,
            tuple(os.path.abspath(name) if "://" not in name else name for name in read),
        )


def _recipes(
    rules: RulesLike | None,
    model: Any,
    weights: Path | bytes | None,
    outline: Checkpoint | None,
    rope: Rope | None,
    qkv: Qkv | None,
    top_level_key: str | None,
) -> Iterator[tuple[Recipe, MapResult | None]]:
    """Yield the mappings to try: the given one, or what is found, with every answer to what it asks."""
    if rules is not None:
        recipe = Pipeline(rules=rules).recipe
        if recipe is None or recipe.target_layout is None:
            raise ModelError(
                "these rules do not state how each tensor is converted",
                hint="pass rules with source_layout, target_layout and tensors, as burnstore map writes them",
            )
        yield recipe, None
        return
    if outline is None:
        raise ModelError(
            "no mapping is known: neither rules nor an outline are given",
            hint='pass rules="rules.toml", or like="model.outline.bpk"',
        )
    declared = outline_of(outline.metadata)
    assert declared is not None
    options: dict[str, Any] = {} if top_level_key is None else {"top_level_key": top_level_key}
    config: Mapping[str, Any] | None = None
    if weights is None:  # the names of the model itself; no config.json is beside it
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        weights, config = serialize(state, format="safetensors", metadata={"format": "pt"}), {}
    with open_checkpoint(weights, **options) as source:
        mapped = partial(map_file, source, outline, declared, config=config)
        found = mapped(rope=rope, qkv=qkv)
        mappings = [found] if found.is_complete else list(_answered(found, mapped, rope, qkv))
        if not mappings:
            found.recipe()  # raises with what is open
        for mapping in mappings:
            yield recipe_from(mapping.rules), mapping


def _answered(
    found: MapResult, mapped: Callable[..., MapResult], rope: Rope | None, qkv: Qkv | None
) -> Iterator[MapResult]:
    """Yield complete mappings: what was found, with each answer to its questions, and its likeliest pairs."""
    choices = {choice for question in found.questions for choice in question.choices}
    ropes: tuple[Rope | None, ...] = ("halves", "pairs") if "rope=halves" in choices else (rope,)
    orders: tuple[Qkv | None, ...] = ("parts", "heads") if "qkv=parts" in choices else (qkv,)
    for answer in ropes:
        for order in orders:
            likely = mapped(rope=answer, qkv=order).with_suggestions()
            if likely is not None:
                yield likely


def _differing(recipe: Recipe, checkpoint: Checkpoint, file: Checkpoint) -> list[str]:
    """Return the tensors of a file that do not have the values of a checkpoint under a mapping."""
    made = {name: row[0] for name, row in recipe.apply({each: checkpoint[each] for each in checkpoint}).made.items()}
    differing = [name for name in file if name not in made] + [name for name in made if name not in file]
    for name in file:
        if name in made:
            wanted = made[name] if made[name].dtype is file[name].dtype else Cast(file[name].dtype)(made[name])
            if wanted.shape != file[name].shape or wanted.to_bytes() != file[name].to_bytes():
                differing.append(name)
    return differing
