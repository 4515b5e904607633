"""Views: the tensors of modules in both layouts, one description for both directions.

A `LayoutView` is made from the tree of a model's modules. Saving writes what `to_burn` or `to_torch` return, loading
matches against the same: a conversion happens exactly once, and the round trip is bit-equal. Everything is lazy: a
tensor is split, transposed or joined when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import ModelError, Ways, located
from ..tensor.data import Shape
from ..tensor.dtype import DType
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from .axes import joined, transposed
from .constant import check_constant, constant
from .layout import (
    AS_IS,
    PLUS_ONE,
    SERIES,
    Layout,
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
from .operations import Fill, Operation, Split, part_operations
from .shapes import add_one_rules, weight_norm_rules


@dataclass(slots=True)
class ModuleNode:
    """A module of a model: its kind, the tensors directly in it, and the modules in it that hold tensors.

    ``kind`` is None for a user's class, whose tensors no table knows.
    """

    kind: ModuleKind | None = None
    tensors: dict[str, Shape] = field(default_factory=dict)
    children: dict[str, ModuleNode] = field(default_factory=dict)

    def flat(self, prefix: str = "") -> Iterator[tuple[str, Shape]]:
        """Yield all tensors in it with their paths."""
        for name, shape in self.tensors.items():
            yield prefix + name, shape
        for name, child in self.children.items():
            yield from child.flat(f"{prefix}{name}.")

    def all_tensors(self) -> Mapping[str, Shape]:
        """Return the same as one mapping."""
        return dict(self.flat()) if self.children else self.tensors


class PlacedModule(NamedTuple):
    """A module that is mapped as one, and its path in both layouts.

    ``problem`` is the reason why it has no counterpart; it counts only if one of its tensors takes part.
    """

    torch: str
    burn: str
    kind: ModuleKind | None
    map: ModuleMap
    problem: ModelError | None = None


class Origin(NamedTuple):
    """A source tensor of a move and what is done to it first; a constant has no source and is made by its `Fill`."""

    source: str | None
    operations: tuple[Operation, ...] = ()
    input: int = 0


@dataclass(frozen=True, slots=True)
class ConvertedView:
    """Tensors in the other layout, and which of the given tensors they use."""

    snapshots: list[TensorSnapshot]
    used: set[str]
    incomplete: dict[str, list[str]] = field(default_factory=dict)
    """Tensors that could not be made although some of their parts were given, and the parts that are missing."""

    stranded: set[str] = field(default_factory=set)
    """Parts that were given of the incomplete tensors."""

    lost: list[str] = field(default_factory=list)
    """Tensors that PyTorch has in these modules, and Burn does not."""

    part_ids: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    """The parameter ids of the Burn tensors that one PyTorch tensor was made of, in the order of its parts."""

    origins: dict[str, tuple[Origin, ...]] = field(default_factory=dict)
    """The sources of each tensor that is not simply copied under its own name."""

    constants: list[tuple[TensorSnapshot, float]] = field(default_factory=list)
    """Tensors that the other layout leaves out because they are constant; `check_constants` reads them."""

    filled: dict[str, str] = field(default_factory=dict)
    """Burn's tensors that are made of a constant, and the tensor that each is, or is a part of."""

    def check_constants(self) -> None:
        """Read the constants; ModelError if one has another value, which would be lost."""
        for given, value in self.constants:
            check_constant(given, value)


