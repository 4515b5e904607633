"""From the object graph to named tensors: which part of it is the model, and what each tensor is called.

Names are the keys of dicts and the positions in lists, joined by dots. A whole module is read as its state dict would
be: its parameters, its persistent buffers, then its submodules. Another object gives its attributes, its items, and
its arguments under ``args``.

Accounting: every stored tensor, array and storage that can be reached from the chosen part, by whatever edge of the
graph, has a name or is in a note with the reason why it has none; so is what the file stores and nothing refers to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

from ...errors import CorruptError, DuplicateNameError, LimitError, TensorNotFoundError, printable
from ...io.documents import below
from ...limits import Limits
from ...tensor.note import Note
from ..base import ModuleClass
from ..codec.pickle_values import Call, PickledDict, PickledSet, Symbol, kind_of
from .calls import NumpyArray
from .stream import PickledFile
from .tensors import (
    AttributedTensor,
    CompositeTensor,
    PickledTensor,
    Storage,
    StorageView,
    UnbuiltTensor,
    Unread,
    left_out_note,
    shown_names,
)

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
_MIN_NODES, _NODES_PER_BYTE = 10_000, 8
_MIN_CHARACTERS, _CHARACTERS_PER_BYTE = 1 << 20, 64
_UNKNOWN_BYTES = 256
_OPTIONS = frozenset(
    ("norm_first", "padding_mode", "max_norm", "normalized_shape", "num_features", "track_running_stats")
)
_TABLES = ("_parameters", "_buffers", "_modules")
_ATOMS = frozenset((str, int, float, bool, type(None), bytes, complex, Symbol, range, slice))
_NAMED_KEYS = (str, int, float, complex, bytes, type(None), tuple)
_PLAIN_KEY_TYPES = frozenset((*_NAMED_KEYS, bool))
_CONTAINERS, _WITH_STATE = (dict, list, tuple, Call), (AttributedTensor, CompositeTensor)
_QUANTIZED_CONV = re.compile(r"(__torch__\.)?torch\.(ao\.)?nn\.(intrinsic\.)?quantized\..*\bconv")
_READ = "burnstore reads state dicts and what contains them"
_COMPILED = "torch._dynamo.eval_frame.OptimizedModule"
_NO_PARAMETER = "neither a parameter nor a buffer of its module"
ROOT_NAME = "tensor"
"""The name of a tensor that was saved alone."""

Leaf = PickledTensor | CompositeTensor | NumpyArray
Edge = tuple[Any, Any, str | None]
"""A key, what is under it, and the reason why a state dict does not have it, if it does not."""


@dataclass(slots=True)
class Found:
    """The tensors of a file by name, and notes about how they were found."""

    tensors: dict[str, Leaf] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    classes: dict[str, ModuleClass] = field(default_factory=dict)


def find_tensors(file: PickledFile, top_level_key: str | None, limits: Limits) -> Found:
    """Name the tensors of the model: below ``top_level_key``, or where programs save them; ``""`` takes all."""
    found, root = Found(), file.value
    everything: dict[int, Any] = {}
    if top_level_key is not None:
        chosen = value_below(root, top_level_key)
        is_list = isinstance(chosen, (list, tuple)) and _stored_below(chosen) > 0
        if not isinstance(chosen, dict) and not is_list and not _is_object(chosen):
            problem = f"{printable(top_level_key)!r} does not hold a dictionary but a {kind_of(chosen)}"
            raise CorruptError(problem if top_level_key else _no_dict(chosen), rule="PT-23")
    elif _leaf(root) is not None:
        found.notes.append(Note("names", f"the file is one tensor without a name; it is called {ROOT_NAME!r}"))
        root = chosen = {ROOT_NAME: root}
    else:
        if not (isinstance(root, (dict, list, tuple)) or _is_object(root)):
            raise CorruptError(_no_dict(root), rule="PT-23", hint=_READ)
        if isinstance(root, (list, tuple)) and not _stored_below(root):
            raise CorruptError(f"{_no_dict(root)} without tensors", rule="PT-23", hint=_READ)
        key = _model_key(root, found.notes, everything) if isinstance(root, dict) else None
        chosen = root if key is None else root[key]
    if is_module(chosen):
        text = (
            f"the whole model was saved, an object of the class {kind_of(chosen)}; its parameters and "
            "persistent buffers are read as its state dict would have them, its code is not needed"
        )
        found.notes.append(Note("names", text))
    found.classes = _module_classes(chosen, file.pickle_bytes)
    stored, holders = _reach(chosen)
    named = _name_all(chosen, holders, found, file.pickle_bytes, limits)
    found.notes += _unnamed(chosen, stored.keys() - named)
    is_all = chosen is root or _leaf(root) is not None
    found.notes += _unreferenced(file, stored if is_all else everything or _reach(root)[0])
    return found


def _no_dict(value: Any) -> str:
    return f"a dictionary is expected at the root, found a {kind_of(value)}"


def value_below(root: Any, key: str) -> Any:
    """Return the value under a key, or under several joined by dots; a key that contains dots is tried first."""
    value, rest = root, key
    while rest:
        attributes = dict(enumerate(value)) if isinstance(value, (list, tuple)) else _attributes(value)
        if attributes is None:
            raise CorruptError(f"there is no dictionary on the way to {printable(key)!r}", rule="PT-23")
        named = {name if isinstance(name, str) else str(name): name for name in attributes if type(name) in (str, int)}
        parts = rest.split(".")
        heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        head = next((head for head in heads if head in named), None)
        if head is None:
            counts = ((name, _stored_below(attributes[at])) for name, at in sorted(named.items())[:_MAX_SHOWN])
            shown = ", ".join(f"{printable(name)} ({count})" for name, count in counts)
            raise TensorNotFoundError(
                f"Key {printable(rest)!r} not found; there are, with the number of tensors in each: {shown}",
                rule="PT-23",
            )
        value, rest = attributes[named[head]], rest[len(head) + 1 :]
    return value


def _model_key(root: dict[Any, Any], notes: list[Note], everything: dict[int, Any]) -> Any:
    """Return the key under which the model's state dict is, None if it is the root; note the decision.

    ``everything`` takes all stored data below the root.
    """
    models = [key for key in root if isinstance(key, str) and key in MODEL_KEYS and _leaf(root[key]) is None]
    models = [key for key in models if _stored_below(root[key])]
    if not models:
        return None
    visits = [MAX_NODES]  # For all counts together: parts may share what they hold.
    inside = {key: _reach({"": root[key]}, visits)[0] for key in root}
    counts = {key: len(stored) for key, stored in inside.items() if stored}
    for stored in inside.values():
        everything |= stored
    others = [
        key for key in counts if key not in models and key not in TRAINING_KEYS and not _is_number(_leaf(root[key]))
    ]
    if "pytorch-lightning_version" in root and "state_dict" in models:  # the rest belongs to callbacks
        models, others = ["state_dict"], []
    if len(models) == 1 and not others:
        left_out = shown_names([f"{_key_text(key)} ({counts[key]})" for key in counts if key not in models])
        others_left = f"; left out, with the number of tensors in each: {left_out}" if left_out else ""
        text = f'the tensors are those under the key {models[0]!r}{others_left}; top_level_key="" takes everything'
        notes.append(Note("part", text, models[0]))
        return models[0]
    shown = shown_names([f"{_key_text(key)} ({counts[key]})" for key in [*models, *others]])
    text = (
        "it is not clear which part is the model, so all tensors are here, each with its key; choose one with "
        f"top_level_key=, the number of tensors in each: {shown}"
    )
    notes.append(Note("unclear part", text))
    return None


def _is_number(leaf: Leaf | None) -> bool:
    """Return whether this is a fact about the training, a loss or a list of them, rather than a weight."""
    return isinstance(leaf, NumpyArray) or (isinstance(leaf, PickledTensor) and leaf.shape == ())


# --------------------------------------------------------------------------------------------------- the graph's edges


def _leaf(value: Any) -> Leaf | None:
    """Return the tensor that a value is, if it is one that can be read."""
    hops = 0
    while isinstance(value, UnbuiltTensor):
        value, hops = value.tensor, hops + 1
        if hops > _MAX_WRAPPERS:
            raise LimitError(f"a tensor wrapped more than {_MAX_WRAPPERS} times", rule="PT-17")
    if isinstance(value, (PickledTensor, CompositeTensor)):
        return value
    return value if isinstance(value, NumpyArray) and value.reason is None else None


def _why_unread(value: Any) -> str | None:
    """Return why stored data cannot be read; None for a value that stores none."""
    if isinstance(value, Storage):
        return "a storage without a tensor"
    if isinstance(value, UnbuiltTensor):
        return f"a {kind_of(value)} without values"
    if isinstance(value, Unread) or (isinstance(value, NumpyArray) and value.items is None):
        return value.reason
    if isinstance(value, Call) and kind_of(value).startswith("torch.nn.parameter.Uninitialized"):
        return "of a lazy module that was never used, so it has no values"
    if isinstance(value, Call) and any(isinstance(p, bytes) and len(p) >= _UNKNOWN_BYTES for p in _raw_parts(value)):
        return f"bytes in an object of the class {kind_of(value)}, which is not known here"
    return None


def _raw_parts(call: Call) -> Iterator[Any]:
    for part in (call.args, call.state if isinstance(call.state, (tuple, list)) else (call.state,)):
        for value in part:
            yield value
            if isinstance(value, (tuple, list)):
                yield from value


def _is_object(value: Any) -> bool:
    if not isinstance(value, Call) or isinstance(value, (PickledTensor, CompositeTensor, Unread, UnbuiltTensor)):
        return False
    return _attributes(value) is not None or _stored_below(value) > 0


def _attributes(value: Any) -> dict[Any, Any] | None:
    """Return what an object or a dict holds by name."""
    if isinstance(value, dict):
        return value
    state = value.state if isinstance(value, Call) else None
    parts = _state_parts(state)
    return None if state is None or parts is None else {key: held for part in parts for key, held in part.items()}


def _state_parts(state: Any) -> Sequence[dict[Any, Any]] | None:
    """Return the attributes in a state: a dict, or a pair of dicts or Nones, as of an object with slots."""
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if not all(part is None or isinstance(part, dict) for part in parts):
        return None
    found = [part for part in parts if part is not None]
    # A key in both is no attribute: the class itself reads such a state.
    return None if len(found) == 2 and not found[0].keys().isdisjoint(found[1]) else found


def is_module(value: Any) -> bool:
    """Return whether an object is a torch.nn.Module, by the tables that each has."""
    attributes = _attributes(value) if type(value) is Call else None
    return attributes is not None and all(isinstance(attributes.get(table), dict) for table in _TABLES)


def _is_compiled(value: Any) -> bool:
    """Return whether an object is what torch.compile returns: a module, and how it was compiled."""
    return type(value) is Call and kind_of(value) == _COMPILED and len(value.args) == 2 and is_module(value.args[0])


def _module_classes(root: Any, pickle_bytes: int) -> dict[str, ModuleClass]:
    """Return the classes of a saved model's modules by path; empty if it is none, or has more names than it should."""
    found: dict[str, ModuleClass] = {}
    characters = _MIN_CHARACTERS + _CHARACTERS_PER_BYTE * pickle_bytes
    todo: list[tuple[str, Any]] = [("", root)]
    while todo:
        path, value = todo.pop()
        inner = value if isinstance(value, dict) else {}  # a dict of models
        if _is_compiled(value):
            inner = {"_orig_mod": value.args[0]}
        symbol = value.function if type(value) is Call else None
        is_script = isinstance(symbol, Symbol) and symbol.module.partition(".")[0] == "__torch__"
        if isinstance(symbol, Symbol) and (is_script or is_module(value)):
            attributes = _attributes(value) or {}
            inner = attributes if is_script else attributes["_modules"]
            options = {
                name: attributes[name] for name in _OPTIONS if name in attributes and _is_plain(attributes[name])
            }
            # A script numbers the classes of one name: __torch__.torch.nn.modules.linear.___torch_mangle_3.Linear.
            parts = [each for each in symbol.module.split(".") if each != "__torch__" and "_torch_mangle_" not in each]
            found[path] = ModuleClass(".".join(parts), symbol.name, options)
        children = [
            (key, held)
            for key, held in inner.items()
            if isinstance(key, str) and (type(held) is Call or isinstance(held, dict))
        ]
        # Before a name is made: all children repeat the path.
        characters -= sum(len(path) + len(key) + 1 for key, _ in children)
        if characters < 0:
            return {}
        todo += [(f"{path}.{key}" if path else key, held) for key, held in reversed(children)]
    return found


