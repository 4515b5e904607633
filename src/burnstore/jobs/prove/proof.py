"""Proof: a torch model with the values of a Burn model, through a mapping, must compute what the Burn model computed.

invert     the recorded Burn values under torch's names and axes, by the rules backwards
compare    torch's outputs for the recorded input with the recorded outputs, intermediate ones first
search     where they differ: the first module that does, and the exchange, transposition or order that explains it
cover      where they agree: what the outputs would not have shown, because values are equal or without influence
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ...errors import ModelError, printable
from ...models.recording import Recording
from ...models.torch.forward import TorchForward
from ...tensor.note import Note
from ...tensor.snapshot import TensorSnapshot
from ...transforms.recipe import Recipe, template
from ..map.words import meaning
from .edits import Edit, edits_of, exchanges

TOLERANCE = 3e-4
"""The largest difference of an output, relative to the root mean square of its values."""

_TIED = "#tied"
_PROBES = 3
_MOST_ROUNDS = 6
_MOST_CHECKED = 256
_MOST_TRIED, _MOST_PAIRED, _MOST_PAIRS = 3000, 1500, 800
"""How many edits are tried for one target, how many of them are combined, and how many combinations are tried."""
_MOST_FIRST, _MOST_SECOND = 40, 80
"""How many of the edits that help most are tried with another, and with how many."""

Outcome = Literal["proved", "agrees", "differs"]


class Compared(NamedTuple):
    """An output on both sides, and the largest difference relative to its size."""

    name: str
    torch: str
    error: float
    ok: bool


class Suspect(NamedTuple):
    """What is probably mistaken: the Burn modules, the torch tensors, and whether outputs agree without the mistake."""

    modules: tuple[str, ...]
    what: str
    tensors: tuple[str, ...]
    explains: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """What the outputs show about a mapping.

    ``outcome`` is ``proved``; ``agrees`` if the outputs agree and would not show every mistake, see ``uncovered``; or
    ``differs``. ``module`` is the first Burn module whose output differs, where that is known or was found.
    """

    outcome: Outcome
    compared: list[Compared]
    module: str | None = None
    suspects: list[Suspect] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


class _Target(NamedTuple):
    """A recorded tensor, where torch has it, and whether it is the output of a module."""

    name: str
    torch: str
    array: Any
    is_inner: bool


def prove_recipe(
    recipe: Recipe,
    tensors: Mapping[str, TensorSnapshot],
    recording: Recording,
    model: Any,
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float = TOLERANCE,
    seconds: float = 60.0,
) -> Proof:
    """Return what the recorded outputs of a Burn model show about the recipe from torch's tensors to its own."""
    return _Prover(recipe, tensors, recording, model, names or {}, tolerance, seconds).proof()