class LayoutView:
    """The tensors of one model in PyTorch's and in Burn's layout."""

    def __init__(self, modules: Iterable[PlacedModule]) -> None:
        self.modules = list(modules)
        self.notes: Sequence[Note] = ()
        """What the model computes besides its layers, so that no file has it."""

    def unknown(self, layout: Layout) -> list[str]:
        """Return the tensors of modules of unknown kind; they are copied unchanged into either layout."""
        modules = (module for module in self.modules if module.kind is None)
        if layout == "burn":
            return [join(module.burn, link.burn) for module in modules for link in module.map.links]
        return [join(module.torch, link.torch) for module in modules for link in module.map.links]

    def check(self, used: Container[str] | None, layout: Layout) -> None:
        """Raise ModelError if a tensor is in a module without a counterpart; ``used`` names those that take part.

        Names are those of ``layout``; None stands for all tensors.
        """
        for module in self.modules:
            if module.problem is not None:
                prefix = module.torch if layout == "torch" else module.burn
                if used is None or any(join(prefix, link.torch) in used for link in module.map.links):
                    raise module.problem

    def convert(self, snapshots: Mapping[str, TensorSnapshot], layout: Layout) -> ConvertedView:
        """Return tensors of the other layout in this one; constants are not read yet."""
        return self.to_burn(snapshots) if layout == "burn" else self.to_torch(snapshots)

    def to_burn(
        self, snapshots: Mapping[str, TensorSnapshot], part_ids: Mapping[str, Sequence[int | None]] | None = None
    ) -> ConvertedView:
        """Return tensors of PyTorch's layout in Burn's, in Burn's order.

        ``part_ids`` are the ids of the parts of fused tensors, where they are known.
        """
        seen = ConvertedView([], set())
        stacks: dict[tuple[Sequence[str], str], tuple[str, ...]] = {}  # of few kinds of modules, shared by all tensors
        for torch, burn, kind, of_module, _ in self.modules:
            torch_prefix, burn_prefix = _prefix(torch), _prefix(burn)
            stack: Sequence[str] = ()
            dtype = DType.F32
            made: dict[str, TensorSnapshot] = {}
            for link in of_module.links:
                given = snapshots.get(torch_prefix + link.torch)
                if given is None:
                    continue
                source, stack, dtype = given._path, given._container_stack, given._dtype
                seen.used.add(source)
                if kind:
                    known = stacks.get((stack, of_module.owner))
                    if known is None:
                        known = stacks[stack, of_module.owner] = (*stack[:-1], f"Struct:{of_module.owner}")
                    stack = known
                path, part, param_id = burn_prefix + link.burn, given, given._param_id
                if link.parts > 1:
                    part = Split(link.part, link.parts)(part)
                    ids = part_ids.get(source) if part_ids else None
                    param_id = ids[link.part] if ids else None
                is_transposed = _is_transposed(given, link)
                if is_transposed:
                    part = transposed(part)
                if is_transposed or link.parts > 1 or path != source:
                    seen.origins[path] = (Origin(source, part_operations(link.part, link.parts, is_transposed)),)
                if path != source or param_id != part._param_id or stack != part._container_stack:
                    part = part.replace(path=path, container_stack=stack, param_id=param_id)
                made[link.burn] = part
            if of_module.lost:
                lost = [torch_prefix + name for name in of_module.lost]
                seen.used.update(lost)
                seen.lost.extend(lost)
            if not of_module.fills:
                seen.snapshots.extend(made.values())
                continue
            # A module whose tensors were all left out gets no constants either; one that holds no tensors always does.
            for fill in of_module.fills if made or not of_module.links else ():
                path = burn_prefix + fill.burn
                if fill.burn in made:  # Burn's module does without this part of a fused tensor, if it is constant
                    seen.constants.append((made.pop(fill.burn), fill.value))
                    continue
                made[fill.burn] = constant(path, fill.shape, fill.value, dtype, stack)
                seen.origins[path] = (_constant_origin(made[fill.burn], fill.value),)
                seen.filled[path] = path
            seen.snapshots.extend(made[name] for name in of_module.order or tuple(made) if name in made)
        return seen

    def to_torch(self, snapshots: Mapping[str, TensorSnapshot]) -> ConvertedView:
        """Return tensors of Burn's layout in PyTorch's; a fused tensor needs all of its parts.

        Nothing is read: call `ConvertedView.check_constants` before reading the tensors.
        """
        seen = ConvertedView([], set())
        for module in self.modules:
            torch, burn, _, of_module, _ = module
            torch_prefix, burn_prefix = _prefix(torch), _prefix(burn)
            for fill in of_module.fills:
                given = snapshots.get(burn_prefix + fill.burn)
                if given is not None:
                    seen.constants.append((given, fill.value))
                    seen.used.add(given.path)
            for name, links in of_module.by_torch_name:
                place = burn_prefix + links[0].burn
                given = snapshots.get(place) if len(links) == 1 else None
                if given is None:
                    _add_whole(seen, module, name, links, snapshots)
                    continue
                seen.used.add(place)
                path, is_transposed = torch_prefix + name, _is_transposed(given, links[0])
                whole = transposed(given) if is_transposed else given
                if is_transposed or path != place:
                    seen.origins[path] = (Origin(place, part_operations(0, 1, is_transposed)),)
                seen.snapshots.append(whole if whole._path == path else whole.with_path(path))
            if of_module.lost and any(burn_prefix + link.burn in seen.used for link in of_module.links):
                seen.lost.extend(torch_prefix + name for name in of_module.lost)
        return seen


def _constant_origin(made: TensorSnapshot, value: float) -> Origin:
    return Origin(None, (Fill(value, made.shape, made.dtype),))


