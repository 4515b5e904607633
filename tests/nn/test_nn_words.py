"""What the constructors refuse, and what they keep."""

from __future__ import annotations

import math

import numpy as np
import pytest

from burnstore import nn
from burnstore.models.plain import walk

NAN, INF = math.nan, math.inf

REFUSED = [
    (lambda: nn.Conv1d(3, 4, 3, groups=2), "channels in"),
    (lambda: nn.Conv2d([4, 3], [3, 3], groups=2), "channels out"),
    (lambda: nn.Conv3d([4, 4], [3, 3, 3], groups=0), "groups"),
    (lambda: nn.Conv3d([4, 4], [3, 2, 3], padding="Same"), "odd"),
    (lambda: nn.Conv2d([4, 4], [3, 3], padding="same"), "Same"),
    (lambda: nn.Conv2d([4, 4], [3, 3], padding=(1, 1)), "top, left, bottom, right"),
    (lambda: nn.Conv1d(4, 4, 3, padding=(1, 1, 1)), "left, right"),
    (lambda: nn.Conv2d([4], [3, 3]), "in, out"),
    (lambda: nn.Conv2d([4, 4], [3]), "height, width"),
    (lambda: nn.Conv2d([4, 4], [3, 3], stride=[1, 1, 1]), "height, width"),
    (lambda: nn.ConvTranspose2d([3, 4], [3, 3], groups=2), "channels in"),
    (lambda: nn.ConvTranspose1d([4, 3], 3, groups=2), "channels out"),
    (lambda: nn.DeformConv2d([4, 3], [3, 3], weight_groups=2), "channels out"),
    (lambda: nn.DeformConv2d([4, 4], [3, 3], offset_groups=3), "offset_groups"),
    (lambda: nn.DeformConv2d([4, 4], [2, 3], padding="Same"), "odd"),
    (lambda: nn.Linear(-1, 2), "d_input"),
    (lambda: nn.Linear(2, 3, layout="row"), "layout"),
    (lambda: nn.BatchNorm(0), "num_features"),
    *((lambda epsilon=epsilon: nn.BatchNorm(3, epsilon=epsilon), "epsilon") for epsilon in (0, -1, NAN, INF)),
    *((lambda momentum=momentum: nn.BatchNorm(3, momentum=momentum), "momentum") for momentum in (-0.1, 1.1, NAN, INF)),
    (lambda: nn.GroupNorm(4, 6), "num_groups"),
    (lambda: nn.GroupNorm(0, 6), "num_groups"),
    (lambda: nn.RmsNorm(3, epsilon=0), "epsilon"),
    (lambda: nn.RmsNorm(3, epsilon=NAN), "epsilon"),
    (lambda: nn.MultiHeadAttention(4, 0), "n_heads"),
    *((lambda dropout=dropout: nn.MultiHeadAttention(4, 2, dropout=dropout), "prob") for dropout in (-0.1, 1.0, NAN)),
    (lambda: nn.CrossAttention(4, 4, 3, 2, 2), "n_heads_kv"),
    (lambda: nn.CrossAttention(4, 4, 2, 0, 2), "n_heads_kv"),
    (lambda: nn.CrossAttention(4, 4, 2, 2, 0), "d_head"),
    (lambda: nn.PositionalEncoding(3), "even"),
    (lambda: nn.PositionalEncoding(4, max_timescale=10), "max_timescale"),
    (lambda: nn.RotaryEncoding(10, 3), "even"),
    (lambda: nn.RotaryEncoding(10, 4, theta=0.0), "theta"),
    (lambda: nn.Dropout(1.0), "prob"),
    (lambda: nn.GaussianNoise(-1.0), "std"),
    (lambda: nn.RRelu(lower=0.5, upper=0.2), "lower"),
    (lambda: nn.Hardtanh(min_val=1.0, max_val=-1.0), "min_val"),
    (lambda: nn.Hardtanh(max_val=INF), "finite"),
    (lambda: nn.CrossEntropyLoss(weights=[1.0, 0.0]), "weights"),
    (lambda: nn.BinaryCrossEntropyLoss(smoothing=1.5), "smoothing"),
    (lambda: nn.HuberLoss(0.0), "delta"),
    (lambda: nn.LpLoss(0.0), "p"),
    (lambda: nn.MultiMarginLoss(p=3), "p must be 1 or 2"),
    (lambda: nn.MarginRankingLoss(margin=-1.0), "margin"),
    (lambda: nn.PoissonNllLoss(eps=0.0), "eps"),
    (lambda: nn.SmoothL1Loss(beta=0.0), "beta"),
    (lambda: nn.Rnn(2, 3, True, hidden_activation="tanh"), "not an activation"),
    (lambda: nn.Rnn(2, 3, True, hidden_activation="SwiGlu"), "sizes"),
    *(
        (lambda version=version: nn.Lstm(2, 3, True, burn_version=version), "burn_version")
        for version in ("0.18.0", "0.24.0", "22", "", "0.22.0-pre.2", "1.22.1")
    ),
    (lambda: nn.PositionWiseFeedForward(2, 3, burn_version="0.30"), "burn_version"),
    (lambda: nn.LoraAdapter(2, 3, 0, 1.0), "rank"),
    (lambda: nn.Param([2, -1]), "negative"),
    (lambda: nn.Param([2], nn.Normal(0.0, 1.0), dtype=nn.Param([1]).dtype.parse("I64")), "fills floats"),
    (lambda: nn.Normalization("Layers", nn.LayerNorm(2)), "Layer"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_burn_refuses_is_a_value_error_that_names_the_word(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Lstm(10, 20, 2), "bias must be True or False"),  # PyTorch's third word is the number of layers
        (lambda: nn.Gru(10, 20), "bias"),
        (lambda: nn.Linear(2.5, 3), "d_input must be an integer"),
        (lambda: nn.Linear(True, 3), "d_input must be an integer"),
        (lambda: nn.Linear(2, 3, bias=0), "bias must be True or False"),
        (lambda: nn.Linear(2, 3, False), "positional"),
        (lambda: nn.Conv2d(3, 8), "channels must be"),
        (lambda: nn.Conv2d([3, 8], 3), "kernel_size must be"),
        (lambda: nn.Conv1d(3, 8, [3]), "kernel_size must be an integer"),
        (lambda: nn.Linear(2, 3, initializer="zeros"), "initializer"),
        (lambda: nn.Linear(2, 3, biased=True), "biased"),
        (lambda: nn.LeakyRelu(slope=0.1), "slope"),
        (lambda: nn.Rnn(2, 3, True, hidden_activation=nn.LayerNorm(2)), "no variant holds LayerNorm"),
        (lambda: nn.Normalization.Layer(nn.RmsNorm(2)), "holds LayerNorm"),
        (lambda: nn.Param([2.0]), "integer"),
    ],
)
def test_a_word_of_the_wrong_kind_is_a_type_error(make, words):
    with pytest.raises(TypeError, match=words):
        make()


