"""Transformers: stacks of attention and feed-forward layers; there is no final norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from .activation import Activation, ActivationChoice
from .attention import MultiHeadAttention
from .initializer import Initializer
from .linear import KAIMING, Linear
from .module import Module
from .norm import LayerNorm
from .parameterless import Dropout
from .words import BURN_VERSION, extent, flag, minor_version


class PositionWiseFeedForward(Module):
    """Two linear layers with an activation between them.

    Up to Burn 0.22 the activation is not stored, so the parameters of a PRelu or SwiGlu there are lost; Burn 0.23
    stores them last. ``burn_version`` says which of the two the file is of.

    >>> from burnstore import nn
    >>> nn.PositionWiseFeedForward(2, 4, activation="PRelu").num_params()
    22
    >>> nn.PositionWiseFeedForward(2, 4, activation="PRelu", burn_version="0.23").num_params()
    23
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        initializer: Initializer = KAIMING,
        activation: ActivationChoice = "Gelu",
        burn_version: str = BURN_VERSION,
    ) -> None:
        self.linear_inner = Linear(d_model, d_ff, initializer=initializer)
        self.linear_outer = Linear(d_ff, d_model, initializer=initializer)
        self.dropout = Dropout(dropout)
        self.activation = Activation.build(activation)
        self.stores_activation = minor_version(burn_version) >= 23

    def fields(self) -> Iterable[tuple[str, Any]]:
        """The stored fields; the activation is one of them from Burn 0.23 on."""
        return (each for each in super().fields() if self.stores_activation or each[0] != "activation")


class TransformerEncoderLayer(Module):
    """One layer of a `TransformerEncoder`.

    With ``norm_first`` Burn applies ``norm_2`` before the attention and ``norm_1`` before the feed-forward layer: the
    other way round than PyTorch's ``norm1`` and ``norm2``.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_heads: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = False,
        quiet_softmax: bool = False,
        initializer: Initializer = KAIMING,
        activation: ActivationChoice = "Gelu",
        layer_norm_eps: float = 1e-5,
        burn_version: str = BURN_VERSION,
    ) -> None:
        self.mha = MultiHeadAttention(
            d_model, n_heads, dropout=dropout, quiet_softmax=quiet_softmax, initializer=initializer
        )
        self.pwff = PositionWiseFeedForward(
            d_model, d_ff, dropout=dropout, initializer=initializer, activation=activation, burn_version=burn_version
        )
        self.norm_1 = LayerNorm(d_model, epsilon=layer_norm_eps)
        self.norm_2 = LayerNorm(d_model, epsilon=layer_norm_eps)
        self.dropout = Dropout(dropout)
        self.norm_first = flag("norm_first", norm_first)


class TransformerDecoderLayer(Module):
    """One layer of a `TransformerDecoder`; the cross attention comes first in the file.

    With ``norm_first`` Burn applies ``norm_3`` before the self attention, ``norm_1`` before the cross attention and
    ``norm_2`` before the feed-forward layer; without, the norms follow in the order of their numbers, as in PyTorch.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_heads: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = False,
        quiet_softmax: bool = False,
        initializer: Initializer = KAIMING,
        activation: ActivationChoice = "Gelu",
        layer_norm_eps: float = 1e-5,
        burn_version: str = BURN_VERSION,
    ) -> None:
        self.cross_attn = MultiHeadAttention(
            d_model, n_heads, dropout=dropout, quiet_softmax=quiet_softmax, initializer=initializer
        )
        self.self_attn = MultiHeadAttention(
            d_model, n_heads, dropout=dropout, quiet_softmax=quiet_softmax, initializer=initializer
        )
        self.pwff = PositionWiseFeedForward(
            d_model, d_ff, dropout=dropout, initializer=initializer, activation=activation, burn_version=burn_version
        )
        self.norm_1 = LayerNorm(d_model, epsilon=layer_norm_eps)
        self.norm_2 = LayerNorm(d_model, epsilon=layer_norm_eps)
        self.norm_3 = LayerNorm(d_model, epsilon=layer_norm_eps)
        self.dropout = Dropout(dropout)
        self.norm_first = flag("norm_first", norm_first)


class _Stack(Module):
    """The constructor that the encoder and the decoder share."""

    _layer_type: ClassVar[type[TransformerEncoderLayer] | type[TransformerDecoderLayer]]

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_heads: int,
        n_layers: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = False,
        quiet_softmax: bool = False,
        initializer: Initializer = KAIMING,
        activation: ActivationChoice = "Gelu",
        layer_norm_eps: float = 1e-5,
        burn_version: str = BURN_VERSION,
    ) -> None:
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
    """A stack of `TransformerEncoderLayer`, built from the same words.

    >>> from burnstore import nn
    >>> nn.TransformerEncoder(2, 4, 2, 3).num_params()
    162
    """

    _layer_type = TransformerEncoderLayer
    layers: list[TransformerEncoderLayer]


class TransformerDecoder(_Stack):
    """A stack of `TransformerDecoderLayer`, built from the same words."""

    _layer_type = TransformerDecoderLayer
    layers: list[TransformerDecoderLayer]
