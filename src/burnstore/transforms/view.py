"""Views: a model's tensors as another layout has them, and back; one description for both directions.

A `LayoutView` is made from the tree of a model's modules. Saving writes what `to_burn` or `to_torch` gives, loading
matches against the very same: so a conversion happens exactly once, and there and back is bit-equal. All of it is lazy:
a tensor is cut, transposed or joined when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import ModelError, located
from ..tensor.data import Shape
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from .axes import joined, sliced, transposed
from .constant import check_constant, constant
from .layout import (
    AS_IS,
    SERIES,
    Link,
    ModuleKind,
    ModuleMap,
    always_has_biases,
    burn_map,
    child_kind,
    has_final_norm,
    holds_no_tensors,
    is_burn_fused,
    is_burn_leaf,
    is_known_torch,
    is_torch_leaf,
    named_children,
    stacked_map,
    torch_map,
)


@dataclass(slots=True)
class ModuleNode:
    """A module of a model: what it is, the tensors directly in it, and the modules in it that hold tensors.

    ``kind`` is None for a class of one's own, whose tensors no table knows.
    """

    kind: ModuleKind | None = None
    tensors: dict[str, Shape] = field(default_factory=dict)
    children: dict[str, ModuleNode] = field(default_factory=dict)

    def flat(self, prefix: str = "") -> Iterator[tuple[str, Shape]]:
        """All tensors in it with their paths."""
        for name, shape in self.tensors.items():
            yield prefix + name, shape
        for name, child in self.children.items():
            yield from child.flat(f"{prefix}{name}.")

    def all_tensors(self) -> Mapping[str, Shape]:
        """The same as one mapping."""
        return dict(self.flat()) if self.children else self.tensors


class PlacedModule(NamedTuple):
    """A module that is mapped as one, and its path in both layouts."""

    torch: str
    burn: str
    kind: ModuleKind | None
    map: ModuleMap


class Piece(NamedTuple):
    """A tensor that another one was made of, or one of its parts (the first is 0); ``path`` is None for zeros."""

    path: str | None
    transposed: bool = False
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """Tensors in the other layout, and which of those given were used for them."""

    snapshots: list[TensorSnapshot]
    used: set[str]
    incomplete: dict[str, list[str]]
    """Tensors that could not be made although some of what they need was given, and what they lack."""

    lost: list[str] = field(default_factory=list)
    """Tensors that PyTorch has in the modules that were seen, and Burn has not."""

    part_ids: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    """The ids of those tensors of Burn that one of PyTorch was made of, in the order of its parts."""

    made_of: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    """What each tensor was made of; nothing, where it is a constant."""

    constants: list[tuple[TensorSnapshot, float]] = field(default_factory=list)
    """Tensors that the other layout leaves out as they are one number throughout; whether so, `prove` tells."""

    def prove(self) -> None:
        """Read the constants; ModelError if one is none, and would have been lost."""
        for given, value in self.constants:
            check_constant(given, value)


class LayoutView:
    """The tensors of one model in PyTorch's and in Burn's layout."""

    def __init__(self, modules: Iterable[PlacedModule]) -> None:
        self.modules = list(modules)

    @property
    def as_they_are(self) -> list[str]:
        """The tensors of modules of no known kind; their names and axes are the same in both layouts."""
        unknown = (module for module in self.modules if module.kind is None)
        return [join(module.torch, link.torch) for module in unknown for link in module.map.links]

    def to_burn(
        self, snapshots: Mapping[str, TensorSnapshot], part_ids: Mapping[str, Sequence[int | None]] | None = None
    ) -> Seen:
        """Tensors of PyTorch's layout in Burn's, in Burn's order.

        ``part_ids`` are the ids that the parts of fused tensors have, where they are known.
        """
        seen = Seen([], set(), {})
        for module in self.modules:
            stack: tuple[str, ...] = ()
            dtype = DType.F32
            made: dict[str, TensorSnapshot] = {}
            for link in module.map.links:
                given = snapshots.get(join(module.torch, link.torch))
                if given is None:
                    continue
                seen.used.add(given.path)
                stack, dtype = (*given.container_stack[:-1], f"Struct:{module.map.owner}"), given.dtype
                ids = part_ids.get(given.path) if part_ids and link.parts > 1 else None
                path = join(module.burn, link.burn)
                seen.made_of[path] = (Piece(given.path, _is_turned(given, link), link.part, link.parts),)
                made[link.burn] = _part(given, link).replace(
                    path=path,
                    container_stack=stack if module.kind else None,
                    param_id=given._param_id if link.parts == 1 else ids[link.part] if ids else None,
                )
            lost = [join(module.torch, name) for name in module.map.lost]
            seen.used.update(lost)
            seen.lost.extend(lost)
            for fill in module.map.fills:
                path = join(module.burn, fill.burn)
                made[fill.burn] = constant(path, fill.shape, fill.value, dtype, stack)
                seen.made_of[path] = ()
            order = [name for name in module.map.order if name in made] if module.map.fills else made
            seen.snapshots.extend(made[name] for name in order)
        return seen

    def to_torch(self, snapshots: Mapping[str, TensorSnapshot]) -> Seen:
        """Tensors of Burn's layout in PyTorch's; what is fused there needs all of its parts.

        Those that PyTorch leaves out are read: ModelError if one is not the constant that PyTorch takes it for.
        """
        seen = self.in_torch(snapshots)
        seen.prove()
        return seen

    def in_torch(self, snapshots: Mapping[str, TensorSnapshot]) -> Seen:
        """As `to_torch`, but nothing is read: whoever goes on to read the tensors calls `prove` first."""
        seen = Seen([], set(), {})
        for module in self.modules:
            for fill in module.map.fills:
                given = snapshots.get(join(module.burn, fill.burn))
                if given is not None:
                    seen.constants.append((given, fill.value))
                    seen.used.add(given.path)
            for name, links in module.map.by_torch_name:
                _add_whole(seen, module, name, links, snapshots)
            if module.map.lost and any(join(module.burn, link.burn) in seen.used for link in module.map.links):
                seen.lost.extend(join(module.torch, name) for name in module.map.lost)
        return seen


def _add_whole(
    seen: Seen, module: PlacedModule, name: str, links: Sequence[Link], snapshots: Mapping[str, TensorSnapshot]
) -> None:
    """Add a tensor of PyTorch, which is made of one or several of Burn, to those that were seen."""
    path = join(module.torch, name)
    parts: list[TensorSnapshot] = []
    pieces: list[Piece] = []
    lacking: list[str] = []
    for link in links:
        place = join(module.burn, link.burn)
        given = snapshots.get(place)
        if given is not None:
            is_turned = _is_turned(given, link)
            parts.append(transposed(given) if is_turned else given)
            pieces.append(Piece(place, is_turned))
        elif (zeros := _zeros_for(place, link, links, module, snapshots)) is not None:
            parts.append(_turned(zeros, link))
            pieces.append(Piece(None))
        else:
            lacking.append(place)
            continue
        seen.used.add(place)
    if lacking:
        if parts:
            seen.incomplete[path] = lacking
        return
    seen.made_of[path] = tuple(pieces)
    if len(parts) == 1:
        whole = parts[0]
        seen.snapshots.append(whole.replace(path=path) if whole.path != path else whole)
        return
    with located(tensor=path):
        whole = joined(parts)
    seen.snapshots.append(whole.replace(path=path))
    ids = tuple(part._param_id for part in parts)
    if any(each is not None for each in ids):
        seen.part_ids[path] = ids


def _part(given: TensorSnapshot, link: Link) -> TensorSnapshot:
    with located(tensor=given.path):
        if link.parts > 1:
            rows = given.shape[0] if given.shape else 0
            if rows % link.parts:
                raise ModelError(f"its {rows} rows do not make {link.parts} equal parts")
            size = rows // link.parts
            given = sliced(given, 0, link.part * size, (link.part + 1) * size)
        return _turned(given, link)


def _turned(given: TensorSnapshot, link: Link) -> TensorSnapshot:
    """The tensor transposed, if the link says so; what is no matrix stays as it is, and will be found not to fit."""
    return transposed(given) if _is_turned(given, link) else given


def _is_turned(given: TensorSnapshot, link: Link) -> bool:
    return link.transposed and len(given.shape) == 2


def _zeros_for(
    path: str, link: Link, links: Sequence[Link], module: PlacedModule, snapshots: Mapping[str, TensorSnapshot]
) -> TensorSnapshot | None:
    """Zeros for a bias that Burn left out, in the form of the other parts of the same tensor; None if it may not."""
    if not any(fill.burn == link.burn for fill in module.map.fills):
        biases = (other.burn for other in module.map.links if other.zero_if_absent)
        if not link.zero_if_absent or not any(join(module.burn, bias) in snapshots for bias in biases):
            return None
    beside = next((found for link in links if (found := snapshots.get(join(module.burn, link.burn)))), None)
    if beside is not None:
        return constant(path, beside.shape, 0.0, beside.dtype, ())
    fill = next((fill for fill in module.map.fills if join(module.burn, fill.burn) == path), None)
    weight = snapshots.get(f"{path.rpartition('.')[0]}.weight")
    if weight is None:
        return None
    return constant(path, fill.shape if fill else weight.shape[1:], 0.0, weight.dtype, ())


_MOST_LEVELS = 256


def module_tree(tensors: Mapping[str, Shape], kinds: Mapping[str, ModuleKind | None]) -> ModuleNode:
    """The tree of modules that these tensors lie in, in the order of ``kinds`` as far as it goes.

    A module without tensors is part of it only where Burn has some for it.
    """
    root = ModuleNode(kinds.get(""))
    nodes = {"": root}

    def node_at(path: str) -> ModuleNode:
        node = nodes.get(path)
        if node is not None:
            return node
        segments = path.split(".")
        if len(segments) > _MOST_LEVELS:  # names may come from a file; what walks the tree is recursive
            raise ModelError(f"it lies {len(segments)} modules deep, more than {_MOST_LEVELS}", tensor=path)
        node = root
        for depth, segment in enumerate(segments, 1):
            child = node.children.get(segment)
            if child is None:
                child = node.children[segment] = ModuleNode(kinds.get(".".join(segments[:depth])))
            node = child
        nodes[path] = node
        return node

    for path in kinds:
        node_at(path)
    for path, shape in tensors.items():
        owner, _, name = path.rpartition(".")
        node_at(owner).tensors[name] = shape
    _prune(root)
    return root


def _prune(node: ModuleNode) -> bool:
    """Take away the modules that hold nothing; False if this one does not, either."""
    node.children = {name: child for name, child in node.children.items() if _prune(child)}
    filled = node.kind is not None and node.kind.option("features") is not None
    return bool(node.tensors or node.children or filled)


# --- the modules of a model in both layouts ---------------------------------------------------------------------------


def join(prefix: str, name: str) -> str:
    """A path of two parts, either of which may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def view_of_torch(root: ModuleNode) -> LayoutView:
    """The view of a model in PyTorch's layout."""
    view = LayoutView([])
    _place_torch(root, "", "", view.modules, all_biases=False)
    places: dict[str, str] = {}
    for module in view.modules:
        for link in module.map.links:
            place = join(module.burn, link.burn)
            if places.setdefault(place, module.torch) != module.torch:
                raise ModelError(
                    f"in Burn it would be {place!r}, and so would be a tensor of {places[place]!r}",
                    tensor=join(module.torch, link.torch),
                )
    return view