def _add_whole(
    seen: ConvertedView, module: PlacedModule, name: str, links: Sequence[Link], snapshots: Mapping[str, TensorSnapshot]
) -> None:
    """Add a tensor of PyTorch that is made of several of Burn's, or of none."""
    path = join(module.torch, name)
    parts: list[TensorSnapshot] = []
    origins: list[Origin] = []
    lacking: list[str] = []
    for link in links:
        place = join(module.burn, link.burn)
        given = snapshots.get(place)
        if given is not None:
            is_transposed = _is_transposed(given, link)
            parts.append(transposed(given) if is_transposed else given)
            origins.append(Origin(place, part_operations(0, 1, is_transposed)))
        elif (zeros := _zeros_for(place, link, links, module, snapshots)) is not None:
            parts.append(transposed(zeros) if _is_transposed(zeros, link) else zeros)
            origins.append(_constant_origin(parts[-1], 0.0))
            seen.filled[place] = path
        else:
            lacking.append(place)
    if lacking:
        if parts:
            seen.incomplete[path] = lacking
            seen.stranded.update(each.source for each in origins if each.source is not None)
        return
    seen.used.update(join(module.burn, link.burn) for link in links)
    if len(parts) == 1:
        whole = parts[0]
        if origins[0].operations or origins[0].source != path:
            seen.origins[path] = (origins[0],)
        seen.snapshots.append(whole if whole.path == path else whole.with_path(path))
        return
    seen.origins[path] = tuple(origins)
    with located(tensor=path):
        whole = joined(parts)
    seen.snapshots.append(whole.replace(path=path, param_id=None))
    ids = tuple(part._param_id for part in parts)
    if any(each is not None for each in ids):
        seen.part_ids[path] = ids


def _is_transposed(given: TensorSnapshot, link: Link) -> bool:
    """Return whether a tensor is transposed on its way; anything but a matrix stays, and does not fit later."""
    return link.transposed and len(given._shape) == 2


def _prefix(path: str) -> str:
    return f"{path}." if path else ""


def _zeros_for(
    path: str, link: Link, links: Sequence[Link], module: PlacedModule, snapshots: Mapping[str, TensorSnapshot]
) -> TensorSnapshot | None:
    """Return zeros for a bias that Burn leaves out, shaped as the tensor's other parts; None if it must be given."""
    if not any(fill.burn == link.burn for fill in module.map.fills):
        biases = (other.burn for other in module.map.links if other.zero_if_absent)
        if not link.zero_if_absent or not any(join(module.burn, bias) in snapshots for bias in biases):
            return None
    weight = snapshots.get(f"{path.rpartition('.')[0]}.weight")
    if weight is None:
        return None  # Not only the bias is absent.
    beside = next((found for link in links if (found := snapshots.get(join(module.burn, link.burn)))), None)
    if beside is not None:
        return constant(path, beside.shape, 0.0, beside.dtype, ())
    fill = next((fill for fill in module.map.fills if join(module.burn, fill.burn) == path), None)
    return constant(path, fill.shape if fill else weight.shape[1:], 0.0, weight.dtype, ())


_MOST_LEVELS = 256


def check_levels(path: str) -> int:
    """Return how many modules a path names; ModelError if a file could cause too much work by them.

    A walk over modules is recursive, and one over all modules around a tensor takes the square of their number.
    """
    levels = path.count(".") + 1
    if levels > _MOST_LEVELS:
        raise ModelError(f"its path has {levels} levels, more than {_MOST_LEVELS}", tensor=path)
    return levels


def module_tree(tensors: Mapping[str, Shape], kinds: Mapping[str, ModuleKind | None]) -> ModuleNode:
    """Return the tree of modules that contain these tensors, first those in ``kinds``, in its order.

    A module without tensors is part of the tree only if Burn's module has some.
    """
    root = ModuleNode(kinds.get(""))
    nodes = {"": root}

    def node_at(path: str) -> ModuleNode:
        node = nodes.get(path)
        if node is not None:
            return node
        around, _, name = path.rpartition(".")
        segments = [name] if around and around in nodes else path.split(".")
        levels = check_levels(path)
        node = root if len(segments) == levels else nodes[around]
        for depth, segment in enumerate(segments, levels - len(segments) + 1):
            child = node.children.get(segment)
            if child is None:
                kind = kinds.get(path if depth == levels else ".".join(segments[:depth]))
                child = node.children[segment] = ModuleNode(kind)
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
    """Remove the modules that hold nothing; return whether this one holds anything."""
    if node.children:
        node.children = {name: child for name, child in node.children.items() if _prune(child)}
    if node.tensors or node.children:
        return True
    return node.kind is not None and node.kind.option("features") is not None


