"""Units: what is paired. On either side a unit is a layer with its weight and bias, or a bare parameter."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...models.outline import Outline
from ...tensor.data import Shape
from ...transforms.layout import GATES, ModuleKind, named_children
from .words import meaning, roles_below, spoken, table

_LEAVES = ("weight", "bias", "running_mean", "running_var")
_TORCH_LEAF = {"gamma": "weight", "beta": "bias", "alpha": "weight"}
_NUMBER = re.compile(r"(.*?)(\d+)")
_RECURRENT = re.compile(r"(?:(.+)\.)?(weight|bias)_(ih|hh)_l(\d+)(_reverse)?")
_TRANSFORMS = {"ih": "input_transform", "hh": "hidden_transform"}


class Part(NamedTuple):
    """A tensor of a unit: its names in the file, its shape, and which part of the file's tensor it is."""

    names: tuple[str, ...]
    shape: Shape
    cut: tuple[int, int, int] | None = None
    """Axis, start and stop; None for the whole."""

    folded: int = 0
    """The axis of weight norm, of which two names are magnitude and direction."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A layer or a bare parameter (whose only tensor has no name of its own)."""

    path: str
    tensors: Mapping[str, Part]
    kind: str | None = None
    shown: str = ""
    """The path with roles in place of names that mean something else, and without enum variants."""

    is_transposed: bool = False
    """Whether Burn keeps the weight transposed against PyTorch."""

    has_outputs_last: bool = False
    """Whether the bias proves that a matrix of the source has its outputs last, as GPT-2's Conv1D has.

    Without a bias a matrix counts as a Linear's: of two matrices of mirrored shapes each would fit the other's place.
    """

    @property
    def numel(self) -> int:
        """The number of elements."""
        return sum(math.prod(part.shape) for part in self.tensors.values())

    @property
    def name(self) -> str:
        """The layer in the file, wherever it was moved to."""
        names = [part.names[0] for part in self.tensors.values()]
        return names[0] if "" in self.tensors else names[0].rpartition(".")[0] or names[0]

    def below(self, prefix: str) -> str:
        """Return the shown path relative to a module."""
        return self.shown[len(prefix) + 1 :] if prefix else self.shown


class Run(NamedTuple):
    """Modules that are numbered: ``blocks.0``, ``blocks.1`` or ``layer1``, ``layer2``."""

    path: str
    stem: str
    numbers: tuple[int, ...]

    def entry(self, at: int) -> str:
        """Return the path of an entry."""
        name = f"{self.stem}{self.numbers[at]}"
        return f"{self.path}.{name}" if self.path else name

    def holds(self, other: Run) -> bool:
        """Return whether another run is in one of the entries."""
        entries = [self.entry(at) for at in range(len(self.numbers))]
        return self is not other and any(f"{other.entry(0)}.".startswith(f"{entry}.") for entry in entries)


# --- the source -------------------------------------------------------------------------------------------------------


def source_units(shapes: Mapping[str, Shape]) -> tuple[list[Unit], dict[str, str]]:
    """Return the units of a PyTorch file, and its tensors that are computed buffers, with the reason to drop them."""
    grouped: dict[str, dict[str, Part]] = {}
    buffers: dict[str, str] = {}
    names = list(shapes)
    if names == sorted(names):  # a writer sorted them: the order of the modules is lost, that of numbers is not
        names.sort(key=natural)
    for name in names:
        shape = shapes[name]
        reason = table()["buffers"].get(spoken(name.rpartition(".")[2]))
        if reason is not None:
            buffers[name] = reason
            continue
        path, leaf = _place(name)
        grouped.setdefault(path, {})[leaf] = Part((name,), shape)
    units = list(_gates(grouped))
    for path, tensors in grouped.items():
        if "magnitude" in tensors and "direction" in tensors:
            magnitude, direction = tensors.pop("magnitude"), tensors.pop("direction")
            axes = [axis for axis, size in enumerate(magnitude.shape) if size != 1]
            axis = axes[0] if len(axes) == 1 else 0
            tensors["weight"] = Part((*magnitude.names, *direction.names), direction.shape, folded=axis)
        units.append(Unit(path, tensors, shown=path, has_outputs_last=_outputs_last(tensors)))
    return units, buffers