class _Prover:
    def __init__(
        self,
        recipe: Recipe,
        tensors: Mapping[str, TensorSnapshot],
        recording: Recording,
        model: Any,
        names: Mapping[str, str],
        tolerance: float,
        seconds: float,
    ) -> None:
        self.forward = TorchForward(model, recording.inputs, names)
        self.torch = self.forward.torch
        self.tolerance = tolerance
        self.names = names
        self.recording = recording
        self.deadline = time.monotonic() + seconds
        self.notes: list[Note] = []
        self.burn: dict[str, list[str]] = {}
        """The Burn tensors of each torch tensor."""
        self.values = self._inverted(recipe, tensors)
        self._check_recorded()
        self.owned = {
            module: [name for name in names if name in self.values]
            for module, names in self.forward.modules_called().items()
        }
        self.targets: list[_Target] = []

    # --- invert

    def _inverted(self, recipe: Recipe, tensors: Mapping[str, TensorSnapshot]) -> dict[str, Any]:
        """Return the Burn values as torch has them; what is tied in torch keeps its own value of the Burn model."""
        rules = [
            replace(rule, sources=tuple(name + _TIED for name in rule.sources), tie=False) if rule.tie else rule
            for rule in recipe.rules
        ]
        back = Recipe(tuple(rules), recipe.source_layout, recipe.target_layout).inverse()
        followed = back.apply(tensors)
        values: dict[str, Any] = {}
        for name, (snapshot, origins, _) in followed.made.items():
            own, tied = name.removesuffix(_TIED), name.endswith(_TIED)
            places = self.forward.tied(own) if tied else [own]
            if tied and not places:
                raise ModelError(f"the mapping ties a tensor to it, and the torch model does not: {own!r}")
            value = snapshot.torch(copy=True)
            value = value.to(self.torch.float32) if value.is_floating_point() else value
            for place in places:
                if place in self.forward.own:
                    values[place] = value
                    self.burn[place] = [origin.source for origin in origins if origin.source is not None]
                elif not tied:
                    self._refuse(place, "the torch model has no such tensor", followed.made)
        dropped = [template(rule.sources[0]) for rule in recipe.rules if rule.drop is not None and rule.sources]
        for name in self.forward.stored:
            other = next((each for each in self.forward.tied(name) if each in values), None)
            if name not in values and other is not None:
                values[name], self.burn[name] = values[other], self.burn[other]
            elif name not in values and not any(form.match(name) is not None for form in dropped):
                if name in self.forward.parameters:
                    self._refuse(name, "the mapping gives this tensor of the torch model no value", followed.made)
                self.notes.append(Note("check", f"the buffer {name} has the value that the torch model gives it", name))
            expected = tuple(self.forward.own[name].shape)
            if name in values and tuple(values[name].shape) != expected:
                found = tuple(values[name].shape)
                raise ModelError(
                    f"the mapping gives it the shape {list(found)}, expected {list(expected)}", tensor=name
                )
        return values

    def _refuse(self, name: str, why: str, made: Mapping[str, Any]) -> None:
        own = next(iter(self.forward.stored), "none")
        raise ModelError(
            why,
            tensor=name,
            hint=f"the mapping names tensors such as {next(iter(made), 'none')!r}, the torch model {own!r}: "
            "give the model class that the checkpoint is of",
        )

    # --- compare

    def _check_recorded(self) -> None:
        for name, array in self.recording.outputs.items():
            if not np.isfinite(array).any() or array.size == 0:
                raise ModelError(f"the recorded output {name!r} has no finite number, so that it proves nothing")

    def _pair_targets(self, outputs: Mapping[str, Any]) -> None:
        for path, array in self.recording.inner.items():
            module = self._torch_module(path)
            if module is None:
                text = f"the intermediate output {path!r} was not compared: no module of torch is known for it"
                self.notes.append(Note("check", text, path))
            else:
                self.targets.append(_Target(path, module, array, True))
        for name, own in self.forward.pair_outputs(self.recording.outputs, outputs).items():
            self.targets.append(_Target(name, own, self.recording.outputs[name], False))

    def _torch_module(self, path: str) -> str | None:
        """Return the torch module of a Burn module: the one that has most of its tensors, and least of others."""
        stated = self.names.get(path)
        if stated is not None:
            self.forward.model.get_submodule(stated)
            return stated
        wanted = {name for name, burn in self.burn.items() if any(each.startswith(f"{path}.") for each in burn)}
        owned = self.owned
        shares = {module: len(wanted & {*names}) / len(wanted | {*names}) for module, names in owned.items()}
        best = max(shares.values(), default=0.0)
        if not wanted or best == 0.0:
            return path if path in dict(self.forward.model.named_modules()) else None
        return min((module for module, share in shares.items() if share == best), key=len)

    def _errors(self, values: Mapping[str, Any]) -> list[float]:
        return self._measured(values)[0]

    def _measured(
        self, values: Mapping[str, Any], targets: Sequence[_Target] | None = None
    ) -> tuple[list[float], list[Any]]:
        """Return how far each target is from what was recorded, and its numbers."""
        targets = self.targets if targets is None else targets
        modules = [target.torch for target in targets if target.is_inner]
        outputs, inner = self.forward.run(values, modules)
        errors, arrays = [], []
        for target in targets:
            tensor, wanted = (inner if target.is_inner else outputs).get(target.torch), target.array
            made = None if tensor is None else tensor.detach().to("cpu").numpy()
            if made is None or made.size != wanted.size:
                errors.append(math.inf)
                arrays.append(np.zeros(0))
                continue
            if made.shape != wanted.shape and target.is_inner:
                made = _in_shape(made, wanted)
            arrays.append(made.reshape(wanted.shape))
            errors.append(relative_error(arrays[-1], wanted))
        return errors, arrays

    def proof(self) -> Proof:
        """Compare, then search or cover."""
        outputs, _ = self.forward.run(self.values)
        self._pair_targets(outputs)
        errors = self._errors(self.values)
        unseen = [at for at, error in enumerate(errors) if error == math.inf and self.targets[at].is_inner]
        for target in (self.targets[at] for at in unseen):
            text = (
                f"the intermediate output {target.name!r} was not compared: torch's {target.torch!r} has another shape"
            )
            self.notes.append(Note("check", text, target.name))
        kept = [at for at in range(len(errors)) if at not in unseen]
        self.targets, errors = [self.targets[at] for at in kept], [errors[at] for at in kept]
        compared = [
            Compared(target.name, target.torch, error, error <= self.tolerance)
            for target, error in zip(self.targets, errors, strict=True)
        ]
        if any(not each.ok for each in compared if each.name in self.recording.outputs):
            return self._searched(compared, errors)
        for each in compared:
            if not each.ok:
                text = (
                    f"the intermediate output {each.name!r} differs from torch's {each.torch!r}, and the outputs agree"
                )
                self.notes.append(Note("check", text, each.name))
        uncovered = list(self._uncovered())
        return Proof("agrees" if uncovered else "proved", compared, uncovered=uncovered, notes=self.notes)

    # --- search

    def _searched(self, compared: list[Compared], errors: list[float]) -> Proof:
        """Return the proof that they differ, with the mistakes that explain it, found one after the other."""
        edits = edits_of(self.values, self.forward.head_counts())
        first = self.targets[next(at for at, each in enumerate(compared) if not each.ok)]
        suspects: list[Suspect] = []
        for _ in range(_MOST_ROUNDS):
            at = next((at for at, error in enumerate(errors) if error > self.tolerance), None)
            taken, errors = ([], errors) if at is None else self._best_edits(edits, at, errors)
            if not taken:
                break
            for edit in taken:
                suspects.append(self._suspect(edit))
                self._take(edit)
        solved = all(error <= self.tolerance for error in errors)
        suspects = [each._replace(explains=solved) for each in suspects]
        module = first.name if first.is_inner else None
        if module is None and suspects:
            module = _common(suspects[0].modules)
        if not solved:
            text = "no exchange, transposition or order of tensors explains the difference; "
            if first.is_inner:
                text += f"compare what {first.name!r} computes: activation, epsilon, mask, scale"
            else:
                text += "record intermediate outputs with Forward::inner, which show the first module that differs"
            self.notes.append(Note("hint", text))
        return Proof("differs", compared, module, suspects, notes=self.notes)

    def _take(self, edit: Edit) -> None:
        """Continue with the tensors as they are without a mistake."""
        self.values = {**self.values, **edit.make(self.values)}
        self.burn = self._burn_after(edit)
        self.targets = self._retargeted(edit)

    def _burn_after(self, edit: Edit) -> dict[str, list[str]]:
        return {**self.burn, **{name: self.burn[other] for name, other in edit.moves.items()}}

    def _retargeted(self, edit: Edit) -> list[_Target]:
        """Return the targets where an exchange of whole modules puts them."""
        inner = [target for target in self.targets if target.is_inner]
        moved = {*edit.moves}
        if not any(moved >= {*self.owned[target.torch]} for target in inner if target.torch in self.owned):
            return self.targets
        known, self.burn = self.burn, self._burn_after(edit)
        targets = [
            target._replace(torch=self._torch_module(target.name) or target.torch) if target.is_inner else target
            for target in self.targets
        ]
        self.burn = known
        return targets

    def _best_edits(self, edits: Sequence[Edit], at: int, errors: list[float]) -> tuple[Sequence[Edit], list[float]]:
        """Return the edit that makes a target agree and worsens none before, or two of them, or what helps most."""
        best: tuple[Sequence[Edit], list[float]] = ([], errors)
        least = 0.7 * errors[at]
        tried: list[Edit] = []
        helpful: list[tuple[float, Edit]] = []
        changes: list[Any] = []
        _, arrays = self._measured(self.values)
        wanted = _sampled(self.targets[at].array)
        before = _sampled(arrays[at])
        for edit in self._ranked(edits, at)[:_MOST_TRIED]:
            if self._is_late():
                break
            try:
                after, arrays = self._measured({**self.values, **edit.make(self.values)}, self._retargeted(edit))
            except ModelError:  # such a model computes nothing
                continue
            if any(error > self.tolerance for error in after[:at]):
                continue
            if after[at] <= self.tolerance:
                return [edit], after
            if after[at] < least:
                best, least = ([edit], after), after[at]
            change = _sampled(arrays[at])
            if change.shape == wanted.shape:
                helpful.append((float(np.linalg.norm(np.nan_to_num(wanted - change))), edit))
            if change.shape == before.shape and len(tried) < _MOST_PAIRED:
                tried.append(edit)
                changes.append(change - before)
        pair = (
            self._best_pair(tried, changes, wanted - before, at) if changes and wanted.shape == before.shape else None
        )
        ordered = [edit for _, edit in sorted(helpful, key=lambda row: row[0])]
        return pair or self._second_edit(edits, ordered, at) or best

    def _second_edit(
        self, edits: Sequence[Edit], firsts: Sequence[Edit], at: int
    ) -> tuple[Sequence[Edit], list[float]] | None:
        """Return two edits that make a target agree: one of those that help most, and one that is ranked after it."""
        known = self.values, self.burn, self.targets
        for first in firsts[:_MOST_FIRST]:
            try:
                self._take(first)
                for second in self._ranked(edits, at)[:_MOST_SECOND]:
                    if self._is_late():
                        return None
                    values = {**self.values, **second.make(self.values)}
                    after, _ = self._measured(values, self._retargeted(second))
                    if all(error <= self.tolerance for error in after[: at + 1]):
                        return [first, second], after
            except ModelError:  # such a model computes nothing
                continue
            finally:
                self.values, self.burn, self.targets = known
        return None

    def _best_pair(
        self, tried: Sequence[Edit], changes: Sequence[Any], aim: Any, at: int
    ) -> tuple[Sequence[Edit], list[float]] | None:
        """Return two edits that make a target agree together: their changes, tried one by one, add up to what lacks."""
        rows = np.stack(changes)
        rows, aim = np.nan_to_num(rows), np.nan_to_num(aim)
        sizes = np.einsum("ij,ij->i", rows, rows)
        toward = rows @ aim
        misses = 2 * (rows @ rows.T) + (sizes - 2 * toward)[:, None] + (sizes - 2 * toward)[None, :]
        misses[np.tril_indices(len(rows))] = np.inf
        for flat in np.argsort(misses, axis=None)[:_MOST_PAIRS]:
            one, other = divmod(int(flat), len(rows))
            if one >= other or self._is_late():
                break
            first, second = tried[one], tried[other]
            values = {**self.values, **first.make(self.values)}
            values.update(second.make(values))
            after, _ = self._measured(values)
            if all(error <= self.tolerance for error in after[: at + 1]):
                return [first, second], after
        return None

    def _is_late(self) -> bool:
        is_late = time.monotonic() > self.deadline
        if is_late and not any(note.subject == "search" for note in self.notes):
            self.notes.append(Note("check", "the search ended before all possible mistakes were tried", "search"))
        return is_late

    def _ranked(self, edits: Sequence[Edit], at: int) -> list[Edit]:
        """Return the edits that change something, the likeliest first: by slopes, they move a target as it should."""
        target = self.targets[at]
        slopes, wanted = self._residual_slopes(target)
        ranked: list[tuple[int, float, int, Edit]] = []
        for number, edit in enumerate(edits):
            made = edit.make(self.values)
            changes = {
                name: tensor - self.values[name]
                for name, tensor in made.items()
                if tensor is not self.values[name] and tensor.is_floating_point()
            }
            changes = {name: change for name, change in changes.items() if bool(change.any())}
            if not changes:
                continue
            if not slopes:
                ranked.append(((edit.order > 1) + (edit.order > 4), 0.0, number, edit))
                continue
            moved = [
                sum(float((slope[name] * change).sum()) for name, change in changes.items() if name in slope)
                for slope in slopes
            ]
            is_felt = any(name not in slopes[0] or bool(slopes[0][name].any()) for name in changes)
            is_felt = is_felt or self._retargeted(edit) is not self.targets
            if is_felt:
                miss = sum((aim - move) ** 2 for aim, move in zip(wanted, moved, strict=True))
                ranked.append(((edit.order > 1) + (edit.order > 4), miss, number, edit))
        return [edit for *_, edit in sorted(ranked, key=lambda row: row[:3])]

    def _residual_slopes(self, target: _Target) -> tuple[list[dict[str, Any]], list[float]]:
        """Return how random combinations of a target change with every tensor, and how they have to change."""
        modules = [target.torch] if target.is_inner else []
        own = {name: each.detach().clone() for name, each in self.values.items()}
        floats = self._with_slopes(own)
        try:
            outputs, inner = self.forward.run({**own, **floats}, modules, grad=True)
        except ModelError:
            return [], []
        tensor = (inner if target.is_inner else outputs).get(target.torch)
        if tensor is None or not tensor.requires_grad or tensor.numel() != target.array.size:
            return [], []
        made = _in_shape(tensor.detach().numpy(), target.array) if target.is_inner else tensor.detach().numpy()
        if made.shape != tuple(tensor.shape):
            return [], []
        residual = self.torch.from_numpy(_finite(target.array.reshape(made.shape)) - _finite(made))
        generator = self.torch.Generator().manual_seed(1)
        slopes, wanted = [], []
        for _ in range(2 * _PROBES):
            signs = self.torch.randint(0, 2, tensor.shape, generator=generator) * 2.0 - 1.0
            total = (self.torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0) * signs).sum()
            found = self.torch.autograd.grad(total, list(floats.values()), retain_graph=True, allow_unused=True)
            slopes.append(
                {
                    name: self.torch.zeros_like(each) if grad is None else grad
                    for (name, each), grad in zip(floats.items(), found, strict=True)
                }
            )
            wanted.append(float((residual * signs).sum()))
        return slopes, wanted

    def _suspect(self, edit: Edit) -> Suspect:
        burn = [name for torch in edit.names for name in self.burn.get(torch, ())]
        modules = tuple(dict.fromkeys(name.rpartition(".")[0] for name in burn))
        return Suspect(modules, edit.what, edit.names, explains=False)

    # --- cover

    def _uncovered(self) -> Iterator[str]:
        """Yield what agreeing outputs do not prove: exchanges and orders that would not change them."""
        slopes = self._slopes()
        checked = 0
        silent: dict[str, str] = {}
        for name, tensor in self.values.items():
            if slopes is not None and name in slopes[0]:
                is_silent = not any(bool(slope[name].any()) for slope in slopes)
            else:
                is_silent = max(self._errors({**self.values, name: tensor * 1.25 + 0.1})) <= self.tolerance
            if is_silent:
                silent[name] = "does not influence the outputs"
        invariant = {name for name in self.values if self._is_key_bias(name)}
        if invariant:
            text = "biases of keys have no influence: a softmax does not see what is added to all of its inputs"
            self.notes.append(Note("check", text))
        silent = {name: why for name, why in silent.items() if name not in invariant}
        doubts = [edit for edit in self._doubts() if not invariant.issuperset(edit.names)]
        edits = [edit for edit in doubts if not any(name in silent for name in edit.names)]
        for edit in edits:
            made = edit.make(self.values)
            first = edit.names[0]
            if all(bool((self.values[name] == tensor).all()) for name, tensor in made.items()):
                if edit.what == "exchanged":
                    silent.setdefault(first, f"has the same values as {self._shown(edit.names[1])}")
                elif bool((self.values[first] == self.values[first].flatten()[0]).all()):
                    silent.setdefault(first, "has one value everywhere, so that no order of it shows")
                continue
            if slopes is not None and not made.keys() <= slopes[0].keys():
                continue  # statistics of norms, which influence the outputs, with other values
            if slopes is not None and self._effect(slopes, made) > 2 * self.tolerance:
                continue
            checked += 1
            if checked > _MOST_CHECKED or time.monotonic() > self.deadline:
                self.notes.append(Note("check", "not every exchange was tried that might not change the outputs"))
                break
            if max(self._errors({**self.values, **made})) <= self.tolerance:
                silent.setdefault(first, f"may be mistaken without a trace: {self._described(edit)}")
        for name, why in silent.items():
            yield f"{self._shown(name)} {why}"

    def _is_key_bias(self, name: str) -> bool:
        owners = [burn.rpartition(".")[0] for burn in self.burn.get(name, ())]
        words = {word for owner in owners for word in meaning(owner)}
        return name.endswith("bias") and "key" in words and len(owners) == 1 and "attention" in words

    def _doubts(self) -> Iterator[Edit]:
        yield from exchanges(self.values)
        edits = edits_of(self.values, self.forward.head_counts())
        yield from (edit for edit in edits if len(edit.names) == 1 or edit.what.startswith("the rotary"))

    def _described(self, edit: Edit) -> str:
        if edit.what == "exchanged":
            return f"exchanged with {self._shown(edit.names[1])}"
        return edit.what

    def _shown(self, name: str) -> str:
        return printable(", ".join(self.burn.get(name, ())) or name)

    def _slopes(self) -> list[dict[str, Any]] | None:
        """Return how random combinations of the outputs change with every tensor; None if torch cannot tell."""
        generator = self.torch.Generator().manual_seed(0)
        own = {name: each.detach().clone() for name, each in self.values.items()}
        floats = self._with_slopes(own)
        outputs, _ = self.forward.run({**own, **floats}, grad=True)
        slopes = []
        for _ in range(_PROBES):
            total = None
            for target in self.targets:
                tensor = None if target.is_inner else outputs.get(target.torch)
                if tensor is None or not tensor.is_floating_point():
                    continue
                signs = self.torch.randint(0, 2, tensor.shape, generator=generator) * 2.0 - 1.0
                finite = self.torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)
                scale = float(np.sqrt(np.mean(np.square(_finite(target.array))))) or 1.0
                part = (finite * signs).sum() / (scale * math.sqrt(max(tensor.numel(), 1)))
                total = part if total is None else total + part
            if total is None or not total.requires_grad:
                return None
            found = self.torch.autograd.grad(total, list(floats.values()), retain_graph=True, allow_unused=True)
            slope = {
                name: self.torch.zeros_like(each) if grad is None else grad
                for (name, each), grad in zip(floats.items(), found, strict=True)
            }
            slopes.append(slope)
        return slopes

    def _with_slopes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors that torch differentiates by: parameters, but not the statistics of norms."""
        return {
            name: tensor.requires_grad_()
            for name, tensor in values.items()
            if tensor.is_floating_point() and name in self.forward.parameters
        }

    def _effect(self, slopes: Sequence[Mapping[str, Any]], made: Mapping[str, Any]) -> float:
        return max(
            abs(sum(float((slope[name] * (tensor - self.values[name])).sum()) for name, tensor in made.items()))
            for slope in slopes
        )


def relative_error(made: Any, wanted: Any) -> float:
    """Return the largest difference, relative to the root mean square of what is wanted; infinities must be equal.

    >>> relative_error(np.array([1.0, 2.5]), np.array([1.0, 2.0])) < 0.4, relative_error(np.ones(2), np.ones(2))
    (True, 0.0)
    """
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(made, wanted) else math.inf
    made = made.astype(np.float64)
    wanted = wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(made)) or not np.array_equal(
        made[~finite], wanted[~finite], equal_nan=True
    ):
        return 1e30
    if not finite.any():
        return 0.0
    scale = float(np.sqrt(np.mean(np.square(wanted[finite])))) or 1.0
    return float(np.max(np.abs(made[finite] - wanted[finite]))) / scale


def _sampled(array: Any) -> Any:
    """Return some of the numbers of an array, for the comparison of many."""
    flat = np.asarray(array, np.float64).reshape(-1)
    return flat[:: max(1, len(flat) // 512)]


def _finite(array: Any) -> Any:
    numbers = np.asarray(array, np.float64)
    return np.where(np.isfinite(numbers), numbers, 0.0)


def _in_shape(made: Any, wanted: Any) -> Any:
    """Return an intermediate output with the axes of the recorded one: Burn may have channels or batches elsewhere."""
    from itertools import permutations

    if made.ndim > 5 or sorted(made.shape) != sorted(wanted.shape):
        return made
    turned = [made.transpose(order) for order in permutations(range(made.ndim))]
    fitting = [each for each in turned if each.shape == wanted.shape]
    return min(fitting, key=lambda each: relative_error(each, wanted), default=made)


def _common(paths: Sequence[str]) -> str | None:
    """Return the module that holds all of these, or the first if none does."""
    if not paths:
        return None
    shared = paths[0].split(".")
    for path in paths[1:]:
        segments = path.split(".")
        count = next((at for at, (a, b) in enumerate(zip(shared, segments, strict=False)) if a != b), None)
        shared = shared[: min(len(shared), len(segments)) if count is None else count]
    below = [path.split(".")[len(shared) :] for path in paths]
    is_list = any(
        segments and segments[0].isdecimal() for segments in below
    )  # entries of a list have no module in common
    return paths[0] if is_list else ".".join(shared) or paths[0]
