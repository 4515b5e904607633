"""From the object graph to named tensors: which part of it is the model, and what each tensor is called.

Names are the keys of dicts and the positions in lists, joined by dots. A whole module is read as its state dict would
be: its parameters, its persistent buffers, then its submodules. Another object gives its attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...errors import (
    CorruptError,
    DuplicateNameError,
    LimitError,
    TensorNotFoundError,
    UnsupportedError,
    printable,
)
from ..codec.pickle_values import Call, PickledSet, kind_of
from .calls import NumpyArray
from .tensor_calls import UnbuiltTensor
from .tensors import CompositeTensor, PickledTensor, Storage

MODEL_KEYS = frozenset(
    (
        *("state_dict", "model_state_dict", "model", "model_state", "module", "net", "network", "state", "weights"),
        *("params", "params_ema", "ema", "ema_state_dict", "model_ema", "g_ema", "generator", "teacher", "student"),
    )
)
"""Keys under which programs save the state dict of a model."""
TRAINING_KEYS = frozenset(
    (
        *("optimizer", "optimizers", "optimizer_state", "optimizer_states", "optimizer_state_dict", "optim", "opt"),
        *("opt_state", "optimizer_history", "last_optimizer_state", "scheduler", "schedulers", "lr_scheduler"),
        *("lr_schedulers", "scheduler_state_dict", "scaler", "scaler_state_dict", "amp", "amp_scaler", "rng_state"),
        *("rng_states", "cuda_rng_state", "torch_rng_state", "random_rng_state", "np_rng_state", "callbacks", "loops"),
        *("criterion", "loss", "args", "extra_state", "hyper_parameters", "ds_config"),
    )
)
"""Keys under which they save what belongs to the training."""

MAX_NODES = 1_000_000
MAX_LEVELS = 1_000
_MAX_WRAPPERS = 16
_MAX_SHOWN = 30
_TABLES = ("_parameters", "_buffers", "_modules")

Leaf = PickledTensor | CompositeTensor | NumpyArray


@dataclass(slots=True)
class Found:
    """The tensors of a file by name, and notes about how they were found."""

    tensors: dict[str, Leaf] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_tensors(root: Any, top_level_key: str | None) -> Found:
    """Name the tensors of the model: below ``top_level_key``, or where programs save them; ``""`` takes all."""
    found = Found()
    if top_level_key is not None:
        value = value_below(root, top_level_key)
        if not isinstance(value, dict) and not _is_object(value):
            problem = f"{printable(top_level_key)!r} does not hold a dictionary but a {kind_of(value)}"
            raise CorruptError(problem if top_level_key else _no_dict(value), rule="PT-23")
        _Walk(found).take(value)
        return found
    if _leaf(root) is not None or not (isinstance(root, (dict, list, tuple)) or _is_object(root)):
        raise CorruptError(_no_dict(root), rule="PT-23", hint="burnstore reads state dicts and what contains them")
    if isinstance(root, (list, tuple)) and not _count(root):
        raise CorruptError(_no_dict(root), rule="PT-23")
    key = _model_key(root, found.notes) if isinstance(root, dict) else None
    _Walk(found).take(root if key is None else root[key])
    return found


def _no_dict(value: Any) -> str:
    return f"a dictionary is expected at the root, found a {kind_of(value)}"


def value_below(root: Any, key: str) -> Any:
    """Return the value under a key, or under several joined by dots; a key that contains dots is tried first."""
    value, rest = root, key
    while rest:
        attributes = _attributes(value)
        if attributes is None:
            raise CorruptError(f"there is no dictionary on the way to {printable(key)!r}", rule="PT-23")
        named = {name if isinstance(name, str) else str(name): name for name in attributes if type(name) in (str, int)}
        parts = rest.split(".")
        heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        head = next((head for head in heads if head in named), None)
        if head is None:
            counts = ((name, _count(attributes[at])) for name, at in sorted(named.items())[:50])
            shown = ", ".join(f"{printable(name)} ({count})" for name, count in counts)
            raise TensorNotFoundError(
                f"Key {printable(rest)!r} not found; there are, with the number of tensors in each: {shown}",
                rule="PT-23",
            )
        value, rest = attributes[named[head]], rest[len(head) + 1 :]
    return value


def _model_key(root: dict[Any, Any], notes: list[str]) -> Any:
    """Return the key under which the model's state dict is, None if it is the root; note the decision."""
    named = [key for key in root if isinstance(key, str)]
    models = [key for key in named if key in MODEL_KEYS and _leaf(root[key]) is None and _count(root[key])]
    if not models:
        return None
    visits = [MAX_NODES]  # For all counts together: parts may share what they hold.
    counts = {key: count for key in named if (count := _count(root[key], visits))}
    others = [
        key for key in counts if key not in models and key not in TRAINING_KEYS and not _is_number(_leaf(root[key]))
    ]
    if len(models) == 1 and not others:
        left_out = _shown(counts, [key for key in counts if key not in models])
        notes.append(
            f"the tensors are those under the key {models[0]!r}"
            + (f"; left out, with the number of tensors in each: {left_out}" if left_out else "")
            + '; top_level_key="" takes everything'
        )
        return models[0]
    notes.append(
        f"it is not clear which part is the model, so all tensors are here, each with its key; choose one with "
        f"top_level_key=, the number of tensors in each: {_shown(counts, [*models, *others])}"
    )
    return None


