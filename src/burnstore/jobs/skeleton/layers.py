"""Layers: how the modules of PyTorch that Burn has are made in Rust, with the options that they were made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import ModelError
from ...tensor.data import Shape
from .expression import Expression, array, call, flag, number, real

Tensors = Mapping[str, Shape]
"""The tensors of a module of PyTorch, by name."""

Option = Callable[[str, Any], Any]
"""Gives an option of a module, or the default where nothing is known of it."""

PLACES = {
    **{f"{kind}{n}d": "burn::nn::conv" for kind in ("Conv", "ConvTranspose") for n in (1, 2, 3)},
    "DeformConv2d": "burn::nn::conv",
    **dict.fromkeys(("MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d"), "burn::nn::pool"),
    **dict.fromkeys(("MultiHeadAttention", "CrossAttention"), "burn::nn::attention"),
    **dict.fromkeys(
        ("TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer", "TransformerDecoderLayer"),
        "burn::nn::transformer",
    ),
    **dict.fromkeys(("PRelu", "LeakyRelu", "SiLU", "HardSwish", "ActivationConfig"), "burn::nn::activation"),
}
"""Where Burn has its types; all others are in ``burn::nn``."""

_BIAS = {"bias": flag(True)}
_EPSILON = {"epsilon": real(1e-5)}
_ATTENTION = {f"{each}_bias": flag(True) for each in ("query", "key", "value", "output")}
_TRANSFORMER = {"norm_first": flag(False), "layer_norm_eps": real(1e-5), "dropout": real(0.1)}
_RECURRENT = {"batch_first": flag(True)}

_ONES = {n: array([1] * n) for n in (1, 2, 3)}


def _explicit(pads: tuple[int, ...]) -> Expression:
    kind = {2: 1, 4: 2, 3: 3}[len(pads)]
    return call(f"PaddingConfig{kind}d::Explicit", f"PaddingConfig{kind}d", *(number(pad, "padding") for pad in pads))


_NO_PADDING = {1: _explicit((0, 0)), 2: _explicit((0, 0, 0, 0)), 3: _explicit((0, 0, 0))}


def _spatial(value: Any, n: int) -> Expression:
    """Return a stride, dilation or the like: a number for one axis, an array for several."""
    values = [value] * n if isinstance(value, int) else list(value)
    return number(values[0]) if n == 1 else array(values)


DEFAULTS: dict[str, Mapping[str, Expression]] = {
    "Linear": _BIAS,
    "LayerNorm": {**_EPSILON, **_BIAS},
    "RmsNorm": _EPSILON,
    "BatchNorm": {**_EPSILON, "momentum": real(0.1)},
    "GroupNorm": {**_EPSILON, "affine": flag(True)},
    "InstanceNorm": {**_EPSILON, "affine": flag(True)},
    "PRelu": {"num_parameters": number(1)},
    **{
        f"Conv{n}d": {
            "stride": _spatial(1, n),
            "padding": _NO_PADDING[n],
            "dilation": _spatial(1, n),
            "groups": number(1),
            **_BIAS,
        }
        for n in (1, 2, 3)
    },
    **{
        f"ConvTranspose{n}d": {
            "stride": _spatial(1, n),
            "padding": _spatial(0, n),
            "padding_out": _spatial(0, n),
            "dilation": _spatial(1, n),
            "groups": number(1),
            **_BIAS,
        }
        for n in (1, 2, 3)
    },
    "DeformConv2d": {
        "stride": _ONES[2],
        "padding": _NO_PADDING[2],
        "dilation": _ONES[2],
        "weight_groups": number(1),
        **_BIAS,
    },
    "MultiHeadAttention": {"dropout": real(0.1), "quiet_softmax": flag(False), **_ATTENTION},
    "CrossAttention": {"dropout": real(0.1), "quiet_softmax": flag(False)},
    **dict.fromkeys(("Lstm", "BiLstm", "BiGru", "Rnn", "BiRnn"), _RECURRENT),
    "MaxPool2d": {"padding": _NO_PADDING[2], "dilation": _ONES[2], "ceil_mode": flag(False)},
    "AvgPool2d": {"padding": _NO_PADDING[2], "count_include_pad": flag(True), "ceil_mode": flag(False)},
}
"""The options of Burn's layers that are written where they differ, and what they are otherwise."""

