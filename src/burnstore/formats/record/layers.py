"""The fields that Burn's own layers have in a record, in their order, by release.

A word is the name of a field. ``name/`` is a constant; ``name/2`` one that is an array of two, whose entries releases
up to 0.20 store one by one. ``name?`` is an Option. ``name=Layer`` holds the same tensors as a layer of that kind. A
layer that is not listed has no tensors and is a single constant.
"""

from __future__ import annotations

_CONV = "weight bias? stride/{n} kernel_size/{n} dilation/{n}"
_TRANSPOSED = f"{_CONV} groups/ padding/{{n}} padding_out/{{n}}"
_ATTENTION = "query key value output dropout/ activation/"
_STACK = "layers d_model/ d_ff/ n_heads/ n_layers/ dropout/ norm_first/ quiet_softmax/"
_GATES = "input_gate forget_gate output_gate cell_gate d_hidden/"

# Each row: the first release that it describes, and the fields; the last row that applies counts.
_FIELDS: dict[str, tuple[tuple[int, str], ...]] = {
    "Linear": ((0, "weight bias?"),),
    "Embedding": ((0, "weight"),),
    "Conv1d": ((0, _CONV.format(n="") + " groups/ padding/"),),
    "Conv2d": ((0, _CONV.format(n=2) + " groups/ padding/"),),
    "Conv3d": ((0, _CONV.format(n=3) + " groups/ padding/"),),
    "ConvTranspose1d": ((0, _TRANSPOSED.format(n="")), (14, _TRANSPOSED.format(n="") + " channels/2")),
    "ConvTranspose2d": ((0, _TRANSPOSED.format(n=2)), (14, _TRANSPOSED.format(n=2) + " channels/2")),
    "ConvTranspose3d": ((0, _TRANSPOSED.format(n=3)), (14, _TRANSPOSED.format(n=3) + " channels/2")),
    "DeformConv2d": ((0, _CONV.format(n=2) + " weight_groups/ offset_groups/ padding/"),),
    "BatchNorm": ((0, "gamma beta running_mean running_var momentum/ epsilon/"),),
    "LayerNorm": ((0, "gamma beta epsilon/"), (20, "gamma beta? epsilon/")),
    "GroupNorm": (
        (0, "num_groups/ num_channels/ gamma? beta? epsilon/ affine/"),
        (14, "gamma? beta? num_groups/ num_channels/ epsilon/ affine/"),
    ),
    "InstanceNorm": ((0, "group_norm=GroupNorm"), (14, "gamma? beta? num_channels/ epsilon/ affine/")),
    "RmsNorm": ((0, "gamma epsilon/"),),
    "PRelu": ((0, "alpha"), (14, "alpha alpha_value/")),
    "SwiGlu": ((0, "linear_inner linear_outer"),),
    "GateController": ((0, "input_transform hidden_transform"),),
    "Lstm": (
        (0, _GATES),
        (20, f"{_GATES} batch_first/ reverse/ clip/ input_forget/ gate_activation cell_activation hidden_activation"),
    ),
    "BiLstm": ((0, "forward reverse d_hidden/"), (20, "forward reverse d_hidden/ batch_first/")),
    "Gru": (
        (0, "update_gate reset_gate new_gate d_hidden/"),
        (17, "update_gate reset_gate new_gate d_hidden/ reset_after/"),
        (21, "update_gate reset_gate new_gate d_hidden/ reset_after/ gate_activation hidden_activation clip/"),
    ),
    "BiGru": ((0, "forward reverse d_hidden/ batch_first/"),),
    "Rnn": ((0, "gate d_hidden/ batch_first/ reverse/ clip/ hidden_activation"),),
    "BiRnn": ((0, "forward reverse d_hidden/ batch_first/"),),
    "MultiHeadAttention": (
        (0, f"{_ATTENTION} n_heads/ d_k/ min_float/ quiet_softmax/"),
        (14, f"{_ATTENTION} d_model/ n_heads/ d_k/ min_float/ quiet_softmax/"),
    ),
    "CrossAttention": (
        (0, "query key value output dropout/ n_heads/ n_heads_kv/ d_head/ scale/ min_float/ quiet_softmax/"),
    ),
    "PositionWiseFeedForward": (
        (0, "linear_inner linear_outer dropout/ gelu/"),
        (21, "linear_inner linear_outer dropout/ activation/"),
    ),
    "TransformerEncoderLayer": ((0, "mha pwff norm_1 norm_2 dropout/ norm_first/"),),
    "TransformerDecoderLayer": ((0, "cross_attn self_attn pwff norm_1 norm_2 norm_3 dropout/ norm_first/"),),
    "TransformerEncoder": ((0, "layers"), (14, _STACK)),
    "TransformerDecoder": ((0, "layers"), (14, _STACK)),
    "PositionalEncoding": ((0, "sinusoids/"), (14, "sinusoids/ max_sequence_size/ max_timescale/")),
    "RotaryEncoding": (
        (0, "freq_complex/"),
        (14, "freq_complex/ max_sequence_length/ theta/"),
        (18, "freq_complex/ theta/ start_offset/"),
    ),
}

_VARIANTS: dict[str, tuple[tuple[int, str], ...]] = {
    "Activation": (
        (19, "Gelu PRelu Relu LeakyRelu SwiGlu Sigmoid Tanh HardSigmoid"),
        (20, "Gelu PRelu Relu LeakyRelu SwiGlu Sigmoid Tanh HardSigmoid HardSwish Softplus"),
        (
            21,
            "Gelu PRelu Relu LeakyRelu SwiGlu Selu Sigmoid Tanh HardSigmoid HardSwish Softplus Softsign Elu Celu "
            "ThresholdedRelu HardShrink SoftShrink Shrink",
        ),
    ),
    "Normalization": ((19, "Batch Group Instance Layer Rms"),),
}


def fields_of(layer: str, minor: int) -> list[str] | None:
    """Return the words of a layer's fields in that release; None for a constant."""
    rows = _FIELDS.get(layer)
    return None if rows is None else _newest(rows, minor).split()


def variants_of(enum: str, minor: int) -> list[str]:
    """Return the variants of one of Burn's own enums in that release."""
    return _newest(_VARIANTS[enum], minor).split()


def _newest(rows: tuple[tuple[int, str], ...], minor: int) -> str:
    return [words for since, words in rows if since <= minor or since == rows[0][0]][-1]
