"""The zoo: the modules of `interop/shared` declared with burnstore.nn, under the same names.

A row is a name, the version since which Burn has the model, and what makes it; the version that is asked for goes in,
because some layers store other tensors in other versions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from burnstore import nn
from burnstore.tensor.dtype import DType
from declared_models import Basic, Block, Bools, Empty, Enums, Leaf, Names, Nested, Scalars

from .program import NEWEST, VERSIONS

WITHOUT_CONTAINERS = {("0.19", "nested"): "a tuple is no container in Burn 0.19 and adds nothing to a path"}
"""Models that can be declared with the paths of a version, but not with its containers and kinds of modules."""

QUANTIZED = "quantized"
QUANTIZED_SHAPES = {"values": [4, 32], "odd": [3, 5], "small": [2, 8]}


class Outer(nn.Enum):
    Inner = nn.variant(Block)
    Leaf = nn.variant(Leaf)
    Many = nn.variant(list)
    Scale = nn.variant(nn.Param)


class NestedEnums(nn.Module):
    def __init__(self) -> None:
        self.first = Outer.Inner(Block.Dense(nn.Linear(3, 2)))
        self.rest = [Outer.Leaf(Leaf()), Outer.Many(_linears(2)), Outer.Scale(nn.Param([5]))]
        self.maybe = Outer.Inner(Block.Norm(nn.LayerNorm(4)))


class Containers(nn.Module):
    def __init__(self) -> None:
        self.grid = [_linears(2), _linears(1)]
        self.gaps = [nn.LayerNorm(2), None, nn.LayerNorm(3)]
        self.maybe_list = _linears(1)
        self.empty_list: list[nn.Linear] = []
        self.triple = (nn.Linear(2, 3), Leaf(), nn.Linear(3, 4))
        self.pairs = nn.FixedArray([(nn.Linear(n, 4), nn.LayerNorm(n)) for n in (2, 3)])
        self.eleven = nn.FixedArray([nn.RmsNorm(n) for n in range(1, 12)])


_UNSIGNED = (DType.U64, DType.U32, DType.U16, DType.U8)


class Dtypes(nn.Module):
    """0.22 on has all; the CPU backends before have no F16 and BF16, and not everything takes unsigned integers."""

    def __init__(self, version: str, *, unsigned: Sequence[DType]) -> None:
        half = _since("0.22", version)
        self.f64 = nn.Param([5], dtype=DType.F64)
        self.f32 = nn.Param([2, 3])
        self.f16 = nn.Param([7], dtype=DType.F16) if half else None
        self.bf16 = nn.Param([3, 3], dtype=DType.BF16) if half else None
        self.i64 = nn.Param([5], dtype=DType.I64)
        self.i32 = nn.Param([2, 3], dtype=DType.I32)
        self.i16 = nn.Param([5], dtype=DType.I16)
        self.i8 = nn.Param([5], dtype=DType.I8)
        self.u64, self.u32, self.u16, self.u8 = (
            nn.Param([5], dtype=dtype) if dtype in unsigned else None for dtype in _UNSIGNED
        )
        self.flag = nn.Param([3, 3], dtype=DType.Bool)


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        self.layers = _linears(count)


class PathlessPair(nn.Module):
    """A Linear and a LayerNorm whose parameters lie side by side: how Burn 0.19 names those of a tuple."""

    def __init__(self, linear: nn.Linear, norm: nn.LayerNorm) -> None:
        self.weight = linear.weight
        self.bias = linear.bias
        self.gamma = norm.gamma
        self.beta = norm.beta


def _nested(version: str) -> Nested:
    model = Nested()
    if version == "0.19":
        model.pair = PathlessPair(*model.pair)
    return model


class Quantized(nn.Module):
    """As many as the version has schemes: of a shape that fills words and blocks, of one that does not, and a small."""

    def __init__(self, paths: Sequence[str]) -> None:
        counts = {name: sum(path.startswith(f"{name}.") for path in paths) for name in QUANTIZED_SHAPES}
        self.values = [nn.Param(QUANTIZED_SHAPES["values"]) for _ in range(counts["values"])]
        self.odd = [nn.Param(QUANTIZED_SHAPES["odd"]) for _ in range(counts["odd"])]
        self.small = [nn.Param(QUANTIZED_SHAPES["small"]) for _ in range(counts["small"])]


class Tied(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(4, 3)
        self.second = copy.deepcopy(self.first)  # as a clone in Burn: the same ids, tensors of its own


class Activations(nn.Module):
    def __init__(self) -> None:
        swiglus = nn.SwiGlu(3, 5, bias=True), nn.SwiGlu(2, 2)
        chosen = "Gelu", nn.PRelu(num_parameters=3), "Relu", "LeakyRelu", swiglus[0], "Sigmoid", "Tanh", "HardSigmoid"
        self.items = [nn.Activation.build(each) for each in (*chosen, swiglus[1])]


class Norms(nn.Module):
    def __init__(self) -> None:
        layers = nn.BatchNorm(2), nn.GroupNorm(2, 4), nn.InstanceNorm(3), nn.LayerNorm(4), nn.RmsNorm(5)
        self.items = [nn.Normalization.of(layer) for layer in layers]


class Positional(nn.Module):
    """A tuple struct, whose fields have numbers; they may be modules from 0.23 on."""

    field_names = {"first": "0", "second": "1"}  # noqa: RUF012

    def __init__(self) -> None:
        self.first = nn.Linear(4, 3)
        self.second = nn.LayerNorm(3)


class Parameterless(nn.Module):
    def __init__(self) -> None:
        self.dropout = nn.Dropout(0.5)
        self.noise = nn.GaussianNoise(0.1)
        self.identity = nn.Identity()
        self.gelu = nn.Gelu()
        self.leaky_relu = nn.LeakyRelu()
        self.rrelu = nn.RRelu()
        self.max_pool = nn.MaxPool2d([2, 2])
        self.avg_pool = nn.AvgPool1d(2)
        self.adaptive = nn.AdaptiveAvgPool2d([2, 2])
        self.interpolate = nn.Interpolate2d()
        self.unfold = nn.Unfold4d([2, 2])
        self.shuffle = nn.PixelShuffle(2)
        self.local_response = nn.LocalResponseNorm(3)
        self.positions = nn.PositionalEncoding(4)
        self.rotary = nn.RotaryEncoding(8, 4)
        self.linear = nn.Linear(4, 3)
        self.cross_entropy = nn.CrossEntropyLoss()
        self.huber = nn.HuberLoss(1.0)


def _linears(count: int) -> list[nn.Linear]:
    return [nn.Linear(2, 3) for _ in range(count)]


def _lora() -> Basic:
    model = Basic()
    nn.apply_lora(model, 2, 4.0)
    return model


Make = Callable[[str], Any]
"""What makes a model as a version stores it."""


def _fixed(make: Callable[[], Any]) -> Make:
    return lambda version: make()


_ROWS: list[tuple[str, str, Make]] = [
    ("linear", "0.19", _fixed(lambda: nn.Linear(4, 3))),
    ("linear_no_bias", "0.19", _fixed(lambda: nn.Linear(4, 3, bias=False))),
    ("linear_col", "0.19", _fixed(lambda: nn.Linear(4, 3, layout="Col"))),
    ("linear_col_square", "0.19", _fixed(lambda: nn.Linear(4, 4, layout="Col"))),
    ("embedding", "0.19", _fixed(lambda: nn.Embedding(8, 4))),
    ("conv1d", "0.19", _fixed(lambda: nn.Conv1d(2, 3, 3))),
    ("conv1d_groups", "0.19", _fixed(lambda: nn.Conv1d(4, 6, 3, groups=2, bias=False))),
    ("conv2d", "0.19", _fixed(lambda: nn.Conv2d([2, 3], [3, 2]))),
    ("conv2d_groups", "0.19", _fixed(lambda: nn.Conv2d([4, 6], [3, 2], groups=2, bias=False))),
    ("conv3d", "0.19", _fixed(lambda: nn.Conv3d([2, 3], [3, 2, 1]))),
    ("conv3d_groups", "0.19", _fixed(lambda: nn.Conv3d([4, 6], [3, 2, 1], groups=2, bias=False))),
    ("conv_transpose1d", "0.19", _fixed(lambda: nn.ConvTranspose1d([2, 3], 3))),
    ("conv_transpose1d_groups", "0.19", _fixed(lambda: nn.ConvTranspose1d([4, 6], 3, groups=2, bias=False))),
    ("conv_transpose2d", "0.19", _fixed(lambda: nn.ConvTranspose2d([2, 3], [3, 2]))),
    ("conv_transpose2d_groups", "0.19", _fixed(lambda: nn.ConvTranspose2d([4, 6], [3, 2], groups=2, bias=False))),
    ("conv_transpose3d", "0.19", _fixed(lambda: nn.ConvTranspose3d([2, 3], [3, 2, 1]))),
    ("conv_transpose3d_groups", "0.19", _fixed(lambda: nn.ConvTranspose3d([4, 6], [3, 2, 1], groups=2, bias=False))),
    ("deform_conv2d", "0.19", _fixed(lambda: nn.DeformConv2d([2, 4], [3, 3]))),
    (
        "deform_conv2d_groups",
        "0.19",
        _fixed(lambda: nn.DeformConv2d([4, 6], [3, 3], weight_groups=2, offset_groups=2, bias=False)),
    ),
    ("batch_norm", "0.19", _fixed(lambda: nn.BatchNorm(6))),
    ("layer_norm", "0.19", _fixed(lambda: nn.LayerNorm(5))),
    ("layer_norm_no_bias", "0.20", _fixed(lambda: nn.LayerNorm(5, bias=False))),
    ("group_norm", "0.19", _fixed(lambda: nn.GroupNorm(2, 4))),
    ("group_norm_no_affine", "0.19", _fixed(lambda: nn.GroupNorm(2, 4, affine=False))),
    ("instance_norm", "0.19", _fixed(lambda: nn.InstanceNorm(3))),
    ("instance_norm_no_affine", "0.19", _fixed(lambda: nn.InstanceNorm(3, affine=False))),
    ("rms_norm", "0.19", _fixed(lambda: nn.RmsNorm(7))),
    ("prelu", "0.19", _fixed(nn.PRelu)),
    ("prelu_many", "0.19", _fixed(lambda: nn.PRelu(num_parameters=4, alpha=0.1))),
    ("swiglu", "0.19", _fixed(lambda: nn.SwiGlu(3, 5))),
    ("swiglu_bias", "0.19", _fixed(lambda: nn.SwiGlu(3, 5, bias=True))),
    ("multi_head_attention", "0.19", _fixed(lambda: nn.MultiHeadAttention(8, 2))),
    (
        "multi_head_attention_some_bias",
        "0.22",
        _fixed(lambda: nn.MultiHeadAttention(8, 2, key_bias=False, output_bias=False)),
    ),
    ("cross_attention", "0.20", _fixed(lambda: nn.CrossAttention(8, 6, 4, 2, 3))),
    ("position_wise_feed_forward", "0.19", _fixed(lambda: nn.PositionWiseFeedForward(4, 8))),
    (
        "position_wise_feed_forward_prelu",
        "0.21",
        lambda version: nn.PositionWiseFeedForward(4, 8, activation=nn.PRelu(), burn_version=version),
    ),
    ("transformer_encoder", "0.19", _fixed(lambda: nn.TransformerEncoder(4, 8, 2, 2))),
    ("transformer_encoder_norm_first", "0.19", _fixed(lambda: nn.TransformerEncoder(4, 8, 2, 1, norm_first=True))),
    ("transformer_encoder_layer", "0.21", _fixed(lambda: nn.TransformerEncoderLayer(4, 8, 2))),
    ("transformer_decoder", "0.19", _fixed(lambda: nn.TransformerDecoder(4, 8, 2, 2))),
    ("transformer_decoder_layer", "0.21", _fixed(lambda: nn.TransformerDecoderLayer(4, 8, 2))),
    ("gate_controller", "0.19", _fixed(lambda: nn.GateController(2, 3, True, nn.XavierNormal(1.0)))),
    ("rnn", "0.21", _fixed(lambda: nn.Rnn(2, 3, True))),
    ("rnn_no_bias", "0.21", _fixed(lambda: nn.Rnn(2, 3, False))),
    ("bi_rnn", "0.21", _fixed(lambda: nn.BiRnn(2, 3, True))),
    ("lstm", "0.19", _fixed(lambda: nn.Lstm(2, 3, True))),
    ("lstm_no_bias", "0.19", _fixed(lambda: nn.Lstm(2, 3, False))),
    ("lstm_input_forget", "0.20", lambda version: nn.Lstm(2, 3, True, input_forget=True, burn_version=version)),
    ("lstm_prelu", "0.20", _fixed(lambda: nn.Lstm(2, 3, True, gate_activation=nn.PRelu()))),
    ("bi_lstm", "0.19", _fixed(lambda: nn.BiLstm(2, 3, True))),
    ("gru", "0.19", _fixed(lambda: nn.Gru(2, 3, True))),
    ("gru_no_bias", "0.19", _fixed(lambda: nn.Gru(2, 3, False, reset_after=False))),
    ("bi_gru", "0.21", _fixed(lambda: nn.BiGru(2, 3, True))),
    ("activations", "0.19", _fixed(Activations)),
    ("norms", "0.19", _fixed(Norms)),
    ("basic", "0.19", _fixed(Basic)),
    ("nested", "0.19", _nested),
    ("enums", "0.19", _fixed(Enums)),
    ("nested_enums", "0.19", _fixed(NestedEnums)),
    ("containers", "0.20", _fixed(Containers)),
    ("names", "0.19", _fixed(Names)),
    ("scalars", "0.19", _fixed(Scalars)),
    ("bools", "0.19", _fixed(Bools)),
    ("dtypes", "0.19", lambda version: Dtypes(version, unsigned=_UNSIGNED)),
    ("dtypes_no_u16", "0.19", lambda version: Dtypes(version, unsigned=(DType.U64, DType.U32, DType.U8))),
    ("dtypes_signed", "0.19", lambda version: Dtypes(version, unsigned=())),
    ("empty", "0.19", _fixed(Empty)),
    ("tied", "0.19", _fixed(Tied)),
    ("many", "0.19", _fixed(lambda: Layers(2500))),
    ("lora", "0.22", _fixed(_lora)),
    ("parameterless", "0.22", _fixed(Parameterless)),
    ("positional", "0.23-pre", _fixed(Positional)),
    ("fwd_linear", "0.22", _fixed(lambda: nn.Linear(5, 4))),
    ("fwd_conv1d", "0.22", _fixed(lambda: nn.Conv1d(4, 6, 3, groups=2))),
    ("fwd_conv2d", "0.22", _fixed(lambda: nn.Conv2d([3, 4], [3, 2]))),
    ("fwd_conv_transpose2d", "0.22", _fixed(lambda: nn.ConvTranspose2d([3, 4], [3, 2]))),
    ("fwd_batch_norm", "0.22", _fixed(lambda: nn.BatchNorm(6))),
    ("fwd_layer_norm", "0.22", _fixed(lambda: nn.LayerNorm(5))),
    ("fwd_group_norm", "0.22", _fixed(lambda: nn.GroupNorm(2, 6))),
    ("fwd_rms_norm", "0.22", _fixed(lambda: nn.RmsNorm(7))),
    ("fwd_embedding", "0.22", _fixed(lambda: nn.Embedding(10, 4))),
    ("fwd_mha", "0.22", _fixed(lambda: nn.MultiHeadAttention(8, 2))),
    ("fwd_transformer_encoder", "0.22", _fixed(lambda: nn.TransformerEncoder(8, 16, 2, 2))),
    ("fwd_transformer_decoder", "0.22", _fixed(lambda: nn.TransformerDecoder(8, 16, 2, 2))),
    ("fwd_lstm", "0.22", _fixed(lambda: nn.Lstm(5, 6, True))),
    ("fwd_gru", "0.22", _fixed(lambda: nn.Gru(5, 6, True))),
    ("fwd_bilstm", "0.22", _fixed(lambda: nn.BiLstm(5, 6, True))),
]

_MAKE = {name: make for name, _, make in _ROWS}


def _since(first: str, version: str) -> bool:
    return VERSIONS.index(first) <= VERSIONS.index(version)


def models_of(version: str) -> list[str]:
    """The models that this version of Burn has; those with a forward pass are part of one program only."""
    known = [name for name, since, _ in _ROWS if _since(since, version)]
    return [QUANTIZED, *(name for name in known if version == NEWEST or not name.startswith("fwd_"))]


def declare(model: str, version: str, paths: Sequence[str] = ()) -> Any:
    """The model of that name, as that version stores it; the quantized one has what Burn has, by its paths."""
    return Quantized(paths) if model == QUANTIZED else _MAKE[model](version)


def spelled(container_stack: Sequence[str], version: str) -> tuple[str, ...]:
    """A container stack as a version spells it: 0.19 has bare names, and calls an array a Vec when it collects."""
    if version != "0.19":
        return tuple(container_stack)
    bare = (entry.rpartition(":")[2] for entry in container_stack)
    return tuple("Vec" if entry == "Array" else entry for entry in bare)
