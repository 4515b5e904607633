"""Random models: the same layers as values, as a torch module, as a `burnstore.nn` model and as nested dicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import torch

from burnstore import nn

from .reference import declared
from .terms import Array, Layer, Named, kind_of

NUMPY: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "Bool": np.bool_,
    "C64": np.complex64,
    "C128": np.complex128,
}
TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "Bool": torch.bool,
    "C64": torch.complex64,
    "C128": torch.complex128,
}
_NAME_OF = {np.dtype(dtype): name for name, dtype in NUMPY.items()}
_NAME_OF_TORCH = {dtype: name for name, dtype in TORCH.items()}
COMMON = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "Bool")
"""The dtypes that every format and framework has."""

SPECIALS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-40, 6e4, 7e4, 3e38, 1e300, 1.0, -1.0, 1 / 3)


def values(random: Random, shape: tuple[int, ...], dtype: str, *, wild: bool = False) -> Array:
    """Return an array of random values; with ``wild`` some are special."""
    count = int(np.prod(shape, dtype=np.int64))
    kind = np.dtype(NUMPY[dtype])
    if dtype == "Bool":
        return np.array([random.random() < 0.5 for _ in range(count)], bool).reshape(shape)
    if dtype[0] in "IU":
        return np.frombuffer(random.randbytes(count * kind.itemsize), kind).reshape(shape).copy()
    numbers = [round(random.uniform(-4, 4), 3) for _ in range(count)]
    if wild:
        for at in range(count):
            if random.random() < 0.3:
                numbers[at] = random.choice(SPECIALS)
    with np.errstate(all="ignore"):
        if dtype[0] == "C":
            return (np.array(numbers) * (1 - 2j)).astype(kind).reshape(shape)
        return np.array(numbers, np.float64).astype(kind).reshape(shape)


# --- layers -----------------------------------------------------------------------------------------------------------

PLAIN_KINDS = ("Linear", "Embedding", "Conv1d", "Conv2d", "ConvTranspose1d", "PReLU")
NORMS = ("LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm1d", "BatchNorm1d")
FUSED = ("LSTM", "GRU", "MultiheadAttention")
WITHOUT_TENSORS = ("GroupNorm", "InstanceNorm1d")  # of these, without affine


def layer(random: Random, path: str, kind: str, dtype: str, *, wild: bool, dtypes: tuple[str, ...]) -> Layer:
    """Return a random layer of a kind with its values, in torch's names."""
    a, b = random.randint(1, 4), random.randint(1, 4)
    if random.random() < 0.3:
        b = a
    has_bias = random.random() < 0.7
    shapes: dict[str, tuple[int, ...]] = {}
    options: dict[str, Any] = {}
    if kind == "Linear":
        shapes = {"weight": (b, a), "bias": (b,)}
    elif kind == "Embedding":
        shapes, has_bias = {"weight": (a, b)}, True
    elif kind == "Conv1d":
        shapes = {"weight": (b, a, 2), "bias": (b,)}
    elif kind == "Conv2d":
        shapes = {"weight": (b, a, 2, 1), "bias": (b,)}
    elif kind == "ConvTranspose1d":
        shapes = {"weight": (a, b, 2), "bias": (b,)}
    elif kind == "PReLU":
        shapes, has_bias = {"weight": (a,)}, True
    elif kind in NORMS:
        affine = random.random() < 0.75
        shapes = {"weight": (a,), "bias": (a,)} if affine else {}
        if kind == "RMSNorm":
            shapes.pop("bias", None)
        if kind != "LayerNorm" or not affine:
            has_bias = True  # only a LayerNorm can do without the bias alone
        if kind == "BatchNorm1d":
            shapes |= {"running_mean": (a,), "running_var": (a,), "num_batches_tracked": ()}
        options = {"features": a}
    elif kind in ("LSTM", "GRU"):
        gates = 4 if kind == "LSTM" else 3
        shapes = {"weight_ih_l0": (gates * b, a), "weight_hh_l0": (gates * b, b)}
        if has_bias:
            shapes |= {"bias_ih_l0": (gates * b,), "bias_hh_l0": (gates * b,)}
        options = {"sizes": (a, b)}
        has_bias = True
    elif kind == "MultiheadAttention":
        shapes = {"in_proj_weight": (3 * a, a), "out_proj.weight": (a, a)}
        if has_bias:
            shapes |= {"in_proj_bias": (3 * a,), "out_proj.bias": (a,)}
        has_bias = True
    else:  # a class of one's own
        for name in random.sample(["scale", "table", "mask", "weight", "steps", "code"], random.randint(1, 3)):
            shapes[name] = random.choice([(), (0,), (2,), (a, b), (1, 2, 3)])
        has_bias = True
    if not has_bias:
        shapes.pop("bias")
    tensors: Named = {}
    for name, shape in shapes.items():
        if name == "num_batches_tracked":
            tensors[name] = np.array(random.choice([0, 1, 7, 1 << 40]), np.int64)
        else:
            own = random.choice(dtypes) if kind == "Own" else dtype
            tensors[name] = values(random, shape, own, wild=wild)
    if kind == "Own" and _is_quantized(tensors):
        tensors["weight"] = values(random, shapes["weight"], "F32", wild=wild)
    return Layer(path, kind, tensors, options)