# --- the modules of a model in both layouts ---------------------------------------------------------------------------


def join(prefix: str, name: str) -> str:
    """Join the two parts of a path; either may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def view_of_torch(root: ModuleNode, *, is_declared: bool = True) -> LayoutView:
    """Return the view of a model in PyTorch's layout; ``is_declared`` is that of `torch_map`."""
    view = LayoutView([])
    _place_torch(root, "", "", view.modules, _Below(is_declared=is_declared))
    if any(module.problem is not None for module in view.modules):
        _add_hints(root, view.modules)
    names = [prefix + link.burn for each in view.modules for prefix in (_prefix(each.burn),) for link in each.map.links]
    places: dict[str, str] = {}
    for module in view.modules if len(set(names)) < len(names) else ():
        for link in module.map.links:
            place = join(module.burn, link.burn)
            if places.setdefault(place, module.torch) != module.torch:
                raise ModelError(
                    f"its name in Burn would be {place!r}, which a tensor of {places[place]!r} has already",
                    tensor=join(module.torch, link.torch),
                )
    return view


def _add_hints(root: ModuleNode, modules: Sequence[PlacedModule]) -> None:
    """Give the problems that rules for tensors solve a hint with all lines that are needed, not one module's."""
    norms: dict[str, str] = {}
    others: list[str] = []
    normed: dict[str, Shape] = {}
    for module in modules:
        node = root
        for segment in module.torch.split(".") if module.torch else ():
            node = node.children[segment]
        if module.problem is not None and node.kind is not None and node.kind.name in PLUS_ONE:
            norms[module.torch] = PLUS_ONE[node.kind.name]
            continue
        others.append(module.torch)
        tensors = {join(module.torch, path): shape for path, shape in node.flat()}
        line = None if module.problem is None else weight_norm_rules(tensors)
        if module.problem is not None and line is not None:
            normed |= tensors
    folding = weight_norm_rules(normed)
    for module in modules:
        if module.torch in norms and module.problem is not None:
            module.problem.hint = Ways(
                "pass like= the model and rules= a file with these lines",
                "save the model as .safetensors, then call burnstore.convert(source, target, like=model, rules=path) "
                "with these lines in a rules file",
                lead="",
                tail=f":\n{add_one_rules(norms, others)}",
                shows_one=True,
            )
        elif module.problem is not None and any(name.startswith(_prefix(module.torch)) for name in normed):
            module.problem.hint = (
                "remove the weight norm from the model with torch.nn.utils.remove_weight_norm(module) or "
                'torch.nn.utils.parametrize.remove_parametrizations(module, "weight"); '
                "or convert a file of it with burnstore.convert(source, target, like=model_without_it, rules=path) "
                f"and a rules file (path) with the line {folding}"
            )


@dataclass(frozen=True, slots=True)
class _Below:
    """Facts about all modules below one: whether Burn has every bias, and whether absent tensors are declared."""

    all_biases: bool = False
    is_declared: bool = True


def _place_torch(node: ModuleNode, torch: str, burn: str, placed: list[PlacedModule], below: _Below) -> None:
    """Add a PyTorch module, or the modules in it, to the list."""
    kind = node.kind
    names: list[tuple[str, str]] = []
    try:
        if kind is not None and is_torch_leaf(kind):
            found = torch_map(kind, node.all_tensors(), all_biases=below.all_biases, is_declared=below.is_declared)
            placed.append(PlacedModule(torch, burn, kind, found))
            return
        numbers = [int(name) for name in node.children if name.isdecimal()]
        # Burn's list would close gaps between the numbers of a series, and this kind may be one.
        is_gapped = len(numbers) == len(node.children) and len(numbers) <= max(numbers, default=-1)
        if kind is not None and not is_known_torch(kind) and (node.tensors or is_gapped):
            raise ModelError(
                f"no rule states how Burn stores the tensors of a {kind.name}",
                hint=f'pass rules={{pattern: kind}}; the kind "{AS_IS}" copies its tensors unchanged',
            )
        if node.tensors:
            if kind is not None and holds_no_tensors(kind):
                raise ModelError(f"Burn's {kind.name} has no tensor {min(node.tensors)!r}, and this one has")
            placed.append(PlacedModule(torch, burn, None, same_names(node.tensors)))
        names = _burn_names(node, burn)
        if kind is not None and always_has_biases(kind):
            below = replace(below, all_biases=True)
            if not below.is_declared:
                _check_biases(kind, node)
    except ModelError as error:
        error.tensor = error.tensor or torch or None
        placed.append(PlacedModule(torch, burn, None, same_names(node.all_tensors()), error))
        return
    for name, burn_name in names:
        beside_it = f"{burn}_norm" if burn else "norm"
        place = beside_it if burn_name == _BESIDE else join(burn, burn_name)
        _place_torch(node.children[name], join(torch, name), place, placed, below)