def module_entries(value: Call) -> dict[Any, Any]:
    """Return what the state dict of a module is made of: parameters, persistent buffers, submodules (PT-25)."""
    entries: dict[Any, Any] = {}
    for name, held, why in _module_edges(value):
        if why is None and held is not None:
            if name in entries:
                raise DuplicateNameError(f"a module registers {printable(str(name))!r} twice", rule="PT-25")
            entries[name] = held
    return entries


def _module_edges(value: Call) -> Iterator[Edge]:
    attributes = _attributes(value) or {}
    transient = attributes.get("_non_persistent_buffers_set", ())
    if not isinstance(transient, (PickledSet, list, tuple)):
        raise CorruptError(f"the names of a module's transient buffers are a {kind_of(transient)}", rule="PT-25")
    unsaved = {name for name in transient if isinstance(name, str)}
    for table in _TABLES:
        for name, held in attributes[table].items():
            yield name, held, "a buffer that is not persistent" if table == "_buffers" and name in unsaved else None
    for name, held in attributes.items():
        if isinstance(held, Call) and kind_of(held) == "torch.ScriptObject":
            yield name, _unpacked(held.state, held), None
        elif name not in _TABLES:
            yield name, held, _NO_PARAMETER


def _unpacked(state: Any, packed: Call) -> Any:
    """Return the packed parameters of a quantized module as its state dict has them: weight and bias, or the weight."""
    match state:
        case ((_, _) as both, "__torch__.torch.classes.quantized.LinearPackedParamsBase"):
            return both
        case ((_, [weight], *rest), "__torch__.torch.classes.quantized.EmbeddingPackedParamsBase") if all(
            map(_is_plain, rest)
        ):
            return weight
    return packed


