"""What Burn's layers compute in evaluation, in NumPy, on weights as a Burnpack file holds them.

Written from Burn's equations alone and knowing nothing of PyTorch, so it can be the judge of what was converted.
Sequences are ``[batch, time, features]``, images ``[batch, channels, ...]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Activation = Callable[[Array], Array]


class Weights:
    """The tensors of a module by their names below it, as float64."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = {name: np.asarray(value, np.float64) for name, value in tensors.items()}

    def at(self, path: str) -> Weights:
        """Those of the module of this path."""
        below = {name[len(path) + 1 :]: value for name, value in self.tensors.items() if name.startswith(f"{path}.")}
        if not below:
            raise KeyError(f"no tensor lies in {path!r}; there are {', '.join(self.tensors)}")
        return Weights(below)

    def layers(self) -> Iterator[Weights]:
        """Those of each member of a list, in order."""
        count = len({name.partition(".")[0] for name in self.tensors})
        return (self.at(str(place)) for place in range(count))

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


# --- activations ------------------------------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def gelu(x: Array) -> Array:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_approximate(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def prelu(p: Weights, x: Array) -> Array:
    alpha = p["alpha"]
    return np.where(x > 0, x, x * (alpha if alpha.size == 1 else _per_channel(alpha, x)))


# --- layers without inner structure -----------------------------------------------------------------------------------


def linear(p: Weights, x: Array) -> Array:
    product = x @ p["weight"]
    return product + p["bias"] if "bias" in p else product


def linear_col(p: Weights, x: Array) -> Array:
    """A Linear of LinearLayout::Col: the file has the transpose."""
    product = x @ p["weight"].T
    return product + p["bias"] if "bias" in p else product


def embedding(p: Weights, ids: Array) -> Array:
    return p["weight"][ids]


def _per_channel(values: Array, x: Array) -> Array:
    return values.reshape(1, -1, *[1] * (x.ndim - 2))


def conv(
    p: Weights,
    x: Array,
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Array:
    """Any convolution; the weight is ``[out, in / groups, ...]``. ``padding`` may be (before, after)."""
    weight = p["weight"]
    kernel = weight.shape[2:]
    before, after = (padding, padding) if isinstance(padding, int) else padding
    x = np.pad(x, [(0, 0), (0, 0), *[(before, after)] * len(kernel)])
    sizes = [(n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape[2:], kernel, strict=True)]
    out = np.zeros((x.shape[0], weight.shape[0], *sizes))
    per_in, per_out = weight.shape[1], weight.shape[0] // groups
    for place in np.ndindex(*kernel):
        steps = tuple(
            slice(at * dilation, at * dilation + stride * (n - 1) + 1, stride)
            for at, n in zip(place, sizes, strict=True)
        )
        window = x[(slice(None), slice(None), *steps)]
        for group in range(groups):
            rows = slice(group * per_out, (group + 1) * per_out)
            columns = slice(group * per_in, (group + 1) * per_in)
            out[:, rows] += np.einsum("ni...,oi->no...", window[:, columns], weight[(rows, slice(None), *place)])
    return out + _per_channel(p["bias"], out) if "bias" in p else out


def conv_transpose(
    p: Weights,
    x: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    padding_out: int = 0,
) -> Array:
    """Any transposed convolution; the weight is ``[in, out / groups, ...]``."""
    weight = p["weight"]
    kernel, sizes = weight.shape[2:], x.shape[2:]
    full = [(n - 1) * stride + dilation * (k - 1) + 1 + padding_out for n, k in zip(sizes, kernel, strict=True)]
    per_in, per_out = weight.shape[0] // groups, weight.shape[1]
    out = np.zeros((x.shape[0], per_out * groups, *full))
    for place in np.ndindex(*kernel):
        steps = tuple(
            slice(at * dilation, at * dilation + stride * (n - 1) + 1, stride)
            for at, n in zip(place, sizes, strict=True)
        )
        for group in range(groups):
            rows = slice(group * per_in, (group + 1) * per_in)
            columns = slice(group * per_out, (group + 1) * per_out)
            part = np.einsum("ni...,io->no...", x[:, rows], weight[(rows, slice(None), *place)])
            out[(slice(None), columns, *steps)] += part
    out = out[(slice(None), slice(None), *(slice(padding, n - padding) for n in full))]
    return out + _per_channel(p["bias"], out) if "bias" in p else out


def _standardised(x: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)


def layer_norm(p: Weights, x: Array, *, eps: float = 1e-5) -> Array:
    scaled = _standardised(x, eps) * p["gamma"]
    return scaled + p["beta"] if "beta" in p else scaled


def rms_norm(p: Weights, x: Array, *, eps: float = 1e-5) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * p["gamma"]


def group_norm(p: Weights | None, x: Array, *, groups: int, eps: float = 1e-5) -> Array:
    """A GroupNorm; without weights it is not affine."""
    out = _standardised(x.reshape(x.shape[0], groups, -1), eps).reshape(x.shape)
    return out if p is None else out * _per_channel(p["gamma"], x) + _per_channel(p["beta"], x)


def instance_norm(p: Weights | None, x: Array, *, eps: float = 1e-5) -> Array:
    return group_norm(p, x, groups=x.shape[1], eps=eps)


def batch_norm(p: Weights, x: Array, *, eps: float = 1e-5) -> Array:
    centred = x - _per_channel(p["running_mean"], x)
    scaled = centred / np.sqrt(_per_channel(p["running_var"], x) + eps)
    return scaled * _per_channel(p["gamma"], x) + _per_channel(p["beta"], x)


# --- attention --------------------------------------------------------------------------------------------------------


def _softmax(scores: Array, *, quiet: bool) -> Array:
    highest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - highest)
    return powers / (powers.sum(-1, keepdims=True) + (np.exp(-highest) if quiet else 0))