def test_a_failed_constructor_draws_and_leaves_nothing():
    with pytest.raises(ValueError, match="groups"):
        nn.Conv2d([4, 3], [3, 3], groups=2)


@pytest.mark.parametrize("padding", ["Same", "Valid", (1, 2)])
def test_paddings_of_one_axis(padding):
    assert nn.Conv1d(2, 2, 2, padding=padding).padding == padding  # Same with an even kernel is allowed here


@pytest.mark.parametrize(("padding", "kept"), [("Same", "Same"), ([1, 2, 3, 4], (1, 2, 3, 4))])
def test_paddings_of_two_axes(padding, kept):
    assert nn.Conv2d([2, 2], [2, 2], padding=padding).padding == kept
    assert nn.DeformConv2d([2, 2], [3, 3], padding=padding).padding == kept


def test_paddings_of_three_axes():
    assert nn.Conv3d([2, 2], [3, 3, 3], padding="Same").padding == "Same"
    assert nn.Conv3d([2, 2], [2, 3, 3], padding=[1, 2, 3]).padding == (1, 2, 3)


def test_numpy_integers_and_bools_are_words_too():
    linear = nn.Linear(np.int64(2), np.int32(3), bias=np.bool_(False))
    assert linear.weight.shape == (2, 3)
    assert linear.bias is None
    assert type(linear.weight.shape[0]) is int