def _place_torch(node: ModuleNode, torch: str, burn: str, placed: list[PlacedModule], *, all_biases: bool) -> None:
    """Add a module of PyTorch, or those in it, to those that were placed."""
    kind = node.kind
    try:
        if kind is not None and is_torch_leaf(kind):
            found = torch_map(kind, node.all_tensors(), all_biases=all_biases)
            placed.append(PlacedModule(torch, burn, kind, found))
            return
        if kind is not None and not is_known_torch(kind) and node.tensors:
            raise ModelError(
                f"a {kind.name}: no rule says how Burn has its tensors",
                hint=f'give rules={{pattern: kind}}; "{AS_IS}" copies its tensors as they are',
            )
        if node.tensors:
            if kind is not None and holds_no_tensors(kind):
                raise ModelError(f"a {kind.name} with a tensor of its own, {min(node.tensors)!r}, that Burn's has not")
            placed.append(PlacedModule(torch, burn, None, same_names(node.tensors)))
        names = _burn_names(node, burn)
        below = all_biases or (kind is not None and always_has_biases(kind))
    except ModelError:
        with located(tensor=torch or None):
            raise
    for name, burn_name in names:
        beside_it = f"{burn}_norm" if burn else "norm"
        place = beside_it if burn_name == _BESIDE else join(burn, burn_name)
        _place_torch(node.children[name], join(torch, name), place, placed, all_biases=below)


