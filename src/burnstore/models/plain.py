"""The binding of plain Python models: `burnstore.nn`, objects, dataclasses, dicts, lists and tuples of NumPy arrays."""

from __future__ import annotations

import array
import functools
import gc
import hashlib
import math
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from ..errors import BurnstoreError, ModelError
from ..tensor.data import Array, Shape, TensorData
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from ..transforms.layout import ModuleKind, is_known
from .binding import Slot
from .load.ties import Memory
from .structure import Holder, Struct, Variant

layout = "burn"

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, np.generic, np.dtype)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial)
Setter = Callable[[Any], None]
Child = tuple[str, str, Any, "Setter | None"]
"""A direct child of a value: segment, container entry of the owner, child, and a function that replaces it."""
Children = Iterator[Child]
# A search for hidden tensors ends here: an attribute may lead to anything, and notes are not worth minutes.
_MOST_SEARCHED = 1_000_000


class _PlainSlot:
    """What both kinds of slots have in common: the value's own dtype is kept, and no bytes are written in place."""

    __slots__ = ("container_stack", "path")

    path: str
    container_stack: tuple[str, ...]
    keeps_dtype = False
    fixed = False

    def check_fill(self, value: Array | TensorData) -> None:
        pass

    def buffer(self) -> None:
        return None

    def filled(self, param_id: int | None) -> None:
        pass


class HolderSlot(_PlainSlot):
    """A tensor in a holder, which keeps the tensor and its id."""

    __slots__ = ("holder",)

    def __init__(self, path: str, container_stack: tuple[str, ...], holder: Holder, put: Setter | None) -> None:
        self.path = path
        self.container_stack = container_stack
        self.holder = holder

    @property
    def shape(self) -> Shape:
        return self.holder.shape

    @property
    def dtype(self) -> DType:
        return self.holder.dtype

    def snapshot(self) -> TensorSnapshot:
        holder, stack = self.holder, self.container_stack
        if holder.data is not None:
            return TensorSnapshot.from_data(self.path, holder.data, param_id=holder.id, container_stack=stack)
        return TensorSnapshot.from_closure(
            self.path,
            holder.dtype,
            holder.shape,
            lambda: holder.value,  # The value must not be drawn before it is read.
            param_id=holder.id,
            container_stack=stack,
        )

    def assign(self, value: Array | TensorData, param_id: int | None, *, fill: bool = False) -> None:
        self.holder.set(value)
        self.filled(param_id)

    def filled(self, param_id: int | None) -> None:
        if param_id is not None and not self.holder.keeps_id:
            self.holder.id = type(self.holder.id)(param_id)

    def identity(self) -> int:
        return id(self.holder)


class ArraySlot(_PlainSlot):
    """An array that is an attribute or an item of a container."""

    __slots__ = ("array", "put")

    def __init__(self, path: str, container_stack: tuple[str, ...], array: Array, put: Setter | None) -> None:
        self.path = path
        self.container_stack = container_stack
        self.array = array
        self.put = put

    @property
    def shape(self) -> Shape:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> DType:
        return DType.of(self.array.dtype)

    def snapshot(self) -> TensorSnapshot:
        return TensorSnapshot.from_numpy(self.path, self.array, container_stack=self.container_stack)

    @property
    def fixed(self) -> bool:  # type: ignore[override]
        return self.put is None  # in a tuple

    def check_fill(self, value: Array | TensorData) -> None:
        if isinstance(value, TensorData):
            given = np.dtype(np.float32) if value.dtype.is_quantized else value.dtype.numpy
        else:
            given = value.dtype
        if self.array.dtype.newbyteorder("=") != given.newbyteorder("="):
            reason = f"{self.array.dtype} and cannot hold {given}"
        elif not self.array.flags.writeable:
            reason = "read-only"
        else:
            return
        raise ModelError(
            f"the array is {reason}, and its container cannot be changed",
            tensor=self.path,
            hint="use a list in place of a tuple",
        )

    def assign(self, value: Array | TensorData, param_id: int | None, *, fill: bool = False) -> None:
        values = value.numpy() if isinstance(value, TensorData) else value
        if fill or self.put is None:
            self.array[...] = values
        else:
            self.put(values)
            self.array = values

    def identity(self) -> int:
        return id(self.array)

    def span(self) -> tuple[int, int] | None:
        """Return the first address of the memory that a load fills and the one after it; None if it fills none."""
        if self.put is not None or not self.array.size:
            return None
        memory = self.memory()
        return memory.start, memory.stop

    def memory(self) -> Memory:
        """Return the memory of the array; one that runs backwards is marked: its bytes have another order."""
        array = self.array
        back = [(extent - 1) * step for extent, step in zip(array.shape, array.strides, strict=True) if step < 0]
        start = array.__array_interface__["data"][0] + sum(back)
        return Memory("cpu", start, array.itemsize, array.shape, tuple(map(abs, array.strides)), bool(back))