def _shown(counts: dict[str, int], keys: list[str]) -> str:
    more = f" and {len(keys) - _MAX_SHOWN} more" if len(keys) > _MAX_SHOWN else ""
    return ", ".join(f"{printable(key)} ({counts[key]})" for key in keys[:_MAX_SHOWN]) + more


def _is_number(leaf: Leaf | None) -> bool:
    """Return whether this is a fact about the training, a loss or a list of them, rather than a weight."""
    return isinstance(leaf, NumpyArray) or (isinstance(leaf, PickledTensor) and leaf.shape == ())


def _leaf(value: Any) -> Leaf | None:
    """Return the tensor that a value is, if it is one."""
    hops = 0
    while isinstance(value, UnbuiltTensor):
        value, hops = value.tensor, hops + 1
        if hops > _MAX_WRAPPERS:
            raise LimitError(f"a tensor wrapped more than {_MAX_WRAPPERS} times", rule="PT-17")
    if isinstance(value, (PickledTensor, CompositeTensor)):
        return value
    return value if isinstance(value, NumpyArray) and value.array is not None else None


def _is_object(value: Any) -> bool:
    return isinstance(value, Call) and _leaf(value) is None and _attributes(value) is not None


def _attributes(value: Any) -> dict[Any, Any] | None:
    """Return what an object or a dict holds by name."""
    if isinstance(value, dict):
        return value
    state = value.state if isinstance(value, Call) else None
    if isinstance(state, tuple) and len(state) == 2 and all(part is None or isinstance(part, dict) for part in state):
        return {**(state[0] or {}), **(state[1] or {})}
    return state if isinstance(state, dict) else None


def is_module(value: Any) -> bool:
    """Return whether an object is a torch.nn.Module, by the tables that each has."""
    attributes = _attributes(value) if isinstance(value, Call) else None
    return attributes is not None and all(isinstance(attributes.get(table), dict) for table in _TABLES)


def module_entries(value: Call) -> dict[Any, Any]:
    """Return what the state dict of a module is made of: parameters, persistent buffers, submodules (PT-25)."""
    attributes = _attributes(value) or {}
    transient = attributes.get("_non_persistent_buffers_set", ())
    if not isinstance(transient, (PickledSet, list, tuple)):
        raise CorruptError(f"the names of a module's transient buffers are a {kind_of(transient)}", rule="PT-25")
    unsaved = {name for name in transient if isinstance(name, str)}
    entries: dict[Any, Any] = {}
    for table in _TABLES:
        for name, held in attributes[table].items():
            if held is None or (table == "_buffers" and name in unsaved):
                continue
            if name in entries:
                raise DuplicateNameError(f"a module registers {printable(str(name))!r} twice", rule="PT-25")
            entries[name] = held
    return entries


def _count(value: Any, visits: list[int] | None = None) -> int:
    """Count the tensors below a value, each object visited once; ``visits`` is how many more there may be."""
    visits = [MAX_NODES] if visits is None else visits
    seen: set[int] = set()
    todo, count = [value], 0
    while todo:
        value = todo.pop()
        if _leaf(value) is not None:
            count += 1
        elif id(value) not in seen and isinstance(value, (dict, list, tuple, Call)):
            seen.add(id(value))
            held = _held(value)
            visits[0] -= len(held)
            if visits[0] < 0:
                raise _too_large()
            todo += held
    return count


def _held(value: Any) -> list[Any]:
    """Return what a container or an object holds, of a module only what its state dict would have."""
    if isinstance(value, Call) and is_module(value):
        return list(module_entries(value).values())
    return list(value if isinstance(value, (list, tuple)) else (_attributes(value) or {}).values())


def _holders(root: Any) -> set[int]:
    """Return the identities of all containers from which a tensor can be reached, in time linear in the graph."""
    parents: dict[int, list[int]] = {id(root): []}
    todo, reached = [root], []
    while todo:
        value = todo.pop()
        for child in _held(value):
            if _leaf(child) is not None:
                reached.append(id(value))
            elif isinstance(child, (dict, list, tuple, Call)):
                if id(child) not in parents:
                    parents[id(child)] = []
                    todo.append(child)
                parents[id(child)].append(id(value))
    holders: set[int] = set()
    while reached:
        identity = reached.pop()
        if identity not in holders:
            holders.add(identity)
            reached += parents[identity]
    return holders