def _edges(value: Any) -> Iterable[Edge]:
    """Return everything that a value holds."""
    if not isinstance(value, dict):
        return _object_edges(value)
    edges: Iterable[Edge] = zip(value, value.values(), repeat(None))
    if not _PLAIN_KEY_TYPES.issuperset(map(type, value)):
        keys = [(kind_of(key), key, "a key of a dictionary") for key in value if isinstance(key, Call)]
        edges = chain(edges, keys)
    if isinstance(value, PickledDict) and value.state is not None:
        edges = chain(edges, _state_edges(value.state, value))
    return edges


def _object_edges(value: Any) -> Iterator[Edge]:
    if isinstance(value, (list, tuple)):
        yield from ((at, held, None) for at, held in enumerate(value))
    elif isinstance(value, NumpyArray):
        yield from ((at, held, None) for at, held in enumerate(value.items or ()))
        if value.items is None and value.reason is not None:
            yield "state", value.state, None
    elif isinstance(value, (AttributedTensor, CompositeTensor)):
        yield from _state_edges(value.state, value.parts if isinstance(value, CompositeTensor) else ())
    elif _is_compiled(value):
        yield from (("_orig_mod", value.args[0], None), ("context", value.args[1], None))
    elif is_module(value):
        module_entries(value)  # Refuse a name that is registered twice.
        yield from _module_edges(value)
    elif isinstance(value, Call) and not isinstance(value, PickledTensor):
        attributes = _attributes(value)
        taken = {_key_text(key) for key in attributes or ()}
        if isinstance(value.state, tuple) and len(value.state) == 15 and _QUANTIZED_CONV.match(kind_of(value)):
            yield from (
                ({10: "weight", 11: "bias"}.get(at, f"state.{at}"), each, None) for at, each in enumerate(value.state)
            )
        else:
            for key, held, _ in _state_edges(value.state, ()):  # A scripted module has lists beside its parameters.
                is_list = type(held) is Call and kind_of(held) == "torch.jit._pickle.build_tensorlist"
                yield key, held, _NO_PARAMETER if is_list else None
        for key, held in [*(value.pairs or ()), *enumerate(value.appended or ())]:
            yield f"items.{_key_text(key)}" if _key_text(key) in taken else key, held, None
        for name, part in (("args", value.args), ("kwargs", value.kwargs), ("function", value.function)):
            yield f"items.{name}" if name in taken else name, part, None


