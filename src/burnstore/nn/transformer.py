"""Attention and transformers: stacks of attention and feed-forward layers, without a final norm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

from .activation import Activation, ActivationChoice
from .arguments import BURN_VERSION, check_divisible, extent, flag, minor_version
from .initializer import KAIMING, Initializer, KaimingUniform
from .linear import Linear
from .module import Module
from .norm import LayerNorm
from .parameterless import Dropout, Gelu

__all__ = [
    *("CrossAttention", "MultiHeadAttention", "PositionWiseFeedForward", "TransformerDecoder"),
    *("TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"),
]


class MultiHeadAttention(Module):
    """Four linear layers, whose shapes do not depend on the number of heads.

    Burn before 0.22 has no bias arguments and stores all four biases, as the default does.

    >>> from burnstore import nn
    >>> nn.MultiHeadAttention(8, 2, key_bias=False).num_params()
    280
    """

    def __init__(
        self, d_model: int, n_heads: int, *, dropout: float = 0.1, min_float: float = -1.0e4,
        quiet_softmax: bool = False, initializer: Initializer = KAIMING, key_bias: bool = True,
        value_bias: bool = True, query_bias: bool = True, output_bias: bool = True,
    ) -> None:  # fmt: skip
        n_heads = extent("n_heads", n_heads, least=1)
        self.query = Linear(d_model, d_model, bias=query_bias, initializer=initializer)
        self.key = Linear(d_model, d_model, bias=key_bias, initializer=initializer)
        self.value = Linear(d_model, d_model, bias=value_bias, initializer=initializer)
        self.output = Linear(d_model, d_model, bias=output_bias, initializer=initializer)
        self.dropout = Dropout(dropout)
        self.activation = Gelu()
        self.d_model = d_model
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.min_float = float(min_float)
        self.quiet_softmax = flag("quiet_softmax", quiet_softmax)


class CrossAttention(Module):
    """Attention from one sequence to another, with its own number of key and value heads (since Burn 0.20)."""

    def __init__(
        self, d_model: int, d_context: int, n_heads: int, n_heads_kv: int, d_head: int, *, dropout: float = 0.1,
        min_float: float = -1.0e4, quiet_softmax: bool = False,
    ) -> None:  # fmt: skip
        n_heads, n_heads_kv = extent("n_heads", n_heads), extent("n_heads_kv", n_heads_kv)
        d_head = extent("d_head", d_head, least=1)
        check_divisible("n_heads", n_heads, "n_heads_kv", n_heads_kv)
        initializer = KaimingUniform(gain=1 / math.sqrt(d_head))
        self.query = Linear(d_model, n_heads * d_head, initializer=initializer)
        self.key = Linear(d_context, n_heads_kv * d_head, initializer=initializer)
        self.value = Linear(d_context, n_heads_kv * d_head, initializer=initializer)
        self.output = Linear(n_heads * d_head, d_model, initializer=initializer)
        self.dropout = Dropout(dropout)
        self.n_heads = n_heads
        self.n_heads_kv = n_heads_kv
        self.d_head = d_head
        self.min_float = float(min_float)
        self.quiet_softmax = flag("quiet_softmax", quiet_softmax)


class PositionWiseFeedForward(Module):
    """Two linear layers with an activation between them.

    Up to Burn 0.22 the activation is not stored, so the parameters of a PRelu or SwiGlu are lost; Burn 0.23 stores
    them last. ``burn_version`` selects one of the two.

    >>> from burnstore import nn
    >>> nn.PositionWiseFeedForward(2, 4, activation="PRelu").num_params()
    22
    >>> nn.PositionWiseFeedForward(2, 4, activation="PRelu", burn_version="0.23").num_params()
    23
    """

    def __init__(
        self, d_model: int, d_ff: int, *, dropout: float = 0.1, initializer: Initializer = KAIMING,
        activation: ActivationChoice = "Gelu", burn_version: str = BURN_VERSION,
    ) -> None:  # fmt: skip
        self.linear_inner = Linear(d_model, d_ff, initializer=initializer)
        self.linear_outer = Linear(d_ff, d_model, initializer=initializer)
        self.dropout = Dropout(dropout)
        self.activation = Activation.build(activation)
        self.stores_activation = minor_version(burn_version) >= 23

    def fields(self) -> Iterable[tuple[str, Any]]:
        """Return the stored fields; the activation is one of them since Burn 0.23."""
        return (each for each in super().fields() if self.stores_activation or each[0] != "activation")


class _Layer(Module):
    """The constructor that the layers of encoders and decoders share."""

    _attentions: ClassVar[tuple[str, ...]]
    """The fields of the attentions in the order of the file; there is one norm more than attentions."""

    def __init__(
        self, d_model: int, d_ff: int, n_heads: int, *, dropout: float = 0.1, norm_first: bool = False,
        quiet_softmax: bool = False, initializer: Initializer = KAIMING, activation: ActivationChoice = "Gelu",
        layer_norm_eps: float = 1e-5, burn_version: str = BURN_VERSION,
    ) -> None:  # fmt: skip
        shared: dict[str, Any] = {"dropout": dropout, "initializer": initializer}
        for name in self._attentions:
            setattr(self, name, MultiHeadAttention(d_model, n_heads, quiet_softmax=quiet_softmax, **shared))
        self.pwff = PositionWiseFeedForward(d_model, d_ff, activation=activation, burn_version=burn_version, **shared)
        for number in range(1, len(self._attentions) + 2):
            setattr(self, f"norm_{number}", LayerNorm(d_model, epsilon=layer_norm_eps))
        self.dropout = Dropout(dropout)
        self.norm_first = flag("norm_first", norm_first)


class TransformerEncoderLayer(_Layer):
    """One layer of a `TransformerEncoder`.

    With ``norm_first`` Burn applies ``norm_2`` before the attention and ``norm_1`` before the feed-forward layer, the
    opposite of PyTorch's ``norm1`` and ``norm2``.
    """

    _attentions = ("mha",)
    mha: MultiHeadAttention
    norm_1: LayerNorm
    norm_2: LayerNorm


class TransformerDecoderLayer(_Layer):
    """One layer of a `TransformerDecoder`; the cross attention comes first in the file.

    With ``norm_first`` Burn applies ``norm_3`` before the self attention, ``norm_1`` before the cross attention and
    ``norm_2`` before the feed-forward layer; without, the norms follow in the order of their numbers, as in PyTorch.
    """

    _attentions = ("cross_attn", "self_attn")
    cross_attn: MultiHeadAttention
    self_attn: MultiHeadAttention
    norm_1: LayerNorm
    norm_2: LayerNorm
    norm_3: LayerNorm


class _Stack(Module):
    """The constructor that the encoder and the decoder share."""

    _layer_type: ClassVar[type[_Layer]]

    def __init__(
        self, d_model: int, d_ff: int, n_heads: int, n_layers: int, *, dropout: float = 0.1, norm_first: bool = False,
        quiet_softmax: bool = False, initializer: Initializer = KAIMING, activation: ActivationChoice = "Gelu",
        layer_norm_eps: float = 1e-5, burn_version: str = BURN_VERSION,
    ) -> None:  # fmt: skip
        self.layers: list[Any] = [
            self._layer_type(
                d_model,
                d_ff,
                n_heads,
                dropout=dropout,
                norm_first=norm_first,
                quiet_softmax=quiet_softmax,
                initializer=initializer,
                activation=activation,
                layer_norm_eps=layer_norm_eps,
                burn_version=burn_version,
            )
            for _ in range(extent("n_layers", n_layers))
        ]
        self.d_model = d_model
        self.d_ff = d_ff
        self.n_heads = n_heads
        self.n_layers = n_layers
        self.dropout = dropout
        self.norm_first = norm_first
        self.quiet_softmax = quiet_softmax


class TransformerEncoder(_Stack):
    """A stack of `TransformerEncoderLayer` with the same arguments.

    >>> from burnstore import nn
    >>> nn.TransformerEncoder(2, 4, 2, 3).num_params()
    162
    """

    _layer_type = TransformerEncoderLayer
    layers: list[TransformerEncoderLayer]


class TransformerDecoder(_Stack):
    """A stack of `TransformerDecoderLayer` with the same arguments."""

    _layer_type = TransformerDecoderLayer
    layers: list[TransformerDecoderLayer]