def _gates(grouped: dict[str, dict[str, Part]]) -> Iterator[Unit]:
    """Take the tensors of PyTorch's recurrent layers, and yield their gates as the layers that Burn has for them."""
    layers: dict[str, dict[tuple[int, bool], dict[tuple[str, str], Part]]] = {}
    for path in grouped:
        found = _RECURRENT.fullmatch(path)
        if found is not None:
            place = int(found[4]), found[5] is not None
            held = layers.setdefault(found[1] or "", {}).setdefault(place, {})
            held[found[3], found[2]] = grouped[path][""]
    kinds = {len(gates): gates for gates in GATES.values()}
    for owner, places in layers.items():
        counts = {_gate_count(held) for held in places.values()}
        gates = kinds.get(counts.pop()) if len(counts) == 1 else None
        if gates is None or f"{owner}.weight_hr_l0".lstrip(".") in grouped:  # not a layer that Burn has
            continue
        for (number, is_reverse), held in places.items():
            for part in held.values():
                del grouped[part.names[0]]
            above = [owner] if owner else []
            above += [str(number)] if max(places)[0] else []
            above += ["reverse" if is_reverse else "forward"] if any(side for _, side in places) else []
            for at, gate in enumerate(gates):
                for short, name in _TRANSFORMS.items():
                    tensors = {}
                    for leaf in ("weight", "bias"):
                        if (short, leaf) in held:
                            names, shape, *_ = held[short, leaf]
                            size = shape[0] // len(gates)
                            tensors[leaf] = Part(names, (size, *shape[1:]), (0, at * size, at * size + size))
                    unit = ".".join([*above, gate, name])
                    yield Unit(unit, tensors, shown=unit)


def _gate_count(held: Mapping[tuple[str, str], Part]) -> int:
    """Return how many gates the weights of a recurrent layer have; 0 if they are none of PyTorch's."""
    inputs, hidden = (held[short, "weight"].shape if (short, "weight") in held else () for short in ("ih", "hh"))
    if len(inputs) != 2 or len(hidden) != 2 or inputs[0] != hidden[0] or not hidden[1] or hidden[0] % hidden[1]:
        return 0
    return hidden[0] // hidden[1] if all(part.shape[0] == hidden[0] for part in held.values()) else 0


def _place(name: str) -> tuple[str, str]:
    """Return the unit that a tensor of a source belongs to, and what it is there; a bare parameter has no name."""
    owner, _, leaf = name.rpartition(".")
    for ending, part in (("_g", "magnitude"), ("_v", "direction")):
        if leaf == f"weight{ending}":
            return owner, part
    if owner.endswith("parametrizations.weight") and leaf in ("original0", "original1"):
        return owner.removesuffix("parametrizations.weight").rstrip("."), ("magnitude", "direction")[int(leaf[-1])]
    if leaf.startswith("in_proj_"):
        return f"{owner}.in_proj" if owner else "in_proj", leaf.removeprefix("in_proj_")
    return (owner, leaf) if leaf in _LEAVES else (name, "")


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names by their size."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def with_roles(units: Sequence[Unit], prefix: str) -> list[str]:
    """Return the relative paths of units of a source, with its role beside a number that names a part of a layer."""
    paths = [unit.below(prefix) for unit in units]
    members: dict[str, list[str]] = {}
    for path in paths:
        segments = path.split(".")
        for at, segment in enumerate(segments):
            if segment.isdecimal():
                members.setdefault(".".join(segments[: at + 1]), []).append(".".join(segments[at + 1 :]))
    roles = {place: roles_below(names) for place, names in members.items()}
    shown = []
    for path in paths:
        segments = path.split(".")
        named = [
            " ".join([segment, *roles.get(".".join(segments[: at + 1]), ())]) for at, segment in enumerate(segments)
        ]
        shown.append(".".join(named))
    return shown