def _is_quantized(tensors: Named) -> bool:
    """Return whether a weight of 8 bits has its scales beside it, by which it is decoded; test_quantized has these."""
    weight, scale = tensors.get("weight"), tensors.get("scale")
    if weight is None or scale is None or weight.ndim < 2 or scale.size >= weight.size:
        return False
    fits = scale.size == 1 or scale.ndim == weight.ndim or scale.shape in (weight.shape[:1], weight.shape[:-1])
    return fits and weight.dtype.itemsize == 1 and kind_of(scale.dtype) == "f"


@dataclass
class Content:
    """A model as values: layers with their paths in torch, and the paths of lists that torch numbers with gaps."""

    layers: list[Layer]
    series: tuple[str, ...] = ()
    ties: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of tensors, by their names in torch, that are one parameter; the second has the first's values."""

    @property
    def torch(self) -> Named:
        """The tensors under torch's names."""
        return {f"{each.path}.{name}": array for each in self.layers for name, array in each.tensors.items()}

    @property
    def burn(self) -> Named:
        """The tensors as Burn has them."""
        return {f"{each.burn}.{name}": array for each in self.layers for name, array in declared(each)[0].items()}

    def kinds(self) -> dict[str, str]:
        return {each.path: each.kind for each in self.layers}


def content(random: Random, *, dtypes: tuple[str, ...] = tuple(NUMPY), wild: bool = False, own: bool = True) -> Content:
    """Return a random model of a few layers."""
    count = random.choice([1, 1, 2, 2, 3, 4])
    floats = [name for name in ("F32", "F32", "F32", "F64", "F16", "BF16") if name in dtypes]
    dtype = random.choice(floats)
    names = random.sample(["fc", "norm", "head", "enc.a", "enc.b", "body.x.y", "up", "down"], count)
    kinds = [*PLAIN_KINDS, "Linear", "Linear", *NORMS, *FUSED, *(["Own"] * 3 if own else [])]
    layers = [layer(random, name, random.choice(kinds), dtype, wild=wild, dtypes=dtypes) for name in names]
    if not any(each.tensors for each in layers):
        layers.append(layer(random, "last", "Linear", dtype, wild=wild, dtypes=dtypes))
    series: tuple[str, ...] = ()
    if random.random() < 0.3:
        series = ("seq",)
        places = sorted(random.sample(range(5), random.randint(1, 3)))
        for place in places:
            kind = random.choice(["Linear", "Linear", "Conv1d", "BatchNorm1d", "PReLU"])
            layers.append(layer(random, f"seq.{place}", kind, dtype, wild=wild, dtypes=dtypes))
    place = 0
    for each in layers:
        if each.path.startswith("seq."):
            each.burn = f"seq.{place}"
            place += 1
    found = Content(layers, series)
    linear = [each for each in layers if each.kind in ("Linear", "Embedding")]
    if len(linear) > 1 and random.random() < 0.5:
        first, second = linear[:2]
        if first.tensors["weight"].shape == second.tensors["weight"].shape and first.kind == second.kind:
            second.tensors["weight"] = first.tensors["weight"]
            found.ties.append((f"{first.path}.weight", f"{second.path}.weight"))
    return found