def _state_edges(state: Any, taken: Iterable[Any]) -> Iterator[Edge]:
    parts = _state_parts(state)
    if parts is not None:
        for part in parts:
            for key, held in part.items():
                yield f"state.{_key_text(key)}" if key in taken else key, held, None
    else:
        yield "state", state, None


def _is_plain(value: Any) -> bool:
    """Return whether a value is sure to hold no tensor, as most small dicts of a file do not."""
    kind = type(value)
    if kind is dict:
        return _PLAIN_KEY_TYPES.issuperset(map(type, value)) and _ATOMS.issuperset(map(type, value.values()))
    return kind in _ATOMS or (kind in (list, tuple) and _ATOMS.issuperset(map(type, value)))


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else str(key) if isinstance(key, _NAMED_KEYS) else f"<{kind_of(key)}>"


# --------------------------------------------------------------------------------------------------- accounting


def _stored_below(value: Any) -> int:
    """Count the stored tensors below a value."""
    return len(_reach({"": value})[0])


def _reach(root: Any, visits: list[int] | None = None) -> tuple[dict[int, Any], set[int]]:
    """Return all stored data below a value, and the containers from which any is reached, both by identity.

    Each object is visited once; ``visits`` is how many more there may be.
    """
    visits = [MAX_NODES] if visits is None else visits
    stored: dict[int, Any] = {}
    parents: dict[int, list[int]] = {id(root): []}
    todo, reached = [root], []
    while todo:
        value = todo.pop()
        children = [held for _, held, _ in _edges(value)]
        visits[0] -= len(children)
        if visits[0] < 0:
            raise LimitError(f"a graph of more than {MAX_NODES:,} values", rule="PT-17")
        tensors = [child for child in children if type(child) is PickledTensor]
        stored.update(zip(map(id, tensors), tensors, strict=True))
        if tensors:
            reached.append(id(value))
        if len(tensors) == len(children):
            continue
        for child in children:
            if type(child) is PickledTensor or _is_plain(child):
                continue
            leaf = _leaf(child)
            if leaf is not None or _why_unread(child) is not None:
                stored[id(child if leaf is None else leaf)] = child if leaf is None else leaf
                reached.append(id(value))
            if isinstance(child, _CONTAINERS) and (leaf is None or isinstance(child, _WITH_STATE)):
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
    return stored, holders


