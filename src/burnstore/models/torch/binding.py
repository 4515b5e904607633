"""PyTorch models: modules, state dicts, and tensors held in plain objects.

A module's tensors are those of its ``state_dict()``, with its names and in its order: parameters and persistent
buffers, a shared one under each of its names. Loading fills the existing tensors in place: their dtype, device, strides
and ``requires_grad`` stay, and so does every other reference to them (an optimizer, a tie). Only a tensor on the meta
device is replaced, by one on the requested device or on torch's default one. In a mapping, a list or an attribute a
tensor is replaced, as a NumPy array is.

A parameter's Burn id is its attribute ``burn_param_id``, which survives loads, ``module.to()`` and pickling; a
``deepcopy`` of a parameter and the tensors of a ``state_dict()`` are new tensors and have none. Loading does not run
``load_state_dict`` hooks. A module whose ``state_dict()`` is not simply its tensors is refused: use the state dict.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import BurnstoreError, DeviceError, ModelError, located
from ...tensor.data import Array, Shape, TensorData
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.param_id import ParamId
from ...tensor.snapshot import TensorSnapshot
from ...tensor.torch import (
    TRANSFER_DEVICES,
    Device,
    Tensor,
    TorchData,
    as_bits,
    described,
    device_errors,
    flat_bytes,
    is_tensor,
    placed,
    tensor_from_array,
    tensor_from_bytes,
    torch_package,
)
from ...transforms.layout import ModuleKind
from .. import plain
from ..binding import Slot
from ..load.ties import Memory
from .kinds import class_name, kind_of, own_code

layout = "torch"

Module = Any
"""A torch.nn.Module."""

_ID = "burn_param_id"
_PART_IDS = "burn_param_ids"
_STATE_METHODS = ("state_dict", "_save_to_state_dict", "get_extra_state")
_LOAD_METHODS = ("load_state_dict", "_load_from_state_dict", "set_extra_state")


class TensorSlot:
    """A torch tensor: a parameter or buffer of a module, or the value of an attribute or an item."""

    __slots__ = (
        "_arrivals",
        "_identity",
        "_meta_device",
        "_replacements",
        "_start",
        "container_stack",
        "dtype",
        "path",
        "put",
        "shape",
        "tensor",
    )

    keeps_dtype = True

    dtype: DType
    shape: Shape
    _replacements: dict[int, Tensor]
    _arrivals: dict[int, Tensor]

    def __init__(self, path: str, container_stack: tuple[str, ...], tensor: Tensor, put: plain.Setter | None) -> None:
        self.path = path
        self.container_stack = container_stack
        self.tensor = tensor
        self.put = put
        self._identity = id(tensor)
        self._meta_device: Device = None
        self._start = 0
        try:
            self.dtype, self.shape = described(tensor)
        except BurnstoreError:
            with located(tensor=path):
                raise

    def join(self, others: _Joined) -> None:
        """Identify this slot with other slots of the model that have the same memory: they get one value."""
        tensor = self.tensor
        self._replacements = others.replacements
        self._arrivals = others.arrivals
        if tensor.is_meta or not tensor.numel():
            return
        self._start = tensor.data_ptr()
        first = others.by_address.setdefault(self._start, self)
        if first is not self:  # tensors at one address may still differ
            others.identities.setdefault(first._memory(), first._identity)
            self._identity = others.identities.setdefault(self._memory(), id(tensor))

    def _memory(self) -> tuple[Any, ...]:
        tensor = self.tensor
        lazy = tensor.is_conj(), tensor.is_neg()
        return tensor.data_ptr(), self.shape, tensor.stride(), self.dtype, tensor.device, lazy

    @property
    def storage(self) -> tuple[Device, int] | None:
        """The memory that this tensor and its views share; None if it has none."""
        try:
            start = self.tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):  # a subclass without a storage of its own
            return None
        return (self.tensor.device, start) if start else None

    def span(self) -> tuple[int, int] | None:
        start, tensor = self._start, self.tensor
        if self.put is not None or not start:
            return None
        return start, start + tensor.nbytes if tensor.is_contiguous() else self.memory().stop

    def memory(self) -> Memory:
        tensor = self.tensor
        width = tensor.element_size()
        strides = tuple(step * width for step in tensor.stride())
        is_lazy = tensor.is_conj() or tensor.is_neg()
        return Memory(tensor.device, tensor.data_ptr(), width, tuple(tensor.shape), strides, is_lazy)

    def snapshot(self) -> TensorSnapshot:
        given = getattr(self.tensor, _ID, None)
        return TensorSnapshot(
            self.path,
            self.dtype,
            self.shape,
            TorchData(self.tensor),
            param_id=None if given is None else int(ParamId(given)),
            container_stack=self.container_stack,
        )

    @property
    def fixed(self) -> bool:
        return self.put is None

    def check_fill(self, value: Array | TensorData) -> None:
        tensor = self.tensor
        if tensor.is_meta:
            reason, hint = "it is on the meta device and has no memory", "keep it where it can be replaced"
        elif tensor.is_inference() and not torch_package().is_inference_mode_enabled():
            reason, hint = "it is an inference tensor", "load it under torch.inference_mode()"
        elif _overlaps(tensor):
            reason, hint = "it is expanded: several elements share memory", "make it contiguous() first"
        else:
            return
        raise ModelError(f"cannot fill this tensor: {reason}", tensor=self.path, hint=hint)

    def buffer(self) -> memoryview | None:
        tensor = self.tensor
        if self.put is not None or not tensor.is_cpu or not tensor.is_contiguous():
            return None
        if tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
            return None
        return memoryview(flat_bytes(tensor).numpy())

    @property
    def may_be_on_gpu(self) -> bool:
        return not self.tensor.is_cpu or "cpu" in TRANSFER_DEVICES

    def materialize_on(self, device: Device) -> None:
        """Let the values be made on this device; ModelError if the tensor is on another already."""
        held = self.tensor.device
        if self.tensor.is_meta:
            self._meta_device = device
        elif held.type != device.type or device.index not in (None, held.index):
            raise ModelError(
                f"expected a tensor on {device}, found it on {held}",
                tensor=self.path,
                hint="move the model there first, or leave device= out: existing tensors are filled in place",
            )

    def gpu(self) -> Device | None:
        tensor = self.tensor
        device = self._device()
        if device.type not in TRANSFER_DEVICES or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
            return None
        return None if self.put is None and _overlaps(tensor) else device

    def target(self) -> tuple[Tensor, bool]:
        tensor = self.tensor
        if self.put is None:
            return tensor.detach(), False
        device = self._device()
        with located(tensor=self.path), device_errors(device, tensor.nbytes):
            arriving = torch_package().empty_like(tensor, device=device, requires_grad=False)
        self._arrivals[self._identity] = arriving
        return arriving, True

    def filled(self, param_id: int | None) -> None:
        if self.put is None:
            torch_package().autograd.graph.increment_version(self.tensor)
        else:
            self._replace(lambda: self._arrivals[self._identity].detach())
        self._keep(param_id)

    def assign(self, value: Array | TensorData, param_id: int | None, *, fill: bool = False) -> None:
        with located(tensor=self.path):
            if fill or self.put is None:
                _copy_bits(_tensor(value), self.tensor)
            else:
                self._replace(lambda: placed(_tensor(value), self._device()))
        self._keep(param_id)

    def _replace(self, make: Callable[[], Tensor]) -> None:
        """Replace this tensor, and with the same tensor wherever else it is."""
        replacement = self._replacements.get(id(self.tensor))
        if replacement is None:
            replacement = self._replacements[id(self.tensor)] = _standing_for(self.tensor, make())
        assert self.put is not None
        self.put(replacement)
        self.tensor = replacement

    def _device(self) -> Device:
        """Return the device of the tensor, or of its values if it is on the meta device."""
        if not self.tensor.is_meta:
            return self.tensor.device
        if self._meta_device is not None:
            return self._meta_device
        torch = torch_package()
        device = torch.get_default_device()
        return torch.device("cpu") if device.type == "meta" else device

    def _keep(self, param_id: int | None) -> None:
        if param_id is not None:
            setattr(self.tensor, _ID, int(param_id))

    @property
    def part_ids(self) -> tuple[int | None, ...] | None:
        """The ids of the Burn tensors that this one was joined from, if there were several."""
        return getattr(self.tensor, _PART_IDS, None)

    @part_ids.setter
    def part_ids(self, ids: Sequence[int | None]) -> None:
        setattr(self.tensor, _PART_IDS, tuple(ids))

    def identity(self) -> int:
        return self._identity


@dataclass(slots=True)
class _Joined:
    """The state that the slots of one model share."""

    by_address: dict[int, TensorSlot] = field(default_factory=dict)
    identities: dict[tuple[Any, ...], int] = field(default_factory=dict)
    replacements: dict[int, Tensor] = field(default_factory=dict)
    arrivals: dict[int, Tensor] = field(default_factory=dict)


def walk(model: Any, *, skip_enum_variants: bool = False) -> Iterator[Slot]:
    """Yield the slots of a model with torch tensors: a module, or anything that a plain model may be."""
    slots: list[Any] = list(plain.walk(model, skip_enum_variants=skip_enum_variants))
    tensors = {slot.path: slot.tensor for slot in slots if isinstance(slot, TensorSlot)}
    for slot in slots:
        if isinstance(slot, plain.HolderSlot):
            raise ModelError(
                f"has Burn's layout, while '{next(iter(tensors))}' of the same model has PyTorch's",
                tensor=slot.path,
                hint="save and load the two parts separately",
            )
    _check_state_dicts(modules(model), tensors)
    joined = _Joined()
    for slot in slots:
        if isinstance(slot, TensorSlot):
            slot.join(joined)
    return iter(slots)


def materialize_on(slots: Iterable[Slot], device: Device) -> None:
    """Let tensors on the meta device be made on this device.

    ModelError if a tensor is on another device: none is moved. DeviceError if the device does not exist.
    """
    torch = torch_package()
    try:
        wanted = torch.device(device)
        if wanted.type == "meta":
            raise ValueError("cannot load onto the meta device, which has no values")
        torch.empty(1, device=wanted)
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:  # it depends on torch's build
        raise DeviceError(f"cannot use the device {device!r}: {error}") from error
    held = [slot for slot in slots if isinstance(slot, TensorSlot)]
    if not held:
        raise ModelError("device= needs a model with torch tensors", hint="leave device= out")
    for slot in held:
        slot.materialize_on(wanted)


left_out = plain.left_out


def holds_tensors(model: Any) -> bool:
    """Return whether this is a torch module or contains torch tensors."""
    if isinstance(model, torch_package().nn.Module):
        return True
    return any(isinstance(slot, TensorSlot) for slot in plain.walk(model))


def modules(model: Any) -> Iterator[tuple[str, Module]]:
    """Yield the torch modules of a model with their paths, outer before inner; a shared one under each path."""
    module_type = torch_package().nn.Module
    todo: list[tuple[str, Any]] = [("", model)]
    while todo:
        path, value = todo.pop()
        is_module = isinstance(value, module_type)
        if is_module:
            yield path, value
            if not value._modules:
                continue
        prefix = f"{path}." if path else ""
        if is_module:
            below = [(prefix + name, child) for name, child in value._modules.items() if child is not None]
        else:
            held = plain.children(value)
            below = [(prefix + segment, child) for segment, _, child, _ in held if not is_tensor(child)]
        todo += reversed(below)


def kinds(model: Any, *, skip_enum_variants: bool = False) -> dict[str, ModuleKind | None]:
    """Return the kind of every module of a model, outer before inner."""
    found: dict[str, ModuleKind | None] = {}
    for path, module in modules(model):
        try:
            found[path] = kind_of(module)
        except BurnstoreError:
            with located(tensor=path):
                raise
    return found


def _kind(kind: type) -> Any:
    """Return how the walk of plain models handles a type of torch; None for other types."""
    torch = torch_package()
    nn = torch.nn
    if issubclass(kind, torch.Tensor):
        return TensorSlot
    if issubclass(kind, (nn.ModuleDict, nn.ParameterDict)):
        return _dict_children
    if issubclass(kind, (nn.Sequential, nn.ModuleList, nn.ParameterList)):
        return _series_children
    return _module_children if issubclass(kind, nn.Module) else None


plain.register_kind(_kind)
plain.MODULE_ATTRIBUTES |= vars(torch_package().nn.Module()).keys()


def _module_children(module: Module) -> plain.Children:
    return _held_by(module, f"Struct:{class_name(module)}")


def _dict_children(module: Module) -> plain.Children:
    return _held_by(module, "Dict")


def _series_children(module: Module) -> plain.Children:
    names = (*module._parameters, *module._buffers, *module._modules)
    return _held_by(module, "Vec") if all(map(str.isdecimal, names)) else _module_children(module)


def _held_by(module: Module, container: str) -> plain.Children:
    tensors = list(module._parameters.items())
    if module._buffers:
        tensors += [item for item in module._buffers.items() if item[0] not in module._non_persistent_buffers_set]
    for name, tensor in tensors:
        if tensor is not None:
            # Not by the dict itself: an LSTM keeps a second list of its parameters, which __setattr__ updates.
            put = functools.partial(setattr, module, name) if tensor.is_meta else None
            yield plain.as_text(name), container, tensor, put
    for name, child in module._modules.items():
        if child is not None:
            yield plain.as_text(name), container, child, None


def _overlaps(tensor: Tensor) -> bool:
    """Return whether several elements share memory; True where there are too many to find out."""
    if tensor.is_contiguous():
        return False
    reach = 0
    axes = sorted((step, extent) for step, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1)
    for step, extent in axes:
        if step <= reach or not step:
            break
        reach += step * (extent - 1)
    else:
        return False
    if axes[0][0] == 0 or tensor.numel() > 1 << 22:
        return True
    places = np.zeros(1, np.int64)
    for step, extent in axes:
        places = (places[:, None] + np.arange(extent) * step).reshape(-1)
    return len(np.unique(places)) < len(places)


def _tensor(value: Array | TensorData) -> Tensor:
    if isinstance(value, TensorData):
        return tensor_from_bytes(value.raw, value.dtype, value.shape)
    return tensor_from_array(value)


def _copy_bits(source: Tensor, target: Tensor) -> None:
    torch = torch_package()
    with torch.no_grad():
        if target.is_conj() or target.is_neg():
            target.detach().copy_(source)
        else:
            with device_errors(target.device, target.nbytes):
                as_bits(target.detach()).copy_(as_bits(source))


def _standing_for(held: Tensor, values: Tensor) -> Tensor:
    """Return the values as a tensor of the same class and attributes as the one they replace."""
    if isinstance(held, torch_package().nn.Parameter):
        values = torch_package().nn.Parameter(values, requires_grad=held.requires_grad)
    elif held.requires_grad:
        values.requires_grad_()
    values.__dict__.update(held.__dict__)
    return values


def _check_state_dicts(modules: Iterable[tuple[str, Module]], tensors: dict[str, Tensor]) -> None:
    """Raise ModelError for a module whose ``state_dict()`` is not simply its tensors."""
    base = torch_package().nn.Module
    own: dict[type, bool] = {}
    for path, module in modules:
        kind = type(module)
        if kind not in own:
            own[kind] = any(getattr(kind, name) is not getattr(base, name) for name in _STATE_METHODS)
        if own[kind] or module._state_dict_hooks or module._state_dict_pre_hooks:
            _check_state_dict(path, module, tensors)


def _check_state_dict(path: str, module: Module, tensors: dict[str, Tensor]) -> None:
    prefix = f"{path}." if path else ""
    given = module.state_dict(prefix=prefix, keep_vars=True)
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    odd = sorted(given.keys() ^ found.keys()) or [name for name in found if not _is_same(given[name], found[name])]
    if odd:
        raise ModelError(
            f"the state_dict() of a {type(module).__name__} is not its parameters and buffers; {odd[0]!r} differs",
            tensor=path or None,
            hint="use the state dict: bs.save(model.state_dict(), ...), or load into it and call load_state_dict",
        )


def load_notes(model: Any) -> list[Note]:
    """Return a note if classes have code of their own for ``load_state_dict``: a load does not run it."""
    found: dict[type, bool] = {}
    names: dict[str, None] = {}
    for _, module in modules(model):
        kind = type(module)
        if kind not in found:
            found[kind] = any(_is_foreign(getattr(kind, name)) for name in _LOAD_METHODS)
        hooks = (module._load_state_dict_pre_hooks, module._load_state_dict_post_hooks)
        if found[kind] or any(_is_foreign(getattr(hook, "hook", hook)) for held in hooks for hook in held.values()):
            names[class_name(module)] = None
    hint = "load into model.state_dict() and call load_state_dict to run it"
    text = f"code for load_state_dict was not run, of {', '.join(names)}; {hint}"
    return [Note("unknown", text)] if names else []


def code_notes(model: Any) -> list[Note]:
    """Return notes about code besides the layers: classes that compute more than the layer they derive from, hooks."""
    classes: dict[str, None] = {}
    hooked: dict[str, None] = {}
    for path, module in modules(model):
        if (own := own_code(module)) is not None:
            classes[own] = None
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if any(map(_is_foreign, hooks)):
            hooked[path or class_name(module)] = None
    texts = [f"the forward of these classes does more than the layer, and is not in the file: {', '.join(classes)}"]
    texts = texts if classes else []
    texts += [f"forward hooks are not in the file: those of {', '.join(list(hooked)[:3])}"] if hooked else []
    return [Note("unknown", text) for text in texts]


def _is_foreign(code: Any) -> bool:
    return not (getattr(code, "__module__", None) or type(code).__module__).startswith("torch.")


def _is_same(given: Any, found: Tensor) -> bool:
    if given is found:
        return True
    return (
        is_tensor(given)
        and given.data_ptr() == found.data_ptr()
        and given.shape == found.shape
        and given.stride() == found.stride()
        and given.dtype is found.dtype
        and not found.is_meta
    )
