"""Edits: what may be wrong with a mapping whose shapes fit. Each edit changes the tensors of the torch model.

An edit that makes outputs agree shows the mistake. An edit that does not change agreeing outputs shows what they do not
prove. Changes of whole families (the same layer of every block) come first, because a rule maps a family.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ..map.words import meaning

Values = Mapping[str, Any]
_PLACE = re.compile(r"(?<![^.])\d+(?![^.])")
"""A place in a list: a number that is a segment of its own. ``bn1`` and ``bn2`` are two families, not one."""
_MOST_SIBLINGS = 6


class Edit(NamedTuple):
    """A change of some tensors: what was probably mistaken, and how the tensors are without the mistake."""

    what: str
    names: tuple[str, ...]
    make: Callable[[Values], dict[str, Any]]
    order: int = 0
    """Where the mistake is searched: families of layers before single layers, and those before single tensors."""

    moves: Mapping[str, str] = MappingProxyType({})
    """Of an exchange: the tensor whose values each one gets."""


def edits_of(values: Values, heads: Sequence[int]) -> list[Edit]:
    """Return the edits that keep all shapes; ``heads`` are the counts of heads that rotary features may have."""
    units = _units(values)
    found = [
        *_rotary(values, heads),
        *_transposed(values),
        *_exchanged_families(values, units),
        *_cycles(values, units),
        *_lists(values),
        *_fused(values, heads),
        *_added_ones(values),
        *_exchanged(units, values),
    ]
    return sorted(found, key=lambda edit: edit.order)


# --- groups of names --------------------------------------------------------------------------------------------------


def _form(name: str) -> str:
    return _PLACE.sub("#", name)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, _PLACE.findall(name)))


def _units(values: Values) -> dict[str, dict[str, str]]:
    """Return the tensors of each layer by their last names."""
    units: dict[str, dict[str, str]] = {}
    for name in values:
        owner, _, leaf = name.rpartition(".")
        units.setdefault(owner, {})[leaf] = name
    return units


def _families(names: Iterable[str]) -> dict[str, dict[tuple[int, ...], str]]:
    families: dict[str, dict[tuple[int, ...], str]] = {}
    for name in names:
        families.setdefault(_form(name), {})[_numbers(name)] = name
    return families


def _shape_of_unit(leaves: Mapping[str, str], values: Values) -> tuple[object, ...]:
    return tuple(sorted((leaf, tuple(values[name].shape)) for leaf, name in leaves.items()))


def _moved(moves: Mapping[str, str]) -> Callable[[Values], dict[str, Any]]:
    """Return what gives each name the values of another."""
    return lambda values: {name: values[other] for name, other in moves.items()}


def _changed(names: Sequence[str], change: Callable[[Any], Any]) -> Callable[[Values], dict[str, Any]]:
    return lambda values: {name: change(values[name]) for name in names}


def _exchange(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: other for one, two in pairs for name, other in ((one, two), (two, one))}


# --- kinds of mistakes ------------------------------------------------------------------------------------------------


def _rotary(values: Values, heads: Sequence[int]) -> Iterator[Edit]:
    """Yield the other order of rotary features, for all queries and keys, for each family, and for each tensor."""
    for form, members in _rotated_groups(values).items():
        for count, to in itertools.product(heads, ("pairs", "halves")):
            if all(values[name].shape[0] % (2 * count) == 0 for name in members):
                change = _pairs(count) if to == "pairs" else _halves(count)
                what = f"the rotary features of {count} heads have the other order"
                order = 0 if form == "" else 1 if len(members) > 1 else 3
                yield Edit(what, tuple(members), _changed(members, change), order)


def _rotated_groups(values: Values) -> dict[str, list[str]]:
    rotated = [
        name
        for name, tensor in values.items()
        if tensor.ndim in (1, 2) and not {"query", "key"}.isdisjoint(meaning(name.rpartition(".")[0]))
    ]
    groups: dict[str, list[str]] = {"": rotated} if rotated else {}
    for name in rotated:
        groups.setdefault(_form(name), []).append(name)
    singles = {name: [name] for members in list(groups.values()) if len(members) > 1 for name in members}
    return groups | singles


def _pairs(heads: int) -> Callable[[Any], Any]:
    def change(tensor: Any) -> Any:
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)

    return change


def _halves(heads: int) -> Callable[[Any], Any]:
    def change(tensor: Any) -> Any:
        pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)

    return change


def _transposed(values: Values) -> Iterator[Edit]:
    square = [name for name, tensor in values.items() if tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1] > 1]
    families: dict[str, list[str]] = {"": square} if square else {}
    for name in square:
        families.setdefault(_form(name), []).append(name)
    for form, names in families.items():
        order = 0 if form == "" else 1
        yield Edit("the matrix is transposed", tuple(names), _changed(names, lambda tensor: tensor.T), order)
        for name in names if form and len(names) > 1 else ():
            yield Edit("the matrix is transposed", (name,), _changed([name], lambda tensor: tensor.T), 2)


def _exchanged_families(values: Values, units: Mapping[str, Mapping[str, str]]) -> Iterator[Edit]:
    families = [(form, members) for form, members in _families(units).items() if len(members) > 1]
    for (_, ones), (_, others) in itertools.combinations(families, 2):
        if ones.keys() == others.keys() and all(
            _shape_of_unit(units[ones[at]], values) == _shape_of_unit(units[others[at]], values) for at in ones
        ):
            pairs = [
                (units[ones[at]][leaf], units[others[at]][leaf]) for at in ones for leaf in sorted(units[ones[at]])
            ]
            yield _exchange_edit(pairs, 1)
    tensors = [(form, members) for form, members in _families(values).items() if len(members) > 1]
    for (_, ones), (_, others) in itertools.combinations(tensors, 2):
        if ones.keys() == others.keys() and all(values[ones[at]].shape == values[others[at]].shape for at in ones):
            yield _exchange_edit([(ones[at], others[at]) for at in ones], 2)


def _exchange_edit(pairs: Sequence[tuple[str, str]], order: int) -> Edit:
    moves = _exchange(pairs)
    return Edit("exchanged", tuple(moves), _moved(moves), order, moves)


def _cycles(values: Values, units: Mapping[str, Mapping[str, str]]) -> Iterator[Edit]:
    """Yield three layers side by side that took each other's places in a circle, such as query, key and value."""
    siblings: dict[tuple[str, tuple[object, ...]], list[str]] = {}
    for path, leaves in units.items():
        siblings.setdefault((path.rpartition(".")[0], _shape_of_unit(leaves, values)), []).append(path)
    families: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for members in siblings.values():
        if 3 <= len(members) <= _MOST_SIBLINGS:
            for trio in itertools.combinations(members, 3):
                families.setdefault(tuple(map(_form, trio)), []).append(trio)
    for trios in families.values():
        for group in [trios, *([trio] for trio in trios)] if len(trios) > 1 else [trios]:
            for turn in (1, 2):
                moves = {
                    units[trio[at]][leaf]: units[trio[(at + turn) % 3]][leaf]
                    for trio in group
                    for at in range(3)
                    for leaf in units[trio[at]]
                }
                yield Edit("exchanged in a circle", tuple(moves), _moved(moves), 1 if len(group) > 1 else 2, moves)