def _unnamed(root: Any, missing: set[int]) -> list[Note]:
    """Return notes about stored data that have no name: where they are, and why."""
    reasons: dict[str, list[str]] = {}
    seen = {id(root)}
    todo: list[tuple[str, Any, str | None]] = [("", root, None)] if missing else []
    while todo and missing:
        path, value, why = todo.pop()
        for key, child, own in _edges(value):
            if type(child) in _ATOMS:
                continue
            leaf = _leaf(child)
            inner = child if leaf is None else leaf
            name = below(path, _key_text(key))
            reason = why or own or (None if isinstance(key, _NAMED_KEYS) else f"under a key that is a {kind_of(key)}")
            if id(inner) in missing:
                missing.discard(id(inner))
                reasons.setdefault(reason or "no name leads to it", []).append(name)
            if isinstance(child, _CONTAINERS) and id(child) not in seen:
                seen.add(id(child))
                todo.append((name, child, reason))
    return [left_out_note(names, reason) for reason, names in reasons.items()]


def _unreferenced(file: PickledFile, stored: dict[int, Any]) -> list[Note]:
    """Return notes about data that the file stores, and that the saved object does not refer to."""
    storages = {id(value.storage) for value in stored.values() if type(value) is PickledTensor}
    todo = [value for value in stored.values() if type(value) is not PickledTensor]
    while todo:
        value = todo.pop()
        if isinstance(value, CompositeTensor):
            todo += value.parts.values()
        storage = value.storage if isinstance(value, PickledTensor) else value
        storages.add(id(storage.base if isinstance(storage, StorageView) else storage))
    others = [each for each in file.storages if id(each) not in storages and not each.is_understood]
    lost = [f"the storage {storage.key!r}" for storage in others]
    arrays = [array for array in file.storages.arrays if getattr(array, "items", None) is None]  # Others hold objects.
    lost += [f"a {kind_of(array)}" for array in arrays if id(array) not in stored]
    return [left_out_note(lost, "the saved object does not refer to it")] if lost else []