_BESIDE = "<beside>"


def same_names(tensors: Mapping[str, Shape]) -> ModuleMap:
    """A module whose tensors are the same in both layouts."""
    return ModuleMap(tuple(Link(name, name) for name in tensors), "")


def _burn_names(node: ModuleNode, burn: str) -> list[tuple[str, str]]:
    """The children of a module of PyTorch with the names they have in Burn, in Burn's order."""
    kind, children = node.kind, node.children
    if kind is not None and kind.name in SERIES and all(name.isdecimal() for name in children):
        numbered = sorted(children, key=int)
        return [(name, str(place)) for place, name in enumerate(numbered)]
    named = None if kind is None else named_children(kind)
    if kind is None or named is None:
        return [(name, name) for name in children]
    found = [(torch, burn) for torch, burn in named if torch in children]
    for torch, _ in named:
        wanted = child_kind(kind, torch)
        held = children[torch].kind if torch in children else None
        if wanted is not None and (held is None or held.name != wanted):
            raise ModelError(f"a {kind.name} whose {torch} is not a {wanted}: Burn's has one")
    if has_final_norm(kind) and "norm" in children:
        if burn.rpartition(".")[2].isdecimal():
            raise ModelError(f"a {kind.name} with a final norm, in a list: Burn keeps that norm beside it, in a field")
        found.append(("norm", _BESIDE))
    stray = set(children) - {torch for torch, _ in found}
    if stray:
        raise ModelError(f"a {kind.name}: its {min(stray)} has no place in Burn's {kind.name}")
    return found