def walk(model: Any, *, skip_enum_variants: bool = False) -> Iterator[Slot]:
    """Yield the slots of a plain model, depth first in the order of fields and items.

    The walk is iterative, so no model is too deep. An object that contains itself raises ModelError.
    """
    root = _KINDS[type(model)]
    if isinstance(root, type):
        raise TypeError("expected a model (an object or container of tensors), got a single tensor")
    # The open objects, outermost first. All levels share one list of segments and one of containers: copies per level
    # would make deep models quadratic.
    segments: list[str] = []
    stack: list[str] = []
    levels: list[tuple[int, int, int, Children]] = []  # the object, its share of both lists, the children to visit
    open_objects = {id(model)}
    try:
        levels.append((id(model), 0, 0, (root or _children(type(model)))(model)))
        while levels:
            identity, named, held, children = levels[-1]
            path: str | None = None
            for segment, container, value, put in children:
                kind = _KINDS[type(value)]
                if kind is None:
                    continue
                below = () if skip_enum_variants and container.startswith("Enum:") else (segment,)
                owners: tuple[str, ...] = (container,)
                if isinstance(kind, type):
                    if path is None:
                        path = ".".join(segments)
                    place = path if not below else f"{path}.{segment}" if segments else segment
                    yield kind(place, (*stack, container), value, put)
                    if kind is not HolderSlot or value.reparameterization is None:
                        continue
                    name, value = value.reparameterization
                    below, owners, kind = (*below, name), (container, "Reparameterization"), _children(type(value))
                segments += below
                stack += owners
                if id(value) in open_objects:
                    raise ModelError("the model contains itself here")
                open_objects.add(id(value))
                levels.append((id(value), len(below), len(owners), kind(value)))
                break
            else:
                levels.pop()
                open_objects.discard(identity)
                del segments[len(segments) - named :], stack[len(stack) - held :]
    except ModelError as error:
        if error.tensor is None and segments:
            error.tensor = ".".join(segments)
        raise