def _check_biases(kind: ModuleKind, node: ModuleNode) -> None:
    """Refuse a layer in which some biases are absent and others present, where nothing declares that."""
    biases = {path for path, _ in node.flat() if path.endswith("bias")}
    linear = [f"{name}.bias" for name in node.children if name.startswith("linear")]
    absent = [name for name in linear if name not in biases]
    if biases and absent:
        raise ModelError(
            f"{kind.name} has some biases but no {absent[0]}, and nothing declares that it has none",
            hint=Ways(f"provide {absent[0]}", "pass like= a model that declares the layer", lead=""),
        )


_BESIDE = "<beside>"


def same_names(tensors: Mapping[str, Shape]) -> ModuleMap:
    """Return the map of a module whose tensors are the same in both layouts."""
    return ModuleMap(tuple(Link(name, name) for name in tensors), "")


def _burn_names(node: ModuleNode, burn: str) -> list[tuple[str, str]]:
    """Return the children of a PyTorch module with their names in Burn, in Burn's order."""
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
            found_kind = "none" if held is None else held.name
            raise ModelError(f"expected a {wanted} as {torch} of a {kind.name}, as Burn has it, found {found_kind}")
    if has_final_norm(kind) and "norm" in children:
        if burn.rpartition(".")[2].isdecimal():
            raise ModelError(
                f"a {kind.name} with a final norm cannot be in a list: Burn keeps that norm in a field beside it"
            )
        found.append(("norm", _BESIDE))
    stray = set(children) - {torch for torch, _ in found}
    if stray:
        raise ModelError(f"a {kind.name}: its {min(stray)} has no place in Burn's {kind.name}")
    return found


def view_of_burn(root: ModuleNode, present: Iterable[str] | None = None) -> LayoutView:
    """Return the view of a model in Burn's layout.

    ``present`` are the names on the other side, if there is one: they decide whether a module is fused there, as in
    PyTorch, or stored in parts. Without them, every module is fused.
    """
    return LayoutView(_from_burn(root, "", "", None if present is None else _Names(present)))


class _Names:
    """The names of the other side, and the modules that contain them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.tensors = set(names)
        self.modules: set[str] = set()
        for name in self.tensors:
            module = name.rpartition(".")[0] if name.count(".") <= _MOST_LEVELS else ""  # No model has such a path.
            while module and module not in self.modules:
                self.modules.add(module)
                module = module.rpartition(".")[0]


def _from_burn(node: ModuleNode, burn: str, torch: str, names: _Names | None) -> Iterator[PlacedModule]:
    kind = node.kind
    children: list[tuple[ModuleNode, str, str]] = []

    def present(name: str) -> bool:
        return names is None or join(torch, name) in names.tensors

    try:
        found = burn_map(kind, dict(node.flat()), present) if kind is not None and is_burn_leaf(kind) else None
        if found is None and names is not None:
            found = _stacked(node, present)
        if found is not None:
            yield PlacedModule(torch, burn, kind, found)
            return
        children = list(_torch_names(node, torch, names))
    except ModelError as error:
        error.tensor = error.tensor or burn or None
        yield PlacedModule(torch, burn, None, same_names(node.all_tensors()), error)
        return
    if node.tensors:
        yield PlacedModule(torch, burn, None, same_names(node.tensors))
    for child, burn_name, torch_name in children:
        yield from _from_burn(child, join(burn, burn_name), join(torch, torch_name), names)


def _stacked(node: ModuleNode, present: Callable[[str], bool]) -> ModuleMap | None:
    """Map a list of recurrent modules, if the other side has them as the layers of one module."""
    kinds = {child.kind for child in node.children.values()}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    if kind is None or node.tensors or not is_burn_fused(kind) or kind.name.endswith("Attention"):
        return None
    return stacked_map(kind, len(node.children), dict(node.flat()), present)


def _torch_names(node: ModuleNode, torch: str, names: _Names | None) -> Iterator[tuple[ModuleNode, str, str]]:
    """Yield the children of a Burn module, with their names in Burn and in PyTorch."""
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