def _lists(values: Values) -> Iterator[Edit]:
    """Yield lists in another order: reversed, shifted by one, and two entries exchanged."""
    entries: dict[tuple[str, str], dict[int, dict[str, str]]] = {}
    for name in values:
        segments = name.split(".")
        for at, segment in enumerate(segments[:-1]):
            numbered = re.fullmatch(r"(\D*)(\d+)", segment)
            if numbered is not None:
                owner = ".".join(segments[:at]), numbered[1]
                below = ".".join(segments[at + 1 :])
                entries.setdefault(owner, {}).setdefault(int(numbered[2]), {})[below] = name
    for places in entries.values():
        alike: dict[tuple[object, ...], list[int]] = {}
        for number, leaves in places.items():
            alike.setdefault(_shape_of_unit(leaves, values), []).append(number)
        for numbers in alike.values():
            numbers.sort()
            orders = {tuple(reversed(numbers)), tuple(numbers[1:] + numbers[:1]), tuple(numbers[-1:] + numbers[:-1])}
            if len(numbers) > 2:
                for order in orders:
                    yield _ordered(places, numbers, order, "the list has another order", 1)
            for one, other in itertools.combinations(numbers, 2):
                yield _ordered(places, (one, other), (other, one), "exchanged", 2)


def _ordered(
    places: Mapping[int, Mapping[str, str]], numbers: Sequence[int], others: Sequence[int], what: str, order: int
) -> Edit:
    moves = {
        name: places[other][below]
        for number, other in zip(numbers, others, strict=True)
        if number != other
        for below, name in places[number].items()
    }
    return Edit(what, tuple(moves), _moved(moves), order, moves)