def left_out(model: Any, digests: dict[str, str | None] | None = None) -> dict[str, str]:
    """Return what `walk` does not visit although it holds tensors, or is an item of a mapping or list of tensors.

    It maps paths to reasons. A walk covers public attributes, stored fields and items, and of a torch module what its
    state dict has. Tensors elsewhere are listed: in private attributes, in attributes of a container, in fields that a
    struct does not store, in a set, in attributes of a torch module, of its class or of a tensor, in hooks, in what
    code was made with (`functools.partial`, closures, defaults); and numbers that are no tensors: storages, NumPy
    scalars, buffers. So are values in nested mappings and lists that are no tensors and hold none; constants of objects
    are settings. Fields that a module names in ``skipped``, gradients, and memory that is written under another name
    are not listed. ``digests`` gets a digest of the numbers of each entry, None where they are not known.

    >>> class Net:
    ...     def __init__(self):
    ...         self.weight, self._cache = np.zeros(3), np.zeros(2)
    >>> left_out(Net())
    {'_cache': '1 tensor in a private attribute'}
    """
    search = _Search(model, digests)
    visited: list[tuple[str, list[_HiddenValue], dict[str, str]]] = []
    search.met[id(model)] = model
    pending: list[tuple[str, Any, bool]] = [("", model, True)]
    while pending:
        prefix, value, is_data = pending.pop()
        is_container = _IS_CONTAINER[type(value)]
        is_data = is_data and is_container
        own = list(children(value))
        constants, below, holds_tensors = {}, [], False
        for segment, _, child, _ in own:
            kind = _KINDS[type(child)]
            if isinstance(kind, type):
                holds_tensors = True
            elif kind is None or (is_data and not isinstance(child, (Mapping, Sequence)) and not _holds_tensors(child)):
                constants[prefix + segment] = "not a tensor"
                if digests is not None:
                    digests[prefix + segment] = repr(child) if isinstance(child, _CONSTANTS) else None
            elif id(child) not in search.met:
                search.met[id(child)] = child  # It has its own turn.
                if not (_IS_MODULE[type(child)] and _is_plain_leaf(child)):
                    below.append((f"{prefix}{segment}.", child, is_data))
        hidden = list(_hidden(value, own))
        if hidden or constants:
            visited.append((prefix, hidden, constants if is_data or (is_container and holds_tensors) else {}))
        pending += reversed(below)
    found: dict[str, str] = {}
    for prefix, hidden, constants in visited:  # after the walk: what it meets anywhere is not hidden
        found |= search.tensors_in(hidden, prefix) | constants
    if digests is not None:
        for name in [name for name in digests if name not in found]:
            del digests[name]
    return found