def source_runs(units: Iterable[Unit], prefix: str) -> list[Run]:
    """Return everything that is numbered below a module of a source."""
    found: dict[tuple[str, str], set[int]] = {}
    for unit in units:
        segments = unit.below(prefix).split(".")
        for at, segment in enumerate(segments):
            numbered = _NUMBER.fullmatch(segment)
            if numbered is not None:
                path = ".".join([prefix, *segments[:at]] if prefix else segments[:at])
                found.setdefault((path, numbered[1]), set()).add(int(numbered[2]))
    return [Run(path, stem, tuple(sorted(numbers))) for (path, stem), numbers in found.items()]


def split_units(units: Sequence[Unit], targets: Sequence[Unit]) -> list[Unit]:
    """Return the units with fused layers in parts, where the targets have those parts as layers of the same size."""
    by_parent: dict[str, dict[str, Unit]] = {}
    for target in targets:
        parent, _, name = target.shown.rpartition(".")
        by_parent.setdefault(parent, {})[_main_word(name)] = target
    result: list[Unit] = []
    for unit in units:
        words = table()["splits"].get(spoken(unit.path.rpartition(".")[2]))
        parts = None
        for members in by_parent.values() if words else ():
            wanted = [members.get(word) for word in words]
            parts = parts or (None if None in wanted else _parts(unit, words, wanted))  # type: ignore[arg-type]
        result += parts or [unit]
    return result


def _main_word(name: str) -> str:
    found = [word for word in ("query", "key", "value", "gate", "up") if word in meaning(name)]
    return found[0] if len(found) == 1 else name


def _parts(unit: Unit, words: Sequence[str], targets: Sequence[Unit]) -> list[Unit] | None:
    weight = unit.tensors.get("weight")
    layers = [target for target in targets if target.kind == "Linear" and "weight" in target.tensors]
    widths = [target.tensors["weight"].shape[-1] for target in layers]
    if weight is None or len(weight.shape) != 2 or len(widths) < len(words):
        return None
    inputs = targets[0].tensors["weight"].shape[0]
    axis = 0 if weight.shape == (sum(widths), inputs) else 1 if weight.shape == (inputs, sum(widths)) else None
    if axis is None or (weight.shape[0] == weight.shape[1]):
        return None
    made = []
    for at, word in enumerate(words):
        start, stop = sum(widths[:at]), sum(widths[: at + 1])
        tensors = {}
        for leaf, part in unit.tensors.items():
            along = axis if leaf == "weight" else 0
            if part.shape[along] != sum(widths):
                return None
            shape = (*part.shape[:along], stop - start, *part.shape[along + 1 :])
            tensors[leaf] = Part(part.names, shape, (along, start, stop))
        made.append(Unit(unit.path, tensors, shown=f"{unit.path.rpartition('.')[0]}.{word}".lstrip(".")))
    return made


# --- the outline ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetSide:
    """The units of a Burn model, its numbered modules, and its tensors."""

    units: list[Unit]
    runs: list[Run]
    shapes: Mapping[str, Shape]
    outline: Outline
    shown: dict[str, str] = field(default_factory=dict)
    """The shown path of every module."""