def _fused(values: Values, heads: Sequence[int]) -> Iterator[Edit]:
    """Yield other orders of the parts of fused projections: another order of the three, or within each head."""
    families: dict[str, list[str]] = {}
    for name in values:
        owner, _, leaf = name.rpartition(".")
        if "qkv" in meaning(owner) or leaf.startswith("in_proj_") or "qkv" in meaning(name):
            families.setdefault(_form(name), []).append(name)
    for names in families.values():
        for axis in (0, 1):
            if not all(values[name].ndim > axis and values[name].shape[axis] % 3 == 0 for name in names):
                continue
            for order in itertools.permutations(range(3)):
                if order != (0, 1, 2):
                    change = _parts(order, axis)
                    what = "the parts of the fused projection have another order"
                    yield Edit(what, tuple(names), _changed(names, change), 1)
            for count in heads:
                if all(values[name].shape[axis] % (3 * count) == 0 for name in names) and count > 1 and axis == 0:
                    for change in (_within_heads(count, 3), _within_heads(3, count)):
                        what = f"the parts of the fused projection are within each of {count} heads, or not"
                        yield Edit(what, tuple(names), _changed(names, change), 1)


def _parts(order: Sequence[int], axis: int) -> Callable[[Any], Any]:
    def change(tensor: Any) -> Any:
        size = tensor.shape[axis] // 3
        parts = tensor.movedim(axis, 0).reshape(3, size, -1)[list(order)]
        shape = [tensor.shape[axis], *(extent for at, extent in enumerate(tensor.shape) if at != axis)]
        return parts.reshape(shape).movedim(0, axis)

    return change


def _within_heads(outer: int, inner: int) -> Callable[[Any], Any]:
    def change(tensor: Any) -> Any:
        size = tensor.shape[0] // outer // inner
        return tensor.reshape(outer, inner, size, -1).transpose(0, 1).reshape(tensor.shape)

    return change


def _added_ones(values: Values) -> Iterator[Edit]:
    families: dict[str, list[str]] = {}
    for name, tensor in values.items():
        if tensor.ndim == 1 and name.endswith("weight") and tensor.is_floating_point():
            families.setdefault(_form(name), []).append(name)
    every = [name for names in families.values() for name in names]
    for names in [every, *families.values()] if len(families) > 1 else families.values():
        for sign in (1.0, -1.0):
            what = f"the scale is stored with {'+' if sign < 0 else '-'}1"
            yield Edit(what, tuple(names), _changed(names, partial(operator.add, sign)), 1)


def _exchanged(units: Mapping[str, Mapping[str, str]], values: Values) -> Iterator[Edit]:
    """Yield every exchange of two layers, and of two tensors, of the same shapes; near ones come first."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for path, leaves in units.items():
        if len(leaves) > 1:
            alike.setdefault(_shape_of_unit(leaves, values), []).append(path)
    for paths in alike.values():
        for one, other in itertools.combinations(paths, 2):
            yield _exchange_edit([(units[one][leaf], units[other][leaf]) for leaf in units[one]], 3)
    yield from exchanges(values)


def exchanges(values: Values) -> Iterator[Edit]:
    """Yield every exchange of two tensors of one shape and dtype."""
    shapes: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in values.items():
        shapes.setdefault((tuple(tensor.shape), tensor.dtype), []).append(name)
    for names in shapes.values():
        for one, other in itertools.combinations(names, 2):
            is_same = one.rpartition(".")[2] == other.rpartition(".")[2]
            yield _exchange_edit([(one, other)], 4 if is_same else 5)