def hidden_tensors(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Return the tensors that a mapping of arrays has in attributes of its own, with the reason why it has none of them
    as an item."""
    arrays = {name: value for name, value in mapping.items() if isinstance(value, np.ndarray)}
    return _Search(arrays).tensors_in(_hidden(mapping, list(_items(mapping))), "")


MODULE_ATTRIBUTES: set[str] = set()
"""The attributes that every torch module has: what they hold is visited, or is no tensor."""


class _Search:
    """A search for tensors that a walk does not visit; each object is searched once, so it is linear in the model."""

    def __init__(self, model: Any, digests: dict[str, str | None] | None = None) -> None:
        self._model = model
        self._digests = digests
        self._numbers: list[bytes | None] = []
        self.met: dict[int, Any] = {}

    @functools.cached_property
    def written(self) -> set[Any]:
        """The memory of what a walk visits; most models hide nothing, and then it is not needed."""
        return {_memory(slot) for slot in walk(self._model)}

    def tensors_in(self, hidden: Iterable[_HiddenValue], prefix: str) -> dict[str, str]:
        """Return the tensors in hidden values, by attribute, with the reason."""
        counts = []
        for name, held, reason in hidden:
            self._numbers = []
            counts.append((name, self.count(held), reason))
            if self._digests is not None:
                known = [number for number in self._numbers if number is not None]
                is_known = len(known) == len(self._numbers)
                digest = hashlib.sha256(b"".join(sorted(known))).hexdigest()  # a set has no order
                self._digests[prefix + name] = digest if is_known else None
        return {
            prefix + name: f"{count} {'tensor' if count == 1 else 'tensors'} {reason}"
            for name, count, reason in counts
            if count
        }

    def count(self, value: Any) -> int:
        """Return how many tensors are reachable from a value that are not written; never raise, whatever it is."""
        count, pending, met = 0, [value], self.met
        while pending and len(met) < _MOST_SEARCHED:
            each = pending.pop()
            if _IS_CONSTANT[type(each)] or id(each) in met:
                continue
            met[id(each)] = each  # The reference keeps the id from being used again.
            kind = _KINDS[type(each)]
            if isinstance(kind, type):
                count += self._is_unwritten(kind, each)
            elif isinstance(each, _NUMBERS) or _IS_STORAGE[type(each)]:
                count += self._is_unwritten_storage(each)
                continue
            pending += _held_by(each)
        return count

    def _is_unwritten_storage(self, value: Any) -> bool:
        """Return whether numbers that are no tensor (a storage, a NumPy scalar, a buffer) are not in a written one."""
        if not _IS_STORAGE[type(value)]:
            self._keep(repr(type(value)), bytes(value.tobytes()))
            return True
        self._numbers.append(None)
        try:
            memory = (value.device, value.data_ptr())
            return value.nbytes() > 0 and memory not in self.written
        except Exception:  # a storage without memory of its own
            return True

    def _is_unwritten(self, kind: Any, value: Any) -> bool:
        try:
            slot = kind("", (), value, None)
            is_unwritten = math.prod(slot.shape) > 0 and _memory(slot) not in self.written
            if is_unwritten and self._digests is not None:
                self._keep(f"{slot.dtype}{slot.shape}", slot.snapshot().to_bytes())
            return is_unwritten
        except (BurnstoreError, RuntimeError):
            self._numbers.append(None)
            return True  # a tensor of a form that cannot be saved

    def _keep(self, what: str, raw: bytes) -> None:
        self._numbers.append(hashlib.sha256(what.encode() + raw).digest())


def _held_by(value: Any) -> Iterable[Any]:
    """Return what a value holds: items, keys, attributes, and of code what it was made with."""
    kind = type(value)
    held: list[Any] = []
    if issubclass(kind, types.FunctionType):  # not its globals, which are those of a whole module
        cells = [cell for cell in value.__closure__ or () if cell != _EMPTY_CELL]
        held += [cell.cell_contents for cell in cells]
        held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    elif issubclass(kind, types.MethodType):
        held += [value.__self__, value.__func__]
    elif isinstance(value, Mapping):
        held += [*value, *value.values()]
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        held += value
    elif issubclass(kind, weakref.ReferenceType):
        held.append(value())
    elif kind.__module__ in _OF_PYTHON and not issubclass(kind, property):
        # An iterator, a generator, functools.partial, a cache: Python shows what they refer to, and uses nothing up.
        held += gc.get_referents(value)
    names = (*getattr(value, "__dict__", ()), *_SLOT_NAMES[kind])
    held += (getattr(value, name, None) for name in names)
    return held


_EMPTY_CELL = types.CellType()
_OF_PYTHON = ("builtins", "functools", "itertools", "collections", "_collections")
_NUMBERS = (np.number, np.bool_, memoryview, array.array)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_HiddenValue = tuple[str, Any, str]
"""A name, a value that a walk does not visit, and the reason."""


def _hidden(value: Any, own: Sequence[Child]) -> Iterator[_HiddenValue]:
    """Yield what is not among the own children of a value."""
    held = getattr(value, "__dict__", {})
    is_module = "_parameters" in held and "_modules" in held
    names = [name for name in held if not is_module or name not in MODULE_ATTRIBUTES]
    if is_module and "_concrete_type" in held:  # a script: Python does not hold its attributes
        names += held["_concrete_type"].get_attributes()
    found = [(name, getattr(value, name, None)) for name in (*names, *_SLOT_NAMES[type(value)])]
    found = [(name, child) for name, child in found if not _IS_CONSTANT[type(child)]]
    visible = {id(child) for _, _, child, _ in own if _KINDS[type(child)] is not None} if found else set()
    skipped = getattr(value, "skipped", ()) if isinstance(value, Struct) else ()
    for name, child in found:
        if id(child) in visible or name in skipped:
            continue
        if is_module:
            reason = "in an attribute that is no parameter, buffer or module"
        elif name.startswith("_") and not isinstance(value, (Struct, Variant)):
            reason = "in a private attribute"
        else:
            owner = "container" if isinstance(value, (Mapping, Sequence)) else "struct that does not store it"
            reason = f"in an attribute of a {owner}"
        yield name, child, reason
    yield from _beside_tensors(own)
    if is_module:
        for name in held.get("_non_persistent_buffers_set", ()):
            yield name, held["_buffers"].get(name), NOT_PERSISTENT
        for name in _HOOKS:
            if held.get(name):
                yield name, list(held[name].values()), "in a hook"
        for name, tensor in _CLASS_TENSORS[type(value)].items():
            if name not in held:
                yield name, tensor, "in an attribute of the class"
    elif isinstance(value, (set, frozenset)):
        yield "(set)", list(value), "in a set, which has no order"
    elif isinstance(value, (Struct, Variant)) and isinstance(value, (Mapping, Sequence)):
        yield "(items)", list(value.values()) if isinstance(value, Mapping) else list(value), "among a struct's items"


NOT_PERSISTENT = "in a buffer that is not persistent"
"""The reason for buffers that PyTorch leaves out of files, too."""


def _beside_tensors(own: Sequence[Child]) -> Iterator[_HiddenValue]:
    """Yield the attributes that tensors were given, except those in which a load keeps ids."""
    for segment, _, child, _ in own:
        if isinstance(_KINDS[type(child)], type) and not isinstance(child, Holder):
            for name, value in _attributes_of_tensor(child).items():
                yield f"{segment}.{name}", value, "in an attribute of a tensor"


def _attributes_of_tensor(tensor: Any) -> dict[str, Any]:
    found = getattr(tensor, "__dict__", None)
    if not found:
        return {}
    return {name: value for name, value in found.items() if name not in ("burn_param_id", "burn_param_ids")}


def _is_plain_leaf(module: Any) -> bool:
    """Return whether a torch module has only its tensors and constants, so that nothing is hidden in it or below it."""
    held = module.__dict__
    if held.get("_modules", True) or held.get("_non_persistent_buffers_set") or _SLOT_NAMES[type(module)]:
        return False
    if any(map(held.get, _HOOKS)) or _CLASS_TENSORS[type(module)]:
        return False
    for name in _own_attributes(tuple(held)):
        value = held[name]  # often a tuple of numbers, such as kernel_size
        for each in value if type(value) is tuple else (value,):
            if not _IS_CONSTANT[type(each)]:
                return False
    tensors = (*held.get("_parameters", {}).values(), *held.get("_buffers", {}).values())
    return not any(map(_attributes_of_tensor, tensors))


@functools.lru_cache(maxsize=1024)
def _own_attributes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the attributes of a module that not every torch module has; modules of a class have the same."""
    return tuple(name for name in names if name not in MODULE_ATTRIBUTES)


def _holds_tensors(value: Any) -> bool:
    return _Search({}).count(value) > 0


def _memory(slot: Any) -> Any:
    """Return the identity of the memory behind a slot: that of the array that owns it, for a view."""
    memory = getattr(slot, "storage", None)
    if memory is not None:
        return memory
    array, identity = getattr(slot, "array", None), slot.identity()
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array, identity = array.base, id(array.base)
    return identity


# Options that change what a recurrent layer computes, with the values that equal PyTorch's behaviour.
TORCH_OPTIONS = {
    "reset_after": True,
    "clip": None,
    "reverse": False,
    "input_forget": False,
    "gate_activation": "Sigmoid",
    "cell_activation": "Tanh",
    "hidden_activation": "Tanh",
}
RECURRENT = ("Lstm", "BiLstm", "Gru", "BiGru", "Rnn", "BiRnn")


def kinds(model: Any, *, skip_enum_variants: bool = False) -> dict[str, ModuleKind]:
    """Return the modules of a plain model whose class has the name of a known kind."""
    found: dict[str, ModuleKind] = {}
    pending = [("", model)]
    while pending:
        path, value = pending.pop()
        kind = _kind_of(value)
        if kind is not None:
            found[path] = kind
        below = []
        for segment, container, child, _ in _children(type(value))(value):
            if not isinstance(child, (np.ndarray, Holder)) and _KINDS[type(child)] is not None:
                skipped = skip_enum_variants and container.startswith("Enum:")
                below.append((path if skipped else f"{path}.{segment}" if path else segment, child))
        pending += reversed(below)  # so that the first child is visited first, in the model's order
    return found


def _kind_of(value: Any) -> ModuleKind | None:
    name = type(value).__name__
    if not is_known(name):
        return None
    options: list[tuple[str, int]] = []
    if hasattr(value, "norm_first"):
        options.append(("norm_first", bool(value.norm_first)))
    if getattr(getattr(value, "weight", None), "transposed", False):
        options.append(("col", True))
    if name in RECURRENT:
        layer = value.forward if name.startswith("Bi") and not callable(value.forward) else value
        if not all(_equals_torch(layer, option) for option in TORCH_OPTIONS):
            options.append(("unlike_torch", True))
    return ModuleKind(name, tuple(options))


def _equals_torch(layer: Any, option: str) -> bool:
    found = getattr(layer, option, TORCH_OPTIONS[option])
    choice = getattr(found, "variant", found)  # the name of an activation
    relu = option == "hidden_activation" and type(layer).__name__ == "Rnn" and choice == "Relu"
    return relu or choice == TORCH_OPTIONS[option]


_further_kinds: list[Callable[[type], Any]] = []


def register_kind(find: Callable[[type], Any]) -> None:
    """Let plain models hold a framework's tensors: ``find`` maps a type to a slot class, a lister of children, or None.

    A slot class is constructed with the path, the container stack, the value, and a function that replaces the value.
    """
    _further_kinds.append(find)


def children(value: Any) -> Children:
    """Return the direct children of a value; a tensor or a constant has none."""
    kind = _KINDS[type(value)]
    found: Children = iter(()) if kind is None or isinstance(kind, type) else kind(value)
    return found


class _PerType(dict[type, Any]):
    """A cache per type, filled on first use: models hold many objects of few types."""

    def __init__(self, compute: Callable[[type], Any]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, kind: type) -> Any:
        found = self[kind] = self._compute(kind)
        return found


def _kind(kind: type) -> Any:
    """Return what a value of this type is in a model: None (a constant), a slot class, or a lister of children."""
    for find in _further_kinds:
        found = find(kind)
        if found is not None:
            return found
    if issubclass(kind, np.ma.MaskedArray):
        return _refuse_masked
    if issubclass(kind, np.ndarray):
        return ArraySlot
    if issubclass(kind, Holder):
        return HolderSlot
    if issubclass(kind, _CONSTANTS) or issubclass(kind, _CODE) or _IS_STORAGE[kind]:
        return None
    return _children(kind)


def _children(kind: type) -> Callable[[Any], Children]:
    # The built-in containers come first: an abstract class asks all of its subclasses before it answers no, which would
    # take longer for the first list of a model than the rest of the walk.
    if not {Struct, Variant}.intersection(kind.__mro__):
        if issubclass(kind, dict):
            return _items
        if issubclass(kind, (list, tuple)):
            return _elements
    if issubclass(kind, Variant):
        return _payload
    if issubclass(kind, Struct):
        return _fields
    if issubclass(kind, Mapping):
        return _items
    if issubclass(kind, Sequence):
        return _elements
    if hasattr(kind, "__array__") or issubclass(kind, (TensorSnapshot, TensorData)):
        return _array_like
    if _IS_MODULE[kind]:
        return _refused
    return _attributes


def _array_like(value: Any) -> Children:
    """Return the attributes of an object that represents an array, if one of them is the array."""
    found = list(_attributes(value))
    if not any(isinstance(child, (np.ndarray, Holder)) for _, _, child, _ in found):
        return _refused(value)
    return iter(found)


def _refused(value: Any) -> Children:
    """Refuse an object that keeps its tensors where a walk over attributes does not find them."""
    kind = type(value)
    raise ModelError(
        f"cannot see the tensors of a {kind.__module__}.{kind.__qualname__}", hint="use NumPy arrays in its place"
    )


def _refuse_masked(value: Any) -> Children:
    raise ModelError("the mask of a masked array cannot be saved", hint="use array.filled(value), or array.data")


def _payload(value: Variant) -> Children:
    yield value.variant, f"Enum:{type(value).__name__}", value.payload, _attribute_setter(value, "payload")


def _fields(value: Struct) -> Children:
    container = f"Struct:{type(value).__name__}"
    for name, child in value.fields():
        yield name, container, child, functools.partial(value.set_field, name)


def _items(value: Mapping[Any, Any]) -> Children:
    put = value.__setitem__ if isinstance(value, MutableMapping) else None
    for key, child in value.items():
        if not isinstance(key, str):
            raise ModelError(f"dict keys must be strings, got {key!r}")
        yield as_text(key), "Dict", child, None if put is None else functools.partial(put, key)


def as_text(key: str) -> str:
    """Return the characters of a key: a member of an enum of strings has another text in messages than as a key."""
    return key if type(key) is str else str.__str__(key)


def _elements(value: Sequence[Any]) -> Children:
    container = getattr(type(value), "burn_container", "Tuple" if isinstance(value, tuple) else "Vec")
    put = value.__setitem__ if isinstance(value, MutableSequence) else None
    for index, child in enumerate(value):
        yield str(index), container, child, None if put is None else functools.partial(put, index)


def _attributes(value: Any) -> Children:
    """Return the public instance attributes of an object, including slots."""
    container = f"Struct:{type(value).__name__}"
    for name in (*getattr(value, "__dict__", ()), *_SLOT_NAMES[type(value)]):
        if not name.startswith("_") and hasattr(value, name):
            yield name, container, getattr(value, name), _attribute_setter(value, name)


def _slots_of(kind: type) -> tuple[str, ...]:
    names: list[str] = []
    for owner in reversed(kind.__mro__):
        slots = owner.__dict__.get("__slots__", ())
        own = [slots] if isinstance(slots, str) else list(slots)
        mangled = "_" + owner.__name__.lstrip("_")
        names += [mangled + name if name.startswith("__") and not name.endswith("__") else name for name in own]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _attribute_setter(owner: Any, name: str) -> Setter:
    # object.__setattr__, because a load may change a frozen dataclass.
    return functools.partial(object.__setattr__, owner, name)


def _tensors_of_class(kind: type) -> dict[str, Any]:
    """Return the tensors and arrays that are attributes of a class; those of a library are constants of its code."""
    found: dict[str, Any] = {}
    for cls in reversed(kind.__mro__):
        if not cls.__module__.startswith(("torch.", "builtins")):
            held = ((name, value) for name, value in vars(cls).items() if not isinstance(value, (type, property)))
            found.update((name, value) for name, value in held if isinstance(_KINDS[type(value)], type))
    return found


_KINDS = _PerType(_kind)
_CLASS_TENSORS = _PerType(_tensors_of_class)
_PLAIN_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, bytearray, range, np.dtype, type)
_CODE_OF_SCRIPTS = ("ScriptMethod", "ScriptFunction")
_IS_CONSTANT = _PerType(
    lambda kind: (
        issubclass(kind, (*_PLAIN_CONSTANTS, np.character, types.BuiltinFunctionType, types.ModuleType))
        or (kind.__name__ in _CODE_OF_SCRIPTS and kind.__module__.startswith("torch"))
    )
)
_IS_STORAGE = _PerType(
    lambda kind: kind.__module__.startswith("torch.storage") and kind.__name__ in ("UntypedStorage", "TypedStorage")
)
_IS_CONTAINER = _PerType(lambda kind: issubclass(kind, (Mapping, Sequence)) and not issubclass(kind, (Struct, Variant)))
_IS_MODULE = _PerType(
    lambda kind: any(f"{base.__module__}.{base.__name__}" == "torch.nn.modules.module.Module" for base in kind.__mro__)
)
_SLOT_NAMES = _PerType(_slots_of)