def target_side(shapes: Mapping[str, Shape], outline: Outline) -> TargetSide:
    """Return what is to be found: the layers of an outline, in their order."""
    shown = {"": ""}
    for path in outline.modules:
        shown[path] = _shown(path, outline, shown)
    kinds = outline.kinds
    grouped: dict[str, dict[str, Part]] = {}
    for name, shape in shapes.items():
        owner, _, leaf = name.rpartition(".")
        if _is_layer(kinds.get(owner)):
            grouped.setdefault(owner, {})[_TORCH_LEAF.get(leaf, leaf)] = Part((name,), shape)
        else:
            shown[name] = _shown(name, outline, shown)
            grouped[name] = {"": Part((name,), shape)}
    units = []
    for path, tensors in grouped.items():
        kind = None if "" in tensors else kinds[path].name
        is_turned = kind == "Linear" and outline.layouts.get(path) != "Col"
        units.append(Unit(path, tensors, kind, shown[path], is_turned))
    numbers: dict[tuple[str, str, str], list[int]] = {}
    for path, kind in outline.modules.items():
        owner, _, name = path.rpartition(".")
        found = _NUMBER.fullmatch(name)
        if name.isdecimal() and outline.modules.get(owner) in ("Vec", "Array", "Tuple"):
            numbers.setdefault((owner, "", ""), []).append(int(name))
        elif found is not None and not _is_layer(kinds.get(path)):  # block_1, block_2 of one type
            numbers.setdefault((owner, found[1], kind), []).append(int(found[2]))
    runs = [Run(*key[:2], tuple(sorted(found))) for key, found in numbers.items() if len(found) > 1 or not key[2]]
    return TargetSide(units, runs, shapes, outline, shown)


def _is_layer(kind: ModuleKind | None) -> bool:
    return kind is not None and kind.name not in table()["kinds"] and named_children(kind) is None


def _shown(path: str, outline: Outline, shown: Mapping[str, str]) -> str:
    """Return the path of a module with the roles that its owner gives it, and without variants."""
    owner, _, name = path.rpartition(".")
    above = shown.get(owner, owner)
    if owner in outline.variants:
        return above
    kind = outline.modules.get(owner, "").removeprefix("Struct:")
    roles = table()["kinds"].get(kind, {})
    declared = outline.kinds.get(owner)
    torch = name
    if declared is not None and (children := named_children(declared)) is not None:
        torch = next((torch for torch, burn in children if burn == name), name)
    role = roles.get(torch, name)
    return f"{above}.{role}" if above else role


def pairs_of(source: Unit, target: Unit) -> Iterator[tuple[Part, Part, str]]:
    """Yield the tensors of two units that belong together, with what is done to each.

    Raise ValueError if the units do not fit. What is done is ``""``, ``transpose``, ``reshape``, or ``square`` for a
    matrix of which the shape does not show whether it is transposed.
    """
    if source.tensors.keys() != target.tensors.keys():
        is_bare = len(source.tensors) == len(target.tensors) == 1 and ("" in source.tensors or target.kind is None)
        if not is_bare or not {"", *_LEAVES} >= source.tensors.keys():
            raise ValueError("other tensors")
    for leaf, wanted in target.tensors.items():
        given = source.tensors[leaf] if leaf in source.tensors else next(iter(source.tensors.values()))
        if target.is_transposed and leaf == "weight" and len(wanted.shape) == 2:
            yield given, wanted, _orientation(source, given, wanted.shape)
        else:
            yield given, wanted, _reshaped(given.shape, wanted.shape, is_bare=target.kind is None)


def _outputs_last(tensors: Mapping[str, Part]) -> bool:
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if weight is None or bias is None or len(weight.shape) != 2 or len(bias.shape) != 1:
        return False
    return weight.shape[0] != weight.shape[1] == bias.shape[0]


def _orientation(source: Unit, given: Part, wanted: Shape) -> str:
    """Return what is done to a matrix that becomes a Linear's; a bare parameter may have either orientation."""
    may_be_unchanged = source.has_outputs_last or "" in source.tensors or given.cut is not None
    if given.shape == wanted == wanted[::-1]:
        return "square"
    if given.shape == wanted and may_be_unchanged:
        return ""
    if given.shape == wanted[::-1] and not source.has_outputs_last:
        return "transpose"
    raise ValueError("another shape")


def _reshaped(given: Shape, wanted: Shape, *, is_bare: bool) -> str:
    if given == wanted:
        return ""
    if is_bare and [size for size in given if size != 1] == [size for size in wanted if size != 1]:
        return "reshape"
    raise ValueError("another shape")
