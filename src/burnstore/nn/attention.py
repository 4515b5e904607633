"""Attention: four linear layers each; the shapes do not depend on the number of heads."""

from __future__ import annotations

import math

from .activation import Gelu
from .initializer import Initializer, KaimingUniform
from .linear import KAIMING, Linear
from .module import Module
from .parameterless import Dropout
from .words import divisible, extent, flag


class MultiHeadAttention(Module):
    """Multi-head attention; Burn before 0.22 has no bias words and stores all four biases, as the default does.

    >>> from burnstore import nn
    >>> nn.MultiHeadAttention(8, 2, key_bias=False).num_params()
    280
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        dropout: float = 0.1,
        min_float: float = -1.0e4,
        quiet_softmax: bool = False,
        initializer: Initializer = KAIMING,
        key_bias: bool = True,
        value_bias: bool = True,
        query_bias: bool = True,
        output_bias: bool = True,
    ) -> None:
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
    """Attention from one sequence to another, with its own number of key and value heads (Burn 0.20 on)."""

    def __init__(
        self,
        d_model: int,
        d_context: int,
        n_heads: int,
        n_heads_kv: int,
        d_head: int,
        *,
        dropout: float = 0.1,
        min_float: float = -1.0e4,
        quiet_softmax: bool = False,
    ) -> None:
        n_heads, n_heads_kv = extent("n_heads", n_heads), extent("n_heads_kv", n_heads_kv)
        d_head = extent("d_head", d_head, least=1)
        divisible("n_heads", n_heads, "n_heads_kv", n_heads_kv)
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