OPTION_DEFAULTS = {f"{kind}.{name}": value for kind, options in DEFAULTS.items() for name, value in options.items()}


def layer(kind: str, *parts: Expression, **options: Expression) -> Expression:
    """Return the constructor of a layer by its configuration; options that are Burn's default are left out."""
    usual = DEFAULTS.get(kind, {})
    given = tuple((name, value) for name, value in options.items() if value != usual.get(name))
    end = ".init()" if kind in _WITHOUT_DEVICE else ".init(device)"
    return replace(call(f"{kind}Config::new", kind, *parts), options=given, end=end)


_WITHOUT_DEVICE = ("Dropout", "LeakyRelu", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d")


def layer_of(kind: str, tensors: Tensors, option: Option) -> list[Expression] | None:
    """Return how Burn makes a module of PyTorch: one layer, or several that stand in a list; None if it has none."""
    base = kind.removesuffix("Cell")
    if base in _RECURRENT_KINDS:
        return _recurrent(base, tensors, option)
    make = _MAKERS.get(kind.rstrip("123d") if kind[-1] == "d" and kind[-2:-1].isdigit() else kind)
    return None if make is None else [make(kind, tensors, option)]


def _linear(kind: str, tensors: Tensors, option: Option) -> Expression:
    rows, columns = tensors["weight"]
    return layer("Linear", number(columns, "input"), number(rows, "output"), bias=flag("bias" in tensors))


def _conv1d(kind: str, tensors: Tensors, option: Option) -> Expression:
    return _linear(kind, {**tensors, "weight": tensors["weight"][::-1]}, option)


def _embedding(kind: str, tensors: Tensors, option: Option) -> Expression:
    rows, columns = tensors["weight"]
    return layer("Embedding", number(rows, "size"), number(columns, "model"))


def _conv(kind: str, tensors: Tensors, option: Option) -> Expression:
    n = len(tensors["weight"]) - 2
    groups = option("groups", 1)
    output, inputs, *kernel = tensors["weight"]
    parts = _channels(f"Conv{n}d", inputs * groups, output, kernel)
    return layer(
        f"Conv{n}d",
        *parts,
        stride=_spatial(option("stride", 1), n),
        padding=_padding(option, kernel, n),
        dilation=_spatial(option("dilation", 1), n),
        groups=number(groups),
        bias=flag("bias" in tensors),
    )


def _channels(kind: str, inputs: int, output: int, kernel: list[int]) -> tuple[Expression, ...]:
    if kind == "Conv1d":
        return number(inputs, "in"), number(output, "out"), number(kernel[0], "kernel")
    size = number(kernel[0], "kernel") if len(kernel) == 1 else array(kernel, "kernel")
    return array([inputs, output], names=["in", "out"]), size


def _padding(option: Option, kernel: list[int], n: int) -> Expression:
    said = option("padding", 0)
    dilation = [option("dilation", 1)] * n if isinstance(option("dilation", 1), int) else list(option("dilation", 1))
    if said == "valid":
        return _NO_PADDING[n]
    if said == "same":  # Burn's Same does not know of dilation
        totals = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        before, after = [total // 2 for total in totals], [total - total // 2 for total in totals]
    else:
        before = after = [said] * n if isinstance(said, int) else list(said)
    if n == 3:
        if before != after:
            raise ModelError("its padding differs between the two sides, Burn's Conv3d has one number for both")
        return _explicit(tuple(before))
    return _explicit((*before, *after))


def _conv_transpose(kind: str, tensors: Tensors, option: Option) -> Expression:
    n = len(tensors["weight"]) - 2
    groups = option("groups", 1)
    inputs, output, *kernel = tensors["weight"]
    return layer(
        f"ConvTranspose{n}d",
        *_channels(f"ConvTranspose{n}d", inputs, output * groups, kernel),
        stride=_spatial(option("stride", 1), n),
        padding=_spatial(option("padding", 0), n),
        padding_out=_spatial(option("output_padding", 0), n),
        dilation=_spatial(option("dilation", 1), n),
        groups=number(groups),
        bias=flag("bias" in tensors),
    )


def _deform_conv(kind: str, tensors: Tensors, option: Option) -> Expression:
    groups = option("groups", 1)
    output, inputs, *kernel = tensors["weight"]
    return layer(
        "DeformConv2d",
        *_channels("DeformConv2d", inputs * groups, output, kernel),
        stride=_spatial(option("stride", 1), 2),
        padding=_padding(option, kernel, 2),
        dilation=_spatial(option("dilation", 1), 2),
        weight_groups=number(groups),
        bias=flag("bias" in tensors),
    )


def _features(tensors: Tensors, option: Option, *names: str) -> Expression:
    known = next((shape[-1] for name, shape in tensors.items() if name in ("weight", "running_mean")), None)
    for name in names if known is None else ():
        said = option(name, None)
        known = said if said is None or isinstance(said, int) else said[-1]
    if known is None:
        raise ModelError("cannot determine its number of features")
    return number(known, "features")


def _batch_norm(kind: str, tensors: Tensors, option: Option) -> Expression:
    momentum = option("momentum", 0.1)
    return layer(
        "BatchNorm",
        _features(tensors, option, "num_features"),
        epsilon=real(option("eps", 1e-5)),
        momentum=real(0.1 if momentum is None else momentum),
    )


def _layer_norm(kind: str, tensors: Tensors, option: Option) -> Expression:
    without = "weight" in tensors and "bias" not in tensors
    features = _features(tensors, option, "normalized_shape")
    epsilon = real(option("eps", option("variance_epsilon", option("epsilon", 1e-5))))
    return layer("LayerNorm", features, epsilon=epsilon, bias=flag(not without))


def _rms_norm(kind: str, tensors: Tensors, option: Option) -> Expression:
    epsilon = option("eps", option("variance_epsilon", option("epsilon", None)))  # as transformers spells it
    features = _features(tensors, option, "normalized_shape")
    return layer("RmsNorm", features, epsilon=real(1.1920929e-7 if epsilon is None else epsilon))


def _group_norm(kind: str, tensors: Tensors, option: Option) -> Expression:
    groups = number(option("num_groups", 1), "groups")
    epsilon, affine = real(option("eps", 1e-5)), flag("weight" in tensors)
    return layer("GroupNorm", groups, _features(tensors, option, "num_channels"), epsilon=epsilon, affine=affine)


def _instance_norm(kind: str, tensors: Tensors, option: Option) -> Expression:
    epsilon, affine = real(option("eps", 1e-5)), flag("weight" in tensors)
    return layer("InstanceNorm", _features(tensors, option, "num_features"), epsilon=epsilon, affine=affine)


def _prelu(kind: str, tensors: Tensors, option: Option) -> Expression:
    return layer("PRelu", num_parameters=number(tensors["weight"][0]))


def _attention(kind: str, tensors: Tensors, option: Option) -> Expression:
    model, heads = tensors["out_proj.weight"][0], option("num_heads", 1)
    settings = {"dropout": real(option("dropout", 0.0)), "quiet_softmax": flag(option("add_zero_attn", False))}
    if "in_proj_weight" in tensors:
        biases = {name: flag("in_proj_bias" in tensors) for name in _ATTENTION}
        return layer("MultiHeadAttention", number(model, "model"), number(heads, "heads"), **settings, **biases)
    context = tensors["k_proj_weight"][1]
    parts = [number(model, "model"), number(context, "context"), *[number(heads, "heads")] * 2]
    return layer("CrossAttention", *parts, number(model // heads, "head"), **settings)


_RECURRENT_KINDS = {"LSTM": "Lstm", "GRU": "Gru", "RNN": "Rnn"}


def _recurrent(base: str, tensors: Tensors, option: Option) -> list[Expression]:
    kind = _RECURRENT_KINDS[base]
    both = "weight_ih_l0_reverse" in tensors
    name = f"Bi{kind}" if both else kind
    layers = []
    for level in range(max(1, sum("_reverse" not in each and each.startswith("weight_ih_l") for each in tensors))):
        suffix = f"_l{level}" if "weight_ih_l0" in tensors else ""
        hidden, inputs = tensors[f"weight_hh{suffix}"][1], tensors[f"weight_ih{suffix}"][1]
        settings = {} if name == "Gru" else {"batch_first": flag(option("batch_first", True))}
        if option("nonlinearity", "tanh") == "relu":
            settings["hidden_activation"] = _activation("Relu")
        parts = number(inputs, "input"), number(hidden, "hidden"), flag(f"bias_ih{suffix}" in tensors, "bias")
        layers.append(layer(name, *parts, **settings))
    return layers


def _activation(name: str) -> Expression:
    return Expression(f"ActivationConfig::{name}", "ActivationConfig")


def _transformer(kind: str, tensors: Tensors, option: Option) -> Expression:
    """Return an encoder or decoder, or one layer of it, which Burn makes from the configuration of the whole."""
    whole = kind.removesuffix("Layer")
    first = "layers.0." if whole == kind else ""
    inner, model = tensors[f"{first}linear1.weight"]
    count = len({name.split(".")[1] for name in tensors if name.startswith("layers.")}) or 1
    sizes = {"model": model, "inner": inner, "heads": option("num_heads", 1), "layers": count}
    words = [number(size, name) for name, size in sizes.items()]
    settings = {
        "norm_first": flag(option("norm_first", False)),
        "layer_norm_eps": real(option("layer_norm_eps", 1e-5)),
        "dropout": real(option("dropout", 0.1)),
    }
    activation = option("activation", "Relu")
    options = tuple((name, value) for name, value in settings.items() if value != _TRANSFORMER[name])
    if activation != "Gelu":
        options += (("activation", _activation(activation)),)
    config = call(f"{whole}Config::new", f"{whole}Config", *words)
    if whole == kind:
        return replace(config, type=kind, options=options, end=".init(device)")
    held = replace(config, options=options)
    return Expression(f"{kind}::new(&{{}}, device)", kind, (held,))


_MAKERS: dict[str, Callable[[str, Tensors, Option], Expression]] = {
    "Linear": _linear,
    "Conv1D": _conv1d,
    "Embedding": _embedding,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
    "BatchNorm": _batch_norm,
    "SyncBatchNorm": _batch_norm,
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "PReLU": _prelu,
    "MultiheadAttention": _attention,
    **dict.fromkeys(
        ("TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer", "TransformerDecoderLayer"), _transformer
    ),
}

_FUNCTIONS = {"ReLU": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "SiLU": "SiLU", "Hardswish": "HardSwish"}


def parameterless(kind: str, option: Option) -> Expression | None:
    """Return how Burn makes a module without tensors; None for those that are left to the forward pass."""
    if kind in _FUNCTIONS:
        return call(f"{_FUNCTIONS[kind]}::new", _FUNCTIONS[kind])
    if kind == "GELU":
        return call("Gelu::new_approximate" if option("approximate", "none") == "tanh" else "Gelu::new", "Gelu")
    if kind == "Dropout" and 0 <= option("p", 0.5) < 1:
        return layer("Dropout", real(option("p", 0.5), "p"))
    if kind == "LeakyReLU":
        slope = real(option("negative_slope", 0.01))
        return layer("LeakyRelu", negative_slope=slope)
    if kind in ("MaxPool2d", "AvgPool2d"):
        return _pool(kind, option)
    if kind == "AdaptiveAvgPool2d":
        size = option("output_size", 1)
        sizes = [size] * 2 if isinstance(size, int) else list(size)
        return None if None in sizes else layer(kind, array(sizes, "size"))
    return None


def _pool(kind: str, option: Option) -> Expression | None:
    kernel = _spatial(option("kernel_size", 1), 2)
    settings = {
        "strides": _spatial(option("stride", 1), 2),
        "padding": _padding(lambda name, usual: usual if name == "dilation" else option(name, usual), [1, 1], 2),
        "ceil_mode": flag(option("ceil_mode", False)),
    }
    if kind == "MaxPool2d":
        settings["dilation"] = _spatial(option("dilation", 1), 2)
    elif option("divisor_override", None) is not None:
        return None
    else:
        settings["count_include_pad"] = flag(option("count_include_pad", True))
    return layer(kind, kernel.named("kernel"), **settings)