def test_constants_are_kept_under_burns_names():
    conv = nn.ConvTranspose2d([2, 4], [3, 3], stride=[2, 2], padding_out=[1, 1])
    assert (conv.stride, conv.kernel_size, conv.padding, conv.padding_out, conv.channels) == (
        (2, 2),
        (3, 3),
        (0, 0),
        (1, 1),
        (2, 4),
    )
    attention = nn.MultiHeadAttention(7, 2)
    assert (attention.d_model, attention.n_heads, attention.d_k) == (7, 2, 3)
    assert nn.PRelu(alpha=0.5).alpha_value == 0.5
    assert nn.Gru(2, 3, True, reset_after=False).reset_after is False
    assert nn.TransformerDecoder(2, 4, 2, 1, norm_first=True).layers[0].norm_first is True
    bi = nn.BiRnn(2, 3, True, batch_first=False)
    assert (bi.batch_first, bi.forward.batch_first, bi.reverse.reverse) == (False, True, False)
    encoder = nn.TransformerEncoder(2, 4, 2, 1, layer_norm_eps=1e-3, quiet_softmax=True, dropout=0.0)
    assert encoder.layers[0].norm_2.epsilon == 1e-3
    assert encoder.layers[0].mha.quiet_softmax is True
    assert encoder.layers[0].pwff.dropout.prob == 0.0


PARAMETERLESS = [
    *(
        getattr(nn, name)()
        for name in ("Identity", "Gelu", "Relu", "LeakyRelu", "Selu", "Sigmoid", "Tanh", "HardSigmoid")
    ),
    *(
        getattr(nn, name)()
        for name in ("HardSwish", "Softplus", "Softsign", "Elu", "Celu", "ThresholdedRelu", "HardShrink")
    ),
    *(
        getattr(nn, name)()
        for name in ("SoftShrink", "Shrink", "Hardtanh", "LogSigmoid", "Mish", "Relu6", "RRelu", "SiLU")
    ),
    *(getattr(nn, name)() for name in ("Tanhshrink", "Interpolate1d", "Interpolate2d", "CosineSimilarity")),
    *(
        getattr(nn, name)()
        for name in ("PairwiseDistance", "MseLoss", "CTCLoss", "GaussianNLLLoss", "KLDivLoss", "RNNTLoss")
    ),
    *(getattr(nn, name)() for name in ("HingeEmbeddingLoss", "MarginRankingLoss", "MultiMarginLoss", "PoissonNllLoss")),
    *(getattr(nn, name)() for name in ("SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss", "CosineEmbeddingLoss")),
    nn.GLU(1),
    nn.Threshold(1.0, 20.0),
    nn.Dropout(0.5),
    nn.GaussianNoise(0.1),
    nn.LocalResponseNorm(5),
    nn.PositionalEncoding(8),
    nn.RotaryEncoding(16, 8),
    nn.AvgPool1d(2),
    nn.AvgPool2d([2, 2]),
    nn.AvgPool3d([2, 2, 2]),
    nn.MaxPool1d(2),
    nn.MaxPool2d([2, 2]),
    nn.MaxPool3d([2, 2, 2]),
    nn.LpPool1d(2),
    nn.LpPool2d([2, 2]),
    nn.AdaptiveAvgPool1d(2),
    nn.AdaptiveAvgPool2d([2, 2]),
    nn.AdaptiveAvgPool3d([2, 2, 2]),
    nn.Unfold4d([2, 2]),
    nn.Fold4d([4, 4], [2, 2]),
    nn.PixelShuffle(2),
    nn.PixelUnshuffle(2),
    nn.HuberLoss(1.0),
    nn.LpLoss(2.0),
    nn.CrossEntropyLoss(weights=np.array([1.0, 2.0]), pad_tokens=[0]),
    nn.BinaryCrossEntropyLoss(weights=[1.0, 2.0]),
]


@pytest.mark.parametrize("module", PARAMETERLESS, ids=lambda module: type(module).__name__)
def test_modules_without_parameters_add_nothing(module):
    assert list(walk(module)) == []
    assert module.num_params() == 0


def test_every_exported_layer_is_tried():
    tried = {type(module).__name__ for module in PARAMETERLESS}
    layers = {
        name for name in nn.__all__ if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    stored = {name for name in layers - tried if name not in {"Module", "LoraAdapter"}}
    from appendix import MODULES

    assert stored == set(MODULES)


def test_the_stride_of_a_pool_is_its_kernel_size_unless_given():
    assert nn.MaxPool1d(3).stride == 3
    assert nn.MaxPool1d(3, stride=1).stride == 1
    assert nn.AvgPool2d([2, 3]).strides == [2, 3]
    assert nn.HardShrink().lambda_ == nn.SoftShrink().lambda_ == nn.Shrink().lambda_ == 0.5