# --- models -----------------------------------------------------------------------------------------------------------


def torch_tensor(array: Array) -> torch.Tensor:
    """Return an array as a tensor of its own memory, bit for bit."""
    dtype = TORCH[_NAME_OF[array.dtype]]
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.tobytes()), dtype=dtype).reshape(array.shape)


def numpy_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array, bit for bit."""
    flat = tensor.detach().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return np.frombuffer(raw, NUMPY[_NAME_OF_TORCH[tensor.dtype]]).reshape(tuple(tensor.shape)).copy()


class Own(torch.nn.Module):
    """A class that no table knows."""


class Net(torch.nn.Module):
    """A module that only has others."""


def _torch_layer(each: Layer) -> torch.nn.Module:
    shape = {name: array.shape for name, array in each.tensors.items()}
    meta: dict[str, Any] = {"device": "meta"}
    weight = shape.get("weight", ())
    features = each.options.get("features", 1)
    made: torch.nn.Module
    if each.kind == "Linear":
        made = torch.nn.Linear(weight[1], weight[0], bias="bias" in shape, **meta)
    elif each.kind == "Embedding":
        made = torch.nn.Embedding(*weight, **meta)
    elif each.kind in ("Conv1d", "Conv2d"):
        made = getattr(torch.nn, each.kind)(weight[1], weight[0], weight[2:], bias="bias" in shape, **meta)
    elif each.kind == "ConvTranspose1d":
        made = torch.nn.ConvTranspose1d(weight[0], weight[1], weight[2:], bias="bias" in shape, **meta)
    elif each.kind == "PReLU":
        made = torch.nn.PReLU(weight[0], **meta)
    elif each.kind == "LayerNorm":
        made = torch.nn.LayerNorm(features, elementwise_affine="weight" in shape, bias="bias" in shape, **meta)
    elif each.kind == "RMSNorm":
        made = torch.nn.RMSNorm(features, elementwise_affine="weight" in shape, **meta)
    elif each.kind == "GroupNorm":
        made = torch.nn.GroupNorm(1, features, affine="weight" in shape, **meta)
    elif each.kind in ("InstanceNorm1d", "BatchNorm1d"):
        made = getattr(torch.nn, each.kind)(features, affine="weight" in shape, **meta)
    elif each.kind in ("LSTM", "GRU"):
        made = getattr(torch.nn, each.kind)(*each.options["sizes"], bias="bias_ih_l0" in shape, **meta)
    elif each.kind == "MultiheadAttention":
        made = torch.nn.MultiheadAttention(shape["out_proj.weight"][0], 1, bias="in_proj_bias" in shape, **meta)
    else:
        made = Own()
    for name, array in each.tensors.items():
        owner, _, own = name.rpartition(".")
        module = made.get_submodule(owner)
        tensor = torch_tensor(array)
        if own in module._buffers or not tensor.is_floating_point():
            module._buffers[own] = tensor
        else:
            module._parameters[own] = torch.nn.Parameter(tensor, requires_grad=False)
    if isinstance(made, torch.nn.RNNBase):
        made._init_flat_weights()
    return made


def torch_model(model: Content) -> torch.nn.Module:
    """Return the model as a torch module with these values."""
    root = Net()
    for each in model.layers:
        *around, name = each.path.split(".")
        inside: torch.nn.Module = root
        at = ""
        for segment in around:
            at = f"{at}.{segment}" if at else segment
            if segment not in inside._modules:
                inside._modules[segment] = torch.nn.Sequential() if at in model.series else Net()
            found = inside._modules[segment]
            assert found is not None
            inside = found
        inside._modules[name] = _torch_layer(each)
    for first, second in model.ties:
        owner, other = (root.get_submodule(path.rpartition(".")[0]) for path in (first, second))
        other._parameters["weight"] = owner._parameters["weight"]
    return root


class BurnNet(nn.Module):
    """A Burn module that only has others."""


class BurnOwn(nn.Module):
    """A class that no table knows."""


def _burn_layer(each: Layer, own: Named) -> Any:
    shape = {name: array.shape for name, array in own.items()}
    weight = shape.get("weight", ())
    features = each.options.get("features", 1)
    made: Any
    if each.kind == "Linear":
        made = nn.Linear(*weight, bias="bias" in shape)
    elif each.kind == "Embedding":
        made = nn.Embedding(*weight)
    elif each.kind == "Conv1d":
        made = nn.Conv1d(weight[1], weight[0], weight[2], bias="bias" in shape)
    elif each.kind == "Conv2d":
        made = nn.Conv2d([weight[1], weight[0]], weight[2:], bias="bias" in shape)
    elif each.kind == "ConvTranspose1d":
        made = nn.ConvTranspose1d([weight[0], weight[1]], weight[2], bias="bias" in shape)
    elif each.kind == "PReLU":
        made = nn.PRelu(num_parameters=shape["alpha"][0])
    elif each.kind == "LayerNorm":
        made = nn.LayerNorm(features, bias="beta" in shape)
    elif each.kind == "RMSNorm":
        made = nn.RmsNorm(features)
    elif each.kind == "GroupNorm":
        made = nn.GroupNorm(1, features, affine="gamma" in shape)
    elif each.kind == "InstanceNorm1d":
        made = nn.InstanceNorm(features, affine="gamma" in shape)
    elif each.kind == "BatchNorm1d":
        made = nn.BatchNorm(features)
    elif each.kind in ("LSTM", "GRU"):
        has_bias = any(name.endswith("bias") for name in own)
        made = {"LSTM": nn.Lstm, "GRU": nn.Gru}[each.kind](*each.options["sizes"], has_bias)
    elif each.kind == "MultiheadAttention":
        width, has = shape["output.weight"][0], any(name.endswith("bias") for name in own)
        made = nn.MultiHeadAttention(width, 1, key_bias=has, value_bias=has, query_bias=has, output_bias=has)
    else:
        made = BurnOwn()
    for name, array in own.items():
        holder, _, last = name.rpartition(".")
        target = made
        for segment in holder.split(".") if holder else ():
            target = getattr(target, segment)
        old = getattr(target, last, None)
        if isinstance(old, nn.Param):
            old.set(array)
        else:
            setattr(target, last, nn.Param.from_data(array))
    return made


def burn_model(model: Content) -> Any:
    """Return the model as a `burnstore.nn` model in Burn's layout."""
    root = BurnNet()
    for each in model.layers:
        own = declared(each)[0]
        *around, name = each.burn.split(".")
        inside: Any = root
        for segment in around:
            if not hasattr(inside, segment):
                setattr(inside, segment, [] if segment in model.series else BurnNet())
            inside = getattr(inside, segment)
        if isinstance(inside, list):
            inside.append(_burn_layer(each, own))
        else:
            setattr(inside, name, _burn_layer(each, own))
    return root


def burn_values(model: Any) -> Named:
    """Return the tensors of a `burnstore.nn` model, by walking its fields."""
    found: Named = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, nn.Param):
            found[path] = value.value
        elif isinstance(value, list):
            for at, item in enumerate(value):
                walk(item, f"{path}.{at}")
        elif isinstance(value, nn.Module):
            for name, item in vars(value).items():
                walk(item, f"{path}.{name}" if path else name)

    walk(model, "")
    return found


def torch_values(model: torch.nn.Module) -> Named:
    """Return the tensors of a torch module."""
    return {name: numpy_array(tensor) for name, tensor in model.state_dict().items()}


def nested(named: Named) -> dict[str, Any]:
    """Return named arrays as nested dicts."""
    root: dict[str, Any] = {}
    for path, array in named.items():
        *around, name = path.split(".")
        inside = root
        for segment in around:
            inside = inside.setdefault(segment, {})
        inside[name] = array.copy()
    return root


def flat(tree: dict[str, Any], prefix: str = "") -> Named:
    """Return nested dicts as named arrays."""
    found: Named = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