# --------------------------------------------------------------------------------------------------- names


def _name_all(root: Any, holders: set[int], found: Found, pickle_bytes: int, limits: Limits) -> set[int]:
    """Name every tensor below a value; return the identities of all data that have a name or a note.

    An object that is reached on two paths gives its tensors twice, under both names. The number of steps and the
    characters of all names are bounded by the size of the pickle: a few bytes can spell a long key, and refer to it
    many times.
    """
    tensors, max_name = found.tensors, limits.name_bytes
    steps = min(_MIN_NODES + _NODES_PER_BYTE * pickle_bytes, max(MAX_NODES, limits.tensors or 0))
    characters = _MIN_CHARACTERS + _CHARACTERS_PER_BYTE * pickle_bytes
    named: set[int] = set()
    classes: dict[str, None] = {}
    left_out: dict[str, list[str]] = {}
    # A frame holds a value's children that are still to come; it is dropped when they are used up.
    frames: list[tuple[str, int, Iterator[Edge]]] = [("", id(root), iter(_edges(root)))]
    on_path = {id(root)}
    _add_class(root, classes)
    while frames:
        prefix, identity, children = frames[-1]
        for key, value, why in children:
            steps -= 1
            kind = type(value)
            if kind in _ATOMS or why is not None or not isinstance(key, _NAMED_KEYS):
                continue
            leaf, unread, holds = value, None, False
            if kind is not PickledTensor:
                leaf = _leaf(value)
                unread = None if leaf is not None else _why_unread(value)
                holds = isinstance(value, _CONTAINERS) and id(value) in holders
                if leaf is None and unread is None and not holds:
                    continue
            text = key if type(key) is str else _key_text(key)
            length = len(prefix) + len(text)
            characters -= length
            if length > max_name:
                raise LimitError(f"a name of more than {max_name} bytes", rule="PT-24")
            if characters < 0 or steps < 0:
                raise LimitError(f"more or longer names than a pickle of {pickle_bytes} bytes may have", rule="PT-17")
            name = prefix + text
            if leaf is not None:
                if name in tensors:
                    raise DuplicateNameError(f"two tensors are called {printable(name)!r}", rule="PT-24", tensor=name)
                tensors[name] = leaf
            if unread is not None:
                named.add(id(value))
                left_out.setdefault(unread, []).append(name)
                if isinstance(value, (Unread, UnbuiltTensor)):
                    named |= _reach(value)[0].keys()  # What it is made of has no other name.
                    continue
            if not holds or id(value) in on_path or (leaf is not None and not isinstance(value, _WITH_STATE)):
                continue  # A value that holds itself adds no tensor.
            if len(frames) >= MAX_LEVELS:
                raise LimitError(f"values nested more than {MAX_LEVELS} deep", rule="PT-17")
            _add_class(value, classes)
            on_path.add(id(value))
            frames.append((name + ".", id(value), iter(_edges(value))))
            break
        else:
            frames.pop()
            on_path.discard(identity)
    named.update(map(id, tensors.values()))
    named_by = "are named by its attributes, items and arguments"
    found.notes += [Note("names", f"the tensors in an object of the class {name} {named_by}", name) for name in classes]
    found.notes += [left_out_note(names, reason) for reason, names in left_out.items()]
    return named


def _add_class(value: Any, classes: dict[str, None]) -> None:
    """Remember the class of an object whose names are not those of a state dict."""
    if not isinstance(value, Call) or isinstance(value, (*_WITH_STATE, NumpyArray)) or is_module(value):
        return
    if _is_compiled(value):
        return
    if not kind_of(value).startswith("__torch__."):  # Every part of a TorchScript model is such an object.
        classes[kind_of(value)] = None
