"""Modules whose tensors are cut up, joined or moved: attention, transformers, recurrent layers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from burnstore import nn as burn

from . import burn_forward as equations
from .burn_forward import Array, Weights
from .case import Case, floats, on_m

_KEY_BIAS = r".*\bkey\.bias"
"""Adds one number to a whole row of scores, which a plain softmax does not see; a quiet one does."""


# --- attention --------------------------------------------------------------------------------------------------------

_PADDING = np.array([[False, False, True, False], [True, False, False, False]])
_CAUSAL = np.triu(np.ones((4, 4), bool), 1)


def _attend(module: nn.Module, query: Any, key: Any = None, value: Any = None, **masks: Any) -> Any:
    key = query if key is None else key
    return module(query, key, key if value is None else value, need_weights=False, **masks)[0]


def _attentions() -> Iterator[Case]:
    options: dict[str, tuple[int, dict[str, Any]]] = {
        "plain": (2, {}),
        "one-head": (1, {}),
        "a-head-each": (4, {}),
        "no-bias": (2, {"bias": False}),
        "quiet": (2, {"add_zero_attn": True}),
        "quiet-no-bias": (2, {"add_zero_attn": True, "bias": False}),
        "own-widths-named": (2, {"kdim": 4, "vdim": 4}),
    }
    for name, (heads, more) in options.items():
        bias, quiet = more.get("bias", True), more.get("add_zero_attn", False)
        for inputs, shapes in (("self", [(2, 4, 4)]), ("across", [(2, 4, 4), (2, 3, 4), (2, 3, 4)])):
            yield Case(
                f"MultiheadAttention-{name}-{inputs}",
                lambda h=heads, more=more: nn.MultiheadAttention(4, h, batch_first=True, **more),
                lambda h=heads, b=bias: burn.MultiHeadAttention(
                    4, h, query_bias=b, key_bias=b, value_bias=b, output_bias=b
                ),
                on_m(equations.attention, heads=heads, quiet=quiet),
                floats(*shapes),
                _attend,
                unseen=r"(?!)" if quiet else _KEY_BIAS,
            )
    for name, padding, mask in (("padded", True, False), ("causal", False, True), ("padded-causal", True, True)):
        torch_masks = {}
        if padding:
            torch_masks["key_padding_mask"] = torch.from_numpy(_PADDING)
        if mask:
            torch_masks["attn_mask"] = torch.from_numpy(_CAUSAL)
        if padding and mask:  # no row may lose all its keys
            torch_masks["key_padding_mask"] = torch.from_numpy(_PADDING[:1].repeat(2, 0))
        hidden = torch_masks.get("key_padding_mask")
        yield Case(
            f"MultiheadAttention-{name}",
            lambda: nn.MultiheadAttention(4, 2, batch_first=True),
            lambda: burn.MultiHeadAttention(4, 2),
            on_m(
                equations.attention,
                heads=2,
                padding=None if hidden is None else hidden.numpy(),
                mask=_CAUSAL if mask else None,
            ),
            floats((2, 4, 4)),
            lambda module, x, masks=torch_masks: _attend(module, x, **masks),
            unseen=_KEY_BIAS,
        )
    yield Case(
        "MultiheadAttention-time-first",
        lambda: nn.MultiheadAttention(4, 2),
        lambda: burn.MultiHeadAttention(4, 2),
        on_m(equations.attention, heads=2),
        floats((2, 5, 4)),
        lambda module, x: _attend(module, x.transpose(0, 1)).transpose(0, 1),
        unseen=_KEY_BIAS,
    )


def _cross_attentions() -> Iterator[Case]:
    for width in (3, 6):
        for name, more in (("plain", {}), ("quiet", {"add_zero_attn": True}), ("no-bias", {"bias": False})):
            yield Case(
                f"MultiheadAttention-context-{width}-{name}",
                lambda w=width, more=more: nn.MultiheadAttention(4, 2, kdim=w, vdim=w, batch_first=True, **more),
                lambda w=width: burn.CrossAttention(4, w, 2, 2, 2),
                on_m(equations.attention, heads=2, quiet=name == "quiet"),
                floats((2, 4, 4), (2, 3, width)),
                _attend,
                constants={r"m\.\w+\.bias": 0.0} if name == "no-bias" else {},
                unseen=r"(?!)" if name == "quiet" else _KEY_BIAS,
            )
    for name, heads, heads_kv, width in (("grouped", 4, 2, 3), ("one-key-head", 4, 1, 2), ("wide-heads", 2, 2, 5)):
        yield Case(
            f"separate-projections-{name}",
            lambda h=heads, kv=heads_kv, d=width: SeparateAttention(4, 6, h, kv, d),
            lambda h=heads, kv=heads_kv, d=width: burn.CrossAttention(4, 6, h, kv, d),
            on_m(equations.attention, heads=heads, heads_kv=heads_kv),
            floats((2, 4, 4), (2, 3, 6)),
            unseen=_KEY_BIAS,
        )
    yield Case(
        "separate-projections-of-one-width",
        lambda: SeparateAttention(4, 4, 2, 2, 2),
        lambda: burn.MultiHeadAttention(4, 2),
        on_m(equations.attention, heads=2),
        floats((2, 4, 4), (2, 3, 4)),
        unseen=_KEY_BIAS,
    )


class SeparateAttention(nn.Module):
    """Attention of four Linears with Burn's names, perhaps with fewer heads for keys and values."""

    def __init__(self, width: int, context: int, heads: int, heads_kv: int, per_head: int) -> None:
        super().__init__()
        self.heads, self.heads_kv = heads, heads_kv
        self.query = nn.Linear(width, heads * per_head)
        self.key = nn.Linear(context, heads_kv * per_head)
        self.value = nn.Linear(context, heads_kv * per_head)
        self.output = nn.Linear(heads * per_head, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        def by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
            return x.unflatten(-1, (heads, -1)).transpose(1, 2)

        found = nn.functional.scaled_dot_product_attention(
            by_head(self.query(x), self.heads),
            by_head(self.key(context), self.heads_kv),
            by_head(self.value(context), self.heads_kv),
            enable_gqa=True,
        )
        return self.output(found.transpose(1, 2).flatten(2))


# --- transformers -----------------------------------------------------------------------------------------------------

# A function: as a module of its own, a copied decoder layer would take relu for it.
_TANH_GELU = functools.partial(nn.functional.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, tuple[Any, Callable[[Array], Array]]] = {
    "relu": ("relu", equations.relu),
    "gelu": ("gelu", equations.gelu),
    "tanh-gelu": (_TANH_GELU, equations.gelu_approximate),
}
_LAYER_OPTIONS = [
    ("relu", True, False),
    ("gelu", True, False),
    ("tanh-gelu", True, False),
    ("relu", False, False),
    ("gelu", True, True),
]
"""Activation, bias, quiet softmax."""

_ALL_BIASES = {r".*\.bias": 0.0, r".*\.beta": 0.0}


def _quietened(module: nn.Module) -> nn.Module:
    for inner in module.modules():
        if isinstance(inner, nn.MultiheadAttention):
            inner.add_zero_attn = True
    return module


def _layer(kind: type[nn.Module], activation: str, *, norm_first: bool, bias: bool, quiet: bool) -> nn.Module:
    chosen = _ACTIVATIONS[activation][0]
    made = kind(4, 2, 6, activation=chosen, norm_first=norm_first, bias=bias, batch_first=True)
    return _quietened(made) if quiet else made


def _layers() -> Iterator[Case]:
    kinds: tuple[tuple[Any, Any, Any, Any], ...] = (
        (nn.TransformerEncoderLayer, burn.TransformerEncoderLayer, equations.encoder_layer, [(2, 5, 4)]),
        (nn.TransformerDecoderLayer, burn.TransformerDecoderLayer, equations.decoder_layer, [(2, 5, 4), (2, 3, 4)]),
    )
    for torch_kind, burn_kind, equation, shapes in kinds:
        for norm_first in (False, True):
            for activation, bias, quiet in _LAYER_OPTIONS:
                options: dict[str, Any] = {"norm_first": norm_first, "bias": bias, "quiet": quiet}
                words = ["pre-norm" if norm_first else "post-norm", activation]
                words += [word for word, on in (("no-bias", not bias), ("quiet", quiet)) if on]
                yield Case(
                    "-".join([torch_kind.__name__, *words]),
                    lambda kind=torch_kind, a=activation, options=options: _layer(kind, a, **options),
                    lambda kind=burn_kind, first=norm_first: kind(4, 6, 2, norm_first=first),
                    on_m(equation, heads=2, norm_first=norm_first, activation=_ACTIVATIONS[activation][1], quiet=quiet),
                    floats(*shapes),
                    constants={} if bias else _ALL_BIASES,
                    unseen=r"(?!)" if quiet else _KEY_BIAS,
                )


def _stack(kind: type[nn.Module], layer: nn.Module, norm: nn.Module | None) -> nn.Module:
    more = {"enable_nested_tensor": False} if kind is nn.TransformerEncoder else {}
    return kind(layer, 2, norm=norm, **more)


def _stacks() -> Iterator[Case]:
    kinds: tuple[tuple[Any, Any, Any, Any, Any], ...] = (
        (nn.TransformerEncoder, nn.TransformerEncoderLayer, burn.TransformerEncoder, equations.encoder, [(2, 5, 4)]),
        (
            nn.TransformerDecoder,
            nn.TransformerDecoderLayer,
            burn.TransformerDecoder,
            equations.decoder,
            [(2, 5, 4), (2, 3, 4)],
        ),
    )
    for torch_kind, layer, burn_kind, equation, shapes in kinds:
        for norm_first in (False, True):
            for final_norm in (False, True):
                options: dict[str, Any] = {"norm_first": norm_first, "bias": True, "quiet": True}
                run = on_m(equation, heads=2, norm_first=norm_first, activation=equations.gelu, quiet=True)
                yield Case(
                    f"{torch_kind.__name__}-{'pre' if norm_first else 'post'}-norm{'-last' if final_norm else ''}",
                    lambda kind=torch_kind, layer=layer, options=options, last=final_norm: _stack(
                        kind, _layer(layer, "gelu", **options), nn.LayerNorm(4) if last else None
                    ),
                    lambda kind=burn_kind, first=norm_first: kind(4, 6, 2, 2, norm_first=first),
                    _then_norm(run) if final_norm else run,
                    floats(*shapes),
                    beside=(lambda: {"m_norm": burn.LayerNorm(4)}) if final_norm else dict,
                )


def _then_norm(run: Callable[..., Array]) -> Callable[..., Array]:
    return lambda weights, *inputs: equations.layer_norm(weights.at("m_norm"), run(weights, *inputs))


class _TransformerDeclared(burn.Module):
    def __init__(self, norm_first: bool) -> None:
        self.encoder = burn.TransformerEncoder(4, 6, 2, 2, norm_first=norm_first)
        self.encoder_norm = burn.LayerNorm(4)
        self.decoder = burn.TransformerDecoder(4, 6, 2, 1, norm_first=norm_first)
        self.decoder_norm = burn.LayerNorm(4)


def _transformer(norm_first: bool) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a short cut that it does not take
        return _quietened(nn.Transformer(4, 2, 2, 1, 6, norm_first=norm_first, batch_first=True))


def _transformers() -> Iterator[Case]:
    for norm_first in (False, True):

        def run(p: Weights, source: Array, target: Array, first: bool = norm_first) -> Array:
            options: dict[str, Any] = {"heads": 2, "norm_first": first, "activation": equations.relu, "quiet": True}
            memory = equations.encoder(p.at("encoder"), source, **options)
            memory = equations.layer_norm(p.at("encoder_norm"), memory)
            found = equations.decoder(p.at("decoder"), target, memory, **options)
            return equations.layer_norm(p.at("decoder_norm"), found)

        yield Case(
            f"Transformer-{'pre' if norm_first else 'post'}-norm",
            lambda first=norm_first: _transformer(first),
            lambda first=norm_first: _TransformerDeclared(first),
            on_m(run),
            floats((2, 5, 4), (2, 3, 4)),
        )


# --- recurrent --------------------------------------------------------------------------------------------------------


def _recurrent() -> Iterator[Case]:
    kinds: dict[str, tuple[Any, Any, equations.Recurrent, dict[str, Any]]] = {
        "LSTM": (burn.Lstm, burn.BiLstm, equations.lstm, {}),
        "GRU": (burn.Gru, burn.BiGru, equations.gru, {}),
        "RNN": (burn.Rnn, burn.BiRnn, equations.rnn, {}),
        "RNN-relu": (
            burn.Rnn,
            burn.BiRnn,
            lambda p, x: equations.rnn(p, x, activation=equations.relu),
            {"nonlinearity": "relu"},
        ),
    }
    for label, (one_way, two_way, equation, more) in kinds.items():
        kind = label.partition("-")[0]
        for width, hidden in ((3, 5), (4, 4), (3, 1)):
            for layers in (1, 3):
                for bidirectional in (False, True):
                    for bias in (True, False):
                        if (width, hidden) != (3, 5) and (layers > 1 or not bias):
                            continue
                        if hidden == 1 and more:  # a single unit may never fire, and then no tensor counts
                            continue
                        words = [f"{width}x{hidden}"]
                        words += [f"{layers}-layers"] if layers > 1 else []
                        words += ["both-ways"] if bidirectional else []
                        words += [] if bias else ["no-bias"]
                        declared = two_way if bidirectional else one_way
                        step = equations.both_ways(equation) if bidirectional else equation
                        options = {"num_layers": layers, "bidirectional": bidirectional, "bias": bias, **more}
                        yield Case(
                            "-".join([label, *words]),
                            lambda k=kind, i=width, h=hidden, o=options: getattr(nn, k)(i, h, batch_first=True, **o),
                            lambda d=declared, i=width, h=hidden, n=layers, b=bias, two=bidirectional: _declared(
                                d, i, h, n, b, two
                            ),
                            on_m(step if layers == 1 else equations.one_after_the_other(step)),
                            floats((6, 5, width)),
                            lambda module, x: module(x)[0],
                        )
        for bias in (True, False):
            yield Case(
                f"{label}-cell{'' if bias else '-no-bias'}",
                lambda k=kind, b=bias, more=more: getattr(nn, f"{k}Cell")(3, 5, bias=b, **more),
                lambda d=one_way, b=bias: d(3, 5, b),
                on_m(equation),
                floats((2, 4, 3)),
                _steps,
            )


def _declared(kind: Any, width: int, hidden: int, layers: int, bias: bool, bidirectional: bool) -> Any:
    """One module, or a list of them: each further one reads what the one before it wrote."""
    inner = 2 * hidden if bidirectional else hidden
    made = [kind(width if layer == 0 else inner, hidden, bias) for layer in range(layers)]
    return made if layers > 1 else made[0]


def _steps(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    state: Any = None
    found = []
    for at in range(x.shape[1]):
        state = cell(x[:, at], state)
        found.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(found, dim=1)


STRUCTURAL_CASES = [
    *_attentions(),
    *_cross_attentions(),
    *_layers(),
    *_stacks(),
    *_transformers(),
    *_recurrent(),
]
