"""Layers without parameters, from one table: activations, losses, pools and others.

They add nothing to a file and keep their constructor arguments as attributes. Declare them where the Burn model has
them, or leave them out: paths and order stay the same. Arguments that Burn requires are positional, options keywords.

>>> LeakyRelu(negative_slope=0.2).negative_slope, Dropout(0.5)
(0.2, Dropout(prob=0.5))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from typing import Any

from .arguments import extent
from .module import Module

Check = Callable[[Any], None]
"""Refuses what a constructor was given, or brings it into the form that the layer keeps."""

# --- checks -----------------------------------------------------------------------------------------------------------


def _must(word: str, holds: Callable[[Any], bool], wanted: str) -> Check:
    def check(layer: Any) -> None:
        value = getattr(layer, word)
        if not holds(value):
            raise ValueError(f"{word} must be {wanted}, got {value}")

    return check


def _above_zero(word: str) -> Check:
    return _must(word, lambda value: value > 0, "above 0")


def _not_negative(word: str) -> Check:
    return _must(word, lambda value: value >= 0, "0 or more")


def _in_order(low: str, high: str) -> Check:
    def check(layer: Any) -> None:
        if not getattr(layer, low) <= getattr(layer, high):
            raise ValueError(f"{low} ({getattr(layer, low)}) must not be above {high} ({getattr(layer, high)})")

    return check


def _stride_from_kernel(layer: Any) -> None:
    word = "stride" if hasattr(layer, "stride") else "strides"
    if getattr(layer, word) is None:
        setattr(layer, word, layer.kernel_size)


def _weights_as_numbers(layer: Any) -> None:
    # An array in a field would be a parameter, and Burn does not store these weights.
    if layer.weights is not None:
        layer.weights = tuple(float(each) for each in layer.weights)
        if not all(each > 0 for each in layer.weights):
            raise ValueError(f"weights must be above 0, got {list(layer.weights)}")


def _response_as_numbers(layer: Any) -> None:
    layer.size = extent("size", layer.size)
    layer.alpha, layer.beta, layer.k = float(layer.alpha), float(layer.beta), float(layer.k)


_EVEN_MODEL = _must("d_model", lambda value: extent("d_model", value) % 2 == 0, "even")
_LOSS_WEIGHTS = [
    _weights_as_numbers,
    _must("smoothing", lambda value: value is None or 0 <= value <= 1, "between 0 and 1"),
]
_CHECKS: dict[str, Sequence[Check]] = {
    "Hardtanh": [
        *(_must(word, math.isfinite, "finite") for word in ("min_val", "max_val")),
        _in_order("min_val", "max_val"),
    ],
    "RRelu": [_in_order("lower", "upper")],
    "BinaryCrossEntropyLoss": _LOSS_WEIGHTS,
    "CrossEntropyLoss": _LOSS_WEIGHTS,
    "HuberLoss": [_above_zero("delta")],
    "LpLoss": [_above_zero("p")],
    "MarginRankingLoss": [_not_negative("margin")],
    "MultiMarginLoss": [_not_negative("margin"), _must("p", lambda value: value in (1, 2), "1 or 2")],
    "PoissonNllLoss": [_above_zero("eps")],
    "SmoothL1Loss": [_above_zero("beta")],
    "Dropout": [_must("prob", lambda value: 0 <= value < 1, "at least 0 and below 1")],
    "GaussianNoise": [_not_negative("std")],
    "LocalResponseNorm": [_response_as_numbers],
    "PositionalEncoding": [_EVEN_MODEL, _in_order("max_sequence_size", "max_timescale")],
    "RotaryEncoding": [_EVEN_MODEL, _above_zero("theta")],
    **{f"{kind}Pool{axes}d": [_stride_from_kernel] for kind in ("Avg", "Max", "Lp") for axes in (1, 2, 3)},
}


def _layer(name: str, doc: str, /, *required: str, **options: Any) -> type[Any]:
    """Make the class of a layer from its name, its docstring and its arguments."""

    def check_all(self: Any) -> None:
        for check in _CHECKS.get(name, ()):
            check(self)

    words = [(word, type(default), field(default=default, kw_only=True)) for word, default in options.items()]
    members = {"__doc__": doc, "__module__": __name__, "__post_init__": check_all}
    return make_dataclass(name, [*required, *words], bases=(Module,), namespace=members, eq=False)


# --- activations ------------------------------------------------------------------------------------------------------

Gelu = _layer("Gelu", "Gaussian error linear unit; Burn's config GeluApproximate sets approximate.", approximate=False)
Relu = _layer("Relu", "Rectified linear unit.")
LeakyRelu = _layer("LeakyRelu", "Rectified linear unit with a slope below zero.", negative_slope=0.01)
Selu = _layer("Selu", "Scaled exponential linear unit.")
Sigmoid = _layer("Sigmoid", "Logistic function.")
Tanh = _layer("Tanh", "Hyperbolic tangent.")
HardSigmoid = _layer("HardSigmoid", "Logistic function made of straight lines.", alpha=0.2, beta=0.5)
HardSwish = _layer("HardSwish", "Swish made of a hard sigmoid.")
Softplus = _layer("Softplus", "Smooth rectified linear unit.", beta=1.0)
Softsign = _layer("Softsign", "x / (1 + abs(x)).")
Elu = _layer("Elu", "Exponential linear unit.", alpha=1.0)
Celu = _layer("Celu", "Continuously differentiable exponential linear unit.", alpha=1.0)
ThresholdedRelu = _layer("ThresholdedRelu", "Zero up to alpha.", alpha=1.0)
HardShrink = _layer("HardShrink", "Zero between -lambda and lambda (Burn's argument is lambda).", lambda_=0.5)
SoftShrink = _layer("SoftShrink", "Zero between -lambda and lambda, moved towards zero outside.", lambda_=0.5)
Shrink = _layer("Shrink", "Zero between -lambda and lambda, moved by bias outside.", lambda_=0.5, bias=0.5)
GLU = _layer("GLU", "Gated linear unit along an axis.", "dim")
Hardtanh = _layer("Hardtanh", "Values held between two bounds.", min_val=-1.0, max_val=1.0)
LogSigmoid = _layer("LogSigmoid", "Logarithm of the logistic function.")
Mish = _layer("Mish", "x · tanh(softplus(x)).")
Relu6 = _layer("Relu6", "Rectified linear unit that ends at 6.")
RRelu = _layer("RRelu", "Leaky rectified linear unit, its slope random while training.", lower=1 / 8, upper=1 / 3)
SiLU = _layer("SiLU", "x · sigmoid(x).")
Tanhshrink = _layer("Tanhshrink", "x - tanh(x).")
Threshold = _layer("Threshold", "value up to threshold.", "threshold", "value")

# --- losses -----------------------------------------------------------------------------------------------------------

BinaryCrossEntropyLoss = _layer(
    "BinaryCrossEntropyLoss", "Binary cross entropy with targets.", weights=None, smoothing=None, logits=False
)
CrossEntropyLoss = _layer(
    "CrossEntropyLoss", "Cross entropy with classes.", pad_tokens=None, weights=None, smoothing=None, logits=True
)
CosineEmbeddingLoss = _layer("CosineEmbeddingLoss", "Cosine distance of pairs.", margin=0.0, reduction="Mean")
CTCLoss = _layer("CTCLoss", "Connectionist temporal classification.", blank=0, zero_infinity=False)
GaussianNLLLoss = _layer("GaussianNLLLoss", "Negative log likelihood of a Gaussian.", eps=1e-6, full=False)
HingeEmbeddingLoss = _layer("HingeEmbeddingLoss", "Hinge loss of pairs marked similar or dissimilar.", margin=1.0)
HuberLoss = _layer("HuberLoss", "Squared error up to delta, linear beyond.", "delta")
KLDivLoss = _layer("KLDivLoss", "Kullback-Leibler divergence.", log_target=False)
LpLoss = _layer("LpLoss", "The p-th power of the absolute error.", "p")
MarginRankingLoss = _layer("MarginRankingLoss", "Hinge loss of the order of two inputs.", margin=0.0)
MseLoss = _layer("MseLoss", "Mean squared error.")
MultiMarginLoss = _layer("MultiMarginLoss", "Hinge loss of classes.", margin=1.0, p=1)
PoissonNllLoss = _layer(
    "PoissonNllLoss", "Negative log likelihood of a Poisson distribution.", log_input=True, full=False, eps=1e-8
)
RNNTLoss = _layer("RNNTLoss", "The loss of an RNN transducer.", blank=0, logits=True)
SmoothL1Loss = _layer("SmoothL1Loss", "Squared error up to beta, absolute error beyond.", beta=1.0)
SoftMarginLoss = _layer("SoftMarginLoss", "Logistic loss of targets 1 and -1.")
TripletMarginLoss = _layer("TripletMarginLoss", "Distances to a positive and a negative example.", margin=1.0, p=2.0)

# --- pools: the stride is the kernel size unless given, and is spelled "strides" from two axes on ---------------------


def _pool(name: str, doc: str, **options: Any) -> type[Any]:
    stride = "stride" if "1d" in name else "strides"
    return _layer(name, doc, "kernel_size", **{stride: None}, **options)


_AVERAGE: dict[str, Any] = {"padding": "Valid", "count_include_pad": True, "ceil_mode": False}

AvgPool1d = _pool("AvgPool1d", "The average over windows of one axis.", **_AVERAGE)
AvgPool2d = _pool("AvgPool2d", "The average over windows of height and width.", **_AVERAGE)
AvgPool3d = _pool("AvgPool3d", "The average over windows of depth, height and width (Burn 0.23).", **_AVERAGE)
MaxPool1d = _pool("MaxPool1d", "The maximum over windows.", padding="Valid", dilation=1, ceil_mode=False)
MaxPool2d = _pool("MaxPool2d", "The maximum over windows.", padding="Valid", dilation=(1, 1), ceil_mode=False)
MaxPool3d = _pool("MaxPool3d", "The maximum (Burn 0.23).", padding="Valid", dilation=(1, 1, 1), ceil_mode=False)
LpPool1d = _pool("LpPool1d", "The power average over windows of one axis (Burn 0.23).", p=2.0, ceil_mode=False)
LpPool2d = _pool("LpPool2d", "The power average over windows of two axes (Burn 0.23).", p=2.0, ceil_mode=False)
AdaptiveAvgPool1d = _layer("AdaptiveAvgPool1d", "The average over a window per output element.", "output_size")
AdaptiveAvgPool2d = _layer("AdaptiveAvgPool2d", "The average over a window per output element.", "output_size")
AdaptiveAvgPool3d = _layer("AdaptiveAvgPool3d", "The average over a window per output element.", "output_size")

# --- others -----------------------------------------------------------------------------------------------------------

_RESIZE: dict[str, Any] = {"output_size": None, "scale_factor": None, "mode": "Nearest", "align_corners": True}
_SLIDE: dict[str, Any] = {"stride": (1, 1), "dilation": (1, 1), "padding": (0, 0)}

Identity = _layer("Identity", "The input, unchanged.")
Dropout = _layer("Dropout", "Zeros at random places while training.", "prob")
GaussianNoise = _layer("GaussianNoise", "Noise added while training.", "std")
LocalResponseNorm = _layer("LocalResponseNorm", "Norm over adjacent channels.", "size", alpha=1e-4, beta=0.75, k=1.0)
PositionalEncoding = _layer(
    "PositionalEncoding", "Sinusoids; Burn stores none.", "d_model", max_sequence_size=5000, max_timescale=10000
)
RotaryEncoding = _layer(
    "RotaryEncoding",
    "Rotations of queries and keys; Burn stores none.",
    "max_sequence_length",
    "d_model",
    theta=10000.0,
)
Interpolate1d = _layer("Interpolate1d", "Resize one axis to output_size or by scale_factor.", **_RESIZE)
Interpolate2d = _layer("Interpolate2d", "Resize height and width to output_size or by scale_factor.", **_RESIZE)
Unfold4d = _layer("Unfold4d", "Sliding blocks of a tensor of four axes.", "kernel_size", **_SLIDE)
Fold4d = _layer("Fold4d", "Sliding blocks joined into a tensor of four axes.", "output_size", "kernel_size", **_SLIDE)
PixelShuffle = _layer("PixelShuffle", "Move channels into height and width.", "upscale_factor")
PixelUnshuffle = _layer("PixelUnshuffle", "Move height and width into channels.", "downscale_factor")
CosineSimilarity = _layer("CosineSimilarity", "The cosine between two tensors along an axis.", dim=1, eps=1e-8)
PairwiseDistance = _layer("PairwiseDistance", "The distance between the rows of two tensors.", p=2.0, eps=1e-6)

__all__ = [name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__]