def view_of_burn(root: ModuleNode, present: Iterable[str] | None = None) -> LayoutView:
    """The view of a model in Burn's layout.

    ``present`` are the names on the other side, where there is one: they tell whether it has a module fused as PyTorch
    has it, or as parts. Without, everything is as PyTorch has it.
    """
    return LayoutView(_from_burn(root, "", "", None if present is None else _Names(present)))


class _Names:
    """The names of the other side, and the modules that they lie in."""

    def __init__(self, names: Iterable[str]) -> None:
        self.tensors = set(names)
        self.modules: set[str] = set()
        for name in self.tensors:
            module = name.rpartition(".")[0]
            while module and module not in self.modules:
                self.modules.add(module)
                module = module.rpartition(".")[0]


def _from_burn(node: ModuleNode, burn: str, torch: str, names: _Names | None) -> Iterator[PlacedModule]:
    kind = node.kind

    def present(name: str) -> bool:
        return names is None or join(torch, name) in names.tensors

    with located(tensor=burn or None):
        if kind is not None and is_burn_leaf(kind):
            found = burn_map(kind, dict(node.flat()), present)
            if found is not None:
                yield PlacedModule(torch, burn, kind, found)
                return
        stacked = None if names is None else _stacked(node, present)
        if stacked is not None:
            yield PlacedModule(torch, burn, kind, stacked)
            return
        if node.tensors:
            yield PlacedModule(torch, burn, None, same_names(node.tensors))
        children = list(_torch_names(node, torch, names))
    for child, burn_name, torch_name in children:
        yield from _from_burn(child, join(burn, burn_name), join(torch, torch_name), names)


def _stacked(node: ModuleNode, present: Callable[[str], bool]) -> ModuleMap | None:
    """A list of recurrent modules, if the other side has them as the layers of one."""
    kinds = {child.kind for child in node.children.values()}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    if kind is None or node.tensors or not is_burn_fused(kind) or kind.name.endswith("Attention"):
        return None
    return stacked_map(kind, len(node.children), dict(node.flat()), present)


def _torch_names(node: ModuleNode, torch: str, names: _Names | None) -> Iterator[tuple[ModuleNode, str, str]]:
    """The children of a module of Burn, with their names in Burn and in PyTorch."""
    kind = node.kind
    named = None if kind is None else named_children(kind)
    taken: set[str] = set()
    for torch_name, burn_name in named or ():
        child: ModuleNode | None = node
        for segment in burn_name.split("."):
            child = None if child is None else child.children.get(segment)
        if child is not None and (names is None or join(torch, torch_name) in names.modules):
            taken.add(burn_name)
            yield child, burn_name, torch_name
    for name, child in node.children.items():
        if name in taken:
            continue
        inside = {burn_name.partition(".")[2] for burn_name in taken if burn_name.startswith(f"{name}.")}
        if inside:  # what is left of a feed-forward layer whose Linears were found one level up
            for below, grandchild in child.children.items():
                if below not in inside:
                    yield grandchild, join(name, below), join(name, below)
            continue
        beside = name.removesuffix("_norm")
        stack = node.children.get(beside) if beside != name else None
        is_final_norm = stack is not None and stack.kind is not None and has_final_norm(stack.kind)
        if is_final_norm and names is not None and join(torch, name) not in names.modules:
            yield child, name, join(beside, "norm")
        else:
            yield child, name, name