def _too_large() -> LimitError:
    return LimitError(f"a graph of more than {MAX_NODES:,} values, every path to one counted", rule="PT-17")


class _Walk:
    """One walk over a graph; an object that is reached on two paths gives its tensors twice, under both names."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._nodes = 0
        self._holders: set[int] | None = None
        self._on_path: set[int] = set()
        self._objects: dict[str, None] = {}
        self._unnamed: dict[str, None] = {}
        self._checked: set[int] = set()

    def take(self, root: Any) -> None:
        """Name every tensor below this value."""
        if is_module(root):
            self._found.notes.append(
                f"the whole model was saved, an object of the class {kind_of(root)}; its parameters and "
                "persistent buffers are read as its state dict would have them, its code is not needed"
            )
        self._walk(root)
        for what in self._objects:
            self._found.notes.append(
                f"the tensors in an object of the class {printable(what)} are named by its attributes"
            )
        for what in self._unnamed:
            self._found.notes.append(f"left out: {what}")

    def _walk(self, root: Any) -> None:
        # A frame holds a value's children that are still to come; it is dropped when they are used up.
        frames: list[tuple[str, int, Iterator[tuple[Any, Any]]]] = [("", id(root), self._children(root))]
        self._on_path.add(id(root))
        tensors = self._found.tensors
        while frames:
            prefix, identity, children = frames[-1]
            for key, value in children:
                self._nodes += 1
                if type(value) is PickledTensor and type(key) is str:  # Nearly all values are tensors.
                    name = prefix + key
                    if name in tensors:
                        raise _repeated(name)
                    tensors[name] = value
                    continue
                leaf = _leaf(value)
                if leaf is None and not isinstance(value, (dict, list, tuple, Call, Storage)):
                    continue
                if leaf is None and not self._holds_tensors(root, value):
                    self._note_hidden(prefix, key, value)
                    continue
                name = prefix + _text(key)
                if leaf is not None:
                    if name in tensors:
                        raise _repeated(name)
                    tensors[name] = leaf
                    continue
                if id(value) in self._on_path:
                    raise CorruptError(f"{printable(name)!r} holds itself", rule="PT-23")
                if len(frames) >= MAX_LEVELS:
                    raise LimitError(f"values nested more than {MAX_LEVELS} deep", rule="PT-17")
                self._on_path.add(id(value))
                frames.append((name + ".", id(value), self._children(value)))
                break
            else:
                frames.pop()
                self._on_path.discard(identity)
            if self._nodes > MAX_NODES:
                raise _too_large()

    def _children(self, value: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(value, Call) and is_module(value):
            return iter(module_entries(value).items())
        if isinstance(value, dict):
            return iter(value.items())
        if isinstance(value, (list, tuple)):
            return iter(enumerate(value))
        if not kind_of(value).startswith("__torch__."):  # Every part of a TorchScript model is such an object.
            self._objects[kind_of(value)] = None
        return iter((_attributes(value) or {}).items())

    def _holds_tensors(self, root: Any, value: Any) -> bool:
        if self._holders is None:  # Most files have no containers inside the state dict.
            self._holders = _holders(root)
        return id(value) in self._holders

    def _note_hidden(self, prefix: str, key: Any, value: Any) -> None:
        """Note tensors for which no name can be found."""
        what = None
        if isinstance(value, Storage):
            what = "a storage without a tensor"
        elif isinstance(value, UnbuiltTensor):
            what = f"a {kind_of(value)} without values"
        elif isinstance(value, Call) and id(value) not in self._checked:
            self._checked.add(id(value))  # It may be here under many names.
            if any(isinstance(part, (PickledTensor, Storage)) for part in _parts(value)):
                what = f"a {kind_of(value)} that is not known here"
        if what is not None:
            name = prefix + str(key if isinstance(key, (str, int)) else kind_of(key))
            self._unnamed[f"{printable(name)}, {what}"] = None


def _parts(call: Call) -> Iterator[Any]:
    """Yield what an unknown call was given, one level of tuples and lists deep."""
    for part in [*call.args, *(call.appended or ()), *(value for _, value in call.pairs or ()), call.state]:
        yield part
        if isinstance(part, (list, tuple)):
            yield from part
        elif isinstance(part, dict):
            yield from part.values()


def _text(key: Any) -> str:
    if isinstance(key, str):
        return key
    if type(key) is int:
        return str(key)
    raise UnsupportedError(f"a tensor under a key that is a {kind_of(key)}", rule="PT-24")


def _repeated(name: str) -> DuplicateNameError:
    return DuplicateNameError(f"two tensors are called {printable(name)!r}", rule="PT-24", tensor=name)