def attention(
    p: Weights,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    *,
    heads: int,
    heads_kv: int | None = None,
    padding: Array | None = None,
    mask: Array | None = None,
    quiet: bool = False,
) -> Array:
    """A MultiHeadAttention or a CrossAttention. True in ``padding`` ``[batch, keys]`` or ``mask`` hides a key."""
    key = query if key is None else key
    value = key if value is None else value

    def by_head(name: str, x: Array, count: int) -> Array:
        x = linear(p.at(name), x)
        return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)

    heads_kv = heads if heads_kv is None else heads_kv
    queries = by_head("query", query, heads)
    keys = np.repeat(by_head("key", key, heads_kv), heads // heads_kv, axis=1)
    values = np.repeat(by_head("value", value, heads_kv), heads // heads_kv, axis=1)
    scores = queries @ keys.swapaxes(-1, -2) / math.sqrt(queries.shape[-1])
    if padding is not None:
        scores = np.where(padding[:, None, None, :], -1e4, scores)
    if mask is not None:
        scores = np.where(mask, -1e4, scores)
    context = _softmax(scores, quiet=quiet) @ values
    return linear(p.at("output"), context.transpose(0, 2, 1, 3).reshape(*query.shape[:2], -1))


# --- transformers -----------------------------------------------------------------------------------------------------


def feed_forward(p: Weights, x: Array, *, activation: Activation = gelu) -> Array:
    """A PositionWiseFeedForward."""
    return linear(p.at("linear_outer"), activation(linear(p.at("linear_inner"), x)))


def swiglu(p: Weights, x: Array) -> Array:
    return silu(linear(p.at("linear_inner"), x)) * linear(p.at("linear_outer"), x)


def encoder_layer(
    p: Weights,
    x: Array,
    *,
    heads: int,
    norm_first: bool = False,
    activation: Activation = gelu,
    quiet: bool = False,
    eps: float = 1e-5,
    padding: Array | None = None,
    mask: Array | None = None,
) -> Array:
    def norm(place: int, x: Array) -> Array:
        return layer_norm(p.at(f"norm_{place}"), x, eps=eps)

    def attend(x: Array) -> Array:
        return attention(p.at("mha"), x, heads=heads, quiet=quiet, padding=padding, mask=mask)

    if norm_first:
        x = x + attend(norm(2, x))
        return x + feed_forward(p.at("pwff"), norm(1, x), activation=activation)
    x = norm(1, x + attend(x))
    return norm(2, x + feed_forward(p.at("pwff"), x, activation=activation))


def decoder_layer(
    p: Weights,
    x: Array,
    memory: Array,
    *,
    heads: int,
    norm_first: bool = False,
    activation: Activation = gelu,
    quiet: bool = False,
    eps: float = 1e-5,
) -> Array:
    def norm(place: int, x: Array) -> Array:
        return layer_norm(p.at(f"norm_{place}"), x, eps=eps)

    def attend(x: Array) -> Array:
        return attention(p.at("self_attn"), x, heads=heads, quiet=quiet)

    def attend_across(x: Array) -> Array:
        return attention(p.at("cross_attn"), x, memory, heads=heads, quiet=quiet)

    if norm_first:
        x = x + attend(norm(3, x))
        x = x + attend_across(norm(1, x))
        return x + feed_forward(p.at("pwff"), norm(2, x), activation=activation)
    x = norm(1, x + attend(x))
    x = norm(2, x + attend_across(x))
    return norm(3, x + feed_forward(p.at("pwff"), x, activation=activation))


def encoder(p: Weights, x: Array, **options: Any) -> Array:
    for layer in p.at("layers").layers():
        x = encoder_layer(layer, x, **options)
    return x


def decoder(p: Weights, x: Array, memory: Array, **options: Any) -> Array:
    for layer in p.at("layers").layers():
        x = decoder_layer(layer, x, memory, **options)
    return x


# --- recurrent --------------------------------------------------------------------------------------------------------

Recurrent = Callable[[Weights, Array], Array]


def _gate(p: Weights, x: Array, hidden: Array) -> Array:
    return linear(p.at("input_transform"), x) + linear(p.at("hidden_transform"), hidden)


def lstm(p: Weights, x: Array) -> Array:
    """The hidden states of an Lstm at every step, from zero states."""
    width = p["input_gate.hidden_transform.weight"].shape[0]
    hidden = cell = np.zeros((x.shape[0], width))
    steps = []
    for at in range(x.shape[1]):
        taken = sigmoid(_gate(p.at("input_gate"), x[:, at], hidden))
        kept = sigmoid(_gate(p.at("forget_gate"), x[:, at], hidden))
        shown = sigmoid(_gate(p.at("output_gate"), x[:, at], hidden))
        cell = kept * cell + taken * np.tanh(_gate(p.at("cell_gate"), x[:, at], hidden))
        hidden = shown * np.tanh(cell)
        steps.append(hidden)
    return np.stack(steps, axis=1)


def gru(p: Weights, x: Array) -> Array:
    """The hidden states of a Gru at every step; the reset gate acts on the new gate's hidden part, bias and all."""
    width = p["new_gate.hidden_transform.weight"].shape[0]
    hidden = np.zeros((x.shape[0], width))
    steps = []
    for at in range(x.shape[1]):
        update = sigmoid(_gate(p.at("update_gate"), x[:, at], hidden))
        reset = sigmoid(_gate(p.at("reset_gate"), x[:, at], hidden))
        fresh = p.at("new_gate")
        hidden_part = linear(fresh.at("hidden_transform"), hidden)
        new = np.tanh(linear(fresh.at("input_transform"), x[:, at]) + reset * hidden_part)
        hidden = (1 - update) * new + update * hidden
        steps.append(hidden)
    return np.stack(steps, axis=1)


def rnn(p: Weights, x: Array, *, activation: Activation = np.tanh) -> Array:
    """The hidden states of an Rnn at every step."""
    width = p["gate.hidden_transform.weight"].shape[0]
    hidden = np.zeros((x.shape[0], width))
    steps = []
    for at in range(x.shape[1]):
        hidden = activation(_gate(p.at("gate"), x[:, at], hidden))
        steps.append(hidden)
    return np.stack(steps, axis=1)


def both_ways(step: Recurrent) -> Recurrent:
    """A BiLstm, BiGru or BiRnn made of these: forward, then reverse, along the last axis."""

    def run(p: Weights, x: Array) -> Array:
        forward = step(p.at("forward"), x)
        reverse = step(p.at("reverse"), x[:, ::-1])[:, ::-1]
        return np.concatenate([forward, reverse], axis=-1)

    return run


def one_after_the_other(step: Recurrent) -> Recurrent:
    """A list of recurrent modules, each reading what the one before it wrote."""

    def run(p: Weights, x: Array) -> Array:
        for layer in p.layers():
            x = step(layer, x)
        return x

    return run
